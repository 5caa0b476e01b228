//! How many frames are to be free, and who is told when there are fewer.
//!
//! ```text
//!   0 ────────── min ───────── low ──────────────── high ──────────────> free frames
//!   kernel heap,   │  programs'  │  the pagedaemon     │  the pagedaemon
//!   page tables    │  pages      │  is woken           │  goes back to sleep
//! ```
//! Between `min` and `low` programs go on taking frames while the pagedaemon works; at `min` they wait for it. Allocations
//! look at `low` where they ask the buddy allocator anyway, once for many frames.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use super::buddy;
use crate::cpu::percpu::Restart;
use crate::task::{Sleep, WaitQueue, Woken};

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
/// Whether somebody has found that there are fewer than [`LOW`] since the pagedaemon looked.
static SHORT: AtomicBool = AtomicBool::new(false);
static DAEMON: Restart<WaitQueue> = Restart::new(WaitQueue::new());

/// Sets the targets for a machine with `total` frames, the last `min` of which are the kernel's.
///
/// # Safety
/// The machine has one CPU and no task yet.
pub(super) unsafe fn start(total: usize, min: usize) {
    // At least what the caches of a few CPUs take at once, and no more than it takes the daemon to free while
    // programs go on: 2 and 4 MiB in a machine with 256 MiB, at most 16 and 32.
    let step = (total / 128).clamp(16, 4096);
    LOW.store(min + step, Relaxed);
    HIGH.store(min + 3 * step, Relaxed);
    SHORT.store(false, Relaxed);
    // SAFETY: the caller promises to be alone.
    unsafe { DAEMON.set(WaitQueue::new()) };
}

/// The targets of this machine.
pub fn targets() -> Targets {
    Targets {
        min: buddy::floor(buddy::Depth::Data),
        low: LOW.load(Relaxed),
        high: HIGH.load(Relaxed),
    }
}

/// Free frames, without the few that CPUs keep for themselves. One load.
#[inline]
pub fn available() -> usize {
    buddy::free_frames()
}

/// How often frames in a row (a page table and its links, a stack) were wanted and not had though as many were free: free ones stood
/// apart. Who waits for such has to wait for more.
pub fn scattered() -> usize {
    buddy::scattered()
}

/// An allocation for programs took frames from the buddy allocator: tells the pagedaemon if few are left.
#[inline]
pub(super) fn look() {
    if buddy::free_frames() < LOW.load(Relaxed) {
        report_shortage();
    }
}

/// Wakes the pagedaemon: somebody needs frames that are not there. Any context but one that holds a wait queue's or a run
/// queue's lock.
#[cold]
pub fn report_shortage() {
    if !SHORT.swap(true, Relaxed) {
        DAEMON.wake_all();
    }
}

/// Sleeps until a shortage is [reported](report_shortage), or `or_else` says that there is something else to do: its report comes with
/// [`report_shortage`], too. For the pagedaemon.
///
/// # Errors
/// The deadline of `how`.
pub fn await_shortage(how: Sleep, mut or_else: impl FnMut() -> bool) -> Result<(), Woken> {
    DAEMON.wait(how, || {
        (SHORT.swap(false, Relaxed) || or_else()).then_some(())
    })
}
