//! The writer's side: frames are filled without the chain's lock, then linked in one step.

use crate::counters::Counter;
use core::mem;

use abi::{Errno, Result};
use nucleus::{
    PAGE_SIZE,
    frame::{Contents, Owned},
};
use vm::{CopyReason, Moved, PASSED_TOGETHER};

use super::{Chain, Frames, Queue, SPARE_FRAMES, Spare, State, Tail};
use crate::{
    io::{Source, moved},
    slice::Slice,
};

/// Slices that are linked together: few rounds for the chain's lock, yet the reader can begin
/// while a large write goes on.
pub(super) const BATCH: usize = SPARE_FRAMES;

/// One call that writes to a queue of kind `S`. Hooks with a chain run under its lock: they
/// neither sleep nor free frames.
pub trait Fill<S: State> {
    /// Returns the room for the next step. The lock on the writing side keeps it: readers only
    /// make more.
    ///
    /// # Errors
    /// That of a queue which takes no bytes, `ENOMEM` for the marks.
    fn space(&mut self, chain: &mut Chain<S>) -> Result<Space>;

    /// Returns whether bytes that were copied may still be linked. If not they are dropped, and
    /// count as written.
    ///
    /// # Errors
    /// That of a queue which takes no bytes any more.
    #[inline]
    fn may_link(&mut self, chain: &mut Chain<S>) -> Result<bool> {
        let _ = chain;
        Ok(true)
    }

    /// Notes bytes that were linked: sets marks, decides whether readers are to be told.
    fn linked(&mut self, chain: &mut Chain<S>, added: Added);

    /// Returns whether bytes may go past the queue to a reader that waits ([`put`](Fill::put)).
    fn puts(&self) -> bool {
        false
    }

    /// Returns whether bytes may go past the queue, which is empty.
    ///
    /// # Errors
    /// That of a queue which takes no bytes any more.
    fn may_put(&mut self, chain: &mut Chain<S>) -> Result<bool> {
        self.may_link(chain)
    }

    /// Notes bytes that went past the queue to a reader that waits: decides whether readers are to
    /// be told, as if the queue had been empty.
    fn put(&mut self, chain: &mut Chain<S>, added: Added) {
        let _ = (chain, added);
    }

    /// Returns whether the bytes are stable: their program has promised not to change them until it
    /// is told that they have arrived (`MSG_ZEROCOPY`), and they are enough
    /// ([`vm::least_stable`]). Their pages are lent, whatever became of others, and so are parts of
    /// pages.
    #[inline]
    fn is_stable(&self) -> bool {
        false
    }

    /// Returns whether a writer of pages for which there is no room waits until it is told of more:
    /// a part of a page that fills the room would leave the bytes behind it unaligned.
    fn awaits_more(&self, chain: &mut Chain<S>) -> bool {
        let _ = chain;
        false
    }

    /// Notes bytes that were linked with their pages.
    fn lent(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// Tells readers that bytes can be read while the call goes on. No spin lock is held.
    #[inline]
    fn more(&self) {}
}

/// Room in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Slices that fit.
    pub slots: usize,
    /// Bytes that fit.
    pub bytes: usize,
    /// Bytes that are linked together, or none is taken (`PIPE_BUF`, packets): two pages at
    /// most.
    pub least: usize,
    /// Whether the last slice may be continued in place.
    pub continues: bool,
}

/// Bytes that were linked in one step.
#[derive(Clone, Copy, Debug)]
pub struct Added {
    /// The position in the stream of the first one.
    pub at: u64,
    /// How many.
    pub len: usize,
    /// The last byte is the source's last.
    pub is_end: bool,
}

/// Pages of a program that are about to be linked.
struct Lent<'a> {
    pages: &'a mut [Option<Owned>],
    /// Where the bytes begin in the first one.
    first: usize,
    /// Bytes in all of them.
    len: usize,
}

/// What becomes of the bytes of a large call.
struct Large {
    /// The next pages are to be lent in any case.
    lends: bool,
    /// There is no room for a page, for which it is better to wait.
    waits: bool,
    /// Why the last ones are copied.
    why: Option<CopyReason>,
}

impl<S: State> Queue<S> {
    /// Adds what fits of the source's bytes; returns how many. The caller wakes readers as
    /// [`Fill::linked`] says.
    ///
    /// # Errors
    /// Those of [`Fill`], of the source, and `ENOMEM`, each only if nothing was added.
    pub fn fill<F: Fill<S>>(&self, from: &mut dyn Source, call: &mut F) -> Result<usize> {
        let mut tail = self.writing.lock();
        let mut total = 0;
        let mut left = from.left();
        if left >= vm::least_large() || call.is_stable() {
            return self.fill_large(&mut tail, from, call);
        }
        while left > 0 {
            match self.step(&mut tail, from, left, call) {
                Ok(0) => break,
                Ok(n) => (total, left) = (total + n, left - n),
                Err(error) => return moved(total, Err(error)),
            }
            if left > 0 {
                call.more();
            }
        }
        Ok(total)
    }

