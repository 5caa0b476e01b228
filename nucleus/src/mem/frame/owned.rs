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
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

use super::counts::{FOR_EVER, HANDLE, OWNERS, STILL_READ, add_owner, handles, is_one_handle};
use super::record::record;
use super::{Frame, end_use, give_up};
use crate::cpu::percpu::Pinned;
use crate::hw::machine;

/// The counts of a frame with two owners, and no other handle.
const TWO_OWNERS: u64 = HANDLE + 1;

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
        machine::point();
        let index = self.0.index;
        let was_lent = add_owner(index);
        (Owned::new(Frame { index }), was_lent)
    }

    /// Gives the ownership up and keeps the handle.
    #[inline]
    pub fn into_frame(self) -> Frame {
        disown(self.0.index, 0);
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

/// Gives up an ownership, and its handle, which was not the only one by these counts. Returns
/// whether there are other owners.
#[inline(always)]
pub(super) fn give_up_owned(index: u32, at: &AtomicU64, counts: u64) -> bool {
    // The comparisons are those of `can_leave`, the most frequent one first.
    if counts == TWO_OWNERS {
        return leave(at, TWO_OWNERS, HANDLE).is_ok() || leave_others(index);
    }
    let others = counts & OWNERS;
    if others.wrapping_sub(2) < FOR_EVER - 2 {
        return leave(at, counts, HANDLE).is_ok() || leave_others(index);
    }
    if others != 0 {
        return leave_others(index);
    }
    give_up(index);
    false
}

/// As [`give_up_owned`] where others changed the counts, or there are more handles than owners.
#[inline(never)]
fn leave_others(index: u32) -> bool {
    let has_others = disown(index, HANDLE);
    if !has_others {
        give_up(index);
    }
    has_others
}

/// One owner less, and `handle` less, if there are other owners. Returns whether there are.
fn disown(index: u32, handle: u64) -> bool {
    let at = record(index).counts();
    let mut counts = at.load(Acquire);
    loop {
        if counts & OWNERS == 0 {
            return false;
        }
        if !can_leave(counts) {
            return leave_to_last(index, handle);
        }
        match leave(at, counts, handle) {
            Ok(_) => return true,
            Err(now) => counts = now,
        }
    }
}

/// Whether an owner may go, by these counts, without a look at the frame's mappings.
#[inline(always)]
fn can_leave(counts: u64) -> bool {
    match counts & OWNERS {
        // The two handles are those of the two owners: there is no reader, and no mapping.
        1 => counts < 2 * HANDLE,
        // With two others or more, the last one that leaves looks for readers.
        2..FOR_EVER => true,
        _ => false,
    }
}

/// One owner less, and `handle` less, if these are the counts `at` the frame's record yet; else
/// what they are now.
#[inline(always)]
fn leave(at: &AtomicU64, counts: u64, handle: u64) -> Result<u64, u64> {
    machine::point();
    // Release, and acquire by the owner that finds itself alone: all reads of the bytes come before
    // it writes them.
    at.compare_exchange(counts, counts - 1 - handle, AcqRel, Acquire)
}

/// One owner less, if there is one other, which may have mappings; then also `handle` less. Returns
/// whether there is.
#[inline(never)]
fn leave_to_last(index: u32, handle: u64) -> bool {
    let pinned = Pinned::new();
    let record = record(index);
    // With the lock held the frame's mappings stay, and each has its handle.
    let mappings = record.lock_mappings();
    // Those of the mappings, of this owner and of the last one. All others are readers, as far as
    // this owner let them read: they have their handles by now.
    let known = u64::from(mappings.count()) + 2;
    let less = |counts: u64| match counts & OWNERS {
        // Alone already.
        0 => None,
        // For ever lent.
        FOR_EVER.. => Some(counts),
        1 if handles(counts) > known => Some((counts - 1) | STILL_READ),
        _ => Some(counts - 1),
    };
    // Orders as in `leave`.
    let left = record.counts().fetch_update(AcqRel, Acquire, less).is_ok();
    drop(mappings);
    drop(pinned);
    // After the lock, which is that of a frame in use.
    if left && handle != 0 {
        give_up(index);
    }
    left
}

impl Frame {
    /// Whether the frame has several owners, or had, and one that left may still have readers: its
    /// bytes must not change.
    #[inline]
    pub fn is_lent(&self) -> bool {
        self.counts() & (OWNERS | STILL_READ) != 0
    }

    /// How many owners the frame has now, one at least.
    #[inline]
    pub fn owners(&self) -> u32 {
        owners(self.counts())
    }

    /// Whether there are handles besides those of owners and mappings: a thread or a device may be
    /// reading or writing the bytes. Of those that came by a mapping with a right that
    /// [`page_protect`](crate::pmap::page_protect) has taken since, none is overlooked.
    pub fn has_users(&self) -> bool {
        let _pinned = Pinned::new();
        // With the lock held no mapping goes, and each has its handle.
        let mappings = record(self.index).lock_mappings();
        let counts = self.counts();
        handles(counts) > u64::from(owners(counts)) + u64::from(mappings.count())
    }

    /// How many handles there are besides those of mappings, the caller's own included. No fewer
    /// than those that were there all the time, whatever comes and goes meanwhile.
    pub fn unmapped_handles(&self) -> u64 {
        let _pinned = Pinned::new();
        // With the lock held no mapping goes, and each has its handle.
        let mappings = record(self.index).lock_mappings();
        handles(self.counts()) - u64::from(mappings.count())
    }

    /// Whether all handles but `held` are owners, if the frame is not mapped: no thread or
    /// device reads or writes the bytes. True until someone takes a handle.
    #[inline]
    pub fn is_held_by_owners(&self, held: u64) -> bool {
        let counts = self.counts();
        handles(counts) == u64::from(owners(counts)) + held
    }

    /// The counts as they are now.
    #[inline]
    pub(super) fn counts(&self) -> u64 {
        record(self.index).counts().load(Acquire)
    }
}

/// How many owners there are by a word of counts.
#[inline]
fn owners(counts: u64) -> u32 {
    1 + (counts & OWNERS) as u32
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
        let at = record(self.0.index).counts();
        let counts = at.load(Acquire);
        match is_one_handle(counts) {
            true => end_use(self.0.index),
            false => {
                give_up_owned(self.0.index, at, counts);
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
