//! Writing into pages.

use core::{ops::Range, sync::atomic::Ordering};

use abi::{Errno, Result};
use fbuf::counters::Counter;
use fbuf::{Slice, Source};
use nucleus::{
    Frame, PAGE_SIZE, ephemeral,
    frame::Owned,
    pmap,
    sync::{PartsGuard, WriteGuard},
};
use vm::{CopyReason, Moved, PASSED_TOGETHER, TransferCall};

use super::{
    SizeLimit,
    backing_store::BackingStore,
    cache::{LOOK, PAGE, PageCache, errno, new_page, pages_with, parts_with},
};

/// How a writer has a file's `writers`.
#[allow(dead_code, reason = "the guards are held, not used")]
enum Turn<'a> {
    Alone(WriteGuard<'a, ()>),
    Parts(PartsGuard<'a, ()>),
}

impl<S: BackingStore> PageCache<S> {
    /// As [`write_within`](PageCache::write_within) without a limit.
    ///
    /// # Errors
    /// Those of it.
    pub fn write(&self, offset: u64, append: bool, from: &mut dyn Source) -> Result<(usize, u64)> {
        self.write_within(&SizeLimit::none(), offset, append, from)
    }

    /// As [`FileData::write_within`](crate::vnode::FileData::write_within).
    ///
    /// # Errors
    /// `EFBIG`, `ENOSPC` and other errors of [`BackingStore::reserve`], `EPERM` of a sealed file,
    /// `EIO`, `ENOMEM`, and those of the source, if nothing was written before.
    pub fn write_within(
        &self,
        limit: &SizeLimit,
        offset: u64,
        append: bool,
        from: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        let _turn = self.turn_to_write(offset, append, from.left());
        let old = self.size();
        let start = if append { old } else { offset };
        if from.left() == 0 {
            return Ok((0, start));
        }
        let most = self.store.properties().size_max.saturating_sub(start);
        let room = limit.room(start)?.min(most);
        if room == 0 {
            return Err(Errno::EFBIG);
        }
        let len = from.left().min(usize::try_from(room).unwrap_or(usize::MAX));
        if start + len as u64 > old {
            self.clear_behind_end(old, start)?;
            S::reserve_last(self, old, start + len as u64)?;
        }
        let mut done = 0;
        let mut result = Ok(());
        // Where the next pages may be lent: some are copied before the program is asked again.
        let mut lends_from = 0;
        let mut why = None;
        let mut copied = 0;
        let mut looks_at = LOOK;
        while done < len {
            if done >= looks_at {
                if vm::is_dying() {
                    break;
                }
                looks_at = done + LOOK;
            }
            let at = start + done as u64;
            let left = len - done;
            if left >= vm::least_move() && done >= lends_from {
                let (lent, outcome) = self.write_lent(at, left, from, &mut why);
                done += lent;
                if outcome.is_err() {
                    result = outcome;
                    break;
                }
                if lent > 0 {
                    continue;
                }
                lends_from = done + PASSED_TOGETHER * PAGE_SIZE;
            }
            match self.write_once(at, left, from) {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    copied += n;
                    let end = at + n as u64;
                    if end > self.size() {
                        self.size.store(end, Ordering::SeqCst);
                    }
                    // A step that ended inside a page reserved no more than it wrote.
                    if end > old && done < len {
                        result = S::reserve_last(self, end, start + len as u64);
                        if result.is_err() {
                            break;
                        }
                    }
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if let Some(why) = why {
            vm::count_moved(TransferCall::FileWrite, Moved::Copied(why), copied);
        }
        let end = start + done as u64;
        let reserves_pieces = self.store.properties().granule < PAGE || self.store.is_in_place();
        if done < len && start + len as u64 > old && reserves_pieces {
            // Room beyond the end that was reserved for the rest is freed, with the page in place
            // that it belongs to, or lost until the file system is checked.
            let _ = S::free(self, self.pages()..u64::MAX, Some(self.size()));
        }
        if done > 0 {
            self.store.changed((end > old).then_some(end));
        }
        match result {
            Err(error) if done == 0 => Err(error),
            _ => Ok((done, end)),
        }
    }

    /// Waits until `len` bytes from `offset` on may be written, or behind the end. A write inside
    /// of the file leaves the size as it is, and takes turns with those to the same pages only.
    fn turn_to_write(&self, offset: u64, append: bool, len: usize) -> Turn<'_> {
        let end = offset.saturating_add(len as u64);
        let is_inside = || end <= self.size() && len > 0 && !append && !self.store.is_in_place();
        if is_inside() {
            let parts = parts_with(pages_with(&(offset..end)));
            let turn = self.writers.write_parts(parts);
            if is_inside() {
                return Turn::Parts(turn);
            }
        }
        Turn::Alone(self.writers.write())
    }

    /// Makes whole pages of the program that writes pages of the file (page loanout, `uvm.txt` 7),
    /// from byte `at` on, up to `most` bytes; the end moves along. Pages that are there are written
    /// in place, which needs no frame. Returns how many bytes the pages have, and why the last one
    /// that was lent did not become the file's; `why` the next ones are to be copied, if they are.
    #[inline(never)]
    fn write_lent(
        &self,
        at: u64,
        most: usize,
        from: &mut dyn Source,
        why: &mut Option<CopyReason>,
    ) -> (usize, Result<()>) {
        let most = (most / PAGE_SIZE).min(PASSED_TOGETHER);
        let end = at + (most * PAGE_SIZE) as u64;
        let memory = self.may_adopt(at, end).and_then(|()| {
            let memory = from.program_memory().ok_or(CopyReason::NotLent)?;
            memory.lends(most).map(|()| memory)
        });
        let memory = match memory {
            Ok(memory) => memory,
            Err(now) => {
                *why = Some(now);
                return (0, Ok(()));
            }
        };
        let mut pages = [const { None::<Owned> }; PASSED_TOGETHER];
        let count = memory.lend(&mut pages[..most]);
        if count == 0 {
            *why = Some(CopyReason::NotLent);
        }
        let mut done = 0;
        let mut result = Ok(());
        for page in pages[..count].iter_mut().filter_map(Option::take) {
            let at = at + done as u64;
            if let Err(error) = self.adopt(at / PAGE, page) {
                result = Err(error);
                break;
            }
            done += PAGE_SIZE;
            if at + PAGE > self.size() {
                self.size.store(at + PAGE, Ordering::SeqCst);
            }
        }
        vm::count_moved(TransferCall::FileWrite, Moved::Passed, done);
        (done, result)
    }

    /// Whether pages of a program may become those from byte `at` up to byte `end`.
    ///
    /// # Errors
    /// Why they may not.
    fn may_adopt(&self, at: u64, end: u64) -> core::result::Result<(), CopyReason> {
        if !at.is_multiple_of(PAGE) {
            return Err(CopyReason::Unaligned);
        }
        if self.store.is_in_place() || self.is_mapped_writable() {
            return Err(CopyReason::NotTaken);
        }
        if at < self.size() {
            return Err(CopyReason::Overwritten);
        }
        // A write that is not allowed is refused page by page.
        S::may_write(self, end).map_err(|_| CopyReason::NotTaken)
    }

    /// Writes within one page at byte `at`, up to `max` bytes.
    fn write_once(&self, at: u64, max: usize, from: &mut dyn Source) -> Result<usize> {
        let (index, in_page) = (at / PAGE, (at % PAGE) as usize);
        let n = (PAGE_SIZE - in_page).min(max);
        S::may_write(self, at + n as u64)?;
        if self.store.is_in_place() {
            return self.write_in_place(at, n, from);
        }
        if n < PAGE_SIZE {
            return self.fill_page(index, in_page, n, &mut |frame, at, n| {
                from.take_into(frame, at, n)
            });
        }
        match from.take_slice(PAGE_SIZE) {
            None => self.fill_page(index, 0, n, &mut |frame, at, n| {
                from.take_into(frame, at, n)
            }),
            Some(slice) => match slice.into_page() {
                Ok(page) => self.adopt(index, page),
                Err(slice) => self.fill_page(index, 0, slice.len, &mut |frame, at, n| {
                    copy(&slice, frame, at, n)
                }),
            },
        }
    }

    /// Inserts a whole frame that a writer shared as page `index`, without a copy. Others may still
    /// have it.
    fn adopt(&self, index: u64, frame: Owned) -> Result<usize> {
        Self::throttle();
        S::reserve(self, index, None, (index + 1) * PAGE)?;
        Counter::bytes_passed.add(PAGE);
        if S::WRITES_BACK {
            pmap::set_modified(&frame);
        }
        let mut charged = Ok(());
        let may_add = || {
            charged = S::charge(self, 1);
            charged.is_ok()
        };
        self.object.replace(index, frame, may_add).map_err(errno)?;
        charged?;
        S::note_dirty(self, index);
        Ok(PAGE_SIZE)
    }

    /// Lets `fill` write bytes `at..at + n` of page `index`, which is read in, or made if all bytes
    /// that it had are overwritten.
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
        S::reserve(self, index, Some(&frame), 0)?;
        let n = fill(&frame, at, n)?;
        if n > 0 {
            self.mark_modified(index, &frame);
            Self::throttle();
        }
        Ok(n)
    }

    fn fill_absent(
        &self,
        index: u64,
        at: usize,
        n: usize,
        fill: &mut dyn FnMut(&Frame, usize, usize) -> Result<usize>,
    ) -> Result<usize> {
        Self::throttle();
        // Bytes of the page that the file has.
        let has = match S::SWAP_BACKED {
            true => 0,
            false => self.size().saturating_sub(index * PAGE).min(PAGE) as usize,
        };
        if has > 0 && (at > 0 || n < has) {
            self.fetch(index)?;
            return self.fill_page(index, at, n, fill);
        }
        S::charge(self, 1)?;
        let filled = self.fill_new(index, at, n, has, fill);
        if !matches!(filled, Ok((_, true))) {
            self.store.uncharge(1);
        }
        filled.map(|(n, _)| n)
    }

    /// As [`fill_page`](PageCache::fill_page), into a new page; returns also whether that became
    /// the file's. No thread sees it before it is complete.
    fn fill_new(
        &self,
        index: u64,
        at: usize,
        n: usize,
        has: usize,
        fill: &mut dyn FnMut(&Frame, usize, usize) -> Result<usize>,
    ) -> Result<(usize, bool)> {
        let frame = new_page()?;
        let filled = fill(&frame, at, n)?;
        if filled == 0 {
            return Ok((0, false));
        }
        if filled < n && filled < has {
            // The source ended inside of the bytes that the file had.
            if let Some(resident) = self.fetch(index)? {
                S::reserve(self, index, Some(&resident), 0)?;
                self.copy_into(index, &frame, at..at + filled, &resident);
            }
            return Ok((filled, false));
        }
        let page = ephemeral::map(&frame);
        page.fill(0, at, 0);
        page.fill(at + filled, PAGE_SIZE - at - filled, 0);
        drop(page);
        let end = index * PAGE + (at + filled) as u64;
        let inserted = self.insert_new(index, &frame, at..at + filled, end)?;
        Ok((filled, inserted))
    }

    /// Makes `frame`, whose bytes `new` were written, page `index` of a file that ends at `end`
    /// with it; or copies those bytes into the page that a fault has brought in meanwhile. Returns
    /// whether it became the page.
    pub(super) fn insert_new(
        &self,
        index: u64,
        frame: &Frame,
        new: Range<usize>,
        end: u64,
    ) -> Result<bool> {
        S::reserve(self, index, None, end)?;
        if S::WRITES_BACK {
            pmap::set_modified(frame);
        }
        let inserted = self.object.get_or_insert(index, || Ok(frame.clone()));
        let resident = match inserted.map_err(errno)?.resident() {
            Some(resident) => resident,
            // A fault made the page meanwhile, and it has gone to swap since.
            None => self.fetch(index)?.ok_or(Errno::EIO)?,
        };
        if resident == *frame {
            S::note_dirty(self, index);
            return Ok(true);
        }
        self.copy_into(index, frame, new, &resident);
        Ok(false)
    }

    /// Copies bytes of `frame` into page `index`, which is `resident`.
    fn copy_into(&self, index: u64, frame: &Frame, bytes: Range<usize>, resident: &Frame) {
        ephemeral::copy(resident, bytes.start, frame, bytes.start, bytes.len());
        self.mark_modified(index, resident);
    }

    /// Inserts a page of zeros with room as page `index`, beyond the end of a file that ends at
    /// `end` then.
    pub(super) fn insert_zeros(&self, index: u64, end: u64) -> Result<()> {
        Self::throttle();
        let frame = new_page()?;
        ephemeral::map(&frame).fill(0, PAGE_SIZE, 0);
        self.insert_new(index, &frame, 0..PAGE_SIZE, end).map(drop)
    }

    /// Clears the rest of the last page, in memory and on the device, before the end moves on from
    /// `old` by a write that begins at `start`.
    pub(crate) fn clear_behind_end(&self, old: u64, start: u64) -> Result<()> {
        self.store.about_to_grow()?;
        let (index, in_page) = (old / PAGE, (old % PAGE) as usize);
        if in_page == 0 {
            return Ok(());
        }
        // In memory the rest is zeros already, but for stores of mappings; and a write to the same
        // page makes it dirty.
        let is_written = !S::WRITES_BACK || start / PAGE == index;
        if is_written && !self.was_mapped_writable.load(Ordering::Acquire) {
            return Ok(());
        }
        // Zeros in memory need not be zeros on the device: a mapping's stores beyond the end were
        // written back with the rest of the page. A hole has no block.
        let has_place = S::WRITES_BACK
            && (S::is_reserved(self, index) || S::seek(self, index..index + 1, false)?.is_some());
        self.clear_if(index, in_page, PAGE_SIZE, has_place)
    }

    /// Clears bytes `from..to` of page `index`, unless they are zeros.
    pub(crate) fn clear(&self, index: u64, from: usize, to: usize) -> Result<()> {
        self.clear_if(index, from, to, false)
    }

    /// As [`clear`](PageCache::clear); with `always` the page is written even if they are zeros.
    fn clear_if(&self, index: u64, from: usize, to: usize, always: bool) -> Result<()> {
        loop {
            let Some(frame) = self.own_page(index)? else {
                if !S::WRITES_BACK {
                    return Ok(());
                }
                self.fetch(index)?;
                continue;
            };
            if always || !S::WRITES_BACK || !is_zero(&frame, from, to) {
                S::reserve(self, index, Some(&frame), 0)?;
                ephemeral::map(&frame).fill(from, to - from, 0);
                self.mark_modified(index, &frame);
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
    ephemeral::copy(to, at, from.frame(), from.offset, n);
    Ok(n)
}
