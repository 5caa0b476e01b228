//! Processes and threads.
//!
//! - [`Thread`]: what runs; a task of the nucleus. What it uses (address space, files, working
//!   directory, credentials) is its [`Own`], which nobody else touches, so that a system call
//!   reaches it without a lock; others look at the copy behind [`Thread::shared`].
//! - [`Process`]: the threads that share a process id, signals, limits and a place in the family.
//! - [`family`]: parents and children, process groups, sessions, the table of ids: one spin lock
//!   that is held for a few steps at a time.
//! - [`Space`]: an address space and what `execve` put into it.

mod context;
mod credentials;
pub mod family;
mod limits;
mod space;
pub mod thread;

use alloc::sync::{Arc, Weak};
use core::time::Duration;

pub use context::FsContext;
pub use credentials::Credentials;
pub use family::{Group, Session};
pub use limits::Limits;
pub use space::Space;
pub use thread::{Own, Shared, Thread};

use crate::signal;

/// A process, thread, group or session id; positive.
pub type Pid = u32;

/// Processor time in programs and in the kernel.
#[derive(Clone, Copy, Default, Debug)]
pub struct Times {
    /// In programs.
    pub user: Duration,
    /// In the kernel.
    pub system: Duration,
}

/// A process: one or more threads.
pub struct Process {
    pid: Pid,
    /// Time since boot when it was forked.
    started: Duration,
    /// Parent, children, group, session, status; guarded by the family lock.
    pub(crate) kin: family::Kin,
    /// Pending signals, the threads, stop and exit of the whole process.
    pub(crate) signals: signal::ProcessSignals,
    limits: Limits,
}

impl Process {
    /// The process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Time since boot when it was made.
    pub fn started(&self) -> Duration {
        self.started
    }

    /// Resource limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The parent's id, 0 for the first process.
    pub fn parent_pid(&self) -> Pid {
        todo!()
    }

    /// The process group.
    pub fn group(&self) -> Arc<Group> {
        todo!()
    }

    /// The session.
    pub fn session(&self) -> Arc<Session> {
        todo!()
    }

    /// The thread that stands for the process in `/proc/PID`: the leader, as long as it lives. `None` for a zombie.
    pub fn leader(&self) -> Option<Arc<Thread>> {
        todo!()
    }

    /// All threads that have not ended.
    pub fn threads(&self) -> alloc::vec::Vec<Arc<Thread>> {
        todo!()
    }

    /// Whether it has ended and waits to be waited for.
    pub fn is_zombie(&self) -> bool {
        todo!()
    }

    /// The state letter of `/proc/PID/stat`: R, S, D, T or Z.
    pub fn state(&self) -> char {
        todo!()
    }

    /// Processor time of all its threads, ended ones included.
    pub fn times(&self) -> Times {
        todo!()
    }

    /// Processor time of the children that were waited for.
    pub fn children_times(&self) -> Times {
        todo!()
    }

    /// The process with this id.
    pub fn find(pid: Pid) -> Option<Arc<Process>> {
        let _ = pid;
        todo!()
    }

    /// Ids of all processes, zombies included, rising.
    pub fn all() -> alloc::vec::Vec<Arc<Process>> {
        todo!()
    }
}

/// A parent that may be gone.
pub(crate) type Parent = Weak<Process>;
