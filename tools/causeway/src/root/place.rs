//! The way by which a guest gets the folder that is its root.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use indicatif::HumanBytes;

use super::stored::Form;
use super::{Root, ext2};
use crate::disk::Disk;
use crate::share::Share;

/// Roots with more bytes of files than this become a disk. Measured (docs/performance.md, "Large
/// roots"): a start takes the same time with both at this size, and memory grows with the root
/// only where it is unpacked.
const LARGE: u64 = 128 << 20;

/// The way to a root that is a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RootBy {
    /// A copy in the guest's memory
    Memory,
    /// A private copy on a disk, made once into the cache; changes end with the guest
    Ext2,
    /// The folder itself by 9P: the guest's changes stay in it (`--root DIR:ro` changes nothing)
    #[value(name = "9p")]
    NineP,
}

/// A root, ready for a machine.
pub enum Place {
    /// The kernel unpacks this archive.
    Archive(PathBuf),
    /// The first disk, with the mode of its mount.
    Disk(Disk, &'static str),
    /// A folder of the host's, with the mode of its mount.
    Share(Share, &'static str),
}

impl Place {
    /// Makes `root` ready: a folder by the way that the user chose, else by its size, which is said
    /// on standard error where it is large; a file as a disk; none as the archive of busybox's
    /// root. Files go into `temporary` or into the cache.
    ///
    /// # Errors
    /// When the root is neither a folder nor a disk, or cannot be read or copied.
    pub fn of(root: Option<&Path>, by: Option<RootBy>, temporary: &Path) -> Result<Self> {
        let Some(root) = root else {
            if let Some(RootBy::Ext2 | RootBy::NineP) = by {
                bail!("--root-by is for a folder: name it with --root DIR");
            }
            return Root::archive(None, temporary).map(Self::Archive);
        };
        let (folder, read_only) = folder_in(root);
        let Some(folder) = folder else {
            if by.is_some() {
                bail!("--root-by is for a folder, and {} is none", root.display());
            }
            return disk(root);
        };
        if by == Some(RootBy::NineP) {
            return share(folder, read_only);
        }
        if read_only {
            bail!("a folder as root is read-only (`:ro`) with --root-by 9p only");
        }
        if by == Some(RootBy::Memory) {
            return Root::archive(Some(folder), temporary).map(Self::Archive);
        }
        let tree = Root::folder(folder)?;
        if by.is_none() {
            let shown = format!(
                "the root {} ({})",
                folder.display(),
                HumanBytes(tree.bytes())
            );
            if tree.bytes() <= LARGE {
                return Root::archive(Some(folder), temporary).map(Self::Archive);
            }
            if !ext2::is_there() {
                eprintln!(
                    "causeway: {shown} is copied into memory: without Debian's package e2fsprogs \
                     there is no other way"
                );
                return Root::archive(Some(folder), temporary).map(Self::Archive);
            }
            eprintln!(
                "causeway: {shown} is a private disk, whose changes end with the guest; \
                 --root-by chooses otherwise"
            );
        }
        let image = tree.stored(folder, Form::Image)?;
        Ok(Self::Disk(Disk::at(&image)?.private(), "rw fresh"))
    }
}

/// The folder that `root` names, if it does, and whether `:ro` stands behind it.
fn folder_in(root: &Path) -> (Option<&Path>, bool) {
    if root.is_dir() {
        return (Some(root), false);
    }
    let stripped = |suffix: &str| root.to_str()?.strip_suffix(suffix).map(Path::new);
    let folder = |suffix| stripped(suffix).filter(|path| path.is_dir());
    match folder(":ro") {
        Some(path) => (Some(path), true),
        None => (folder(":rw"), false),
    }
}

fn disk(root: &Path) -> Result<Place> {
    let disk: Disk = root
        .display()
        .to_string()
        .parse()
        .map_err(|why: anyhow::Error| anyhow::anyhow!("the root {why}"))?;
    let mode = if disk.is_writable() { "rw" } else { "ro" };
    Ok(Place::Disk(disk, mode))
}

fn share(folder: &Path, read_only: bool) -> Result<Place> {
    let mode = if read_only { "ro" } else { "rw" };
    let name = folder.to_str().context("the root's name is not UTF-8")?;
    let share = format!("{name}:/:{mode}").parse();
    Ok(Place::Share(share.context("the root")?, mode))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_root_is_a_folder_or_a_disk() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("folder");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("file"), "words").unwrap();
        let read_only = PathBuf::from(format!("{}:ro", folder.display()));
        let of = |root: &Path, by| Place::of(Some(root), by, temporary.path());
        assert!(matches!(of(&folder, None), Ok(Place::Archive(_))));
        let shared = of(&folder, Some(RootBy::NineP));
        assert!(matches!(shared, Ok(Place::Share(_, "rw"))));
        let shared = of(&read_only, Some(RootBy::NineP));
        assert!(matches!(shared, Ok(Place::Share(_, "ro"))));
        let why = |place: Result<Place>| place.err().unwrap().to_string();
        assert!(why(of(&read_only, None)).contains("--root-by 9p"));
        let file = temporary.path().join("disk");
        fs::write(&file, [0; 512]).unwrap();
        assert!(matches!(of(&file, None), Ok(Place::Disk(_, "rw"))));
        assert!(why(of(&file, Some(RootBy::Ext2))).contains("is none"));
        assert!(why(of(Path::new("/none"), None)).contains("/none"));
        let busybox = Place::of(None, Some(RootBy::Ext2), temporary.path());
        assert!(why(busybox).contains("--root DIR"));
    }
}
