//! The backing store of a regular file's pages.
//!
//! From [`reserve`](BlockStore::reserve) on, all blocks of a page within the file's size are
//! allocated: a full disk is detected before any bytes are accepted. Until the page is written
//! these blocks still hold another file's bytes. They are *unwritten*: they read as zeros, and
//! before anything on the disk refers to them they are written, or cleared there.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use abi::{Errno, Result};
use nucleus::{Frame, PAGE_SIZE, dma::Part, ephemeral};

use super::inode::{Inode, RecordChange};
use crate::{
    block::{Done, Transfer},
    page_cache::BlockStore,
};

pub(super) const PAGE: u64 = PAGE_SIZE as u64;
/// The most blocks of one reservation, so that other tasks get their turn at the file.
const MOST_RESERVED: u64 = 4096;

/// The link from a page cache to its inode.
pub(super) struct Content {
    /// Empty only for pages that outlive a forgotten file.
    pub(super) inode: Weak<Inode>,
    /// The file system knows that it has new blocks: see [`Growing`](super::growing::Growing).
    pub(super) listed: AtomicBool,
    /// Its blocks are pinned: see [`pinned`](super::pinned).
    pub(super) pinned: AtomicBool,
    /// There may be blocks beyond the end that [`cut`](BlockStore::cut) could not free.
    uncut: AtomicBool,
    pub(super) size_max: u64,
    pub(super) block_shift: u32,
    /// Pages are the blocks themselves (`dax`): a block is a page then.
    is_in_place: bool,
}

impl Content {
    /// Returns the store of the inode that `inode` refers to.
    pub fn new(inode: Weak<Inode>, size_max: u64, block_shift: u32, is_in_place: bool) -> Content {
        Content {
            inode,
            listed: AtomicBool::new(false),
            pinned: AtomicBool::new(false),
            uncut: AtomicBool::new(false),
            size_max,
            block_shift,
            is_in_place,
        }
    }

    /// Clears a block on the medium that has no bytes of the file yet, before a reader can see it
    /// there. The caller excludes other users of the page.
    fn clear_in_place(&self, inode: &Inode, block: u32) -> Result<()> {
        let block = u64::from(block);
        let blocks = block..block + 1;
        if inode.fs.buffers.next_unwritten(blocks.clone()).is_none() {
            return Ok(());
        }
        let disk = inode.fs.device().disk();
        let page = disk.page(block).ok_or(Errno::EIO)?;
        let cleared = inode.fs.buffers.first_write(blocks);
        ephemeral::map(&page).fill(0, PAGE_SIZE, 0);
        disk.persist(&page);
        cleared(Ok(()));
        Ok(())
    }

    /// The block of page `index`, if it is not a hole: pages are blocks.
    fn block_of(&self, inode: &Inode, index: u64) -> Result<Option<u32>> {
        if index >= self.blocks_of(self.size_max) {
            return Ok(None);
        }
        let extent = inode.fs.locate(&inode.record(), index as u32, 1)?;
        Ok(extent.first)
    }

    /// Returns the inode.
    ///
    /// # Errors
    /// `EIO` after unmounting.
    pub(super) fn inode(&self) -> Result<Arc<Inode>> {
        self.inode.upgrade().ok_or(Errno::EIO)
    }

    /// The blocks of `pages`.
    pub(super) fn blocks(&self, pages: Range<u64>) -> Range<u64> {
        let shift = PAGE.trailing_zeros() - self.block_shift;
        pages.start << shift..pages.end.saturating_mul(1 << shift)
    }

    /// The blocks of `size` bytes; the last one may be partial.
    pub(super) fn blocks_of(&self, size: u64) -> u64 {
        size.div_ceil(1 << self.block_shift)
    }

    /// Allocates blocks for the holes in `blocks`.
    fn fill_holes(&self, changing: &mut RecordChange<'_>, blocks: Range<u64>) -> Result<()> {
        let narrow = |logical: u64| u32::try_from(logical).map_err(|_| Errno::EFBIG);
        let range = narrow(blocks.start)?..narrow(blocks.end)?;
        let fs = changing.fs;
        changing.fill_holes_noting(range, &mut |run| {
            fs.buffers.note_unwritten(run);
            fs.growing.add(self);
        })
    }

    /// The first hole in `blocks`, or their end.
    fn first_hole(&self, inode: &Inode, blocks: Range<u64>) -> Result<u64> {
        let record = inode.record();
        let mut logical = blocks.start;
        while logical < blocks.end {
            let most = (blocks.end - logical).min(u32::MAX as u64) as u32;
            let extent = inode.fs.locate(&record, logical as u32, most)?;
            if extent.first.is_none() {
                return Ok(logical);
            }
            logical += extent.count as u64;
        }
        Ok(blocks.end)
    }

    /// Frees what [`cut`](BlockStore::cut) left, before the end moves past it. The caller
    /// excludes reservations.
    pub fn cut_again(&self) -> Result<()> {
        if !self.uncut.load(Ordering::Acquire) {
            return Ok(());
        }
        let size = self.inode()?.record().size;
        self.cut(size)
    }
}

