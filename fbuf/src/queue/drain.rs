//! The reader's side: bytes are copied without the chain's lock, then taken off.

use crate::counters::Counter;
use abi::Result;

use nucleus::{PAGE_SIZE, frame::Owned};
use vm::{CopyReason, Moved, Overwriting, PASSED_TOGETHER};

use super::{Chain, Queue, Reading, State};
use crate::{
    io::{Sink, UserBuffers, moved},
    slice::{Slice, View},
};

/// One call that reads from a queue of kind `S`. Hooks with a chain run under its lock: they
/// neither sleep nor free frames.
pub trait Drain<S: State> {
    /// Returns a handle of the next bytes: up to the next mark, the call's end, or the end of the
    /// first slice. `None` ends the call, unless [`resume`](Drain::resume) says otherwise.
    #[inline]
    fn front(&mut self, chain: &mut Chain<S>) -> Option<View> {
        chain.first()
    }

    /// Returns how many of the first slices, `most` at most, may be taken off in one step, each of
    /// them a whole page that was lent ([`Chain::lent_pages`]). It is called as
    /// [`front`](Drain::front) is.
    #[inline]
    fn pages(&mut self, chain: &mut Chain<S>, most: usize) -> usize {
        let _ = (chain, most);
        0
    }

    /// Takes off `n` bytes of the first slice, which were copied, and decides whether writers are
    /// to be told.
    fn take(&mut self, chain: &mut Chain<S>, n: usize) -> Option<Slice>;

    /// Runs after each [`take`](Drain::take), with no spin lock held: tells writers that can go
    /// on beside the call.
    #[inline]
    fn took(&mut self) {}

    /// Returns whether the call, which has emptied the queue, may go on with the bytes of a writer
    /// that waits for room. A writer `beside` it, on another CPU, goes on by itself as well once it
    /// has been told that there is room.
    fn may_pull(&mut self, chain: &mut Chain<S>, beside: bool) -> bool {
        let _ = (chain, beside);
        false
    }

    /// Notes that it went on by `n` bytes: writers are to be told.
    fn pulled(&mut self, chain: &mut Chain<S>, n: usize) {
        let _ = (chain, n);
    }

    /// Does work that the chain's lock forbids, after [`front`](Drain::front) returned `None`;
    /// returns whether to look at the front again.
    #[inline]
    fn resume(&mut self, queue: &Queue<S>) -> bool {
        let _ = queue;
        false
    }
}

impl<S: State> Queue<S> {
    /// Moves bytes that are there to a sink, `max` at most; returns how many. The caller wakes
    /// writers as [`Drain::take`] says.
    ///
    /// # Errors
    /// Those of the sink, if it took nothing.
    pub fn drain<D: Drain<S>>(
        &self,
        _reading: &Reading<'_>,
        to: &mut dyn Sink,
        max: usize,
        call: &mut D,
    ) -> Result<usize> {
        let room = max.min(to.room());
        if room == 0 {
            return Ok(0);
        }
        let total = match room >= vm::least_move() {
            true => self.drain_large(to, room, call)?,
            false => self.drain_copying(to, room, 0, false, call)?,
        };
        match room - total >= vm::least_direct() {
            true => Ok(total + self.pull(to, room - total, call)),
            false => Ok(total),
        }
    }

    /// As [`drain`](Queue::drain) for bytes that may go with their pages: as many as do, and copies
    /// of those between. A writer on another CPU adds pages meanwhile.
    #[inline(never)]
    fn drain_large<D: Drain<S>>(
        &self,
        to: &mut dyn Sink,
        room: usize,
        call: &mut D,
    ) -> Result<usize> {
        let mut total = 0;
        loop {
            let (passed, why) = match to.program_memory() {
                Some(memory) => self.transfer(memory, (room - total) / PAGE_SIZE, call),
                None => (0, CopyReason::NotTaken),
            };
            total += passed;
            if total == room {
                return Ok(total);
            }
            let before = total;
            let until_lent = why == CopyReason::NotLent;
            let is_empty = self.lock().data.is_empty();
            let overwriting = (!is_empty).then(Overwriting::begin);
            total = self.drain_copying(to, room, total, until_lent, call)?;
            if let Some(overwriting) = overwriting {
                overwriting.end();
            }
            if total > before {
                vm::count_moved(S::CALLS[1], Moved::Copied(why), total - before);
            }
            // The program takes such pages, or says why it does not.
            if !until_lent || !may_go_on(self.lock().aside(), room - total, call) {
                return Ok(total);
            }
        }
    }

