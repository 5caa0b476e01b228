//! Transfers of a regular file's pages from or to the disk.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::ops::Range;

use abi::{Errno, Result};
use nucleus::{Frame, dma::Part, ephemeral};

use super::{
    content::{Content, PAGE},
    inode::Inode,
};
use crate::block::{Request, Transfer, make_room};

/// Consecutive blocks of a transfer, from `first` on the disk.
struct Piece {
    first: u32,
    count: u64,
    parts: Vec<Part>,
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
        match self.transfer_at_once(write, first, frames, transfer) {
            Err(Errno::ENOMEM) if frames.len() > 1 => {
                let (front, rest) = frames.split_at(frames.len() / 2);
                self.transfer(write, first, front, transfer)?;
                self.transfer(write, first + front.len() as u64, rest, transfer)
            }
            result => result,
        }
    }

    /// Starts a transfer of frames, or nothing if there is an error. On a read, holes and unwritten
    /// blocks are zero-filled.
    fn transfer_at_once(
        &self,
        write: bool,
        first: u64,
        frames: &[Frame],
        transfer: &Arc<Transfer>,
    ) -> Result<()> {
        let inode = self.inode()?;
        if write {
            // The blocks hold other data by now.
            inode.require_unpinned()?;
        }
        let pieces = self.pieces(&inode, write, first, frames)?;
        let sectors = inode.fs.geometry.sectors() as u64;
        let device = inode.fs.device();
        for piece in pieces {
            let sector = piece.first as u64 * sectors;
            if write {
                // Without a reference to the inode: dropping the last one unmounts the file system,
                // which must not wait in the disk's own task.
                let first = u64::from(piece.first);
                let first_write = inode.fs.buffers.first_write(first..first + piece.count);
                let done = transfer.expect();
                let ended = move |result: Result<()>| {
                    first_write(result);
                    done(result);
                };
                device.submit(Request::write(sector, piece.parts), Box::new(ended));
            } else {
                device.submit(Request::read(sector, piece.parts), transfer.expect());
            }
        }
        Ok(())
    }

    /// Splits `frames`, of which the first is page `first`, into pieces to transfer; for a read,
    /// zero-fills the rest.
    fn pieces(
        &self,
        inode: &Inode,
        write: bool,
        first: u64,
        frames: &[Frame],
    ) -> Result<Vec<Piece>> {
        let blocks = self.blocks(first..first + frames.len() as u64);
        let clear = |hole: Range<u64>| self.clear(frames, blocks.start, hole);
        let mut pieces: Vec<Piece> = Vec::new();
        let record = inode.record();
        let end = blocks.end.min(self.blocks_of(self.size_max));
        let mut logical = blocks.start;
        while logical < end {
            let most = (end - logical).min(u32::MAX as u64) as u32;
            let extent = inode.fs.locate(&record, logical as u32, most)?;
            let mut count = extent.count as u64;
            match extent.first {
                None if write => {}
                None => clear(logical..logical + count),
                Some(first) => {
                    let on_disk = u64::from(first)..u64::from(first) + count;
                    let unwritten = match write {
                        true => None,
                        false => inode.fs.buffers.next_unwritten(on_disk.clone()),
                    };
                    if unwritten == Some(on_disk.start) {
                        count = 1;
                        clear(logical..logical + 1);
                    } else {
                        count = unwritten.unwrap_or(on_disk.end) - on_disk.start;
                        make_room(&mut pieces, 1)?;
                        pieces.push(Piece {
                            first,
                            count,
                            parts: self.parts(frames, blocks.start, logical..logical + count)?,
                        });
                    }
                }
            }
            logical += count;
        }
        if !write && end < blocks.end {
            clear(end.max(blocks.start)..blocks.end);
        }
        Ok(pieces)
    }

    /// Zero-fills blocks in `frames`, which start with block `start` of the file.
    fn clear(&self, frames: &[Frame], start: u64, blocks: Range<u64>) {
        let mut at = (blocks.start - start) << self.block_shift;
        let end = (blocks.end - start) << self.block_shift;
        while at < end {
            let offset = at % PAGE;
            let len = (PAGE - offset).min(end - at);
            let frame = &frames[(at / PAGE) as usize];
            ephemeral::map(frame).fill(offset as usize, len as usize, 0);
            at += len;
        }
    }

    /// The segments of `frames`, which start with block `start` of the file, for `blocks` of it.
    fn parts(&self, frames: &[Frame], start: u64, blocks: Range<u64>) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        let mut at = (blocks.start - start) << self.block_shift;
        let end = (blocks.end - start) << self.block_shift;
        make_room(&mut parts, (end.div_ceil(PAGE) - at / PAGE) as usize)?;
        while at < end {
            let offset = at % PAGE;
            let len = (PAGE - offset).min(end - at);
            parts.push(Part {
                frame: frames[(at / PAGE) as usize].clone(),
                offset: offset as usize,
                len: len as usize,
            });
            at += len;
        }
        Ok(parts)
    }
}