impl BlockStore for Content {
    fn read(&self, first: u64, frames: &[Frame], done: Done) {
        let transfer = Transfer::new(done);
        let begun = self.transfer(false, first, frames, &transfer);
        transfer.end(begun);
    }

    fn write(&self, first: u64, frames: &[Frame], done: Done) {
        if self.is_in_place {
            let persisted = self.inode().map(|inode| {
                let disk = inode.fs.device().disk();
                frames.iter().for_each(|page| disk.persist(page));
            });
            return done(persisted);
        }
        let transfer = Transfer::new(done);
        let begun = self.transfer(true, first, frames, &transfer);
        transfer.end(begun);
    }

    fn reserve(&self, pages: Range<u64>, end: u64) -> Result<u64> {
        let inode = self.inode()?;
        if inode.fs.is_read_only() {
            return Err(Errno::EROFS);
        }
        let blocks = self.blocks(pages.clone());
        self.cut_again()?;
        let size = inode.record().size.max(end);
        let last = blocks.end.min(self.blocks_of(size));
        let last = last.min(blocks.start + MOST_RESERVED).max(blocks.start);
        let filled = inode.change(|changing| self.fill_holes(changing, blocks.start..last));
        // Whole pages that were filled before an error count.
        let to = match filled {
            Ok(()) => last,
            Err(error) => match self.first_hole(&inode, blocks.start..last)? {
                hole if hole >= self.blocks(pages.start..pages.start + 1).end => hole,
                _ => return Err(error),
            },
        };
        let per_page = self.blocks(0..1).end;
        if self.is_in_place {
            for index in blocks.start..to {
                if let Some(block) = self.block_of(&inode, index)? {
                    self.clear_in_place(&inode, block)?;
                }
            }
        }
        let whole = match to == self.blocks_of(size) {
            true => to.div_ceil(per_page),
            false => to / per_page,
        };
        Ok(whole.clamp(pages.start + 1, pages.end) - pages.start)
    }

    fn about_to_grow(&self) -> Result<()> {
        self.cut_again()
    }

    fn cut(&self, size: u64) -> Result<()> {
        let cut = self.inode()?.change(|changing| {
            changing.record.size = size;
            changing.free_range(self.blocks_of(size)..u64::MAX)
        });
        self.uncut.store(cut.is_err(), Ordering::Release);
        cut
    }

    fn release(&self, pages: Range<u64>) -> Result<()> {
        let blocks = self.blocks(pages);
        self.inode()?.change(|changing| changing.free_range(blocks))
    }

    fn seek(&self, pages: Range<u64>, hole: bool) -> Result<Option<u64>> {
        let inode = self.inode()?;
        let blocks = self.blocks(pages.clone());
        let end = blocks.end.min(self.blocks_of(inode.record().size));
        let per_page = self.blocks(0..1).end;
        let mut logical = blocks.start;
        while logical < end {
            let most = (end - logical).min(u32::MAX as u64) as u32;
            let extent = inode.fs.locate(&inode.record(), logical as u32, most)?;
            if extent.first.is_none() == hole {
                let page = match hole {
                    // A page with a block is not a hole, although part of it may be.
                    true => logical.div_ceil(per_page),
                    false => logical / per_page,
                };
                let whole = (page + 1) * per_page <= logical + extent.count as u64;
                if !hole || whole || logical + extent.count as u64 >= end {
                    return Ok(Some(page).filter(|page| pages.contains(page)));
                }
            }
            logical += extent.count as u64;
        }
        Ok(None)
    }

    fn changed(&self, grown: Option<u64>) {
        let Ok(inode) = self.inode() else { return };
        if let Some(size) = grown {
            // Blocks that a short write could not release lie beyond the new end as well.
            let grows = size > inode.record().size;
            if grows && self.cut_again().is_err() {
                inode
                    .fs
                    .damaged("a file grows over what was cut off", inode.ino);
            }
            inode.set(|record| record.size = record.size.max(size));
            inode.fs.note_size(size);
        }
        inode.touch_modified();
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.inode()?.sync(data_only)
    }

    fn is_in_place(&self) -> bool {
        self.is_in_place
    }

    fn in_place(&self, index: u64) -> Result<Option<Frame>> {
        let inode = self.inode()?;
        let block = self.block_of(&inode, index)?;
        let page = block.map(|block| inode.fs.device().disk().page(block.into()));
        match page {
            Some(None) => Err(Errno::EIO),
            page => Ok(page.flatten()),
        }
    }

    fn direct_block(&self) -> usize {
        match self.inode() {
            Ok(inode) => inode.fs.device().limits().block_size as usize,
            Err(_) => PAGE_SIZE,
        }
    }

    fn is_written(&self, bytes: Range<u64>) -> Result<bool> {
        self.has_bytes(bytes)
    }

    fn read_direct(&self, at: u64, parts: Vec<Part>) -> Result<()> {
        self.transfer_direct(false, at, parts)
    }

    fn write_direct(&self, at: u64, parts: Vec<Part>) -> Result<()> {
        self.transfer_direct(true, at, parts)
    }

    fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Acquire)
    }
}
