//! The fixture of property tests on the simulated machine: choices from a seed, machines, and
//! tasks that are waited for together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::simulated::{Config, check, run, seeds};
use crate::hw::sim::random_u64;
use crate::mem::{frame, mistake::Mistake};
use crate::task::{self, Spawn, Task, WaitQueue};

/// A repeatable source of choices (xorshift64).
pub struct Random(u64);

impl Random {
    /// Makes the source of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % n
    }

    /// Returns a number of bytes from 1 on, small ones as often as large ones.
    pub fn size(&mut self) -> usize {
        let largest = [3, 100, 5000, 100_000][self.below(4)];
        1 + self.below(largest)
    }

    /// Returns `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

/// Runs `body` on machines with 1 to 3 CPUs, one for each of the [`seeds`], usually `usual` many.
/// At the end every data frame must be free again.
///
/// # Panics
/// A run failed.
pub fn on_machines(usual: u64, body: impl Fn(u64) + Copy + Send + 'static) {
    for seed in seeds(1..usual + 1) {
        let config = Config {
            cpus: 1 + seed as usize % 3,
            seed,
            ..Config::default()
        };
        let ran = run(config, move || {
            let before = frame::usage().data;
            body(seed);
            crate::dma::settle();
            assert_eq!(frame::usage().data, before, "frames that did not come back");
        });
        if let Err(failure) = ran {
            panic!("{failure}");
        }
    }
}

/// Starts a task.
///
/// # Panics
/// No memory.
pub fn spawn(body: impl FnOnce() + Send + 'static) -> Arc<Task> {
    spawn_on(!0, body)
}

/// Starts a task that may run on these CPUs, a bit each.
///
/// # Panics
/// No memory.
pub fn spawn_on(cpus: u64, body: impl FnOnce() + Send + 'static) -> Arc<Task> {
    let spawn = Spawn {
        cpus,
        ..Spawn::kernel("test")
    };
    task::spawn(spawn, Box::new(body)).expect("memory for a task")
}

/// Returns a number below `n` that the machine's seed decides.
pub fn below(n: usize) -> usize {
    (random_u64() % n as u64) as usize
}

/// Runs `body` with each of so many seeds on machines of each of these numbers of CPUs.
///
/// # Panics
/// A run failed.
pub fn on_machines_with(
    name: &str,
    cpus: impl IntoIterator<Item = usize>,
    pages: usize,
    seeds: u64,
    body: impl Fn() + Send + Sync + Clone + 'static,
) {
    on_machines_like(name, cpus, pages, seeds, Config::default(), body);
}

/// As [`on_machines_with`], on machines that are as `like` otherwise.
///
/// # Panics
/// A run failed.
pub fn on_machines_like(
    name: &str,
    cpus: impl IntoIterator<Item = usize>,
    pages: usize,
    seeds: u64,
    like: Config,
    body: impl Fn() + Send + Sync + Clone + 'static,
) {
    for cpus in cpus {
        let config = Config {
            cpus,
            pages,
            ..like
        };
        check(&format!("{name} on {cpus}"), 0..seeds, config, body.clone());
    }
}

impl Mistake {
    /// Makes it on machines with some seeds, until one's `body` fails with `wanted` in its message:
    /// without that, it is not known what a test can find.
    ///
    /// # Panics
    /// None fails, or something else.
    pub fn assert_found(
        self,
        like: Config,
        body: impl Fn() + Send + Sync + Copy + 'static,
        wanted: &str,
    ) {
        // Rare ones, such as `RevokedEarly`, show on one machine in some hundred.
        const SEEDS: u64 = 1000;
        // The mistake shows in several ways, as the seed makes it.
        let mut others = None;
        let found = (0..SEEDS).find_map(|seed| {
            let run = run(Config { seed, ..like }, move || {
                self.make();
                body();
            });
            let failure = run.err()?;
            match failure.message.contains(wanted) {
                true => Some(()),
                false => {
                    others = Some(failure);
                    None
                }
            }
        });
        match (found, others) {
            (Some(()), _) => {}
            (None, Some(other)) => panic!("{self:?} makes something else fail: {other}"),
            (None, None) => panic!("{self:?} is found by none of {SEEDS} runs"),
        }
    }
}

/// Runs `body` on many small machines.
pub fn on_many_machines(name: &str, body: impl Fn() + Send + Sync + Clone + 'static) {
    on_machines_with(name, 1..=4, 256, 60, body);
}

/// Counts what passes it.
#[derive(Default)]
pub struct Gate {
    count: AtomicUsize,
    queue: WaitQueue,
}

impl Gate {
    /// Makes a gate that nothing has passed.
    pub fn new() -> Arc<Gate> {
        Arc::default()
    }

    /// Passes it.
    pub fn pass(&self) {
        self.count.fetch_add(1, SeqCst);
        self.queue.wake_all();
    }

    /// Returns how many have passed.
    pub fn passed(&self) -> usize {
        self.count.load(SeqCst)
    }

    /// Waits until `n` have passed.
    pub fn wait_for(&self, n: usize) {
        let passed = || (self.passed() >= n).then_some(());
        self.queue.wait_soundly(passed);
    }
}

/// Tasks that are waited for together.
#[derive(Default)]
pub struct Together {
    started: AtomicUsize,
    ended: Gate,
}

impl Together {
    /// Starts a task.
    ///
    /// # Panics
    /// No memory.
    pub fn spawn(self: &Arc<Together>, body: impl FnOnce() + Send + 'static) {
        self.started.fetch_add(1, SeqCst);
        let all = self.clone();
        spawn(move || {
            body();
            all.ended.pass();
        });
    }

    /// Waits for all that were started.
    pub fn join(&self) {
        self.ended.wait_for(self.started.load(SeqCst));
    }
}
