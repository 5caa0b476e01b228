//! What a file system does for the pages of its files.

use alloc::boxed::Box;
use core::ops::Range;

use abi::{Errno, Result};
use nucleus::{Frame, PAGE_SIZE};

/// Runs when a read or write is done, in a kernel task: may take sleeping locks for a short time,
/// must not wait for another request, and must not need memory that may be missing. Errors are
/// `EIO` when the disk failed, `EINVAL` for sectors that the disk does not have, `EROFS` for a change
/// of a read-only disk, `EOPNOTSUPP` for a discard where there is none.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// Where the pages of one file are: what a file system says to [`PageCache`](super::PageCache), which calls it for that file
/// only. Everything may sleep, for memory or to read where blocks are; no lock that comes after
/// [`Rank::FileEnd`](nucleus::sync::Rank::FileEnd) is held by the caller.
///
/// A page that has just been given a block for the first time is in memory, and dirty, from then on until it is written: what the
/// block had before is never read.
///
/// An implementation takes locks of [`Rank::FileMap`](nucleus::sync::Rank::FileMap) and later only, and not across a call of
/// [`PageCache`](super::PageCache) of the same file.
pub trait BackingStore: Send + Sync + 'static {
    /// Begins to read pages `first..first + frames.len()` into `frames`, all of each: what has no block, or lies beyond the end of the
    /// device, is filled with zeros. What lies behind the end of the file is of no interest. Calls `done` once, maybe before it returns.
    fn read(&self, first: u64, frames: &[Frame], done: Done);

    /// Begins to write pages `first..first + frames.len()` from `frames`, as far as they have blocks; each was
    /// [reserved](BackingStore::reserve) before, and is inside of the file. The bytes may change meanwhile; then the page is written again.
    /// Calls `done` once, maybe before it returns, when the device has taken them, which need not be the medium.
    fn write(&self, first: u64, frames: &[Frame], done: Done);

    /// Sees to it that the first pages of `pages` can be written later without being refused for want of room; says how many, 1
    /// at least. Those that were reserved before count as well, and it may be asked twice at once. `end` is where the file will end in bytes, if that is later than now. A page stays reserved until it is cut off
    /// or [released](BackingStore::release).
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT`, `EIO`, `ENOMEM`, `EROFS`: not even the first one can.
    fn reserve(&self, pages: Range<u64>, end: u64) -> Result<u64> {
        let _ = end;
        Ok(pages.end - pages.start)
    }

    /// Bytes of the smallest pieces that have a place of their own: a power of two, a page at most. Of the file's last page only the
    /// pieces before its end are reserved.
    fn granule(&self) -> u64 {
        PAGE_SIZE as u64
    }

    /// The file is about to become longer. Called with the file locked for writers, before anything else is done for that.
    ///
    /// # Errors
    /// It can't: what was cut off is not given back yet. `EIO`, `ENOMEM`.
    fn about_to_grow(&self) -> Result<()> {
        Ok(())
    }

    /// The file has become longer by a write or by `ftruncate`, and ends at `size` bytes now. Called with the file locked for
    /// writers. What is in the pages behind the old end reads as zeros.
    fn grown(&self, size: u64) {
        let _ = size;
    }

    /// Cuts the file off at `size` bytes: gives back the blocks behind. No page there is in memory, dirty or
    /// being written, and nobody reserves one meanwhile.
    ///
    /// # Errors
    /// `EIO`: what could not be given back is lost until the file system is checked; the size is the new one.
    fn cut(&self, size: u64) -> Result<()> {
        let _ = size;
        Ok(())
    }

    /// Gives back the blocks of whole pages inside of the file, which become a hole. As [`cut`](BackingStore::cut) otherwise.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where files have no holes; `EIO`.
    fn release(&self, pages: Range<u64>) -> Result<()> {
        let _ = pages;
        Err(Errno::EOPNOTSUPP)
    }

    /// The first page of `pages` that has a block (`hole` false) or none (`hole` true), as far as the store knows; a page that is
    /// only in memory so far was reserved and counts as data.
    ///
    /// # Errors
    /// `EIO`.
    fn seek(&self, pages: Range<u64>, hole: bool) -> Result<Option<u64>> {
        Ok((!hole && !pages.is_empty()).then_some(pages.start))
    }

    /// The content was changed, by a write or, at the latest when it is written back, by a mapping: time stamps.
    fn changed(&self) {}

    /// Passes on what the file system keeps of the file besides its pages (its inode) to where it is written back from. Called when the
    /// file's pages are written back for their age; [`sync`](BackingStore::sync) does the same and more.
    fn settle(&self) {}

    /// Brings everything about the file that is not in its pages onto the medium, and with it what the device has taken of the pages:
    /// they were written before. With `data_only`, what is needed to read them back suffices (`fdatasync`).
    ///
    /// # Errors
    /// `EIO`.
    fn sync(&self, data_only: bool) -> Result<()> {
        let _ = data_only;
        Ok(())
    }

    /// Whether its pages are a device's own, or a file system's blocks of metadata, rather than a file's: what `free` calls buffers.
    fn is_device(&self) -> bool {
        false
    }

    /// The device number and the inode number of the file, for `/proc/PID/maps`.
    fn identity(&self) -> (u64, u64) {
        (0, 0)
    }

    /// The largest size of the file in bytes.
    fn size_max(&self) -> u64 {
        i64::MAX as u64
    }
}
