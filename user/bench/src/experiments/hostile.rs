//! How late a sleeper wakes beside a program that builds more behind one event than any sane one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{mem, ptr, thread};

use crate::limits::allow_files;
use crate::{Bench, Experiment, Failure, call};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "hostile",
    title: "The worst lateness of a sleeper beside hostile programs on the same CPU",
    help: "Each row sleeps for a millisecond again and again, for a second, and gives the time by
which the latest wake-up was late, in nanoseconds. Beside it, on the same CPU:

hostile/nothing     nothing
hostile/mesh        five levels of epolls that watch each other in all ways, above a timer
hostile/builders    the same built and closed again and again
hostile/observers   16,000 watches of one timer
hostile/timers      3,000 timers that expire at one instant
hostile/sleepers    200 threads that sleep until one instant
hostile/readers     200 threads that read one counter
hostile/poll        two threads that poll 2,000 files that become ready together",
    run,
};

/// Epolls of a level, and levels.
const WIDTH: usize = 32;
const LEVELS: usize = 5;

/// What is done beside the sleeper until the flag is set.
type Hostile = fn(&AtomicBool) -> Result<(), Failure>;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let programs: &[(&str, Hostile)] = &[
        ("nothing", |_| Ok(())),
        ("mesh", above_a_timer),
        ("builders", build),
        ("observers", observe),
        ("timers", one_instant),
        ("sleepers", sleep_together),
        ("readers", read_together),
        ("poll", poll_together),
    ];
    for &(name, hostile) in programs {
        bench.row(format!("hostile/{name}")).run(|meter| {
            allow_files(4096)?;
            let over = AtomicBool::new(false);
            let late = thread::scope(|scope| {
                let hostile = scope.spawn(|| hostile(&over));
                // It builds what it needs.
                thread::sleep(Duration::from_millis(300));
                let late = latest(Duration::from_secs(1));
                over.store(true, Ordering::SeqCst);
                match hostile.join() {
                    Ok(outcome) => outcome.map(|()| late),
                    Err(_) => Err("the hostile program panicked".into()),
                }
            })?;
            meter.value(late.as_nanos() as f64);
            Ok(())
        })?;
    }
    Ok(())
}

/// The time by which the latest of many sleeps was late.
fn latest(time: Duration) -> Duration {
    const SLEEP: Duration = Duration::from_millis(1);
    let end = Instant::now() + time;
    let mut worst = Duration::ZERO;
    while Instant::now() < end {
        let start = Instant::now();
        thread::sleep(SLEEP);
        worst = worst.max(start.elapsed().saturating_sub(SLEEP));
    }
    worst
}

fn is_over(over: &AtomicBool) -> bool {
    over.load(Ordering::SeqCst)
}

fn epoll() -> Result<i32, Failure> {
    call!(epoll_create1(0))
}

/// Watches a file if the kernel lets it.
fn watch(epoll: i32, file: i32) {
    let mut event = libc::epoll_event {
        events: (libc::EPOLLIN | libc::EPOLLET) as u32,
        u64: 0,
    };
    // SAFETY: reads a local. Whether the kernel allows it makes no difference here.
    unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, file, &mut event) };
}

fn close_all(files: &[i32]) {
    for &file in files {
        // SAFETY: a descriptor of this row.
        unsafe { libc::close(file) };
    }
}

fn timer() -> Result<i32, Failure> {
    call!(timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK))
}

fn counter() -> Result<i32, Failure> {
    call!(eventfd(0, libc::EFD_NONBLOCK))
}

/// Lets a timer expire after `time`, or at it where `flags` say so.
fn start(timer: i32, time: Duration, flags: i32) -> Result<(), Failure> {
    // SAFETY: a setting of zeros is valid.
    let mut setting: libc::itimerspec = unsafe { mem::zeroed() };
    setting.it_value.tv_sec = time.as_secs() as i64;
    setting.it_value.tv_nsec = time.subsec_nanos().into();
    call!(timerfd_settime(timer, flags, &setting, ptr::null_mut())).map(drop)
}

