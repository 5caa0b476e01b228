//! What was freed and must not be used again yet.
//!
//! As a frame waits until no TLB can hold it, a block waits until nothing *on the disk* leads to it: were it used at once, and the
//! machine then stopped, a file that has it now would share it with the one that had it, whose record on the disk still says so; and
//! repairing the one would damage the other. So what is freed is pending first. [`Ext2::commit`](super::Ext2::commit) takes what is pending, writes all metadata,
//! in which nothing leads there any more, and only then clears the bits.

use alloc::vec::Vec;

use nucleus::log;

/// Neighbouring blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub first: u32,
    pub count: u32,
}

/// What is freed with the next commit.
#[derive(Default)]
pub(super) struct Pending {
    blocks: Vec<Run>,
    block_count: u32,
    /// With whether it was a directory.
    inodes: Vec<(u32, bool)>,
}

impl Pending {
    /// Nothing.
    pub const fn new() -> Pending {
        Pending {
            blocks: Vec::new(),
            block_count: 0,
            inodes: Vec::new(),
        }
    }

    /// Adds blocks. Without memory to note them they stay in use until the file system is checked, and the log says so.
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

    /// Adds an inode; as [`add_blocks`](Pending::add_blocks).
    pub fn add_inode(&mut self, number: u32, directory: bool) {
        match self.inodes.try_reserve(1) {
            Ok(()) => self.inodes.push((number, directory)),
            Err(_) => log!("ext2: no memory to free inode {number}"),
        }
    }

    /// Blocks that will be free.
    pub fn block_count(&self) -> u32 {
        self.block_count
    }

    /// Inodes that will be free.
    pub fn inode_count(&self) -> u32 {
        self.inodes.len() as u32
    }

    /// Nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.inodes.is_empty()
    }

    /// The runs of blocks.
    pub fn blocks(&self) -> &[Run] {
        &self.blocks
    }

    /// The inodes, and whether they were directories.
    pub fn inodes(&self) -> &[(u32, bool)] {
        &self.inodes
    }

    /// Adds all that `other` holds.
    pub fn append(&mut self, other: Pending) {
        for run in other.blocks {
            self.add_blocks(run);
        }
        for (number, directory) in other.inodes {
            self.add_inode(number, directory);
        }
    }
}
