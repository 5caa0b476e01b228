//! Processes and threads.
//!
//! - [`Thread`]: a task of the nucleus that runs a program. Its resources (address space, files,
//!   working directory, credentials) are in its [`Own`], which only the thread touches, so that a
//!   system call reaches them without a lock; others look at the copy behind [`Thread::shared`].
//! - [`Process`]: the threads that share a process id, signals, limits and a place among parents
//!   and children.
//! - [`pid_table`]: parents and children, process groups, sessions, the table of ids: one spin lock
//!   that is held for a few steps at a time.
//! - [`Space`]: an address space and what `execve` put into it.
//! - [`View`]: the resources of another thread, and the check that gives them.
//! - [`Call`]: a system call in progress.
//! - [`fork`], [`exec`], [`exit`], [`wait`]: from a process's first thread to its last.
//! - [`signal`], [`seccomp`], [`files`], [`sigio`], [`futex`]: what threads are sent, may call,
//!   have open and wait for.

mod call;
mod context;
mod credentials;
pub mod exec;
pub mod exit;
pub mod files;
pub mod fork;
pub mod futex;
mod handoff;
mod io_counts;
mod limits;
pub mod loadavg;
mod log_limit;
mod memory;
mod pid;
pub mod pid_table;
mod pidfd;
mod record;
mod restrictions;
pub mod rseq;
mod scheduling;
pub mod seccomp;
pub mod segment;
mod sharers;
pub mod sigio;
pub mod signal;
mod space;
pub mod thread;
mod times;
pub mod turn;
pub mod undo;
pub mod user;
mod view;
pub mod wait;

#[cfg(test)]
mod tests;

pub use call::{Call, Handler};
pub use context::{FsContext, Places};
pub use credentials::{
    CapabilitySet, Credentials, Ids, KEEP_CAPS, LAST_CAPABILITY, NO_AMBIENT_RAISE, SECURE_BITS,
    SECURE_LOCKS,
};
pub use exec::load::RANDOMIZE;
pub use handoff::Handoff;
pub use io_counts::{IoCounts, Transfers};
pub use limits::{INFINITY, Limit, Limits, RESOURCES};
pub use log_limit::LogLimit;
pub(crate) use memory::resolve_for_kernel;
pub use memory::{OOM_NEVER, charge_waits, make_room, oom_score, resolve_fault, with_room};
pub use pid::Pid;
pub use pid_table::{Group, Session};
pub use pidfd::{PidFile, process_of};
pub use record::Process;
pub use scheduling::{Policy, Scheduling};
pub use space::{Layout, SET_ID_DUMPABLE, Space};
pub use thread::{Own, Shared, Thread};
pub use times::{CLOCK_TICKS, Spent, Times, Usage, ticks};
pub use view::{Facts, Part, View, follow_root, read_strings};
