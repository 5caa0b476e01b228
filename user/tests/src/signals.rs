//! Signals: delivery, masks, restart, stacks, job control.

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libc::{c_int, c_void, siginfo_t};

use crate::support::{
    End, Outcome, child, code, errno, handle, pause_ms, pipe, signal_stack, spawn, wait, wait_with,
};
use crate::{Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("signals: a handler learns who sent it", information),
    ("signals: queued values", queued),
    ("signals: masks hold them back", masks),
    ("signals: handlers nest", nested),
    ("signals: a system call is interrupted", interrupted),
    ("signals: SA_RESTART", restarted),
    ("signals: SA_RESETHAND and SA_NODEFER", flags),
    ("signals: the signal stack", stack),
    ("signals: registers survive a handler", registers),
    ("signals: sigsuspend", suspend),
    ("signals: sigtimedwait", timed_wait),
    ("signals: default actions", defaults),
    ("signals: stop and continue", job_control),
    ("signals: SIGCHLD", child_signal),
    ("signals: ignored children vanish", ignored_children),
    ("signals: alarms and interval timers", alarms),
    ("signals: exceptions", exceptions),
    ("signals: to one thread", to_a_thread),
    ("signals: dispositions across exec", across_exec),
    ("signals: a storm", storm),
    ("signals: bad numbers", refusals),
];

static COUNT: AtomicUsize = AtomicUsize::new(0);
static LAST: [AtomicI32; 4] = [const { AtomicI32::new(0) }; 4];

extern "C" fn note(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    COUNT.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the kernel passes a valid siginfo.
    let (code, pid, value) = unsafe {
        (
            (*info).si_code,
            (*info).si_pid(),
            (*info).si_value().sival_ptr as i32,
        )
    };
    for (slot, number) in LAST.iter().zip([signal, code, pid, value]) {
        slot.store(number, Ordering::SeqCst);
    }
}

fn last(slot: usize) -> i32 {
    LAST[slot].load(Ordering::SeqCst)
}

fn count() -> usize {
    COUNT.load(Ordering::SeqCst)
}

