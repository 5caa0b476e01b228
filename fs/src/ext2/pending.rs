//! Blocks and inodes that were freed and may not be reused yet.
//!
//! As a frame stays pending until no TLB can hold it, a block stays pending until nothing *on the
//! disk* refers to it. If it were reused at once and the machine then crashed, two files would
//! share it, since the old owner's record on the disk still refers to it, and repairing one would
//! damage the other. [`Volume::commit`](super::volume::Volume::commit) takes what is pending,
//! writes all metadata, in which no reference is left, and only then clears the bits.

use alloc::vec::Vec;
use core::ops::Range;

use nucleus::log;

/// Consecutive blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub first: u32,
    pub count: u32,
}

impl Run {
    /// Their numbers.
    pub fn blocks(self) -> Range<u64> {
        u64::from(self.first)..u64::from(self.first) + u64::from(self.count)
    }
}

/// The blocks and inodes that the next commit frees.
#[derive(Default)]
pub(super) struct Pending {
    pub blocks: Vec<Run>,
    /// The number of blocks.
    pub block_count: u32,
    /// With whether it was a directory.
    pub inodes: Vec<(u32, bool)>,
}

impl Pending {
    /// Returns an empty set.
    pub const fn new() -> Pending {
        Pending {
            blocks: Vec::new(),
            block_count: 0,
            inodes: Vec::new(),
        }
    }

    /// Adds blocks. If memory for the list is missing they stay in use until the file system is
    /// checked, which is logged.
    pub fn add_blocks(&mut self, run: Run) {
        if let Some(last) = self.blocks.last_mut() {
            if last.first + last.count == run.first {
                last.count += run.count;
                self.block_count += run.count;
                return;
            }
            if run.first + run.count == last.first {
                last.first = run.first;
                last.count += run.count;
                self.block_count += run.count;
                return;
            }
        }
        if self.blocks.try_reserve(1).is_err() {
            log!("ext2: no memory to free blocks from {} on", run.first);
            return;
        }
        self.blocks.push(run);
        self.block_count += run.count;
    }

    /// Takes out the blocks of which `is_held` is true, and returns them.
    pub fn take_held(&mut self, is_held: impl Fn(u64) -> bool) -> Pending {
        let mut held = Pending::new();
        if !self.blocks.iter().any(|run| run.blocks().any(&is_held)) {
            return held;
        }
        let mut rest = Pending::new();
        for run in core::mem::take(&mut self.blocks) {
            for (first, block) in (run.first..).zip(run.blocks()) {
                let to = if is_held(block) { &mut held } else { &mut rest };
                to.add_blocks(Run { first, count: 1 });
            }
        }
        self.blocks = rest.blocks;
        self.block_count = rest.block_count;
        held
    }

    /// Adds an inode; as [`add_blocks`](Pending::add_blocks).
    pub fn add_inode(&mut self, number: u32, directory: bool) {
        match self.inodes.try_reserve(1) {
            Ok(()) => self.inodes.push((number, directory)),
            Err(_) => log!("ext2: no memory to free inode {number}"),
        }
    }

    /// Returns whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.inodes.is_empty()
    }

    /// Adds everything from `other`.
    pub fn append(&mut self, other: Pending) {
        for run in other.blocks {
            self.add_blocks(run);
        }
        for (number, directory) in other.inodes {
            self.add_inode(number, directory);
        }
    }
}
