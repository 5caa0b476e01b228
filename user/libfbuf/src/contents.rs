//! Bytes as fragments, of whichever origin: what aggregates and received messages have in common.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use crate::channel;
use crate::frames;
use crate::nodes::Pieces;
use crate::path;
use crate::raw::error;
use crate::region::Bytes;
use crate::sources::Lender;

/// Contiguous bytes of an aggregate, at an address of the region.
///
/// Bytes of a volatile fbuf of another process may change while they are looked at: they are
/// [copied](Fragment::copy_to), or read one by one. Those of this process's own aggregates, and of
/// secured messages, do not change, and can be [borrowed](Fragment::bytes).
#[derive(Clone, Copy)]
pub struct Fragment<'a> {
    bytes: Bytes,
    is_stable: bool,
    of: PhantomData<&'a ()>,
}

impl<'a> Fragment<'a> {
    pub(crate) fn new(bytes: Bytes, is_stable: bool) -> Fragment<'a> {
        let of = PhantomData;
        Fragment {
            bytes,
            is_stable,
            of,
        }
    }

    /// Returns the address of the first byte.
    pub fn address(self) -> usize {
        self.bytes.start()
    }

    /// Returns the number of bytes.
    pub fn len(self) -> usize {
        self.bytes.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Copies the first bytes, as many as both sides have; returns how many.
    pub fn copy_to(self, to: &mut [u8]) -> usize {
        self.bytes.copy_to(to)
    }

    /// Returns one byte as it is now.
    pub fn byte(self, index: usize) -> Option<u8> {
        // SAFETY: within the region, which may be read anywhere.
        (index < self.len()).then(|| unsafe { self.bytes.address().add(index).read_volatile() })
    }

    /// Returns the word at an offset as it is now: eight bytes at an address that eight divides.
    pub fn word(self, offset: usize) -> Option<u64> {
        self.bytes.word(offset)
    }

    /// Returns the bytes if no process can change them: own ones, and those of a message that was
    /// [secured](crate::Message::secure).
    pub fn bytes(self) -> Option<&'a [u8]> {
        // SAFETY: in the region, and not written as long as the owner of `'a` holds a reference.
        self.is_stable
            .then(|| unsafe { std::slice::from_raw_parts(self.bytes.address(), self.len()) })
    }

    /// Returns the part that begins at `from` and has at most `len` bytes.
    pub fn part(self, from: usize, len: usize) -> Fragment<'a> {
        Fragment {
            bytes: self.bytes.part(from, len),
            ..self
        }
    }

    /// Returns the place of the first `byte`.
    pub(crate) fn find(self, byte: u8) -> Option<usize> {
        self.bytes.find(byte)
    }
}

impl fmt::Debug for Fragment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fragment({:#x}, {})", self.address(), self.len())
    }
}

/// Bytes in fragments.
pub trait Contents {
    /// The fragments in their order; none is empty.
    fn fragments(&self) -> impl Iterator<Item = Fragment<'_>>;

    /// Returns the number of bytes.
    fn len(&self) -> u64;

    /// Returns whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from `offset` on, as many as both sides have; returns how many.
    fn copy_at(&self, offset: u64, to: &mut [u8]) -> usize {
        let (mut skip, mut copied) = (offset, 0);
        for fragment in self.fragments() {
            if copied == to.len() {
                break;
            }
            let skipped = skip.min(fragment.len() as u64);
            skip -= skipped;
            let rest = fragment.part(skipped as usize, usize::MAX);
            copied += rest.copy_to(&mut to[copied..]);
        }
        copied
    }

    /// Copies all bytes, at most `most`: a peer may have sent far more than it has memory.
    ///
    /// # Errors
    /// `EMSGSIZE` for more.
    fn to_vec(&self, most: usize) -> io::Result<Vec<u8>> {
        if self.len() > most as u64 {
            return Err(error(libc::EMSGSIZE));
        }
        let mut copy = vec![0; self.len() as usize];
        self.copy_at(0, &mut copy);
        Ok(copy)
    }
}

/// A message that was received. Its structure was read and checked once; its bytes are read from
/// the sender's fbufs. Its drop tells the sender that they are free. Clones are the same message.
#[derive(Clone)]
pub struct Received {
    pub(crate) inner: Arc<Inner>,
}

/// What frees a message by its drop.
pub(crate) enum Hold {
    Ring(#[expect(dead_code, reason = "its drop matters")] channel::Hold),
    Kernel(#[expect(dead_code, reason = "its drop matters")] path::Hold),
    Frame(#[expect(dead_code, reason = "its drop matters")] frames::Parts),
}

pub(crate) struct Inner {
    pub(crate) root: u64,
    pub(crate) pieces: Pieces,
    len: u64,
    is_stable: bool,
    _hold: Hold,
    /// Keep what others have lent readable.
    _lenders: Vec<Lender>,
}

impl Received {
    /// Returns the message with the pieces that were read from its root.
    pub(crate) fn new(root: u64, pieces: Pieces, hold: Hold, lenders: Vec<Lender>) -> Received {
        let len = pieces.as_slice().iter().map(|it| it.len() as u64).sum();
        Received {
            inner: Arc::new(Inner {
                root,
                pieces,
                len,
                is_stable: false,
                _hold: hold,
                _lenders: lenders,
            }),
        }
    }

    /// Notes that no process can change the bytes any more.
    ///
    /// # Errors
    /// `EBUSY` if there are other clones.
    pub(crate) fn set_stable(&mut self) -> io::Result<()> {
        let inner = Arc::get_mut(&mut self.inner).ok_or_else(|| error(libc::EBUSY))?;
        inner.is_stable = true;
        Ok(())
    }
}

impl Inner {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns bytes that lie in one piece; `None` for others.
    pub(crate) fn within(&self, range: Range<usize>) -> Option<Bytes> {
        let mut at = 0;
        for piece in self.pieces.as_slice() {
            let end = at + piece.len();
            if range.start < end {
                let is_within = range.start >= at && range.end <= end;
                return is_within.then(|| piece.part(range.start - at, range.len()));
            }
            at = end;
        }
        None
    }

    pub(crate) fn fragments(&self) -> Fragments<'_> {
        Fragments {
            pieces: self.pieces.as_slice().iter(),
            is_stable: self.is_stable,
        }
    }
}

/// The fragments of a received message.
#[derive(Debug)]
pub(crate) struct Fragments<'a> {
    pieces: std::slice::Iter<'a, Bytes>,
    is_stable: bool,
}

impl<'a> Iterator for Fragments<'a> {
    type Item = Fragment<'a>;

    fn next(&mut self) -> Option<Fragment<'a>> {
        let bytes = self.pieces.find(|it| it.len() > 0)?;
        Some(Fragment::new(*bytes, self.is_stable))
    }
}

impl Contents for Received {
    fn fragments(&self) -> impl Iterator<Item = Fragment<'_>> {
        self.inner.fragments()
    }

    fn len(&self) -> u64 {
        self.inner.len
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Received({} bytes)", self.inner.len)
    }
}
