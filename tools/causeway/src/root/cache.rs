//! The user's cache folder, for files that take long to make and can be made again. It may be
//! removed at any time when no `causeway` runs.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// The file in a folder that keeps others out.
pub const LOCK: &str = "lock";

/// A folder for things of one kind, made if need be: in `$CAUSEWAY_CACHE`, else where the user's
/// programs keep such things.
///
/// # Errors
/// When it cannot be made.
pub fn folder(kind: &str) -> Result<PathBuf> {
    let folder = top()?.join(kind);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// The cache's own folder, which need not be there.
///
/// # Errors
/// When the environment names none.
pub fn top() -> Result<PathBuf> {
    let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let base = named("CAUSEWAY_CACHE").map(PathBuf::from).or_else(|| {
        let caches = named("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || Some(PathBuf::from(named("HOME")?).join(".cache"));
        Some(caches.or_else(home)?.join("causeway"))
    });
    let base = base.context("no folder for caches: set CAUSEWAY_CACHE or HOME")?;
    Ok(std::path::absolute(base)?)
}

/// Waits until no other `causeway` works in `folder`, which it says at once, and keeps them out
/// until it is dropped.
///
/// # Errors
/// When the file system has no locks.
pub fn lock(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).open(&path);
    let file = file.with_context(|| format!("cannot make {}", path.display()))?;
    let cannot = || format!("cannot lock {}", path.display());
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            eprintln!(
                "causeway: {} works in the cache {}: waiting until it is done",
                holder(&file).unwrap_or_else(|| "another process".into()),
                folder.display()
            );
            rustix::fs::flock(&file, FlockOperation::LockExclusive).with_context(cannot)?;
        }
        locked => locked.with_context(cannot)?,
    }
    Ok(file)
}

/// The process that has locked a file, with its command line, where the system shows it.
fn holder(file: &File) -> Option<String> {
    let inode = file.metadata().ok()?.ino();
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let process = locking(&locks, inode)?;
    let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    let shown: String = words.trim().chars().take(60).collect();
    Some(match shown.as_str() {
        "" => format!("process {process}"),
        shown => format!("process {process} ({shown})"),
    })
}

/// The process that holds a `flock` on a file with this inode, from the lines of `/proc/locks`:
/// `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`. Lines of waiting processes have an arrow.
fn locking(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, process, place, ..] = words[..] else {
            return None;
        };
        let number = place.rsplit(':').next()?.parse();
        (number == Ok(inode)).then(|| process.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 fe:00:5678 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 11 fe:00:567 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 12 fe:00:5678 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 13 fe:00:5678 0 EOF\n";
        assert_eq!(locking(locks, 5678), Some(12));
        assert_eq!(locking(locks, 1), None);
        let folder = tempfile::tempdir().unwrap();
        let locked = lock(folder.path()).unwrap();
        let shown = holder(&locked).unwrap();
        let me = format!("process {} (", std::process::id());
        assert!(shown.starts_with(&me), "{shown}");
        drop(locked);
        assert!(lock(folder.path()).is_ok());
    }
}
