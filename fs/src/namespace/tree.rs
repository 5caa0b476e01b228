//! The tree of mounts.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::Ordering;

use abi::{Errno, Result};
use nucleus::{
    Pieces,
    sync::{Mutex, Rank, SpinLock},
};

use super::moving::Moving;
use crate::{
    Kind, Location, Mount, MountFlags, MountRequest, Vnode,
    vnode::{is_below, same_vnode},
};

/// The most mounts. A walk may have to pass all of them where they are stacked.
const MOUNTS_MAX: usize = 4096;

/// The tree of mounts that processes see.
pub struct Namespace {
    root: SpinLock<Arc<Mount>>,
    table: Mutex<MountTable>,
}

struct MountTable {
    /// All mounts, the root mount first, in the order of mounting.
    mounts: Vec<Arc<Mount>>,
    next_id: u64,
}

/// One line of `/proc/mounts`.
#[allow(missing_docs)]
pub struct MountLine {
    pub mount: Arc<Mount>,
    /// The path of the mount point.
    pub at: Vec<u8>,
}

impl MountTable {
    /// Reserves room for a mount.
    fn reserve(&mut self) -> Result<()> {
        if self.mounts.len() >= MOUNTS_MAX {
            return Err(Errno::ENOSPC);
        }
        self.mounts.try_reserve(1).map_err(|_| Errno::ENOMEM)
    }

    /// Adds a new mount over `at`.
    fn add(
        &mut self,
        at: &Location,
        root: Arc<dyn Vnode>,
        how: &MountRequest<'_>,
    ) -> Result<Arc<Mount>> {
        self.reserve()?;
        let mount = Mount::new(self.next_id, root, Some(at.clone()), how);
        attach(at, &mount)?;
        mount.count_by_cpu();
        self.next_id += 1;
        self.mounts.push(mount.clone());
        Ok(mount)
    }
}

/// Adds `mount` where walks find it.
fn attach(at: &Location, mount: &Arc<Mount>) -> Result<()> {
    let covered = at.vnode.mount_point().ok_or(Errno::EINVAL)?;
    let _moving = Moving::begin();
    let mut children = at.mount.children.write();
    children.try_reserve(1)?;
    children.push((at.vnode.clone(), mount.clone()));
    covered.cover();
    Ok(())
}

/// Removes `mount` from where walks find it.
fn detach(at: &Location, mount: &Arc<Mount>) {
    let _moving = Moving::begin();
    let gone: Vec<_> = at
        .mount
        .children
        .write()
        .extract_if(.., |(covered, child)| {
            child.is_same_mount(mount) && same_vnode(covered, &at.vnode)
        })
        .collect();
    for _ in &gone {
        if let Some(covered) = at.vnode.mount_point() {
            covered.uncover();
        }
    }
}

/// Checks that `at` can be a mount point.
fn may_cover(at: &Location, root: &Arc<dyn Vnode>) -> Result<()> {
    if (at.vnode.kind() == Kind::Directory) != (root.kind() == Kind::Directory) {
        return Err(Errno::ENOTDIR);
    }
    at.vnode.mount_point().ok_or(Errno::EINVAL)?;
    Ok(())
}

