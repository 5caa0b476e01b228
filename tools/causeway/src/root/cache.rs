//! The user's cache folder, for files that take long to make and can be made again. It may be
//! removed at any time when no `causeway` runs.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::FlockOperation;

/// A folder for things of one kind, made if need be: in `$CAUSEWAY_CACHE`, else where the user's
/// programs keep such things.
///
/// # Errors
/// When it cannot be made.
pub fn folder(kind: &str) -> Result<PathBuf> {
    let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let base = named("CAUSEWAY_CACHE").map(PathBuf::from).or_else(|| {
        let caches = named("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || Some(PathBuf::from(named("HOME")?).join(".cache"));
        Some(caches.or_else(home)?.join("causeway"))
    });
    let base = base.context("no folder for caches: set CAUSEWAY_CACHE or HOME")?;
    let folder = std::path::absolute(base)?.join(kind);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Waits until no other `causeway` works in `folder`, and keeps them out until it is dropped.
///
/// # Errors
/// When the file system has no locks.
pub fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive)
        .with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}
