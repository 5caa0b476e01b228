//! The counts of a data frame: its handles and its owners, in one word. So an owner more is one
//! atomic operation, and an owner that leaves sees both counts as they are at that moment.
//!
//! | bits | |
//! |---|---|
//! | 0 to 22 | owners but one; with bit 22 set the frame is lent for ever |
//! | 23 | [`STILL_READ`] |
//! | 24 to 63 | handles but one, signed: below zero when the last one is gone |
//!
//! So few handles fit in that each mapping of the machine has one, and each thread thousands. Were
//! more forgotten without a drop, the count would become negative: then the next handle, or the
//! next that is given up, ends the kernel, long before the count comes to zero again.

use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use super::record::record;

/// One handle.
pub(super) const HANDLE: u64 = 1 << 24;
/// Readers were there when the last owner was left alone.
pub(super) const STILL_READ: u64 = 1 << 23;
/// The owners but one.
pub(super) const OWNERS: u64 = STILL_READ - 1;
/// In the count of owners: there were so many that it does not go down any more. What is above
/// this is free for owners on their way: each takes itself off again.
pub(super) const FOR_EVER: u64 = 1 << 22;

/// The frame's users are its first handle, which may be an owner.
#[inline]
pub(super) fn start(index: u32) {
    record(index).counts().store(0, Relaxed);
    // No device holds it.
    record(index).in_use.store(0, Relaxed);
}

/// How many handles there are by a word of counts.
#[inline]
pub(super) fn handles(counts: u64) -> u64 {
    (counts >> 24) + 1
}

/// Counts handles that are made from one that is held.
#[inline(always)]
pub(crate) fn add_handles(index: u32, count: u64) {
    // Relaxed as in `Arc`.
    let more = count * HANDLE;
    let before = record(index).counts().fetch_add(more, Relaxed);
    debug_assert!(before.cast_signed() >= 0);
    if before.wrapping_add(more).cast_signed() < 0 {
        too_many();
    }
}

/// Takes handles off the count, which are not the last.
#[inline(always)]
pub(crate) fn subtract_handles(index: u32, count: u64) {
    record(index).counts().fetch_sub(count * HANDLE, Release);
}

/// Gives up a handle of the frame; returns whether it was the last.
#[inline(always)]
pub(super) fn is_last_handle(index: u32) -> bool {
    // Release, and acquire by the last: all uses of the frame come before it is free.
    const LESS: u64 = HANDLE.wrapping_neg();
    let before = record(index).counts().fetch_add(LESS, Release);
    debug_assert!(before.cast_signed() >= 0, "a frame was given up too often");
    before.wrapping_add(LESS).cast_signed() < 0
}

/// Whether the caller's handle is the only one, by counts that were acquired: then it stays so, and
/// all uses of the frame by others are over.
#[inline(always)]
pub(super) fn is_one_handle(counts: u64) -> bool {
    counts < HANDLE
}

/// A negative count is that of no handle, not of too many.
#[inline(always)]
pub(super) fn check_last(index: u32) {
    let counts = record(index).counts().load(Relaxed).cast_signed();
    if counts < -HANDLE.cast_signed() {
        too_many();
    }
}

/// One owner more, with its handle; returns whether there were several before, or may still be
/// readers of one that left.
#[inline(always)]
pub(super) fn add_owner(index: u32) -> bool {
    let before = record(index).counts().fetch_add(HANDLE + 1, AcqRel);
    debug_assert!(before.cast_signed() >= 0);
    if before & FOR_EVER != 0 {
        add_handle_only(index);
    }
    before & (OWNERS | STILL_READ) != 0
}

/// The owner that was added goes uncounted: there are so many that the frame stays lent for ever.
#[cold]
#[inline(never)]
fn add_handle_only(index: u32) {
    let before = record(index).counts().fetch_sub(1, Relaxed);
    if before.cast_signed() < 0 {
        too_many();
    }
}

#[cold]
#[inline(never)]
fn too_many() -> ! {
    panic!("a frame has too many handles");
}
