//! A sparse array in chunks: the representation of amaps and objects.
//!
//! ```text
//!   Chunks ── leaf ───────────────────────> chunk 0           32 slots behind one sleeping lock
//!          ── tree 0 ── 64 leaves ────────> chunk 1..64
//!          ── tree 1 ── 64 nodes ── 64 ───> chunk 64..4096
//!          ── ...                                             one more level each
//! ```
//! Untouched parts allocate nothing, and a small array pays for one chunk only. A lookup is a chain
//! of loads without a lock, and each chunk has a lock of its own, so that threads that fault in
//! different chunks share no cache line. A tree only grows while it is shared; chunks are removed
//! through `&mut`.

use alloc::{boxed::Box, sync::Arc};
use core::mem::ManuallyDrop;
use core::ops::Range;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use nucleus::frame::{self, Bundle, Owned};
use nucleus::sync::{Mutex, MutexGuard, OnceArc, OnceBox, Rank};

mod registry;

pub(crate) use registry::{Hand, Registry, Token};

/// Slots of a chunk: 128 KiB of an address space. The default fault-ahead window (eight pages)
/// mostly falls into one.
pub const SLOTS: usize = 32;
/// log2 of [`SLOTS`].
pub const SLOTS_SHIFT: u32 = SLOTS.trailing_zeros();
/// Branches of a node.
const FAN: usize = 64;
/// The size of a tree's node, in bytes.
pub const NODE_BYTES: usize = FAN * size_of::<usize>();
const FAN_SHIFT: u32 = FAN.trailing_zeros();

/// The content of a slot.
pub trait Content: Default + 'static {
    /// The rank of a chunk's lock.
    const RANK: Rank;

    /// Returns whether this is the default value, which need not be dropped.
    fn is_vacant(&self) -> bool;

    /// Takes the frame out and drops everything else.
    fn into_owned(self) -> Option<Owned>;

    /// Counts a lent page that was left to its other owners when its slot was dropped.
    fn left_lent() {}

    /// The number of bits of [`aged`](Chunk::aged) that are set in all chunks that are in no
    /// registry.
    fn aged_unlisted() -> Option<&'static AtomicUsize> {
        None
    }

    /// The registry in which the pagedaemon finds chunks of this kind; `None` if it reaches them
    /// through their owners.
    fn registry() -> Option<&'static Registry<Arc<Chunk<Self>>>> {
        None
    }
}

/// The slots of a chunk. Most are vacant, nearly all in a small object's chunk, so that dropping a
/// chunk visits only the others.
pub type SlotArray<T> = ManuallyDrop<[T; SLOTS]>;

/// Consecutive slots and their lock. The pagedaemon may hold a reference for a moment longer than
/// the chunk's owner.
pub struct Chunk<T: Content> {
    slots: Mutex<SlotArray<T>>,
    /// A bit for each slot whose page is not in the state, active or inactive, in which pages of
    /// this kind start [lock of the slots; read without it].
    aged: AtomicU32,
    /// The pages must not leave memory.
    kept: AtomicBool,
    /// Some of the pages may be freed lazily (`MADV_FREE`).
    lazy: AtomicBool,
    /// How many amaps or objects refer to it ([`share`](Chunk::share)).
    owners: AtomicU32,
    /// The place in [`Content::registry`].
    token: Token,
}

const _: () = assert!(SLOTS == u32::BITS as usize);

/// Tree levels below the root. All branches of one node are of the same kind.
enum Node<T: Content> {
    Inner([OnceBox<Node<T>>; FAN]),
    Leaves([OnceArc<Chunk<T>>; FAN]),
}

/// Chunks with numbers from 0 to `64^TREES`, exclusive.
pub struct Chunks<T: Content, const TREES: usize> {
    leaf: OnceArc<Chunk<T>>,
    trees: [OnceBox<Node<T>>; TREES],
}

