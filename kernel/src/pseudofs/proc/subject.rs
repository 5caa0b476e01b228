//! A process or thread as its files see it.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};

use abi::{Errno, Result};
use fs::{Location, pseudofs::Entry};
use vm::Map;

use crate::mounts;
use crate::process::{Facts, Ids, Pid, Process, Thread, View, pid_table, thread};

/// A process, or one of its threads.
#[derive(Clone)]
pub(super) struct Subject {
    pub process: Arc<Process>,
    /// Of `/proc/PID/task/TID`.
    pub tid: Option<Pid>,
}

impl Subject {
    /// Whether it is the calling process, which may always see its own descriptors.
    pub fn is_caller(&self) -> bool {
        thread::with_current(|me| me.process().pid() == self.process.pid()) == Some(true)
    }

    /// The thread that answers for the subject.
    ///
    /// # Errors
    /// `ESRCH` when it has ended.
    pub fn thread(&self) -> Result<Arc<Thread>> {
        match self.tid {
            None => self.process.leader(),
            Some(tid) => pid_table::find_thread(tid)
                .filter(|thread| Arc::ptr_eq(thread.process(), &self.process)),
        }
        .ok_or(Errno::ESRCH)
    }

    /// Returns what everybody may know; `None` when it has ended, or runs no program.
    pub fn facts(&self) -> Option<Facts> {
        self.thread().ok()?.facts()
    }

    /// Looks into it, where the caller may.
    ///
    /// # Errors
    /// `EACCES`, `ESRCH`; `ENOENT` for a process that runs no program.
    pub fn view(&self) -> Result<View> {
        View::of(&self.thread()?, Ids::Files).map_err(|error| match error {
            Errno::EPERM => Errno::EACCES,
            _ => Errno::ENOENT,
        })
    }

    /// Looks into it as [`view`](Subject::view) does; `None` for a process without memory.
    ///
    /// # Errors
    /// `EACCES`, `ESRCH`.
    pub fn view_with_memory(&self) -> Result<Option<View>> {
        match self.view() {
            Err(Errno::ENOENT) => Ok(None),
            view => view.map(Some),
        }
    }

    /// Returns its address space, where the caller may look into it: none for a process without
    /// memory. It does not keep the memory of a process that ends.
    ///
    /// # Errors
    /// `EACCES`, `ESRCH`.
    pub fn memory(&self) -> Result<Weak<Map>> {
        let view = self.view_with_memory()?;
        Ok(view.map_or(Weak::new(), |view| Arc::downgrade(view.space().map())))
    }
}

/// Returns what is answered about a subject that the caller may no longer look into.
pub(super) fn refused(error: Errno) -> Errno {
    match error {
        Errno::EPERM => Errno::EACCES,
        error => error,
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
    let root = thread::current_shared().map(|me| me.fs.root());
    place.path(&root.unwrap_or_else(|| mounts::namespace().root()))
}

/// Whether the caller has a capability; the kernel itself has all.
pub(super) fn may(capability: u32) -> bool {
    let asked =
        thread::with_current(|me| me.credentials().is_some_and(|mine| mine.may(capability)));
    asked.unwrap_or(true)
}

/// Sets the owner of a file about a process: root where its own user may not look into it.
pub(super) fn owned(entry: Entry, process: &Process) -> Entry {
    owned_by(entry, process, Facts::owner)
}

/// Sets the owner of the directory of a process.
pub(super) fn owned_directory(entry: Entry, process: &Process) -> Entry {
    owned_by(entry, process, Facts::user)
}

fn owned_by(entry: Entry, process: &Process, owner: fn(&Facts) -> (u32, u32)) -> Entry {
    let facts = process.leader().and_then(|leader| leader.facts());
    let (uid, gid) = facts.map_or((process.real_uid(), 0), |facts| owner(&facts));
    entry.owner(uid, gid)
}
