//! Aggregates of programs: directed acyclic graphs whose nodes lie in fbufs (`fbufs.txt` 3.2.3).
//!
//! A program builds the graph and may change it at any time, so it is untrusted. [`walk`] reads
//! each node once per visit into a [`Node`] of its own, checks every address through the
//! [`NodeReader`], and does bounded work: at most [`MOST_VISITS`] nodes, at most [`MOST_RANGES`]
//! separate ranges of pages. A shared node counts once per reference.
//!
//! A cycle is found with a constant amount of work per node: the address of each node is compared
//! with that of its ancestor at the greatest power of two of the depth (Brent's algorithm on the
//! path from the root). On a path that goes round a cycle, the two are equal after a few rounds.

mod pages;

use alloc::vec::Vec;
use core::ops::Range;

use abi::Errno;

pub use pages::{MOST_RANGES, PageRanges};

/// Bytes of a node.
pub const NODE_BYTES: usize = 32;
/// Nodes lie at multiples of this.
pub const NODE_ALIGN: u64 = 8;
/// The most nodes that one walk visits.
pub const MOST_VISITS: usize = 65536;

/// Why a walk ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WalkError {
    /// An address outside the region, without an fbuf, or that the sender may not read: `EFAULT`.
    BadAddress,
    /// A node of an unknown kind: `EINVAL`.
    BadNode,
    /// A node that is its own ancestor: `ELOOP`.
    Cycle,
    /// Too many visits or ranges: `E2BIG`.
    TooBig,
    /// No memory: `ENOMEM`.
    OutOfMemory,
    /// A page could not be read back from swap: `EIO`.
    Io,
    /// The caller is to end: `EINTR`.
    Interrupted,
}

impl From<WalkError> for Errno {
    fn from(error: WalkError) -> Errno {
        match error {
            WalkError::BadAddress => Errno::EFAULT,
            WalkError::BadNode => Errno::EINVAL,
            WalkError::Cycle => Errno::ELOOP,
            WalkError::TooBig => Errno::E2BIG,
            WalkError::OutOfMemory => Errno::ENOMEM,
            WalkError::Io => Errno::EIO,
            WalkError::Interrupted => Errno::EINTR,
        }
    }
}

/// How a walk reaches the memory of the graph.
pub trait NodeReader {
    /// Reads the node at `address`, which is a multiple of [`NODE_ALIGN`].
    ///
    /// # Errors
    /// [`WalkError::BadAddress`] if the sender may not read all of it; those of reading it.
    fn read(&mut self, address: u64, to: &mut [u8; NODE_BYTES]) -> Result<(), WalkError>;

    /// Checks that the sender may read the data at these addresses, which are not empty.
    ///
    /// # Errors
    /// [`WalkError::BadAddress`] if not, or if they do not lie in one run of chunks.
    fn check(&mut self, data: Range<u64>) -> Result<(), WalkError>;
}

/// A node, as it was when it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Node {
    /// No data. Memory that was never written reads as this.
    Empty,
    /// The data at these addresses.
    Leaf(Range64),
    /// The data of one node, then that of another.
    Pair(u64, u64),
}

/// A start and a length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range64 {
    /// The first address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

impl Node {
    /// Decodes a node. `len` of a pair is only a hint for programs.
    ///
    /// # Errors
    /// [`WalkError::BadNode`] for an unknown kind.
    pub fn decode(bytes: &[u8; NODE_BYTES]) -> Result<Node, WalkError> {
        let word = |i: usize| {
            let part = bytes.get(8 * i..8 * i + 8);
            part.and_then(|part| part.try_into().ok())
                .map_or(0, u64::from_le_bytes)
        };
        // The upper half is reserved.
        match word(0) as u32 {
            0 => Ok(Node::Empty),
            1 => Ok(Node::Leaf(Range64 {
                start: word(2),
                len: word(1),
            })),
            2 => Ok(Node::Pair(word(2), word(3))),
            _ => Err(WalkError::BadNode),
        }
    }
}