    /// As [`fill`](Queue::fill) for bytes that may go without being copied into the queue.
    #[inline(never)]
    fn fill_large<F: Fill<S>>(
        &self,
        tail: &mut Tail,
        from: &mut dyn Source,
        call: &mut F,
    ) -> Result<usize> {
        let (mut total, lends) = self.put_if_awaited(from, call)?;
        let mut large = Large {
            lends,
            waits: false,
            why: None,
        };
        let mut left = from.left();
        let is_stable = call.is_stable();
        while left > 0 {
            let lent = match is_stable {
                true => self.borrow_stable(tail, from, &mut large, call),
                false => self.borrow_next(tail, from, left, &mut large, call),
            };
            let step = match lent {
                Ok(0) if large.waits => break,
                Ok(0) => {
                    let step = self.step(tail, from, left, call);
                    if let (Ok(n @ 1..), Some(why)) = (step, large.why) {
                        vm::count_moved(S::CALLS[0], Moved::Copied(why), n);
                    }
                    step
                }
                lent => lent,
            };
            match step {
                Ok(0) => break,
                Ok(n) => total += n,
                Err(error) => return moved(total, Err(error)),
            }
            left = from.left();
            if left > 0 {
                call.more();
            }
        }
        Ok(total)
    }

    /// As [`borrow`](Queue::borrow) if the next `left` bytes are enough; none if they are to be
    /// copied, as `large` says then.
    #[inline(never)]
    fn borrow_next<F: Fill<S>>(
        &self,
        tail: &mut Tail,
        from: &mut dyn Source,
        left: usize,
        large: &mut Large,
        call: &mut F,
    ) -> Result<usize> {
        let lent = match left >= vm::least_move() {
            true => {
                let lends = mem::take(&mut large.lends);
                match left / PAGE_SIZE {
                    // One page has less to look through.
                    1 => self.borrow::<1, F>(tail, from, lends, &mut large.waits, call)?,
                    _ => self.borrow::<PASSED_TOGETHER, F>(
                        tail,
                        from,
                        lends,
                        &mut large.waits,
                        call,
                    )?,
                }
            }
            // What holds for the bytes before holds for the few behind them as well.
            false => Err(large.why.unwrap_or_else(|| vm::reason_to_copy(left))),
        };
        Ok(lent.unwrap_or_else(|why| {
            large.why = Some(why);
            0
        }))
    }

    /// Copies bytes straight to a reader that waits, if that is better than to lend them; returns
    /// how many, and whether they are to be lent.
    #[inline(never)]
    fn put_if_awaited<F: Fill<S>>(
        &self,
        from: &mut dyn Source,
        call: &mut F,
    ) -> Result<(usize, bool)> {
        if !call.puts() || !self.is_awaited(from.left()) {
            return Ok((0, false));
        }
        let Some(memory) = from.program_memory() else {
            return Ok((0, false));
        };
        match memory.lends(PASSED_TOGETHER) {
            Ok(()) => Ok((0, true)),
            Err(_) => Ok((self.put(memory, call)?, false)),
        }
    }

    /// Fills slices for the source's next bytes, of which `left` are left, and links them.
    ///
    /// All slices of a step appear at once, so a reader sees all or nothing of
    /// [`Space::least`] bytes, and no other write's bytes stand between them: the writing side is
    /// locked. Slices of the source that do not fit together are copied.
    #[inline(always)]
    fn step<F: Fill<S>>(
        &self,
        tail: &mut Tail,
        from: &mut dyn Source,
        left: usize,
        call: &mut F,
    ) -> Result<usize> {
        let mut chain = self.lock();
        let space = call.space(chain.aside())?;
        let in_place = match space.continues {
            true => chain.in_place(tail),
            false => 0,
        };
        if space.bytes == 0 || space.slots == 0 && in_place == 0 {
            return Ok(0);
        }
        let in_slices = in_place.saturating_add(space.slots.saturating_mul(PAGE_SIZE));
        if space.least > in_slices.min(space.bytes) {
            return Ok(0);
        }
        // The part of the tail's frame that is free now, and stays so.
        let own = match in_place {
            0 if tail.is_alone() => PAGE_SIZE,
            n => n,
        };
        let wanted = left
            .saturating_sub(own)
            .min(space.bytes)
            .div_ceil(PAGE_SIZE);
        let wanted = wanted.min(space.slots);
        let together = match space.least {
            0 => PAGE_SIZE,
            least => least,
        };
        let slices = from.slices(together, BATCH + 1);
        let passes = slices > 0 && (space.least == 0 || slices <= space.slots.min(BATCH));
        let is_one = !passes || slices == 1;
        let room = Room {
            space,
            in_place,
            passes,
        };
        // Once bytes are taken from the source nothing may fail. A slice that continues the last
        // one needs no memory of its own, even if readers have taken that one off.
        if is_one && (left <= own || in_place == 0 && left <= PAGE_SIZE) {
            chain.aside().data.reserve(space.slots.min(1))?;
            let mut spare = Frames::<1>::new();
            spare.fill_from(chain.aside().spare.frames_mut(), wanted);
            drop(chain);
            self.copy(tail, from, room, &mut spare, call)
        } else {
            chain.aside().data.reserve(space.slots.min(BATCH))?;
            let mut spare = Frames::<BATCH>::new();
            spare.fill_from(chain.aside().spare.frames_mut(), wanted);
            drop(chain);
            self.copy(tail, from, room, &mut spare, call)
        }
    }

