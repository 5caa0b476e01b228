//! Concurrent threads of one address space. Each owns a word in every page of a mapping, writes
//! increasing numbers and must always read its own last one, while others fork, unmap, discard and
//! move memory around it. A child must see each word as it was at one moment of the fork, and no
//! later change; the parent must see none of the child's writes.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use nucleus::{
    PAGE_SIZE, VirtAddr,
    pmap::{self, Fork},
    sim,
    sync::{Rank, SpinLock},
    task, user,
};
use support::{
    Disk, File, HERE, Numbers, Tasks, TestFile, Worker, file_at, map_zero, new_map, page, pages,
    pages_at, zero_at, zero_map,
};
use vm::{Advice, Map, MapRequest, Pager, Place};

const PAGES: usize = 41;
const ELSEWHERE: VirtAddr = VirtAddr(0x30_0000_0000);

fn read(at: VirtAddr) -> u64 {
    user::read::<u64>(at).expect("a mapped page")
}

/// The word of thread `thread` in page `i`.
fn word(i: usize, thread: usize) -> VirtAddr {
    page(i) + 8 * (thread * 16 + i % 16)
}

/// The word that only children write.
fn childs_word(i: usize) -> VirtAddr {
    page(i) + 2048
}

/// Words written so far, by page and thread.
type Last = Arc<Vec<AtomicU64>>;

/// Writes increasing numbers to every page and checks them.
fn own(thread: usize, threads: usize, rounds: u64, last: &Last) {
    for round in 1..=rounds {
        for i in 0..PAGES {
            // Each in a different order.
            let i = (i * (2 * thread + 1) + thread * 7) % PAGES;
            let at = word(i, thread);
            if round > 1 {
                assert_eq!(read(at), round - 1, "page {i}: a lost write");
            }
            user::write(at, &round).expect("a writable page");
            last[i * threads + thread].store(round, Ordering::SeqCst);
            assert_eq!(read(at), round, "page {i}: the write just made");
            let foreign = [[0xc5; 8], [0xc6; 8]].map(u64::from_le_bytes);
            let seen = read(childs_word(i));
            assert!(!foreign.contains(&seen), "page {i}: what a child wrote");
        }
    }
}

/// Makes children of a process whose threads keep writing.
fn forks(map: &Arc<Map>, children: usize, cpu: usize, threads: usize, last: &Last) {
    let noted = || -> Vec<u64> { last.iter().map(|n| n.load(Ordering::SeqCst)).collect() };
    for _ in 0..children {
        let low = noted();
        let child = map.fork().expect("fork");
        let high = noted();
        let worker = Worker::new(&child, cpu);
        let look = |i: usize, thread: usize| -> u64 {
            let bytes = worker.read(word(i, thread), 8).expect("inherited");
            u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
        };
        let mut seen = Vec::new();
        for i in 0..PAGES {
            if i % 2 == 0 {
                assert!(worker.write(childs_word(i), vec![0xc5; 16]));
            }
            for thread in 0..threads {
                let n = look(i, thread);
                // A write is recorded after it was made: the child may be one ahead of the record.
                let (low, high) = (low[i * threads + thread], high[i * threads + thread] + 1);
                assert!(
                    (low..=high).contains(&n),
                    "page {i}: {n} at a fork between {low} and {high}"
                );
                seen.push(n);
            }
            if i % 5 == 0 {
                assert!(worker.write(childs_word(i), vec![0xc6; 16]));
            }
        }
        for (n, &before) in seen.iter().enumerate() {
            let (i, thread) = (n / threads, n % threads);
            assert_eq!(look(i, thread), before, "page {i} of a child changed");
        }
        worker.end();
        child.tear_down();
    }
}

fn notes(threads: usize) -> Last {
    Arc::new((0..PAGES * threads).map(|_| AtomicU64::new(0)).collect())
}

fn writers_and_forks(cpus: usize) {
    let map = zero_map(pages(0, PAGES));
    let (last, tasks) = (notes(cpus), Tasks::new());
    for cpu in 0..cpus {
        let last = last.clone();
        tasks.spawn_in(&map, cpu, move |_| own(cpu, cpus, 8, &last));
    }
    let theirs = last.clone();
    tasks.spawn_in(&map, 0, move |map| forks(map, 4, cpus - 1, cpus, &theirs));
    tasks.wait_until(0);
    map.tear_down();
}

