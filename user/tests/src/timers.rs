//! POSIX timers on all clocks, the time of day being set, and what a clock without discipline says.

use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use libc::{c_int, clockid_t, itimerspec, sigevent, sigset_t, timespec, timex};

use crate::support::{End, Outcome, child, errno, pause_ms, spawn, wait};
use crate::{Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("timers: which clocks have them", clocks),
    ("timers: expiries that wait are counted", overruns),
    ("timers: intervals of a nanosecond", short_intervals),
    ("timers: a dropped signal does not stop them", dropped),
    ("timers: without a signal", silent),
    ("timers: signals to one thread", to_a_thread),
    (
        "timers: processor time of threads and processes",
        processor_time,
    ),
    ("timers: the time of day is set", time_of_day),
    ("timers: the clock's discipline", discipline),
    ("timers: a user's signals are limited", limited),
];

const SIGNAL: c_int = 40;

fn span(milliseconds: i64) -> timespec {
    timespec {
        tv_sec: milliseconds / 1000,
        tv_nsec: milliseconds % 1000 * 1_000_000,
    }
}

fn create(clock: clockid_t, thread: Option<c_int>, value: usize) -> Result<libc::timer_t, String> {
    // SAFETY: all zeros is a valid event.
    let mut event: sigevent = unsafe { zeroed() };
    event.sigev_signo = SIGNAL;
    event.sigev_value.sival_ptr = value as *mut _;
    event.sigev_notify = libc::SIGEV_SIGNAL;
    if let Some(thread) = thread {
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_notify_thread_id = thread;
    }
    let mut id: c_int = -1;
    // The raw call: the C library's ids are its own.
    call!(syscall(libc::SYS_timer_create, clock, &mut event, &mut id));
    Ok(id as usize as libc::timer_t)
}

fn set(timer: libc::timer_t, flags: c_int, value: timespec, interval: i64) -> Outcome {
    let setting = itimerspec {
        it_interval: span(interval),
        it_value: value,
    };
    call!(syscall(libc::SYS_timer_settime, timer, flags, &setting, 0));
    Ok(())
}

fn delete(timer: libc::timer_t) -> Outcome {
    call!(syscall(libc::SYS_timer_delete, timer));
    Ok(())
}

fn block() -> Result<sigset_t, String> {
    // SAFETY: all zeros is a valid set.
    let mut signals: sigset_t = unsafe { zeroed() };
    call!(sigemptyset(&mut signals));
    call!(sigaddset(&mut signals, SIGNAL));
    call!(sigprocmask(libc::SIG_BLOCK, &signals, ptr::null_mut()));
    Ok(signals)
}

/// Waits so long for the signal; gives its details if it came.
fn take(signals: &sigset_t, milliseconds: i64) -> Result<Option<libc::siginfo_t>, String> {
    // SAFETY: all zeros is a valid description.
    let mut info: libc::siginfo_t = unsafe { zeroed() };
    let patience = span(milliseconds);
    // SAFETY: all of them live across the call.
    let taken = unsafe { libc::sigtimedwait(signals, &mut info, &patience) };
    if taken == -1 {
        ensure!(errno() == libc::EAGAIN, "sigtimedwait: errno {}", errno());
        return Ok(None);
    }
    Ok(Some(info))
}

