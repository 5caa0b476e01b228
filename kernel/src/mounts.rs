//! The tree of mounts, and the file systems that `mount` knows by name.

use alloc::{sync::Arc, vec::Vec};

use abi::{Errno, Result};
use fs::{Kind, MountFlags, MountRequest, Namespace, Vnode, Walk, block, ext2, ramfs, vnode::Make};
use nucleus::sync::{Rank, SpinLock};

use crate::{
    device,
    ipc::mqueue,
    pseudofs::{proc, sys},
    tty::pty::devpts,
};

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
    pub make: fn(&Wanted<'_>) -> Result<Arc<dyn Vnode>>,
}

/// What is to be mounted.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
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
    const fn bare(
        name: &'static str,
        make: fn(&Wanted<'_>) -> Result<Arc<dyn Vnode>>,
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

/// The machine is about to stop: everything is written back, and nothing changes on disks after this.
pub fn shut_down() {
    for root in namespace().roots() {
        // Nobody is left who could be told of an error.
        let _ = root.sync();
    }
    ext2::shut_down();
    block::sync_all();
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

/// The file system that `mount -t name` asks for, with the name that `/proc/mounts` shows. Where it is on a device, `walk`
/// finds the device's node.
///
/// # Errors
/// `ENODEV` for an unknown name, `ENOTBLK` if `source` must be a block device and is none, those of the walk to
/// it, and those of the file system.
pub fn make(
    name: &[u8],
    wanted: Wanted<'_>,
    walk: &Walk<'_>,
) -> Result<(&'static str, Arc<dyn Vnode>)> {
    let found = find(name)?;
    let device = match found.on_device {
        true => device_at(wanted.source, walk)?,
        false => 0,
    };
    let wanted = Wanted { device, ..wanted };
    Ok((found.name, (found.make)(&wanted)?))
}

/// As [`make`], for the root of all: no node leads to its device yet, whose number is known.
///
/// # Errors
/// `ENODEV` for an unknown name, and those of the file system.
pub fn make_root(name: &[u8], wanted: &Wanted<'_>) -> Result<(&'static str, Arc<dyn Vnode>)> {
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

/// The number of the block device whose node is at `path`.
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

/// The file systems that are always there.
const ALWAYS: &[FileSystem] = &[
    FileSystem::bare("proc", |_| Ok(proc::root())),
    FileSystem::bare("sysfs", |_| Ok(sys::root())),
    FileSystem::bare("devtmpfs", |_| device::root()),
    FileSystem::bare("devpts", |wanted| devpts::root(wanted.options)),
    FileSystem::bare("tmpfs", in_memory),
    FileSystem::bare("mqueue", |_| Ok(mqueue::root())),
    FileSystem::bare("ramfs", in_memory),
    FileSystem {
        name: "ext2",
        on_device: true,
        make: |wanted| {
            let device = block::by_number(wanted.device).ok_or(Errno::ENXIO)?;
            ext2::mount(&device, wanted.options, wanted.read_only)
        },
    },
    FileSystem::bare("9p", |wanted| {
        device::share::mount(wanted.source, wanted.options)
    }),
];

fn in_memory(wanted: &Wanted<'_>) -> Result<Arc<dyn Vnode>> {
    Ok(ramfs::root(ramfs::Options::parse(wanted.options)?))
}

/// No set-id bits, no devices, no programs: file systems that are made up.
const BARE: MountFlags = MountFlags::NO_SET_ID
    .union(MountFlags::NO_DEVICES)
    .union(MountFlags::NO_EXECUTE);
/// No set-id bits and no devices: everybody may write there, and no package keeps programs there.
const SHARED: MountFlags = MountFlags::NO_SET_ID.union(MountFlags::NO_DEVICES);

/// What is mounted at start on every root, and then on one that stays from boot to boot: path, file system, flags, options, mode of a directory that has to be made for it.
const AT_START: &[(&[u8], &str, MountFlags, &[u8], u32)] = &[
    (b"/proc", "proc", BARE, b"", 0o555),
    (b"/sys", "sysfs", BARE, b"", 0o555),
    (
        b"/dev",
        "devtmpfs",
        MountFlags::NO_SET_ID,
        b"mode=755",
        0o755,
    ),
    (
        b"/dev/pts",
        "devpts",
        MountFlags::NO_SET_ID.union(MountFlags::NO_EXECUTE),
        b"gid=5,mode=620,ptmxmode=666",
        0o755,
    ),
    (b"/dev/shm", "tmpfs", SHARED, b"mode=1777", 0o1777),
    (b"/dev/mqueue", "mqueue", BARE, b"", 0o1777),
    (b"/tmp", "tmpfs", MountFlags::empty(), b"mode=1777", 0o1777),
];
const ON_DISK: &[(&[u8], &str, MountFlags, &[u8], u32)] =
    &[(b"/run", "tmpfs", SHARED, b"mode=755", 0o755)];

/// Makes devices and file systems known by name.
///
/// # Errors
/// `EBUSY` and `ENOSPC` if there is no room for them.
pub fn register_all() -> Result<()> {
    device::register()?;
    for fs in ALWAYS {
        register(*fs)?;
    }
    Ok(())
}

/// Sets the tree of mounts and mounts what every Linux program expects, where there is such a directory or one can be
/// made. `on_disk`: the root was there before, with what the last boot left.
///
/// # Errors
/// Those of making the nodes in `/dev`.
pub fn start(namespace: Arc<Namespace>, on_disk: bool) -> Result<()> {
    set_namespace(namespace.clone());
    let root = namespace.root();
    let who = fs::Credentials::default();
    let walk = fs::Walk {
        root: &root,
        start: &root,
        who: &who,
    };
    let also = if on_disk { ON_DISK } else { &[] };
    for &(path, name, flags, options, mode) in AT_START.iter().chain(also) {
        // A root that is there already may have the directory, or have something else by that name.
        let at = match walk.make(path, Make::Directory, mode) {
            Ok(place) => Ok(place),
            Err(_) => walk.resolve(path, true),
        };
        let Ok(at) = at else { continue };
        if at.vnode().kind() != Kind::Directory {
            continue;
        }
        let wanted = Wanted {
            source: name.as_bytes(),
            device: 0,
            options,
            read_only: false,
        };
        let (fstype, root) = make(name.as_bytes(), wanted, &walk)?;
        let how = MountRequest {
            options,
            flags: MountFlags::RELATIVE_ACCESS_TIMES | flags,
            ..MountRequest::plain(fstype)
        };
        namespace.mount(&at, root, &how)?;
    }
    Ok(())
}
