//! Transfers: sources, sinks, and the kinds of them.

use abi::{Errno, Result};
use nucleus::Frame;

use crate::slice::Slice;

mod aggregate;
mod bytes;
mod clipped;
mod moving;
mod user;

pub use aggregate::{AggregateSink, AggregateSource};
pub use bytes::{BytesSink, BytesSource, DiscardSink};
pub use clipped::Clipped;
pub use moving::Moving;
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

    /// Returns the program's memory that it writes, if that is what it is: then bytes may get there
    /// in other ways than through the calls above. What they move there it has taken.
    fn program_memory(&mut self) -> Option<&mut UserBuffers> {
        None
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

    /// Returns how many slices hold the next `bytes` bytes, counted up to `most`, or more if it
    /// cannot tell; 0 if [`take_slice`](Source::take_slice) passes none on. Takes no lock.
    fn slices(&self, bytes: usize, most: usize) -> usize {
        let _ = (bytes, most);
        0
    }

    /// Returns the program's memory that it reads, as [`Sink::program_memory`] does.
    fn program_memory(&mut self) -> Option<&mut UserBuffers> {
        None
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
