//! The root file system: the archive unpacked into memory.

use alloc::{format, string::String, sync::Arc};

use fs::{Namespace, cpio, ramfs};
use nucleus::{boot, log};

use crate::mounts;

/// Unpacks the archive, whose memory is given back, and mounts what every program expects.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn mount() -> Result<Arc<Namespace>, String> {
    let archive =
        boot::take_archive().ok_or("there is no root archive: give the kernel an initrd")?;
    let root = ramfs::root(ramfs::Options::default());
    let namespace = Namespace::new(root, "ramfs");
    let unpacked = cpio::unpack(&archive, &namespace.root())
        .map_err(|damage| format!("the root archive is damaged: {damage}"))?;
    drop(archive);
    log!(
        "root: {} entries, {} KiB",
        unpacked.entries,
        unpacked.bytes / 1024
    );
    mounts::start(namespace.clone())
        .map_err(|error| format!("can't mount /proc, /dev or /tmp: {}", error.name()))?;
    Ok(namespace)
}
