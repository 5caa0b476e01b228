//! Map entry passing (`uvm.txt` 7): what is passed, what the receiver's limits refuse, and what
//! happens meanwhile. The random programs of `model` pass entries, too.

mod support;

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use nucleus::{
    PAGE_SIZE, Prot, VirtAddr, frame,
    pmap::{self, Fork},
    sim,
};
use support::{
    File, HERE, RW, Tasks, Worker, file_at, new_map, page, pages, pages_at, zero_at, zero_map,
};
use vm::{
    Backing, Inherit, LargeAdvice, LargePages, Limits, Lock, Lookup, Map, MapError, MapRequest,
    Object, Pager, PagerError, Passing, Place, set_large_pages,
};

const WAYS: [Passing; 3] = [Passing::Copy, Passing::Move, Passing::Share];
const THERE: VirtAddr = VirtAddr(0x30_0000_0000);

fn byte(map: &Map, at: VirtAddr) -> u8 {
    support::byte(map, at)
}

fn write(map: &Map, at: VirtAddr, byte: u8) {
    assert_eq!(map.write(at, &[byte; 16]), 16, "{at:?}");
}

/// A map with `count` private pages, each filled with its number from 1 on.
fn numbered(count: usize) -> Arc<Map> {
    let map = zero_map(pages(0, count));
    for i in 0..count {
        write(&map, page(i), i as u8 + 1);
    }
    map
}

#[test]
fn page_tables_go_along_with_a_move() {
    support::once("tables", || {
        let (map, to) = (numbered(70), new_map());
        let frames = frame::usage().data;
        let start = map
            .pass_entries(pages(0, 70), &to, Place::Any, Passing::Move, &|| true)
            .expect("room");
        assert_eq!(to.pmap().resident_in(pages_at(start, 70)), 70);
        assert_eq!(map.pmap().resident_in(pages(0, 70)), 0);
        assert_eq!((map.sizes().entries, to.sizes().entries), (0, 1));
        let (_, prot) = to.pmap().extract(start).expect("moved");
        assert!(prot.contains(Prot::WRITE), "as it was");
        let worker = Worker::new(&to, 0);
        for i in 0..70 {
            let at = start + i * PAGE_SIZE;
            assert_eq!(worker.read(at, 1), Some(vec![i as u8 + 1]));
        }
        assert_eq!(frame::usage().data, frames, "no page was copied");
        worker.end();
        // Inside one map it keeps its lock, and loses it on the way to another.
        to.lock(pages_at(start, 70), Lock::OnFault).expect("mapped");
        to.pass_entries(
            pages_at(start, 70),
            &to,
            Place::Fixed(THERE),
            Passing::Move,
            &|| true,
        )
        .expect("room");
        assert_eq!(to.sizes().locked, 70);
        to.pass_entries(
            pages_at(THERE, 70),
            &map,
            Place::Fixed(HERE),
            Passing::Move,
            &|| true,
        )
        .expect("room");
        assert_eq!((to.sizes().locked, map.sizes().locked), (0, 0));
        let (frame, _) = map.pmap().extract(page(3)).expect("moved");
        assert!(!pmap::is_wired(&frame));
    });
}

#[test]
fn sharers_see_writes_and_copies_do_not() {
    support::check("sharers", 0..12, support::on_cpus(2), || {
        pmap::set_fork(match sim::random_u64() % 2 {
            0 => Fork::Share,
            _ => Fork::Copy,
        });
        vm::set_shared_tables(0);
        let map = numbered(8);
        // Copy-on-write memory, through a shared page table, becomes shared.
        let child = map.fork().expect("a child");
        let (other, copy) = (new_map(), new_map());
        let place = Place::Fixed(THERE);
        map.pass_entries(pages(2, 4), &other, place, Passing::Share, &|| true)
            .expect("room");
        other
            .pass_entries(pages_at(THERE, 4), &copy, place, Passing::Copy, &|| true)
            .expect("room");
        write(&map, page(2), 100);
        write(&other, THERE + PAGE_SIZE, 101);
        assert_eq!((byte(&other, THERE), byte(&map, page(3))), (100, 101));
        assert_eq!((byte(&child, page(2)), byte(&child, page(3))), (3, 4));
        assert_eq!((byte(&copy, THERE), byte(&copy, THERE + PAGE_SIZE)), (3, 4));
        // A share inside one map is a second window on the same memory.
        let window = map
            .pass_entries(pages(3, 1), &map, Place::Any, Passing::Share, &|| true)
            .expect("room");
        write(&map, window, 102);
        assert_eq!(
            (byte(&map, page(3)), byte(&other, THERE + PAGE_SIZE)),
            (102, 102)
        );
        // So is one of memory that moves away afterwards.
        map.pass_entries(pages(2, 4), &child, place, Passing::Move, &|| true)
            .expect("room");
        write(&child, THERE + PAGE_SIZE, 103);
        assert_eq!(
            (byte(&map, window), byte(&other, THERE + PAGE_SIZE)),
            (103, 103)
        );
        assert_eq!(map.read(page(3), &mut [0]), 0);
        vm::set_shared_tables(128);
    });
}

