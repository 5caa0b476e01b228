//! Slices (`fbufs.txt` 2.1.1): parts of frames.

use nucleus::{Frame, PAGE_SIZE, frame::Owned};

/// Bytes `offset..offset + len` of one frame; `offset + len` is at most a page, `len` is not 0.
/// Immutable once passed on: the slice is one of the frame's owners.
#[derive(Clone, Debug)]
pub struct Slice {
    /// The frame.
    pub frame: Owned,
    /// Bytes of the frame before the slice.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// The bytes of a slice that stays where it is meanwhile.
#[derive(Debug)]
pub struct View {
    /// The frame, which this keeps but does not own.
    pub frame: Frame,
    /// Bytes of the frame before the first one.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl Slice {
    /// Makes a slice of a whole frame, which it owns alone if the frame has no owner.
    pub fn whole(frame: impl Into<Owned>) -> Slice {
        Slice {
            frame: frame.into(),
            offset: 0,
            len: PAGE_SIZE,
        }
    }

    /// Makes a slice of a part of a frame that has other owners, or will have.
    #[inline]
    pub fn of(frame: &Frame, offset: usize, len: usize) -> Slice {
        Slice {
            frame: Owned::lend(frame),
            offset,
            len,
        }
    }

    /// Makes a slice of a part of a frame that slices alone show. They need not be counted, since
    /// no such part becomes a page of anything, which could be written.
    #[inline]
    pub(crate) fn part(frame: &Frame, offset: usize, len: usize) -> Slice {
        Slice {
            frame: Owned::new(frame.clone()),
            offset,
            len,
        }
    }

    /// Returns the slice's bytes.
    #[inline]
    pub fn view(&self) -> View {
        View {
            frame: Frame::clone(&self.frame),
            offset: self.offset,
            len: self.len,
        }
    }

    /// Returns the offset in the frame of the byte after the last one.
    pub fn end(&self) -> usize {
        self.offset + self.len
    }

    /// Removes and returns the first `n` bytes, `len` at most. One of the two parts may be empty;
    /// such a slice is not kept.
    pub(crate) fn split_front(&mut self, n: usize) -> Slice {
        let front = match self.frame.is_lent() {
            true => Slice::of(&self.frame, self.offset, n),
            false => Slice::part(&self.frame, self.offset, n),
        };
        self.offset += n;
        self.len -= n;
        front
    }
}