fn clocks() -> Outcome {
    let signals = block()?;
    for clock in [
        libc::CLOCK_REALTIME,
        libc::CLOCK_MONOTONIC,
        libc::CLOCK_BOOTTIME,
        libc::CLOCK_REALTIME_ALARM,
        libc::CLOCK_BOOTTIME_ALARM,
        libc::CLOCK_TAI,
    ] {
        let timer = create(clock, None, 7)?;
        set(timer, 0, span(2), 0)?;
        let info = take(&signals, 2000)?.ok_or(format!("clock {clock}: no signal"))?;
        // SAFETY: the signal is a timer's.
        let value = unsafe { info.si_value().sival_ptr } as usize;
        ensure!(
            info.si_code == libc::SI_TIMER && value == 7,
            "clock {clock}: {value}"
        );
        delete(timer)?;
        let mut time = span(0);
        call!(clock_gettime(clock, &mut time));
        call!(clock_nanosleep(clock, 0, &span(1), ptr::null_mut()));
        call!(clock_getres(clock, &mut time));
        ensure!(
            (time.tv_sec, time.tv_nsec) == (0, 1),
            "clock {clock}: {}",
            time.tv_nsec
        );
    }
    let mut id = 0;
    let none = ptr::null_mut::<sigevent>();
    for clock in [
        libc::CLOCK_MONOTONIC_RAW,
        libc::CLOCK_REALTIME_COARSE,
        libc::CLOCK_MONOTONIC_COARSE,
    ] {
        refused!(
            EOPNOTSUPP,
            syscall(libc::SYS_timer_create, clock, none, &mut id)
        );
        refused!(
            EOPNOTSUPP,
            syscall(libc::SYS_clock_nanosleep, clock, 0, &span(1), 0)
        );
        let mut time = span(0);
        call!(clock_gettime(clock, &mut time));
    }
    let thread = libc::CLOCK_THREAD_CPUTIME_ID;
    refused!(
        EOPNOTSUPP,
        syscall(libc::SYS_clock_nanosleep, thread, 0, &span(1), 0)
    );
    for clock in [10, 12, 99] {
        refused!(
            EINVAL,
            syscall(libc::SYS_timer_create, clock, none, &mut id)
        );
        refused!(EINVAL, syscall(libc::SYS_clock_gettime, clock, &span(0)));
        refused!(
            EINVAL,
            syscall(libc::SYS_clock_nanosleep, clock, 0, &span(1), 0)
        );
    }
    refused!(
        EINVAL,
        syscall(libc::SYS_timer_settime, 12345, 0, &span(0), 0)
    );
    refused!(EINVAL, syscall(libc::SYS_timer_delete, 12345));
    child(|| {
        call!(setuid(1000));
        let alarm = libc::CLOCK_BOOTTIME_ALARM;
        refused!(EPERM, syscall(libc::SYS_timer_create, alarm, none, &mut id));
        Ok(())
    })
}

fn overruns() -> Outcome {
    let signals = block()?;
    let timer = create(libc::CLOCK_MONOTONIC, None, 1)?;
    set(timer, 0, span(1), 2)?;
    pause_ms(60);
    let info = take(&signals, 1000)?.ok_or("no signal")?;
    // SAFETY: the signal is a timer's, whose description has an id and this number.
    let overrun = unsafe { ptr::from_ref(&info).cast::<c_int>().add(5).read() };
    ensure!(
        (10..40).contains(&overrun),
        "the signal stands for {overrun} more"
    );
    let told = call!(syscall(libc::SYS_timer_getoverrun, timer));
    ensure!(
        told == i64::from(overrun),
        "timer_getoverrun says {told}, the signal {overrun}"
    );
    set(timer, 0, span(0), 0)?;
    // One may have come after the first was taken, and no more than one.
    let more = (0..3)
        .filter(|_| matches!(take(&signals, 0), Ok(Some(_))))
        .count();
    ensure!(more <= 1, "{more} more signals wait");
    ensure!(take(&signals, 10)?.is_none(), "it goes on");
    delete(timer)
}

/// Alarms that were taken, until they are enough.
static ALARMS: AtomicU32 = AtomicU32::new(0);
/// Signals that came after they had been ignored.
static LATE: AtomicU32 = AtomicU32::new(0);
const ENOUGH: u32 = 1000;
const IGNORED: c_int = 41;

fn interval_timer(microseconds: i64) -> Outcome {
    let span = libc::timeval {
        tv_sec: 0,
        tv_usec: microseconds,
    };
    let setting = libc::itimerval {
        it_interval: span,
        it_value: span,
    };
    call!(syscall(libc::SYS_setitimer, libc::ITIMER_REAL, &setting, 0));
    Ok(())
}

