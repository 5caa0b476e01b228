//! Numbers of domains, and what units are told to forget of them.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::OutOfMemory;
use crate::counters::Counter;
use crate::hw::iommu::{Domain as Number, Stale};
use crate::hw::machine;

/// Numbers in use [bit per number]; number 0 is the units' own.
static USED: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// For a machine that starts.
pub(super) fn reset() {
    for (word, i) in USED.iter().zip(0..) {
        word.store(u64::from(i == 0), Relaxed);
    }
}

/// Takes a number of a domain, of those that all units know.
pub(super) fn take() -> Result<Number, OutOfMemory> {
    let most = machine::iommu_features().map_or(0, |it| it.domains);
    let numbers = 1..=most.min(64 * USED.len() as u16 - 1);
    for number in numbers {
        let bit = 1 << (number % 64);
        if USED[usize::from(number / 64)].fetch_or(bit, Relaxed) & bit == 0 {
            return Ok(Number(number));
        }
    }
    Err(OutOfMemory)
}

/// Gives a number back: no unit holds anything of the domain.
pub(super) fn give(Number(number): Number) {
    USED[usize::from(number / 64)].fetch_and(!(1 << (number % 64)), Relaxed);
}

/// Tells all units to forget translations, because of `cause`.
pub(super) fn forget(stale: Stale, cause: Counter) {
    machine::iommu_forget(&[stale]);
    cause.add(1);
}
