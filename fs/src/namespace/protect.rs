//! What others may not do through directories that everyone may write to: Linux's
//! `/proc/sys/fs/protected_*`, with Debian's values at the start; 0 is off.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use abi::{
    Errno, Result,
    raw::general::{CAP_FOWNER, S_ISGID, S_ISUID, S_ISVTX},
};

use crate::{
    Credentials, Kind,
    credentials::{READ, WRITE},
    vnode::Vnode,
};

/// A symbolic link in a sticky directory that everyone may write to is followed, at the end of a
/// path, only by its owner, or if the directory's owner made it.
pub static SYMLINKS: AtomicU32 = AtomicU32::new(1);
/// A name for another user's file is made only by a caller that may read and write it, and never
/// for a file whose execution would give rights.
pub static HARDLINKS: AtomicU32 = AtomicU32::new(1);
/// `O_CREAT` does not open another user's FIFO in a sticky directory that everyone (1) or its
/// group (2) may write to, unless it belongs to the directory's owner.
pub static FIFOS: AtomicU32 = AtomicU32::new(1);
/// The same for regular files.
pub static REGULAR: AtomicU32 = AtomicU32::new(2);

const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
const GROUP_EXECUTES: u32 = 0o010;

/// Tells whether a link at the end of a path may be followed.
///
/// # Errors
/// `EACCES` if not; those of the attributes.
pub(super) fn may_follow(
    who: &Credentials,
    directory: &Arc<dyn Vnode>,
    link: &Arc<dyn Vnode>,
) -> Result<()> {
    if SYMLINKS.load(Relaxed) == 0 {
        return Ok(());
    }
    let directory = directory.attributes()?;
    if directory.mode & S_ISVTX == 0 || directory.mode & OTHERS_WRITE == 0 {
        return Ok(());
    }
    let link = link.attributes()?;
    match link.uid == who.uid || link.uid == directory.uid {
        true => Ok(()),
        false => Err(Errno::EACCES),
    }
}

/// Tells whether a further name for a file may be made.
///
/// # Errors
/// `EPERM` if not; those of the attributes.
pub(super) fn may_link(who: &Credentials, file: &Arc<dyn Vnode>) -> Result<()> {
    if HARDLINKS.load(Relaxed) == 0 {
        return Ok(());
    }
    let found = file.attributes()?;
    let gives_rights =
        |mode: u32| mode & S_ISUID != 0 || mode & S_ISGID != 0 && mode & GROUP_EXECUTES != 0;
    let is_safe = found.kind == Kind::Regular
        && !gives_rights(found.mode)
        && file.access(who, READ | WRITE).is_ok();
    match is_safe || who.owns(&found) || who.may_use(CAP_FOWNER) {
        true => Ok(()),
        false => Err(Errno::EPERM),
    }
}

/// Tells whether `O_CREAT` may open a file that is there.
///
/// # Errors
/// `EACCES` if not; those of the attributes.
pub(super) fn may_open_as_new(
    who: &Credentials,
    directory: &Arc<dyn Vnode>,
    file: &Arc<dyn Vnode>,
) -> Result<()> {
    let level = match file.kind() {
        Kind::Fifo => FIFOS.load(Relaxed),
        Kind::Regular => REGULAR.load(Relaxed),
        _ => 0,
    };
    if level == 0 {
        return Ok(());
    }
    let directory = directory.attributes()?;
    let groups = directory.mode & GROUP_WRITES != 0 && level >= 2;
    let is_open = directory.mode & OTHERS_WRITE != 0 || groups;
    if directory.mode & S_ISVTX == 0 || !is_open {
        return Ok(());
    }
    let file = file.attributes()?;
    match file.uid == directory.uid || file.uid == who.uid {
        true => Ok(()),
        false => Err(Errno::EACCES),
    }
}
