//! The on-disk format, all little-endian; everything read is checked before it is used.
//!
//! `superblock`: the head of the file system. `group`: block group descriptors. `inode`: inode
//! records. [`Geometry`]: positions on the disk.

mod geometry;
mod group;
mod inode;
mod superblock;

pub(super) use geometry::{Geometry, Slot};
pub(super) use group::{GROUP_SIZE, GroupRecord};
pub(super) use inode::{BLOCKS, DIRECT, Flags, InodeRecord, MAX_INODE_SIZE};
pub use superblock::Refused;
pub(super) use superblock::{ReadOnlyCompatible, State, Superblock, field};

/// Reads two bytes at `at`, which is in bounds.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Reads four bytes at `at`, which is in bounds.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes two bytes at `at`.
pub(super) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Writes four bytes at `at`.
pub(super) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