extern "C" fn on_alarm(_: c_int) {
    if ALARMS.fetch_add(1, Relaxed) + 1 == ENOUGH {
        let _ = interval_timer(0);
    }
}

extern "C" fn on_late(_: c_int) {
    LATE.fetch_add(1, Relaxed);
    // SAFETY: it may go on without.
    unsafe { libc::signal(IGNORED, libc::SIG_IGN) };
}

/// Timers that are always due keep nobody else from running: they go on when their signals are taken.
fn short_intervals() -> Outcome {
    let storm = || {
        let signals = block()?;
        let blocked = create(libc::CLOCK_MONOTONIC, None, 1)?;
        // SAFETY: all zeros is a valid event.
        let mut event: sigevent = unsafe { zeroed() };
        event.sigev_signo = IGNORED;
        event.sigev_notify = libc::SIGEV_SIGNAL;
        let mut ignored: c_int = -1;
        call!(syscall(
            libc::SYS_timer_create,
            libc::CLOCK_MONOTONIC,
            &mut event,
            &mut ignored
        ));
        call!(signal(IGNORED, libc::SIG_IGN));
        call!(signal(libc::SIGALRM, on_alarm as *const () as usize));
        let nanosecond = timespec {
            tv_sec: 0,
            tv_nsec: 1,
        };
        let setting = itimerspec {
            it_interval: nanosecond,
            it_value: nanosecond,
        };
        for timer in [blocked as usize as c_int, ignored] {
            call!(syscall(libc::SYS_timer_settime, timer, 0, &setting, 0));
        }
        interval_timer(1)?;
        while ALARMS.load(Relaxed) < ENOUGH {
            std::thread::yield_now();
        }
        take(&signals, 0)?.ok_or("no signal waits")?;
        let overrun = || Ok::<_, String>(call!(syscall(libc::SYS_timer_getoverrun, blocked)));
        let first = overrun()?;
        ensure!(first > 100_000, "only {first} expiries were counted");
        // It expires again at once, perhaps before it is known how many expiries the signal that is taken stood for.
        for _ in 0..50 {
            take(&signals, 5000)?.ok_or("it does not go on")?;
            ensure!(overrun()? > 0, "an expiry of long ago is not counted");
        }
        // The blocked one goes on at once, the ignored one when somebody wants it.
        take(&signals, 5000)?.ok_or("it does not go on")?;
        call!(signal(IGNORED, on_late as *const () as usize));
        while LATE.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        Ok(())
    };
    let children: Vec<_> = (0..4).map(|_| spawn(storm)).collect::<Result<_, _>>()?;
    for child in children {
        let end = wait(child)?;
        ensure!(end == End::Exit(0), "a child ended with {end:?}");
    }
    Ok(())
}

fn dropped() -> Outcome {
    let signals = block()?;
    let timer = create(libc::CLOCK_MONOTONIC, None, 1)?;
    set(timer, 0, span(1), 1)?;
    let waits = || -> Outcome {
        for _ in 0..1000 {
            let mut pending = signals;
            call!(sigpending(&mut pending));
            if call!(sigismember(&pending, SIGNAL)) == 1 {
                return Ok(());
            }
            pause_ms(5);
        }
        Err("no signal waits".into())
    };
    waits()?;
    // What waits is dropped when it comes to be ignored; the next one is blocked, and waits.
    call!(signal(SIGNAL, libc::SIG_IGN));
    call!(signal(SIGNAL, libc::SIG_DFL));
    waits()?;
    take(&signals, 0)?.ok_or("it could not be taken")?;
    waits()?;
    delete(timer)
}

