//! Fault-ahead: many pages for sequential access, none for other patterns.

mod support;

use std::sync::Arc;

use nucleus::{PAGE_SIZE, Prot, VirtAddr, VirtRange, counters::Counter, frame, sim::Config};
use support::Worker;
use vm::{Limits, Map, MapRequest, Place};

const HERE: VirtAddr = VirtAddr(0x10_0000_0000);
const PAGES: usize = 200;
const RW: Prot = Prot::READ.union(Prot::WRITE);

fn page(i: usize) -> VirtAddr {
    HERE + i * PAGE_SIZE
}

fn range(pages: usize) -> VirtRange {
    VirtRange::new(HERE, page(pages))
}

/// Returns an address space with zero-fill memory.
fn start() -> Arc<Map> {
    let map = Map::new(Limits::NONE, false).expect("memory");
    map.map(MapRequest {
        place: Place::Fixed(HERE),
        ..MapRequest::zero(PAGES * PAGE_SIZE, RW)
    })
    .expect("room");
    map
}

/// Writes these pages in this order.
fn write(worker: &Worker, pages: impl Iterator<Item = usize>, byte: u8) {
    for i in pages {
        assert!(worker.write(page(i), vec![byte; 8]), "page {i}");
    }
}

#[track_caller]
fn expect(worker: &Worker, byte: u8) {
    for i in 0..PAGES {
        assert_eq!(worker.read(page(i), 8), Some(vec![byte; 8]), "page {i}");
    }
}

/// Returns by how much `body` increases the sum of these counters.
fn counted(counters: &[Counter], body: impl FnOnce()) -> u64 {
    let sum = || counters.iter().map(|counter| counter.total()).sum::<u64>();
    let before = sum();
    body();
    sum() - before
}

/// Resolved faults on anonymous memory.
const FAULTS: [Counter; 4] = [
    Counter::fault_zero_fill,
    Counter::fault_copy,
    Counter::fault_in_place,
    Counter::fault_anon,
];

fn simulated(name: &str, body: impl Fn() + Copy + Send + Sync + 'static) {
    support::check(name, 0..2, Config::default(), move || {
        body();
    });
}

#[test]
fn memory_written_in_order_is_made_ahead() {
    simulated("made ahead", || {
        let map = start();
        let worker = Worker::new(&map, 0);
        let faults = counted(&FAULTS, || write(&worker, 0..PAGES, 1));
        assert!(faults < PAGES as u64 / 6, "{faults} faults");
        expect(&worker, 1);
        worker.end();
    });
}

#[test]
fn a_few_pages_and_scattered_ones_are_all_that_is_made() {
    simulated("few", || {
        let map = start();
        let worker = Worker::new(&map, 0);
        write(&worker, 0..8, 1);
        assert_eq!(map.sizes().resident, 8);
        write(&worker, (20..PAGES).step_by(2), 1);
        assert_eq!(map.sizes().resident, 8 + (PAGES - 20) / 2);
        worker.end();
    });
}

#[test]
fn a_child_that_writes_in_order_gets_copies_ahead_and_leaves_the_parents_alone() {
    simulated("child", || {
        let map = start();
        let worker = Worker::new(&map, 0);
        write(&worker, 0..PAGES, 1);
        let child = map.fork().expect("a child");
        let childs = Worker::new(&child, 0);
        let faults = counted(&FAULTS, || write(&childs, 0..PAGES, 2));
        assert!(faults < PAGES as u64 / 3, "{faults} faults");
        expect(&worker, 1);
        expect(&childs, 2);
        childs.end();
        drop(child);
        // The parent's pages are sole again, which it learns once a window.
        let faults = counted(&FAULTS, || write(&worker, 0..PAGES, 3));
        assert!(faults < PAGES as u64 / 6, "{faults} faults");
        expect(&worker, 3);
        worker.end();
    });
}

#[test]
fn the_right_to_write_that_is_given_back_costs_no_fault() {
    simulated("given back", || {
        let map = start();
        let worker = Worker::new(&map, 0);
        write(&worker, 0..PAGES, 1);
        map.protect(range(PAGES), Prot::READ).expect("mapped");
        assert!(!worker.write(HERE, vec![9; 8]), "it is read-only");
        map.protect(range(PAGES), RW).expect("mapped");
        let faults = counted(&FAULTS, || write(&worker, 0..PAGES, 2));
        assert_eq!(faults, 0);
        // But not while a child refers to the pages.
        let child = map.fork().expect("a child");
        map.protect(range(PAGES), Prot::READ).expect("mapped");
        map.protect(range(PAGES), RW).expect("mapped");
        write(&worker, 0..PAGES, 3);
        let childs = Worker::new(&child, 0);
        expect(&childs, 2);
        childs.end();
        worker.end();
    });
}

#[test]
fn clipped_ends_keep_their_pages() {
    simulated("cut", || {
        let map = start();
        let worker = Worker::new(&map, 0);
        write(&worker, 0..PAGES, 1);
        // One entry is split in three and joined again, with boundaries inside chunks.
        for (from, to) in [
            (0, 70),
            (0, 5),
            (PAGES - 7, PAGES),
            (33, 41),
            (3, PAGES - 3),
        ] {
            let part = VirtRange::new(page(from), page(to));
            map.protect(part, Prot::READ).expect("mapped");
            expect(&worker, 1);
            map.protect(part, RW).expect("mapped");
            expect(&worker, 1);
        }
        let used = frame::usage().data;
        map.unmap(VirtRange::new(page(0), page(40)))
            .expect("mapped");
        map.unmap(VirtRange::new(page(PAGES - 40), page(PAGES)))
            .expect("mapped");
        assert_eq!(frame::usage().data, used - 80, "what was cut off is free");
        assert_eq!(worker.read(page(39), 1), None);
        assert_eq!(worker.read(page(PAGES - 40), 1), None);
        for i in 40..PAGES - 40 {
            assert_eq!(worker.read(page(i), 8), Some(vec![1; 8]), "page {i}");
        }
        assert_eq!(map.sizes().resident, PAGES - 80);
        worker.end();
    });
}
