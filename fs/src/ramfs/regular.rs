//! The bytes of regular files.
//!
//! A file's pages are the resident pages of its object; a page that is not resident is a hole.
//! What has been passed on (a frame that an aggregate keeps) is immutable: a page that others
//! hold is replaced by a copy before it is written.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use abi::raw::general::{
    F_SEAL_FUTURE_WRITE, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE,
    FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE,
};
use abi::{Errno, Result};
use fbuf::{Sink, Slice, Source, moved};
use nucleus::{
    Frame, PAGE_SIZE,
    counters::Counter,
    ephemeral,
    frame::Contents,
    sync::{Mutex, Rank},
};
use vm::{Description, Object, Pager, PagerError, Supply, wait_for_memory};

use super::{
    Ramfs,
    node::{Body, Node},
};
use crate::{DenyWrite, Vnode, shared_pages};

/// The largest size of a file.
const SIZE_MAX: u64 = i64::MAX as u64;
const PAGE: u64 = PAGE_SIZE as u64;

/// A regular file.
pub(super) struct Regular {
    object: Object,
    /// Grows under `writers`; shrinks under it, before pages go.
    size: AtomicU64,
    /// Held by who writes, truncates or passes pages on, across the copy from the program too,
    /// so that writes are atomic to each other. No fault takes it.
    writers: Mutex<()>,
    /// Shared mappings that may write.
    writable_mappings: AtomicU32,
    /// There were such mappings: bytes behind the end may not be zero.
    was_mapped_writable: AtomicBool,
    /// A page of it was passed on to someone who keeps it, or came from someone who may.
    passed: AtomicBool,
    /// `F_SEAL_*`. Grow under `writers`.
    seals: AtomicU32,
    pub(super) text: DenyWrite,
}

/// Seals against writing.
const NO_WRITE: u32 = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;

/// What the object of a node is that is no regular file; nobody maps it.
static NO_OBJECT: Object = Object::new();

impl Regular {
    /// Empty, and never to be sealed.
    pub(super) fn new() -> Regular {
        Regular::with_seals(F_SEAL_SEAL)
    }

    /// Empty, with these seals.
    pub(super) fn with_seals(seals: u32) -> Regular {
        Regular {
            seals: AtomicU32::new(seals),
            text: DenyWrite::new(),
            object: Object::swap_backed(),
            size: AtomicU64::new(0),
            writers: Mutex::new(Rank::Vnode, ()),
            writable_mappings: AtomicU32::new(0),
            was_mapped_writable: AtomicBool::new(false),
            passed: AtomicBool::new(false),
        }
    }

    /// As [`Vnode::seals`].
    pub(super) fn seals(&self) -> u32 {
        self.seals.load(Ordering::SeqCst)
    }

