//! Scheduling policy: which task runs next, for how long, and on which CPU.
//!
//! Pure data structures and decisions, generic over a handle to a task. The mechanism (locks, task
//! switches, interrupts between CPUs) is in `nucleus::task`, which keeps the state, takes small
//! snapshots of it and asks here what to do. Nothing here is unsafe, sleeps or allocates.
//!
//! | module | decides |
//! |---|---|
//! | [`pairing_heap`] | the order of tasks in a queue, and of timers |
//! | [`priority`] | how urgent a task is, and how much of a CPU real-time levels may take |
//! | [`account`] | weighed run time; how run time divides between programs and the kernel |
//! | [`idle`] | how long a CPU without work polls its queue before it sleeps |
//! | [`run_queue`] | which task of a CPU runs first, and when the running one gives way |
//! | [`debt`] | how tasks in the kernel come before their turn |
//! | [`placement`] | which CPU a task goes to, and whether that CPU is told at once |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod account;
pub mod debt;
pub mod idle;
pub mod pairing_heap;
pub mod placement;
pub mod priority;
pub mod run_queue;
