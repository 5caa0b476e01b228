//! Random bytes: a ChaCha20 generator per CPU, seeded from `rdrand`/`rdseed` and from timing, or
//! from the simulated machine's seed.

use core::cell::UnsafeCell;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::cpu::percpu::PerCpu;
use crate::hw::machine;

/// Bytes that a generator gives before it is seeded afresh, so that its state tells
/// neither what came long before nor what comes long after.
const RESEED_AFTER: usize = 1 << 20;

struct Generator {
    /// Touched only inside [`PerCpu::with`].
    state: UnsafeCell<State>,
}

// SAFETY: `PerCpu::with` gives it to one user at a time, on its own CPU.
unsafe impl Sync for Generator {}

struct State {
    stream: Option<ChaCha20Rng>,
    /// Bytes until the next seed.
    left: usize,
}

static GENERATORS: PerCpu<Generator> = PerCpu::new(
    [const {
        Generator {
            state: UnsafeCell::new(State {
                stream: None,
                left: 0,
            }),
        }
    }; machine::MAX_CPUS],
);

impl State {
    fn fill(&mut self, to: &mut [u8]) {
        for piece in to.chunks_mut(RESEED_AFTER) {
            if self.left < piece.len() {
                self.stream = None;
            }
            self.left = self.left.saturating_sub(piece.len());
            let stream = match &mut self.stream {
                Some(stream) => stream,
                None => {
                    self.left = RESEED_AFTER - piece.len();
                    self.stream.insert(seeded())
                }
            };
            stream.fill_bytes(piece);
        }
    }
}

/// A new generator: the machine's randomness, and the time as far as it is unpredictable.
#[cold]
fn seeded() -> ChaCha20Rng {
    let mut seed = [0; 32];
    for part in seed.chunks_mut(8) {
        let word = machine::random_seed() ^ machine::nanoseconds().rotate_left(32);
        part.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha20Rng::from_seed(seed)
}

/// Fills the buffer. Never waits.
pub fn fill(to: &mut [u8]) {
    // In pieces: the task is pinned to its CPU for one.
    for piece in to.chunks_mut(crate::PAGE_SIZE) {
        GENERATORS.with(|generator| match generator {
            // SAFETY: inside `with`, the only user.
            Some(generator) => unsafe { (*generator.state.get()).fill(piece) },
            // An interrupt in the middle of another use.
            None => seeded().fill_bytes(piece),
        });
    }
}

/// 64 random bits.
pub fn u64() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Forgets all seeds: a simulated machine starts from its own.
///
/// # Safety
/// The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(crate) unsafe fn init() {
    GENERATORS.reset();
    for generator in GENERATORS.iter() {
        // SAFETY: the caller promises to be alone.
        unsafe {
            *generator.state.get() = State {
                stream: None,
                left: 0,
            };
        }
    }
}
