//! Transfers: sources, sinks, and the kinds of them.

use abi::{Errno, Result};
use nucleus::{Frame, VirtAddr, frame::Owned};
use vm::{CopyReason, PinnedPages};

use crate::slice::Slice;

/// Bytes of a program's pages.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Bytes of the first page before the first one.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

mod aggregate;
mod bytes;
mod clipped;
mod user;

pub use aggregate::{AggregateSink, AggregateSource};
pub use bytes::{BytesSink, BytesSource, DiscardSink};
pub use clipped::Clipped;
pub use user::{MAX_TRANSFER, UserBuffers};

/// Takes bytes: a program's buffer, an aggregate, a kernel buffer.
pub trait Sink {
    /// Returns how many bytes it can still take.
    fn room(&self) -> usize;

    /// Takes a copy of bytes of a frame. Returns how many: less than `len` only when there is no
    /// more room or after an error, which the next call reports.
    fn put_frame(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize>;

    /// Takes the bytes of a slice, which a sink that [keeps](Sink::keeps) slices does without a
    /// copy; else as [`put_frame`](Sink::put_frame).
    fn put_slice(&mut self, slice: Slice) -> Result<usize> {
        self.put_frame(slice.frame(), slice.offset, slice.len)
    }

    /// Takes a copy of bytes of the kernel.
    fn put_bytes(&mut self, bytes: &[u8]) -> Result<usize>;

    /// Takes a copy of all of `bytes`, for which there is room.
    ///
    /// # Errors
    /// `EFAULT` if it takes fewer.
    fn put_all(&mut self, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match self.put_bytes(&bytes[done..])? {
                0 => return Err(Errno::EFAULT),
                n => done += n,
            }
        }
        Ok(())
    }

    /// Takes `len` zero bytes (a hole).
    fn put_zeros(&mut self, len: usize) -> Result<usize>;

    /// Returns how many pages, `most` at most, it would take as they are now, in the place of its
    /// own, rather than their bytes.
    ///
    /// # Errors
    /// Why it takes none; always, unless [`take_pages`](Sink::take_pages) takes some.
    fn places(&mut self, most: usize) -> core::result::Result<usize, CopyReason> {
        let _ = most;
        Err(CopyReason::NotTaken)
    }

    /// Takes pages out of `pages`, from the first one on, in the place of its own (page transfer,
    /// `uvm.txt` 7); returns how many. The others are offered as bytes next.
    fn take_pages(&mut self, pages: &mut [Option<Owned>]) -> usize {
        let _ = pages;
        0
    }

    /// Returns where in the program's memory the next bytes go, and how many fit there.
    fn target(&mut self) -> Option<(VirtAddr, usize)> {
        None
    }

    /// Goes on behind the next `n` bytes, which were put where they go.
    fn skip_put(&mut self, n: usize) {
        let _ = n;
    }

    /// Returns the bits in which the address or the length of any of its pieces is not 0, if they
    /// are a program's memory, which [`pin_room`](Sink::pin_room) pins: the pieces are aligned to a
    /// power of two that is in or below the lowest one.
    fn unaligned_bits(&mut self) -> Option<usize> {
        None
    }

    /// Pins the places of the next bytes, `most` at most, for a device that writes them; the caller
    /// goes on behind those that it has written by [`skip_put`](Sink::skip_put). Fewer where the
    /// program's memory ends or may not be written. No lock is held that a fault takes.
    ///
    /// # Errors
    /// `EFAULT` if none can be written; `ENOMEM`.
    fn pin_room(&mut self, most: usize) -> Result<PinnedPages> {
        let _ = most;
        Err(Errno::EFAULT)
    }

    /// Returns whether [`put_slice`](Sink::put_slice) keeps the slice instead of copying. Such a
    /// sink never touches a program's memory, so locks may be held meanwhile.
    fn keeps(&self) -> bool {
        false
    }
}

/// Gives bytes.
pub trait Source {
    /// Returns how many bytes it still has.
    fn left(&self) -> usize;

    /// Copies bytes into a frame. Returns how many: less than `len` only when it has no more or
    /// after an error, which the next call reports.
    fn take_into(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize>;

    /// Copies bytes into a buffer of the kernel.
    fn take_bytes(&mut self, to: &mut [u8]) -> Result<usize>;

    /// Fills a buffer of the kernel, for which the source has enough.
    ///
    /// # Errors
    /// `EFAULT` if it gives less.
    fn take_all(&mut self, to: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < to.len() {
            match self.take_bytes(&mut to[done..])? {
                0 => return Err(Errno::EFAULT),
                n => done += n,
            }
        }
        Ok(())
    }

    /// Returns how many slices hold the next `bytes` bytes, counted up to `most`; 0 if
    /// [`take_slice`](Source::take_slice) passes none on.
    fn slices(&self, bytes: usize, most: usize) -> usize {
        let _ = (bytes, most);
        0
    }

    /// Judges whether [`lend`](Source::lend) is worth a try now, of `most` pages at most.
    ///
    /// # Errors
    /// Why it is not.
    fn lends(&mut self, most: usize) -> core::result::Result<(), CopyReason> {
        let _ = most;
        Err(CopyReason::NotLent)
    }

    /// Lends its next whole pages (page loanout, `uvm.txt` 7), as many as `pages` has places for at
    /// most, and goes on behind them; returns how many. No spin lock is held.
    fn lend(&mut self, pages: &mut [Option<Owned>]) -> usize {
        let _ = pages;
        0
    }

    /// Returns handles of the pages with its next bytes, as many as `pages` has places for, if they
    /// are a program's: they are brought in, and the program may change them. No lock is held that
    /// comes after those of queues.
    fn hold(&mut self, pages: &mut [Option<Frame>]) -> Option<Held> {
        let _ = pages;
        None
    }

    /// Goes on behind the next `n` bytes, of those that are [held](Source::hold) or
    /// [pinned](Source::pin_bytes).
    fn skip(&mut self, n: usize) {
        let _ = n;
    }

    /// As [`Sink::unaligned_bits`], of the bytes that [`pin_bytes`](Source::pin_bytes) pins.
    fn unaligned_bits(&mut self) -> Option<usize> {
        None
    }

    /// Pins the next bytes, `most` at most, for a device that reads them, as
    /// [`Sink::pin_room`] does; the caller goes on behind them by [`skip`](Source::skip).
    ///
    /// # Errors
    /// `EFAULT` if none can be read; `ENOMEM`.
    fn pin_bytes(&mut self, most: usize) -> Result<PinnedPages> {
        let _ = most;
        Err(Errno::EFAULT)
    }

    /// Passes on a slice of at most `max` bytes without copying, if the source has slices and
    /// the next one may be passed on.
    fn take_slice(&mut self, max: usize) -> Option<Slice> {
        let _ = max;
        None
    }
}

/// Returns the result of a transfer that `result` ended after `total` bytes: bytes moved before
/// an error count, and the error is reported only without any.
pub fn moved(total: usize, result: Result<()>) -> Result<usize> {
    match result {
        Err(error) if total == 0 => Err(error),
        _ => Ok(total),
    }
}
