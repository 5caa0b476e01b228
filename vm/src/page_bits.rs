//! Sets of page numbers that are changed without a lock, 64 pages at a time.

use alloc::boxed::Box;
use core::ops::Range;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use nucleus::{OutOfMemory, try_vec};

/// Calls `each` with every word that has bits of `pages`, and with these bits.
#[inline]
pub fn each_word(pages: Range<usize>, mut each: impl FnMut(usize, u64)) {
    let mut page = pages.start;
    while page < pages.end {
        let word = page / 64;
        let end = pages.end.min((word + 1) * 64);
        each(word, u64::MAX >> (64 - (end - page)) << (page % 64));
        page = end;
    }
}

/// Returns the first range of neighbouring pages within `within` that are in the set with these
/// words, or that are not.
#[inline]
pub fn next_range(
    words: impl Fn(usize) -> u64,
    within: Range<usize>,
    is_in: bool,
) -> Option<Range<usize>> {
    let start = first(&words, within.clone(), is_in)?;
    let end = first(&words, start..within.end, !is_in);
    Some(start..end.unwrap_or(within.end))
}

/// Returns the first page of `within` that is in the set, or that is not.
#[inline]
fn first(words: impl Fn(usize) -> u64, within: Range<usize>, is_in: bool) -> Option<usize> {
    let mut page = within.start;
    while page < within.end {
        let word = words(page / 64);
        let wanted = if is_in { word } else { !word } >> (page % 64);
        if wanted != 0 {
            let found = page + wanted.trailing_zeros() as usize;
            return (found < within.end).then_some(found);
        }
        page = (page / 64 + 1) * 64;
    }
    None
}

/// A set of page numbers below a bound. Any thread may look at it or change it.
pub struct PageBits(Box<[AtomicU64]>);

impl PageBits {
    /// Returns an empty set with room for `pages`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(pages: usize) -> Result<PageBits, OutOfMemory> {
        let mut words = try_vec(pages.div_ceil(64))?;
        words.resize_with(pages.div_ceil(64), || AtomicU64::new(0));
        Ok(PageBits(words.into_boxed_slice()))
    }

    /// Whether the page is in the set.
    #[inline]
    pub fn contains(&self, page: usize) -> bool {
        self.word(page / 64) >> (page % 64) & 1 != 0
    }

    /// Returns a bit for each page from this one on to the next multiple of 64, the first one in
    /// the lowest: whether it is in the set.
    #[inline]
    pub fn from(&self, page: usize) -> u64 {
        self.word(page / 64) >> (page % 64)
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.0.get(at).map_or(0, |word| word.load(SeqCst))
    }

    /// Adds pages, or removes them; returns how many that changed.
    pub fn set(&self, pages: Range<usize>, is_in: bool) -> usize {
        let mut changed = 0;
        each_word(pages, |at, mask| {
            let Some(word) = self.0.get(at) else { return };
            // Most bits are as they should be.
            let differs = |word: u64| mask & if is_in { !word } else { word };
            if differs(word.load(SeqCst)) == 0 {
                return;
            }
            let before = match is_in {
                true => word.fetch_or(mask, SeqCst),
                false => word.fetch_and(!mask, SeqCst),
            };
            changed += differs(before).count_ones() as usize;
        });
        changed
    }

    /// Returns the first range of neighbouring pages within `within` that are in the set, or that
    /// are not.
    pub fn next_range(&self, within: Range<usize>, is_in: bool) -> Option<Range<usize>> {
        next_range(|at| self.word(at), within, is_in)
    }

    /// Returns how many pages are in the set.
    pub fn count(&self) -> usize {
        let ones = |word: &AtomicU64| word.load(SeqCst).count_ones() as usize;
        self.0.iter().map(ones).sum()
    }

    /// Whether no page is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Relaxed) == 0)
    }
}
