//! Threads.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use nucleus::{sync::SpinLock, task::Task};

use super::{Credentials, FsContext, Pid, Process, Space};
use crate::{files, signal};

/// A thread: what runs a program.
pub struct Thread {
    tid: AtomicU32,
    process: Arc<Process>,
    task: SpinLock<Option<Arc<Task>>>,
    /// Pending signals, mask.
    pub(crate) signals: signal::ThreadSignals,
    shared: SpinLock<Option<Shared>>,
    name: SpinLock<[u8; 16]>,
}

/// What a thread uses, by itself.
pub struct Own {
    pub space: Arc<Space>,
    pub files: Arc<files::Table>,
    pub fs: Arc<FsContext>,
    pub credentials: Arc<Credentials>,
}

/// What others may look at while the thread lives.
#[derive(Clone)]
pub struct Shared {
    pub space: Arc<Space>,
    pub files: Arc<files::Table>,
    pub fs: Arc<FsContext>,
    pub credentials: Arc<Credentials>,
}

impl Thread {
    /// The thread id.
    pub fn tid(&self) -> Pid {
        self.tid.load(Relaxed)
    }

    /// The process.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// The task that runs it; `None` when it has ended.
    pub fn task(&self) -> Option<Arc<Task>> {
        self.task.lock().clone()
    }

    /// What it uses; `None` when it has ended.
    pub fn shared(&self) -> Option<Shared> {
        self.shared.lock().clone()
    }

    /// The name (`comm`) without padding.
    pub fn name(&self) -> alloc::vec::Vec<u8> {
        let name = *self.name.lock();
        let len = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        name[..len].to_vec()
    }
}

/// The current thread. A system call has it in its [`Call`](crate::syscall::Call) for nothing.
pub fn current() -> Option<Arc<Thread>> {
    todo!()
}

/// Runs `f` with the current thread, without touching a reference count; `None` in a task of the kernel.
pub fn with_current<R>(f: impl FnOnce(&Thread) -> R) -> Option<R> {
    let _ = f;
    todo!()
}
