//! A backing store of blocks: pages are read when they are wanted, and written back later.

use alloc::sync::Arc;
use core::{
    ops::Range,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use abi::Result;
use nucleus::{
    Frame, ephemeral, pmap,
    sync::{Mutex, MutexGuard},
    task::WaitQueue,
    time,
};
use vm::{Lookup, PagerError};

use super::{
    backing_store::{BackingStore, Found, Mapping},
    block_store::BlockStore,
    cache::{PAGE, PageCache, errno, pager_error},
    cached::Cached,
    dirty,
    errors::ErrorCount,
    flusher,
    page_set::PageSet,
    readahead::{Access, Streams},
    reclaim::{Listing, Rereadable},
};

/// The state of a file whose pages are written back to the blocks of `B`.
///
/// *Concurrency.* Reads take no lock but a chunk's. Writes and truncation are serialized by the
/// cache's `writers`. A fault that makes a page writable takes `end` where it has to reserve room;
/// truncation holds it from the moment at which the size is the new one until the blocks are free.
/// Writeback takes no lock: a page is in `writing` from before it is clean until the device has its
/// bytes, and truncation waits for that.
///
/// *Dirty pages.* The truth is in the frame's record ([`pmap::is_modified`]). `dirty` has every
/// page whose frame may be modified: a modifier inserts the page afterwards, or with its chunk
/// locked; writeback removes it, then makes the mappings read-only and the frame clean, and then
/// reads the frame. So a later store faults, or finds the page out of the set and inserts it again.
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
    pub(super) blocks: B,
}

impl<B: BlockStore> PageCache<WriteBack<B>> {
    /// Returns the pages of a file of `size` bytes, none of them in memory.
    pub fn new(blocks: B, size: u64) -> Arc<PageCache<WriteBack<B>>> {
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
        loop {
            if let Some(frame) = self.object.resident(index) {
                return Ok(frame);
            }
            self.bring_in(index, index..index + 1).map_err(errno)?;
        }
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

    /// The page's frame was modified just now.
    #[inline]
    pub(super) fn mark_modified(&self, index: u64, frame: &Frame) {
        pmap::set_modified(frame);
        self.note_dirty(index);
    }

    /// The page's frame may be modified.
    #[inline]
    pub(super) fn note_dirty(&self, index: u64) {
        if self.store.dirty.insert(index) {
            self.store.dirty_count.fetch_add(1, Ordering::Relaxed);
            dirty::added();
            if self.store.dirty_since.load(Ordering::Relaxed) == 0 {
                self.is_dirty_now();
            }
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

    fn size_max(&self) -> u64 {
        self.blocks.size_max()
    }

    fn identity(&self) -> (u64, u64) {
        self.blocks.identity()
    }

    fn read_begins(cache: &PageCache<Self>, pages: &Range<u64>) {
        if let Some(next) = cache.store.streams.touched(pages, cache.pages()) {
            cache.read_ahead(next);
        }
    }

    fn read_uses(cache: &PageCache<Self>, frame: &Frame) {
        if !cache.store.streams.is(Access::Once) {
            // Its mappings, if it has any, don't show this use.
            pmap::set_referenced(frame);
        }
    }

    fn read_ends(cache: &PageCache<Self>, end: u64) {
        cache.store.streams.ended(end);
    }

    fn find(cache: &PageCache<Self>, wanted: Range<u64>) -> Result<Found> {
        let index = wanted.start;
        // On its way already: no miss that its stream should know of.
        if cache.object.wait_unbusy(index) {
            return Ok(Found::Again);
        }
        let window = cache.store.streams.missed(wanted, cache.pages());
        match cache.bring_in(index, window) {
            Ok(()) => Ok(Found::Again),
            // It was cut off meanwhile.
            Err(PagerError::BeyondEnd) => Ok(Found::End),
            Err(error) => Err(errno(error)),
        }
    }

    fn page(cache: &PageCache<Self>, index: u64) -> Result<Option<Frame>> {
        cache.page(index).map(Some)
    }

    fn throttle() {
        if dirty::is_over() {
            dirty::throttle();
        }
    }

    fn is_reserved(cache: &PageCache<Self>, index: u64) -> bool {
        cache.store.backed.contains(index)
    }

    fn reserve(cache: &PageCache<Self>, index: u64, frame: &Frame) -> Result<()> {
        if !cache.store.backed.contains(index) {
            cache.reserve_page(index, cache.size())?;
            // The old bytes of the new block must never be read.
            cache.mark_modified(index, frame);
        }
        Ok(())
    }

    fn reserve_new(cache: &PageCache<Self>, index: u64, end: u64) -> Result<()> {
        cache.object.make_place(index).map_err(errno)?;
        if !cache.store.backed.contains(index) {
            cache.reserve_page(index, cache.size().max(end))?;
        }
        cache.store.listing.note_resident();
        Ok(())
    }

    fn reserve_last(cache: &PageCache<Self>, old: u64, end: u64) -> Result<()> {
        let (index, granule) = (old / PAGE, cache.store.blocks.granule());
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
                cache.page(index)?;
                continue;
            };
            cache.store.blocks.reserve(index..index + 1, end)?;
            cache.mark_modified(index, &frame);
            return Ok(());
        }
    }

    fn note_dirty(cache: &PageCache<Self>, index: u64) {
        cache.note_dirty(index);
    }

    fn has_block(cache: &PageCache<Self>, index: u64) -> Result<bool> {
        Ok(cache.store.backed.contains(index)
            || cache.store.blocks.seek(index..index + 1, false)?.is_some())
    }

    fn about_to_grow(&self) -> Result<()> {
        self.blocks.about_to_grow()
    }

    fn grown(&self, size: u64) {
        self.blocks.grown(size);
    }

    fn written_short(cache: &PageCache<Self>) {
        // Blocks beyond the end that were reserved for the rest are freed.
        if cache.store.blocks.granule() < PAGE {
            let _end = cache.store.end.lock();
            cache.store.backed.remove_range(cache.pages()..u64::MAX);
            // Blocks that can't be freed are lost until the file system is checked.
            let _ = cache.store.blocks.cut(cache.size());
        }
    }

    fn changed(&self) {
        self.blocks.changed();
    }

    fn lock_end(&self) -> Option<MutexGuard<'_, ()>> {
        Some(self.end.lock())
    }

