//! Sets of the pages of one run, and counts for each of its pages: 64 pages at a time.

use alloc::vec::Vec;
use core::ops::Range;

use nucleus::{OutOfMemory, try_filled};
use vm::page_bits::{each_word, next_range};

/// A set of page numbers below a bound.
pub(super) struct PageSet {
    words: Vec<u64>,
    count: usize,
}

impl PageSet {
    /// Returns an empty set with room for `pages`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(pages: usize) -> Result<PageSet, OutOfMemory> {
        let words = try_filled(pages.div_ceil(64), 0)?;
        Ok(PageSet { words, count: 0 })
    }

    /// Returns how many pages are in the set.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Adds pages, or removes them; returns how many that changed.
    pub fn set_all(&mut self, pages: Range<usize>, is_in: bool) -> usize {
        let mut changed = 0;
        each_word(pages, |at, mask| {
            if let Some(word) = self.words.get_mut(at) {
                let changes = mask & if is_in { !*word } else { *word };
                *word ^= changes;
                changed += changes.count_ones() as usize;
            }
        });
        match is_in {
            true => self.count += changed,
            false => self.count -= changed,
        }
        changed
    }

    /// Returns the first range of neighbouring pages within `within` that are in the set, or that
    /// are not.
    pub fn next_range(&self, within: Range<usize>, is_in: bool) -> Option<Range<usize>> {
        let word = |at: usize| self.words.get(at).copied().unwrap_or(0);
        next_range(word, within, is_in)
    }
}

/// Bits of a count.
const COUNT_BITS: usize = u16::BITS as usize;

/// A count for each page. The first word of a group of 64 pages has the lowest bits of their
/// counts, and so on: a carry goes through all of them at once.
pub(super) struct PageCounts {
    groups: Vec<[u64; COUNT_BITS]>,
    /// Bits of the greatest count that there was.
    bits: usize,
    /// Pages whose count is not zero.
    counted: usize,
}

impl PageCounts {
    /// Returns counts of zero for `pages`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(pages: usize) -> Result<PageCounts, OutOfMemory> {
        Ok(PageCounts {
            groups: try_filled(pages.div_ceil(64), [0; COUNT_BITS])?,
            bits: 0,
            counted: 0,
        })
    }

    /// Returns how many pages have a count above zero.
    pub fn counted(&self) -> usize {
        self.counted
    }

    /// Whether every one of `pages` can be counted once more.
    pub fn have_room(&self, pages: Range<usize>) -> bool {
        let mut has_room = true;
        if self.bits == COUNT_BITS {
            each_word(pages, |at, mask| {
                let full = |group: &[u64; COUNT_BITS]| group.iter().fold(mask, |all, it| all & it);
                has_room &= self.groups.get(at).is_some_and(|group| full(group) == 0);
            });
        }
        has_room
    }

    /// Counts each of `pages`, which [have room](PageCounts::have_room).
    pub fn add(&mut self, pages: Range<usize>) {
        each_word(pages, |at, mask| {
            self.counted += (mask & !self.above_zero(at)).count_ones() as usize;
            let mut carry = mask;
            for (bit, word) in self.groups.get_mut(at).into_iter().flatten().enumerate() {
                let before = *word;
                *word ^= carry;
                carry &= before;
                if carry == 0 {
                    self.bits = self.bits.max(bit + 1);
                    return;
                }
            }
        });
    }

    /// Takes one from the count of each of `pages` that is not zero.
    pub fn subtract(&mut self, pages: Range<usize>) {
        each_word(pages, |at, mask| {
            let mask = mask & self.above_zero(at);
            let mut borrow = mask;
            for word in self.groups.get_mut(at).into_iter().flatten() {
                let before = *word;
                *word ^= borrow;
                borrow &= !before;
                if borrow == 0 {
                    break;
                }
            }
            self.counted -= (mask & !self.above_zero(at)).count_ones() as usize;
        });
    }

    /// Returns the first range of neighbouring pages within `within` whose counts are zero, or not.
    pub fn next_range(&self, within: Range<usize>, is_zero: bool) -> Option<Range<usize>> {
        next_range(|at| self.above_zero(at), within, !is_zero)
    }

    #[inline]
    fn above_zero(&self, at: usize) -> u64 {
        let group = self.groups.get(at).and_then(|group| group.get(..self.bits));
        group.map_or(0, |words| words.iter().fold(0, |any, word| any | word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const PAGES: usize = 200;

    #[test]
    fn counts_are_those_of_single_pages() {
        let mut counts = PageCounts::new(PAGES).expect("memory");
        let mut plain = vec![0u16; PAGES];
        let mut seed = 1u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (one, other) = (
                (seed >> 33) as usize % PAGES,
                (seed >> 45) as usize % (PAGES + 1),
            );
            let pages = one.min(other)..one.max(other);
            match seed >> 60 {
                0..8 => {
                    counts.add(pages.clone());
                    plain[pages].iter_mut().for_each(|count| *count += 1);
                }
                _ => {
                    counts.subtract(pages.clone());
                    let counted = plain[pages].iter_mut();
                    counted.for_each(|count| *count = count.saturating_sub(1));
                }
            }
            assert_eq!(
                counts.counted(),
                plain.iter().filter(|&&count| count > 0).count()
            );
            for is_zero in [false, true] {
                let found = counts.next_range(one..PAGES, is_zero);
                let fits = |&page: &usize| (plain[page] == 0) == is_zero;
                let start = (one..PAGES).find(fits);
                let end = |start| (start..PAGES).find(|page| !fits(page)).unwrap_or(PAGES);
                assert_eq!(found, start.map(|start| start..end(start)));
            }
        }
    }

    #[test]
    fn a_full_count_has_no_room() {
        let mut counts = PageCounts::new(PAGES).expect("memory");
        for _ in 0..u16::MAX {
            assert!(counts.have_room(60..70));
            counts.add(60..70);
        }
        assert!(!counts.have_room(0..PAGES) && !counts.have_room(69..70));
        assert!(counts.have_room(0..60) && counts.have_room(70..PAGES));
        counts.subtract(60..65);
        assert!(counts.have_room(0..65) && !counts.have_room(60..66));
    }
}