fn mesh(file: i32) -> Result<Vec<i32>, Failure> {
    let mut all = Vec::new();
    let mut below = vec![file];
    for _ in 0..LEVELS {
        let mut level = Vec::new();
        for _ in 0..WIDTH {
            let epoll = epoll()?;
            below.iter().for_each(|&inner| watch(epoll, inner));
            level.push(epoll);
        }
        all.extend(&level);
        below = level;
    }
    Ok(all)
}

/// Lets a timer expire again and again.
fn expire(timer: i32, over: &AtomicBool) -> Result<(), Failure> {
    while !is_over(over) {
        start(timer, Duration::from_micros(200), 0)?;
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn above_a_timer(over: &AtomicBool) -> Result<(), Failure> {
    let timer = timer()?;
    mesh(timer)?;
    expire(timer, over)
}

fn build(over: &AtomicBool) -> Result<(), Failure> {
    let file = counter()?;
    while !is_over(over) {
        close_all(&mesh(file)?);
    }
    Ok(())
}

fn observe(over: &AtomicBool) -> Result<(), Failure> {
    let timer = timer()?;
    let mut copies = Vec::new();
    for _ in 0..1000 {
        copies.push(call!(dup(timer))?);
    }
    for _ in 0..16 {
        let epoll = epoll()?;
        copies.iter().for_each(|&copy| watch(epoll, copy));
    }
    expire(timer, over)
}

fn one_instant(over: &AtomicBool) -> Result<(), Failure> {
    let mut timers = Vec::new();
    for _ in 0..3000 {
        timers.push(timer()?);
    }
    while !is_over(over) {
        // SAFETY: plain numbers, which the call overwrites.
        let mut now: libc::timespec = unsafe { mem::zeroed() };
        call!(clock_gettime(libc::CLOCK_MONOTONIC, &mut now))?;
        let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
        for &timer in &timers {
            start(
                timer,
                now + Duration::from_millis(30),
                libc::TFD_TIMER_ABSTIME,
            )?;
        }
        thread::sleep(Duration::from_millis(35));
    }
    Ok(())
}

/// Runs `body` in many threads until it is over.
fn together(over: &AtomicBool, body: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 0..200 {
            let body = &body;
            let run = move || {
                while !is_over(over) {
                    body();
                }
            };
            let thread = thread::Builder::new().stack_size(16 << 10);
            if thread.spawn_scoped(scope, run).is_err() {
                break;
            }
        }
    });
}

fn sleep_together(over: &AtomicBool) -> Result<(), Failure> {
    let begin = Instant::now();
    together(over, || {
        let now = begin.elapsed();
        let next = now.as_nanos().next_multiple_of(20_000_000);
        thread::sleep(Duration::from_nanos(next as u64).saturating_sub(now));
    });
    Ok(())
}

fn read_together(over: &AtomicBool) -> Result<(), Failure> {
    let counter = call!(eventfd(0, libc::EFD_SEMAPHORE))?;
    let give = |count: u64| {
        // SAFETY: writes a local number.
        unsafe { libc::write(counter, (&raw const count).cast(), 8) };
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over(over) {
                give(1);
                thread::sleep(Duration::from_millis(1));
            }
            give(1_000_000);
        });
        together(over, || {
            let mut count = 0u64;
            // SAFETY: reads into a local number.
            unsafe { libc::read(counter, (&raw mut count).cast(), 8) };
        });
    });
    Ok(())
}

fn poll_together(over: &AtomicBool) -> Result<(), Failure> {
    let counter = counter()?;
    let mut asked = Vec::new();
    for _ in 0..2000 {
        asked.push(libc::pollfd {
            fd: call!(dup(counter))?,
            events: libc::POLLIN,
            revents: 0,
        });
    }
    thread::scope(|scope| {
        for _ in 0..2 {
            let mut asked = asked.clone();
            scope.spawn(move || {
                while !is_over(over) {
                    // SAFETY: the array lives across the call.
                    unsafe { libc::poll(asked.as_mut_ptr(), asked.len() as libc::nfds_t, 20) };
                }
            });
        }
        let mut count = 1u64;
        while !is_over(over) {
            // SAFETY: writes and reads a local number.
            unsafe {
                libc::write(counter, (&raw const count).cast(), 8);
                libc::read(counter, (&raw mut count).cast(), 8);
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    Ok(())
}
