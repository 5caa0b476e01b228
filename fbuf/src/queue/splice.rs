//! Slices that enter, leave and change queues without a copy, in queues limited by slices.

use core::mem;

use crate::counters::Counter;
use abi::Result;
use vm::{Moved, account::Stock};

use super::{Chain, Fill, Queue, Reading, State, fill::Added};
use crate::{aggregate::Aggregate, io::Moving};

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
    pub fn append<F: Fill<S>>(&self, from: &mut Moving, call: &mut F) -> Result<usize> {
        let _tail = self.writing.lock();
        let mut chain = self.lock();
        let mut slots = call.space(&mut chain)?.slots;
        let (at, before) = (chain.end(), from.len());
        // One slice is moved below.
        if (2..=slots).contains(&from.slice_count())
            && let Some(slices) = from.chain()
        {
            if chain.data.is_empty() && slices.capacity() >= chain.state.capacity() {
                mem::swap(&mut chain.data, slices);
            } else {
                chain.data.join(slices)?;
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

    /// Adds handles of the first slices, `max` bytes at most, to another queue as far as they fit;
    /// the bytes are in both then. Returns how many. Allocates nothing.
    ///
    /// # Errors
    /// Those of [`Fill::space`], if this queue has bytes.
    pub fn share<F: Fill<S>>(&self, to: &Queue<S>, max: usize, call: &mut F) -> Result<usize> {
        let _tail = to.writing.lock();
        let (source, mut target) = Queue::lock_pair(self, to);
        if source.data.is_empty() {
            return Ok(0);
        }
        let slots = call.space(&mut target)?.slots;
        let at = target.end();
        let len = source.data.share_front(&mut target.data, max, slots);
        if len > 0 {
            let is_end = len == source.data.len();
            call.linked(&mut target, Added { at, len, is_end });
        }
        drop((source, target));
        Counter::bytes_passed.add(len as u64);
        vm::count_moved(S::CALLS[0], Moved::Passed, len);
        Ok(len)
    }

    /// Takes off the first `n` bytes, which a [source of them](Queue::front) gave; returns whether
    /// a full queue has a slot again. Until then the bytes are the queue's: writers find no room in
    /// their place.
    pub fn remove(&self, _reading: &Reading<'_>, mut n: usize) -> bool {
        let mut freed_slot = false;
        let mut spare = self.spare_chain(n);
        while n > 0 {
            let mut chain = self.lock();
            let was_full = !chain.has_slot();
            let may_swap = spare.capacity() >= chain.state.capacity();
            let slice = if may_swap && n == chain.data.len() {
                // The queue goes on with the other chain's memory.
                chain.taken += n as u64;
                mem::swap(&mut chain.data, &mut spare);
                None
            } else {
                chain.take(n)
            };
            freed_slot |= was_full && chain.has_slot();
            // Frames are freed without the lock, those in `spare` at the end.
            drop(chain);
            n = slice.map_or(0, |slice| n - slice.len);
        }
        freed_slot
    }

    /// Makes an empty chain with all the room of the queue's own, so that the two can change
    /// places, if the first `n` bytes are all, in half of the slots or more, and there is memory.
    fn spare_chain(&self, n: usize) -> Aggregate {
        let mut spare = Aggregate::new();
        let slots = {
            let chain = self.lock();
            let slots = chain.state.slots();
            let is_worth = n == chain.data.len() && chain.data.slice_count() * 2 >= slots;
            is_worth.then_some(slots)
        };
        if let Some(slots) = slots.filter(|&slots| slots > 1) {
            // Without it the slices are taken off one by one.
            let _ = spare.reserve(slots);
        }
        spare
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
