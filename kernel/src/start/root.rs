//! The root file system: the archive unpacked into memory, a disk, or a folder of the host's.

use alloc::{format, string::String, sync::Arc};

use abi::Errno;
use fs::{
    Location, MountFlags, MountRequest, Namespace, block,
    cpio::{self, Damage, Unpacked},
    ramfs,
};
use nucleus::{
    PAGE_SIZE,
    boot::{self, Archive},
    frame, log,
};

use super::{RootSource, StoredRoot, file_systems};
use crate::{
    device::share,
    mounts::{self, MountSource},
};

/// Mounts the root, and what every program expects.
///
/// # Errors
/// A sentence that describes the error.
pub fn mount(stored: Option<&StoredRoot>) -> Result<Arc<Namespace>, String> {
    file_systems::register_all()
        .map_err(|error| format!("can't make devices known: {}", error.name()))?;
    let namespace = match stored {
        Some(stored) => mount_stored(stored)?,
        None => in_memory()?,
    };
    let is_used = stored.is_some_and(|stored| !stored.is_fresh);
    file_systems::start(namespace.clone(), is_used)
        .map_err(|error| format!("can't mount /proc, /dev or /tmp: {}", error.name()))?;
    Ok(namespace)
}

/// Mounts a disk or a folder of the host's as the root.
fn mount_stored(stored: &StoredRoot) -> Result<Arc<Namespace>, String> {
    let StoredRoot {
        fstype, read_only, ..
    } = stored;
    let (source, device) = match &stored.source {
        RootSource::Disk(name) => {
            let source = format!("/dev/{name}");
            let found = block::by_name(name.as_bytes());
            let found = found.ok_or_else(|| format!("there is no device {source} for the root"))?;
            (source, found.number())
        }
        RootSource::Share(tag) => (tag.clone(), 0),
    };
    let wanted = MountSource {
        source: source.as_bytes(),
        device,
        options: b"",
        read_only: *read_only,
    };
    let (fstype, root) =
        mounts::make_root(fstype.as_bytes(), &wanted).map_err(|error| match error {
            Errno::ENODEV => format!("the file system {fstype} is not known"),
            Errno::ENOENT if matches!(stored.source, RootSource::Share(_)) => {
                share::none_with(&source)
            }
            error => format!("can't mount {source} as the root: {}", error.name()),
        })?;
    let mut flags = MountFlags::RELATIVE_ACCESS_TIMES;
    flags.set(MountFlags::READ_ONLY, *read_only);
    // It is not wanted: its memory is.
    drop(boot::take_archive());
    log!("root: {source}, {fstype}");
    let how = MountRequest {
        source: source.as_bytes(),
        flags,
        ..MountRequest::plain(fstype)
    };
    Ok(Namespace::with_root(root, &how))
}

/// Unpacks the archive. Its memory becomes the files' where their data starts at a page; the rest
/// is freed.
fn in_memory() -> Result<Arc<Namespace>, String> {
    let archive =
        boot::take_archive().ok_or("there is no root archive: give the kernel an initrd")?;
    // The contents of the archive are in memory already; of the rest, files may take half.
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
