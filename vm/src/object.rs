//! Memory objects: the resident pages of what can be mapped (`uvm.txt` 4).
//!
//! An object is embedded in what it represents, a vnode for one, and lives as long. Pages stand in
//! chunks; the lock of a chunk guards which pages are resident *and* that no new mapping of one of
//! them appears: the fault routine enters a page with the chunk locked, truncation takes
//! pages out with the chunk locked and then removes every mapping that exists. So a mapping
//! of a page that left its object cannot be left behind.
//!
//! *Claims.* A page that has to be read is claimed first (the busy page of `uvm.txt` 6): who wants it meanwhile waits
//! for that read instead of starting another. A claimed page is not resident. Whatever takes
//! pages out of the object, or puts others in, takes claims away as well: what their readers bring then
//! is not wanted any more, and is dropped.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use nucleus::{
    Frame, Prot, frame,
    pmap::{self, Pending},
    sync::{MutexGuard, Rank},
};

use crate::chunks::{Chunk, Chunks, Content, SLOTS, SLOTS_SHIFT};
use crate::pager::PagerError;

/// Trees of an object: 64^9 chunks hold more than 2^63 bytes.
const TREES: usize = 9;

/// A page of an object.
#[derive(Default)]
pub(crate) enum Page {
    #[default]
    Absent,
    /// The [`Claim`] with this number reads it.
    Claimed(u32),
    Resident(Frame),
}

impl Page {
    pub(crate) fn frame(&self) -> Option<&Frame> {
        match self {
            Page::Resident(frame) => Some(frame),
            _ => None,
        }
    }
}

impl Content for Page {
    const RANK: Rank = Rank::Object;
}

/// The memory side of something that can be mapped: its resident pages. To be embedded.
pub struct Object {
    pages: Chunks<Page, TREES>,
    count: AtomicUsize,
}

/// Neighbouring pages of an object, locked: they stay resident or absent.
pub(crate) struct Pages<'a> {
    pages: MutexGuard<'a, [Page; SLOTS]>,
}

impl Object {
    /// No resident pages.
    pub const fn new() -> Object {
        Object {
            pages: Chunks::new(),
            count: AtomicUsize::new(0),
        }
    }

    /// The resident page `index` (in pages from the start).
    pub fn resident(&self, index: u64) -> Option<Frame> {
        self.lock(index)?.get(index).cloned()
    }

