//! Writing dirty pages back: neighbours in one request, several requests at a time.

use alloc::{boxed::Box, vec::Vec};
use core::{ops::Range, sync::atomic::Ordering};

use crate::counters::Counter;
use abi::{Errno, Result};
use nucleus::{
    Frame, Prot,
    pmap::{self, Pending},
};

use super::{
    block_backed::WriteBack,
    block_store::BlockStore,
    cache::PageCache,
    cached::{Cached, Counts},
    dirty,
    errors::ErrorCount,
    flusher,
    readahead::Access,
};

/// Pages of a request at most: 1 MiB.
pub(super) const CLUSTER: usize = 256;
/// Requests of one file that are under way at most.
const REQUESTS: usize = 8;
/// How often in a row no page could be written although there was memory again, which
/// [`vm::wait_for_memory`] takes up to 50 ms each to find. A write takes some hundred bytes of the
/// kernel's heap: a writer that does not get even those gets `ENOMEM`.
const IN_VAIN: usize = 16;

impl<B: BlockStore> PageCache<WriteBack<B>> {
    /// Writes dirty pages of `pages`, and waits until the device has taken them. A write that was
    /// refused memory is retried as long as the pagedaemon finds some, and that helps.
    ///
    /// # Errors
    /// `ENOMEM`: some of them are dirty still. [`errors`](super::Cached::errors) reports failed
    /// writes.
    pub fn write_through(&self, pages: Range<u64>) -> Result<()> {
        let mut in_vain = 0;
        loop {
            let before = self.store.refused.load(Ordering::Acquire);
            let begun = self.write_some(pages.clone(), true, usize::MAX);
            self.wait_written(pages.clone());
            let refused = self
                .store
                .refused
                .load(Ordering::Acquire)
                .wrapping_sub(before);
            match begun {
                Ok(_) if refused == 0 => return Ok(()),
                Ok(begun) if begun > refused => in_vain = 0,
                Ok(_) | Err(Errno::ENOMEM) => in_vain += 1,
                Err(error) => return Err(error),
            }
            if in_vain == IN_VAIN || vm::wait_for_memory() == vm::MemoryWait::Exhausted {
                return Err(Errno::ENOMEM);
            }
        }
    }

    /// Starts to write up to `most` dirty pages of `pages`; returns how many. One pass: a page that
    /// becomes dirty after its turn stays so.
    fn write_some(&self, pages: Range<u64>, again: bool, most: usize) -> Result<usize> {
        let mut at = pages.start;
        let mut begun = 0;
        while begun < most
            && let Some(index) = self.store.dirty.next(at..pages.end)
        {
            if self.store.writing.contains(index) {
                match again {
                    true => self.wait_written(index..index + 1),
                    false => at = index + 1,
                }
                continue;
            }
            let count = self.write_cluster(index..pages.end)?;
            begun += count;
            at = index + (count as u64).max(1);
        }
        Ok(begun)
    }

    /// Starts to write the dirty page `pages.start` and those that follow it without a gap; returns
    /// how many.
    fn write_cluster(&self, pages: Range<u64>) -> Result<usize> {
        let Some(me) = self.me() else {
            return Ok(0);
        };
        let mut frames: Vec<Frame> = Vec::new();
        let most = CLUSTER.min(self.store.dirty_count.load(Ordering::Relaxed).max(1));
        frames.try_reserve_exact(most)?;
        self.wait_for_turn();
        let first = pages.start;
        for index in pages {
            if frames.len() == most {
                break;
            }
            match self.begin_page(index) {
                Some(frame) => frames.push(frame),
                None => break,
            }
        }
        if frames.is_empty() {
            return Ok(0);
        }
        // No store from here on goes unnoticed: it faults, and the page is dirty again.
        let mut pending = Pending::new();
        for frame in &frames {
            pmap::page_protect(frame, Prot::READ | Prot::EXEC, &mut pending);
            pmap::clear_modified(frame, &mut pending);
        }
        pending.flush();
        let count = frames.len();
        Counter::file_write_clusters.add(1);
        Counter::file_write_pages.add(count as u64);
        self.store.requests.fetch_add(1, Ordering::AcqRel);
        let done = Box::new(move |result: Result<()>| me.end_cluster(first, count, result));
        self.store.blocks.write(first, &frames, done);
        Ok(count)
    }

