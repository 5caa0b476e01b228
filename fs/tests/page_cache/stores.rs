//! One file on each backing store of the page cache, opened as programs open it.

use std::{
    sync::{Arc, OnceLock, atomic::Ordering::SeqCst},
    time::Duration,
};

use abi::Result;
use fbuf::{Sink, Source};
use fs::{
    Attributes, Credentials, File, Kind, Location, Mount, MountRequest, Namespace, Vnode, Walk,
    block::{self, Device, Disk, FaultyDisk, MemoryDisk},
    ext2, ninep,
    page_cache::{self, Cached},
    ramfs::{self, Options},
    vnode::{Directory, FileData, SizeLimit},
};
use nucleus::{PAGE_SIZE, ephemeral};
use vm::Pager;

use crate::{
    disk::{self, Inode, Pages},
    support::{
        FLAGS,
        image::{self, SMALL, Shape},
        pause, with_walk,
    },
    wire::Wire,
};

/// Opens the file anew, with no clean pages in memory.
pub type Open = Arc<dyn Fn() -> Arc<dyn File> + Send + Sync>;

/// A file of a file system that has nothing else.
struct DiskFile(Arc<Pages>);

impl Vnode for DiskFile {
    fn attributes(&self) -> Result<Attributes> {
        Ok(Attributes {
            size: self.0.size(),
            ..Attributes::of(Kind::Regular, 0o600, Duration::ZERO)
        })
    }

    fn kind(&self) -> Kind {
        Kind::Regular
    }

    fn seek_data(&self, offset: u64, hole: bool) -> Result<u64> {
        self.0.seek_data(offset, hole)
    }
}

impl Directory for DiskFile {}

impl FileData for DiskFile {
    fn read(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        self.0.read(offset, to)
    }

    fn write_within(
        &self,
        limit: &SizeLimit,
        offset: u64,
        append: bool,
        from: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        self.0.write_within(limit, offset, append, from)
    }

    fn truncate_within(&self, limit: &SizeLimit, size: u64) -> Result<()> {
        self.0.truncate_within(limit, size)
    }

    fn allocate_within(&self, limit: &SizeLimit, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.0.fallocate_within(limit, mode, offset, len)
    }

    fn pager(self: Arc<Self>) -> Option<Arc<dyn Pager>> {
        Some(self.0.clone())
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.0.sync(0..u64::MAX, data_only)
    }

    fn cached(&self) -> Option<Arc<dyn Cached>> {
        Some(self.0.clone())
    }
}

/// Returns an open file on a disk.
pub fn on_disk(inode: &Arc<Inode>) -> Arc<dyn File> {
    let vnode: Arc<dyn Vnode> = Arc::new(DiskFile(disk::open(inode)));
    let mount = Mount::internal(vnode.clone(), "disk");
    let at = Location::inside(&mount, vnode);
    let who = Credentials::default();
    let walk = Walk {
        root: &at,
        start: &at,
        who: &who,
    };
    walk.open_at(&at, FLAGS).unwrap()
}

fn open_in(namespace: &Namespace) -> Arc<dyn File> {
    with_walk(namespace, |walk| walk.open(b"file", FLAGS, 0o644)).unwrap()
}

/// Runs `body` with a file on each store, which is empty; the disk has `pages` pages.
pub fn on_each(pages: usize, seed: u64, body: impl Fn(&Open)) {
    let (disk, inode) = disk::inode(pages, seed);
    disk.set_delays(!seed.is_multiple_of(3));
    let shared = inode.clone();
    body(&(Arc::new(move || on_disk(&shared)) as Open));
    let blocks = inode.blocks.lock().len();
    assert_eq!(
        inode.free.load(SeqCst) + blocks,
        pages,
        "blocks that are neither free nor used"
    );
    let memory = Namespace::new(ramfs::root(Options::default()), "rootfs");
    body(&(Arc::new(move || open_in(&memory)) as Open));
    body(&open_cold(Namespace::new(
        ninep::root(Wire::new(seed), b"").unwrap(),
        "9p",
    )));
    on_medium(|open, _| body(open), |()| ());
    let disk = FaultyDisk::new(small_blocks(seed).clone(), seed);
    let number = fs::device::number(block::VIRTIO_MAJOR, 0);
    let device = Device::new("vda", number, disk).unwrap();
    let root = ext2::mount(&device, b"", false).unwrap();
    body(&open_cold(Namespace::with_root(
        root,
        &MountRequest::plain("ext2"),
    )));
    // A task completes the unmount.
    while device.holder().is_some() {
        pause(Duration::from_millis(1));
    }
}

/// Runs `body` with a file that is mapped where it lies on a memory disk, and with that disk;
/// unmounts the file system, ends with what `body` returned by `after`, and checks the file system.
pub fn on_medium<R>(body: impl FnOnce(&Open, &Arc<MemoryDisk>) -> R, after: impl FnOnce(R)) {
    const SHAPE: Shape = Shape {
        kib: 1024,
        block: PAGE_SIZE,
        ..SMALL
    };
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    let content = IMAGE.get_or_init(|| SHAPE.make());
    let disk = Arc::new(MemoryDisk::new(content.len() as u64).unwrap());
    let pages = || (0..).map_while(|number| disk.page(number));
    for (page, bytes) in pages().zip(content.chunks(PAGE_SIZE)) {
        ephemeral::map(&page).write(0, bytes);
    }
    let number = fs::device::number(block::MEMORY_MAJOR, 0);
    let device = Device::new("md0", number, disk.clone()).unwrap();
    let root = ext2::mount(&device, b"dax", false).unwrap();
    let request = MountRequest::plain("ext2");
    // As by another mount.
    root.file_system().unwrap().mounted();
    let namespace = Namespace::with_root(root.clone(), &request);
    let left = body(&open_cold(namespace), &disk);
    let retired = root.file_system().unwrap().retire();
    root.file_system().unwrap().unmounted();
    drop(root);
    retired.unwrap();
    let is_held = pages().any(|page| page.handles() > 2);
    assert_eq!(device.holder().is_some(), is_held);
    after(left);
    while device.holder().is_some() {
        pause(Duration::from_millis(1));
    }
    let mut after = vec![0; content.len()];
    for (page, bytes) in pages().zip(after.chunks_mut(PAGE_SIZE)) {
        assert_eq!(page.handles(), 2, "a block's frame is still held");
        ephemeral::map(&page).read(0, bytes);
    }
    image::check(&after, SHAPE.block);
}

/// Opens the file of a namespace, after all clean pages have been evicted.
fn open_cold(namespace: Arc<Namespace>) -> Open {
    Arc::new(move || {
        page_cache::reclaim_clean(usize::MAX);
        open_in(&namespace)
    })
}

/// An image whose blocks are smaller than a page.
fn small_blocks(seed: u64) -> &'static Vec<u8> {
    static IMAGES: [OnceLock<Vec<u8>>; 2] = [const { OnceLock::new() }; 2];
    let which = seed as usize % IMAGES.len();
    let block = [1024, 2048][which];
    IMAGES[which].get_or_init(|| Shape { block, ..SMALL }.make())
}
