//! What the page cache asks of the place where a file's pages are when they are not in memory.

use core::ops::Range;

use abi::{Errno, Result};
use nucleus::Frame;
use vm::{Lookup, PagerError};

use super::{
    cache::{PAGE, PageCache},
    readahead::Streams,
};

/// The result of an operation for a fault or a mapping.
pub type Mapping<T> = core::result::Result<T, PagerError>;

/// What is fixed about a file.
#[derive(Clone, Copy)]
pub struct Properties {
    /// The device number and the inode number, for `/proc/PID/maps`.
    pub identity: (u64, u64),
    /// The largest size in bytes.
    pub size_max: u64,
    /// The bytes of the smallest unit of allocation: a power of two, at most a page. Of the last
    /// page only the units before the file's end are reserved.
    pub granule: u64,
    /// The pages are a device's own, or a file system's metadata, rather than a file's: `free`
    /// counts them as buffers.
    pub is_device: bool,
}

impl Properties {
    /// Those of a file without a limit that is allocated by the page.
    pub const fn of(identity: (u64, u64)) -> Properties {
        Properties {
            identity,
            size_max: i64::MAX as u64,
            granule: PAGE,
            is_device: false,
        }
    }
}

/// The backing store of one file, statically dispatched: blocks that are written back later
/// ([`WriteBack`](super::WriteBack)), the swap space (tmpfs), or a server that is written through
/// (9P). A default is the store that needs nothing done; a new one starts with
/// [`bring_in`](BackingStore::bring_in).
///
/// Operations may sleep. Those of a truncation, or of a write that makes the file longer, are
/// called with all of the file locked for writers; those of a write inside it with its pages locked
/// only: other pages may be reserved and written meanwhile.
#[allow(unused_variables, reason = "default bodies do nothing")]
pub trait BackingStore: Sized + Send + Sync + 'static {
    /// A page that the file does not have is a hole, and one that it has may be in swap.
    const SWAP_BACKED: bool = false;
    /// Dirty pages are written to blocks later.
    const WRITES_BACK: bool = false;

    /// What is fixed about the file.
    #[inline]
    fn properties(&self) -> &Properties {
        const { &Properties::of((0, 0)) }
    }

    // Pages come in, and go.

    /// The readers that go through the file in order, for readahead.
    #[inline]
    fn streams(&self) -> Option<&Streams> {
        None
    }

    /// As [`Pager::lookup`](vm::Pager::lookup).
    fn lookup(cache: &PageCache<Self>, index: u64) -> Mapping<Lookup> {
        match index < cache.pages() {
            true => Ok(Lookup::Absent),
            false => Err(PagerError::BeyondEnd),
        }
    }

    /// As [`Pager::page_in`](vm::Pager::page_in), for reads and writes as well.
    fn bring_in(cache: &PageCache<Self>, index: u64, window: Range<u64>) -> Mapping<()> {
        cache.object.bring_in_around(index, window)
    }

    /// As [`Pager::prefetch`](vm::Pager::prefetch).
    fn prefetch(cache: &PageCache<Self>, pages: Range<u64>) {
        cache.object.bring_back(pages);
    }

    /// As [`Pager::evict`](vm::Pager::evict).
    fn evict(cache: &PageCache<Self>, pages: Range<u64>) {}

    /// As [`Pager::writeback`](vm::Pager::writeback).
    fn writeback(cache: &PageCache<Self>, pages: Range<u64>, wait: bool) -> Mapping<()> {
        Ok(())
    }

    /// The first page of `pages` that is data, or a hole.
    fn seek(cache: &PageCache<Self>, pages: Range<u64>, hole: bool) -> Result<Option<u64>> {
        Ok((!hole && !pages.is_empty()).then_some(pages.start))
    }

    // Writes: `may_write`, `about_to_grow`, `reserve_last`, then for each page `charge`, `reserve`,
    // `note_dirty`, then `changed`.

    /// Checks that bytes up to `end` may change (seals: `EPERM`).
    #[inline]
    fn may_write(cache: &PageCache<Self>, end: u64) -> Result<()> {
        Ok(())
    }

    /// Checks that the size may become `size`, and changes it where the file is kept.
    fn may_resize(cache: &PageCache<Self>, size: u64) -> Result<()> {
        Ok(())
    }

    /// The file is about to become longer. An error: what was cut off is not freed yet.
    #[inline]
    fn about_to_grow(&self) -> Result<()> {
        Ok(())
    }

    /// The end is about to move from `old` to `end`, in the same page at first: reserves what the
    /// file gets of that page, which may be in mappings that write it.
    fn reserve_last(cache: &PageCache<Self>, old: u64, end: u64) -> Result<()> {
        Ok(())
    }

    /// Charges `pages` pages that are to come (quota: `ENOSPC`).
    #[inline]
    fn charge(cache: &PageCache<Self>, pages: usize) -> Result<()> {
        Ok(())
    }

    /// Takes back [`charge`](BackingStore::charge): they did not come, or were removed.
    #[inline]
    fn uncharge(&self, pages: usize) {}

    /// Whether page `index` has its room, so that a copy of it must not be lost.
    #[inline]
    fn is_reserved(cache: &PageCache<Self>, index: u64) -> bool {
        false
    }

    /// Reserves room for page `index`, which is `resident`, or is put into the object next and
    /// can't be refused any more then. The file ends at `end` with it, or where it ends now if that
    /// is later. Errors: `ENOSPC`, `EDQUOT`, `EIO`, `ENOMEM`, `EROFS`.
    #[inline]
    fn reserve(
        cache: &PageCache<Self>,
        index: u64,
        resident: Option<&Frame>,
        end: u64,
    ) -> Result<()> {
        Ok(())
    }

    /// Whether pages are [in place](super::BlockStore::is_in_place): a writer stores into the
    /// medium.
    #[inline]
    fn is_in_place(&self) -> bool {
        false
    }

    /// Returns page `index` of an in-place file on the medium, reserved for a file that ends at
    /// `end` with it, or where it ends now if that is later; it is the resident page from now on.
    /// Errors as of [`reserve`](BackingStore::reserve).
    fn place(cache: &PageCache<Self>, index: u64, end: u64) -> Result<Frame> {
        Err(Errno::EIO)
    }

    /// The page's frame may be modified.
    #[inline]
    fn note_dirty(cache: &PageCache<Self>, index: u64) {}

    /// The content was changed; with `grown` the file has become longer, and ends there now.
    #[inline]
    fn changed(&self, grown: Option<u64>) {}

    // Truncation and allocation.

    /// Drops `pages` for good, and frees their room: those behind the new `size`, or whole pages
    /// inside of the file, which become a hole. None of them is in memory, dirty or being written
    /// when this returns. Errors: `EOPNOTSUPP`, `EIO`; the size is the new one.
    fn free(cache: &PageCache<Self>, pages: Range<u64>, size: Option<u64>) -> Result<()> {
        cache.drop_pages(pages, size);
        Ok(())
    }

    /// Gives `pages` their room, for a file that is to end at `end`: a hole is zeros afterwards.
    /// Errors as of [`reserve`](BackingStore::reserve).
    fn fill_holes(cache: &PageCache<Self>, pages: Range<u64>, end: u64) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    // Mappings.

    /// A mapping has come.
    #[inline]
    fn referenced(cache: &PageCache<Self>) {}

    /// A mapping has gone; `last_writer` if it was the last one that may write.
    #[inline]
    fn detached(cache: &PageCache<Self>, last_writer: bool) {}

    /// Reserves what a store by a mapping into page `index` needs; no lock is held.
    fn prepare(cache: &PageCache<Self>, index: u64) -> Mapping<()> {
        Ok(())
    }

    /// Whether a mapping may make page `index` writable as it is. Its chunk is locked; does not
    /// sleep.
    #[inline]
    fn may_enter(cache: &PageCache<Self>, index: u64) -> bool {
        true
    }
}
