//! The one place where frames leave the reach of devices, and the one where they return.
//!
//! Devices may reach frames of the open types, [`Free`](Type::Free) and
//! [`Writable`](Type::Writable), that are not flagged `cached` (`iosup.txt` 5.1.1). Every other
//! change between these and the rest is a *type change* in the sense of `iosup.txt` 3. It costs an
//! IOTLB invalidation, one for each batch of frames that change together.

use core::ops::Range;
use core::slice;
use core::sync::atomic::{AtomicBool, Ordering};

use super::record::{Type, record};
use crate::counters::Counter;
use crate::hw::handlers;
use crate::mem::mistake::Mistake;

/// Devices reach the open frames, by a tree of tables that follows all changes.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// Has the tree follow frames that leave or return, from now on or no longer.
pub(super) fn watch(is_watched: bool) {
    IS_WATCHED.store(is_watched, Ordering::Release);
}

/// The reason why frames leave the devices' reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// Page tables, with their reverse links.
    PageTables,
    Heap,
    /// Stacks of the kernel.
    Stacks,
    /// The memory that the machine came with: its image, archives, persistent memory.
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

    /// Invalidations of IOTLBs.
    fn invalidation(self) -> Counter {
        match self {
            Cause::PageTables => Counter::iotlb_page_table,
            Cause::Heap => Counter::iotlb_heap,
            Cause::Stacks => Counter::iotlb_stack,
            Cause::Other => Counter::iotlb_other,
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

/// Gives `send` the runs, up to [`BATCH`] at once, where devices' reach is watched; counts all as
/// if it were.
fn send(
    mut frames: impl Iterator<Item = Range<u32>>,
    cause: Cause,
    mut send: impl FnMut(&[Range<u32>]),
) {
    let is_watched = IS_WATCHED.load(Ordering::Relaxed);
    let [changes, batches] = cause.counters();
    let mut finish = |batch: &[Range<u32>]| {
        debug_assert!({ batch.iter().cloned().flatten() }.all(|it| record(it).is_reachable()));
        if is_watched {
            send(batch);
        }
        changes.add(batch.iter().map(|it| it.len() as u64).sum());
        batches.add(1);
    };
    let Some(first) = frames.next() else { return };
    let Some(second) = frames.next() else {
        // Nearly always so.
        return finish(slice::from_ref(&first));
    };
    let mut batch = [const { 0..0 }; BATCH];
    let mut len = 0;
    for run in [first, second].into_iter().chain(frames) {
        batch[len] = run;
        len += 1;
        if len == BATCH {
            finish(&batch);
            len = 0;
        }
    }
    if len > 0 {
        finish(&batch[..len]);
    }
}

/// Takes free frames out of the devices' reach, before they become something else: [`BATCH`] runs
/// by one batch. The caller owns them alone; it may hold locks, but not the buddy allocator's.
pub(super) fn withdraw(frames: impl Iterator<Item = Range<u32>>, cause: Cause) {
    if cause == Cause::PageTables && Mistake::TableNotWithdrawn.is_made() {
        return;
    }
    send(frames, cause, |batch| {
        handlers::frames_leave(batch, cause.invalidation());
    });
}

/// Runs of frames that leave or return by one invalidation: those of a stack fit, and the blocks
/// that the page-table cache releases together.
pub(super) const BATCH: usize = 32;

/// Neighbouring frames, as [`withdraw`] and [`restore`] want them.
pub(super) fn run(frames: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    core::iter::once(frames)
}

/// Brings frames back, free ones again, that [`withdraw`] took out, by batches as there. The caller
/// owns them alone.
pub(super) fn restore(frames: impl Iterator<Item = Range<u32>>, cause: Cause) {
    send(frames, cause, handlers::frames_enter);
}
