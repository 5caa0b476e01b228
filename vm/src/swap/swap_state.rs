//! Where a swap-backed page is: the page of an anon, or of an object without another backing store.
//!
//! ```text
//!              written out                 dropped
//!   memory ────────────────> both ──────────────────> swap
//!      ^                      │ ^                       │
//!      └──────────────────────┘ └───────────────────────┘
//!            to be written              read in
//! ```
//! *Both*: the slot has the same bytes as the frame, or will have once it is written
//! (`swap::validity`). No mapping of such a page may be written through: a writer takes the page
//! back to *memory* first, which frees the slot. So a page with a slot need not be written out
//! again, and no slot is held for a page that has changed.
//!
//! *Locking*: the lock of the place guards it: a chunk's, or a shared anon's. A frame may be mapped
//! and held without it: to drop the frame, remove the mappings and then check, with the place
//! locked, that there is no other handle. Handles are made from handles only, so no new one appears
//! then.

use crate::counters::Counter;
use nucleus::{Frame, frame::Owned};

use super::{SwapSlot, table};
use crate::chunks::{Chunk, Content, slots_in};

/// See the head of the file. At least one of the two is there, except in a lazily freed page that
/// is about to go.
pub(crate) struct SwapState {
    frame: Option<Owned>,
    slot: Option<SwapSlot>,
    /// The program does not need the page unless it writes it: in memory only, and freed instead of
    /// written out as long as no mapping has modified it (`MADV_FREE`).
    pub lazy: bool,
}

impl SwapState {
    /// In memory only.
    #[inline]
    pub fn memory(frame: impl Into<Owned>) -> SwapState {
        SwapState {
            frame: Some(frame.into()),
            slot: None,
            lazy: false,
        }
    }

    /// The frame, if the page is in memory.
    #[inline]
    pub fn frame(&self) -> Option<&Frame> {
        self.frame.as_deref()
    }

    /// The page as one of its owners, if it is in memory.
    #[inline]
    pub fn owned(&self) -> Option<&Owned> {
        self.frame.as_ref()
    }

    /// The page as one of its owners, if it was in memory. The slot is freed.
    #[inline]
    pub fn into_owned(self) -> Option<Owned> {
        self.frame
    }

    /// The slot, if the page has one.
    pub fn slot(&self) -> Option<&SwapSlot> {
        self.slot.as_ref()
    }

    /// Whether the page is in swap only.
    pub fn is_swapped(&self) -> bool {
        self.frame.is_none()
    }

    /// Whether the page is in memory and in swap: it must be mapped read-only.
    #[inline]
    pub fn is_clean(&self) -> bool {
        self.slot.is_some() && self.frame.is_some()
    }

    /// Whether the page is in memory, and its frame has other owners.
    #[inline]
    pub fn is_lent(&self) -> bool {
        self.frame().is_some_and(Frame::is_lent)
    }

    /// The frame, if the page is in memory, and whether it must not be written as it
    /// is: it has a slot, or is lent.
    #[inline]
    pub fn resident(&self) -> Option<(&Frame, bool)> {
        let frame = self.frame()?;
        Some((frame, self.slot.is_some() || frame.is_lent()))
    }

    /// The frame, if the page is in memory and may be written as it is.
    #[inline]
    pub fn frame_to_write(&self) -> Option<&Frame> {
        match (&self.frame, &self.slot) {
            (Some(frame), None) if !frame.is_lent() => Some(frame),
            _ => None,
        }
    }

    /// The page, if it is in memory, is about to be written: gives its slot up.
    #[inline]
    pub fn dirty(&mut self) {
        self.lazy = false;
        if self.is_clean() {
            Counter::swap_slots_dirtied.add(1);
            self.slot = None;
        }
    }

    /// The page, which is in memory only and mapped nowhere, is to be written to `slot`.
    pub fn leave(&mut self, slot: SwapSlot) {
        debug_assert!(self.slot.is_none() && !self.lazy);
        self.slot = Some(slot);
    }

    /// The page, which is in memory, may be freed if it is not modified from now on.
    pub fn free_lazily(&mut self) {
        self.dirty();
        self.lazy = true;
    }

    /// Whether the page is nowhere any more.
    pub fn is_gone(&self) -> bool {
        self.frame.is_none() && self.slot.is_none()
    }

    /// The page, which is in swap only, was read into `frame`.
    pub fn arrive(&mut self, frame: Frame) {
        debug_assert!(self.frame.is_none());
        self.frame = Some(Owned::new(frame));
        if let Some(slot) = &self.slot {
            table::set_cached(slot, true);
        }
    }

    /// Takes out the frame of a page that also has a slot, if it is mapped nowhere and
    /// [may go](may_go) but for the caller's `held` handles. The slot is valid.
    pub fn drop_frame(&mut self, held: u64) -> Option<Frame> {
        self.slot.as_ref()?;
        let frame = self.take_frame(held)?;
        if let Some(slot) = &self.slot {
            table::set_cached(slot, false);
        }
        Some(frame)
    }

    /// As [`drop_frame`](SwapState::drop_frame) for a lazily freed page that was not modified: it
    /// is gone then.
    pub fn drop_lazy(&mut self, held: u64) -> Option<Frame> {
        if !self.lazy || self.slot.is_some() {
            return None;
        }
        self.take_frame(held)
    }

    /// Takes out the frame if it is mapped nowhere and may go; its other owners keep it.
    fn take_frame(&mut self, held: u64) -> Option<Frame> {
        let frame = self
            .frame
            .take_if(|frame| frame.mappings() == 0 && may_go(frame, held))?;
        if frame.is_lent() {
            Counter::loans_broken_by_pageout.add(1);
        }
        Some(frame.into_frame())
    }
}

/// Whether a page without mappings may leave its frame, which the caller has `held` handles of:
/// no thread or device is about to write or read it, since all other handles are owners. The page's
/// place is locked.
pub(crate) fn may_go(frame: &Frame, held: u64) -> bool {
    frame.is_held_by_owners(held)
}

/// The element of a chunk whose pages may go to swap.
pub(crate) trait Paged: Content + Send {
    /// Calls `f` with where the page here is, if there is one.
    fn with_state(&mut self, f: &mut dyn FnMut(&mut SwapState));
}

/// A chunk of pages of whatever kind.
pub(crate) trait Home: Send + Sync {
    /// Calls `f` with the index and state of each page whose bit is set in `which`, with the chunk
    /// locked.
    fn visit(&self, which: u32, f: &mut dyn FnMut(usize, &mut SwapState));
}

impl<T: Paged> Home for Chunk<T> {
    fn visit(&self, which: u32, f: &mut dyn FnMut(usize, &mut SwapState)) {
        let mut slots = self.lock();
        for i in slots_in(which) {
            slots[i].with_state(&mut |location| f(i, location));
        }
    }
}
