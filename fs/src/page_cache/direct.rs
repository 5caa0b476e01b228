//! Transfers between a program's memory and the blocks of a file, past its pages (`O_DIRECT`;
//! `uvm.txt` 3.2: `physio`).
//!
//! The program's pages are pinned, and the disk reads or writes them: no byte is copied. Pages of
//! the file are made to agree: dirty ones are written before, and those that were written over are
//! invalidated, before and after, so that later readers and mappings read the disk.
//!
//! *Races.* A transfer shares `writers`: no block is freed and no page is written meanwhile, except
//! by stores through mappings, which a program orders itself. Pages are pinned first, since that
//! may fault. A reader or a fault that reads a page in while the disk is written may get old bytes;
//! the second invalidation removes that page. If it cannot, since a thread has a reference to it,
//! or if a block is missing, the bytes go through the pages like other writes, with `writers` held
//! as for each write, so without transfers beside them, and are written out: that write is the one
//! that counts.
//!
//! A call moves up to 2 GiB, in pieces; between two of them it looks whether its thread is to end.

use abi::{Errno, Result};
use alloc::vec::Vec;
use fbuf::{Sink, Source, UserBuffers, moved};
use nucleus::{Access, PAGE_SIZE, dma::Part, frame};
use vm::PinnedPages;

use super::{
    SizeLimit,
    backing_store::BackingStore,
    block_backed::WriteBack,
    block_store::BlockStore,
    cache::{PageCache, pages_with},
};
use crate::counters::Counter;

/// Bytes that are pinned at a time: enough for several commands in flight. Other values were not
/// measured.
const PINNED: usize = 1 << 20;
/// The same when memory is scarce: a list of so many parts needs no neighbouring frames.
const PINNED_SCARCE: usize = 16 * PAGE_SIZE;

/// Bytes that may be pinned now.
fn most_pinned() -> usize {
    match frame::is_scarce() {
        false => PINNED,
        true => PINNED_SCARCE,
    }
}

/// The first `len` bytes of pinned pages, for a request.
fn parts(pinned: &PinnedPages, len: usize) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    parts.try_reserve_exact(pinned.parts().len())?;
    let mut left = len;
    for part in pinned.parts() {
        if left == 0 {
            break;
        }
        let len = part.len.min(left);
        left -= len;
        parts.push(Part::new(part.frame.clone(), part.offset, len));
    }
    Ok(parts)
}

impl<B: BlockStore> PageCache<WriteBack<B>> {
    /// As [`read`](PageCache::read), past the pages if the bytes go to a program's memory.
    ///
    /// # Errors
    /// `EINVAL` unless `offset` and all of the program's addresses and lengths are multiples of the
    /// disk's block; `EFAULT`, `EIO`, `ENOMEM`.
    pub fn read_direct(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        let Some(to) = to.program_memory() else {
            return self.read(offset, to);
        };
        // As on Linux, before the alignment is looked at.
        if offset >= self.size() || to.room() == 0 {
            return Ok(0);
        }
        let block = self.store.blocks.direct_block();
        if !(offset | to.unaligned_bits() as u64).is_multiple_of(block as u64) {
            return Err(Errno::EINVAL);
        }
        let mut done = 0;
        while to.room() > 0 {
            match self.read_piece(offset + done as u64, block, to) {
                Ok(0) => break,
                Ok(n) => {
                    to.skip(n);
                    done += n;
                    if !n.is_multiple_of(block) || vm::is_dying() {
                        break;
                    }
                }
                Err(error) => return moved(done, Err(error)),
            }
        }
        Ok(done)
    }

    /// Reads as many bytes as are pinned at a time, from `at` on; 0 at the end.
    fn read_piece(&self, at: u64, block: usize, to: &mut UserBuffers) -> Result<usize> {
        let pinned = to.pin(most_pinned(), Access::Write)?;
        let whole = pinned.len() / block * block;
        if whole == 0 {
            return Err(Errno::EFAULT);
        }
        let _turn = self.writers.read();
        let left = usize::try_from(self.size().saturating_sub(at)).unwrap_or(usize::MAX);
        let len = whole.min(left);
        if len == 0 {
            return Ok(0);
        }
        self.write_through(pages_with(&(at..at + len as u64)))?;
        let parts = parts(&pinned, len.next_multiple_of(block))?;
        self.store.blocks.read_direct(at, parts)?;
        Counter::direct_bytes_read.add(len as u64);
        Ok(len)
    }

