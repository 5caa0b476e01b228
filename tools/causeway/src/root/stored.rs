//! Roots that are made once: the archive or the ext2 image of a large folder stays in the user's
//! cache folder until the folder changes.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};

use super::progress::Step;
use super::{Root, cache, ext2};

/// The archive of a smaller root, in bytes of its files, is made at each start: it takes no longer
/// than to look after the cache.
const SMALL: u64 = 16 << 20;
/// Files of each form that are kept; the ones not used for longest go.
const KEPT: usize = 6;

/// The form of a stored root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// An archive, which the kernel unpacks into memory.
    Archive,
    /// A disk with an ext2 file system, for guests whose changes are dropped.
    Image,
}

impl Form {
    /// The folder in the cache.
    pub fn kind(self) -> &'static str {
        match self {
            Form::Archive => "archives",
            Form::Image => "images",
        }
    }

    fn extension(self) -> &'static str {
        match self {
            Form::Archive => "cpio",
            Form::Image => "ext2",
        }
    }

    /// The form with this folder in the cache.
    pub fn of(kind: &str) -> Option<Self> {
        [Form::Archive, Form::Image]
            .into_iter()
            .find(|form| form.kind() == kind)
    }
}

impl Root {
    /// The archive of the folder that the user named, else of the root made of busybox. It lies in
    /// `temporary` or in the cache.
    ///
    /// # Errors
    /// When the root cannot be read or the archive cannot be written.
    pub fn archive(folder: Option<&Path>, temporary: &Path) -> Result<PathBuf> {
        let root = folder.map_or_else(Self::busybox, Self::folder)?;
        match folder {
            Some(folder) if root.bytes() >= SMALL => root.stored(folder, Form::Archive),
            _ => {
                let path = temporary.join("root.cpio");
                root.write(&path)?;
                Ok(path)
            }
        }
    }

    /// The file in the cache with this tree, which is that of `folder`; made unless it is there and
    /// the folder is as it was then.
    ///
    /// # Errors
    /// When a file cannot be read or the new one cannot be written.
    pub fn stored(&self, folder: &Path, form: Form) -> Result<PathBuf> {
        let absolute = fs::canonicalize(folder)
            .with_context(|| format!("cannot read {}", folder.display()))?;
        let stored = cache::folder(form.kind())?;
        let _lock = cache::lock(&stored)?;
        let name = format!("{:016x}.{}", hash_of(&absolute), form.extension());
        let path = stored.join(name);
        let stamp = path.with_extension("stamp");
        let state = format!("{:016x} {}\n", hash_of(&self.nodes), absolute.display());
        if path.is_file() && fs::read_to_string(&stamp).is_ok_and(|last| last == state) {
            // The time of its last use.
            let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
            return Ok(path);
        }
        // A process that has the old file open keeps it.
        let new = path.with_extension("new");
        let made = match form {
            Form::Archive => {
                let what = format!("packing the root {}", folder.display());
                self.write_with(&new, &Step::bytes(&what, self.bytes()))
            }
            Form::Image => ext2::make_private(self, &absolute, &new),
        };
        if made.is_err() {
            let _ = fs::remove_file(&new);
        }
        made?;
        fs::rename(&new, &path).with_context(|| format!("cannot write {}", path.display()))?;
        fs::write(&stamp, state).with_context(|| format!("cannot write {}", stamp.display()))?;
        drop_oldest(&stored, form)?;
        Ok(path)
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hash = DefaultHasher::new();
    value.hash(&mut hash);
    hash.finish()
}

/// Removes all files of the form but the [`KEPT`] that were used last.
fn drop_oldest(folder: &Path, form: Form) -> Result<()> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == form.extension())
        {
            found.push((fs::metadata(&path)?.modified()?, path));
        }
    }
    found.sort();
    for (_, path) in &found[..found.len().saturating_sub(KEPT)] {
        fs::remove_file(path)?;
        let _ = fs::remove_file(path.with_extension("stamp"));
    }
    Ok(())
}