impl<T: Content> Chunk<T> {
    /// Returns a chunk of empty slots.
    pub fn new() -> Arc<Chunk<T>> {
        Chunk::from_slots(core::array::from_fn(|_| T::default()))
    }

    /// Returns a chunk of these slots.
    pub fn from_slots(slots: [T; SLOTS]) -> Arc<Chunk<T>> {
        Chunk::enrolled(Chunk::with_slots(slots))
    }

    /// Returns a chunk whose slots `fill` has filled.
    pub fn filled(fill: impl FnOnce(&mut [T; SLOTS])) -> Arc<Chunk<T>> {
        let mut chunk = Chunk::unlisted();
        if let Some(chunk) = Arc::get_mut(&mut chunk) {
            fill(chunk.slots.get_mut());
        }
        Chunk::enrolled(chunk)
    }

    fn enrolled(chunk: Arc<Chunk<T>>) -> Arc<Chunk<T>> {
        if let Some(registry) = T::registry() {
            registry.enroll(&chunk, &chunk.token);
        }
        chunk
    }

    /// Returns a chunk of empty slots that is in no registry.
    pub fn unlisted() -> Arc<Chunk<T>> {
        Chunk::with_slots(core::array::from_fn(|_| T::default()))
    }

    fn with_slots(slots: [T; SLOTS]) -> Arc<Chunk<T>> {
        Arc::new(Chunk {
            slots: Mutex::new(T::RANK, ManuallyDrop::new(slots)),
            aged: AtomicU32::new(0),
            kept: AtomicBool::new(false),
            lazy: AtomicBool::new(false),
            owners: AtomicU32::new(1),
            token: Token::new(),
        })
    }

    /// Locks the slots.
    pub fn lock(&self) -> MutexGuard<'_, SlotArray<T>> {
        self.slots.lock()
    }

    /// Locks the slots unless another task has.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, SlotArray<T>>> {
        self.slots.try_lock()
    }

    /// A bit for each slot whose page is not in the state in which pages of this kind start.
    pub fn aged(&self) -> u32 {
        self.aged.load(Relaxed)
    }

    /// Whether the pages must not leave memory.
    pub fn is_kept(&self) -> bool {
        self.kept.load(Relaxed)
    }

    /// Changes [`is_kept`](Chunk::is_kept).
    pub fn set_kept(&self, kept: bool) {
        self.kept.store(kept, Relaxed);
    }

    /// Changes [`aged`](Chunk::aged) [slots locked].
    pub fn set_aged(&self, aged: u32) {
        self.aged.store(aged, Relaxed);
    }

    /// Whether some of the pages may be freed lazily.
    pub fn is_lazy(&self) -> bool {
        self.lazy.load(Relaxed)
    }

    /// Changes [`is_lazy`](Chunk::is_lazy) [slots locked].
    pub fn set_lazy(&self, lazy: bool) {
        self.lazy.store(lazy, Relaxed);
    }

    /// The number of owners.
    pub fn owners(&self) -> u32 {
        self.owners.load(Relaxed)
    }

    /// Returns whether the chunk has several owners. An owner that makes no further ones and sees
    /// false once may rely on it from then on.
    #[inline]
    pub fn is_shared(&self) -> bool {
        // Acquire: the last owner sees all stores of the former ones.
        self.owners.load(Acquire) > 1
    }

    /// Adds an owner. The caller keeps one of the others alive meanwhile.
    pub fn share(&self) {
        self.owners.fetch_add(1, Relaxed);
    }

    /// Removes an owner, which does not touch the chunk any more.
    pub fn leave(&self) {
        self.owners.fetch_sub(1, Release);
    }
}

impl<T: Content> Drop for Chunk<T> {
    fn drop(&mut self) {
        drop_all(&mut self.slots.get_mut()[..]);
        let aged = *self.aged.get_mut();
        if aged != 0
            && self.token.is_nowhere()
            && let Some(count) = T::aged_unlisted()
        {
            count.fetch_sub(aged.count_ones() as usize, Relaxed);
        }
        if let Some(registry) = T::registry() {
            registry.withdraw(&mut self.token, aged.count_ones());
        }
    }
}

