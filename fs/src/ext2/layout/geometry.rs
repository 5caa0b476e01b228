//! Positions on the disk.

use core::ops::Range;

use super::{GROUP_SIZE, GroupRecord, Superblock, superblock::ReadOnlyCompatible};

/// The numbers from which every position follows, constant while mounted.
#[derive(Clone, Debug)]
pub(in super::super) struct Geometry {
    /// Bytes.
    pub block_size: usize,
    /// log2 of the block size.
    pub block_shift: u32,
    pub blocks: u32,
    pub first_data_block: u32,
    pub blocks_per_group: u32,
    pub groups: u32,
    pub inodes: u32,
    pub inodes_per_group: u32,
    /// The first inode that is not reserved.
    pub first_inode: u32,
    /// The size of an inode's record, in bytes.
    pub inode_size: usize,
    /// Blocks of a group's inode table.
    pub table_blocks: u32,
    /// Blocks of the group descriptors.
    pub descriptor_blocks: u32,
    /// Blocks reserved after them.
    reserved_descriptor_blocks: u32,
    sparse: bool,
}

/// The position of an inode's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Slot {
    pub group: u32,
    /// Blocks from the start of the group's table.
    pub block: u32,
    /// Bytes in that block.
    pub offset: usize,
}

impl Geometry {
    /// Derives the geometry from a checked superblock.
    pub fn new(superblock: &Superblock) -> Geometry {
        let per_block = superblock.block_size / superblock.inode_size;
        Geometry {
            block_size: superblock.block_size,
            block_shift: superblock.block_size.trailing_zeros(),
            blocks: superblock.blocks,
            first_data_block: superblock.first_data_block,
            blocks_per_group: superblock.blocks_per_group,
            groups: superblock.groups(),
            inodes: superblock.inodes,
            inodes_per_group: superblock.inodes_per_group,
            first_inode: superblock.first_inode.min(superblock.inodes_per_group + 1),
            inode_size: superblock.inode_size,
            table_blocks: superblock.inodes_per_group.div_ceil(per_block as u32),
            descriptor_blocks: (superblock.groups() as usize * GROUP_SIZE)
                .div_ceil(superblock.block_size) as u32,
            reserved_descriptor_blocks: superblock.reserved_descriptor_blocks,
            sparse: superblock
                .read_only_features
                .contains(ReadOnlyCompatible::SPARSE_SUPER),
        }
    }

    /// Pointers in an indirect block.
    pub fn pointers(&self) -> u32 {
        (self.block_size / 4) as u32
    }

    /// 512-byte sectors of a block.
    pub fn sectors(&self) -> u32 {
        (self.block_size / 512) as u32
    }

    /// The blocks of a group; the last group may be shorter.
    pub fn group_blocks(&self, group: u32) -> Range<u32> {
        // Less than `blocks`; only the end of the last group could overflow.
        let start = self.first_data_block + group * self.blocks_per_group;
        start..start.saturating_add(self.blocks_per_group).min(self.blocks)
    }

    /// The group of a block that exists.
    pub fn group_of(&self, block: u32) -> u32 {
        (block - self.first_data_block) / self.blocks_per_group
    }

    /// Returns whether a group starts with a copy of the superblock and the descriptors.
    fn has_copy(&self, group: u32) -> bool {
        let power_of = |base: u32| {
            let mut power = base;
            while power < group {
                power = power.saturating_mul(base);
            }
            power == group
        };
        !self.sparse || group < 2 || power_of(3) || power_of(5) || power_of(7)
    }

    /// The blocks at the start of a group for superblock and descriptors.
    pub fn head(&self, group: u32) -> Range<u32> {
        let start = self.group_blocks(group).start;
        let copies = 1 + self.descriptor_blocks + self.reserved_descriptor_blocks;
        match self.has_copy(group) {
            true => start..start.saturating_add(copies),
            false => start..start,
        }
    }

    /// The blocks of a group's inode table.
    pub fn table(&self, record: &GroupRecord) -> Range<u32> {
        record.inode_table..record.inode_table.saturating_add(self.table_blocks)
    }

    /// Returns whether a group's bitmaps and table lie inside the group and do not overlap its head
    /// or one another.
    pub fn check_group(&self, group: u32, record: &GroupRecord) -> bool {
        let all = self.group_blocks(group);
        let table = self.table(record);
        let free = self.head(group).end..all.end;
        let single = |block: u32| free.contains(&block) && !table.contains(&block);
        single(record.block_bitmap)
            && single(record.inode_bitmap)
            && record.block_bitmap != record.inode_bitmap
            && free.start <= table.start
            && table.end <= free.end
    }

    /// Returns whether a block of this group may belong to a file, that is, holds no metadata of
    /// the group.
    pub fn is_data(&self, group: u32, record: &GroupRecord, block: u32) -> bool {
        !self.head(group).contains(&block)
            && block != record.block_bitmap
            && block != record.inode_bitmap
            && !self.table(record).contains(&block)
    }

    /// Returns whether the inode number is valid.
    pub fn has_inode(&self, number: u32) -> bool {
        (1..=self.inodes).contains(&number)
    }

    /// Returns the position of the record of a valid inode.
    pub fn slot(&self, number: u32) -> Slot {
        let index = number - 1;
        let at = (index % self.inodes_per_group) as usize * self.inode_size;
        Slot {
            group: index / self.inodes_per_group,
            block: (at / self.block_size) as u32,
            offset: at % self.block_size,
        }
    }
}