/// Maps and unmaps beside the pages in use, and discards and maps pages again.
fn churn(map: &Arc<Map>, seed: u64, stop: &AtomicBool) {
    let mut numbers = Numbers::new(seed);
    while !stop.load(Ordering::SeqCst) {
        let count = 1 + numbers.below(6);
        let range = pages_at(ELSEWHERE + numbers.below(8) * PAGE_SIZE, count);
        match numbers.below(5) {
            0 | 1 => {
                let request = MapRequest {
                    populate: numbers.chance(50),
                    ..zero_at(range)
                };
                map.map(request).expect("room");
                for va in range.pages() {
                    assert_eq!(read(va), 0, "a new page that is not zero");
                    user::write(va, &numbers.next()).expect("a writable page");
                }
            }
            2 => map.unmap(range).expect("unmap"),
            3 => {
                let _ = map.advise(range, Advice::DontNeed);
            }
            _ => {
                let _ = map
                    .remap(range, PAGE_SIZE, true, Place::Any, false)
                    .map(|to| {
                        map.unmap(pages_at(to, 1)).expect("unmap");
                    });
            }
        }
    }
}

fn writers_and_churn(cpus: usize, file: bool) {
    let seed = sim::random_u64();
    let map = new_map();
    match file {
        true => map_file(&map, HERE, &File::new(1, PAGES as u64), PAGES, false),
        false => map_zero(&map, pages(0, PAGES), false),
    }
    let (last, tasks) = (notes(cpus), Tasks::new());
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = stop.clone();
    tasks.spawn_in(&map, 0, move |map| churn(map, seed, &theirs));
    for cpu in 0..cpus {
        let last = last.clone();
        tasks.spawn_in(&map, cpu, move |_| own(cpu, cpus, 6, &last));
    }
    tasks.wait_until(1);
    stop.store(true, Ordering::SeqCst);
    tasks.wait_until(0);
    map.tear_down();
}

/// One thread passes each number on through shared memory: a reader of the newer flag must read the
/// newer page, whatever copies are made in between.
fn message(cpus: usize) {
    let map = zero_map(pages(0, PAGES));
    let turn = Arc::new(SpinLock::new(Rank::Leaf, 0usize));
    let tasks = Tasks::new();
    for cpu in 0..cpus {
        let turn = turn.clone();
        tasks.spawn_in(&map, cpu, move |map| {
            for _ in 0..12 {
                // Its turn comes: a write that all CPUs must see from now on.
                loop {
                    let now = *turn.lock();
                    if now % cpus == cpu {
                        break;
                    }
                    task::yield_now();
                }
                let now = *turn.lock();
                let at = page(now % 5);
                let seen = read(at);
                let expected = if now < 5 { 0 } else { now as u64 - 4 };
                assert_eq!(seen, expected, "a page that another CPU replaced");
                if now % 7 == 3 {
                    let child = map.fork().expect("fork");
                    child.tear_down();
                }
                user::write(at, &(now as u64 + 1)).expect("a writable page");
                *turn.lock() += 1;
            }
        });
    }
    tasks.wait_until(0);
    map.tear_down();
}

/// One thread writes a word and then a flag; a reader that sees the flag must see the word, while a
/// third thread writes the same page and forks replace the page under all of them. The writer
/// starts with an empty TLB each time, so that it may find a new page before the others have lost
/// the old one.
fn order(cpus: usize) {
    // Copies are made in pieces: a number with a carry into its second byte could be read half
    // written.
    const ONE_BYTE: u64 = 255;
    let map = zero_map(pages(0, PAGES));
    let other = new_map();
    let (said, tasks) = (Arc::new(AtomicU64::new(0)), Tasks::new());
    let theirs = said.clone();
    tasks.spawn_in(&map, 1, move |map| {
        for n in 1..=ONE_BYTE {
            task::set_pmap(Some(other.pmap().clone()));
            task::set_pmap(Some(map.pmap().clone()));
            user::write(page(0) + 8, &n).expect("a writable page");
            theirs.store(n, Ordering::SeqCst);
        }
    });
    let theirs = said.clone();
    tasks.spawn_in(&map, cpus - 1, move |_| {
        while theirs.load(Ordering::SeqCst) < ONE_BYTE {
            let heard = theirs.load(Ordering::SeqCst);
            let seen = read(page(0) + 8);
            assert!(seen >= heard, "read {seen} after {heard} was written");
        }
    });
    let theirs = said.clone();
    tasks.spawn_in(&map, 0, move |map| {
        let mut n = 0u64;
        while theirs.load(Ordering::SeqCst) < ONE_BYTE {
            n += 1;
            let child = map.fork().expect("fork");
            user::write(page(0) + 16, &n).expect("a writable page");
            child.tear_down();
            assert_eq!(read(page(0) + 16), n);
        }
    });
    tasks.wait_until(0);
    map.tear_down();
}

