//! A process with an address space in the region, and nodes that it writes.

#![allow(dead_code)]

use std::sync::Arc;

use fbuf::region::{Domain, Mode, Path};
use nucleus::{PAGE_SIZE, VirtAddr, VirtRange, sync::OnceArc};
use vm::Map;

use super::support::new_map;

pub const CACHED: u32 = 0;
pub const UNCACHED: u32 = 1;
pub const SECURED: u32 = 2;

/// A process that has entered.
pub struct Process {
    pub map: Arc<Map>,
    pub domain: Arc<Domain>,
}

impl Process {
    pub fn new() -> Process {
        let map = new_map();
        let domain = Domain::enter(&map, 1, &OnceArc::new()).expect("room");
        Process { map, domain }
    }

    pub fn path(&self, bits: u32) -> (Arc<Path>, VirtAddr) {
        let mode = Mode::from_bits(bits).expect("a mode");
        let path = Path::new(&self.domain, mode, 1).expect("memory");
        let start = path.grow(&self.domain, 1).expect("memory").start;
        (path, start)
    }

    /// Writes a node; whether it may.
    pub fn set_node(&self, at: VirtAddr, words: [u64; 4]) -> bool {
        let bytes = words.map(u64::to_le_bytes);
        self.map.write(at, bytes.as_flattened()) == 32
    }

    pub fn set_leaf(&self, at: VirtAddr, data: VirtAddr, len: usize) {
        assert!(self.set_node(at, [1, len as u64, data.0 as u64, 0]));
    }

    /// Makes an aggregate of `count` separate pages at `start`, a page with nodes for each 50;
    /// returns where their bytes are.
    pub fn set_separate(&self, start: VirtAddr, count: usize) -> impl Iterator<Item = VirtAddr> {
        let data = move |i| start + (64 + 2 * i) * PAGE_SIZE;
        for i in 0..count {
            let at = start + i * 64;
            let next = if i + 1 < count { 64 } else { 32 };
            assert!(self.set_node(at, [2, 0, (at + 32).0 as u64, (at + next).0 as u64]));
            self.set_leaf(at + 32, data(i), 8);
        }
        (0..count).map(data)
    }

    pub fn leave(&self) {
        self.domain.end();
        self.map.tear_down();
    }
}

/// The addresses of pages from the one at `at` on.
pub fn pages(at: VirtAddr, first: usize, count: usize) -> VirtRange {
    let start = at + first * PAGE_SIZE;
    VirtRange::new(start, start + count * PAGE_SIZE)
}
