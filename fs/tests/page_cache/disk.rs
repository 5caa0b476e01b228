//! A store for tests: one file whose page N, if it has a block, is at sector 8 N of a disk that
//! fails when it is told to.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};

use abi::{Errno, Result};
use fbuf::{BytesSink, BytesSource};
use fs::{
    block::{Device, Done, FaultyDisk, Request, SECTOR, Transfer},
    page_cache::{BlockStore, PageCache, Properties, WriteBack},
};
use nucleus::{
    Frame, PAGE_SIZE,
    dma::Part,
    ephemeral,
    sync::{Mutex, Rank, SpinLock},
};

/// What a file is besides its pages; it outlives them.
pub struct Inode {
    pub device: Arc<Device>,
    /// Pages that have a block.
    pub blocks: SpinLock<BTreeSet<u64>>,
    /// Blocks that are free.
    pub free: AtomicUsize,
    /// The size that is kept.
    pub size: AtomicU64,
    /// As a file system's map of blocks: held while it is looked at.
    map: Mutex<()>,
    pub syncs: AtomicUsize,
    /// Requests to read, and pages in them.
    pub reads: AtomicUsize,
    pub pages_read: AtomicUsize,
    /// Requests to write that are still to be refused for want of memory.
    pub refuses: AtomicUsize,
    /// Requests to write of which only the first half is still to be written, and the rest refused
    /// for want of memory.
    pub halves: AtomicUsize,
    /// Called before blocks are given back.
    pub before_release: SpinLock<Option<Box<dyn FnOnce() + Send>>>,
}

pub struct DiskStore(pub Arc<Inode>);

pub type Pages = PageCache<WriteBack<DiskStore>>;

/// A disk with room for `pages` pages, and a file on it without any.
pub fn inode(pages: usize, seed: u64) -> (Arc<FaultyDisk>, Arc<Inode>) {
    // What a block had before it was given to the file must never be seen.
    let disk = FaultyDisk::new(vec![0xee; pages * PAGE_SIZE], seed);
    let device = Device::new("vdz", 1, disk.clone()).unwrap();
    let inode = Inode {
        device,
        blocks: SpinLock::new(Rank::Leaf, BTreeSet::new()),
        free: AtomicUsize::new(pages),
        size: AtomicU64::new(0),
        map: Mutex::new(fs::rank::FILE_MAP, ()),
        syncs: AtomicUsize::new(0),
        reads: AtomicUsize::new(0),
        pages_read: AtomicUsize::new(0),
        refuses: AtomicUsize::new(0),
        halves: AtomicUsize::new(0),
        before_release: SpinLock::new(Rank::Leaf, None),
    };
    (disk, Arc::new(inode))
}

/// The file's pages, none in memory.
pub fn open(inode: &Arc<Inode>) -> Arc<Pages> {
    let properties = Properties {
        size_max: inode.device.size(),
        ..Properties::of((0, 0))
    };
    PageCache::new(
        DiskStore(inode.clone()),
        inode.size.load(SeqCst),
        properties,
    )
}

/// Returns up to `len` bytes of a file from `at` on.
#[track_caller]
pub fn read(file: &Pages, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let n = file.read(at, &mut BytesSink::new(&mut bytes)).unwrap();
    bytes.truncate(n);
    bytes
}

/// Writes all of `bytes`.
#[track_caller]
pub fn write(file: &Pages, at: u64, bytes: &[u8]) {
    let wrote = file.write(at, false, &mut BytesSource::new(bytes));
    assert_eq!(wrote, Ok((bytes.len(), at + bytes.len() as u64)));
}

impl Inode {
    fn has(&self, page: u64) -> bool {
        self.blocks.lock().contains(&page)
    }

    /// Calls `f` with each run of `first..first + count` that has blocks, or has none.
    fn runs(&self, first: u64, count: usize, mut f: impl FnMut(Range<usize>, bool)) {
        let mut start = 0;
        while start < count {
            let has = self.has(first + start as u64);
            let mut end = start + 1;
            while end < count && self.has(first + end as u64) == has {
                end += 1;
            }
            f(start..end, has);
            start = end;
        }
    }

    /// Of `frames` the first `count` are transferred, and then that ends with `result`.
    fn transfer(
        &self,
        first: u64,
        frames: &[Frame],
        write: bool,
        (count, result): (usize, Result<()>),
        done: Done,
    ) {
        let _map = self.map.lock();
        let transfer = Transfer::new(done);
        self.runs(first, count, |run, has| {
            if !has {
                assert!(!write, "a page without a block is written");
                for frame in &frames[run] {
                    ephemeral::map(frame).fill(0, PAGE_SIZE, 0);
                }
                return;
            }
            let sector = (first + run.start as u64) * (PAGE_SIZE / SECTOR) as u64;
            let parts = frames[run].iter().cloned().map(Part::whole).collect();
            let request = match write {
                true => Request::write(sector, parts),
                false => Request::read(sector, parts),
            };
            self.device.submit(request, transfer.expect());
        });
        transfer.end(result);
    }
}

impl BlockStore for DiskStore {
    fn read(&self, first: u64, frames: &[Frame], done: Done) {
        self.0.reads.fetch_add(1, SeqCst);
        self.0.pages_read.fetch_add(frames.len(), SeqCst);
        let all = (frames.len(), Ok(()));
        self.0.transfer(first, frames, false, all, done);
    }

    fn write(&self, first: u64, frames: &[Frame], done: Done) {
        let counts = |left: &AtomicUsize| {
            let one_less = |left: usize| left.checked_sub(1);
            left.fetch_update(SeqCst, SeqCst, one_less).is_ok()
        };
        if counts(&self.0.refuses) {
            return done(Err(Errno::ENOMEM));
        }
        let some = match counts(&self.0.halves) {
            true => (frames.len() / 2, Err(Errno::ENOMEM)),
            false => (frames.len(), Ok(())),
        };
        self.0.transfer(first, frames, true, some, done);
    }

    fn reserve(&self, pages: Range<u64>, _end: u64) -> Result<u64> {
        let _map = self.0.map.lock();
        let mut count = 0;
        for page in pages {
            if self.0.has(page) {
                count += 1;
                continue;
            }
            let take = |free: usize| free.checked_sub(1);
            if self.0.free.fetch_update(SeqCst, SeqCst, take).is_err() {
                break;
            }
            self.0.blocks.lock().insert(page);
            count += 1;
        }
        match count {
            0 => Err(Errno::ENOSPC),
            count => Ok(count),
        }
    }

    fn changed(&self, grown: Option<u64>) {
        if let Some(size) = grown {
            self.0.size.store(size, SeqCst);
        }
    }

    fn cut(&self, size: u64) -> Result<()> {
        self.0.size.store(size, SeqCst);
        self.release(size.div_ceil(PAGE_SIZE as u64)..u64::MAX)
    }

    fn release(&self, pages: Range<u64>) -> Result<()> {
        let before = self.0.before_release.lock().take();
        if let Some(before) = before {
            before();
        }
        let _map = self.0.map.lock();
        let mut blocks = self.0.blocks.lock();
        let gone: Vec<u64> = blocks.range(pages).copied().collect();
        for page in &gone {
            blocks.remove(page);
        }
        drop(blocks);
        self.0.free.fetch_add(gone.len(), SeqCst);
        Ok(())
    }

    fn seek(&self, pages: Range<u64>, hole: bool) -> Result<Option<u64>> {
        Ok(pages.clone().find(|&page| self.0.has(page) != hole))
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        self.0.syncs.fetch_add(1, SeqCst);
        self.0.device.flush()
    }
}
