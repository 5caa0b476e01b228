//! Transfers to and from aggregates: frames are kept, not copied.

use abi::Result;
use nucleus::{Frame, PAGE_SIZE, ephemeral, frame::Contents};

use super::{BytesSource, Sink, Source, moved};
use crate::{aggregate::Aggregate, slice::Slice};

impl Aggregate {
    /// Moves up to `max` bytes from the front to `to`.
    ///
    /// # Errors
    /// Those of `to`, when it took nothing.
    pub fn drain_into(&mut self, to: &mut dyn Sink, max: usize) -> Result<usize> {
        let mut total = 0;
        while total < max
            && let Some(first) = self.slice(0)
        {
            let n = first.len.min(max - total).min(to.room());
            if n == 0 {
                break;
            }
            let put = match to.keeps() {
                true => to.put_slice(first.first(n)),
                false => to.put_frame(first.frame(), first.offset, n),
            };
            match put {
                Ok(0) => break,
                Ok(taken) => {
                    // Of the first slice.
                    drop(self.pass(taken));
                    total += taken;
                }
                Err(error) => return moved(total, Err(error)),
            }
        }
        Ok(total)
    }

    /// Adds up to `max` bytes of `from` at the back: passed on where `from` offers slices, else
    /// copied, first into the unused end of the last frame if that has no other handle, then
    /// into new frames.
    ///
    /// # Errors
    /// `ENOMEM` and those of `from`, when nothing was added.
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

    /// Copies `bytes`, a page at most, to the back: into the unused end of the last frame if that
    /// has no other handle, the rest into `spare`, whose other bytes nothing shows.
    ///
    /// # Errors
    /// `ENOMEM`; nothing was added.
    pub fn push_copy(&mut self, bytes: &[u8], spare: &Frame) -> Result<()> {
        self.reserve(1)?;
        let in_place = self.extend_last(|frame, at| {
            let n = bytes.len().min(PAGE_SIZE - at);
            ephemeral::map(frame).write(at, &bytes[..n]);
            Ok(n)
        });
        let done = in_place.unwrap_or(Ok(0))?;
        if done < bytes.len() {
            ephemeral::map(spare).write(0, &bytes[done..]);
            self.append(Slice::part(spare, 0, bytes.len() - done))?;
        }
        Ok(())
    }

    /// One step of [`fill_from`](Aggregate::fill_from).
    fn fill_once(&mut self, from: &mut dyn Source, max: usize) -> Result<usize> {
        self.reserve(1)?;
        if let Some(slice) = from.take_slice(max) {
            let n = slice.len;
            return self.append(slice).map(|()| n);
        }
        let in_place =
            self.extend_last(|frame, at| from.take_into(frame, at, max.min(PAGE_SIZE - at)));
        if let Some(result) = in_place {
            return result;
        }
        let frame = vm::alloc_frame(Contents::Stale)?;
        let n = from.take_into(&frame, 0, max.min(PAGE_SIZE))?;
        self.append(match n {
            PAGE_SIZE => Slice::whole(frame),
            _ => Slice::part(&frame, 0, n),
        })?;
        Ok(n)
    }
}

/// The slices of a transfer for which room is made at once: those that a pipe has by default.
const LIKELY: usize = 16;

/// Appends to an aggregate, up to a number of bytes and a number of slices in it.
pub struct AggregateSink<'a> {
    to: &'a mut Aggregate,
    room: usize,
    slices: usize,
}

/// Takes bytes off the front of an aggregate.
pub struct AggregateSource<'a> {
    from: &'a mut Aggregate,
    left: usize,
}

