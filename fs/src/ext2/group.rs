//! Block groups: their free blocks and inodes.

use abi::Result;
use nucleus::{log, sync::Mutex};

use super::{
    bitmap::Bitmap,
    buffer::{Block, Buffers},
    free::Free,
    layout::{Geometry, GroupRecord},
    pending::Run,
};

/// A group: its number, the places of its metadata, and its free counts.
pub(super) struct Group {
    number: u32,
    /// The places of its bitmaps and table; the counts are those at mount.
    pub(super) record: GroupRecord,
    /// The block with its descriptor, and the offset there.
    descriptor: (Block, usize),
    state: Mutex<State>,
}

struct State {
    /// The counts are those of the descriptor.
    record: GroupRecord,
    blocks: Bits,
    inodes: Bits,
    /// No block of the group before this one is free.
    first_free: u32,
    /// No inode of the group before this one is free.
    first_free_inode: u32,
}

/// A bitmap, read on first use and then kept.
enum Bits {
    Unread,
    Fine(Bitmap),
    /// It marks metadata as free: never used for allocation or freeing.
    Damaged,
}

/// What groups need to read and update metadata: the device's blocks, positions on it, and the
/// counts of the whole file system, which change by what a bitmap that is first read shows.
pub(super) type Disk<'a> = (&'a Buffers, &'a Geometry, &'a Free);

/// The free counts of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Room {
    pub blocks: u32,
    pub inodes: u32,
    pub directories: u32,
}

impl Group {
    /// Returns the group whose descriptor is at offset `at` of `block`; its places have been
    /// checked.
    pub fn new(number: u32, record: GroupRecord, block: Block, at: usize) -> Group {
        let state = State {
            record,
            blocks: Bits::Unread,
            inodes: Bits::Unread,
            first_free: 0,
            first_free_inode: 0,
        };
        Group {
            number,
            record,
            descriptor: (block, at),
            state: Mutex::new(crate::rank::ALLOCATION, state),
        }
    }

    /// Returns its free counts.
    pub fn room(&self) -> Room {
        let state = self.state.lock();
        Room {
            blocks: state.record.free_blocks as u32,
            inodes: state.record.free_inodes as u32,
            directories: state.record.directories as u32,
        }
    }

    /// Allocates up to `most` consecutive blocks: at `goal` if they are free, else after it, else
    /// anywhere in the group; long runs preferably in an empty stretch rather than a gap. Returns
    /// `None` if the group has none.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`, when its bitmap cannot be read.
    pub fn take_blocks(&self, disk: Disk<'_>, goal: Option<u32>, most: u32) -> Result<Option<Run>> {
        let mut state = self.state.lock();
        if state.record.free_blocks == 0 {
            return Ok(None);
        }
        let Some(bitmap) = state.blocks(self.number, disk)? else {
            return Ok(None);
        };
        let start = disk.1.group_blocks(self.number).start;
        let goal = goal.map_or(0, |goal| goal - start).max(state.first_free);
        let Some(bit) = search(&bitmap, goal, state.first_free, most) else {
            return Ok(None);
        };
        let count = bitmap.clear_run(bit, most);
        bitmap.put(disk.0, bit..bit + count, true);
        if bit == state.first_free {
            state.first_free += count;
        }
        state.record.free_blocks = state.record.free_blocks.saturating_sub(count as u16);
        self.store_counts(disk.0, &state);
        Ok(Some(Run {
            first: start + bit,
            count,
        }))
    }

    /// Frees blocks of this group; returns how many.
    pub fn give_blocks(&self, disk: Disk<'_>, run: Run) -> Result<u32> {
        let mut state = self.state.lock();
        let Some(bitmap) = state.blocks(self.number, disk)? else {
            return Ok(0);
        };
        let bit = run.first - disk.1.group_blocks(self.number).start;
        let bits = bit..bit + run.count;
        if !bitmap.all_set(bits.clone()) {
            log!("ext2: blocks from {} on are free and in use", run.first);
            return Ok(0);
        }
        bitmap.put(disk.0, bits, false);
        state.first_free = state.first_free.min(bit);
        state.record.free_blocks += run.count as u16;
        self.store_counts(disk.0, &state);
        Ok(run.count)
    }

