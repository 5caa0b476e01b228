//! The tree of mounts, and the file systems that `mount` knows by name.

use alloc::{sync::Arc, vec::Vec};

use abi::{Errno, Result};
use fs::{Kind, MountFlags, MountRequest, Namespace, Vnode, ramfs, vnode::Make};
use nucleus::sync::{Rank, SpinLock};

use crate::{device, mqueue, proc, sysfs, tty::pty::devpts};

static NAMESPACE: SpinLock<Option<Arc<Namespace>>> = SpinLock::new(Rank::Leaf, None);

/// A file system that `mount` knows by name.
#[derive(Clone, Copy)]
pub struct FileSystem {
    /// As `mount -t` and `/proc/filesystems` have it.
    pub name: &'static str,
    /// Makes its root from the source and the options of `mount`.
    ///
    /// Errors: `EINVAL` for bad options, and its own.
    pub make: fn(source: &[u8], options: &[u8]) -> Result<Arc<dyn Vnode>>,
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

/// The file system that `mount -t name` asks for, with the name that `/proc/mounts` shows.
///
/// # Errors
/// `ENODEV` for an unknown name, and those of the file system.
pub fn make(name: &[u8], source: &[u8], options: &[u8]) -> Result<(&'static str, Arc<dyn Vnode>)> {
    let known = *KNOWN.lock();
    let found = known
        .into_iter()
        .flatten()
        .find(|fs| fs.name.as_bytes() == name)
        .ok_or(Errno::ENODEV)?;
    Ok((found.name, (found.make)(source, options)?))
}

/// The file systems that are always there.
const ALWAYS: &[FileSystem] = &[
    FileSystem {
        name: "proc",
        make: |_, _| Ok(proc::root()),
    },
    FileSystem {
        name: "sysfs",
        make: |_, _| Ok(sysfs::root()),
    },
    FileSystem {
        name: "devtmpfs",
        make: |_, _| device::root(),
    },
    FileSystem {
        name: "devpts",
        make: |_, options| devpts::root(options),
    },
    FileSystem {
        name: "tmpfs",
        make: |_, options| Ok(ramfs::root(ramfs::Options::parse(options)?)),
    },
    FileSystem {
        name: "mqueue",
        make: |_, _| Ok(mqueue::root()),
    },
    FileSystem {
        name: "ramfs",
        make: |_, options| Ok(ramfs::root(ramfs::Options::parse(options)?)),
    },
    FileSystem {
        name: "9p",
        make: device::share::mount,
    },
];

/// No set-id bits, no devices, no programs: file systems that are made up.
const BARE: MountFlags = MountFlags::NO_SET_ID
    .union(MountFlags::NO_DEVICES)
    .union(MountFlags::NO_EXECUTE);
/// No set-id bits and no devices: everybody may write there, and no package keeps programs there.
const SHARED: MountFlags = MountFlags::NO_SET_ID.union(MountFlags::NO_DEVICES);

/// What is mounted at start: path, file system, flags, options, mode of a directory that has to be made for it.
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

/// Sets the tree of mounts and mounts what every Linux program expects, where there is such a directory or one can be
/// made.
///
/// # Errors
/// Those of making the nodes in `/dev`.
pub fn start(namespace: Arc<Namespace>) -> Result<()> {
    device::register()?;
    for fs in ALWAYS {
        register(*fs)?;
    }
    set_namespace(namespace.clone());
    let root = namespace.root();
    let who = fs::Credentials::default();
    let walk = fs::Walk {
        root: &root,
        start: &root,
        who: &who,
    };
    for &(path, name, flags, options, mode) in AT_START {
        // A root that is there already may have the directory, or have something else by that name.
        let at = match walk.make(path, Make::Directory, mode) {
            Ok(place) => Ok(place),
            Err(_) => walk.resolve(path, true),
        };
        let Ok(at) = at else { continue };
        if at.vnode().kind() != Kind::Directory {
            continue;
        }
        let (fstype, root) = make(name.as_bytes(), name.as_bytes(), options)?;
        let how = MountRequest {
            options,
            flags: MountFlags::RELATIVE_ACCESS_TIMES | flags,
            ..MountRequest::plain(fstype)
        };
        namespace.mount(&at, root, &how)?;
    }
    Ok(())
}
