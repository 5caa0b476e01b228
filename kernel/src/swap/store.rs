//! Pages of the swap space on a disk.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{
    slice,
    sync::atomic::{
        AtomicBool, AtomicUsize,
        Ordering::{AcqRel, Acquire, Release},
    },
};

use abi::{Errno, Result};
use fs::block::{Claim, Device, PinnedBlocks, Request, Run, SECTOR};
use nucleus::{
    Frame, PAGE_SIZE,
    dma::Part,
    ephemeral,
    frame::Contents,
    sync::{Rank, SpinLock},
};
use vm::swap::{Done, StoreFailed, SwapStore};

use super::header::Header;

/// Frames of one request: a list of them fits a page.
const MOST_PARTS: u64 = 128;

/// Sectors of a page.
const PAGE_SECTORS: u64 = (PAGE_SIZE / SECTOR) as u64;

/// A disk, or the part of one that a file has: the first page is the header, slot `n` is page `n +
/// 1`.
pub struct DiskStore {
    device: Arc<Device>,
    header: Header,
    hold: Hold,
}

/// The claim on the disk, or on the file's blocks, and the places of the pages.
enum Hold {
    Device { all: Run, _claim: Claim },
    File { pinned: Box<dyn PinnedBlocks> },
}

impl DiskStore {
    /// A whole device.
    pub fn on_device(claim: Claim) -> DiskStore {
        let device = claim.device().clone();
        let all = Run {
            page: 0,
            sector: 0,
            pages: device.size() / PAGE_SIZE as u64,
        };
        DiskStore {
            device,
            header: Header::none(),
            hold: Hold::Device { all, _claim: claim },
        }
    }

    /// The blocks of a file.
    pub fn on_file(pinned: Box<dyn PinnedBlocks>) -> DiskStore {
        DiskStore {
            device: pinned.device().clone(),
            header: Header::none(),
            hold: Hold::File { pinned },
        }
    }

    /// Without a gap, in the order of their pages. Those of a file may be many: they stay where
    /// they were gathered.
    fn runs(&self) -> &[Run] {
        match &self.hold {
            Hold::Device { all, .. } => slice::from_ref(all),
            Hold::File { pinned } => pinned.runs(),
        }
    }

    /// Pages, the header among them.
    pub fn pages(&self) -> u64 {
        self.runs().last().map_or(0, |run| run.page + run.pages)
    }

    /// With the slots that its header says.
    pub fn with_header(mut self, header: Header) -> DiskStore {
        self.header = header;
        self
    }

    /// The first page.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`; `EINVAL` if there is none.
    pub fn first_page(&self) -> Result<Box<[u8; PAGE_SIZE]>> {
        let frame = vm::alloc_frame(Contents::Stale)?;
        let (sector, _) = self.place(0).ok_or(Errno::EINVAL)?;
        self.device
            .read(sector, [Part::whole(frame.clone())].into())?;
        let mut page = Box::new([0; PAGE_SIZE]);
        ephemeral::map(&frame).read(0, &mut page[..]);
        Ok(page)
    }

    /// Tells the disk that nothing behind the header is needed. A disk that does not want to know
    /// is left alone.
    pub fn discard(&self) {
        for run in self.runs() {
            let skipped = u64::from(run.page == 0);
            let sector = run.sector + skipped * PAGE_SECTORS;
            // A hint: nothing depends on it.
            let _ = self
                .device
                .discard(sector, (run.pages - skipped) * PAGE_SECTORS);
        }
    }

    /// The first sector of a page, and how many pages from it on are neighbours on the disk.
    fn place(&self, page: u64) -> Option<(u64, u64)> {
        let runs = self.runs();
        let behind = runs.partition_point(|run| run.page <= page);
        let run = runs.get(behind.checked_sub(1)?)?;
        let within = page - run.page;
        let left = run.pages.checked_sub(within).filter(|&left| left > 0)?;
        Some((run.sector + within * PAGE_SECTORS, left))
    }