/// A set with these signals.
fn set(signals: &[c_int]) -> libc::sigset_t {
    // SAFETY: all zeros is an empty set, and `sigaddset` only sets bits of it.
    unsafe {
        let mut set = std::mem::zeroed();
        for &signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

fn mask(how: c_int, signals: &[c_int]) -> Outcome {
    call!(sigprocmask(how, &set(signals), ptr::null_mut()));
    Ok(())
}

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

/// A child that sends this process signals until it is killed.
fn pester(signal: c_int) -> Result<libc::pid_t, String> {
    let me = call!(getpid());
    spawn(|| {
        loop {
            pause_ms(10);
            call!(kill(me, signal));
        }
    })
}

fn interrupted() -> Outcome {
    handle(libc::SIGUSR1, note, 0)?;
    let (reader, _writer) = pipe(0)?;
    let child = pester(libc::SIGUSR1)?;
    let mut byte = 0u8;
    refused!(EINTR, read(reader, (&raw mut byte).cast(), 1));
    refused!(EINTR, poll(ptr::null_mut(), 0, -1));
    refused!(EINTR, pause());
    let time = libc::timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    let mut left = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    refused!(EINTR, nanosleep(&time, &mut left));
    ensure!(left.tv_sec >= 4, "the remaining time is {} s", left.tv_sec);
    let mut status = 0;
    refused!(EINTR, waitpid(child, &mut status, 0));
    call!(kill(child, libc::SIGKILL));
    while wait_with(child, 0).is_err() {}
    Ok(())
}

fn restarted() -> Outcome {
    handle(libc::SIGUSR1, note, libc::SA_RESTART)?;
    let (reader, writer) = pipe(0)?;
    let me = call!(getpid());
    let child = spawn(|| {
        for _ in 0..5 {
            pause_ms(10);
            call!(kill(me, libc::SIGUSR1));
        }
        pause_ms(10);
        call!(write(writer, b"x".as_ptr().cast(), 1));
        Ok(())
    })?;
    let mut byte = 0u8;
    let count = call!(read(reader, (&raw mut byte).cast(), 1));
    ensure!(count == 1 && byte == b'x', "read gave {count}");
    let signals = self::count();
    ensure!((1..=5).contains(&signals), "{signals} signals");
    let mut status = 0;
    call!(waitpid(child, &mut status, 0));
    ensure!(End::of(status) == End::Exit(0), "the child failed");
    // poll is never restarted.
    let child = pester(libc::SIGUSR1)?;
    refused!(EINTR, poll(ptr::null_mut(), 0, 5000));
    call!(kill(child, libc::SIGKILL));
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

fn stack() -> Outcome {
    static PLACE: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn place(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        let here = 0u8;
        PLACE.store(&raw const here as usize, Ordering::SeqCst);
        let mut now = libc::stack_t {
            ss_sp: ptr::null_mut(),
            ss_flags: 0,
            ss_size: 0,
        };
        // SAFETY: writes the structure given.
        unsafe { libc::sigaltstack(ptr::null(), &mut now) };
        LAST[0].store(now.ss_flags, Ordering::SeqCst);
    }
    signal_stack()?;
    let mut stack = libc::stack_t {
        ss_sp: ptr::null_mut(),
        ss_flags: 0,
        ss_size: 0,
    };
    call!(sigaltstack(ptr::null(), &mut stack));
    let range = stack.ss_sp as usize..stack.ss_sp as usize + stack.ss_size;
    handle(libc::SIGUSR1, place, libc::SA_ONSTACK)?;
    call!(raise(libc::SIGUSR1));
    ensure!(
        range.contains(&PLACE.load(Ordering::SeqCst)),
        "the handler ran on the usual stack"
    );
    ensure!(
        last(0) == libc::SS_ONSTACK,
        "the flags in the handler were {}",
        last(0)
    );
    handle(libc::SIGUSR1, place, 0)?;
    call!(raise(libc::SIGUSR1));
    ensure!(
        !range.contains(&PLACE.load(Ordering::SeqCst)),
        "without SA_ONSTACK it ran there"
    );
    let tiny = libc::stack_t {
        ss_sp: stack.ss_sp,
        ss_flags: 0,
        ss_size: 100,
    };
    refused!(ENOMEM, sigaltstack(&tiny, ptr::null_mut()));
    Ok(())
}

fn registers() -> Outcome {
    handle(libc::SIGALRM, note, libc::SA_RESTART)?;
    let interval = libc::timeval {
        tv_sec: 0,
        tv_usec: 2000,
    };
    let timer = libc::itimerval {
        it_interval: interval,
        it_value: interval,
    };
    call!(setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()));
    let start = Instant::now();
    while count() < 50 && start.elapsed() < Duration::from_secs(20) {
        let (mut sum, mut other): (u64, u64);
        // SAFETY: touches only the registers named.
        unsafe {
            std::arch::asm!(
                "mov {i}, 20000", "mov {a}, 0", "mov {b}, 7", "mov r12, 1", "mov r13, 2",
                "2:", "add {a}, r12", "add {b}, r13", "push {b}", "pop {b}", "dec {i}", "jnz 2b",
                i = out(reg) _, a = out(reg) sum, b = out(reg) other,
                out("r12") _, out("r13") _,
            );
        }
        ensure!(
            sum == 20_000 && other == 40_007,
            "registers changed: {sum} {other}"
        );
        std::hint::black_box((&mut sum, &mut other));
    }
    ensure!(count() >= 50, "only {} timer signals in 20 s", count());
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

fn defaults() -> Outcome {
    use libc::{
        SIG_DFL, SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGQUIT, SIGTERM,
        SIGURG, SIGUSR1, SIGWINCH, SIGXCPU,
    };
    for signal in [
        SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGUSR1, SIGPIPE, SIGALRM, SIGTERM, SIGXCPU,
    ] {
        let child = spawn(|| {
            // SAFETY: gives the signal its default action.
            unsafe { libc::signal(signal, SIG_DFL) };
            call!(raise(signal));
            Err("still alive".into())
        })?;
        let end = wait(child)?;
        ensure!(end == End::Signal(signal), "signal {signal}: {end:?}");
    }
    for signal in [SIGCHLD, SIGURG, SIGWINCH, SIGCONT] {
        child(|| {
            call!(raise(signal));
            Ok(())
        })
        .map_err(|why| format!("signal {signal}: {why}"))?;
    }
    Ok(())
}

fn job_control() -> Outcome {
    for signal in [libc::SIGSTOP, libc::SIGTSTP] {
        let child = spawn(|| {
            call!(raise(signal));
            crate::support::exit(9)
        })?;
        let options = libc::WUNTRACED | libc::WCONTINUED;
        let end = wait_with(child, options)?;
        ensure!(end == End::Stopped(signal), "{end:?} in place of a stop");
        let mut status = 0;
        let found = call!(waitpid(child, &mut status, options | libc::WNOHANG));
        ensure!(found == 0, "a stop was told twice");
        pause_ms(20);
        call!(kill(child, libc::SIGCONT));
        let end = wait_with(child, options)?;
        ensure!(
            end == End::Continued || end == End::Exit(9),
            "{end:?} in place of going on"
        );
        if end == End::Continued {
            let end = wait_with(child, 0)?;
            ensure!(end == End::Exit(9), "{end:?} at the end");
        }
    }
    // A stopped process can be killed.
    let child = spawn(|| {
        loop {
            call!(raise(libc::SIGSTOP));
        }
    })?;
    wait_with(child, libc::WUNTRACED)?;
    call!(kill(child, libc::SIGTERM));
    call!(kill(child, libc::SIGKILL));
    let end = wait(child)?;
    ensure!(
        end == End::Signal(libc::SIGKILL),
        "a stopped process ended with {end:?}"
    );
    Ok(())
}

fn child_signal() -> Outcome {
    handle(libc::SIGCHLD, note, libc::SA_RESTART)?;
    let child = spawn(|| Ok(()))?;
    wait(child)?;
    ensure!(count() == 1, "{} SIGCHLD for one child", count());
    ensure!(
        last(1) == libc::CLD_EXITED && last(2) == child,
        "code {} from {}",
        last(1),
        last(2)
    );
    let child = spawn(|| {
        loop {
            pause_ms(1000);
        }
    })?;
    call!(kill(child, libc::SIGKILL));
    wait(child)?;
    ensure!(
        last(1) == libc::CLD_KILLED,
        "the code of a killed child is {}",
        last(1)
    );
    Ok(())
}

fn ignored_children() -> Outcome {
    // SAFETY: ignores the signal.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let child = spawn(|| Ok(()))?;
    let mut status = 0;
    refused!(ECHILD, waitpid(child, &mut status, 0));
    refused!(ESRCH, kill(child, 0));
    Ok(())
}

fn alarms() -> Outcome {
    handle(libc::SIGALRM, note, 0)?;
    let start = Instant::now();
    call!(alarm(1));
    refused!(EINTR, pause());
    let time = start.elapsed();
    ensure!(
        time >= Duration::from_millis(990),
        "the alarm rang after {time:?}"
    );
    call!(alarm(100));
    let left = call!(alarm(0));
    ensure!(left == 100 || left == 99, "{left} s were left");
    let interval = libc::timeval {
        tv_sec: 0,
        tv_usec: 10_000,
    };
    let timer = libc::itimerval {
        it_interval: interval,
        it_value: interval,
    };
    call!(setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()));
    for _ in 0..5 {
        refused!(EINTR, pause());
    }
    ensure!(count() >= 6, "{} signals", count());
    Ok(())
}

fn exceptions() -> Outcome {
    let fault = crate::support::fault_of(|| {
        // SAFETY: the instruction faults, and the fault is caught.
        unsafe { std::arch::asm!("ud2") };
    })?;
    ensure!(
        fault.is_some_and(|fault| fault.signal == libc::SIGILL && fault.code == code::ILL_ILLOPN),
        "ud2 gave {fault:?}"
    );
    let fault = crate::support::fault_of(|| {
        // SAFETY: the division faults, and the fault is caught.
        unsafe {
            std::arch::asm!("xor edx, edx", "xor ecx, ecx", "mov eax, 1", "div ecx", out("eax") _, out("ecx") _, out("edx") _)
        };
    })?;
    ensure!(
        fault.is_some_and(|fault| fault.signal == libc::SIGFPE && fault.code == code::FPE_INTDIV),
        "a division by zero gave {fault:?}"
    );
    let fault = crate::support::fault_of(|| {
        // SAFETY: the breakpoint traps, and the signal is caught.
        unsafe { std::arch::asm!("int3") };
    })?;
    ensure!(
        fault.is_some_and(|fault| fault.signal == libc::SIGTRAP),
        "int3 gave {fault:?}"
    );
    let fault = crate::support::fault_of(|| {
        // SAFETY: the instruction is privileged: it faults.
        unsafe { std::arch::asm!("hlt") };
    })?;
    ensure!(
        fault.is_some_and(|fault| fault.signal == libc::SIGSEGV),
        "hlt gave {fault:?}"
    );
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

fn across_exec() -> Outcome {
    let child = spawn(|| {
        handle(libc::SIGUSR1, note, 0)?;
        // SAFETY: ignores the signal.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
        mask(libc::SIG_BLOCK, &[libc::SIGHUP])?;
        let words = [
            c"t".as_ptr(),
            c"--as".as_ptr(),
            c"signals".as_ptr(),
            ptr::null(),
        ];
        call!(execv(c"/proc/self/exe".as_ptr(), words.as_ptr()));
        Ok(())
    })?;
    let end = wait(child)?;
    ensure!(
        end == End::Exit(0b111),
        "ended with {end:?}; bits: caught reset, ignored and mask kept"
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

fn call_waitpid(child: i32, status: &mut i32) -> i32 {
    // SAFETY: writes the status given.
    unsafe { libc::waitpid(child, status, 0) }
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
