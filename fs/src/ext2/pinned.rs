//! Regular files whose blocks are used directly, for swap space: see [`PinnedBlocks`].

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::sync::atomic::Ordering::AcqRel;

use abi::{Errno, Result};
use nucleus::{PAGE_SHIFT, PAGE_SIZE};

use super::{
    content::Content,
    inode::{Inode, Node},
};
use crate::{
    Kind,
    block::{Device, PinnedBlocks, Run},
    page_cache::{BlockStore, Cached, PageCache, WriteBack},
};

/// A file that is pinned until this is dropped.
struct Pinned {
    node: Arc<Node>,
    runs: Vec<Run>,
}

impl PinnedBlocks for Pinned {
    fn device(&self) -> &Arc<Device> {
        self.node.fs.device()
    }

    fn runs(&self) -> &[Run] {
        &self.runs
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.node.set_pinned(false);
    }
}

/// As [`Vnode::pin_blocks`].
///
/// # Errors
/// As there; `EROFS`.
pub(super) fn pin(node: Arc<Node>) -> Result<Box<dyn PinnedBlocks>> {
    if node.kind() != Kind::Regular {
        return Err(Errno::EINVAL);
    }
    if node.fs.is_read_only() {
        return Err(Errno::EROFS);
    }
    node.require_mutable(true)?;
    // Most of it without excluding other users.
    node.sync_whole()?;
    let mut pinned = {
        // From here on the file can be written through mappings only, and later not at all.
        let fs = node.fs.clone();
        let _no_changes = fs.mounting.changes.write();
        node.sync_whole()?;
        if node.set_pinned(true) {
            return Err(Errno::ETXTBSY);
        }
        Pinned {
            node,
            runs: Vec::new(),
        }
    };
    // Later writes through a mapping would be lost.
    let is_changed = |pages: &Arc<PageCache<WriteBack<Content>>>| {
        pages.is_mapped_writable() || pages.counts().dirty > 0
    };
    if pinned.node.pages().is_some_and(is_changed) {
        return Err(Errno::ETXTBSY);
    }
    pinned.runs = pinned.node.runs()?;
    Ok(Box::new(pinned))
}

impl Inode {
    /// Returns whether its blocks are pinned.
    pub(super) fn is_pinned(&self) -> bool {
        self.pages().is_some_and(|pages| pages.blocks().is_pinned())
    }

    /// Checks whether the content may be changed.
    ///
    /// # Errors
    /// `ETXTBSY` if its blocks are pinned.
    pub(super) fn require_unpinned(&self) -> Result<()> {
        Errno::ETXTBSY.unless(!self.is_pinned())
    }

    /// Checks whether a name of it may be removed from `directory`: neither immutable or
    /// append-only, nor used as swap space, which is removed by name.
    pub(super) fn require_removable(&self, directory: &Inode) -> Result<()> {
        directory.require_mutable(true)?;
        self.require_mutable(true)?;
        Errno::EPERM.unless(!self.is_pinned())
    }

    /// Writes all of it to stable storage.
    ///
    /// # Errors
    /// `EIO`, also for an earlier failed writeback during this call; `ENOMEM`.
    fn sync_whole(&self) -> Result<()> {
        let pages = self.pages().ok_or(Errno::EINVAL)?;
        let before = pages.errors().count();
        Cached::sync(&**pages, 0..u64::MAX, false)?;
        Errno::EIO.unless(pages.errors().count() == before)
    }

    /// Returns the previous value.
    fn set_pinned(&self, pinned: bool) -> bool {
        let pages = self.pages();
        pages.is_some_and(|pages| pages.blocks().pinned.swap(pinned, AcqRel))
    }

    /// Returns the blocks of its whole pages.
    ///
    /// # Errors
    /// `EINVAL` if a page has a hole, or its blocks are not consecutive; `EIO`, `ENOMEM`.
    fn runs(&self) -> Result<Vec<Run>> {
        let geometry = &self.fs.geometry;
        let size = self.pages().map_or(0, |pages| pages.size());
        let per_page = (PAGE_SIZE / geometry.block_size) as u64;
        let sectors = u64::from(geometry.sectors());
        let record = self.record();
        let mut runs: Vec<Run> = Vec::new();
        let end = (size >> PAGE_SHIFT) * per_page;
        let mut logical = 0;
        while logical < end {
            let most = (end - logical).min(u64::from(u32::MAX)) as u32;
            let extent = self.fs.locate(&record, logical as u32, most)?;
            let first = extent.first.ok_or(Errno::EINVAL)?;
            let (sector, page) = (u64::from(first) * sectors, logical / per_page);
            let count = u64::from(extent.count);
            match runs.last_mut() {
                // A run ends at each indirect block, even if the next one continues it.
                Some(last)
                    if last.sector + (logical - last.page * per_page) * sectors == sector => {}
                _ if !logical.is_multiple_of(per_page) => return Err(Errno::EINVAL),
                _ => {
                    runs.try_reserve(1)?;
                    runs.push(Run {
                        page,
                        sector,
                        pages: 0,
                    });
                }
            }
            logical += count;
            if let Some(last) = runs.last_mut() {
                last.pages = logical / per_page - last.page;
            }
        }
        Ok(runs)
    }
}
