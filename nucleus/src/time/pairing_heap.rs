//! A pairing heap whose links live in its elements, so that no operation allocates.
//!
//! The least key comes first; insertion is O(1), taking the first or any other element O(log n)
//! amortised. Run queues (by virtual run time) and timer queues (by deadline) are made of it.

use core::ptr::{self, NonNull};

/// The part of an element that the heap owns while the element is in it.
pub(crate) struct Link<T> {
    key: u64,
    /// The first of the elements below this one.
    child: *mut T,
    /// The next one below the same parent.
    next: *mut T,
    /// The one before below the same parent, or the parent for the first.
    prev: *mut T,
}

impl<T> Link<T> {
    pub(crate) const fn new() -> Link<T> {
        Link {
            key: 0,
            child: ptr::null_mut(),
            next: ptr::null_mut(),
            prev: ptr::null_mut(),
        }
    }
}

/// Tells where an element keeps its [`Link`].
///
/// # Safety
/// `link` gives a pointer to a field of `*this`, always the same one.
pub(crate) unsafe trait Linked: Sized {
    fn link(this: *mut Self) -> *mut Link<Self>;
}

/// The heap. It does not own its elements; who inserts one keeps it alive and in place until it is
/// out.
pub(crate) struct PairingHeap<T: Linked> {
    root: *mut T,
}

// SAFETY: the heap is a set of pointers that are followed only through `&mut` or `&` of the heap;
// whoever shares it shares the elements' links, and `insert`'s contract covers their lifetime.
unsafe impl<T: Linked + Sync> Send for PairingHeap<T> {}

impl<T: Linked> PairingHeap<T> {
    pub(crate) const fn new() -> PairingHeap<T> {
        PairingHeap {
            root: ptr::null_mut(),
        }
    }

    /// The element with the least key.
    pub(crate) fn first(&self) -> Option<NonNull<T>> {
        NonNull::new(self.root)
    }

    /// The least key.
    pub(crate) fn first_key(&self) -> Option<u64> {
        // SAFETY: the root is an element, alive by `insert`'s contract.
        self.first().map(|t| unsafe { (*T::link(t.as_ptr())).key })
    }

    /// Adds an element.
    ///
    /// # Safety
    /// It is in no heap, and stays alive and in place until it is taken out of this one.
    pub(crate) unsafe fn insert(&mut self, element: NonNull<T>, key: u64) {
        let element = element.as_ptr();
        // SAFETY: alive by contract, and in no heap, so the link is ours to set.
        unsafe {
            *T::link(element) = Link { key, ..Link::new() };
            self.root = meld(self.root, element);
        }
    }

    /// Takes out the element with the least key.
    pub(crate) fn pop(&mut self) -> Option<NonNull<T>> {
        let root = self.first()?;
        // SAFETY: it is in this heap.
        unsafe { self.remove(root) };
        Some(root)
    }

    /// Takes out an element.
    ///
    /// # Safety
    /// It is in this heap.
    pub(crate) unsafe fn remove(&mut self, element: NonNull<T>) {
        let element = element.as_ptr();
        // SAFETY: everything reachable from an element of this heap is one too, hence alive.
        unsafe {
            let link = T::link(element);
            let below = meld_siblings((*link).child);
            if element == self.root {
                self.root = below;
            } else {
                let (prev, next) = ((*link).prev, (*link).next);
                if (*T::link(prev)).child == element {
                    (*T::link(prev)).child = next;
                } else {
                    (*T::link(prev)).next = next;
                }
                if !next.is_null() {
                    (*T::link(next)).prev = prev;
                }
                self.root = meld(self.root, below);
            }
            *link = Link::new();
        }
    }

    /// The first of at most `limit` elements, from the root down, for which `fits` holds.
    pub(crate) fn find(
        &self,
        limit: usize,
        mut fits: impl FnMut(&T) -> bool,
    ) -> Option<NonNull<T>> {
        let mut at = self.root;
        for _ in 0..limit {
            let element = NonNull::new(at)?;
            // SAFETY: elements of this heap are alive; only shared references to them are made.
            unsafe {
                if fits(element.as_ref()) {
                    return Some(element);
                }
                let link = T::link(at);
                at = if (*link).child.is_null() {
                    following(at)
                } else {
                    (*link).child
                };
            }
        }
        None
    }
}

/// The next element in preorder after the whole part below `at`; null after the last.
///
/// # Safety
/// `at` is an element of a heap.
unsafe fn following<T: Linked>(mut at: *mut T) -> *mut T {
    // SAFETY: only elements of the same heap are reached.
    unsafe {
        loop {
            let next = (*T::link(at)).next;
            if !next.is_null() {
                return next;
            }
            // Up: left along the siblings to the first, whose `prev` is the parent.
            loop {
                let prev = (*T::link(at)).prev;
                if prev.is_null() {
                    return prev;
                }
                let was_first = (*T::link(prev)).child == at;
                at = prev;
                if was_first {
                    break;
                }
            }
        }
    }
}

