//! Pages without a home of their own: those of amaps, and those of objects that exist in memory only.

use super::registry::Hand;
use super::scan::Scan;

/// Two hands of a clock. The one in front makes active pages inactive and forgets that they were used; the one behind finds
/// out whether they were used since, and takes those that were not. The distance between them is the time that a page has
/// to prove itself.
pub(super) struct Hands {
    front: Hand,
    behind: Hand,
}

impl Hands {
    pub fn new() -> Hands {
        Hands {
            front: Hand::default(),
            behind: Hand::default(),
        }
    }

    /// Goes round until `scan` is done, or once. `resident`: how many such pages are in memory, roughly. `writes`: how many may
    /// be sent to swap.
    pub fn reclaim(&mut self, scan: &mut Scan, resident: usize, writes: usize) {
        let _ = (scan, resident, writes, self.front, self.behind);
    }
}

/// Whether there is a place for such pages.
pub(super) fn can_go() -> bool {
    false
}

/// Those that are on their way there.
pub(super) fn in_flight() -> usize {
    0
}
