//! Futexes: calls with nothing to do, and two sides that wake each other in turn.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{mem, thread};

use crate::partner::{futex_wait, futex_wake, together};
use crate::{Bench, Experiment, Failure, Gate, Partner, Shared, cpus};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "futex",
    title: "Futexes: calls with nothing to do, and two sides that wake each other",
    help: "futex/wake-nobody         a wake where nobody sleeps
futex/wait-changed        a wait for a value that the word no longer has
futex/threads-same        two threads on one CPU that wake each other in turn: one wake and one
                          sleep
futex/threads-other       the same on two CPUs
futex/processes-same      two processes, by a word in shared memory
futex/processes-other     the same on two CPUs
futex/mutex-other         a mutex of the C library, taken and given by two threads on two CPUs
futex/wake-16             16 sleeping threads on one CPU woken at once, until all have run: a
                          thread",
    run,
};

/// Threads that `futex/wake-16` wakes.
const SLEEPERS: u32 = 16;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    bench.row("futex/wake-nobody").batch(1000).measure(|n| {
        let word = AtomicU32::new(0);
        (0..n).try_for_each(|_| futex_wake(&word, 1).map(drop))
    })?;
    bench.row("futex/wait-changed").batch(1000).measure(|n| {
        let word = AtomicU32::new(1);
        (0..n).try_for_each(|_| futex_wait(&word, 0))
    })?;
    for (cpu, where_) in [(0, "same"), (1, "other")] {
        let row = format!("futex/threads-{where_}");
        bench.row(row).cpus(cpu + 1).batch(400).run(|meter| {
            let word = Arc::new(AtomicU32::new(0));
            let others = word.clone();
            thread::Builder::new().spawn(move || {
                cpus::pin(cpu)?;
                take_turns(&others, 1, u64::MAX)
            })?;
            // A turn of each side is two operations.
            meter.measure(|n| take_turns(&word, 0, n / 2))
        })?;
        let row = format!("futex/processes-{where_}");
        bench.row(row).cpus(cpu + 1).batch(400).run(|meter| {
            let word = Shared::new(AtomicU32::new(0))?;
            let _partner = Partner::start(cpu, || take_turns(&word, 1, u64::MAX))?;
            meter.measure(|n| take_turns(&word, 0, n / 2))
        })?;
    }
    bench
        .row("futex/mutex-other")
        .cpus(2)
        .batch(20_000)
        .run(|meter| {
            let mutex = Mutex::new();
            meter.timed(|watch, n| {
                let time = together(&[0, 1], |_| (0..n / 2).try_for_each(|_| mutex.add()))?;
                watch.add(time);
                Ok(())
            })
        })?;
    bench
        .row("futex/wake-16")
        .batch(u64::from(SLEEPERS) * 10)
        .run(|meter| {
            let gates = Arc::new([Gate::new(SLEEPERS + 1)?, Gate::new(SLEEPERS + 1)?]);
            for _ in 0..SLEEPERS {
                let gates = gates.clone();
                thread::Builder::new().spawn(move || -> Result<(), Failure> {
                    loop {
                        gates[0].wait()?;
                        gates[1].wait()?;
                    }
                })?;
            }
            meter.measure(|n| {
                (0..n / u64::from(SLEEPERS)).try_for_each(|_| {
                    gates[0].wait()?;
                    gates[1].wait()
                })
            })
        })
}

/// Waits for this side's turn, 0 or 1, and passes it to the other side, so many times; returns when
/// it is this side's turn again.
fn take_turns(word: &AtomicU32, side: u32, times: u64) -> Result<(), Failure> {
    let wait = || {
        while word.load(Ordering::Acquire) != side {
            futex_wait(word, 1 - side)?;
        }
        Ok(())
    };
    for _ in 0..times {
        wait()?;
        word.store(1 - side, Ordering::Release);
        futex_wake(word, 1)?;
    }
    wait()
}

/// A mutex of the C library and the number that it guards.
struct Mutex {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    number: UnsafeCell<u64>,
}

// SAFETY: the number is accessed only with the mutex held.
unsafe impl Sync for Mutex {}

impl Mutex {
    fn new() -> Box<Self> {
        Box::new(Self {
            // SAFETY: a mutex of zeros is unlocked.
            mutex: unsafe { mem::zeroed() },
            number: UnsafeCell::new(0),
        })
    }

    fn add(&self) -> Result<(), Failure> {
        // SAFETY: the mutex lives, stays where it is, and guards the number.
        let failed = unsafe {
            let failed = libc::pthread_mutex_lock(self.mutex.get());
            *self.number.get() += 1;
            failed | libc::pthread_mutex_unlock(self.mutex.get())
        };
        match failed {
            0 => Ok(()),
            _ => Err("the mutex was refused".into()),
        }
    }
}
