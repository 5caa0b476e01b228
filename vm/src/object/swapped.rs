//! Swap-backed objects: which of their pages are in swap, and how these come back.

use core::ops::Range;
use core::sync::atomic::Ordering;
use nucleus::{Frame, frame};

use super::{Object, PagerError, page::Page};
use crate::chunks::SLOTS;
use crate::memory_wait::retry_for_memory;
use crate::swap;

/// Pages that are brought back from swap at once where the kernel reads a file. Other values were
/// not measured.
const AHEAD: u64 = 16;

impl Object {
    /// How many of its pages are in swap only.
    pub fn swapped_count(&self) -> usize {
        self.swapped_in(0..u64::MAX)
    }

    /// How many of these pages are in swap only.
    pub(crate) fn swapped_in(&self, range: Range<u64>) -> usize {
        let mut count = 0;
        if !self.swap_backed {
            return count;
        }
        self.walk(&range, &mut |_, chunk, slots| {
            let pages = chunk.lock();
            count += slots.filter(|&i| pages[i].is_swapped()).count();
            true
        });
        count
    }

    /// Returns page `index` to read, brought back if it is in swap; `None` if the object does not
    /// have it. Sleeps, with no lock held that comes after
    /// `fs::rank::VNODE`.
    ///
    /// # Errors
    /// [`PagerError::OutOfMemory`], [`PagerError::Io`].
    #[inline]
    pub fn bring_in(&self, index: u64) -> Result<Option<Frame>, PagerError> {
        // Fast path: one look-up for a resident page.
        match self.resident(index) {
            Some(frame) => Ok(Some(frame)),
            None => self.fetch(index, |page| page.frame().cloned()),
        }
    }

    /// As [`bring_in`](Object::bring_in), for a writer: the page's slot is freed, and the page
    /// stays in memory as long as the returned frame is held.
    ///
    /// # Errors
    /// As [`bring_in`](Object::bring_in).
    pub fn bring_in_to_write(&self, index: u64) -> Result<Option<Frame>, PagerError> {
        self.fetch(index, |page| page.frame_to_write().cloned())
    }

    #[inline(never)]
    fn fetch(
        &self,
        index: u64,
        mut get: impl FnMut(&mut Page) -> Option<Frame>,
    ) -> Result<Option<Frame>, PagerError> {
        loop {
            let Some(mut pages) = self.lock(index) else {
                return Ok(None);
            };
            let page = pages.page_mut(index);
            if !page.is_swapped() {
                return Ok(get(page));
            }
            drop(pages);
            let window = index..index.saturating_add(AHEAD);
            retry_for_memory(|| self.bring_in_around(index, window.clone()))?;
        }
    }

    /// Brings page `index` back if it is in swap, and those of `window` beside it in neighbouring
    /// slots.
    ///
    /// # Errors
    /// [`PagerError::OutOfMemory`], [`PagerError::Io`].
    pub fn bring_in_around(&self, index: u64, window: Range<u64>) -> Result<(), PagerError> {
        let Some(chunk) = self.chunk_of(index) else {
            return Ok(());
        };
        let before = index.saturating_sub(window.start) as usize;
        let behind = window.end.saturating_sub(index + 1) as usize;
        Ok(swap::page_in(
            chunk,
            index as usize % SLOTS,
            (before, behind),
        )?)
    }

    /// Brings those of `pages` back that are in swap, as far as memory is not short and they can be
    /// read.
    pub fn bring_back(&self, pages: Range<u64>) {
        if !self.swap_backed {
            return;
        }
        let mut next = pages.start;
        while !frame::is_scarce() {
            let mut swapped = None;
            self.walk(&(next..pages.end), &mut |first, chunk, slots| {
                let there = chunk.lock();
                let found = slots.clone().find(|&i| there[i].is_swapped());
                swapped = found.map(|i| first + i as u64);
                swapped.is_none()
            });
            let Some(index) = swapped else { return };
            if self.bring_in_around(index, index..pages.end).is_err() {
                return;
            }
            next = index + 1;
        }
    }

    /// Whether its pages may go to swap.
    pub fn is_swap_backed(&self) -> bool {
        self.swap_backed
    }

    /// Sets whether the pages of a [swap-backed](Object::is_swap_backed) object, present and
    /// future, must stay in memory (`SHM_LOCK`).
    pub fn keep(&self, kept: bool) {
        // A thread that makes a chunk meanwhile sees this, or the chunk is seen here.
        self.kept.store(kept, Ordering::SeqCst);
        self.walk(&(0..u64::MAX), &mut |_, chunk, _| {
            chunk.set_kept(kept);
            true
        });
    }
}
