//! System calls: from a number to a function.
//!
//! A handler is a [`Handler`]: it takes the [`Call`] and returns the program's result register.
//! Each module lists its calls in a constant `CALLS`, as [`SystemCall`]s: the table is made of
//! these lists when the kernel is compiled, and so is the table of `docs/linux.md` when it is
//! tested. A second table of the same functions serves `int 0x80`.
//!
//! A handler that a signal interrupted answers with one of the restart numbers of
//! [`signal`](crate::process::signal).

mod advise;
mod arguments;
mod capability;
mod change;
mod credentials;
mod dirs;
#[cfg(test)]
mod document;
mod epoll;
mod event;
mod execute;
mod extended;
mod fcntl;
mod file_size;
pub(in crate::linux) mod futex;
mod identity;
mod inotify;
mod io;
mod io_priority;
mod ipc;
mod kcmp;
mod limits;
mod lock;
mod membarrier;
mod memfd;
mod memory;
mod memory_advice;
pub(in crate::linux) mod message;
mod mount;
mod mqueue;
mod names;
mod open;
pub(in crate::linux) mod option_names;
mod path;
mod pidfd;
mod poll;
mod prctl;
mod process;
mod process_vm;
mod random;
mod rseq;
mod schedule;
mod seccomp;
mod semaphore;
mod shared_memory;
pub(in crate::linux) mod signal;
pub(in crate::linux) mod socket;
mod socket_message;
mod socket_option;
mod splice;
mod stat;
mod swap;
mod syslog;
mod system;
mod system_call;
mod table;
pub(in crate::linux) mod time;
mod timer;
pub(in crate::linux) mod unknown;
mod wait;

pub(in crate::linux) use crate::flags::{FlagSet, NO_FLAGS, choice, flag_set};
pub use crate::process::{Call, Handler};
use crate::unsupported::note_unsupported;
use system_call::call;
pub use system_call::{COUNT, SystemCall};
pub(in crate::linux) use table::{TABLE, native_handler};
pub use time::{read_timespec, write_timespec};
pub(in crate::linux) use unknown::unknown;
