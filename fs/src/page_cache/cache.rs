//! The pages of one file.

use core::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use abi::{Errno, Result};
use nucleus::{
    Frame, PAGE_SIZE,
    frame::{Contents, Owned},
    pmap,
    sync::{LOCK_PARTS, RwLock},
};
use vm::{Description, History, Lookup, Object, Pager, PagerError, account::Stock};

use super::{
    backing_store::{BackingStore, Mapping},
    dirty,
    readahead::Streams,
    reclaim::{SHORTAGE, reclaim_clean},
};

pub(crate) const PAGE: u64 = PAGE_SIZE as u64;

/// Bytes that a call moves between two looks whether its thread is to end.
pub(super) const LOOK: usize = 16 * PAGE_SIZE;

/// The bytes of one file that are in memory. To be embedded in a vnode; it is the vnode's pager.
///
/// *Concurrency.* Reads that copy take no lock but a chunk's. Writes and truncation are serialized
/// by `writers`, which no fault takes; writes that leave the size as it is, only with those to the
/// same pages. Lenders share it: a reader that keeps pages waits for it, and one that could take
/// pages copies them instead, since a writer may sleep for long.
///
/// *Lent pages.* A page that was passed on without a copy is immutable while others have it: a
/// writer, or a fault that makes it writable, first [owns](Object::own) it. No page is lent while
/// one is being written, since lenders share `writers`.
pub struct PageCache<S: BackingStore> {
    pub(crate) object: Object,
    /// Bytes. Grows under `writers`; shrinks under it, before pages go.
    pub(crate) size: AtomicU64,
    /// Held by writers and truncation, across the copy from the program too, so that writes are
    /// atomic to each other; by overwriters in part (see [`parts_with`]). Shared by those who lend
    /// pages and by transfers past the pages, during which no block may be freed and no byte be
    /// written into a page.
    pub(crate) writers: RwLock<()>,
    /// Shared mappings that may write.
    pub(crate) writable_mappings: AtomicU32,
    /// There were such mappings: bytes behind the end may not be zero.
    pub(crate) was_mapped_writable: AtomicBool,
    /// What became of pages that were lent to programs.
    pub(crate) lent: History,
    pub(crate) store: S,
}

/// Returns the pages that have some of these bytes.
pub(crate) fn pages_with(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / PAGE..bytes.end.div_ceil(PAGE)
}

/// Returns the parts of [`PageCache::writers`] that stand for these pages, one at least: those of
/// neighbouring pages differ.
pub(super) fn parts_with(pages: Range<u64>) -> u32 {
    const ALL: u32 = (1 << LOCK_PARTS) - 1;
    let count = pages.end - pages.start;
    if count >= LOCK_PARTS.into() {
        return ALL;
    }
    let first = pages.start % u64::from(LOCK_PARTS);
    let bits = ((1u64 << count) - 1) << first;
    (bits | bits >> LOCK_PARTS) as u32 & ALL
}

/// Returns the error of a system call for that of a page.
pub(crate) fn errno(error: PagerError) -> Errno {
    match error {
        PagerError::OutOfMemory => Errno::ENOMEM,
        PagerError::BeyondEnd | PagerError::Io | PagerError::Protected => Errno::EIO,
    }
}

/// Returns the error of a page, for a fault, for that of a system call.
pub(crate) fn pager_error(error: Errno) -> PagerError {
    match error {
        Errno::ENOMEM => PagerError::OutOfMemory,
        _ => PagerError::Io,
    }
}

/// A frame for a page, bytes of its last owner in it.
pub(crate) fn new_page() -> Result<Frame> {
    match Frame::alloc(Contents::Stale) {
        Ok(frame) => Ok(frame),
        Err(_) => {
            reclaim_clean(SHORTAGE);
            vm::alloc_frame(Contents::Stale).map_err(|_| Errno::ENOMEM)
        }
    }
}

impl<S: BackingStore> PageCache<S> {
    /// Returns a cache of a file of `size` bytes, with no pages in memory.
    pub(crate) fn with_store(store: S, size: u64) -> PageCache<S> {
        PageCache::with(store, size, Object::new())
    }

    /// Returns a cache of an empty file whose pages have no place but memory and swap; `stock`
    /// charges them.
    pub(crate) fn in_memory(store: S, stock: Stock) -> PageCache<S> {
        PageCache::with(store, 0, Object::swap_backed(stock))
    }

    fn with(store: S, size: u64, object: Object) -> PageCache<S> {
        PageCache {
            object,
            size: AtomicU64::new(size),
            writers: RwLock::new(crate::rank::VNODE, ()),
            writable_mappings: AtomicU32::new(0),
            was_mapped_writable: AtomicBool::new(false),
            lent: History::default(),
            store,
        }
    }

