//! Entropy of timing: for a machine without any other source.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

use super::{SEEDED, add, is_seeded};
use crate::hw::machine;
use crate::task::{self, Sleep, Woken};
use crate::time;

/// The time of a sleep whose end is measured: 256 of them take about half a second.
const NAP: Duration = Duration::from_millis(1);

/// A word a CPU into which the times of its interrupts are folded. Not counted as entropy.
static TIMINGS: [AtomicU64; machine::MAX_CPUS] = [const { AtomicU64::new(0) }; machine::MAX_CPUS];
/// A task measures its sleeps.
static MEASURING: AtomicBool = AtomicBool::new(false);

/// Notes the time of an interrupt. Interrupts are off.
#[inline]
pub(crate) fn on_interrupt() {
    let word = &TIMINGS[machine::cpu()];
    let folded = word.load(Ordering::Relaxed).rotate_left(19) ^ machine::nanoseconds();
    word.store(folded, Ordering::Relaxed);
}

/// The words of all CPUs.
pub(super) fn timings() -> [[u8; 8]; machine::MAX_CPUS] {
    TIMINGS
        .each_ref()
        .map(|word| word.load(Ordering::Relaxed).to_le_bytes())
}

/// Sleeps until [`is_seeded`]. Where no source fills the pool, the first waiter does so itself in
/// about half a second: it sleeps again and again, and each sleep whose end can't be told from the
/// ends before counts as one bit. A timer's interrupt, the way out of the idle loop and the host's
/// own scheduling make it uncertain by microseconds, which is more than ten bits; on a machine
/// whose sleeps all take the same time none counts, and the wait goes on.
///
/// # Errors
/// An interruption or the deadline, as `how` allows.
pub fn wait_until_seeded(how: Sleep) -> Result<(), Woken> {
    let mut jitter = Jitter::default();
    while !is_seeded() {
        if how.deadline.is_some_and(|end| end <= time::since_boot()) {
            return Err(Woken::TimedOut);
        }
        let nap = Sleep {
            deadline: Some(time::since_boot() + NAP),
            ..how
        };
        if MEASURING.swap(true, Ordering::Acquire) {
            let seeded = SEEDED.wait(nap, || is_seeded().then_some(()));
            if seeded == Err(Woken::Interrupted) {
                return Err(Woken::Interrupted);
            }
            continue;
        }
        let woken = task::sleep(nap);
        let now = machine::nanoseconds();
        add(&now.to_le_bytes(), u32::from(jitter.is_uncertain(now)));
        MEASURING.store(false, Ordering::Release);
        if woken == Woken::Interrupted {
            return Err(Woken::Interrupted);
        }
    }
    Ok(())
}

/// Judges whether a series of times is uncertain: neither the distances nor how these change, nor
/// how that changes, repeat.
#[derive(Default)]
pub(super) struct Jitter {
    last: u64,
    distance: u64,
    change: u64,
}

impl Jitter {
    /// Takes the next time; true if it could not be told from those before.
    pub fn is_uncertain(&mut self, now: u64) -> bool {
        let is_first = self.last == 0;
        let distance = now.wrapping_sub(self.last);
        let change = distance.wrapping_sub(self.distance);
        let second = change.wrapping_sub(self.change);
        *self = Jitter {
            last: now,
            distance,
            change,
        };
        !is_first && distance != 0 && change != 0 && second != 0
    }
}
