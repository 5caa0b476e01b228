//! The waiters by word: a table of buckets, each with a lock of its own.

use alloc::{collections::VecDeque, sync::Arc};

use nucleus::sync::Mutex;

use super::{
    key::Key,
    priority_inheritance,
    waiter::{Outcome, Waiter},
};
use crate::process::Thread;

const BUCKETS: usize = 256;

/// The waiters, by a hash of the word's key, longest wait first.
pub(super) static TABLE: [Mutex<VecDeque<QueuedWaiter>>; BUCKETS] =
    [const { Mutex::new(crate::rank::FUTEX, VecDeque::new()) }; BUCKETS];

/// A waiter in the bucket of its word.
pub(super) struct QueuedWaiter {
    pub key: Key,
    /// A wake-up must have one of these bits.
    pub bits: u32,
    pub waiter: Arc<Waiter>,
    /// For a word that holds its owner's id.
    pub pi: Option<Pi>,
}

/// The part of a queued waiter that waits to become the word's owner.
pub(super) struct Pi {
    pub thread: Arc<Thread>,
    /// `FUTEX_WAIT_REQUEUE_PI`: it waits for an ordinary word still, to be moved to this one.
    pub moves_to: Option<Key>,
}

impl Key {
    /// The bucket of the word's waiters.
    #[inline]
    pub(super) fn bucket(&self) -> &'static Mutex<VecDeque<QueuedWaiter>> {
        &TABLE[(self.hash() >> 56) as usize % BUCKETS]
    }
}

impl Waiter {
    /// Takes its entry out of the bucket that it is in, and lends its priority no longer; false if
    /// it was woken before.
    pub(super) fn withdraw(self: &Arc<Self>) -> bool {
        loop {
            let home = self.home();
            let mut bucket = home.bucket().lock();
            if self.outcome() != Outcome::Waiting {
                return false;
            }
            // Moved between the look and the lock: look again.
            if self.home() != home {
                continue;
            }
            let at = bucket
                .iter()
                .position(|entry| Arc::ptr_eq(&entry.waiter, self));
            let gone = at.and_then(|at| bucket.remove(at));
            if let Some(Pi {
                thread,
                moves_to: None,
            }) = gone.as_ref().and_then(|gone| gone.pi.as_ref())
            {
                priority_inheritance::stop(thread);
            }
            drop(bucket);
            return gone.is_some();
        }
    }
}

/// Runs `f` with the buckets of both keys, the second one `None` if it is the same.
pub(super) fn with_both<R>(
    one: Key,
    two: Key,
    f: impl FnOnce(&mut VecDeque<QueuedWaiter>, Option<&mut VecDeque<QueuedWaiter>>) -> R,
) -> R {
    let (a, b) = (one.bucket(), two.bucket());
    if core::ptr::eq(a, b) {
        return f(&mut a.lock(), None);
    }
    let (mut a, mut b) = Mutex::lock_pair(a, b);
    f(&mut a, Some(&mut b))
}

/// Wakes all waiters to compute their deadlines again, after the time of day was set.
pub fn clock_was_set() {
    for bucket in &TABLE {
        for entry in bucket.lock().iter() {
            entry.waiter.look();
        }
    }
}
