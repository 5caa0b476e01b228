//! What all locks have in common: the value, its place in the lock order, and the guards.

use core::{
    cell::UnsafeCell,
    cmp::Ordering,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    ptr,
};

use super::Rank;
#[cfg(debug_assertions)]
use super::lockdep;

/// What a lock guards, and the lock's rank, which only builds with the order checker carry.
pub(crate) struct Guarded<T: ?Sized> {
    #[cfg(debug_assertions)]
    rank: Rank,
    value: UnsafeCell<T>,
}

impl<T> Guarded<T> {
    pub(crate) const fn new(rank: Rank, value: T) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Self {
            #[cfg(debug_assertions)]
            rank,
            value: UnsafeCell::new(value),
        }
    }

    pub(crate) fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Guarded<T> {
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Returns where the value is.
    #[inline]
    pub(crate) fn pointer(&self) -> *mut T {
        self.value.get()
    }

    #[cfg(debug_assertions)]
    fn address(&self) -> usize {
        (&raw const self.rank).addr()
    }

    /// Panics if the lock may not be taken now.
    #[inline]
    #[track_caller]
    pub(crate) fn check(&self) {
        #[cfg(debug_assertions)]
        lockdep::check(self.rank, self.address());
    }

    /// As [`check`](Self::check), where other locks of the same rank may be held.
    #[inline]
    #[track_caller]
    pub(crate) fn check_nested(&self) {
        #[cfg(debug_assertions)]
        lockdep::check_nested(self.rank, self.address());
    }

    /// Notes that the current task holds the lock.
    #[inline]
    pub(crate) fn acquired(&self) {
        #[cfg(debug_assertions)]
        lockdep::acquired(self.rank, self.address());
    }

    #[inline]
    fn released(&self) {
        #[cfg(debug_assertions)]
        lockdep::released(self.address());
    }

    /// Notes that the current task reads the value without a guard, until the result is dropped.
    #[inline]
    pub(crate) fn note_held(&self) -> NotedHeld<'_, T> {
        self.acquired();
        NotedHeld(self)
    }
}

/// The order checker knows that the current task holds the lock.
pub(crate) struct NotedHeld<'a, T: ?Sized>(&'a Guarded<T>);

impl<T: ?Sized> Drop for NotedHeld<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.released();
    }
}

/// A lock with a value.
pub trait Lock {
    /// What it guards.
    type Value: ?Sized;

    #[doc(hidden)]
    #[allow(private_interfaces)]
    fn guarded(&self) -> &Guarded<Self::Value>;
}

/// A way in which a lock is held, as its guard remembers it.
///
/// # Safety
/// While one lives that was made for a lock, no `&mut` to the value exists but through its guard;
/// an [`Exclusive`] one excludes all others.
pub unsafe trait Hold<L: Lock + ?Sized> {
    /// Gives the lock back.
    ///
    /// # Safety
    /// `lock` is held as this says. Called once, when the guard goes.
    unsafe fn release(&mut self, lock: &L);
}

/// A way to hold a lock that keeps all others out.
///
/// # Safety
/// While one lives that was made for a lock, the lock is held in no other way.
pub unsafe trait Exclusive {}

/// Holds a lock. It stays where it was made: preemption is counted by CPU, and the order checker
/// notes a lock in the list of the task that took it.
pub struct Guard<'a, L: Lock + ?Sized, H: Hold<L>> {
    lock: &'a L,
    hold: H,
    _not_send: PhantomData<*mut ()>,
}

// SAFETY: sharing a guard shares `&L::Value`.
unsafe impl<L: Lock<Value: Sync> + ?Sized, H: Hold<L>> Sync for Guard<'_, L, H> {}

impl<'a, L: Lock + ?Sized, H: Hold<L>> Guard<'a, L, H> {
    /// The guard of a lock that has just been taken.
    ///
    /// # Safety
    /// `lock` is held as `hold` says, for this guard alone.
    #[inline]
    pub(crate) unsafe fn new(lock: &'a L, hold: H) -> Self {
        lock.guarded().acquired();
        Self {
            lock,
            hold,
            _not_send: PhantomData,
        }
    }
}

impl<L: Lock + ?Sized, H: Hold<L>> Deref for Guard<'_, L, H> {
    type Target = L::Value;
    #[inline]
    fn deref(&self) -> &L::Value {
        // SAFETY: the lock is held, so no `&mut` to the value exists elsewhere.
        unsafe { &*self.lock.guarded().value.get() }
    }
}

impl<L: Lock + ?Sized, H: Hold<L> + Exclusive> DerefMut for Guard<'_, L, H> {
    #[inline]
    fn deref_mut(&mut self) -> &mut L::Value {
        // SAFETY: the lock is held by this guard alone, which is borrowed mutably.
        unsafe { &mut *self.lock.guarded().value.get() }
    }
}

impl<L: Lock + ?Sized, H: Hold<L>> Drop for Guard<'_, L, H> {
    #[inline]
    fn drop(&mut self) {
        self.lock.guarded().released();
        // SAFETY: the guard holds the lock in this way, and goes.
        unsafe { self.hold.release(self.lock) };
    }
}

/// Takes two locks of one rank, the one at the lower address first: that with `check`, the other
/// with `take`, which does not check the order.
///
/// # Panics
/// If they are the same one.
#[track_caller]
pub(crate) fn lock_pair<'a, L: ?Sized, G>(
    a: &'a L,
    b: &'a L,
    check: impl FnOnce(&'a L) -> G,
    take: impl FnOnce(&'a L) -> G,
) -> (G, G) {
    match ptr::from_ref(a).addr().cmp(&ptr::from_ref(b).addr()) {
        Ordering::Less => {
            let first = check(a);
            (first, take(b))
        }
        Ordering::Greater => {
            let first = check(b);
            (take(a), first)
        }
        Ordering::Equal => panic!("a lock is paired with itself"),
    }
}
