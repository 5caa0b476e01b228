//! Aggregates (`fbufs.txt` 3.1): bytes in fbufs, joined and cut without copying them. Their nodes
//! lie in fbufs, where receivers read them; a copy of the structure in private memory counts the
//! references, so that nothing that another process may see is trusted. A node is written to its
//! fbuf when it is first sent: most of those in between, such as a protocol's, never are.

use std::fmt;
use std::io;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::contents::{Contents, Fragment, Fragments, Received};
use crate::nodes::{MOST_NODES, NODE, RawNode};
use crate::raw::error;
use crate::region::{Bytes, PAGE};
use crate::space::{Fbuf, Space};

/// Pieces for which there is room at once.
const FEW: usize = 4;

/// Bytes in fbufs of one or more paths: immutable, cheap to clone, join and cut. New nodes are made
/// in the path that it was made for.
#[derive(Clone)]
pub struct Aggregate {
    space: Space,
    root: Option<Arc<Node>>,
}

/// A node: the copy in private memory.
struct Node {
    /// Where receivers read it; 0 until it is written.
    address: AtomicU64,
    /// The space that has its slot; `None` if it lies in the fbuf of its data, or is another's.
    slot: Option<Space>,
    len: u64,
    /// Nodes that a reader visits.
    visits: u32,
    kind: NodeKind,
}

/// What a node stands for.
enum NodeKind {
    Empty,
    /// Bytes of an fbuf of this process, which the node has.
    Fbuf(Fbuf, Bytes),
    /// Bytes of the fbuf of another node.
    Own(Arc<Node>, Bytes),
    /// Bytes of a received message.
    Part(Received, Bytes),
    /// All of a received message, by its sender's nodes.
    Whole(Received),
    Pair(Arc<Node>, Arc<Node>),
}

impl Drop for Node {
    fn drop(&mut self) {
        if let (Some(space), 1..) = (&self.slot, *self.address.get_mut()) {
            space.free_node(*self.address.get_mut() as usize);
        }
        let NodeKind::Pair(a, b) = mem::replace(&mut self.kind, NodeKind::Empty) else {
            return;
        };
        // Not by recursion: a chain of appended parts may be deep.
        let mut left = vec![a, b];
        while let Some(node) = left.pop() {
            if let Some(mut node) = Arc::into_inner(node)
                && let NodeKind::Pair(a, b) = mem::replace(&mut node.kind, NodeKind::Empty)
            {
                left.extend([a, b]);
            }
        }
    }
}

impl Node {
    /// Makes a node that will have a slot of its own.
    fn new(space: &Space, len: u64, visits: u32, kind: NodeKind) -> Arc<Node> {
        Arc::new(Node {
            address: AtomicU64::new(0),
            slot: Some(space.clone()),
            len,
            visits,
            kind,
        })
    }

    /// Returns the fbuf of this process with the node's bytes.
    fn fbuf(&self) -> Option<&Fbuf> {
        match &self.kind {
            NodeKind::Fbuf(fbuf, _) => Some(fbuf),
            NodeKind::Own(of, _) => of.fbuf(),
            _ => None,
        }
    }

    /// Returns the node that has the fbuf: itself, or another.
    fn with_fbuf(self: &Arc<Node>) -> Arc<Node> {
        match &self.kind {
            NodeKind::Own(of, _) => of.clone(),
            _ => self.clone(),
        }
    }

    fn leaf(space: &Space, bytes: Bytes, kind: NodeKind) -> Arc<Node> {
        Node::new(space, bytes.len() as u64, 1, kind)
    }

    /// Returns where receivers read it; 0 before it is written.
    fn address(&self) -> u64 {
        self.address.load(Ordering::Acquire)
    }

    /// Writes all nodes beneath this one that are not written yet, and this one; returns its
    /// address.
    ///
    /// # Errors
    /// `ENOSPC` or `ENOMEM` without memory for them.
    fn place(&self) -> io::Result<u64> {
        // Not by recursion, as above.
        let mut left = match self.address() {
            0 => vec![self],
            address => return Ok(address),
        };
        while let Some(&node) = left.last() {
            let before = left.len();
            if let NodeKind::Pair(a, b) = &node.kind {
                let unwritten = [b, a].into_iter().filter(|it| it.address() == 0);
                left.extend(unwritten.map(|it| &**it));
            }
            if left.len() == before {
                if node.address() == 0 {
                    node.write()?;
                }
                left.pop();
            }
        }
        Ok(self.address())
    }

