//! POSIX timers on all clocks, setting the time of day, `adjtimex`.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("timers: which clocks have them", clocks),
    ("timers: expiries that wait are counted", overruns),
    ("timers: none expires after it was stopped", stopped),
    ("timers: intervals of a nanosecond", short_intervals),
    ("timers: a dropped signal does not stop them", dropped),
    ("timers: without a signal", silent),
    ("timers: signals to one thread", to_a_thread),
    (
        "timers: processor time of threads and processes",
        processor_time,
    ),
    ("timers: a thread that gets another's id", id_of_another),
    ("timers: the time of day is set", time_of_day),
    ("timers: the clock's discipline", discipline),
    ("timers: a user's signals are limited", limited),
];

const SIGNAL: c_int = 40;

fn create(clock: clockid_t, thread: Option<c_int>, value: usize) -> Result<timer_t> {
    // SAFETY: all zeros is a valid event.
    let mut event: sigevent = unsafe { zeroed() };
    event.sigev_signo = SIGNAL;
    event.sigev_value.sival_ptr = value as *mut _;
    event.sigev_notify = SIGEV_SIGNAL;
    if let Some(thread) = thread {
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_notify_thread_id = thread;
    }
    let mut id: c_int = -1;
    // The raw call: the C library's ids are its own.
    call!(syscall(libc::SYS_timer_create, clock, &mut event, &mut id));
    Ok(id as usize as timer_t)
}

fn set(timer: timer_t, flags: c_int, value: timespec, interval: i64) -> Outcome {
    let setting = timer_spec(value, interval);
    call!(syscall(libc::SYS_timer_settime, timer, flags, &setting, 0));
    Ok(())
}

fn delete(timer: timer_t) -> Outcome {
    call!(syscall(libc::SYS_timer_delete, timer));
    Ok(())
}

fn clocks() -> Outcome {
    let signals = block(&[SIGNAL])?;
    for clock in [
        CLOCK_REALTIME,
        CLOCK_MONOTONIC,
        CLOCK_BOOTTIME,
        CLOCK_REALTIME_ALARM,
        CLOCK_BOOTTIME_ALARM,
        CLOCK_TAI,
    ] {
        let timer = create(clock, None, 7)?;
        set(timer, 0, timespec_of(2), 0)?;
        let info = take_signal(&signals, 2000)?.ok_or(format!("clock {clock}: no signal"))?;
        // SAFETY: the signal is a timer's.
        let value = unsafe { info.si_value().sival_ptr } as usize;
        ensure!(info.si_code == SI_TIMER && value == 7, clock, value);
        delete(timer)?;
        let mut time = timespec_of(0);
        call!(clock_gettime(clock, &mut time));
        call!(clock_nanosleep(clock, 0, &timespec_of(1), null_mut()));
        call!(clock_getres(clock, &mut time));
        equal!((time.tv_sec, time.tv_nsec), (0, 1), clock, time.tv_nsec);
    }
    let mut id = 0;
    let none = null_mut::<sigevent>();
    for clock in [
        CLOCK_MONOTONIC_RAW,
        CLOCK_REALTIME_COARSE,
        CLOCK_MONOTONIC_COARSE,
    ] {
        refused! {
            syscall(libc::SYS_timer_create, clock, none, &mut id) => EOPNOTSUPP;
            syscall(libc::SYS_clock_nanosleep, clock, 0, &timespec_of(1), 0) => EOPNOTSUPP;
        }
        let mut time = timespec_of(0);
        call!(clock_gettime(clock, &mut time));
    }
    let thread = CLOCK_THREAD_CPUTIME_ID;
    refused! { syscall(libc::SYS_clock_nanosleep, thread, 0, &timespec_of(1), 0) => EOPNOTSUPP; }
    for clock in [10, 12, 99] {
        refused! {
            syscall(libc::SYS_timer_create, clock, none, &mut id) => EINVAL;
            syscall(libc::SYS_clock_gettime, clock, &timespec_of(0)) => EINVAL;
            syscall(libc::SYS_clock_nanosleep, clock, 0, &timespec_of(1), 0) => EINVAL;
        }
    }
    refused! {
        syscall(libc::SYS_timer_settime, 12345, 0, &timespec_of(0), 0) => EINVAL;
        syscall(libc::SYS_timer_delete, 12345) => EINVAL;
    }
    child(|| {
        call!(setuid(1000));
        let alarm = CLOCK_BOOTTIME_ALARM;
        refused!(EPERM, syscall(libc::SYS_timer_create, alarm, none, &mut id));
        Ok(())
    })
}

