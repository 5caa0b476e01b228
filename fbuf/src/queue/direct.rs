//! Bytes that go past the queue, straight between the memory of a writer and that of a reader: one
//! copy, or none.
//!
//! A reader that would sleep [offers](Queue::offer) its buffer, and a writer that finds the queue
//! empty fills it. A writer that would sleep since the queue is full [offers](Queue::offer_bytes)
//! its bytes, and a reader that has emptied the queue goes on with them: it would wake the writer
//! for that, and wait. The call that made an offer takes it back when it has been woken.
//!
//! No fault is resolved while the other side may not leave: a page of one's own that is not mapped
//! is brought in between, and one of the other's ends the move. So all that the other side may have
//! to wait for when it takes its offer back is the copying of some pages.

use alloc::sync::Arc;
use core::{
    mem,
    sync::atomic::{
        AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use abi::Result;
use nucleus::{
    Access, PAGE_SIZE, VirtAddr, VirtRange,
    ephemeral::Mapping,
    sync::{Mutex, OnceBox},
    task,
};
use vm::{Map, Moved, Movement, Overwriting, PASSED_TOGETHER};

use super::{Added, Drain, Fill, Queue, State};
use crate::{
    counters::Counter,
    io::{Sink, Source, UserBuffers},
};

/// Bytes that are moved at most while the other side may not leave.
const MOST: usize = PASSED_TOGETHER * PAGE_SIZE;

/// Bytes from which on one copy is better than two even where two CPUs could share these, since the
/// other side is woken once. Between two sizes that were measured: by one copy, 256 KiB take 1.4
/// times as long, 1 MiB half as long. Other values were not tried.
const LEAST_ACROSS_CPUS: usize = 512 << 10;

/// The next piece of a program's memory that a call reads into or writes from.
struct Buffer {
    map: Arc<Map>,
    at: VirtAddr,
    len: usize,
}

impl Buffer {
    /// Returns the addresses of `most` bytes at most behind the first `done` ones.
    fn rest(&self, done: usize, most: usize) -> VirtRange {
        let most = self.len.saturating_sub(done).min(most).min(MOST);
        VirtRange::new(self.at + done, self.at + done + most)
    }
}

/// The place for a buffer that a call which would sleep offers to the other side of the queue. It
/// is made for the first offer: most queues never see one.
pub(super) struct Offer(OnceBox<Offered>);

struct Offered {
    /// The CPU that the call ran on, plus one; 0 if there is none. Looked at without the lock.
    cpu: AtomicUsize,
    /// Bytes that were moved to or from the buffer.
    moved: AtomicUsize,
    buffer: Mutex<Option<Buffer>>,
}

impl Offer {
    pub(super) const fn new() -> Offer {
        Offer(OnceBox::new())
    }

    /// Returns the place, which is made unless it is there; `None` without memory.
    fn place(&self) -> Option<&Offered> {
        let make = || Offered {
            cpu: AtomicUsize::new(0),
            moved: AtomicUsize::new(0),
            buffer: Mutex::new(crate::rank::QUEUE_OFFER, None),
        };
        self.0.get_or_try_insert(make).ok()
    }

    /// Offers the next bytes of `memory` if that is worth it and no other call does so.
    fn make(&self, memory: Option<&mut UserBuffers>) -> bool {
        let target = memory.and_then(|memory| memory.target());
        let Some((at, len)) = target.filter(|&(_, len)| len >= vm::least_direct()) else {
            return false;
        };
        let Some(map) = vm::with_current(Arc::clone) else {
            return false;
        };
        let Some(place) = self.place() else {
            return false;
        };
        let mut buffer = place.buffer.lock();
        if buffer.is_some() {
            return false;
        }
        place.moved.store(0, Relaxed);
        *buffer = Some(Buffer { map, at, len });
        place.cpu.store(task::cpu() + 1, Release);
        true
    }

    /// Takes back what was offered; returns how many bytes were moved, which `memory` goes on
    /// behind.
    fn end(&self, memory: Option<&mut UserBuffers>) -> usize {
        let Some(place) = self.0.get() else {
            return 0;
        };
        let (buffer, moved) = {
            let mut buffer = place.buffer.lock();
            place.cpu.store(0, Relaxed);
            (buffer.take(), place.moved.swap(0, Relaxed))
        };
        // The address space may end here, without the lock.
        drop(buffer);
        if let Some(memory) = memory.filter(|_| moved > 0) {
            memory.skip(moved);
        }
        moved
    }

    /// Returns the CPU that the call ran on, plus one; 0 without an offer.
    #[inline]
    fn cpu(&self) -> usize {
        self.0.get().map_or(0, |place| place.cpu.load(Acquire))
    }

    /// Whether there is a buffer, and one copy of `bytes` to or from it is worth it here.
    fn is_worth(&self, bytes: usize) -> bool {
        match self.cpu() {
            0 => false,
            cpu if cpu == task::cpu() + 1 => true,
            _ => bytes >= LEAST_ACROSS_CPUS || vm::movement() == Movement::Once,
        }
    }

    /// Whether the call that offers ran on this CPU.
    fn is_here(&self) -> bool {
        self.cpu() == task::cpu() + 1
    }

    /// Whether bytes were moved.
    fn is_used(&self) -> bool {
        let place = self.0.get();
        place.is_some_and(|place| place.moved.load(Acquire) > 0)
    }

    /// Calls `step` with the buffer and the number of bytes that were moved, which must be `total`
    /// if that is given. It returns how many more it wanted to move, and how many it did. `None` if
    /// the call that made the offer has left.
    fn step(
        &self,
        total: Option<usize>,
        step: impl FnOnce(&Buffer, usize) -> (usize, usize),
    ) -> Option<Step> {
        let place = self.0.get()?;
        let buffer = place.buffer.lock();
        let done = place.moved.load(Relaxed);
        let is_same = total.is_none_or(|total| total == done);
        let buffer = buffer.as_ref().filter(|_| is_same)?;
        let (wanted, moved) = step(buffer, done);
        // From here on the call has moved them, whatever ends its wait.
        place.moved.store(done + moved, Release);
        Some(Step { wanted, moved })
    }
}

/// Bytes that were to be moved at once, and those that were.
struct Step {
    wanted: usize,
    moved: usize,
}

impl Step {
    /// Returns whether to go on after this step. One that moved nothing came to a page that is not
    /// mapped: it is taken again after `bring_in` has brought in one's own, and the second time the
    /// page was the other side's.
    fn goes_on(&self, is_stuck: &mut bool, bring_in: impl FnOnce() -> Result<()>) -> bool {
        let was_stuck = mem::replace(is_stuck, self.moved == 0);
        match *is_stuck {
            false => true,
            true => self.wanted > 0 && !was_stuck && bring_in().is_ok(),
        }
    }
}

impl<S: State> Queue<S> {
    /// Offers a writer the buffer that a sink fills next, if that is worth it and no other reader
    /// does so; then the caller [withdraws](Queue::withdraw) it after it has waited.
    #[inline]
    pub fn offer(&self, to: &mut dyn Sink) -> bool {
        to.room() >= vm::least_direct() && self.receiving.make(to.program_memory())
    }

    /// Whether bytes were put into the buffer that is on offer. The caller is woken as for bytes in
    /// the queue.
    #[inline]
    pub fn has_put(&self) -> bool {
        self.receiving.is_used()
    }

    /// Takes back the buffer of `to` that [`offer`](Queue::offer) offered; returns how many bytes
    /// were put there, which it has taken.
    pub fn withdraw(&self, to: &mut dyn Sink) -> usize {
        self.receiving.end(to.program_memory())
    }

    /// Offers a reader the bytes that a source gives next, as [`offer`](Queue::offer) does a
    /// writer: the queue is full. Then the caller [withdraws](Queue::withdraw_bytes) them after it
    /// has waited for room.
    #[inline]
    pub fn offer_bytes(&self, from: &mut dyn Source) -> bool {
        from.left() >= vm::least_direct() && self.sending.make(from.program_memory())
    }

    /// Whether a writer's bytes are on offer: a reader may get some though the queue is empty.
    #[inline]
    pub fn offers_bytes(&self) -> bool {
        self.sending.cpu() != 0
    }

    /// Whether a reader took bytes that are on offer. The caller is woken as for room in the queue,
    /// which other writers may have filled by then.
    #[inline]
    pub fn has_pulled(&self) -> bool {
        self.sending.is_used()
    }

    /// Takes back the bytes of `from` that [`offer_bytes`](Queue::offer_bytes) offered; returns how
    /// many of them a reader took.
    pub fn withdraw_bytes(&self, from: &mut dyn Source) -> usize {
        self.sending.end(from.program_memory())
    }

    /// Whether a reader's buffer is on offer, for which `bytes` are worth one copy by the writer.
    pub(super) fn is_awaited(&self, bytes: usize) -> bool {
        self.receiving.is_worth(bytes)
    }

    /// Copies bytes into the buffer of a reader that waits, if there is one and the queue is empty;
    /// returns how many. The writing side is locked.
    #[inline(never)]
    pub(super) fn put<F: Fill<S>>(&self, from: &mut UserBuffers, call: &mut F) -> Result<usize> {
        if self.has_put() {
            return Ok(0);
        }
        {
            let mut chain = self.lock();
            if !chain.data.is_empty() || !call.may_put(chain.aside())? {
                return Ok(0);
            }
        }
        // A reader that was interrupted may have left with some, and be back with a new buffer.
        let mut total = 0;
        let mut is_stuck = false;
        while from.left() > 0
            && !vm::is_dying()
            && let Some(step) = self.receiving.step(Some(total), |buffer, done| {
                let to = buffer.rest(done, from.left());
                let take = |page: &Mapping<'_>, place| from.take_mapped(page, place);
                (to.len(), buffer.map.write_mapped(to, take))
            })
            && step.goes_on(&mut is_stuck, || from.bring_in(Access::Read))
        {
            total += step.moved;
        }
        if total > 0 {
            count::<S>(Moved::Put, total);
            let mut chain = self.lock();
            let at = chain.end();
            chain.taken += total as u64;
            let is_end = from.left() == 0;
            let len = total;
            call.put(&mut chain, Added { at, len, is_end });
        }
        Ok(total)
    }

    /// Moves bytes out of the buffer of a writer that waits for room to one that a program reads
    /// into, `max` at most, if that is worth it and the queue is empty; returns how many. The
    /// reading side is locked.
    #[inline(never)]
    pub(super) fn pull<D: Drain<S>>(&self, to: &mut dyn Sink, max: usize, call: &mut D) -> usize {
        match to.program_memory().filter(|_| self.sending.is_worth(max)) {
            Some(to) => self.pull_into(to, max, call),
            None => 0,
        }
    }

    fn pull_into<D: Drain<S>>(&self, to: &mut UserBuffers, max: usize, call: &mut D) -> usize {
        // Another writer that is at work may sleep, and adds to the queue.
        let Some(_writing) = self.writing.try_lock() else {
            return 0;
        };
        {
            let mut chain = self.lock();
            if !chain.data.is_empty() || !call.may_pull(chain.aside(), !self.sending.is_here()) {
                return 0;
            }
        }
        let mut total = 0;
        let mut is_stuck = false;
        while total < max
            && !vm::is_dying()
            && let Some(step) = self.sending.step(None, |buffer, done| {
                let from = buffer.rest(done, max - total);
                (from.len(), give::<S>(&buffer.map, from, to))
            })
            && step.goes_on(&mut is_stuck, || {
                Overwriting::by(|| to.bring_in(Access::Write))
            })
        {
            total += step.moved;
        }
        if total > 0 {
            let mut chain = self.lock();
            chain.taken += total as u64;
            call.pulled(&mut chain, total);
        }
        total
    }
}

/// Moves bytes of a writer that waits to the memory of the current program; returns how many.
fn give<S: State>(map: &Map, from: VirtRange, to: &mut UserBuffers) -> usize {
    match to.receive_from(map, from) {
        Ok(passed) => {
            Counter::bytes_passed.add(passed as u64);
            count::<S>(Moved::Passed, passed);
            passed
        }
        Err(_) => {
            let copied = map.read_mapped(from, |page, place| to.put_mapped(page, place));
            count::<S>(Moved::Put, copied);
            copied
        }
    }
}

/// Counts bytes that went past a queue of kind `S`.
fn count<S: State>(way: Moved, bytes: usize) {
    if matches!(way, Moved::Put) {
        Counter::bytes_put.add(bytes as u64);
    }
    for call in S::CALLS {
        vm::count_moved(call, way, bytes);
    }
}