    /// Takes a dirty page for writing, unless another thread writes it, or it is gone.
    fn begin_page(&self, index: u64) -> Option<Frame> {
        if !self.store.writing.insert(index) {
            return None;
        }
        self.store.writing_count.fetch_add(1, Ordering::AcqRel);
        dirty::writing();
        // Truncation sets the size before it looks for pages in `writing`; and a page that a write
        // inserts beyond the end waits until the end has moved.
        let is_ours = index < self.pages() && self.note_clean(index);
        let frame = is_ours.then(|| self.object.resident(index)).flatten();
        if frame.is_none() {
            self.end_page(index);
            // Another thread may have seen it for a moment.
            self.store.written.wake_all();
        }
        frame
    }

    fn end_page(&self, index: u64) {
        self.store.writing.remove(index);
        self.store.writing_count.fetch_sub(1, Ordering::AcqRel);
        dirty::written(1);
    }

    /// The device has taken `count` pages, or not.
    fn end_cluster(&self, first: u64, count: usize, result: Result<()>) {
        let pages = first..first + count as u64;
        match result {
            Ok(()) => {}
            // Nothing is wrong with the device: they are written later.
            Err(Errno::ENOMEM) => {
                for index in pages.clone() {
                    if let Some(frame) = self.object.resident(index) {
                        self.mark_modified(index, &frame);
                    }
                }
                self.store.refused.fetch_add(count, Ordering::AcqRel);
            }
            // A page that can't be written stays in memory as long as there is room, but is not
            // retried; open files get the error.
            Err(_) => {
                Counter::file_write_errors.add(1);
                self.store.errors.note();
            }
        }
        for index in pages {
            self.end_page(index);
        }
        self.store.requests.fetch_sub(1, Ordering::AcqRel);
        self.store.written.wake_all();
    }

    /// Removes all of `pages` that can be read again, mapped or not: the device was written past
    /// them.
    pub(crate) fn invalidate(&self, pages: Range<u64>) {
        // A write that is under way has not marked its page dirty yet.
        let _turn = self.writers.read();
        self.invalidate_locked(pages);
    }

    /// As [`invalidate`](PageCache::invalidate), with `writers` held.
    pub(super) fn invalidate_locked(&self, pages: Range<u64>) {
        self.object
            .invalidate(pages, &|index| self.is_unwritten(index));
    }

    /// Waits while too many requests are under way.
    fn wait_for_turn(&self) {
        let free = || (self.store.requests.load(Ordering::Acquire) < REQUESTS).then_some(());
        self.store.written.wait_soundly(free);
    }
}

impl<B: BlockStore> Cached for PageCache<WriteBack<B>> {
    fn size(&self) -> u64 {
        PageCache::size(self)
    }

    fn errors(&self) -> &ErrorCount {
        &self.store.errors
    }

    fn write_out(&self, pages: Range<u64>, again: bool) -> Result<()> {
        self.write_some(pages, again, usize::MAX).map(drop)
    }

    fn wait_written(&self, pages: Range<u64>) {
        let mut at = pages.start;
        while let Some(index) = self.store.writing.next(at..pages.end) {
            let over = || (!self.store.writing.contains(index)).then_some(());
            self.store.written.wait_soundly(over);
            at = index + 1;
        }
    }

    fn sync(&self, pages: Range<u64>, data_only: bool) -> Result<()> {
        self.write_through(pages)?;
        self.store.blocks.sync(data_only)
    }

    fn give_up(&self, pages: Range<u64>, most: usize) -> usize {
        self.evict(pages, most).0
    }

    fn set_access(&self, access: Access) {
        self.store.streams.set_access(access);
    }

    fn counts(&self) -> Counts {
        Counts {
            resident: self.object.resident_count(),
            dirty: self.store.dirty_count.load(Ordering::Relaxed),
            writing: self.store.writing_count.load(Ordering::Relaxed),
        }
    }

    fn dirty_since(&self) -> u64 {
        self.store.dirty_since.load(Ordering::Acquire)
    }

    fn flush(&self, most: usize) -> Result<usize> {
        let since = self.store.dirty_since.swap(0, Ordering::AcqRel);
        self.store.blocks.settle();
        let begun = self.write_some(0..u64::MAX, false, most);
        if self.store.dirty_count.load(Ordering::Acquire) > 0 {
            // Those that are left are as old as the oldest was at most.
            if since != 0 {
                self.store.dirty_since.store(since, Ordering::Release);
            }
        } else {
            flusher::delist_if(self.store.listing.id, || {
                self.store.dirty_since.load(Ordering::Acquire) == 0
            });
        }
        begun
    }
}