/// Tells whether the location is in the tree and has a name.
fn check_attached(at: &Location) -> Result<()> {
    if !at.mount.attached.load(Ordering::Relaxed) || at.is_removed() {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

impl Namespace {
    /// Creates a namespace whose root is `root`'s file system.
    pub fn new(root: Arc<dyn Vnode>, fstype: &'static str) -> Arc<Namespace> {
        Namespace::with_root(root, &MountRequest::plain(fstype))
    }

    /// As [`new`](Namespace::new), mounted as `how` says.
    pub fn with_root(root: Arc<dyn Vnode>, how: &MountRequest<'_>) -> Arc<Namespace> {
        let root = Mount::new(1, root, None, how);
        root.count_by_cpu();
        Arc::new(Namespace {
            table: Mutex::new(
                crate::rank::MOUNT,
                MountTable {
                    mounts: alloc::vec![root.clone()],
                    next_id: 2,
                },
            ),
            root: SpinLock::new(Rank::Leaf, root),
        })
    }

    /// Returns the root of the root mount.
    pub fn root(&self) -> Location {
        let root = self.root.lock().clone();
        Location::of_mount(&root)
    }

    /// Mounts a file system whose root vnode is `root` over `at`.
    ///
    /// # Errors
    /// `ENOTDIR` if only one of both is a directory, `EINVAL` if `at` can't be a mount point,
    /// `ENOSPC` for one mount too many.
    pub fn mount(&self, at: &Location, root: Arc<dyn Vnode>, how: &MountRequest<'_>) -> Result<()> {
        let mount = || {
            may_cover(at, &root)?;
            let mut table = self.table.lock();
            check_attached(at)?;
            table.add(at, root.clone(), how)
        };
        let mounted = mount();
        if mounted.is_err() {
            // A file system on a disk ends with its last mount, and this one has had none yet.
            drop(Mount::internal(root, how.fstype));
        }
        mounted.map(|_| ())
    }

    /// Mounts the directory or file at `from` over `at`, too (`MS_BIND`); with `all`, the mounts
    /// below it as well (`MS_REC`).
    ///
    /// # Errors
    /// As [`mount`](Namespace::mount).
    pub fn bind(&self, at: &Location, from: &Location, all: bool) -> Result<()> {
        may_cover(at, &from.vnode)?;
        let mut table = self.table.lock();
        check_attached(at)?;
        if !from.mount.is_internal() && !from.mount.attached.load(Ordering::Relaxed) {
            return Err(Errno::EINVAL);
        }
        // The mounts to copy are collected before the copy, which may lie below itself.
        let mut copies: Vec<(Arc<Mount>, Location)> = Vec::new();
        if all {
            let below = from.mount.children.read().clone();
            let below = below
                .into_iter()
                .filter(|(covered, _)| is_below(&**covered, &*from.vnode));
            copies.extend(below.filter_map(|(_, child)| Some((child.clone(), child.at()?))));
            let mut next = 0;
            while next < copies.len() && copies.len() < MOUNTS_MAX {
                let children = copies[next].0.children.read().clone();
                copies.extend(
                    children
                        .into_iter()
                        .filter_map(|(_, child)| Some((child.clone(), child.at()?))),
                );
                next += 1;
            }
        }
        let copy =
            |table: &mut MountTable, old: &Arc<Mount>, root: &Arc<dyn Vnode>, at: &Location| {
                let options = old.options();
                let how = MountRequest {
                    fstype: old.fstype(),
                    source: old.source(),
                    flags: old.flags(),
                    options: &options,
                };
                table.add(at, root.clone(), &how)
            };
        let first = copy(&mut table, &from.mount, &from.vnode, at)?;
        let mut made = alloc::vec![(from.mount.clone(), first)];
        for (old, old_at) in copies {
            let Some((_, parent)) = made
                .iter()
                .rev()
                .find(|(source, _)| source.is_same_mount(&old_at.mount))
            else {
                continue;
            };
            let at = Location {
                mount: parent.clone(),
                vnode: old_at.vnode.clone(),
                reached: old_at.reached.clone(),
            };
            let root = old.root().clone();
            let new = copy(&mut table, &old, &root, &at)?;
            made.try_reserve(1)?;
            made.push((old, new));
        }
        Ok(())
    }

    /// Changes the flags of the mount at `at` (`MS_REMOUNT | MS_BIND`), and with `options` those of
    /// its file system (`MS_REMOUNT`).
    ///
    /// # Errors
    /// `EINVAL` if `at` is not the root of a mount, and those of the file system.
    pub fn remount(&self, at: &Location, flags: MountFlags, options: Option<&[u8]>) -> Result<()> {
        if !at.is_mount_root() || at.mount.is_internal() {
            return Err(Errno::EINVAL);
        }
        if let Some(options) = options {
            if let Some(fs) = at.vnode.file_system() {
                fs.reconfigure(options, flags.contains(MountFlags::READ_ONLY))?;
            }
            if !options.is_empty() {
                at.mount.set_options(options);
            }
        }
        at.mount.set_flags(flags);
        Ok(())
    }

    /// Moves the mount at `from` over `at` (`MS_MOVE`).
    ///
    /// # Errors
    /// `EINVAL` if `from` is not the root of a mount or is the root of all, `ELOOP` if `at` lies
    /// below it, and those of [`mount`](Namespace::mount).
    pub fn move_mount(&self, from: &Location, at: &Location) -> Result<()> {
        if !from.is_mount_root() {
            return Err(Errno::EINVAL);
        }
        may_cover(at, &from.vnode)?;
        let table = self.table.lock();
        let old = from.mount.at().ok_or(Errno::EINVAL)?;
        check_attached(from)?;
        check_attached(at)?;
        let mut up = Some(at.clone());
        while let Some(place) = up {
            if place.mount.is_same_mount(&from.mount) {
                return Err(Errno::ELOOP);
            }
            up = place.mount.at();
        }
        attach(at, &from.mount)?;
        detach(&old, &from.mount);
        let gone = from.mount.set_at(Some(at.clone()));
        drop(table);
        drop((gone, old));
        Ok(())
    }

    /// `pivot_root`: makes the mount at `new` the root of all, and mounts the old root over `put`,
    /// which lies below `new`. Returns the old root.
    ///
    /// # Errors
    /// `EBUSY` if `new` or `put` is on the root mount, `EINVAL` if `new` is not the root of a mount
    /// or `put` not below it.
    pub fn pivot(&self, new: &Location, put: &Location) -> Result<Location> {
        let table = self.table.lock();
        let old_root = self.root.lock().clone();
        if new.mount.is_same_mount(&old_root) || put.mount.is_same_mount(&old_root) {
            return Err(Errno::EBUSY);
        }
        let covers = new.mount.at().ok_or(Errno::EINVAL)?;
        if !new.is_mount_root() {
            return Err(Errno::EINVAL);
        }
        check_attached(new)?;
        check_attached(put)?;
        let mut up = Some(put.clone());
        while let Some(place) = &up
            && !place.mount.is_same_mount(&new.mount)
        {
            up = place.mount.at();
        }
        if up.is_none() {
            return Err(Errno::EINVAL);
        }
        may_cover(put, old_root.root())?;
        detach(&covers, &new.mount);
        let gone = new.mount.set_at(None);
        attach(put, &old_root)?;
        let none = old_root.set_at(Some(put.clone()));
        *self.root.lock() = new.mount.clone();
        drop(table);
        drop((gone, none, covers));
        Ok(Location::of_mount(&old_root))
    }

    /// Removes the mount at `at` (its root), to which the caller holds one reference. `lazy`: even
    /// if it is in use, with all mounts below it; its users keep it.
    ///
    /// # Errors
    /// `EINVAL` if it is not the root of a mount, `EBUSY` if it is in use.
    pub fn unmount(&self, at: &Location, lazy: bool) -> Result<()> {
        let mount = &at.mount;
        if !at.is_mount_root() {
            return Err(Errno::EINVAL);
        }
        if !lazy {
            // Most dirty data is written back before others have to wait for the table. `fsync`
            // reports errors.
            let _ = mount.root().sync(false);
        }
        let mut table = self.table.lock();
        if !mount.attached.load(Ordering::Relaxed) || mount.at().is_none() {
            return Err(Errno::EINVAL);
        }
        // One reference is in the table, one with the vnode that it covers, one the caller's.
        if !lazy && (mount.users() > 3 || !mount.children.read().is_empty()) {
            return Err(Errno::EBUSY);
        }
        if !lazy && let Some(over) = mount.at() {
            // Walks no longer enter it; those that have entered are counted.
            detach(&over, mount);
            let references = mount.gather();
            let references = references.expect("a mount in the table counts by CPU");
            let retired = match references.others() <= 2 && mount.children.read().is_empty() {
                true => mount.root().file_system().map_or(Ok(()), |fs| fs.retire()),
                false => Err(Errno::EBUSY),
            };
            if let Err(error) = retired {
                mount.resume_counting_by_cpu(references);
                attach(&over, mount)?;
                return Err(error);
            }
        }
        let mut gone = alloc::vec![mount.clone()];
        let mut next = 0;
        while next < gone.len() {
            let children = gone[next].children.read().clone();
            gone.extend(children.into_iter().map(|(_, child)| child));
            next += 1;
        }
        for mount in &gone {
            mount.attached.store(false, Ordering::Relaxed);
            // Their counts no longer keep it. The loop's reference does.
            drop(mount.gather());
            if let Some(at) = mount.at() {
                detach(&at, mount);
            }
        }
        table
            .mounts
            .retain(|mount| mount.attached.load(Ordering::Relaxed));
        drop(table);
        // The last reference to a file system may be dropped only now.
        drop(gone);
        Ok(())
    }

    /// `MNT_EXPIRE`: unmounts a mount that is not in use and was marked by an earlier call.
    ///
    /// # Errors
    /// `EAGAIN` the first time, and those of [`unmount`](Namespace::unmount).
    pub fn expire(&self, at: &Location) -> Result<()> {
        if !at.is_mount_root() {
            return Err(Errno::EINVAL);
        }
        if at.mount.users() > 3 {
            return Err(Errno::EBUSY);
        }
        if !at.mount.expiring.swap(true, Ordering::Relaxed) {
            return Err(Errno::EAGAIN);
        }
        self.unmount(at, false)
    }

    /// Returns the roots of all mounts, in the order of mounting. They keep no mount busy, which
    /// matters to a caller that takes long.
    pub fn roots(&self) -> Pieces<Arc<dyn Vnode>> {
        let table = self.table.lock();
        let roots = table.mounts.iter().map(|mount| mount.root().clone());
        roots.collect()
    }

    /// Returns how many pages the files have that are in memory only, those of each file system
    /// once however often it is mounted. Never waits for a server or a device.
    pub fn pages_in_memory(&self) -> u64 {
        let mut seen = Vec::new();
        let mut total = 0;
        for root in self.roots() {
            let pages = root.file_system().map_or(0, |it| it.pages_in_memory());
            if pages == 0 {
                continue;
            }
            if let Ok((device, _)) = root.identity()
                && !seen.contains(&device)
            {
                seen.push(device);
                total += pages;
            }
        }
        total
    }

    /// Returns all mounts, in the order of mounting. None can be unmounted while the list exists.
    pub fn all(&self) -> Pieces<Arc<Mount>> {
        self.table.lock().mounts.iter().cloned().collect()
    }

    /// Returns what `/proc/mounts` shows to a process whose root is `root`: the mounts that it can
    /// reach.
    pub fn mounts(&self, root: &Location) -> Pieces<MountLine> {
        let lines = self.all().into_iter().filter_map(|mount| {
            let at = Location::of_mount(&mount).path_below(root)?;
            Some(MountLine { mount, at })
        });
        lines.collect()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        for mount in &self.table.get_mut().mounts {
            drop(mount.gather());
        }
    }
}
