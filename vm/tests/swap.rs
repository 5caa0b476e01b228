//! Page-out and page-in: fork trees, errors of the store, lack of memory, removal of devices in
//! use. Every byte stays, and no slot leaks.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use nucleus::{
    Access, Frame, PAGE_SIZE, VirtAddr, VirtRange, ephemeral,
    frame::{self, fail_after, seem_scarce_after, seem_scarce_once},
    sim::{self, Config},
    sync::{Rank, SpinLock},
    task, user,
};
use support::swap::{Store, add, add_store, remove};
use support::{Numbers, Tasks, map_zero, on_cpus, page, pages, pages_at, resolve, zero_map};
use vm::swap::{self, Done, SwapError, SwapStore};
use vm::{Advice, Fault, Map};

const SHARED: VirtAddr = VirtAddr(0x30_0000_0000);
const PAGES: usize = 41;

fn all() -> VirtRange {
    pages(0, PAGES)
}

fn new_map() -> Arc<Map> {
    zero_map(all())
}

fn pause() {
    for _ in 0..60 {
        task::yield_now();
    }
}

/// Pages out as much as possible and waits for the writes.
fn page_out(map: &Map) {
    for _ in 0..100 {
        map.page_out(all()).expect("mapped");
        pause();
        if map.swapped() == PAGES {
            return;
        }
    }
}

fn write(map: &Map, at: VirtAddr, byte: u8) {
    assert_eq!(map.write(at, &[byte; 16]), 16, "{at:?}");
}

#[track_caller]
fn expect(map: &Map, at: VirtAddr, byte: u8) {
    let mut bytes = [0; 16];
    assert_eq!(map.read(at, &mut bytes), 16, "{at:?}");
    assert_eq!(bytes, [byte; 16], "{at:?}");
}

fn fill(map: &Map, byte: impl Fn(usize) -> u8) {
    (0..PAGES).for_each(|i| write(map, page(i), byte(i)));
}

#[track_caller]
fn expect_all(map: &Map, byte: impl Fn(usize) -> u8) {
    for i in 0..PAGES {
        expect(map, page(i), byte(i));
    }
}

/// Waits until the slots in use are those that pages own.
#[track_caller]
fn expect_no_leak() {
    let mut seen = None;
    for _ in 0..200 {
        let audit = vm::audit_swap().expect("memory");
        if audit.used == audit.found {
            return;
        }
        seen = Some(audit);
        task::yield_now();
    }
    panic!("{seen:?}");
}

#[test]
fn pages_go_and_come_back_in_clusters() {
    support::check("clusters", 0..5, Config::default(), || {
        let before = frame::usage();
        let (id, store) = add(1, 100);
        let map = new_map();
        fill(&map, |i| i as u8 + 1);
        page_out(&map);
        assert_eq!(map.swapped(), PAGES);
        assert_eq!(frame::usage().data, before.data, "their frames are free");
        assert!(store.writes.load(SeqCst) <= 2, "they went together");
        expect(&map, page(5), 6);
        let came = PAGES - map.swapped();
        assert!((2..=16).contains(&came), "{came} pages came with one");
        assert_eq!(store.reads.load(SeqCst), 1);
        // Pages that were read keep their slots; a written page gives its slot up.
        assert_eq!(swap::usage().used, PAGES);
        assert_eq!(swap::usage().cached, came);
        write(&map, page(5), 77);
        assert_eq!(swap::usage().used, PAGES - 1);
        // Pages that were only read need no second write.
        let writes = store.pages_written.load(SeqCst);
        page_out(&map);
        assert_eq!(store.pages_written.load(SeqCst), writes + 1);
        assert_eq!(map.swapped(), PAGES);
        map.advise(pages(0, 10), Advice::DontNeed).expect("mapped");
        assert_eq!(swap::usage().used, PAGES - 10);
        expect(&map, page(3), 0);
        for i in 10..PAGES {
            expect(&map, page(i), i as u8 + 1);
        }
        map.tear_down();
        drop(map);
        remove(id);
    });
}