    /// Sends one request for each row of neighbours on the disk.
    fn transfer(
        &self,
        slot: u64,
        frames: impl ExactSizeIterator<Item = Frame>,
        request: fn(u64, Vec<Part>) -> Request,
        done: Done,
    ) {
        let (mut page, mut left) = (slot + 1, frames.len() as u64);
        let mut frames = frames.map(Part::whole);
        let gather = Gather::new(done);
        while left > 0 {
            // The file or the device has all slots that its header says.
            let Some((sector, neighbours)) = self.place(page) else {
                gather.failed.store(true, Release);
                break;
            };
            let count = neighbours.min(left).min(MOST_PARTS);
            let parts: Vec<Part> = frames.by_ref().take(count as usize).collect();
            gather.left.fetch_add(1, AcqRel);
            let gather = gather.clone();
            self.device.submit(
                request(sector, parts),
                Box::new(move |result| gather.end(result.is_ok())),
            );
            page += count;
            left -= count;
        }
        drop(frames);
        gather.end(true);
    }
}

/// The ends of the requests of one transfer.
struct Gather {
    left: AtomicUsize,
    failed: AtomicBool,
    done: SpinLock<Option<Done>>,
}

impl Gather {
    /// One end is to come: that of the sending.
    fn new(done: Done) -> Arc<Gather> {
        Arc::new(Gather {
            left: AtomicUsize::new(1),
            failed: AtomicBool::new(false),
            done: SpinLock::new(Rank::Leaf, Some(done)),
        })
    }

    fn end(&self, well: bool) {
        if !well {
            self.failed.store(true, Release);
        }
        if self.left.fetch_sub(1, AcqRel) > 1 {
            return;
        }
        let done = self.done.lock().take();
        if let Some(done) = done {
            done(match self.failed.load(Acquire) {
                true => Err(StoreFailed),
                false => Ok(()),
            });
        }
    }
}

impl SwapStore for DiskStore {
    fn slots(&self) -> u64 {
        self.header.slots
    }

    fn bad_slots(&self) -> &[u64] {
        &self.header.bad
    }

    fn read(&self, slot: u64, frames: &[Frame], done: Done) {
        self.transfer(slot, frames.iter().cloned(), Request::read, done);
    }

    fn write(&self, slot: u64, frames: Vec<Frame>, done: Done) {
        self.transfer(slot, frames.into_iter(), Request::write, done);
    }
}

#[cfg(all(test, not(target_os = "none")))]
mod tests {
    use super::*;
    use fs::block::{self, FaultyDisk};
    use nucleus::sim::{self, Config};

    struct Pieces {
        device: Arc<Device>,
        runs: Vec<Run>,
    }

    impl PinnedBlocks for Pieces {
        fn device(&self) -> &Arc<Device> {
            &self.device
        }

        fn runs(&self) -> &[Run] {
            &self.runs
        }
    }

    /// A file in many pieces: the list of them may be longer than the largest free run.
    #[test]
    fn the_pieces_of_a_file_stay_where_they_are() {
        sim::check("pieces", 0..1, Config::default(), || {
            let disk = FaultyDisk::new(vec![0; 1 << 20], 1);
            let number = fs::device::number(block::VIRTIO_MAJOR, 0);
            let device = Device::new("vda", number, disk).expect("memory");
            // Two pages each, from the end of the disk.
            let piece = |i: u64| Run {
                page: 2 * i,
                sector: (240 - 4 * i) * PAGE_SECTORS,
                pages: 2,
            };
            let runs: Vec<Run> = (0..50).map(piece).collect();
            let there = runs.as_ptr();
            let store = DiskStore::on_file(Box::new(Pieces { device, runs }));
            assert_eq!(store.runs().as_ptr(), there);
            assert_eq!(store.pages(), 100);
            assert_eq!(store.place(0), Some((240 * PAGE_SECTORS, 2)));
            assert_eq!(store.place(13), Some((217 * PAGE_SECTORS, 1)));
            assert_eq!(store.place(100), None);
        });
    }
}