/// Two threads write one page, one of them through the kernel, which uses no TLB, while forks go
/// on. Neither may lose a write: the page must not be copied while the original can still be
/// written.
fn no_write_is_lost(cpus: usize) {
    let map = zero_map(pages(0, PAGES));
    let (done, tasks) = (Arc::new(AtomicBool::new(false)), Tasks::new());
    let theirs = done.clone();
    tasks.spawn_in(&map, 1, move |_| {
        let mut n = 0u64;
        while !theirs.load(Ordering::SeqCst) {
            assert_eq!(read(page(0) + 8), n, "a lost write");
            n += 1;
            user::write(page(0) + 8, &n).expect("a writable page");
        }
    });
    let theirs = done.clone();
    tasks.spawn_in(&map, cpus - 1, move |map| {
        let mut n = 0u64;
        while !theirs.load(Ordering::SeqCst) {
            let mut bytes = [0; 8];
            assert_eq!(map.read(page(0) + 16, &mut bytes), 8);
            assert_eq!(u64::from_le_bytes(bytes), n, "a lost write from outside");
            n += 1;
            assert_eq!(map.write(page(0) + 16, &n.to_le_bytes()), 8);
        }
    });
    tasks.spawn_in(&map, 0, move |map| {
        for _ in 0..40 {
            let child = map.fork().expect("fork");
            task::yield_now();
            child.tear_down();
        }
        done.store(true, Ordering::SeqCst);
    });
    tasks.wait_until(0);
    map.tear_down();
}

/// A child and its parent both write a page that they share at first. A third thread, of the
/// parent, must never see the child's writes.
fn isolation(cpus: usize) {
    let map = zero_map(pages(0, PAGES));
    let (done, tasks) = (Arc::new(AtomicBool::new(false)), Tasks::new());
    for cpu in 1..cpus {
        let theirs = done.clone();
        tasks.spawn_in(&map, cpu, move |_| {
            let mut n = 0u64;
            while !theirs.load(Ordering::SeqCst) {
                assert_eq!(read(childs_word(0)), 0, "what a child wrote");
                if cpu == 1 {
                    n += 1;
                    user::write(page(0), &n).expect("a writable page");
                }
            }
        });
    }
    tasks.spawn_in(&map, 0, move |map| {
        for _ in 0..25 {
            let child = map.fork().expect("fork");
            let worker = Worker::new(&child, 0);
            for n in 1..4 {
                assert!(worker.write(childs_word(0), vec![n; 8]));
                task::yield_now();
            }
            worker.end();
            child.tear_down();
        }
        done.store(true, Ordering::SeqCst);
    });
    tasks.wait_until(0);
    map.tear_down();
}

