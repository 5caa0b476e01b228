//! The pages of files on the simulated machine: contents on every backing store against a plain
//! model, several tasks at once, errors of the disk, readahead, dirty pages, and unused files.

mod ahead;
mod disk;
mod errors;
mod in_place;
mod model;
mod order;
mod pressure;
#[path = "../ninep/server.rs"]
mod server;
mod shared;
mod stores;
#[path = "../support/mod.rs"]
mod support;
mod table;
#[path = "../ninep/wire.rs"]
mod wire;

use std::sync::Arc;

use nucleus::{PAGE_SIZE, Prot, VirtAddr, VirtRange, sim::Config};
use support::{fault, in_space};
use vm::{Backing, Map, MapRequest, Pager};

/// Runs `body` on a machine of `frames` frames with the page cache's tasks, for each seed.
fn on_machines(usual: u64, cpus: usize, frames: usize, body: impl Fn(u64) + Copy + Send + 'static) {
    let config = Config {
        cpus,
        pages: frames,
        ..Config::default()
    };
    support::with_page_cache(usual, config, body);
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

/// Calls `f` with a shared mapping of the first `pages` pages of a file.
fn with_window<R>(
    map: &Map,
    pager: Arc<dyn Pager>,
    pages: usize,
    f: impl FnOnce(VirtAddr) -> R,
) -> R {
    let window = map_file(map, pager, pages * PAGE_SIZE, true);
    let result = f(window);
    map.unmap(VirtRange::new(window, window + pages * PAGE_SIZE))
        .unwrap();
    result
}
