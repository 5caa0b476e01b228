//! Aggregates (`fbufs.txt` 2.1.1: aggregate objects).

use alloc::collections::VecDeque;
use core::mem;

use abi::Result;
use nucleus::{Frame, PAGE_SIZE, ephemeral};

use crate::slice::Slice;

/// A chain of slices. Joining, splitting and clipping change the chain, not the data.
///
/// Neighbours that continue each other in one frame are one slice, so a stream of small pieces
/// of a page stays short.
#[derive(Clone, Default, Debug)]
pub struct Aggregate {
    slices: VecDeque<Slice>,
    /// The sum of the slices' lengths.
    len: usize,
    /// The sum of what the slices keep beside one frame each.
    more: usize,
}

impl Aggregate {
    /// Makes an empty chain. Allocates nothing.
    pub const fn new() -> Aggregate {
        Aggregate {
            slices: VecDeque::new(),
            len: 0,
            more: 0,
        }
    }

    /// Returns the bytes in the chain.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the slices in order.
    pub fn slices(&self) -> impl ExactSizeIterator<Item = &Slice> + DoubleEndedIterator {
        self.slices.iter()
    }

    /// Returns the number of slices.
    pub fn slice_count(&self) -> usize {
        self.slices.len()
    }

    /// Returns how many frames the slices keep, as far as each keeps its own.
    #[inline]
    pub fn frame_count(&self) -> usize {
        self.slices.len() + self.more
    }

    /// Returns how many slices the chain can hold without an allocation.
    pub fn capacity(&self) -> usize {
        self.slices.capacity()
    }

    /// Makes room for `slices` more, which can then be added without an error.
    ///
    /// # Errors
    /// `ENOMEM`.
    #[inline]
    pub fn reserve(&mut self, slices: usize) -> Result<()> {
        Ok(self.slices.try_reserve(slices)?)
    }

    /// Adds a slice at the back. An empty one adds nothing.
    ///
    /// # Errors
    /// `ENOMEM`; nothing has changed.
    #[inline]
    pub fn append(&mut self, slice: Slice) -> Result<()> {
        if self.slices.len() == self.slices.capacity() {
            return self.grow_and_append(slice);
        }
        self.push(slice);
        Ok(())
    }

    #[inline(never)]
    fn grow_and_append(&mut self, slice: Slice) -> Result<()> {
        self.reserve(1)?;
        self.push(slice);
        Ok(())
    }

    /// Adds a slice at the back, for which there is room.
    #[inline(always)]
    pub(crate) fn push(&mut self, slice: Slice) {
        debug_assert!(slice.end() <= slice.frame().size());
        let continues = |last: &Slice| last.frame() == slice.frame() && last.end() == slice.offset;
        if slice.len == 0 || self.slices.back().is_some_and(continues) {
            return self.lengthen(slice);
        }
        debug_assert!(self.slices.len() < self.slices.capacity());
        self.len += slice.len;
        self.more += slice.more();
        self.slices.push_back(slice);
    }

    /// Adds a slice at the front, for which there is room.
    pub(crate) fn push_front(&mut self, slice: Slice) {
        self.len += slice.len;
        self.more += slice.more();
        self.slices.push_front(slice);
    }

    /// Adds a slice that continues the last one, or is empty. Out of line: most do not.
    #[inline(never)]
    fn lengthen(&mut self, slice: Slice) {
        if let Some(last) = self.slices.back_mut() {
            last.len += slice.len;
            self.len += slice.len;
        }
    }

    /// Moves all of `other` to the back of this one.
    ///
    /// # Errors
    /// `ENOMEM`; nothing has changed.
    pub fn join(&mut self, other: &mut Aggregate) -> Result<()> {
        self.reserve(other.slices.len())?;
        // Only the first slice can continue the last one here; the others move in one step.
        if let Some(first) = other.pop_front() {
            self.push(first);
        }
        if !other.slices.is_empty() {
            self.slices.append(&mut other.slices);
            self.len += mem::take(&mut other.len);
            self.more += mem::take(&mut other.more);
        }
        Ok(())
    }

    /// Adds handles of the first slices to the back of `to`: at most `max` bytes, `slices` slices,
    /// and what `to` has room for without an allocation. Returns how many bytes that are.
    pub fn share_front(&self, to: &mut Aggregate, max: usize, slices: usize) -> usize {
        let slices = slices.min(to.capacity() - to.slice_count());
        let before = to.len;
        if self.len <= max && self.slices.len() <= slices {
            let (front, back) = self.slices.as_slices();
            let Some((first, others)) = front.split_first() else {
                return 0;
            };
            // Only the first slice can continue the last one there; the others are added at once.
            to.push(first.clone());
            to.slices.extend(others.iter().cloned());
            to.slices.extend(back.iter().cloned());
            to.more += self.more - first.more();
            to.len = before + self.len;
            return self.len;
        }
        self.share_part(to, max, slices);
        to.len - before
    }

    #[inline(never)]
    fn share_part(&self, to: &mut Aggregate, mut max: usize, slices: usize) {
        for slice in self.slices.iter().take(slices) {
            let len = slice.len.min(max);
            if len == 0 {
                break;
            }
            to.push(slice.first(len));
            max -= len;
        }
    }

    /// Removes and returns byte `at`; the bytes behind it move up. It splits one slice at most.
    ///
    /// # Errors
    /// `ENOMEM`; nothing has changed.
    pub fn take_byte(&mut self, at: usize) -> Result<Option<Slice>> {
        let (place, before) = self.locate(at);
        self.reserve(1)?;
        let Some(slice) = self.slices.get_mut(place) else {
            return Ok(None);
        };
        let front = slice.split_front(before);
        let byte = slice.split_front(1);
        let is_empty = slice.len == 0;
        self.len -= 1;
        match (front.len > 0, is_empty) {
            (true, true) => *slice = front,
            (true, false) => {
                self.more += front.more();
                self.slices.insert(place, front);
            }
            (false, true) => {
                self.more -= byte.more();
                drop(self.slices.remove(place));
            }
            (false, false) => {}
        }
        Ok(Some(byte))
    }

