//! A page of an object, and neighbouring ones that are locked.

use alloc::sync::Arc;
use core::sync::atomic::AtomicUsize;
use nucleus::{
    Access, Frame,
    frame::Owned,
    sync::{MutexGuard, Rank},
};

use crate::chunks::{Chunk, Content, Registry, SLOTS, SlotArray};
use crate::counters::Counter;
use crate::swap::{Paged, SwapState};

/// A page of an object.
#[derive(Default)]
pub(crate) enum Page {
    #[default]
    Absent,
    /// The [`BusyPages`](super::BusyPages) with this number reads it.
    Busy(u32),
    At(SwapState),
}

impl Page {
    /// A page in this frame.
    pub(crate) fn resident(frame: impl Into<Owned>) -> Page {
        Page::At(SwapState::memory(frame))
    }

    /// The frame, if the page is resident.
    #[inline]
    pub(crate) fn frame(&self) -> Option<&Frame> {
        match self {
            Page::At(location) => location.frame(),
            _ => None,
        }
    }

    /// The page as one of its owners, if it is resident.
    pub(super) fn owned(&self) -> Option<&Owned> {
        match self {
            Page::At(location) => location.owned(),
            _ => None,
        }
    }

    /// Whether the object has the page, in memory or in swap.
    pub(super) fn is_there(&self) -> bool {
        matches!(self, Page::At(_))
    }

    /// Whether the page is in swap only.
    #[inline]
    pub(super) fn is_swapped(&self) -> bool {
        matches!(self, Page::At(location) if location.is_swapped())
    }

    /// The frame, if the page is resident and may be written as it is.
    pub(crate) fn writable(&self) -> Option<&Frame> {
        match self {
            Page::At(location) => location.frame_to_write(),
            _ => None,
        }
    }

    /// The frame, if the page is resident, for a writer.
    pub(super) fn frame_to_write(&mut self) -> Option<&Frame> {
        match self {
            Page::At(location) => {
                location.dirty();
                location.frame()
            }
            _ => None,
        }
    }
}

impl Content for Page {
    const RANK: Rank = crate::rank::OBJECT;

    #[inline]
    fn is_vacant(&self) -> bool {
        matches!(self, Page::Absent)
    }

    #[inline]
    fn into_owned(self) -> Option<Owned> {
        match self {
            Page::At(location) => location.into_owned(),
            _ => None,
        }
    }

    #[cold]
    fn left_lent() {
        Counter::loans_broken_by_truncation.add(1);
    }

    fn registry() -> Option<&'static Registry<Arc<Chunk<Page>>>> {
        Some(&CHUNKS)
    }

    fn aged_unlisted() -> Option<&'static AtomicUsize> {
        Some(&ACTIVE)
    }
}

impl Paged for Page {
    fn with_state(&mut self, f: &mut dyn FnMut(&mut SwapState)) {
        if let Page::At(location) = self {
            f(location);
        }
    }
}

/// All chunks of objects without a backing store. A page of theirs begins as an active one.
pub(crate) static CHUNKS: Registry<Arc<Chunk<Page>>> = Registry::new(&INACTIVE);

/// Active pages of objects with a backing store, some of which may have gone.
pub(crate) static ACTIVE: AtomicUsize = AtomicUsize::new(0);

/// Inactive pages in [`CHUNKS`], some of which may have gone.
pub(crate) static INACTIVE: AtomicUsize = AtomicUsize::new(0);

/// Neighbouring pages of an object, locked: they stay resident or absent.
pub(crate) struct Pages<'a> {
    pub(super) pages: MutexGuard<'a, SlotArray<Page>>,
}

impl Pages<'_> {
    /// The number of the busy pages that page `index`, which is among these, belongs to.
    pub(crate) fn busy(&self, index: u64) -> Option<u32> {
        match self.pages[index as usize % SLOTS] {
            Page::Busy(number) => Some(number),
            _ => None,
        }
    }

    /// The resident page `index`, which is among these.
    pub(crate) fn get(&self, index: u64) -> Option<&Frame> {
        self.page(index).frame()
    }

    /// The resident page `index`, which is among these, to be mapped for `access`.
    pub(crate) fn get_for(&mut self, index: u64, access: Access) -> Option<&Frame> {
        match access {
            Access::Write => self.page_mut(index).frame_to_write(),
            _ => self.get(index),
        }
    }

    /// Whether none of these pages is there or on its way.
    pub(crate) fn are_vacant(&self) -> bool {
        self.pages.iter().all(Content::is_vacant)
    }

    /// Fills these pages, all of which are absent. The object's pages are counted by the caller.
    pub(crate) fn fill(&mut self, frames: impl Iterator<Item = Frame>) {
        for (page, frame) in self.pages.iter_mut().zip(frames) {
            // Without the code that drops what was there.
            core::mem::forget(core::mem::replace(page, Page::resident(frame)));
        }
    }

    pub(super) fn page(&self, index: u64) -> &Page {
        &self.pages[index as usize % SLOTS]
    }

    pub(super) fn page_mut(&mut self, index: u64) -> &mut Page {
        &mut self.pages[index as usize % SLOTS]
    }
}
