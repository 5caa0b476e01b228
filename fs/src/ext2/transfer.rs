//! Transfers of a regular file's pages, or of bytes past them, from or to the disk.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::ops::Range;

use abi::{Errno, Result};
use nucleus::{Frame, dma::Part, ephemeral};

use super::{
    content::{Content, PAGE},
    inode::Inode,
    layout::InodeRecord,
};
use crate::block::{Request, SECTOR, Sleeper, Transfer, make_room};

/// Consecutive sectors of a transfer, with their blocks on the disk.
struct Piece {
    blocks: Range<u64>,
    sector: u64,
    parts: Vec<Part>,
}

/// The memory of a transfer, used in order.
struct Memory<I> {
    parts: I,
    /// What is left of the part that was begun.
    rest: Option<Part>,
}

impl<I: Iterator<Item = Part>> Memory<I> {
    fn new(parts: I) -> Memory<I> {
        Memory { parts, rest: None }
    }

    /// The next bytes that are in one part, `most` at most.
    fn next(&mut self, most: u64) -> Option<Part> {
        let mut part = self.rest.take().or_else(|| self.parts.next())?;
        if part.len as u64 > most {
            let most = most as usize;
            self.rest = Some(Part::new(
                part.frame.clone(),
                part.offset + most,
                part.len - most,
            ));
            part.len = most;
        }
        Some(part)
    }

    /// The next `len` bytes.
    fn take(&mut self, mut len: u64) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        make_room(&mut parts, len.div_ceil(PAGE) as usize)?;
        while len > 0
            && let Some(part) = self.next(len)
        {
            len -= part.len as u64;
            make_room(&mut parts, 1)?;
            parts.push(part);
        }
        Ok(parts)
    }

    /// Goes on behind the next `len` bytes; with `clear` they become zeros.
    fn pass(&mut self, mut len: u64, clear: bool) {
        while len > 0
            && let Some(part) = self.next(len)
        {
            len -= part.len as u64;
            if clear {
                ephemeral::map(&part.frame).fill(part.offset, part.len, 0);
            }
        }
    }
}

impl Content {
    /// Starts a transfer of frames, in one request or, if memory for that is missing, in halves
    /// recursively ([`make_room`]).
    pub(super) fn transfer(
        &self,
        write: bool,
        first: u64,
        frames: &[Frame],
        transfer: &Arc<Transfer>,
    ) -> Result<()> {
        let parts = frames.iter().cloned().map(Part::whole);
        let bytes = first * PAGE..(first + frames.len() as u64) * PAGE;
        match self.transfer_at_once(write, bytes, parts, transfer) {
            Err(Errno::ENOMEM) if frames.len() > 1 => {
                let (front, rest) = frames.split_at(frames.len() / 2);
                self.transfer(write, first, front, transfer)?;
                self.transfer(write, first + front.len() as u64, rest, transfer)
            }
            result => result,
        }
    }

    /// Moves whole sectors of the file from byte `at` on from or to `parts`, past the pages, and
    /// sleeps until that is done.
    pub(super) fn transfer_direct(&self, write: bool, at: u64, parts: Vec<Part>) -> Result<()> {
        let len: usize = parts.iter().map(|part| part.len).sum();
        let sleeper = Sleeper::new();
        let told = sleeper.clone();
        let transfer = Transfer::new(Box::new(move |result| told.tell(result)));
        let bytes = at..at + len as u64;
        let begun = self.transfer_at_once(write, bytes, parts.into_iter(), &transfer);
        transfer.end(begun);
        sleeper.wait()
    }

