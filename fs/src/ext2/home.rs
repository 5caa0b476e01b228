//! Where an inode's record is on the disk.

use core::time::Duration;

use abi::Result;
use nucleus::time;

use super::{
    buffer::Block,
    layout::{InodeRecord, MAX_INODE_SIZE, Slot},
    volume::Volume,
};

/// Where an inode's record is.
#[derive(Clone)]
pub(super) struct Home {
    pub group: u32,
    block: Block,
    /// Bytes.
    offset: usize,
    len: usize,
}

impl Home {
    pub fn of(fs: &Volume, slot: Slot) -> Result<Home> {
        let group = &fs.groups[slot.group as usize];
        Ok(Home {
            group: slot.group,
            block: fs.buffers.get(group.record.inode_table + slot.block)?,
            offset: slot.offset,
            len: fs.geometry.inode_size.min(MAX_INODE_SIZE),
        })
    }

    pub fn load(&self) -> InodeRecord {
        let mut bytes = [0; MAX_INODE_SIZE];
        self.block.read(self.offset, &mut bytes[..self.len]);
        InodeRecord::parse(&bytes[..self.len])
    }

    /// Puts the record there, but for the field of the list of orphans.
    pub fn store(&self, fs: &Volume, record: &InodeRecord) {
        let mut bytes = [0; MAX_INODE_SIZE];
        let bytes = &mut bytes[..self.len];
        self.block.read(self.offset, bytes);
        record.put(bytes);
        // What is between these parts may be set meanwhile, by who takes another inode out of the list of orphans.
        const BEHIND: usize = InodeRecord::DELETED + 4;
        let (front, behind) = (&bytes[..InodeRecord::DELETED], &bytes[BEHIND..]);
        fs.buffers.store(&self.block, self.offset, front);
        fs.buffers.store(&self.block, self.offset + BEHIND, behind);
    }

    /// The record as it is there, and the field of the list of orphans.
    #[cfg(test)]
    pub fn stored(&self) -> (InodeRecord, u32) {
        let mut field = [0; 4];
        self.block
            .read(self.offset + InodeRecord::DELETED, &mut field);
        (self.load(), u32::from_le_bytes(field))
    }

    /// Clears all of the record's bytes, those behind what is known here as well.
    pub fn clear(&self, fs: &Volume) {
        const ZEROS: [u8; 128] = [0; 128];
        for at in (0..fs.geometry.inode_size).step_by(ZEROS.len()) {
            fs.buffers.store(&self.block, self.offset + at, &ZEROS);
        }
    }
}

impl Volume {
    /// Sets the field of a record that belongs to the list of orphans. Where the record can't be read, the next check mends the list.
    pub(super) fn put_deleted(&self, number: u32, value: u32) {
        if let Ok(home) = Home::of(self, self.geometry.slot(number)) {
            let at = home.offset + InodeRecord::DELETED;
            self.buffers.store(&home.block, at, &value.to_le_bytes());
        }
    }
}

/// Now, since the epoch, in ticks: time stamps are as fine as Linux's, so that one who writes again and again changes them seldom.
pub(super) fn now() -> Duration {
    const TICK: u32 = 4_000_000;
    let now = time::since_epoch();
    Duration::new(now.as_secs(), now.subsec_nanos() / TICK * TICK)
}
