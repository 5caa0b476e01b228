//! Whether it is worth that a program's pages change hands (`uvm.txt` 7): one that writes pages
//! which it has lent, or received from others that still have them, pays for a fault and a copy,
//! which is more than a copy alone.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What became of the pages that an address space or a file lent, or of those that an address space
/// received.
#[derive(Default, Debug)]
pub struct History {
    /// Pages that changed hands, and of these written while they had other owners, since the last
    /// judgement.
    moved: AtomicU32,
    broken: AtomicU32,
    /// Pages that are to be copied before the next attempt, and how many it was the last time.
    rest: AtomicU32,
    penalty: AtomicU32,
}

/// Pages after which the history is judged.
const SAMPLE: u32 = 16;
/// The least and the most pages that are copied before the next attempt.
const LEAST_REST: u32 = 1 << 10;
const MOST_REST: u32 = 1 << 14;

impl History {
    /// Whether `pages` are to change hands. Threads may count at the same time: the sums are
    /// guesses.
    pub(crate) fn allows(&self, pages: u32) -> bool {
        let rest = self.rest.load(Relaxed);
        if rest > 0 {
            self.rest.store(rest.saturating_sub(pages), Relaxed);
            return false;
        }
        let moved = self.moved.load(Relaxed);
        if moved < SAMPLE {
            self.moved.store(moved + pages.min(SAMPLE), Relaxed);
            return true;
        }
        self.moved.store(0, Relaxed);
        let broken = self.broken.swap(0, Relaxed);
        if broken.saturating_mul(2) < moved {
            self.penalty.store(0, Relaxed);
            return true;
        }
        let penalty = self.penalty.load(Relaxed);
        let penalty = (penalty * 2).clamp(LEAST_REST, MOST_REST);
        self.penalty.store(penalty, Relaxed);
        self.rest.store(penalty, Relaxed);
        false
    }

    /// A lent page was written.
    pub fn broke(&self) {
        self.broken.fetch_add(1, Relaxed);
    }
}
