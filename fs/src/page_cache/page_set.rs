//! Sets of a file's pages: which are dirty, which are being written, which have blocks.

use alloc::boxed::Box;
use core::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use nucleus::sync::OnceBox;

/// Pages in a word, words and nodes below a node.
const FAN: u64 = 64;
const SHIFT: u32 = FAN.trailing_zeros();
/// Trees: the last one holds the words up to number 64^8, which is beyond every file's end.
const TREES: usize = 8;

/// All branches of one node are of one kind.
enum Node {
    Inner([OnceBox<Node>; FAN as usize]),
    Words([AtomicU64; FAN as usize]),
}

/// A set of page numbers, one bit each, without a lock. The first 64 cost nothing, others half a
/// KiB for each 16 MiB of the file in which there ever was one. Each operation is sequentially
/// consistent.
pub struct PageSet {
    first: AtomicU64,
    trees: [OnceBox<Node>; TREES],
}

impl Node {
    fn new(level: u32) -> Box<Node> {
        Box::new(match level {
            1 => Node::Words([const { AtomicU64::new(0) }; FAN as usize]),
            _ => Node::Inner([const { OnceBox::new() }; FAN as usize]),
        })
    }

    fn branch(word: u64, level: u32) -> usize {
        (word >> (SHIFT * (level - 1))) as usize % FAN as usize
    }

    /// The first page of `range` below this node, whose first word has the number `base`.
    fn next(&self, level: u32, base: u64, range: &Range<u64>) -> Option<u64> {
        let step = 1u64 << (SHIFT * (level - 1));
        let first = (range.start >> SHIFT).saturating_sub(base) / step;
        let end = (((range.end - 1) >> SHIFT) + 1).saturating_sub(base);
        let end = end.div_ceil(step).min(FAN);
        (first..end).find_map(|i| {
            let base = base + i * step;
            match self {
                Node::Inner(nodes) => nodes[i as usize].get()?.next(level - 1, base, range),
                Node::Words(words) => next_in(&words[i as usize], base, range),
            }
        })
    }
}

/// The first page of `range` in the word with number `number`.
fn next_in(word: &AtomicU64, number: u64, range: &Range<u64>) -> Option<u64> {
    let base = number << SHIFT;
    let mut bits = word.load(Ordering::SeqCst);
    if range.start > base {
        bits &= !0 << (range.start - base).min(63);
    }
    if bits == 0 {
        return None;
    }
    let page = base + u64::from(bits.trailing_zeros());
    (page >= range.start && page < range.end).then_some(page)
}

impl PageSet {
    /// No pages.
    pub const fn new() -> PageSet {
        PageSet {
            first: AtomicU64::new(0),
            trees: [const { OnceBox::new() }; TREES],
        }
    }

    /// Which tree holds a word with a number above 0, and how many levels it has.
    fn tree(word: u64) -> (usize, u32) {
        let tree = word.ilog2() / SHIFT;
        (tree as usize, tree + 1)
    }

    fn word(&self, page: u64) -> Option<&AtomicU64> {
        let word = page >> SHIFT;
        if word == 0 {
            return Some(&self.first);
        }
        let (tree, mut level) = Self::tree(word);
        let mut node = self.trees.get(tree)?.get()?;
        loop {
            let branch = Node::branch(word, level);
            match node {
                Node::Inner(nodes) => node = nodes[branch].get()?,
                Node::Words(words) => return Some(&words[branch]),
            }
            level -= 1;
        }
    }

    fn word_or_new(&self, page: u64) -> Option<&AtomicU64> {
        let word = page >> SHIFT;
        if word == 0 {
            return Some(&self.first);
        }
        let (tree, mut level) = Self::tree(word);
        let mut node = self.trees.get(tree)?.get_or_insert(|| Node::new(level));
        loop {
            let branch = Node::branch(word, level);
            level -= 1;
            match node {
                Node::Inner(nodes) => node = nodes[branch].get_or_insert(|| Node::new(level)),
                Node::Words(words) => return Some(&words[branch]),
            }
        }
    }

    fn bit(page: u64) -> u64 {
        1 << (page % FAN)
    }

    /// Whether it is in the set.
    #[inline]
    pub fn contains(&self, page: u64) -> bool {
        self.word(page)
            .is_some_and(|word| word.load(Ordering::SeqCst) & Self::bit(page) != 0)
    }

    /// Puts it in; false if it was there. A number beyond every file's end is never in the set.
    #[inline]
    pub fn insert(&self, page: u64) -> bool {
        let Some(word) = self.word_or_new(page) else {
            return false;
        };
        let bit = Self::bit(page);
        word.load(Ordering::SeqCst) & bit == 0 && word.fetch_or(bit, Ordering::SeqCst) & bit == 0
    }

    /// Takes it out; false if it was not there.
    pub fn remove(&self, page: u64) -> bool {
        let bit = Self::bit(page);
        self.word(page)
            .is_some_and(|word| word.fetch_and(!bit, Ordering::SeqCst) & bit != 0)
    }

    /// The first one in `range`.
    pub fn next(&self, range: Range<u64>) -> Option<u64> {
        if range.is_empty() {
            return None;
        }
        if range.start < FAN
            && let Some(page) = next_in(&self.first, 0, &range)
        {
            return Some(page);
        }
        self.trees.iter().enumerate().find_map(|(tree, root)| {
            // Words below this number are in the trees before.
            let least = 1u64 << (SHIFT * tree as u32 + SHIFT);
            let range = range.start.max(least)..range.end;
            match range.is_empty() {
                true => None,
                false => root.get()?.next(tree as u32 + 1, 0, &range),
            }
        })
    }

    /// Takes all of `range` out; returns how many there were.
    pub fn remove_range(&self, range: Range<u64>) -> usize {
        let mut count = 0;
        let mut from = range.start;
        while let Some(page) = self.next(from..range.end) {
            count += usize::from(self.remove(page));
            from = page + 1;
        }
        count
    }
}

impl Default for PageSet {
    fn default() -> PageSet {
        PageSet::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::PageSet;
    use crate::support::Random;

    #[test]
    fn a_set_of_pages_says_what_a_sorted_set_says() {
        let mut random = Random::new(7);
        let set = PageSet::new();
        let mut model = BTreeSet::new();
        for _ in 0..20_000 {
            let reach = 1u64 << (random.next() % 51);
            let page = random.next() % reach;
            match random.next() % 5 {
                0 | 1 => assert_eq!(set.insert(page), model.insert(page)),
                2 => assert_eq!(set.remove(page), model.remove(&page)),
                3 => {
                    let end = page.saturating_add(random.next() % reach);
                    assert_eq!(set.next(page..end), model.range(page..end).next().copied());
                }
                _ => {
                    let end = page + random.next() % 100;
                    let gone: Vec<u64> = model.range(page..end).copied().collect();
                    model.retain(|it| !gone.contains(it));
                    assert_eq!(set.remove_range(page..end), gone.len());
                }
            }
            assert_eq!(set.contains(page), model.contains(&page));
        }
        let all: Vec<u64> = model.into_iter().collect();
        let mut from = 0;
        for page in all {
            assert_eq!(set.next(from..u64::MAX), Some(page));
            from = page + 1;
        }
        assert_eq!(set.next(from..u64::MAX), None);
        assert!(!set.insert(u64::MAX), "beyond every end");
    }
}