    /// Writes a node to a slot. Those beneath it are written.
    fn write(&self) -> io::Result<()> {
        let raw = match &self.kind {
            NodeKind::Empty => RawNode::Empty,
            NodeKind::Fbuf(_, bytes) | NodeKind::Own(_, bytes) | NodeKind::Part(_, bytes) => {
                RawNode::Leaf(*bytes)
            }
            NodeKind::Pair(a, b) => RawNode::Pair(a.address(), b.address()),
            NodeKind::Whole(_) => return Ok(()),
        };
        let Some(space) = &self.slot else {
            return Ok(());
        };
        let address = space.allocate_node()?;
        // SAFETY: the slot is free, and this process's.
        unsafe { raw.write(address, self.len) };
        let (is, was) = (Ordering::AcqRel, Ordering::Acquire);
        let other = self.address.compare_exchange(0, address as u64, is, was);
        if other.is_err() {
            // Another thread was faster.
            space.free_node(address);
        }
        Ok(())
    }

    /// Returns the deepest node that has all bytes of a range, and where it begins.
    fn least(self: &Arc<Node>, start: u64, end: u64) -> (&Arc<Node>, u64) {
        let (mut node, mut at) = (self, 0);
        while let NodeKind::Pair(a, b) = &node.kind {
            let middle = at + a.len;
            match (end <= middle, start >= middle) {
                (true, _) => node = a,
                (_, true) => (node, at) = (b, middle),
                _ => break,
            }
        }
        (node, at)
    }

    /// Returns a leaf with a part of a node's bytes; `None` where they are several pieces.
    fn part(self: &Arc<Node>, space: &Space, within: Range<usize>) -> Option<Arc<Node>> {
        let cut = |bytes: &Bytes| bytes.part(within.start, within.len());
        let (bytes, kind) = match &self.kind {
            NodeKind::Fbuf(_, bytes) | NodeKind::Own(_, bytes) => {
                (cut(bytes), NodeKind::Own(self.with_fbuf(), cut(bytes)))
            }
            NodeKind::Part(it, bytes) => (cut(bytes), NodeKind::Part(it.clone(), cut(bytes))),
            NodeKind::Whole(it) => {
                let bytes = it.inner.within(within)?;
                (bytes, NodeKind::Part(it.clone(), bytes))
            }
            _ => return None,
        };
        Some(Node::leaf(space, bytes, kind))
    }

    fn pair(space: &Space, a: Arc<Node>, b: Arc<Node>) -> io::Result<Arc<Node>> {
        let visits = a.visits.saturating_add(b.visits).saturating_add(1);
        if visits > MOST_NODES {
            return Err(error(libc::E2BIG));
        }
        let len = a.len + b.len;
        Ok(Node::new(space, len, visits, NodeKind::Pair(a, b)))
    }
}

impl Aggregate {
    /// Returns the first `len` bytes of an fbuf as an aggregate. They can no longer be written.
    ///
    /// # Errors
    /// `EINVAL` when the fbuf has fewer, `ENOSPC` or `ENOMEM` without memory for a node.
    pub fn new(fbuf: Fbuf, len: usize) -> io::Result<Aggregate> {
        if len > fbuf.len() {
            return Err(error(libc::EINVAL));
        }
        let space = fbuf.space().clone();
        if len == 0 {
            return Ok(Aggregate::of(&space, None));
        }
        let bytes = Bytes::new(fbuf.start() as u64, len as u64);
        let bytes = bytes.ok_or_else(|| error(libc::EFAULT))?;
        // The node lies behind the data if there is room, and costs no other page.
        let behind = fbuf.start() + fbuf.len() - NODE;
        let has_room = fbuf.len() - len >= NODE;
        let kind = NodeKind::Fbuf(fbuf, bytes);
        if !has_room {
            let node = Node::leaf(&space, bytes, kind);
            return Ok(Aggregate::of(&space, Some(node)));
        }
        // SAFETY: the last bytes of an fbuf that this function owns.
        unsafe { RawNode::Leaf(bytes).write(behind, len as u64) };
        let node = Node {
            address: AtomicU64::new(behind as u64),
            slot: None,
            len: len as u64,
            visits: 1,
            kind,
        };
        Ok(Aggregate::of(&space, Some(Arc::new(node))))
    }

