//! The two ends of a transfer.

use abi::Result;
use nucleus::{Frame, ephemeral};

use crate::Slice;

/// Takes bytes: a program's buffer, an aggregate, a kernel buffer.
pub trait Sink {
    /// Bytes it can still take.
    fn room(&self) -> usize;

    /// Takes bytes of a frame, by copying or by keeping a handle. Returns how many: less than
    /// `len` only when there is no more room. An error after some bytes were taken is reported at the next call.
    fn put_frame(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize>;

    /// Takes a copy of bytes of the kernel.
    fn put_bytes(&mut self, bytes: &[u8]) -> Result<usize>;

    /// Takes `len` zero bytes (a hole).
    fn put_zeros(&mut self, len: usize) -> Result<usize>;
}

/// Gives bytes.
pub trait Source {
    /// Bytes it still has.
    fn left(&self) -> usize;

    /// Copies bytes into a frame. Returns how many: less than `len` only when it has no more.
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

/// A sink over a kernel buffer.
pub struct BytesSink<'a> {
    pub to: &'a mut [u8],
    pub filled: usize,
}

/// A source over kernel bytes.
pub struct BytesSource<'a> {
    pub from: &'a [u8],
}

impl Sink for BytesSink<'_> {
    fn room(&self) -> usize {
        self.to.len() - self.filled
    }

    fn put_frame(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        let n = len.min(self.room());
        ephemeral::map(frame).read(offset, &mut self.to[self.filled..self.filled + n]);
        self.filled += n;
        Ok(n)
    }

    fn put_bytes(&mut self, bytes: &[u8]) -> Result<usize> {
        let n = bytes.len().min(self.room());
        self.to[self.filled..self.filled + n].copy_from_slice(&bytes[..n]);
        self.filled += n;
        Ok(n)
    }

    fn put_zeros(&mut self, len: usize) -> Result<usize> {
        let n = len.min(self.room());
        self.to[self.filled..self.filled + n].fill(0);
        self.filled += n;
        Ok(n)
    }
}

impl Source for BytesSource<'_> {
    fn left(&self) -> usize {
        self.from.len()
    }

    fn take_into(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        let n = len.min(self.from.len());
        ephemeral::map(frame).write(offset, &self.from[..n]);
        self.from = &self.from[n..];
        Ok(n)
    }

    fn take_bytes(&mut self, to: &mut [u8]) -> Result<usize> {
        let n = to.len().min(self.from.len());
        to[..n].copy_from_slice(&self.from[..n]);
        self.from = &self.from[n..];
        Ok(n)
    }
}
