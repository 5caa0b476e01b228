//! The nodes of aggregates, as they lie in fbufs, and how another's are read: each once, into a
//! value of its own, with every address checked and the work bounded (`fbufs.txt` 3.2.4).

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use crate::raw::error;
use crate::region::{Bytes, PAGE};

/// Bytes of a node.
pub(crate) const NODE: usize = 32;

/// Nodes of a header page.
const SLOTS: u32 = (PAGE / NODE) as u32;

/// The most nodes that an aggregate may have for its readers, each counted as often as it is
/// reached.
pub const MOST_NODES: u32 = 65536;

/// Nodes of a kind for which there is room at once.
const FEW: usize = 4;

/// A node's words: kind and a zero, bytes beneath, two addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RawNode {
    Empty,
    Leaf(Bytes),
    Pair(u64, u64),
}

impl RawNode {
    const LEAF: u64 = 1;
    const PAIR: u64 = 2;

    /// Reads the node at an address that a peer wrote; `may` says what the peer may name.
    ///
    /// # Errors
    /// `EFAULT` for an address outside the region, between words, or that the peer may not name;
    /// `EINVAL` for an unknown kind.
    fn read(address: u64, may: &mut impl FnMut(Bytes) -> bool) -> io::Result<RawNode> {
        let bytes = Bytes::new(address, NODE as u64).filter(|it| may(*it));
        let bad = || error(libc::EFAULT);
        let words = bytes.and_then(Bytes::words);
        let [kind, len, a, b] = words.ok_or_else(bad)?;
        match kind {
            0 => Ok(RawNode::Empty),
            Self::LEAF => {
                let leaf = Bytes::new(a, len).filter(|it| len == 0 || may(*it));
                Ok(RawNode::Leaf(leaf.ok_or_else(bad)?))
            }
            Self::PAIR => Ok(RawNode::Pair(a, b)),
            _ => Err(error(libc::EINVAL)),
        }
    }

    /// Writes the node, with the bytes beneath it.
    ///
    /// # Safety
    /// `address` is a free slot of memory that this process may write.
    pub(crate) unsafe fn write(self, address: usize, len: u64) {
        let words = match self {
            RawNode::Empty => [0; 4],
            RawNode::Leaf(bytes) => [Self::LEAF, bytes.len() as u64, bytes.start() as u64, 0],
            RawNode::Pair(a, b) => [Self::PAIR, len, a, b],
        };
        let to = std::ptr::with_exposed_provenance_mut::<[u64; 4]>(address);
        // SAFETY: the caller vouches for the slot.
        unsafe { to.write_volatile(words) };
    }
}

/// The pieces of an aggregate in order, as a receiver that does not trust it has read them.
#[derive(Debug)]
pub(crate) enum Pieces {
    One(Bytes),
    Many(Vec<Bytes>),
}

impl Pieces {
    pub(crate) fn as_slice(&self) -> &[Bytes] {
        match self {
            Pieces::One(bytes) => std::slice::from_ref(bytes),
            Pieces::Many(list) => list,
        }
    }
}

/// A pair whose front is being read or has been.
struct Ancestor {
    address: u64,
    /// Its back, as it was when the pair was read; `None` once that is being read.
    back: Option<u64>,
}

/// Returns whether the node at `address`, the next beneath `ancestors`, is one of them, found by a
/// constant amount of work: it is compared with the ancestor at the greatest power of two of its
/// depth (Brent's algorithm, as in the kernel's walk). On a way round a cycle, the two are equal
/// after a few rounds.
fn is_cycle(address: u64, ancestors: &[Ancestor]) -> bool {
    let Some(log) = ancestors.len().checked_ilog2() else {
        return false;
    };
    ancestors[(1 << log) - 1].address == address
}