    /// Starts a transfer of `bytes` of the file, or nothing if there is an error. On a read, holes
    /// and unwritten blocks are zero-filled.
    fn transfer_at_once(
        &self,
        write: bool,
        bytes: Range<u64>,
        parts: impl Iterator<Item = Part>,
        transfer: &Arc<Transfer>,
    ) -> Result<()> {
        let inode = self.inode()?;
        if write {
            // The blocks hold other data by now.
            inode.require_unpinned()?;
        }
        let pieces = self.pieces(&inode, write, bytes, Memory::new(parts))?;
        let device = inode.fs.device();
        for piece in pieces {
            if write {
                // Without a reference to the inode: dropping the last one unmounts the file system,
                // which must not wait in the disk's own task.
                let first_write = inode.fs.buffers.first_write(piece.blocks);
                let done = transfer.expect();
                let ended = move |result: Result<()>| {
                    first_write(result);
                    done(result);
                };
                device.submit(Request::write(piece.sector, piece.parts), Box::new(ended));
            } else {
                let request = Request::read(piece.sector, piece.parts);
                device.submit(request, transfer.expect());
            }
        }
        Ok(())
    }

    /// Splits `bytes` of the file into pieces to transfer; for a read, zero-fills the rest of the
    /// memory.
    fn pieces(
        &self,
        inode: &Inode,
        write: bool,
        bytes: Range<u64>,
        mut memory: Memory<impl Iterator<Item = Part>>,
    ) -> Result<Vec<Piece>> {
        let mut pieces: Vec<Piece> = Vec::new();
        let record = inode.record();
        let sectors = u64::from(inode.fs.geometry.sectors());
        let end = bytes
            .end
            .min(self.blocks_of(self.size_max) << self.block_shift);
        let mut at = bytes.start;
        while at < end {
            let extent = self.extent(inode, &record, at..end)?;
            let Some(first) = extent.first else {
                memory.pass(extent.len, !write);
                at += extent.len;
                continue;
            };
            let within = at % (1 << self.block_shift);
            let blocks = first..first + self.blocks_of(within + extent.len);
            let unwritten = match write {
                true => None,
                false => inode.fs.buffers.next_unwritten(blocks.clone()),
            };
            // Up to the next unwritten block, or that block.
            let len = match unwritten {
                None => extent.len,
                Some(block) if block == first => extent.len.min((1 << self.block_shift) - within),
                Some(block) => ((block - first) << self.block_shift) - within,
            };
            if unwritten == Some(first) {
                memory.pass(len, true);
            } else {
                make_room(&mut pieces, 1)?;
                pieces.push(Piece {
                    blocks: first..first + self.blocks_of(within + len),
                    sector: first * sectors + within / SECTOR as u64,
                    parts: memory.take(len)?,
                });
            }
            at += len;
        }
        if !write && at < bytes.end {
            memory.pass(bytes.end - at, true);
        }
        Ok(pieces)
    }

    /// Returns the block on the disk with byte `bytes.start` of the file, and how many of `bytes`
    /// follow it without a gap; or how many are a hole.
    fn extent(&self, inode: &Inode, record: &InodeRecord, bytes: Range<u64>) -> Result<Bytes> {
        let logical = bytes.start >> self.block_shift;
        let most = (self.blocks_of(bytes.end) - logical).min(u64::from(u32::MAX)) as u32;
        let extent = inode.fs.locate(record, logical as u32, most)?;
        let end = (logical + u64::from(extent.count)) << self.block_shift;
        Ok(Bytes {
            first: extent.first.map(u64::from),
            len: end.min(bytes.end) - bytes.start,
        })
    }

    /// As [`BlockStore::is_written`](crate::page_cache::BlockStore::is_written).
    pub(super) fn has_bytes(&self, bytes: Range<u64>) -> Result<bool> {
        let inode = self.inode()?;
        let record = inode.record();
        let mut at = bytes.start;
        while at < bytes.end {
            let extent = self.extent(&inode, &record, at..bytes.end)?;
            let Some(first) = extent.first else {
                return Ok(false);
            };
            let within = at % (1 << self.block_shift);
            let blocks = first..first + self.blocks_of(within + extent.len);
            if inode.fs.buffers.next_unwritten(blocks).is_some() {
                return Ok(false);
            }
            at += extent.len;
        }
        Ok(true)
    }
}

/// Consecutive bytes of a file that are consecutive on the disk as well, or a hole.
struct Bytes {
    /// The block with the first of them.
    first: Option<u64>,
    /// How many.
    len: u64,
}
