//! Processes and the Linux interface.
//!
//! In the order in which a program meets it:
//!
//! - [`start`]: the kernel's command line, the root, the first processes.
//! - [`linux`]: from the number of a system call to a function; the calls of 32-bit programs.
//! - [`process`]: processes and threads, their signals and descriptors; fork, execve, exit, wait.
//! - [`ipc`]: pipes, futexes, queues, events and waiting for many files.
//! - [`socket`], [`tty`], [`device`]: the other files that descriptors refer to.
//! - [`mounts`], [`pseudofs`]: the tree of mounts; `/proc` and `/sys`.
//! - [`swap`], [`wall_clock`]: swap devices; the time of day.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod device;
pub mod flags;
pub mod ipc;
pub mod linux;
pub mod mounts;
pub mod process;
pub mod pseudofs;
pub mod shutdown;
pub mod socket;
pub mod start;
pub mod swap;
pub mod tty;
pub mod uts;
pub mod wall_clock;

pub use start::start;
