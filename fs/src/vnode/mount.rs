//! Mounts: file systems over vnodes of others.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::{
    Errno, Result,
    raw::general::{
        MS_DIRSYNC, MS_NOATIME, MS_NODEV, MS_NODIRATIME, MS_NOEXEC, MS_NOSUID, MS_NOSYMFOLLOW,
        MS_RDONLY, MS_RELATIME, MS_STRICTATIME, MS_SYNCHRONOUS,
    },
};
use bitflags::bitflags;
use nucleus::sync::{CpuRwLock, Rank, SpinLock};

use super::{Location, Vnode, location::same_vnode};

bitflags! {
    /// The flags of a mount, with the values of `mount`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MountFlags: u32 {
        /// Files and directories can't be changed.
        const READ_ONLY = MS_RDONLY;
        /// Set-id bits and file capabilities have no effect.
        const NO_SET_ID = MS_NOSUID;
        /// Device nodes can't be opened.
        const NO_DEVICES = MS_NODEV;
        /// Files can't be executed.
        const NO_EXECUTE = MS_NOEXEC;
        /// Symbolic links are not followed.
        const NO_LINKS = MS_NOSYMFOLLOW;
        /// Reads do not update times of access.
        const NO_ACCESS_TIMES = MS_NOATIME;
        /// The same for directories.
        const NO_DIRECTORY_ACCESS_TIMES = MS_NODIRATIME;
        /// Each read updates the time of access, rather than one after each change and one a day.
        const STRICT_ACCESS_TIMES = MS_STRICTATIME;
        /// The default for times of access; shown, no difference.
        const RELATIVE_ACCESS_TIMES = MS_RELATIME;
        /// Writes and changes of directories are written back at once.
        const SYNCHRONOUS = MS_SYNCHRONOUS;
        /// Changes of directories are written back at once.
        const SYNCHRONOUS_DIRECTORIES = MS_DIRSYNC;
    }
}

impl MountFlags {
    /// Returns the words for them in `/proc/mounts`, after `ro` or `rw`.
    pub fn words(self) -> Vec<u8> {
        const WORDS: &[(MountFlags, &str)] = &[
            (MountFlags::SYNCHRONOUS, ",sync"),
            (MountFlags::SYNCHRONOUS_DIRECTORIES, ",dirsync"),
            (MountFlags::NO_SET_ID, ",nosuid"),
            (MountFlags::NO_DEVICES, ",nodev"),
            (MountFlags::NO_EXECUTE, ",noexec"),
            (MountFlags::NO_ACCESS_TIMES, ",noatime"),
            (MountFlags::NO_DIRECTORY_ACCESS_TIMES, ",nodiratime"),
            (MountFlags::RELATIVE_ACCESS_TIMES, ",relatime"),
            (MountFlags::NO_LINKS, ",nosymfollow"),
        ];
        let mut text = Vec::new();
        for (flag, word) in WORDS {
            if self.contains(*flag) {
                text.extend_from_slice(word.as_bytes());
            }
        }
        text
    }
}

/// A mounted file system, or part of one.
pub struct Mount {
    id: u64,
    root: Arc<dyn Vnode>,
    /// The mount point; `None` for the root mount and internal ones. Changes under the table's
    /// lock.
    at: SpinLock<Option<Location>>,
    fstype: &'static str,
    source: Vec<u8>,
    /// Options of the file system's own.
    options: SpinLock<Arc<[u8]>>,
    flags: AtomicU32,
    /// It is in the tree, not removed by a lazy unmount.
    pub(crate) attached: AtomicBool,
    /// It was marked by `MNT_EXPIRE` and not used since.
    pub(crate) expiring: AtomicBool,
    /// The mounts on vnodes of this mount, with the vnode; the last one on a vnode is on top.
    pub(crate) children: CpuRwLock<Vec<(Arc<dyn Vnode>, Arc<Mount>)>>,
}

/// The parameters of a mount.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct MountRequest<'a> {
    /// The file system's name.
    pub fstype: &'static str,
    /// The source, as `/proc/mounts` shows it.
    pub source: &'a [u8],
    pub flags: MountFlags,
    /// Options of the file system's own, as `/proc/mounts` shows them.
    pub options: &'a [u8],
}

