//! A process or thread as its files see it.

use alloc::{sync::Arc, vec::Vec};

use abi::{Errno, Result};
use fs::{Location, pseudofs::Entry};

use crate::mounts;
use crate::process::{Pid, Process, Shared, Thread, thread};

/// A process, or one of its threads.
#[derive(Clone)]
pub(super) struct Subject {
    pub process: Arc<Process>,
    /// Of `/proc/PID/task/TID`.
    pub tid: Option<Pid>,
}

impl Subject {
    /// The thread that answers for the subject.
    ///
    /// # Errors
    /// `ESRCH` when it has ended.
    pub fn thread(&self) -> Result<Arc<Thread>> {
        match self.tid {
            None => self.process.leader(),
            Some(tid) => self
                .process
                .threads()
                .into_iter()
                .find(|thread| thread.tid() == tid),
        }
        .ok_or(Errno::ESRCH)
    }

    /// Returns its resources.
    ///
    /// # Errors
    /// `ESRCH` when it has ended.
    pub fn shared(&self) -> Result<Shared> {
        self.thread()?.shared().ok_or(Errno::ESRCH)
    }

    /// Returns its resources, for its owner and root only.
    ///
    /// # Errors
    /// `EACCES`, `ESRCH`; `ENOENT` for a process that runs no program.
    pub fn private(&self) -> Result<Shared> {
        let shared = self.thread()?.shared().ok_or(Errno::ENOENT)?;
        let own = |who: &Thread| {
            who.shared().is_some_and(|mine| {
                let is_open = self.process.is_open_book();
                mine.credentials.may_inspect(&shared.credentials, is_open)
                    || Arc::ptr_eq(who.process(), &self.process)
            })
        };
        match thread::with_current(own) {
            Some(false) => Err(Errno::EACCES),
            _ => Ok(shared),
        }
    }

    /// Returns its resources as [`private`](Subject::private) does, none for a process without
    /// memory.
    ///
    /// # Errors
    /// `EACCES`, `ESRCH`.
    pub fn with_memory(&self) -> Result<Option<Shared>> {
        match self.private() {
            Err(Errno::ENOENT) => Ok(None),
            shared => shared.map(Some),
        }
    }
}

/// The name, of a zombie too.
pub(super) fn name(subject: &Subject) -> Vec<u8> {
    match (subject.tid, subject.thread()) {
        (Some(_), Ok(thread)) => thread.name(),
        _ => subject.process.name(),
    }
}

/// The path of a place, as the calling program sees it.
pub(super) fn path(place: &Location) -> Vec<u8> {
    let root = thread::with_current(|me| me.shared().map(|me| me.fs.root())).flatten();
    place.path(&root.unwrap_or_else(|| mounts::namespace().root()))
}

/// Whether the caller has a capability; the kernel itself has all.
pub(super) fn may(capability: u32) -> bool {
    let asked = thread::with_current(|me| {
        me.shared()
            .is_some_and(|mine| mine.credentials.may(capability))
    });
    asked.unwrap_or(true)
}

/// Sets the owner of a file about a process.
pub(super) fn owned(entry: Entry, process: &Process) -> Entry {
    let shared = process.leader().and_then(|leader| leader.shared());
    match shared {
        Some(shared) => entry.owner(
            shared.credentials.effective_uid,
            shared.credentials.effective_gid,
        ),
        None => entry.owner(process.real_uid(), 0),
    }
}
