//! Inode records: 128 bytes that all revisions have, and further ones for nanoseconds.

use core::time::Duration;

use bitflags::bitflags;

use super::{put_u16, put_u32, u16_at, u32_at};
use crate::device;

/// Block pointers of an inode.
pub(in super::super) const BLOCKS: usize = 15;
/// Direct ones; the other three lead to indirect blocks.
pub(in super::super) const DIRECT: usize = 12;
/// Bytes of a record that are used here; further ones are preserved.
pub(in super::super) const MAX_INODE_SIZE: usize = 160;
/// The size of a record in revision 0.
const OLD_SIZE: usize = 128;
/// The end of the extra fields of the three settable times.
const BEHIND_TIMES: usize = 144;
/// The extra size in a new record: the bytes up to `MAX_INODE_SIZE` have a meaning.
const EXTRA_SIZE: u16 = (MAX_INODE_SIZE - OLD_SIZE) as u16;

bitflags! {
    /// `i_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub(in super::super) struct Flags: u32 {
        const SYNC = 0x8;
        const IMMUTABLE = 0x10;
        const APPEND_ONLY = 0x20;
        const NO_ACCESS_TIME = 0x80;
        /// The directory has an index; a change without it clears this.
        const INDEXED = 0x1000;
        /// A directory whose subdirectories are spread like those of the root.
        const TOP = 0x2_0000;
        const _ = !0;
    }
}

impl Flags {
    /// The flags that a new file inherits from its directory.
    pub fn inherited(self, directory: bool) -> Flags {
        // As Linux: the flags that users set, without those specific to directories.
        const HANDED_ON: u32 = 0x0001_00cf;
        match directory {
            true => self & Flags::from_bits_retain(HANDED_ON | 0x1_0000),
            false => self & Flags::from_bits_retain(HANDED_ON & !0x1_0000),
        }
    }
}

/// An inode's record.
#[derive(Clone, Debug)]
pub(in super::super) struct InodeRecord {
    /// Type and permissions, as `st_mode`.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Since the epoch.
    pub accessed: Duration,
    pub changed: Duration,
    pub modified: Duration,
    /// Zero where the record has no room for it.
    pub created: Duration,
    pub links: u16,
    /// 512-byte sectors of all its blocks, including metadata.
    pub sectors: u32,
    pub flags: Flags,
    pub blocks: [u32; BLOCKS],
    /// Distinguishes the file from earlier ones with the same number.
    pub generation: u32,
    /// The block of extended attributes, 0 for none.
    pub attributes: u32,
    /// Used bytes beyond the first 128.
    extra: u16,
}

impl InodeRecord {
    /// Returns the record of a new file, of `inode_size` bytes.
    pub fn new(mode: u16, inode_size: usize, now: Duration) -> InodeRecord {
        let mut record = InodeRecord {
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            accessed: now,
            changed: now,
            modified: now,
            created: now,
            links: 0,
            sectors: 0,
            flags: Flags::empty(),
            blocks: [0; BLOCKS],
            generation: 0,
            attributes: 0,
            extra: match inode_size >= MAX_INODE_SIZE {
                true => EXTRA_SIZE,
                false => 0,
            },
        };
        record.fit_times();
        record
    }

    /// Rounds a time to what the record can store: whole seconds if it has no room for more, and at
    /// most the latest time.
    pub fn fit(&self, time: Duration) -> Duration {
        const SHORT: u64 = i32::MAX as u64;
        // Two more bits, each nonzero combination of which adds a multiple of 2^32 to a signed
        // number.
        const LONG: u64 = (3 << 32) + SHORT;
        match OLD_SIZE + self.extra as usize >= BEHIND_TIMES {
            true if time.as_secs() > LONG => Duration::new(LONG, 999_999_999),
            true => time,
            false => Duration::from_secs(time.as_secs().min(SHORT)),
        }
    }

