//! Where an inode's record is on the disk.

use abi::Result;

use super::{
    buffer::Block,
    layout::{InodeRecord, MAX_INODE_SIZE, Slot},
    volume::Volume,
};

/// The place of an inode's record.
#[derive(Clone)]
pub(super) struct RecordPlace {
    pub group: u32,
    block: Block,
    /// Bytes.
    offset: usize,
    len: usize,
}

impl RecordPlace {
    pub fn of(fs: &Volume, slot: Slot) -> Result<RecordPlace> {
        let group = &fs.groups[slot.group as usize];
        Ok(RecordPlace {
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

    /// Writes the record, except the field of the orphan list.
    pub fn store(&self, fs: &Volume, record: &InodeRecord) {
        let mut bytes = [0; MAX_INODE_SIZE];
        let bytes = &mut bytes[..self.len];
        // The removal of another inode from the orphan list may change the bytes in between.
        const BEHIND: usize = InodeRecord::DELETED + 4;
        fs.buffers.change(&self.block, |view| {
            view.read(self.offset, bytes);
            record.put(bytes);
            view.write(self.offset, &bytes[..InodeRecord::DELETED]);
            view.write(self.offset + BEHIND, &bytes[BEHIND..]);
        });
    }

    /// Reads the record and the field of the orphan list.
    #[cfg(test)]
    pub fn stored(&self) -> (InodeRecord, u32) {
        let mut field = [0; 4];
        self.block
            .read(self.offset + InodeRecord::DELETED, &mut field);
        (self.load(), u32::from_le_bytes(field))
    }

    /// Clears all bytes of the record, including unknown ones at its end.
    pub fn clear(&self, fs: &Volume) {
        const ZEROS: [u8; 128] = [0; 128];
        for at in (0..fs.geometry.inode_size).step_by(ZEROS.len()) {
            fs.buffers.store(&self.block, self.offset + at, &ZEROS);
        }
    }
}

impl Volume {
    /// Sets the field of the orphan list in a record. If the record cannot be read, the next check
    /// repairs the list.
    pub(super) fn put_deleted(&self, number: u32, value: u32) {
        if let Ok(home) = RecordPlace::of(self, self.geometry.slot(number)) {
            let at = home.offset + InodeRecord::DELETED;
            self.buffers.store(&home.block, at, &value.to_le_bytes());
        }
    }
}
