//! A simulated machine with one disk.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fs::{
    MountFlags, MountRequest, Namespace, Walk,
    block::{self, Device, FaultyDisk},
    ext2,
};
use nucleus::sim::{self, Config};

use super::support::{
    image::{self, Shape},
    pause, with_walk,
};

/// A machine's disk with a file system.
pub struct Machine {
    pub disk: Arc<FaultyDisk>,
    pub device: Arc<Device>,
}

impl Machine {
    /// Returns a tree of mounts whose root is the disk, which is unmounted when the tree is
    /// dropped.
    ///
    /// # Errors
    /// Those of mounting.
    pub fn try_mount(&self, read_only: bool) -> abi::Result<Arc<Namespace>> {
        let mut flags = MountFlags::RELATIVE_ACCESS_TIMES;
        flags.set(MountFlags::READ_ONLY, read_only);
        let how = MountRequest {
            source: b"/dev/vda",
            flags,
            ..MountRequest::plain("ext2")
        };
        let root = ext2::mount(&self.device, b"", read_only)?;
        Ok(Namespace::with_root(root, &how))
    }

    /// Mounts for writing, with options.
    pub fn mount_with(&self, options: &[u8]) -> Arc<Namespace> {
        let root = ext2::mount(&self.device, options, false).expect("it can be mounted");
        Namespace::with_root(root, &MountRequest::plain("ext2"))
    }

    /// As [`try_mount`](Machine::try_mount), for writing.
    pub fn mount(&self) -> Arc<Namespace> {
        self.try_mount(false).expect("it can be mounted")
    }
}

/// Makes such an image, calls `body` with walks of it on a machine of `cpus` CPUs, and checks it.
pub fn walk_on(shape: Shape, cpus: usize, body: impl FnOnce(&Machine, &Walk<'_>) + Send + 'static) {
    let (content, ()) = run(1, cpus, shape.make(), |machine| {
        let namespace = machine.mount();
        with_walk(&namespace, |walk| body(machine, walk));
    });
    image::check(&content, shape.block);
}

/// Runs `body` on a machine of `cpus` CPUs with `content` on its disk; returns the disk's content
/// at the end, and the body's value.
pub fn run<R: Send + 'static>(
    seed: u64,
    cpus: usize,
    content: Vec<u8>,
    body: impl FnOnce(&Machine) -> R + Send + 'static,
) -> (Vec<u8>, R) {
    let result = Arc::new(Mutex::new(None));
    let config = Config {
        cpus,
        seed,
        daemons: true,
        max_points: u64::MAX,
        ..Config::default()
    };
    let slot = result.clone();
    let ran = sim::run(config, move || {
        fs::page_cache::reset();
        fs::page_cache::start().expect("there is memory for tasks");
        let disk = FaultyDisk::new(content, seed);
        let number = fs::device::number(block::VIRTIO_MAJOR, 0);
        let device = Device::new("vda", number, disk.clone()).expect("there is memory");
        let machine = Machine {
            disk: disk.clone(),
            device,
        };
        let value = body(&machine);
        // A task completes the unmount.
        while machine.device.holder().is_some() {
            pause(Duration::from_millis(1));
        }
        drop(machine);
        fs::page_cache::stop();
        *slot.lock().unwrap() = Some((disk.content(), value));
    });
    if let Err(failure) = ran {
        panic!("seed {seed}: {failure}");
    }
    let value = result.lock().unwrap().take();
    value.expect("the body has ended")
}