fn silent() -> Outcome {
    // SAFETY: all zeros is a valid event.
    let mut event: sigevent = unsafe { zeroed() };
    event.sigev_notify = libc::SIGEV_NONE;
    let mut id: c_int = -1;
    let clock = libc::CLOCK_MONOTONIC;
    call!(syscall(libc::SYS_timer_create, clock, &mut event, &mut id));
    let timer = id as usize as libc::timer_t;
    let left = || -> Result<i64, String> {
        // SAFETY: all zeros is a valid setting.
        let mut setting: itimerspec = unsafe { zeroed() };
        call!(syscall(libc::SYS_timer_gettime, timer, &mut setting));
        Ok(setting.it_value.tv_sec * 1_000_000_000 + setting.it_value.tv_nsec)
    };
    set(timer, 0, span(100_000), 0)?;
    ensure!(left()? > 0, "it does not run");
    set(timer, 0, span(1), 0)?;
    pause_ms(5);
    ensure!(left()? == 0, "it runs on after its end");
    set(timer, 0, span(1), 3)?;
    pause_ms(5);
    let rest = left()?;
    ensure!(
        (1..=3_000_000).contains(&rest),
        "{rest} ns of an interval of 3 ms"
    );
    delete(timer)
}

fn to_a_thread() -> Outcome {
    let signals = block()?;
    let other = std::thread::spawn(move || {
        let own = call!(gettid());
        let timer = create(libc::CLOCK_REALTIME, Some(own), 5)?;
        set(timer, 0, span(3), 0)?;
        let mut pending = signals;
        for turn in 0.. {
            call!(sigpending(&mut pending));
            if call!(sigismember(&pending, SIGNAL)) == 1 {
                break;
            }
            ensure!(turn < 2000, "not for this thread");
            pause_ms(5);
        }
        pause_ms(30);
        let info = take(&signals, 0)?.ok_or("taken by another thread")?;
        ensure!(info.si_code == libc::SI_TIMER, "code {}", info.si_code);
        delete(timer)
    });
    let stolen = take(&signals, 40)?;
    other.join().map_err(|_| "a panic")??;
    ensure!(stolen.is_none(), "another thread took it");
    let mut id = 0;
    // SAFETY: all zeros is a valid event.
    let mut event: sigevent = unsafe { zeroed() };
    event.sigev_signo = SIGNAL;
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_notify_thread_id = 1;
    let monotonic = libc::CLOCK_MONOTONIC;
    refused!(
        EINVAL,
        syscall(libc::SYS_timer_create, monotonic, &mut event, &mut id)
    );
    Ok(())
}

fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn processor_time() -> Outcome {
    let signals = block()?;
    let timer = create(libc::CLOCK_THREAD_CPUTIME_ID, None, 1)?;
    set(timer, 0, span(60), 0)?;
    // Other threads' work does not count, nor does sleep.
    let other = std::thread::spawn(|| spin(Duration::from_millis(120)));
    ensure!(
        take(&signals, 130)?.is_none(),
        "it counts other threads' time"
    );
    other.join().map_err(|_| "a panic")?;
    let mut left: itimerspec = itimerspec {
        it_interval: span(0),
        it_value: span(0),
    };
    call!(syscall(libc::SYS_timer_gettime, timer, &mut left));
    ensure!(
        left.it_value.tv_nsec > 20_000_000,
        "left: {} ns",
        left.it_value.tv_nsec
    );
    let begin = Instant::now();
    while take(&signals, 0)?.is_none() {
        ensure!(begin.elapsed() < Duration::from_secs(10), "no signal");
        spin(Duration::from_millis(5));
    }
    let time = begin.elapsed();
    ensure!(time > Duration::from_millis(20), "it came after {time:?}");
    delete(timer)?;

    let timer = create(libc::CLOCK_PROCESS_CPUTIME_ID, None, 2)?;
    set(timer, 0, span(40), 0)?;
    let other = std::thread::spawn(|| spin(Duration::from_millis(300)));
    let info = take(&signals, 5000)?.ok_or("no signal for the process's time")?;
    ensure!(info.si_code == libc::SI_TIMER, "code {}", info.si_code);
    other.join().map_err(|_| "a panic")?;
    delete(timer)
}

