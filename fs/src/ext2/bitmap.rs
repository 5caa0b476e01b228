//! A group's bitmap, one bit a block or inode, set for those in use.

use core::ops::Range;

use super::buffer::{Block, Buffers, View};

/// Bits of a word of the search.
const WORD: u32 = u64::BITS;

/// A bitmap in memory. Bits are counted from the group's start; those from `len` on are padding.
#[derive(Clone)]
pub(super) struct Bitmap {
    block: Block,
    len: u32,
}

impl Bitmap {
    /// Returns the bitmap in `block`, which has `len` bits.
    pub fn new(block: Block, len: u32) -> Bitmap {
        Bitmap { block, len }
    }

    /// The word with bit `bit` of the block's bytes; padding counts as set.
    fn word(&self, view: &View<'_>, bit: u32) -> u64 {
        let start = bit / WORD * WORD;
        let word = u64::from_le_bytes(view.bytes((start / 8) as usize));
        match self.len.saturating_sub(start) {
            there if there >= WORD => word,
            there => word | u64::MAX << there,
        }
    }

    /// The first clear bit of a range, which ends at or before the bitmap's end.
    pub fn first_clear(&self, range: Range<u32>) -> Option<u32> {
        self.first(range, |word| !word)
    }

    /// The first set bit of a range.
    fn first_set(&self, range: Range<u32>) -> Option<u32> {
        self.first(range, |word| word)
    }

    fn first(&self, range: Range<u32>, wanted: fn(u64) -> u64) -> Option<u32> {
        let view = self.block.view();
        let end = range.end.min(self.len);
        let mut bit = range.start;
        while bit < end {
            let found = wanted(self.word(&view, bit)) >> (bit % WORD);
            if found != 0 {
                return Some(bit + found.trailing_zeros()).filter(|&bit| bit < end);
            }
            bit = (bit / WORD + 1) * WORD;
        }
        None
    }

    /// The first eight clear bits of a range that start at a multiple of eight.
    pub fn first_clear_byte(&self, range: Range<u32>) -> Option<u32> {
        let view = self.block.view();
        let end = range.end.min(self.len);
        let mut bit = range.start.next_multiple_of(8);
        while bit + 8 <= end {
            let word = self.word(&view, bit);
            let in_word = (bit / WORD + 1) * WORD;
            while bit < in_word && bit + 8 <= end {
                if word >> (bit % WORD) & 0xff == 0 {
                    return Some(bit);
                }
                bit += 8;
            }
        }
        None
    }

    /// The number of clear bits from `bit` on, up to `most`.
    pub fn clear_run(&self, bit: u32, most: u32) -> u32 {
        let end = bit.saturating_add(most).min(self.len);
        self.first_set(bit..end).unwrap_or(end).saturating_sub(bit)
    }

    /// The number of clear bits.
    pub fn count_clear(&self) -> u32 {
        let view = self.block.view();
        (0..self.len.div_ceil(WORD))
            .map(|word| self.word(&view, word * WORD).count_zeros())
            .sum()
    }

    /// Returns whether all bits of a range are set.
    pub fn all_set(&self, range: Range<u32>) -> bool {
        self.first_clear(range).is_none()
    }

    /// Sets or clears the bits of a range.
    pub fn put(&self, buffers: &Buffers, range: Range<u32>, set: bool) {
        let mut bit = range.start;
        while bit < range.end {
            let start = bit / WORD * WORD;
            let end = range.end.min(start + WORD);
            let mask = (u64::MAX >> (WORD - (end - bit))) << (bit - start);
            let at = (start / 8) as usize;
            buffers.change(&self.block, |view| {
                let old = u64::from_le_bytes(view.bytes(at));
                let new = if set { old | mask } else { old & !mask };
                view.write(at, &new.to_le_bytes());
            });
            bit = end;
        }
    }
}