/// A bit for each of these slots.
pub fn bits_of(slots: impl Iterator<Item = usize>) -> u32 {
    slots.fold(0, |which, i| which | 1 << i)
}

/// The slots that have a bit in `which`.
pub fn slots_in(which: u32) -> impl Iterator<Item = usize> {
    (0..SLOTS).filter(move |i| which >> i & 1 != 0)
}

/// Empties the slots; their frames are freed as one bundle.
pub fn drop_all<T: Content>(slots: &mut [T]) {
    drop_noting(slots, &T::left_lent);
}

/// As [`drop_all`]; calls `left_lent` for each lent page that was left to its other owners.
pub fn drop_noting<T: Content>(slots: &mut [T], left_lent: &dyn Fn()) {
    let mut bundle = Bundle::new();
    for slot in slots {
        if !slot.is_vacant()
            && let Some(frame) = core::mem::take(slot).into_owned()
            && bundle.add_owned(frame)
        {
            left_lent();
        }
    }
}

/// The branches of a node that lead to chunks in `range`. The node's first chunk number is `base`,
/// and each branch holds `step` chunks.
fn branches(base: u64, step: u64, range: &Range<u64>) -> Range<u64> {
    let first = range.start.saturating_sub(base) / step;
    let end = range.end.saturating_sub(base).div_ceil(step);
    first..end.min(FAN as u64)
}

/// Puts the chunk of `from`, if there is one, into the empty cell `to` as well.
fn share<T: Content>(
    from: &OnceArc<Chunk<T>>,
    to: &OnceArc<Chunk<T>>,
    before: &mut dyn FnMut(&Chunk<T>),
) {
    if let Some(chunk) = from.get_arc() {
        before(&chunk);
        chunk.share();
        to.get_or_insert(|| chunk);
    }
}

impl<T: Content> Node<T> {
    /// Returns a node `level` levels above the chunks, at least 1.
    fn new(level: u32) -> Box<Node<T>> {
        Box::new(match level {
            1 => Node::Leaves([const { OnceArc::new() }; FAN]),
            _ => Node::Inner([const { OnceBox::new() }; FAN]),
        })
    }

    fn branch(number: u64, level: u32) -> usize {
        (number >> (FAN_SHIFT * (level - 1))) as usize % FAN
    }

    /// Calls `f` for the chunks in `range`; this node's first chunk number is `base`.
    fn walk<'a>(
        &'a self,
        level: u32,
        base: u64,
        range: &Range<u64>,
        f: &mut dyn FnMut(u64, &'a Chunk<T>) -> bool,
    ) -> bool {
        let step = 1u64 << (FAN_SHIFT * (level - 1));
        branches(base, step, range).all(|i| match self {
            Node::Inner(nodes) => nodes[i as usize]
                .get()
                .is_none_or(|node| node.walk(level - 1, base + i * step, range, f)),
            Node::Leaves(chunks) => chunks[i as usize]
                .get()
                .is_none_or(|chunk| f(base + i, chunk)),
        })
    }

    /// As [`Chunks::share_with`], for a node of the same level.
    fn share_with(&self, to: &Node<T>, level: u32, before: &mut dyn FnMut(&Chunk<T>)) -> bool {
        match (self, to) {
            (Node::Inner(from), Node::Inner(to)) => from.iter().zip(to).all(|(from, to)| {
                let Some(from) = from.get() else { return true };
                let below = level - 1;
                !frame::is_scarce()
                    && from.share_with(to.get_or_insert(|| Node::new(below)), below, before)
            }),
            (Node::Leaves(from), Node::Leaves(to)) => {
                from.iter()
                    .zip(to)
                    .for_each(|(from, to)| share(from, to, before));
                true
            }
            _ => false,
        }
    }

