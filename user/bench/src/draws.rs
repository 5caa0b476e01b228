//! Numbers that look random, the same for the same seed (splitmix64).

/// A series of such numbers.
#[derive(Clone, Debug)]
pub struct Draws(pub u64);

impl Draws {
    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    /// A number below `limit` by a popularity like that of a web server's files (Zipf's): the
    /// hundred lowest are drawn as often as the next few thousand.
    pub fn popular(&mut self, limit: u64) -> u64 {
        const STEPS: u64 = 1 << 32;
        let part = self.below(STEPS) as f64 / STEPS as f64;
        ((limit as f64).powf(part) as u64).clamp(1, limit) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_popular_ones_are_drawn_often() {
        let mut draws = Draws(1);
        let all: Vec<u64> = (0..10_000).map(|_| draws.popular(10_000)).collect();
        assert!(all.iter().all(|number| *number < 10_000));
        let below = |limit| all.iter().filter(|number| **number < limit).count();
        assert!((4_500..5_500).contains(&below(100)), "{}", below(100));
        assert!((7_000..8_000).contains(&below(1_000)), "{}", below(1_000));
    }
}
