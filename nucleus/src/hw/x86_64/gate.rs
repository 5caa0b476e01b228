//! A lock for what is below the locks of the floor above.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use super::cpu::{irqs_disable, irqs_restore, spin_hint};

/// Data that one CPU at a time uses, with interrupts off. Nothing inside takes another lock, but
/// a gate in which nothing takes one.
pub struct Gate<T> {
    is_taken: AtomicBool,
    data: UnsafeCell<T>,
}

// SAFETY: `with` gives the data to one CPU at a time.
unsafe impl<T: Send> Sync for Gate<T> {}

impl<T> Gate<T> {
    pub const fn new(data: T) -> Gate<T> {
        Gate {
            is_taken: AtomicBool::new(false),
            data: UnsafeCell::new(data),
        }
    }

    /// Runs `f` alone. `f` does not come here again.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let irqs = irqs_disable();
        while self.is_taken.swap(true, Ordering::Acquire) {
            spin_hint();
        }
        // SAFETY: the flag was clear, and is set until `f` is done; interrupts are off.
        let result = f(unsafe { &mut *self.data.get() });
        self.is_taken.store(false, Ordering::Release);
        irqs_restore(irqs);
        result
    }
}
