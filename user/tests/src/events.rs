//! eventfd, timerfd, signalfd.

use std::ptr;
use std::time::{Duration, Instant};

use libc::{POLLIN, POLLOUT, c_int, pollfd};

use crate::support::{End, Outcome, pause_ms, spawn, wait};
use crate::{Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("events: a counter", counter),
    ("events: a counter that is waited for", counter_waits),
    ("events: a timer", timer),
    ("events: a timer on the time of day", time_of_day),
    ("events: a timer wakes epoll", timer_wakes),
    ("events: signals that are read", signals),
    ("events: signals wake who reads and who polls", signals_wake),
    ("events: what is refused", bad),
    ("events: what /proc shows", shown),
];

static ONE: u64 = 1;
static ALL: u64 = u64::MAX;

fn read_u64(fd: c_int) -> Result<u64, String> {
    let mut value = 0u64;
    let count = call!(read(fd, (&raw mut value).cast(), 8));
    ensure!(count == 8, "{count} bytes in place of 8");
    Ok(value)
}

fn write_u64(fd: c_int, value: u64) -> Outcome {
    call!(write(fd, (&raw const value).cast(), 8));
    Ok(())
}

fn ready(fd: c_int, timeout: c_int) -> Result<i16, String> {
    let mut poll = pollfd {
        fd,
        events: POLLIN | POLLOUT,
        revents: 0,
    };
    call!(poll(&mut poll, 1, timeout));
    Ok(poll.revents)
}

fn is(found: u64, wanted: u64) -> Outcome {
    ensure!(found == wanted, "{found} in place of {wanted}");
    Ok(())
}

fn counter() -> Outcome {
    let fd = call!(eventfd(3, libc::EFD_NONBLOCK));
    is(read_u64(fd)?, 3)?;
    let mut value = 0u64;
    let at: *mut libc::c_void = (&raw mut value).cast();
    refused!(EAGAIN, read(fd, at, 8));
    ensure!(ready(fd, 0)? == POLLOUT, "an empty counter");
    write_u64(fd, 5)?;
    write_u64(fd, 7)?;
    ensure!(ready(fd, 0)? == POLLIN | POLLOUT, "a counter");
    is(read_u64(fd)?, 12)?;
    write_u64(fd, 0)?;
    refused!(EAGAIN, read(fd, at, 8));
    write_u64(fd, u64::MAX - 1)?;
    ensure!(ready(fd, 0)? == POLLIN, "a full counter");
    refused!(EAGAIN, write(fd, (&raw const ONE).cast(), 8));
    refused!(EINVAL, write(fd, (&raw const ALL).cast(), 8));
    refused!(EINVAL, write(fd, (&raw const ONE).cast(), 7));
    refused!(EINVAL, read(fd, at, 7));
    is(read_u64(fd)?, u64::MAX - 1)?;
    let one = call!(eventfd(2, libc::EFD_SEMAPHORE | libc::EFD_NONBLOCK));
    is(read_u64(one)?, 1)?;
    is(read_u64(one)?, 1)?;
    refused!(EAGAIN, read(one, at, 8));
    Ok(())
}

fn counter_waits() -> Outcome {
    let fd = call!(eventfd(0, 0));
    let child = spawn(|| {
        pause_ms(5);
        write_u64(fd, u64::MAX - 1)?;
        // Waits for room.
        write_u64(fd, 2)
    })?;
    is(read_u64(fd)?, u64::MAX - 1)?;
    ensure!(wait(child)? == End::Exit(0), "the writer failed");
    is(read_u64(fd)?, 2)
}

fn span(milliseconds: i64) -> libc::timespec {
    libc::timespec {
        tv_sec: milliseconds / 1000,
        tv_nsec: milliseconds % 1000 * 1_000_000,
    }
}

fn set(fd: c_int, flags: c_int, value: libc::timespec, interval: i64) -> Outcome {
    let new = libc::itimerspec {
        it_interval: span(interval),
        it_value: value,
    };
    call!(timerfd_settime(fd, flags, &new, ptr::null_mut()));
    Ok(())
}

fn now(clock: c_int) -> Result<libc::timespec, String> {
    let mut now = span(0);
    call!(clock_gettime(clock, &mut now));
    Ok(now)
}

