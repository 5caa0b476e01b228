//! Writing into pages.

use core::{ops::Range, sync::atomic::Ordering};

use abi::{Errno, Result};
use fbuf::{Slice, Source};
use nucleus::{Frame, PAGE_SIZE, counters::Counter, ephemeral, pmap};

use super::{
    BackingStore, PageCache,
    cache::{PAGE, errno, new_page},
    dirty,
};

impl<S: BackingStore> PageCache<S> {
    /// As [`Vnode::write`](crate::Vnode::write).
    ///
    /// # Errors
    /// `EFBIG`, `ENOSPC` and other errors of [`BackingStore::reserve`], `EIO`, `ENOMEM`, and those of the source, if nothing was
    /// written before.
    pub fn write(&self, offset: u64, append: bool, from: &mut dyn Source) -> Result<(usize, u64)> {
        let _turn = self.writers.lock();
        let old = self.size();
        let start = if append { old } else { offset };
        if from.left() == 0 {
            return Ok((0, start));
        }
        let room = self.store().size_max().saturating_sub(start);
        if room == 0 {
            return Err(Errno::EFBIG);
        }
        let len = from.left().min(usize::try_from(room).unwrap_or(usize::MAX));
        if start + len as u64 > old {
            self.clear_behind_end(old, start)?;
            self.reserve_last(old, start + len as u64)?;
        }
        let mut done = 0;
        let mut result = Ok(());
        while done < len {
            let at = start + done as u64;
            match self.write_once(at, len - done, from) {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    let end = at + n as u64;
                    if end > self.size() {
                        self.size.store(end, Ordering::SeqCst);
                    }
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let end = start + done as u64;
        if done < len && self.store().granule() < PAGE {
            self.give_back_behind_end();
        }
        if done > 0 {
            if end > old {
                self.store().grown(end);
            }
            self.store().changed();
        }
        match result {
            Err(error) if done == 0 => Err(error),
            _ => Ok((done, end)),
        }
    }

    /// Writes within one page at byte `at`, up to `max` bytes.
    fn write_once(&self, at: u64, max: usize, from: &mut dyn Source) -> Result<usize> {
        let (index, in_page) = (at / PAGE, (at % PAGE) as usize);
        let n = (PAGE_SIZE - in_page).min(max);
        if n < PAGE_SIZE {
            return self.fill_page(index, in_page, n, &mut |frame, at, n| {
                from.take_into(frame, at, n)
            });
        }
        match from.take_slice(PAGE_SIZE) {
            None => self.fill_page(index, 0, n, &mut |frame, at, n| {
                from.take_into(frame, at, n)
            }),
            Some(slice) if slice.len == PAGE_SIZE => self.adopt(index, slice.frame),
            Some(slice) => self.fill_page(index, 0, slice.len, &mut |frame, at, n| {
                copy(&slice, frame, at, n)
            }),
        }
    }

    /// Makes a whole frame that somebody passed on page `index`, without copying. Others may still keep it.
    fn adopt(&self, index: u64, frame: Frame) -> Result<usize> {
        self.passed.store(true, Ordering::SeqCst);
        if self.writable_mappings.load(Ordering::SeqCst) > 0 {
            // A page mapped for writing must not be one that others keep.
            let slice = Slice::whole(frame);
            return self.fill_page(index, 0, PAGE_SIZE, &mut |frame, at, n| {
                copy(&slice, frame, at, n)
            });
        }
        dirty::throttle();
        self.make_room(index, (index + 1) * PAGE)?;
        Counter::bytes_passed.add(PAGE);
        pmap::set_modified(&frame);
        self.object.replace(index, frame).map_err(errno)?;
        self.note_dirty(index);
        Ok(PAGE_SIZE)
    }

    /// Lets `fill` write bytes `at..at + n` of page `index`, which is read in, or made if all of what it had is written.
    fn fill_page(
        &self,
        index: u64,
        at: usize,
        n: usize,
        fill: &mut dyn FnMut(&Frame, usize, usize) -> Result<usize>,
    ) -> Result<usize> {
        let Some(frame) = self.own_page(index)? else {
            return self.fill_absent(index, at, n, fill);
        };
        self.back(index, &frame)?;
        let n = fill(&frame, at, n)?;
        if n > 0 {
            self.mark_dirty(index, &frame);
            self.settle(index, &frame, at, n)?;
            self.hold_back();
        }
        Ok(n)
    }

    /// Reserves room for a page that is in memory.
    #[inline]
    pub(super) fn back(&self, index: u64, frame: &Frame) -> Result<()> {
        if !self.backed.contains(index) {
            self.reserve(index, self.size())?;
            // What is in the new block must never be seen.
            self.mark_dirty(index, frame);
        }
        Ok(())
    }

    /// Reserves room for page `index`, which is put into the object next: nothing can fail any more then. The file ends at `end` with it, or where it
    /// ends now if that is later.
    fn make_room(&self, index: u64, end: u64) -> Result<()> {
        self.object.make_place(index).map_err(errno)?;
        if !self.backed.contains(index) {
            self.reserve(index, self.size().max(end))?;
        }
        self.note_resident();
        Ok(())
    }

    #[cold]
    fn fill_absent(
        &self,
        index: u64,
        at: usize,
        n: usize,
        fill: &mut dyn FnMut(&Frame, usize, usize) -> Result<usize>,
    ) -> Result<usize> {
        dirty::throttle();
        // Bytes of the page that the file has.
        let has = self.size().saturating_sub(index * PAGE).min(PAGE) as usize;
        if has > 0 && (at > 0 || n < has) {
            self.page(index)?;
            return self.fill_page(index, at, n, fill);
        }
        // Nobody sees the new page before it is complete.
        let frame = new_page()?;
        let filled = fill(&frame, at, n)?;
        if filled == 0 {
            return Ok(0);
        }
        if filled < n && filled < has {
            // The source broke off inside of what the file had.
            let resident = self.page(index)?;
            self.back(index, &resident)?;
            ephemeral::map(&resident).copy_from(at, &ephemeral::map(&frame), at, filled);
            self.mark_dirty(index, &resident);
            self.settle(index, &resident, at, filled)?;
            return Ok(filled);
        }
        let page = ephemeral::map(&frame);
        page.fill(0, at, 0);
        page.fill(at + filled, PAGE_SIZE - at - filled, 0);
        drop(page);
        let end = index * PAGE + (at + filled) as u64;
        self.insert_new(index, &frame, at..at + filled, end)?;
        Ok(filled)
    }

    /// Makes `frame`, whose bytes `new` were written, page `index` of a file that ends at `end` with it; or passes those bytes on to the page that a fault
    /// has brought in meanwhile.
    fn insert_new(&self, index: u64, frame: &Frame, new: Range<usize>, end: u64) -> Result<()> {
        self.make_room(index, end)?;
        pmap::set_modified(frame);
        let resident = self
            .object
            .get_or_insert(index, || Ok(frame.clone()))
            .map_err(errno)?;
        if resident == *frame {
            self.note_dirty(index);
        } else {
            let page = ephemeral::map(&resident);
            page.copy_from(new.start, &ephemeral::map(frame), new.start, new.len());
            drop(page);
            self.mark_dirty(index, &resident);
            self.settle(index, &resident, new.start, new.len())?;
        }
        Ok(())
    }

    /// Makes page `index`, which is behind the end, a page of zeros that has room, of a file that ends at `end` then.
    pub(super) fn insert_zeros(&self, index: u64, end: u64) -> Result<()> {
        dirty::throttle();
        let frame = new_page()?;
        ephemeral::map(&frame).fill(0, PAGE_SIZE, 0);
        self.insert_new(index, &frame, 0..PAGE_SIZE, end)
    }

    /// Waits while there are too many dirty pages.
    #[inline]
    fn hold_back(&self) {
        if dirty::is_over() {
            dirty::throttle();
        }
    }

    /// The end is about to move on from `old`, by a write that begins at `start`, or to there: what lies behind it in its page must be
    /// zeros, in memory and on the device.
    pub(super) fn clear_behind_end(&self, old: u64, start: u64) -> Result<()> {
        self.store().about_to_grow()?;
        let (index, in_page) = (old / PAGE, (old % PAGE) as usize);
        if in_page == 0 {
            return Ok(());
        }
        // The write itself makes the page dirty. Behind the end it is zeros in memory, but for what mappings wrote.
        let is_next = start / PAGE == index;
        if is_next && !self.was_mapped_writable.load(Ordering::Acquire) {
            return Ok(());
        }
        // What is zeros in memory need not be on the device: what a mapping wrote behind the end was written back with the rest of the page.
        // Of a hole there is nothing.
        let has_place =
            self.backed.contains(index) || self.store().seek(index..index + 1, false)?.is_some();
        self.clear_if(index, in_page, PAGE_SIZE, has_place)
    }

    /// Clears bytes `from..to` of page `index`, unless they are zeros.
    pub(super) fn clear(&self, index: u64, from: usize, to: usize) -> Result<()> {
        self.clear_if(index, from, to, false)
    }

    /// As [`clear`](PageCache::clear), with `always` also if they are zeros: the page is written then.
    fn clear_if(&self, index: u64, from: usize, to: usize, always: bool) -> Result<()> {
        loop {
            let Some(frame) = self.own_page(index)? else {
                self.page(index)?;
                continue;
            };
            if always || !is_zero(&frame, from, to) {
                self.back(index, &frame)?;
                ephemeral::map(&frame).fill(from, to - from, 0);
                self.mark_dirty(index, &frame);
                self.settle(index, &frame, from, to - from)?;
            }
            return Ok(());
        }
    }
}

/// Whether bytes `from..to` of a page are zeros.
fn is_zero(frame: &Frame, from: usize, to: usize) -> bool {
    let page = ephemeral::map(frame);
    let mut bytes = [0; 256];
    let mut at = from;
    while at < to {
        let n = (to - at).min(bytes.len());
        page.read(at, &mut bytes[..n]);
        if bytes[..n].iter().any(|&byte| byte != 0) {
            return false;
        }
        at += n;
    }
    true
}

/// Copies bytes of a slice, from its start.
fn copy(from: &Slice, to: &Frame, at: usize, n: usize) -> Result<usize> {
    let source = ephemeral::map(&from.frame);
    ephemeral::map(to).copy_from(at, &source, from.offset, n);
    Ok(n)
}
