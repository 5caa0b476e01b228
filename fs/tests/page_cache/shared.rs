//! Several tasks in one file, each in stripes of its own, which share pages.

use std::sync::{Arc, Mutex};

use abi::{Errno, raw::general::F_SEAL_WRITE};
use fbuf::{Aggregate, AggregateSink, AggregateSource, BytesSource};
use fs::{
    Credentials,
    page_cache::{self, Cached, dirty},
    ramfs::{self, Options},
};
use nucleus::{Access, PAGE_SIZE, VirtRange, user};

use crate::{disk, in_space, map_file, on_machines, support::Random, with_window};

/// Bytes of a stripe; no divisor of a page.
const STRIPE: usize = 3001;
const STRIPES: usize = 48;
const TASKS: usize = 3;

#[test]
fn tasks_that_share_pages_lose_nothing() {
    on_machines(12, 3, 1024, |seed| {
        let (disk, inode) = disk::inode(STRIPE * STRIPES / PAGE_SIZE + 1, seed);
        disk.set_delays(seed % 2 == 0);
        dirty::EXPIRE.set(0);
        dirty::INTERVAL.set(1);
        let file = disk::open(&inode);
        file.truncate((STRIPE * STRIPES) as u64).unwrap();
        // Half of the files have holes: then the disk can be looked at only when no page gets a
        // block any more, whose old bytes are there until the page is.
        let has_holes = seed % 4 < 2;
        if !has_holes {
            let zeros = vec![0; STRIPE * STRIPES];
            disk::write(&file, 0, &zeros);
            file.sync(0..u64::MAX, false).unwrap();
        }
        let inner = file.clone();
        let all = Arc::new(Mutex::new(vec![Vec::new(); TASKS]));
        let ended = all.clone();
        in_space(TASKS, move |map, task| {
            let len = (STRIPE * STRIPES).next_multiple_of(PAGE_SIZE);
            let window = map_file(map, inner.clone(), len, true);
            let mut random = Random::new(seed * 10 + task as u64);
            let mut mine = vec![vec![0u8; STRIPE]; STRIPES / TASKS];
            for _ in 0..150 {
                let number = random.below(mine.len());
                let at = (number * TASKS + task) * STRIPE;
                let from = random.below(STRIPE);
                let part = from..from + random.below(STRIPE - from + 1);
                match random.below(10) {
                    0..=2 => {
                        random.fill(&mut mine[number][part.clone()]);
                        disk::write(&inner, (at + from) as u64, &mine[number][part]);
                    }
                    3..=5 => {
                        random.fill(&mut mine[number][part.clone()]);
                        user::copy_out(window + (at + from), &mine[number][part]).unwrap();
                    }
                    6 => {
                        let mut got = vec![0; part.len()];
                        user::copy_in(&mut got, window + (at + from)).unwrap();
                        assert!(got == mine[number][part], "through the mapping");
                    }
                    7 => {
                        let got = disk::read(&inner, (at + from) as u64, part.len());
                        assert!(got == mine[number][part], "by a read");
                    }
                    8 => match random.below(3) {
                        0 => inner.sync(0..u64::MAX, false).unwrap(),
                        1 => inner.write_out(0..u64::MAX, true).unwrap(),
                        _ => drop(page_cache::reclaim(random.below(30))),
                    },
                    _ => {
                        let range = VirtRange::new(window, window + PAGE_SIZE * 4);
                        map.sync(range, true).unwrap();
                    }
                }
            }
            map.unmap(VirtRange::new(window, window + len)).unwrap();
            inner.sync(0..u64::MAX, false).unwrap();
            if !has_holes {
                check_on_disk(&inner, &mine, task);
            }
            ended.lock().unwrap()[task] = mine;
        });
        for (task, mine) in all.lock().unwrap().iter().enumerate() {
            check_on_disk(&file, mine, task);
        }
        drop(file);
    });
}

/// Looks at a task's stripes on the disk alone.
#[track_caller]
fn check_on_disk(file: &disk::Pages, mine: &[Vec<u8>], task: usize) {
    let again = disk::open(&file.blocks().0);
    for (number, expected) in mine.iter().enumerate() {
        let at = (number * TASKS + task) * STRIPE;
        let got = disk::read(&again, at as u64, STRIPE);
        assert!(got == *expected, "stripe {number} of task {task}");
    }
}

