//! Metadata blocks in memory: pages of the device, and which of their blocks are dirty.
//!
//! A page of the device may also hold file data, which bypasses this cache. So dirtiness is tracked
//! by block: writing the whole page would overwrite a file's data with old bytes. The page of a
//! dirty block stays in memory until the block is on the disk.
//!
//! The pages belong to a file of their own, so that they are reclaimed like all others, and the
//! flusher commits them in time.
//!
//! *Unwritten* blocks of files are known here, too: nothing on the disk may refer to them before
//! their bytes are there, or a power failure would leave files with bytes of others. What a write
//! does not bring until a commit, zeros replace.
//!
//! Locks: the sets of dirty and of unwritten blocks have one lock of rank `Leaf`. The bytes of a
//! block have none: each block belongs to an object with a lock (a group's bitmap, an inode's map,
//! a directory), and the records in a block of an inode table do not overlap.

use alloc::{
    boxed::Box,
    collections::BTreeMap,
    sync::{Arc, Weak},
    vec::Vec,
};
use core::ops::Range;

use abi::{Errno, Result};
use nucleus::{
    Frame, PAGE_SIZE,
    dma::Part,
    ephemeral,
    sync::{Rank, SpinLock},
    task::WaitQueue,
};

use super::{batch::Batch, pending::Run, unwritten::Unwritten};
use crate::{
    block::{Device, Done, Request, SECTOR, make_room},
    device::DeviceStore,
    page_cache::{BlockStore, PageCache, WriteBack},
};

/// A metadata block; keeps its page in memory.
#[derive(Clone)]
pub(super) struct Block {
    frame: Frame,
    /// Its offset in its page.
    start: usize,
    /// Its number on the device.
    pub number: u32,
}

/// A block's bytes, for several accesses to few of them by one mapping. The task stays on its CPU
/// meanwhile.
pub(super) struct View<'a> {
    page: ephemeral::Mapping<'a>,
    start: usize,
}

impl View<'_> {
    /// Copies bytes out, from offset `at` on.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        self.page.read(self.start + at, to);
    }

    /// Copies bytes in, from offset `at` on, in [`Buffers::change`].
    pub fn write(&self, at: usize, from: &[u8]) {
        self.page.write(self.start + at, from);
    }

    /// Returns the bytes from offset `at` on.
    pub fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.read(at, &mut bytes);
        bytes
    }
}

impl Block {
    /// Maps the block to look at several places.
    pub fn view(&self) -> View<'_> {
        View {
            page: ephemeral::map(&self.frame),
            start: self.start,
        }
    }

    /// Copies bytes out, from offset `at` on.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        self.view().read(at, to);
    }

    /// Returns the bytes from offset `at` on.
    pub fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        self.view().bytes(at)
    }

    /// Returns its `index`th four-byte word.
    pub fn word(&self, index: u32) -> u32 {
        u32::from_le_bytes(self.bytes(index as usize * 4))
    }
}

/// Dirty blocks, by number.
type Set = BTreeMap<u32, Change>;

/// The blocks that are not on the disk as they should be.
struct Changed {
    /// The dirty ones that blocks on the disk may refer to.
    set: Set,
    /// The dirty ones to which nothing on the disk refers, and nothing must before they are
    /// written. No block is in both sets.
    fresh: Set,
    /// Those of files.
    unwritten: Unwritten,
    /// Blocks that refer to others are being written, with whatever bytes they have during the
    /// write: no block becomes [fresh](Buffers::fresh) or
    /// [unwritten](Buffers::note_unwritten) meanwhile.
    closed: bool,
}

/// What completions of writes need, even after the file system's end.
struct Shared {
    changed: SpinLock<Changed>,
    /// Woken when blocks may become fresh or unwritten again.
    opened: WaitQueue,
    /// Woken when first bytes have arrived.
    arrived: WaitQueue,
}

impl Shared {
    /// The first write of those of `blocks` that had none is over.
    fn arrived(&self, blocks: Range<u64>, result: Result<()>) {
        let any = self.changed.lock().unwritten.arrived(blocks, result);
        if any {
            self.arrived.wake_all();
        }
    }
}

/// A dirty block.
#[derive(Clone)]
struct Change {
    frame: Frame,
}

/// The file system above the metadata.
pub(super) trait Committer: Send + Sync {
    /// Writes all changed metadata.
    fn commit(&self) -> Result<()>;

    /// Waits until the removed files that are being freed are free.
    fn wait_for_ends(&self) -> Result<()>;
}

