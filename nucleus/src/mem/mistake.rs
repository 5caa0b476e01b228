//! Mistakes that a test makes on purpose, to see that the simulated machine finds them.

#[cfg(test)]
use core::sync::atomic::{AtomicU8, Ordering};

/// What this code must not get wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(test), allow(dead_code, reason = "tests make them"))]
pub(crate) enum Mistake {
    /// A mapping that ends is held by no TLB, whatever the accessed bit says.
    AccessedBitIgnored = 1,
    /// A clear accessed bit says that no TLB holds an older translation either, as in the paper.
    AccessedBitOfAll,
    /// A CPU that the mask does not name uses the mapping.
    MaskForgotten,
    /// A CPU takes itself to have flushed since a change that came after its flush.
    ChangeSkipped,
    /// An address of a CPU's ring is used again without a flush.
    RingNotFlushed,
    /// Other CPUs are not told of the end of a mapping without the window.
    OthersNotTold,
}

/// The one that is made; 0 for none.
#[cfg(test)]
static MADE: AtomicU8 = AtomicU8::new(0);

/// Makes none from now on.
#[cfg(test)]
pub(crate) fn reset() {
    MADE.store(0, Ordering::Relaxed);
}

impl Mistake {
    /// Makes it from now on, on this machine.
    #[cfg(test)]
    pub(crate) fn make(self) {
        MADE.store(self as u8, Ordering::Relaxed);
    }

    /// Whether it is to be made.
    #[cfg(test)]
    pub(crate) fn is_made(self) -> bool {
        MADE.load(Ordering::Relaxed) == self as u8
    }

    /// Never, but in tests.
    #[cfg(not(test))]
    #[inline(always)]
    pub(crate) fn is_made(self) -> bool {
        false
    }
}