/// Reads the aggregate with this root, which a peer may change meanwhile; `may` says which bytes
/// the peer may name.
///
/// # Errors
/// `EFAULT` for other bytes and for an address outside the region, `EINVAL` for a node of unknown
/// kind, `ELOOP` for a node beneath itself, `E2BIG` for more than [`MOST_NODES`], before or after
/// that is found.
pub(crate) fn read(root: u64, mut may: impl FnMut(Bytes) -> bool) -> io::Result<Pieces> {
    match RawNode::read(root, &mut may)? {
        RawNode::Leaf(bytes) => Ok(Pieces::One(bytes)),
        RawNode::Empty => Ok(Pieces::Many(Vec::new())),
        RawNode::Pair(a, b) => read_pairs(root, a, b, &mut may),
    }
}

fn read_pairs(
    root: u64,
    front: u64,
    back: u64,
    may: &mut impl FnMut(Bytes) -> bool,
) -> io::Result<Pieces> {
    let mut pieces = Vec::with_capacity(FEW);
    let mut ancestors = Vec::with_capacity(FEW);
    ancestors.push(Ancestor {
        address: root,
        back: Some(back),
    });
    let mut next = front;
    let mut visits = 1;
    loop {
        visits += 1;
        if visits > MOST_NODES {
            return Err(error(libc::E2BIG));
        }
        if is_cycle(next, &ancestors) {
            return Err(error(libc::ELOOP));
        }
        match RawNode::read(next, may)? {
            RawNode::Empty => {}
            RawNode::Leaf(bytes) if bytes.len() == 0 => {}
            RawNode::Leaf(bytes) => pieces.push(bytes),
            RawNode::Pair(front, back) => {
                ancestors.push(Ancestor {
                    address: next,
                    back: Some(back),
                });
                next = front;
                continue;
            }
        }
        // On to the nearest pair whose back is left.
        next = loop {
            match ancestors.last_mut() {
                None => return Ok(Pieces::Many(pieces)),
                Some(pair) => match pair.back.take() {
                    Some(back) => break back,
                    None => drop(ancestors.pop()),
                },
            }
        };
    }
}

/// A page of an originator's nodes.
#[derive(Debug)]
struct HeaderPage {
    used: u128,
    /// It was sent on a secured path: nothing may be written to it.
    is_closed: bool,
}

/// The header pages of a path: where its nodes lie, close to each other.
#[derive(Debug, Default)]
pub(crate) struct HeaderPages {
    pages: BTreeMap<usize, HeaderPage>,
    /// Pages with free slots to write to; the last is filled first.
    partial: Vec<usize>,
}

impl HeaderPages {
    /// Hands out a slot, of a page that `page` makes if none has one.
    pub(crate) fn allocate(
        &mut self,
        page: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let at = match self.partial.last() {
            Some(&at) => at,
            None => {
                let at = page()?;
                let new = HeaderPage {
                    used: 0,
                    is_closed: false,
                };
                self.pages.insert(at, new);
                self.partial.push(at);
                at
            }
        };
        let header = self.pages.get_mut(&at).ok_or_else(|| error(libc::EFAULT))?;
        let slot = header.used.trailing_ones();
        header.used |= 1 << slot;
        if header.used == u128::MAX {
            self.partial.pop();
        }
        Ok(at + slot as usize * NODE)
    }

    /// Takes a slot back; returns the page if nothing is left in it and another is there to be
    /// filled.
    pub(crate) fn free(&mut self, address: usize) -> Option<usize> {
        let at = address & !(PAGE - 1);
        let header = self.pages.get_mut(&at)?;
        let was_full = header.used == u128::MAX;
        let slot = ((address - at) / NODE) as u32 % SLOTS;
        header.used &= !(1 << slot);
        if header.used == 0 && (header.is_closed || self.partial.len() > 1) {
            self.pages.remove(&at);
            self.partial.retain(|it| *it != at);
            return Some(at);
        }
        if was_full && !header.is_closed {
            self.partial.push(at);
        }
        None
    }

    /// Keeps those of these pages that have nodes from being written to until they are empty.
    pub(crate) fn close(&mut self, pages: Range<usize>) {
        for (_, header) in self.pages.range_mut(pages.clone()) {
            header.is_closed = true;
        }
        self.partial.retain(|at| !pages.contains(at));
    }
}
