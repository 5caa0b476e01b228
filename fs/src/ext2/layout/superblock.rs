//! The superblock: 1024 bytes at byte 1024 of the device.

use abi::Errno;
use bitflags::bitflags;

use super::{u16_at, u32_at};

/// What does not fit the rest, or is not known here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// What `mount` says.
    pub errno: Errno,
    /// What the log says.
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
    /// Whether the file system was unmounted in order, `s_state`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(in super::super) struct State: u16 {
        /// All that was written is on the disk and fits together.
        const VALID = 1;
        /// Somebody found something that does not fit together.
        const ERROR = 2;
        /// Orphans are being recovered.
        const ORPHANS = 4;
    }
}

bitflags! {
    /// Features that everybody may ignore.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(in super::super) struct Compatible: u32 {
        const RESIZE_INODE = 0x10;
        const _ = !0;
    }
}

bitflags! {
    /// Features without which nothing may be written.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(in super::super) struct ReadOnlyCompatible: u32 {
        const SPARSE_SUPER = 1;
        const LARGE_FILE = 2;
        const _ = !0;
    }
}

/// Features without which nothing may be read: entries of directories say what they name.
const INCOMPATIBLE_FILE_TYPE: u32 = 2;

/// Where fields are that are written.
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

/// What the superblock says, checked.
#[derive(Clone, Debug)]
pub(in super::super) struct Superblock {
    pub inodes: u32,
    pub blocks: u32,
    /// Blocks that ordinary users leave free.
    pub reserved_blocks: u32,
    pub first_data_block: u32,
    /// Bytes of a block: 1024, 2048 or 4096.
    pub block_size: usize,
    pub blocks_per_group: u32,
    pub inodes_per_group: u32,
    /// The user and the group that may have the reserved blocks as well.
    pub reserved_uid: u32,
    pub reserved_gid: u32,
    /// Times it was mounted since it was checked.
    pub mounts: u16,
    pub state: State,
    /// The first inode that is not reserved.
    pub first_inode: u32,
    /// Bytes of an inode's record.
    pub inode_size: usize,
    /// The first revision: it knows no features.
    pub is_old: bool,
    /// Entries of directories have the kind of what they name.
    pub has_file_types: bool,
    pub read_only_features: ReadOnlyCompatible,
    /// Blocks behind the descriptors, kept for more descriptors.
    pub reserved_descriptor_blocks: u32,
    /// Head of the list of inodes that were removed while in use; 0 for none.
    pub last_orphan: u32,
}

impl Superblock {
    pub const OFFSET: u64 = 1024;
    pub const SIZE: usize = 1024;
    const MAGIC: u16 = 0xef53;
    /// The record of revision 0.
    const OLD_INODE_SIZE: usize = 128;

    /// Reads one from its [`SIZE`](Superblock::SIZE) bytes.
    ///
    /// # Errors
    /// What is wrong: a number that can't be, or a feature that is not known here.
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

    /// Whether the numbers fit one another.
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
        // Bitmaps are a block each, and are searched by bytes.
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

    /// How many block groups there are.
    pub fn groups(&self) -> u32 {
        (self.blocks - self.first_data_block).div_ceil(self.blocks_per_group)
    }

    /// Whether all that it has may be written.
    pub fn may_be_written(&self) -> bool {
        let known = ReadOnlyCompatible::SPARSE_SUPER | ReadOnlyCompatible::LARGE_FILE;
        self.read_only_features.bits() & !known.bits() == 0
    }
}
