//! The place where a thread sleeps until its word is woken.
//!
//! A thread has one for all its waits, so that a wait allocates nothing but its queue entry.

use alloc::sync::Arc;
use core::sync::atomic::{
    AtomicU8, AtomicU32,
    Ordering::{Acquire, Release, SeqCst},
};

use nucleus::{
    sync::{Rank, SpinLock},
    task::{Sleep, WaitQueue, Woken},
};

use super::key::Key;
use crate::{
    process::Pid,
    wall_clock::{self, Deadline},
};

/// It has not been woken.
const WAITING: u8 = 0;
/// It was woken.
const WOKEN: u8 = 1;
/// It was woken, and the word is its own.
const OWNER: u8 = 2;
/// It was woken because the word's owner is no more.
const OWNER_DIED: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// Not yet.
    Waiting,
    Woken,
    /// The word is the waiter's.
    Owner,
    /// The thread with this id, the word's owner, has ended without giving it up.
    OwnerDied(Pid),
}

/// Whether a thread may own words that others wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Ownership {
    Allowed,
    /// It is giving up its words, since it ends or runs another program: waiters for a word that
    /// names it ask again afterwards.
    Ending,
    /// It has ended.
    Ended,
}

/// The place where a thread sleeps; each has one, since it mostly waits for one word at a time.
pub struct Waiter {
    state: AtomicU8,
    /// The id of the owner that died, for [`Outcome::OwnerDied`].
    died: AtomicU32,
    /// Its thread sleeps here; and threads that are to ask again when it has given up its words.
    pub(super) queue: WaitQueue,
    /// An [`Ownership`].
    ownership: AtomicU8,
    /// The word whose bucket its entry is in. Changed with that bucket and the new one locked.
    home: SpinLock<Key>,
}

impl Waiter {
    /// Not waiting.
    pub fn new() -> Arc<Waiter> {
        Arc::new(Waiter {
            state: AtomicU8::new(WAITING),
            died: AtomicU32::new(0),
            queue: WaitQueue::new(),
            ownership: AtomicU8::new(Ownership::Allowed as u8),
            home: SpinLock::new(Rank::Leaf, Key::NONE),
        })
    }

    /// Prepares to wait for the word of `key`, whose bucket is locked.
    pub(super) fn begin(&self, key: Key) {
        self.state.store(WAITING, Release);
        self.settle(key);
    }

    /// Its entry moves to the bucket of `key`.
    pub(super) fn settle(&self, key: Key) {
        *self.home.lock() = key;
    }

    pub(super) fn home(&self) -> Key {
        *self.home.lock()
    }

    pub(super) fn wake(&self, outcome: Outcome) {
        let state = match outcome {
            Outcome::Waiting => WAITING,
            Outcome::Woken => WOKEN,
            Outcome::Owner => OWNER,
            Outcome::OwnerDied(owner) => {
                self.died.store(owner, Release);
                OWNER_DIED
            }
        };
        self.state.store(state, Release);
        self.queue.wake_all();
    }

    pub(super) fn outcome(&self) -> Outcome {
        match self.state.load(Acquire) {
            WAITING => Outcome::Waiting,
            OWNER => Outcome::Owner,
            OWNER_DIED => Outcome::OwnerDied(self.died.load(Acquire)),
            _ => Outcome::Woken,
        }
    }

    /// Sleeps until it is woken.
    ///
    /// # Errors
    /// The other reason that ended the sleep; it may have been woken all the same.
    pub(super) fn sleep(&self, deadline: Option<Deadline>) -> core::result::Result<(), Woken> {
        self.sleep_until(deadline, || self.outcome() != Outcome::Waiting)
    }

    /// Sleeps in its queue until `is_over`.
    ///
    /// # Errors
    /// As of [`sleep`](Waiter::sleep).
    fn sleep_until(
        &self,
        deadline: Option<Deadline>,
        is_over: impl Fn() -> bool,
    ) -> core::result::Result<(), Woken> {
        loop {
            let steps = wall_clock::steps();
            let how = Sleep {
                interruptible: true,
                deadline: deadline.map(Deadline::since_boot),
            };
            let moves = deadline.is_some_and(Deadline::moves);
            let woken = self.queue.wait(how, || {
                let woken = is_over();
                (woken || moves && wall_clock::steps() != steps).then_some(woken)
            })?;
            if woken {
                return Ok(());
            }
        }
    }

    pub(super) fn ownership(&self) -> Ownership {
        match self.ownership.load(SeqCst) {
            0 => Ownership::Allowed,
            1 => Ownership::Ending,
            _ => Ownership::Ended,
        }
    }

    /// Changes whether its thread, the caller, may own words.
    pub(super) fn set_ownership(&self, ownership: Ownership) {
        self.ownership.store(ownership as u8, SeqCst);
        if ownership != Ownership::Ending {
            self.queue.wake_all();
        }
    }

    /// Sleeps until its thread, another one, has given up its words.
    ///
    /// # Errors
    /// As of [`sleep`](Waiter::sleep).
    pub(super) fn sleep_while_ending(
        &self,
        deadline: Option<Deadline>,
    ) -> core::result::Result<(), Woken> {
        self.sleep_until(deadline, || self.ownership() != Ownership::Ending)
    }

    /// Has it look at the time of day again.
    pub(super) fn look(&self) {
        self.queue.wake_all();
    }
}
