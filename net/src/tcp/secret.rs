//! Numbers that a stranger to a connection can't guess.

#[allow(
    deprecated,
    reason = "SipHash 2-4 with keys: std's replacement is not in core"
)]
use core::hash::SipHasher;
use core::hash::{Hash, Hasher};

use nucleus::random;

use super::{Pair, segment::Seq};

/// The time of one step of first numbers, in nanoseconds (RFC 9293 3.4.1).
const STEP: u64 = 4000;

/// A key.
pub struct Secret([u64; 2]);

impl Secret {
    /// Makes a key.
    pub fn new() -> Secret {
        Secret([random::u64(), random::u64()])
    }

    /// Returns a keyed hash.
    #[allow(deprecated, reason = "see above")]
    pub fn hash(&self, of: impl Hash) -> u64 {
        let mut hasher = SipHasher::new_with_keys(self.0[0], self.0[1]);
        of.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the first number of a connection that begins at `now` (RFC 6528).
    pub fn first_number(&self, pair: &Pair, now: u64) -> Seq {
        Seq((self.hash(pair) as u32).wrapping_add((now / STEP) as u32))
    }
}