/// Processes that fork, write, exit and go to swap in any order.
#[test]
fn a_fork_tree_loses_no_slot() {
    support::check("fork-tree", 0..12, on_cpus(2), || {
        let mut numbers = Numbers::new(sim::random_u64());
        // Too small for all pages at times.
        let (id, _) = add(7, 90);
        let mut family: Vec<(Arc<Map>, Vec<u8>)> = vec![(new_map(), vec![0; 2 * PAGES])];
        map_zero(&family[0].0, pages_at(SHARED, PAGES), true);
        let mut shared = [0u8; PAGES];
        for _ in 0..250 {
            let process = numbers.below(family.len());
            let i = numbers.below(PAGES);
            match numbers.below(12) {
                0 if family.len() < 6 => {
                    let child = family[process].0.fork().expect("fork");
                    let bytes = family[process].1.clone();
                    family.push((child, bytes));
                }
                1 if family.len() > 1 => {
                    family.swap_remove(process).0.tear_down();
                }
                2..5 => {
                    let to = (i + 1 + numbers.below(20)).min(PAGES);
                    family[process]
                        .0
                        .page_out(VirtRange::new(page(i), page(to)))
                        .expect("mapped");
                }
                5 => {
                    let range = pages_at(SHARED, PAGES);
                    family[process].0.page_out(range).expect("mapped");
                }
                6 => {
                    let byte = numbers.next() as u8;
                    write(&family[process].0, SHARED + i * PAGE_SIZE, byte);
                    shared[i] = byte;
                }
                7 => expect(&family[process].0, SHARED + i * PAGE_SIZE, shared[i]),
                8 => pause(),
                9..11 => {
                    let byte = numbers.next() as u8;
                    write(&family[process].0, page(i), byte);
                    family[process].1[i] = byte;
                }
                _ => expect(&family[process].0, page(i), family[process].1[i]),
            }
            if numbers.chance(10) {
                expect_no_leak();
            }
        }
        for (map, bytes) in &family {
            for i in 0..PAGES {
                expect(map, page(i), bytes[i]);
                expect(map, SHARED + i * PAGE_SIZE, shared[i]);
            }
        }
        expect_no_leak();
        for (map, _) in family {
            map.tear_down();
        }
        remove(id);
    });
}

/// A device writes pages that are being paged out.
#[test]
fn pinned_pages_stay_resident() {
    support::check("held", 0..6, Config::default(), || {
        let (id, _) = add(5, 200);
        let map = new_map();
        fill(&map, |_| 1);
        page_out(&map);
        for round in 2..6 {
            let range = pages(3, 6);
            let held = map.pin(range, Access::Write).expect("mapped");
            for _ in 0..3 {
                map.page_out(all()).expect("mapped");
                pause();
            }
            for part in held.parts() {
                ephemeral::map(&part.frame).fill(0, PAGE_SIZE, round);
            }
            drop(held);
            page_out(&map);
            for i in 3..9 {
                expect(&map, page(i), round);
            }
        }
        map.tear_down();
        drop(map);
        remove(id);
    });
}

#[test]
fn pages_that_cannot_be_written_stay_resident() {
    support::check("bad-writes", 0..6, Config::default(), || {
        let (id, store) = add(3, 400);
        store.failing_writes.store(60, SeqCst);
        let map = new_map();
        for round in 0..8 {
            fill(&map, |i| (round * 7 + i) as u8);
            page_out(&map);
            expect_all(&map, |i| (round * 7 + i) as u8);
            expect_no_leak();
        }
        assert!(swap::usage().total < 400, "bad slots are not used again");
        map.tear_down();
        drop(map);
        remove(id);
    });
}

