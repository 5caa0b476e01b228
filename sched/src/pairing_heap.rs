//! A pairing heap whose links live in its elements, so that no operation allocates.
//!
//! The least key comes first; insertion is O(1), taking the first or any other element O(log n)
//! amortised. Run queues (by virtual run time) and timer queues (by deadline) are made of it.

use core::cell::Cell;

/// The part of an element that the heap owns while the element is in it.
pub struct Link<H> {
    key: Cell<u64>,
    /// The first of the elements below this one.
    child: Cell<Option<H>>,
    /// The next one below the same parent.
    next: Cell<Option<H>>,
    /// The one before below the same parent, or the parent for the first.
    prev: Cell<Option<H>>,
}

impl<H> Link<H> {
    /// The link of an element that is in no heap.
    pub const fn new() -> Self {
        Self {
            key: Cell::new(0),
            child: Cell::new(None),
            next: Cell::new(None),
            prev: Cell::new(None),
        }
    }

    /// Makes it the link of a single element.
    fn reset(&self, key: u64) {
        self.key.set(key);
        self.child.set(None);
        self.next.set(None);
        self.prev.set(None);
    }
}

impl<H> Default for Link<H> {
    fn default() -> Self {
        Self::new()
    }
}

/// A handle to an element, which keeps the heap's [`Link`]. Two handles are equal if they lead to
/// one element.
pub trait Linked: Copy + Eq {
    /// Returns the element's link, always the same one.
    fn link(&self) -> &Link<Self>;
}

/// The heap. It holds handles and does not own what they lead to.
pub struct PairingHeap<H> {
    root: Option<H>,
}

impl<H> PairingHeap<H> {
    /// An empty heap.
    pub const fn new() -> Self {
        Self { root: None }
    }
}

impl<H> Default for PairingHeap<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Linked> PairingHeap<H> {
    /// Returns the element with the least key.
    #[inline]
    pub fn first(&self) -> Option<H> {
        self.root
    }

    /// Returns the least key.
    #[inline]
    pub fn first_key(&self) -> Option<u64> {
        self.root.map(|root| root.link().key.get())
    }

    /// Adds an element, which is in no heap.
    #[inline]
    pub fn insert(&mut self, element: H, key: u64) {
        element.link().reset(key);
        self.root = meld(self.root, Some(element));
    }

    /// Removes and returns the element with the least key.
    #[inline]
    pub fn pop(&mut self) -> Option<H> {
        let root = self.root?;
        self.remove(root);
        Some(root)
    }

    /// Removes an element, which is in this heap.
    pub fn remove(&mut self, element: H) {
        let link = element.link();
        let below = meld_siblings(link.child.get());
        if self.root == Some(element) {
            self.root = below;
        } else if let Some(prev) = link.prev.get() {
            let next = link.next.get();
            if prev.link().child.get() == Some(element) {
                prev.link().child.set(next);
            } else {
                prev.link().next.set(next);
            }
            if let Some(next) = next {
                next.link().prev.set(Some(prev));
            }
            self.root = meld(self.root, below);
        }
        link.reset(0);
    }

    /// Returns the first of at most `limit` elements, from the root down, for which `fits` holds.
    pub fn find(&self, limit: usize, mut fits: impl FnMut(&H) -> bool) -> Option<H> {
        let mut at = self.root;
        for _ in 0..limit {
            let element = at?;
            if fits(&element) {
                return Some(element);
            }
            at = element.link().child.get().or_else(|| following(element));
        }
        None
    }
}

/// Returns the next element in preorder after the whole part below `at`.
fn following<H: Linked>(mut at: H) -> Option<H> {
    loop {
        if let Some(next) = at.link().next.get() {
            return Some(next);
        }
        // Up: left along the siblings to the first, whose `prev` is the parent.
        loop {
            let prev = at.link().prev.get()?;
            let was_first = prev.link().child.get() == Some(at);
            at = prev;
            if was_first {
                break;
            }
        }
    }
}

/// Puts the root with the greater key below the other; on equal keys `a` stays above. Both are
/// roots, without siblings and parent.
#[inline]
fn meld<H: Linked>(a: Option<H>, b: Option<H>) -> Option<H> {
    let (Some(a), Some(b)) = (a, b) else {
        return a.or(b);
    };
    let (above, below) = if b.link().key.get() < a.link().key.get() {
        (b, a)
    } else {
        (a, b)
    };
    let old = above.link().child.get();
    below.link().next.set(old);
    below.link().prev.set(Some(above));
    if let Some(old) = old {
        old.link().prev.set(Some(below));
    }
    above.link().child.set(Some(below));
    Some(above)
}

/// Makes one root of a list of siblings: pairs from the left, then all from the right.
fn meld_siblings<H: Linked>(mut first: Option<H>) -> Option<H> {
    // The pairs, last one first, linked by `next`.
    let mut pairs: Option<H> = None;
    while let Some(a) = first {
        let b = a.link().next.get();
        first = b.and_then(|b| b.link().next.get());
        for root in [Some(a), b].into_iter().flatten() {
            root.link().next.set(None);
            root.link().prev.set(None);
        }
        let pair = meld(Some(a), b);
        if let Some(pair) = pair {
            pair.link().next.set(pairs);
        }
        pairs = pair;
    }
    let mut root = None;
    while let Some(pair) = pairs {
        pairs = pair.link().next.get();
        pair.link().next.set(None);
        root = meld(root, Some(pair));
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Item {
        link: Link<ItemRef>,
        key: u64,
    }

    #[derive(Clone, Copy)]
    struct ItemRef(&'static Item);

    impl PartialEq for ItemRef {
        fn eq(&self, other: &Self) -> bool {
            core::ptr::eq(self.0, other.0)
        }
    }
    impl Eq for ItemRef {}

    impl Linked for ItemRef {
        fn link(&self) -> &Link<Self> {
            &self.0.link
        }
    }

    #[test]
    fn agrees_with_a_sorted_list() {
        let mut random = 1u64;
        let mut next = move || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            random >> 33
        };
        for _ in 0..200 {
            let mut heap = PairingHeap::new();
            let mut model: Vec<ItemRef> = Vec::new();
            let key = |item: &ItemRef| item.0.key;
            for _ in 0..300 {
                match next() % 5 {
                    0..=2 => {
                        let item = ItemRef(Box::leak(Box::new(Item {
                            link: Link::new(),
                            key: next() % 50,
                        })));
                        heap.insert(item, key(&item));
                        model.push(item);
                    }
                    3 if !model.is_empty() => {
                        let least = model.iter().map(key).min();
                        assert_eq!(heap.first_key(), least);
                        let first = heap.pop().unwrap();
                        assert_eq!(Some(key(&first)), least);
                        model.retain(|item| *item != first);
                    }
                    4 if !model.is_empty() => {
                        let item = model.swap_remove(next() as usize % model.len());
                        let mut seen = 0;
                        let found = heap.find(usize::MAX, |it| {
                            seen += 1;
                            *it == item
                        });
                        assert!(found == Some(item));
                        assert!(seen <= model.len() + 1);
                        heap.remove(item);
                    }
                    _ => {}
                }
            }
            let mut count = 0;
            let found = heap.find(usize::MAX, |_| {
                count += 1;
                false
            });
            assert!(found.is_none());
            assert_eq!(count, model.len());
            while heap.pop().is_some() {
                count -= 1;
            }
            assert_eq!(count, 0);
        }
    }
}