#[test]
fn files_are_passed() {
    support::once("files", || {
        let place = Place::Fixed(THERE);
        for shared in [false, true] {
            for how in WAYS {
                let (map, to, file) = (new_map(), new_map(), File::new(1, 4));
                let request = MapRequest {
                    shared,
                    ..file_at(pages(0, 4), file)
                };
                map.map(request).expect("room");
                write(&map, page(1), 9);
                map.pass_entries(pages(1, 2), &to, place, how, &|| true)
                    .expect("room");
                let second = THERE + PAGE_SIZE;
                assert_eq!((byte(&to, THERE), byte(&to, second)), (9, File::byte(1, 2)));
                write(&to, second, 10);
                match how {
                    Passing::Copy => assert_eq!(byte(&map, page(2)), File::byte(1, 2)),
                    Passing::Share => assert_eq!(byte(&map, page(2)), 10),
                    Passing::Move => assert_eq!(map.read(page(2), &mut [0]), 0),
                }
                let entry = to.entry_at(THERE).expect("an entry");
                assert_eq!(entry.shared, shared && how != Passing::Copy);
                let inherit = match entry.shared {
                    true => Inherit::Share,
                    false => Inherit::Copy,
                };
                assert_eq!(entry.inherit, inherit);
            }
        }
    });
}

#[test]
fn large_pages_are_passed() {
    support::check("large", 0..6, support::machine(2, 4096), || {
        set_large_pages(LargePages::Advised);
        for how in WAYS {
            let (map, to) = (new_map(), new_map());
            let range = pages(0, 512);
            map.map(MapRequest {
                large: LargeAdvice::Wanted,
                ..zero_at(range)
            })
            .expect("room");
            write(&map, page(7), 7);
            let start = map
                .pass_entries(range, &to, Place::Any, how, &|| true)
                .expect("room");
            assert!(start.0.is_multiple_of(512 * PAGE_SIZE), "{start:?}");
            let there = start + 7 * PAGE_SIZE;
            assert_eq!(byte(&to, there), 7);
            write(&to, there, 8);
            match how {
                Passing::Copy => assert_eq!(byte(&map, page(7)), 7),
                Passing::Share => assert_eq!(byte(&map, page(7)), 8),
                Passing::Move => {
                    assert_eq!(to.pmap().resident_in(pages_at(start, 512)), 512);
                    assert_eq!(map.pmap().resident_in(range), 0);
                }
            }
        }
    });
}

