//! eventfd, timerfd, signalfd.

use support::prelude::*;

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

fn read_u64(fd: c_int) -> Result<u64> {
    let mut value = 0u64;
    let count = call!(read(fd, (&raw mut value).cast(), 8));
    ensure!(count == 8, "{count} bytes in place of 8");
    Ok(value)
}

fn write_u64(fd: c_int, value: u64) -> Outcome {
    call!(write(fd, (&raw const value).cast(), 8));
    Ok(())
}

fn is(found: u64, wanted: u64) -> Outcome {
    ensure!(found == wanted, "{found} in place of {wanted}");
    Ok(())
}

fn counter() -> Outcome {
    let fd = call!(eventfd(3, EFD_NONBLOCK));
    is(read_u64(fd)?, 3)?;
    let mut value = 0u64;
    let at: *mut c_void = (&raw mut value).cast();
    refused!(EAGAIN, read(fd, at, 8));
    ensure!(
        poll_for(&fd, POLLIN | POLLOUT, 0)? == POLLOUT,
        "an empty counter"
    );
    write_u64(fd, 5)?;
    write_u64(fd, 7)?;
    ensure!(
        poll_for(&fd, POLLIN | POLLOUT, 0)? == POLLIN | POLLOUT,
        "a counter"
    );
    is(read_u64(fd)?, 12)?;
    write_u64(fd, 0)?;
    refused!(EAGAIN, read(fd, at, 8));
    write_u64(fd, u64::MAX - 1)?;
    ensure!(
        poll_for(&fd, POLLIN | POLLOUT, 0)? == POLLIN,
        "a full counter"
    );
    refused!(EAGAIN, write(fd, (&raw const ONE).cast(), 8));
    refused!(EINVAL, write(fd, (&raw const ALL).cast(), 8));
    refused!(EINVAL, write(fd, (&raw const ONE).cast(), 7));
    refused!(EINVAL, read(fd, at, 7));
    is(read_u64(fd)?, u64::MAX - 1)?;
    let one = call!(eventfd(2, EFD_SEMAPHORE | EFD_NONBLOCK));
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
        // Waits for space.
        write_u64(fd, 2)
    })?;
    is(read_u64(fd)?, u64::MAX - 1)?;
    wait_ok(child)?;
    is(read_u64(fd)?, 2)
}

fn set(fd: c_int, flags: c_int, value: timespec, interval: i64) -> Outcome {
    let new = timer_spec(value, interval);
    call!(timerfd_settime(fd, flags, &new, null_mut()));
    Ok(())
}

