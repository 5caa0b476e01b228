//! What a handler learns, and when it runs.

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::support::{End, Outcome, child, errno, handle, pause_ms, spawn, wait};
use crate::{Test, call, ensure, refused};

use super::{COUNT, LAST, count, last, mask, note, set};

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
    handle(libc::SIGUSR1, note, 0)?;
    let me = call!(getpid());
    call!(kill(me, libc::SIGUSR1));
    ensure!(last(0) == libc::SIGUSR1, "no signal arrived");
    ensure!(
        last(1) == libc::SI_USER && last(2) == me,
        "code {} from {}",
        last(1),
        last(2)
    );
    let child = spawn(|| {
        call!(kill(me, libc::SIGUSR1));
        Ok(())
    })?;
    wait(child)?;
    ensure!(
        count() == 2 && last(2) == child,
        "the child's signal came from {}",
        last(2)
    );
    call!(raise(libc::SIGUSR1));
    ensure!(
        last(1) == libc::SI_TKILL,
        "tgkill gave the code {}",
        last(1)
    );
    Ok(())
}

fn queued() -> Outcome {
    let signal = libc::SIGRTMIN() + 1;
    handle(signal, note, 0)?;
    mask(libc::SIG_BLOCK, &[signal])?;
    for number in 1..=3 {
        let value = libc::sigval {
            sival_ptr: number as *mut c_void,
        };
        call!(sigqueue(call!(getpid()), signal, value));
    }
    mask(libc::SIG_UNBLOCK, &[signal])?;
    ensure!(count() == 3, "{} of 3 real-time signals arrived", count());
    ensure!(
        last(1) == libc::SI_QUEUE && last(3) == 3,
        "code {} value {}",
        last(1),
        last(3)
    );
    Ok(())
}

fn masks() -> Outcome {
    handle(libc::SIGUSR1, note, 0)?;
    mask(libc::SIG_BLOCK, &[libc::SIGUSR1, libc::SIGKILL])?;
    for _ in 0..3 {
        call!(raise(libc::SIGUSR1));
    }
    ensure!(count() == 0, "a blocked signal arrived");
    let mut pending = set(&[]);
    call!(sigpending(&mut pending));
    // SAFETY: a valid set.
    ensure!(
        unsafe { libc::sigismember(&pending, libc::SIGUSR1) } == 1,
        "it is not pending"
    );
    child(|| {
        let mut pending = set(&[]);
        call!(sigpending(&mut pending));
        // SAFETY: a valid set.
        let found = unsafe { libc::sigismember(&pending, libc::SIGUSR1) };
        ensure!(found == 0, "the child inherited a pending signal");
        call!(raise(libc::SIGUSR1));
        ensure!(count() == 0, "the child lost the mask");
        Ok(())
    })?;
    mask(libc::SIG_UNBLOCK, &[libc::SIGUSR1])?;
    ensure!(
        count() == 1,
        "{} deliveries of a signal that was pending once",
        count()
    );
    Ok(())
}

extern "C" fn raise_other(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    let before = count();
    // SAFETY: raising a signal is safe in a handler.
    unsafe {
        libc::raise(libc::SIGUSR1); // Blocked while this runs.
        libc::raise(libc::SIGUSR2);
    }
    LAST[3].store((count() - before) as i32, Ordering::SeqCst);
}

fn nested() -> Outcome {
    static WHILE_BLOCKED: AtomicI32 = AtomicI32::new(-1);
    extern "C" fn once(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        if WHILE_BLOCKED.load(Ordering::SeqCst) == -1 {
            WHILE_BLOCKED.store(0, Ordering::SeqCst);
            raise_other(signal, info, context);
            WHILE_BLOCKED.store(LAST[3].load(Ordering::SeqCst), Ordering::SeqCst);
        } else {
            COUNT.fetch_add(100, Ordering::SeqCst);
        }
    }
    handle(libc::SIGUSR1, once, 0)?;
    handle(libc::SIGUSR2, note, 0)?;
    call!(raise(libc::SIGUSR1));
    let inside = WHILE_BLOCKED.load(Ordering::SeqCst);
    ensure!(
        inside == 1,
        "{inside} signals ran inside the handler, one expected"
    );
    ensure!(
        count() == 101,
        "the blocked signal did not follow: {}",
        count()
    );
    Ok(())
}

fn flags() -> Outcome {
    handle(libc::SIGUSR1, note, libc::SA_RESETHAND)?;
    call!(raise(libc::SIGUSR1));
    // SAFETY: all zeros is a valid sigaction to be overwritten.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    call!(sigaction(libc::SIGUSR1, ptr::null(), &mut now));
    ensure!(
        now.sa_sigaction == libc::SIG_DFL,
        "SA_RESETHAND kept the handler"
    );
    extern "C" fn again(signal: c_int, _: *mut siginfo_t, _: *mut c_void) {
        if COUNT.fetch_add(1, Ordering::SeqCst) < 5 {
            // SAFETY: raising a signal is safe in a handler.
            unsafe { libc::raise(signal) };
            LAST[3].fetch_max(count() as i32, Ordering::SeqCst);
        }
    }
    COUNT.store(0, Ordering::SeqCst);
    handle(libc::SIGUSR1, again, libc::SA_NODEFER)?;
    call!(raise(libc::SIGUSR1));
    ensure!(count() == 6, "SA_NODEFER: {} deliveries", count());
    Ok(())
}

