//! Blocks of metadata in memory: pages of the device, and which blocks of them have changed.
//!
//! A page of the device may hold data of files beside metadata, and those go past this cache. What has changed is therefore noted by blocks
//! and not by pages: a page that was written as a whole would put old bytes over a file's. A changed block's page stays in memory until
//! the block is on the disk.
//!
//! The pages are those of a file of their own, so that they go with all others when memory is wanted, and the flusher has them committed in time.
//!
//! Locks: the set of changed blocks has one of its own, `Leaf`. The bytes of a block have none here: each block belongs to something that has
//! a lock (a group's bitmap, an inode's map, a directory), and records of one inode table's block don't overlap.

use alloc::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    vec::Vec,
};

use abi::{Errno, Result};
use nucleus::{
    Frame, PAGE_SIZE,
    dma::Part,
    ephemeral,
    sync::{Rank, SpinLock},
    task::{Sleep, WaitQueue},
};

use super::batch::Batch;
use crate::{
    block::{Device, DeviceStore, Done, Request, SECTOR},
    page_cache::{BackingStore, PageCache},
};

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

/// Blocks that have changed, by number.
type Set = BTreeMap<u32, Change>;

/// What has changed and is not on the disk yet.
struct Changed {
    set: Set,
    /// Blocks are being written that lead to others, with the bytes that they have at any moment of that: none becomes
    /// [fresh](Buffers::fresh) meanwhile.
    closed: bool,
}

/// A block that has changed.
#[derive(Clone)]
struct Change {
    frame: Frame,
    /// Nothing on the disk leads to it yet, and nothing must before it is there itself.
    fresh: bool,
}

/// The file system above the metadata.
pub(super) trait Committer: Send + Sync {
    /// Writes all changed metadata.
    fn commit(&self) -> Result<()>;

    /// Waits until the removed files that are being freed are free.
    fn wait_for_ends(&self) -> Result<()>;
}

/// The pages of a device that hold metadata. None is ever dirty as a page.
struct Metadata {
    device: DeviceStore,
    above: SpinLock<Option<Weak<dyn Committer>>>,
}

impl BackingStore for Metadata {
    fn is_device(&self) -> bool {
        true
    }

    fn read(&self, first: u64, frames: &[Frame], done: Done) {
        self.device.read(first, frames, done);
    }

    fn write(&self, _: u64, _: &[Frame], done: Done) {
        done(Err(Errno::EIO));
    }

    fn settle(&self) {
        if let Some(fs) = self.above() {
            // What can't be written stays changed, and is tried again.
            let _ = fs.commit();
        }
    }

    fn identity(&self) -> (u64, u64) {
        self.device.identity()
    }

    fn size_max(&self) -> u64 {
        self.device.size_max()
    }
}

impl Metadata {
    fn above(&self) -> Option<Arc<dyn Committer>> {
        self.above.lock().as_ref().and_then(Weak::upgrade)
    }
}

/// Most parts of one transfer: what a queue of 128 slots carries with room to spare.
const MOST_PARTS: usize = 96;

/// The metadata of one device.
pub(super) struct Buffers {
    device: Arc<Device>,
    pages: Arc<PageCache<Metadata>>,
    block_size: usize,
    changed: SpinLock<Changed>,
    /// Woken when blocks may become fresh again.
    opened: WaitQueue,
}

impl Changed {
    /// Notes that a block has changed. Returns whether it is the only one.
    fn note(&mut self, block: &Block, fresh: bool) -> bool {
        let first = self.set.is_empty();
        let change = self.set.entry(block.number).or_insert_with(|| Change {
            frame: block.frame.clone(),
            fresh,
        });
        change.fresh |= fresh;
        first
    }

    /// Takes out what is fresh.
    fn take_fresh(&mut self) -> Set {
        let all = core::mem::take(&mut self.set);
        let (fresh, others) = all.into_iter().partition(|(_, change)| change.fresh);
        self.set = others;
        fresh
    }
}

impl Buffers {
    /// Over a device with blocks of this many bytes.
    pub fn new(device: Arc<Device>, block_size: usize) -> Buffers {
        let store = Metadata {
            device: DeviceStore::new(device.clone()),
            above: SpinLock::new(Rank::Leaf, None),
        };
        Buffers {
            pages: PageCache::new(store, device.size()),
            device,
            block_size,
            changed: SpinLock::new(
                Rank::Leaf,
                Changed {
                    set: Set::new(),
                    closed: false,
                },
            ),
            opened: WaitQueue::new(),
        }
    }

