//! Lists in pieces of one page.

use alloc::{
    collections::{LinkedList, linked_list},
    vec::{self, Vec},
};
use core::iter::{Chain, Flatten};

use crate::PAGE_SIZE;

/// A list of any length that allocates one page at a time at most, so that it can be made where
/// nothing may fail: a vector of many elements would need a large block, which may not be there.
pub struct Pieces<T> {
    /// Full ones, of [`Pieces::PIECE`] elements.
    full: LinkedList<Vec<T>>,
    /// The last elements.
    last: Vec<T>,
}

impl<T> Pieces<T> {
    /// Elements of a piece: a power of two, which is what a vector doubles to.
    const PIECE: usize = {
        assert!(size_of::<T>() > 0 && size_of::<T>() <= PAGE_SIZE);
        1 << (PAGE_SIZE / size_of::<T>()).ilog2()
    };

    /// An empty list; allocates nothing.
    pub const fn new() -> Pieces<T> {
        Pieces {
            full: LinkedList::new(),
            last: Vec::new(),
        }
    }

    /// Appends an element.
    #[inline]
    pub fn push(&mut self, element: T) {
        if self.last.len() == Self::PIECE {
            self.full.push_back(core::mem::take(&mut self.last));
        }
        self.last.push(element);
    }

    /// Tells whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.full.len() * Self::PIECE + self.last.len()
    }

    /// Iterates over the elements, the first one first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.full.iter().flatten().chain(&self.last)
    }
}

impl<T> Default for Pieces<T> {
    fn default() -> Pieces<T> {
        Pieces::new()
    }
}

impl<T> Extend<T> for Pieces<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        elements.into_iter().for_each(|element| self.push(element));
    }
}

impl<T> FromIterator<T> for Pieces<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Pieces<T> {
        let mut list = Pieces::new();
        list.extend(elements);
        list
    }
}

impl<T> IntoIterator for Pieces<T> {
    type Item = T;
    type IntoIter = Chain<Flatten<linked_list::IntoIter<Vec<T>>>, vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.full.into_iter().flatten().chain(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_piece_is_larger_than_a_page() {
        let list: Pieces<[u32; 3]> = (0..5000).map(|n| [n; 3]).collect();
        assert!(list.iter().map(|it| it[0]).eq(0..5000));
        let bytes = |piece: &Vec<[u32; 3]>| piece.capacity() * size_of::<[u32; 3]>();
        assert!(list.full.iter().all(|piece| bytes(piece) <= PAGE_SIZE));
        assert_eq!(list.len(), 5000);
        assert!(list.into_iter().map(|it| it[0]).eq(0..5000));
        assert!(Pieces::<u8>::new().is_empty());
    }
}
