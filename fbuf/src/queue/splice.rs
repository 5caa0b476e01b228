//! Slices that enter, leave and change queues without a copy, in queues limited by slices.

use core::mem;

use crate::counters::Counter;
use abi::Result;
use vm::{Moved, account::Stock};

use super::{Chain, Fill, Queue, Reading, State, fill::Added};
use crate::aggregate::Aggregate;

/// A kind of queue limited by slices. Its chain always has memory for all of them, so slices are
/// linked without an allocation.
pub trait Slots: State {
    /// Returns how many slices fit.
    fn slots(&self) -> usize;

    /// Returns how many slices the chain has memory for: the slots, and what was
    /// [promised](Queue::promise) beyond them.
    fn capacity(&self) -> usize {
        self.slots()
    }
}

impl<S: Slots> Chain<S> {
    /// Returns how many more slices fit.
    #[inline]
    pub fn free_slots(&self) -> usize {
        let count = self.data.slice_count();
        self.state.slots().saturating_sub(count)
    }

    /// Returns whether another slice fits.
    #[inline]
    pub fn has_slot(&self) -> bool {
        self.data.slice_count() < self.state.slots()
    }
}

/// Makes an empty chain for `slices` slices of a queue of `slots` slots. Where that is half of
/// them or more it has all the room of the queue's own chain, so that the two can change places.
fn room_for(slices: usize, slots: usize) -> Result<Aggregate> {
    let mut chain = Aggregate::new();
    chain.reserve(match slices * 2 >= slots {
        true => slots,
        false => slices,
    })?;
    Ok(chain)
}

impl<S: Slots> Queue<S> {
    /// Makes an empty queue with memory for its slices, whose frames `stock` charges.
    ///
    /// # Errors
    /// `ENOMEM`.
    #[inline]
    pub fn with_slots(state: S, stock: Stock) -> Result<Queue<S>> {
        let mut data = Aggregate::new();
        data.reserve(state.slots())?;
        Ok(Queue::with(data, state, stock))
    }

