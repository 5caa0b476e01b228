//! Input, hashed, and the key that is made from it.

use blake2::{Blake2s256, Digest};

use super::{POOL_BITS, erase, jitter};
use crate::hw::machine;

/// A key of ChaCha20.
pub type Key = [u8; 32];

/// The pool of input.
pub struct Pool {
    /// All input since the last extraction, and a digest of the input before.
    input: Option<Blake2s256>,
    /// The entropy of all input, in bits.
    bits: u32,
    /// The seed of the CPUs' keys; zeros until there is one.
    key: Key,
}

impl Pool {
    /// An empty pool.
    pub const fn new() -> Pool {
        Pool {
            input: None,
            bits: 0,
            key: [0; 32],
        }
    }

    /// Returns the estimate of the entropy of all input.
    pub fn entropy(&self) -> u32 {
        self.bits
    }

    /// Hashes input with an estimate of its entropy.
    pub fn absorb(&mut self, bytes: &[u8], bits: u32) {
        let input = self.input.get_or_insert_with(Blake2s256::new);
        input.update((bytes.len() as u64).to_le_bytes());
        input.update(bytes);
        self.bits = self.bits.saturating_add(bits).min(POOL_BITS);
    }

    /// Makes a key of all input. Input that comes later is hashed together with another digest of
    /// the same, so that neither tells the other.
    fn extract(&mut self) -> Key {
        self.absorb(jitter::timings().as_flattened(), 0);
        let mut digest: Key = self.input.take().unwrap_or_default().finalize().into();
        let stamp = machine::nanoseconds().to_le_bytes();
        let processor = machine::processor_random().unwrap_or(0).to_le_bytes();
        let derive = |purpose: u8| -> Key {
            let hash = Blake2s256::new().chain_update(digest);
            let hash = hash.chain_update(processor).chain_update(stamp);
            hash.chain_update([purpose]).finalize().into()
        };
        let (mut next, key) = (derive(0), derive(1));
        self.absorb(&next, 0);
        erase(&mut next);
        erase(&mut digest);
        key
    }

    /// Makes the seed of the CPUs' keys anew from all input.
    pub fn replace_key(&mut self) {
        self.key = self.extract();
    }

    /// Returns a key for a generator: of the `seeded` key, which is replaced with it, or of the
    /// input.
    pub fn draw(&mut self, seeded: bool) -> Key {
        if !seeded {
            return self.extract();
        }
        let derive = |purpose: u8| -> Key {
            let hash = Blake2s256::new().chain_update(self.key);
            hash.chain_update([purpose]).finalize().into()
        };
        let (next, key) = (derive(0), derive(1));
        self.key = next;
        key
    }
}
