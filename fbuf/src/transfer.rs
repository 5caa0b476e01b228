//! The two ends of a transfer.

use abi::Result;
use nucleus::Frame;

use crate::Slice;

/// Takes bytes: a program's buffer, an aggregate, a kernel buffer.
pub trait Sink {
    /// Bytes it can still take.
    fn room(&self) -> usize;

    /// Takes bytes of a frame, by copying or by keeping a handle. Returns how many: less than
    /// `len` only when there is no more room or after an error, which is reported at the next
    /// call. Who gives a frame to a sink that [keeps](Sink::keeps) it must not change these bytes any more.
    fn put_frame(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize>;

    /// Takes a copy of bytes of a frame that may change afterwards.
    fn put_frame_copy(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        self.put_frame(frame, offset, len)
    }

    /// Takes a copy of bytes of the kernel.
    fn put_bytes(&mut self, bytes: &[u8]) -> Result<usize>;

    /// Takes `len` zero bytes (a hole).
    fn put_zeros(&mut self, len: usize) -> Result<usize>;

    /// Whether [`put_frame`](Sink::put_frame) keeps a handle of the frame rather than copy. Such
    /// a sink never touches a program's memory, so locks may be held while it takes bytes.
    fn keeps(&self) -> bool {
        false
    }
}

/// Gives bytes.
pub trait Source {
    /// Bytes it still has.
    fn left(&self) -> usize;

    /// Copies bytes into a frame. Returns how many: less than `len` only when it has no more or
    /// after an error, which is reported at the next call.
    fn take_into(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize>;

    /// Copies bytes into a buffer of the kernel.
    fn take_bytes(&mut self, to: &mut [u8]) -> Result<usize>;

    /// Passes on a slice without copying, where the source has slices and its next one may be
    /// passed on; `max` bytes at most.
    fn take_slice(&mut self, max: usize) -> Option<Slice> {
        let _ = max;
        None
    }
}

/// What a transfer reports that `result` ended after `total` bytes: bytes moved before an error
/// count, and the error only shows when there are none.
pub fn moved(total: usize, result: Result<()>) -> Result<usize> {
    match result {
        Err(error) if total == 0 => Err(error),
        _ => Ok(total),
    }
}
