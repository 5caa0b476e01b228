//! The tree of mounts, and the file systems that `mount` knows by name.

use alloc::sync::Arc;

use abi::{Errno, Result};
use fs::{Kind, Namespace, Vnode, ramfs, vnode::Make};
use nucleus::sync::{Rank, SpinLock};

use crate::{device, proc};

static NAMESPACE: SpinLock<Option<Arc<Namespace>>> = SpinLock::new(Rank::Leaf, None);

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
/// `ENODEV` for an unknown name, `EINVAL` for bad options.
pub fn make(name: &[u8], options: &[u8]) -> Result<(&'static str, Arc<dyn Vnode>)> {
    match name {
        b"proc" => Ok(("proc", proc::root())),
        b"devtmpfs" => Ok(("devtmpfs", device::root()?)),
        b"tmpfs" => Ok(("tmpfs", ramfs::root(ramfs::Options::parse(options)?))),
        b"ramfs" => Ok(("ramfs", ramfs::root(ramfs::Options::parse(options)?))),
        _ => Err(Errno::ENODEV),
    }
}

/// The names that [`make`] knows, for `/proc/filesystems`.
pub const KNOWN: &[&str] = &["proc", "devtmpfs", "tmpfs", "ramfs"];

/// Sets the tree of mounts and mounts what every Linux program expects: `/proc`, `/dev`, `/tmp`, where there is such a
/// directory or one can be made.
///
/// # Errors
/// Those of making the nodes in `/dev`.
pub fn start(namespace: Arc<Namespace>) -> Result<()> {
    device::register()?;
    set_namespace(namespace.clone());
    let root = namespace.root();
    let who = fs::Credentials::default();
    let walk = fs::Walk {
        root: &root,
        start: &root,
        who: &who,
    };
    for (path, name, options, mode) in [
        (&b"/proc"[..], &b"proc"[..], &b""[..], 0o555),
        (b"/dev", b"devtmpfs", b"", 0o755),
        (b"/tmp", b"tmpfs", b"mode=1777", 0o1777),
    ] {
        // A root that is there already may have the directory, or have something else by that name.
        let at = match walk.make(path, Make::Directory, mode) {
            Ok(place) => Ok(place),
            Err(_) => walk.resolve(path, true),
        };
        let Ok(at) = at else { continue };
        if at.vnode().kind() != Kind::Directory {
            continue;
        }
        let (fstype, root) = make(name, options)?;
        let mut shown = b"rw".to_vec();
        if !options.is_empty() {
            shown.push(b',');
            shown.extend_from_slice(options);
        }
        namespace.mount(&at, root, fstype, fstype.as_bytes(), &shown)?;
    }
    Ok(())
}
