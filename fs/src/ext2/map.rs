//! The block map of a file: twelve pointers in the inode, then indirect, double and triple indirect
//! blocks.
//!
//! A pointer of 0 is a hole. A new indirect block is zeroed on the disk before anything there
//! refers to it ([`Buffers::fresh`](super::buffer::Buffers::fresh)); a freed block is pending until
//! nothing refers to it.

use core::ops::Range;

use abi::{Errno, Result};

use super::{
    buffer::Block,
    layout::{BLOCKS, DIRECT, InodeRecord},
    pending::{Pending, Run},
    volume::Volume,
};

/// Consecutive blocks of a file that are consecutive on the disk as well, or all holes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// The first block on the disk; `None` for holes.
    pub first: Option<u32>,
    /// At least 1.
    pub count: u32,
}

/// The path to a pointer: the inode's pointer, then the index in each indirect block.
struct BlockPath {
    top: usize,
    /// One for each indirect block on the path.
    indices: [u32; 3],
    depth: usize,
}

impl BlockPath {
    /// Returns the path to block `logical` of a file, with `pointers` in a block.
    fn to(logical: u32, pointers: u32) -> Result<BlockPath> {
        if (logical as usize) < DIRECT {
            return Ok(BlockPath {
                top: logical as usize,
                indices: [0; 3],
                depth: 0,
            });
        }
        let p = pointers as u64;
        let mut left = logical as u64 - DIRECT as u64;
        for (depth, span) in [(1, p), (2, p * p), (3, p * p * p)] {
            if left < span {
                let digit = |power: u64| (left / power % p) as u32;
                let indices = match depth {
                    1 => [digit(1), 0, 0],
                    2 => [digit(p), digit(1), 0],
                    _ => [digit(p * p), digit(p), digit(1)],
                };
                let top = DIRECT + depth - 1;
                return Ok(BlockPath {
                    top,
                    indices,
                    depth,
                });
            }
            left -= span;
        }
        Err(Errno::EFBIG)
    }
}

/// The first block of a file below each of the inode's pointers, and their number; `pointers` in a
/// block.
fn span(top: usize, pointers: u32) -> Range<u64> {
    let p = pointers as u64;
    let direct = DIRECT as u64;
    match top {
        0..DIRECT => top as u64..top as u64 + 1,
        DIRECT => direct..direct + p,
        13 => direct + p..direct + p + p * p,
        _ => direct + p + p * p..direct + p + p * p + p * p * p,
    }
}

/// The largest number of blocks of a file, with `pointers` in a block.
pub(super) fn most_blocks(pointers: u32) -> u64 {
    span(BLOCKS - 1, pointers).end
}

impl Volume {
    /// Returns where block `logical` of a file is, and how many of the next up to `most` blocks are
    /// consecutive.
    pub(super) fn locate(&self, record: &InodeRecord, logical: u32, most: u32) -> Result<Extent> {
        let pointers = self.geometry.pointers();
        let way = BlockPath::to(logical, pointers)?;
        let mut pointer = record.blocks[way.top];
        if way.depth == 0 {
            let all = &record.blocks[way.top..DIRECT];
            return self.extent(most.min(all.len() as u32), |i| all[i as usize]);
        }
        // The number of blocks below the current pointer.
        let mut behind = (pointers as u64).pow(way.depth as u32);
        let mut at = logical as u64 - span(way.top, pointers).start;
        for level in 0..way.depth {
            if pointer == 0 {
                let count = (behind - at).min(most as u64) as u32;
                return Ok(Extent { first: None, count });
            }
            let block = self.metadata(pointer)?;
            let index = way.indices[level];
            behind /= pointers as u64;
            at %= behind;
            if level + 1 == way.depth {
                return self.extent(most.min(pointers - index), |i| block.word(index + i));
            }
            pointer = block.word(index);
        }
        Err(Errno::EIO)
    }

