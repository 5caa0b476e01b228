//! The interface between the namespace and file systems: one vnode per file, directory, link or
//! device.
//!
//! - [`Vnode`]: identity, attributes and place; it includes
//! - [`Directory`] (`directory`): look up, create, link, remove, rename, list, with the rules for
//!   names that all file systems share, and
//! - [`FileData`] (`file_data`): read, write, truncate, map, write back;
//! - [`FileSystem`] (`file_system`): the file system to which a vnode belongs, as mounts use it;
//! - [`Location`] (`location`): a vnode reached through a [`Mount`] (`mount`); `mapped`: its pager;
//! - [`File`] (`open_file`): what a descriptor refers to;
//! - [`credentials`]: the users and capabilities that are checked; `deny_write`: writers against
//!   running programs;
//! - [`ExtendedAttributes`] and [`Sealable`]: what only some vnodes have.

use alloc::{sync::Arc, vec::Vec};
use core::{
    any::Any,
    ops::Sub,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use abi::{Errno, Result};
use nucleus::time;

mod attributes;
pub mod credentials;
mod deny_write;
mod directory;
mod file_data;
mod file_system;
mod location;
mod mapped;
mod mount;
mod open_file;
mod ownership;

pub use crate::page_cache::SizeLimit;
pub use attributes::{Attributes, Change, Kind, major, minor, new_device, number};
pub use credentials::{CapabilitySet, Credentials};
pub use deny_write::DenyWrite;
pub use directory::{Directory, Emit, Judged, Make, NAME_MAX, is_same};
pub(crate) use directory::{
    EntryCount, LockedPair, Rename, RenameStep, check_name, inherited, is_below, own,
};
pub use file_data::FileData;
pub use file_system::{FileSystem, Space};
pub use location::Location;
pub(crate) use location::{Name, same_vnode};
pub(crate) use mapped::Mapped;
pub(crate) use mount::topmost;
pub use mount::{Mount, MountFlags, MountRequest, Mounted};
pub use open_file::{Asynchronous, File, Linger, OpenFlags, Ready};
pub(crate) use ownership::{drop_capabilities, hold_ownership};

/// The name of a vnode in its file system.
#[allow(missing_docs)]
pub struct Place<V: ?Sized = dyn Vnode> {
    pub parent: Arc<V>,
    pub name: Arc<[u8]>,
    /// The entry has been removed.
    pub removed: bool,
}

impl<V: Vnode> Place<V> {
    pub(crate) fn new(parent: Arc<V>, name: &[u8]) -> Place<V> {
        Place {
            parent,
            name: name.into(),
            removed: false,
        }
    }

    /// Returns it as the rest of the kernel sees it.
    pub(crate) fn erased(&self) -> Place {
        Place {
            parent: self.parent.clone(),
            name: self.name.clone(),
            removed: self.removed,
        }
    }
}

/// A count of mounts, embedded in vnodes that can be mounted on: one load tells a walk that there
/// are none.
#[derive(Default)]
pub struct MountPoint {
    /// Mounts on the vnode, in all namespaces.
    mounts: AtomicU32,
}

impl MountPoint {
    /// A vnode without mounts.
    pub const fn new() -> MountPoint {
        MountPoint {
            mounts: AtomicU32::new(0),
        }
    }

    /// Tells whether there may be a mount here.
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

/// A file, directory, link or device in a file system. Permission was checked by the
/// [`Walk`](crate::Walk) or the caller; kinds were not.
#[allow(unused_variables, reason = "default bodies do nothing")]
pub trait Vnode: Any + Send + Sync + Directory + FileData {
    /// Returns what `stat` shows.
    fn attributes(&self) -> Result<Attributes>;

    /// Returns its device and inode, which never change. A file system whose attributes may be
    /// refused answers without them, so that locks can always be found and released.
    ///
    /// # Errors
    /// Those of [`attributes`](Vnode::attributes).
    fn identity(&self) -> Result<(u64, u64)> {
        let attributes = self.attributes()?;
        Ok((attributes.device, attributes.inode))
    }

    /// Returns its kind, which never changes.
    fn kind(&self) -> Kind;

    /// Checks that `who` may do `want` (4 read, 2 write, 1 execute or search, added up).
    ///
    /// # Errors
    /// `EACCES`.
    fn access(&self, who: &Credentials, want: u32) -> Result<()> {
        Errno::EACCES.unless(who.may(&self.attributes()?, want))
    }

    /// Returns its name; `None` for the root of a file system and for vnodes that keep no record. A
    /// directory must keep one, for ".." and `getcwd`. Takes no sleeping lock.
    fn place(&self) -> Option<Place> {
        None
    }

    /// Returns the directory that holds this one; `None` for the root of a file system.
    fn parent(&self) -> Option<Arc<dyn Vnode>> {
        self.place().map(|place| place.parent)
    }

    /// Returns the inode number of the directory that holds this one; `None` for the root of a file
    /// system.
    ///
    /// # Errors
    /// Those of [`attributes`](Vnode::attributes); `ENOTDIR`.
    fn parent_inode(&self) -> Result<Option<u64>> {
        let parent = self.parent().map(|parent| parent.attributes());
        Ok(parent.transpose()?.map(|it| it.inode))
    }

    /// Tells whether [`place`](Vnode::place) is this name of its own, and remains so wherever the
    /// name goes.
    fn goes_by(&self, directory: &dyn Vnode, name: &[u8]) -> bool {
        false
    }

    /// Returns a reference to it, for a caller that has borrowed it from its directory
    /// ([`peek`](Directory::peek)).
    fn counted(&self) -> Option<Arc<dyn Vnode>> {
        None
    }

    /// Returns the count of mounts on it; `None` if it can't be mounted on.
    fn mount_point(&self) -> Option<&MountPoint> {
        None
    }

    /// Tells whether it calls [`notify::ended`](crate::notify::ended) when it is dropped, which
    /// happens only when it was removed or its file system has ended.
    fn tells_its_end(&self) -> bool {
        false
    }

    /// Changes mode, owner or times.
    fn set_attributes(&self, change: Change) -> Result<()> {
        Err(Errno::EPERM)
    }

    /// Returns the first offset from `offset` on that is in a hole (`hole`; the end counts as one)
    /// or in data. The default is a file without holes.
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

    /// Returns the text of a symbolic link.
    fn read_link(&self) -> Result<Vec<u8>> {
        Err(Errno::EINVAL)
    }

    /// Returns the target of a link that leads to a location rather than to a text
    /// (`/proc/PID/exe`, `/proc/PID/fd/N`).
    fn follow(&self) -> Option<Result<Location>> {
        None
    }

    /// Creates an open file of the vnode's own type (devices, FIFOs, terminals), which remembers
    /// that it was opened `at`; `None` for vnodes that are read and written by offset.
    fn open(self: Arc<Self>, at: &Location, flags: OpenFlags) -> Result<Option<Arc<dyn File>>> {
        Ok(None)
    }

    /// Notes that an open file over it has ended for which [`open`](Vnode::open) returned `None`.
    fn closed(&self) {}

    /// Returns its file system; `None` for vnodes without one (pipes, sockets).
    fn file_system(&self) -> Option<&dyn FileSystem> {
        None
    }

    /// Returns its extended attributes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if it can't have any.
    fn extended_attributes(&self) -> Result<&dyn ExtendedAttributes> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns its seals.
    ///
    /// # Errors
    /// `EINVAL` if it can't be sealed.
    fn sealable(&self) -> Result<&dyn Sealable> {
        Err(Errno::EINVAL)
    }
}

impl dyn Vnode {
    /// Returns the size of its file system and what is free there; zeros without a file system.
    pub fn space(&self) -> Space {
        self.file_system()
            .map(FileSystem::space)
            .unwrap_or_default()
    }
}

/// Extended attributes.
pub trait ExtendedAttributes {
    /// Returns the value of an attribute.
    ///
    /// # Errors
    /// `ENODATA` where there is none.
    fn get(&self, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets an attribute, or removes it without a value; `flags` are `XATTR_CREATE` and
    /// `XATTR_REPLACE`.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA`, `ENOSPC`.
    fn set(&self, name: &[u8], value: Option<&[u8]>, flags: u32) -> Result<()>;

    /// Returns the names of all attributes, a NUL after each.
    fn names(&self) -> Result<Vec<u8>>;
}

/// A file whose changes can be sealed off (`memfd_create`).
pub trait Sealable {
    /// Returns the seals (`F_GET_SEALS`).
    fn seals(&self) -> u32;

    /// Adds seals (`F_ADD_SEALS`), known ones.
    ///
    /// # Errors
    /// `EPERM` where `F_SEAL_SEAL` is set, `EBUSY` for `F_SEAL_WRITE` while a mapping may write.
    fn add_seals(&self, seals: u32) -> Result<()>;
}

/// Returns the time in ticks since the epoch: time stamps are as coarse as Linux's, so that
/// repeated writes rarely change them.
pub(crate) fn now() -> Duration {
    const TICK: u32 = 4_000_000;
    let now = time::since_epoch();
    Duration::new(now.as_secs(), now.subsec_nanos() / TICK * TICK)
}

/// Tells whether a read that is not strict updates the time of access: once after each change, and
/// once a `day` (`relatime`).
pub(crate) fn is_access_stale<T: Copy + PartialOrd + Sub<Output = T>>(
    accessed: T,
    modified: T,
    changed: T,
    now: T,
    day: T,
) -> bool {
    accessed <= modified || accessed <= changed || now > accessed && now - accessed >= day
}
