//! A disk whose medium is memory.

use alloc::vec::Vec;

use abi::{Errno, Result};
use nucleus::{
    Frame, PAGE_SIZE,
    ephemeral::{self, LONGEST_RUN},
    frame, persistent,
};

use super::{Command, Disk, Limits, Operation, SECTOR};

/// Frames of one piece of the table: a piece is a few pages of the kernel's heap.
const PIECE: usize = 4096;
const SECTORS: u64 = (PAGE_SIZE / SECTOR) as u64;

/// Frames as a disk: allocated at the start, so that it never fails for want of memory and may be
/// swapped to; or persistent memory.
pub struct MemoryDisk {
    /// In pieces of [`PIECE`].
    frames: Vec<Vec<Frame>>,
    limits: Limits,
    is_persistent: bool,
}

impl MemoryDisk {
    /// A disk of this many bytes, a multiple of a page and not 0, all zero.
    ///
    /// # Errors
    /// `EINVAL` for another size, `ENOMEM`.
    pub fn new(bytes: u64) -> Result<MemoryDisk> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_SIZE as u64) {
            return Err(Errno::EINVAL);
        }
        let pages = usize::try_from(bytes / PAGE_SIZE as u64).map_err(|_| Errno::ENOMEM)?;
        if pages > frame::usage().free {
            return Err(Errno::ENOMEM);
        }
        let mut frames = Vec::new();
        for from in (0..pages).step_by(PIECE) {
            let count = PIECE.min(pages - from);
            let mut piece = nucleus::try_vec(count)?;
            for _ in 0..count {
                piece.push(Frame::alloc_of_medium()?);
            }
            frames.push(piece);
        }
        Ok(MemoryDisk::of(frames, false))
    }

    /// A range of [persistent memory](nucleus::persistent), with what it holds; `None` if there is
    /// no other.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn persistent() -> Result<Option<MemoryDisk>> {
        let taken = persistent::take()?.filter(|pieces| pieces.iter().any(|it| !it.is_empty()));
        Ok(taken.map(|frames| MemoryDisk::of(frames, true)))
    }

    fn of(frames: Vec<Vec<Frame>>, is_persistent: bool) -> MemoryDisk {
        let pages: usize = frames.iter().map(Vec::len).sum();
        let limits = Limits {
            physical_block_size: PAGE_SIZE as u32,
            max_discard: u64::from(u32::MAX),
            ..Limits::plain(pages as u64 * SECTORS)
        };
        MemoryDisk {
            frames,
            limits,
            is_persistent,
        }
    }

    /// The frames from the one with a sector on, as many as are listed together, and the sector's
    /// offset in the first one.
    fn place(&self, sector: u64) -> (&[Frame], usize) {
        let page = (sector / SECTORS) as usize;
        let offset = (sector % SECTORS) as usize * SECTOR;
        (&self.frames[page / PIECE][page % PIECE..], offset)
    }

    fn transfer(&self, command: &Command) {
        let write = command.operation() == Operation::Write;
        let mut sector = command.sector();
        for part in command.parts() {
            let mut moved = 0;
            while moved < part.len {
                let (frames, offset) = self.place(sector);
                let frame = &frames[0];
                let len = (part.len - moved).min(PAGE_SIZE - offset);
                let (memory, at) = (&part.frame, part.offset + moved);
                match write {
                    true => {
                        ephemeral::copy(frame, offset, memory, at, len);
                        self.persist(frame);
                    }
                    false => ephemeral::copy(memory, at, frame, offset, len),
                }
                moved += len;
                sector += (len / SECTOR) as u64;
            }
        }
    }

    fn zero(&self, command: &Command) {
        let mut sector = command.sector();
        let end = sector + command.sectors();
        while sector < end {
            let (frames, offset) = self.place(sector);
            let room = frames.len().min(LONGEST_RUN) * PAGE_SIZE - offset;
            let len = room.min((end - sector) as usize * SECTOR);
            let frames = &frames[..(offset + len).div_ceil(PAGE_SIZE)];
            ephemeral::map_run(frames).fill(offset, len, 0);
            frames.iter().for_each(|frame| self.persist(frame));
            sector += (len / SECTOR) as u64;
        }
    }
}

impl Disk for MemoryDisk {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn page(&self, number: u64) -> Option<Frame> {
        let page = usize::try_from(number).ok()?;
        self.frames.get(page / PIECE)?.get(page % PIECE).cloned()
    }

    fn persist(&self, page: &Frame) {
        if self.is_persistent {
            persistent::persist(page);
        }
    }

    fn start(&self, command: Command) {
        match command.operation() {
            Operation::Read | Operation::Write => self.transfer(&command),
            Operation::Discard => self.zero(&command),
            Operation::Flush => {}
        }
        command.finish(Ok(()));
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        if self.is_persistent {
            // Freed, its frames would become ordinary memory and lose their bytes.
            core::mem::forget(core::mem::take(&mut self.frames));
        }
    }
}
