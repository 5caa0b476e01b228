//! Crowds behind one event: timers at one instant, waiters for one word, observers of one file,
//! members of a group, children of one process. Each program makes more of them than any sane one,
//! and every CPU goes on to answer.

use crate::meshes::{crowd_of, drop_all, make, many_files, try_add};
use crate::{beside, while_attacking};
use support::numbers::Numbers;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("attacks: thousands of timers at one instant", one_instant),
    ("attacks: thousands of sleepers until one instant", sleepers),
    ("attacks: a thousand readers of one counter", readers),
    ("attacks: a thousand waiters for one word", futex_waiters),
    (
        "attacks: a chain of owners, each of which waits for the next",
        owners,
    ),
    (
        "attacks: a thousand waiters for a word each beside two others",
        waiters_for_many,
    ),
    (
        "attacks: a thousand waiters for one word beside two others",
        waiters_for_one,
    ),
    ("attacks: signals for files of a crowd", asynchronous),
    ("attacks: one folder watched by all", watched_folder),
    (
        "attacks: a child continues a parent whose timer stops it",
        continued,
    ),
    ("attacks: parents of many that end", many_children),
    (
        "attacks: a watched process ends, and ends again",
        watched_children,
    ),
    (
        "attacks: a task that others send from CPU to CPU",
        sent_about,
    ),
];

/// Others change the affinity of a process that changes its own: it is on its way all the time.
fn sent_about() -> Outcome {
    beside(|| {
        let send = |process: pid_t, numbers: &mut Numbers| -> Outcome {
            let mask = 1u64 << numbers.below(cpus() as u64);
            call!(syscall(SYS_sched_setaffinity, process, 8, &mask));
            Ok(())
        };
        let sent = spawn(|| {
            let mut numbers = Numbers::new(1);
            loop {
                send(0, &mut numbers)?;
            }
        })?;
        let mut senders = Vec::new();
        for number in 2..6 {
            senders.push(spawn(move || {
                let mut numbers = Numbers::new(number);
                loop {
                    send(sent, &mut numbers)?;
                }
            })?);
        }
        let outcome = while_attacking(|| {
            pause_ms(20);
            Ok(())
        });
        for child in senders.into_iter().chain([sent]) {
            kill_child(child)?;
        }
        outcome
    })
}

fn one_instant() -> Outcome {
    beside(|| {
        many_files()?;
        let epoll = make()?;
        let mut timers = Vec::new();
        for _ in 0..3000 {
            let timer = call!(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
            try_add(epoll, timer, EPOLLIN | EPOLLET);
            timers.push(timer);
        }
        while_attacking(|| {
            let setting = itimerspec {
                it_interval: time_spec(0, 0),
                it_value: after(CLOCK_MONOTONIC, 30)?,
            };
            for &timer in &timers {
                call!(timerfd_settime(
                    timer,
                    TFD_TIMER_ABSTIME,
                    &setting,
                    null_mut()
                ));
            }
            pause_ms(35);
            Ok(())
        })?;
        drop_all(timers);
        Ok(())
    })
}

/// Runs `body` in so many threads of small stacks, until it gives false.
fn crowd(count: usize, body: impl Fn() -> bool + Send + Sync) -> usize {
    thread::scope(|scope| {
        let body = &body;
        let start = |_| {
            let builder = thread::Builder::new().stack_size(16 << 10);
            builder.spawn_scoped(scope, move || while body() {}).ok()
        };
        (0..count).map_while(start).count()
    })
}

fn sleepers() -> Outcome {
    beside(|| {
        let begin = Instant::now();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let ended = while_attacking(|| {
                    pause_ms(20);
                    Ok(())
                });
                over.store(true, SeqCst);
                ended
            });
            crowd(1000, || {
                // All wake at the same multiple of 20 ms.
                let now = begin.elapsed().as_nanos() as u64;
                let next = Duration::from_nanos(now.next_multiple_of(20_000_000));
                thread::sleep(next.saturating_sub(begin.elapsed()));
                !over.load(SeqCst)
            });
        });
        Ok(())
    })
}

fn readers() -> Outcome {
    beside(|| {
        let counter = call!(eventfd(0, 0));
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let ended = while_attacking(|| {
                    write_bytes(&counter, &1u64.to_ne_bytes())?;
                    pause_ms(1);
                    Ok(())
                });
                over.store(true, SeqCst);
                let _ = write_bytes(&counter, &1_000_000u64.to_ne_bytes());
                ended
            });
            crowd(1000, || {
                let mut number = 0u64;
                // SAFETY: reads into a local.
                unsafe { read(counter, (&raw mut number).cast(), 8) };
                if over.load(SeqCst) {
                    let _ = write_bytes(&counter, &1u64.to_ne_bytes());
                    return false;
                }
                true
            });
        });
        Ok(())
    })
}

