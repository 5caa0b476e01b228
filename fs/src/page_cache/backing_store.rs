//! What the page cache asks of the place where a file's pages are when they are not in memory.

use core::ops::Range;

use abi::{Errno, Result};
use nucleus::{Frame, pmap, sync::MutexGuard};
use vm::{Lookup, PagerError};

use super::cache::PageCache;

/// The result of an operation for a fault or a mapping.
pub type Mapping<T> = core::result::Result<T, PagerError>;

/// What a read finds for a page that is not in memory.
pub enum Found {
    /// The page.
    Page(Frame),
    /// It reads as zeros.
    Hole,
    /// It was brought in, or the size has changed: look again.
    Again,
    /// The file ends before it.
    End,
}

/// The backing store of one file, statically dispatched: blocks that are written back later
/// ([`WriteBack`](super::WriteBack)), the swap space (tmpfs), or a server that is written through
/// (9P). A default is the store that needs nothing done.
///
/// Operations may sleep, and are called with the file locked for writers where they belong to a
/// write or a truncation, unless the last group says otherwise.
#[allow(unused_variables, reason = "default bodies do nothing")]
pub trait BackingStore: Sized + Send + Sync + 'static {
    /// A page that the file does not have is a hole, and one that it has may be in swap.
    const SWAP_BACKED: bool = false;
    /// Dirty pages are written to blocks later.
    const WRITES_BACK: bool = false;

    /// The largest size of the file in bytes.
    fn size_max(&self) -> u64 {
        i64::MAX as u64
    }

    /// The device number and the inode number of the file, for `/proc/PID/maps`.
    fn identity(&self) -> (u64, u64) {
        (0, 0)
    }

    /// A read of `pages` begins.
    fn read_begins(cache: &PageCache<Self>, pages: &Range<u64>) {}

    /// A read uses a page that was in memory, from its first byte on.
    fn read_uses(cache: &PageCache<Self>, frame: &Frame) {}

    /// A read has come to page `end`.
    fn read_ends(cache: &PageCache<Self>, end: u64) {}

    /// Finds page `wanted.start`, which is not in memory, for a read that wants all of `wanted`. No
    /// lock is held but maybe the one for writers.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    fn find(cache: &PageCache<Self>, wanted: Range<u64>) -> Result<Found>;

    /// Returns page `index` to be written, brought in if need be; `None` if it is a hole, or not
    /// cached.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    fn page(cache: &PageCache<Self>, index: u64) -> Result<Option<Frame>>;

    /// Checks that bytes up to `end` may change (seals).
    ///
    /// # Errors
    /// `EPERM`.
    fn may_write(cache: &PageCache<Self>, end: u64) -> Result<()> {
        Ok(())
    }

    /// Checks that the size may become `size` (seals), and changes it where the file is kept.
    ///
    /// # Errors
    /// `EPERM`.
    fn may_resize(cache: &PageCache<Self>, size: u64) -> Result<()> {
        Ok(())
    }

    /// Waits while there are too many dirty pages.
    #[inline]
    fn throttle() {}

    /// Charges a page that is to come (quota).
    ///
    /// # Errors
    /// `ENOSPC`.
    #[inline]
    fn charge(&self) -> Result<()> {
        Ok(())
    }

    /// Takes back [`charge`](BackingStore::charge), for `pages` pages: they did not come, or are in
    /// the object no more.
    #[inline]
    fn uncharge(&self, pages: usize) {}

    /// Whether page `index` has its room, so that a copy of it must not be lost.
    #[inline]
    fn is_reserved(cache: &PageCache<Self>, index: u64) -> bool {
        false
    }

    /// Reserves room for page `index`, which is in memory.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT`, `EIO`, `ENOMEM`, `EROFS`.
    #[inline]
    fn reserve(cache: &PageCache<Self>, index: u64, frame: &Frame) -> Result<()> {
        Ok(())
    }

    /// Reserves room for page `index`, which is put into the object next and can't be refused any
    /// more then. The file ends at `end` with it, or where it ends now if that is later.
    ///
    /// # Errors
    /// As [`reserve`](BackingStore::reserve).
    #[inline]
    fn reserve_new(cache: &PageCache<Self>, index: u64, end: u64) -> Result<()> {
        Ok(())
    }

    /// The end is about to move from `old` to `end`: reserves what the file gets of the last page,
    /// which may be in mappings that write it.
    ///
    /// # Errors
    /// As [`reserve`](BackingStore::reserve).
    fn reserve_last(cache: &PageCache<Self>, old: u64, end: u64) -> Result<()> {
        Ok(())
    }

    /// The page's frame may be modified.
    #[inline]
    fn note_dirty(cache: &PageCache<Self>, index: u64) {}

    /// The page's frame was modified just now.
    #[inline]
    fn mark_modified(cache: &PageCache<Self>, index: u64, frame: &Frame) {
        if Self::WRITES_BACK {
            pmap::set_modified(frame);
            Self::note_dirty(cache, index);
        }
    }

    /// Whether page `index` has, or will have, a block.
    ///
    /// # Errors
    /// `EIO`.
    fn has_block(cache: &PageCache<Self>, index: u64) -> Result<bool> {
        Ok(false)
    }

    /// The file is about to become longer.
    ///
    /// # Errors
    /// It can't: what was cut off is not given back yet.
    #[inline]
    fn about_to_grow(&self) -> Result<()> {
        Ok(())
    }

    /// The file has become longer, and ends at `size` bytes now.
    #[inline]
    fn grown(&self, size: u64) {}

    /// A write ended before all that was reserved for it.
    fn written_short(cache: &PageCache<Self>) {}

    /// The content was changed.
    #[inline]
    fn changed(&self) {}

    /// Locks the end against faults that reserve room.
    fn lock_end(&self) -> Option<MutexGuard<'_, ()>> {
        None
    }

    /// `pages` are about to be dropped for good.
    fn drop_begins(cache: &PageCache<Self>, pages: &Range<u64>) {}

    /// `count` of `pages` were dropped; returns when none of them is dirty or being written.
    fn drop_ends(cache: &PageCache<Self>, pages: &Range<u64>, count: usize) {
        cache.store.uncharge(count);
    }

    /// Frees what is behind `size` bytes. No page there is in memory.
    ///
    /// # Errors
    /// `EIO`.
    fn cut(&self, size: u64) -> Result<()> {
        Ok(())
    }

    /// Makes whole pages inside of the file a hole, which were dropped.
    ///
    /// # Errors
    /// `EOPNOTSUPP`, `EIO`.
    fn release(cache: &PageCache<Self>, pages: Range<u64>) -> Result<()> {
        Ok(())
    }

    /// Whether `pages` more pages may come.
    ///
    /// # Errors
    /// `ENOSPC`: surely not.
    fn has_room(cache: &PageCache<Self>, pages: u64) -> Result<()> {
        Ok(())
    }

    /// Gives page `index` its room, for a file that is to end at `end`: a hole is zeros afterwards.
    ///
    /// # Errors
    /// As [`reserve`](BackingStore::reserve).
    fn fill_hole(cache: &PageCache<Self>, index: u64, end: u64) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The first page of `pages` that is data, or a hole.
    ///
    /// # Errors
    /// `EIO`.
    fn seek(cache: &PageCache<Self>, pages: Range<u64>, hole: bool) -> Result<Option<u64>> {
        Ok((!hole && !pages.is_empty()).then_some(pages.start))
    }

    /// As [`Pager::lookup`](vm::Pager::lookup).
    ///
    /// # Errors
    /// As there.
    fn lookup(cache: &PageCache<Self>, index: u64) -> Mapping<Lookup>;

    /// As [`Pager::page_in`](vm::Pager::page_in).
    ///
    /// # Errors
    /// As there.
    fn page_in(cache: &PageCache<Self>, index: u64, window: Range<u64>) -> Mapping<()> {
        cache.object.bring_in_around(index, window)
    }

    /// As [`Pager::prefetch`](vm::Pager::prefetch).
    fn prefetch(cache: &PageCache<Self>, pages: Range<u64>) {
        cache.object.bring_back(pages);
    }

    /// As [`Pager::evict`](vm::Pager::evict).
    fn evict(cache: &PageCache<Self>, pages: Range<u64>) {}

    /// As [`Pager::writeback`](vm::Pager::writeback).
    ///
    /// # Errors
    /// As there.
    fn writeback(cache: &PageCache<Self>, pages: Range<u64>, wait: bool) -> Mapping<()> {
        Ok(())
    }

    /// A mapping has come.
    #[inline]
    fn referenced(cache: &PageCache<Self>) {}

    /// A mapping has gone; `last_writer` if it was the last one that may write.
    #[inline]
    fn detached(cache: &PageCache<Self>, last_writer: bool) {}

    /// Reserves what a store by a mapping into page `index` needs; no lock is held.
    ///
    /// # Errors
    /// As [`Pager::reserve`](vm::Pager::reserve).
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