fn timer() -> Outcome {
    let fd = call!(timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK));
    let mut value = 0u64;
    let at: *mut libc::c_void = (&raw mut value).cast();
    refused!(EAGAIN, read(fd, at, 8));
    set(fd, 0, span(600_000), 0)?;
    refused!(EAGAIN, read(fd, at, 8));
    let start = Instant::now();
    set(fd, 0, span(20), 0)?;
    ensure!(ready(fd, 5000)? == POLLIN, "it does not expire");
    let took = start.elapsed();
    ensure!(took >= Duration::from_millis(20), "early: {took:?}");
    is(read_u64(fd)?, 1)?;
    refused!(EAGAIN, read(fd, at, 8));
    // What was not read is counted.
    let start = Instant::now();
    set(fd, 0, span(5), 5)?;
    pause_ms(33);
    let count = read_u64(fd)?;
    let took = start.elapsed();
    let most = took.as_millis() as u64 / 5;
    ensure!((6..=most).contains(&count), "{count} expiries in {took:?}");
    let mut left = libc::itimerspec {
        it_interval: span(0),
        it_value: span(0),
    };
    call!(timerfd_gettime(fd, &mut left));
    ensure!(
        left.it_interval.tv_nsec == 5_000_000 && left.it_value.tv_nsec <= 5_000_000,
        "{} left of {}",
        left.it_value.tv_nsec,
        left.it_interval.tv_nsec
    );
    // Stopped: nothing is left, not even what had expired.
    pause_ms(6);
    let mut old = left;
    call!(timerfd_settime(
        fd,
        0,
        &libc::itimerspec {
            it_interval: span(0),
            it_value: span(0)
        },
        &mut old
    ));
    ensure!(old.it_interval.tv_nsec == 5_000_000, "the old interval");
    refused!(EAGAIN, read(fd, at, 8));
    // A time of the clock.
    let mut then = now(libc::CLOCK_MONOTONIC)?;
    then.tv_sec -= 1;
    set(fd, libc::TFD_TIMER_ABSTIME, then, 100)?;
    let count = read_u64(fd)?;
    ensure!((10..40).contains(&count), "{count} expiries since a second");
    Ok(())
}

fn time_of_day() -> Outcome {
    let fd = call!(timerfd_create(libc::CLOCK_REALTIME, 0));
    let mut then = now(libc::CLOCK_REALTIME)?;
    then.tv_nsec += 10_000_000;
    if then.tv_nsec >= 1_000_000_000 {
        then.tv_nsec -= 1_000_000_000;
        then.tv_sec += 1;
    }
    set(fd, libc::TFD_TIMER_ABSTIME, then, 0)?;
    is(read_u64(fd)?, 1)?;
    let reached = now(libc::CLOCK_REALTIME)?;
    ensure!(
        (reached.tv_sec, reached.tv_nsec) >= (then.tv_sec, then.tv_nsec),
        "too early"
    );
    // The clock is set: who asked for it hears of it, and a far time may be near.
    let mut far = now(libc::CLOCK_REALTIME)?;
    far.tv_sec += 1000;
    let both = libc::TFD_TIMER_ABSTIME | libc::TFD_TIMER_CANCEL_ON_SET;
    set(fd, both, far, 0)?;
    let other = call!(timerfd_create(libc::CLOCK_REALTIME, 0));
    set(other, libc::TFD_TIMER_ABSTIME, far, 0)?;
    let mut later = far;
    later.tv_sec += 1;
    // SAFETY: a structure of this process.
    if unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &later) } != 0 {
        return Err(format!("{}may not set the clock", crate::SKIP));
    }
    let mut back = now(libc::CLOCK_REALTIME)?;
    back.tv_sec -= 1001;
    let mut value = 0u64;
    ensure!(
        ready(fd, 1000)? == POLLIN,
        "not ready when the clock was set"
    );
    refused!(ECANCELED, read(fd, (&raw mut value).cast(), 8));
    is(read_u64(other)?, 1)?;
    call!(clock_settime(libc::CLOCK_REALTIME, &back));
    Ok(())
}

