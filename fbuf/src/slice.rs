//! Slices (`fbufs.txt` 2.1.1): parts of frames.

use nucleus::{Frame, PAGE_SIZE};

/// Bytes `offset..offset + len` of one frame; `offset + len` is at most a page, `len` is not 0.
/// Immutable once passed on.
#[derive(Clone, Debug)]
pub struct Slice {
    /// The frame; the slice is one of its handles.
    pub frame: Frame,
    /// Bytes of the frame before the slice.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl Slice {
    /// Makes a slice of a whole frame.
    pub fn whole(frame: Frame) -> Slice {
        Slice {
            frame,
            offset: 0,
            len: PAGE_SIZE,
        }
    }

    /// Makes a slice of a part of a frame, with a handle of its own.
    #[inline]
    pub fn of(frame: &Frame, offset: usize, len: usize) -> Slice {
        Slice {
            frame: frame.clone(),
            offset,
            len,
        }
    }

    /// Returns the offset in the frame of the byte after the last one.
    pub fn end(&self) -> usize {
        self.offset + self.len
    }

    /// Removes and returns the first `n` bytes, `len` at most. One of the two parts may be empty;
    /// such a slice is not kept.
    pub(crate) fn split_front(&mut self, n: usize) -> Slice {
        let front = Slice::of(&self.frame, self.offset, n);
        self.offset += n;
        self.len -= n;
        front
    }
}
