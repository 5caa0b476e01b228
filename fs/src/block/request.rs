//! Requests to a disk.

use alloc::{boxed::Box, vec::Vec};

use abi::{Errno, Result};
use nucleus::dma::Part;

use super::SECTOR;

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Sectors go into the parts.
    Read,
    /// The parts go into sectors.
    Write,
    /// Every write that was done before is on the medium when this is done.
    Flush,
    /// The sectors' content is not needed any more; later reads return any bytes.
    Discard,
}

/// Runs when a request is done, in a task of the kernel's: may take sleeping locks for a short
/// time, must not wait for another request, and must not need memory that may not be there. The
/// error is `EIO` when the disk failed, `EINVAL` for sectors that the disk does not have, `EROFS`
/// for a change of a disk that is read-only, `EOPNOTSUPP` for a discard where there is none.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// Something to do for a disk.
#[derive(Debug)]
pub struct Request {
    pub(super) operation: Operation,
    pub(super) sector: u64,
    pub(super) sectors: u64,
    pub(super) parts: Vec<Part>,
}

impl Request {
    /// Reads from `sector` on as many sectors as `parts` hold. Each part's length is a multiple of
    /// [`SECTOR`].
    pub fn read(sector: u64, parts: Vec<Part>) -> Request {
        Request::transfer(Operation::Read, sector, parts)
    }

    /// Writes likewise. Bytes that change before it is done are written as some mixture.
    pub fn write(sector: u64, parts: Vec<Part>) -> Request {
        Request::transfer(Operation::Write, sector, parts)
    }

    /// Brings completed writes onto the medium.
    pub fn flush() -> Request {
        Request {
            operation: Operation::Flush,
            sector: 0,
            sectors: 0,
            parts: Vec::new(),
        }
    }

    /// Gives `sectors` sectors from `sector` on up.
    pub fn discard(sector: u64, sectors: u64) -> Request {
        Request {
            operation: Operation::Discard,
            sector,
            sectors,
            parts: Vec::new(),
        }
    }

    pub(super) fn transfer(operation: Operation, sector: u64, parts: Vec<Part>) -> Request {
        let bytes: usize = parts.iter().map(|part| part.len).sum();
        Request {
            operation,
            sector,
            sectors: (bytes / SECTOR) as u64,
            parts,
        }
    }

    /// Its operation.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Whether a disk like this can do it.
    ///
    /// # Errors
    /// As [`Done`] says.
    pub(super) fn check(&self, limits: &Limits) -> Result<()> {
        if self.operation == Operation::Flush {
            return Ok(());
        }
        if limits.read_only && self.operation != Operation::Read {
            return Err(Errno::EROFS);
        }
        if self.operation == Operation::Discard && limits.max_discard == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let block = u64::from(limits.block_size) / SECTOR as u64;
        let whole = |part: &Part| part.is_valid() && part.len.is_multiple_of(SECTOR);
        let end = self.sector.checked_add(self.sectors);
        let fits = end.is_some_and(|end| end <= limits.sectors)
            && self.sector.is_multiple_of(block)
            && self.sectors.is_multiple_of(block);
        Errno::EINVAL.unless(fits && self.parts.iter().all(whole))
    }
}

/// The properties of a disk, and the most that it takes at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Limits {
    /// Its size.
    pub sectors: u64,
    /// Bytes of the smallest piece that can be read or written: a power of two, at least
    /// [`SECTOR`], at most a page.
    pub block_size: u32,
    /// Bytes of the smallest piece that it writes without reading around it; a multiple of
    /// `block_size`.
    pub physical_block_size: u32,
    /// Commands that it works on at once, at least 1.
    pub depth: usize,
    /// Parts of a command, enough for one block at least.
    pub max_parts: usize,
    /// Sectors of a command that reads or writes, at least a page's.
    pub max_sectors: u64,
    /// Sectors of a command that discards; 0 if it can't.
    pub max_discard: u64,
    /// Whether it has a cache that a power cut empties.
    pub volatile_cache: bool,
    pub read_only: bool,
}

impl Limits {
    /// A disk of `sectors` sectors without any peculiarity.
    pub const fn plain(sectors: u64) -> Limits {
        Limits {
            sectors,
            block_size: SECTOR as u32,
            physical_block_size: SECTOR as u32,
            depth: 64,
            max_parts: 128,
            max_sectors: 1024,
            max_discard: 0,
            volatile_cache: false,
            read_only: false,
        }
    }
}