#[test]
fn a_read_error_affects_one_page_only() {
    support::check("bad-reads", 0..6, Config::default(), || {
        let (id, store) = add(3, 100);
        let map = new_map();
        fill(&map, |i| i as u8);
        page_out(&map);
        // One slot cannot be read: only its page is lost, even if read together with others.
        *store.unreadable.lock() = Some(11);
        let failed: Vec<usize> = (0..PAGES)
            .filter(|&i| map.fault(page(i), Access::Read) == Err(Fault::Io))
            .collect();
        assert_eq!(failed.len(), 1);
        for i in (0..PAGES).filter(|i| !failed.contains(i)) {
            expect(&map, page(i), i as u8);
        }
        assert_eq!(map.fault(page(failed[0]), Access::Write), Err(Fault::Io));
        // It cannot be read back, so the device stays.
        assert_eq!(vm::swap_off(id, &|| false), Err(SwapError::Io));
        assert!(swap::usage().total > 0);
        *store.unreadable.lock() = None;
        expect(&map, page(failed[0]), failed[0] as u8);
        vm::swap_off(id, &|| false).expect("memory enough");
        expect_all(&map, |i| i as u8);
        map.tear_down();
        drop(map);
        assert_eq!(swap::usage().used, 0);
    });
}

#[test]
fn without_memory_a_device_stays_and_nothing_is_lost() {
    support::check("no-room", 0..4, Config::default(), || {
        let (id, _) = add(3, 100);
        let map = new_map();
        fill(&map, |i| i as u8 + 1);
        page_out(&map);
        for left in 0..PAGES as u64 {
            fail_after(Some(left));
            assert_eq!(vm::swap_off(id, &|| false), Err(SwapError::NoMemory));
            fail_after(None);
            assert_eq!(swap::usage().total, 100);
            expect_no_leak();
            page_out(&map);
            assert_eq!(map.swapped(), PAGES);
        }
        let stop = AtomicUsize::new(0);
        let interrupted = || stop.fetch_add(1, SeqCst) >= 1;
        assert_eq!(vm::swap_off(id, &interrupted), Err(SwapError::Interrupted));
        // A fault without memory fails, and succeeds once there is some.
        fail_after(Some(0));
        page_out(&map);
        assert_eq!(map.fault(page(9), Access::Read), Err(Fault::OutOfMemory));
        fail_after(None);
        vm::swap_off(id, &|| false).expect("memory enough");
        assert_eq!(vm::swap_off(id, &|| false), Err(SwapError::NotFound));
        expect_all(&map, |i| i as u8 + 1);
        map.tear_down();
    });
}

/// Devices are added and removed while threads on other CPUs write and read their own words of the
/// same pages.
#[test]
fn devices_come_and_go_while_in_use() {
    for cpus in [2, 4] {
        support::check("come-and-go", 0..4, on_cpus(cpus), move || {
            let devices = [add(1, 30), add(2, 50)];
            let mut ids = devices.each_ref().map(|(id, _)| *id);
            let map = new_map();
            let stop = Arc::new(AtomicBool::new(false));
            let tasks = Tasks::new();
            for thread in 1..cpus {
                let stop = stop.clone();
                tasks.spawn_in(&map, thread, move |_| {
                    let mut round = 0u64;
                    while !stop.load(SeqCst) {
                        round += 1;
                        for i in 0..PAGES {
                            let at = page((i * (2 * thread + 1)) % PAGES) + 64 * thread;
                            let last: u64 = user::read(at).expect("mapped");
                            assert_eq!(last, round - 1, "a lost write at {at:?}");
                            user::write(at, &round).expect("writable");
                        }
                    }
                });
            }
            for round in 0..12 {
                map.page_out(all()).expect("mapped");
                pause();
                if round % 3 == 0 {
                    let child = map.fork().expect("fork");
                    child.page_out(all()).expect("mapped");
                    pause();
                    child.tear_down();
                }
                let i = round % 2;
                vm::swap_off(ids[i], &|| false).expect("memory enough");
                ids[i] = add_store(&devices[i].1);
            }
            stop.store(true, SeqCst);
            tasks.wait_until(0);
            expect_no_leak();
            map.tear_down();
            drop(map);
            ids.into_iter().for_each(remove);
        });
    }
}