    /// Rounds all its times to what the record can store.
    pub fn fit_times(&mut self) {
        self.accessed = self.fit(self.accessed);
        self.changed = self.fit(self.changed);
        self.modified = self.fit(self.modified);
    }

    /// Returns whether the mode is that of a directory.
    pub fn is_directory(&self) -> bool {
        self.mode >> 12 == 4
    }

    /// Returns whether the mode is that of a regular file.
    pub fn is_regular(&self) -> bool {
        self.mode >> 12 == 8
    }

    /// The number of a device node: the first pointer in the old encoding, or else the second in
    /// the new one.
    pub fn device(&self) -> u64 {
        let (old, new) = (self.blocks[0], self.blocks[1]);
        match old {
            0 => device::number(new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xfff00),
            _ => device::number(old >> 8 & 0xff, old & 0xff),
        }
    }

    /// Stores the number of a device node, a `dev_t`.
    pub fn set_device(&mut self, number: u64) {
        let (major, minor) = (device::major(number), device::minor(number));
        if major < 256 && minor < 256 {
            self.blocks[0] = major << 8 | minor;
        } else {
            self.blocks[1] = minor & 0xff | major << 8 | (minor & !0xff) << 12;
        }
    }

    /// Returns whether the pointers refer to blocks: those of a device hold its number, those of a
    /// short link its text. `sectors` is the size of a block.
    pub fn has_blocks(&self, sectors: u32) -> bool {
        match self.mode >> 12 {
            4 | 8 => true,
            // A short link has no blocks except for extended attributes.
            10 => self.sectors > if self.attributes != 0 { sectors } else { 0 },
            _ => false,
        }
    }

    /// Parses a record from its first bytes: [`MAX_INODE_SIZE`] of them, or all it has.
    pub fn parse(bytes: &[u8]) -> InodeRecord {
        let (half, word) = (|at| u16_at(bytes, at), |at| u32_at(bytes, at));
        let wide = bytes.len() >= MAX_INODE_SIZE;
        let extra = if wide { half(OLD_SIZE) } else { 0 };
        let further = |at: usize| match at + 4 <= OLD_SIZE + extra as usize && wide {
            true => word(at),
            false => 0,
        };
        let time = |at, extra_at| seconds(word(at), further(extra_at));
        let mode = half(0);
        // For directories the field was once the ACL's.
        let high = if mode >> 12 == 8 { word(108) } else { 0 };
        InodeRecord {
            mode,
            uid: half(2) as u32 | (half(120) as u32) << 16,
            gid: half(24) as u32 | (half(122) as u32) << 16,
            size: word(4) as u64 | (high as u64) << 32,
            accessed: time(8, 140),
            changed: time(12, 132),
            modified: time(16, 136),
            created: seconds(further(144), further(148)),
            links: half(26),
            sectors: word(28),
            flags: Flags::from_bits_retain(word(32)),
            blocks: core::array::from_fn(|i| word(40 + 4 * i)),
            generation: word(100),
            attributes: word(104),
            extra,
        }
    }

    /// The offset of the deletion time, in seconds since the epoch; until then it links the orphan
    /// list.
    pub const DELETED: usize = 20;

