//! Lists in pieces of one page, and visits to tables without a list.

use alloc::{
    collections::{LinkedList, linked_list},
    vec::{self, Vec},
};
use core::iter::{Chain, Flatten};

use crate::{OutOfMemory, PAGE_SIZE, frame};

/// A list of any length that allocates one page at a time at most: a vector of many elements would
/// need a large block, which may not be there. [`push`](Pieces::push) is for lists whose length a
/// constant bounds, where nothing may fail; where programs drive the length, it is
/// [`try_push`](Pieces::try_push), or no list at all: [`visit_by_key`].
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

    /// Appends an element, unless that takes memory while it [is scarce](frame::is_scarce).
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn try_push(&mut self, element: T) -> Result<(), OutOfMemory> {
        if self.last.len() == self.last.capacity() {
            frame::check_not_scarce()?;
            if self.last.len() < Self::PIECE {
                self.last.try_reserve(1).map_err(|_| OutOfMemory)?;
            }
        }
        self.push(element);
        Ok(())
    }

    /// Makes a list of all `elements`.
    ///
    /// # Errors
    /// As [`try_push`](Pieces::try_push).
    pub fn try_collect(elements: impl IntoIterator<Item = T>) -> Result<Pieces<T>, OutOfMemory> {
        let mut list = Pieces::new();
        list.try_extend(elements)?;
        Ok(list)
    }

    /// Appends all `elements`.
    ///
    /// # Errors
    /// As [`try_push`](Pieces::try_push).
    pub fn try_extend(&mut self, elements: impl IntoIterator<Item = T>) -> Result<(), OutOfMemory> {
        let mut elements = elements.into_iter();
        elements.try_for_each(|element| self.try_push(element))
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

/// Entries that [`visit_by_key`] takes out at a time.
const BATCH: usize = 16;

/// Visits the entries of a table of any size by rising key, without memory for a list of them.
/// `fill` gives those behind a key, or from the first on, to its second argument until that returns
/// false, with the table locked; `visit` gets them with no lock held, until it returns false. An
/// entry that comes or goes meanwhile may be seen or not.
pub fn visit_by_key<K: Copy, T>(
    mut fill: impl FnMut(Option<K>, &mut dyn FnMut(K, T) -> bool),
    mut visit: impl FnMut(T) -> bool,
) {
    let mut last = None;
    loop {
        let mut batch = [const { None }; BATCH];
        let (mut count, mut next) = (0, last);
        fill(last, &mut |key, entry| {
            if let Some(place) = batch.get_mut(count) {
                *place = Some(entry);
                next = Some(key);
                count += 1;
            }
            count < BATCH
        });
        last = next;
        if !batch.into_iter().flatten().all(&mut visit) || count < BATCH {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visit_sees_each_entry_once_and_in_order() {
        for count in [0, 1, 15, 16, 17, 1000] {
            let table: alloc::collections::BTreeMap<usize, usize> =
                (0..count).map(|n| (3 * n, n)).collect();
            let (mut seen, mut locked) = (Vec::new(), 0);
            visit_by_key(
                |after, take| {
                    locked += 1;
                    let rest = table.range(after.map_or(0, |key| key + 1)..);
                    let mut given = 0;
                    for (key, entry) in rest {
                        given += 1;
                        if !take(*key, *entry) {
                            break;
                        }
                    }
                    assert!(given <= BATCH);
                },
                |entry| {
                    seen.push(entry);
                    true
                },
            );
            assert!(seen.iter().copied().eq(0..count));
            assert_eq!(locked, count / BATCH + 1);
            let mut left = 20;
            visit_by_key(
                |after, take| {
                    let mut rest = table.range(after.map_or(0, |key| key + 1)..);
                    rest.all(|(key, entry)| take(*key, *entry));
                },
                |_| {
                    left -= 1;
                    left > 0
                },
            );
            assert_eq!(left, 20_usize.saturating_sub(count));
        }
    }

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