    pub(crate) fn copied(space: &Space, bytes: &[u8]) -> io::Result<Aggregate> {
        if bytes.is_empty() {
            return Ok(Aggregate::of(space, None));
        }
        let mut fbuf = space.allocate(bytes.len())?;
        fbuf[..bytes.len()].copy_from_slice(bytes);
        Aggregate::new(fbuf, bytes.len())
    }

    pub(crate) fn received(space: &Space, message: &Received) -> Aggregate {
        let pieces = message.inner.pieces.as_slice().len() as u32;
        let node = Node {
            address: AtomicU64::new(message.inner.root),
            slot: None,
            len: message.inner.len(),
            visits: pieces.saturating_mul(2).max(1),
            kind: NodeKind::Whole(message.clone()),
        };
        let root = (node.len > 0).then(|| Arc::new(node));
        Aggregate::of(space, root)
    }

    /// Returns the bytes of a packet, with nodes of this process.
    pub(crate) fn of_pieces(space: &Space, packet: &Received) -> io::Result<Aggregate> {
        let pieces = packet.inner.pieces.as_slice().iter();
        let leaf = |it: &Bytes| Node::leaf(space, *it, NodeKind::Part(packet.clone(), *it));
        Aggregate::empty(space).joined(pieces.map(leaf).collect())
    }

    /// Returns the bytes of this one and then those of the other.
    ///
    /// # Errors
    /// `E2BIG` for more than [`MOST_NODES`], `ENOSPC` or `ENOMEM` without memory for a node.
    pub fn join(&self, after: &Aggregate) -> io::Result<Aggregate> {
        let root = match (&self.root, &after.root) {
            (Some(a), Some(b)) => Some(Node::pair(&self.space, a.clone(), b.clone())?),
            (a, b) => a.clone().or_else(|| b.clone()),
        };
        Ok(Aggregate::of(&self.space, root))
    }

    /// Returns a part; bytes beyond the end are left out.
    ///
    /// # Errors
    /// Those of [`join`](Aggregate::join).
    pub fn slice(&self, range: Range<u64>) -> io::Result<Aggregate> {
        let (start, end) = (range.start, range.end.min(self.len()));
        let Some(root) = self.root.as_ref().filter(|_| start < end) else {
            return Ok(Aggregate::of(&self.space, None));
        };
        let (node, at) = root.least(start, end);
        // Most parts lie in one node: a header, a packet of a contiguous body.
        let (from, to) = (start - at, end - at);
        if (from, to) == (0, node.len) {
            return Ok(Aggregate::of(&self.space, Some(node.clone())));
        }
        if let Some(leaf) = node.part(&self.space, from as usize..to as usize) {
            return Ok(Aggregate::of(&self.space, Some(leaf)));
        }
        let mut parts = Vec::new();
        let mut left = vec![(node, at)];
        while let Some((node, at)) = left.pop() {
            let (from, to) = (start.max(at), end.min(at + node.len));
            if from >= to {
                continue;
            }
            if (from, to) == (at, at + node.len) {
                parts.push(node.clone());
                continue;
            }
            let within = (from - at) as usize..(to - at) as usize;
            if let Some(leaf) = node.part(&self.space, within.clone()) {
                parts.push(leaf);
                continue;
            }
            match &node.kind {
                NodeKind::Pair(a, b) => left.extend([(b, at + a.len), (a, at)]),
                NodeKind::Whole(message) => {
                    let mut at = 0;
                    for piece in message.inner.pieces.as_slice() {
                        let from = within.start.max(at);
                        let to = within.end.min(at + piece.len());
                        if from < to {
                            let bytes = piece.part(from - at, to - from);
                            let kind = NodeKind::Part(message.clone(), bytes);
                            parts.push(Node::leaf(&self.space, bytes, kind));
                        }
                        at += piece.len();
                    }
                }
                NodeKind::Empty | NodeKind::Fbuf(..) | NodeKind::Own(..) | NodeKind::Part(..) => {}
            }
        }
        self.joined(parts)
    }

