//! Slices (`fbufs.txt` 2.1.1): parts of frames.

use nucleus::{Frame, PAGE_SIZE, frame::Owned};

/// Bytes `offset..offset + len` of one frame; `offset + len` is at most the frame's
/// [size](Frame::size), a page but for blocks of devices; `len` is not 0.
/// Immutable once passed on: the slice is one of the frame's owners.
#[derive(Clone, Debug)]
pub struct Slice {
    frame: Owned,
    /// The slice is the whole frame, and all owners of the frame are counted.
    is_page: bool,
    /// Frames that it keeps beside one: those of a block.
    more: u8,
    /// Bytes of the frame before the slice.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// The bytes of a slice that stays where it is meanwhile.
#[derive(Clone, Debug)]
pub struct View {
    /// The frame, which this keeps but does not own.
    pub frame: Frame,
    /// Bytes of the frame before the first one.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl View {
    /// Makes a view of a part of a frame.
    #[inline]
    pub fn of(frame: &Frame, offset: usize, len: usize) -> View {
        View {
            frame: frame.clone(),
            offset,
            len,
        }
    }
}

/// Returns how many frames a handle of `frame` keeps beside one.
#[inline]
fn more(frame: &Frame) -> u8 {
    (frame.frames() - 1) as u8
}

impl Slice {
    /// Makes a slice of a whole frame, which it owns alone if the frame has no owner.
    pub fn whole(frame: impl Into<Owned>) -> Slice {
        Slice {
            frame: frame.into(),
            is_page: true,
            more: 0,
            offset: 0,
            len: PAGE_SIZE,
        }
    }

    /// Makes a slice of a part of a page, or of all of it, that owns it from now on.
    #[inline]
    pub fn within(page: Owned, offset: usize, len: usize) -> Slice {
        Slice {
            frame: page,
            is_page: len == PAGE_SIZE,
            more: 0,
            offset,
            len,
        }
    }

    /// Makes a slice of a part of a frame that has other owners.
    #[inline]
    pub fn of(frame: &Owned, offset: usize, len: usize) -> Slice {
        Slice {
            more: more(frame),
            frame: frame.clone(),
            is_page: false,
            offset,
            len,
        }
    }

    /// Makes a slice of a part of a frame that slices alone show. They are not counted as the
    /// frame's owners, so no such part becomes a page of anything, which could be written, even if
    /// it grows to a whole page.
    #[inline]
    pub fn part(frame: &Frame, offset: usize, len: usize) -> Slice {
        Slice {
            more: more(frame),
            frame: Owned::new(frame.clone()),
            is_page: false,
            offset,
            len,
        }
    }

    /// Returns the frame.
    #[inline]
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Returns how many frames it keeps beside one.
    #[inline]
    pub(crate) fn more(&self) -> usize {
        self.more.into()
    }

    /// Returns the frame as one of its owners, for a further slice or page of it.
    #[inline]
    pub(crate) fn owned(&self) -> &Owned {
        &self.frame
    }

    /// Whether the slice is a page of its own: the whole frame, which may become a page of a file
    /// or of a program.
    #[inline]
    pub fn is_page(&self) -> bool {
        self.is_page
    }

    /// Returns the page.
    ///
    /// # Errors
    /// The slice, if it is [no page](Slice::is_page).
    #[inline]
    pub fn into_page(self) -> core::result::Result<Owned, Slice> {
        match self.is_page {
            true => Ok(self.frame),
            false => Err(self),
        }
    }

    /// Returns the frame of a slice that was its only owner, to be used again.
    #[inline]
    pub(crate) fn into_frame(self) -> Frame {
        self.frame.into_frame()
    }

    /// Returns the slice's bytes.
    #[inline]
    pub fn view(&self) -> View {
        View::of(&self.frame, self.offset, self.len)
    }

    /// Returns another slice of the first `n` bytes, `len` at most.
    #[inline]
    pub fn first(&self, n: usize) -> Slice {
        match n == self.len {
            true => self.clone(),
            false => Slice::of(&self.frame, self.offset, n),
        }
    }

    /// Returns another slice of `n` bytes from byte `at` on, not past the end.
    #[inline]
    pub(crate) fn inner(&self, at: usize, n: usize) -> Slice {
        match n == self.len {
            true => self.clone(),
            false => Slice::of(&self.frame, self.offset + at, n),
        }
    }

    /// Returns another slice of the last `n` bytes, `len` at most.
    pub fn last(&self, n: usize) -> Slice {
        match n == self.len {
            true => self.clone(),
            false => Slice::of(&self.frame, self.end() - n, n),
        }
    }

    /// Returns the offset in the frame of the byte after the last one.
    pub fn end(&self) -> usize {
        self.offset + self.len
    }

    /// Removes and returns the first `n` bytes, `len` at most. One of the two parts may be empty;
    /// such a slice is not kept. Out of line: most slices go on whole.
    #[inline(never)]
    pub(crate) fn split_front(&mut self, n: usize) -> Slice {
        let front = match self.frame.is_lent() {
            true => Slice::of(&self.frame, self.offset, n),
            false => Slice::part(&self.frame, self.offset, n),
        };
        self.drop_front(n);
        front
    }

    /// Returns the first `n` bytes, `len` at most, and gives the others up.
    #[inline(never)]
    pub(crate) fn clipped(mut self, n: usize) -> Slice {
        self.split_front(n)
    }

    /// Gives the first `n` bytes up, fewer than `len`.
    #[inline]
    pub(crate) fn drop_front(&mut self, n: usize) {
        self.is_page = false;
        self.offset += n;
        self.len -= n;
    }
}