    /// Returns where the first of `count` pointers leads, and how many continue it.
    fn extent(&self, count: u32, pointer: impl Fn(u32) -> u32) -> Result<Extent> {
        let first = pointer(0);
        if first == 0 {
            let holes = (1..count).find(|&i| pointer(i) != 0).unwrap_or(count);
            return Ok(Extent {
                first: None,
                count: holes,
            });
        }
        self.check_data(first)?;
        let is_consecutive = |i: u32| {
            let next = pointer(i);
            Some(next) == first.checked_add(i) && self.is_data(next)
        };
        Ok(Extent {
            first: Some(first),
            count: (1..count).find(|&i| !is_consecutive(i)).unwrap_or(count),
        })
    }

    /// Allocates an unwritten block for each hole in `range` of a file, near `home`'s group
    /// at first, then after the previous block. Blocks allocated before an error stay. Calls `note`
    /// with new blocks before the file refers to them.
    pub(super) fn fill_holes(
        &self,
        record: &mut InodeRecord,
        home: u32,
        range: Range<u32>,
        note: &mut dyn FnMut(Run),
    ) -> Result<()> {
        let mut logical = range.start;
        while logical < range.end {
            let extent = self.locate(record, logical, range.end - logical)?;
            if extent.first.is_none() {
                let end = logical + extent.count;
                self.fill_hole(record, home, logical..end, note)?;
            }
            logical += extent.count;
        }
        Ok(())
    }

    /// Does so for consecutive holes.
    fn fill_hole(
        &self,
        record: &mut InodeRecord,
        home: u32,
        hole: Range<u32>,
        note: &mut dyn FnMut(Run),
    ) -> Result<()> {
        let mut logical = hole.start;
        let mut goal = self.goal(record, home, logical)?;
        while logical < hole.end {
            let way = BlockPath::to(logical, self.geometry.pointers())?;
            let leaf = self.leaf(record, &way, &mut goal)?;
            let (index, slots) = match way.depth {
                0 => (way.top as u32, DIRECT as u32),
                depth => (way.indices[depth - 1], self.geometry.pointers()),
            };
            let most = (slots - index).min(hole.end - logical);
            let run = self.take_blocks(goal, most)?;
            note(run);
            for i in 0..run.count {
                match &leaf {
                    None => record.blocks[(index + i) as usize] = run.first + i,
                    Some(block) => self.buffers.store_word(block, index + i, run.first + i),
                }
            }
            record.sectors = record
                .sectors
                .saturating_add(run.count * self.geometry.sectors());
            goal = run.first + run.count;
            logical += run.count;
        }
        Ok(())
    }

    /// The preferred place of a new block at `logical`: after the previous block, or near its
    /// inode.
    fn goal(&self, record: &InodeRecord, home: u32, logical: u32) -> Result<u32> {
        if logical > 0
            && let Some(before) = self.locate(record, logical - 1, 1)?.first
        {
            return Ok(before + 1);
        }
        Ok(self.geometry.group_blocks(home).start)
    }

    /// Returns the last indirect block of a path, allocated along with those before it; `None` if
    /// the inode has the pointer.
    fn leaf(
        &self,
        record: &mut InodeRecord,
        way: &BlockPath,
        goal: &mut u32,
    ) -> Result<Option<Block>> {
        if way.depth == 0 {
            return Ok(None);
        }
        let mut block = match record.blocks[way.top] {
            0 => {
                let new = self.new_pointers(record, goal)?;
                record.blocks[way.top] = new.number;
                new
            }
            pointer => self.metadata(pointer)?,
        };
        for &index in &way.indices[..way.depth - 1] {
            block = match block.word(index) {
                0 => {
                    let new = self.new_pointers(record, goal)?;
                    self.buffers.store_word(&block, index, new.number);
                    new
                }
                pointer => self.metadata(pointer)?,
            };
        }
        Ok(Some(block))
    }