    /// As [`write_within`](PageCache::write_within), past the pages as far as the bytes are a
    /// program's and go into blocks that the file has.
    ///
    /// # Errors
    /// As [`read_direct`](PageCache::read_direct), and those of
    /// [`write_within`](PageCache::write_within).
    pub fn write_direct(
        &self,
        limit: &SizeLimit,
        offset: u64,
        append: bool,
        from: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        let Some(from) = from.program_memory() else {
            return self.write_within(limit, offset, append, from);
        };
        if from.left() == 0 {
            return self.write_within(limit, offset, append, from);
        }
        let start = if append { self.size() } else { offset };
        // Once for the call: it is short if a later byte is beyond the limit.
        let room = usize::try_from(limit.room(start)?).unwrap_or(usize::MAX);
        let block = self.store.blocks.direct_block();
        if !(start | from.unaligned_bits() as u64).is_multiple_of(block as u64) {
            return Err(Errno::EINVAL);
        }
        let most = from.left().min(room);
        let mut done = 0;
        // Appended bytes have no blocks yet.
        while !append && done < most {
            match self.overwrite(start + done as u64, most - done, block, from) {
                Ok(0) => break,
                Ok(n) => {
                    from.skip(n);
                    done += n;
                }
                Err(error) => return moved(done, Err(error)).map(|n| (n, start + n as u64)),
            }
            if vm::is_dying() {
                return Ok((done, start + done as u64));
            }
        }
        if done == most {
            return Ok((done, start + done as u64));
        }
        Counter::direct_fallbacks.add(1);
        let written = self.write_and_drop(limit, start + done as u64, append, from);
        match written {
            Ok((n, end)) => Ok((done + n, end)),
            Err(error) => moved(done, Err(error)).map(|n| (n, start + n as u64)),
        }
    }

    /// Writes into blocks that the file has, as many bytes as are pinned at a time, `most` at most,
    /// from `at` on; 0, if some must go through the pages.
    fn overwrite(
        &self,
        at: u64,
        most: usize,
        block: usize,
        from: &mut UserBuffers,
    ) -> Result<usize> {
        let pinned = from.pin(most_pinned(), Access::Read)?;
        if pinned.len() < block {
            return Err(Errno::EFAULT);
        }
        let _turn = self.writers.read();
        let has = usize::try_from(self.size().saturating_sub(at)).unwrap_or(usize::MAX);
        let len = pinned.len().min(most).min(has) / block * block;
        let bytes = at..at + len as u64;
        if len == 0 || !self.store.blocks.is_written(bytes.clone())? {
            return Ok(0);
        }
        let pages = pages_with(&bytes);
        self.write_through(pages.clone())?;
        self.invalidate_locked(pages.clone());
        let parts = parts(&pinned, len)?;
        let written = self.store.blocks.write_direct(at, parts);
        // They may be pages of this file.
        drop(pinned);
        self.invalidate_locked(pages.clone());
        written?;
        if pages
            .clone()
            .any(|page| self.object.resident(page).is_some())
        {
            return Ok(0);
        }
        self.store.changed(None);
        Counter::direct_bytes_written.add(len as u64);
        Ok(len)
    }

    /// Writes through the pages, writes them out and drops them.
    ///
    /// # Errors
    /// Those of [`write_within`](PageCache::write_within); `EIO` if a page could not be written.
    fn write_and_drop(
        &self,
        limit: &SizeLimit,
        at: u64,
        append: bool,
        from: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        let before = self.store.errors.count();
        let (n, end) = self.write_within(limit, at, append, from)?;
        let pages = pages_with(&(end - n as u64..end));
        self.write_through(pages.clone())?;
        self.invalidate(pages);
        match self.store.errors.count() == before {
            true => Ok((n, end)),
            false => Err(Errno::EIO),
        }
    }
}
