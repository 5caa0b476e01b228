//! What every file system offers: one vnode per file, directory, link or device.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{
    any::Any,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use abi::{Errno, Result};
use fbuf::{Sink, Source};
use vm::Pager;

use crate::{
    Credentials, DenyWrite, File, Location, OpenFlags, block::PinnedBlocks, page_cache::Cached,
};

/// What a vnode is; the values are those of `S_IFMT` shifted right by 12, as in `d_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// None of those below: an open file without a place in a file system (an eventfd, an epoll).
    Anonymous = 0,
    Fifo = 1,
    CharDevice = 2,
    Directory = 4,
    BlockDevice = 6,
    Regular = 8,
    Link = 10,
    Socket = 12,
}

/// What `stat` shows.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    pub device: u64,
    pub inode: u64,
    pub kind: Kind,
    /// Permission bits, set-id bits and sticky bit: 0o7777 at most.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// For device nodes, in Linux's encoding of `dev_t`.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// 512-byte units.
    pub blocks: u64,
    pub block_size: u32,
    /// Since the epoch.
    pub accessed: Duration,
    pub modified: Duration,
    pub changed: Duration,
    pub created: Duration,
}

/// What [`Vnode::set_attributes`] changes; `None` stays. The permission to do so has been checked.
#[derive(Clone, Copy, Default, Debug)]
pub struct Change {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub accessed: Option<Duration>,
    pub modified: Option<Duration>,
    /// It is what the use of a file brings with it, a touch or a write that takes set-id bits away: a file that [only grows](Vnode::only_grows) allows
    /// that much.
    pub by_use: bool,
}

/// What a new vnode shall be.
#[derive(Clone, Debug)]
pub enum Make {
    Regular,
    Directory,
    Link(Vec<u8>),
    Fifo,
    Socket,
    CharDevice(u64),
    BlockDevice(u64),
}

/// What `statfs` shows, in blocks of `block_size` bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Space {
    pub magic: u64,
    pub block_size: u64,
    pub blocks: u64,
    pub free: u64,
    /// Free blocks that ordinary users may have.
    pub available: u64,
    pub files: u64,
    pub free_files: u64,
    pub name_max: u64,
}

/// Where a vnode hangs in its file system.
#[derive(Clone)]
pub struct Place {
    pub parent: Arc<dyn Vnode>,
    pub name: Arc<[u8]>,
    /// It has been removed from there.
    pub removed: bool,
}

/// To be embedded in a vnode that something can be mounted on: tells a walk at the price of one
/// load that nothing is.
#[derive(Default)]
pub struct MountPoint {
    /// Mounts on the vnode, in all namespaces.
    mounts: AtomicU32,
}

impl MountPoint {
    /// Nothing is mounted here.
    pub const fn new() -> MountPoint {
        MountPoint {
            mounts: AtomicU32::new(0),
        }
    }

    /// Whether something may be mounted here.
    pub fn is_covered(&self) -> bool {
        self.mounts.load(Ordering::Acquire) != 0
    }