impl<'a> MountRequest<'a> {
    /// Returns the parameters of a file system that is its own source, without options.
    pub fn plain(fstype: &'static str) -> MountRequest<'a> {
        MountRequest {
            fstype,
            source: fstype.as_bytes(),
            flags: MountFlags::RELATIVE_ACCESS_TIMES,
            options: b"",
        }
    }
}

impl Mount {
    pub(crate) fn new(
        id: u64,
        root: Arc<dyn Vnode>,
        at: Option<Location>,
        how: &MountRequest<'_>,
    ) -> Arc<Mount> {
        if let Some(fs) = root.file_system() {
            fs.mounted();
        }
        Arc::new(Mount {
            id,
            root,
            at: SpinLock::new(Rank::Leaf, at),
            fstype: how.fstype,
            source: how.source.into(),
            options: SpinLock::new(Rank::Leaf, how.options.into()),
            flags: AtomicU32::new(how.flags.bits()),
            attached: AtomicBool::new(true),
            expiring: AtomicBool::new(false),
            children: CpuRwLock::new(crate::rank::COVERED, Vec::new()),
        })
    }

    /// Creates an internal mount, which is in no tree, for vnodes without a path.
    pub fn internal(root: Arc<dyn Vnode>, fstype: &'static str) -> Arc<Mount> {
        let how = MountRequest {
            source: b"none",
            ..MountRequest::plain(fstype)
        };
        Mount::new(0, root, None, &how)
    }

    /// Returns a location in no tree, for a vnode without a name.
    pub fn nameless(vnode: Arc<dyn Vnode>, fstype: &'static str) -> Location {
        Location::of_mount(&Mount::internal(vnode, fstype))
    }

    /// Returns its root.
    pub fn root(&self) -> &Arc<dyn Vnode> {
        &self.root
    }

    /// Returns its mount point; `None` for the root mount.
    pub fn at(&self) -> Option<Location> {
        self.at.lock().clone()
    }

    /// Sets its mount point; returns the old one, to be dropped when no lock is held.
    #[must_use]
    pub(crate) fn set_at(&self, at: Option<Location>) -> Option<Location> {
        core::mem::replace(&mut *self.at.lock(), at)
    }

    /// Returns its unique number (`mountinfo`, `statx`).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Tells whether it is internal, in no tree ([`Mount::internal`], [`Mount::nameless`]).
    pub fn is_internal(&self) -> bool {
        self.id == 0
    }

    /// The file system's name.
    pub fn fstype(&self) -> &'static str {
        self.fstype
    }

    /// The source, as `/proc/mounts` shows it.
    pub fn source(&self) -> &[u8] {
        &self.source
    }

    /// Returns the file system's own options.
    pub fn options(&self) -> Arc<[u8]> {
        self.options.lock().clone()
    }

    pub(crate) fn set_options(&self, options: &[u8]) {
        let options = options.into();
        let old = core::mem::replace(&mut *self.options.lock(), options);
        drop(old);
    }

    /// Returns its flags.
    pub fn flags(&self) -> MountFlags {
        MountFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    pub(crate) fn set_flags(&self, flags: MountFlags) {
        self.flags.store(flags.bits(), Ordering::Relaxed);
    }

    /// Tells whether all of `flags` are set.
    #[inline]
    pub fn has(&self, flags: MountFlags) -> bool {
        self.flags().contains(flags)
    }

    /// Tells whether nothing may be changed through it.
    pub fn is_read_only(&self) -> bool {
        self.has(MountFlags::READ_ONLY)
            || self.root.file_system().is_some_and(|fs| fs.is_read_only())
    }

    /// Fails if nothing may be changed through it.
    ///
    /// # Errors
    /// `EROFS`.
    pub(crate) fn require_writable(&self) -> Result<()> {
        Errno::EROFS.unless(!self.is_read_only())
    }

    /// Returns the topmost mount on `vnode` of this mount. To be called only where the vnode's
    /// mount point is covered.
    pub(crate) fn over(&self, vnode: &Arc<dyn Vnode>) -> Option<Arc<Mount>> {
        let children = self.children.read();
        let over = children
            .iter()
            .rev()
            .find(|(covered, _)| same_vnode(covered, vnode));
        over.map(|(_, mount)| mount.clone())
    }
}

impl Drop for Mount {
    /// The mount point may be on a mount that has no other owner, and so on down a stack of any
    /// height: a loop drops them, not recursion.
    fn drop(&mut self) {
        if let Some(fs) = self.root.file_system() {
            fs.unmounted();
        }
        let mut at = self.at.get_mut().take();
        while let Some(Location { mount, .. }) = at {
            at = Arc::into_inner(mount).and_then(|mut mount| mount.at.get_mut().take());
        }
    }
}
