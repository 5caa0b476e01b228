//! Locks. [`SpinLock`] disables preemption, and interrupts too where an interrupt handler takes the same lock
//! ([`SpinLock::lock_irq`]). [`Mutex`] and [`RwLock`] sleep. [`CpuRwLock`] is for data read on
//! every fault and written seldom: a reader touches only its own CPU's cache line.
//!
//! Every lock has a [`Rank`]; `order.rs` is the one place where the order is written. A task
//! takes locks in rising rank only; builds with `debug_assertions` check it.

mod order;

use core::ops::{Deref, DerefMut};

pub use order::Rank;

/// Spins with preemption disabled. Not held across anything that sleeps, faults or flushes.
pub struct SpinLock<T> {
    value: core::cell::UnsafeCell<T>,
}

/// Sleeps when taken.
pub struct Mutex<T> {
    value: core::cell::UnsafeCell<T>,
}

/// Many readers or one writer; sleeps.
pub struct RwLock<T> {
    value: core::cell::UnsafeCell<T>,
}

/// Many readers, each touching only a cache line of its CPU, or one writer, who visits them all; sleeps.
pub struct CpuRwLock<T> {
    value: core::cell::UnsafeCell<T>,
}

macro_rules! lock_types {
    ($($lock:ident { $($method:ident -> $guard:ident),* })*) => { $(
        // SAFETY: the guard is the only way to the value, and the lock lets through one writer or
        // many readers.
        unsafe impl<T: Send> Send for $lock<T> {}
        // SAFETY: as above; `RwLock`s hand out `&T` to several threads, hence `T: Sync` there.
        unsafe impl<T: Send + Sync> Sync for $lock<T> {}
        impl<T> $lock<T> {
            /// A free lock of this rank.
            pub const fn new(rank: Rank, value: T) -> Self {
                let _ = rank;
                Self { value: core::cell::UnsafeCell::new(value) }
            }

            /// The value, without locking: nobody else can have the lock.
            pub fn get_mut(&mut self) -> &mut T {
                self.value.get_mut()
            }

            /// Takes the value out.
            pub fn into_inner(self) -> T {
                self.value.into_inner()
            }
            $(
            /// Takes the lock.
            pub fn $method(&self) -> $guard<'_, T> {
                todo!()
            }
            )*
        }
    )* };
}

macro_rules! guards {
    ($($guard:ident of $lock:ident),*) => { $(
        /// The lock is held while this lives.
        pub struct $guard<'a, T> {
            lock: &'a $lock<T>,
        }
        impl<T> Deref for $guard<'_, T> {
            type Target = T;
            fn deref(&self) -> &T {
                todo!()
            }
        }
    )* };
}

lock_types! {
    SpinLock { lock -> SpinGuard, lock_irq -> SpinIrqGuard }
    Mutex { lock -> MutexGuard }
    RwLock { read -> ReadGuard, write -> WriteGuard }
    CpuRwLock { read -> CpuReadGuard, write -> CpuWriteGuard }
}
guards! {
    SpinGuard of SpinLock, SpinIrqGuard of SpinLock, MutexGuard of Mutex,
    ReadGuard of RwLock, WriteGuard of RwLock, CpuReadGuard of CpuRwLock, CpuWriteGuard of CpuRwLock
}
impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        todo!()
    }
}
impl<T> DerefMut for SpinIrqGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        todo!()
    }
}
impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        todo!()
    }
}
impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        todo!()
    }
}
impl<T> DerefMut for CpuWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        todo!()
    }
}

impl<T> RwLock<T> {
    /// Takes two locks of the same rank, which must be different ones, in the order of their addresses.
    pub fn write_pair<'a>(
        a: &'a RwLock<T>,
        b: &'a RwLock<T>,
    ) -> (WriteGuard<'a, T>, WriteGuard<'a, T>) {
        todo!()
    }
}
