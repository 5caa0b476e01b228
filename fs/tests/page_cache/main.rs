//! The pages of files on a disk, on the simulated machine: contents against a plain model, several tasks at once, errors of the disk, read-ahead,
//! dirty pages, and files that nobody uses.

mod ahead;
mod disk;
mod errors;
mod model;
mod order;
mod pressure;
mod shared;
#[path = "../support/mod.rs"]
mod support;
mod table;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use fs::page_cache;
use nucleus::{
    Access, Prot, VirtAddr,
    sim::{self, Config},
    task::{self, Sleep, Spawn, WaitQueue},
    user,
};
use vm::{Backing, Fault, Limits, Map, MapRequest, Pager};

/// An address space, in which faults of the tasks are resolved that it is attached to.
struct Space(Arc<Map>);

fn resolve(addr: VirtAddr, access: Access) -> bool {
    task::with_attachment(|attached| {
        let space = attached.and_then(|map| map.downcast_ref::<Space>());
        space.is_some_and(|space| fault(&space.0, addr, access).is_ok())
    })
}

/// A fault for which clean pages of files are given up when there is no memory.
fn fault(map: &Map, addr: VirtAddr, access: Access) -> Result<(), Fault> {
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

/// Runs `body` on a machine of `frames` frames with the flusher, for each of `usual` seeds, or for as many as `SEEDS` says. Every frame that
/// held data must be free again at the end.
fn on_machines(usual: u64, cpus: usize, frames: usize, body: impl Fn(u64) + Copy + Send + 'static) {
    let wanted = std::env::var("SEEDS").ok().and_then(|n| n.parse().ok());
    let first = std::env::var("SEED").ok().and_then(|n| n.parse().ok());
    let seeds = match first {
        Some(first) => first..=first,
        None => 1..=wanted.unwrap_or(usual),
    };
    for seed in seeds {
        let config = Config {
            cpus,
            seed,
            pages: frames,
            max_points: 20_000_000,
            daemons: false,
        };
        let ran = sim::run(config, move || {
            page_cache::reset();
            page_cache::start().unwrap();
            user::set_fault_hook(resolve);
            let before = nucleus::frame::usage().data;
            body(seed);
            page_cache::stop();
            // What the disk's task still holds goes when its device has; frames that don't come back are a run without an end.
            while nucleus::frame::usage().data != before {
                task::yield_now();
            }
            assert_eq!(page_cache::dirty::counts(), (0, 0), "dirty pages of nobody");
        });
        if let Err(failure) = ran {
            panic!("{failure}");
        }
    }
}

/// Runs `body` in `count` tasks of one address space, and waits for all.
fn in_tasks(count: usize, body: impl Fn(&Arc<Map>, usize) + Send + Sync + 'static) {
    let map = Map::new(Limits::NONE, true).unwrap();
    let body = Arc::new(body);
    let left = Arc::new((AtomicUsize::new(count), WaitQueue::new()));
    for i in 0..count {
        let (inner, body, left) = (map.clone(), body.clone(), left.clone());
        let spawn = Spawn {
            name: "program",
            pmap: Some(map.pmap().clone()),
            attachment: Some(Arc::new(Space(map.clone()))),
            cpus: u64::MAX,
            priority: Default::default(),
        };
        let run = move || {
            body(&inner, i);
            drop((body, inner));
            task::set_pmap(None);
            left.0.fetch_sub(1, Ordering::SeqCst);
            left.1.wake_all();
        };
        drop(task::spawn(spawn, Box::new(run)).unwrap());
    }
    drop(body);
    let over = || (left.0.load(Ordering::SeqCst) == 0).then_some(());
    assert!(left.1.wait(Sleep::SOUND, over).is_ok());
    map.tear_down();
}

/// Maps `len` bytes of a file.
fn map_file(map: &Map, pager: Arc<dyn Pager>, len: usize, shared: bool) -> VirtAddr {
    let request = MapRequest {
        backing: Backing::Object { pager, offset: 0 },
        shared,
        ..MapRequest::zero(len, Prot::READ | Prot::WRITE)
    };
    map.map(request).unwrap()
}
