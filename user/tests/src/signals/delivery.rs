//! Delivery: the siginfo of a handler, and when it runs.

use super::{COUNT, LAST, count, last, note};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("signals: a handler learns who sent it", information),
    ("signals: queued values", queued),
    ("signals: masks hold them back", masks),
    ("signals: handlers nest", nested),
    ("signals: SA_RESETHAND and SA_NODEFER", flags),
    ("signals: sigsuspend", suspend),
    ("signals: sigtimedwait", timed_wait),
    ("signals: to one thread", to_a_thread),
    ("signals: a storm", storm),
    ("signals: bad numbers", refusals),
    ("signals: unknown flags are dropped", unknown_flags),
    (
        "signals: what an instruction causes comes first",
        synchronous_first,
    ),
];

fn information() -> Outcome {
    handle(SIGUSR1, note, 0)?;
    let me = call!(getpid());
    call!(kill(me, SIGUSR1));
    ensure!(last(0) == SIGUSR1, "no signal arrived");
    ensure!(last(1) == SI_USER && last(2) == me, last(1), last(2));
    let child = spawn(|| {
        call!(kill(me, SIGUSR1));
        Ok(())
    })?;
    wait(child)?;
    ensure!(count() == 2 && last(2) == child, last(2));
    call!(raise(SIGUSR1));
    equal!(last(1), SI_TKILL);
    Ok(())
}

fn queued() -> Outcome {
    let signal = libc::SIGRTMIN() + 1;
    handle(signal, note, 0)?;
    mask(SIG_BLOCK, &[signal])?;
    for number in 1..=3 {
        let value = sigval {
            sival_ptr: number as *mut c_void,
        };
        call!(sigqueue(call!(getpid()), signal, value));
    }
    mask(SIG_UNBLOCK, &[signal])?;
    ensure!(count() == 3, "{} of 3 real-time signals arrived", count());
    ensure!(last(1) == SI_QUEUE && last(3) == 3, last(1), last(3));
    Ok(())
}

fn masks() -> Outcome {
    handle(SIGUSR1, note, 0)?;
    mask(SIG_BLOCK, &[SIGUSR1, SIGKILL])?;
    for _ in 0..3 {
        call!(raise(SIGUSR1));
    }
    ensure!(count() == 0, "a blocked signal arrived");
    let mut pending = set_of(&[]);
    call!(sigpending(&mut pending));
    // SAFETY: a valid set.
    equal!(unsafe { libc::sigismember(&pending, SIGUSR1) }, 1);
    child(|| {
        let mut pending = set_of(&[]);
        call!(sigpending(&mut pending));
        // SAFETY: a valid set.
        let found = unsafe { libc::sigismember(&pending, SIGUSR1) };
        ensure!(found == 0, "the child inherited a pending signal");
        call!(raise(SIGUSR1));
        ensure!(count() == 0, "the child lost the mask");
        Ok(())
    })?;
    mask(SIG_UNBLOCK, &[SIGUSR1])?;
    equal!(count(), 1);
    Ok(())
}

extern "C" fn raise_other(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    let before = count();
    // SAFETY: raising a signal is safe in a handler.
    unsafe {
        libc::raise(SIGUSR1); // Blocked while this runs.
        libc::raise(SIGUSR2);
    }
    LAST[3].store((count() - before) as i32, SeqCst);
}

fn nested() -> Outcome {
    static WHILE_BLOCKED: AtomicI32 = AtomicI32::new(-1);
    extern "C" fn once(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        if WHILE_BLOCKED.load(SeqCst) == -1 {
            WHILE_BLOCKED.store(0, SeqCst);
            raise_other(signal, info, context);
            WHILE_BLOCKED.store(LAST[3].load(SeqCst), SeqCst);
        } else {
            COUNT.fetch_add(100, SeqCst);
        }
    }
    handle(SIGUSR1, once, 0)?;
    handle(SIGUSR2, note, 0)?;
    call!(raise(SIGUSR1));
    let inside = WHILE_BLOCKED.load(SeqCst);
    equal!(inside, 1);
    equal!(count(), 101);
    Ok(())
}

fn flags() -> Outcome {
    handle(SIGUSR1, note, SA_RESETHAND)?;
    call!(raise(SIGUSR1));
    // SAFETY: all zeros is a valid sigaction to be overwritten.
    let mut now: sigaction = unsafe { zeroed() };
    call!(sigaction(SIGUSR1, null(), &mut now));
    equal!(now.sa_sigaction, SIG_DFL);
    extern "C" fn again(signal: c_int, _: *mut siginfo_t, _: *mut c_void) {
        if COUNT.fetch_add(1, SeqCst) < 5 {
            // SAFETY: raising a signal is safe in a handler.
            unsafe { libc::raise(signal) };
            LAST[3].fetch_max(count() as i32, SeqCst);
        }
    }
    COUNT.store(0, SeqCst);
    handle(SIGUSR1, again, SA_NODEFER)?;
    call!(raise(SIGUSR1));
    ensure!(count() == 6, "SA_NODEFER: {} deliveries", count());
    Ok(())
}

fn suspend() -> Outcome {
    handle(SIGUSR1, note, 0)?;
    mask(SIG_BLOCK, &[SIGUSR1])?;
    call!(raise(SIGUSR1));
    refused!(EINTR, sigsuspend(&set_of(&[])));
    ensure!(count() == 1, "the signal did not run in sigsuspend");
    call!(raise(SIGUSR1));
    ensure!(count() == 1, "the mask did not come back");
    Ok(())
}