fn timer_wakes() -> Outcome {
    let epoll = call!(epoll_create1(0));
    let mut timers = Vec::new();
    for interval in 1..4 {
        let fd = call!(timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_NONBLOCK));
        set(fd, 0, span(interval * 3), interval * 3)?;
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: fd as u64,
        };
        call!(epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event));
        timers.push(fd);
    }
    let start = Instant::now();
    let mut expiries = 0;
    while start.elapsed() < Duration::from_millis(60) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let count = call!(epoll_wait(epoll, &mut event, 1, 2000));
        ensure!(count == 1, "no timer in two seconds");
        expiries += read_u64(event.u64 as c_int)?;
    }
    for fd in timers {
        let mut more = 0u64;
        // SAFETY: reads into a live number; there may be nothing to read.
        if unsafe { libc::read(fd, (&raw mut more).cast(), 8) } == 8 {
            expiries += more;
        }
    }
    // 20, 10 and 6 in 60 ms.
    ensure!(expiries >= 30, "{expiries} expiries");
    Ok(())
}

fn block(signals: &[c_int]) -> Result<libc::sigset_t, String> {
    // SAFETY: sets of this process.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut());
        Ok(set)
    }
}

fn next(fd: c_int) -> Result<libc::signalfd_siginfo, String> {
    // SAFETY: numbers only.
    let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
    let count = call!(read(fd, (&raw mut info).cast(), size_of_val(&info)));
    ensure!(count == 128, "{count} bytes in place of 128");
    Ok(info)
}

fn signals() -> Outcome {
    let set = block(&[libc::SIGUSR1, libc::SIGUSR2, libc::SIGCHLD])?;
    let fd = call!(signalfd(-1, &set, libc::SFD_NONBLOCK));
    let mut info = 0u8;
    let at: *mut libc::c_void = (&raw mut info).cast();
    refused!(EINVAL, read(fd, at, 127));
    // SAFETY: numbers only.
    let mut two: [libc::signalfd_siginfo; 2] = unsafe { std::mem::zeroed() };
    refused!(EAGAIN, read(fd, two.as_mut_ptr().cast(), 256));
    // SAFETY: this process's own ids.
    let (me, user) = unsafe { (libc::getpid(), libc::getuid()) };
    call!(kill(me, libc::SIGUSR2));
    call!(kill(me, libc::SIGUSR1));
    ensure!(ready(fd, 0)? == POLLIN, "pending, but not ready");
    let count = call!(read(fd, two.as_mut_ptr().cast(), 256));
    ensure!(count == 256, "{count} bytes for two signals");
    for (info, signal) in two.iter().zip([libc::SIGUSR1, libc::SIGUSR2]) {
        let found = (info.ssi_signo, info.ssi_pid, info.ssi_uid, info.ssi_code);
        let wanted = (signal as u32, me as u32, user, 0);
        ensure!(found == wanted, "{found:?} in place of {wanted:?}");
    }
    ensure!(ready(fd, 0)? == 0, "ready for nothing");
    let child = spawn(|| crate::support::exit(9))?;
    ensure!(ready(fd, 5000)? == POLLIN, "no word of the child");
    let info = next(fd)?;
    let found = (info.ssi_signo, info.ssi_pid, info.ssi_status, info.ssi_code);
    ensure!(
        found == (libc::SIGCHLD as u32, child as u32, 9, libc::CLD_EXITED),
        "{found:?}"
    );
    // Another set for the same file.
    call!(kill(me, libc::SIGUSR1));
    // SAFETY: a set of this process.
    let mut other: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::sigaddset(&mut other, libc::SIGUSR2) };
    ensure!(call!(signalfd(fd, &other, 0)) == fd, "another descriptor");
    ensure!(ready(fd, 0)? == 0, "ready for what is not in the set");
    call!(signalfd(fd, &set, 0));
    ensure!(
        next(fd)?.ssi_signo == libc::SIGUSR1 as u32,
        "another signal"
    );
    Ok(())
}

