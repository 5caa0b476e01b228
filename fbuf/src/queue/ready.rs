//! Readiness without a lock.

use core::sync::atomic::Ordering::Acquire;

use super::{Queue, State};

impl<S: State> Queue<S> {
    /// Returns [`State::ready`] as of the last change, without the chain's lock.
    ///
    /// A thread that sleeps after this look loses no wake-up if, *before* it, it entered the wait
    /// queue (as a waiter or by an observer) and checked under the chain's lock when it
    /// registered. A change stores the new readiness, releases the chain's lock, and then takes
    /// the lock of the wait queue (or of the observers and the list that they fill). Two orders
    /// are possible:
    ///
    /// - the change takes that lock after the sleeper did: it finds the sleeper and wakes it;
    /// - it takes the lock before the sleeper did: the sleeper's acquisition happens after the
    ///   store, and this load, which follows, returns the new value.
    ///
    /// `WaitQueue` argues why a wake-up may skip that lock when it finds the queue empty.
    #[inline]
    pub fn ready(&self) -> u32 {
        self.ready.load(Acquire)
    }
}
