//! Freeing inodes that have lost their last name and their last user.

use alloc::vec::Vec;

use abi::Result;

use super::{
    home::RecordPlace,
    layout::InodeRecord,
    pending::{Pending, Run},
    volume::Volume,
};
use crate::vnode::now;

/// An unused inode without links that could not be freed yet.
pub(super) struct Removed {
    number: u32,
    home: RecordPlace,
    record: InodeRecord,
}

impl Removed {
    /// The inode of this number, with this record at `home`, which has no link.
    pub fn new(number: u32, home: RecordPlace, record: InodeRecord) -> Removed {
        Removed {
            number,
            home,
            record,
        }
    }

    /// Frees its blocks and then the inode.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`: what was freed by then stays free.
    pub fn free(&mut self, fs: &Volume) -> Result<()> {
        let mut freed = Pending::new();
        let result = match self.record.has_blocks(fs.geometry.sectors()) {
            true => fs.free_range(&mut self.record, 0..u64::MAX, &mut freed),
            false => Ok(()),
        };
        let result = result.and_then(|()| self.free_attributes(fs, &mut freed));
        if result.is_ok() {
            self.record.size = 0;
            let deleted = (now().as_secs() as u32).max(1);
            fs.orphans.remove(fs, self.number, deleted);
            freed.add_inode(self.number, self.record.is_directory());
        }
        self.home.store(fs, &self.record);
        fs.free_all(freed);
        result
    }

    /// Drops the reference to the block of extended attributes, which other inodes may share.
    fn free_attributes(&mut self, fs: &Volume, freed: &mut Pending) -> Result<()> {
        const MAGIC: u32 = 0xea02_0000;
        let number = self.record.attributes;
        if number == 0 {
            return Ok(());
        }
        let block = fs.metadata(number)?;
        if block.word(0) != MAGIC {
            fs.damaged("a block of attributes has no head", number);
        } else if block.word(1) > 1 {
            fs.buffers.store_word(&block, 1, block.word(1) - 1);
        } else {
            fs.buffers.forget(number);
            freed.add_blocks(Run {
                first: number,
                count: 1,
            });
        }
        self.record.attributes = 0;
        self.record.sectors = self.record.sectors.saturating_sub(fs.geometry.sectors());
        Ok(())
    }
}

impl Volume {
    /// Returns whether there are removed inodes that could not be freed.
    pub(super) fn has_removed(&self) -> bool {
        !self.removed.lock().is_empty()
    }

    /// Retries freeing removed inodes; those that fail again stay for the next time.
    pub(super) fn reap(&self) -> Result<()> {
        let mut result = Ok(());
        let mut left = Vec::new();
        let removed = core::mem::take(&mut *self.removed.lock());
        for mut inode in removed {
            if let Err(error) = inode.free(self) {
                result = Err(error);
                left.push(inode);
            }
        }
        if !left.is_empty() {
            self.removed.lock().append(&mut left);
        }
        result
    }
}
