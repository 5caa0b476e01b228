//! Memory objects: the resident pages of vnodes, devices and shared memory (`uvm.txt` 4).
//!
//! An object is embedded in what it represents, a vnode for one, and lives as long. Pages stand in
//! chunks; the lock of a chunk guards which pages are resident *and* that no new mapping of one of
//! them appears: the fault routine enters a page with the chunk locked; truncation removes pages
//! with the chunk locked and then every mapping that exists. So no mapping of a page outlives its
//! place in the object.
//!
//! *Busy pages.* A page that has to be read is made busy first (`uvm.txt` 6): other threads wait
//! for that read instead of starting another. A busy page is not resident. Operations that remove
//! or insert pages remove busy ones as well: their readers drop the frames then.
//!
//! *Swap-backed objects*, those of memory that processes share and of files in memory, have their
//! pages in memory or in swap, as anons do ([`SwapState`]).

mod busy;
mod device;
mod pager;
mod writeback;

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use nucleus::{
    Access, Frame, PAGE_SIZE, Prot, ephemeral,
    frame::{self, Owned},
    pmap::{self, Pending},
    sync::{MutexGuard, Rank},
};

use crate::account::{Kind, Stock};
use crate::chunks::{Chunk, Chunks, Content, Registry, SLOTS, SLOTS_SHIFT, SlotArray};
use crate::counters::Counter;
use crate::memory_wait::retry_for_memory;
use crate::swap;
use crate::swap::{Paged, SwapState};
pub use busy::{BusyPages, HasObject};
pub use device::DeviceObject;
pub use pager::{Anonymous, Description, Lookup, Pager, PagerError};

/// Pages that are brought back from swap at once where the kernel reads a file.
const AHEAD: u64 = 16;

/// Trees of an object: 64^9 chunks hold more than 2^63 bytes.
const TREES: usize = 9;

/// What a loan leaves of the rights of a mapping.
pub(crate) const NARROWED: Prot = Prot::READ.union(Prot::EXEC).union(Prot::WIRED);

/// A page of an object.
#[derive(Default)]
pub(crate) enum Page {
    #[default]
    Absent,
    /// The [`BusyPages`] with this number reads it.
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
    fn owned(&self) -> Option<&Owned> {
        match self {
            Page::At(location) => location.owned(),
            _ => None,
        }
    }

    /// Whether the object has the page, in memory or in swap.
    fn is_there(&self) -> bool {
        matches!(self, Page::At(_))
    }

    /// Whether the page is in swap only.
    #[inline]
    fn is_swapped(&self) -> bool {
        matches!(self, Page::At(location) if location.is_swapped())
    }

    /// The frame, if the page is resident, for a writer.
    fn frame_to_write(&mut self) -> Option<&Frame> {
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

/// All chunks of objects without a backing store. A page of theirs begins as an active one.
pub(crate) static CHUNKS: Registry<Arc<Chunk<Page>>> = Registry::new(&INACTIVE);

/// Active pages of objects with a backing store, some of which may have gone.
pub(crate) static ACTIVE: AtomicUsize = AtomicUsize::new(0);

/// Inactive pages in [`CHUNKS`], some of which may have gone.
pub(crate) static INACTIVE: AtomicUsize = AtomicUsize::new(0);

impl Paged for Page {
    fn with_state(&mut self, f: &mut dyn FnMut(&mut SwapState)) {
        if let Page::At(location) = self {
            f(location);
        }
    }
}

/// The memory side of something that can be mapped: its resident pages. To be embedded.
pub struct Object {
    pages: Chunks<Page, TREES>,
    count: AtomicUsize,
    /// For whom they are kept, if they have no backing store.
    stock: Stock,
    /// The pages have no backing store.
    swap_backed: bool,
    /// So many pages from the start are zeros until they are written.
    zeros: u64,
    /// They are not to leave memory.
    kept: AtomicBool,
    /// Pages of mappings that devices write (`movement/pin.rs`).
    write_pins: AtomicU32,
}

/// Neighbouring pages of an object, locked: they stay resident or absent.
pub(crate) struct Pages<'a> {
    pages: MutexGuard<'a, SlotArray<Page>>,
}

impl Object {
    /// No resident pages.
    pub const fn new() -> Object {
        Object::with(false, 0, Stock::new(None, Kind::Files))
    }

    /// As [`new`](Object::new), for pages whose only backing store is the swap space: they go there
    /// when memory is short; [`bring_in`](Object::bring_in) brings them back, or
    /// [`Pager::page_in`](crate::Pager::page_in) for a fault.
    /// `stock` charges those that the object has, wherever they are.
    pub const fn swap_backed(stock: Stock) -> Object {
        Object::with(true, 0, stock)
    }

    /// As [`swap_backed`](Object::swap_backed), of `pages` pages that are zero-filled on demand.
    pub const fn of_zeros(pages: u64, stock: Stock) -> Object {
        Object::with(true, pages, stock)
    }

