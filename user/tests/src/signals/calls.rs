//! System calls that a signal interrupts, and alarms.

use super::{count, note};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("signals: a system call is interrupted", interrupted),
    ("signals: SA_RESTART", restarted),
    ("signals: alarms and interval timers", alarms),
    ("signals: a thread's id names its process", by_thread),
];

/// Starts a child that sends this process signals until it is killed.
fn pester(signal: c_int) -> Result<pid_t> {
    let me = call!(getpid());
    spawn(|| {
        loop {
            pause_ms(10);
            call!(kill(me, signal));
        }
    })
}

fn interrupted() -> Outcome {
    handle(SIGUSR1, note, 0)?;
    let (reader, _writer) = pipe(0)?;
    let child = pester(SIGUSR1)?;
    let mut byte = 0u8;
    refused!(EINTR, read(reader, (&raw mut byte).cast(), 1));
    refused!(EINTR, poll(null_mut(), 0, -1));
    refused!(EINTR, pause());
    let time = timespec_of(5_000);
    let mut left = timespec_of(0);
    refused!(EINTR, nanosleep(&time, &mut left));
    ensure!(left.tv_sec >= 4, "the remaining time is {} s", left.tv_sec);
    let mut status = 0;
    refused!(EINTR, waitpid(child, &mut status, 0));
    call!(kill(child, SIGKILL));
    while wait_with(child, 0).is_err() {}
    Ok(())
}

fn restarted() -> Outcome {
    handle(SIGUSR1, note, SA_RESTART)?;
    let (reader, writer) = pipe(0)?;
    let me = call!(getpid());
    let child = spawn(|| {
        for _ in 0..5 {
            pause_ms(10);
            call!(kill(me, SIGUSR1));
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
    let child = pester(SIGUSR1)?;
    refused!(EINTR, poll(null_mut(), 0, 5000));
    call!(kill(child, SIGKILL));
    Ok(())
}

fn alarms() -> Outcome {
    handle(SIGALRM, note, 0)?;
    let start = Instant::now();
    call!(alarm(1));
    refused!(EINTR, pause());
    let time = start.elapsed();
    ensure!(time >= Duration::from_millis(990), time);
    call!(alarm(100));
    let left = call!(alarm(0));
    ensure!(left == 100 || left == 99, "{left} s were left");
    call!(setitimer(
        ITIMER_REAL,
        &timer_val(10_000, 10_000),
        null_mut()
    ));
    for _ in 0..5 {
        refused!(EINTR, pause());
    }
    ensure!(count() >= 6, "{} signals", count());
    Ok(())
}

/// `kill` and its like take the id of any thread for its process.
fn by_thread() -> Outcome {
    let (sender, tid) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let other = thread::spawn(move || {
        // SAFETY: a question without memory.
        let _ = sender.send(unsafe { libc::gettid() });
        while !stopped.load(Relaxed) {
            pause_ms(1);
        }
    });
    let tid = tid.recv().map_err(|_| "the thread said nothing")?;
    call!(kill(tid, 0));
    equal!(call!(getpgid(tid)), call!(getpgid(0)));
    equal!(call!(getsid(tid)), call!(getsid(0)));
    // SAFETY: all zeros is a valid siginfo.
    let mut info: siginfo_t = unsafe { zeroed() };
    info.si_code = SI_QUEUE;
    call!(syscall(libc::SYS_rt_sigqueueinfo, tid, SIGCHLD, &info));
    stop.store(true, Relaxed);
    other.join().map_err(|_| "the thread panicked".into())
}
