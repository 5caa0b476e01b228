//! Memory that is short on purpose, for tests.
//!
//! Two switches of the kernel: `fragment` refuses what consists of several neighbouring frames, as
//! if all free ones stood apart, and `failalloc=N` refuses each Nth allocation that may fail:
//! frames, page tables, heap blocks of more than one page, and questions whether memory is scarce.
//! On the simulated machine tests choose the allocation.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

#[cfg(not(target_os = "none"))]
pub use host::{fail_after, fail_once, failed, seem_scarce_after, seem_scarce_once};
#[cfg(not(target_os = "none"))]
pub(super) use host::{fails, reset, seems_scarce};

/// Whether blocks of several frames are refused.
static REFUSE_BLOCKS: AtomicBool = AtomicBool::new(false);

/// Refuses blocks of several frames from now on, or no longer.
pub fn refuse_blocks(refuse: bool) {
    REFUSE_BLOCKS.store(refuse, Relaxed);
}

/// Tells whether blocks of several frames are refused.
pub fn refuses_blocks() -> bool {
    REFUSE_BLOCKS.load(Relaxed)
}

/// Which allocations fail: each of this number; 0 for none.
static FAIL_EACH: AtomicU32 = AtomicU32::new(0);
/// Allocations so far.
static ALLOCATIONS: AtomicU32 = AtomicU32::new(0);

/// Makes each `n`th allocation fail from now on, none if `n` is 0.
pub fn fail_each(n: u32) {
    FAIL_EACH.store(n, Relaxed);
}

/// Returns which allocations fail: each of this number, 0 for none.
pub fn fails_each() -> u32 {
    FAIL_EACH.load(Relaxed)
}

/// Whether this allocation is to fail on purpose.
#[cfg(target_os = "none")]
#[inline(always)]
pub(crate) fn fails() -> bool {
    match fails_each() {
        0 => false,
        each => strikes(each),
    }
}

/// Whether this question is to be answered wrongly.
#[cfg(target_os = "none")]
#[inline(always)]
pub(crate) fn seems_scarce() -> bool {
    fails()
}

#[cold]
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
fn strikes(each: u32) -> bool {
    ALLOCATIONS.fetch_add(1, Relaxed) % each == each - 1
}

#[cfg(not(target_os = "none"))]
mod host {
    use core::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    };

    /// Strikes at one of the events that it counts, or at that and all after it.
    struct Trigger {
        /// Events before the first strike; below zero afterwards.
        left: AtomicI64,
        is_single: AtomicBool,
    }

    /// A trigger that never strikes.
    const OFF: i64 = i64::MAX;

    impl Trigger {
        const fn new() -> Trigger {
            Trigger {
                left: AtomicI64::new(OFF),
                is_single: AtomicBool::new(false),
            }
        }

        fn set(&self, n: Option<u64>, is_single: bool) {
            self.is_single.store(is_single, SeqCst);
            self.left.store(n.map_or(OFF, |n| n as i64), SeqCst);
        }

        fn strikes(&self) -> bool {
            if self.left.load(Relaxed) == OFF {
                return false;
            }
            let left = self.left.fetch_sub(1, Relaxed);
            let strikes = left == 0 || left < 0 && !self.is_single.load(Relaxed);
            FAILED.fetch_add(u64::from(strikes), Relaxed);
            strikes
        }
    }

    /// Counts allocations.
    static ALLOCATIONS: Trigger = Trigger::new();
    /// Counts questions whether memory is scarce.
    static QUESTIONS: Trigger = Trigger::new();
    static FAILED: AtomicU64 = AtomicU64::new(0);

    /// Makes the allocations of frames by programs fail on purpose, for tests: the `n`th from now
    /// on (0 is the next) and all after it fail; `None` stops that. Heap allocations go on.
    pub fn fail_after(n: Option<u64>) {
        ALLOCATIONS.set(n, false);
    }

    /// As [`fail_after`], but of one allocation only.
    pub fn fail_once(n: u64) {
        ALLOCATIONS.set(Some(n), true);
    }

    /// The `n`th time from now on (0 is the next) that it is asked for,
    /// [`is_scarce`](crate::frame::is_scarce) says yes though memory is not scarce: so what would
    /// need more of the kernel's heap is refused, once.
    pub fn seem_scarce_once(n: u64) {
        QUESTIONS.set(Some(n), true);
    }

    /// As [`seem_scarce_once`], that time and all times after it; `None` stops that.
    pub fn seem_scarce_after(n: Option<u64>) {
        QUESTIONS.set(n, false);
    }

    /// How many allocations failed on purpose, and questions were answered wrongly, since the
    /// machine started.
    pub fn failed() -> u64 {
        FAILED.load(SeqCst)
    }

    /// For a new machine.
    pub(crate) fn reset() {
        fail_after(None);
        seem_scarce_after(None);
        FAILED.store(0, SeqCst);
    }

    /// Whether this allocation is to fail on purpose.
    pub(crate) fn fails() -> bool {
        ALLOCATIONS.strikes()
    }

    /// Whether this question is to be answered wrongly.
    pub(crate) fn seems_scarce() -> bool {
        QUESTIONS.strikes()
    }
}