    /// As [`drain`](Queue::drain) for what does not go with its pages, up to `max` bytes, for which
    /// there is room, after `total` bytes did; with `until_lent` up to a page that may.
    #[inline(always)]
    fn drain_copying<D: Drain<S>>(
        &self,
        to: &mut dyn Sink,
        max: usize,
        mut total: usize,
        until_lent: bool,
        call: &mut D,
    ) -> Result<usize> {
        let keeps = to.keeps();
        let next_of = |chain: &mut Chain<S>, room: usize, call: &mut D| match until_lent
            && may_go_on(chain, room, call)
        {
            true => None,
            false => call.front(chain),
        };
        // A handle of the slice keeps its frame while bytes are copied without the lock.
        loop {
            let mut next = next_of(self.lock().aside(), max - total, call);
            while let Some(slice) = next {
                let len = slice.len.min(max - total);
                let put = match keeps {
                    true => self.put_first(to, len),
                    false => to.put_frame(&slice.frame, slice.offset, len),
                };
                let n = match put {
                    Ok(0) => return Ok(total),
                    Ok(n) => n,
                    Err(error) => return moved(total, Err(error)),
                };
                total += n;
                // One that keeps slices may take no more of them.
                let is_over = total == max || keeps && to.room() == 0;
                let old = {
                    let mut chain = self.lock();
                    let mut old = call.take(&mut chain, n);
                    chain.aside().recycle(&mut old, &slice);
                    next = match is_over {
                        true => None,
                        false => next_of(chain.aside(), max - total, call),
                    };
                    old
                };
                // Frames without a place among the spare ones are freed here. The handle first: a
                // lent page is its owner's again without a reader.
                drop(slice);
                drop(old);
                call.took();
                if is_over {
                    return Ok(total);
                }
            }
            if !call.resume(self) {
                return Ok(total);
            }
        }
    }

    /// Gives the first `len` bytes, which are in one slice, to a sink that keeps slices.
    #[inline(never)]
    fn put_first(&self, to: &mut dyn Sink, len: usize) -> Result<usize> {
        // A slot of a pipe has a page at most.
        let len = len.min(PAGE_SIZE);
        let first = self.lock().data.slice(0).map(|first| first.first(len));
        first.map_or(Ok(0), |first| to.put_slice(first))
    }

    /// Gives whole pages at the front to a program, which takes them in the place of its own;
    /// `most` at most. Returns how many bytes that were, and why the next ones are to be copied.
    #[inline(never)]
    fn transfer<D: Drain<S>>(
        &self,
        to: &mut UserBuffers,
        most: usize,
        call: &mut D,
    ) -> (usize, CopyReason) {
        let total = &mut 0;
        let why = self.transfer_each(to, most, total, call);
        if *total > 0 {
            vm::count_moved(S::CALLS[1], Moved::Passed, *total);
        }
        (*total, why)
    }

    /// As [`transfer`](Queue::transfer), which counts in `total`.
    #[inline(always)]
    fn transfer_each<D: Drain<S>>(
        &self,
        to: &mut UserBuffers,
        most: usize,
        total: &mut usize,
        call: &mut D,
    ) -> CopyReason {
        loop {
            let most = most - *total / PAGE_SIZE;
            let mut pages = [const { None::<Owned> }; PASSED_TOGETHER];
            let count = self.front_pages(&mut pages, most, |chain, most| call.pages(chain, most));
            if count == 0 {
                return CopyReason::NotLent;
            }
            let taken = match to.take_if_worth(&mut pages[..count]) {
                Ok(taken) => taken,
                Err(why) => return why,
            };
            self.drop_pages(taken, call);
            *total += taken * PAGE_SIZE;
            if taken < count {
                return CopyReason::NotTaken;
            }
        }
    }

