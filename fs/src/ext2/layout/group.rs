//! Block group descriptors: a table of 32-byte records after the superblock.

use super::{put_u16, u16_at, u32_at};

/// Bytes of a descriptor.
pub(in super::super) const GROUP_SIZE: usize = 32;

/// A group's descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct GroupRecord {
    /// Block numbers.
    pub block_bitmap: u32,
    pub inode_bitmap: u32,
    pub inode_table: u32,
    pub free_blocks: u16,
    pub free_inodes: u16,
    pub directories: u16,
}

impl GroupRecord {
    /// The offset of the counts in the record.
    pub const COUNTS: usize = 12;

    /// Parses a descriptor; [`Geometry::check_group`](super::Geometry::check_group) checks its
    /// positions.
    pub fn parse(bytes: &[u8; GROUP_SIZE]) -> GroupRecord {
        GroupRecord {
            block_bitmap: u32_at(bytes, 0),
            inode_bitmap: u32_at(bytes, 4),
            inode_table: u32_at(bytes, 8),
            free_blocks: u16_at(bytes, Self::COUNTS),
            free_inodes: u16_at(bytes, Self::COUNTS + 2),
            directories: u16_at(bytes, Self::COUNTS + 4),
        }
    }

    /// The bytes of its counts, at [`COUNTS`](GroupRecord::COUNTS).
    pub fn counts(&self) -> [u8; 6] {
        let mut bytes = [0; 6];
        put_u16(&mut bytes, 0, self.free_blocks);
        put_u16(&mut bytes, 2, self.free_inodes);
        put_u16(&mut bytes, 4, self.directories);
        bytes
    }
}
