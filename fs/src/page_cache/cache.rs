//! The pages of one file.

use alloc::sync::{Arc, Weak};
use core::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use abi::{Errno, Result};
use nucleus::{
    Frame, PAGE_SIZE, ephemeral,
    frame::Contents,
    pmap,
    sync::{Mutex, Rank},
    task::WaitQueue,
    time,
};
use vm::{Description, Object, Pager, PagerError};

use super::{
    BackingStore, Cached, ErrorCount, PageSet, dirty, flusher, readahead::Streams, reclaim,
};
use crate::shared_pages;

pub(super) const PAGE: u64 = PAGE_SIZE as u64;

/// The bytes of one file: what of them is in memory, and how it gets there and back. To be embedded in a vnode by an `Arc`; it is
/// the vnode's pager.
///
/// *Who may do what at once.* Reads take no lock but a chunk's. Writes and truncation are one at a time by `writers`. Faults
/// that make a page writable take `end` for a moment where they have to reserve room; truncation holds it from the moment
/// at which the size is the new one until the blocks are given back. Writing back takes no lock at all: a page is in `writing`
/// from before it is clean until its bytes are on the device, and truncation waits for that.
///
/// *Dirty pages.* The truth is in the frame's record ([`pmap::is_modified`]). `dirty` has every page whose frame may be
/// modified: whoever modifies a page puts it in afterwards; writing back takes it out, then makes the mappings
/// read-only and the frame clean, and then reads the frame. So a store that comes later faults, or finds the page out of the set and puts it in again.
pub struct PageCache<S: BackingStore> {
    pub(super) me: Weak<PageCache<S>>,
    /// Tells files apart in the lists of all.
    pub(super) id: u64,
    pub(super) object: Object,
    /// Bytes. Grows under `writers`; shrinks under it and `end`, before pages go.
    pub(super) size: AtomicU64,
    /// Held by who writes, truncates or passes pages on, across the copy from the program too. No fault takes it.
    pub(super) writers: Mutex<()>,
    pub(super) end: Mutex<()>,
    /// Shared mappings that may write.
    pub(super) writable_mappings: AtomicU32,
    /// There were such mappings: bytes behind the end may not be zero.
    pub(super) was_mapped_writable: AtomicBool,
    /// A page of it was passed on to someone who keeps it, or came from someone who may.
    pub(super) passed: AtomicBool,
    pub(super) dirty: PageSet,
    pub(super) writing: PageSet,
    /// Pages that were reserved.
    pub(super) backed: PageSet,
    pub(super) dirty_count: AtomicUsize,
    pub(super) writing_count: AtomicUsize,
    /// Requests to write that are under way.
    pub(super) requests: AtomicUsize,
    /// Pages whose writing was refused for want of memory: they are dirty again.
    pub(super) refused: AtomicUsize,
    /// Woken when a request to write is over.
    pub(super) written: WaitQueue,
    /// When the first of the dirty pages became so, in centiseconds since boot, from 1 on; 0 if nothing is dirty.
    pub(super) dirty_since: AtomicU64,
    pub(super) errors: ErrorCount,
    pub(super) streams: Streams,
    /// It is among all files with pages.
    pub(super) listed: AtomicBool,
    /// Where the next pages are given up.
    pub(super) give_from: AtomicU64,
    pub(super) store: S,
}

/// What a page error is to a system call.
pub(super) fn errno(error: PagerError) -> Errno {
    match error {
        PagerError::OutOfMemory => Errno::ENOMEM,
        PagerError::BeyondEnd | PagerError::Io | PagerError::Sleeps => Errno::EIO,
    }
}

/// What an error of a system call is to a fault.
pub(super) fn pager_error(error: Errno) -> PagerError {
    match error {
        Errno::ENOMEM => PagerError::OutOfMemory,
        _ => PagerError::Io,
    }
}

/// A frame for a page, bytes of its last owner in it.
pub(super) fn new_page() -> Result<Frame> {
    match Frame::alloc(Contents::Stale) {
        Ok(frame) => Ok(frame),
        Err(_) => {
            reclaim::reclaim_clean(reclaim::SHORTAGE);
            vm::alloc_frame(Contents::Stale).map_err(|_| Errno::ENOMEM)
        }
    }
}

