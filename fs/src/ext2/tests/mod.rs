//! The lower half on the simulated machine, checked by the host's `e2fsck`.

mod crash;
mod damage;
mod files;
mod image;
mod orphans;
mod together;

use std::sync::Arc;

use nucleus::sim::{self, Config};

use super::Ext2;
use crate::{
    block::{Device, FaultyDisk},
    page_cache,
};

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) % n as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Runs `body` on a simulated machine for each of `usual` seeds, or for as many as `SEEDS` says.
/// Every data frame must be free again at the end.
fn on_machines(usual: u64, body: impl Fn(u64) + Copy + Send + 'static) {
    let from_environment = |name| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let wanted: u64 = from_environment("SEEDS").unwrap_or(usual);
    let first: u64 = from_environment("SEED").unwrap_or(1);
    for seed in first..first + wanted {
        let config = Config {
            cpus: 2,
            seed,
            daemons: true,
            max_points: u64::MAX,
            ..Config::default()
        };
        let ran = sim::run(config, move || {
            page_cache::reset();
            page_cache::start().unwrap();
            let before = nucleus::frame::usage().data;
            body(seed);
            page_cache::stop();
            // Frames that the disk's task still holds are freed after its device.
            while nucleus::frame::usage().data != before && nucleus::task::cpu_count() > 0 {
                nucleus::task::yield_now();
            }
        });
        if let Err(failure) = ran {
            panic!("seed {seed}: {failure}");
        }
    }
}

/// Returns a device with this content, and the disk behind it.
fn device(content: Vec<u8>, seed: u64) -> (Arc<Device>, Arc<FaultyDisk>) {
    let disk = FaultyDisk::new(content, seed);
    (Device::new("disk", 0xfe00, disk.clone()).unwrap(), disk)
}

/// Opens the file system on a device for writing.
fn mount(device: &Arc<Device>) -> Arc<Ext2> {
    let fs = Ext2::open(device.clone()).unwrap();
    fs.start_writing().unwrap();
    fs
}
