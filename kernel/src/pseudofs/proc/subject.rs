//! A process or thread as its files see it.

use alloc::{format, sync::Arc, vec::Vec};

use abi::{Errno, Result};
use fs::pseudofs::Entry;
use nucleus::PAGE_SIZE;

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
}

/// The name, of a zombie too.
pub(super) fn name(subject: &Subject) -> Vec<u8> {
    match (subject.tid, subject.thread()) {
        (Some(_), Ok(thread)) => thread.name(),
        _ => subject.process.name(),
    }
}

/// Bytes of so many pages in KiB.
pub(super) fn kib(pages: usize) -> usize {
    pages * (PAGE_SIZE / 1024)
}

/// A file's text of `/proc/PID/fd`, for those without a place.
pub(super) fn nameless(text: Vec<u8>) -> Vec<u8> {
    if text.is_empty() {
        return format!("anon_inode:[{}]", "file").into_bytes();
    }
    text
}

/// A number in a name, as Linux wants it: no sign, no leading zero.
pub(super) fn number(name: &[u8]) -> Option<u32> {
    if name.is_empty() || name.len() > 1 && name[0] == b'0' {
        return None;
    }
    if !name.iter().all(u8::is_ascii_digit) {
        return None;
    }
    core::str::from_utf8(name).ok()?.parse().ok()
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
