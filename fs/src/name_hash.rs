//! A hash of names that programs can not make collide: it has a secret seed.

/// All 64 bits of it are as good as random without knowledge of `seed`.
pub(crate) fn name_hash(seed: u64, name: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = seed ^ name.len() as u64;
    for chunk in name.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let mixed = (hash ^ u64::from_le_bytes(word)) as u128 * MULTIPLIER as u128;
        hash = (mixed as u64 ^ (mixed >> 64) as u64).wrapping_add(seed.rotate_left(32));
    }
    let mixed = hash as u128 * MULTIPLIER as u128;
    mixed as u64 ^ (mixed >> 64) as u64
}
