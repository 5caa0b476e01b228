//! What the tests of this crate share.
#![allow(dead_code)]

use nucleus::sim::{self, Config};

/// A generator of numbers from a seed (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) % n as u64) as usize
    }

    /// Any bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill_with(|| self.next() as u8);
    }

    /// Up to `max` bytes.
    pub fn bytes(&mut self, max: usize) -> Vec<u8> {
        let len = self.below(max + 1);
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Runs `body` on a simulated machine for each of `usual` seeds, or for as many as `SEEDS` says.
/// Every frame that held data must be free again at the end.
pub fn on_machines(usual: u64, cpus: usize, body: impl Fn(u64) + Copy + Send + 'static) {
    let wanted = std::env::var("SEEDS").ok().and_then(|n| n.parse().ok());
    for seed in 1..=wanted.unwrap_or(usual) {
        let config = Config {
            cpus,
            seed,
            ..Config::default()
        };
        let ran = sim::run(config, move || {
            let before = nucleus::frame::usage().data;
            body(seed);
            let after = nucleus::frame::usage().data;
            assert_eq!(after, before, "frames that did not come back");
        });
        if let Err(failure) = ran {
            panic!("{failure}");
        }
    }
}
