//! Mounts, and the walk along a path.

use alloc::{sync::Arc, vec::Vec};

use abi::Result;

use crate::{Attributes, Credentials, File, OpenFlags, Vnode, vnode::Make};

/// A mounted file system.
pub struct Mount {
    _private: (),
}

/// A vnode reached by a name through a mount: what `dirfd`, `cwd`, `root` and open files hold.
#[derive(Clone)]
pub struct Location {
    _private: (),
}

impl Location {
    /// The vnode here.
    pub fn vnode(&self) -> &Arc<dyn Vnode> {
        todo!()
    }

    /// What `stat` shows.
    pub fn attributes(&self) -> Result<Attributes> {
        self.vnode().attributes()
    }

    /// The absolute path as seen from `root`, with " (deleted)" behind it if it has no name any more.
    pub fn path(&self, root: &Location) -> Vec<u8> {
        todo!()
    }

    /// Whether both are the same place.
    pub fn same(&self, other: &Location) -> bool {
        todo!()
    }
}

/// The tree of mounts that processes see.
pub struct Namespace {
    _private: (),
}

/// One line of `/proc/mounts`.
pub struct MountLine {
    pub source: Vec<u8>,
    pub at: Vec<u8>,
    pub fstype: &'static str,
    pub options: Vec<u8>,
}

impl Namespace {
    /// A namespace whose root is `root`'s file system.
    pub fn new(root: Arc<dyn Vnode>, fstype: &'static str) -> Arc<Namespace> {
        todo!()
    }

    /// The root of the root mount.
    pub fn root(&self) -> Location {
        todo!()
    }

    /// Mounts a file system whose root vnode is `root` (or, to bind, a vnode of another one) over `at`.
    pub fn mount(
        &self,
        at: &Location,
        root: Arc<dyn Vnode>,
        fstype: &'static str,
        source: &[u8],
        options: &[u8],
    ) -> Result<()> {
        todo!()
    }

    /// Unmounts what is mounted at `at` (the root of a mount).
    pub fn unmount(&self, at: &Location, lazy: bool) -> Result<()> {
        todo!()
    }

    /// What `/proc/mounts` shows.
    pub fn mounts(&self) -> Vec<MountLine> {
        todo!()
    }
}

/// From where a path is walked, and as whom.
pub struct Walk<'a> {
    pub root: &'a Location,
    /// Where relative paths start.
    pub start: &'a Location,
    pub who: &'a Credentials,
}

impl Walk<'_> {
    /// The place that `path` names. `follow`: whether a final symbolic link is followed. Limits and errors as Linux
    /// (`ELOOP` after 40 links, `ENAMETOOLONG`, `ENOENT` for an empty path, search permission on the way).
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<Location> {
        todo!()
    }

    /// The directory and the last component, for making and removing; a trailing slash is reported.
    pub fn parent(&self, path: &[u8]) -> Result<(Location, Vec<u8>, bool)> {
        todo!()
    }

    /// `open`: resolves or creates with `mode` (umask already applied), checks permission, truncates, opens.
    pub fn open(&self, path: &[u8], flags: OpenFlags, mode: u32) -> Result<Arc<dyn File>> {
        todo!()
    }

    /// Opens a place that was resolved already (`/proc/PID/fd/N`, `execve`).
    pub fn open_at(&self, place: &Location, flags: OpenFlags) -> Result<Arc<dyn File>> {
        todo!()
    }

    /// `mknod`, `mkdir`, `symlink`.
    pub fn make(&self, path: &[u8], make: Make, mode: u32) -> Result<Location> {
        todo!()
    }

    /// `link`.
    pub fn link(&self, from: &Location, path: &[u8]) -> Result<()> {
        todo!()
    }

    /// `unlink` and `rmdir`.
    pub fn remove(&self, path: &[u8], directory: bool) -> Result<()> {
        todo!()
    }

    /// `renameat2`; `to` walks from its own start.
    pub fn rename(&self, path: &[u8], to: &Walk<'_>, to_path: &[u8], flags: u32) -> Result<()> {
        todo!()
    }

    /// Whether `who` may do `want` (`access`).
    pub fn access(&self, place: &Location, want: u32) -> Result<()> {
        todo!()
    }
}
