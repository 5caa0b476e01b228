//! Reading. The bytes of a call go page by page, in one of three ways:
//!
//! - *kept*: a sink that keeps pages gets another owner of the page ([`Sink::keeps`]).
//! - *passed*: whole pages of a large call take the place of a program's own (`uvm.txt` 7).
//! - *copied*: all others, as those that cannot be lent.

use core::ops::Range;

use abi::Result;
use fbuf::{Sink, Slice, counters::Counter, moved};
use nucleus::{Frame, PAGE_SIZE, pmap};
use vm::{CopyReason, Moved, PASSED_TOGETHER, PagerError, TransferCall};

use super::{
    backing_store::BackingStore,
    cache::{LOOK, PAGE, PageCache, errno, pages_with},
    readahead::{Access, Streams},
};

/// One call that reads.
struct Call<'a, S: BackingStore> {
    cache: &'a PageCache<S>,
    streams: Option<&'a Streams>,
    /// The pages with the bytes.
    pages: Range<u64>,
    /// The page that was just brought in: this is its first use.
    fresh: u64,
}

/// What becomes of the pages of a large call.
#[derive(Default)]
struct Large {
    /// The byte from which on pages may be passed: some are copied before the history is asked
    /// again.
    passes_from: usize,
    /// Why pages were not passed, if that was tried.
    why: Option<CopyReason>,
    /// Bytes that were copied.
    copied: usize,
}

/// The next bytes of a call, all in one page.
#[derive(Clone, Copy)]
struct Piece {
    index: u64,
    in_page: usize,
    len: usize,
}

impl Piece {
    /// The bytes from byte `at` on, `most` at most.
    #[inline(always)]
    fn new(at: u64, most: usize) -> Piece {
        let in_page = (at % PAGE) as usize;
        Piece {
            index: at / PAGE,
            in_page,
            len: (PAGE_SIZE - in_page).min(most),
        }
    }
}