#[test]
fn the_receivers_limits_are_checked_first() {
    support::once("limits", || {
        let limits = |address_space, data, locked| Limits {
            address_space: address_space * PAGE_SIZE as u64,
            data: data * PAGE_SIZE as u64,
            locked: locked * PAGE_SIZE as u64,
            ..Limits::NONE
        };
        let map = numbered(8);
        for how in WAYS {
            for (limits, error) in [
                (limits(7, 100, 100), MapError::NoMemory),
                (limits(100, 7, 100), MapError::NoMemory),
                (limits(100, 100, 7), MapError::Again),
            ] {
                let to = Map::new(limits, vm::Randomness::Nothing).expect("a map");
                to.lock_all(None, Lock::Full).expect("nothing is locked");
                let place = Place::Fixed(THERE);
                to.map(zero_at(pages_at(THERE, 1))).expect("room");
                write(&to, THERE, 77);
                let result = map.pass_entries(pages(0, 8), &to, place, how, &|| true);
                assert_eq!(result, Err(error), "{how:?}");
                assert_eq!((byte(&map, page(7)), byte(&to, THERE)), (8, 77));
            }
        }
        // One that locks all its memory has it at once.
        let to = Map::new(limits(8, 8, 8), vm::Randomness::Nothing).expect("a map");
        to.lock_all(None, Lock::Full).expect("nothing is locked");
        let start = map
            .pass_entries(pages(0, 8), &to, Place::Any, Passing::Copy, &|| true)
            .expect("within the limits");
        assert_eq!((to.sizes().locked, to.sizes().resident), (8, 8));
        let (frame, _) = to.pmap().extract(start).expect("populated");
        assert!(pmap::is_wired(&frame));
        // It is not brought in for a sender that ends.
        let to = Map::new(Limits::NONE, vm::Randomness::Nothing).expect("a map");
        to.lock_all(None, Lock::Full).expect("nothing is locked");
        map.pass_entries(pages(0, 8), &to, Place::Any, Passing::Copy, &|| false)
            .expect("room");
        assert_eq!((to.sizes().locked, to.sizes().resident), (8, 0));
        // Entries, of which each page has one.
        for i in (0..8).step_by(2) {
            map.protect(pages(i, 1), Prot::READ).expect("mapped");
        }
        let to = new_map();
        vm::set_max_entries(7);
        for how in WAYS {
            let result = map.pass_entries(pages(0, 8), &to, Place::Any, how, &|| true);
            assert_eq!(result, Err(MapError::NoMemory));
        }
        vm::set_max_entries(65530);
        assert_eq!((map.sizes().entries, to.sizes().entries), (8, 0));
        assert_eq!(byte(&map, page(7)), 8);
    });
}

#[test]
fn bad_ranges_are_refused() {
    support::once("bad", || {
        let (map, to) = (numbered(8), new_map());
        map.unmap(pages(4, 1)).expect("mapped");
        for how in WAYS {
            let pass = |range, place| map.pass_entries(range, &to, place, how, &|| true);
            assert_eq!(pass(pages(3, 2), Place::Any), Err(MapError::NotMapped));
            assert_eq!(pass(pages(0, 0), Place::Any), Err(MapError::Invalid));
            let odd = Place::Fixed(THERE + 1);
            assert_eq!(pass(pages(0, 1), odd), Err(MapError::Invalid));
            let low = Place::Fixed(VirtAddr(0));
            assert_eq!(pass(pages(0, 1), low), Err(MapError::Invalid));
            let result = map.pass_entries(pages(0, 2), &map, Place::Fixed(page(1)), how, &|| true);
            assert_eq!(result, Err(MapError::Invalid));
        }
        map.map(MapRequest {
            label: "[vdso]",
            ..zero_at(pages(4, 1))
        })
        .expect("room");
        map.map(MapRequest {
            grows_down: true,
            label: "[stack]",
            ..zero_at(pages(100, 2))
        })
        .expect("room");
        for how in WAYS {
            let result = map.pass_entries(pages(3, 2), &to, Place::Any, how, &|| true);
            assert_eq!(result, Err(MapError::Unsupported));
        }
        let pass = |how| map.pass_entries(pages(100, 2), &to, Place::Any, how, &|| true);
        assert_eq!(pass(Passing::Share), Err(MapError::Invalid));
        let start = pass(Passing::Copy).expect("room");
        let entry = to.entry_at(start).expect("an entry");
        assert!(!entry.grows_down && entry.label.is_empty());
    });
}

/// A file that finds out whether a map is locked when a reference to it is dropped.
struct Watched {
    file: Arc<File>,
    maps: OnceLock<[Weak<Map>; 2]>,
    dropped: AtomicUsize,
}

impl Pager for Watched {
    fn object(&self) -> &Object {
        self.file.object()
    }

    fn lookup(&self, index: u64) -> Result<Lookup, PagerError> {
        self.file.lookup(index)
    }

