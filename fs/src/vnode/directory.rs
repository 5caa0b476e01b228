//! Operations on directories, and the rules for names that all file systems share.
#![allow(missing_docs, reason = "fields and variants whose names say it")]

use alloc::{sync::Arc, vec::Vec};
use core::{
    any::Any,
    sync::atomic::{AtomicU32, Ordering},
};

use abi::{
    Errno, Result,
    raw::general::{RENAME_EXCHANGE, RENAME_NOREPLACE, S_ISGID},
};
use nucleus::sync::ReadSection;

use super::{Credentials, Kind, Vnode};

/// The most bytes in a name.
pub const NAME_MAX: usize = 255;

/// What a new vnode shall be.
#[derive(Clone, Debug)]
pub enum Make {
    Regular,
    Directory,
    /// A symbolic link with this text.
    Link(Vec<u8>),
    Fifo,
    Socket,
    CharDevice(u64),
    BlockDevice(u64),
}

impl Make {
    /// Returns the kind, and the number of a device.
    pub fn kind(&self) -> (Kind, u64) {
        match *self {
            Make::Regular => (Kind::Regular, 0),
            Make::Directory => (Kind::Directory, 0),
            Make::Link(_) => (Kind::Link, 0),
            Make::Fifo => (Kind::Fifo, 0),
            Make::Socket => (Kind::Socket, 0),
            Make::CharDevice(number) => (Kind::CharDevice, number),
            Make::BlockDevice(number) => (Kind::BlockDevice, number),
        }
    }
}

/// Receives one directory entry on its way to `getdents`: name, inode, kind, and the cursor after
/// it. Returns false when there is no room for this one; it will be emitted again then.
pub type Emit<'a> = dyn FnMut(&[u8], u64, Kind, u64) -> bool + 'a;

/// The operations of a directory. The [`Walk`](crate::Walk) or the caller has checked permission;
/// a vnode that is no directory, or whose file system can't be changed, keeps the default bodies.
#[allow(unused_variables, reason = "default bodies do nothing")]
pub trait Directory {
    /// Looks a name up (never "." or "..").
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Vnode>> {
        Err(Errno::ENOTDIR)
    }

    /// Looks a name up in a read section, for as long as that lasts: without a lock or a reference.
    /// `None` if there is none, or if it must be [looked up](Directory::lookup). The attributes of
    /// both vnodes, and their permissions, can be read in a section, and
    /// [`counted`](Vnode::counted) returns a reference to the result.
    fn peek<'s>(&'s self, name: &[u8], section: &'s ReadSection) -> Option<&'s dyn Vnode> {
        None
    }

    /// Creates an entry; `EEXIST` if there is one of this name.
    fn create(
        &self,
        name: &[u8],
        make: Make,
        mode: u32,
        who: &Credentials,
    ) -> Result<Arc<dyn Vnode>> {
        Err(Errno::EPERM)
    }

    /// Creates a regular file without a name (`O_TMPFILE`), to which [`link`](Directory::link) may
    /// give one if `may_link`.
    fn create_unnamed(
        &self,
        mode: u32,
        may_link: bool,
        who: &Credentials,
    ) -> Result<Arc<dyn Vnode>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Adds an entry for `node`, which belongs to the same file system.
    fn link(&self, name: &[u8], node: &Arc<dyn Vnode>) -> Result<()> {
        Err(Errno::EPERM)
    }

    /// Removes the entry of `judged`, which the caller has looked up and may remove, as `rmdir` if
    /// `directory` is set and else as `unlink`; `ESTALE` if the name stands for another vnode now.
    fn remove(&self, name: &[u8], judged: &dyn Vnode, directory: bool) -> Result<()> {
        Err(Errno::EPERM)
    }

    /// Renames within the file system; `flags` are valid ones of `renameat2`. `ESTALE` if one of
    /// both names stands for another vnode than was judged.
    fn rename(
        &self,
        name: &[u8],
        to: &Arc<dyn Vnode>,
        to_name: &[u8],
        flags: u32,
        judged: Judged<'_>,
    ) -> Result<()> {
        Err(Errno::EPERM)
    }