    pub(crate) fn cover(&self) {
        self.mounts.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn uncover(&self) {
        self.mounts.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One directory entry on its way to `getdents`: name, inode, kind, and the cursor after it.
/// Returns false when there is no room for this one; it will be emitted again then.
pub type Emit<'a> = dyn FnMut(&[u8], u64, Kind, u64) -> bool + 'a;

/// A file, directory, link or device in a file system. Permission was checked by the
/// [`Walk`](crate::Walk) or the caller; types were not.
pub trait Vnode: Any + Send + Sync {
    /// What `stat` shows.
    fn attributes(&self) -> Result<Attributes>;

    /// What it is, without the rest.
    fn kind(&self) -> Kind;

    /// Whether `who` may do `want` (4 read, 2 write, 1 execute or search, added up).
    ///
    /// # Errors
    /// `EACCES`.
    fn access(&self, who: &Credentials, want: u32) -> Result<()> {
        match who.may(&self.attributes()?, want) {
            true => Ok(()),
            false => Err(Errno::EACCES),
        }
    }

    /// Where it hangs; `None` for the root of a file system and for what keeps no record. A
    /// directory must keep one, for ".." and `getcwd`. Takes no sleeping lock.
    fn place(&self) -> Option<Place> {
        None
    }

    /// The directory that holds this one; `None` for the root of a file system.
    fn parent(&self) -> Option<Arc<dyn Vnode>> {
        self.place().map(|place| place.parent)
    }

    /// Where mounts on it are noted; `None` if nothing can be mounted on it.
    fn mount_point(&self) -> Option<&MountPoint> {
        None
    }

    /// Whether it calls [`notify::ended`](crate::notify::ended) when it is dropped, which happens only when it was removed or
    /// its file system is gone.
    fn tells_its_end(&self) -> bool {
        false
    }

    /// Changes mode, owner or times.
    fn set_attributes(&self, change: Change) -> Result<()> {
        let _ = change;
        Err(Errno::EPERM)
    }

    /// Looks a name up in a directory (never "." or "..").
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Vnode>> {
        let _ = name;
        Err(Errno::ENOTDIR)
    }

    /// Makes a new entry; `EEXIST` if there is one.
    fn create(
        &self,
        name: &[u8],
        make: Make,
        mode: u32,
        who: &Credentials,
    ) -> Result<Arc<dyn Vnode>> {
        let _ = (name, make, mode, who);
        Err(Errno::EPERM)
    }

    /// Makes a regular file without a name (`O_TMPFILE`), which [`link`](Vnode::link) may give one.
    fn create_unnamed(&self, mode: u32, who: &Credentials) -> Result<Arc<dyn Vnode>> {
        let _ = (mode, who);
        Err(Errno::EOPNOTSUPP)
    }

    /// Makes a second entry for `node`, of the same file system.
    fn link(&self, name: &[u8], node: &Arc<dyn Vnode>) -> Result<()> {
        let _ = (name, node);
        Err(Errno::EPERM)
    }

    /// Removes an entry; `directory` says which of `unlink` and `rmdir` it is.
    fn remove(&self, name: &[u8], directory: bool) -> Result<()> {
        let _ = (name, directory);
        Err(Errno::EPERM)
    }

    /// Renames within the file system; `flags` as `renameat2`.
    fn rename(&self, name: &[u8], to: &Arc<dyn Vnode>, to_name: &[u8], flags: u32) -> Result<()> {
        let _ = (name, to, to_name, flags);
        Err(Errno::EPERM)
    }

    /// Emits entries from `cursor` on (0 at first; each entry comes with the cursor after it, below
    /// 2^62), without "." and "..". An entry that exists all the time is emitted once,
    /// whatever is made or removed meanwhile. No lock is held while `emit` runs.
    fn list(&self, cursor: u64, emit: &mut Emit<'_>) -> Result<()> {
        let _ = (cursor, emit);
        Err(Errno::ENOTDIR)
    }

    /// The text of a symbolic link.
    fn read_link(&self) -> Result<Vec<u8>> {
        Err(Errno::EINVAL)
    }

    /// A link that leads to a place rather than to a text (`/proc/PID/exe`, `/proc/PID/fd/N`).
    fn follow(&self) -> Option<Result<crate::Location>> {
        None
    }

    /// Reads from byte `offset` on; 0 at or beyond the end. No lock is held while the sink takes bytes that may fault.
    fn read(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        let _ = (offset, to);
        Err(Errno::EINVAL)
    }

    /// Writes at `offset`, or at the end with `append`; returns the bytes written and the offset after them.
    fn write(&self, offset: u64, append: bool, from: &mut dyn Source) -> Result<(usize, u64)> {
        let _ = (offset, append, from);
        Err(Errno::EINVAL)
    }

    /// Sets the size.
    fn truncate(&self, size: u64) -> Result<()> {
        let _ = size;
        Err(Errno::EINVAL)
    }

    /// Reserves or punches (`fallocate`, its mode bits).
    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        let _ = (mode, offset, len);
        Err(Errno::EOPNOTSUPP)
    }

    /// Whether nothing of its content may be changed, and only more be written behind its end (`chattr +a`).
    fn only_grows(&self) -> bool {
        false
    }

    /// Whether it can be opened for transfers past the cache (`O_DIRECT`).
    fn takes_direct(&self) -> bool {
        false
    }

    /// Where it is noted who writes and who runs it; `None` where that does not matter.
    fn deny_write(&self) -> Option<&DenyWrite> {
        None
    }

    /// Notes that its content was read: each time if `strict`, else once after each change and once a day.
    fn note_access(&self, strict: bool) {
        let _ = strict;
    }

    /// Changes the options of its file system, of which it is the root (`MS_REMOUNT`), and whether it may be written.
    ///
    /// # Errors
    /// `EINVAL` for bad ones, `EBUSY` if it can't be made read-only because files are open for writing, `EROFS` if it can't be
    /// written.
    fn reconfigure(&self, options: &[u8], read_only: bool) -> Result<()> {
        let _ = (options, read_only);
        Ok(())
    }

    /// Whether its file system can't be written, whatever its mounts say.
    fn is_read_only(&self) -> bool {
        false
    }

    /// One more mount shows its file system. Each ends with [`unmounted`](Vnode::unmounted).
    fn mounted(&self) {}

    /// A mount that shows its file system is about to be taken down, and nobody uses it. If it is the last one, everything
    /// is written back now.
    ///
    /// # Errors
    /// `EBUSY` if the file system is in use in another way: a mapping of one of its files.
    fn retire(&self) -> Result<()> {
        Ok(())
    }

    /// A mount that showed its file system is gone. With the last one the file system ends, now or when nothing of it is in use
    /// any more. May be called wherever a file is closed.
    fn unmounted(&self) {}

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` where there is none, `EOPNOTSUPP` for what can't have one.
    fn extended(&self, name: &[u8]) -> Result<Vec<u8>> {
        let _ = name;
        Err(Errno::EOPNOTSUPP)
    }

    /// Sets an extended attribute, or removes it without a value; `flags` are `XATTR_CREATE` and `XATTR_REPLACE`.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA`, `ENOSPC`; `EOPNOTSUPP` for what can't have one.
    fn set_extended(&self, name: &[u8], value: Option<&[u8]>, flags: u32) -> Result<()> {
        let _ = (name, value, flags);
        Err(Errno::EOPNOTSUPP)
    }

    /// The names of all extended attributes, a NUL behind each.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for what can't have any.
    fn extended_names(&self) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The seals on its content (`F_GET_SEALS`).
    ///
    /// # Errors
    /// `EINVAL` for what can't be sealed.
    fn seals(&self) -> Result<u32> {
        Err(Errno::EINVAL)
    }

    /// Adds seals (`F_ADD_SEALS`), known ones.
    ///
    /// # Errors
    /// `EPERM` where `F_SEAL_SEAL` is set, `EBUSY` for `F_SEAL_WRITE` while a mapping may write.
    fn add_seals(&self, seals: u32) -> Result<()> {
        let _ = seals;
        Err(Errno::EINVAL)
    }

    /// The first offset from `offset` on that is in a hole (`hole`; the end counts as one) or in data.
    ///
    /// # Errors
    /// `ENXIO` where there is none.
    fn seek_data(&self, offset: u64, hole: bool) -> Result<u64> {
        let size = self.attributes()?.size;
        match offset < size {
            true if hole => Ok(size),
            true => Ok(offset),
            false => Err(Errno::ENXIO),
        }
    }

    /// Makes an open file of its own kind (devices, FIFOs, ttys), which remembers that it was
    /// opened `at`; `None` for what is read and written by offset.
    fn open(self: Arc<Self>, at: &Location, flags: OpenFlags) -> Result<Option<Arc<dyn File>>> {
        let _ = (at, flags);
        Ok(None)
    }

    /// An open file over it, made because [`open`](Vnode::open) gave none of its own, is gone.
    fn closed(&self) {}

    /// What a mapping of it maps.
    fn pager(self: Arc<Self>) -> Option<Arc<dyn Pager>> {
        None
    }

    /// Room in its file system.
    fn space(&self) -> Space {
        Space::default()
    }

    /// Writes back what is dirty: of a file, its pages and its attributes (`fsync`); of the root of a file system, all of it
    /// (`syncfs`). That pages could not be written back is told by [`Cached::errors`] of [`cached`](Vnode::cached).
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// As [`sync`](Vnode::sync), without the attributes that are not needed to read the content back (`fdatasync`).
    fn sync_data(&self) -> Result<()> {
        self.sync()
    }

    /// Has its blocks for one who uses them past the file system (`swapon`); see there. What is in memory of the file has been written
    /// back.
    ///
    /// # Errors
    /// `EINVAL` if it has no blocks on a disk, or there are holes between them; `ETXTBSY` if somebody has them already; `ENOMEM`,
    /// `EIO`.
    fn pin_blocks(self: Arc<Self>) -> Result<Box<dyn PinnedBlocks>> {
        Err(Errno::EINVAL)
    }

    /// Its pages, if it keeps pages of a disk in memory.
    fn cached(&self) -> Option<Arc<dyn Cached>> {
        None
    }
}

/// A device number for a file system that has no device: major 0, as Linux does.
pub fn new_device() -> u64 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    crate::device::number(0, NEXT.fetch_add(1, Ordering::Relaxed))
}