    /// Joins parts by a tree of little depth.
    fn joined(&self, mut parts: Vec<Arc<Node>>) -> io::Result<Aggregate> {
        while parts.len() > 1 {
            let mut above = Vec::with_capacity(parts.len().div_ceil(2));
            let mut rest = parts.into_iter();
            while let Some(a) = rest.next() {
                above.push(match rest.next() {
                    Some(b) => Node::pair(&self.space, a, b)?,
                    None => a,
                });
            }
            parts = above;
        }
        Ok(Aggregate::of(&self.space, parts.pop()))
    }

    /// Returns the bytes before `at`, and the others.
    ///
    /// # Errors
    /// Those of [`join`](Aggregate::join).
    pub fn split(&self, at: u64) -> io::Result<(Aggregate, Aggregate)> {
        Ok((self.slice(0..at)?, self.slice(at..self.len())?))
    }

    /// Returns all but the first bytes.
    ///
    /// # Errors
    /// Those of [`join`](Aggregate::join).
    pub fn clip_front(&self, bytes: u64) -> io::Result<Aggregate> {
        self.slice(bytes..self.len())
    }

    /// Returns all but the last bytes.
    ///
    /// # Errors
    /// Those of [`join`](Aggregate::join).
    pub fn clip_back(&self, bytes: u64) -> io::Result<Aggregate> {
        self.slice(0..self.len().saturating_sub(bytes))
    }

    /// Returns a copy of these bytes, such as a protocol's header, and then those of this one.
    ///
    /// # Errors
    /// Those of [`join`](Aggregate::join).
    pub fn prepend(&self, bytes: &[u8]) -> io::Result<Aggregate> {
        Aggregate::copied(&self.space, bytes)?.join(self)
    }

    /// Returns the bytes of this one and then a copy of these.
    ///
    /// # Errors
    /// Those of [`join`](Aggregate::join).
    pub fn append(&self, bytes: &[u8]) -> io::Result<Aggregate> {
        self.join(&Aggregate::copied(&self.space, bytes)?)
    }

