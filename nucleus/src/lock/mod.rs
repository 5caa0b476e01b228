//! Spin locks, the lock order and its checker.
//!
//! [`SpinLock`] disables preemption, and interrupts too where an interrupt handler takes the same
//! lock ([`SpinLock::lock_irq`]). Every lock, sleeping ones included, has a [`Rank`]; a task takes
//! locks in rising rank only, and builds with `debug_assertions` check it (`lockdep.rs`).

mod guard;
pub(crate) mod lockdep;
mod once;
mod rank;
mod room;
mod spin;

pub(crate) use guard::{Exclusive, Guard, Guarded, Hold, Lock, lock_pair};
pub(crate) use lockdep::InterruptScope;
pub use once::{OnceArc, OnceBox};
pub use rank::Rank;
pub use room::{lock_field_with_room, lock_when_roomy, lock_with_room};
pub(crate) use spin::{RawSpin, enable_preemption};
pub use spin::{SpinGuard, SpinIrqGuard, SpinLock};
