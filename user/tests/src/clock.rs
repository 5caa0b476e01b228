//! Time: clocks, sleeping, timers, CPU time.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("clock: clocks go forward", forward),
    ("clock: threads agree", agreement),
    ("clock: sleeping lasts as long as asked", sleeping),
    ("clock: absolute sleeping", absolute),
    ("clock: used time", used),
    ("clock: refusals", refusals),
    (
        "clock: timers of processor time spent in calls",
        processor_timer,
    ),
];

fn now(clock: clockid_t) -> Result<i64> {
    let mut time = timespec_of(0);
    call!(clock_gettime(clock, &mut time));
    ensure!((0..1_000_000_000).contains(&time.tv_nsec), time.tv_nsec);
    Ok(time.tv_sec * 1_000_000_000 + time.tv_nsec)
}

fn forward() -> Outcome {
    for clock in [
        CLOCK_REALTIME,
        CLOCK_MONOTONIC,
        CLOCK_BOOTTIME,
        CLOCK_MONOTONIC_RAW,
    ] {
        let start = now(clock)?;
        let mut last = start;
        for _ in 0..5000 {
            let next = now(clock)?;
            ensure!(next >= last, clock, last - next);
            last = next;
        }
        ensure!(last > start, "clock {clock} stood still");
    }
    let year = now(CLOCK_REALTIME)? / 1_000_000_000 / (365 * 24 * 3600) + 1970;
    ensure!((2024..2100).contains(&year), "the year is {year}");
    let mut day = time_val(0);
    call!(gettimeofday(&mut day, null_mut()));
    let difference = now(CLOCK_REALTIME)? / 1000 - (day.tv_sec * 1_000_000 + day.tv_usec);
    ensure!((0..1_000_000).contains(&difference), difference);
    Ok(())
}

/// The clock never goes back from one CPU to another.
fn agreement() -> Outcome {
    static LATEST: AtomicI64 = AtomicI64::new(0);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            thread::spawn(|| {
                for _ in 0..20_000 {
                    let before = LATEST.load(SeqCst);
                    let time = now(CLOCK_MONOTONIC)?;
                    ensure!(time >= before, before - time);
                    LATEST.fetch_max(time, SeqCst);
                }
                Ok(())
            })
        })
        .collect();
    threads.into_iter().try_for_each(|thread| thread.join()?)
}

fn sleeping() -> Outcome {
    for milliseconds in [1, 5, 20, 100] {
        let start = Instant::now();
        pause_ms(milliseconds);
        let time = start.elapsed();
        ensure!(
            time >= Duration::from_millis(milliseconds),
            "{milliseconds} ms took {time:?}"
        );
        ensure!(
            time < Duration::from_millis(milliseconds + 2000),
            "{milliseconds} ms: {time:?}"
        );
    }
    Ok(())
}

fn absolute() -> Outcome {
    let end = now(CLOCK_MONOTONIC)? + 30_000_000;
    let time = time_spec(end / 1_000_000_000, end % 1_000_000_000);
    // SAFETY: the time lives across the call.
    let error = unsafe { libc::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, null_mut()) };
    ensure!(error == 0, "clock_nanosleep: {error}");
    ensure!(now(CLOCK_MONOTONIC)? >= end, "woken early");
    // In the past: at once.
    // SAFETY: as above.
    unsafe { libc::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, null_mut()) };
    Ok(())
}

fn used() -> Outcome {
    let before = now(CLOCK_PROCESS_CPUTIME_ID)?;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(200) {
        std::hint::spin_loop();
    }
    let spun = now(CLOCK_PROCESS_CPUTIME_ID)? - before;
    ensure!(spun > 20_000_000, "200 ms of spinning used {spun} ns");
    let before = now(CLOCK_PROCESS_CPUTIME_ID)?;
    pause_ms(200);
    let slept = now(CLOCK_PROCESS_CPUTIME_ID)? - before;
    ensure!(slept < 100_000_000, "200 ms of sleep used {slept} ns");
    // SAFETY: all zeros is a valid structure to be overwritten.
    let mut times: tms = unsafe { zeroed() };
    call!(times(&mut times));
    ensure!(times.tms_utime + times.tms_stime > 0);
    Ok(())
}

fn refusals() -> Outcome {
    let mut time = timespec_of(0);
    refused!(EINVAL, clock_gettime(77, &mut time));
    refused!(EFAULT, syscall(libc::SYS_clock_gettime, CLOCK_REALTIME, 8));
    time.tv_nsec = 1_000_000_000;
    refused!(EINVAL, nanosleep(&time, null_mut()));
    time = time_spec(-1, 0);
    refused!(EINVAL, nanosleep(&time, null_mut()));
    call!(clock_getres(CLOCK_MONOTONIC, &mut time));
    ensure!(time.tv_sec == 0 && time.tv_nsec > 0, time.tv_nsec);
    Ok(())
}

static EXPIRED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_expiry(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    EXPIRED.fetch_add(1, SeqCst);
}

fn processor_timer() -> Outcome {
    const SPENT_MS: i64 = 300;
    handle(SIGPROF, count_expiry, SA_RESTART)?;
    let timer = timer_val(10_000, 10_000);
    let begin = now(CLOCK_PROCESS_CPUTIME_ID)?;
    call!(setitimer(ITIMER_PROF, &timer, null_mut()));
    // Nearly all of the time is spent in the kernel.
    let mut to = vec![0u8; 1 << 16];
    let mut zeros = File::open("/dev/zero")?;
    while now(CLOCK_PROCESS_CPUTIME_ID)? - begin < SPENT_MS * 1_000_000 {
        let _ = io::Read::read(&mut zeros, &mut to);
    }
    let expired = EXPIRED.load(SeqCst);
    ensure!(expired >= 10, expired, SPENT_MS);
    Ok(())
}
