//! The front of a queue as a source that leaves the bytes where they are.

use abi::Result;
use nucleus::{Frame, ephemeral};

use super::{Queue, State};
use crate::{
    io::Source,
    slice::{Slice, View},
};

/// The first bytes of a queue, which stay there: another file writes them, and what it wrote is
/// [taken off](Queue::remove) after that. Meanwhile no other call takes bytes off, so each is where
/// it was: writers add behind. A file that does not look at the bytes costs nothing for each slice.
pub struct Front<'a, S: State> {
    queue: &'a Queue<S>,
    /// The slice with the next byte, and how many of its bytes are before that.
    at: usize,
    skip: usize,
    /// Bytes from there on.
    left: usize,
    /// The slices that the queue had.
    slices: usize,
}

impl<S: State> Queue<S> {
    /// Makes a source of the first bytes, `max` at most.
    #[inline]
    pub fn front(&self, max: usize) -> Front<'_, S> {
        let chain = self.lock();
        Front {
            queue: self,
            at: 0,
            skip: 0,
            left: chain.data.len().min(max),
            slices: chain.data.slice_count(),
        }
    }
}

impl<S: State> Front<'_, S> {
    /// Goes on by the next bytes, all in one slice, `max` at most; returns what `look` makes of
    /// that slice, the bytes before them in it, and how many they are.
    #[inline(always)]
    fn next<T>(&mut self, max: usize, look: impl FnOnce(&Slice, usize, usize) -> T) -> Option<T> {
        let max = max.min(self.left);
        if max == 0 {
            return None;
        }
        let chain = self.queue.lock();
        let slice = chain.data.slice(self.at)?;
        let there = slice.len - self.skip;
        let n = there.min(max);
        let seen = look(slice, self.skip, n);
        match n == there {
            true => (self.at, self.skip) = (self.at + 1, 0),
            false => self.skip += n,
        }
        self.left -= n;
        Some(seen)
    }

    /// As [`next`](Front::next), for bytes that are copied.
    #[inline]
    fn view(&mut self, max: usize) -> Option<View> {
        self.next(max, |slice, at, n| {
            View::of(slice.frame(), slice.offset + at, n)
        })
    }
}

impl<S: State> Source for Front<'_, S> {
    fn left(&self) -> usize {
        self.left
    }

    fn take_into(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        let to = ephemeral::map(frame);
        let mut total = 0;
        while let Some(view) = self.view(len - total) {
            let from = ephemeral::map(&view.frame);
            to.copy_from(offset + total, &from, view.offset, view.len);
            total += view.len;
        }
        Ok(total)
    }

    fn take_bytes(&mut self, to: &mut [u8]) -> Result<usize> {
        let mut total = 0;
        while let Some(view) = self.view(to.len() - total) {
            let to = &mut to[total..total + view.len];
            ephemeral::map(&view.frame).read(view.offset, to);
            total += view.len;
        }
        Ok(total)
    }

    /// Another queue asks with its own chain locked: how much is in each is not looked at.
    fn slices(&self, bytes: usize, most: usize) -> usize {
        match bytes.min(self.left) {
            0 => 0,
            _ => (self.slices - self.at).min(most),
        }
    }

    fn take_slice(&mut self, max: usize) -> Option<Slice> {
        self.next(max, Slice::inner)
    }
}