/// A file is truncated and extended while threads read it: after truncation no thread can read the
/// pages, and new ones are zero.
fn truncation(cpus: usize) {
    let map = new_map();
    let file = File::new(2, 6);
    map_file(&map, HERE, &file, 6, true);
    let (done, tasks) = (Arc::new(AtomicBool::new(false)), Tasks::new());
    for cpu in 1..cpus {
        let theirs = done.clone();
        tasks.spawn_in(&map, cpu, move |_| {
            let mut i = cpu;
            while !theirs.load(Ordering::SeqCst) {
                i = (i + 1) % 6;
                let _ = user::read::<u64>(page(i));
                let _ = user::write(page(i) + 8, &0u64);
            }
        });
    }
    tasks.spawn_in(&map, 0, move |_| {
        for _ in 0..30 {
            file.set_pages(0);
            for i in 0..12 {
                let read = user::read::<u64>(page(i % 6));
                assert!(read.is_err(), "page {} is beyond the end", i % 6);
            }
            file.set_pages(6);
            for i in 0..6 {
                assert_eq!(read(page(i)), 0, "page {i} of a file that was cut");
                user::write(page(i), &7u64).expect("a writable page");
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    tasks.wait_until(0);
    map.tear_down();
}

fn map_file(map: &Map, at: VirtAddr, file: &Arc<impl Pager + 'static>, count: usize, shared: bool) {
    let request = MapRequest {
        shared,
        ..file_at(pages_at(at, count), file.clone())
    };
    map.map(request).expect("room");
}

/// All CPUs read all pages of a file at the same time, in shared and private mappings: each page is
/// read once.
fn one_read(cpus: usize) {
    let disk = Disk::new(3, PAGES as u64, 0);
    let map = new_map();
    let tasks = Tasks::new();
    for cpu in 0..cpus {
        let at = ELSEWHERE + cpu * PAGES * PAGE_SIZE;
        map_file(&map, at, &disk, PAGES, cpu % 2 == 0);
        tasks.spawn_in(&map, cpu, move |_| {
            for i in 0..PAGES {
                let i = (i * (2 * cpu + 1)) % PAGES;
                let word = u64::from_le_bytes([File::byte(3, i as u64); 8]);
                if cpu % 2 == 1 {
                    user::write(at + i * PAGE_SIZE + 8, &1u64).expect("a page of one's own");
                }
                assert_eq!(read(at + i * PAGE_SIZE), word, "page {i}");
            }
        });
    }
    tasks.wait_until(0);
    assert_eq!(disk.pages_read.load(Ordering::SeqCst), PAGES);
    map.tear_down();
}

/// Reads fail now and then, pages are evicted, the file is truncated and grows, and mappings are
/// removed during reads: every successful read gives the right bytes, and no task waits forever.
fn failing_reads(cpus: usize) {
    let seed = sim::random_u64();
    let disk = Disk::new(4, 12, 30);
    let map = new_map();
    map_file(&map, HERE, &disk, 12, true);
    let (done, tasks) = (Arc::new(AtomicBool::new(false)), Tasks::new());
    for cpu in 1..cpus {
        let theirs = done.clone();
        tasks.spawn_in(&map, cpu, move |_| {
            let mut numbers = Numbers::new(seed + cpu as u64);
            let mut reads = 0;
            while !theirs.load(Ordering::SeqCst) || reads == 0 {
                let i = numbers.below(12);
                if let Ok(word) = user::read::<u64>(page(i)) {
                    // The file may be cut and grow between two parts of the copy.
                    let byte = File::byte(4, i as u64);
                    let mut bytes = word.to_le_bytes().into_iter();
                    let are_right = bytes.all(|it| it == byte || it == 0);
                    assert!(are_right, "page {i}: {word:#x}");
                    reads += 1;
                }
            }
        });
    }
    tasks.spawn_in(&map, 0, move |map| {
        let mut numbers = Numbers::new(seed);
        for _ in 0..60 {
            match numbers.below(4) {
                0 => disk.set_pages(numbers.below(13) as u64),
                1 => disk.page_out(),
                2 => disk.page_out_unused(),
                _ => {
                    map.unmap(pages(numbers.below(10), 2)).expect("unmap");
                    map_file(map, HERE, &disk, 12, true);
                }
            }
            task::yield_now();
        }
        disk.set_pages(12);
        done.store(true, Ordering::SeqCst);
    });
    tasks.wait_until(0);
    map.tear_down();
}

/// Each thread maps the file, increments its own word in a page and unmaps it, while pages are
/// written back and evicted all the time: no increment is lost on the way through the disk.
fn nothing_is_lost_on_disk(cpus: usize) {
    let seed = sim::random_u64();
    let disk = Disk::new(0, 6, 0);
    let map = new_map();
    let (left, tasks) = (Arc::new(AtomicUsize::new(cpus)), Tasks::new());
    for cpu in 0..cpus {
        let (disk, left) = (disk.clone(), left.clone());
        tasks.spawn_in(&map, cpu, move |map| {
            let mut numbers = Numbers::new(seed + cpu as u64);
            let at = ELSEWHERE + cpu * 6 * PAGE_SIZE;
            let mut counts = [None; 6];
            for _ in 0..25 {
                map_file(map, at, &disk, 6, true);
                for _ in 0..3 {
                    let i = numbers.below(6);
                    let word = at + i * PAGE_SIZE + 64 * cpu;
                    let seen = read(word);
                    assert_eq!(
                        seen,
                        *counts[i].get_or_insert(seen),
                        "page {i}: a lost write"
                    );
                    counts[i] = Some(seen + 1);
                    user::write(word, &(seen + 1)).expect("a writable page");
                }
                map.unmap(pages_at(at, 6)).expect("unmap");
            }
            left.fetch_sub(1, Ordering::SeqCst);
        });
    }
    let theirs = disk.clone();
    tasks.spawn_in(&map, cpus - 1, move |_| {
        while left.load(Ordering::SeqCst) > 0 {
            theirs.page_out_unused();
            task::yield_now();
        }
    });
    tasks.wait_until(0);
    map.tear_down();
}

/// A map is weighed while its threads map pages, in several page tables, and discard them: its
/// first page may come between two looks, and all of a table's may go.
fn weighing(cpus: usize) {
    /// Pages of a page table.
    const TABLE: usize = 512;
    let size = cpus * TABLE;
    let map = zero_map(pages(0, size));
    let tasks = Tasks::new();
    let stop = Arc::new(AtomicBool::new(false));
    for cpu in 1..cpus {
        let stop = stop.clone();
        tasks.spawn_in(&map, cpu, move |map| {
            while !stop.load(Ordering::SeqCst) {
                for table in 0..cpus {
                    user::write(page(table * TABLE + cpu), &1u64).expect("a writable page");
                }
                map.advise(pages(0, size), Advice::DontNeed)
                    .expect("a mapping");
            }
        });
    }
    tasks.spawn_in(&map, 0, move |map| {
        for round in 0..300 {
            assert!(map.own_pages(8, round) <= size);
        }
        stop.store(true, Ordering::SeqCst);
    });
    tasks.wait_until(0);
    map.tear_down();
}

fn run(name: &str, seeds: u64, body: impl Fn(usize) + Copy + Send + Sync + 'static) {
    for cpus in 2..=4 {
        support::check(name, 0..seeds, support::on_cpus(cpus), move || {
            let fork = [Fork::Share, Fork::Share, Fork::Copy][sim::random_u64() as usize % 3];
            pmap::set_fork(fork);
            vm::set_shared_tables([0, 0, 128][sim::random_u64() as usize % 3]);
            body(cpus);
        });
    }
}

#[test]
fn writes_survive_forks() {
    run("forks", 4, writers_and_forks);
}

#[test]
fn writes_survive_changes_beside_them() {
    run("beside", 3, |cpus| writers_and_churn(cpus, false));
}

#[test]
fn copies_of_a_file_survive_too() {
    run("file", 3, |cpus| writers_and_churn(cpus, true));
}

#[test]
fn a_replaced_page_is_seen_by_all_at_once() {
    run("message", 4, message);
}

#[test]
fn flagged_writes_are_visible() {
    run("order", 6, order);
}

#[test]
fn neither_of_two_writers_loses_a_write_to_a_fork() {
    run("lost", 4, no_write_is_lost);
}

#[test]
fn a_parent_never_sees_its_child_write() {
    run("isolation", 4, isolation);
}

#[test]
fn truncated_pages_are_out_of_reach() {
    run("truncation", 4, truncation);
}

#[test]
fn of_several_faults_on_a_page_one_reads() {
    run("one read", 4, one_read);
}

#[test]
fn reads_that_fail_leave_nothing_behind() {
    run("failing", 6, failing_reads);
}

#[test]
fn pages_come_back_from_the_disk_as_they_were() {
    run("disk", 4, nothing_is_lost_on_disk);
}

#[test]
fn a_map_may_grow_while_it_is_weighed() {
    run("weighing", 4, weighing);
}