    /// Returns the bytes of some aggregates with all nodes in a space; adjacent parts of one origin
    /// become one leaf.
    pub(crate) fn gathered<'a>(
        space: &Space,
        parts: impl IntoIterator<Item = &'a Aggregate>,
    ) -> io::Result<Aggregate> {
        let mut pieces: Vec<NodeKind> = Vec::with_capacity(FEW);
        let mut add = |next: NodeKind| {
            match (pieces.last_mut(), &next) {
                (Some(NodeKind::Own(a, before)), NodeKind::Own(b, bytes)) if Arc::ptr_eq(a, b) => {
                    if let Some(both) = before.and(*bytes) {
                        *before = both;
                        return;
                    }
                }
                (Some(NodeKind::Part(a, before)), NodeKind::Part(b, bytes))
                    if Arc::ptr_eq(&a.inner, &b.inner) =>
                {
                    if let Some(both) = before.and(*bytes) {
                        *before = both;
                        return;
                    }
                }
                _ => {}
            }
            pieces.push(next);
        };
        let mut left: Vec<&Arc<Node>> = Vec::with_capacity(FEW);
        for part in parts {
            left.extend(&part.root);
            while let Some(node) = left.pop() {
                match &node.kind {
                    NodeKind::Empty => {}
                    NodeKind::Fbuf(_, bytes) | NodeKind::Own(_, bytes) => {
                        add(NodeKind::Own(node.with_fbuf(), *bytes));
                    }
                    NodeKind::Part(message, bytes) => add(NodeKind::Part(message.clone(), *bytes)),
                    NodeKind::Whole(message) => {
                        for piece in message.inner.pieces.as_slice() {
                            add(NodeKind::Part(message.clone(), *piece));
                        }
                    }
                    NodeKind::Pair(a, b) => left.extend([b, a]),
                }
            }
        }
        let is_one = pieces.len() == 1;
        if let (true, Some(NodeKind::Own(_, bytes) | NodeKind::Part(_, bytes))) =
            (is_one, pieces.last())
        {
            let bytes = *bytes;
            let leaf = pieces.pop().map(|it| Node::leaf(space, bytes, it));
            return Ok(Aggregate::of(space, leaf));
        }
        let mut leaves = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if let NodeKind::Own(_, bytes) | NodeKind::Part(_, bytes) = piece {
                leaves.push(Node::leaf(space, bytes, piece));
            }
        }
        Aggregate::empty(space).joined(leaves)
    }

    /// Returns whether all bytes lie in fbufs of a space.
    pub(crate) fn is_within(&self, space: &Space) -> bool {
        let mut left: Vec<&Node> = self.root.as_deref().into_iter().collect();
        while let Some(node) = left.pop() {
            match &node.kind {
                NodeKind::Empty => {}
                NodeKind::Fbuf(fbuf, _) if fbuf.space().is_same(space) => {}
                NodeKind::Own(of, _) => left.push(of),
                NodeKind::Pair(a, b) => left.extend([&**a, &**b]),
                _ => return false,
            }
        }
        true
    }

    pub(crate) fn empty(space: &Space) -> Aggregate {
        Aggregate::of(space, None)
    }

    fn of(space: &Space, root: Option<Arc<Node>>) -> Aggregate {
        let space = space.clone();
        Aggregate { space, root }
    }

    /// Returns it with a root that can be sent, and the root's address.
    pub(crate) fn to_send(&self) -> io::Result<(Aggregate, u64)> {
        let root = match &self.root {
            Some(root) => root.clone(),
            None => Node::new(&self.space, 0, 1, NodeKind::Empty),
        };
        let address = root.place()?;
        Ok((Aggregate::of(&self.space, Some(root)), address))
    }

    /// Returns whether both have the same root.
    pub(crate) fn is_same(&self, other: &Aggregate) -> bool {
        match (&self.root, &other.root) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Calls `each` with the ranges of whole pages of a space that this aggregate reaches, some of
    /// them more than once.
    ///
    /// # Errors
    /// `EXDEV` if it reaches another space of this process.
    pub(crate) fn pages(
        &self,
        space: &Space,
        mut each: impl FnMut(Range<usize>),
    ) -> io::Result<()> {
        let mut left: Vec<&Node> = self.root.as_deref().into_iter().collect();
        while let Some(node) = left.pop() {
            let own = node.fbuf().map(Fbuf::space).or(node.slot.as_ref());
            if own.is_some_and(|own| !own.is_same(space))
                || node.slot.as_ref().is_some_and(|own| !own.is_same(space))
            {
                return Err(error(libc::EXDEV));
            }
            if own.is_some() {
                let page = node.address() as usize & !(PAGE - 1);
                each(page..page + PAGE);
            }
            match &node.kind {
                NodeKind::Fbuf(_, bytes) | NodeKind::Own(_, bytes) => {
                    let end = bytes.start() + bytes.len();
                    each(bytes.start() & !(PAGE - 1)..end.next_multiple_of(PAGE));
                }
                NodeKind::Pair(a, b) => left.extend([&**a, &**b]),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The fragments of an aggregate.
struct Walk<'a> {
    left: Vec<&'a Node>,
    received: Option<Fragments<'a>>,
}

impl<'a> Iterator for Walk<'a> {
    type Item = Fragment<'a>;

    fn next(&mut self) -> Option<Fragment<'a>> {
        loop {
            if let Some(fragment) = self.received.as_mut().and_then(Iterator::next) {
                return Some(fragment);
            }
            match &self.left.pop()?.kind {
                NodeKind::Empty => {}
                NodeKind::Fbuf(_, bytes) | NodeKind::Own(_, bytes) => {
                    return Some(Fragment::new(*bytes, true));
                }
                NodeKind::Part(_, bytes) => return Some(Fragment::new(*bytes, false)),
                NodeKind::Whole(message) => self.received = Some(message.inner.fragments()),
                NodeKind::Pair(a, b) => self.left.extend([&**b, &**a]),
            }
        }
    }
}

impl Contents for Aggregate {
    fn fragments(&self) -> impl Iterator<Item = Fragment<'_>> {
        Walk {
            left: self.root.as_deref().into_iter().collect(),
            received: None,
        }
    }

    fn len(&self) -> u64 {
        self.root.as_ref().map_or(0, |root| root.len)
    }
}

impl fmt::Debug for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aggregate({} bytes)", self.len())
    }
}