    /// Gives whole pages at the front to `give`, which takes as many of them as it returns; `most`
    /// at most. Returns how many.
    pub fn give_pages<D: Drain<S>>(
        &self,
        _reading: &Reading<'_>,
        most: usize,
        call: &mut D,
        mut give: impl FnMut(&mut [Option<Owned>]) -> usize,
    ) -> usize {
        let mut total = 0;
        while total < most {
            let mut pages = [const { None::<Owned> }; PASSED_TOGETHER];
            let count = self.front_pages(&mut pages, most - total, |chain, most| {
                chain.urgent.map_or_else(|| chain.whole_pages(most), |_| 0)
            });
            let taken = match count {
                0 => 0,
                count => give(&mut pages[..count]),
            };
            self.drop_pages(taken, call);
            total += taken;
            if taken < PASSED_TOGETHER {
                break;
            }
        }
        if total > 0 {
            vm::count_moved(S::CALLS[1], Moved::Passed, total * PAGE_SIZE);
        }
        total
    }

    /// Makes handles of the first pages, `most` at most, of which `count` says how many there are;
    /// returns how many.
    #[inline(always)]
    fn front_pages(
        &self,
        pages: &mut [Option<Owned>],
        most: usize,
        count: impl FnOnce(&mut Chain<S>, usize) -> usize,
    ) -> usize {
        // Writers add behind, and there is no other reader.
        let mut chain = self.lock();
        let count = count(chain.aside(), most.min(pages.len()));
        for (page, slice) in pages[..count].iter_mut().zip(chain.data.slices()) {
            *page = Some(slice.owned().clone());
        }
        count
    }

    /// Takes the first `taken` pages off, which have new owners: [`PASSED_TOGETHER`] at most.
    #[inline(always)]
    fn drop_pages<D: Drain<S>>(&self, taken: usize, call: &mut D) {
        let mut old = [const { None::<Slice> }; PASSED_TOGETHER];
        {
            let mut chain = self.lock();
            for old in &mut old[..taken] {
                *old = call.take(&mut chain, PAGE_SIZE);
            }
        }
        // The slices go without the lock, and leave the pages to their new owners.
        drop(old);
        call.took();
        Counter::bytes_passed.add((taken * PAGE_SIZE) as u64);
    }

    /// Copies bytes from the one at `skip` on and leaves them in the queue; returns how many.
    /// `end`, called under the lock, says where the call ends, counted as `skip` is.
    ///
    /// # Errors
    /// Those of the sink, if it took nothing.
    pub fn peek(
        &self,
        _reading: &Reading<'_>,
        to: &mut dyn Sink,
        skip: usize,
        mut end: impl FnMut(&Chain<S>) -> usize,
    ) -> Result<usize> {
        // Writers only add behind, and there is no other reader: slices keep their places, and
        // the last one may grow.
        let (mut at, mut offset) = self.lock().data.locate(skip);
        let mut total = 0;
        while to.room() > 0 {
            let slice = {
                let chain = self.lock();
                let left = end(&chain).saturating_sub(skip + total);
                if chain.data.slice(at).is_some_and(|s| s.len == offset) {
                    (at, offset) = (at + 1, 0);
                }
                chain.data.slice(at).map(|slice| {
                    let len = (slice.len - offset).min(left);
                    View::of(slice.frame(), slice.offset + offset, len)
                })
            };
            let Some(slice) = slice.filter(|slice| slice.len > 0) else {
                break;
            };
            match to.put_frame(&slice.frame, slice.offset, slice.len) {
                Ok(0) => break,
                Ok(n) => {
                    total += n;
                    offset += n;
                }
                Err(error) => return moved(total, Err(error)),
            }
        }
        Ok(total)
    }
}

/// Whether a call with so much room may go on with pages instead of bytes.
#[inline(always)]
fn may_go_on<S: State, D: Drain<S>>(chain: &mut Chain<S>, room: usize, call: &mut D) -> bool {
    chain.begins_page() && room >= vm::least_move() && call.pages(chain, 1) > 0
}
