//! Slices on their way from one file to another.

use abi::Result;
use nucleus::{Frame, PAGE_SIZE};

use super::{AggregateSink, AggregateSource, Sink, Source};
use crate::{aggregate::Aggregate, slice::Slice};

/// Slices that a call takes from a file and gives to another one. A call of at most a page, which
/// is in one slice mostly, allocates no chain for it.
pub struct Moving {
    /// What is before the chain.
    first: Option<Slice>,
    chain: Aggregate,
    /// Bytes that may be added.
    room: usize,
    /// Slices that it may have in all.
    slices: usize,
    /// A first slice stands for itself.
    is_small: bool,
}

impl Moving {
    /// Makes room for `room` bytes in `slices` slices at most.
    #[inline]
    pub fn new(room: usize, slices: usize) -> Moving {
        let mut chain = Aggregate::new();
        AggregateSink::with_slices(&mut chain, room, slices);
        Moving {
            first: None,
            chain,
            room,
            slices,
            is_small: room <= PAGE_SIZE,
        }
    }

    /// Returns the bytes that are on their way.
    #[inline]
    pub fn len(&self) -> usize {
        self.first.as_ref().map_or(0, |first| first.len) + self.chain.len()
    }

    /// Returns whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of slices.
    #[inline]
    pub fn slice_count(&self) -> usize {
        usize::from(self.first.is_some()) + self.chain.slice_count()
    }

    /// Returns the chain, if all bytes are in it.
    #[inline]
    pub(crate) fn chain(&mut self) -> Option<&mut Aggregate> {
        match self.first {
            None => Some(&mut self.chain),
            Some(_) => None,
        }
    }

    /// The first slice, whole.
    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<Slice> {
        match self.first.take() {
            None => self.chain.pop_front(),
            first => first,
        }
    }

    /// Adds to the chain by `add`, for which the slice before it counts.
    #[inline(always)]
    fn add(&mut self, add: impl FnOnce(&mut AggregateSink<'_>) -> Result<usize>) -> Result<usize> {
        let slices = self.slices - usize::from(self.first.is_some());
        let mut to = AggregateSink::reserved(&mut self.chain, self.room, slices);
        let n = add(&mut to)?;
        self.room -= n;
        Ok(n)
    }

    /// Runs `take` with all bytes in the chain.
    fn take_chained(
        &mut self,
        take: impl FnOnce(&mut AggregateSource<'_>) -> Result<usize>,
    ) -> Result<usize> {
        self.chain.reserve(1)?;
        if let Some(first) = self.first.take() {
            self.chain.push_front(first);
        }
        take(&mut AggregateSource::new(&mut self.chain, usize::MAX))
    }
}

impl Sink for Moving {
    fn room(&self) -> usize {
        let free = self.slices.saturating_sub(self.slice_count());
        self.room.min(free.saturating_mul(PAGE_SIZE))
    }

    fn put_frame(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        self.add(|to| to.put_frame(frame, offset, len))
    }

    fn put_slice(&mut self, slice: Slice) -> Result<usize> {
        if self.is_small && self.is_empty() && slice.len <= self.room() {
            let len = slice.len;
            self.first = Some(slice);
            self.room -= len;
            return Ok(len);
        }
        self.add(|to| to.put_slice(slice))
    }

    fn put_bytes(&mut self, bytes: &[u8]) -> Result<usize> {
        self.add(|to| to.put_bytes(bytes))
    }

    fn put_zeros(&mut self, len: usize) -> Result<usize> {
        self.add(|to| to.put_zeros(len))
    }

    fn keeps(&self) -> bool {
        true
    }
}

impl Source for Moving {
    fn left(&self) -> usize {
        self.len()
    }

    fn take_into(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        self.take_chained(|from| from.take_into(frame, offset, len))
    }

    fn take_bytes(&mut self, to: &mut [u8]) -> Result<usize> {
        self.take_chained(|from| from.take_bytes(to))
    }

    fn slices(&self, bytes: usize, most: usize) -> usize {
        let first = self.first.as_ref().map_or(0, |first| first.len);
        let before = usize::from(first > 0 && bytes > 0).min(most);
        before
            + self
                .chain
                .count_slices(bytes.saturating_sub(first), most - before)
    }

    fn take_slice(&mut self, max: usize) -> Option<Slice> {
        match &mut self.first {
            None => self.chain.take_slice(max),
            Some(first) if first.len > max => (max > 0).then(|| first.split_front(max)),
            Some(_) => self.first.take(),
        }
    }
}
