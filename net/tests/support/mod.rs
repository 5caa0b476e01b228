//! What the tests of this crate share.

use nucleus::{
    frame,
    sim::{self, Config},
};

/// A repeatable source of choices.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % n
    }
}

/// Runs `body` on simulated machines with 1 to 3 CPUs; at the end every frame must be free again.
pub fn on_machines(seeds: u64, body: impl Fn(u64) + Copy + Send + 'static) {
    for seed in 1..=seeds {
        let config = Config {
            cpus: 1 + seed as usize % 3,
            seed,
            ..Config::default()
        };
        let ran = sim::run(config, move || {
            let before = frame::usage().data;
            body(seed);
            assert_eq!(frame::usage().data, before, "frames that did not come back");
        });
        if let Err(failure) = ran {
            panic!("seed {seed}: {failure}");
        }
    }
}