impl<S: BackingStore> PageCache<S> {
    /// The pages of a file of `size` bytes, none of them in memory.
    pub fn new(store: S, size: u64) -> Arc<PageCache<S>> {
        Arc::new_cyclic(|me| PageCache {
            me: me.clone(),
            id: reclaim::new_id(),
            object: Object::new(),
            size: AtomicU64::new(size),
            writers: Mutex::new(Rank::Vnode, ()),
            end: Mutex::new(Rank::FileEnd, ()),
            writable_mappings: AtomicU32::new(0),
            was_mapped_writable: AtomicBool::new(false),
            passed: AtomicBool::new(false),
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
            listed: AtomicBool::new(false),
            give_from: AtomicU64::new(0),
            store,
        })
    }

    /// Where its pages are.
    pub fn store(&self) -> &S {
        &self.store
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
    pub(super) fn pages(&self) -> u64 {
        self.size().div_ceil(PAGE)
    }

    /// Itself as it is held by others. `None` while it is being dropped.
    pub(super) fn shared(&self) -> Option<Arc<PageCache<S>>> {
        self.me.upgrade()
    }

    /// The page `index`, read in if need be: for a file system's own blocks. What is changed in it is told by
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

    /// Lets `change` change the page `index`, which is read in if need be, and is dirty afterwards. Changes of one page at once are the
    /// caller's business.
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
        self.mark_dirty(index, &frame);
        Ok(result)
    }

    /// What is kept of the file besides its pages has changed, so that the flusher is to [settle](BackingStore::settle) it in
    /// time.
    pub fn note_changed(&self) {
        if self.dirty_since.load(Ordering::Relaxed) == 0 {
            self.is_dirty_now();
        }
    }

    /// The page's frame was modified just now.
    #[inline]
    pub(super) fn mark_dirty(&self, index: u64, frame: &Frame) {
        pmap::set_modified(frame);
        self.note_dirty(index);
    }

    /// The page's frame may be modified.
    #[inline]
    pub(super) fn note_dirty(&self, index: u64) {
        if self.dirty.insert(index) {
            self.dirty_count.fetch_add(1, Ordering::Relaxed);
            dirty::added();
            if self.dirty_since.load(Ordering::Relaxed) == 0 {
                self.is_dirty_now();
            }
        }
    }

    #[cold]
    fn is_dirty_now(&self) {
        let now = flusher::centiseconds(time::since_boot()).max(1);
        let was = self
            .dirty_since
            .compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed);
        if was.is_ok()
            && let Some(me) = self.shared()
        {
            flusher::enlist(self.id, me);
        }
    }

    /// The page is taken for clean; false if it was not in the set.
    pub(super) fn note_clean(&self, index: u64) -> bool {
        let was = self.dirty.remove(index);
        if was {
            self.dirty_count.fetch_sub(1, Ordering::Relaxed);
            dirty::removed(1);
        }
        was
    }

    /// Pages are in memory that were not.
    pub(super) fn note_resident(&self) {
        if !self.listed.load(Ordering::Relaxed)
            && !self.listed.swap(true, Ordering::Relaxed)
            && let Some(me) = self.shared()
        {
            reclaim::enlist(self.id, me);
        }
    }

    /// The resident page `index`, none but the file's own and its mappings': one that others keep is left to them, and a copy takes its place.
    /// Who writes and who faults may copy in vain: see [`settle`](PageCache::settle).
    pub(super) fn own_page(&self, index: u64) -> Result<Option<Frame>> {
        loop {
            let frame = match self.object.resident(index) {
                Some(frame)
                    if self.passed.load(Ordering::SeqCst) && !shared_pages::is_own(&frame) =>
                {
                    frame
                }
                found => return Ok(found),
            };
            let own = new_page()?;
            // Who keeps it may be the device, which is writing it: were the copy clean, it could leave memory before that is done, and
            // what the block had before be read.
            let has_place = self.backed.contains(index);
            if has_place {
                pmap::set_modified(&own);
            }
            if self.object.replace_by_copy(index, &frame, own.clone()) {
                if has_place {
                    self.note_dirty(index);
                }
                return Ok(Some(own));
            }
        }
    }

    /// Bytes `at..at + len` of `frame`, which was page `index`, were written just now, by who holds `writers`: sees to it that the page has them, if
    /// a fault has put a copy in its place meanwhile.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    #[inline]
    pub(super) fn settle(&self, index: u64, frame: &Frame, at: usize, len: usize) -> Result<()> {
        match self.passed.load(Ordering::SeqCst) {
            true => self.settle_copied(index, frame, at, len),
            false => Ok(()),
        }
    }

    #[cold]
    fn settle_copied(&self, index: u64, frame: &Frame, at: usize, len: usize) -> Result<()> {
        let changed = |now: &Frame| self.mark_dirty(index, now);
        shared_pages::settle(frame, at, len, || self.page(index).map(Some), changed)
    }

    /// Reserves room for page `index` of a file that will end at `end`, or has its end there. The page is in memory, or is put there next, and is made
    /// dirty before anything else can fail: what a new block has must never be read.
    pub(super) fn reserve(&self, index: u64, end: u64) -> Result<()> {
        self.store.reserve(index..index + 1, end)?;
        self.backed.insert(index);
        Ok(())
    }
}