    fn detach(&self, _: bool) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
        for map in self.maps.get().into_iter().flatten() {
            // The checker of the lock order panics if this task has either map locked.
            if let Some(map) = map.upgrade() {
                map.sizes();
            }
        }
    }
}

#[test]
fn references_are_dropped_when_both_maps_are_unlocked() {
    support::once("references", || {
        for how in WAYS {
            let (map, to) = (numbered(4), new_map());
            let watched = Arc::new(Watched {
                file: File::new(1, 8),
                maps: OnceLock::new(),
                dropped: AtomicUsize::new(0),
            });
            let weak = [&map, &to].map(Arc::downgrade);
            assert!(watched.maps.set(weak).is_ok());
            for (place, map) in [(page(4), &map), (THERE, &to), (page(0), &to)] {
                map.map(file_at(pages_at(place, 4), watched.clone()))
                    .expect("room");
            }
            map.pass_entries(pages(0, 4), &to, Place::Fixed(THERE), how, &|| true)
                .expect("room");
            assert_eq!(watched.dropped.load(Ordering::SeqCst), 1);
            // The source's entry is split and joined again: of three references one is left.
            map.pass_entries(pages(5, 2), &to, Place::Any, Passing::Copy, &|| true)
                .expect("room");
            assert_eq!(watched.dropped.swap(1, Ordering::SeqCst), 3);
            map.pass_entries(pages(4, 4), &map, Place::Fixed(page(20)), how, &|| true)
                .expect("room");
            to.pass_entries(pages(0, 4), &map, Place::Fixed(page(20)), how, &|| true)
                .expect("room");
            assert_eq!(watched.dropped.load(Ordering::SeqCst), 2);
        }
    });
}

/// A device writes to pages of a program that passes them: what it writes is the program's alone.
#[test]
fn pages_that_a_device_writes_are_not_passed() {
    support::check("device", 0..40, support::on_cpus(2), || {
        let (map, to) = (numbered(3), new_map());
        support::pass_while_a_device_writes(&map, to, THERE, |map, to| {
            let place = Place::Fixed(THERE);
            map.pass_entries(pages(0, 3), to, place, Passing::Copy, &|| true)
                .expect("room");
        });
    });
}

/// Programs pass to each other in both directions at once, while their threads write what is there:
/// none waits for the other for ever, no write is lost, and a copy does not change.
#[test]
fn both_directions_at_once() {
    const ROUNDS: u64 = 25;
    for cpus in [1, 2, 4] {
        support::check("directions", 0..15, support::on_cpus(cpus), move || {
            let maps = [numbered(4), numbered(4)];
            let shared = pages(100, 2);
            maps[0].map(zero_at(shared)).expect("room");
            maps[0]
                .pass_entries(
                    shared,
                    &maps[1],
                    Place::Fixed(page(100)),
                    Passing::Share,
                    &|| true,
                )
                .expect("room");
            let tasks = Tasks::new();
            for i in 0..2 {
                let (from, to) = (maps[i].clone(), maps[1 - i].clone());
                tasks.spawn(!0, move || {
                    for round in 0..ROUNDS {
                        let place = Place::Fixed(THERE + (i * 64) * PAGE_SIZE);
                        let how = WAYS[(round as usize + i) % 2];
                        from.pass_entries(pages(0, 4), &to, place, how, &|| true)
                            .expect("room");
                        let Place::Fixed(at) = place else { continue };
                        assert_eq!(byte(&to, at + 3 * PAGE_SIZE), 4);
                        write(&to, at + 2 * PAGE_SIZE, 99);
                        if how == Passing::Move {
                            write(&to, at + 2 * PAGE_SIZE, 3);
                            let back = pages_at(at, 4);
                            to.pass_entries(back, &from, Place::Fixed(HERE), how, &|| true)
                                .expect("room");
                        }
                        assert_eq!(byte(&from, page(2)), 3);
                    }
                });
            }
            let workers = [0, 1].map(|i| Worker::new(&maps[i], i % cpus));
            for round in 1..=ROUNDS as u8 {
                for (i, worker) in workers.iter().enumerate() {
                    assert!(worker.write(page(100) + 64 * i, vec![round; 8]));
                    let seen = workers[1 - i].read(page(100) + 64 * i, 8);
                    assert_eq!(seen, Some(vec![round; 8]), "a lost write");
                }
            }
            tasks.wait_until(0);
            workers.into_iter().for_each(Worker::end);
        });
    }
}

