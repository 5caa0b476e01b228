//! The empty disks of experiments that ask for them: one for files, one for swap space, and one in
//! memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr;

use support::files::c;

use crate::{Failure, call};

/// The disk for files.
const FILES: &str = "vda";
/// The disk for swap space.
const SWAP: &str = "vdb";
/// The disk in memory: Causeway's, Linux's.
const MEMORY: [&str; 2] = ["md0", "ram0"];
/// Mount point of the first.
const FOLDER: &str = "/tmp/scratch";
/// Mount point of the last.
const MEMORY_FOLDER: &str = "/tmp/scratch-memory";

/// Prepares a disk by a busybox command.
fn prepare(words: &[&str], disk: &str) -> Result<(), Failure> {
    let device = format!("/dev/{disk}");
    if !Path::new(&device).exists() {
        return Err(Failure::Missing(format!("an empty disk {device}")));
    }
    let status = Command::new("/bin/busybox")
        .args(words)
        .arg(&device)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|error| Failure::Missing(format!("/bin/busybox: {error}")))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{words:?} {device}: {status}").into()),
    }
}

/// Returns a folder on a disk's file system, ext2 with blocks of 4 KiB. The first call makes it for
/// all rows.
///
/// # Errors
/// [`Failure::Missing`] without such a disk, or without the file system.
pub fn folder() -> Result<PathBuf, Failure> {
    folder_of(FILES, FOLDER)
}

/// Returns a folder on the memory disk's file system, as [`folder`] does.
///
/// # Errors
/// Those of [`folder`].
pub fn memory_folder() -> Result<PathBuf, Failure> {
    folder_of(memory_disk()?, MEMORY_FOLDER)
}

/// Returns the name of the memory disk.
///
/// # Errors
/// [`Failure::Missing`] without one.
pub fn memory_disk() -> Result<&'static str, Failure> {
    let mut names = MEMORY.into_iter();
    names
        .find(|name| Path::new("/dev").join(name).exists())
        .ok_or_else(|| Failure::Missing("a memory disk /dev/md0".into()))
}

fn folder_of(disk: &str, folder: &str) -> Result<PathBuf, Failure> {
    let mounts = fs::read_to_string("/proc/mounts")?;
    let is_mounted = |line: &str| line.split_whitespace().nth(1) == Some(folder);
    if !mounts.lines().any(is_mounted) {
        prepare(&["mke2fs", "-b", "4096"], disk)?;
        fs::create_dir_all(folder)?;
        mount(disk, folder)?;
    }
    Ok(folder.into())
}

fn mount(disk: &str, folder: &str) -> Result<(), Failure> {
    let (device, at) = (c(&format!("/dev/{disk}")), c(folder));
    call!(mount(
        device.as_ptr(),
        at.as_ptr(),
        c"ext2".as_ptr(),
        0,
        ptr::null()
    ))?;
    Ok(())
}

/// Unmounts the folder and mounts it again, so that none of its files is cached.
///
/// # Errors
/// Those of the calls.
pub fn mount_again() -> Result<(), Failure> {
    call!(umount(c(FOLDER).as_ptr()))?;
    mount(FILES, FOLDER)
}

/// Returns the reads so far from the disk with the folder.
///
/// # Errors
/// [`Failure::Missing`] where the kernel does not count them.
pub fn reads() -> Result<u64, Failure> {
    let text = fs::read_to_string("/proc/diskstats").unwrap_or_default();
    reads_of(&text, FILES).ok_or_else(|| Failure::Missing("/proc/diskstats".into()))
}

fn reads_of(diskstats: &str, disk: &str) -> Option<u64> {
    let fields = |line: &str| -> Option<u64> {
        let mut words = line.split_whitespace().skip(2);
        (words.next()? == disk).then(|| words.next()?.parse().ok())?
    };
    diskstats.lines().find_map(fields)
}

/// Enables swap space if there is a disk for it.
///
/// # Errors
/// [`Failure::Missing`] without one, or where the kernel cannot swap.
pub fn swap() -> Result<(), Failure> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.contains(SWAP) {
        return Ok(());
    }
    prepare(&["mkswap"], SWAP)?;
    call!(swapon(c(&format!("/dev/{SWAP}")).as_ptr(), 0))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_found() {
        let text = " 254 0 vda 12 0 96 3 0 0 0 0 0 0 0\n 254 16 vdb 7 0 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(reads_of(text, "vda"), Some(12));
        assert_eq!(reads_of(text, "vdb"), Some(7));
        assert_eq!(reads_of(text, "vdc"), None);
        assert_eq!(reads_of("nonsense\n\n1 2\n", "vda"), None);
    }
}
