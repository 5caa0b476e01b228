//! Shared parts of the guest programs.
//!
//! | module | contents |
//! |---|---|
//! | [`failure`] | why a test failed; `ensure!`, `equal!`, `call!`, `refused!` |
//! | [`children`] | processes: `spawn`, `wait`, `child`, `End` |
//! | [`faults`] | bad memory accesses, caught |
//! | [`memory`] | mappings, volatile accesses |
//! | [`files`] | temporary files and folders, pipes, reads and writes, `/proc` |
//! | [`sockets`] | socket pairs, options |
//! | [`signals`] | handlers, sets, masks |
//! | [`time`] | clocks, deadlines, `timespec` |
//! | [`cpus`] | binding threads to CPUs, futexes |
//! | [`structs`] | structures of the C library by their fields |
//! | [`legacy`], [`narrow`] | 32-bit system calls; a 32-bit program |
//! | [`numbers`] | repeatable random numbers |
//! | [`runner`] | runs tests, each in a process group of its own |
//!
//! A program imports everything by `use support::prelude::*`.

pub mod children;
pub mod cpus;
pub mod failure;
pub mod faults;
pub mod files;
pub mod legacy;
pub mod memory;
pub mod narrow;
pub mod numbers;
pub mod prelude;
pub mod runner;
pub mod signals;
pub mod sockets;
pub mod structs;
pub mod time;
