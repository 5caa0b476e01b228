//! Slices and aggregates (`fbufs.txt` 2.1.1: aggregate objects).

use alloc::collections::VecDeque;

use abi::{Errno, Result};
use nucleus::{Frame, PAGE_SIZE, ephemeral, frame::Contents};

use crate::{Sink, Source, moved};

/// Bytes `offset..offset + len` of one frame; `offset + len` is at most a page, `len` is not 0. Immutable once passed on.
#[derive(Clone, Debug)]
pub struct Slice {
    pub frame: Frame,
    pub offset: usize,
    pub len: usize,
}

impl Slice {
    /// A whole frame.
    pub fn whole(frame: Frame) -> Slice {
        Slice {
            frame,
            offset: 0,
            len: PAGE_SIZE,
        }
    }

    /// The byte after the last one, counted from the frame's start.
    pub fn end(&self) -> usize {
        self.offset + self.len
    }

    /// Takes the first `n` bytes off, 0 < `n` < `len`, and returns them.
    fn split_front(&mut self, n: usize) -> Slice {
        let front = Slice {
            frame: self.frame.clone(),
            offset: self.offset,
            len: n,
        };
        self.offset += n;
        self.len -= n;
        front
    }
}

/// A chain of slices. Joining, splitting and clipping change the chain, not the data.
///
/// Neighbours that continue each other in one frame are one slice, so a stream of small pieces
/// of a page stays short.
#[derive(Clone, Default, Debug)]
pub struct Aggregate {
    slices: VecDeque<Slice>,
    /// The sum of the slices' lengths.
    len: usize,
}

impl Aggregate {
    /// No bytes. No allocation.
    pub const fn new() -> Aggregate {
        Aggregate {
            slices: VecDeque::new(),
            len: 0,
        }
    }

    /// Bytes in the chain.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The slices in order.
    pub fn slices(&self) -> impl ExactSizeIterator<Item = &Slice> + DoubleEndedIterator {
        self.slices.iter()
    }

    /// How many slices the chain has.
    pub fn slice_count(&self) -> usize {
        self.slices.len()
    }

    /// How many slices it can have without an allocation.
    pub fn capacity(&self) -> usize {
        self.slices.capacity()
    }

