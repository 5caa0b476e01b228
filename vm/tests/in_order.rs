//! Fault-ahead: many pages for sequential access, none for other patterns.

mod support;

use nucleus::{Prot, frame, sim::Config};
use support::{HERE, RW, Worker, page, pages, zero_map};
use vm::Map;
use vm::counters::Counter;

const PAGES: usize = 200;

/// Writes these pages in this order.
fn write(worker: &Worker, which: impl Iterator<Item = usize>, byte: u8) {
    for i in which {
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

/// Runs `body` with zero-fill memory and a worker in it.
fn simulated(name: &str, body: impl Fn(&Map, &Worker) + Copy + Send + Sync + 'static) {
    support::check(name, 0..2, Config::default(), move || {
        let map = zero_map(pages(0, PAGES));
        let worker = Worker::new(&map, 0);
        body(&map, &worker);
        worker.end();
    });
}

#[test]
fn memory_written_in_order_is_made_ahead() {
    simulated("made ahead", |_, worker| {
        let faults = counted(&FAULTS, || write(worker, 0..PAGES, 1));
        assert!(faults < PAGES as u64 / 6, "{faults} faults");
        expect(worker, 1);
    });
}

#[test]
fn a_few_pages_and_scattered_ones_are_all_that_is_made() {
    simulated("few", |map, worker| {
        write(worker, 0..8, 1);
        assert_eq!(map.sizes().resident, 8);
        write(worker, (20..PAGES).step_by(2), 1);
        assert_eq!(map.sizes().resident, 8 + (PAGES - 20) / 2);
    });
}

#[test]
fn a_child_that_writes_in_order_gets_copies_ahead_and_leaves_the_parents_alone() {
    simulated("child", |map, worker| {
        write(worker, 0..PAGES, 1);
        let child = map.fork().expect("a child");
        let childs = Worker::new(&child, 0);
        let faults = counted(&FAULTS, || write(&childs, 0..PAGES, 2));
        assert!(faults < PAGES as u64 / 3, "{faults} faults");
        expect(worker, 1);
        expect(&childs, 2);
        childs.end();
        drop(child);
        // The parent's pages are sole again, which it learns once a window.
        let faults = counted(&FAULTS, || write(worker, 0..PAGES, 3));
        assert!(faults < PAGES as u64 / 6, "{faults} faults");
        expect(worker, 3);
    });
}

#[test]
fn the_right_to_write_that_is_given_back_costs_no_fault() {
    simulated("given back", |map, worker| {
        write(worker, 0..PAGES, 1);
        map.protect(pages(0, PAGES), Prot::READ).expect("mapped");
        assert!(!worker.write(HERE, vec![9; 8]), "it is read-only");
        map.protect(pages(0, PAGES), RW).expect("mapped");
        let faults = counted(&FAULTS, || write(worker, 0..PAGES, 2));
        assert_eq!(faults, 0);
        // But not while a child refers to the pages.
        let child = map.fork().expect("a child");
        map.protect(pages(0, PAGES), Prot::READ).expect("mapped");
        map.protect(pages(0, PAGES), RW).expect("mapped");
        write(worker, 0..PAGES, 3);
        let childs = Worker::new(&child, 0);
        expect(&childs, 2);
        childs.end();
    });
}

#[test]
fn clipped_ends_keep_their_pages() {
    simulated("cut", |map, worker| {
        write(worker, 0..PAGES, 1);
        // One entry is split in three and joined again, with boundaries inside chunks.
        for (from, to) in [
            (0, 70),
            (0, 5),
            (PAGES - 7, PAGES),
            (33, 41),
            (3, PAGES - 3),
        ] {
            let part = pages(from, to - from);
            map.protect(part, Prot::READ).expect("mapped");
            expect(worker, 1);
            map.protect(part, RW).expect("mapped");
            expect(worker, 1);
        }
        let used = frame::usage().data;
        map.unmap(pages(0, 40)).expect("mapped");
        map.unmap(pages(PAGES - 40, 40)).expect("mapped");
        assert_eq!(frame::usage().data, used - 80, "what was cut off is free");
        assert_eq!(worker.read(page(39), 1), None);
        assert_eq!(worker.read(page(PAGES - 40), 1), None);
        for i in 40..PAGES - 40 {
            assert_eq!(worker.read(page(i), 8), Some(vec![1; 8]), "page {i}");
        }
        assert_eq!(map.sizes().resident, PAGES - 80);
    });
}
