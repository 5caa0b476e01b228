//! The generators of the CPUs: ChaCha20 with fast key erasure.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::pool::Key;
use super::{GENERATION, erase, new_key, replace_old_key};
use crate::cpu::percpu::PerCpu;
use crate::hw::machine;

/// Bytes of a key.
const KEY: usize = size_of::<Key>();
/// Bytes that are made at a time, the next key included: the four blocks that `rand_chacha` makes.
const MADE: usize = 256;

struct Generator {
    /// Touched only inside [`PerCpu::with`].
    state: UnsafeCell<State>,
}

// SAFETY: `PerCpu::with` gives it to one user at a time, on its own CPU.
unsafe impl Sync for Generator {}

struct State {
    /// The key that the next bytes are made with, then bytes that are not given yet; given ones
    /// are zeros.
    bytes: [u8; MADE],
    /// How many of them are given, the key included.
    given: usize,
    /// The number of the key that this generator's comes from; 0 for none.
    generation: u64,
}

impl State {
    const fn new() -> State {
        State {
            bytes: [0; MADE],
            given: MADE,
            generation: 0,
        }
    }

    /// Gives bytes if a key exists that this generator may use.
    fn give(&mut self, to: &mut [u8]) -> bool {
        let mut done = 0;
        while done < to.len() {
            let is_stale = self.generation != GENERATION.load(Ordering::Relaxed);
            if (self.given == MADE || is_stale) && !self.refill() {
                return false;
            }
            let n = (to.len() - done).min(MADE - self.given);
            let from = &mut self.bytes[self.given..self.given + n];
            to[done..done + n].copy_from_slice(from);
            from.fill(0);
            self.given += n;
            done += n;
        }
        true
    }

    #[cold]
    fn refill(&mut self) -> bool {
        if self.generation != GENERATION.load(Ordering::Relaxed) || self.generation == 0 {
            let (mut key, generation) = new_key();
            if generation != 0 {
                self.bytes[..KEY].copy_from_slice(&key);
            }
            erase(&mut key);
            if generation == 0 {
                return false;
            }
            self.generation = generation;
        }
        let mut key = [0; KEY];
        key.copy_from_slice(&self.bytes[..KEY]);
        stream(&mut key, &mut self.bytes);
        self.given = KEY;
        true
    }
}

static GENERATORS: PerCpu<Generator> = PerCpu::new(
    [const {
        Generator {
            state: UnsafeCell::new(State::new()),
        }
    }; machine::MAX_CPUS],
);

/// Fills the buffer with the stream of a key, and erases key and stream.
fn stream(key: &mut Key, to: &mut [u8]) {
    let mut stream = ChaCha20Rng::from_seed(*key);
    stream.fill_bytes(to);
    // The generator has no way to erase itself but to become another one.
    stream = ChaCha20Rng::from_seed([0; KEY]);
    core::hint::black_box(&mut stream);
    erase(key);
}

/// Fills the buffer.
pub fn fill(to: &mut [u8]) {
    // What is larger than a few keys gets a stream of its own, made without staying on the CPU.
    if to.len() <= MADE - KEY {
        return give(to);
    }
    let mut key = [0; KEY];
    give(&mut key);
    stream(&mut key, to);
}

/// Fills a small buffer from this CPU's generator, or without a key, or inside an interrupt that
/// came in the middle of another use, from the pool.
fn give(to: &mut [u8]) {
    let mut is_used_up = false;
    let given = GENERATORS.with(|generator| {
        // SAFETY: inside `with`, the only user.
        let state = generator.map(|generator| unsafe { &mut *generator.state.get() });
        state.is_some_and(|state| {
            is_used_up = state.given + to.len() > MADE;
            state.give(to)
        })
    });
    if !given {
        stream(&mut new_key().0, to);
    } else if is_used_up {
        replace_old_key();
    }
}

/// Forgets all keys. The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub fn reset() {
    GENERATORS.reset();
    for generator in GENERATORS.iter() {
        // SAFETY: the only caller, [`super::init`], runs before any other user.
        unsafe { *generator.state.get() = State::new() };
    }
}
