//! A balanced tree of record locks, in the order of a key, that finds the lowest lock of others.
//!
//! A treap: ordered by key, heaped by random numbers, so its depth is logarithmic whatever programs
//! choose. Each node knows the last byte that locks below it reach, for any owner that asks about
//! the locks of others. Nodes are made before a change begins and are reused by it, so a change
//! cannot fail in the middle.

use alloc::boxed::Box;

use nucleus::{OutOfMemory, random, try_box};

use super::{owner::Owner, records::Record};

/// A lock and its owner.
pub type Held = (Owner, Record);
/// The order of a tree: no two locks in it have the same key.
pub type Key = (u64, u64);

type Link = Option<Box<Node>>;

pub struct Node {
    key: Key,
    held: Held,
    priority: u64,
    left: Link,
    /// In a list of spare nodes: the next one.
    right: Link,
    /// The farthest last byte in this subtree with its owner, and the farthest of other owners.
    reach: [Option<(u64, Owner)>; 2],
}

/// What a lock takes in its two trees.
pub const LOCK_BYTES: usize = 2 * size_of::<Node>();

/// Nodes that are not in use.
#[derive(Default)]
pub struct Spare(Link);

impl Spare {
    /// Adds nodes; for the two changes of a tree that a lock may need.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn add(&mut self, count: usize) -> Result<(), OutOfMemory> {
        let nothing = Record {
            mode: super::Mode::Shared,
            start: 0,
            last: 0,
            pid: 0,
        };
        for _ in 0..count {
            self.0 = Some(try_box(Node {
                key: (0, 0),
                held: (Owner::NONE, nothing),
                priority: random::u64(),
                left: None,
                right: self.0.take(),
                reach: [None; 2],
            })?);
        }
        Ok(())
    }

    fn take(&mut self) -> Box<Node> {
        let mut node = self.0.take().expect("a change of locks has its nodes");
        self.0 = node.right.take();
        node
    }

    fn give(&mut self, mut node: Box<Node>) {
        node.right = self.0.take();
        self.0 = Some(node);
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        while let Some(mut node) = self.0.take() {
            self.0 = node.right.take();
        }
    }
}

/// See the head of the file.
#[derive(Default)]
pub struct Tree {
    root: Link,
}

/// The farthest byte of owners other than `owner`.
fn reach_of_others(link: &Link, owner: Owner) -> Option<u64> {
    let [first, second] = link.as_ref()?.reach;
    let found = first.filter(|(_, of)| *of != owner).or(second);
    found.map(|(last, _)| last)
}

impl Node {
    /// Computes `reach` from the lock and both subtrees.
    fn update(&mut self) {
        let own = Some((self.held.1.last, self.held.0));
        let below = |link: &Link| link.as_ref().map_or([None; 2], |node| node.reach);
        let ([a, b], [c, d]) = (below(&self.left), below(&self.right));
        let all = [own, a, b, c, d];
        let first = all.into_iter().flatten().max();
        let owner = first.map(|(_, owner)| owner);
        let others = all.into_iter().flatten();
        let second = others.filter(|(_, of)| Some(*of) != owner).max();
        self.reach = [first, second];
    }
}

/// Splits into the keys of which `is_low` holds and the others, which are above them.
fn split(link: Link, is_low: &impl Fn(Key) -> bool) -> (Link, Link) {
    let Some(mut node) = link else {
        return (None, None);
    };
    if is_low(node.key) {
        let (low, high) = split(node.right.take(), is_low);
        node.right = low;
        node.update();
        (Some(node), high)
    } else {
        let (low, high) = split(node.left.take(), is_low);
        node.left = high;
        node.update();
        (low, Some(node))
    }
}

/// Joins two trees; the keys of the first are below those of the second.
fn join(low: Link, high: Link) -> Link {
    match (low, high) {
        (None, link) | (link, None) => link,
        (Some(mut low), Some(mut high)) => {
            if low.priority > high.priority {
                low.right = join(low.right.take(), Some(high));
                low.update();
                Some(low)
            } else {
                high.left = join(Some(low), high.left.take());
                high.update();
                Some(high)
            }
        }
    }
}

fn visit(link: &Link, each: &mut impl FnMut(&Held)) {
    if let Some(node) = link {
        visit(&node.left, each);
        each(&node.held);
        visit(&node.right, each);
    }
}

impl Tree {
    /// Puts a lock in, in a node of `spare`.
    pub fn insert(&mut self, key: Key, held: Held, spare: &mut Spare) {
        let mut node = spare.take();
        (node.key, node.held) = (key, held);
        node.update();
        let (low, high) = split(self.root.take(), &|it| it < key);
        self.root = join(join(low, Some(node)), high);
    }

    /// Takes the lock with this key out.
    pub fn remove(&mut self, key: Key, spare: &mut Spare) {
        let (low, rest) = split(self.root.take(), &|it| it < key);
        let (found, high) = split(rest, &|it| it <= key);
        if let Some(node) = found {
            spare.give(node);
        }
        self.root = join(low, high);
    }

    /// Of a tree ordered by first byte: the lowest lock of an owner other than `owner` that has a
    /// byte of `start..=last`.
    pub fn lowest_of_others(&self, owner: Owner, start: u64, last: u64) -> Option<&Held> {
        let reaches = |link: &Link| reach_of_others(link, owner) >= Some(start);
        let mut at = self.root.as_ref()?;
        loop {
            if reaches(&at.left) {
                at = at.left.as_ref()?;
            } else if at.held.0 != owner && at.held.1.last >= start {
                // All that is lower ends before the range begins.
                return (at.held.1.start <= last).then_some(&at.held);
            } else if reaches(&at.right) {
                at = at.right.as_ref()?;
            } else {
                return None;
            }
        }
    }

    /// The lock with the greatest key up to `key`, and that with the lowest one above.
    pub fn around(&self, key: Key) -> [Option<&Held>; 2] {
        let (mut below, mut above) = (None, None);
        let mut at = &self.root;
        while let Some(node) = at {
            if node.key <= key {
                below = Some(&node.held);
                at = &node.right;
            } else {
                above = Some(&node.held);
                at = &node.left;
            }
        }
        [below, above]
    }

    /// Calls `each` with all locks in their order.
    pub fn visit(&self, mut each: impl FnMut(&Held)) {
        visit(&self.root, &mut each);
    }

    /// Tells whether there is no lock.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }
}