    /// Makes room for `slices` more, so that as many of them can be added without an error.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn reserve(&mut self, slices: usize) -> Result<()> {
        self.slices.try_reserve(slices).map_err(|_| Errno::ENOMEM)
    }

    /// Adds a slice behind. An empty one adds nothing.
    ///
    /// # Errors
    /// `ENOMEM`; nothing has changed.
    pub fn append(&mut self, slice: Slice) -> Result<()> {
        debug_assert!(slice.end() <= PAGE_SIZE);
        if slice.len == 0 {
            return Ok(());
        }
        let len = slice.len;
        if let Some(last) = self.slices.back_mut()
            && last.frame == slice.frame
            && last.end() == slice.offset
        {
            last.len += len;
        } else {
            self.reserve(1)?;
            self.slices.push_back(slice);
        }
        self.len += len;
        Ok(())
    }

    /// Adds a slice in front (a header before what it describes). An empty one adds nothing.
    ///
    /// # Errors
    /// `ENOMEM`; nothing has changed.
    pub fn prepend(&mut self, slice: Slice) -> Result<()> {
        debug_assert!(slice.end() <= PAGE_SIZE);
        if slice.len == 0 {
            return Ok(());
        }
        let len = slice.len;
        if let Some(first) = self.slices.front_mut()
            && first.frame == slice.frame
            && slice.end() == first.offset
        {
            first.offset = slice.offset;
            first.len += len;
        } else {
            self.reserve(1)?;
            self.slices.push_front(slice);
        }
        self.len += len;
        Ok(())
    }

    /// Moves all of `other` behind this one.
    ///
    /// # Errors
    /// `ENOMEM`; nothing has changed.
    pub fn join(&mut self, other: &mut Aggregate) -> Result<()> {
        self.reserve(other.slices.len())?;
        // Only the first of them can continue what is here: the others go over in one piece.
        if let Some(first) = other.pop_front() {
            self.append(first)?;
        }
        if !other.slices.is_empty() {
            self.slices.append(&mut other.slices);
            self.len += core::mem::take(&mut other.len);
        }
        Ok(())
    }

    /// Takes the first `n` bytes off, or all if there are fewer.
    ///
    /// # Errors
    /// `ENOMEM`; nothing has changed.
    pub fn take_front(&mut self, n: usize) -> Result<Aggregate> {
        let mut front = Aggregate::new();
        let (whole, part) = self.locate(n);
        front.reserve(whole + 1)?;
        while let Some(slice) = self.take_slice(n - front.len) {
            front.append(slice)?;
        }
        debug_assert!(front.slices.len() <= whole + (part != 0) as usize);
        Ok(front)
    }

    /// Adds handles of the first slices to `to`, `max` bytes and `slices` slices at most, and no more than it has room for
    /// without an allocation. `to` is empty.
    pub fn share_front(&self, to: &mut Aggregate, max: usize, slices: usize) {
        debug_assert!(to.is_empty());
        for slice in self.slices.iter().take(slices.min(to.capacity())) {
            let len = slice.len.min(max - to.len);
            if len == 0 {
                break;
            }
            // Neighbours here do not continue each other, so they do not there.
            let frame = slice.frame.clone();
            let offset = slice.offset;
            to.slices.push_back(Slice { frame, offset, len });
            to.len += len;
        }
    }

    /// Takes off everything from byte `at` on.
    ///
    /// # Errors
    /// `ENOMEM`; nothing has changed.
    pub fn split_off(&mut self, at: usize) -> Result<Aggregate> {
        let front = self.take_front(at)?;
        Ok(core::mem::replace(self, front))
    }

    /// The number of slices that lie wholly in the first `n` bytes, and how many bytes of the next one do.
    fn locate(&self, n: usize) -> (usize, usize) {
        let mut left = n;
        for (i, slice) in self.slices.iter().enumerate() {
            if left < slice.len {
                return (i, left);
            }
            left -= slice.len;
        }
        (self.slices.len(), 0)
    }

    /// Drops the first `n` bytes, or all if there are fewer.
    pub fn clip_front(&mut self, n: usize) {
        let mut left = n;
        while left > 0 {
            match self.take_slice(left) {
                Some(slice) => left -= slice.len,
                None => return,
            }
        }
    }

    /// Drops the last `n` bytes, or all if there are fewer.
    pub fn clip_back(&mut self, n: usize) {
        let mut left = n.min(self.len);
        self.len -= left;
        while left > 0 {
            let Some(last) = self.slices.back_mut() else {
                return;
            };
            if left < last.len {
                last.len -= left;
                return;
            }
            left -= last.len;
            self.slices.pop_back();
        }
    }

    /// The first slice, whole.
    pub fn pop_front(&mut self) -> Option<Slice> {
        let slice = self.slices.pop_front()?;
        self.len -= slice.len;
        Some(slice)
    }

    /// The last slice, whole.
    pub fn pop_back(&mut self) -> Option<Slice> {
        let slice = self.slices.pop_back()?;
        self.len -= slice.len;
        Some(slice)
    }

    /// The first slice, but no more than `max` bytes of it; `None` if that is nothing.
    pub fn take_slice(&mut self, max: usize) -> Option<Slice> {
        let first = self.slices.front_mut()?;
        if max == 0 {
            return None;
        }
        if first.len <= max {
            return self.pop_front();
        }
        self.len -= max;
        Some(first.split_front(max))
    }

    /// Copies bytes from byte `from` on without taking them off; returns how many there were.
    pub fn peek(&self, from: usize, to: &mut [u8]) -> usize {
        let (mut at, mut skip, mut done) = (0, from, 0);
        while done < to.len() && at < self.slices.len() {
            let slice = &self.slices[at];
            if skip < slice.len {
                let n = (slice.len - skip).min(to.len() - done);
                ephemeral::map(&slice.frame).read(slice.offset + skip, &mut to[done..done + n]);
                done += n;
                skip = 0;
            } else {
                skip -= slice.len;
            }
            at += 1;
        }
        done
    }

    /// Gives up to `max` bytes from the front to `to`, and takes off what it took.
    ///
    /// # Errors
    /// That of `to`, when it took nothing.
    pub fn drain_into(&mut self, to: &mut dyn Sink, max: usize) -> Result<usize> {
        let mut total = 0;
        while total < max
            && let Some(first) = self.slices.front()
        {
            let n = first.len.min(max - total).min(to.room());
            if n == 0 {
                break;
            }
            match to.put_frame(&first.frame, first.offset, n) {
                Ok(0) => break,
                Ok(taken) => {
                    self.clip_front(taken);
                    total += taken;
                }
                Err(error) => return moved(total, Err(error)),
            }
        }
        Ok(total)
    }

    /// Takes up to `max` bytes of `from` behind: passed on as slices where it offers them, copied
    /// otherwise, first into the unused end of the last frame if nobody else holds that frame,
    /// then into new frames.
    ///
    /// # Errors
    /// `ENOMEM` or that of `from`, when nothing was added.
    pub fn fill_from(&mut self, from: &mut dyn Source, max: usize) -> Result<usize> {
        let mut total = 0;
        while total < max && from.left() > 0 {
            match self.fill_once(from, max - total) {
                Ok(0) => break,
                Ok(n) => total += n,
                Err(error) => return moved(total, Err(error)),
            }
        }
        Ok(total)
    }

    /// One step of [`fill_from`](Aggregate::fill_from).
    fn fill_once(&mut self, from: &mut dyn Source, max: usize) -> Result<usize> {
        self.reserve(1)?;
        if let Some(slice) = from.take_slice(max) {
            let n = slice.len;
            self.append(slice)?;
            return Ok(n);
        }
        if let Some(last) = self.slices.back_mut()
            && last.end() < PAGE_SIZE
            && last.frame.handles() == 1
        {
            // Nobody else can see the bytes behind the slice, or come to see them meanwhile: the
            // only handle is in `self`, which is borrowed here.
            let n = max.min(PAGE_SIZE - last.end());
            let n = from.take_into(&last.frame, last.end(), n)?;
            last.len += n;
            self.len += n;
            return Ok(n);
        }
        let frame = vm::alloc_frame(Contents::Stale).map_err(|_| Errno::ENOMEM)?;
        let n = from.take_into(&frame, 0, max.min(PAGE_SIZE))?;
        self.append(Slice {
            frame,
            offset: 0,
            len: n,
        })?;
        Ok(n)
    }
}
