//! How many frames are to be free, and the call when there are fewer.
//!
//! ```text
//!   0 ---------- min --------- low ---------------- high --------------> free frames
//!   kernel heap,   │  programs'  │  the pagedaemon     │  the pagedaemon
//!   page tables    │  pages      │  is woken           │  goes back to sleep
//! ```
//! Between `min` and `low` programs go on taking frames while the pagedaemon works; at `min` they
//! wait for it. Allocations look at `low` where they ask the buddy allocator anyway, once for many
//! frames.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::buddy;
use crate::hw::handlers;

/// Numbers of free frames at which something begins or ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Targets {
    /// Programs and files get none of the last so many.
    pub min: usize,
    /// With fewer the pagedaemon begins to free some.
    pub low: usize,
    /// With so many it stops.
    pub high: usize,
}

static LOW: AtomicUsize = AtomicUsize::new(0);
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// Sets the targets for a machine with `total` frames, the last `min` of which are the kernel's.
pub(super) fn start(total: usize, min: usize) {
    // At least what the caches of a few CPUs take at once, and no more than it takes the daemon to
    // free while programs go on: 2 and 4 MiB in a machine with 256 MiB, at most 16 and 32.
    let step = (total / 128).clamp(16, 4096);
    LOW.store(min + step, Relaxed);
    HIGH.store(min + 3 * step, Relaxed);
}

/// The targets of this machine.
pub fn targets() -> Targets {
    Targets {
        min: buddy::reserved(buddy::Depth::Data),
        low: LOW.load(Relaxed),
        high: HIGH.load(Relaxed),
    }
}

/// An allocation for programs took frames from the buddy allocator: tells the pagedaemon if few are
/// left.
#[inline]
pub(super) fn look() {
    if buddy::available() < LOW.load(Relaxed) {
        handlers::on_shortage();
    }
}
