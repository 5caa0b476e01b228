//! Sets of the pages of one run.

use alloc::vec::Vec;
use core::ops::Range;

use nucleus::{OutOfMemory, try_filled};

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

    /// Adds a page, or removes it; returns whether that changed the set.
    pub fn set(&mut self, page: usize, is_in: bool) -> bool {
        let Some(word) = self.words.get_mut(page / 64) else {
            return false;
        };
        let bit = 1 << (page % 64);
        if (*word & bit != 0) == is_in {
            return false;
        }
        *word ^= bit;
        match is_in {
            true => self.count += 1,
            false => self.count -= 1,
        }
        true
    }

    /// As [`set`](PageSet::set) for several pages; returns how many changed.
    pub fn set_all(&mut self, pages: Range<usize>, is_in: bool) -> usize {
        pages.filter(|&page| self.set(page, is_in)).count()
    }

    /// Returns the first range of neighbouring pages within `within` that are in the set, or that
    /// are not.
    pub fn next_range(&self, within: Range<usize>, is_in: bool) -> Option<Range<usize>> {
        let start = self.first(within.clone(), is_in)?;
        let end = self.first(start..within.end, !is_in);
        Some(start..end.unwrap_or(within.end))
    }

    /// Returns the first page of `within` that is in the set, or that is not.
    fn first(&self, within: Range<usize>, is_in: bool) -> Option<usize> {
        let mut page = within.start;
        while page < within.end {
            let word = self.words.get(page / 64).copied().unwrap_or(0);
            let wanted = if is_in { word } else { !word } >> (page % 64);
            if wanted != 0 {
                let found = page + wanted.trailing_zeros() as usize;
                return (found < within.end).then_some(found);
            }
            page = (page / 64 + 1) * 64;
        }
        None
    }
}