impl<'a> AggregateSink<'a> {
    /// Makes a sink that appends `room` bytes at most.
    pub fn new(to: &'a mut Aggregate, room: usize) -> AggregateSink<'a> {
        AggregateSink::with_slices(to, room, usize::MAX)
    }

    /// As [`new`](AggregateSink::new), while there are fewer than `slices` slices in it.
    pub fn with_slices(to: &'a mut Aggregate, room: usize, slices: usize) -> AggregateSink<'a> {
        // One growth of the chain for most transfers; a slice that finds no room says so itself.
        if room > PAGE_SIZE {
            let likely = room.div_ceil(PAGE_SIZE).min(slices).min(LIKELY);
            let _ = to.reserve(likely.saturating_sub(to.slice_count()));
        }
        AggregateSink { to, room, slices }
    }

    /// As [`with_slices`](AggregateSink::with_slices), and makes no room.
    #[inline(always)]
    pub(super) fn reserved(to: &'a mut Aggregate, room: usize, slices: usize) -> AggregateSink<'a> {
        AggregateSink { to, room, slices }
    }

    /// Copies from `from` into frames that belong to the aggregate.
    fn fill(&mut self, from: &mut dyn Source) -> Result<usize> {
        let n = self.to.fill_from(from, self.room())?;
        self.room -= n;
        Ok(n)
    }
}

impl<'a> AggregateSource<'a> {
    /// Makes a source of `max` bytes at most.
    pub fn new(from: &'a mut Aggregate, max: usize) -> AggregateSource<'a> {
        let left = max.min(from.len());
        AggregateSource { from, left }
    }
}

/// Bytes of one frame, to be copied.
struct FrameSource<'a> {
    frame: &'a Frame,
    offset: usize,
    len: usize,
}

impl Source for FrameSource<'_> {
    fn left(&self) -> usize {
        self.len
    }

    fn take_into(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        let n = len.min(self.len);
        ephemeral::copy(frame, offset, self.frame, self.offset, n);
        self.offset += n;
        self.len -= n;
        Ok(n)
    }

    fn take_bytes(&mut self, to: &mut [u8]) -> Result<usize> {
        let n = to.len().min(self.len);
        ephemeral::map(self.frame).read(self.offset, &mut to[..n]);
        self.offset += n;
        self.len -= n;
        Ok(n)
    }
}

impl Sink for AggregateSink<'_> {
    fn room(&self) -> usize {
        let free = self.slices.saturating_sub(self.to.slice_count());
        self.room.min(free.saturating_mul(PAGE_SIZE))
    }

    fn put_frame(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        self.fill(&mut FrameSource { frame, offset, len })
    }

    #[inline]
    fn put_slice(&mut self, mut slice: Slice) -> Result<usize> {
        let len = slice.len.min(self.room());
        if len < slice.len {
            slice = slice.clipped(len);
        }
        self.to.append(slice)?;
        self.room -= len;
        Ok(len)
    }

    fn put_bytes(&mut self, bytes: &[u8]) -> Result<usize> {
        self.fill(&mut BytesSource::new(bytes))
    }

    fn put_zeros(&mut self, len: usize) -> Result<usize> {
        let len = len.min(self.room());
        if len == 0 {
            return Ok(0);
        }
        // One frame of zeros serves the whole hole: slices are immutable.
        let zeros = Slice::whole(vm::alloc_frame(Contents::Zeroed)?);
        let mut done = 0;
        while done < len {
            let n = (len - done).min(PAGE_SIZE);
            if let Err(error) = self.to.append(zeros.first(n)) {
                return moved(done, Err(error));
            }
            self.room -= n;
            done += n;
        }
        Ok(len)
    }

    fn keeps(&self) -> bool {
        true
    }
}

impl Source for AggregateSource<'_> {
    fn left(&self) -> usize {
        self.left
    }

    fn take_into(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        let mut total = 0;
        while total < len
            && let Some(slice) = self.take_slice(len - total)
        {
            ephemeral::copy(
                frame,
                offset + total,
                slice.frame(),
                slice.offset,
                slice.len,
            );
            total += slice.len;
        }
        Ok(total)
    }

    fn take_bytes(&mut self, to: &mut [u8]) -> Result<usize> {
        let max = to.len().min(self.left);
        let n = self.from.peek(0, &mut to[..max]);
        self.from.clip_front(n);
        self.left -= n;
        Ok(n)
    }

    fn slices(&self, bytes: usize, most: usize) -> usize {
        self.from.count_slices(bytes.min(self.left), most)
    }

    fn take_slice(&mut self, max: usize) -> Option<Slice> {
        let slice = self.from.take_slice(max.min(self.left))?;
        self.left -= slice.len;
        Some(slice)
    }
}