fn timer() -> Outcome {
    let fd = call!(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
    let mut value = 0u64;
    let at: *mut c_void = (&raw mut value).cast();
    refused!(EAGAIN, read(fd, at, 8));
    set(fd, 0, timespec_of(600_000), 0)?;
    refused!(EAGAIN, read(fd, at, 8));
    let start = Instant::now();
    set(fd, 0, timespec_of(20), 0)?;
    ensure!(
        poll_for(&fd, POLLIN | POLLOUT, 5000)? == POLLIN,
        "it does not expire"
    );
    let took = start.elapsed();
    ensure!(took >= Duration::from_millis(20), "early: {took:?}");
    is(read_u64(fd)?, 1)?;
    refused!(EAGAIN, read(fd, at, 8));
    // Expiries not yet read are counted.
    let start = Instant::now();
    set(fd, 0, timespec_of(5), 5)?;
    pause_ms(33);
    let count = read_u64(fd)?;
    let took = start.elapsed();
    let most = took.as_millis() as u64 / 5;
    ensure!((6..=most).contains(&count), "{count} expiries in {took:?}");
    let mut left = timer_spec(timespec_of(0), 0);
    call!(timerfd_gettime(fd, &mut left));
    ensure!(
        left.it_interval.tv_nsec == 5_000_000 && left.it_value.tv_nsec <= 5_000_000,
        "{} left of {}",
        left.it_value.tv_nsec,
        left.it_interval.tv_nsec
    );
    // Disarmed: even pending expiries are gone.
    pause_ms(6);
    let mut old = left;
    call!(timerfd_settime(
        fd,
        0,
        &timer_spec(timespec_of(0), 0),
        &mut old
    ));
    ensure!(old.it_interval.tv_nsec == 5_000_000, "the old interval");
    refused!(EAGAIN, read(fd, at, 8));
    // A time of the clock.
    let mut then = clock(CLOCK_MONOTONIC)?;
    then.tv_sec -= 1;
    set(fd, TFD_TIMER_ABSTIME, then, 100)?;
    let count = read_u64(fd)?;
    ensure!((10..40).contains(&count), "{count} expiries since a second");
    Ok(())
}

fn time_of_day() -> Outcome {
    let fd = call!(timerfd_create(CLOCK_REALTIME, 0));
    let mut then = clock(CLOCK_REALTIME)?;
    then.tv_nsec += 10_000_000;
    if then.tv_nsec >= 1_000_000_000 {
        then.tv_nsec -= 1_000_000_000;
        then.tv_sec += 1;
    }
    set(fd, TFD_TIMER_ABSTIME, then, 0)?;
    is(read_u64(fd)?, 1)?;
    let reached = clock(CLOCK_REALTIME)?;
    ensure!(
        (reached.tv_sec, reached.tv_nsec) >= (then.tv_sec, then.tv_nsec),
        "too early"
    );
    // The clock is set: timers that asked for it are cancelled, and an absolute time may be
    // reached.
    let mut far = clock(CLOCK_REALTIME)?;
    far.tv_sec += 1000;
    let both = TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET;
    set(fd, both, far, 0)?;
    let other = call!(timerfd_create(CLOCK_REALTIME, 0));
    set(other, TFD_TIMER_ABSTIME, far, 0)?;
    let mut later = far;
    later.tv_sec += 1;
    // SAFETY: a structure of this process.
    if unsafe { libc::clock_settime(CLOCK_REALTIME, &later) } != 0 {
        return Err(skip("may not set the clock"));
    }
    let mut back = clock(CLOCK_REALTIME)?;
    back.tv_sec -= 1001;
    let mut value = 0u64;
    equal!(poll_for(&fd, POLLIN | POLLOUT, 1000)?, POLLIN);
    refused!(ECANCELED, read(fd, (&raw mut value).cast(), 8));
    is(read_u64(other)?, 1)?;
    call!(clock_settime(CLOCK_REALTIME, &back));
    Ok(())
}

fn timer_wakes() -> Outcome {
    let epoll = call!(epoll_create1(0));
    let mut timers = Vec::new();
    for interval in 1..4 {
        let fd = call!(timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK));
        set(fd, 0, timespec_of(interval * 3), interval * 3)?;
        let mut event = epoll_entry(EPOLLIN, fd as u64);
        call!(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &mut event));
        timers.push(fd);
    }
    let start = Instant::now();
    let mut expiries = 0;
    while start.elapsed() < Duration::from_millis(60) {
        let mut event = epoll_event { events: 0, u64: 0 };
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

fn next(fd: c_int) -> Result<signalfd_siginfo> {
    // SAFETY: numbers only.
    let mut info: signalfd_siginfo = unsafe { zeroed() };
    let count = call!(read(fd, (&raw mut info).cast(), size_of_val(&info)));
    ensure!(count == 128, "{count} bytes in place of 128");
    Ok(info)
}

fn signals() -> Outcome {
    let set = block(&[SIGUSR1, SIGUSR2, SIGCHLD])?;
    let fd = call!(signalfd(-1, &set, SFD_NONBLOCK));
    let mut info = 0u8;
    let at: *mut c_void = (&raw mut info).cast();
    refused!(EINVAL, read(fd, at, 127));
    // SAFETY: numbers only.
    let mut two: [signalfd_siginfo; 2] = unsafe { zeroed() };
    refused!(EAGAIN, read(fd, two.as_mut_ptr().cast(), 256));
    // SAFETY: this process's own ids.
    let (me, user) = unsafe { (libc::getpid(), libc::getuid()) };
    call!(kill(me, SIGUSR2));
    call!(kill(me, SIGUSR1));
    ensure!(
        poll_for(&fd, POLLIN | POLLOUT, 0)? == POLLIN,
        "pending, but not ready"
    );
    let count = call!(read(fd, two.as_mut_ptr().cast(), 256));
    ensure!(count == 256, "{count} bytes for two signals");
    for (info, signal) in two.iter().zip([SIGUSR1, SIGUSR2]) {
        let found = (info.ssi_signo, info.ssi_pid, info.ssi_uid, info.ssi_code);
        let wanted = (signal as u32, me as u32, user, 0);
        ensure!(found == wanted, "{found:?} in place of {wanted:?}");
    }
    ensure!(
        poll_for(&fd, POLLIN | POLLOUT, 0)? == 0,
        "ready for nothing"
    );
    let child = spawn(|| exit(9))?;
    ensure!(
        poll_for(&fd, POLLIN | POLLOUT, 5000)? == POLLIN,
        "no word of the child"
    );
    let info = next(fd)?;
    let found = (info.ssi_signo, info.ssi_pid, info.ssi_status, info.ssi_code);
    equal!(found, (SIGCHLD as u32, child as u32, 9, CLD_EXITED));
    // Another set for the same file.
    call!(kill(me, SIGUSR1));
    let other = set_of(&[SIGUSR2]);
    ensure!(call!(signalfd(fd, &other, 0)) == fd, "another descriptor");
    ensure!(
        poll_for(&fd, POLLIN | POLLOUT, 0)? == 0,
        "ready for what is not in the set"
    );
    call!(signalfd(fd, &set, 0));
    equal!(next(fd)?.ssi_signo, SIGUSR1 as u32);
    Ok(())
}

fn signals_wake() -> Outcome {
    let set = block(&[SIGUSR1])?;
    let fd = call!(signalfd(-1, &set, 0));
    // SAFETY: this process's own id.
    let me = unsafe { libc::getpid() };
    let epoll = call!(epoll_create1(0));
    let mut event = epoll_entry(EPOLLIN, 1);
    call!(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &mut event));
    for round in 0..6 {
        let child = spawn(|| {
            pause_ms(3);
            call!(kill(me, SIGUSR1));
            Ok(())
        })?;
        match round % 3 {
            0 => {}
            1 => ensure!(
                poll_for(&fd, POLLIN | POLLOUT, 5000)? == POLLIN,
                "poll was not woken"
            ),
            _ => {
                let count = call!(epoll_wait(epoll, &mut event, 1, 5000));
                ensure!(count == 1, "epoll was not woken");
            }
        }
        equal!(next(fd)?.ssi_signo, SIGUSR1 as u32);
        wait(child)?;
    }
    Ok(())
}

