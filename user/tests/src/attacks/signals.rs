//! Signals without end.

use crate::{USER, as_user, become_user, beside, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    (
        "attacks: signals queued for a process that blocks them",
        queued,
    ),
    ("attacks: a ring of processes that signal each other", ring),
    ("attacks: timers that expire each microsecond", fast_timers),
    (
        "attacks: a parent of thousands of zombies ends",
        zombies_of_one,
    ),
    (
        "attacks: a parent of many groups that have stopped ends",
        stopped_groups,
    ),
    ("attacks: waits beside thousands of zombies", waits),
    (
        "attacks: a signal for whoever takes the parent's place",
        signal_for_heir,
    ),
    (
        "attacks: processes for the last places of a user",
        last_places,
    ),
];

/// A queue of signals is bounded for the user, however many processes it has.
fn queued() -> Outcome {
    as_user(|| {
        let blocked = spawn(|| {
            block(&[SIGRTMIN()])?;
            sleep_forever()
        })?;
        pause_ms(10);
        let value = sigval {
            sival_ptr: null_mut(),
        };
        let mut refused = 0;
        while_attacking(|| {
            for _ in 0..4096 {
                // SAFETY: sends a signal to a child.
                if unsafe { sigqueue(blocked, SIGRTMIN(), value) } == -1 {
                    equal!(errno(), EAGAIN);
                    refused += 1;
                }
            }
            Ok(())
        })?;
        ensure!(refused > 0, "no signal was refused");
        kill_child(blocked)?;
        Ok(())
    })
}

/// How many children the kernel must hand over, or look through, at once.
const CHILDREN: usize = 600;

/// Makes [`CHILDREN`], or as many as the kernel allows, that run `body` and end.
fn many_children(body: impl Fn()) -> Result<usize> {
    for count in 0..CHILDREN {
        // SAFETY: this process has one thread.
        match unsafe { fork() } {
            0 => {
                body();
                exit(0)
            }
            -1 => return Ok(count),
            _ => {}
        }
    }
    Ok(CHILDREN)
}

/// All of them get the first process as their parent at once, which is told of each.
fn zombies_of_one() -> Outcome {
    beside(|| {
        while_attacking(|| {
            let parent = spawn(|| {
                ensure!(many_children(|| ())? > 100, "too few");
                Ok(())
            })?;
            wait_ok(parent)
        })
    })
}

/// With their parent, groups lose what could continue them: they get signals.
fn stopped_groups() -> Outcome {
    beside(|| {
        while_attacking(|| {
            let parent = spawn(|| {
                let stop = || {
                    // SAFETY: a group of its own, and a signal to itself.
                    unsafe {
                        setpgid(0, 0);
                        raise(SIGSTOP);
                    }
                };
                ensure!(many_children(stop)? > 100, "too few");
                Ok(())
            })?;
            wait_ok(parent)
        })
    })
}

/// Each wait for a child that goes on looks at all that have ended and are not asked for.
fn waits() -> Outcome {
    beside(|| {
        let made = many_children(|| ())?;
        ensure!(made > 100, made);
        while_attacking(|| {
            let mut status = 0;
            for _ in 0..100 {
                // SAFETY: asks for children of a group that has none.
                let none = unsafe { waitpid(-getpid() - 100_000, &mut status, WNOHANG) };
                equal!((none, errno()), (-1, ECHILD));
                // SAFETY: likewise, for children that have stopped: all have ended.
                let mut info: siginfo_t = unsafe { zeroed() };
                // SAFETY: fills a local.
                unsafe { waitid(P_ALL, 0, &mut info, WSTOPPED | WNOHANG) };
            }
            Ok(())
        })
    })
}