    /// Names the file system that commits the changes: for the flusher, and for
    /// [`wait_for_ends`](Buffers::wait_for_ends).
    pub fn serve(&self, above: Weak<dyn Committer>) {
        *self.pages.store().above.lock() = Some(above);
    }

    /// Waits until the removed files that are being freed are free.
    ///
    /// # Errors
    /// `EIO` after the end of the file system.
    pub fn wait_for_ends(&self) -> Result<()> {
        self.pages
            .store()
            .above()
            .ok_or(Errno::EIO)?
            .wait_for_ends()
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
            frame: self.pages.page(page)?,
            start,
            number,
        })
    }

    /// A block that gets its first content as metadata: all zeros, changed. Must be on the disk before anything there leads to it: nothing in memory
    /// does before this returns. May sleep while others are written.
    ///
    /// # Errors
    /// `EIO`, if other blocks of its page have to be read; `ENOMEM`.
    pub fn fresh(&self, number: u32) -> Result<Block> {
        let block = self.get(number)?;
        ephemeral::map(&block.frame).fill(block.start, self.block_size, 0);
        let opened = || {
            let mut changed = self.changed.lock();
            (!changed.closed).then(|| changed.note(&block, true))
        };
        // A sound sleep ends only when what it waits for is there.
        if let Ok(true) = self.opened.wait(Sleep::SOUND, opened) {
            self.pages.note_changed();
        }
        Ok(block)
    }

    /// Copies bytes into a block, from byte `at` of it on, and notes that it has changed.
    pub fn store(&self, block: &Block, at: usize, bytes: &[u8]) {
        ephemeral::map(&block.frame).write(block.start + at, bytes);
        if self.changed.lock().note(block, false) {
            self.pages.note_changed();
        }
    }

    /// Sets the `index`th four-byte word of a block.
    pub fn store_word(&self, block: &Block, index: u32, word: u32) {
        self.store(block, index as usize * 4, &word.to_le_bytes());
    }

    /// The block is not metadata any more, and is not written as such: the next owner's data will be there.
    pub fn forget(&self, number: u32) {
        let change = self.changed.lock().set.remove(&number);
        drop(change);
    }

    /// How many blocks have changed.
    pub fn changed(&self) -> usize {
        self.changed.lock().set.len()
    }

    /// Writes all that has changed: first what is new, then, when that is where it survives, what leads there. Sleeps. Only one at a time.
    ///
    /// # Errors
    /// `EIO`; what could not be written counts as changed still.
    pub fn write_back(&self) -> Result<()> {
        let fresh = self.changed.lock().take_fresh();
        self.write_fresh(fresh)?;
        // Few have become so meanwhile, and now no others do: whatever the rest leads to is there when it is written.
        let (fresh, others) = {
            let mut changed = self.changed.lock();
            changed.closed = true;
            (changed.take_fresh(), core::mem::take(&mut changed.set))
        };
        let result = match self.write_fresh(fresh) {
            Ok(()) => self.write_set(others),
            Err(error) => {
                self.take_back(others);
                Err(error)
            }
        };
        self.changed.lock().closed = false;
        self.opened.wake_all();
        result
    }

    /// Writes blocks to which nothing on the disk leads yet, and has the disk keep them.
    fn write_fresh(&self, fresh: Set) -> Result<()> {
        if fresh.is_empty() {
            return Ok(());
        }
        let all = fresh.clone();
        self.write_set(fresh)?;
        // Of what was not kept nobody knows what is there.
        self.device.flush().inspect_err(|_| self.take_back(all))
    }

    /// Writes blocks, neighbours together, all at once; those that can't be written are put back.
    fn write_set(&self, set: Set) -> Result<()> {
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

    fn take_back(&self, set: Set) {
        let mut changed = self.changed.lock();
        for (number, old) in set {
            let change = changed.set.entry(number).or_insert(Change {
                frame: old.frame,
                fresh: old.fresh,
            });
            change.fresh |= old.fresh;
        }
        drop(changed);
        self.pages.note_changed();
    }

    /// Gives up to `most` pages up that hold nothing that has changed and that nobody uses; returns how many.
    #[cfg(test)]
    pub fn give_back(&self, most: usize) -> usize {
        crate::page_cache::Cached::give_back(&*self.pages, most)
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
}