fn bad() -> Outcome {
    refused!(EINVAL, eventfd(0, 8));
    refused!(EINVAL, timerfd_create(2, 0));
    refused!(EINVAL, timerfd_create(CLOCK_MONOTONIC, 1));
    let fd = call!(timerfd_create(CLOCK_MONOTONIC, 0));
    let mut spec = timer_spec(time_spec(0, 1_000_000_000), 0);
    refused!(EINVAL, timerfd_settime(fd, 0, &spec, null_mut()));
    spec.it_value = time_spec(-1, 0);
    refused!(EINVAL, timerfd_settime(fd, 0, &spec, null_mut()));
    spec.it_value = timespec_of(1);
    refused!(EINVAL, timerfd_settime(fd, 4, &spec, null_mut()));
    refused!(EINVAL, timerfd_settime(0, 0, &spec, null_mut()));
    refused!(EBADF, timerfd_settime(999, 0, &spec, null_mut()));
    refused!(EFAULT, timerfd_settime(fd, 0, null(), null_mut()));
    refused!(EINVAL, write(fd, (&raw const spec).cast(), 8));
    // SAFETY: an empty set.
    let set: sigset_t = unsafe { zeroed() };
    refused!(EINVAL, signalfd(fd, &set, 0));
    refused!(EBADF, signalfd(999, &set, 0));
    refused!(EINVAL, signalfd(-1, &set, 1));
    // SAFETY: the size is what is wrong.
    let wrong = unsafe { libc::syscall(libc::SYS_signalfd, -1, &set, 4) };
    ensure!(wrong == -1, "a set of four bytes");
    Ok(())
}

fn shown() -> Outcome {
    let show = |fd: c_int| -> Result<String> {
        let link = fs::read_link(format!("/proc/self/fd/{fd}"));
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{fd}"));
        match (link, text) {
            (Ok(link), Ok(text)) => Ok(format!("{} {text}", link.display())),
            (link, text) => Err(format!("{link:?}, {text:?}").into()),
        }
    };
    let event = call!(eventfd(0x12, 0));
    let timer = call!(timerfd_create(CLOCK_MONOTONIC, 0));
    let set = block(&[SIGHUP, SIGUSR1])?;
    let signal = call!(signalfd(-1, &set, 0));
    let epoll = call!(epoll_create1(0));
    let mut wanted = epoll_entry(EPOLLIN, 0xabc);
    call!(epoll_ctl(epoll, EPOLL_CTL_ADD, event, &mut wanted));
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
    let mut stat: stat = unsafe { zeroed() };
    call!(fstat(event, &mut stat));
    ensure!(stat.st_mode == 0o600, "mode {:o}", stat.st_mode);
    Ok(())
}
