//! Staying on this CPU for a few instructions, without a lock.

use core::marker::PhantomData;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use crate::hw::machine;

/// While this lives, the current task is not preempted and does not move to another CPU.
/// Interrupts stay as they were.
pub(crate) struct Pinned {
    cpu: usize,
    /// It belongs to the CPU it was made on.
    _not_send: PhantomData<*mut ()>,
}

impl Pinned {
    /// Pins the current task.
    #[inline]
    pub(crate) fn new() -> Pinned {
        machine::preempt_disable();
        Pinned {
            cpu: machine::cpu(),
            _not_send: PhantomData,
        }
    }

    /// The CPU that the task is pinned to.
    #[inline]
    pub(crate) fn cpu(&self) -> usize {
        self.cpu
    }
}

impl Drop for Pinned {
    #[inline]
    fn drop(&mut self) {
        if machine::preempt_enable() {
            machine::preempt();
        }
    }
}

/// One value per CPU that only the CPU itself changes, without a lock and without turning
/// interrupts off: an interrupt handler that finds the value in use by what it interrupted gets
/// `None` and goes the slow way round, over the data that all CPUs share.
pub(crate) struct PerCpu<T> {
    slots: [Slot<T>; machine::MAX_CPUS],
}

/// A cache line or more of its own for each CPU.
#[repr(align(64))]
struct Slot<T> {
    in_use: AtomicBool,
    value: T,
}

impl<T> PerCpu<T> {
    /// One value for each CPU. `T` is made of atomics or cells that its own methods keep safe:
    /// every CPU may read every slot.
    pub(crate) const fn new(values: [T; machine::MAX_CPUS]) -> PerCpu<T> {
        // `array::map` is not const; moving the values one by one is.
        let values = core::mem::ManuallyDrop::new(values);
        let mut slots = [const { core::mem::MaybeUninit::<Slot<T>>::uninit() }; machine::MAX_CPUS];
        let mut i = 0;
        while i < machine::MAX_CPUS {
            // SAFETY: each element is read out once, and the array itself is never dropped.
            let value = unsafe { core::ptr::read((&raw const values).cast::<T>().add(i)) };
            slots[i] = core::mem::MaybeUninit::new(Slot {
                in_use: AtomicBool::new(false),
                value,
            });
            i += 1;
        }
        PerCpu {
            // SAFETY: every slot was written above, and `MaybeUninit<S>` has the layout of `S`.
            slots: unsafe { core::mem::transmute_copy(&slots) },
        }
    }

    /// Runs `f` with this CPU's value, or with `None` inside an interrupt that came in the middle
    /// of another `with` of the same value.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(Option<&T>) -> R) -> R {
        let pinned = Pinned::new();
        let slot = &self.slots[pinned.cpu()];
        if slot.in_use.load(Ordering::Relaxed) {
            return f(None);
        }
        // Plain stores: only this CPU looks at its own flag, and an interrupt sees its CPU's
        // stores in program order.
        slot.in_use.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let result = f(Some(&slot.value));
        compiler_fence(Ordering::SeqCst);
        slot.in_use.store(false, Ordering::Relaxed);
        result
    }

    /// All values, for sums that need not be exact.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().map(|slot| &slot.value)
    }

    /// Marks all as not in use. For a machine that starts.
    pub(crate) fn reset(&self) {
        for slot in &self.slots {
            slot.in_use.store(false, Ordering::Relaxed);
        }
    }
}

/// A static that is given a fresh value when a machine starts: once on bare metal, once a run on
/// the simulated machine.
pub(crate) struct Restart<T>(core::cell::UnsafeCell<T>);

// SAFETY: it only hands out `&T`; `set` is unsafe and its caller promises to be alone.
unsafe impl<T: Sync> Sync for Restart<T> {}

impl<T> Restart<T> {
    /// A first value.
    pub(crate) const fn new(value: T) -> Restart<T> {
        Restart(core::cell::UnsafeCell::new(value))
    }

    /// Replaces the value without dropping the old one.
    ///
    /// # Safety
    /// Nothing uses the old value now or later: the machine has one CPU and no task yet.
    pub(crate) unsafe fn set(&self, value: T) {
        // SAFETY: the caller promises that there is no reference to the old value.
        unsafe { core::ptr::write(self.0.get(), value) }
    }
}

impl<T> Deref for Restart<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: initialised, and only changed by `set`, whose caller is alone.
        unsafe { &*self.0.get() }
    }
}
