//! A simulated machine with one faulty disk and the kernel's tasks.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fs::{
    MountFlags, MountRequest, Namespace,
    block::{self, Device, FaultyDisk},
    ext2, page_cache,
};
use nucleus::{
    frame,
    sim::{self, Config},
    task::{self, Sleep},
};
use vm::swap;

use super::injection::{Faults, Kind};

/// A file's name, and its contents when it was last synced.
pub type Synced = Vec<(&'static [u8], Vec<u8>)>;

/// The machine.
pub struct Machine {
    pub device: Arc<Device>,
    pub faults: Faults,
    /// The contents that are on the disk for sure.
    pub synced: Mutex<Synced>,
}

/// The result of a run.
pub struct Outcome {
    pub struck: bool,
    pub synced: Synced,
}

impl Machine {
    /// A tree of mounts whose root is the disk, which is unmounted when it is dropped.
    ///
    /// # Errors
    /// Those of mounting.
    pub fn mount(&self) -> abi::Result<Arc<Namespace>> {
        let how = MountRequest {
            source: b"/dev/vda",
            flags: MountFlags::RELATIVE_ACCESS_TIMES,
            ..MountRequest::plain("ext2")
        };
        let root = ext2::mount(&self.device, b"", false)?;
        Ok(Namespace::with_root(root, &how))
    }
}

/// Sleeps for a millisecond of the machine's.
pub fn pause() {
    let how = Sleep::within(Duration::from_millis(1));
    // Nothing wakes it but the time.
    let _ = task::sleep(how);
}

/// Waits until something is so; it is soon.
#[track_caller]
pub fn until(what: &str, so: impl Fn() -> bool) {
    for _ in 0..2000 {
        if so() {
            return;
        }
        task::reap();
        pause();
    }
    panic!("{what}");
}

/// Runs `body` on a machine with `content` on its disk, on which a fault strikes. All resources
/// must be freed at the end. Returns the contents of the disk then.
pub fn run(
    content: Vec<u8>,
    kind: Kind,
    place: u64,
    body: impl FnOnce(&Machine) + Send + 'static,
) -> (Vec<u8>, Outcome) {
    let result = Arc::new(Mutex::new(None));
    let config = Config {
        cpus: 1,
        seed: 1,
        daemons: true,
        max_points: u64::MAX,
        ..Config::default()
    };
    let slot = result.clone();
    let ran = sim::run(config, move || {
        page_cache::reset();
        page_cache::start().expect("there is memory for tasks");
        // With a pagedaemon, memory that is short on purpose would be waited for without end: there
        // is enough.
        let waits = kind != Kind::Shortage;
        if waits {
            vm::start_pagedaemon().expect("there is memory for a task");
        }
        let before = frame::usage();
        let disk = FaultyDisk::new(content, 1);
        let number = fs::device::number(block::VIRTIO_MAJOR, 0);
        let machine = Machine {
            device: Device::new("vda", number, disk.clone()).expect("there is memory"),
            faults: Faults::arm(kind, place, &disk),
            synced: Mutex::new(Vec::new()),
        };
        body(&machine);
        machine.faults.disarm();
        until("the file system is not unmounted", || {
            machine.device.holder().is_none()
        });
        // The last commands come at the end of that.
        let struck = machine.faults.struck();
        assert_eq!(swap::usage().total, 0, "a swap device is left");
        let synced = std::mem::take(&mut *machine.synced.lock().unwrap());
        drop(machine);
        let what_is_missing = || {
            let now = frame::usage();
            let frames = (now.data, now.page_tables) == (before.data, before.page_tables);
            let dirty = page_cache::dirty::counts() == (0, 0);
            (!frames)
                .then_some("frames")
                .or((!dirty).then_some("clean pages"))
        };
        until("something is missing", || what_is_missing().is_none());
        page_cache::stop();
        if waits {
            vm::stop_pagedaemon();
        }
        *slot.lock().unwrap() = Some((disk.content(), Outcome { struck, synced }));
    });
    if let Err(failure) = ran {
        panic!("{kind:?} at {place}: {failure}");
    }
    let value = result.lock().unwrap().take();
    value.expect("the body has ended")
}