    /// As [`Vnode::add_seals`]. A mapping that comes at the same time either is seen here, or its first write sees
    /// the seal.
    pub(super) fn add_seals(&self, seals: u32) -> Result<()> {
        let _turn = self.writers.lock();
        let old = self.seals();
        if old & F_SEAL_SEAL != 0 {
            return Err(Errno::EPERM);
        }
        self.seals.store(old | seals, Ordering::SeqCst);
        let sealed_now = seals & F_SEAL_WRITE & !old != 0;
        if sealed_now && self.writable_mappings.load(Ordering::SeqCst) > 0 {
            self.seals.store(old, Ordering::SeqCst);
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    /// Whether a seal lets bytes up to `end` change.
    fn check_write(&self, end: u64) -> Result<()> {
        let seals = self.seals();
        if seals & NO_WRITE != 0 || seals & F_SEAL_GROW != 0 && end > self.size() {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Bytes.
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Pages that it has, in memory or in swap.
    pub(super) fn pages(&self) -> usize {
        self.object.resident_count()
    }

    pub(super) fn read(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        let keeps = to.keeps();
        // Such a sink does not fault; while the lock is held no page it keeps is being written.
        let _turn = keeps.then(|| self.writers.lock());
        let may_keep = keeps && {
            // Before the look at the mappings: one that becomes writable meanwhile sees this.
            self.passed.store(true, Ordering::SeqCst);
            self.writable_mappings.load(Ordering::SeqCst) == 0
        };
        let left = self.size().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(to.room());
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (index, in_page) = (at / PAGE, (at % PAGE) as usize);
            let n = (PAGE_SIZE - in_page).min(len - done);
            let page = match self.object.bring_in(index) {
                Ok(page) => page,
                Err(error) => return moved(done, Err(errno(error))),
            };
            let put = match page {
                Some(frame) if keeps && !may_keep => to.put_frame_copy(&frame, in_page, n),
                Some(frame) => to.put_frame(&frame, in_page, n),
                None => to.put_zeros(n),
            };
            match put {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) => return moved(done, Err(error)),
            }
        }
        Ok(done)
    }

    /// As [`Vnode::write`].
    pub(super) fn write(
        &self,
        fs: &Ramfs,
        offset: u64,
        append: bool,
        from: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        let _turn = self.writers.lock();
        let start = if append { self.size() } else { offset };
        if from.left() == 0 {
            return Ok((0, start));
        }
        let room = SIZE_MAX.saturating_sub(start);
        if room == 0 {
            return Err(Errno::EFBIG);
        }
        let len = from.left().min(usize::try_from(room).unwrap_or(usize::MAX));
        if start + len as u64 > self.size() {
            self.clear_behind_end()?;
        }
        let mut done = 0;
        while done < len {
            let at = start + done as u64;
            match self.write_once(fs, at, len - done, from) {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    self.size.fetch_max(at + n as u64, Ordering::Release);
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok((done, start + done as u64))
    }

    /// Writes within one page at byte `at`, up to `max` bytes.
    fn write_once(&self, fs: &Ramfs, at: u64, max: usize, from: &mut dyn Source) -> Result<usize> {
        let (index, in_page) = (at / PAGE, (at % PAGE) as usize);
        let n = (PAGE_SIZE - in_page).min(max);
        self.check_write(at + n as u64)?;
        if in_page > 0 || n < PAGE_SIZE {
            return self.fill_page(fs, index, in_page, n, &mut |frame, at, n| {
                from.take_into(frame, at, n)
            });
        }
        match from.take_slice(PAGE_SIZE) {
            None => self.fill_page(fs, index, 0, n, &mut |frame, at, n| {
                from.take_into(frame, at, n)
            }),
            Some(slice) if slice.len == PAGE_SIZE => self.adopt(fs, index, slice.frame),
            Some(slice) => self.fill_page(fs, index, 0, slice.len, &mut |frame, at, n| {
                copy(&slice, frame, at, n)
            }),
        }
    }

    /// Makes a whole frame that somebody passed on page `index`, without copying. Others may still keep it.
    fn adopt(&self, fs: &Ramfs, index: u64, frame: Frame) -> Result<usize> {
        self.passed.store(true, Ordering::SeqCst);
        if self.writable_mappings.load(Ordering::SeqCst) > 0 {
            // A page mapped for writing must not be one that others keep.
            let slice = Slice::whole(frame);
            return self.fill_page(fs, index, 0, PAGE_SIZE, &mut |frame, at, n| {
                copy(&slice, frame, at, n)
            });
        }
        fs.take_page()?;
        Counter::bytes_passed.add(PAGE);
        match self.object.replace(index, frame) {
            Ok(false) => Ok(PAGE_SIZE),
            Ok(true) => {
                fs.give_pages(1);
                Ok(PAGE_SIZE)
            }
            Err(error) => {
                fs.give_pages(1);
                Err(errno(error))
            }
        }
    }

    /// Lets `fill` write bytes `at..at + n` of page `index`, which is made if it is a hole.
    fn fill_page(
        &self,
        fs: &Ramfs,
        index: u64,
        at: usize,
        n: usize,
        fill: &mut dyn FnMut(&Frame, usize, usize) -> Result<usize>,
    ) -> Result<usize> {
        if let Some(frame) = self.page_to_write(index)? {
            let n = fill(&frame, at, n)?;
            self.settle(index, &frame, at, n)?;
            return Ok(n);
        }
        // Nobody sees the new page before it is complete, so only what is not written need be cleared.
        fs.take_page()?;
        let filled = new_page().and_then(|frame| {
            let n = fill(&frame, at, n)?;
            let page = ephemeral::map(&frame);
            page.fill(0, at, 0);
            page.fill(at + n, PAGE_SIZE - at - n, 0);
            drop(page);
            Ok((frame, n))
        });
        let (frame, n) = match filled {
            Ok((frame, n)) if n > 0 => (frame, n),
            other => {
                fs.give_pages(1);
                return other.map(|(_, n)| n);
            }
        };
        let resident = match self.object.get_or_insert(index, || Ok(frame.clone())) {
            // A fault made the page meanwhile, and it has gone to swap since.
            Err(PagerError::Sleeps) => match self.object.bring_in_to_write(index) {
                Ok(page) => page.ok_or(PagerError::Io),
                Err(error) => Err(error),
            },
            resident => resident,
        };
        match resident {
            Ok(resident) if resident == frame => Ok(n),
            Ok(resident) => {
                // A fault made the page meanwhile.
                fs.give_pages(1);
                let mut slice = Slice::whole(frame);
                slice.offset = at;
                copy(&slice, &resident, at, n)?;
                self.settle(index, &resident, at, n)?;
                Ok(n)
            }
            Err(error) => {
                fs.give_pages(1);
                Err(errno(error))
            }
        }
    }

    /// Page `index`, none but the file's own and its mappings', brought back if it is in swap.
    fn page_to_write(&self, index: u64) -> Result<Option<Frame>> {
        loop {
            let Some(frame) = self.object.bring_in_to_write(index).map_err(errno)? else {
                return Ok(None);
            };
            if !self.is_kept(&frame) {
                return Ok(Some(frame));
            }
            let own = new_page()?;
            if self.object.replace_by_copy(index, &frame, own.clone()) {
                return Ok(Some(own));
            }
        }
    }

    /// Whether others may keep a page: it is left to them, and a copy takes its place before it is written.
    fn is_kept(&self, frame: &Frame) -> bool {
        self.passed.load(Ordering::SeqCst) && !shared_pages::is_own(frame)
    }

    /// Bytes `at..at + len` of `frame`, which was page `index`, were written just now, by who holds `writers`: the page has them, even if a fault has put a
    /// copy in its place meanwhile.
    fn settle(&self, index: u64, frame: &Frame, at: usize, len: usize) -> Result<()> {
        if !self.passed.load(Ordering::SeqCst) {
            return Ok(());
        }
        let page = || self.object.bring_in_to_write(index).map_err(errno);
        shared_pages::settle(frame, at, len, page, |_| {})
    }

    /// Clears what mappings may have written behind the end, before the end moves on.
    fn clear_behind_end(&self) -> Result<()> {
        if !self.was_mapped_writable.load(Ordering::Acquire) {
            return Ok(());
        }
        self.clear(self.size(), self.size().next_multiple_of(PAGE))
    }

    /// Clears bytes of one page, if it is resident.
    fn clear(&self, from: u64, to: u64) -> Result<()> {
        if from < to
            && let Some(frame) = self.page_to_write(from / PAGE)?
        {
            let (at, len) = ((from % PAGE) as usize, (to - from) as usize);
            ephemeral::map(&frame).fill(at, len, 0);
            self.settle(from / PAGE, &frame, at, len)?;
        }
        Ok(())
    }

    /// As [`Vnode::truncate`].
    pub(super) fn truncate(&self, fs: &Ramfs, size: u64) -> Result<()> {
        if size > SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        let _turn = self.writers.lock();
        let old = self.size();
        let seal = match size.cmp(&old) {
            core::cmp::Ordering::Less => F_SEAL_SHRINK,
            core::cmp::Ordering::Equal => 0,
            core::cmp::Ordering::Greater => F_SEAL_GROW,
        };
        if self.seals() & seal != 0 {
            return Err(Errno::EPERM);
        }
        if size > old {
            self.clear_behind_end()?;
            self.size.store(size, Ordering::Release);
        } else if size < old {
            let last_end = size.next_multiple_of(PAGE);
            // May need a page, and fail; nothing has changed until then. Done again afterwards, for a mapping's writes in between.
            self.clear(size, last_end)?;
            self.size.store(size, Ordering::Release);
            // A fault that has not seen the new size inserts its page before this takes the pages out.
            fs.give_pages(self.object.truncate(last_end / PAGE));
            self.clear(size, last_end)?;
        }
        Ok(())
    }

    /// As [`Vnode::allocate`].
    pub(super) fn allocate(&self, fs: &Ramfs, mode: u32, offset: u64, len: u64) -> Result<()> {
        let keep_size = mode & FALLOC_FL_KEEP_SIZE != 0;
        let end = offset.checked_add(len).filter(|&end| end <= SIZE_MAX);
        let end = end.ok_or(Errno::EFBIG)?;
        match mode & !FALLOC_FL_KEEP_SIZE {
            FALLOC_FL_PUNCH_HOLE if keep_size => {
                let _turn = self.writers.lock();
                self.check_write(0)?;
                return self.punch(fs, offset, end);
            }
            FALLOC_FL_ZERO_RANGE | 0 => {}
            _ => return Err(Errno::EOPNOTSUPP),
        }
        let _turn = self.writers.lock();
        if self.seals() & F_SEAL_GROW != 0 && end > self.size() {
            return Err(Errno::EPERM);
        }
        if mode & FALLOC_FL_ZERO_RANGE != 0 {
            self.check_write(0)?;
            self.punch(fs, offset, end)?;
        }
        let size = self.size();
        // A page behind the end could be mapped, which must fail: with KEEP_SIZE none are made there.
        let end = if keep_size { end.min(size) } else { end };
        let (first, last) = (offset / PAGE, end.div_ceil(PAGE));
        if last.saturating_sub(first) > fs.free_pages() + self.pages() as u64 {
            return Err(Errno::ENOSPC);
        }
        if end > size {
            self.clear_behind_end()?;
        }
        for index in first..last {
            let made = loop {
                match self.make_resident(fs, index, || true) {
                    // It is there, in swap.
                    Err(PagerError::Sleeps) => break Ok(()),
                    Err(PagerError::OutOfMemory) if wait_for_memory() == Supply::Some => {}
                    made => break made.map(drop),
                }
            };
            if let Err(error) = made {
                fs.give_pages(self.object.truncate(size.div_ceil(PAGE)));
                return Err(match error {
                    PagerError::Io => Errno::ENOSPC,
                    other => errno(other),
                });
            }
        }
        self.size.fetch_max(end, Ordering::Release);
        Ok(())
    }

    /// Makes bytes `from..to` a hole, up to whole pages.
    fn punch(&self, fs: &Ramfs, from: u64, to: u64) -> Result<()> {
        let (first, last) = (from.next_multiple_of(PAGE), to / PAGE * PAGE);
        if first > last {
            // Inside of one page.
            return self.clear(from, to);
        }
        self.clear(from, first)?;
        self.clear(last, to)?;
        let count = (last - first) / PAGE;
        if count > 0 {
            fs.give_pages(self.object.remove_pages(first / PAGE, count));
        }
        Ok(())
    }

    /// As [`Vnode::seek_data`].
    pub(super) fn seek_data(&self, offset: u64, hole: bool) -> Result<u64> {
        let size = self.size();
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        let mut index = offset / PAGE;
        if hole {
            while index * PAGE < size && self.object.has(index) {
                index += 1;
            }
            return Ok((index * PAGE).clamp(offset, size));
        }
        match self.object.next_resident(index) {
            Some(index) if index * PAGE < size => Ok((index * PAGE).max(offset)),
            _ => Err(Errno::ENXIO),
        }
    }

    /// The resident page `index`, or a new one of zeros if `wanted` still says so with the object's lock held.
    fn make_resident(
        &self,
        fs: &Ramfs,
        index: u64,
        wanted: impl FnOnce() -> bool,
    ) -> core::result::Result<Frame, PagerError> {
        let mut counted = false;
        let page = self.object.get_or_insert(index, || {
            if !wanted() {
                return Err(PagerError::BeyondEnd);
            }
            fs.take_page().map_err(|_| PagerError::Io)?;
            counted = true;
            Ok(Frame::alloc(Contents::Zeroed)?)
        });
        if page.is_err() && counted {
            fs.give_pages(1);
        }
        page
    }
}

/// Copies bytes of a slice, from its start.
fn copy(from: &Slice, to: &Frame, at: usize, n: usize) -> Result<usize> {
    let source = ephemeral::map(&from.frame);
    ephemeral::map(to).copy_from(at, &source, from.offset, n);
    Ok(n)
}

/// A frame for a page, bytes of its last owner in it.
fn new_page() -> Result<Frame> {
    vm::alloc_frame(Contents::Stale).map_err(|_| Errno::ENOMEM)
}

fn errno(error: PagerError) -> Errno {
    match error {
        PagerError::OutOfMemory => Errno::ENOMEM,
        PagerError::BeyondEnd | PagerError::Io | PagerError::Sleeps => Errno::EIO,
    }
}

impl Node {
    fn file(&self) -> Option<&Regular> {
        match &self.body {
            Body::Regular(file) => Some(file),
            _ => None,
        }
    }
}

impl Pager for Node {
    fn object(&self) -> &Object {
        self.file().map_or(&NO_OBJECT, |file| &file.object)
    }

    fn get(&self, index: u64) -> core::result::Result<Frame, PagerError> {
        let file = self.file().ok_or(PagerError::Io)?;
        let inside = || index < file.size().div_ceil(PAGE);
        if !inside() {
            return Err(PagerError::BeyondEnd);
        }
        file.make_resident(&self.fs, index, inside)
    }

    fn admit(&self, pages: Range<u64>) -> bool {
        self.file().is_some_and(|file| {
            pages.end <= file.size() / PAGE && self.fs.take_pages(pages.end - pages.start).is_ok()
        })
    }

    fn dismiss(&self, pages: usize) {
        self.fs.give_pages(pages);
    }

    fn reference(&self, writable: bool) {
        if let (Some(file), true) = (self.file(), writable) {
            file.was_mapped_writable.store(true, Ordering::Release);
            file.writable_mappings.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn detach(&self, writable: bool) {
        if let (Some(file), true) = (self.file(), writable) {
            file.writable_mappings.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn about_to_write(&self, index: u64) -> core::result::Result<(), PagerError> {
        let Some(file) = self.file() else {
            return Ok(());
        };
        if file.seals() & F_SEAL_WRITE != 0 {
            return Err(PagerError::Io);
        }
        self.touch_modified();
        while let Some(frame) = file.object.resident(index)
            && file.is_kept(&frame)
        {
            let own = new_page().map_err(|_| PagerError::OutOfMemory)?;
            file.object.replace_by_copy(index, &frame, own);
        }
        Ok(())
    }

    fn describe(&self) -> Description {
        let attributes = self.attributes().ok();
        Description {
            device: attributes.map_or(0, |a| a.device),
            inode: attributes.map_or(0, |a| a.inode),
            name: alloc::vec::Vec::new(),
        }
    }
}