    /// Emits entries from `cursor` on (0 at first; each entry comes with the cursor after it, below
    /// 2^62), without "." and "..". An entry that exists all the time is emitted once, whatever is
    /// created or removed meanwhile. No lock is held while `emit` runs.
    fn list(&self, cursor: u64, emit: &mut Emit<'_>) -> Result<()> {
        Err(Errno::ENOTDIR)
    }
}

/// Checks that `name` may be that of an entry.
///
/// # Errors
/// `EINVAL`, `ENAMETOOLONG`.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Errno::EINVAL),
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        _ if name.iter().any(|&b| b == b'/' || b == 0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// Returns the file system's own type of a vnode.
///
/// # Errors
/// `EXDEV` for a vnode of another type of file system.
pub(crate) fn own<T: Vnode>(vnode: &Arc<dyn Vnode>) -> Result<&T> {
    let any: &dyn Any = vnode.as_ref();
    any.downcast_ref().ok_or(Errno::EXDEV)
}

/// Returns the mode and group of a new entry that `who` creates in a directory of `parent_mode` and
/// `parent_gid`. A set-gid directory passes its group on, and to directories the bit too; so does
/// any directory of a mount with `grpid` (`inherit`).
pub(crate) fn inherited(
    (parent_mode, parent_gid): (u32, u32),
    inherit: bool,
    kind: Kind,
    mode: u32,
    who: &Credentials,
) -> (u32, u32) {
    if parent_mode & S_ISGID == 0 && !inherit {
        return (mode, who.gid);
    }
    let mode = match kind {
        Kind::Directory => mode | parent_mode & S_ISGID,
        _ if mode & 0o010 != 0 => who.allowed_mode(mode, parent_gid),
        _ => mode,
    };
    (mode, parent_gid)
}

/// The number of a directory's entries. Changes under the lock of the entries, except for the end
/// of an empty directory, which takes the parent's lock only.
pub(crate) struct EntryCount(AtomicU32);

impl EntryCount {
    /// The directory was removed, and takes no entries any more.
    const DEAD: u32 = u32::MAX;
    /// The entries have not been counted.
    const UNKNOWN: u32 = u32::MAX - 1;

    /// Returns the count of an empty directory, or of one whose entries are to be counted.
    pub fn new(is_known: bool) -> EntryCount {
        EntryCount(AtomicU32::new(if is_known {
            0
        } else {
            EntryCount::UNKNOWN
        }))
    }

    /// Sets the number.
    pub fn set(&self, count: u32) {
        self.0.store(count, Ordering::Release);
    }

    /// Tells whether the entries have been counted.
    pub fn is_known(&self) -> bool {
        self.0.load(Ordering::Acquire) != EntryCount::UNKNOWN
    }

    /// Tells whether the directory was removed.
    pub fn is_dead(&self) -> bool {
        self.0.load(Ordering::Acquire) == EntryCount::DEAD
    }

    /// Returns the number of entries, which have been counted.
    pub fn get(&self) -> u32 {
        match self.0.load(Ordering::Relaxed) {
            EntryCount::DEAD => 0,
            count => count,
        }
    }

    /// Counts an entry that is about to be added.
    ///
    /// # Errors
    /// `ENOENT` if the directory was removed.
    pub fn add(&self) -> Result<()> {
        let more = |count| (count < EntryCount::UNKNOWN - 1).then(|| count + 1);
        let counted = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
        counted.map(|_| ()).map_err(|_| Errno::ENOENT)
    }

    /// Uncounts an entry.
    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Makes an empty directory take no entries any more.
    ///
    /// # Errors
    /// `ENOTEMPTY`.
    pub fn die(&self) -> Result<()> {
        let died =
            self.0
                .compare_exchange(0, EntryCount::DEAD, Ordering::AcqRel, Ordering::Relaxed);
        died.map(|_| ()).map_err(|_| Errno::ENOTEMPTY)
    }

    /// Undoes [`die`](EntryCount::die): it was not removed.
    pub fn revive(&self) {
        self.set(0);
    }
}

/// What the names of a rename stood for when the caller looked them up and found that it may change
/// them.
#[derive(Clone, Copy)]
pub struct Judged<'a> {
    /// The vnode of the old name.
    pub source: &'a dyn Vnode,
    /// The vnode of the new name.
    pub target: Option<&'a dyn Vnode>,
}

