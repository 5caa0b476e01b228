//! Owners of data frames (`uvm.txt` 7: loaned pages).
//!
//! A frame's *owners* are those whose data its bytes are: pages of anonymous memory and of objects,
//! and slices on their way. Other handles, those of mappings and of threads that copy bytes, come
//! and go and own nothing. A page with more than one owner is *lent*: its bytes do not change any
//! more. A writer takes a copy and gives the lent page up, and the last owner has it for itself
//! again.
//!
//! Only an owner makes another one. Where owners are made and bytes are written under the same
//! lock, an owner that finds itself alone there stays alone until it leaves the lock.
//!
//! A thread or a device that one owner lets read the bytes, by a handle, may go on after that owner
//! has left. Were the last owner then to write in place, its new bytes would go to a reader that is
//! none of its own. So a page that still has such handles when it comes to its last owner stays
//! lent: the owner takes a copy at its next write, and the frame goes with its readers.

use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::record::record;
use super::{Frame, end_use, give_up, has_one_handle};
use crate::cpu::percpu::Pinned;
use crate::hw::machine;

/// In the count of owners but one: readers were there when the last owner was left alone.
const STILL_READ: u32 = 1 << 31;
const COUNT: u32 = !STILL_READ;

/// A handle of a frame that owns the frame, alone or with others.
#[derive(PartialEq, Eq, Debug)]
pub struct Owned(ManuallyDrop<Frame>);

impl Owned {
    /// The first owner of a frame.
    #[inline]
    pub fn new(frame: Frame) -> Owned {
        Owned(ManuallyDrop::new(frame))
    }

    /// A further owner, as [`clone`](Clone::clone) makes; says also whether the frame was lent
    /// already.
    #[inline]
    pub fn lend(&self) -> (Owned, bool) {
        debug_assert!(!self.is_of_medium(), "a page of a medium is lent");
        // The handle first: there are never fewer handles than owners.
        let frame = Frame::clone(&self.0);
        let lent = record(frame.index).lent();
        let is_first =
            lent.load(Relaxed) == 0 && lent.compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
        let was_lent = !is_first && add_owner(lent);
        (Owned::new(frame), was_lent)
    }

    /// Gives the ownership up and keeps the handle.
    #[inline]
    pub fn into_frame(self) -> Frame {
        disown(self.0.index);
        Frame {
            index: self.into_index(),
        }
    }

    /// The ownership in another form.
    #[inline]
    pub(super) fn into_index(self) -> u32 {
        ManuallyDrop::new(self).0.index
    }
}

/// One owner more; returns whether there were several before.
#[inline]
fn add_owner(lent: &AtomicU32) -> bool {
    // Saturating: with so many owners a frame stays lent for ever.
    let more = |lent: u32| (lent & COUNT < COUNT).then(|| lent + 1);
    lent.fetch_update(AcqRel, Relaxed, more) != Ok(0)
}

/// One owner less. Returns whether there were others.
#[inline]
fn disown(index: u32) -> bool {
    // Mostly this is the only owner.
    match record(index).lent().load(Acquire) {
        0 => false,
        count => leave_to_others(index, count),
    }
}

/// One owner less of `count` and one; returns whether there are others.
#[inline(never)]
fn leave_to_others(index: u32, mut count: u32) -> bool {
    let lent = record(index).lent();
    // With two others or more, the last one that leaves looks for readers.
    while (2..COUNT).contains(&(count & COUNT)) {
        match lent.compare_exchange_weak(count, count - 1, AcqRel, Acquire) {
            Ok(_) => return true,
            Err(now) => count = now,
        }
    }
    leave_to_last(index)
}

/// Gives an ownership up, and its handle, which is not the only one. Returns whether there are
/// other owners.
#[inline]
pub(super) fn give_up_owned(index: u32) -> bool {
    let has_others = disown(index);
    give_up(index);
    has_others
}

/// One owner less, if there is one other; returns whether there is.
#[inline(never)]
fn leave_to_last(index: u32) -> bool {
    let _pinned = Pinned::new();
    let record = record(index);
    // With the lock held the frame's mappings stay, and each has its handle.
    let mappings = record.lock_mappings();
    // Those of the mappings, of this owner and of the last one. All others are readers, as far as
    // this owner let them read: they have their handles by now.
    let known = u64::from(mappings.count()) + 2;
    let is_read = record.handles().load(Acquire) > known;
    let less = |lent: u32| match lent & COUNT {
        // Alone already; and for ever lent.
        0 | COUNT => None,
        1 if is_read => Some(STILL_READ),
        _ => Some(lent - 1),
    };
    // Release, and acquire by the owner that finds itself alone: all reads of the bytes come
    // before it writes them.
    let left = record.lent().fetch_update(AcqRel, Acquire, less);
    drop(mappings);
    left.is_ok()
}

impl Frame {
    /// Whether the frame has several owners, or had, and one that left may still have readers: its
    /// bytes must not change.
    #[inline]
    pub fn is_lent(&self) -> bool {
        record(self.index).lent().load(Acquire) != 0
    }

    /// How many owners the frame has now, one at least.
    #[inline]
    pub fn owners(&self) -> u32 {
        1 + (record(self.index).lent().load(Acquire) & COUNT)
    }

    /// Whether there are handles besides those of owners and mappings: a thread or a device may be
    /// reading or writing the bytes. Of those that came by a mapping with a right that
    /// [`page_protect`](crate::pmap::page_protect) has taken since, none is overlooked.
    pub fn has_users(&self) -> bool {
        let _pinned = Pinned::new();
        let record = record(self.index);
        // With the lock held no mapping goes, and each has its handle.
        let mappings = record.lock_mappings();
        self.handles() > u64::from(self.owners()) + u64::from(mappings.count())
    }

    /// Whether all handles but `held` are owners, if the frame is not mapped: no thread or
    /// device reads or writes the bytes. True until someone takes a handle.
    #[inline]
    pub fn is_held_by_owners(&self, held: u64) -> bool {
        self.handles() == u64::from(self.owners()) + held
    }
}

impl From<Frame> for Owned {
    #[inline]
    fn from(frame: Frame) -> Owned {
        Owned::new(frame)
    }
}

impl Clone for Owned {
    /// A further owner. Not of a [page of a medium](Frame::is_of_medium), whose bytes change with
    /// the disk: its reader copies them.
    #[inline]
    fn clone(&self) -> Owned {
        self.lend().0
    }
}

impl Drop for Owned {
    /// Mostly with the only handle, so that there is no other owner, and none to come.
    #[inline]
    fn drop(&mut self) {
        machine::point();
        match has_one_handle(self.0.index) {
            true => end_use(self.0.index),
            false => {
                give_up_owned(self.0.index);
            }
        }
    }
}

impl Deref for Owned {
    type Target = Frame;

    #[inline]
    fn deref(&self) -> &Frame {
        &self.0
    }
}
