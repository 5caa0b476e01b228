//! A backing store of blocks: pages are read when they are wanted, and written back later.

use alloc::sync::Arc;
use core::{
    ops::Range,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use abi::{Errno, Result};
use nucleus::{Frame, ephemeral, sync::Mutex, task::WaitQueue, time};
use vm::PagerError;

use super::{
    backing_store::{BackingStore, Mapping, Properties},
    block_store::BlockStore,
    cache::{PAGE, PageCache, errno, pager_error},
    cached::Cached,
    dirty,
    errors::ErrorCount,
    flusher,
    page_set::PageSet,
    readahead::Streams,
    reclaim::{Listing, Rereadable},
};

/// The state of a file whose pages are written back to the blocks of `B`.
///
/// *Concurrency.* Reads take no lock but a chunk's. Truncation, and writes that make the file
/// longer, hold all of the cache's `writers`, other writes the parts of their pages. A fault that
/// makes a page writable takes `end` where it has to reserve room; truncation holds it from the
/// moment at which the size is the new one until the blocks are free. Writeback takes no lock: a
/// page is in `writing` from before it is clean until the device has its bytes, and truncation
/// waits for that.
///
/// *Dirty pages.* `dirty` has every page whose frame may be modified ([`pmap::is_modified`]): a
/// modifier inserts the page afterwards, or with its chunk locked; writeback removes it, then makes
/// the mappings read-only and the frame clean, and then reads the frame. So a later store faults,
/// or finds the page out of the set and inserts it again. A page of the set may have a frame that
/// is not modified, since another file that has the frame as well has written it: the page is
/// dirty all the same, and is not evicted.
pub struct WriteBack<B: BlockStore> {
    pub(super) listing: Listing<WriteBack<B>>,
    pub(super) end: Mutex<()>,
    pub(super) dirty: PageSet,
    pub(super) writing: PageSet,
    /// Pages that were reserved.
    pub(super) backed: PageSet,
    pub(super) dirty_count: AtomicUsize,
    pub(super) writing_count: AtomicUsize,
    /// Writes under way.
    pub(super) requests: AtomicUsize,
    /// Pages whose write was refused for want of memory: they are dirty again.
    pub(super) refused: AtomicUsize,
    /// Woken when a write is over.
    pub(super) written: WaitQueue,
    /// When the first of the dirty pages became so, in centiseconds since boot, from 1 on; 0 if
    /// nothing is dirty.
    pub(super) dirty_since: AtomicU64,
    pub(super) errors: ErrorCount,
    pub(super) streams: Streams,
    properties: Properties,
    pub(super) blocks: B,
}

impl<B: BlockStore> PageCache<WriteBack<B>> {
    /// Returns the pages of a file of `size` bytes, none of them in memory.
    pub fn new(blocks: B, size: u64, properties: Properties) -> Arc<PageCache<WriteBack<B>>> {
        Arc::new_cyclic(|me| {
            let store = WriteBack {
                listing: Listing::new(me),
                end: Mutex::new(crate::rank::FILE_END, ()),
                dirty: PageSet::new(),
                writing: PageSet::new(),
                backed: PageSet::new(),
                dirty_count: AtomicUsize::new(0),
                writing_count: AtomicUsize::new(0),
                requests: AtomicUsize::new(0),
                refused: AtomicUsize::new(0),
                written: WaitQueue::new(),
                dirty_since: AtomicU64::new(0),
                errors: ErrorCount::new(),
                streams: Streams::new(),
                properties,
                blocks,
            };
            PageCache::with_store(store, size)
        })
    }

    /// Where its pages are.
    pub fn blocks(&self) -> &B {
        &self.store.blocks
    }

    /// The cache as others hold it; `None` while it is being dropped.
    pub(super) fn me(&self) -> Option<Arc<PageCache<WriteBack<B>>>> {
        self.store.listing.me()
    }

    /// Returns page `index`, read in if need be: for a file system's own blocks. Changes go through
    /// [`modify`](PageCache::modify).
    ///
    /// # Errors
    /// `EIO` also beyond the end; `ENOMEM`.
    pub fn page(&self, index: u64) -> Result<Frame> {
        self.fetch(index)?.ok_or(Errno::EIO)
    }

    /// Lets `change` change page `index`, which is read in if need be, and marks it dirty. The
    /// caller serializes changes of one page.
    ///
    /// # Errors
    /// As [`page`](PageCache::page).
    pub fn modify<R>(
        &self,
        index: u64,
        change: impl FnOnce(&ephemeral::Mapping<'_>) -> R,
    ) -> Result<R> {
        let frame = self.page(index)?;
        let result = change(&ephemeral::map(&frame));
        self.mark_modified(index, &frame);
        Ok(result)
    }

    /// Notes a change of the file besides its pages, so that the flusher
    /// [settles](BlockStore::settle) it in time.
    pub fn note_changed(&self) {
        if self.store.dirty_since.load(Ordering::Relaxed) == 0 {
            self.is_dirty_now();
        }
    }

    #[cold]
    fn is_dirty_now(&self) {
        let now = flusher::centiseconds(time::since_boot()).max(1);
        let was =
            self.store
                .dirty_since
                .compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed);
        if was.is_ok()
            && let Some(me) = self.me()
        {
            flusher::enlist(self.store.listing.id, me);
        }
    }

    /// The page is taken for clean; false if it was not in the set.
    pub(super) fn note_clean(&self, index: u64) -> bool {
        let was = self.store.dirty.remove(index);
        if was {
            self.store.dirty_count.fetch_sub(1, Ordering::Relaxed);
            dirty::removed(1);
        }
        was
    }

    /// Reserves room for page `index` of a file that will end at `end`, or has its end there. The
    /// page is in memory, or is inserted next, and is marked dirty before anything else can fail:
    /// the old bytes of a new block must never be read.
    pub(super) fn reserve_page(&self, index: u64, end: u64) -> Result<()> {
        self.store.blocks.reserve(index..index + 1, end)?;
        self.store.backed.insert(index);
        Ok(())
    }

    fn forget_dirty(&self, pages: Range<u64>) {
        let mut at = pages.start;
        while let Some(index) = self.store.dirty.next(at..pages.end) {
            self.note_clean(index);
            at = index + 1;
        }
    }
}

impl<B: BlockStore> Drop for WriteBack<B> {
    fn drop(&mut self) {
        let dirty = *self.dirty_count.get_mut();
        if dirty > 0 {
            // The file was removed: its dirty pages have no reader left.
            dirty::removed(dirty);
        }
        if *self.dirty_since.get_mut() != 0 {
            flusher::delist(self.listing.id);
        }
    }
}

impl<B: BlockStore> BackingStore for WriteBack<B> {
    const WRITES_BACK: bool = true;

    #[inline]
    fn properties(&self) -> &Properties {
        &self.properties
    }

    #[inline]
    fn streams(&self) -> Option<&Streams> {
        Some(&self.streams)
    }

    #[inline]
    fn is_in_place(&self) -> bool {
        self.blocks.is_in_place()
    }

    fn place(cache: &PageCache<Self>, index: u64, end: u64) -> Result<Frame> {
        let _turn = cache.store.end.lock();
        cache.place(index, end)
    }

    fn is_reserved(cache: &PageCache<Self>, index: u64) -> bool {
        cache.store.backed.contains(index)
    }

    #[inline]
    fn reserve(
        cache: &PageCache<Self>,
        index: u64,
        resident: Option<&Frame>,
        end: u64,
    ) -> Result<()> {
        if resident.is_none() {
            cache.object.make_place(index).map_err(errno)?;
            cache.store.listing.note_resident();
        }
        if !cache.store.backed.contains(index) {
            cache.reserve_page(index, cache.size().max(end))?;
            if let Some(frame) = resident {
                // The old bytes of the new block must never be read.
                cache.mark_modified(index, frame);
            }
        }
        Ok(())
    }

    fn reserve_last(cache: &PageCache<Self>, old: u64, end: u64) -> Result<()> {
        let (index, granule) = (old / PAGE, cache.store.properties.granule);
        if old.is_multiple_of(PAGE) || granule == PAGE {
            return Ok(());
        }
        let last = end.min((index + 1) * PAGE);
        if last.div_ceil(granule) <= old.div_ceil(granule) {
            return Ok(());
        }
        // Also if it was not reserved before: a fault that reserves it now does so up to the old
        // end. The old bytes of a new piece must never be read.
        loop {
            let Some(frame) = cache.own_page(index)? else {
                cache.fetch(index)?;
                continue;
            };
            cache.store.blocks.reserve(index..index + 1, end)?;
            cache.mark_modified(index, &frame);
            return Ok(());
        }
    }

    #[inline]
    fn note_dirty(cache: &PageCache<Self>, index: u64) {
        if cache.store.dirty.insert(index) {
            cache.store.dirty_count.fetch_add(1, Ordering::Relaxed);
            dirty::added();
            if cache.store.dirty_since.load(Ordering::Relaxed) == 0 {
                cache.is_dirty_now();
            }
        }
    }

    fn about_to_grow(&self) -> Result<()> {
        self.blocks.about_to_grow()
    }

    fn changed(&self, grown: Option<u64>) {
        self.blocks.changed(grown);
    }

    fn free(cache: &PageCache<Self>, pages: Range<u64>, size: Option<u64>) -> Result<()> {
        let _end = cache.store.end.lock();
        // Before they go: a fault that has found one ready must not write another one in its place.
        cache.store.backed.remove_range(pages.clone());
        cache.drop_pages(pages.clone(), size);
        cache.forget_dirty(pages.clone());
        cache.wait_written(pages.clone());
        // A write that was refused memory has made its pages dirty again.
        cache.forget_dirty(pages.clone());
        match size {
            Some(size) => cache.store.blocks.cut(size),
            None => {
                let released = cache.store.blocks.release(pages.clone());
                // Reads until then had the old blocks' bytes. None of it is dirty: a store into a
                // page of a hole waits for `end`.
                cache.drop_pages(pages, None);
                released
            }
        }
    }

    fn fill_holes(cache: &PageCache<Self>, pages: Range<u64>, end: u64) -> Result<()> {
        for index in pages {
            while !cache.store.backed.contains(index) {
                if cache.store.is_in_place() {
                    let end = end.min((index + 1) * PAGE);
                    let frame = Self::place(cache, index, end)?;
                    cache.mark_modified(index, &frame);
                    cache.size.fetch_max(end, Ordering::SeqCst);
                } else if index * PAGE < cache.size() {
                    cache.fetch(index)?;
                    if let Some(frame) = cache.own_page(index)? {
                        dirty::throttle();
                        Self::reserve(cache, index, Some(&frame), 0)?;
                    }
                } else {
                    let end = end.min((index + 1) * PAGE);
                    cache.insert_zeros(index, end)?;
                    cache.size.fetch_max(end, Ordering::SeqCst);
                }
            }
        }
        Ok(())
    }

    fn seek(cache: &PageCache<Self>, pages: Range<u64>, hole: bool) -> Result<Option<u64>> {
        cache.store.blocks.seek(pages, hole)
    }

    fn bring_in(cache: &PageCache<Self>, index: u64, window: Range<u64>) -> Mapping<()> {
        cache.bring_in(index, window)
    }

    fn prefetch(cache: &PageCache<Self>, pages: Range<u64>) {
        cache.read_ahead(pages);
    }

    fn evict(cache: &PageCache<Self>, pages: Range<u64>) {
        // Dirty pages are skipped; a later call evicts them, when they have been written.
        let _ = cache.write_out(pages.clone(), false);
        cache.evict(pages, usize::MAX);
    }

    fn writeback(cache: &PageCache<Self>, pages: Range<u64>, wait: bool) -> Mapping<()> {
        if !wait {
            return cache.write_out(pages, false).map_err(pager_error);
        }
        let before = cache.store.errors.count();
        Cached::sync(cache, pages, true).map_err(pager_error)?;
        match cache.store.errors.count() == before {
            true => Ok(()),
            false => Err(PagerError::Io),
        }
    }

    fn prepare(cache: &PageCache<Self>, index: u64) -> Mapping<()> {
        if cache.store.blocks.is_pinned() {
            return Err(PagerError::Io);
        }
        dirty::throttle();
        while !cache.store.backed.contains(index) {
            if !cache.store.is_in_place() {
                cache.bring_in(index, index..index + 1)?;
            }
            let _turn = cache.store.end.lock();
            if index >= cache.pages() {
                return Err(PagerError::BeyondEnd);
            }
            if cache.store.is_in_place() {
                cache.place(index, 0).map_err(pager_error)?;
                break;
            }
            // It may have been evicted again.
            if let Some(frame) = cache.object.resident(index) {
                Self::reserve(cache, index, Some(&frame), 0).map_err(pager_error)?;
            }
        }
        Ok(())
    }

    fn may_enter(cache: &PageCache<Self>, index: u64) -> bool {
        let store = &cache.store;
        !store.blocks.is_pinned() && store.backed.contains(index) && !dirty::is_over()
    }
}

impl<B: BlockStore> Rereadable for WriteBack<B> {
    fn listing(&self) -> &Listing<Self> {
        &self.listing
    }

    fn is_written(&self, index: u64) -> bool {
        self.writing.contains(index)
    }

    fn is_dirty(&self, index: u64) -> bool {
        self.dirty.contains(index)
    }
}
