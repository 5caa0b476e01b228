//! The sleeping lock: a word that says free, held, or held with tasks in the parking lot.

use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU32, Ordering},
};

use super::parking_lot;
use crate::hw::machine;
use crate::lock::{Rank, lockdep};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a task may be in the parking lot.
const CONTENDED: u32 = 2;

/// How often a task looks at a held lock before it goes to sleep. Sections are mostly shorter than
/// the two task switches that a sleep costs; one look takes about 10 ns.
const SPINS: usize = 100;

/// Sleeps when taken.
pub struct Mutex<T: ?Sized> {
    state: AtomicU32,
    #[cfg(debug_assertions)]
    rank: Rank,
    /// `state`
    value: UnsafeCell<T>,
}

// SAFETY: the guard is the only way to the value and only one exists at a time.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

/// Holds a [`Mutex`].
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
    /// The order checker notes a lock in the list of the task that took it.
    _not_send: PhantomData<*mut ()>,
}

// SAFETY: sharing a guard shares `&T`.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T> Mutex<T> {
    /// A free lock of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Self {
            state: AtomicU32::new(FREE),
            #[cfg(debug_assertions)]
            rank,
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the value out.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
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
        #[cfg(debug_assertions)]
        lockdep::check(self.rank, self.address());
        self.take()
    }

    /// Takes the lock while others of its rank may be held: all takers do so from the outer to the
    /// inner of things that are nested in each other without a circle.
    #[inline]
    #[track_caller]
    pub fn lock_nested(&self) -> MutexGuard<'_, T> {
        lockdep::may_sleep();
        #[cfg(debug_assertions)]
        lockdep::check_nested(self.rank, self.address());
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
        assert!(a.address() != b.address(), "a lock is paired with itself");
        if a.address() < b.address() {
            let first = a.lock();
            (first, b.take())
        } else {
            let first = b.lock();
            (a.take(), first)
        }
    }

    /// The value, without locking: no other reference to the lock exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    #[inline]
    #[track_caller]
    fn take(&self) -> MutexGuard<'_, T> {
        machine::point();
        if self
            .state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.take_contended();
        }
        self.guard()
    }

    fn guard(&self) -> MutexGuard<'_, T> {
        #[cfg(debug_assertions)]
        lockdep::acquired(self.rank, self.address());
        MutexGuard {
            lock: self,
            _not_send: PhantomData,
        }
    }

    #[cold]
    #[track_caller]
    fn take_contended(&self) {
        if machine::cpu_count() > 1 {
            for _ in 0..SPINS {
                machine::spin_hint();
                match self.state.load(Ordering::Relaxed) {
                    FREE => {
                        if self
                            .state
                            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                            .is_ok()
                        {
                            return;
                        }
                    }
                    HELD => {}
                    // Others sleep already: the wait is long.
                    _ => break,
                }
            }
        }
        // A task that has slept takes the lock as contended, because it can't know whether it was
        // the last one in the lot; the cost of being wrong is one look into an empty bucket.
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            parking_lot::park(self.address(), || {
                self.state.load(Ordering::Relaxed) == CONTENDED
            });
            machine::point();
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so no `&mut T` exists elsewhere.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed mutably, so this is the only reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let address = self.lock.address();
        lockdep::released(address);
        machine::point();
        if self.lock.state.swap(FREE, Ordering::Release) == CONTENDED {
            parking_lot::unpark_one(address);
        }
    }
}
