//! The superblock: 1024 bytes at byte 1024 of the device.

use abi::Errno;
use bitflags::bitflags;

use super::{u16_at, u32_at};

/// Why a file system is refused: it is inconsistent, or uses an unknown feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The error of `mount`.
    pub errno: Errno,
    /// The text for the log.
    pub reason: &'static str,
}

impl Refused {
    pub(in super::super) fn invalid(reason: &'static str) -> Refused {
        Refused {
            errno: Errno::EINVAL,
            reason,
        }
    }
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Refused {
        Refused {
            errno,
            reason: "it can't be read",
        }
    }
}

bitflags! {
    /// Whether the file system was unmounted cleanly, `s_state`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(in super::super) struct State: u16 {
        /// Everything was written and is consistent.
        const VALID = 1;
        /// Damage was found.
        const ERROR = 2;
        /// Orphans are being recovered.
        const ORPHANS = 4;
    }
}

bitflags! {
    /// Compatible features, which may be ignored.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(in super::super) struct Compatible: u32 {
        const RESIZE_INODE = 0x10;
        const _ = !0;
    }
}

bitflags! {
    /// Features that are required for writing.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(in super::super) struct ReadOnlyCompatible: u32 {
        const SPARSE_SUPER = 1;
        const LARGE_FILE = 2;
        const _ = !0;
    }
}

/// Features that are required for reading: directory entries have a file type.
const INCOMPATIBLE_FILE_TYPE: u32 = 2;

/// Offsets of the fields that are written.
pub(in super::super) mod field {
    pub const FREE_BLOCKS: usize = 12;
    pub const FREE_INODES: usize = 16;
    pub const MOUNTED: usize = 44;
    pub const WRITTEN: usize = 48;
    pub const MOUNTS: usize = 52;
    pub const STATE: usize = 58;
    pub const FEATURES_READ_ONLY: usize = 100;
    pub const LAST_ORPHAN: usize = 232;
}

/// The fields of a checked superblock.
#[derive(Clone, Debug)]
pub(in super::super) struct Superblock {
    pub inodes: u32,
    pub blocks: u32,
    /// Blocks reserved for privileged users.
    pub reserved_blocks: u32,
    pub first_data_block: u32,
    /// The block size: 1024, 2048 or 4096.
    pub block_size: usize,
    pub blocks_per_group: u32,
    pub inodes_per_group: u32,
    /// The user and the group that may use the reserved blocks.
    pub reserved_uid: u32,
    pub reserved_gid: u32,
    /// Mounts since the last check.
    pub mounts: u16,
    pub state: State,
    /// The first inode that is not reserved.
    pub first_inode: u32,
    /// The size of an inode's record, in bytes.
    pub inode_size: usize,
    /// Revision 0, which has no feature fields.
    pub is_old: bool,
    /// Directory entries have a file type.
    pub has_file_types: bool,
    pub read_only_features: ReadOnlyCompatible,
    /// Blocks after the descriptors, reserved for more descriptors.
    pub reserved_descriptor_blocks: u32,
    /// The head of the orphan list; 0 for none.
    pub last_orphan: u32,
}

impl Superblock {
    pub const OFFSET: u64 = 1024;
    pub const SIZE: usize = 1024;
    const MAGIC: u16 = 0xef53;
    /// The size of a record in revision 0.
    const OLD_INODE_SIZE: usize = 128;

    /// Parses a superblock from its [`SIZE`](Superblock::SIZE) bytes.
    ///
    /// # Errors
    /// An inconsistent number, or an unknown feature.
    pub fn parse(bytes: &[u8; Superblock::SIZE]) -> Result<Superblock, Refused> {
        let (half, word) = (|at| u16_at(bytes, at), |at| u32_at(bytes, at));
        if half(56) != Self::MAGIC {
            return Err(Refused::invalid("there is no ext2 on it"));
        }
        let revision = word(76);
        if revision > 1 {
            return Err(Refused::invalid("its revision is not known"));
        }
        let old = revision == 0;
        let features = |at| if old { 0 } else { word(at) };
        let incompatible = features(96);
        if incompatible & !INCOMPATIBLE_FILE_TYPE != 0 {
            return Err(Refused::invalid("it has features that are not known"));
        }
        if word(24) > 2 {
            return Err(Refused::invalid("its block size is not 1, 2 or 4 KiB"));
        }
        let compatible = Compatible::from_bits_retain(features(92));
        let has_resize = compatible.contains(Compatible::RESIZE_INODE);
        let parsed = Superblock {
            inodes: word(0),
            blocks: word(4),
            reserved_blocks: word(8),
            first_data_block: word(20),
            block_size: 1024 << word(24),
            blocks_per_group: word(32),
            inodes_per_group: word(40),
            reserved_uid: half(80) as u32,
            reserved_gid: half(82) as u32,
            mounts: half(field::MOUNTS),
            state: State::from_bits_retain(half(field::STATE)),
            first_inode: if old { 11 } else { word(84) },
            inode_size: match old {
                true => Self::OLD_INODE_SIZE,
                false => half(88) as usize,
            },
            is_old: old,
            has_file_types: incompatible & INCOMPATIBLE_FILE_TYPE != 0,
            read_only_features: ReadOnlyCompatible::from_bits_retain(features(
                field::FEATURES_READ_ONLY,
            )),
            reserved_descriptor_blocks: if has_resize { half(206) as u32 } else { 0 },
            last_orphan: if old { 0 } else { word(232) },
        };
        parsed.check().map(|()| parsed)
    }

    /// Checks that the numbers are consistent.
    fn check(&self) -> Result<(), Refused> {
        let bits = self.block_size as u32 * 8;
        let fine = |fine: bool, reason| match fine {
            true => Ok(()),
            false => Err(Refused::invalid(reason)),
        };
        fine(
            self.inode_size.is_power_of_two()
                && (Self::OLD_INODE_SIZE..=self.block_size).contains(&self.inode_size),
            "its inodes have an impossible size",
        )?;
        fine(
            self.first_data_block == (self.block_size == 1024) as u32
                && self.blocks > self.first_data_block
                && self.reserved_blocks <= self.blocks,
            "its blocks don't add up",
        )?;
        // Each bitmap is one block and is searched by bytes.
        fine(
            self.blocks_per_group.is_multiple_of(8) && (8..=bits).contains(&self.blocks_per_group),
            "its groups have an impossible size",
        )?;
        fine(
            (1..=bits).contains(&self.inodes_per_group)
                && self.inodes as u64 == self.inodes_per_group as u64 * self.groups() as u64
                && (3..=self.inodes).contains(&self.first_inode),
            "its inodes don't add up",
        )
    }

    /// The number of block groups.
    pub fn groups(&self) -> u32 {
        (self.blocks - self.first_data_block).div_ceil(self.blocks_per_group)
    }

    /// Returns whether all its features permit writing.
    pub fn may_be_written(&self) -> bool {
        let known = ReadOnlyCompatible::SPARSE_SUPER | ReadOnlyCompatible::LARGE_FILE;
        self.read_only_features.bits() & !known.bits() == 0
    }
}
