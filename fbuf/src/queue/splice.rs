//! Slices that enter, leave and change queues without a copy, in queues limited by slices.

use core::mem;

use crate::counters::Counter;
use abi::Result;

use super::{Chain, Fill, Queue, Reading, State, fill::Added};
use crate::aggregate::Aggregate;

/// Slices beyond its limit that a chain has memory for: slices that are put back in front after a
/// failed splice, when writers have filled the queue meanwhile.
pub const ABOVE_SLOTS: usize = 2;

/// A kind of queue limited by slices. Its chain always has memory for all of them and
/// [`ABOVE_SLOTS`] more, so slices are linked without an allocation.
pub trait Slots: State {
    /// Returns how many slices fit.
    fn slots(&self) -> usize;

    /// Returns whether the queue has a reader.
    fn has_reader(&self) -> bool;
}

/// Slices that were taken off a queue.
pub struct Taken {
    /// The bytes that have not been passed on.
    pub data: Aggregate,
    /// The queue had no free slot: writers may wait for one.
    pub was_full: bool,
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
        true => slots + ABOVE_SLOTS,
        false => slices,
    })?;
    Ok(chain)
}

impl<S: Slots> Queue<S> {
    /// Adds slices that fit; the others stay in `from`. Returns how many bytes were added.
    ///
    /// # Errors
    /// Those of [`Fill::space`]; `ENOMEM`.
    pub fn append<F: Fill<S>>(&self, from: &mut Aggregate, call: &mut F) -> Result<usize> {
        let _tail = self.writing.lock();
        let mut chain = self.lock();
        let mut slots = call.space(&mut chain)?.slots;
        let (at, before) = (chain.end(), from.len());
        if from.slice_count() <= slots {
            if chain.data.is_empty() && from.capacity() >= chain.state.slots() + ABOVE_SLOTS {
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
        Ok(len)
    }

    /// Copies handles of the first `slices` slices, `max` bytes at most (`tee`).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn duplicate(&self, max: usize, slices: usize) -> Result<Aggregate> {
        let mut copy = room_for(slices, self.lock().state.slots())?;
        self.lock().data.share_front(&mut copy, max, slices);
        Ok(copy)
    }

    /// Takes the first `slices` slices off, `max` bytes at most. What is not used goes back by
    /// [`put_back`](Queue::put_back).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn take(&self, _reading: &Reading<'_>, max: usize, slices: usize) -> Result<Taken> {
        let mut data = room_for(slices, self.lock().state.slots())?;
        let mut chain = self.lock();
        let was_full = !chain.has_slot();
        if chain.data.len() <= max && data.capacity() >= chain.state.slots() + ABOVE_SLOTS {
            // The queue goes on with the other chain's memory.
            chain.taken += chain.data.len() as u64;
            mem::swap(&mut data, &mut chain.data);
        }
        while data.slice_count() < slices
            && let Some(slice) = chain.take(max.saturating_sub(data.len()))
        {
            data.append(slice)?;
        }
        Ok(Taken { data, was_full })
    }

    /// Puts back in front what was taken and not used; returns whether the queue was empty and
    /// readers are to be told.
    pub fn put_back(&self, _reading: &Reading<'_>, mut unused: Aggregate) -> bool {
        if unused.is_empty() {
            return false;
        }
        let mut chain = self.lock();
        let was_empty = chain.data.is_empty();
        while let Some(slice) = unused.pop_back() {
            // Nothing is allocated unless writers have filled the queue meanwhile.
            if chain.put_back(slice).is_err() {
                break;
            }
        }
        was_empty
    }

    /// Moves all bytes, `max` at most, to another queue, which is empty: the two chains change
    /// places, so nothing is allocated. Returns how many bytes, and whether this queue was full.
    ///
    /// `None`, without a change, where more is to be done: this chain is empty, too long or
    /// without the other queue's room, the other one has bytes or no reader.
    pub fn exchange(&self, to: &Queue<S>, max: usize) -> Option<(usize, bool)> {
        let _reading = self.reading.lock();
        let _tail = to.writing.lock();
        let (mut source, mut target) = Queue::lock_pair(self, to);
        let n = source.data.len();
        if n == 0
            || n > max
            || !target.data.is_empty()
            || !target.state.has_reader()
            || source.data.slice_count() > target.state.slots()
            || source.data.capacity() < target.state.slots() + ABOVE_SLOTS
            || target.data.capacity() < source.state.slots() + ABOVE_SLOTS
        {
            return None;
        }
        let was_full = !source.has_slot();
        source.taken += n as u64;
        mem::swap(&mut source.data, &mut target.data);
        drop((source, target));
        Counter::bytes_passed.add(n as u64);
        Some((n, was_full))
    }

    /// Gives the chain memory for `slots` slices, and sets the limit by `set`. Returns whether
    /// no more than so many are in it; otherwise nothing has changed.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn resize(&self, slots: usize, set: impl FnOnce(&mut S)) -> Result<bool> {
        let _reading = self.reading.lock();
        let _writing = self.writing.lock();
        let mut other = Aggregate::new();
        other.reserve(slots + ABOVE_SLOTS)?;
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
