//! Processes and the Linux interface.
//!
//! From the bottom up; `Cargo.toml` declares the order, and a test checks it:
//!
//! - [`unsupported`], [`bpf`], [`flags`], [`uts`], [`wall_clock`]: calls that are not supported,
//!   filters of calls and packets, the flags of calls, names of the system, the time of day.
//! - [`switches`]: the settings of mechanisms.
//! - [`swap`], [`mounts`], [`shutdown`]: swap devices, the tree of mounts, the end of the machine.
//! - [`process`]: processes and threads, their signals, descriptors and futexes; fork, execve,
//!   exit, wait.
//! - [`ipc`]: pipes, queues, events, and waiting for many files.
//! - [`socket`], [`tty`], [`device`]: the other files that descriptors refer to.
//! - [`pseudofs`]: `/proc` and `/sys`.
//! - [`linux`]: the loop of a thread, from the number of a system call to a function; the calls of
//!   32-bit programs.
//! - [`start`](mod@start): the kernel's command line, the root, the first processes.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod bpf;
mod counters;
mod device;
mod flags;
mod ipc;
mod linux;
mod mounts;
mod process;
mod pseudofs;
mod rank;
mod shutdown;
mod socket;
mod start;
mod swap;
mod switches;
mod tty;
mod unsupported;
mod uts;
mod wall_clock;

pub use start::start;