/// Clusters go to the device of highest priority as long as it has room, and take turns between
/// those of equal priority.
#[test]
fn the_highest_priority_is_filled_first_and_equal_ones_take_turns() {
    support::check("turns", 0..5, Config::default(), || {
        const CLUSTER: usize = 4;
        let stores = [(-1, 100), (3, 60), (7, 2 * CLUSTER), (3, 60)]
            .map(|(priority, slots)| (priority, Store::new(1, slots)));
        let ids = stores
            .each_ref()
            .map(|(priority, store)| swap::add(store.clone(), *priority, &|| false).unwrap());
        let written = || {
            let counts = stores.each_ref().map(|(_, store)| &store.pages_written);
            counts.map(|count| count.load(SeqCst))
        };
        let map = new_map();
        fill(&map, |i| i as u8);
        let out = |first: usize| {
            map.page_out(pages(first, CLUSTER)).expect("mapped");
            pause();
        };
        for round in 0..2 {
            out(round * CLUSTER);
            assert_eq!(written(), [0, 0, (round + 1) * CLUSTER, 0]);
        }
        out(2 * CLUSTER);
        let mut expected = written();
        // Either of the equals begins.
        let first = if expected[1] > 0 { 1 } else { 3 };
        assert_eq!(expected[first], CLUSTER, "{expected:?}");
        for round in 3..9 {
            out(round * CLUSTER);
            expected[if round % 2 == 0 { first } else { 4 - first }] += CLUSTER;
            assert_eq!(written(), expected, "round {round}");
        }
        // One of the equals leaves: the other one takes all, and the lowest still nothing.
        vm::swap_off(ids[1], &|| false).expect("memory enough");
        let [_, _, _, before] = written();
        out(9 * CLUSTER);
        assert_eq!(written()[3], before + CLUSTER);
        assert_eq!(written()[0], 0);
        map.tear_down();
        drop(map);
        for id in [ids[0], ids[2], ids[3]] {
            remove(id);
        }
    });
}

/// Pages go to devices of lower priority only when the others are full.
#[test]
fn a_lower_priority_gets_what_the_others_have_no_room_for() {
    support::check("overflow", 0..5, Config::default(), || {
        let (low, high) = (Store::new(1, 100), Store::new(2, 10));
        let ids = [(&low, 0), (&high, 1)]
            .map(|(store, priority)| swap::add(store.clone(), priority, &|| false).unwrap());
        let map = new_map();
        fill(&map, |i| i as u8);
        page_out(&map);
        assert_eq!(high.pages_written.load(SeqCst), 10);
        assert_eq!(low.pages_written.load(SeqCst), PAGES - 10);
        expect_all(&map, |i| i as u8);
        map.tear_down();
        drop(map);
        ids.into_iter().for_each(remove);
    });
}

/// A store that is still busy after it has reported the end of a write.
struct Late {
    pages: SpinLock<Vec<Option<Box<[u8; PAGE_SIZE]>>>>,
    said: Arc<AtomicBool>,
}

impl SwapStore for Late {
    fn slots(&self) -> u64 {
        self.pages.lock().len() as u64
    }

    fn read(&self, slot: u64, frames: &[Frame], done: Done) {
        for (i, frame) in frames.iter().enumerate() {
            let page = self.pages.lock()[slot as usize + i].clone();
            ephemeral::map(frame).write(0, &page.expect("it was written before")[..]);
        }
        done(Ok(()));
    }

    fn write(&self, slot: u64, frames: Vec<Frame>, done: Done) {
        for (i, frame) in frames.into_iter().enumerate() {
            let mut page = Box::new([0; PAGE_SIZE]);
            ephemeral::map(&frame).read(0, &mut page[..]);
            self.pages.lock()[slot as usize + i] = Some(page);
        }
        done(Ok(()));
        self.said.store(true, SeqCst);
        for _ in 0..300 {
            task::yield_now();
        }
    }
}

