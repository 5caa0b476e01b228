//! Processes and the Linux interface.
//!
//! In the order in which a program meets it:
//!
//! - [`start`]: the kernel's command line, the root, the first processes.
//! - [`process`]: processes and threads, what they own, fork, execve, exit, wait.
//! - [`elf`]: what a program file says.
//! - [`syscall`]: from a number to a function; one module a subject.
//! - [`signal`], [`futex`]: what wakes and interrupts.
//! - [`files`], [`pipe`], [`tty`], [`device`]: what descriptors refer to.
//! - [`sysv`]: shared memory, semaphores and message queues that ids name.
//! - [`mqueue`]: POSIX message queues.
//! - [`event`]: files that stand for events; [`epoll`]: waiting for many files.
//! - [`anonymous`], [`quota`]: what those without a name have in common; what a user may have of a kind.
//! - [`mounts`], [`proc`], [`sysfs`]: what programs find under `/`.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod anonymous;
pub mod day;
pub mod device;
pub mod elf;
pub mod epoll;
pub mod event;
pub mod files;
pub mod futex;
pub mod inotify;
pub mod load;
pub mod mounts;
pub mod mqueue;
pub mod pipe;
pub mod proc;
pub mod process;
pub mod quota;
pub mod sigio;
pub mod signal;
pub mod socket;
pub mod start;
pub mod swap;
pub mod syscall;
pub mod sysfs;
pub mod sysv;
pub mod tty;

pub use start::start;