fn futex_waiters() -> Outcome {
    beside(|| {
        let word = AtomicU32::new(0);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let ended = while_attacking(|| {
                    word.fetch_add(1, SeqCst);
                    futex(&word, FUTEX_WAKE, i32::MAX as u32, None);
                    pause_ms(1);
                    Ok(())
                });
                over.store(true, SeqCst);
                word.fetch_add(1, SeqCst);
                futex(&word, FUTEX_WAKE, i32::MAX as u32, None);
                ended
            });
            crowd(1000, || {
                let now = word.load(SeqCst);
                if over.load(SeqCst) {
                    return false;
                }
                futex_wait(&word, now);
                true
            });
        });
        Ok(())
    })
}

/// Takes a word, after a sleep if it has an owner.
fn lock(word: &AtomicU32) {
    // SAFETY: asks for a number.
    let own = unsafe { gettid() } as u32;
    if word.compare_exchange(0, own, SeqCst, SeqCst).is_err() {
        futex(word, FUTEX_LOCK_PI, 0, None);
    }
}

fn unlock(word: &AtomicU32) {
    // SAFETY: asks for a number.
    let own = unsafe { gettid() } as u32;
    if word.compare_exchange(own, 0, SeqCst, SeqCst).is_err() {
        futex(word, FUTEX_UNLOCK_PI, 0, None);
    }
}

/// Hands a word to the thread that waits for it [`ROUNDS`] times. Returns how many waiters and
/// owners the kernel looked at for each time.
fn hand_over(word: &AtomicU32) -> Result<u64> {
    let turn = AtomicU32::new(0);
    let before = counter("futex_pi_looks")?;
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                while turn.load(SeqCst) != round {
                    thread::yield_now();
                }
                lock(word);
                unlock(word);
                turn.store(0, SeqCst);
            }
        });
        for round in 1..=ROUNDS {
            lock(word);
            turn.store(round, SeqCst);
            while word.load(SeqCst) & FUTEX_WAITERS == 0 {
                thread::yield_now();
            }
            unlock(word);
            while turn.load(SeqCst) != 0 {
                thread::yield_now();
            }
        }
    });
    Ok((counter("futex_pi_looks")? - before) / u64::from(ROUNDS))
}

/// How often a word is handed over for a count.
const ROUNDS: u32 = 100;
/// How many waiters and owners the kernel may look at to hand a word over. Those of other words
/// are few of a thousand, unless one that has many waiters shares the place of this one.
const LOOKS: u64 = 50;

/// A word is handed over while a thousand threads wait for those of `owned`, a word each or all
/// for one. They cost the two threads nothing.
fn beside_waiters(owned: usize) -> Outcome {
    beside(|| {
        let own: [AtomicU32; 4] = Default::default();
        let words: Vec<_> = (0..owned).map(|_| AtomicU32::new(0)).collect();
        words.iter().for_each(lock);
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            let (words, next) = (&words, &next);
            let wait = move || {
                let word = &words[next.fetch_add(1, SeqCst) % words.len()];
                lock(word);
                unlock(word);
            };
            let start = |_| {
                let builder = thread::Builder::new().stack_size(16 << 10);
                builder.spawn_scoped(scope, wait).ok()
            };
            let count = (0..1000).map_while(start).count();
            while next.load(SeqCst) < count {
                thread::yield_now();
            }
            pause_ms(50);
            let mut looks = u64::MAX;
            let attacked = while_attacking(|| {
                for word in &own {
                    looks = looks.min(hand_over(word)?);
                }
                Ok(())
            });
            words.iter().for_each(unlock);
            println!("  {looks} looks to hand a word over beside {count} waiters");
            attacked?;
            ensure!(count > 100 && looks < LOOKS, count, looks);
            Ok(())
        })
    })
}

fn waiters_for_many() -> Outcome {
    beside_waiters(1000)
}

fn waiters_for_one() -> Outcome {
    beside_waiters(1)
}

/// Threads that own a word each and wait for that of the next one: priorities are inherited along
/// the chain.
fn owners() -> Outcome {
    const OWNERS: usize = 800;
    beside(|| {
        while_attacking(|| {
            let words: Vec<_> = (0..=OWNERS).map(|_| AtomicU32::new(0)).collect();
            let owned = AtomicU32::new(0);
            lock(&words[0]);
            thread::scope(|scope| {
                for place in 1..=OWNERS {
                    let (words, owned) = (&words, &owned);
                    let thread = thread::Builder::new().stack_size(16 << 10);
                    let wait = move || {
                        lock(&words[place]);
                        owned.fetch_add(1, SeqCst);
                        lock(&words[place - 1]);
                        unlock(&words[place - 1]);
                        unlock(&words[place]);
                    };
                    if thread.spawn_scoped(scope, wait).is_err() {
                        break;
                    }
                    while (owned.load(SeqCst) as usize) < place {
                        thread::yield_now();
                    }
                }
                unlock(&words[0]);
            });
            Ok(())
        })
    })
}

