//! Futexes: sleeping on a word of a program's memory until another thread wakes it.
//!
//! A waiter enters the bucket of its word and only then compares the word's value, with the
//! bucket's sleeping lock held: a thread that changes the word and wakes afterwards finds it there.
//! Words of private mappings are told apart by address space and address, words of shared ones by
//! object and offset.
//!
//! - [`Key`]: what names a word.
//! - [`table`](self): waiting, waking, moving waiters to another word; [`wait_for_any`]: of several
//!   words.
//! - [`pi`]: words that hold their owner's id, so that waiters lend the owner their priority
//!   (`priority_inheritance.rs` records which thread waits for which).
//! - [`leave`]: what becomes of the words that a thread owns when it ends.

mod bucket;
mod key;
pub mod pi;
mod priority_inheritance;
mod robust;
mod table;
mod waiter;
mod waitv;

pub use bucket::clock_was_set;
pub use key::Key;
pub use robust::leave;
pub use table::{requeue, wait, wake, wake_op};
pub use waiter::Waiter;
pub use waitv::{Wanted, wait_for_any};
