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

/// The moves in all file systems.
static MOVES: Moves = Moves::new();

struct Moves {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Moves {
    const fn new() -> Moves {
        Moves {
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    fn begin(&self) -> Moving<'_> {
        self.begun.fetch_add(1, AcqRel);
        Moving(self)
    }

    fn ended(&self) -> u64 {
        self.ended.load(Acquire)
    }

    /// Whether no more have begun than had ended at an earlier look.
    fn have_begun_only(&self, ended: u64) -> bool {
        // A move that was in progress then, or began later, has begun but was not counted.
        fence(Acquire);
        self.begun.load(Relaxed) == ended
    }
}

/// A move in progress, up to its drop.
pub(super) struct Moving<'a>(&'a Moves);

impl Moving<'_> {
    pub fn begin() -> Moving<'static> {
        MOVES.begin()
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, AcqRel);
    }
}

/// The moves that had ended when a walk began.
#[derive(Clone, Copy)]
pub(super) struct Still(u64);

impl Still {
    /// A walk begins.
    pub fn begin() -> Still {
        Still(MOVES.ended())
    }

    /// Whether nothing has moved since then: what was read before was so all the time.
    pub fn holds(self) -> bool {
        MOVES.have_begun_only(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_before_during_or_after_the_start() {
        // Not those of all file systems: other tests move directories meanwhile.
        let moves = Moves::new();
        let at_first = moves.ended();
        assert!(moves.have_begun_only(at_first));
        let moving = moves.begin();
        let during = moves.ended();
        assert!(!moves.have_begun_only(at_first) && !moves.have_begun_only(during));
        drop(moving);
        assert!(!moves.have_begun_only(at_first) && !moves.have_begun_only(during));
        let afterwards = moves.ended();
        assert!(moves.have_begun_only(afterwards));
        let (one, other) = (moves.begin(), moves.begin());
        drop(one);
        let between = moves.ended();
        drop(other);
        assert!(!moves.have_begun_only(afterwards) && !moves.have_begun_only(between));
        assert!(moves.have_begun_only(moves.ended()));
    }
}