/// A process makes siblings that end with a signal for its parent while the parent ends: root's
/// process, which takes its place, must not get that signal.
fn signal_for_heir() -> Outcome {
    static RECEIVED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn note(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        RECEIVED.fetch_add(1, SeqCst);
    }
    child(|| {
        call!(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
        handle(SIGUSR1, note, SA_RESTART)?;
        while_attacking(|| {
            let parent = spawn(|| {
                become_user(USER)?;
                // It takes a while until all of them have another parent.
                many_children(|| ())?;
                // SAFETY: as a fork, but the end of the child is told by another signal.
                let maker = unsafe { syscall(SYS_clone, SIGUSR1, 0, 0, 0, 0) };
                if maker == 0 {
                    for _ in 0..200 {
                        // SAFETY: likewise, for a sibling, which ends at once.
                        if unsafe { syscall(SYS_clone, CLONE_PARENT, 0, 0, 0, 0) } == 0 {
                            exit(0);
                        }
                    }
                    exit(0);
                }
                pause_ms(5);
                Ok(())
            })?;
            let mut status = 0;
            // SAFETY: waits for children, all of which end, into a local.
            while unsafe { waitpid(-1, &mut status, __WALL) } != -1 {}
            let _ = parent;
            equal!(RECEIVED.load(SeqCst), 0);
            Ok(())
        })
    })
}

/// Many fork at the same time where `RLIMIT_NPROC` has room for a few.
fn last_places() -> Outcome {
    const RACERS: u32 = 8;
    const ROOM: u32 = 3;
    as_user(|| {
        let most = u64::from(1 + RACERS + ROOM);
        call!(setrlimit(RLIMIT_NPROC, &limit_of(most)));
        while_attacking(|| {
            let count = || shared_value(AtomicU32::new(0));
            let (ready, tried, made, done) = (count()?, count()?, count()?, count()?);
            let wait_for = |count: &AtomicU32, value: u32| {
                while count.load(SeqCst) != value {
                    thread::yield_now();
                }
            };
            let racer = |_| {
                spawn(|| {
                    ready.fetch_add(1, SeqCst);
                    wait_for(ready, RACERS);
                    // SAFETY: this process has one thread.
                    match unsafe { fork() } {
                        0 => {
                            wait_for(done, 1);
                            exit(0)
                        }
                        -1 => {
                            equal!(errno(), EAGAIN);
                            tried.fetch_add(1, SeqCst);
                            // Its end would make room.
                            wait_for(done, 1);
                            Ok(())
                        }
                        pid => {
                            made.fetch_add(1, SeqCst);
                            tried.fetch_add(1, SeqCst);
                            wait_ok(pid)
                        }
                    }
                })
            };
            let racers = (0..RACERS).map(racer).collect::<Result<Vec<_>>>()?;
            wait_for(tried, RACERS);
            let made = made.load(SeqCst);
            done.store(1, SeqCst);
            wait_all(racers)?;
            ensure!(made <= ROOM, made);
            Ok(())
        })
    })
}

/// Each process sends its neighbour a signal, whose handler sends one on.
fn ring() -> Outcome {
    as_user(|| {
        let pids = shared_map(PAGE)?.cast::<AtomicI32>();
        // SAFETY: the page holds this many, and lives as long as the process.
        let pids = unsafe { std::slice::from_raw_parts(pids, 32) };
        let mut children = Vec::new();
        for place in 0..pids.len() {
            let next = &pids[(place + 1) % pids.len()];
            let member = spawn(|| {
                handle(SIGUSR2, ignore_signal, 0)?;
                loop {
                    let pid = next.load(Relaxed);
                    if pid > 0 {
                        // SAFETY: signals a sibling.
                        unsafe { kill(pid, if pid % 2 == 0 { SIGUSR2 } else { SIGCONT }) };
                    }
                }
            })?;
            pids[place].store(member, Relaxed);
            children.push(member);
        }
        while_attacking(|| {
            pause_ms(10);
            Ok(())
        })?;
        for member in children {
            kill_child(member)?;
        }
        Ok(())
    })
}

/// Timers whose signals come faster than a program can take them cost the program that set them,
/// and no other one.
fn fast_timers() -> Outcome {
    beside(|| {
        let attacker = spawn(|| {
            handle(SIGRTMIN(), ignore_signal, 0)?;
            let mut timers = Vec::new();
            for _ in 0..64 {
                // SAFETY: all zeros is a valid event; the calls fill and read locals.
                let mut event: sigevent = unsafe { zeroed() };
                event.sigev_notify = SIGEV_SIGNAL;
                event.sigev_signo = SIGRTMIN();
                let mut timer = null_mut();
                call!(timer_create(CLOCK_MONOTONIC, &mut event, &mut timer));
                timers.push(timer);
            }
            let microsecond = itimerspec {
                it_interval: time_spec(0, 1000),
                it_value: time_spec(0, 1000),
            };
            loop {
                for timer in &timers {
                    call!(timer_settime(*timer, 0, &microsecond, null_mut()));
                }
            }
        })?;
        while_attacking(|| {
            pause_ms(10);
            Ok(())
        })?;
        kill_child(attacker)?;
        Ok(())
    })
}
