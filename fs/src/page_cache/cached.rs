//! A file's pages as the rest of the kernel sees them, whatever the file system.

use core::ops::Range;

use abi::Result;
use vm::Pager;

use super::{errors::ErrorCount, readahead::Access, reclaim::Evictable};

/// The operations on a file's pages that need not know its file system.
pub trait Cached: Pager + Evictable {
    /// Bytes.
    fn size(&self) -> u64;

    /// The errors of writeback.
    fn errors(&self) -> &ErrorCount;

    /// Starts to write the dirty ones of `pages`, in clusters, several at a time. A page that is
    /// being written and is dirty again is skipped, or with `again` waited for and written once
    /// more.
    ///
    /// # Errors
    /// `ENOMEM`; [`errors`](Cached::errors) reports failed writes.
    fn write_out(&self, pages: Range<u64>, again: bool) -> Result<()>;

    /// Waits until none of `pages` is being written.
    fn wait_written(&self, pages: Range<u64>);

    /// Writes all that is dirty, inode included, onto the medium, and waits for it.
    ///
    /// # Errors
    /// Those of the device. [`errors`](Cached::errors) reports failed writes of pages.
    fn sync(&self, pages: Range<u64>, data_only: bool) -> Result<()>;

    /// Evicts those of `pages` that are unused and can be read again, at most `most`; returns how
    /// many.
    fn give_up(&self, pages: Range<u64>, most: usize) -> usize;

    /// How programs are going to read it.
    fn set_access(&self, access: Access);

    /// Resident, dirty and being written, in pages.
    fn counts(&self) -> Counts;

    /// When its oldest dirty page became so, in centiseconds since boot; 0 if none is dirty.
    fn dirty_since(&self) -> u64;

    /// [Settles](super::BlockStore::settle) the file and starts to write up to `most` of its dirty
    /// pages; returns how many.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn flush(&self, most: usize) -> Result<usize>;
}

/// Pages of a file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[allow(missing_docs)]
pub struct Counts {
    pub resident: usize,
    pub dirty: usize,
    pub writing: usize,
}
