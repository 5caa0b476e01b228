//! File systems over places of others.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::raw::general::{
    MS_DIRSYNC, MS_NOATIME, MS_NODEV, MS_NODIRATIME, MS_NOEXEC, MS_NOSUID, MS_NOSYMFOLLOW,
    MS_RDONLY, MS_RELATIME, MS_STRICTATIME, MS_SYNCHRONOUS,
};
use bitflags::bitflags;
use nucleus::sync::{CpuRwLock, Rank, SpinLock};

use super::{Location, Vnode, location::same_vnode};

bitflags! {
    /// What holds for all that is reached through a mount, in the values of `mount`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MountFlags: u32 {
        const READ_ONLY = MS_RDONLY;
        /// Set-id bits and file capabilities have no effect.
        const NO_SET_ID = MS_NOSUID;
        /// Device nodes can't be opened.
        const NO_DEVICES = MS_NODEV;
        /// Nothing is executed.
        const NO_EXECUTE = MS_NOEXEC;
        /// Symbolic links are not followed.
        const NO_LINKS = MS_NOSYMFOLLOW;
        /// Reading is not noted in access times.
        const NO_ACCESS_TIMES = MS_NOATIME;
        /// The same for directories.
        const NO_DIRECTORY_ACCESS_TIMES = MS_NODIRATIME;
        /// Each read is noted, rather than one after each change and one a day.
        const STRICT_ACCESS_TIMES = MS_STRICTATIME;
        /// The usual way to note reading; shown, no difference.
        const RELATIVE_ACCESS_TIMES = MS_RELATIME;
        /// Writes and changes of directories wait until they survive.
        const SYNCHRONOUS = MS_SYNCHRONOUS;
        /// Changes of directories do.
        const SYNCHRONOUS_DIRECTORIES = MS_DIRSYNC;
    }
}

impl MountFlags {
    /// The words for them in `/proc/mounts`, behind `ro` or `rw`.
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
    /// What it covers; `None` for the root mount and what is in no tree. Changes under the table's lock.
    at: SpinLock<Option<Location>>,
    fstype: &'static str,
    source: Vec<u8>,
    /// Options of the file system's own.
    options: SpinLock<Arc<[u8]>>,
    flags: AtomicU32,
    /// In the tree, rather than taken off by a lazy unmount.
    pub(crate) attached: AtomicBool,
    /// An unmount asked whether it is unused (`MNT_EXPIRE`).
    pub(crate) expiring: AtomicBool,
    /// What is mounted on vnodes of this mount, with the vnode: the last one on a vnode is on top.
    pub(crate) children: CpuRwLock<Vec<(Arc<dyn Vnode>, Arc<Mount>)>>,
}

/// How a mount is to be.
#[derive(Clone)]
pub struct MountRequest<'a> {
    /// The file system's name.
    pub fstype: &'static str,
    /// What `/proc/mounts` shows as its source.
    pub source: &'a [u8],
    pub flags: MountFlags,
    /// Options of the file system's own, as `/proc/mounts` shows them.
    pub options: &'a [u8],
}

impl<'a> MountRequest<'a> {
    /// A file system that is its own source, without options.
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
            children: CpuRwLock::new(Rank::Covered, Vec::new()),
        })
    }

    /// A mount of the kernel's own that is in no tree, for vnodes without a path.
    pub fn internal(root: Arc<dyn Vnode>, fstype: &'static str) -> Arc<Mount> {
        let how = MountRequest {
            source: b"none",
            ..MountRequest::plain(fstype)
        };
        Mount::new(0, root, None, &how)
    }

    /// A place outside of every tree, for what has a vnode but no name.
    pub fn nameless(vnode: Arc<dyn Vnode>, fstype: &'static str) -> Location {
        Location::of_mount(&Mount::internal(vnode, fstype))
    }

    /// Its root.
    pub fn root(&self) -> &Arc<dyn Vnode> {
        &self.root
    }

    /// What it covers; `None` for the root mount.
    pub fn at(&self) -> Option<Location> {
        self.at.lock().clone()
    }

    /// Sets what it covers; returns what it did, to be dropped when no lock is held.
    #[must_use]
    pub(crate) fn set_at(&self, at: Option<Location>) -> Option<Location> {
        core::mem::replace(&mut *self.at.lock(), at)
    }

    /// A number of its own (`mountinfo`, `statx`).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether it is a mount of the kernel's own, in no tree ([`Mount::internal`], [`Mount::nameless`]).
    pub fn is_internal(&self) -> bool {
        self.id == 0
    }

    /// The file system's name.
    pub fn fstype(&self) -> &'static str {
        self.fstype
    }

    /// What `/proc/mounts` shows as its source.
    pub fn source(&self) -> &[u8] {
        &self.source
    }

    /// The options of the file system's own.
    pub fn options(&self) -> Arc<[u8]> {
        self.options.lock().clone()
    }

    pub(crate) fn set_options(&self, options: &[u8]) {
        let options = options.into();
        let old = core::mem::replace(&mut *self.options.lock(), options);
        drop(old);
    }

    /// What holds for all that is reached through it.
    pub fn flags(&self) -> MountFlags {
        MountFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    pub(crate) fn set_flags(&self, flags: MountFlags) {
        self.flags.store(flags.bits(), Ordering::Relaxed);
    }

    /// Whether all of `flags` hold.
    #[inline]
    pub fn has(&self, flags: MountFlags) -> bool {
        self.flags().contains(flags)
    }

    /// Whether nothing may be changed through it.
    pub fn is_read_only(&self) -> bool {
        self.has(MountFlags::READ_ONLY)
            || self.root.file_system().is_some_and(|fs| fs.is_read_only())
    }

    /// What is mounted on `vnode` of this mount, or `None`. To be called only where the vnode's mount point is covered.
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
    /// What it covers may be on a mount that nobody else holds, and so on down a pile of any height: in a loop.
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
