//! The spin lock: one byte, taken by test and test-and-set.
//!
//! Not a ticket lock: a virtual CPU may lose its real one at any moment, and then every later
//! ticket would wait for the one that sleeps. Sections are short and each lock is on one object, so
//! fairness is not missed.

use core::sync::atomic::{AtomicBool, Ordering};

use super::{
    guard::{Exclusive, Guard, Guarded, Hold, Lock, lock_pair},
    rank::Rank,
};
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

/// Spins with preemption disabled. Not held across anything that sleeps or faults, nor flushes but
/// for a pmap's, whose holders' answers need no lock (`nucleus/src/pmap/large.rs`).
pub struct SpinLock<T: ?Sized> {
    raw: RawSpin,
    /// `raw`
    guarded: Guarded<T>,
}

// SAFETY: the guards are the only way to the value and only one exists at a time, so sharing the
// lock only ever moves the value between CPUs.
unsafe impl<T: ?Sized + Send> Send for SpinLock<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for SpinLock<T> {}

/// Holds a [`SpinLock`], preemption disabled.
pub type SpinGuard<'a, T> = Guard<'a, SpinLock<T>, Spinning>;
/// Holds a [`SpinLock`], preemption and interrupts disabled.
pub type SpinIrqGuard<'a, T> = Guard<'a, SpinLock<T>, SpinningIrqsOff>;

/// How a [`SpinGuard`] holds its lock.
pub struct Spinning(());

/// How a [`SpinIrqGuard`] holds its lock.
pub struct SpinningIrqsOff {
    /// Whether interrupts were on before.
    irqs: bool,
}

impl<T: ?Sized> Lock for SpinLock<T> {
    type Value = T;

    #[allow(private_interfaces)]
    fn guarded(&self) -> &Guarded<T> {
        &self.guarded
    }
}

// SAFETY: see its `Hold`.
unsafe impl Exclusive for Spinning {}
// SAFETY: see its `Hold`.
unsafe impl Exclusive for SpinningIrqsOff {}

// SAFETY: a spin lock is held once at a time.
unsafe impl<T: ?Sized> Hold<SpinLock<T>> for Spinning {
    #[inline]
    unsafe fn release(&mut self, lock: &SpinLock<T>) {
        lock.raw.unlock();
        enable_preemption();
    }
}

// SAFETY: as above.
unsafe impl<T: ?Sized> Hold<SpinLock<T>> for SpinningIrqsOff {
    #[inline]
    unsafe fn release(&mut self, lock: &SpinLock<T>) {
        lock.raw.unlock();
        machine::irqs_restore(self.irqs);
        enable_preemption();
    }
}

impl<T> SpinLock<T> {
    /// A free lock of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self {
            raw: RawSpin::new(),
            guarded: Guarded::new(rank, value),
        }
    }

    /// Takes the value out.
    pub fn into_inner(self) -> T {
        self.guarded.into_inner()
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Takes the lock. For data that no interrupt handler touches.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        machine::preempt_disable();
        self.guarded.check();
        self.raw.lock();
        // SAFETY: taken just now.
        unsafe { Guard::new(self, Spinning(())) }
    }

    /// Takes the lock if it is free. The order is not checked: a taker that does not wait can't
    /// deadlock.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        machine::preempt_disable();
        if self.raw.try_lock() {
            // SAFETY: taken just now.
            Some(unsafe { Guard::new(self, Spinning(())) })
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
        self.guarded.check();
        self.raw.lock();
        // SAFETY: taken just now.
        unsafe { Guard::new(self, SpinningIrqsOff { irqs }) }
    }

    /// Takes two locks of one rank, the one at the lower address first. They must not be the same
    /// one.
    pub fn lock_pair<'a>(
        a: &'a SpinLock<T>,
        b: &'a SpinLock<T>,
    ) -> (SpinGuard<'a, T>, SpinGuard<'a, T>) {
        lock_pair(a, b, Self::lock, |second| {
            machine::preempt_disable();
            second.raw.lock();
            // SAFETY: taken just now.
            unsafe { Guard::new(second, Spinning(())) }
        })
    }

    /// The value, without locking: no other reference to the lock exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.guarded.get_mut()
    }
}

/// Ends a section that must not be preempted, and serves a wish to reschedule that came meanwhile.
#[inline]
pub(crate) fn enable_preemption() {
    if machine::preempt_enable() {
        machine::preempt();
    }
}
