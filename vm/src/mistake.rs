//! Mistakes that a test makes on purpose, to see that the simulated machine finds them: as those of
//! the nucleus (`nucleus/src/mem/mistake.rs`), which floors above cannot make. Only tests and
//! kernels with assertions carry them.

#[cfg(debug_assertions)]
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// A rule that this crate must not break.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mistake {
    /// None is made.
    None,
    /// The mappings of discarded pages are removed before their chunk is locked, not after.
    DiscardedUnlocked,
}

#[cfg(debug_assertions)]
static MADE: AtomicU8 = AtomicU8::new(Mistake::None as u8);

impl Mistake {
    /// Makes it from now on.
    #[cfg(debug_assertions)]
    pub fn make(self) {
        MADE.store(self as u8, Relaxed);
    }

    /// Returns whether it is to be made.
    #[cfg(debug_assertions)]
    #[inline]
    pub(crate) fn is_made(self) -> bool {
        MADE.load(Relaxed) == self as u8
    }

    /// Returns whether it is to be made: kernels that users get make none.
    #[cfg(not(debug_assertions))]
    #[inline(always)]
    pub(crate) fn is_made(self) -> bool {
        false
    }
}