/// Puts the root with the greater key below the other; on equal keys `a` stays above.
///
/// # Safety
/// Both are null or roots: no siblings, no parent.
unsafe fn meld<T: Linked>(a: *mut T, b: *mut T) -> *mut T {
    if a.is_null() {
        return b;
    }
    if b.is_null() {
        return a;
    }
    // SAFETY: both are alive roots.
    unsafe {
        let (above, below) = if (*T::link(b)).key < (*T::link(a)).key {
            (b, a)
        } else {
            (a, b)
        };
        let old = (*T::link(above)).child;
        (*T::link(below)).next = old;
        (*T::link(below)).prev = above;
        if !old.is_null() {
            (*T::link(old)).prev = below;
        }
        (*T::link(above)).child = below;
        above
    }
}

/// Makes one root of a list of siblings: pairs from the left, then all from the right.
///
/// # Safety
/// `first` is null or the first child of an element that is being taken out.
unsafe fn meld_siblings<T: Linked>(mut first: *mut T) -> *mut T {
    // SAFETY: every sibling is alive; each is cut loose before it is melded.
    unsafe {
        // The pairs, last one first, linked by `next`.
        let mut pairs: *mut T = ptr::null_mut();
        while !first.is_null() {
            let a = first;
            let b = (*T::link(a)).next;
            first = if b.is_null() { b } else { (*T::link(b)).next };
            for root in [a, b] {
                if !root.is_null() {
                    (*T::link(root)).next = ptr::null_mut();
                    (*T::link(root)).prev = ptr::null_mut();
                }
            }
            let pair = meld(a, b);
            (*T::link(pair)).next = pairs;
            pairs = pair;
        }
        let mut root = ptr::null_mut();
        while !pairs.is_null() {
            let pair = pairs;
            pairs = (*T::link(pair)).next;
            (*T::link(pair)).next = ptr::null_mut();
            root = meld(root, pair);
        }
        root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Item {
        link: Link<Item>,
        key: u64,
    }
    // SAFETY: always the field `link`.
    unsafe impl Linked for Item {
        fn link(this: *mut Item) -> *mut Link<Item> {
            // SAFETY: in bounds of the item.
            unsafe { &raw mut (*this).link }
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
            let mut model: Vec<NonNull<Item>> = Vec::new();
            // SAFETY: the items of the model live until they are dropped below.
            let key = |item: &NonNull<Item>| unsafe { item.as_ref().key };
            for _ in 0..300 {
                match next() % 5 {
                    0..=2 => {
                        let item = Box::leak(Box::new(Item {
                            link: Link::new(),
                            key: next() % 50,
                        }));
                        let item = NonNull::from(item);
                        // SAFETY: a new item, which lives until it has left the heap.
                        unsafe { heap.insert(item, key(&item)) };
                        model.push(item);
                    }
                    3 if !model.is_empty() => {
                        let least = model.iter().map(key).min();
                        assert_eq!(heap.first_key(), least);
                        let first = heap.pop().unwrap();
                        assert_eq!(Some(key(&first)), least);
                        model.retain(|item| *item != first);
                        // SAFETY: it was a leaked box, and has left the heap and the model.
                        drop(unsafe { Box::from_raw(first.as_ptr()) });
                    }
                    4 if !model.is_empty() => {
                        let item = model.swap_remove(next() as usize % model.len());
                        let mut seen = 0;
                        assert_eq!(
                            heap.find(usize::MAX, |i| {
                                seen += 1;
                                ptr::eq(i, item.as_ptr())
                            }),
                            Some(item)
                        );
                        assert!(seen <= model.len() + 1);
                        // SAFETY: it is in the heap.
                        unsafe { heap.remove(item) };
                        // SAFETY: it was a leaked box, and has left the heap and the model.
                        drop(unsafe { Box::from_raw(item.as_ptr()) });
                    }
                    _ => {}
                }
            }
            let mut count = 0;
            assert_eq!(
                heap.find(usize::MAX, |_| {
                    count += 1;
                    false
                }),
                None
            );
            assert_eq!(count, model.len());
            while let Some(item) = heap.pop() {
                // SAFETY: it was a leaked box, and has left the heap.
                drop(unsafe { Box::from_raw(item.as_ptr()) });
                count -= 1;
            }
            assert_eq!(count, 0);
        }
    }
}