/// The pages of a device that hold metadata. None of them is ever dirty as a page.
struct Metadata {
    device: DeviceStore,
    committer: SpinLock<Option<Weak<dyn Committer>>>,
}

impl BlockStore for Metadata {
    fn read(&self, first: u64, frames: &[Frame], done: Done) {
        self.device.read(first, frames, done);
    }

    fn write(&self, _: u64, _: &[Frame], done: Done) {
        done(Err(Errno::EIO));
    }

    fn settle(&self) {
        if let Some(fs) = self.committer() {
            // Blocks that cannot be written stay dirty and are retried.
            let _ = fs.commit();
        }
    }
}

impl Metadata {
    fn committer(&self) -> Option<Arc<dyn Committer>> {
        self.committer.lock().as_ref().and_then(Weak::upgrade)
    }
}

/// The most segments of a transfer: fits a queue of 128 descriptors with room to spare.
const MOST_PARTS: usize = 96;

/// The most blocks that become unwritten, or no longer are, in one hold of the lock.
const PORTION: u64 = 64;

/// The blocks of `run`, in portions for one hold of the lock each.
fn portions(run: Run) -> impl Iterator<Item = Range<u64>> {
    let Range { start, end } = run.blocks();
    let firsts = (start..end).step_by(PORTION as usize);
    firsts.map(move |first| first..(first + PORTION).min(end))
}

/// The metadata of one device.
pub(super) struct Buffers {
    pub device: Arc<Device>,
    pages: Arc<PageCache<WriteBack<Metadata>>>,
    block_size: usize,
    /// A page of zeros.
    zeros: Frame,
    shared: Arc<Shared>,
}

impl Changed {
    /// Marks a block dirty, and fresh if `fresh`; it stays fresh if it is. Returns whether it is
    /// the only one.
    fn note(&mut self, block: &Block, fresh: bool) -> bool {
        let change = Change {
            frame: block.frame.clone(),
        };
        self.put(block.number, change, fresh)
    }

    /// As [`note`](Changed::note).
    fn put(&mut self, number: u32, change: Change, fresh: bool) -> bool {
        let first = self.count() == 0;
        if fresh {
            let change = self.set.remove(&number).unwrap_or(change);
            self.fresh.entry(number).or_insert(change);
        } else if !self.fresh.contains_key(&number) {
            self.set.entry(number).or_insert(change);
        }
        first
    }

    /// The number of dirty blocks.
    fn count(&self) -> usize {
        self.set.len() + self.fresh.len()
    }

    /// Takes the fresh blocks.
    fn take_fresh(&mut self) -> Set {
        core::mem::take(&mut self.fresh)
    }
}

impl Buffers {
    /// Returns the metadata of a device with blocks of `block_size` bytes; `zeros` is a page of
    /// zeros.
    pub fn new(device: Arc<Device>, block_size: usize, zeros: Frame) -> Buffers {
        let store = Metadata {
            device: DeviceStore::new(device.clone()),
            committer: SpinLock::new(Rank::Leaf, None),
        };
        Buffers {
            pages: PageCache::new(store, device.size(), DeviceStore::properties(&device)),
            device,
            block_size,
            zeros,
            shared: Arc::new(Shared {
                changed: SpinLock::new(
                    Rank::Leaf,
                    Changed {
                        set: Set::new(),
                        fresh: Set::new(),
                        unwritten: Unwritten::new(),
                        closed: false,
                    },
                ),
                opened: WaitQueue::new(),
                arrived: WaitQueue::new(),
            }),
        }
    }

    /// Names the file system that commits the changes: for the flusher, and for
    /// [`wait_for_ends`](Buffers::wait_for_ends).
    pub fn serve(&self, committer: Weak<dyn Committer>) {
        *self.pages.blocks().committer.lock() = Some(committer);
    }

    /// Waits until the removed files that are being freed are free.
    ///
    /// # Errors
    /// `EIO` after the end of the file system.
    pub fn wait_for_ends(&self) -> Result<()> {
        self.pages
            .blocks()
            .committer()
            .ok_or(Errno::EIO)?
            .wait_for_ends()
    }

    /// The page of the device and the offset in it of a block.
    fn place(&self, number: u32) -> (u64, usize) {
        let byte = number as u64 * self.block_size as u64;
        (byte / PAGE_SIZE as u64, (byte % PAGE_SIZE as u64) as usize)
    }

    /// Returns a block that exists on the device, reading it if needed. May sleep.
    pub fn get(&self, number: u32) -> Result<Block> {
        let (page, start) = self.place(number);
        Ok(Block {
            frame: self.pages.page(page)?,
            start,
            number,
        })
    }