    const fn with(swap_backed: bool, zeros: u64, stock: Stock) -> Object {
        Object {
            pages: Chunks::new(),
            count: AtomicUsize::new(0),
            stock,
            swap_backed,
            zeros,
            kept: AtomicBool::new(false),
            write_pins: AtomicU32::new(0),
        }
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

    /// Whether its pages may go to swap.
    pub fn is_swap_backed(&self) -> bool {
        self.swap_backed
    }

    /// The resident page `index` (in pages from the start). A writer uses
    /// [`bring_in_to_write`](Object::bring_in_to_write) if the object is swap-backed.
    pub fn resident(&self, index: u64) -> Option<Frame> {
        self.lock(index)?.get(index).cloned()
    }

    /// Lends page `index` (`uvm.txt` 7): makes the caller another owner, if the page is resident,
    /// no page of a medium, whose bytes change with the disk, and no device may be writing it.
    /// Mappings lose the right to write it, and a writer [owns](Object::own) it first from now on;
    /// calls of the object's owner, which writes pages without mappings, are kept out by the
    /// caller. `may_be_mapped` says whether there may be mappings with that right; it is called
    /// with the page locked.
    pub fn lend(&self, index: u64, may_be_mapped: impl FnOnce() -> bool) -> Option<Owned> {
        if self.is_pinned() {
            return None;
        }
        let pages = self.lock(index)?;
        let page = pages.page(index).owned();
        let page = page.filter(|page| !page.is_of_medium())?.clone();
        if page.mappings() != 0 && may_be_mapped() {
            // With the chunk locked no mapping gets the right again.
            let mut pending = Pending::new();
            pmap::page_protect(&page, NARROWED, &mut pending);
            pending.flush();
        }
        // After the owner was made: a device's pin counts before it looks for the right to write.
        (!self.is_pinned()).then_some(page)
    }

    /// Returns page `index`, resident as `found`, to be written: if it is lent, it is left to its
    /// other owners, and a copy in the frame that `make` gives takes its place, modified if the
    /// page was. `None` if the object has another page there by now.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn own<E>(
        &self,
        index: u64,
        found: Frame,
        make: impl FnOnce() -> Result<Frame, E>,
    ) -> Result<Option<Frame>, E> {
        if !found.is_lent() {
            return Ok(Some(found));
        }
        let copy = make()?;
        let Some(mut pages) = self.lock(index) else {
            return Ok(None);
        };
        let page = pages.page_mut(index);
        if page.frame() != Some(&found) {
            return Ok(None);
        }
        if !found.is_lent() {
            return Ok(Some(found));
        }
        if found.mappings() != 0 {
            // Before the bytes are copied, so that no store into the old page is missed. No new
            // mapping can appear: the chunk is locked.
            let mut pending = Pending::new();
            pmap::page_protect(&found, Prot::empty(), &mut pending);
            pending.flush();
        }
        ephemeral::map(&copy).copy_from(0, &ephemeral::map(&found), 0, PAGE_SIZE);
        if pmap::is_modified(&found) {
            pmap::set_modified(&copy);
        }
        let old = core::mem::replace(page, Page::resident(copy.clone()));
        drop(pages);
        Counter::loans_broken_by_write.add(1);
        // The handle first: the other owner is left without a reader.
        drop(found);
        drop(old);
        Ok(Some(copy))
    }

    /// Whether devices may be writing pages of mappings.
    pub fn is_pinned(&self) -> bool {
        self.write_pins.load(Ordering::SeqCst) > 0
    }

    /// Counts pins for writes by devices.
    pub(crate) fn pin_to_write(&self) {
        self.write_pins.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes back [`pin_to_write`](Object::pin_to_write).
    pub(crate) fn unpin_to_write(&self) {
        self.write_pins.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether the object has page `index`, resident or in swap.
    pub fn has(&self, index: u64) -> bool {
        self.lock(index)
            .is_some_and(|pages| pages.page(index).is_there())
    }

    /// Pages that the object has: those that are resident, and those in swap.
    pub fn resident_count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether the user that it is charged to may have `pages` more, if it outlives processes.
    #[inline]
    pub fn may_grow(&self, pages: usize) -> bool {
        self.stock.may_keep(self.resident_count() + pages, 1)
    }

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

    /// Locks the pages around `index` if any of them was ever resident.
    #[inline]
    pub(crate) fn lock(&self, index: u64) -> Option<Pages<'_>> {
        let chunk = self.pages.get(index >> SLOTS_SHIFT)?;
        Some(Pages {
            pages: chunk.lock(),
        })
    }

    /// As [`lock`](Object::lock), unless they are locked.
    pub(crate) fn try_lock(&self, index: u64) -> Option<Pages<'_>> {
        let chunk = self.pages.get(index >> SLOTS_SHIFT)?;
        Some(Pages {
            pages: chunk.try_lock()?,
        })
    }

    /// The chunk that holds page `index`, if it was ever made.
    pub(crate) fn chunk_of(&self, index: u64) -> Option<Arc<Chunk<Page>>> {
        self.pages.get_arc(index >> SLOTS_SHIFT)
    }

    /// The chunk that holds page `index`, made if there is none.
    #[inline(always)]
    pub(crate) fn chunk(&self, index: u64) -> Result<&Chunk<Page>, PagerError> {
        let number = index >> SLOTS_SHIFT;
        match self.pages.get(number) {
            Some(chunk) => Ok(chunk),
            None => self.make_chunk(number),
        }
    }

