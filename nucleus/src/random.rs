//! Random bytes: a ChaCha20 generator per CPU, seeded from `rdrand`/`rdseed` and from timing, or
//! from the simulated machine's seed.

/// Fills the buffer. Never waits.
pub fn fill(to: &mut [u8]) {
    todo!()
}

/// 64 random bits.
pub fn u64() -> u64 {
    todo!()
}