    /// Returns a block that becomes metadata: zeroed and dirty. It is written before anything on
    /// the disk refers to it; the caller stores references to it only after this returns. May sleep
    /// while other blocks are written.
    ///
    /// # Errors
    /// `EIO`, if other blocks of its page have to be read; `ENOMEM`.
    pub fn fresh(&self, number: u32) -> Result<Block> {
        let block = self.get(number)?;
        ephemeral::map(&block.frame).fill(block.start, self.block_size, 0);
        if self.when_open(|changed| changed.note(&block, true)) {
            self.pages.note_changed();
        }
        Ok(block)
    }

    /// Calls `change` when no blocks that refer to others are being written.
    fn when_open<R>(&self, mut change: impl FnMut(&mut Changed) -> R) -> R {
        let opened = || {
            let mut changed = self.shared.changed.lock();
            (!changed.closed).then(|| change(&mut changed))
        };
        self.shared.opened.wait_soundly(opened)
    }

    /// Notes that blocks become a file's: they hold bytes of others until they are written. The
    /// caller stores references to them only after this returns. May sleep while other blocks are
    /// written.
    pub fn note_unwritten(&self, run: Run) {
        for blocks in portions(run) {
            self.when_open(|changed| changed.unwritten.add(blocks.clone()));
        }
    }

    /// Notes that nothing refers to blocks any more.
    pub fn forget_unwritten(&self, run: Run) {
        for blocks in portions(run) {
            self.shared.changed.lock().unwritten.forget(blocks);
        }
    }

    /// The first one of these blocks that has no bytes of its file on the disk: it reads as zeros.
    pub fn next_unwritten(&self, blocks: Range<u64>) -> Option<u64> {
        self.shared.changed.lock().unwritten.next(blocks)
    }

