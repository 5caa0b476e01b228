//! Transfers to and from the kernel's own bytes.

use abi::Result;
use nucleus::{Frame, ephemeral};

use super::{Sink, Source};

/// A sink over a kernel buffer.
pub struct BytesSink<'a> {
    /// The buffer.
    pub to: &'a mut [u8],
    /// Bytes of `to` that have been filled.
    pub filled: usize,
}

/// A source over kernel bytes.
pub struct BytesSource<'a> {
    /// The bytes that are left.
    pub from: &'a [u8],
}

/// A sink that drops all that it takes.
pub struct DiscardSink;

impl<'a> BytesSink<'a> {
    /// Makes a sink that fills `to` from its start.
    pub fn new(to: &'a mut [u8]) -> BytesSink<'a> {
        BytesSink { to, filled: 0 }
    }
}

impl<'a> BytesSource<'a> {
    /// Makes a source of all bytes of `from`.
    pub fn new(from: &'a [u8]) -> BytesSource<'a> {
        BytesSource { from }
    }
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

impl Sink for DiscardSink {
    fn room(&self) -> usize {
        usize::MAX
    }

    fn put_frame(&mut self, _: &Frame, _: usize, len: usize) -> Result<usize> {
        Ok(len)
    }

    fn put_bytes(&mut self, bytes: &[u8]) -> Result<usize> {
        Ok(bytes.len())
    }

    fn put_zeros(&mut self, len: usize) -> Result<usize> {
        Ok(len)
    }
}