    /// Allocates an inode; returns its index in the group. `prepare` is called with it first.
    ///
    /// # Errors
    /// As [`take_blocks`](Group::take_blocks), and those of `prepare`.
    pub fn take_inode<T>(
        &self,
        disk: Disk<'_>,
        directory: bool,
        prepare: impl FnOnce(u32) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut state = self.state.lock();
        if state.record.free_inodes == 0 {
            return Ok(None);
        }
        let Some(bitmap) = state.inodes(self.number, disk)? else {
            return Ok(None);
        };
        let Some(index) = bitmap.first_clear(state.first_free_inode..u32::MAX) else {
            return Ok(None);
        };
        let prepared = prepare(index)?;
        bitmap.put(disk.0, index..index + 1, true);
        state.first_free_inode = index + 1;
        state.record.free_inodes = state.record.free_inodes.saturating_sub(1);
        state.record.directories = state.record.directories.saturating_add(directory as u16);
        self.store_counts(disk.0, &state);
        Ok(Some(prepared))
    }

    /// Frees an inode of this group; returns whether it was in use.
    pub fn give_inode(&self, disk: Disk<'_>, index: u32, directory: bool) -> Result<bool> {
        let mut state = self.state.lock();
        let Some(bitmap) = state.inodes(self.number, disk)? else {
            return Ok(false);
        };
        let bits = index..index + 1;
        if !bitmap.all_set(bits.clone()) {
            log!("ext2: an inode of group {} is free and in use", self.number);
            return Ok(false);
        }
        bitmap.put(disk.0, bits, false);
        state.first_free_inode = state.first_free_inode.min(index);
        state.record.free_inodes += 1;
        state.record.directories = state.record.directories.saturating_sub(directory as u16);
        self.store_counts(disk.0, &state);
        Ok(true)
    }

    fn store_counts(&self, buffers: &Buffers, state: &State) {
        let (block, at) = &self.descriptor;
        buffers.store(block, at + GroupRecord::COUNTS, &state.record.counts());
    }
}

impl State {
    /// The block bitmap, `None` if it is damaged. When it is first read, its number of free blocks
    /// replaces the descriptor's.
    fn blocks(&mut self, group: u32, (buffers, geometry, all): Disk<'_>) -> Result<Option<Bitmap>> {
        if let Bits::Unread = self.blocks {
            let blocks = geometry.group_blocks(group);
            let bitmap = Bitmap::new(buffers.get(self.record.block_bitmap)?, blocks.len() as u32);
            let single = |block: u32| block..block + 1;
            let own = [
                geometry.head(group),
                single(self.record.block_bitmap),
                single(self.record.inode_bitmap),
                geometry.table(&self.record),
            ];
            let bits =
                |own: core::ops::Range<u32>| own.start - blocks.start..own.end - blocks.start;
            self.blocks = match own.into_iter().all(|own| bitmap.all_set(bits(own))) {
                true => {
                    let free = bitmap.count_clear();
                    all.add_blocks(free as i64 - self.record.free_blocks as i64);
                    self.record.free_blocks = free as u16;
                    Bits::Fine(bitmap)
                }
                false => Bits::damaged("blocks", group),
            };
        }
        Ok(self.blocks.get())
    }

    /// As [`blocks`](State::blocks), for inodes.
    fn inodes(&mut self, group: u32, (buffers, geometry, all): Disk<'_>) -> Result<Option<Bitmap>> {
        if let Bits::Unread = self.inodes {
            let block = buffers.get(self.record.inode_bitmap)?;
            let bitmap = Bitmap::new(block, geometry.inodes_per_group);
            let reserved = if group == 0 {
                geometry.first_inode - 1
            } else {
                0
            };
            self.inodes = match bitmap.all_set(0..reserved) {
                true => {
                    let free = bitmap.count_clear();
                    let by = free as i64 - self.record.free_inodes as i64;
                    Free::correct(&all.inodes, by);
                    self.record.free_inodes = free as u16;
                    Bits::Fine(bitmap)
                }
                false => Bits::damaged("inodes", group),
            };
        }
        Ok(self.inodes.get())
    }
}

impl Bits {
    fn damaged(what: &str, group: u32) -> Bits {
        log!("ext2: the bitmap of {what} of group {group} is damaged: nothing is taken from it");
        Bits::Damaged
    }

    fn get(&self) -> Option<Bitmap> {
        match self {
            Bits::Fine(bitmap) => Some(bitmap.clone()),
            _ => None,
        }
    }
}

/// The clear bit to start at.
fn search(bitmap: &Bitmap, goal: u32, first: u32, most: u32) -> Option<u32> {
    let all = 0..u32::MAX;
    if bitmap.clear_run(goal, 1) == 1 {
        return Some(goal);
    }
    let in_byte = || {
        let behind = bitmap.first_clear_byte(goal..all.end);
        behind.or_else(|| bitmap.first_clear_byte(first..goal))
    };
    let single = || {
        let behind = bitmap.first_clear(goal..all.end);
        behind.or_else(|| bitmap.first_clear(first..goal))
    };
    match most {
        0..8 => single(),
        _ => in_byte().or_else(single),
    }
}
