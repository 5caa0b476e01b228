//! Domain IDs, and invalidations by cause.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::OutOfMemory;
use crate::counters::Counter;
use crate::hw::iommu::{DomainId, Stale};
use crate::hw::machine;
use crate::mem::mistake::Mistake;

/// IDs in use [bit per ID]; 0 is the units' own.
static USED: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// For a machine that starts.
pub(super) fn reset() {
    for (word, i) in USED.iter().zip(0..) {
        word.store(u64::from(i == 0), Relaxed);
    }
}

/// Allocates an ID that all units know.
pub(super) fn allocate() -> Result<DomainId, OutOfMemory> {
    let most = machine::iommu_features().map_or(0, |it| it.domains);
    let numbers = 1..=most.min(64 * USED.len() as u16 - 1);
    for number in numbers {
        let bit = 1 << (number % 64);
        if USED[usize::from(number / 64)].fetch_or(bit, Relaxed) & bit == 0 {
            return Ok(DomainId(number));
        }
    }
    Err(OutOfMemory)
}

/// Frees an ID: no unit holds anything of the domain.
pub(super) fn free(DomainId(number): DomainId) {
    USED[usize::from(number / 64)].fetch_and(!(1 << (number % 64)), Relaxed);
}

/// Has all units invalidate translations, because of `cause`.
pub(super) fn invalidate(stale: Stale, cause: Counter) {
    let mistakes: &[Mistake] = match cause {
        Counter::iotlb_absent => &[Mistake::AbsentKept],
        Counter::iotlb_page_table | Counter::iotlb_heap | Counter::iotlb_stack => {
            &[Mistake::LeavesWithoutInvalidation]
        }
        _ => &[],
    };
    if mistakes.iter().any(|it| it.is_made()) {
        return;
    }
    machine::iommu_invalidate(&[stale]);
    cause.add(1);
}