    fn leave_all(&self) {
        match self {
            Node::Inner(nodes) => {
                let nodes = nodes.iter().filter_map(OnceBox::get);
                nodes.for_each(|node| node.leave_all());
            }
            Node::Leaves(chunks) => {
                let chunks = chunks.iter().filter_map(OnceArc::get);
                chunks.for_each(Chunk::leave);
            }
        }
    }

    /// As [`walk`](Node::walk), with the cells of the chunks.
    fn each_mut(
        &mut self,
        level: u32,
        base: u64,
        range: &Range<u64>,
        f: &mut dyn FnMut(u64, &mut OnceArc<Chunk<T>>),
    ) {
        let step = 1u64 << (FAN_SHIFT * (level - 1));
        for i in branches(base, step, range) {
            match self {
                Node::Inner(nodes) => {
                    if let Some(node) = nodes[i as usize].get_mut() {
                        node.each_mut(level - 1, base + i * step, range, f);
                    }
                }
                Node::Leaves(chunks) => {
                    if chunks[i as usize].get().is_some() {
                        f(base + i, &mut chunks[i as usize]);
                    }
                }
            }
        }
    }

    /// As [`walk`](Node::walk), but removes the chunks.
    fn take(
        &mut self,
        level: u32,
        base: u64,
        range: &Range<u64>,
        f: &mut dyn FnMut(u64, Arc<Chunk<T>>),
    ) {
        let step = 1u64 << (FAN_SHIFT * (level - 1));
        for i in branches(base, step, range) {
            match self {
                Node::Inner(nodes) => {
                    let base = base + i * step;
                    if let Some(node) = nodes[i as usize].get_mut() {
                        node.take(level - 1, base, range, f);
                    }
                    if range.start <= base && base + step <= range.end {
                        nodes[i as usize].take();
                    }
                }
                Node::Leaves(chunks) => {
                    if let Some(chunk) = chunks[i as usize].take() {
                        f(base + i, chunk);
                    }
                }
            }
        }
    }
}

impl<T: Content, const TREES: usize> Chunks<T, TREES> {
    /// Returns an empty array.
    pub const fn new() -> Self {
        Chunks {
            leaf: OnceArc::new(),
            trees: [const { OnceBox::new() }; TREES],
        }
    }

    /// The tree that holds a chunk number above 0, and its number of levels.
    fn tree(number: u64) -> (usize, u32) {
        let tree = number.ilog2() / FAN_SHIFT;
        (tree as usize, tree + 1)
    }

    /// Returns the chunk, if it was ever made.
    #[inline]
    pub fn get(&self, number: u64) -> Option<&Chunk<T>> {
        self.cell(number)?.get()
    }

    /// Returns the chunk, if it was ever made, as a reference that outlives its cell.
    pub fn get_arc(&self, number: u64) -> Option<Arc<Chunk<T>>> {
        self.cell(number)?.get_arc()
    }

    /// The chunk's cell, if the nodes above it exist.
    #[inline]
    fn cell(&self, number: u64) -> Option<&OnceArc<Chunk<T>>> {
        if number == 0 {
            return Some(&self.leaf);
        }
        let (tree, mut level) = Self::tree(number);
        let mut node = self.trees.get(tree)?.get()?;
        loop {
            let branch = Node::<T>::branch(number, level);
            match node {
                Node::Inner(nodes) => node = nodes[branch].get()?,
                Node::Leaves(chunks) => return Some(&chunks[branch]),
            }
            level -= 1;
        }
    }

    /// Returns the chunk, or the one that `make` gives. `None` if the number is out of range.
    /// Allocates less than a page at a time.
    pub fn get_or_insert(
        &self,
        number: u64,
        make: impl FnOnce() -> Arc<Chunk<T>>,
    ) -> Option<&Chunk<T>> {
        if number == 0 {
            return Some(self.leaf.get_or_insert(make));
        }
        let (tree, mut level) = Self::tree(number);
        let mut node = self.trees.get(tree)?.get_or_insert(|| Node::new(level));
        loop {
            let branch = Node::<T>::branch(number, level);
            level -= 1;
            match node {
                Node::Inner(nodes) => node = nodes[branch].get_or_insert(|| Node::new(level)),
                Node::Leaves(chunks) => return Some(chunks[branch].get_or_insert(make)),
            }
        }
    }

