//! Owners of data frames (`uvm.txt` 7: loaned pages).
//!
//! A frame's *owners* are those whose data its bytes are: pages of anonymous memory and of objects,
//! and slices on their way. Other handles, those of mappings and of threads that copy bytes, come
//! and go and own nothing. A page with more than one owner is *lent*: its bytes do not change any
//! more. A writer takes a copy and gives the lent page up, and the last owner has
//! it for itself again.
//!
//! Only an owner makes another one. Where owners are made and bytes are written under the same
//! lock, an owner that finds itself alone there stays alone until it leaves the lock.

use core::mem;
use core::ops::Deref;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::Frame;
use super::record::record;

/// A handle of a frame that owns the frame, alone or with others.
#[derive(PartialEq, Eq, Debug)]
pub struct Owned(Frame);

impl Owned {
    /// The first owner of a frame.
    #[inline]
    pub fn new(frame: Frame) -> Owned {
        Owned(frame)
    }

    /// A further owner of a frame that has one. Not of one that is a [page of a
    /// medium](Frame::is_of_medium), whose bytes change with the disk: its reader copies them.
    #[inline]
    pub fn lend(frame: &Frame) -> Owned {
        debug_assert!(!frame.is_of_medium(), "a page of a medium is lent");
        let frame = frame.clone();
        // Saturating: with so many owners a frame stays lent for ever.
        let more = |lent: u32| lent.checked_add(1);
        let _ = record(frame.index)
            .lent()
            .fetch_update(AcqRel, Relaxed, more);
        Owned(frame)
    }

    /// Gives the ownership up and keeps the handle.
    #[inline]
    pub fn into_frame(self) -> Frame {
        disown(&self.0);
        let Frame { index } = self.0;
        mem::forget(self);
        Frame { index }
    }
}

/// One owner less.
#[inline]
fn disown(frame: &Frame) {
    let lent = record(frame.index).lent();
    // Mostly this is the only owner.
    match lent.load(Acquire) {
        0 | u32::MAX => {}
        _ => leave_to_others(lent),
    }
}

#[cold]
fn leave_to_others(lent: &AtomicU32) {
    let less = |lent: u32| match lent {
        0 | u32::MAX => None,
        lent => Some(lent - 1),
    };
    // Release, and acquire by the owner that finds itself alone: all reads of the bytes come
    // before it writes them.
    let _ = lent.fetch_update(AcqRel, Acquire, less);
}

impl Frame {
    /// Whether the frame has several owners, so that its bytes must not change.
    #[inline]
    pub fn is_lent(&self) -> bool {
        record(self.index).lent().load(Acquire) != 0
    }
}

impl From<Frame> for Owned {
    #[inline]
    fn from(frame: Frame) -> Owned {
        Owned::new(frame)
    }
}

impl Clone for Owned {
    /// A further owner.
    #[inline]
    fn clone(&self) -> Owned {
        Owned::lend(&self.0)
    }
}

impl Drop for Owned {
    #[inline]
    fn drop(&mut self) {
        disown(&self.0);
    }
}

impl Deref for Owned {
    type Target = Frame;

    #[inline]
    fn deref(&self) -> &Frame {
        &self.0
    }
}
