//! The spin lock: one byte, taken by test and test-and-set.
//!
//! Not a ticket lock: a virtual CPU may lose its real one at any moment, and then every later
//! ticket would wait for the one that sleeps. Sections are short and each lock is on one object, so
//! fairness is not missed.

use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicBool, Ordering},
};

use super::{lockdep, rank::Rank};
use crate::hw::machine;

/// The bare lock. It knows nothing of preemption or ranks: only the scheduler, which runs with
/// interrupts off and passes its lock from one task to the next, uses it directly.
pub(crate) struct RawSpin {
    locked: AtomicBool,
}

impl RawSpin {
    pub(crate) const fn new() -> RawSpin {
        RawSpin {
            locked: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        machine::point();
        !self.locked.load(Ordering::Relaxed)
            && self
                .locked
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    #[inline]
    pub(crate) fn lock(&self) {
        while !self.try_lock() {
            while self.locked.load(Ordering::Relaxed) {
                machine::spin_hint();
            }
        }
    }

    #[inline]
    pub(crate) fn unlock(&self) {
        self.locked.store(false, Ordering::Release);
        machine::point();
    }
}

/// Spins with preemption disabled. Not held across anything that sleeps, faults or flushes.
pub struct SpinLock<T: ?Sized> {
    raw: RawSpin,
    #[cfg(debug_assertions)]
    rank: Rank,
    /// `raw`
    value: UnsafeCell<T>,
}

// SAFETY: the guards are the only way to the value and only one exists at a time, so sharing the
// lock only ever moves the value between CPUs.
unsafe impl<T: ?Sized + Send> Send for SpinLock<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for SpinLock<T> {}

/// Holds a [`SpinLock`], preemption disabled.
pub struct SpinGuard<'a, T: ?Sized> {
    lock: &'a SpinLock<T>,
    /// Preemption is counted by CPU: the guard stays where it was made.
    _not_send: PhantomData<*mut ()>,
}

/// Holds a [`SpinLock`], preemption and interrupts disabled.
pub struct SpinIrqGuard<'a, T: ?Sized> {
    lock: &'a SpinLock<T>,
    irqs: bool,
    _not_send: PhantomData<*mut ()>,
}

impl<T> SpinLock<T> {
    /// A free lock of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Self {
            raw: RawSpin::new(),
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

impl<T: ?Sized> SpinLock<T> {
    fn address(&self) -> usize {
        &raw const self.raw as usize
    }

    #[inline]
    fn note_check(&self) {
        #[cfg(debug_assertions)]
        lockdep::check(self.rank, self.address());
    }

    #[inline]
    fn note_acquired(&self) {
        #[cfg(debug_assertions)]
        lockdep::acquired(self.rank, self.address());
    }

    /// Takes the lock. For data that no interrupt handler touches.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        machine::preempt_disable();
        self.note_check();
        self.raw.lock();
        self.note_acquired();
        SpinGuard {
            lock: self,
            _not_send: PhantomData,
        }
    }

    /// Takes the lock if it is free. The order is not checked: a taker that does not wait can't
    /// deadlock.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        machine::preempt_disable();
        if self.raw.try_lock() {
            self.note_acquired();
            Some(SpinGuard {
                lock: self,
                _not_send: PhantomData,
            })
        } else {
            enable_preemption();
            None
        }
    }

    /// Takes the lock with interrupts off until it is given back. For data that interrupt handlers
    /// touch; all takers of such a lock use this.
    #[inline]
    pub fn lock_irq(&self) -> SpinIrqGuard<'_, T> {
        let irqs = machine::irqs_disable();
        machine::preempt_disable();
        self.note_check();
        self.raw.lock();
        self.note_acquired();
        SpinIrqGuard {
            lock: self,
            irqs,
            _not_send: PhantomData,
        }
    }

    /// Takes two locks of one rank, the one at the lower address first. They must not be the same
    /// one.
    pub fn lock_pair<'a>(
        a: &'a SpinLock<T>,
        b: &'a SpinLock<T>,
    ) -> (SpinGuard<'a, T>, SpinGuard<'a, T>) {
        assert!(a.address() != b.address(), "a lock is paired with itself");
        let take_second = |lock: &'a SpinLock<T>| {
            machine::preempt_disable();
            lock.raw.lock();
            lock.note_acquired();
            SpinGuard {
                lock,
                _not_send: PhantomData,
            }
        };
        if a.address() < b.address() {
            let first = a.lock();
            (first, take_second(b))
        } else {
            let first = b.lock();
            (take_second(a), first)
        }
    }

    /// The value, without locking: no other reference to the lock exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// Ends a section that must not be preempted, and serves a wish to reschedule that came meanwhile.
#[inline]
fn enable_preemption() {
    if machine::preempt_enable() {
        machine::preempt();
    }
}

impl<T: ?Sized> Deref for SpinGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so no `&mut T` exists elsewhere.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed mutably, so this is the only reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        lockdep::released(self.lock.address());
        self.lock.raw.unlock();
        enable_preemption();
    }
}

impl<T: ?Sized> Deref for SpinIrqGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so no `&mut T` exists elsewhere.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for SpinIrqGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed mutably, so this is the only reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for SpinIrqGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        lockdep::released(self.lock.address());
        self.lock.raw.unlock();
        machine::irqs_restore(self.irqs);
        enable_preemption();
    }
}