fn overruns() -> Outcome {
    let signals = block(&[SIGNAL])?;
    let timer = create(CLOCK_MONOTONIC, None, 1)?;
    let began = Instant::now();
    set(timer, 0, timespec_of(1), 2)?;
    pause_ms(60);
    let info = take_signal(&signals, 1000)?.ok_or("no signal")?;
    let most = began.elapsed().as_millis() as c_int / 2;
    // SAFETY: the signal is a timer's, whose description has an id and this number.
    let overrun = unsafe { ptr::from_ref(&info).cast::<c_int>().add(5).read() };
    ensure!((10..=most).contains(&overrun), overrun, most);
    let told = call!(syscall(libc::SYS_timer_getoverrun, timer));
    equal!(told, i64::from(overrun), overrun);
    set(timer, 0, timespec_of(0), 0)?;
    // At most one may have come after the first was taken.
    let more = (0..3)
        .filter(|_| matches!(take_signal(&signals, 0), Ok(Some(_))))
        .count();
    ensure!(more <= 1, "{more} more signals wait");
    ensure!(take_signal(&signals, 10)?.is_none(), "it goes on");
    delete(timer)
}

/// When `timer_settime` or `timer_delete` has returned, the signal of the old setting is there or
/// never comes, at whatever moment of the expiry the call was made.
fn stopped() -> Outcome {
    const ROUNDS: u64 = 1000;
    let signals = block(&[SIGNAL])?;
    let mut expired = 0;
    for round in 0..ROUNDS {
        let timer = create(CLOCK_MONOTONIC, None, 1)?;
        let after = Duration::from_micros(40);
        let began = Instant::now();
        let value = timespec {
            tv_sec: 0,
            tv_nsec: after.as_nanos() as i64,
        };
        set(timer, 0, value, 0)?;
        // Around the moment in which it expires.
        let until = after + Duration::from_micros(round % 60);
        while began.elapsed() < until {
            std::hint::spin_loop();
        }
        if round % 2 == 0 {
            set(timer, 0, timespec_of(0), 0)?;
        } else {
            delete(timer)?;
        }
        let came = take_signal(&signals, 0)?.is_some();
        expired += u64::from(came);
        let late = take_signal(&signals, 1)?.is_some();
        ensure!(!late, "round {round} of {ROUNDS}, {expired} had expired");
        if round % 2 == 0 {
            delete(timer)?;
        }
    }
    ensure!(
        expired > 0,
        "none expired in time: the rounds are too short"
    );
    Ok(())
}

/// Count of alarms taken so far.
static ALARMS: AtomicU32 = AtomicU32::new(0);
/// Count of signals delivered after having been ignored.
static LATE: AtomicU32 = AtomicU32::new(0);
const ENOUGH: u32 = 1000;
const IGNORED: c_int = 41;

fn interval_timer(microseconds: i64) -> Outcome {
    call!(syscall(
        libc::SYS_setitimer,
        ITIMER_REAL,
        &timer_val(microseconds, microseconds),
        0
    ));
    Ok(())
}

extern "C" fn on_alarm(_: c_int) {
    if ALARMS.fetch_add(1, Relaxed) + 1 == ENOUGH {
        let _ = interval_timer(0);
    }
}

extern "C" fn on_late(_: c_int) {
    LATE.fetch_add(1, Relaxed);
    // SAFETY: changes only the signal's action.
    unsafe { libc::signal(IGNORED, SIG_IGN) };
}

