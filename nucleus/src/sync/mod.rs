//! Locks. [`SpinLock`] disables preemption, and interrupts too where an interrupt handler takes the
//! same lock ([`SpinLock::lock_irq`]). [`Mutex`] and [`RwLock`] sleep. [`CpuRwLock`] is for data
//! read on every fault and written seldom: a reader touches only its own CPU's cache line.
//!
//! Every lock has a [`Rank`]; `order.rs` is the one place where the order is written. A task
//! takes locks in rising rank only; builds with `debug_assertions` check it (`held.rs`).
//!
//! A free sleeping lock is taken by one atomic operation on a word of its own. Who must sleep does
//! so in the parking lot (`lot.rs`), a table of queues shared by all of them, so that a lock stays
//! as small as its word: the vm puts one into every object, amap and map.

mod cpu_rwlock;
pub(crate) mod held;
pub(crate) mod lot;
mod mutex;
mod once;
mod order;
mod rwlock;
mod spin;

pub use cpu_rwlock::{CpuReadGuard, CpuRwLock, CpuWriteGuard};
pub(crate) use held::InterruptScope;
pub use mutex::{Mutex, MutexGuard};
pub use once::{OnceArc, OnceBox};
pub use order::Rank;
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
pub(crate) use spin::RawSpin;
pub use spin::{SpinGuard, SpinIrqGuard, SpinLock};

#[cfg(test)]
mod tests;