    /// Whether a shared mapping may write it.
    pub fn is_mapped_writable(&self) -> bool {
        self.writable_mappings.load(Ordering::SeqCst) > 0
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    /// Pages that its bytes fill, the last one maybe in part.
    pub(crate) fn pages(&self) -> u64 {
        self.size().div_ceil(PAGE)
    }

    /// Lends page `index`, if it is resident and no page of a medium. The caller shares `writers`.
    pub(super) fn lend_page(&self, index: u64) -> Option<Owned> {
        // Where the frame alone says that a page is modified, no other file may write the frame
        // back and make it clean.
        let has_set = S::WRITES_BACK || S::SWAP_BACKED;
        if !has_set && self.was_mapped_writable.load(Ordering::Acquire) {
            return None;
        }
        self.object.lend(index, || self.is_mapped_writable())
    }

    /// The page `index` if the file has it, to be written: a page that is lent is left to its
    /// borrowers, and a copy takes its place.
    ///
    /// # Errors
    /// `ENOMEM`; `EIO` from the swap space.
    pub(crate) fn own_page(&self, index: u64) -> Result<Option<Frame>> {
        loop {
            let found = match S::SWAP_BACKED {
                true => self.object.bring_in_to_write(index).map_err(errno)?,
                false => self.object.resident(index),
            };
            let frame = match found {
                Some(frame) if frame.is_lent() => frame,
                found => return Ok(found),
            };
            self.lent.broke();
            // The device may be writing the page: were the copy clean, it could be evicted before
            // that is done, and the block's old bytes be read.
            let is_reserved = S::is_reserved(self, index);
            let own = self.object.own(index, frame, || {
                new_page().inspect(|copy| {
                    if is_reserved {
                        pmap::set_modified(copy);
                    }
                })
            });
            if let Some(own) = own? {
                if is_reserved {
                    S::note_dirty(self, index);
                }
                return Ok(Some(own));
            }
        }
    }

    /// Returns page `index` to be written, brought in if the store is not a server; `None` if it is
    /// a hole, or not cached.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    pub(super) fn fetch(&self, index: u64) -> Result<Option<Frame>> {
        if S::SWAP_BACKED {
            return self.object.bring_in_to_write(index).map_err(errno);
        }
        loop {
            let page = self.object.resident(index);
            if page.is_some() || !S::WRITES_BACK {
                return Ok(page);
            }
            S::bring_in(self, index, index..index + 1).map_err(errno)?;
        }
    }

    /// Brings in page `index`, which is not in memory, with those of the window that is right for
    /// its stream. The caller looks again.
    pub(super) fn miss(
        &self,
        index: u64,
        streams: &Streams,
        window: impl FnOnce(&Streams) -> Range<u64>,
    ) -> Mapping<()> {
        // On its way already: no miss that its stream should know of.
        match self.object.wait_unbusy(index) {
            true => Ok(()),
            false => S::bring_in(self, index, window(streams)),
        }
    }

    /// The page's frame was modified just now.
    #[inline]
    pub(super) fn mark_modified(&self, index: u64, frame: &Frame) {
        if S::WRITES_BACK {
            pmap::set_modified(frame);
            S::note_dirty(self, index);
        }
    }

    /// Waits while there are too many dirty pages.
    #[inline]
    pub(super) fn throttle() {
        if S::WRITES_BACK && dirty::is_over() {
            dirty::throttle();
        }
    }
}

impl<S: BackingStore> Drop for PageCache<S> {
    fn drop(&mut self) {
        self.store.uncharge(self.object.resident_count());
    }
}

impl<S: BackingStore> Pager for PageCache<S> {
    fn object(&self) -> &Object {
        &self.object
    }

    fn lookup(&self, index: u64) -> Mapping<Lookup> {
        S::lookup(self, index)
    }

    fn page_in(&self, index: u64, window: Range<u64>) -> Mapping<()> {
        match self.store.streams() {
            Some(streams) => self.miss(index, streams, |it| {
                it.fault_window(index, window, self.pages())
            }),
            None => S::bring_in(self, index, window),
        }
    }

    fn prefetch(&self, pages: Range<u64>) {
        S::prefetch(self, pages);
    }

    fn touched(&self, pages: Range<u64>) -> Option<Range<u64>> {
        self.store.streams()?.touched(&pages, self.pages())
    }

    fn evict(&self, pages: Range<u64>) {
        S::evict(self, pages);
    }

    fn writeback(&self, pages: Range<u64>, wait: bool) -> Mapping<()> {
        S::writeback(self, pages, wait)
    }

    fn reserve(&self, index: u64) -> Mapping<()> {
        S::prepare(self, index)?;
        self.own_page(index).map(drop).map_err(pager_error)
    }

    fn mark_dirty(&self, index: u64, entering: Option<&Frame>) -> bool {
        let may_enter = |frame: &Frame| S::may_enter(self, index) && !frame.is_lent();
        let marked = entering.is_none_or(may_enter);
        if marked {
            S::note_dirty(self, index);
        }
        marked
    }

    fn lend(&self, index: u64) -> Option<Owned> {
        // A writer at work is not waited for: the map is locked.
        let _turn = self.writers.try_read()?;
        self.lend_page(index)
    }

    fn reference(&self, writable: bool) {
        if writable {
            self.was_mapped_writable.store(true, Ordering::Release);
            self.writable_mappings.fetch_add(1, Ordering::SeqCst);
        }
        S::referenced(self);
    }

    fn detach(&self, writable: bool) {
        let last = writable && self.writable_mappings.fetch_sub(1, Ordering::SeqCst) == 1;
        S::detached(self, last);
    }

    fn describe(&self) -> Description {
        let (device, inode) = self.store.properties().identity;
        Description {
            device,
            inode,
            name: alloc::vec::Vec::new(),
        }
    }
}
