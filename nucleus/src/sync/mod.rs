//! Locks that sleep, beside the spin locks of [`lock`](crate::lock).
//!
//! [`Mutex`] and [`RwLock`] sleep. [`CpuRwLock`] is for data read on every fault and written
//! seldom: a reader touches only its own CPU's cache line. [`BiasedRwLock`] is for objects that all
//! CPUs read and few change: a [`ReadSection`] reads any number of them, and writes one line of its
//! own CPU's.
//!
//! A free sleeping lock is taken by one atomic operation on a word of its own. Waiters sleep in the
//! parking lot (`parking_lot.rs`), a table of queues shared by all locks, so that a lock stays as
//! small as its word: the vm puts one into every object, amap and map.

mod biased_rwlock;
mod cpu_rwlock;
mod mutex;
pub(crate) mod parking_lot;
mod rwlock;
pub(crate) mod section;

pub use biased_rwlock::BiasedRwLock;
pub use cpu_rwlock::{CpuReadGuard, CpuRwLock, CpuWriteGuard};
pub use mutex::{Mutex, MutexGuard};
pub use rwlock::{LOCK_PARTS, PartsGuard, ReadGuard, RwLock, WriteGuard};
pub use section::ReadSection;

pub use crate::lock::{
    OnceArc, OnceBox, Rank, SpinGuard, SpinIrqGuard, SpinLock, lock_field_with_room,
    lock_when_roomy, lock_with_room,
};

#[cfg(test)]
mod tests;
