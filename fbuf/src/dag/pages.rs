//! The pages that an aggregate reaches, as merged ranges.

use alloc::vec::Vec;
use core::ops::Range;

use nucleus::PAGE_SIZE;

use super::WalkError;

/// The most separate ranges of pages of one aggregate: what a message keeps is then below 64 KiB.
pub const MOST_RANGES: usize = 2048;

/// Ranges of whole pages, in order and disjoint once they are [finished](PageRanges::finish).
#[derive(Default)]
pub struct PageRanges {
    ranges: Vec<Range<u64>>,
}

impl PageRanges {
    /// Ranges that a list keeps room for when it was [shrunk](PageRanges::shrink).
    pub const KEPT: usize = MOST_RANGES / 32;

    /// Empties the list.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Empties the list, and gives the memory of a long one back.
    pub fn shrink(&mut self) {
        self.ranges.clear();
        self.ranges.shrink_to(PageRanges::KEPT);
    }

    /// Adds the pages of the bytes at `bytes`, whose end is at most the last page's start.
    ///
    /// # Errors
    /// [`WalkError::TooBig`] for too many ranges, [`WalkError::OutOfMemory`].
    pub fn add(&mut self, bytes: Range<u64>) -> Result<(), WalkError> {
        let page = PAGE_SIZE as u64;
        let start = bytes.start & !(page - 1);
        let end = bytes.end.checked_next_multiple_of(page);
        let end = end.ok_or(WalkError::BadAddress)?;
        if let Some(last) = self.ranges.last_mut()
            && start <= last.end
            && last.start <= end
        {
            last.start = last.start.min(start);
            last.end = last.end.max(end);
            return Ok(());
        }
        if self.ranges.len() >= 2 * MOST_RANGES {
            self.merge();
            if self.ranges.len() > MOST_RANGES {
                return Err(WalkError::TooBig);
            }
        }
        let reserved = self.ranges.try_reserve(1);
        reserved.map_err(|_| WalkError::OutOfMemory)?;
        self.ranges.push(start..end);
        Ok(())
    }

    /// Sorts and merges the ranges.
    ///
    /// # Errors
    /// [`WalkError::TooBig`] for too many.
    pub fn finish(&mut self) -> Result<(), WalkError> {
        self.merge();
        match self.ranges.len() > MOST_RANGES {
            true => Err(WalkError::TooBig),
            false => Ok(()),
        }
    }

    /// Returns the ranges of addresses.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().cloned()
    }

    /// Whether all pages of `other` are among these. Both are finished.
    pub fn include(&self, other: &PageRanges) -> bool {
        let mut ranges = self.ranges.iter().peekable();
        other.ranges.iter().all(|it| {
            while ranges.next_if(|range| range.end < it.end).is_some() {}
            ranges.peek().is_some_and(|range| range.start <= it.start)
        })
    }

    /// Returns how many ranges there are.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    fn merge(&mut self) {
        self.ranges.sort_unstable_by_key(|range| range.start);
        self.ranges.dedup_by(|next, before| {
            let meets = next.start <= before.end;
            if meets {
                before.end = before.end.max(next.end);
            }
            meets
        });
    }
}
