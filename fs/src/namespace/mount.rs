//! File systems over places of others.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{Errno, Result};
use nucleus::sync::{CpuRwLock, Mutex, Rank};

use super::{Location, location::same_vnode};
use crate::{Kind, Vnode};

/// The most mounts. A walk may have to pass all of them where they are piled up.
const MOUNTS_MAX: usize = 4096;

/// A mounted file system, or part of one.
pub struct Mount {
    id: u64,
    root: Arc<dyn Vnode>,
    /// What it covers; `None` for the root mount.
    at: Option<Location>,
    fstype: &'static str,
    source: Vec<u8>,
    options: Mutex<Vec<u8>>,
    read_only: AtomicBool,
    /// In the tree, rather than taken off by a lazy unmount.
    attached: AtomicBool,
    /// What is mounted on vnodes of this mount: the last one on a vnode is on top.
    children: CpuRwLock<Vec<Arc<Mount>>>,
}

impl Mount {
    fn new(
        id: u64,
        root: Arc<dyn Vnode>,
        at: Option<Location>,
        fstype: &'static str,
        source: &[u8],
        options: &[u8],
    ) -> Arc<Mount> {
        Arc::new(Mount {
            id,
            root,
            at,
            fstype,
            source: source.into(),
            options: Mutex::new(Rank::Mount, options.into()),
            read_only: AtomicBool::new(says_read_only(options)),
            attached: AtomicBool::new(true),
            children: CpuRwLock::new(Rank::Covered, Vec::new()),
        })
    }

    /// A mount of the kernel's own that is in no tree, for vnodes without a path.
    pub fn internal(root: Arc<dyn Vnode>, fstype: &'static str) -> Arc<Mount> {
        Mount::new(0, root, None, fstype, b"none", b"rw")
    }

    /// A place outside of every tree, for what has a vnode but no name.
    pub fn nameless(vnode: Arc<dyn Vnode>, fstype: &'static str) -> Location {
        Location::of_mount(&Mount::new(0, vnode, None, fstype, b"none", b"rw"))
    }

    /// Its root.
    pub fn root(&self) -> &Arc<dyn Vnode> {
        &self.root
    }

    /// What it covers; `None` for the root mount.
    pub fn at(&self) -> Option<&Location> {
        self.at.as_ref()
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

    /// Whether nothing may be changed through it.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// What is mounted on `vnode` of this mount, or `None`. To be called only where the vnode's mount point is covered.
    pub(super) fn over(&self, vnode: &Arc<dyn Vnode>) -> Option<Arc<Mount>> {
        let children = self.children.read();
        let over = children.iter().rev().find(|child| {
            child
                .at
                .as_ref()
                .is_some_and(|at| same_vnode(&at.vnode, vnode))
        });
        over.cloned()
    }
}

impl Drop for Mount {
    /// What it covers may be on a mount that nobody else holds, and so on down a pile of any height: in a loop.
    fn drop(&mut self) {
        let mut at = self.at.take();
        while let Some(Location { mount, .. }) = at {
            at = Arc::into_inner(mount).and_then(|mut mount| mount.at.take());
        }
    }
}

fn says_read_only(options: &[u8]) -> bool {
    options.split(|&b| b == b',').any(|option| option == b"ro")
}

/// The tree of mounts that processes see.
pub struct Namespace {
    root: Arc<Mount>,
    table: Mutex<Table>,
}

struct Table {
    /// All mounts, the root mount first, in the order of mounting.
    mounts: Vec<Arc<Mount>>,
    next_id: u64,
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
        let root = Mount::new(1, root, None, fstype, fstype.as_bytes(), b"rw");
        Arc::new(Namespace {
            table: Mutex::new(
                Rank::Mount,
                Table {
                    mounts: alloc::vec![root.clone()],
                    next_id: 2,
                },
            ),
            root,
        })
    }

    /// The root of the root mount.
    pub fn root(&self) -> Location {
        Location::of_mount(&self.root)
    }

