//! Operations on the data of a vnode.

use alloc::{boxed::Box, sync::Arc};

use abi::{Errno, Result};
use fbuf::{Sink, Source};
use vm::Pager;

use super::{DenyWrite, SizeLimit};
use crate::{block::PinnedBlocks, page_cache::Cached};

/// The operations on a vnode's data. Permission was checked by the caller; a vnode without data
/// keeps the default bodies.
#[allow(unused_variables, reason = "default bodies do nothing")]
pub trait FileData {
    /// Reads from byte `offset` on; 0 at or beyond the end. No lock is held while the sink takes
    /// bytes, which may fault.
    fn read(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        Err(Errno::EINVAL)
    }

    /// Writes at `offset`, or at the end with `append`, but not beyond the limit; returns the bytes
    /// written and the offset after them.
    fn write_within(
        &self,
        limit: &SizeLimit,
        offset: u64,
        append: bool,
        from: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        Err(Errno::EINVAL)
    }

    /// As [`write_within`](FileData::write_within) without a limit.
    fn write(&self, offset: u64, append: bool, from: &mut dyn Source) -> Result<(usize, u64)> {
        self.write_within(&SizeLimit::none(), offset, append, from)
    }

    /// Sets the size.
    fn truncate_within(&self, limit: &SizeLimit, size: u64) -> Result<()> {
        Err(Errno::EINVAL)
    }

    /// As [`truncate_within`](FileData::truncate_within) without a limit.
    fn truncate(&self, size: u64) -> Result<()> {
        self.truncate_within(&SizeLimit::none(), size)
    }

    /// Reserves space or punches holes (`fallocate`, with its mode bits).
    fn allocate_within(&self, limit: &SizeLimit, mode: u32, offset: u64, len: u64) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// As [`allocate_within`](FileData::allocate_within) without a limit.
    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.allocate_within(&SizeLimit::none(), mode, offset, len)
    }

    /// Tells whether it may only grow: nothing in it may change (`chattr +a`).
    fn only_grows(&self) -> bool {
        false
    }

    /// As [`read`](FileData::read), past the page cache (`O_DIRECT`).
    ///
    /// # Errors
    /// `EINVAL` also for an offset, an address or a length that is no multiple of
    /// [`direct_block`](FileData::direct_block).
    fn read_direct(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        Err(Errno::EINVAL)
    }

    /// As [`write_within`](FileData::write_within), past the page cache.
    ///
    /// # Errors
    /// As [`read_direct`](FileData::read_direct).
    fn write_direct(
        &self,
        limit: &SizeLimit,
        offset: u64,
        append: bool,
        from: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        Err(Errno::EINVAL)
    }

    /// Returns the bytes of the smallest piece that is moved past the page cache, a power of two;
    /// `None` if it cannot be opened for that (`O_DIRECT`).
    fn direct_block(&self) -> Option<usize> {
        None
    }

    /// Returns the count of its writers and executions; `None` where those may meet.
    fn deny_write(&self) -> Option<&DenyWrite> {
        None
    }

    /// Updates the time of access: always if `strict`, else once after each change and once a day.
    fn note_access(&self, strict: bool) {}

    /// Returns the pager that mappings of it use.
    fn pager(self: Arc<Self>) -> Option<Arc<dyn Pager>> {
        None
    }

    /// Writes dirty data back: of a file, its pages and its attributes (`fsync`), or with
    /// `data_only` without those that are not needed to read the data back (`fdatasync`); of the
    /// root of a file system, all of it (`syncfs`). [`Cached::errors`] of
    /// [`cached`](FileData::cached) reports pages that could not be written back.
    fn sync(&self, data_only: bool) -> Result<()> {
        Ok(())
    }

    /// Pins its blocks for a caller that uses them past the file system (`swapon`). The caller has
    /// written the file back.
    ///
    /// # Errors
    /// `EINVAL` if it has no blocks on a disk, or there are holes between them; `ETXTBSY` if they
    /// are pinned already; `ENOMEM`, `EIO`.
    fn pin_blocks(self: Arc<Self>) -> Result<Box<dyn PinnedBlocks>> {
        Err(Errno::EINVAL)
    }

    /// Returns its pages in the page cache, if it has any there.
    fn cached(&self) -> Option<Arc<dyn Cached>> {
        None
    }
}
