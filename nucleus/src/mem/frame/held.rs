//! Frames that devices hold: each entry of a device's page tables that leads to a data frame, or
//! led there when units were last told to forget, counts in the frame's record. The last handle
//! may go before: the frame is free when the last such entry has gone, too. Entries that lead to a
//! [block](super::block) for one request count once, in its first frame's record.
//!
//! An entry has no handle of its own. The count of handles decides whether other owners share the
//! bytes: whether a page is copied before it is written, or lent, or evicted. For that decision a
//! request is over when it is done, however long its addresses wait for the invalidation of their
//! batch; with handles, every page that was read from a disk would be copied, or left by the
//! pagedaemon, for that long. What must wait is the frame's next life. So the count is examined
//! where the frame would become free, and by drivers that use a frame again without freeing it
//! ([`may_be_read_by_devices`](Frame::may_be_read_by_devices)).

use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::record::{Type, address, find, record};
use super::{Frame, free};
use crate::hw::machine;
use crate::mem::mistake::Mistake;

/// The frame has no handle any more.
const LEFT: u32 = 1 << 31;
/// An entry has let a device read the frame since the count was last 0. Changes only while the
/// caller's own entry is counted.
const READ: u32 = 1 << 30;
/// No device reads the frame any more, and it has no handle.
const READ_AND_LEFT: u32 = READ | LEFT;
/// The entries.
const COUNT: u32 = READ - 1;

/// One entry more leads to the frame, or entries to pages of the block, of which the caller has a
/// handle. By it the device reads or not.
#[inline]
pub(crate) fn hold(frame: &Frame, reads: bool) {
    let index = frame.index();
    let held = &record(index).in_use;
    let before = held.fetch_add(1, Relaxed);
    if reads && before & READ == 0 && !Mistake::ReadersForgotten.is_made() {
        held.fetch_or(READ, Relaxed);
    }
    if machine::CHECKS_REACH && before & COUNT == 0 {
        all(index).for_each(|index| machine::frame_opened(address(index)));
    }
}

/// The frame, or those of the block that begins with it.
fn all(index: u32) -> Range<u32> {
    index..index + (1 << record(index).order())
}

/// One entry less leads to the frame, or those of a request to the block that begins with it, and
/// no unit holds what they said.
#[inline]
pub(crate) fn release(index: u32) {
    let held = &record(index).in_use;
    if machine::CHECKS_REACH && held.load(Relaxed) & COUNT == 1 {
        all(index).for_each(|index| machine::frame_closed(address(index)));
    }
    // Release, and acquire by the last: what the device did with the frame comes before it is free.
    match held.fetch_sub(1, AcqRel) - 1 {
        LEFT => end_use(index),
        READ => end_reads(index, READ),
        READ_AND_LEFT => end_reads(index, READ_AND_LEFT),
        _ => {}
    }
}

/// The frame's last handle is gone, and now the last entry, too.
#[cold]
#[inline(never)]
fn end_use(index: u32) {
    record(index).in_use.store(0, Relaxed);
    free(index);
}

/// The last entry is gone after some led to the frame for reads: `now` says whether the last handle
/// is, too. Another entry may come and go meanwhile, and its end does the same: the one that clears
/// [`READ`] frees the frame that was left.
fn end_reads(index: u32, mut now: u32) {
    let held = &record(index).in_use;
    while matches!(now, READ | READ_AND_LEFT) {
        machine::point();
        match held.compare_exchange(now, 0, AcqRel, Acquire) {
            Ok(READ) => return,
            Ok(_) => return free(index),
            Err(other) => now = other,
        }
    }
}

impl Frame {
    /// Whether a device may read the bytes: by a request, or until the invalidation that a request
    /// which is done waits for. Where this is false and there is one handle, no device reads what
    /// is written from now on; one that writes only does not count. Devices that reach all memory
    /// read any frame.
    pub fn may_be_read_by_devices(&self) -> bool {
        record(self.index()).in_use.load(Acquire) & READ != 0
    }
}

/// Whether page `place` of the frame or block is one of data that an entry leads to.
pub(crate) fn is_held_data(index: u32, place: u32) -> bool {
    find(index.into()).is_some_and(|record| {
        record.kind() == Type::Writable
            && record.in_use.load(Acquire) & COUNT > 0
            && place >> record.order() == 0
    })
}

/// Whether entries lead to a frame whose last handle was given up: the last of them frees it then.
#[inline]
pub(super) fn is_held(index: u32) -> bool {
    record(index).in_use.load(Acquire) != 0 && leave(index)
}

/// Leaves the frame to its entries, if there are any still.
#[cold]
#[inline(never)]
fn leave(index: u32) -> bool {
    let held = &record(index).in_use;
    let is_held = held.fetch_or(LEFT, AcqRel) != 0;
    if !is_held {
        held.store(0, Relaxed);
    }
    is_held
}