    /// Calls `f` for the chunks with numbers in `range`, in order, until it returns false. Returns
    /// whether it never did.
    pub fn walk<'a>(
        &'a self,
        range: Range<u64>,
        f: &mut dyn FnMut(u64, &'a Chunk<T>) -> bool,
    ) -> bool {
        if range.contains(&0)
            && let Some(chunk) = self.leaf.get()
            && !f(0, chunk)
        {
            return false;
        }
        self.trees.iter().enumerate().all(|(tree, root)| {
            let mut range = range.clone();
            range.start = range.start.max(1 << (FAN_SHIFT * tree as u32));
            range.is_empty()
                || root
                    .get()
                    .is_none_or(|node| node.walk(tree as u32 + 1, 0, &range, f))
        })
    }

    /// Makes `to`, which is empty, refer to the same chunks. Calls `before` with each chunk before
    /// that gets another owner. Returns false if memory became scarce; `to` refers to some of them
    /// then.
    pub fn share_with(&self, to: &Self, before: &mut dyn FnMut(&Chunk<T>)) -> bool {
        share(&self.leaf, &to.leaf, before);
        let mut trees = (1..).zip(self.trees.iter().zip(&to.trees));
        trees.all(|(level, (from, to))| {
            let Some(from) = from.get() else { return true };
            !frame::is_scarce()
                && from.share_with(to.get_or_insert(|| Node::new(level)), level, before)
        })
    }

    /// [Leaves](Chunk::leave) all chunks; the cells are about to be dropped.
    pub fn leave_all(&self) {
        if let Some(chunk) = self.leaf.get() {
            chunk.leave();
        }
        let trees = self.trees.iter().filter_map(OnceBox::get);
        trees.for_each(Node::leave_all);
    }

    /// The chunk's cell, if there is one, to replace the chunk.
    pub fn place_mut(&mut self, number: u64) -> Option<&mut OnceArc<Chunk<T>>> {
        if number == 0 {
            return Some(&mut self.leaf);
        }
        let (tree, mut level) = Self::tree(number);
        let mut node = self.trees.get_mut(tree)?.get_mut()?;
        loop {
            let branch = Node::<T>::branch(number, level);
            match node {
                Node::Inner(nodes) => node = nodes[branch].get_mut()?,
                Node::Leaves(chunks) => return Some(&mut chunks[branch]),
            }
            level -= 1;
        }
    }

    /// Calls `f` with the cells of the chunks with numbers in `range`, in order, to replace the
    /// chunks.
    pub fn each_mut(&mut self, range: &Range<u64>, f: &mut dyn FnMut(u64, &mut OnceArc<Chunk<T>>)) {
        if range.contains(&0) && self.leaf.get().is_some() {
            f(0, &mut self.leaf);
        }
        for (tree, root) in self.trees.iter_mut().enumerate() {
            let start = range.start.max(1 << (FAN_SHIFT * tree as u32));
            if let Some(node) = root.get_mut()
                && start < range.end
            {
                node.each_mut(tree as u32 + 1, 0, &(start..range.end), f);
            }
        }
    }

    /// Removes the chunks with numbers in `range`, in order.
    pub fn take(&mut self, range: Range<u64>, f: &mut dyn FnMut(u64, Arc<Chunk<T>>)) {
        if range.contains(&0)
            && let Some(chunk) = self.leaf.take()
        {
            f(0, chunk);
        }
        for (tree, root) in self.trees.iter_mut().enumerate() {
            let mut range = range.clone();
            range.start = range.start.max(1 << (FAN_SHIFT * tree as u32));
            if let Some(node) = root.get_mut()
                && !range.is_empty()
            {
                node.take(tree as u32 + 1, 0, &range, f);
            }
        }
    }
}
