//! The bytes on the disk, all little-endian: what is read is checked before anything is made of it.
//!
//! `superblock`: the head of the file system. `group`: descriptors of block groups. `inode`: records of the inode tables.
//! [`Geometry`]: where things are.

mod geometry;
mod group;
mod inode;
mod superblock;

pub(super) use geometry::{Geometry, Slot};
pub(super) use group::{GROUP_SIZE, GroupRecord};
pub(super) use inode::{BLOCKS, DIRECT, Flags, InodeRecord, MAX_INODE_SIZE};
pub use superblock::Refused;
pub(super) use superblock::{ReadOnlyCompatible, State, Superblock, field};

/// Two bytes at `at`, which are there.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Four bytes at `at`, which are there.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Puts two bytes at `at`.
pub(super) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Puts four bytes at `at`.
pub(super) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
