//! The root file system: the archive unpacked into memory.

use alloc::{format, string::String, sync::Arc};

use fs::{
    Location, Namespace,
    cpio::{self, Damage, Unpacked},
    ramfs,
};
use nucleus::{
    PAGE_SIZE,
    boot::{self, Archive},
    frame, log,
};

use crate::mounts;

/// Unpacks the archive and mounts what every program expects. The archive's memory becomes the files' where
/// their data starts at a page; the rest is given back.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn mount() -> Result<Arc<Namespace>, String> {
    let archive =
        boot::take_archive().ok_or("there is no root archive: give the kernel an initrd")?;
    // What the archive brings is there already; of the rest, files may take half.
    let (total, there) = (frame::usage().total, archive.len().div_ceil(PAGE_SIZE));
    let root = ramfs::root(ramfs::Options {
        pages: Some((there + total.saturating_sub(there) / 2) as u64),
        ..ramfs::Options::default()
    });
    let namespace = Namespace::new(root, "ramfs");
    let unpacked = unpack(archive, &namespace.root())
        .map_err(|damage| format!("the root archive is damaged: {damage}"))?;
    log!(
        "root: {} entries, {} KiB",
        unpacked.entries,
        unpacked.bytes / 1024
    );
    mounts::start(namespace.clone())
        .map_err(|error| format!("can't mount /proc, /dev or /tmp: {}", error.name()))?;
    Ok(namespace)
}

fn unpack(archive: Archive, root: &Location) -> Result<Unpacked, Damage> {
    if !archive.is_aligned() {
        return cpio::unpack(&archive, root);
    }
    let (unpacked, adoptions) = cpio::unpack_pages(&archive, root)?;
    let mut frames = archive.into_frames();
    adoptions.adopt(|page| frames.take(page))?;
    Ok(unpacked)
}