    /// Returns how many slices lie wholly in the first `n` bytes, and how many bytes of the next
    /// slice do.
    pub(crate) fn locate(&self, n: usize) -> (usize, usize) {
        let mut left = n;
        for (i, slice) in self.slices.iter().enumerate() {
            if left < slice.len {
                return (i, left);
            }
            left -= slice.len;
        }
        (self.slices.len(), 0)
    }

    /// Returns how many slices hold the first `bytes` bytes, counted up to `most`.
    pub(crate) fn count_slices(&self, bytes: usize, most: usize) -> usize {
        let mut left = bytes.min(self.len);
        // Mostly there is one.
        if self.slices.front().is_some_and(|first| first.len >= left) {
            return most.min(usize::from(left > 0));
        }
        let mut count = 0;
        for slice in self.slices.iter().take(most) {
            if left == 0 {
                break;
            }
            left -= slice.len.min(left);
            count += 1;
        }
        count
    }

    /// Drops all bytes. The room for slices stays.
    pub fn clear(&mut self) {
        self.slices.clear();
        (self.len, self.more) = (0, 0);
    }

    /// Drops the first `n` bytes, or all if there are fewer.
    #[inline]
    pub fn clip_front(&mut self, n: usize) {
        // Mostly they are headers, before more bytes of the same slice.
        if let Some(first) = self.slices.front_mut()
            && (1..first.len).contains(&n)
        {
            first.drop_front(n);
            self.len -= n;
            return;
        }
        self.clip_slices(n);
    }

    #[inline(never)]
    fn clip_slices(&mut self, n: usize) {
        let mut left = n;
        while left > 0 {
            let Some(first) = self.slices.front() else {
                return;
            };
            let here = left.min(first.len);
            drop(self.pass(here));
            left -= here;
        }
    }

    /// The first slice, whole.
    #[inline]
    pub fn pop_front(&mut self) -> Option<Slice> {
        let slice = self.slices.pop_front()?;
        self.len -= slice.len;
        self.more -= slice.more();
        Some(slice)
    }

    /// The last slice, whole.
    pub fn pop_back(&mut self) -> Option<Slice> {
        let slice = self.slices.pop_back()?;
        self.len -= slice.len;
        self.more -= slice.more();
        Some(slice)
    }

    /// The first slice, but no more than `max` bytes of it; `None` if that is nothing.
    #[inline]
    pub fn take_slice(&mut self, max: usize) -> Option<Slice> {
        let first = self.slices.front()?;
        match first.len <= max {
            true => self.pop_front(),
            false => self.split_first(max),
        }
    }

    /// The first `n` bytes of the first slice, which are fewer than it has; `None` for none.
    #[inline(never)]
    fn split_first(&mut self, n: usize) -> Option<Slice> {
        let first = self.slices.front_mut().filter(|_| n > 0)?;
        self.len -= n;
        Some(first.split_front(n))
    }

    /// Drops the first `n` bytes of the first slice; returns it if these were its last.
    #[inline]
    pub(crate) fn pass(&mut self, n: usize) -> Option<Slice> {
        let first = self.slices.front_mut()?;
        if first.len > n {
            first.drop_front(n);
            self.len -= n;
            return None;
        }
        self.pop_front()
    }

    /// Copies bytes from byte `from` on and leaves them in place; returns how many there were.
    #[inline]
    pub fn peek(&self, from: usize, to: &mut [u8]) -> usize {
        // Mostly all of them are in the first slice.
        if let Some(first) = self.slices.front()
            && first.len >= from + to.len()
        {
            ephemeral::map(first.frame()).read(first.offset + from, to);
            return to.len();
        }
        self.peek_on(from, to)
    }

    #[inline(never)]
    fn peek_on(&self, from: usize, to: &mut [u8]) -> usize {
        let (mut at, mut skip, mut done) = (0, from, 0);
        while done < to.len() && at < self.slices.len() {
            let slice = &self.slices[at];
            if skip < slice.len {
                let n = (slice.len - skip).min(to.len() - done);
                ephemeral::map(slice.frame()).read(slice.offset + skip, &mut to[done..done + n]);
                done += n;
                skip = 0;
            } else {
                skip -= slice.len;
            }
            at += 1;
        }
        done
    }

    /// Returns slice `at`, counted from the front.
    pub(crate) fn slice(&self, at: usize) -> Option<&Slice> {
        self.slices.get(at)
    }

    /// Returns the last slice.
    pub(crate) fn last(&self) -> Option<&Slice> {
        self.slices.back()
    }

    /// Copies bytes into the unused end of the last frame with `copy(frame, offset)`, which
    /// returns how many. `None` without such an end, and where the frame has another handle:
    /// its owner may show or fill these bytes.
    pub(crate) fn extend_last(
        &mut self,
        copy: impl FnOnce(&Frame, usize) -> Result<usize>,
    ) -> Option<Result<usize>> {
        // The only handle is in `self`, which is borrowed here: no other one can appear meanwhile.
        let last = self.slices.back_mut()?;
        if last.end() >= PAGE_SIZE || last.frame().handles() != 1 {
            return None;
        }
        Some(copy(last.frame(), last.end()).inspect(|n| {
            last.len += n;
            self.len += n;
        }))
    }
}