fn suspend() -> Outcome {
    handle(libc::SIGUSR1, note, 0)?;
    mask(libc::SIG_BLOCK, &[libc::SIGUSR1])?;
    call!(raise(libc::SIGUSR1));
    refused!(EINTR, sigsuspend(&set(&[])));
    ensure!(count() == 1, "the signal did not run in sigsuspend");
    call!(raise(libc::SIGUSR1));
    ensure!(count() == 1, "the mask did not come back");
    Ok(())
}

fn timed_wait() -> Outcome {
    let wanted = set(&[libc::SIGUSR1]);
    mask(libc::SIG_BLOCK, &[libc::SIGUSR1])?;
    let short = libc::timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    refused!(EAGAIN, sigtimedwait(&wanted, ptr::null_mut(), &short));
    call!(raise(libc::SIGUSR1));
    // SAFETY: all zeros is a valid siginfo to be overwritten.
    let mut info: siginfo_t = unsafe { std::mem::zeroed() };
    let signal = call!(sigtimedwait(&wanted, &mut info, &short));
    ensure!(
        signal == libc::SIGUSR1 && info.si_signo == signal,
        "signal {signal}"
    );
    let me = call!(getpid());
    spawn(|| {
        pause_ms(20);
        call!(kill(me, libc::SIGUSR1));
        Ok(())
    })?;
    let signal = call!(sigwaitinfo(&wanted, ptr::null_mut()));
    ensure!(signal == libc::SIGUSR1, "signal {signal}");
    Ok(())
}

fn to_a_thread() -> Outcome {
    static RECEIVER: AtomicU32 = AtomicU32::new(0);
    extern "C" fn receive(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: returns a number.
        RECEIVER.store(unsafe { libc::gettid() } as u32, Ordering::SeqCst);
    }
    handle(libc::SIGUSR1, receive, 0)?;
    let (sender, ids) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: returns a number.
        let _ = sender.send(unsafe { libc::gettid() });
        while RECEIVER.load(Ordering::SeqCst) == 0 {
            pause_ms(5);
        }
    });
    let thread_id = ids.recv().map_err(|error| error.to_string())?;
    call!(syscall(
        libc::SYS_tgkill,
        call!(getpid()),
        thread_id,
        libc::SIGUSR1
    ));
    thread.join().map_err(|_| "the thread panicked")?;
    let receiver = RECEIVER.load(Ordering::SeqCst);
    ensure!(
        receiver == thread_id as u32,
        "thread {receiver} received it, not {thread_id}"
    );
    Ok(())
}

fn storm() -> Outcome {
    handle(libc::SIGUSR1, note, libc::SA_RESTART)?;
    let me = call!(getpid());
    let children: Vec<_> = (0..3)
        .map(|_| {
            spawn(|| {
                for _ in 0..2000 {
                    call!(kill(me, libc::SIGUSR1));
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    for child in children {
        let mut status = 0;
        while call_waitpid(child, &mut status) == -1 && errno() == libc::EINTR {}
        ensure!(
            End::of(status) == End::Exit(0),
            "a sender ended with {:?}",
            End::of(status)
        );
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
    let action: libc::sigaction = unsafe { std::mem::zeroed() };
    refused!(EINVAL, sigaction(libc::SIGKILL, &action, ptr::null_mut()));
    refused!(EINVAL, sigaction(libc::SIGSTOP, &action, ptr::null_mut()));
    call!(kill(me, 0));
    Ok(())
}

fn call_waitpid(child: i32, status: &mut i32) -> i32 {
    // SAFETY: writes the status given.
    unsafe { libc::waitpid(child, status, 0) }
}

/// A program learns which flags there are by what becomes of those that it sets.
fn unknown_flags() -> Outcome {
    // As the kernel wants it: handler, flags, restorer, mask.
    let all = [libc::SIG_DFL as u64, u64::MAX, 0, 0];
    let mut found = [0u64; 4];
    let signal = libc::SIGUSR1;
    call!(syscall(libc::SYS_rt_sigaction, signal, &all, 0, 8));
    call!(syscall(libc::SYS_rt_sigaction, signal, 0, &mut found, 8));
    // NOCLDSTOP, NOCLDWAIT, SIGINFO, EXPOSE_TAGBITS, RESTORER, ONSTACK, RESTART, NODEFER, RESETHAND.
    ensure!(found[1] == 0xdc00_0807, "flags {:#x}", found[1]);
    Ok(())
}

/// Two signals wait; the lower one is another process's, the other one this program's own fault.
fn synchronous_first() -> Outcome {
    static ORDER: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn note_order(signal: c_int, _: *mut siginfo_t, _: *mut c_void) {
        ORDER[NEXT.fetch_add(1, Ordering::SeqCst) % 2].store(signal, Ordering::SeqCst);
    }
    // Handlers don't interrupt each other: the first to be taken runs first.
    for signal in [libc::SIGHUP, libc::SIGSEGV] {
        // SAFETY: all zeros is a valid sigaction, the handler has the type that SA_SIGINFO asks for.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note_order as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        action.sa_mask = set(&[libc::SIGHUP, libc::SIGSEGV]);
        call!(sigaction(signal, &action, ptr::null_mut()));
    }
    mask(libc::SIG_BLOCK, &[libc::SIGHUP, libc::SIGSEGV])?;
    let own = call!(getpid());
    call!(kill(own, libc::SIGHUP));
    call!(kill(own, libc::SIGSEGV));
    mask(libc::SIG_UNBLOCK, &[libc::SIGHUP, libc::SIGSEGV])?;
    let order = [0, 1].map(|at: usize| ORDER[at].load(Ordering::SeqCst));
    ensure!(
        order == [libc::SIGSEGV, libc::SIGHUP],
        "in the order {order:?}"
    );
    Ok(())
}
