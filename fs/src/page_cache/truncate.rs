//! Truncation, holes, and where data are.

use core::{ops::Range, sync::atomic::Ordering};

use abi::{
    Errno, Result,
    raw::general::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE},
};

use super::{
    SizeLimit,
    backing_store::BackingStore,
    cache::{PAGE, PageCache},
};

impl<S: BackingStore> PageCache<S> {
    /// As [`truncate_within`](PageCache::truncate_within) without a limit.
    ///
    /// # Errors
    /// Those of it.
    pub fn truncate(&self, size: u64) -> Result<()> {
        self.truncate_within(&SizeLimit::none(), size)
    }

    /// As [`FileData::truncate_within`](crate::vnode::FileData::truncate_within).
    ///
    /// # Errors
    /// `EFBIG`; `EPERM` of a sealed file; `EIO`, `ENOMEM` and `ENOSPC` when the last page can't be
    /// read in and cleared: nothing has changed then; those of [`BackingStore::free`].
    pub fn truncate_within(&self, limit: &SizeLimit, size: u64) -> Result<()> {
        if size > self.store.properties().size_max {
            return Err(Errno::EFBIG);
        }
        let _turn = self.writers.write();
        let old = self.size();
        limit.check(old, size)?;
        S::may_resize(self, size)?;
        if size > old {
            self.clear_behind_end(old, u64::MAX)?;
            S::reserve_last(self, old, size)?;
            self.size.store(size, Ordering::SeqCst);
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
            S::free(self, size.div_ceil(PAGE)..u64::MAX, Some(size))?;
        }
        self.store.changed((size > old).then_some(size));
        Ok(())
    }

    /// Makes bytes `from..to` read as zeros, and whole pages of them a hole if the store can.
    ///
    /// # Errors
    /// As [`truncate`](PageCache::truncate); `EOPNOTSUPP` from [`BackingStore::free`].
    pub fn punch(&self, from: u64, to: u64) -> Result<()> {
        let _turn = self.writers.write();
        S::may_write(self, 0)?;
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
                S::free(self, pages, None)?;
            }
        }
        self.store.changed(None);
        Ok(())
    }

    /// As [`FileData::allocate_within`](crate::vnode::FileData::allocate_within).
    ///
    /// # Errors
    /// Those of [`punch`](PageCache::punch) and [`allocate`](PageCache::allocate); `EOPNOTSUPP` for
    /// other modes.
    pub fn fallocate_within(
        &self,
        limit: &SizeLimit,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let keep_size = mode & FALLOC_FL_KEEP_SIZE != 0;
        let end = offset
            .checked_add(len)
            .filter(|&end| i64::try_from(end).is_ok());
        let end = end.ok_or(Errno::EFBIG)?;
        match mode & !FALLOC_FL_KEEP_SIZE {
            FALLOC_FL_PUNCH_HOLE if keep_size => return self.punch(offset, end),
            FALLOC_FL_ZERO_RANGE => {
                // Nothing has changed if it must not grow.
                if !keep_size {
                    limit.check(self.size(), end)?;
                }
                S::may_resize(self, end.max(self.size()))?;
                self.punch(offset, end)?;
            }
            0 => {}
            _ => return Err(Errno::EOPNOTSUPP),
        }
        self.allocate_within(limit, offset, end, keep_size)
    }

    /// As [`allocate_within`](PageCache::allocate_within) without a limit.
    ///
    /// # Errors
    /// Those of it.
    pub fn allocate(&self, from: u64, to: u64, keep_size: bool) -> Result<()> {
        self.allocate_within(&SizeLimit::none(), from, to, keep_size)
    }

    /// Reserves room for bytes `from..to`, so that no later write is refused for want of it
    /// (`fallocate`): holes become zeros that are written. With `keep_size`, nothing is done behind
    /// the end.
    ///
    /// # Errors
    /// Those of [`BackingStore::reserve`]: the size is what it was then; `EFBIG`, `EPERM`, `EIO`,
    /// `ENOMEM`.
    fn allocate_within(
        &self,
        limit: &SizeLimit,
        from: u64,
        to: u64,
        keep_size: bool,
    ) -> Result<()> {
        if to > self.store.properties().size_max {
            return Err(Errno::EFBIG);
        }
        let _turn = self.writers.write();
        let old = self.size();
        S::may_resize(self, to.max(old))?;
        // A page behind the end could be mapped, which must fail: with `keep_size` none are made.
        let end = if keep_size { to.min(old) } else { to };
        limit.check(old, end)?;
        let pages = from / PAGE..end.div_ceil(PAGE);
        if end > old {
            self.clear_behind_end(old, u64::MAX)?;
        }
        let filled =
            S::reserve_last(self, old, end.max(old)).and_then(|()| S::fill_holes(self, pages, end));
        let mut grown = None;
        if filled.is_err() && end > old {
            S::free(self, old.div_ceil(PAGE)..u64::MAX, Some(old))?;
        } else if end > old {
            self.size.store(end, Ordering::SeqCst);
            grown = Some(end);
        }
        self.store.changed(grown);
        filled
    }

    /// Sets the size, if it is to be another one, and removes pages from memory.
    pub(crate) fn drop_pages(&self, pages: Range<u64>, size: Option<u64>) {
        if let Some(size) = size {
            self.size.store(size, Ordering::SeqCst);
        }
        // A fault that has not seen the new size inserts its page before this takes the pages out.
        let count = pages.end.saturating_sub(pages.start);
        let dropped = self.object.remove_pages(pages.start, count);
        self.store.uncharge(dropped);
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
        match S::seek(self, offset / PAGE..size.div_ceil(PAGE), hole)? {
            Some(page) => Ok((page * PAGE).clamp(offset, size)),
            None if hole => Ok(size),
            None => Err(Errno::ENXIO),
        }
    }
}