/// Timers that are always due do not starve other work: they are rearmed when their signals are
/// taken.
fn short_intervals() -> Outcome {
    let storm = || {
        let signals = block(&[SIGNAL])?;
        let blocked = create(CLOCK_MONOTONIC, None, 1)?;
        // SAFETY: all zeros is a valid event.
        let mut event: sigevent = unsafe { zeroed() };
        event.sigev_signo = IGNORED;
        event.sigev_notify = SIGEV_SIGNAL;
        let mut ignored: c_int = -1;
        call!(syscall(
            libc::SYS_timer_create,
            CLOCK_MONOTONIC,
            &mut event,
            &mut ignored
        ));
        call!(signal(IGNORED, SIG_IGN));
        call!(signal(SIGALRM, on_alarm as *const () as usize));
        let nanosecond = time_spec(0, 1);
        let setting = itimerspec {
            it_interval: nanosecond,
            it_value: nanosecond,
        };
        for timer in [blocked as usize as c_int, ignored] {
            call!(syscall(libc::SYS_timer_settime, timer, 0, &setting, 0));
        }
        interval_timer(1)?;
        while ALARMS.load(Relaxed) < ENOUGH {
            thread::yield_now();
        }
        take_signal(&signals, 0)?.ok_or("no signal waits")?;
        let overrun = || Ok::<_, Failure>(call!(syscall(libc::SYS_timer_getoverrun, blocked)));
        let first = overrun()?;
        ensure!(first > 100_000, "only {first} expiries were counted");
        // It expires again at once, perhaps before the overrun count of the taken signal is read.
        for _ in 0..50 {
            take_signal(&signals, 5000)?.ok_or("it does not go on")?;
            ensure!(overrun()? > 0, "an expiry of long ago is not counted");
        }
        // The blocked timer is rearmed at once, the ignored one when its signal is wanted again.
        take_signal(&signals, 5000)?.ok_or("it does not go on")?;
        call!(signal(IGNORED, on_late as *const () as usize));
        while LATE.load(Relaxed) == 0 {
            thread::yield_now();
        }
        Ok(())
    };
    let children: Vec<_> = (0..4).map(|_| spawn(storm)).collect::<Result<_, _>>()?;
    wait_all(children)?;
    Ok(())
}

fn dropped() -> Outcome {
    let signals = block(&[SIGNAL])?;
    let timer = create(CLOCK_MONOTONIC, None, 1)?;
    set(timer, 0, timespec_of(1), 1)?;
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
    // A pending signal is dropped when it becomes ignored; the next one is blocked and stays
    // pending.
    call!(signal(SIGNAL, SIG_IGN));
    call!(signal(SIGNAL, SIG_DFL));
    waits()?;
    take_signal(&signals, 0)?.ok_or("it could not be taken")?;
    waits()?;
    delete(timer)
}

fn silent() -> Outcome {
    // SAFETY: all zeros is a valid event.
    let mut event: sigevent = unsafe { zeroed() };
    event.sigev_notify = SIGEV_NONE;
    let mut id: c_int = -1;
    let clock = CLOCK_MONOTONIC;
    call!(syscall(libc::SYS_timer_create, clock, &mut event, &mut id));
    let timer = id as usize as timer_t;
    let left = || -> Result<i64> {
        // SAFETY: all zeros is a valid setting.
        let mut setting: itimerspec = unsafe { zeroed() };
        call!(syscall(libc::SYS_timer_gettime, timer, &mut setting));
        Ok(setting.it_value.tv_sec * 1_000_000_000 + setting.it_value.tv_nsec)
    };
    set(timer, 0, timespec_of(100_000), 0)?;
    ensure!(left()? > 0, "it does not run");
    set(timer, 0, timespec_of(1), 0)?;
    pause_ms(5);
    ensure!(left()? == 0, "it runs on after its end");
    set(timer, 0, timespec_of(1), 3)?;
    pause_ms(5);
    let rest = left()?;
    ensure!((1..=3_000_000).contains(&rest), rest);
    delete(timer)
}

fn to_a_thread() -> Outcome {
    let signals = block(&[SIGNAL])?;
    let other = thread::spawn(move || {
        let own = call!(gettid());
        let timer = create(CLOCK_REALTIME, Some(own), 5)?;
        set(timer, 0, timespec_of(3), 0)?;
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
        let info = take_signal(&signals, 0)?.ok_or("taken by another thread")?;
        ensure!(info.si_code == SI_TIMER, "code {}", info.si_code);
        delete(timer)
    });
    let stolen = take_signal(&signals, 40)?;
    other.join()??;
    ensure!(stolen.is_none(), "another thread took it");
    let mut id = 0;
    // SAFETY: all zeros is a valid event.
    let mut event: sigevent = unsafe { zeroed() };
    event.sigev_signo = SIGNAL;
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_notify_thread_id = 1;
    let monotonic = CLOCK_MONOTONIC;
    refused! { syscall(libc::SYS_timer_create, monotonic, &mut event, &mut id) => EINVAL; }
    Ok(())
}