    /// Mounts a file system whose root vnode is `root` (or, to bind, a vnode of another one) over `at`. A word `ro` in `options`
    /// makes it read-only.
    ///
    /// # Errors
    /// `ENOTDIR` if just one of both is a directory, `EINVAL` if nothing can be mounted there, `ENOSPC` for one mount too many.
    pub fn mount(
        &self,
        at: &Location,
        root: Arc<dyn Vnode>,
        fstype: &'static str,
        source: &[u8],
        options: &[u8],
    ) -> Result<()> {
        if (at.vnode.kind() == Kind::Directory) != (root.kind() == Kind::Directory) {
            return Err(Errno::ENOTDIR);
        }
        let covered = at.vnode.mount_point().ok_or(Errno::EINVAL)?;
        let mut table = self.table.lock();
        if !at.mount.attached.load(Ordering::Relaxed) || at.is_removed() {
            return Err(Errno::EINVAL);
        }
        if table.mounts.len() >= MOUNTS_MAX {
            return Err(Errno::ENOSPC);
        }
        table.mounts.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let mut children = at.mount.children.write();
        children.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let id = table.next_id;
        let mount = Mount::new(id, root, Some(at.clone()), fstype, source, options);
        table.next_id += 1;
        table.mounts.push(mount.clone());
        children.push(mount);
        covered.cover();
        Ok(())
    }

    /// Changes the options of the mount at `at` (`MS_REMOUNT`).
    ///
    /// # Errors
    /// `EINVAL` if `at` is not the root of a mount.
    pub fn remount(&self, at: &Location, options: &[u8]) -> Result<()> {
        if !at.is_mount_root() {
            return Err(Errno::EINVAL);
        }
        at.mount
            .read_only
            .store(says_read_only(options), Ordering::Relaxed);
        *at.mount.options.lock() = options.into();
        Ok(())
    }

    /// Unmounts what is mounted at `at` (the root of a mount), which the caller holds once. `lazy`: even if it is in use, with
    /// all that is mounted on it; who uses it may go on.
    ///
    /// # Errors
    /// `EINVAL` if it is no mount's root, `EBUSY` if it is in use.
    pub fn unmount(&self, at: &Location, lazy: bool) -> Result<()> {
        let mount = &at.mount;
        if !at.is_mount_root() {
            return Err(Errno::EINVAL);
        }
        let mut table = self.table.lock();
        if !mount.attached.load(Ordering::Relaxed) || mount.at.is_none() {
            return Err(Errno::EINVAL);
        }
        // One reference in the table, one with what it covers, one in the caller's hand.
        if !lazy && (Arc::strong_count(mount) > 3 || !mount.children.read().is_empty()) {
            return Err(Errno::EBUSY);
        }
        let mut gone = alloc::vec![mount.clone()];
        let mut next = 0;
        while next < gone.len() {
            let children = core::mem::take(&mut *gone[next].children.write());
            gone.extend(children);
            next += 1;
        }
        for mount in &gone {
            mount.attached.store(false, Ordering::Relaxed);
            if let Some(at) = &mount.at {
                at.mount
                    .children
                    .write()
                    .retain(|child| !Arc::ptr_eq(child, mount));
                if let Some(covered) = at.vnode.mount_point() {
                    covered.uncover();
                }
            }
        }
        table
            .mounts
            .retain(|mount| mount.attached.load(Ordering::Relaxed));
        drop(table);
        // Only now may the last reference to a whole file system go.
        drop(gone);
        Ok(())
    }

    /// All mounts, in the order of mounting.
    pub fn all(&self) -> Vec<Arc<Mount>> {
        self.table.lock().mounts.clone()
    }

    /// What `/proc/mounts` shows.
    pub fn mounts(&self) -> Vec<MountLine> {
        let mounts = self.table.lock().mounts.clone();
        let root = self.root();
        let lines = mounts.iter().map(|mount| MountLine {
            source: mount.source.clone(),
            at: match &mount.at {
                Some(at) => at.path(&root),
                None => b"/".to_vec(),
            },
            fstype: mount.fstype,
            options: mount.options.lock().clone(),
        });
        lines.collect()
    }
}