fn signals_wake() -> Outcome {
    let set = block(&[libc::SIGUSR1])?;
    let fd = call!(signalfd(-1, &set, 0));
    // SAFETY: this process's own id.
    let me = unsafe { libc::getpid() };
    let epoll = call!(epoll_create1(0));
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 1,
    };
    call!(epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event));
    for round in 0..6 {
        let child = spawn(|| {
            pause_ms(3);
            call!(kill(me, libc::SIGUSR1));
            Ok(())
        })?;
        match round % 3 {
            0 => {}
            1 => ensure!(ready(fd, 5000)? == POLLIN, "poll was not woken"),
            _ => {
                let count = call!(epoll_wait(epoll, &mut event, 1, 5000));
                ensure!(count == 1, "epoll was not woken");
            }
        }
        ensure!(
            next(fd)?.ssi_signo == libc::SIGUSR1 as u32,
            "another signal"
        );
        wait(child)?;
    }
    Ok(())
}

fn bad() -> Outcome {
    refused!(EINVAL, eventfd(0, 8));
    refused!(EINVAL, timerfd_create(2, 0));
    refused!(EINVAL, timerfd_create(libc::CLOCK_MONOTONIC, 1));
    let fd = call!(timerfd_create(libc::CLOCK_MONOTONIC, 0));
    let mut spec = libc::itimerspec {
        it_interval: span(0),
        it_value: libc::timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000_000,
        },
    };
    refused!(EINVAL, timerfd_settime(fd, 0, &spec, ptr::null_mut()));
    spec.it_value = libc::timespec {
        tv_sec: -1,
        tv_nsec: 0,
    };
    refused!(EINVAL, timerfd_settime(fd, 0, &spec, ptr::null_mut()));
    spec.it_value = span(1);
    refused!(EINVAL, timerfd_settime(fd, 4, &spec, ptr::null_mut()));
    refused!(EINVAL, timerfd_settime(0, 0, &spec, ptr::null_mut()));
    refused!(EBADF, timerfd_settime(999, 0, &spec, ptr::null_mut()));
    refused!(EFAULT, timerfd_settime(fd, 0, ptr::null(), ptr::null_mut()));
    refused!(EINVAL, write(fd, (&raw const spec).cast(), 8));
    // SAFETY: an empty set.
    let set: libc::sigset_t = unsafe { std::mem::zeroed() };
    refused!(EINVAL, signalfd(fd, &set, 0));
    refused!(EBADF, signalfd(999, &set, 0));
    refused!(EINVAL, signalfd(-1, &set, 1));
    // SAFETY: the size is what is wrong.
    let wrong = unsafe { libc::syscall(libc::SYS_signalfd, -1, &set, 4) };
    ensure!(wrong == -1, "a set of four bytes");
    Ok(())
}

fn shown() -> Outcome {
    let show = |fd: c_int| {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"));
        match (link, text) {
            (Ok(link), Ok(text)) => Ok(format!("{} {text}", link.display())),
            (link, text) => Err(format!("{link:?}, {text:?}")),
        }
    };
    let event = call!(eventfd(0x12, 0));
    let timer = call!(timerfd_create(libc::CLOCK_MONOTONIC, 0));
    let set = block(&[libc::SIGHUP, libc::SIGUSR1])?;
    let signal = call!(signalfd(-1, &set, 0));
    let epoll = call!(epoll_create1(0));
    let mut wanted = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0xabc,
    };
    call!(epoll_ctl(epoll, libc::EPOLL_CTL_ADD, event, &mut wanted));
    let line = format!("tfd: {event:8} events:       19 data:              abc  pos:0 ino:");
    for (fd, parts) in [
        (
            event,
            vec!["anon_inode:[eventfd]", "eventfd-count:               12\n"],
        ),
        (
            timer,
            vec![
                "anon_inode:[timerfd]",
                "clockid: 1\nticks: 0\nsettime flags: 00\nit_value: (0, 0)\nit_interval: (0, 0)\n",
            ],
        ),
        (
            signal,
            vec!["anon_inode:[signalfd]", "sigmask:\t0000000000000201\n"],
        ),
        (epoll, vec!["anon_inode:[eventpoll]", &line]),
    ] {
        let text = show(fd)?;
        for part in parts {
            ensure!(text.contains(part), "no {part:?} in {text:?}");
        }
    }
    // SAFETY: numbers only.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    call!(fstat(event, &mut stat));
    ensure!(stat.st_mode == 0o600, "mode {:o}", stat.st_mode);
    Ok(())
}
