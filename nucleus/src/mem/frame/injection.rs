//! Memory that is short on purpose, for tests on the simulated machine. On a real one nothing of
//! this exists.

#[cfg(not(target_os = "none"))]
pub use host::{fail_after, fail_once, failed, seem_scarce_after, seem_scarce_once};
#[cfg(not(target_os = "none"))]
pub(super) use host::{fails, reset, seems_scarce};

/// Whether this allocation is to fail on purpose.
#[cfg(target_os = "none")]
#[inline(always)]
pub(super) fn fails() -> bool {
    false
}

#[cfg(not(target_os = "none"))]
mod host {
    use core::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    };

    /// Never.
    const OFF: i64 = i64::MAX;

    /// Allocations before the first one that fails; below zero afterwards.
    static ALLOCATIONS: AtomicI64 = AtomicI64::new(OFF);
    /// Whether only that one fails.
    static ONCE: AtomicBool = AtomicBool::new(false);
    /// Questions whether memory is scarce before the one that is answered wrongly; below zero
    /// afterwards.
    static QUESTIONS: AtomicI64 = AtomicI64::new(OFF);
    /// Whether only that one is.
    static ONE_QUESTION: AtomicBool = AtomicBool::new(false);
    static FAILED: AtomicU64 = AtomicU64::new(0);

    /// Makes the allocations of frames by programs fail on purpose, for tests: the `n`th from now
    /// on (0 is the next) and all after it fail; `None` stops that. Heap allocations go on.
    pub fn fail_after(n: Option<u64>) {
        ONCE.store(false, SeqCst);
        ALLOCATIONS.store(n.map_or(OFF, |n| n as i64), SeqCst);
    }

    /// As [`fail_after`], but of one allocation only.
    pub fn fail_once(n: u64) {
        ONCE.store(true, SeqCst);
        ALLOCATIONS.store(n as i64, SeqCst);
    }

    /// The `n`th time from now on (0 is the next) that it is asked for,
    /// [`is_scarce`](crate::frame::is_scarce) says yes though memory is not scarce: so what would
    /// need more of the kernel's heap is refused, once.
    pub fn seem_scarce_once(n: u64) {
        ONE_QUESTION.store(true, SeqCst);
        QUESTIONS.store(n as i64, SeqCst);
    }

    /// As [`seem_scarce_once`], that time and all times after it; `None` stops that.
    pub fn seem_scarce_after(n: Option<u64>) {
        ONE_QUESTION.store(false, SeqCst);
        QUESTIONS.store(n.map_or(OFF, |n| n as i64), SeqCst);
    }

    /// How many allocations failed on purpose, and questions were answered wrongly, since the
    /// machine started.
    pub fn failed() -> u64 {
        FAILED.load(SeqCst)
    }

    /// For a new machine.
    pub fn reset() {
        fail_after(None);
        seem_scarce_after(None);
        FAILED.store(0, SeqCst);
    }

    /// Whether this allocation is to fail on purpose.
    pub fn fails() -> bool {
        if ALLOCATIONS.load(Relaxed) == OFF {
            return false;
        }
        let left = ALLOCATIONS.fetch_sub(1, Relaxed);
        let fails = left == 0 || left < 0 && !ONCE.load(Relaxed);
        FAILED.fetch_add(u64::from(fails), Relaxed);
        fails
    }

    /// Whether this question is to be answered wrongly.
    pub fn seems_scarce() -> bool {
        if QUESTIONS.load(Relaxed) == OFF {
            return false;
        }
        let left = QUESTIONS.fetch_sub(1, Relaxed);
        let now = left == 0 || left < 0 && !ONE_QUESTION.load(Relaxed);
        FAILED.fetch_add(u64::from(now), Relaxed);
        now
    }
}