impl<S: BackingStore> Drop for PageCache<S> {
    fn drop(&mut self) {
        let dirty = *self.dirty_count.get_mut();
        if dirty > 0 {
            // A file that was removed: nobody wants them any more.
            dirty::removed(dirty);
        }
        if *self.dirty_since.get_mut() != 0 {
            flusher::delist(self.id);
        }
        if *self.listed.get_mut() {
            reclaim::delist(self.id);
        }
    }
}

impl<S: BackingStore> Pager for PageCache<S> {
    fn object(&self) -> &Object {
        &self.object
    }

    fn get(&self, index: u64) -> core::result::Result<Frame, PagerError> {
        match self.object.resident(index) {
            Some(frame) => Ok(frame),
            None if index >= self.pages() => Err(PagerError::BeyondEnd),
            None => Err(PagerError::Sleeps),
        }
    }

    fn read_in(&self, index: u64, window: Range<u64>) -> core::result::Result<(), PagerError> {
        // On its way already: no miss that its stream should know of. The fault looks again.
        if self.object.wait_unbusy(index) {
            return Ok(());
        }
        let window = self.streams.fault_window(index, window);
        self.bring_in(index, window)
    }

    fn will_need(&self, pages: Range<u64>) {
        self.read_ahead(pages);
    }

    fn evict(&self, pages: Range<u64>) {
        // What is dirty goes another time, when it has been written.
        let _ = self.write_out_pages(pages.clone(), false);
        self.evict(pages, usize::MAX);
    }

    fn writeback(&self, pages: Range<u64>) -> core::result::Result<(), PagerError> {
        let before = self.errors.count();
        Cached::sync(self, pages, true).map_err(pager_error)?;
        match self.errors.count() == before {
            true => Ok(()),
            false => Err(PagerError::Io),
        }
    }

    fn start_writeback(&self, pages: Range<u64>) -> core::result::Result<(), PagerError> {
        self.write_out_pages(pages, false).map_err(pager_error)
    }

    fn reference(&self, writable: bool) {
        if writable {
            self.was_mapped_writable.store(true, Ordering::Release);
            self.writable_mappings.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn detach(&self, writable: bool) {
        if writable {
            self.writable_mappings.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn about_to_write(&self, index: u64) -> core::result::Result<(), PagerError> {
        // The page is there and may be written again, or somebody has to wait for something first.
        let is_ready = self.backed.contains(index)
            && !dirty::is_over()
            && (!self.passed.load(Ordering::SeqCst)
                || self
                    .object
                    .resident(index)
                    .is_none_or(|frame| shared_pages::is_own(&frame)));
        match is_ready {
            true => Ok(()),
            false if index >= self.pages() => Err(PagerError::BeyondEnd),
            false => Err(PagerError::Sleeps),
        }
    }

    fn prepare_write(&self, index: u64) -> core::result::Result<(), PagerError> {
        dirty::throttle();
        while !self.backed.contains(index) {
            self.bring_in(index, index..index + 1)?;
            let _turn = self.end.lock();
            if index >= self.pages() {
                return Err(PagerError::BeyondEnd);
            }
            // It may have been given up again.
            if let Some(frame) = self.object.resident(index) {
                self.back(index, &frame).map_err(pager_error)?;
            }
        }
        self.own_page(index).map(drop).map_err(pager_error)
    }

    fn may_still_be_written(&self, index: u64) -> bool {
        self.backed.contains(index)
    }

    fn may_be_written(&self, index: u64) {
        self.note_dirty(index);
    }

    fn describe(&self) -> Description {
        let (device, inode) = self.store.identity();
        Description {
            device,
            inode,
            name: alloc::vec::Vec::new(),
        }
    }
}
