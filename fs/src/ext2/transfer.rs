//! Pages of a regular file on their way from or to the disk.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::ops::Range;

use abi::{Errno, Result};
use nucleus::{Frame, dma::Part, ephemeral};

use super::{
    content::{Content, PAGE},
    inode::Inode,
};
use crate::block::{Request, Transfer, make_room};

/// Blocks of a file on their way, which begin at `first` on the disk.
struct Piece {
    first: u32,
    parts: Vec<Part>,
    /// Those of them that were never written, by their place in the file.
    unwritten: Vec<Range<u64>>,
}

impl Content {
    /// Begins a transfer of frames, as a whole, or where memory does not suffice for that in halves of halves ([`make_room`]).
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

    /// Begins a transfer of frames, or after an error nothing. For a read, what has no block that was written is filled with zeros.
    fn transfer_at_once(
        &self,
        write: bool,
        first: u64,
        frames: &[Frame],
        transfer: &Arc<Transfer>,
    ) -> Result<()> {
        let inode = self.inode()?;
        if write {
            // Its blocks have something else by now.
            inode.require_unpinned()?;
        }
        let pieces = self.pieces(&inode, write, first, frames)?;
        let sectors = inode.fs.geometry.sectors() as u64;
        let device = inode.fs.device();
        for piece in pieces {
            let sector = piece.first as u64 * sectors;
            if write {
                // Not the inode: its last holder ends the file system, which must not wait in the disk's own task.
                let (pages, done) = (inode.pages().cloned(), transfer.expect());
                let ended = move |result: Result<()>| {
                    if result.is_err()
                        && let Some(pages) = pages
                    {
                        // The others have what they had, or a part of what they were to get.
                        for blocks in piece.unwritten {
                            pages.store().note_unwritten(blocks);
                        }
                    }
                    done(result);
                };
                device.submit(Request::write(sector, piece.parts), Box::new(ended));
            } else {
                device.submit(Request::read(sector, piece.parts), transfer.expect());
            }
        }
        Ok(())
    }

    /// What is to be transferred of `frames`, the first of which is page `first`; what is not is filled with zeros when it is to be read. What is
    /// to be written is not unwritten from now on.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
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
        // Who clears unwritten blocks holds the lock for writing.
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
                Some(_) if !write && self.unwritten.contains(logical) => {
                    count = 1;
                    clear(logical..logical + 1);
                }
                Some(first) => {
                    if !write && let Some(next) = self.unwritten.next(logical..logical + count) {
                        count = next - logical;
                    }
                    let its = logical..logical + count;
                    make_room(&mut pieces, 1)?;
                    pieces.push(Piece {
                        first,
                        parts: self.parts(frames, blocks.start, its.clone())?,
                        unwritten: match write {
                            true => self.unwritten_of(its)?,
                            false => Vec::new(),
                        },
                    });
                }
            }
            logical += count;
        }
        if !write && end < blocks.end {
            clear(end.max(blocks.start)..blocks.end);
        }
        // All of them are going to be written: nothing can fail any more.
        for blocks in pieces.iter().flat_map(|piece| &piece.unwritten) {
            self.unwritten.remove_range(blocks.clone());
        }
        Ok(pieces)
    }

    /// Fills blocks in `frames` with zeros, of which the first one begins with block `start` of the file.
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

    /// Those of `blocks` that were never written.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn unwritten_of(&self, blocks: Range<u64>) -> Result<Vec<Range<u64>>> {
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut from = blocks.start;
        while let Some(logical) = self.unwritten.next(from..blocks.end) {
            from = logical + 1;
            match found.last_mut() {
                Some(last) if last.end == logical => last.end = from,
                _ => {
                    make_room(&mut found, 1)?;
                    found.push(logical..from);
                }
            }
        }
        Ok(found)
    }

    /// The parts of `frames`, of which the first one begins with block `start` of the file, for blocks of it.
    ///
    /// # Errors
    /// `ENOMEM`.
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
