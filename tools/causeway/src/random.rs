//! Numbers for tests that look random and are the same at each run.

/// A generator (SplitMix64).
pub struct Random(u64);

impl Random {
    /// Each seed gives other numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number less than `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % end as u64) as usize
    }

    /// Returns one of a list, which is not empty.
    pub fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}
