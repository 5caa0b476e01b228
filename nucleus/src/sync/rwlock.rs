//! The sleeping lock for many readers or one writer: a word that counts readers.

use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU32, Ordering},
};

use super::parking_lot;
use crate::hw::machine;
use crate::lock::{Rank, lockdep};

const WRITER: u32 = 1 << 31;
/// Tasks may be in the parking lot. New readers join them rather than overtake a writer for ever.
const WAITING: u32 = 1 << 30;

/// Many readers or one writer; sleeps.
pub struct RwLock<T: ?Sized> {
    /// `WRITER`, `WAITING` and the number of readers.
    state: AtomicU32,
    #[cfg(debug_assertions)]
    rank: Rank,
    /// `state`
    value: UnsafeCell<T>,
}

// SAFETY: the guards are the only way to the value.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: readers on several CPUs share `&T`, hence `Sync`; a writer moves the value, hence `Send`.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}

/// Holds a [`RwLock`] for reading.
pub struct ReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    _not_send: PhantomData<*mut ()>,
}

/// Holds a [`RwLock`] for writing.
pub struct WriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    _not_send: PhantomData<*mut ()>,
}

// SAFETY: sharing a guard shares `&T`.
unsafe impl<T: ?Sized + Sync> Sync for ReadGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for WriteGuard<'_, T> {}

impl<T> RwLock<T> {
    /// A free lock of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Self {
            state: AtomicU32::new(0),
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

impl<T: ?Sized> RwLock<T> {
    fn address(&self) -> usize {
        &raw const self.state as usize
    }

    #[inline]
    fn note_check(&self) {
        lockdep::may_sleep();
        #[cfg(debug_assertions)]
        lockdep::check(self.rank, self.address());
    }

    #[inline]
    fn note_acquired(&self) {
        #[cfg(debug_assertions)]
        lockdep::acquired(self.rank, self.address());
    }

    /// Takes the lock with other readers. A task that has it must not take it again.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.note_check();
        self.take(|state| (state & (WRITER | WAITING) == 0).then(|| state + 1));
        self.note_acquired();
        ReadGuard {
            lock: self,
            _not_send: PhantomData,
        }
    }

    /// Takes the lock alone.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> WriteGuard<'_, T> {
        self.note_check();
        self.take_write();
        self.guard()
    }

    /// Takes the lock alone if it is free; never sleeps, and the order is not checked.
    pub fn try_write(&self) -> Option<WriteGuard<'_, T>> {
        machine::point();
        self.state
            .compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| self.guard())
    }

    /// Takes two locks of one rank for writing, the one at the lower address first. They must not
    /// be the same one.
    #[track_caller]
    pub fn write_pair<'a>(
        a: &'a RwLock<T>,
        b: &'a RwLock<T>,
    ) -> (WriteGuard<'a, T>, WriteGuard<'a, T>) {
        assert!(a.address() != b.address(), "a lock is paired with itself");
        if a.address() < b.address() {
            let first = a.write();
            b.take_write();
            (first, b.guard())
        } else {
            let first = b.write();
            a.take_write();
            (a.guard(), first)
        }
    }

    /// The value, without locking: no other reference to the lock exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    #[track_caller]
    fn take_write(&self) {
        self.take(|state| (state & !WAITING == 0).then_some(state | WRITER));
    }

    fn guard(&self) -> WriteGuard<'_, T> {
        self.note_acquired();
        WriteGuard {
            lock: self,
            _not_send: PhantomData,
        }
    }

    /// Changes the word as `enter` says, or sleeps until it gives something.
    #[inline]
    #[track_caller]
    fn take(&self, enter: impl Fn(u32) -> Option<u32>) {
        machine::point();
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let (new, entered) = match enter(state) {
                Some(new) => (new, true),
                None => (state | WAITING, false),
            };
            if let Err(now) =
                self.state
                    .compare_exchange_weak(state, new, Ordering::Acquire, Ordering::Relaxed)
            {
                state = now;
                continue;
            }
            if entered {
                return;
            }
            parking_lot::park(self.address(), || {
                self.state.load(Ordering::Relaxed) & WAITING != 0
            });
            machine::point();
            state = self.state.load(Ordering::Relaxed);
        }
    }

    /// Takes `part` out of the word. A task that leaves the lock free wakes all waiters; they
    /// compete anew, readers and writers alike.
    #[inline]
    fn leave(&self, part: u32) {
        let address = self.address();
        lockdep::released(address);
        machine::point();
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let left = state - part;
            let new = if left == WAITING { 0 } else { left };
            match self
                .state
                .compare_exchange_weak(state, new, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => {
                    if left == WAITING {
                        parking_lot::unpark_all(address);
                    }
                    return;
                }
                Err(now) => state = now,
            }
        }
    }
}

impl<T: ?Sized> Deref for ReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a reader is counted, so no writer has a `&mut T`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for ReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.leave(1);
    }
}

impl<T: ?Sized> Deref for WriteGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the word says that this writer is alone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for WriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the word says that this writer is alone, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for WriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.leave(WRITER);
    }
}
