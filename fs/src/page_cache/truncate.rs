//! Truncation, holes, and where data are.

use core::{ops::Range, sync::atomic::Ordering};

use abi::{Errno, Result};

use super::{BackingStore, PageCache, cache::PAGE, dirty};

impl<S: BackingStore> PageCache<S> {
    /// As [`Vnode::truncate`](crate::Vnode::truncate).
    ///
    /// # Errors
    /// `EFBIG`; `EIO`, `ENOMEM` and `ENOSPC` when the last page can't be read in and cleared: nothing has changed then; those of
    /// [`BackingStore::cut`].
    pub fn truncate(&self, size: u64) -> Result<()> {
        if size > self.store().size_max() {
            return Err(Errno::EFBIG);
        }
        let _turn = self.writers.lock();
        let old = self.size();
        if size > old {
            self.clear_behind_end(old, u64::MAX)?;
            self.reserve_last(old, size)?;
            self.size.store(size, Ordering::SeqCst);
            self.store().grown(size);
        } else if size < old {
            let (last, in_page) = (size / PAGE, (size % PAGE) as usize);
            // Mappings may have written behind the old end, too.
            let cleared = match self.was_mapped_writable.load(Ordering::Acquire) {
                true => PAGE,
                false => (old - last * PAGE).min(PAGE),
            } as usize;
            if in_page > 0 {
                self.clear(last, in_page, cleared)?;
            }
            let _end = self.end.lock();
            self.size.store(size, Ordering::SeqCst);
            self.drop_pages(size.div_ceil(PAGE)..u64::MAX);
            self.store().cut(size)?;
        }
        self.store().changed();
        Ok(())
    }

    /// Makes bytes `from..to` read as zeros, and whole pages of them a hole if the store can.
    ///
    /// # Errors
    /// As [`truncate`](PageCache::truncate); `EOPNOTSUPP` from [`BackingStore::release`].
    pub fn punch(&self, from: u64, to: u64) -> Result<()> {
        let _turn = self.writers.lock();
        let to = to.min(self.size().next_multiple_of(PAGE));
        if from >= to {
            return Ok(());
        }
        let (first, last) = (from.next_multiple_of(PAGE), to / PAGE * PAGE);
        if first > last {
            // Inside of one page.
            self.clear(from / PAGE, (from % PAGE) as usize, (to % PAGE) as usize)?;
        } else {
            if from < first {
                self.clear(from / PAGE, (from % PAGE) as usize, PAGE as usize)?;
            }
            if last < to {
                self.clear(last / PAGE, 0, (to % PAGE) as usize)?;
            }
            let pages = first / PAGE..last / PAGE;
            if !pages.is_empty() {
                let _end = self.end.lock();
                self.drop_pages(pages.clone());
                let released = self.store().release(pages.clone());
                // What was read until then is what the blocks had. Nothing of it is dirty: who stores into a page of a hole waits for `end`.
                self.object
                    .remove_pages(pages.start, pages.end - pages.start);
                released?;
            }
        }
        self.store().changed();
        Ok(())
    }

    /// Sees to it that bytes `from..to` can be written later without being refused for want of room (`fallocate`): what was a hole is zeros that
    /// are written. With `keep_size`, nothing is done behind the end.
    ///
    /// # Errors
    /// Those of [`BackingStore::reserve`]: the size is what it was then; `EFBIG`, `EIO`, `ENOMEM`.
    pub fn allocate(&self, from: u64, to: u64, keep_size: bool) -> Result<()> {
        if to > self.store().size_max() {
            return Err(Errno::EFBIG);
        }
        let _turn = self.writers.lock();
        let old = self.size();
        let end = if keep_size { to.min(old) } else { to };
        if end > old {
            self.clear_behind_end(old, u64::MAX)?;
        }
        let filled = self
            .reserve_last(old, end.max(old))
            .and_then(|()| self.fill_holes(from / PAGE..end.div_ceil(PAGE), end));
        if filled.is_err() && end > old {
            let _end = self.end.lock();
            self.size.store(old, Ordering::SeqCst);
            self.drop_pages(old.div_ceil(PAGE)..u64::MAX);
            self.store().cut(old)?;
        } else if end > old {
            self.size.store(end, Ordering::SeqCst);
            self.store().grown(end);
        }
        self.store().changed();
        filled
    }

    /// Makes all of `pages` have room; those behind the end become part of the file, which grows to `end` with them.
    fn fill_holes(&self, pages: Range<u64>, end: u64) -> Result<()> {
        for index in pages {
            while !self.backed.contains(index) {
                if index * PAGE < self.size() {
                    self.page(index)?;
                    if let Some(frame) = self.own_page(index)? {
                        dirty::throttle();
                        self.back(index, &frame)?;
                    }
                } else {
                    let end = end.min((index + 1) * PAGE);
                    self.insert_zeros(index, end)?;
                    self.size.fetch_max(end, Ordering::SeqCst);
                }
            }
        }
        Ok(())
    }

    /// The end is about to move from `old` to `end`: the last page, which may be in mappings that write it, can be written in all of
    /// it that the file gets.
    ///
    /// # Errors
    /// Those of [`BackingStore::reserve`].
    pub(super) fn reserve_last(&self, old: u64, end: u64) -> Result<()> {
        if old.is_multiple_of(PAGE) || self.store().granule() == PAGE {
            return Ok(());
        }
        let (index, granule) = (old / PAGE, self.store().granule());
        let last = end.min((index + 1) * PAGE);
        if last.div_ceil(granule) <= old.div_ceil(granule) {
            return Ok(());
        }
        // Also if it was not reserved before: a fault that reserves it now does so up to the old end. And what is in a new piece must
        // never be read.
        loop {
            let Some(frame) = self.own_page(index)? else {
                self.page(index)?;
                continue;
            };
            self.store().reserve(index..index + 1, end)?;
            self.mark_dirty(index, &frame);
            return Ok(());
        }
    }

    /// Gives back what was reserved behind the end for a write that did not come so far.
    pub(super) fn give_back_behind_end(&self) {
        let _end = self.end.lock();
        self.backed.remove_range(self.pages()..u64::MAX);
        // What can't be given back is nobody's until the file system is checked.
        let _ = self.store().cut(self.size());
    }

    /// Takes pages out for good: neither in memory, nor dirty, nor being written when this returns. Of pages behind the end nobody brings one
    /// back meanwhile.
    fn drop_pages(&self, pages: Range<u64>) {
        let count = pages.end - pages.start;
        // Before they go: no fault that has found one ready finds another one in its place and writes that.
        self.backed.remove_range(pages.clone());
        self.object.remove_pages(pages.start, count);
        self.forget_dirty(pages.clone());
        self.wait_for_written(pages.clone());
        // A write that was refused memory has made its pages dirty again.
        self.forget_dirty(pages);
    }

    fn forget_dirty(&self, pages: Range<u64>) {
        let mut at = pages.start;
        while let Some(index) = self.dirty.next(at..pages.end) {
            self.note_clean(index);
            at = index + 1;
        }
    }

    /// As [`Vnode::seek_data`](crate::Vnode::seek_data).
    ///
    /// # Errors
    /// `ENXIO` where there is none; `EIO`.
    pub fn seek_data(&self, offset: u64, hole: bool) -> Result<u64> {
        let size = self.size();
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        let pages = offset / PAGE..size.div_ceil(PAGE);
        match self.store().seek(pages, hole)? {
            Some(page) => Ok((page * PAGE).clamp(offset, size)),
            None if hole => Ok(size),
            None => Err(Errno::ENXIO),
        }
    }
}
