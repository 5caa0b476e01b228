//! Blocks of files that have no bytes of their file on the disk yet.

use core::ops::Range;

use abi::Result;

use crate::page_cache::PageSet;

/// The unwritten blocks of a file system, by number. Its owner has a lock around it.
///
/// A block is *unwritten* from its allocation until a write of it has ended well, and *on its way*
/// during that write. Both read as zeros.
pub(super) struct Unwritten {
    /// Not on their way.
    blocks: PageSet,
    on_their_way: PageSet,
    /// How many are on their way.
    count: usize,
    /// First bytes have arrived since the disk's cache was flushed the last time.
    unflushed: bool,
}

impl Unwritten {
    /// No blocks.
    pub const fn new() -> Unwritten {
        Unwritten {
            blocks: PageSet::new(),
            on_their_way: PageSet::new(),
            count: 0,
            unflushed: false,
        }
    }

    /// These become unwritten.
    pub fn add(&mut self, blocks: Range<u64>) {
        for block in blocks {
            self.blocks.insert(block);
        }
    }

    /// They belong to no file any more.
    pub fn forget(&mut self, blocks: Range<u64>) {
        self.blocks.remove_range(blocks);
    }

    /// The first one of `blocks` that is unwritten.
    pub fn next(&self, blocks: Range<u64>) -> Option<u64> {
        let waiting = self.blocks.next(blocks.clone());
        let on_its_way = self.on_their_way.next(blocks);
        match (waiting, on_its_way) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The unwritten ones of `blocks` are on their way now; false if some are already, and nothing
    /// has changed.
    pub fn claim(&mut self, blocks: Range<u64>) -> bool {
        if self.count > 0 && self.on_their_way.next(blocks.clone()).is_some() {
            return false;
        }
        let mut from = blocks.start;
        while let Some(block) = self.blocks.next(from..blocks.end) {
            self.send(block);
            from = block + 1;
        }
        true
    }

    /// The next unwritten blocks from `from` on, without a gap and `most` at most, are on their way
    /// now.
    pub fn claim_next(&mut self, from: u64, most: u64) -> Option<Range<u64>> {
        let first = self.blocks.next(from..u64::MAX)?;
        let mut end = first;
        while end < first + most && self.blocks.contains(end) {
            self.send(end);
            end += 1;
        }
        Some(first..end)
    }

    fn send(&mut self, block: u64) {
        self.blocks.remove(block);
        self.on_their_way.insert(block);
        self.count += 1;
    }

    /// The write of `blocks` has ended: those that it had on their way are on the disk or, after an
    /// error, unwritten again. Returns whether there were any.
    pub fn arrived(&mut self, blocks: Range<u64>, result: Result<()>) -> bool {
        if self.count == 0 {
            return false;
        }
        let mut count = 0;
        let mut from = blocks.start;
        while let Some(block) = self.on_their_way.next(from..blocks.end) {
            self.on_their_way.remove(block);
            if result.is_err() {
                self.blocks.insert(block);
            }
            count += 1;
            from = block + 1;
        }
        self.count -= count;
        self.unflushed |= count > 0;
        count > 0
    }

    /// Whether no block is on its way.
    pub fn none_on_their_way(&self) -> bool {
        self.count == 0
    }

    /// Whether first bytes may be in the disk's cache only; the caller flushes it now.
    pub fn take_unflushed(&mut self) -> bool {
        core::mem::take(&mut self.unflushed)
    }

    /// The flush has failed.
    pub fn put_unflushed(&mut self, unflushed: bool) {
        self.unflushed |= unflushed;
    }
}
