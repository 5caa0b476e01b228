//! What the tests of this crate share, unit tests included.
#![allow(dead_code, missing_docs)]

pub mod image;

use std::{
    any::Any,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use abi::raw::general::{O_CREAT, O_RDWR, RENAME_EXCHANGE};
use fbuf::BytesSource;
use fs::{Credentials, Kind, Namespace, OpenFlags, Vnode, Walk, page_cache, vnode::Make};
use nucleus::{
    Access, VirtAddr, frame,
    sim::{self, Config, random_u64},
    task::{self, Sleep, Spawn, WaitQueue},
    user,
};
use vm::{Fault, Limits, Map};

/// Flags that open a file for reading and writing, and make it.
pub const FLAGS: OpenFlags = OpenFlags::from_bits_retain(O_RDWR | O_CREAT);

/// A generator of numbers from a seed (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) % n as u64) as usize
    }

    /// Any bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill_with(|| self.next() as u8);
    }

    /// Exactly `len` bytes.
    pub fn some(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }

    /// Up to `max` bytes.
    pub fn bytes(&mut self, max: usize) -> Vec<u8> {
        let len = self.below(max + 1);
        self.some(len)
    }
}

/// A number below `n` from the simulated machine's own seed.
pub fn below(n: usize) -> usize {
    (random_u64() >> 16) as usize % n
}

fn on_each(usual: u64, config: Config, body: impl Fn(u64) + Copy + Send + 'static) {
    for seed in sim::seeds(1..usual + 1) {
        if let Err(failure) = sim::run(Config { seed, ..config }, move || body(seed)) {
            panic!("seed {seed}: {failure}");
        }
    }
}

/// Runs `body` on a simulated machine for each of the [`seeds`](sim::seeds). Every frame that held
/// data must be free again at the end.
pub fn on_machines(usual: u64, cpus: usize, body: impl Fn(u64) + Copy + Send + 'static) {
    let config = Config {
        cpus,
        ..Config::default()
    };
    on_each(usual, config, move |seed| {
        let before = frame::usage().data;
        body(seed);
        nucleus::dma::settle();
        assert_eq!(frame::usage().data, before, "frames that did not come back");
    });
}

/// As [`on_machines`], with the tasks of the page cache.
pub fn with_page_cache(usual: u64, config: Config, body: impl Fn(u64) + Copy + Send + 'static) {
    on_each(usual, config, move |seed| {
        page_cache::reset();
        page_cache::start().unwrap();
        let before = frame::usage().data;
        body(seed);
        page_cache::stop();
        wait_for_frames(before);
        assert_eq!(
            page_cache::dirty::counts(),
            (0, 0),
            "dirty pages of no file"
        );
    });
}

/// Waits until `data` frames hold data. Frames that a disk's task still holds are freed after its
/// device; frames that never are make a run without an end.
pub fn wait_for_frames(data: usize) {
    while frame::usage().data != data {
        task::yield_now();
    }
}

/// Sleeps for some simulated time.
pub fn pause(time: Duration) {
    task::sleep(Sleep::within(time));
}

/// An address space, in which faults of the tasks are resolved that it is attached to.
struct Space(Arc<Map>);

fn resolve(addr: VirtAddr, access: Access) -> bool {
    task::with_attachment(|attached| {
        let space = attached.and_then(|map| map.downcast_ref::<Space>());
        space.is_some_and(|space| fault(&space.0, addr, access).is_ok())
    })
}

/// A fault for which clean pages of files are evicted when there is no memory.
pub fn fault(map: &Map, addr: VirtAddr, access: Access) -> Result<(), Fault> {
    loop {
        match map.fault(addr, access) {
            Err(Fault::OutOfMemory) => {
                if page_cache::reclaim(32) == 0 {
                    task::yield_now();
                }
            }
            other => return other,
        }
    }
}

/// Has the address space of a task found by what moves or pins a program's pages, as the kernel
/// does.
pub fn find_address_spaces() {
    vm::set_current_map(|f| {
        task::with_attachment(|attached| {
            if let Some(space) = attached.and_then(|map| map.downcast_ref::<Space>()) {
                f(&space.0);
            }
        });
    });
}

/// Running tasks, and the wait for them.
#[derive(Default)]
pub struct Tasks {
    running: AtomicUsize,
    ended: WaitQueue,
}

impl Tasks {
    /// Runs `body` in a new task.
    pub fn begin(self: &Arc<Tasks>, body: impl FnOnce() + Send + 'static) {
        self.begin_as(None, None, body);
    }