/// A timer that was to signal a thread signals no later one with its id.
fn id_of_another() -> Outcome {
    let setting = "/proc/sys/kernel/pid_max";
    let before = fs::read_to_string(setting)?;
    // Few ids: they come again soon.
    fs::write(setting, "400")?;
    let outcome = child(|| {
        let signals = block(&[SIGNAL])?;
        // SAFETY: a question without memory.
        let id = || unsafe { gettid() };
        // Lower ones do not come again.
        while thread::spawn(id).join()? < 300 {}
        let (sender, ids) = mpsc::channel();
        let first = thread::spawn(move || {
            let _ = sender.send(id());
            pause_ms(100);
        });
        let tid = ids.recv()?;
        let timer = create(CLOCK_MONOTONIC, Some(tid), 5)?;
        set(timer, 0, timespec_of(1500), 0)?;
        let _ = first.join();
        for _ in 0..1000 {
            let next = thread::spawn(move || {
                if id() != tid {
                    return Ok(false);
                }
                ensure!(take_signal(&signals, 3000)?.is_none(), "it has the signal");
                Ok(true)
            });
            let is_it: Result<bool> = next.join()?;
            if is_it? {
                return delete(timer);
            }
        }
        Err("the id does not come again".into())
    });
    fs::write(setting, before)?;
    outcome
}

fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// The processor time of this thread.
fn own_time() -> Result<Duration> {
    let time = clock(CLOCK_THREAD_CPUTIME_ID)?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

fn processor_time() -> Outcome {
    let signals = block(&[SIGNAL])?;
    let timer = create(CLOCK_THREAD_CPUTIME_ID, None, 1)?;
    let begin = own_time()?;
    set(timer, 0, timespec_of(60), 0)?;
    // Neither other threads' work nor sleep counts. On a busy host, a thread that stands has time
    // that its CPU did not get: the timer goes by its clock.
    let other = thread::spawn(|| spin(Duration::from_millis(120)));
    let mut came = take_signal(&signals, 130)?.is_some();
    other.join()?;
    let limit = Instant::now() + Duration::from_secs(10);
    while !came {
        ensure!(Instant::now() < limit, "no signal");
        spin(Duration::from_millis(5));
        came = take_signal(&signals, 0)?.is_some();
    }
    let time = own_time()? - begin;
    ensure!(time >= Duration::from_millis(60), "it came after {time:?}");
    delete(timer)?;

    let timer = create(CLOCK_PROCESS_CPUTIME_ID, None, 2)?;
    set(timer, 0, timespec_of(40), 0)?;
    let other = thread::spawn(|| spin(Duration::from_millis(300)));
    let info = take_signal(&signals, 5000)?.ok_or("no signal for the process's time")?;
    ensure!(info.si_code == SI_TIMER, "code {}", info.si_code);
    other.join()?;
    delete(timer)
}

fn time_of_day() -> Outcome {
    const HOUR: i64 = 3600;
    let signals = block(&[SIGNAL])?;
    let later = after(CLOCK_REALTIME, 1000 * HOUR)?;
    let timer = create(CLOCK_REALTIME, None, 3)?;
    set(timer, TIMER_ABSTIME, later, 0)?;
    let relative = create(CLOCK_REALTIME, None, 4)?;
    set(relative, 0, timespec_of(HOUR * 1000), 0)?;
    let file = call!(timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK));
    let setting = timer_spec(after(CLOCK_REALTIME, 1000 * (2 * HOUR))?, 0);
    let flags = TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET;
    call!(timerfd_settime(file, flags, &setting, null_mut()));
    let sleeper = spawn(|| {
        let slept = call!(clock_nanosleep(
            CLOCK_REALTIME,
            TIMER_ABSTIME,
            &later,
            null_mut()
        ));
        ensure!(slept == 0, "the sleep ended with {slept}");
        Ok(())
    })?;
    let waiter = spawn(|| {
        let word = AtomicU32::new(0);
        let operation = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
        refused! { syscall(libc::SYS_futex, &word, operation, 0, &later, 0, -1) => ETIMEDOUT; }
        Ok(())
    })?;
    pause_ms(20);
    let begin = Instant::now();
    call!(clock_settime(
        CLOCK_REALTIME,
        &after(CLOCK_REALTIME, 1000 * (HOUR + 10))?
    ));
    let end = (|| {
        let info = take_signal(&signals, 3000)?.ok_or("the timer did not notice")?;
        // SAFETY: the signal is a timer's.
        let value = unsafe { info.si_value().sival_ptr } as usize;
        ensure!(value == 3, "timer {value} expired");
        ensure!(
            take_signal(&signals, 5)?.is_none(),
            "a relative timer noticed"
        );
        let mut count = 0u64;
        refused!(ECANCELED, read(file, (&raw mut count).cast(), 8));
        for (who, child) in [("the sleeper", sleeper), ("the waiter", waiter)] {
            equal!(wait(child)?, End::Exit(0), who);
        }
        ensure!(begin.elapsed() < Duration::from_secs(5), begin.elapsed());
        Ok(())
    })();
    call!(clock_settime(
        CLOCK_REALTIME,
        &after(CLOCK_REALTIME, 1000 * (-HOUR - 10))?
    ));
    end?;
    delete(timer)?;
    delete(relative)?;
    child(|| {
        call!(setuid(1000));
        refused!(
            EPERM,
            clock_settime(CLOCK_REALTIME, &after(CLOCK_REALTIME, 0)?)
        );
        Ok(())
    })?;
    refused!(
        EINVAL,
        clock_settime(CLOCK_MONOTONIC, &after(CLOCK_REALTIME, 0)?)
    );
    Ok(())
}

