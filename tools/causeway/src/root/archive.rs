//! The archive of a root, made once: that of a large folder stays in the user's cache folder until
//! the folder changes.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};

use super::{Root, cache};

/// The archive of a smaller root, in bytes of its files, is made at each start: it takes no longer
/// than to look after the cache.
const SMALL: u64 = 16 << 20;
/// Archives that are kept; the ones not used for longest go.
const KEPT: usize = 6;

impl Root {
    /// The archive of the folder that the user named, else of the root made of busybox. It lies in
    /// `temporary` or in the cache.
    ///
    /// # Errors
    /// When the root cannot be read or the archive cannot be written.
    pub fn archive(folder: Option<&Path>, temporary: &Path) -> Result<PathBuf> {
        let root = folder.map_or_else(Self::busybox, Self::folder)?;
        match folder {
            Some(folder) if root.bytes() >= SMALL => root.cached(folder),
            _ => {
                let path = temporary.join("root.cpio");
                root.write(&path)?;
                Ok(path)
            }
        }
    }

    /// The archive in the cache, made unless it is there and `folder` is as it was then.
    fn cached(&self, folder: &Path) -> Result<PathBuf> {
        let absolute = fs::canonicalize(folder)
            .with_context(|| format!("cannot read {}", folder.display()))?;
        let archives = cache::folder("archives")?;
        let _lock = cache::lock(&archives)?;
        let path = archives.join(format!("{:016x}.cpio", hash_of(&absolute)));
        let stamp = path.with_extension("stamp");
        let state = format!("{:016x} {}\n", hash_of(&self.nodes), absolute.display());
        if path.is_file() && fs::read_to_string(&stamp).is_ok_and(|last| last == state) {
            // The time of its last use.
            let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
            return Ok(path);
        }
        // A process that has the old file open keeps it.
        let new = path.with_extension("new");
        self.write(&new)?;
        fs::rename(&new, &path).with_context(|| format!("cannot write {}", path.display()))?;
        fs::write(&stamp, state).with_context(|| format!("cannot write {}", stamp.display()))?;
        drop_oldest(&archives)?;
        Ok(path)
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hash = DefaultHasher::new();
    value.hash(&mut hash);
    hash.finish()
}

/// Removes all archives but the [`KEPT`] that were used last.
fn drop_oldest(archives: &Path) -> Result<()> {
    let mut found = Vec::new();
    for entry in fs::read_dir(archives)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "cpio")
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