    /// Resident pages.
    pub fn resident_count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Locks the pages around `index` if any of them was ever resident.
    #[inline]
    pub(crate) fn lock(&self, index: u64) -> Option<Pages<'_>> {
        let chunk = self.pages.get(index >> SLOTS_SHIFT)?;
        Some(Pages {
            pages: chunk.lock(),
        })
    }

    /// The chunk that holds page `index`, made if there is none.
    pub(crate) fn chunk(&self, index: u64) -> Result<&Chunk<Page>, PagerError> {
        let number = index >> SLOTS_SHIFT;
        match self.pages.get(number) {
            Some(chunk) => Ok(chunk),
            None if frame::is_scarce() => Err(PagerError::OutOfMemory),
            None => self
                .pages
                .get_or_insert(number, Chunk::new)
                .ok_or(PagerError::BeyondEnd),
        }
    }

    /// The resident page, or the one that `make` gives; `make` runs at most once, with the lock
    /// of the pages around it held. An index beyond 2^51 pages is beyond every end.
    pub fn get_or_insert(
        &self,
        index: u64,
        make: impl FnOnce() -> Result<Frame, PagerError>,
    ) -> Result<Frame, PagerError> {
        let mut pages = self.chunk(index)?.lock();
        let page = &mut pages[index as usize % SLOTS];
        if let Page::Resident(frame) = page {
            return Ok(frame.clone());
        }
        let frame = make()?;
        *page = Page::Resident(frame.clone());
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(frame)
    }

    /// Calls `f` with the index and frame of each resident page in `range`, in order. No lock is
    /// held meanwhile, so a page may have left the object by then.
    pub fn for_each_resident(&self, range: Range<u64>, f: &mut dyn FnMut(u64, &Frame)) {
        self.walk(&range, &mut |first, chunk, slots| {
            let frames: [Option<Frame>; SLOTS] = {
                let pages = chunk.lock();
                core::array::from_fn(|i| pages[i].frame().cloned().filter(|_| slots.contains(&i)))
            };
            for (i, frame) in frames.iter().enumerate() {
                if let Some(frame) = frame {
                    f(first + i as u64, frame);
                }
            }
            true
        });
    }

    /// Drops all pages from `first` on (truncation): every mapping of them is removed before this
    /// returns, so that later accesses fault. Returns how many pages that were. What the object
    /// represents must know its new end first, or a fault could make a page resident again.
    pub fn truncate(&self, first: u64) -> usize {
        self.remove(first..u64::MAX)
    }

    /// As [`truncate`](Object::truncate) for `count` pages from `first` on (hole punching).
    pub fn remove_pages(&self, first: u64, count: u64) -> usize {
        self.remove(first..first.saturating_add(count))
    }

    fn remove(&self, range: Range<u64>) -> usize {
        let mut pending = Pending::new();
        let mut count = 0;
        self.walk(&range, &mut |_, chunk, slots| {
            let mut removed: [Page; SLOTS] = Default::default();
            removed[slots.clone()].swap_with_slice(&mut chunk.lock()[slots]);
            for frame in removed.iter().filter_map(Page::frame) {
                count += 1;
                // No new mapping can appear: the page is not in the object any more, and who found
                // it there has entered it before the chunk's lock was free.
                if frame.mappings() != 0 {
                    pmap::page_protect(frame, Prot::empty(), &mut pending);
                }
            }
            true
        });
        pending.flush();
        self.count.fetch_sub(count, Ordering::Relaxed);
        count
    }

    /// Puts `frame` in the place of page `index`, and removes every mapping of the page that was
    /// there before this returns; no fault enters the new page before the old one is out of
    /// every TLB. Returns that page, if there was one.
    ///
    /// # Errors
    /// [`PagerError::OutOfMemory`]; [`PagerError::BeyondEnd`] for an index beyond 2^51 pages.
    pub fn replace(&self, index: u64, frame: Frame) -> Result<Option<Frame>, PagerError> {
        let mut pages = self.chunk(index)?.lock();
        let page = &mut pages[index as usize % SLOTS];
        match page.frame() {
            Some(old) if old.mappings() != 0 => {
                let mut pending = Pending::new();
                pmap::page_protect(old, Prot::empty(), &mut pending);
                pending.flush();
            }
            Some(_) => {}
            None => {
                self.count.fetch_add(1, Ordering::Relaxed);
            }
        }
        match core::mem::replace(page, Page::Resident(frame)) {
            Page::Resident(old) => Ok(Some(old)),
            _ => Ok(None),
        }
    }

    /// The index of the first resident page from `first` on.
    pub fn next_resident(&self, first: u64) -> Option<u64> {
        let mut found = None;
        self.walk(&(first..u64::MAX), &mut |start, chunk, mut slots| {
            let pages = chunk.lock();
            found = slots
                .find(|&i| pages[i].frame().is_some())
                .map(|i| start + i as u64);
            found.is_none()
        });
        found
    }

    /// More pages are resident.
    pub(crate) fn count_more(&self, pages: usize) {
        self.count.fetch_add(pages, Ordering::Relaxed);
    }

    /// Fewer pages are resident.
    pub(crate) fn count_less(&self, pages: usize) {
        self.count.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Calls `f` for the chunks of `range` with their first index and the slots that are in it.
    /// Stops when `f` returns false.
    pub(crate) fn walk(
        &self,
        range: &Range<u64>,
        f: &mut dyn FnMut(u64, &Chunk<Page>, Range<usize>) -> bool,
    ) {
        if range.is_empty() {
            return;
        }
        let numbers = range.start >> SLOTS_SHIFT..((range.end - 1) >> SLOTS_SHIFT) + 1;
        self.pages.walk(numbers, &mut |number, chunk| {
            let first = number << SLOTS_SHIFT;
            let slot = |index: u64| index.saturating_sub(first).min(SLOTS as u64) as usize;
            f(first, chunk, slot(range.start)..slot(range.end))
        });
    }
}

impl Pages<'_> {
    /// The number of the claim that page `index`, which is among these, has.
    pub(crate) fn claim(&self, index: u64) -> Option<u32> {
        match self.pages[index as usize % SLOTS] {
            Page::Claimed(number) => Some(number),
            _ => None,
        }
    }

    /// The resident page `index`, which is among these.
    pub(crate) fn get(&self, index: u64) -> Option<&Frame> {
        self.pages[index as usize % SLOTS].frame()
    }
}

impl Default for Object {
    fn default() -> Object {
        Object::new()
    }
}