/// Shared anonymous memory, and entries of several kinds in one range.
#[test]
fn several_kinds_in_one_range() {
    support::once("kinds", || {
        for how in WAYS {
            let (map, to) = (numbered(2), new_map());
            map.map(MapRequest {
                shared: true,
                ..zero_at(pages(2, 2))
            })
            .expect("room");
            write(&map, page(3), 30);
            map.map(MapRequest {
                backing: Backing::Zero,
                ..MapRequest {
                    prot: Prot::READ,
                    ..zero_at(pages(4, 2))
                }
            })
            .expect("room");
            let start = map
                .pass_entries(pages(0, 6), &to, Place::Any, how, &|| true)
                .expect("room");
            let at = |i: usize| start + i * PAGE_SIZE;
            assert_eq!([1, 3, 5].map(|i| byte(&to, at(i))), [2, 30, 0], "{how:?}");
            assert_eq!(to.write(at(5), &[1]), 0, "it is read-only");
            write(&to, at(3), 31);
            if how != Passing::Move {
                let expected = if how == Passing::Share { 31 } else { 30 };
                assert_eq!(byte(&map, page(3)), expected);
            }
            assert_eq!(to.entry_at(at(0)).expect("an entry").prot, RW);
        }
    });
}

/// Memory moves to and fro while another program that shares it replaces its pages: after a fork
/// that copied them, or because a file was truncated. What is seen at the new place is never older
/// than the last write that was complete before the look.
#[test]
fn what_others_replace_does_not_move() {
    for is_file in [false, true] {
        support::check("replaced", 0..12, support::on_cpus(3), move || {
            let (map, third, other) = (new_map(), new_map(), new_map());
            let file = File::new(1, 40);
            let range = pages(0, 40);
            match is_file {
                false => map.map(zero_at(range)),
                true => map.map(MapRequest {
                    shared: true,
                    ..file_at(range, file.clone())
                }),
            }
            .expect("room");
            map.pass_entries(range, &other, Place::Fixed(THERE), Passing::Share, &|| true)
                .expect("room");
            let last = Arc::new(AtomicUsize::new(0));
            let stop = Arc::new(AtomicBool::new(false));
            if is_file {
                file.set_pages(0);
                file.set_pages(40);
            }
            let tasks = Tasks::new();
            let (seen_last, stopped) = (last.clone(), stop.clone());
            tasks.spawn(!0, move || {
                let look = |map: &Map, at: VirtAddr| {
                    let low = seen_last.load(Ordering::SeqCst);
                    let mut byte = [0];
                    if map.read(at, &mut byte) == 0 {
                        // It has just been truncated.
                        assert!(is_file, "{at:?} cannot be read");
                        return;
                    }
                    let is_new = usize::from(byte[0]) >= low || is_file && byte[0] == 0;
                    assert!(is_new, "{} is older than {low}", byte[0]);
                };
                while !stopped.load(Ordering::SeqCst) {
                    for i in 0..40 {
                        look(&map, page(i));
                    }
                    let there = Place::Fixed(THERE);
                    map.pass_entries(range, &third, there, Passing::Move, &|| true)
                        .expect("room");
                    for i in 0..40 {
                        look(&third, THERE + i * PAGE_SIZE);
                    }
                    third
                        .pass_entries(
                            pages_at(THERE, 40),
                            &map,
                            Place::Fixed(HERE),
                            Passing::Move,
                            &|| true,
                        )
                        .expect("room");
                }
            });
            let worker = Worker::new(&other, 1);
            for round in 1..=12u8 {
                let copy = (!is_file).then(|| other.fork().expect("a child"));
                if is_file {
                    file.set_pages(0);
                    file.set_pages(40);
                }
                for i in 0..40 {
                    assert!(worker.write(THERE + i * PAGE_SIZE, vec![round; 8]));
                }
                last.store(round as usize, Ordering::SeqCst);
                drop(copy);
            }
            stop.store(true, Ordering::SeqCst);
            tasks.wait_until(0);
            worker.end();
        });
    }
}