/// Hundreds of pipes, each with the whole group as its owner.
fn asynchronous() -> Outcome {
    beside(|| {
        call!(setpgid(0, 0));
        // SAFETY: ignores a signal.
        unsafe { signal(SIGIO, SIG_IGN) };
        let mut members = Vec::new();
        for _ in 0..30 {
            members.push(spawn_sleeper()?);
        }
        let mut all = Vec::new();
        for _ in 0..300 {
            let (reader, writer) = pipe(O_NONBLOCK)?;
            call!(fcntl(reader, F_SETOWN, -getpgrp()));
            call!(fcntl(reader, F_SETFL, O_ASYNC | O_NONBLOCK));
            all.push((reader, writer));
        }
        while_attacking(|| {
            for (reader, writer) in &all {
                write_bytes(writer, b"x")?;
                read_bytes(reader, 1)?;
            }
            Ok(())
        })?;
        drop_all(
            all.into_iter()
                .flat_map(|(reader, writer)| [reader, writer]),
        );
        for member in members {
            kill_child(member)?;
        }
        Ok(())
    })
}

fn watched_folder() -> Outcome {
    beside(|| {
        let folder = folder("watched_folder")?;
        let path = c(&folder);
        let mut all = Vec::new();
        loop {
            // SAFETY: a new descriptor, or an error at the user's limit.
            let watcher = unsafe { inotify_init1(IN_NONBLOCK) };
            if watcher < 0 {
                break;
            }
            all.push(watcher);
            // SAFETY: the path lives across the call.
            if unsafe { inotify_add_watch(watcher, path.as_ptr(), IN_ALL_EVENTS) } < 0 {
                break;
            }
            let epoll = make()?;
            try_add(epoll, watcher, EPOLLIN);
            all.push(epoll);
        }
        let name = format!("{folder}/file");
        while_attacking(|| {
            fs::write(&name, b"text")?;
            fs::remove_file(&name)?;
            Ok(())
        })?;
        drop_all(all);
        fs::remove_dir(&folder)?;
        Ok(())
    })
}

/// The exit of a child is told under the table of processes. Its signal undoes a stop that a timer
/// sent, and the timer is looked for by its process.
fn continued() -> Outcome {
    const STACK: usize = 64 << 10;
    beside(|| {
        block(&[SIGTSTP, SIGCONT])?;
        // SAFETY: all zeros is a valid event; the calls fill and read locals.
        let mut event: sigevent = unsafe { zeroed() };
        event.sigev_notify = SIGEV_SIGNAL;
        event.sigev_signo = SIGTSTP;
        let mut timer = null_mut();
        call!(timer_create(CLOCK_MONOTONIC, &mut event, &mut timer));
        let setting = itimerspec {
            it_interval: time_spec(0, 100_000),
            it_value: time_spec(0, 100_000),
        };
        call!(timer_settime(timer, 0, &setting, null_mut()));
        let stack = map(STACK)?;
        extern "C" fn end(_: *mut c_void) -> c_int {
            0
        }
        while_attacking(|| {
            pause_ms(1);
            // SAFETY: the child runs on a stack of its own and ends at once.
            let child = unsafe { clone(end, stack.add(STACK).cast(), SIGCONT, null_mut()) };
            ensure!(child > 0, errno());
            let mut status = 0;
            call!(waitpid(child, &mut status, __WALL));
            Ok(())
        })
    })
}

fn many_children() -> Outcome {
    beside(|| {
        while_attacking(|| {
            child(|| {
                for _ in 0..300 {
                    // SAFETY: a child that ends by a signal soon, or with its parent.
                    if unsafe { fork() } == 0 {
                        pause_ms(50);
                        exit(0);
                    }
                }
                Ok(())
            })?;
            pause_ms(60);
            Ok(())
        })
    })
}

/// A process whose children's signals are watched by thousands: each end of a child is told.
fn watched_children() -> Outcome {
    beside(|| {
        many_files()?;
        let set = set_of(&[SIGCHLD]);
        block(&[SIGCHLD])?;
        let file = call!(signalfd(-1, &set, SFD_NONBLOCK));
        let crowd = crowd_of(file)?;
        while_attacking(|| child(|| Ok(())))?;
        drop_all(crowd);
        Ok(())
    })
}
