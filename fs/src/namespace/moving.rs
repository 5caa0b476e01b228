//! Directories that get another parent while paths are walked.
//!
//! A walk that must stay below a directory has checked where it is; a directory that it is in may
//! be moved elsewhere before it goes up from there. Such a walk therefore takes no ".." after any
//! directory or mount has moved since it began.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
    fence,
};

/// Moves that have begun.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// Moves that have ended.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// A move in progress, up to its drop.
pub(super) struct Moving(());

impl Moving {
    pub fn begin() -> Moving {
        BEGUN.fetch_add(1, AcqRel);
        Moving(())
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        ENDED.fetch_add(1, AcqRel);
    }
}

/// The moves that had ended when a walk began.
#[derive(Clone, Copy)]
pub(super) struct Still(u64);

impl Still {
    /// A walk begins.
    pub fn begin() -> Still {
        Still(ENDED.load(Acquire))
    }

    /// Whether nothing has moved since then: what was read before was so all the time.
    pub fn holds(self) -> bool {
        // A move that was in progress then, or began later, has begun but was not counted.
        fence(Acquire);
        BEGUN.load(Relaxed) == self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_before_during_or_after_the_start() {
        // No other test of this crate moves a directory at the same time as another one looks.
        let still = Still::begin();
        let moving = Moving::begin();
        assert!(!still.holds());
        let during = Still::begin();
        drop(moving);
        assert!(!still.holds() && !during.holds());
    }
}
