//! The backing store of a regular file's pages.
//!
//! From [`reserve`](BlockStore::reserve) on, all blocks of a page within the file's size are
//! allocated: a full disk is detected before any bytes are accepted. Until the page is written
//! these blocks still hold another file's bytes. They are *unwritten*: they read as zeros, and
//! those that are still unwritten when the file is synced or evicted are cleared on the disk.

use alloc::sync::{Arc, Weak};
use core::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use abi::{Errno, Result};
use nucleus::{Frame, PAGE_SIZE, dma::Part};

use super::inode::{Inode, RecordChange};
use crate::{
    block::{Done, Transfer},
    page_cache::{BlockStore, PageSet},
};

pub(super) const PAGE: u64 = PAGE_SIZE as u64;
/// The most blocks of one reservation, so that other tasks get their turn at the file.
const MOST_RESERVED: u64 = 4096;
/// Segments of one request that clears blocks.
const MOST_PARTS: u32 = 64;

/// The link from a page cache to its inode.
pub(super) struct Content {
    /// Empty only for pages that outlive a forgotten file.
    inode: Weak<Inode>,
    /// Allocated blocks of the file that were never written, by their position in the file.
    pub(super) unwritten: PageSet,
    /// Its blocks are pinned: see [`pinned`](super::pinned).
    pub(super) pinned: AtomicBool,
    /// There may be blocks beyond the end that [`cut`](BlockStore::cut) could not free.
    uncut: AtomicBool,
    pub(super) size_max: u64,
    pub(super) block_shift: u32,
}

impl Content {
    /// Returns the store of the inode that `inode` refers to.
    pub fn new(inode: Weak<Inode>, size_max: u64, block_shift: u32) -> Content {
        Content {
            inode,
            unwritten: PageSet::new(),
            pinned: AtomicBool::new(false),
            uncut: AtomicBool::new(false),
            size_max,
            block_shift,
        }
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

    /// Clears reserved, unwritten blocks on the disk.
    ///
    /// # Errors
    /// `EIO`; `ENOMEM` if an indirect block cannot be read.
    pub fn clear_unwritten(&self) -> Result<()> {
        if self.unwritten.next(0..u64::MAX).is_none() {
            return Ok(());
        }
        let inode = self.inode()?;
        // The lock keeps writes to these blocks from starting.
        inode.change(|changing| {
            let mut from = 0;
            while let Some(logical) = self.unwritten.next(from..u64::MAX) {
                let extent = changing
                    .fs
                    .locate(changing.record, logical as u32, MOST_PARTS)?;
                let run = (1..extent.count as u64).find(|i| !self.unwritten.contains(logical + i));
                let count = run.unwrap_or(extent.count as u64);
                if let Some(first) = extent.first {
                    let part = Part {
                        frame: changing.fs.zeros.clone(),
                        offset: 0,
                        len: 1 << self.block_shift,
                    };
                    let sector = first as u64 * changing.fs.geometry.sectors() as u64;
                    let parts = nucleus::try_filled(count as usize, part)?;
                    changing.fs.device().write(sector, parts)?;
                }
                self.unwritten.remove_range(logical..logical + count);
                from = logical + count;
            }
            Ok(())
        })
    }

    /// Marks blocks as unwritten.
    pub fn note_unwritten(&self, blocks: Range<u64>) {
        for logical in blocks {
            self.unwritten.insert(logical);
        }
    }

    /// Allocates blocks for the holes in `blocks`.
    fn fill_holes(&self, changing: &mut RecordChange<'_>, blocks: Range<u64>) -> Result<()> {
        let narrow = |logical: u64| u32::try_from(logical).map_err(|_| Errno::EFBIG);
        let range = narrow(blocks.start)?..narrow(blocks.end)?;
        changing.fill_holes_noting(range, &mut |filled| {
            self.note_unwritten(filled.start as u64..filled.end as u64);
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

    fn free(&self, changing: &mut RecordChange<'_>, blocks: Range<u64>) -> Result<()> {
        self.unwritten.remove_range(blocks.clone());
        changing.free_range(blocks)
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
            self.free(changing, self.blocks_of(size)..u64::MAX)
        });
        self.uncut.store(cut.is_err(), Ordering::Release);
        cut
    }

    fn release(&self, pages: Range<u64>) -> Result<()> {
        let blocks = self.blocks(pages);
        self.inode()?.change(|changing| self.free(changing, blocks))
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
        self.clear_unwritten()?;
        self.inode()?.sync(data_only)
    }

    fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Acquire)
    }
}
