//! Random bytes for the kernel and for programs.
//!
//! ```text
//!   processor, loader, devices, root, timing
//!        │ add, mix
//!        ▼
//!      pool        BLAKE2s of all input, and an estimate of its entropy in bits
//!        │ the pool is full for the first time, then once in RESEED_INTERVAL of use
//!        ▼
//!      key         the seed of the CPUs' keys
//!        │ each CPU, when the key has changed
//!        ▼
//!      generators  ChaCha20 with fast key erasure, one a CPU
//! ```
//!
//! A generator replaces its key by its first output before it gives any, and erases what it gives:
//! memory that leaks later tells nothing of bytes given before. Until the pool is full for the
//! first time there is no key, and each request takes what the pool has ([`is_seeded`] tells).
//!
//! `getrandom` and `/dev/random` wait by [`wait_until_seeded`]; a driver of a source calls [`add`]
//! and waits by [`wait_until_wanted`] before it adds more. All other functions may be called in any
//! context.

mod generator;
mod jitter;
mod pool;
#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

pub(crate) use jitter::on_interrupt;
pub use jitter::wait_until_seeded;

use crate::hw::machine;
use crate::lock::{Rank, SpinLock};
use crate::task::{Sleep, WaitQueue, Woken};
use pool::{Key, Pool};

/// The most entropy in bits that the pool is taken to have; with it, it is full.
pub const POOL_BITS: u32 = 256;
/// How old a key may become before its next use replaces it.
pub const RESEED_INTERVAL: Duration = Duration::from_secs(60);

static POOL: SpinLock<Pool> = SpinLock::new(Rank::Random, Pool::new());
/// Numbers the key that [`Pool`] has; 0 until there is one.
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// When the key was made, in nanoseconds since boot.
static MADE: AtomicU64 = AtomicU64::new(0);
/// Woken when the pool is full for the first time.
static SEEDED: WaitQueue = WaitQueue::new();
/// A key was replaced since a source last added entropy.
static WANTED: AtomicBool = AtomicBool::new(false);
/// Woken with it.
static SOURCES: WaitQueue = WaitQueue::new();

/// Fills the buffer. Never waits.
pub fn fill(to: &mut [u8]) {
    generator::fill(to);
}

/// Returns 64 random bits.
pub fn u64() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Tells whether the pool was full once, so that no output can be guessed.
#[inline]
pub fn is_seeded() -> bool {
    GENERATION.load(Ordering::Acquire) != 0
}

/// Returns the queue that is woken when [`is_seeded`] becomes true.
pub fn seeded() -> &'static WaitQueue {
    &SEEDED
}

/// Returns the entropy of the pool in bits, at most [`POOL_BITS`].
pub fn entropy() -> u32 {
    POOL.lock_irq().entropy()
}

/// Mixes bytes into the pool that anybody may know: they never make it worse.
pub fn mix(bytes: &[u8]) {
    add(bytes, 0);
}

/// Adds bytes with `bits` of entropy to the pool.
pub fn add(bytes: &[u8], bits: u32) {
    let first = {
        let mut pool = POOL.lock_irq();
        pool.absorb(bytes, bits);
        let first = !is_seeded() && pool.entropy() == POOL_BITS;
        if first {
            replace_key(&mut pool);
        }
        first
    };
    if first {
        SEEDED.wake_all();
    }
}

/// Makes a new key from the pool now, if there is one to replace.
pub fn reseed() {
    let mut pool = POOL.lock_irq();
    if is_seeded() {
        replace_key(&mut pool);
    }
}

/// Sleeps until a key was replaced since the caller's last call.
///
/// # Errors
/// An interruption or the deadline, as `how` allows.
pub fn wait_until_wanted(how: Sleep) -> Result<(), Woken> {
    SOURCES.wait(how, || WANTED.swap(false, Ordering::Relaxed).then_some(()))
}

/// Collects what the processor, the loader and the clocks offer. Once, when the clocks run.
pub(crate) fn init() {
    #[cfg(not(target_os = "none"))]
    reset();
    let words = [(); 4].map(|()| machine::processor_random());
    let bytes = words.map(|word| word.unwrap_or(0).to_le_bytes());
    // A processor that repeats itself has no generator that works.
    let works = words.iter().all(Option::is_some) && words[0] != words[1] && words[2] != words[3];
    add(bytes.as_flattened(), if works { POOL_BITS } else { 0 });
    if let Some(mut seed) = machine::take_loader_seed() {
        add(&seed, POOL_BITS);
        erase(&mut seed);
    }
    mix(&machine::nanoseconds().to_le_bytes());
    mix(&machine::epoch_at_boot().to_le_bytes());
}

/// Forgets all input and keys: a simulated machine starts from its own seed.
#[cfg(not(target_os = "none"))]
fn reset() {
    *POOL.lock_irq() = Pool::new();
    GENERATION.store(0, Ordering::Relaxed);
    MADE.store(0, Ordering::Relaxed);
    generator::reset();
}

/// Seeds the CPUs' generators anew. The pool is locked.
fn replace_key(pool: &mut Pool) {
    pool.replace_key();
    MADE.store(machine::nanoseconds(), Ordering::Relaxed);
    GENERATION.fetch_add(1, Ordering::Release);
}

/// Replaces a key that is too old. For a generator whose output is used up.
fn replace_old_key() {
    let age = machine::nanoseconds().saturating_sub(MADE.load(Ordering::Relaxed));
    if is_seeded() && u128::from(age) >= RESEED_INTERVAL.as_nanos() {
        reseed();
        if !WANTED.swap(true, Ordering::Relaxed) {
            SOURCES.wake_all();
        }
    }
}

/// Returns a key for a generator, and the number of the key that it comes from: 0 if there is none
/// yet and the pool itself gave it.
fn new_key() -> (Key, u64) {
    let mut pool = POOL.lock_irq();
    let generation = GENERATION.load(Ordering::Relaxed);
    (pool.draw(generation != 0), generation)
}

/// Overwrites a secret: bytes that went out to a program must not stay on a kernel stack. The
/// compiler does not leave it out.
pub fn erase(bytes: &mut [u8]) {
    bytes.fill(0);
    core::hint::black_box(bytes);
}
