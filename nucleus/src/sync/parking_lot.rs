//! The parking lot: where tasks sleep that wait for a sleeping lock.
//!
//! A lock is a word; the tasks that wait for it are in the bucket that its address falls into, each
//! with the address as its key. Buckets are touched only when a lock is contended. The bucket's
//! lock makes "look at the word, then sleep" one step against "change the word, then wake".

use core::ptr::NonNull;

use crate::{
    cpu::percpu::Restart,
    lock::{Rank, SpinLock, lockdep},
    task::{self, Waiter, WaiterList},
};

const BUCKETS: usize = 128;

const fn empty() -> SpinLock<WaiterList> {
    SpinLock::new(Rank::WaitQueue, WaiterList::new())
}

static LOT: [Restart<SpinLock<WaiterList>>; BUCKETS] = [const { Restart::new(empty()) }; BUCKETS];

fn bucket(key: usize) -> &'static SpinLock<WaiterList> {
    // Fibonacci hashing: locks lie at multiples of the size of what holds them.
    let hash = (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &LOT[(hash >> 57) as usize % BUCKETS]
}

/// Sleeps until [`unpark_one`] or [`unpark_all`] with the same key, if `still` holds: it runs with
/// the bucket locked, after the task can be found in it.
#[track_caller]
pub(crate) fn park(key: usize, still: impl FnOnce() -> bool) {
    lockdep::may_sleep();
    let bucket = bucket(key);
    // SAFETY: a task waits for one lock at a time, and for the last one until its waiter was out of
    // the list and its waker did not use it any more.
    let waiter = unsafe { Waiter::for_lock(key) };
    {
        let mut list = bucket.lock_irq();
        if !still() {
            return;
        }
        // SAFETY: `waiter` stays as it is until it is out of the list: only a waker takes it out,
        // and the loop below does not end before.
        unsafe { list.push(NonNull::from(waiter)) };
    }
    // The waker touches `waiter` last when it sets what is looked at here.
    while !waiter.is_woken() {
        task::block(false, || waiter.is_woken());
    }
}

/// Wakes the task that has waited longest for `key`.
pub(crate) fn unpark_one(key: usize) {
    task::wake_from(bucket(key), 1, |list| list.take_key(key));
}

/// Wakes all that wait for `key`.
pub(crate) fn unpark_all(key: usize) {
    task::wake_from(bucket(key), usize::MAX, |list| list.take_key(key));
}

/// Forgets all waiters, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(crate) fn reset() {
    for bucket in &LOT {
        // SAFETY: the machine whose tasks used the lot is gone and the next has not started.
        unsafe { bucket.set(empty()) };
    }
}