    #[cold]
    fn make_chunk(&self, number: u64) -> Result<&Chunk<Page>, PagerError> {
        if frame::is_scarce() {
            return Err(PagerError::OutOfMemory);
        }
        let made = self.pages.get_or_insert(number, || match self.swap_backed {
            true => Chunk::new(),
            false => Chunk::unlisted(),
        });
        let chunk = made.ok_or(PagerError::BeyondEnd)?;
        if self.kept.load(Ordering::SeqCst) {
            chunk.set_kept(true);
        }
        Ok(chunk)
    }

    /// Sees to it that page `index` can be put in without memory being needed for that.
    ///
    /// # Errors
    /// [`PagerError::OutOfMemory`]; [`PagerError::BeyondEnd`] for an index beyond 2^51 pages.
    pub fn make_place(&self, index: u64) -> Result<(), PagerError> {
        self.chunk(index).map(drop)
    }

    /// Returns the resident page, or inserts the one that `make` gives; `make` runs at most once,
    /// with the lock of the pages around it held. The caller may write the page while it holds the
    /// frame. An index beyond 2^51 pages is beyond every end. A page in swap is [`Lookup::Absent`]:
    /// see [`bring_in`](Object::bring_in).
    pub fn get_or_insert(
        &self,
        index: u64,
        make: impl FnOnce() -> Result<Frame, PagerError>,
    ) -> Result<Lookup, PagerError> {
        let mut pages = self.chunk(index)?.lock();
        let page = &mut pages[index as usize % SLOTS];
        if let Page::At(location) = page {
            location.dirty();
            let frame = location.frame().cloned();
            return Ok(frame.map_or(Lookup::Absent, Lookup::Resident));
        }
        let frame = make()?;
        *page = Page::resident(frame.clone());
        self.count_more(1);
        Ok(Lookup::Resident(frame))
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
    /// returns, so that later accesses fault. Returns how many pages that were. The owner must know
    /// its new end first, or a fault could make a page resident again.
    pub fn truncate(&self, first: u64) -> usize {
        self.remove(first..u64::MAX, |_| false)
    }

    /// As [`truncate`](Object::truncate) for `count` pages from `first` on (hole punching).
    pub fn remove_pages(&self, first: u64, count: u64) -> usize {
        self.remove(first..first.saturating_add(count), |_| false)
    }

    /// Removes all pages of `range` that are not modified, and busy ones: the backing store has
    /// other bytes now. Mappings of them are removed before this returns. Returns how many.
    pub fn discard(&self, range: Range<u64>) -> usize {
        self.remove(range, |page| page.frame().is_some_and(pmap::is_modified))
    }

    /// Removes the pages of `range`, busy ones too, except those that stay. `stays` is called with
    /// their chunk locked.
    fn remove(&self, range: Range<u64>, stays: impl Fn(&Page) -> bool) -> usize {
        let mut pending = Pending::new();
        let mut count = 0;
        self.walk(&range, &mut |_, chunk, slots| {
            for page in &mut chunk.lock()[slots] {
                // Most slots of a small file's only chunk are empty.
                if matches!(page, Page::Absent) || stays(page) {
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
    /// every TLB. Returns whether there was one, resident or in swap.
    ///
    /// # Errors
    /// [`PagerError::OutOfMemory`]; [`PagerError::BeyondEnd`] for an index beyond 2^51 pages.
    pub fn replace(&self, index: u64, frame: impl Into<Owned>) -> Result<bool, PagerError> {
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
        let old = core::mem::replace(page, Page::resident(frame));
        drop(pages);
        if !old.is_there() {
            self.count_more(1);
        }
        Ok(old.is_there())
    }

    /// The index of the first page from `first` on that the object has.
    pub fn next_resident(&self, first: u64) -> Option<u64> {
        let mut found = None;
        self.walk(&(first..u64::MAX), &mut |start, chunk, mut slots| {
            let pages = chunk.lock();
            found = slots
                .find(|&i| pages[i].is_there())
                .map(|i| start + i as u64);
            found.is_none()
        });
        found
    }

    /// More pages are resident.
    pub(crate) fn count_more(&self, pages: usize) {
        let before = self.count.fetch_add(pages, Ordering::Relaxed);
        if self.swap_backed {
            self.stock
                .cover_counted(before + pages, || self.count.load(Ordering::Relaxed));
        }
    }

    /// Fewer pages are resident.
    pub(crate) fn count_less(&self, pages: usize) {
        let before = self.count.fetch_sub(pages, Ordering::Relaxed);
        if self.swap_backed {
            let left = before.saturating_sub(pages);
            self.stock
                .cover_counted(left, || self.count.load(Ordering::Relaxed));
        }
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

    fn page(&self, index: u64) -> &Page {
        &self.pages[index as usize % SLOTS]
    }

    fn page_mut(&mut self, index: u64) -> &mut Page {
        &mut self.pages[index as usize % SLOTS]
    }
}

impl Default for Object {
    fn default() -> Object {
        Object::new()
    }
}
