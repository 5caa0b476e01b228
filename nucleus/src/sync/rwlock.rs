//! The sleeping lock for many readers or one writer: a word that counts readers.
//!
//! Writers of parts of what the lock guards may have it together, if no two of them want the same
//! part: then the word has a bit for each part in place of the count. So writers of different pages
//! of a file do not wait for each other, but exclude its readers.

use core::sync::atomic::{AtomicU32, Ordering};

use super::parking_lot;
use crate::hw::machine;
use crate::lock::{Exclusive, Guard, Guarded, Hold, Lock, Rank, lock_pair, lockdep};
use crate::mem::mistake::Mistake;

const WRITER: u32 = 1 << 31;
/// Tasks may be in the parking lot. New readers join them rather than overtake a writer for ever.
const WAITING: u32 = 1 << 30;
/// Writers of parts have the lock: the bits below are theirs.
const PARTLY: u32 = 1 << 29;
/// Readers at a time. One more waits: guards that were forgotten never make the count a flag.
const MOST_READERS: u32 = 1 << 28;
/// Parts that can be locked apart.
pub const LOCK_PARTS: u32 = MOST_READERS.trailing_zeros();

/// Many readers, one writer, or writers of different parts; sleeps.
pub struct RwLock<T: ?Sized> {
    /// `WRITER`, `WAITING`, and the number of readers or, with `PARTLY`, the parts being written.
    state: AtomicU32,
    /// `state`
    guarded: Guarded<T>,
}

// SAFETY: the guards are the only way to the value.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: readers on several CPUs share `&T`, hence `Sync`; a writer moves the value, hence `Send`.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}

/// Holds a [`RwLock`] for reading.
pub type ReadGuard<'a, T> = Guard<'a, RwLock<T>, Reading>;
/// Holds a [`RwLock`] for writing.
pub type WriteGuard<'a, T> = Guard<'a, RwLock<T>, Writing>;

/// Holds parts of what a [`RwLock`] guards.
pub type PartsGuard<'a, T> = Guard<'a, RwLock<T>, WritingParts>;

/// How a [`ReadGuard`] holds its lock.
pub struct Reading(());

/// How a [`WriteGuard`] holds its lock.
pub struct Writing(());

/// How a [`PartsGuard`] holds its lock: a bit for each part.
pub struct WritingParts(u32);

impl<T: ?Sized> Lock for RwLock<T> {
    type Value = T;

    #[allow(private_interfaces)]
    fn guarded(&self) -> &Guarded<T> {
        &self.guarded
    }
}

// SAFETY: a reader is counted, so no writer has the lock.
unsafe impl<T: ?Sized> Hold<RwLock<T>> for Reading {
    #[inline]
    unsafe fn release(&mut self, lock: &RwLock<T>) {
        lock.leave(|state| state - 1);
    }
}

// SAFETY: see its `Hold`.
unsafe impl Exclusive for Writing {}

// SAFETY: the word says that this writer is alone.
unsafe impl<T: ?Sized> Hold<RwLock<T>> for Writing {
    #[inline]
    unsafe fn release(&mut self, lock: &RwLock<T>) {
        lock.leave(|state| state - WRITER);
    }
}

// SAFETY: the word says that no writer has the lock. Others may have the value, which is why the
// guard is not `Exclusive`.
unsafe impl<T: ?Sized> Hold<RwLock<T>> for WritingParts {
    #[inline]
    unsafe fn release(&mut self, lock: &RwLock<T>) {
        lock.leave(|state| match state & !self.0 {
            left if left & !WAITING == PARTLY => left - PARTLY,
            left => left,
        });
    }
}

impl<T> RwLock<T> {
    /// A free lock of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self {
            state: AtomicU32::new(0),
            guarded: Guarded::new(rank, value),
        }
    }
}

impl<T: ?Sized> RwLock<T> {
    fn address(&self) -> usize {
        &raw const self.state as usize
    }

    /// Panics if the lock may not be taken now.
    #[inline]
    #[track_caller]
    pub(super) fn check(&self) {
        lockdep::may_sleep();
        self.guarded.check();
    }

    /// Takes the lock with other readers. A task that has it must not take it again.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.check();
        // All flags are above the count.
        self.take(|state| (state < MOST_READERS).then(|| state + 1));
        // SAFETY: counted just now.
        unsafe { Guard::new(self, Reading(())) }
    }

    /// Takes the lock with other readers if no writer has it; never sleeps, and the order is not
    /// checked.
    #[inline]
    pub fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        machine::point();
        let entered = |state: u32| (state < MOST_READERS).then(|| state + 1);
        let taken = self
            .state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, entered);
        // SAFETY: counted just now.
        taken.ok().map(|_| unsafe { Guard::new(self, Reading(())) })
    }

    /// Takes the lock alone.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> WriteGuard<'_, T> {
        self.check();
        self.take_write()
    }

    /// Takes the parts that have a bit in `parts`, one at least, together with writers of others,
    /// as long as no task waits for the lock. Excludes readers and those that take the lock alone.
    /// Sleeps; the task must not have any part of the lock.
    ///
    /// # Panics
    /// If `parts` has no part, or bits from [`LOCK_PARTS`] on.
    #[inline]
    #[track_caller]
    pub fn write_parts(&self, parts: u32) -> PartsGuard<'_, T> {
        assert!(parts != 0 && parts < 1 << LOCK_PARTS, "no parts of a lock");
        self.check();
        self.take(|state| {
            let is_partly = state & !(MOST_READERS - 1) == PARTLY;
            let are_free = state & parts == 0 || Mistake::SamePartsTaken.is_made();
            let enters = state == 0 || is_partly && are_free;
            enters.then_some(state | PARTLY | parts)
        });
        // SAFETY: these parts have just been noted in the word.
        unsafe { Guard::new(self, WritingParts(parts)) }
    }

    /// Takes two locks of one rank for writing, the one at the lower address first. They must not
    /// be the same one.
    #[track_caller]
    pub fn write_pair<'a>(
        a: &'a RwLock<T>,
        b: &'a RwLock<T>,
    ) -> (WriteGuard<'a, T>, WriteGuard<'a, T>) {
        lock_pair(a, b, Self::write, Self::take_write)
    }

    /// The value, without locking: no other reference to the lock exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.guarded.get_mut()
    }

    #[track_caller]
    fn take_write(&self) -> WriteGuard<'_, T> {
        self.take(|state| (state & !WAITING == 0).then_some(state | WRITER));
        // SAFETY: this writer has just been noted in the word.
        unsafe { Guard::new(self, Writing(())) }
    }

    /// Changes the word as `enter` says, or sleeps until it gives something.
    #[inline(always)]
    #[track_caller]
    fn take(&self, enter: impl Fn(u32) -> Option<u32>) {
        machine::point();
        let state = self.state.load(Ordering::Relaxed);
        let entered = enter(state).is_some_and(|new| {
            self.state
                .compare_exchange(state, new, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        });
        if !entered {
            self.take_slowly(enter);
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn take_slowly(&self, enter: impl Fn(u32) -> Option<u32>) {
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

    /// Changes the word as `left` says. A task that leaves the lock free wakes all waiters; they
    /// compete anew, readers and writers alike.
    #[inline(always)]
    fn leave(&self, left: impl Fn(u32) -> u32) {
        // Another CPU may free the lock as soon as it is given back.
        let address = self.address();
        machine::point();
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let left = left(state);
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