    /// Before a write of these blocks, all of them; returns what the completion of the write calls.
    /// Sleeps while zeros are written to some of them.
    pub fn first_write(&self, blocks: Range<u64>) -> impl FnOnce(Result<()>) + Send + 'static {
        let claimed = || {
            let mut changed = self.shared.changed.lock();
            changed.unwritten.claim(blocks.clone()).then_some(())
        };
        self.shared.arrived.wait_soundly(claimed);
        let shared = self.shared.clone();
        move |result| shared.arrived(blocks, result)
    }

    /// Sees to it that all blocks of files have bytes of theirs on the disk, whose cache is to be
    /// flushed: zeros, unless a write is under way. Those that fail stay unwritten. No block
    /// becomes unwritten meanwhile.
    ///
    /// # Errors
    /// `ENOMEM`: nothing that refers to them may be written.
    fn clear_unwritten(&self) -> Result<()> {
        let per_page = (PAGE_SIZE / self.block_size) as u64;
        let most = MOST_PARTS as u64 * per_page;
        let mut from = 0;
        let batch = Batch::new();
        let mut begun = Ok(());
        loop {
            let claimed = self.shared.changed.lock().unwritten.claim_next(from, most);
            let Some(blocks) = claimed else { break };
            from = blocks.end;
            match self.zeros(blocks.clone()) {
                Ok(request) => {
                    let (done, shared) = (batch.expect(()), self.shared.clone());
                    let ended = move |result: Result<()>| {
                        shared.arrived(blocks, result);
                        done(result);
                    };
                    self.device.submit(request, Box::new(ended));
                }
                Err(error) => {
                    self.shared.arrived(blocks, Err(error));
                    begun = Err(error);
                    break;
                }
            }
        }
        // One bad sector keeps nothing else from the disk. The next write of such a block reports
        // its error.
        let _ = batch.wait();
        let all = || {
            let changed = self.shared.changed.lock();
            changed.unwritten.none_on_their_way().then_some(())
        };
        self.shared.arrived.wait_soundly(all);
        begun
    }

    /// A request that writes zeros.
    fn zeros(&self, blocks: Range<u64>) -> Result<Request> {
        let mut left = (blocks.end - blocks.start) as usize * self.block_size;
        let mut parts = Vec::new();
        make_room(&mut parts, left.div_ceil(PAGE_SIZE))?;
        while left > 0 {
            let len = left.min(PAGE_SIZE);
            parts.push(Part::new(self.zeros.clone(), 0, len));
            left -= len;
        }
        Ok(Request::write(self.sector(blocks.start as u32), parts))
    }

    /// Copies bytes into a block, from offset `at` on, and marks it dirty.
    pub fn store(&self, block: &Block, at: usize, bytes: &[u8]) {
        self.change(block, |view| view.write(at, bytes));
    }

    /// Changes a block's bytes, and marks it dirty.
    pub fn change(&self, block: &Block, change: impl FnOnce(&View<'_>)) {
        change(&block.view());
        if self.shared.changed.lock().note(block, false) {
            self.pages.note_changed();
        }
    }

    /// Sets the `index`th four-byte word of a block.
    pub fn store_word(&self, block: &Block, index: u32, word: u32) {
        self.store(block, index as usize * 4, &word.to_le_bytes());
    }

    /// Notes that the block is no metadata any more and must not be written: its next owner's data
    /// will be there.
    pub fn forget(&self, number: u32) {
        let mut changed = self.shared.changed.lock();
        let change = (changed.set.remove(&number), changed.fresh.remove(&number));
        drop(changed);
        drop(change);
    }

    /// The number of dirty blocks.
    pub fn changed(&self) -> usize {
        self.shared.changed.lock().count()
    }

    /// Writes all dirty blocks: first fresh ones, then, once these and the first bytes of files'
    /// blocks are on stable storage, those that refer to them. Sleeps. One call at a time.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`; blocks that could not be written stay dirty.
    pub fn write_back(&self) -> Result<()> {
        let fresh = self.shared.changed.lock().take_fresh();
        self.write_fresh(fresh)?;
        // Few blocks have become fresh meanwhile, and now no others do, so whatever the rest refers
        // to is on the disk first.
        let (fresh, others) = {
            let mut changed = self.shared.changed.lock();
            changed.closed = true;
            (changed.take_fresh(), core::mem::take(&mut changed.set))
        };
        let result = match self.write_referred(fresh) {
            Ok(()) => self.write_set(others, false),
            Err(error) => {
                self.take_back(others, false);
                Err(error)
            }
        };
        self.shared.changed.lock().closed = false;
        self.shared.opened.wake_all();
        result
    }

    /// Writes all that the dirty blocks but `fresh` may refer to.
    fn write_referred(&self, fresh: Set) -> Result<()> {
        if let Err(error) = self.clear_unwritten() {
            self.take_back(fresh, true);
            return Err(error);
        }
        self.write_fresh(fresh)
    }

    /// Writes fresh blocks, and flushes the disk's cache if these or first bytes of files' blocks
    /// are in it.
    fn write_fresh(&self, fresh: Set) -> Result<()> {
        let all = fresh.clone();
        self.write_set(fresh, true).inspect_err(|_| {
            // Others may have reached the disk's cache, and no block may remain to be retried.
            self.shared.changed.lock().unwritten.put_unflushed(true);
        })?;
        let first_bytes = self.shared.changed.lock().unwritten.take_unflushed();
        if all.is_empty() && !first_bytes {
            return Ok(());
        }
        // After a failed flush their state on the disk is unknown.
        self.device.flush().inspect_err(|_| {
            self.take_back(all, true);
            self.shared
                .changed
                .lock()
                .unwritten
                .put_unflushed(first_bytes);
        })
    }

    /// Writes blocks, merging consecutive ones, all at once; those that cannot be written become
    /// dirty again, and fresh if `fresh`.
    fn write_set(&self, set: Set, fresh: bool) -> Result<()> {
        let batch = Batch::new();
        let mut run: Vec<(u32, Change)> = Vec::new();
        let mut set = set.into_iter().peekable();
        while let Some((number, change)) = set.next() {
            run.push((number, change));
            let is_consecutive = set.peek().is_some_and(|(next, _)| *next == number + 1);
            if is_consecutive && run.len() < MOST_PARTS {
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
            self.take_back(run, fresh);
        }
        result
    }

    /// Makes blocks dirty again, and fresh if `fresh`. Takes the lock for each of them, so that no
    /// hold of it grows with their number.
    fn take_back(&self, blocks: impl IntoIterator<Item = (u32, Change)>, fresh: bool) {
        for (number, old) in blocks {
            self.shared.changed.lock().put(number, old, fresh);
        }
        self.pages.note_changed();
    }

    /// Evicts up to `most` unused pages without dirty blocks; returns how many.
    #[cfg(test)]
    pub fn give_back(&self, most: usize) -> usize {
        crate::page_cache::Evictable::give_back(&*self.pages, most)
    }

    fn part(&self, number: u32, change: &Change) -> Part {
        Part::new(change.frame.clone(), self.place(number).1, self.block_size)
    }

    fn sector(&self, block: u32) -> u64 {
        block as u64 * (self.block_size / SECTOR) as u64
    }
}