    /// Links up to `N` pages that the source lends, as far as it does; returns how many bytes that
    /// are, or why the next ones are to be copied. The source is asked whether it is worth a try
    /// unless it `lends` in any case.
    #[inline(never)]
    fn borrow<const N: usize, F: Fill<S>>(
        &self,
        tail: &mut Tail,
        from: &mut dyn Source,
        lends: bool,
        waits: &mut bool,
        call: &mut F,
    ) -> Result<core::result::Result<usize, CopyReason>> {
        let mut chain = self.lock();
        let space = call.space(chain.aside())?;
        let most = space.slots.min(space.bytes / PAGE_SIZE).min(N);
        if space.least > 0 {
            return Ok(Err(CopyReason::Packet));
        }
        if most == 0 {
            *waits = call.awaits_more(chain.aside()) && from.program_memory().is_some();
            return Ok(Err(CopyReason::NoRoom));
        }
        chain.aside().data.reserve(most)?;
        drop(chain);
        let Some(memory) = from.program_memory() else {
            return Ok(Err(CopyReason::NotLent));
        };
        // Where there are several, the places for them cost more than to ask first.
        let asks_first = !lends && N > 1;
        if asks_first && let Err(why) = memory.lends(most) {
            return Ok(Err(why));
        }
        let mut pages = [const { None::<Owned> }; N];
        let places = &mut pages[..most];
        let lent = match lends || asks_first {
            true => Some(memory.lend(places)).filter(|&count| count > 0),
            false => match memory.lend_if_worth(places) {
                Ok(count) => Some(count),
                Err(why) => return Ok(Err(why)),
            },
        };
        let Some(count) = lent else {
            return Ok(Err(CopyReason::NotLent));
        };
        let lent = Lent {
            pages: &mut pages[..count],
            first: 0,
            len: count * PAGE_SIZE,
        };
        self.link_lent(tail, lent, from.left() == 0, call).map(Ok)
    }

    /// As [`borrow`](Queue::borrow) for stable bytes, and with parts of pages; none if they are to
    /// be copied, as `large` says then.
    #[inline(never)]
    fn borrow_stable<F: Fill<S>>(
        &self,
        tail: &mut Tail,
        from: &mut dyn Source,
        large: &mut Large,
        call: &mut F,
    ) -> Result<usize> {
        let mut chain = self.lock();
        let space = call.space(chain.aside())?;
        // Judged with the room: there may be more by the time that a page finds none.
        let awaits_more = call.awaits_more(chain.aside());
        let most = space.slots.min(PASSED_TOGETHER);
        chain.aside().data.reserve(most)?;
        drop(chain);
        let mut pages = [const { None::<Owned> }; PASSED_TOGETHER];
        let lent = match from.program_memory() {
            Some(memory) => memory.lend_unaligned(&mut pages[..most], space.bytes),
            None => Err(CopyReason::NotLent),
        };
        let (count, first, len) = match lent {
            Ok(lent) => lent,
            Err(why) => {
                large.why = Some(why);
                large.waits = why == CopyReason::NoRoom && awaits_more;
                return Ok(0);
            }
        };
        let lent = Lent {
            pages: &mut pages[..count],
            first,
            len,
        };
        self.link_lent(tail, lent, from.left() == 0, call)
    }

