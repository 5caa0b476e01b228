//! The tree of mounts, and the table of file systems that `mount` knows by name.

use alloc::{sync::Arc, vec::Vec};

use abi::{Errno, Result};
use fs::{Kind, MountFlags, Namespace, Vnode, Walk};
use nucleus::sync::{Rank, SpinLock};

static NAMESPACE: SpinLock<Option<Arc<Namespace>>> = SpinLock::new(Rank::Leaf, None);

/// A file system that `mount` knows by name.
#[derive(Clone, Copy)]
pub struct FileSystem {
    /// As `mount -t` and `/proc/filesystems` have it.
    pub name: &'static str,
    /// Whether its source is a block device.
    pub on_device: bool,
    /// Finds or makes its root.
    ///
    /// Errors: `EINVAL` for bad options, and its own.
    pub make: fn(&MountSource<'_>) -> Result<Arc<dyn Vnode>>,
}

/// The parameters of a mount.
#[derive(Clone, Copy)]
pub struct MountSource<'a> {
    /// The source, as `mount` has it.
    pub source: &'a [u8],
    /// The number of the block device that `source` names, for a file system on one; else 0.
    pub device: u64,
    /// The words that are the file system's own.
    pub options: &'a [u8],
    /// Whether nothing may be written.
    pub read_only: bool,
}

impl FileSystem {
    /// One that needs no device.
    pub const fn bare(
        name: &'static str,
        make: fn(&MountSource<'_>) -> Result<Arc<dyn Vnode>>,
    ) -> FileSystem {
        FileSystem {
            name,
            on_device: false,
            make,
        }
    }
}

/// Room for file systems.
const TYPES: usize = 16;

static KNOWN: SpinLock<[Option<FileSystem>; TYPES]> = SpinLock::new(Rank::Leaf, [None; TYPES]);

/// From now on `mount` knows `new`, which takes the place of one with the same name.
///
/// # Errors
/// `ENOSPC` when the table is full.
pub fn register(new: FileSystem) -> Result<()> {
    let mut known = KNOWN.lock();
    let place = known
        .iter()
        .position(|slot| slot.is_none_or(|old| old.name == new.name));
    known[place.ok_or(Errno::ENOSPC)?] = Some(new);
    Ok(())
}

/// The file systems that `mount` knows, for `/proc/filesystems`.
pub fn known() -> Vec<FileSystem> {
    let known = *KNOWN.lock();
    known.into_iter().flatten().collect()
}

/// Sets the one tree of mounts, at start.
pub fn set_namespace(namespace: Arc<Namespace>) {
    *NAMESPACE.lock() = Some(namespace);
}

/// The tree of mounts.
///
/// # Panics
/// Before [`set_namespace`]: nothing that mounts or names a file runs then.
pub fn namespace() -> Arc<Namespace> {
    let namespace = NAMESPACE.lock().clone();
    namespace.expect("the root is mounted before the first program runs")
}

/// The file system that `mount -t name` asks for, with the name that `/proc/mounts` shows. Where it
/// is on a device, `walk` finds the device's node.
///
/// # Errors
/// `ENODEV` for an unknown name, `ENOTBLK` if `source` must be a block device and is none, those of
/// the walk to it, and those of the file system.
pub fn make(
    name: &[u8],
    wanted: MountSource<'_>,
    walk: &Walk<'_>,
) -> Result<(&'static str, Arc<dyn Vnode>)> {
    let found = find(name)?;
    let device = match found.on_device {
        true => device_at(wanted.source, walk)?,
        false => 0,
    };
    let wanted = MountSource { device, ..wanted };
    Ok((found.name, (found.make)(&wanted)?))
}

/// Mounts the root of all, as [`make`] does: no node leads to its device yet, whose number is
/// known.
///
/// # Errors
/// `ENODEV` for an unknown name, and those of the file system.
pub fn make_root(name: &[u8], wanted: &MountSource<'_>) -> Result<(&'static str, Arc<dyn Vnode>)> {
    let found = find(name)?;
    Ok((found.name, (found.make)(wanted)?))
}

fn find(name: &[u8]) -> Result<FileSystem> {
    let known = *KNOWN.lock();
    let mut known = known.into_iter().flatten();
    known
        .find(|fs| fs.name.as_bytes() == name)
        .ok_or(Errno::ENODEV)
}

/// Returns the number of the block device whose node is at `path`.
fn device_at(path: &[u8], walk: &Walk<'_>) -> Result<u64> {
    let place = walk.resolve(path, true)?;
    if place.vnode().kind() != Kind::BlockDevice {
        return Err(Errno::ENOTBLK);
    }
    if place.mount().has(MountFlags::NO_DEVICES) {
        return Err(Errno::EACCES);
    }
    Ok(place.attributes()?.rdev)
}
