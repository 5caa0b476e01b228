//! The fixture of property tests on the simulated machine: choices from a seed, machines, and
//! tasks that are waited for together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::simulated::{Config, run};
use crate::mem::frame;
use crate::task::{self, Sleep, Spawn, WaitQueue};

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

/// Runs `body` on machines with 1 to 3 CPUs, one for each of `usual` seeds, or for as many as
/// `SEEDS` in the environment says. At the end every data frame must be free again.
///
/// # Panics
/// A run failed.
pub fn on_machines(usual: u64, body: impl Fn(u64) + Copy + Send + 'static) {
    let wanted = std::env::var("SEEDS").ok().and_then(|n| n.parse().ok());
    for seed in 1..=wanted.unwrap_or(usual) {
        let config = Config {
            cpus: 1 + seed as usize % 3,
            seed,
            ..Config::default()
        };
        let ran = run(config, move || {
            let before = frame::usage().data;
            body(seed);
            assert_eq!(frame::usage().data, before, "frames that did not come back");
        });
        if let Err(failure) = ran {
            panic!("{failure}");
        }
    }
}

/// Tasks that are waited for together.
#[derive(Default)]
pub struct Together {
    running: AtomicUsize,
    ended: WaitQueue,
}

impl Together {
    /// Starts a task.
    ///
    /// # Panics
    /// No memory.
    pub fn spawn(self: &Arc<Together>, body: impl FnOnce() + Send + 'static) {
        self.running.fetch_add(1, SeqCst);
        let all = self.clone();
        let spawn = Spawn {
            name: "test",
            pmap: None,
            attachment: None,
            cpus: !0,
            priority: Default::default(),
        };
        let run = move || {
            body();
            all.running.fetch_sub(1, SeqCst);
            all.ended.wake_all();
        };
        assert!(task::spawn(spawn, Box::new(run)).is_ok(), "no memory");
    }

    /// Waits for all that were started.
    pub fn join(&self) {
        let none = || (self.running.load(SeqCst) == 0).then_some(());
        // Nothing interrupts a sound sleep.
        let _ = self.ended.wait(Sleep::SOUND, none);
    }
}
