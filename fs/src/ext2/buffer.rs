//! Blocks of metadata in memory: pages of the device, and which blocks of them have changed.
//!
//! A page of the device may hold data of files beside metadata, and those go past this cache. What has changed is therefore noted by blocks
//! and not by pages: a page that was written as a whole would put old bytes over a file's. A changed block's page stays in memory until
//! the block is on the disk.
//!
//! Locks: the set of changed blocks has one of its own, `Leaf`. The bytes of a block have none here: each block belongs to something that has
//! a lock (a group's bitmap, an inode's map, a directory), and records of one inode table's block don't overlap.

use alloc::{collections::BTreeMap, sync::Arc, vec::Vec};

use abi::{Errno, Result};
use nucleus::{
    Frame, PAGE_SIZE,
    dma::Part,
    ephemeral,
    sync::{Rank, SpinLock},
};
use vm::{Object, PagerError};

use super::batch::Batch;
use crate::block::{Device, Request, SECTOR};

/// A block of metadata, kept in memory by whoever has this.
#[derive(Clone)]
pub(super) struct Block {
    frame: Frame,
    /// Where it begins in its page.
    start: usize,
    number: u32,
}

impl Block {
    /// Its number on the device.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Copies bytes out, from byte `at` of the block on.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        ephemeral::map(&self.frame).read(self.start + at, to);
    }

    /// The bytes from `at` on.
    pub fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.read(at, &mut bytes);
        bytes
    }

    /// The `index`th of its four-byte words.
    pub fn word(&self, index: u32) -> u32 {
        u32::from_le_bytes(self.bytes(index as usize * 4))
    }
}

/// What has changed and is not on the disk yet, by block number.
type Changed = BTreeMap<u32, Change>;

/// A block that has changed.
struct Change {
    frame: Frame,
    /// Nothing on the disk leads to it yet, and nothing must before it is there itself.
    fresh: bool,
}

/// Most parts of one transfer: what a queue of 128 slots carries with room to spare.
const MOST_PARTS: usize = 96;

/// The metadata of one device.
pub(super) struct Buffers {
    device: Arc<Device>,
    pages: Object,
    block_size: usize,
    changed: SpinLock<Changed>,
}

impl Buffers {
    /// Over a device with blocks of this many bytes.
    pub fn new(device: Arc<Device>, block_size: usize) -> Buffers {
        Buffers {
            device,
            pages: Object::new(),
            block_size,
            changed: SpinLock::new(Rank::Leaf, BTreeMap::new()),
        }
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Page of the device, and byte in it, where a block begins.
    fn place(&self, number: u32) -> (u64, usize) {
        let byte = number as u64 * self.block_size as u64;
        (byte / PAGE_SIZE as u64, (byte % PAGE_SIZE as u64) as usize)
    }

    /// A block that exists on the device, read if it is not in memory. May sleep for that.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    pub fn get(&self, number: u32) -> Result<Block> {
        let (page, start) = self.place(number);
        Ok(Block {
            frame: self.page(page)?,
            start,
            number,
        })
    }

    /// A block that gets its first content as metadata: all zeros, changed. Must be on the disk before anything there leads to it.
    ///
    /// # Errors
    /// `EIO`, if other blocks of its page have to be read; `ENOMEM`.
    pub fn fresh(&self, number: u32) -> Result<Block> {
        let block = self.get(number)?;
        ephemeral::map(&block.frame).fill(block.start, self.block_size, 0);
        self.note(&block, true);
        Ok(block)
    }

    /// Copies bytes into a block, from byte `at` of it on, and notes that it has changed.
    pub fn store(&self, block: &Block, at: usize, bytes: &[u8]) {
        ephemeral::map(&block.frame).write(block.start + at, bytes);
        self.note(block, false);
    }

    /// Sets the `index`th four-byte word of a block.
    pub fn store_word(&self, block: &Block, index: u32, word: u32) {
        self.store(block, index as usize * 4, &word.to_le_bytes());
    }

    fn note(&self, block: &Block, fresh: bool) {
        let mut changed = self.changed.lock();
        let change = changed.entry(block.number).or_insert_with(|| Change {
            frame: block.frame.clone(),
            fresh,
        });
        change.fresh |= fresh;
    }

