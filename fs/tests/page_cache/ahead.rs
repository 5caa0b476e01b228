//! Readahead.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use fs::counters::Counter;
use fs::page_cache::{Access, Cached};
use nucleus::{Access as Kind, PAGE_SIZE};
use vm::{Advice, Pager};

use crate::{
    disk, in_space, map_file, on_machines,
    support::{Random, fault, pause},
};

const PAGES: usize = 512;

/// A file of so many pages, none in memory.
fn written(seed: u64) -> std::sync::Arc<disk::Inode> {
    let (disk, inode) = disk::inode(PAGES, seed);
    let file = disk::open(&inode);
    disk::write(&file, 0, &vec![3; PAGES * PAGE_SIZE]);
    file.sync(0..u64::MAX, false).unwrap();
    // Reads take a while.
    disk.set_delays(true);
    inode
}

fn read(file: &disk::Pages, page: u64) {
    let bytes = disk::read(file, page * PAGE_SIZE as u64, PAGE_SIZE);
    assert!(bytes == [3; PAGE_SIZE]);
}

#[test]
fn a_reader_in_order_waits_once_and_reads_in_few_requests() {
    // Windows of 4, 8, 16, ... 128, 128, 128 pages.
    for (pages_at_a_time, most) in [(1, 10), (16, 8)] {
        static STEP: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        STEP.store(pages_at_a_time * PAGE_SIZE, SeqCst);
        MOST.store(most, SeqCst);
        on_machines(4, 2, 4096, |seed| {
            let inode = written(seed);
            let file = disk::open(&inode);
            let before = Counter::file_read_ahead_hits.total();
            let step = STEP.load(SeqCst);
            for at in (0..PAGES * PAGE_SIZE).step_by(step) {
                assert!(disk::read(&file, at as u64, step) == vec![3; step]);
            }
            let hits = Counter::file_read_ahead_hits.total() - before;
            assert!(hits <= PAGES as u64, "{hits} pages of windows were used");
            let reads = inode.reads.load(SeqCst);
            assert!(reads <= MOST.load(SeqCst), "{reads} requests");
            assert_eq!(inode.pages_read.load(SeqCst), PAGES, "no page twice");
        });
    }
}

#[test]
fn several_readers_in_order_each_have_their_window() {
    on_machines(4, 2, 4096, |seed| {
        let inode = written(seed);
        let file = disk::open(&inode);
        for step in 0..PAGES as u64 / 4 {
            for reader in 0..4 {
                read(&file, reader * PAGES as u64 / 4 + step);
            }
        }
        let reads = inode.reads.load(SeqCst);
        assert!(reads <= 44, "{reads} requests");
        assert_eq!(inode.pages_read.load(SeqCst), PAGES, "no page twice");
    });
}

#[test]
fn a_random_reader_gets_what_is_wanted_and_no_more() {
    on_machines(4, 2, 4096, |seed| {
        let inode = written(seed);
        let file = disk::open(&inode);
        let mut random = Random::new(seed);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            // No two in a row.
            let page = 2 + 5 * random.below(PAGES / 5 - 1) as u64;
            read(&file, page);
            seen.insert(page);
        }
        assert_eq!(inode.pages_read.load(SeqCst), seen.len());
        // And so does one that says so, even in a row.
        file.set_access(Access::Random);
        let before = inode.pages_read.load(SeqCst);
        let row: Vec<u64> = (0..20).filter(|page| !seen.contains(page)).collect();
        row.iter().for_each(|&page| read(&file, page));
        assert_eq!(inode.pages_read.load(SeqCst) - before, row.len());
    });
}

#[test]
fn what_is_prefetched_is_there_without_another_request() {
    on_machines(2, 2, 4096, |seed| {
        let inode = written(seed);
        let file = disk::open(&inode);
        // Up to the end: a reader in order makes the file read ahead what is behind.
        let pages = PAGES as u64 - 100..PAGES as u64;
        file.prefetch(pages.clone());
        assert_eq!(inode.reads.load(SeqCst), 1);
        for page in pages.clone() {
            read(&file, page);
        }
        assert_eq!(inode.reads.load(SeqCst), 1);
        assert_eq!(file.counts().resident, 100);
        let half = pages.start..pages.start + 50;
        assert_eq!(file.give_up(half, usize::MAX), 50);
        assert_eq!(file.counts().resident, 50);
    });
}

#[test]
fn a_call_reads_a_bounded_part_of_a_long_file_ahead() {
    on_machines(2, 2, 1 << 14, |seed| {
        const LONG: usize = 1 << 18;
        let (_, inode) = disk::inode(LONG, seed);
        let file = disk::open(&inode);
        file.truncate((LONG * PAGE_SIZE) as u64).unwrap();
        file.prefetch(0..u64::MAX);
        let read = inode.pages_read.load(SeqCst);
        assert!((1000..=8192).contains(&read), "{read} pages");
    });
}

/// Pages that a fault reads around its own.
const CLUSTER: usize = 32;

#[test]
fn a_mapping_is_read_ahead_of_a_program_that_goes_through_it() {
    on_machines(6, 2, 4096, |seed| {
        let inode = written(seed);
        let file = disk::open(&inode);
        in_space(1, move |map, _| {
            let at = map_file(map, file.clone(), PAGES * PAGE_SIZE, false);
            let faults = vm::counters::Counter::fault_read_in.total();
            fault(map, at, Kind::Read).unwrap();
            // The following window is on its way; the disk may have answered meanwhile.
            assert_eq!(inode.pages_read.load(SeqCst), 3 * CLUSTER);
            assert!([CLUSTER, 3 * CLUSTER].contains(&file.counts().resident));
            for page in 1..PAGES {
                // The program does something with each page.
                pause(Duration::from_millis(1));
                fault(map, at + page * PAGE_SIZE, Kind::Read).unwrap();
            }
            let faults = vm::counters::Counter::fault_read_in.total() - faults;
            assert_eq!(faults, 1, "it waited for its first page only");
            // Windows of 32, 64, 128, 128, 128 and the rest.
            assert!(inode.reads.load(SeqCst) <= 6);
            assert_eq!(inode.pages_read.load(SeqCst), PAGES, "no page twice");
        });
    });
}

#[test]
fn a_mapping_that_is_used_here_and_there_is_not_read_ahead() {
    on_machines(6, 2, 4096, |seed| {
        let inode = written(seed);
        let file = disk::open(&inode);
        in_space(1, move |map, _| {
            let at = map_file(map, file.clone(), PAGES * PAGE_SIZE, false);
            for cluster in [5, 1, 13, 9] {
                let page = cluster * CLUSTER + CLUSTER / 4;
                fault(map, at + page * PAGE_SIZE, Kind::Read).unwrap();
            }
            assert_eq!(inode.pages_read.load(SeqCst), 4 * CLUSTER);
            // With this advice not even in order.
            let all = nucleus::VirtRange::new(at, at + PAGES * PAGE_SIZE);
            map.advise(all, Advice::Random).unwrap();
            for page in 0..CLUSTER {
                fault(map, at + page * PAGE_SIZE, Kind::Read).unwrap();
            }
            assert_eq!(inode.pages_read.load(SeqCst), 5 * CLUSTER);
        });
    });
}
