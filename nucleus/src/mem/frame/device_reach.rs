//! Where frames leave the reach of devices, and where they return: for each one place.
//!
//! Devices may reach frames of the open types, [`Free`](Type::Free) and
//! [`Writable`](Type::Writable), that are not flagged `cached` (`iosup.txt` 5.1.1). Every other
//! change between these and the rest is a *type change* in the sense of `iosup.txt` 3. It costs an
//! IOTLB invalidation, one for each batch of frames that change together.

use core::ops::Range;

use super::record::{Type, record};
use crate::counters::Counter;

/// What frames leave the devices' reach for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// Page tables, with their reverse links.
    PageTables,
    Heap,
    /// Stacks of the kernel.
    Stacks,
    /// What the machine came with: its image, archives, persistent memory.
    Other,
}

impl Cause {
    /// The cause for a frame of the kernel's own of this type.
    pub(super) fn of(kind: Type) -> Cause {
        match kind {
            Type::Heap => Cause::Heap,
            Type::Kernel => Cause::Stacks,
            _ => Cause::Other,
        }
    }

    /// Type changes of frames, and batches: an invalidation each.
    fn counters(self) -> [Counter; 2] {
        match self {
            Cause::PageTables => [
                Counter::type_changes_page_tables,
                Counter::device_batches_page_tables,
            ],
            Cause::Heap => [Counter::type_changes_heap, Counter::device_batches_heap],
            Cause::Stacks => [Counter::type_changes_stacks, Counter::device_batches_stacks],
            Cause::Other => [Counter::type_changes_other, Counter::device_batches_other],
        }
    }
}

fn count(frames: usize, cause: Cause) {
    let [changes, batches] = cause.counters();
    changes.add(frames as u64);
    batches.add(1);
}

/// Takes free frames out of the devices' reach, before they become something else: all in one
/// batch. The caller owns them alone; it may hold locks, but not the buddy allocator's.
pub(super) fn withdraw(frames: impl Iterator<Item = Range<u32>>, cause: Cause) {
    let mut total = 0;
    for run in frames {
        debug_assert!(run.clone().all(|it| record(it).is_reachable()));
        total += run.len();
    }
    count(total, cause);
}

/// Neighbouring frames, as [`withdraw`] and [`restore`] want them.
pub(super) fn run(frames: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    core::iter::once(frames)
}

/// Brings frames back, free ones again, that [`withdraw`] took out: all in one batch. The caller
/// owns them alone.
pub(super) fn restore(frames: impl Iterator<Item = Range<u32>>, cause: Cause) {
    let mut total = 0;
    for run in frames {
        debug_assert!(run.clone().all(|it| record(it).is_reachable()));
        total += run.len();
    }
    if total > 0 {
        count(total, cause);
    }
}
