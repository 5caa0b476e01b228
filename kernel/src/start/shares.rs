//! Folders of the host's, mounted before the first program runs.

use alloc::{format, string::String};

use abi::Errno;
use fs::{MountFlags, MountRequest, Namespace, Walk, vnode::Make};
use nucleus::log;

use super::command_line::Share;
use crate::{
    device::share,
    mounts::{self, MountSource},
};

/// Mounts each folder where it is wanted; directories on the way there are made.
///
/// # Errors
/// A sentence that describes the error.
pub fn mount(shares: &[Share], namespace: &Namespace, walk: &Walk<'_>) -> Result<(), String> {
    for wanted in shares {
        let Share { tag, at, .. } = wanted;
        mount_one(wanted, namespace, walk).map_err(|error| match error {
            Errno::ENOENT => share::none_with(tag),
            error => format!("can't mount the share '{tag}' at {at}: {}", error.name()),
        })?;
        log!("share: {tag} at {at}");
    }
    Ok(())
}

fn mount_one(share: &Share, namespace: &Namespace, walk: &Walk<'_>) -> abi::Result<()> {
    let tag = share.tag.as_bytes();
    let wanted = MountSource {
        source: tag,
        device: 0,
        options: b"trans=virtio",
        read_only: share.read_only,
    };
    let (fstype, root) = mounts::make(b"9p", wanted, walk)?;
    let path = share.at.as_bytes();
    for (end, _) in path
        .iter()
        .enumerate()
        .filter(|&(i, &b)| b == b'/' && i > 0)
    {
        make_directory(walk, &path[..end])?;
    }
    make_directory(walk, path)?;
    let at = walk.resolve(path, true)?;
    let mut flags = MountFlags::RELATIVE_ACCESS_TIMES;
    flags.set(MountFlags::READ_ONLY, share.read_only);
    let how = MountRequest {
        fstype,
        source: tag,
        flags,
        options: b"trans=virtio",
    };
    namespace.mount(&at, root, &how)
}

fn make_directory(walk: &Walk<'_>, path: &[u8]) -> abi::Result<()> {
    match walk.make(path, Make::Directory, 0o755) {
        Ok(_) | Err(Errno::EEXIST | Errno::EISDIR) => Ok(()),
        Err(error) => Err(error),
    }
}