fn day(offset: i64) -> Result<timespec, String> {
    let mut now = span(0);
    call!(clock_gettime(libc::CLOCK_REALTIME, &mut now));
    now.tv_sec += offset;
    Ok(now)
}

fn time_of_day() -> Outcome {
    const HOUR: i64 = 3600;
    let signals = block()?;
    let later = day(HOUR)?;
    let timer = create(libc::CLOCK_REALTIME, None, 3)?;
    set(timer, libc::TIMER_ABSTIME, later, 0)?;
    let relative = create(libc::CLOCK_REALTIME, None, 4)?;
    set(relative, 0, span(HOUR * 1000), 0)?;
    let file = call!(timerfd_create(libc::CLOCK_REALTIME, libc::TFD_NONBLOCK));
    let setting = itimerspec {
        it_interval: span(0),
        it_value: day(2 * HOUR)?,
    };
    let flags = libc::TFD_TIMER_ABSTIME | libc::TFD_TIMER_CANCEL_ON_SET;
    call!(timerfd_settime(file, flags, &setting, ptr::null_mut()));
    let sleeper = spawn(|| {
        let slept = call!(clock_nanosleep(
            libc::CLOCK_REALTIME,
            libc::TIMER_ABSTIME,
            &later,
            ptr::null_mut()
        ));
        ensure!(slept == 0, "the sleep ended with {slept}");
        Ok(())
    })?;
    let waiter = spawn(|| {
        let word = AtomicU32::new(0);
        let operation = libc::FUTEX_WAIT_BITSET | libc::FUTEX_CLOCK_REALTIME;
        refused!(
            ETIMEDOUT,
            syscall(libc::SYS_futex, &word, operation, 0, &later, 0, -1)
        );
        Ok(())
    })?;
    pause_ms(20);
    let begin = Instant::now();
    call!(clock_settime(libc::CLOCK_REALTIME, &day(HOUR + 10)?));
    let end = (|| {
        let info = take(&signals, 3000)?.ok_or("the timer did not notice")?;
        // SAFETY: the signal is a timer's.
        let value = unsafe { info.si_value().sival_ptr } as usize;
        ensure!(value == 3, "timer {value} expired");
        ensure!(take(&signals, 5)?.is_none(), "a relative timer noticed");
        let mut count = 0u64;
        refused!(ECANCELED, read(file, (&raw mut count).cast(), 8));
        for (who, child) in [("the sleeper", sleeper), ("the waiter", waiter)] {
            let end = wait(child)?;
            ensure!(end == crate::support::End::Exit(0), "{who}: {end:?}");
        }
        ensure!(
            begin.elapsed() < Duration::from_secs(5),
            "it took {:?}",
            begin.elapsed()
        );
        Ok(())
    })();
    call!(clock_settime(libc::CLOCK_REALTIME, &day(-HOUR - 10)?));
    end?;
    delete(timer)?;
    delete(relative)?;
    child(|| {
        call!(setuid(1000));
        refused!(EPERM, clock_settime(libc::CLOCK_REALTIME, &day(0)?));
        Ok(())
    })?;
    refused!(EINVAL, clock_settime(libc::CLOCK_MONOTONIC, &day(0)?));
    Ok(())
}

