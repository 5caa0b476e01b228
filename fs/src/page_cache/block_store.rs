//! The blocks of one file, as a file system offers them to the page cache.

use alloc::vec::Vec;
use core::ops::Range;

use abi::{Errno, Result};
use nucleus::{Frame, PAGE_SIZE, dma::Part};

use crate::block::Done;

/// The blocks of one file, called by its [`PageCache`](super::PageCache) only. Every operation may
/// sleep, for memory or to read a block map; the caller holds no lock that comes after
/// [`FILE_END`](crate::rank::FILE_END).
///
/// A page that has just got its first block is in memory and dirty from then until it is written:
/// the block's old bytes are never read. In an [in-place](BlockStore::is_in_place) store the page
/// is that block, cleared.
///
/// Implementations take locks of [`FILE_MAP`](crate::rank::FILE_MAP) and later only,
/// and none across a call of the [`PageCache`](super::PageCache) of the same file.
#[allow(unused_variables, reason = "default bodies do nothing")]
pub trait BlockStore: Send + Sync + 'static {
    /// Starts to read pages `first..first + frames.len()` into `frames`, all of each: pages without
    /// a block or beyond the end of the device become zeros. The bytes beyond the end of the file
    /// do not matter. Calls `done` once, maybe before it returns.
    fn read(&self, first: u64, frames: &[Frame], done: Done);

    /// Starts to write pages `first..first + frames.len()` from `frames`, as far as they have
    /// blocks; each was [reserved](BlockStore::reserve) and is inside of the file. The bytes may
    /// change meanwhile; then the page is written again. Calls `done` once, maybe before it
    /// returns, when the device has taken them, which need not be the medium.
    fn write(&self, first: u64, frames: &[Frame], done: Done);

    /// Reserves room for the first pages of `pages`, so that no later write is refused for want of
    /// it; returns how many, at least 1. Pages that were reserved before count as well, and two
    /// threads may ask at once. `end` is the file's future end in bytes, if that is later than now.
    /// A page stays reserved until it is cut off or [released](BlockStore::release).
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT`, `EIO`, `ENOMEM`, `EROFS`: not even the first one can.
    fn reserve(&self, pages: Range<u64>, end: u64) -> Result<u64> {
        Ok(pages.end - pages.start)
    }

    /// Prepares for a longer file. Called first, with the file locked for writers.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`: blocks that were cut off are not freed yet.
    fn about_to_grow(&self) -> Result<()> {
        Ok(())
    }

    /// Cuts the file off at `size` bytes and frees the blocks beyond. No page there is in memory,
    /// dirty or being written, and no thread reserves one meanwhile.
    ///
    /// # Errors
    /// `EIO`: blocks that could not be freed are lost until the file system is checked; the size is
    /// the new one.
    fn cut(&self, size: u64) -> Result<()> {
        Ok(())
    }

    /// Frees the blocks of whole pages inside of the file, which become a hole. Otherwise as
    /// [`cut`](BlockStore::cut).
    ///
    /// # Errors
    /// `EOPNOTSUPP` where files have no holes; `EIO`.
    fn release(&self, pages: Range<u64>) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns the first page of `pages` that has a block (`hole` false) or none (`hole` true), as
    /// far as the store knows; a page that is in memory only was reserved and counts as data.
    ///
    /// # Errors
    /// `EIO`.
    fn seek(&self, pages: Range<u64>, hole: bool) -> Result<Option<u64>> {
        Ok((!hole && !pages.is_empty()).then_some(pages.start))
    }

    /// Updates time stamps: the content was changed by a write or, seen at writeback at the latest,
    /// by a mapping. With `grown` a write or `ftruncate` has made the file longer: it ends there
    /// now, and the pages beyond the old end read as zeros; all of the file is locked for writers.
    /// Without, several threads may call this at once.
    fn changed(&self, grown: Option<u64>) {}

    /// Copies the state that the file system keeps besides the pages (the inode) to where it is
    /// written back from. Called when the file's pages are written back for their age;
    /// [`sync`](BlockStore::sync) does the same and more.
    fn settle(&self) {}

    /// Writes everything about the file but its pages onto the medium, and flushes the device's
    /// cache: the pages were written before. With `data_only`, only as much as is needed to read
    /// them back (`fdatasync`).
    ///
    /// # Errors
    /// `EIO`.
    fn sync(&self, data_only: bool) -> Result<()> {
        Ok(())
    }

    /// Whether the pages of the file are pages of the medium, which is memory: no page is read or
    /// written, and what was [written](BlockStore::write) needs to be made durable only.
    #[inline]
    fn is_in_place(&self) -> bool {
        false
    }

    /// Returns page `index` where it lies on the medium, if it is an in-place store; `None` for a
    /// hole. The block is not reused while there are other handles of the frame. A block that was
    /// just [reserved](BlockStore::reserve) has zeros there.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    fn in_place(&self, index: u64) -> Result<Option<Frame>> {
        Ok(None)
    }

    /// Returns the bytes of the smallest piece that the disk moves past the pages: a power of two.
    fn direct_block(&self) -> usize {
        PAGE_SIZE
    }

    /// Whether bytes `bytes` of the file, whole pieces, are in blocks that have been written, so
    /// that [`write_direct`](BlockStore::write_direct) may write them.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    fn is_written(&self, bytes: Range<u64>) -> Result<bool> {
        Ok(false)
    }

    /// Reads from byte `at` of the file on as many bytes as `parts` hold, whole pieces, past the
    /// pages; what has no block becomes zeros. Sleeps until they are there. No block of the file is
    /// freed meanwhile.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    fn read_direct(&self, at: u64, parts: Vec<Part>) -> Result<()> {
        Err(Errno::EINVAL)
    }

    /// Writes likewise into blocks that [are written](BlockStore::is_written).
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    fn write_direct(&self, at: u64, parts: Vec<Part>) -> Result<()> {
        Err(Errno::EINVAL)
    }

    /// Whether the blocks are used past the pages, which no mapping may write then.
    #[inline]
    fn is_pinned(&self) -> bool {
        false
    }
}