/// A mapping sees zeros behind the end of a file that was cut off, whatever it wrote there before.
#[test]
fn bytes_behind_the_end_are_zeros_when_the_file_was_cut() {
    on_machines(2, 1, 1024, |seed| {
        let (_disk, inode) = disk::inode(16, seed);
        let file = disk::open(&inode);
        disk::write(&file, 0, &[1; 100]);
        let inner = file.clone();
        in_space(1, move |map, _| {
            with_window(map, inner.clone(), 1, |window| {
                user::copy_out(window + 40, &[2; 3000]).unwrap();
                inner.truncate(50).unwrap();
                let mut bytes = [9; 3100];
                user::copy_in(&mut bytes, window).unwrap();
                assert!(bytes[..40] == [1; 40] && bytes[40..50] == [2; 10]);
                assert!(bytes[50..].iter().all(|&byte| byte == 0));
            });
        });
        drop(file);
    });
}

/// What a mapping writes behind the end goes to the device with the rest of its page, and is not
/// there when the file grows.
#[test]
fn bytes_behind_the_end_are_zeros_when_the_file_grows() {
    on_machines(6, 1, 1024, |seed| {
        let (_disk, inode) = disk::inode(16, seed);
        for grows_by_write in [false, true] {
            let file = disk::open(&inode);
            file.truncate(0).unwrap();
            disk::write(&file, 0, &[1; 100]);
            let inner = file.clone();
            in_space(1, move |map, _| {
                with_window(map, inner.clone(), 1, |window| {
                    user::copy_out(window + 50, &[2; 1000]).unwrap();
                    let range = VirtRange::new(window, window + PAGE_SIZE);
                    map.sync(range, true).unwrap();
                });
            });
            // Another one reads the page anew, and may lose it again between each two steps.
            drop(file);
            let file = disk::open(&inode);
            let forget = || {
                file.sync(0..u64::MAX, false).unwrap();
                file.give_up(0..u64::MAX, usize::MAX);
            };
            assert_eq!(disk::read(&file, 0, PAGE_SIZE).len(), 100);
            forget();
            match grows_by_write {
                true => {
                    let at = 2 * PAGE_SIZE as u64;
                    file.write(at, false, &mut BytesSource::new(&[3; 5]))
                        .unwrap();
                }
                false => file.truncate(3 * PAGE_SIZE as u64).unwrap(),
            }
            forget();
            let bytes = disk::read(&file, 0, PAGE_SIZE);
            assert_eq!(bytes.len(), PAGE_SIZE);
            assert!(bytes[..50] == [1; 50] && bytes[50..100] == [2; 50]);
            assert!(bytes[100..].iter().all(|&byte| byte == 0), "seed {seed}");
        }
    });
}

/// A page that one file gave to another is written for each of them: that the first is on its disk
/// does not make the second one's page one that may go.
#[test]
fn a_page_of_two_files_is_dirty_for_each() {
    on_machines(4, 1, 1024, |seed| {
        dirty::INTERVAL.set(10_000);
        let (_first, from) = disk::inode(16, seed);
        let (_second, to) = disk::inode(16, seed + 1);
        let (from, to) = (disk::open(&from), disk::open(&to));
        let bytes = Random::new(seed).some(4 * PAGE_SIZE);
        let bytes = [bytes, vec![7; 4 * PAGE_SIZE]].concat()[..4 * PAGE_SIZE].to_vec();
        disk::write(&from, 0, &bytes);
        let mut passed = Aggregate::new();
        let mut sink = AggregateSink::new(&mut passed, bytes.len());
        assert_eq!(from.read(0, &mut sink), Ok(bytes.len()));
        let mut source = AggregateSource::new(&mut passed, bytes.len());
        let wrote = to.write(0, false, &mut source);
        assert_eq!(wrote, Ok((bytes.len(), bytes.len() as u64)));
        for first in [&from, &to] {
            first.sync(0..u64::MAX, false).unwrap();
            page_cache::reclaim_clean(usize::MAX);
            for file in [&from, &to] {
                assert!(disk::read(file, 0, bytes.len()) == bytes);
            }
        }
        drop((from, to));
    });
}

/// A file in memory is not sealed against writes while a device may still write a page of it, of
/// which the mapping has gone.
#[test]
fn a_file_that_a_device_writes_is_not_sealed() {
    on_machines(1, 1, 1024, |_| {
        in_space(1, |map, _| {
            let root = ramfs::root(Options::default());
            let vnode = ramfs::create_sealed(&root, 0o600, &Credentials::default(), 0).unwrap();
            vnode.truncate(PAGE_SIZE as u64).unwrap();
            let window = map_file(map, vnode.clone().pager().unwrap(), PAGE_SIZE, true);
            let range = VirtRange::new(window, window + PAGE_SIZE);
            let pinned = map.pin(range, Access::Write).unwrap();
            let seal = || vnode.sealable().unwrap().add_seals(F_SEAL_WRITE);
            assert_eq!(seal(), Err(Errno::EBUSY));
            map.unmap(range).unwrap();
            assert_eq!(seal(), Err(Errno::EBUSY));
            drop(pinned);
            assert_eq!(seal(), Ok(()));
        });
    });
}