    /// The block is not metadata any more, and is not written as such: the next owner's data will be there.
    pub fn forget(&self, number: u32) {
        let change = self.changed.lock().remove(&number);
        drop(change);
    }

    /// How many blocks have changed.
    pub fn changed(&self) -> usize {
        self.changed.lock().len()
    }

    /// Writes all that has changed: first what is new, then, when that is where it survives, what leads there. Sleeps. Only one at a time.
    ///
    /// # Errors
    /// `EIO`; what could not be written counts as changed still.
    pub fn write_back(&self) -> Result<()> {
        let (fresh, others): (Changed, Changed) = {
            let all = core::mem::take(&mut *self.changed.lock());
            all.into_iter().partition(|(_, change)| change.fresh)
        };
        let any_fresh = !fresh.is_empty();
        let mut result = self.write_set(fresh);
        if any_fresh && result.is_ok() {
            result = self.device.flush();
        }
        if result.is_err() {
            self.take_back(others);
        } else {
            result = self.write_set(others);
        }
        result
    }

    /// Writes blocks, neighbours together, all at once; those that can't be written are put back.
    fn write_set(&self, set: Changed) -> Result<()> {
        let batch = Batch::new();
        let mut run: Vec<(u32, Change)> = Vec::new();
        let mut set = set.into_iter().peekable();
        while let Some((number, change)) = set.next() {
            run.push((number, change));
            let goes_on = set.peek().is_some_and(|(next, _)| *next == number + 1);
            if goes_on && run.len() < MOST_PARTS {
                continue;
            }
            let parts = run
                .iter()
                .map(|(number, change)| self.part(*number, change));
            let request = Request::write(self.sector(run[0].0), parts.collect());
            self.device
                .submit(request, batch.expect(core::mem::take(&mut run)));
        }
        let (result, failed) = batch.wait();
        for run in failed {
            self.take_back(run.into_iter().collect());
        }
        result
    }

    fn take_back(&self, set: Changed) {
        let mut changed = self.changed.lock();
        for (number, old) in set {
            let change = changed.entry(number).or_insert(Change {
                frame: old.frame,
                fresh: old.fresh,
            });
            change.fresh |= old.fresh;
        }
    }

    fn part(&self, number: u32, change: &Change) -> Part {
        Part {
            frame: change.frame.clone(),
            offset: self.place(number).1,
            len: self.block_size,
        }
    }

    fn sector(&self, block: u32) -> u64 {
        block as u64 * (self.block_size / SECTOR) as u64
    }

    /// A page of the device.
    fn page(&self, index: u64) -> Result<Frame> {
        loop {
            if let Some(frame) = self.pages.resident(index) {
                return Ok(frame);
            }
            let claim = self.pages.claim(index, index..index + 1).map_err(errno)?;
            let Some(claim) = claim else {
                continue;
            };
            let frame = claim.frames()[0].clone();
            self.read_page(index, &frame)?;
            if claim.publish(1) == 1 {
                return Ok(frame);
            }
        }
    }

    /// Reads a page of the device, of which the last one may not be whole.
    fn read_page(&self, index: u64, frame: &Frame) -> Result<()> {
        const SECTORS: u64 = (PAGE_SIZE / SECTOR) as u64;
        let sector = index * SECTORS;
        let there = self.device.sectors().saturating_sub(sector).min(SECTORS);
        let len = there as usize * SECTOR;
        if len == 0 {
            return Err(Errno::EIO);
        }
        ephemeral::map(frame).fill(len, PAGE_SIZE - len, 0);
        let part = Part {
            frame: frame.clone(),
            offset: 0,
            len,
        };
        self.device.read(sector, alloc::vec![part])
    }

    /// Gives up to `most` pages back that hold nothing that has changed and that nobody uses; returns how many.
    pub fn give_back(&self, most: usize) -> usize {
        self.pages.evict(0..u64::MAX, most).0
    }
}

fn errno(error: PagerError) -> Errno {
    match error {
        PagerError::OutOfMemory => Errno::ENOMEM,
        PagerError::BeyondEnd | PagerError::Io | PagerError::Sleeps => Errno::EIO,
    }
}
