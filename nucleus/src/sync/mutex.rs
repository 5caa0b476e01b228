//! The sleeping lock: a word that says free, held, or held with tasks in the parking lot.

use core::sync::atomic::{AtomicU32, Ordering};

use super::parking_lot;
use crate::hw::machine;
use crate::lock::{Exclusive, Guard, Guarded, Hold, Lock, Rank, lock_pair, lockdep};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a task may be in the parking lot.
const CONTENDED: u32 = 2;

/// How long a task looks at a lock before it sleeps.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    pub looks: usize,
    /// Whether it also looks while others sleep, and again after each sleep: for locks that are
    /// mostly held for less time than a sleep takes.
    pub lasts: bool,
}

impl Patience {
    /// For most locks. Sections are mostly shorter than the two task switches that a sleep costs;
    /// one look takes about 10 ns.
    pub const SHORT: Patience = Patience {
        looks: 100,
        lasts: false,
    };
}

/// Sleeps when taken.
pub struct Mutex<T: ?Sized> {
    state: AtomicU32,
    /// `state`
    guarded: Guarded<T>,
}

// SAFETY: the guard is the only way to the value and only one exists at a time.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

/// Holds a [`Mutex`].
pub type MutexGuard<'a, T> = Guard<'a, Mutex<T>, Alone>;

/// How a [`MutexGuard`] holds its lock.
pub struct Alone(());

impl<T: ?Sized> Lock for Mutex<T> {
    type Value = T;

    #[allow(private_interfaces)]
    fn guarded(&self) -> &Guarded<T> {
        &self.guarded
    }
}

// SAFETY: see its `Hold`.
unsafe impl Exclusive for Alone {}

// SAFETY: a mutex is held once at a time.
unsafe impl<T: ?Sized> Hold<Mutex<T>> for Alone {
    #[inline]
    unsafe fn release(&mut self, lock: &Mutex<T>) {
        // Another CPU may free the lock as soon as it is given back.
        let address = lock.address();
        machine::point();
        if lock.state.swap(FREE, Ordering::Release) == CONTENDED {
            parking_lot::unpark_one(address);
        }
    }
}

impl<T> Mutex<T> {
    /// A free lock of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            guarded: Guarded::new(rank, value),
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    fn address(&self) -> usize {
        &raw const self.state as usize
    }

    /// Takes the lock.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        lockdep::may_sleep();
        self.guarded.check();
        self.take()
    }

    /// As [`lock`](Self::lock) with another patience.
    #[inline(always)]
    #[track_caller]
    pub(super) fn lock_with(&self, patience: Patience) -> MutexGuard<'_, T> {
        lockdep::may_sleep();
        self.guarded.check();
        self.take_with(patience)
    }

    /// Takes the lock while others of its rank may be held: all takers do so from the outer to the
    /// inner of things that are nested in each other without a cycle.
    #[inline]
    #[track_caller]
    pub fn lock_nested(&self) -> MutexGuard<'_, T> {
        lockdep::may_sleep();
        self.guarded.check_nested();
        self.take()
    }

    /// Takes the lock if it is free; never sleeps, and the order is not checked.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        machine::point();
        self.state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| self.guard())
    }

    /// Takes two locks of one rank, the one at the lower address first. They must not be the same
    /// one.
    #[track_caller]
    pub fn lock_pair<'a>(
        a: &'a Mutex<T>,
        b: &'a Mutex<T>,
    ) -> (MutexGuard<'a, T>, MutexGuard<'a, T>) {
        lock_pair(a, b, Self::lock, Self::take)
    }

    /// The value, without locking: no other reference to the lock exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.guarded.get_mut()
    }

    /// Takes the lock; the order is not checked.
    #[inline]
    #[track_caller]
    pub(super) fn take(&self) -> MutexGuard<'_, T> {
        self.take_with(Patience::SHORT)
    }

    /// As [`take`](Self::take) with another patience.
    #[inline(always)]
    #[track_caller]
    pub(super) fn take_with(&self, patience: Patience) -> MutexGuard<'_, T> {
        machine::point();
        if self
            .state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.take_contended(patience);
        }
        self.guard()
    }

    #[inline]
    fn guard(&self) -> MutexGuard<'_, T> {
        // SAFETY: called when the word has just become `HELD` or `CONTENDED`.
        unsafe { Guard::new(self, Alone(())) }
    }

    #[cold]
    #[track_caller]
    fn take_contended(&self, patience: Patience) {
        let mut looks = match machine::cpu_count() {
            1 => 0,
            _ => patience.looks,
        };
        let mut taken = HELD;
        loop {
            for _ in 0..looks {
                machine::spin_hint();
                let state = self.state.load(Ordering::Relaxed);
                if state == CONTENDED && !patience.lasts {
                    // Others sleep already: the wait is long.
                    break;
                }
                let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
                if state == FREE
                    && self
                        .state
                        .compare_exchange(FREE, taken, acquire, relaxed)
                        .is_ok()
                {
                    return;
                }
            }
            if self.state.swap(CONTENDED, Ordering::Acquire) == FREE {
                return;
            }
            parking_lot::park(self.address(), || {
                self.state.load(Ordering::Relaxed) == CONTENDED
            });
            machine::point();
            // A task that has slept takes the lock as contended, because it can't know whether it
            // was the last one in the lot; the cost of being wrong is one look into an empty
            // bucket.
            taken = CONTENDED;
            if !patience.lasts {
                looks = 0;
            }
        }
    }
}