impl<S: BackingStore> PageCache<S> {
    /// As [`Vnode::read`](crate::Vnode::read).
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`, and those of the sink, if nothing was read before.
    pub fn read(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        if to.keeps() {
            return self.read_kept(offset, to);
        }
        let room = to.room();
        let mut len = self.left(offset, room);
        if len == 0 {
            return Ok(0);
        }
        let mut call = self.begin_read(offset, len);
        let mut large = (len >= vm::least_large()).then(Large::default);
        let mut done = 0;
        let mut looks_at = LOOK;
        let result = loop {
            if done == len {
                break Ok(());
            }
            if done >= looks_at {
                if vm::is_dying() {
                    break Ok(());
                }
                looks_at = done + LOOK;
            }
            let piece = Piece::new(offset + done as u64, len - done);
            if let Some(large) = &mut large
                && let Some(n) = call.pass(large, piece, done, len - done, to)
            {
                done += n;
                continue;
            }
            match call.copy(piece, to) {
                Ok(None) => len = self.left(offset, room).clamp(done, len),
                Ok(Some(0)) => break Ok(()),
                Ok(Some(n)) => {
                    done += n;
                    if let Some(large) = &mut large {
                        large.copied += n;
                    }
                }
                Err(error) => break Err(error),
            }
        };
        if let Some(why) = large.as_ref().and_then(|large| large.why) {
            let copied = large.map_or(0, |large| large.copied);
            vm::count_moved(TransferCall::FileRead, Moved::Copied(why), copied);
        }
        call.end();
        moved(done, result)
    }

    /// As [`read`](PageCache::read), for a sink that keeps pages.
    #[inline(never)]
    fn read_kept(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        // Such a sink does not fault; while the lock is held no page that it keeps is written.
        let _turn = self.writers.read();
        let room = to.room();
        let mut len = self.left(offset, room);
        if len == 0 {
            return Ok(0);
        }
        let mut call = self.begin_read(offset, len);
        let mut done = 0;
        let result = loop {
            if done == len {
                break Ok(());
            }
            match call.keep(Piece::new(offset + done as u64, len - done), to) {
                Ok(None) => len = self.left(offset, room).clamp(done, len),
                Ok(Some(0)) => break Ok(()),
                Ok(Some(n)) => done += n,
                Err(error) => break Err(error),
            }
        };
        call.end();
        moved(done, result)
    }

    /// Begins a call that reads `len` bytes from `offset` on.
    #[inline(always)]
    fn begin_read(&self, offset: u64, len: usize) -> Call<'_, S> {
        let pages = pages_with(&(offset..offset + len as u64));
        let streams = self.store.streams();
        if let Some(next) = streams.and_then(|it| it.touched(&pages, self.pages())) {
            S::prefetch(self, next);
        }
        Call {
            cache: self,
            streams,
            pages,
            fresh: u64::MAX,
        }
    }

    /// Bytes from `offset` on, `room` at most.
    #[inline(always)]
    fn left(&self, offset: u64, room: usize) -> usize {
        let left = self.size().saturating_sub(offset);
        usize::try_from(left).unwrap_or(usize::MAX).min(room)
    }

    /// Lends resident pages from page `index` on to a sink that takes pages in the place of its own
    /// (`uvm.txt` 7), `most` at most; returns how many.
    ///
    /// # Errors
    /// Why the first one is to be copied, as those of a file whose lent pages are mostly written
    /// soon.
    fn pass_pages(
        &self,
        index: u64,
        most: usize,
        to: &mut dyn Sink,
    ) -> core::result::Result<usize, CopyReason> {
        // No page is being written now. A writer at work is not waited for: it may sleep for long.
        let turn = self.writers.try_read().ok_or(CopyReason::Busy)?;
        // The file's history first: where that says no, the program's has not to count pages.
        let most = most.min(PASSED_TOGETHER);
        vm::may_move(most, &self.lent)?;
        let memory = to.program_memory().ok_or(CopyReason::NotTaken)?;
        let most = memory.places(most)?;
        let mut pages = [const { None }; PASSED_TOGETHER];
        let lent = (index..).map(|index| self.lend_page(index));
        let lent = lent.take_while(Option::is_some);
        let places = pages[..most].iter_mut().zip(lent);
        let count = places.map(|(place, page)| *place = page).count();
        drop(turn);
        let streams = self.store.streams();
        if streams.is_some_and(|it| !it.is(Access::Once)) {
            pages
                .iter()
                .flatten()
                .for_each(|page| pmap::set_referenced(page));
        }
        if count == 0 {
            return Err(CopyReason::NotLent);
        }
        match memory.take_pages(&mut pages[..count]) {
            0 => Err(CopyReason::NotTaken),
            taken => {
                Counter::bytes_passed.add((taken * PAGE_SIZE) as u64);
                vm::count_moved(TransferCall::FileRead, Moved::Passed, taken * PAGE_SIZE);
                Ok(taken)
            }
        }
    }
}

impl<S: BackingStore> Call<'_, S> {
    /// Tells the streams that the call is over.
    #[inline(always)]
    fn end(&self) {
        if let Some(streams) = self.streams {
            streams.ended(self.pages.end);
        }
    }

    /// Passes pages from the one of `piece` on, `done` bytes behind the beginning of the call with
    /// `left` more, if that is worth a try; returns how many bytes went.
    #[inline(never)]
    fn pass(
        &mut self,
        large: &mut Large,
        piece: Piece,
        done: usize,
        left: usize,
        to: &mut dyn Sink,
    ) -> Option<usize> {
        if done < large.passes_from {
            return None;
        }
        if piece.in_page != 0 || left < vm::least_move() {
            large.why = large.why.or(Some(vm::reason_to_copy(left)));
            return None;
        }
        if self.cache.store.is_in_place() {
            large.why = Some(CopyReason::NotLent);
            large.passes_from = usize::MAX;
            return None;
        }
        if self.cache.object.resident(piece.index).is_none() {
            // With a stream it is read, and passed then.
            let is_absent = self.streams.is_none();
            large.why = large.why.or(is_absent.then_some(CopyReason::NotLent));
            return None;
        }
        match self.cache.pass_pages(piece.index, left / PAGE_SIZE, to) {
            Ok(passed) => Some(passed * PAGE_SIZE),
            Err(why) => {
                large.why = Some(why);
                large.passes_from = done + PASSED_TOGETHER * PAGE_SIZE;
                None
            }
        }
    }

    /// Gives the bytes with their page to a sink that keeps it, if it can be lent; else as
    /// [`copy`](Call::copy).
    #[inline(always)]
    fn keep(&mut self, piece: Piece, to: &mut dyn Sink) -> Result<Option<usize>> {
        let Some(page) = self.cache.lend_page(piece.index) else {
            return self.copy(piece, to);
        };
        self.note_use(piece, &page);
        to.put_slice(Slice::within(page, piece.in_page, piece.len))
            .map(Some)
    }

    /// Copies the bytes, and returns how many; `None` if their page was not there. It was brought
    /// in, unless the file is shorter by now.
    #[inline(always)]
    fn copy(&mut self, piece: Piece, to: &mut dyn Sink) -> Result<Option<usize>> {
        let object = &self.cache.object;
        let found = match (object.resident(piece.index), self.streams) {
            (None, Some(streams)) => {
                self.bring_in(piece.index, streams)?;
                return Ok(None);
            }
            (None, None) => object.bring_in(piece.index).map_err(errno)?,
            (found, _) => found,
        };
        let put = match found {
            Some(frame) => {
                self.note_use(piece, &frame);
                to.put_frame(&frame, piece.in_page, piece.len)
            }
            None => to.put_zeros(piece.len),
        };
        put.map(Some)
    }

    fn bring_in(&mut self, index: u64, streams: &Streams) -> Result<()> {
        let cache = self.cache;
        let wanted = index..self.pages.end;
        match cache.miss(index, streams, |it| it.missed(wanted, cache.pages())) {
            Ok(()) | Err(PagerError::BeyondEnd) => {}
            Err(error) => return Err(errno(error)),
        }
        self.fresh = index;
        Ok(())
    }

    #[inline(always)]
    fn note_use(&self, piece: Piece, frame: &Frame) {
        let is_first = piece.in_page == 0 && piece.index != self.fresh;
        if is_first && self.streams.is_some_and(|it| !it.is(Access::Once)) {
            // Its mappings, if it has any, don't show this use.
            pmap::set_referenced(frame);
        }
    }
}