    /// Links pages that were lent; returns how many bytes.
    fn link_lent<F: Fill<S>>(
        &self,
        tail: &mut Tail,
        lent: Lent<'_>,
        is_end: bool,
        call: &mut F,
    ) -> Result<usize> {
        // The next write starts a frame of its own.
        tail.frame = None;
        tail.used = 0;
        let (len, mut first, mut left) = (lent.len, lent.first, lent.len);
        let mut chain = self.lock();
        if call.may_link(&mut chain)? {
            let at = chain.end();
            for page in lent.pages.iter_mut().filter_map(Option::take) {
                let n = (PAGE_SIZE - first).min(left);
                chain.data.push(Slice::within(page, first, n));
                (first, left) = (0, left - n);
            }
            call.lent(len);
            call.linked(&mut chain, Added { at, len, is_end });
        }
        // Pages that were not linked go without the lock.
        drop(chain);
        Counter::bytes_passed.add(len as u64);
        vm::count_moved(S::CALLS[0], Moved::Passed, len);
        Ok(len)
    }

    /// Fills up to `N` slices, for which the chain has memory, then links them.
    #[inline(always)]
    fn copy<const N: usize, F: Fill<S>>(
        &self,
        tail: &mut Tail,
        from: &mut dyn Source,
        mut room: Room,
        spare: &mut Frames<N>,
        call: &mut F,
    ) -> Result<usize> {
        if room.in_place == 0 {
            tail.restart();
        }
        let mut slices = [const { None::<Slice> }; N];
        let (mut count, mut len) = (0, 0);
        let (mut left, least) = (from.left(), room.space.least);
        let mut result = Ok(());
        while count < N && left > 0 {
            match next_slice(tail, from, left, &mut room, spare) {
                Ok(Some(slice)) => {
                    len += slice.len;
                    left -= slice.len;
                    slices[count] = Some(slice);
                    count += 1;
                }
                Ok(None) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        // Bytes that are linked together or not at all: the slices go without the lock.
        if count > 0 && len < least && result.is_err() {
            slices = [const { None }; N];
            (count, len) = (0, 0);
        }
        if count == 0 && spare.count == 0 {
            return moved(0, result);
        }
        let mut chain = self.lock();
        if count > 0 && call.may_link(&mut chain)? {
            let at = chain.end();
            for slice in &mut slices[..count] {
                if let Some(slice) = slice.take() {
                    chain.data.push(slice);
                }
            }
            let is_end = left == 0;
            call.linked(&mut chain, Added { at, len, is_end });
        }
        if spare.count > 0
            && S::keeps_frames(&chain)
            && let Some(kept) = chain.aside().spare.frames_mut()
        {
            kept.fill_from(Some(spare), N);
        }
        drop(chain);
        moved(len, result)
    }
}

/// The slices and bytes that a step may link.
struct Room {
    space: Space,
    /// Bytes that fit behind the last slice, in its frame.
    in_place: usize,
    /// Slices of the source are passed on.
    passes: bool,
}

/// Makes the next slice, of at most `room`: passed on by the source, in place behind the last
/// one, or in a frame of its own. `left` is what the source has. `None` when nothing fits. Inlined:
/// a call a slice is 2% of the instructions that carry a page.
#[inline(always)]
fn next_slice<const N: usize>(
    tail: &mut Tail,
    from: &mut dyn Source,
    left: usize,
    room: &mut Room,
    spare: &mut Frames<N>,
) -> Result<Option<Slice>> {
    let space = &mut room.space;
    let max = space.bytes.min(PAGE_SIZE);
    if max == 0 {
        return Ok(None);
    }
    if room.passes
        && space.slots > 0
        && let Some(slice) = from.take_slice(max)
    {
        Counter::bytes_passed.add(slice.len as u64);
        // The next write starts a frame of its own.
        tail.frame = None;
        tail.used = 0;
        room.in_place = 0;
        space.slots -= 1;
        space.bytes -= slice.len;
        return Ok(Some(slice));
    }
    if room.in_place == 0 {
        if space.slots == 0 {
            return Ok(None);
        }
        space.slots -= 1;
    }
    room.in_place = 0;
    let frame = match tail.frame.take() {
        Some(frame) if tail.used < PAGE_SIZE => frame,
        full => {
            drop(full);
            tail.used = 0;
            // The lock on the writing side is held, which reclaim never takes.
            let fresh = || vm::alloc_frame(Contents::Stale).map_err(|_| Errno::ENOMEM);
            spare.pop().map_or_else(fresh, Ok)?
        }
    };
    let frame = &*tail.frame.insert(frame);
    let n = from.take_into(frame, tail.used, left.min(max).min(PAGE_SIZE - tail.used))?;
    if n == 0 {
        return Ok(None);
    }
    space.bytes -= n;
    if n == PAGE_SIZE {
        // No bytes will follow in this frame: all of it is the slice.
        tail.used = 0;
        return Ok(tail.frame.take().map(Slice::whole));
    }
    let slice = Slice::part(frame, tail.used, n);
    tail.used += n;
    Ok(Some(slice))
}