    /// Allocates an empty indirect block.
    fn new_pointers(&self, record: &mut InodeRecord, goal: &mut u32) -> Result<Block> {
        let run = self.take_blocks(*goal, 1)?;
        match self.buffers.fresh(run.first) {
            Ok(block) => {
                *goal = run.first + 1;
                record.sectors = record.sectors.saturating_add(self.geometry.sectors());
                Ok(block)
            }
            Err(error) => {
                self.free_blocks(run);
                Err(error)
            }
        }
    }

    /// Makes the blocks of `range` holes and frees indirect blocks that become empty. Adds all of
    /// them to `freed`, which becomes pending when the record has been stored. What was done before
    /// an error stays, and no block is lost.
    pub(super) fn free_range(
        &self,
        record: &mut InodeRecord,
        range: Range<u64>,
        freed: &mut Pending,
    ) -> Result<()> {
        let pointers = self.geometry.pointers();
        // From the end, as truncation does.
        for top in (0..BLOCKS).rev() {
            let span = span(top, pointers);
            let pointer = record.blocks[top];
            if pointer == 0 || range.start >= span.end || range.end <= span.start {
                continue;
            }
            if top < DIRECT {
                record.blocks[top] = 0;
                self.free_data(record, pointer, freed);
                continue;
            }
            let inside = range.start.saturating_sub(span.start)
                ..(range.end - span.start).min(span.end - span.start);
            let depth = (top - DIRECT + 1) as u32;
            if self.free_below(record, pointer, depth, inside, freed)? {
                record.blocks[top] = 0;
                self.free_pointers(record, pointer, freed);
            }
        }
        Ok(())
    }

    /// Frees what indirect block `number` refers to in `range`, which is relative to its first data
    /// block; `depth` is 1 for pointers to data. Returns whether it is empty now.
    fn free_below(
        &self,
        record: &mut InodeRecord,
        number: u32,
        depth: u32,
        range: Range<u64>,
        freed: &mut Pending,
    ) -> Result<bool> {
        if !self.is_data(number) {
            // An invalid pointer is dropped, with everything below it.
            self.damaged("a pointer leads out of the data", number);
            return Ok(true);
        }
        let block = self.buffers.get(number)?;
        let pointers = self.geometry.pointers();
        let behind = (pointers as u64).pow(depth - 1);
        let whole = range.start == 0 && range.end >= behind * pointers as u64;
        let first = (range.start / behind) as u32;
        let last = (range.end.div_ceil(behind)).min(pointers as u64) as u32;
        for index in (first..last).rev() {
            let pointer = block.word(index);
            if pointer == 0 {
                continue;
            }
            if depth == 1 {
                // From here until the block itself is freed nothing can fail.
                if !whole {
                    self.buffers.store_word(&block, index, 0);
                }
                self.free_data(record, pointer, freed);
                continue;
            }
            let start = index as u64 * behind;
            let inside = range.start.saturating_sub(start)..(range.end - start).min(behind);
            if self.free_below(record, pointer, depth - 1, inside, freed)? {
                self.buffers.store_word(&block, index, 0);
                self.free_pointers(record, pointer, freed);
            }
        }
        Ok(whole || (0..pointers).all(|index| block.word(index) == 0))
    }

    fn free_data(&self, record: &mut InodeRecord, number: u32, freed: &mut Pending) {
        if !self.is_data(number) {
            self.damaged("a pointer leads out of the data", number);
            return;
        }
        if !record.is_regular() {
            self.buffers.forget(number);
        }
        self.free_one(record, number, freed);
    }

    fn free_pointers(&self, record: &mut InodeRecord, number: u32, freed: &mut Pending) {
        if self.is_data(number) {
            self.buffers.forget(number);
            self.free_one(record, number, freed);
        }
    }

    fn free_one(&self, record: &mut InodeRecord, number: u32, freed: &mut Pending) {
        record.sectors = record.sectors.saturating_sub(self.geometry.sectors());
        freed.add_blocks(Run {
            first: number,
            count: 1,
        });
    }
}
