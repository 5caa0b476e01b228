//! Read sections: values of biased locks do not change while a CPU is in one.
//!
//! A section is short and its task is not preempted in it. Each CPU has a number in a cache line of
//! its own, which is odd while a task is in a section there; a section therefore writes no line
//! that another CPU writes, and as long as no writer waits, none that another CPU reads.
//!
//! Sections read the values of [`BiasedRwLock`](super::BiasedRwLock)s. A writer clears the lock's
//! flag and waits for the sections that may have seen it set ([`wait_for_all`]), before it changes
//! anything. Entering a section, loading and storing the flag, and the writer's first look at each
//! number are sequentially consistent, so for each section one of two holds:
//!
//! - it was entered before the writer looked at its CPU. Then the writer sees an odd number, and
//!   waits until there is another one;
//! - it was entered after that. Then it is also after the flag was cleared, and the section sees
//!   that.
//!
//! A section leaves with a release, which the writer acquires: reads in the section happen before
//! the writer's changes.
//!
//! There is no grace period: a writer drops what it removes before it returns. A CPU that stays in
//! a section keeps writers waiting, like one that holds a spin lock, and takes no memory.

use core::{
    marker::PhantomData,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::cpu::percpu::Pinned;
use crate::hw::machine;
use crate::mem::mistake::Mistake;

/// Alone in its cache line. Odd in a section; only its CPU changes it.
#[repr(align(64))]
struct Number(AtomicU64);

static NUMBERS: [Number; machine::MAX_CPUS] =
    [const { Number(AtomicU64::new(0)) }; machine::MAX_CPUS];

/// The current task is in a read section, on this CPU, until this is dropped. It must not sleep or
/// take long; it may take spin locks, whose holders never wait for sections.
pub struct ReadSection {
    pinned: Pinned,
    /// Outside of a machine, where all of a host's threads are one CPU, nothing is read in it.
    is_valid: bool,
    /// It belongs to the task and CPU that it was made on.
    _not_send: PhantomData<*mut ()>,
}

impl ReadSection {
    /// Enters a section.
    ///
    /// # Panics
    /// In a section, also when an interrupt's handler enters one.
    #[inline]
    pub fn enter() -> ReadSection {
        let pinned = Pinned::new();
        let is_valid = machine::is_running();
        if is_valid {
            let number = &NUMBERS[pinned.cpu()].0;
            let outside = number.load(Ordering::Relaxed);
            assert!(outside.is_multiple_of(2), "a read section in another one");
            machine::point();
            number.swap(outside + 1, Ordering::SeqCst);
            machine::point();
        }
        ReadSection {
            pinned,
            is_valid,
            _not_send: PhantomData,
        }
    }

    /// Tells whether locks can be read in it.
    #[inline]
    pub(super) fn is_valid(&self) -> bool {
        self.is_valid
    }
}

impl Drop for ReadSection {
    #[inline]
    fn drop(&mut self) {
        if self.is_valid {
            machine::point();
            let number = &NUMBERS[self.pinned.cpu()].0;
            let inside = number.load(Ordering::Relaxed);
            number.store(inside + 1, Ordering::Release);
        }
    }
}

/// Waits until all sections have been left that were entered before. The caller is in none.
#[cold]
pub(super) fn wait_for_all() {
    if Mistake::SectionsNotAwaited.is_made() {
        return;
    }
    for Number(number) in &NUMBERS[..machine::cpu_count()] {
        machine::point();
        let first = number.load(Ordering::SeqCst);
        if first % 2 != 0 {
            while number.load(Ordering::Acquire) == first {
                machine::spin_hint();
            }
        }
    }
}

/// All CPUs are outside, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(crate) fn reset() {
    for Number(number) in &NUMBERS {
        number.store(0, Ordering::Relaxed);
    }
}