    /// Writes what [`parse`](InodeRecord::parse) reads and preserves other bytes.
    pub fn put(&self, bytes: &mut [u8]) {
        put_u16(bytes, 0, self.mode);
        put_u16(bytes, 2, self.uid as u16);
        put_u32(bytes, 4, self.size as u32);
        put_u32(bytes, 8, self.accessed.as_secs() as u32);
        put_u32(bytes, 12, self.changed.as_secs() as u32);
        put_u32(bytes, 16, self.modified.as_secs() as u32);
        put_u16(bytes, 24, self.gid as u16);
        put_u16(bytes, 26, self.links);
        put_u32(bytes, 28, self.sectors);
        put_u32(bytes, 32, self.flags.bits());
        for (i, &block) in self.blocks.iter().enumerate() {
            put_u32(bytes, 40 + 4 * i, block);
        }
        put_u32(bytes, 100, self.generation);
        put_u32(bytes, 104, self.attributes);
        if self.is_regular() {
            put_u32(bytes, 108, (self.size >> 32) as u32);
        }
        put_u16(bytes, 120, (self.uid >> 16) as u16);
        put_u16(bytes, 122, (self.gid >> 16) as u16);
        if bytes.len() < MAX_INODE_SIZE {
            return;
        }
        put_u16(bytes, OLD_SIZE, self.extra);
        for (at, value) in [
            (132, further(self.changed)),
            (136, further(self.modified)),
            (140, further(self.accessed)),
            (144, self.created.as_secs() as u32),
            (148, further(self.created)),
        ] {
            if at + 4 <= OLD_SIZE + self.extra as usize {
                put_u32(bytes, at, value);
            }
        }
    }
}

/// A time of a record: signed seconds, and the word with two more bits of them and the nanoseconds.
fn seconds(seconds: u32, further: u32) -> Duration {
    const SECOND: u32 = 1_000_000_000;
    let seconds = seconds as i32 as i64 + ((further as i64 & 3) << 32);
    match u64::try_from(seconds) {
        Ok(seconds) => Duration::new(seconds, (further >> 2).min(SECOND - 1)),
        // Times before the epoch cannot be represented.
        Err(_) => Duration::ZERO,
    }
}

/// The extra word of a time.
fn further(time: Duration) -> u32 {
    let seconds = time.as_secs();
    // The two bits say how often 2^32 is added to the signed seconds.
    let more = (seconds.wrapping_sub(seconds as i32 as i64 as u64) >> 32) as u32 & 3;
    time.subsec_nanos() << 2 | more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back() {
        for seconds in [
            0,
            1,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            0x1_0000_0000,
            0x3_7fff_ffff,
        ] {
            let it = Duration::new(seconds, 123_456_789);
            assert_eq!(
                super::seconds(seconds as u32, further(it)),
                it,
                "{seconds:#x}"
            );
        }
    }

    /// Stored attributes are those that are read back, whatever was set.
    #[test]
    fn times_that_a_record_can_not_say_are_the_nearest_ones() {
        for (inode_size, latest) in [(128, 0x7fff_ffff), (256, 0x3_7fff_ffff)] {
            for seconds in [5, 0x7fff_ffff, 0x8000_0000, 1 << 32, 1 << 34, 1 << 36] {
                let mut record = InodeRecord::new(0o100_644, inode_size, Duration::ZERO);
                record.modified = Duration::new(seconds, 7);
                record.fit_times();
                assert_eq!(record.modified.as_secs(), seconds.min(latest));
                let mut bytes = vec![0; inode_size.min(MAX_INODE_SIZE)];
                record.put(&mut bytes);
                assert_eq!(InodeRecord::parse(&bytes).modified, record.modified);
            }
        }
    }

    #[test]
    fn records_come_back() {
        let mut record = InodeRecord::new(0o100_644, 256, Duration::new(1 << 32, 5));
        record.uid = 0x1_2345;
        record.gid = 0x5_4321;
        record.size = 5 << 32 | 7;
        record.blocks = core::array::from_fn(|i| i as u32 + 9);
        let mut bytes = [0; 256];
        record.put(&mut bytes);
        let back = InodeRecord::parse(&bytes);
        assert_eq!(format!("{back:?}"), format!("{record:?}"));
        // The short record has neither nanoseconds nor times after 2038.
        let mut bytes = [0; 128];
        record.put(&mut bytes);
        let back = InodeRecord::parse(&bytes);
        assert_eq!(
            (back.size, back.uid, back.gid),
            (record.size, record.uid, record.gid)
        );
        assert_eq!(back.accessed, Duration::ZERO);
    }
}