fn discipline() -> Outcome {
    // SAFETY: all zeros is a valid request: for nothing but the state.
    let mut state: timex = unsafe { zeroed() };
    let answer = call!(adjtimex(&mut state));
    ensure!(answer == libc::TIME_ERROR, "the state is {answer}");
    ensure!(
        state.status & libc::STA_UNSYNC != 0,
        "status {:#x}",
        state.status
    );
    ensure!(
        state.tick == 10_000 && state.freq == 0,
        "tick {}",
        state.tick
    );
    let now = day(0)?.tv_sec;
    ensure!(
        (now - state.time.tv_sec).abs() <= 1,
        "the time is {}",
        state.time.tv_sec
    );
    ensure!(
        call!(clock_adjtime(libc::CLOCK_REALTIME, &mut state)) == libc::TIME_ERROR,
        "realtime"
    );
    refused!(EOPNOTSUPP, clock_adjtime(libc::CLOCK_MONOTONIC, &mut state));
    refused!(EINVAL, clock_adjtime(77, &mut state));
    state.modes = libc::ADJ_OFFSET_SS_READ;
    call!(adjtimex(&mut state));
    child(|| {
        call!(setuid(1000));
        // SAFETY: as above.
        let mut state: timex = unsafe { zeroed() };
        call!(adjtimex(&mut state));
        state.modes = libc::ADJ_FREQUENCY;
        refused!(EPERM, adjtimex(&mut state));
        Ok(())
    })
}

fn limit(resource: libc::__rlimit_resource_t, value: u64) -> Outcome {
    let limit = libc::rlimit {
        rlim_cur: value,
        rlim_max: value,
    };
    call!(setrlimit(resource, &limit));
    Ok(())
}

fn limited() -> Outcome {
    child(|| {
        let signals = block()?;
        limit(libc::RLIMIT_SIGPENDING, 3)?;
        call!(setuid(4711));
        let (own, value) = (
            call!(getpid()),
            libc::sigval {
                sival_ptr: ptr::null_mut(),
            },
        );
        for _ in 0..2 {
            call!(sigqueue(own, SIGNAL, value));
        }
        // A timer's signal counts from the start.
        let timer = create(libc::CLOCK_MONOTONIC, None, 1)?;
        refused!(EAGAIN, sigqueue(own, SIGNAL, value));
        let mut id = 0;
        let none = ptr::null_mut::<sigevent>();
        refused!(EAGAIN, syscall(libc::SYS_timer_create, 1, none, &mut id));
        // Another process of the user, too.
        child(|| {
            refused!(EAGAIN, sigqueue(call!(getpid()), SIGNAL, value));
            // `kill` is never refused.
            call!(kill(call!(getpid()), SIGNAL));
            Ok(())
        })?;
        let status = std::fs::read_to_string("/proc/self/status").map_err(|e| e.to_string())?;
        ensure!(status.contains("SigQ:\t3/3\n"), "{status}");
        delete(timer)?;
        call!(sigqueue(own, SIGNAL, value));
        let mut taken = 0;
        while take(&signals, 0)?.is_some() {
            taken += 1;
        }
        ensure!(taken == 3, "{taken} signals waited");
        call!(sigqueue(own, SIGNAL, value));
        Ok(())
    })?;
    child(|| {
        limit(libc::RLIMIT_NPROC, 3)?;
        call!(setuid(4712));
        let (mut children, hold) = (Vec::new(), crate::support::pipe(libc::O_CLOEXEC)?);
        loop {
            // SAFETY: the child does nothing but wait.
            match unsafe { libc::fork() } {
                -1 => break,
                0 => {
                    let mut byte = 0u8;
                    call!(close(hold.1));
                    call!(read(hold.0, (&raw mut byte).cast(), 1));
                    crate::support::exit(0);
                }
                child => children.push(child),
            }
            ensure!(children.len() < 10, "no limit");
        }
        ensure!(errno() == libc::EAGAIN, "errno {}", errno());
        let count = children.len();
        call!(close(hold.1));
        for child in children {
            wait(child)?;
        }
        ensure!(count == 2, "{count} children");
        child(|| Ok(()))
    })?;
    // A change of the user goes well, but then no program can be run.
    child(|| {
        limit(libc::RLIMIT_NPROC, 0)?;
        call!(setuid(4713));
        let arguments = [c"true".as_ptr(), ptr::null()];
        refused!(
            EAGAIN,
            execv(c"/proc/self/exe".as_ptr(), arguments.as_ptr())
        );
        Ok(())
    })
}