fn discipline() -> Outcome {
    // SAFETY: all zeros is a valid request: for nothing but the state.
    let mut state: timex = unsafe { zeroed() };
    let answer = call!(adjtimex(&mut state));
    ensure!(answer == TIME_ERROR, "the state is {answer}");
    ensure!(state.status & STA_UNSYNC != 0, state.status);
    ensure!(state.tick == 10_000 && state.freq == 0, state.tick);
    let now = after(CLOCK_REALTIME, 0)?.tv_sec;
    ensure!((now - state.time.tv_sec).abs() <= 1, state.time.tv_sec);
    equal!(call!(clock_adjtime(CLOCK_REALTIME, &mut state)), TIME_ERROR);
    refused!(EOPNOTSUPP, clock_adjtime(CLOCK_MONOTONIC, &mut state));
    refused!(EINVAL, clock_adjtime(77, &mut state));
    state.modes = ADJ_OFFSET_SS_READ;
    call!(adjtimex(&mut state));
    child(|| {
        call!(setuid(1000));
        // SAFETY: as above.
        let mut state: timex = unsafe { zeroed() };
        call!(adjtimex(&mut state));
        state.modes = ADJ_FREQUENCY;
        refused!(EPERM, adjtimex(&mut state));
        Ok(())
    })
}

fn limited() -> Outcome {
    child(|| {
        let signals = block(&[SIGNAL])?;
        call!(setrlimit(RLIMIT_SIGPENDING, &limit_of(3)));
        call!(setuid(4711));
        let (own, value) = (
            call!(getpid()),
            sigval {
                sival_ptr: null_mut(),
            },
        );
        for _ in 0..2 {
            call!(sigqueue(own, SIGNAL, value));
        }
        // A timer's signal counts from the start.
        let timer = create(CLOCK_MONOTONIC, None, 1)?;
        refused!(EAGAIN, sigqueue(own, SIGNAL, value));
        let mut id = 0;
        let none = null_mut::<sigevent>();
        refused!(EAGAIN, syscall(libc::SYS_timer_create, 1, none, &mut id));
        // Another process of the user, too.
        child(|| {
            refused!(EAGAIN, sigqueue(call!(getpid()), SIGNAL, value));
            // `kill` is never refused.
            call!(kill(call!(getpid()), SIGNAL));
            Ok(())
        })?;
        let status = fs::read_to_string("/proc/self/status")?;
        ensure!(status.contains("SigQ:\t3/3\n"), "{status}");
        delete(timer)?;
        call!(sigqueue(own, SIGNAL, value));
        let mut taken = 0;
        while take_signal(&signals, 0)?.is_some() {
            taken += 1;
        }
        ensure!(taken == 3, "{taken} signals waited");
        call!(sigqueue(own, SIGNAL, value));
        Ok(())
    })?;
    child(|| {
        call!(setrlimit(RLIMIT_NPROC, &limit_of(3)));
        call!(setuid(4712));
        let (mut children, hold) = (Vec::new(), pipe(O_CLOEXEC)?);
        loop {
            // SAFETY: the child does nothing but wait.
            match unsafe { libc::fork() } {
                -1 => break,
                0 => {
                    let mut byte = 0u8;
                    call!(close(hold.1));
                    call!(read(hold.0, (&raw mut byte).cast(), 1));
                    exit(0);
                }
                child => children.push(child),
            }
            ensure!(children.len() < 10, "no limit");
        }
        ensure!(errno() == EAGAIN, "errno {}", errno());
        let count = children.len();
        call!(close(hold.1));
        for child in children {
            wait(child)?;
        }
        ensure!(count == 2, "{count} children");
        child(|| Ok(()))
    })?;
    // Changing the user succeeds, but then no program can be executed.
    child(|| {
        call!(setrlimit(RLIMIT_NPROC, &limit_of(0)));
        call!(setuid(4713));
        let arguments = [c"true".as_ptr(), null()];
        refused! { execv(c"/proc/self/exe".as_ptr(), arguments.as_ptr()) => EAGAIN; }
        Ok(())
    })
}
