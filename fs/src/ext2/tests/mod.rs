//! The lower half on the simulated machine, checked by the host's `e2fsck`.

mod crash;
mod damage;
mod direct;
mod files;
mod orphans;
mod together;

use std::sync::Arc;

use nucleus::sim::Config;

use super::{Ext2, inode::Inode};
use crate::{
    block::{Device, FaultyDisk},
    page_cache::InUse,
    support::{
        image::{self, FIRST, Shape},
        with_page_cache,
    },
};

/// Runs `body` on a simulated machine for each seed.
fn on_machines(usual: u64, body: impl Fn(u64) + Copy + Send + 'static) {
    let config = Config {
        daemons: true,
        max_points: u64::MAX,
        ..Config::default()
    };
    with_page_cache(usual, config, body);
}

/// Returns a device with this content, and the disk behind it.
fn device(content: Vec<u8>, seed: u64) -> (Arc<Device>, Arc<FaultyDisk>) {
    let disk = FaultyDisk::new(content, seed);
    (Device::new("disk", 0xfe00, disk.clone()).unwrap(), disk)
}

/// A file system that is open for writing, and its disk.
struct Mounted {
    fs: Arc<Ext2>,
    disk: Arc<FaultyDisk>,
    seed: u64,
}

impl Mounted {
    fn new(content: Vec<u8>, seed: u64) -> Mounted {
        let (device, disk) = device(content, seed);
        let fs = Ext2::open(device).unwrap();
        fs.start_writing().unwrap();
        Mounted { fs, disk, seed }
    }

    /// One that was made for this.
    fn of(shape: Shape, seed: u64) -> Mounted {
        Mounted::new(shape.make(), seed)
    }

    /// Opens the file number `number` of those that the shape has.
    fn open(&self, number: u32) -> Arc<InUse<Inode>> {
        self.fs.inode(FIRST + number).unwrap()
    }

    /// Looks at what a power cut now would leave.
    fn after_power_cut(&self, look: impl FnOnce(&Arc<Ext2>)) {
        let (medium, _) = device(self.disk.after_power_cut(), self.seed);
        let left = Ext2::open(medium).unwrap();
        look(&left);
        left.forget();
    }

    /// Unmounts it; returns the disk's content, which is sound.
    fn finish(self) -> Vec<u8> {
        self.disk.set_delays(false);
        self.fs.unmount().unwrap();
        let content = self.disk.content();
        image::check(&content, self.seed);
        content
    }
}
