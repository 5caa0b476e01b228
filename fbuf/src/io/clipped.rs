//! Transfers of less than a source has.

use abi::Result;
use nucleus::Frame;

use super::Source;
use crate::slice::Slice;

/// The first bytes of another source, which are copied or passed on in slices: memory of a program
/// is not to be had past the limit.
pub struct Clipped<'a> {
    from: &'a mut dyn Source,
    left: usize,
}

impl<'a> Clipped<'a> {
    /// Makes a source of the first `max` bytes of `from`.
    pub fn new(from: &'a mut dyn Source, max: usize) -> Clipped<'a> {
        let left = from.left().min(max);
        Clipped { from, left }
    }
}

impl Source for Clipped<'_> {
    fn left(&self) -> usize {
        self.left
    }

    fn take_into(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        let n = self.from.take_into(frame, offset, len.min(self.left))?;
        self.left -= n;
        Ok(n)
    }

    fn take_bytes(&mut self, to: &mut [u8]) -> Result<usize> {
        let len = to.len().min(self.left);
        let n = self.from.take_bytes(&mut to[..len])?;
        self.left -= n;
        Ok(n)
    }

    fn slices(&self, bytes: usize, most: usize) -> usize {
        self.from.slices(bytes.min(self.left), most)
    }

    fn take_slice(&mut self, max: usize) -> Option<Slice> {
        let slice = self.from.take_slice(max.min(self.left))?;
        self.left -= slice.len;
        Some(slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BytesSource;

    #[test]
    fn no_more_than_the_first_bytes_are_taken() {
        let mut from = BytesSource { from: b"abcdef" };
        let mut clipped = Clipped::new(&mut from, 4);
        let mut to = [0; 3];
        assert_eq!(clipped.take_bytes(&mut to), Ok(3));
        assert_eq!(clipped.take_bytes(&mut to), Ok(1));
        assert_eq!(clipped.left(), 0);
        assert_eq!(clipped.take_bytes(&mut to), Ok(0));
        assert_eq!(from.left(), 2);
    }
}
