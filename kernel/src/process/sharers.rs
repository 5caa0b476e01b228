//! What threads share.

use core::sync::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire},
};

/// How many threads have something that threads can share. Those that only look at it do not count.
#[derive(Default)]
pub struct Sharers(AtomicUsize);

impl Sharers {
    /// Another thread has it.
    pub(super) fn join(&self) {
        self.0.fetch_add(1, AcqRel);
    }

    /// A thread has it no longer; returns whether that was the last one.
    pub(in crate::process) fn leave(&self) -> bool {
        self.0.fetch_sub(1, AcqRel) == 1
    }

    /// The count. Only the threads that have the thing make more of them.
    pub fn count(&self) -> usize {
        self.0.load(Acquire)
    }
}