/// A pair whose left part is being walked or has been.
struct Ancestor {
    address: u64,
    /// Its right part, as it was when the pair was read; `None` once that is being walked.
    right: Option<u64>,
}

/// The memory of a walk, to be used again.
#[derive(Default)]
pub struct Walk {
    ancestors: Vec<Ancestor>,
    /// The pages with nodes and data that were reached.
    pub pages: PageRanges,
    /// Bytes of data.
    pub bytes: u64,
}

/// Ancestors that a [`Walk`] keeps room for between two walks.
const KEPT_DEPTH: usize = 256;

impl Walk {
    /// The most bytes of memory that it keeps between two walks.
    pub const KEPT_BYTES: usize =
        KEPT_DEPTH * size_of::<Ancestor>() + PageRanges::KEPT * size_of::<Range<u64>>();

    /// Walks the graph from `root`, with the data of each leaf in order; fills `pages` and `bytes`.
    ///
    /// # Errors
    /// [`WalkError`].
    pub fn run(
        &mut self,
        root: u64,
        reader: &mut dyn NodeReader,
        leaf: &mut dyn FnMut(Range64),
    ) -> Result<(), WalkError> {
        self.ancestors.clear();
        self.pages.clear();
        self.bytes = 0;
        let mut visits = 0;
        let mut next = root;
        loop {
            visits += 1;
            if visits > MOST_VISITS {
                return Err(WalkError::TooBig);
            }
            self.check_for_cycle(next)?;
            match self.read(next, reader)? {
                Node::Empty => {}
                Node::Leaf(data) => {
                    self.reach(data, reader)?;
                    leaf(data);
                }
                Node::Pair(left, right) => {
                    let reserved = self.ancestors.try_reserve(1);
                    reserved.map_err(|_| WalkError::OutOfMemory)?;
                    let (address, right) = (next, Some(right));
                    self.ancestors.push(Ancestor { address, right });
                    next = left;
                    continue;
                }
            }
            // Back to the nearest pair whose right part is left.
            next = loop {
                match self.ancestors.last_mut() {
                    None => return self.pages.finish(),
                    Some(pair) => match pair.right.take() {
                        Some(right) => break right,
                        None => drop(self.ancestors.pop()),
                    },
                }
            };
        }
    }

    /// Forgets what was found, and gives the memory of a large graph back.
    pub fn shrink(&mut self) {
        self.ancestors.clear();
        self.ancestors.shrink_to(KEPT_DEPTH);
        self.pages.shrink();
    }

    /// Compares `address` with its ancestor at the greatest power of two of its depth.
    fn check_for_cycle(&self, address: u64) -> Result<(), WalkError> {
        let Some(log) = self.ancestors.len().checked_ilog2() else {
            return Ok(());
        };
        // The 2^log-th node of the path, counted from 1.
        match self.ancestors.get((1 << log) - 1) {
            Some(ancestor) if ancestor.address == address => Err(WalkError::Cycle),
            _ => Ok(()),
        }
    }

    fn read(&mut self, address: u64, reader: &mut dyn NodeReader) -> Result<Node, WalkError> {
        let end = address.checked_add(NODE_BYTES as u64);
        let end = end.filter(|_| address.is_multiple_of(NODE_ALIGN));
        let end = end.ok_or(WalkError::BadAddress)?;
        let mut bytes = [0; NODE_BYTES];
        reader.read(address, &mut bytes)?;
        self.pages.add(address..end)?;
        Node::decode(&bytes)
    }

    fn reach(&mut self, data: Range64, reader: &mut dyn NodeReader) -> Result<(), WalkError> {
        if data.len == 0 {
            return Ok(());
        }
        let end = data.start.checked_add(data.len);
        let end = end.ok_or(WalkError::BadAddress)?;
        reader.check(data.start..end)?;
        self.bytes = self.bytes.checked_add(data.len).ok_or(WalkError::TooBig)?;
        self.pages.add(data.start..end)
    }
}
