//! The files that have unwritten blocks: a commit has their pages written first, so that few blocks
//! have to be cleared.

use alloc::{collections::BTreeMap, sync::Weak};
use core::sync::atomic::Ordering;

use nucleus::sync::{Rank, SpinLock};

use super::{content::Content, inode::Inode};
use crate::page_cache::Cached;

/// Files with new blocks, by inode number; some have no unwritten ones any more.
pub(super) struct Growing(SpinLock<BTreeMap<u32, Weak<Inode>>>);

impl Growing {
    /// No files.
    pub const fn new() -> Growing {
        Growing(SpinLock::new(Rank::Leaf, BTreeMap::new()))
    }

    /// The file has new blocks.
    #[inline]
    pub fn add(&self, content: &Content) {
        if !content.listed.load(Ordering::Relaxed) && !content.listed.swap(true, Ordering::AcqRel) {
            self.list(content);
        }
    }

    #[cold]
    fn list(&self, content: &Content) {
        let Some(inode) = content.inode.upgrade() else {
            return;
        };
        let before = self.0.lock().insert(inode.ino, content.inode.clone());
        // A reference, maybe the last one, goes with no lock held.
        drop((before, inode));
    }

    /// Begins to write the pages of these files; what cannot be begun is cleared by the commit. The
    /// caller holds no lock.
    pub fn write_out(&self) {
        let all = core::mem::take(&mut *self.0.lock());
        for inode in all.values().filter_map(Weak::upgrade) {
            if let Some(pages) = inode.pages() {
                // Before the write: new blocks from here on are noted again.
                pages.blocks().listed.store(false, Ordering::Release);
                let _ = pages.write_out(0..u64::MAX, false);
            }
        }
    }
}