/// After a removal the caller holds the last reference to the store, even if writes have just
/// ended.
#[test]
fn a_removed_device_is_not_referenced() {
    sim::check("given up", 0..5, on_cpus(2), || {
        user::set_fault_hook(resolve);
        let said = Arc::new(AtomicBool::new(false));
        let store: Arc<dyn SwapStore> = Arc::new(Late {
            pages: SpinLock::new(Rank::Leaf, vec![None; 100]),
            said: said.clone(),
        });
        let kept = Arc::downgrade(&store);
        let id = swap::add(store, 0, &|| false).expect("a swap device");
        let map = new_map();
        fill(&map, |_| 7);
        let (tasks, out) = (Tasks::new(), map.clone());
        tasks.spawn(!0, move || {
            out.page_out(all()).expect("mapped");
            drop(out);
        });
        while !said.load(SeqCst) {
            task::yield_now();
        }
        vm::swap_off(id, &|| false).expect("room for all pages");
        assert!(kept.upgrade().is_none(), "the device is still referenced");
        expect_all(&map, |_| 7);
        tasks.wait_until(0);
        map.tear_down();
    });
}

/// A device whose first slots are bad.
struct Behind {
    store: Arc<Store>,
    bad: Vec<u64>,
}

impl SwapStore for Behind {
    fn slots(&self) -> u64 {
        self.store.slots()
    }

    fn bad_slots(&self) -> &[u64] {
        &self.bad
    }

    fn read(&self, slot: u64, frames: &[Frame], done: Done) {
        self.store.read(slot, frames, done);
    }

    fn write(&self, slot: u64, frames: Vec<Frame>, done: Done) {
        self.store.write(slot, frames, done);
    }
}

/// A reader of a slot, or a waiter for it, finds another device without such a slot in its place.
#[test]
fn a_smaller_device_takes_the_place_of_a_larger_one() {
    const FEW: usize = 1;
    support::check("smaller", 0..40, on_cpus(2), || {
        let large = Arc::new(Behind {
            store: Store::new(1, 3000),
            bad: (0..2900).collect(),
        });
        let small = Store::new(2, 20);
        let map = new_map();
        (0..FEW).for_each(|i| write(&map, page(i), i as u8 + 1));
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, stopped) = (map.clone(), stop.clone());
        let tasks = Tasks::new();
        tasks.spawn(2, move || {
            while !stopped.load(SeqCst) {
                (0..FEW).for_each(|i| expect(&theirs, page(i), i as u8 + 1));
                task::yield_now();
            }
            drop(theirs);
        });
        for _ in 0..20 {
            let id = add_store(&large);
            map.page_out(all()).expect("mapped");
            pause();
            vm::swap_off(id, &|| false).expect("memory enough");
            let id = add_store(&small);
            task::yield_now();
            vm::swap_off(id, &|| false).expect("memory enough");
        }
        stop.store(true, SeqCst);
        tasks.wait_until(0);
        map.tear_down();
    });
}

/// Adding swap space fails if other tasks take all the memory for it although the pagedaemon makes
/// progress; a short lack of memory is waited out.
#[test]
fn a_device_does_not_wait_for_memory_for_ever() {
    let config = Config {
        max_points: 500_000,
        ..on_cpus(2)
    };
    support::check("starved", 0..4, config, || {
        vm::start_pagedaemon().expect("a task");
        let store = Store::new(1, 5000);
        for groups in [0, 1, 5] {
            seem_scarce_after(Some(groups));
            let refused = swap::add(store.clone(), 0, &|| false);
            assert_eq!(refused, Err(SwapError::NoMemory));
            let asked = AtomicUsize::new(0);
            let interrupted = || asked.fetch_add(1, SeqCst) == 3;
            let refused = swap::add(store.clone(), 0, &interrupted);
            assert_eq!(refused, Err(SwapError::Interrupted));
            seem_scarce_after(None);
        }
        seem_scarce_once(2);
        let id = swap::add(store, 0, &|| false).expect("memory enough");
        remove(id);
        vm::stop_pagedaemon();
    });
}
