//! Pages that leave an object: no mapping of them is left.

use core::ops::Range;
use nucleus::{
    Prot,
    frame::Owned,
    pmap::{self, Pending},
};

use super::{Object, PagerError, page::Page};
use crate::chunks::{Content, SLOTS};
use crate::counters::Counter;

impl Object {
    /// Drops all pages from `first` on (truncation): every mapping of them is removed before this
    /// returns, so that later accesses fault. Returns how many pages that were. The owner must know
    /// its new end first, or a fault could make a page resident again.
    pub fn truncate(&self, first: u64) -> usize {
        self.remove(first..u64::MAX, |_, _| false)
    }

    /// As [`truncate`](Object::truncate) for `count` pages from `first` on (hole punching).
    pub fn remove_pages(&self, first: u64, count: u64) -> usize {
        self.remove(first..first.saturating_add(count), |_, _| false)
    }

    /// Removes all pages of `range` that are not modified, and busy ones: the backing store has
    /// other bytes now. Mappings of them are removed before this returns. Returns how many.
    pub fn discard(&self, range: Range<u64>) -> usize {
        self.remove(range, |_, page| page.frame().is_some_and(pmap::is_modified))
    }

    /// As [`remove_pages`](Object::remove_pages) for those of `range` for whose index `goes`
    /// returns true. It is called with the page locked: no fault maps the page in between.
    pub fn remove_those(&self, range: Range<u64>, mut goes: impl FnMut(u64) -> bool) -> usize {
        self.remove(range, |index, _| !goes(index))
    }

    /// Removes the pages of `range`, busy ones too, except those that stay. `stays` is called with
    /// the index of a page and its chunk locked.
    fn remove(&self, range: Range<u64>, mut stays: impl FnMut(u64, &Page) -> bool) -> usize {
        let mut pending = Pending::new();
        let mut count = 0;
        self.walk(&range, &mut |first, chunk, slots| {
            let index = first + slots.start as u64..;
            for (index, page) in index.zip(&mut chunk.lock()[slots]) {
                // Most slots of a small file's only chunk are empty.
                if matches!(page, Page::Absent) || stays(index, page) {
                    continue;
                }
                let removed = core::mem::take(page);
                count += usize::from(removed.is_there());
                // No new mapping can appear: the chunk is locked. A mapping has its own handle
                // until the flush.
                let Some(frame) = removed.frame() else {
                    continue;
                };
                if frame.mappings() != 0 {
                    pmap::page_protect(frame, Prot::empty(), &mut pending);
                }
                if frame.is_lent() {
                    Counter::loans_broken_by_truncation.add(1);
                }
            }
            true
        });
        pending.flush();
        self.count_less(count);
        count
    }

    /// Puts `frame` in the place of page `index`, and removes every mapping of the page that was
    /// there before this returns; no fault enters the new page before the old one is out of
    /// every TLB. If there is no page, resident or in swap, `may_add` is asked first, with the
    /// page's lock held: where it says no, nothing changes.
    ///
    /// # Errors
    /// [`PagerError::OutOfMemory`]; [`PagerError::BeyondEnd`] for an index beyond 2^51 pages.
    pub fn replace(
        &self,
        index: u64,
        frame: impl Into<Owned>,
        may_add: impl FnOnce() -> bool,
    ) -> Result<(), PagerError> {
        let mut pages = self.chunk(index)?.lock();
        let page = &mut pages[index as usize % SLOTS];
        match page.frame() {
            Some(old) if old.mappings() != 0 => {
                let mut pending = Pending::new();
                pmap::page_protect(old, Prot::empty(), &mut pending);
                pending.flush();
            }
            _ => {}
        }
        let is_new = !page.is_there();
        if is_new && !may_add() {
            return Ok(());
        }
        let old = core::mem::replace(page, Page::resident(frame));
        drop(pages);
        if is_new {
            self.count_more(1);
        }
        drop(old.into_owned());
        Ok(())
    }
}
