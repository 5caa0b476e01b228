//! The operations of a file system as a whole.
#![allow(missing_docs, reason = "fields and variants whose names say it")]

use abi::Result;

/// What `statfs` shows, in blocks of `block_size` bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Space {
    pub magic: u64,
    pub block_size: u64,
    pub blocks: u64,
    pub free: u64,
    /// Free blocks that ordinary users may have.
    pub available: u64,
    pub files: u64,
    pub free_files: u64,
    pub name_max: u64,
}

/// A file system as a whole, as mounts use it. The default bodies are those of one without options
/// and without an end.
#[allow(unused_variables, reason = "default bodies do nothing")]
pub trait FileSystem {
    /// Returns its size and what is free.
    fn space(&self) -> Space;

    /// Returns how many pages its files have that are in memory only. Never waits for a server or a
    /// device.
    fn pages_in_memory(&self) -> u64 {
        0
    }

    /// Changes its options (`MS_REMOUNT`), and whether it may be written.
    ///
    /// # Errors
    /// `EINVAL` for bad ones, `EBUSY` if it can't become read-only because files are open for
    /// writing, `EROFS` if it can't be written.
    fn reconfigure(&self, options: &[u8], read_only: bool) -> Result<()> {
        Ok(())
    }

    /// Tells whether it can't be written, whatever its mounts say.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Adds a mount. Each ends with [`unmounted`](FileSystem::unmounted).
    fn mounted(&self) {}

    /// Prepares the end of a mount, which is not in use. If it is the last one, everything is
    /// written back now.
    ///
    /// # Errors
    /// `EBUSY` if the file system is in use in another way: a mapping of one of its files.
    fn retire(&self) -> Result<()> {
        Ok(())
    }

    /// Removes a mount. With the last one the file system ends, now or as soon as it is not in use
    /// any more. May be called wherever a file is closed.
    fn unmounted(&self) {}
}