    /// Gives the chain memory for `slices` slices that [`append`](Queue::append) is to add beyond
    /// the queue's slots, and counts them by `set` in [`Slots::capacity`], where they stay until
    /// they were added.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn promise(&self, slices: usize, set: impl FnOnce(&mut S)) -> Result<()> {
        let _writing = self.writing.lock();
        let mut chain = self.lock();
        let chain = chain.aside();
        let promised = chain.state.capacity() - chain.state.slots();
        let free = chain.free_slots();
        chain.data.reserve(free + promised + slices)?;
        set(&mut chain.state);
        Ok(())
    }

    /// Adds slices that fit; the others stay in `from`. Returns how many bytes were added.
    ///
    /// # Errors
    /// Those of [`Fill::space`]; `ENOMEM`.
    pub fn append<F: Fill<S>>(&self, from: &mut Aggregate, call: &mut F) -> Result<usize> {
        let _tail = self.writing.lock();
        let mut chain = self.lock();
        let mut slots = call.space(&mut chain)?.slots;
        let (at, before) = (chain.end(), from.len());
        // One slice is moved below.
        if (2..=slots).contains(&from.slice_count()) {
            if chain.data.is_empty() && from.capacity() >= chain.state.capacity() {
                mem::swap(&mut chain.data, from);
            } else {
                chain.data.join(from)?;
            }
        }
        while slots > 0
            && let Some(slice) = from.pop_front()
        {
            chain.data.append(slice)?;
            slots -= 1;
        }
        let len = before - from.len();
        if len > 0 {
            let is_end = from.is_empty();
            call.linked(&mut chain, Added { at, len, is_end });
        }
        drop(chain);
        Counter::bytes_passed.add(len as u64);
        vm::count_moved(S::CALLS[0], Moved::Passed, len);
        Ok(len)
    }

    /// Copies handles of the first `slices` slices of the queue, which had `slots` slots a moment
    /// ago, `max` bytes at most.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn duplicate(&self, max: usize, slices: usize, slots: usize) -> Result<Aggregate> {
        let mut copy = room_for(slices, slots)?;
        self.lock().data.share_front(&mut copy, max, slices);
        Ok(copy)
    }

    /// Takes off the first `n` bytes, whose handles in `spent`, a
    /// [duplicate](Queue::duplicate), were passed on; returns whether a full queue has a slot
    /// again. Until then the bytes are the queue's: writers find no room in their place.
    pub fn remove(&self, _reading: &Reading<'_>, mut n: usize, mut spent: Aggregate) -> bool {
        let mut freed_slot = false;
        // One slice goes at the end.
        if spent.slice_count() > 1 {
            spent.clear();
        }
        while n > 0 {
            let mut chain = self.lock();
            let was_full = !chain.has_slot();
            let may_swap = spent.is_empty() && spent.capacity() >= chain.state.capacity();
            let slice = if may_swap && n == chain.data.len() {
                // The queue goes on with the other chain's memory.
                chain.taken += n as u64;
                mem::swap(&mut chain.data, &mut spent);
                None
            } else {
                chain.take(n)
            };
            freed_slot |= was_full && chain.has_slot();
            // Frames are freed without the lock, those in `spent` at the end.
            drop(chain);
            n = slice.map_or(0, |slice| n - slice.len);
        }
        freed_slot
    }

    /// Moves slices that fit, `max` bytes at most, to another queue; returns how many bytes, and
    /// whether this queue was full and has a slot again. If all bytes move to an empty queue, the
    /// two chains change places. Allocates nothing.
    ///
    /// # Errors
    /// Those of [`Fill::space`], if this queue has bytes.
    pub fn pass<F: Fill<S>>(
        &self,
        _reading: &Reading<'_>,
        to: &Queue<S>,
        max: usize,
        call: &mut F,
    ) -> Result<(usize, bool)> {
        let _tail = to.writing.lock();
        let (mut source, mut target) = Queue::lock_pair(self, to);
        if source.data.is_empty() {
            return Ok((0, false));
        }
        let mut slots = call.space(&mut target)?.slots;
        let was_full = !source.has_slot();
        let (at, before) = (target.end(), source.data.len());
        if before <= max
            && target.data.is_empty()
            && source.data.slice_count() <= slots
            && source.data.capacity() >= target.state.capacity()
            && target.data.capacity() >= source.state.capacity()
        {
            source.taken += before as u64;
            mem::swap(&mut source.data, &mut target.data);
        }
        let mut left = max;
        while slots > 0
            && let Some(slice) = source.take(left)
        {
            left -= slice.len;
            slots -= 1;
            target.data.append(slice)?;
        }
        let is_end = source.data.is_empty();
        let len = before - source.data.len();
        let freed_slot = was_full && source.has_slot();
        if len > 0 {
            call.linked(&mut target, Added { at, len, is_end });
        }
        drop((source, target));
        Counter::bytes_passed.add(len as u64);
        vm::count_moved(S::CALLS[0], Moved::Passed, len);
        Ok((len, freed_slot))
    }

    /// Gives the chain memory for `slots` slices, and sets the limit by `set`. Returns whether
    /// no more than so many are in it; otherwise nothing has changed.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn resize(
        &self,
        _reading: &Reading<'_>,
        slots: usize,
        set: impl FnOnce(&mut S),
    ) -> Result<bool> {
        let _writing = self.writing.lock();
        // Nothing is promised while the writing side is locked.
        let promised = {
            let chain = self.lock();
            chain.state.capacity() - chain.state.slots()
        };
        let mut other = Aggregate::new();
        other.reserve(slots + promised)?;
        let mut chain = self.lock();
        if chain.data.slice_count() > slots {
            return Ok(false);
        }
        // `other` has room for all slices: nothing is allocated here.
        other.join(&mut chain.data)?;
        mem::swap(&mut chain.data, &mut other);
        set(&mut chain.state);
        // The old memory is freed after the lock is released.
        drop(chain);
        drop(other);
        Ok(true)
    }
}