fn timed_wait() -> Outcome {
    let wanted = set_of(&[SIGUSR1]);
    mask(SIG_BLOCK, &[SIGUSR1])?;
    let short = timespec_of(20);
    refused!(EAGAIN, sigtimedwait(&wanted, null_mut(), &short));
    call!(raise(SIGUSR1));
    // SAFETY: all zeros is a valid siginfo to be overwritten.
    let mut info: siginfo_t = unsafe { zeroed() };
    let signal = call!(sigtimedwait(&wanted, &mut info, &short));
    ensure!(signal == SIGUSR1 && info.si_signo == signal, signal);
    let me = call!(getpid());
    spawn(|| {
        pause_ms(20);
        call!(kill(me, SIGUSR1));
        Ok(())
    })?;
    let signal = call!(sigwaitinfo(&wanted, null_mut()));
    ensure!(signal == SIGUSR1, "signal {signal}");
    Ok(())
}

fn to_a_thread() -> Outcome {
    static RECEIVER: AtomicU32 = AtomicU32::new(0);
    extern "C" fn receive(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: returns a number.
        RECEIVER.store(unsafe { libc::gettid() } as u32, SeqCst);
    }
    handle(SIGUSR1, receive, 0)?;
    let (sender, ids) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        // SAFETY: returns a number.
        let _ = sender.send(unsafe { libc::gettid() });
        while RECEIVER.load(SeqCst) == 0 {
            pause_ms(5);
        }
    });
    let thread_id = ids.recv()?;
    call!(syscall(
        libc::SYS_tgkill,
        call!(getpid()),
        thread_id,
        SIGUSR1
    ));
    thread.join()?;
    let receiver = RECEIVER.load(SeqCst);
    equal!(receiver, thread_id as u32, thread_id);
    Ok(())
}

fn storm() -> Outcome {
    handle(SIGUSR1, note, SA_RESTART)?;
    let me = call!(getpid());
    let children: Vec<_> = (0..3)
        .map(|_| {
            spawn(|| {
                for _ in 0..2000 {
                    call!(kill(me, SIGUSR1));
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    for child in children {
        let mut status = 0;
        while call_waitpid(child, &mut status) == -1 && errno() == EINTR {}
        equal!(End::of(status), End::Exit(0));
    }
    ensure!(count() > 0, "no signal arrived");
    Ok(())
}

fn refusals() -> Outcome {
    let me = call!(getpid());
    refused!(EINVAL, kill(me, 65));
    refused!(EINVAL, kill(me, -1));
    refused!(ESRCH, kill(0x3fff_fff0, 0));
    // SAFETY: all zeros is a valid sigaction.
    let action: sigaction = unsafe { zeroed() };
    refused!(EINVAL, sigaction(SIGKILL, &action, null_mut()));
    refused!(EINVAL, sigaction(SIGSTOP, &action, null_mut()));
    call!(kill(me, 0));
    Ok(())
}

fn call_waitpid(child: i32, status: &mut i32) -> i32 {
    // SAFETY: writes the status given.
    unsafe { libc::waitpid(child, status, 0) }
}

/// Unknown flags are cleared, so that a program learns which ones are supported.
fn unknown_flags() -> Outcome {
    // The kernel's structure: handler, flags, restorer, mask.
    let all = [SIG_DFL as u64, u64::MAX, 0, 0];
    let mut found = [0u64; 4];
    let signal = SIGUSR1;
    call!(syscall(libc::SYS_rt_sigaction, signal, &all, 0, 8));
    call!(syscall(libc::SYS_rt_sigaction, signal, 0, &mut found, 8));
    // NOCLDSTOP, NOCLDWAIT, SIGINFO, EXPOSE_TAGBITS, RESTORER, ONSTACK, RESTART, NODEFER,
    // RESETHAND.
    ensure!(found[1] == 0xdc00_0807, "flags {:#x}", found[1]);
    Ok(())
}

/// Two signals are pending: a lower one from another process, and a fault of this program.
fn synchronous_first() -> Outcome {
    static ORDER: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn note_order(signal: c_int, _: *mut siginfo_t, _: *mut c_void) {
        ORDER[NEXT.fetch_add(1, SeqCst) % 2].store(signal, SeqCst);
    }
    // Handlers don't interrupt each other: the first one delivered runs first.
    for signal in [SIGHUP, SIGSEGV] {
        // SAFETY: all zeros is a valid sigaction, the handler has the type that SA_SIGINFO asks
        // for.
        let mut action: sigaction = unsafe { zeroed() };
        action.sa_sigaction = note_order as *const () as usize;
        action.sa_flags = SA_SIGINFO;
        action.sa_mask = set_of(&[SIGHUP, SIGSEGV]);
        call!(sigaction(signal, &action, null_mut()));
    }
    mask(SIG_BLOCK, &[SIGHUP, SIGSEGV])?;
    let own = call!(getpid());
    call!(kill(own, SIGHUP));
    call!(kill(own, SIGSEGV));
    mask(SIG_UNBLOCK, &[SIGHUP, SIGSEGV])?;
    let order = [0, 1].map(|at: usize| ORDER[at].load(SeqCst));
    equal!(order, [SIGSEGV, SIGHUP]);
    Ok(())
}