    fn begin_as(
        self: &Arc<Tasks>,
        map: Option<&Map>,
        attachment: Option<Arc<dyn Any + Send + Sync>>,
        body: impl FnOnce() + Send + 'static,
    ) {
        self.running.fetch_add(1, SeqCst);
        let tasks = self.clone();
        let spawn = Spawn {
            name: "test",
            pmap: map.map(|map| map.pmap().clone()),
            attachment,
            cpus: u64::MAX,
            priority: Default::default(),
        };
        let run = move || {
            body();
            task::set_pmap(None);
            tasks.running.fetch_sub(1, SeqCst);
            tasks.ended.wake_all();
        };
        drop(task::spawn(spawn, Box::new(run)).unwrap());
    }

    pub fn are_running(&self) -> bool {
        self.running.load(SeqCst) > 0
    }

    /// Waits until all have ended.
    pub fn wait(&self) {
        let none = || (!self.are_running()).then_some(());
        assert!(self.ended.wait(Sleep::SOUND, none).is_ok());
    }
}

/// Runs `body` in `count` tasks and waits for all.
pub fn in_tasks(count: usize, body: impl Fn(usize) + Send + Sync + 'static) {
    let (tasks, body) = (Arc::new(Tasks::default()), Arc::new(body));
    for i in 0..count {
        let body = body.clone();
        tasks.begin(move || body(i));
    }
    drop(body);
    tasks.wait();
}

/// Runs `body` in `count` tasks of one address space, and waits for all.
pub fn in_space(count: usize, body: impl Fn(&Arc<Map>, usize) + Send + Sync + 'static) {
    user::set_fault_hook(resolve);
    let map = Map::new(Limits::NONE, vm::Randomness::Nothing).unwrap();
    let (tasks, body) = (Arc::new(Tasks::default()), Arc::new(body));
    for i in 0..count {
        let (inner, body) = (map.clone(), body.clone());
        let space = Arc::new(Space(map.clone()));
        tasks.begin_as(Some(&map), Some(space), move || {
            body(&inner, i);
            drop((body, inner));
        });
    }
    drop(body);
    tasks.wait();
    map.tear_down();
}

/// Returns what `body` returns in a task with this attachment.
pub fn attached<R: Send + 'static>(
    attachment: Arc<dyn Any + Send + Sync>,
    body: impl FnOnce() -> R + Send + 'static,
) -> R {
    let (tasks, result) = (Arc::new(Tasks::default()), Arc::new(Mutex::new(None)));
    let slot = result.clone();
    tasks.begin_as(None, Some(attachment), move || {
        let value = body();
        *slot.lock().unwrap() = Some(value);
    });
    tasks.wait();
    let value = result.lock().unwrap().take();
    value.expect("the task has ended")
}

/// Calls `f` with walks of root from the namespace's root.
pub fn with_walk<R>(namespace: &Namespace, f: impl FnOnce(&Walk<'_>) -> R) -> R {
    let root = namespace.root();
    let who = Credentials::default();
    f(&Walk {
        root: &root,
        start: &root,
        who: &who,
    })
}

/// A path of one to three names in a small tree.
pub fn some_path(random: &mut Random) -> Vec<u8> {
    let mut path = Vec::new();
    for _ in 0..1 + random.below(3) {
        path.extend_from_slice(match random.below(10) {
            0 => b"/..",
            n => [b"/a", b"/b", b"/c"][n % 3],
        });
    }
    path
}

/// Does something to a small tree. Any error will do where other tasks are at work.
pub fn change_tree(random: &mut Random, walk: &Walk<'_>) -> abi::Result<()> {
    let (a, b) = (some_path(random), some_path(random));
    match random.below(9) {
        0 | 1 => walk.make(&a, Make::Directory, 0o755).map(drop),
        2 => {
            let file = walk.open(&a, FLAGS, 0o644)?;
            let data = random.bytes(5000);
            file.write(Some(0), FLAGS, &mut BytesSource::new(&data))?;
            match random.below(5) {
                0 => file.sync(false),
                _ => Ok(()),
            }
        }
        3 => walk.remove(&a, random.below(2) == 0),
        4 | 5 => walk.rename(&a, walk, &b, 0),
        6 => walk.rename(&a, walk, &b, RENAME_EXCHANGE),
        7 => walk.link(&walk.resolve(&a, random.below(2) == 0)?, &b),
        _ => {
            let place = walk.resolve(&a, true)?;
            assert!(!place.path(walk.root).is_empty());
            match place.vnode().kind() {
                Kind::Directory => names(place.vnode()).map(drop),
                _ => Ok(()),
            }
        }
    }
}

/// Returns the entries of a directory; `EIO` unless each cursor is larger than the one before.
pub fn names(directory: &Arc<dyn Vnode>) -> abi::Result<Vec<(Vec<u8>, Kind)>> {
    let (mut names, mut last, mut in_order) = (Vec::new(), 0, true);
    directory.list(0, &mut |name, _, kind, cursor| {
        in_order &= cursor > last;
        last = cursor;
        names.push((name.to_vec(), kind));
        in_order
    })?;
    match in_order {
        true => Ok(names),
        false => Err(abi::Errno::EIO),
    }
}