    fn drop_begins(cache: &PageCache<Self>, pages: &Range<u64>) {
        // Before they go: a fault that has found one ready must not write another one in its place.
        cache.store.backed.remove_range(pages.clone());
    }

    fn drop_ends(cache: &PageCache<Self>, pages: &Range<u64>, _: usize) {
        cache.forget_dirty(pages.clone());
        cache.wait_written(pages.clone());
        // A write that was refused memory has made its pages dirty again.
        cache.forget_dirty(pages.clone());
    }

    fn cut(&self, size: u64) -> Result<()> {
        self.blocks.cut(size)
    }

    fn release(cache: &PageCache<Self>, pages: Range<u64>) -> Result<()> {
        let released = cache.store.blocks.release(pages.clone());
        // Reads until then had the old blocks' bytes. None of it is dirty: a store into a page of a
        // hole waits for `end`.
        cache
            .object
            .remove_pages(pages.start, pages.end - pages.start);
        released
    }

    fn fill_hole(cache: &PageCache<Self>, index: u64, end: u64) -> Result<()> {
        while !cache.store.backed.contains(index) {
            if index * PAGE < cache.size() {
                cache.page(index)?;
                if let Some(frame) = cache.own_page(index)? {
                    dirty::throttle();
                    Self::reserve(cache, index, &frame)?;
                }
            } else {
                let end = end.min((index + 1) * PAGE);
                cache.insert_zeros(index, end)?;
                cache.size.fetch_max(end, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    fn seek(cache: &PageCache<Self>, pages: Range<u64>, hole: bool) -> Result<Option<u64>> {
        cache.store.blocks.seek(pages, hole)
    }

    fn lookup(cache: &PageCache<Self>, index: u64) -> Mapping<Lookup> {
        match index < cache.pages() {
            true => Ok(Lookup::Absent),
            false => Err(PagerError::BeyondEnd),
        }
    }

    fn page_in(cache: &PageCache<Self>, index: u64, window: Range<u64>) -> Mapping<()> {
        // On its way already: no miss that its stream should know of. The fault looks again.
        if cache.object.wait_unbusy(index) {
            return Ok(());
        }
        let window = cache.store.streams.fault_window(index, window);
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
            cache.bring_in(index, index..index + 1)?;
            let _turn = cache.store.end.lock();
            if index >= cache.pages() {
                return Err(PagerError::BeyondEnd);
            }
            // It may have been evicted again.
            if let Some(frame) = cache.object.resident(index) {
                Self::reserve(cache, index, &frame).map_err(pager_error)?;
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

    fn is_device(&self) -> bool {
        self.blocks.is_device()
    }

    fn is_written(&self, index: u64) -> bool {
        self.writing.contains(index)
    }

    fn is_dirty(&self, index: u64) -> bool {
        self.dirty.contains(index)
    }
}
