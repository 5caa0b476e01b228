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
//! pages in memory or in swap, as anons do ([`SwapState`](crate::swap::SwapState)).
//!
//! A page ([`page`]) is brought in by its object's [`pager`] or from swap ([`swapped`]), lent
//! ([`lent`]), written back ([`writeback`]), and removed ([`removal`]).

mod busy;
mod device;
mod given;
mod lent;
mod page;
mod pager;
mod removal;
mod shown;
mod swapped;
mod writeback;

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use nucleus::{Frame, frame};

use crate::account::{Kind, Stock};
use crate::chunks::{Chunk, Chunks, SLOTS, SLOTS_SHIFT};
pub use busy::{BusyPages, HasObject};
pub use device::DeviceObject;
pub use given::GivenPages;
pub(crate) use lent::NARROWED;
pub(crate) use page::{ACTIVE, CHUNKS, INACTIVE, Page, Pages};
pub use pager::{Anonymous, Description, Lookup, Pager, PagerError};
pub use shown::ShownPages;

/// Trees of an object: 64^9 chunks hold more than 2^63 bytes.
const TREES: usize = 9;

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

    /// The resident page `index` (in pages from the start). A writer uses
    /// [`bring_in_to_write`](Object::bring_in_to_write) if the object is swap-backed.
    pub fn resident(&self, index: u64) -> Option<Frame> {
        self.lock(index)?.get(index).cloned()
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

impl Default for Object {
    fn default() -> Object {
        Object::new()
    }
}
