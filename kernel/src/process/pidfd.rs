//! Process descriptors: a file that stands for a process (`pidfd_open`, `CLONE_PIDFD`).
//!
//! It keeps the remains of the process after its end, so that a later process with the same id is
//! never mistaken for it.

use alloc::{sync::Arc, vec::Vec};

use abi::{
    Errno, Result,
    raw::general::{O_NONBLOCK, O_RDWR},
};
use fs::{File, OpenFlags, Ready};
use nucleus::task::Watch;

use super::Process;
use crate::process::files::OpenFile;

/// A process as a file. Ready for reading once the process has ended.
pub struct PidFile {
    process: Arc<Process>,
}

impl PidFile {
    /// An open file for `process`. Of `flags` only `O_NONBLOCK` means anything: `waitid` does not
    /// wait then.
    pub fn open(process: Arc<Process>, flags: u32) -> Arc<OpenFile> {
        let flags = OpenFlags::from_bits_retain(O_RDWR | flags & O_NONBLOCK);
        OpenFile::new(Arc::new(PidFile { process }), flags)
    }
}

impl File for PidFile {
    fn splices(&self) -> bool {
        false
    }

    fn poll<'a>(&'a self, set: Option<&mut dyn Watch<'a>>) -> Ready {
        if let Some(set) = set {
            set.add(&self.process.end_events);
        }
        Ready::of(self.process.has_ended(), false)
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[pidfd]".to_vec()
    }
}

/// The process that a descriptor's open file stands for.
///
/// # Errors
/// `EBADF` if it stands for none.
pub fn process_of(open: &OpenFile) -> Result<Arc<Process>> {
    let file = open.downcast::<PidFile>().ok_or(Errno::EBADF)?;
    Ok(file.process.clone())
}

impl Process {
    /// Whether all its threads have ended and its parent, if that wants to, can wait for it.
    pub fn has_ended(&self) -> bool {
        self.ended.load(core::sync::atomic::Ordering::Acquire)
    }

    /// Returns the wait status of a process that [has ended](Process::has_ended).
    pub fn end_status(&self) -> Option<i32> {
        let status = || self.end_status.load(core::sync::atomic::Ordering::Relaxed);
        self.has_ended().then(status)
    }

    /// Whether it was waited for, so that its id may be another process's.
    pub fn is_reaped(self: &Arc<Self>) -> bool {
        !Process::find(self.pid()).is_some_and(|found| Arc::ptr_eq(&found, self))
    }
}