/// The locked entries of the two directories of a rename, which may be one.
pub(crate) enum LockedPair<T> {
    Same(T),
    Two(T, T),
}

impl<T> LockedPair<T> {
    /// Returns the entries of the directory with the old name.
    pub fn from(&mut self) -> &mut T {
        match self {
            LockedPair::Same(entries) | LockedPair::Two(entries, _) => entries,
        }
    }

    /// Returns the entries of the directory with the new name.
    pub fn to(&mut self) -> &mut T {
        match self {
            LockedPair::Same(entries) | LockedPair::Two(_, entries) => entries,
        }
    }
}

/// The entries of a rename: directories and vnodes, as found with the directories locked and, if
/// they are two, with the lock that keeps the tree from changing its shape.
pub(crate) struct Rename<'a> {
    pub from: &'a dyn Vnode,
    pub source: &'a dyn Vnode,
    pub to: &'a dyn Vnode,
    pub target: Option<&'a dyn Vnode>,
    pub flags: u32,
    pub judged: Judged<'a>,
}

/// What a rename has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RenameStep {
    /// Both names are the same file's: nothing.
    Nothing,
    Exchange,
    /// The source takes the new name, which the target loses if there is one. If they are
    /// directories, the file system still has to check that the target is empty.
    Move,
}

impl Rename<'_> {
    /// Checks the rules that do not depend on the file system.
    ///
    /// # Errors
    /// `ESTALE` if these are not the vnodes that were judged, `EINVAL` to move a directory below
    /// itself, `ENOTEMPTY`, `EEXIST`, `ENOENT`, `ENOTDIR`, `EISDIR`.
    pub fn check(&self) -> Result<RenameStep> {
        let same_target = match (self.target, self.judged.target) {
            (Some(target), Some(judged)) => is_same(target, judged),
            (None, None) => true,
            _ => false,
        };
        if !is_same(self.source, self.judged.source) || !same_target {
            return Err(Errno::ESTALE);
        }
        let exchanges = self.flags & RENAME_EXCHANGE != 0;
        let across = !is_same(self.from, self.to);
        let is_directory = self.source.kind() == Kind::Directory;
        if across && is_directory && is_below(self.to, self.source) {
            return Err(Errno::EINVAL);
        }
        let Some(target) = self.target else {
            return match exchanges {
                true => Err(Errno::ENOENT),
                false => Ok(RenameStep::Move),
            };
        };
        let replaces_directory = target.kind() == Kind::Directory;
        if across && replaces_directory && is_below(self.from, target) {
            // The target is above the source, so it is not empty, whatever the source is.
            return Err(match exchanges {
                true => Errno::EINVAL,
                false => Errno::ENOTEMPTY,
            });
        }
        match (is_directory, replaces_directory) {
            _ if self.flags & RENAME_NOREPLACE != 0 => Err(Errno::EEXIST),
            _ if is_same(self.source, target) => Ok(RenameStep::Nothing),
            _ if exchanges => Ok(RenameStep::Exchange),
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            _ => Ok(RenameStep::Move),
        }
    }
}

/// Whether both are the same vnode.
pub fn is_same(a: &dyn Vnode, b: &dyn Vnode) -> bool {
    core::ptr::addr_eq(a, b)
}

/// Tells whether a vnode is `above` or lies below it in their file system.
pub(crate) fn is_below(directory: &dyn Vnode, above: &dyn Vnode) -> bool {
    let above_it = core::iter::successors(directory.parent(), |vnode| vnode.parent());
    is_same(directory, above) || above_it.into_iter().any(|vnode| is_same(&*vnode, above))
}
