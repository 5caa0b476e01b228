//! The file systems of the kernel, and the mounts that every program expects.

use alloc::sync::Arc;

use abi::{Errno, Result};
use fs::{
    Kind, MountFlags, MountRequest, Namespace, Vnode, block, ext2, pseudofs::Entry, ramfs,
    vnode::Make,
};

use crate::{
    device,
    ipc::mqueue,
    linux::unsupported,
    mounts::{self, FileSystem, MountSource},
    pseudofs::{proc, sys},
    tty::pty::devpts,
};

/// Files of `/proc/causeway` that the system-call interface makes.
const CAUSEWAY: &[(&str, fn() -> Entry)] = &[("unsupported", unsupported::file)];

/// The file systems that are always there.
const ALWAYS: &[FileSystem] = &[
    FileSystem::bare("proc", |_| Ok(proc::root(CAUSEWAY))),
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

fn in_memory(wanted: &MountSource<'_>) -> Result<Arc<dyn Vnode>> {
    Ok(ramfs::root(ramfs::Options::parse(wanted.options)?))
}

/// No set-id bits, no devices, no programs: file systems that are made up.
const BARE: MountFlags = MountFlags::NO_SET_ID
    .union(MountFlags::NO_DEVICES)
    .union(MountFlags::NO_EXECUTE);
/// No set-id bits and no devices: every user may write there, and no package keeps programs there.
const SHARED: MountFlags = MountFlags::NO_SET_ID.union(MountFlags::NO_DEVICES);

/// The mounts at start on every root, and then those on a root that stays from boot to boot: path,
/// file system, flags, options, mode of a directory that has to be made for it.
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
const USED: &[(&[u8], &str, MountFlags, &[u8], u32)] =
    &[(b"/run", "tmpfs", SHARED, b"mode=755", 0o755)];

/// Makes devices and file systems known by name.
///
/// # Errors
/// `EBUSY` and `ENOSPC` if there is no room for them.
pub fn register_all() -> Result<()> {
    device::register()?;
    for fs in ALWAYS {
        mounts::register(*fs)?;
    }
    Ok(())
}

/// Sets the tree of mounts and mounts the file systems that every Linux program expects, where
/// there is such a directory or one can be made. `is_used`: the root has the files of the last
/// boot.
///
/// # Errors
/// Those of making the nodes in `/dev`.
pub fn start(namespace: Arc<Namespace>, is_used: bool) -> Result<()> {
    mounts::set_namespace(namespace.clone());
    let root = namespace.root();
    let who = fs::Credentials::default();
    let walk = fs::Walk {
        root: &root,
        start: &root,
        who: &who,
    };
    let also = if is_used { USED } else { &[] };
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
        let wanted = MountSource {
            source: name.as_bytes(),
            device: 0,
            options,
            read_only: false,
        };
        let (fstype, root) = mounts::make(name.as_bytes(), wanted, &walk)?;
        let how = MountRequest {
            options,
            flags: MountFlags::RELATIVE_ACCESS_TIMES | flags,
            ..MountRequest::plain(fstype)
        };
        namespace.mount(&at, root, &how)?;
    }
    Ok(())
}
