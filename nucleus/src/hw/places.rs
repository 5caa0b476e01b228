//! A set of PCI functions, by place.

use core::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

/// Functions, a bit each, and which words have any. All may be called in any context.
pub(crate) struct Places {
    words: [AtomicU64; 1024],
    any: [AtomicU64; 16],
}

impl Places {
    pub(crate) const fn new() -> Places {
        Places {
            words: [const { AtomicU64::new(0) }; 1024],
            any: [const { AtomicU64::new(0) }; 16],
        }
    }

    pub(crate) fn insert(&self, place: u16) {
        let word = usize::from(place) / 64;
        self.words[word].fetch_or(1 << (place % 64), AcqRel);
        self.any[word / 64].fetch_or(1 << (word % 64), AcqRel);
    }

    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn contains(&self, place: u16) -> bool {
        self.words[usize::from(place) / 64].load(Acquire) >> (place % 64) & 1 != 0
    }

    /// Takes one out: one that is inserted meanwhile is found now or the next time.
    pub(crate) fn take(&self) -> Option<u16> {
        for (index, any) in self.any.iter().enumerate() {
            let mut left = any.load(Acquire);
            while left != 0 {
                let bit = left.trailing_zeros() as usize;
                left &= left - 1;
                let index = 64 * index + bit;
                // Cleared first: who inserts sets it behind.
                any.fetch_and(!(1 << bit), AcqRel);
                let word = &self.words[index];
                let found = word.load(Acquire);
                if found == 0 {
                    continue;
                }
                let lowest = found & found.wrapping_neg();
                let before = word.fetch_and(!lowest, AcqRel);
                if before & !lowest != 0 {
                    any.fetch_or(1 << bit, AcqRel);
                }
                if before & lowest != 0 {
                    return Some((64 * index) as u16 + lowest.trailing_zeros() as u16);
                }
            }
        }
        None
    }
}

#[cfg(all(test, not(target_os = "none")))]
mod tests {
    use super::*;

    #[test]
    fn places_come_out_once_each() {
        let places = Places::new();
        let all = [0, 1, 63, 64, 4095, 4096, 0xfff8, u16::MAX];
        assert_eq!(places.take(), None);
        all.iter().rev().for_each(|&it| places.insert(it));
        places.insert(63);
        assert!(all.iter().all(|&it| places.contains(it)) && !places.contains(2));
        assert!(core::iter::from_fn(|| places.take()).eq(all));
        (0..=u16::MAX).for_each(|it| places.insert(it));
        assert!(core::iter::from_fn(|| places.take()).eq(0..=u16::MAX));
    }
}
