//! Frames on the simulated machine, against simple models.

mod owners;
mod tables;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::PAGE_SHIFT;
use crate::ephemeral;
use crate::hw::Region;
use crate::sim::{Config, Together, below, on_machines_like, on_machines_with, random_u64};

#[test]
fn frames_are_owned_by_one() {
    on_machines_with("frames are owned by one", [1, 2, 4], 512, 30, || {
        let before = usage();
        let together = Arc::new(Together::default());
        for task in 0..4u64 {
            together.spawn(move || {
                let mut held: Vec<(Frame, u64)> = Vec::new();
                for _ in 0..300 {
                    if held.is_empty() || below(100) < 55 {
                        let zeroed = below(2) == 0;
                        let contents = if zeroed {
                            Contents::Zeroed
                        } else {
                            Contents::Stale
                        };
                        let Ok(frame) = Frame::alloc(contents) else {
                            held.clear();
                            continue;
                        };
                        let tag = task << 32 | random_u64() >> 40;
                        let page = ephemeral::map(&frame);
                        if zeroed {
                            let mut bytes = [1; PAGE_SIZE];
                            page.read(0, &mut bytes);
                            assert_eq!(bytes, [0; PAGE_SIZE]);
                        }
                        page.write(0, &tag.to_le_bytes());
                        page.write(PAGE_SIZE - 8, &tag.to_le_bytes());
                        drop(page);
                        assert_eq!(frame.handles(), 1);
                        held.push((frame, tag));
                    } else {
                        let (frame, tag) = held.swap_remove(below(held.len()));
                        let copy = frame.clone();
                        drop(frame);
                        for offset in [0, PAGE_SIZE - 8] {
                            let mut bytes = [0; 8];
                            ephemeral::map(&copy).read(offset, &mut bytes);
                            assert_eq!(u64::from_le_bytes(bytes), tag);
                        }
                    }
                }
            });
        }
        together.join();
        assert_eq!(usage(), before);
    });
}

#[test]
fn blocks_split_and_merge() {
    // Without a call that may wait, blocks of one place don't go to the other.
    let like = Config {
        direct_map: Some(DirectMap::All),
        ..Config::default()
    };
    on_machines_like("blocks split and merge", [1, 2, 4], 1024, 30, like, || {
        let before = usage();
        let largest = || {
            let mut blocks = Vec::new();
            for order in (0..=MAX_ORDER).rev() {
                while let Some(index) = buddy::take(order, Depth::Heap) {
                    blocks.push((index, order));
                }
            }
            for &(index, order) in &blocks {
                buddy::give(index, order);
            }
            let mut orders: Vec<_> = blocks.iter().map(|block| block.1).collect();
            orders.sort_unstable();
            orders
        };
        // What the machine kept in caches stays there meanwhile.
        let orders = largest();
        let mut held: BTreeMap<u32, usize> = BTreeMap::new();
        let hold = |held: &mut BTreeMap<u32, usize>, index: u32, order: usize| {
            let end = index + (1 << order);
            let below = held.range(..end).next_back();
            assert!(below.is_none_or(|(&at, &o)| at + (1 << o) <= index));
            held.insert(index, order);
        };
        for _ in 0..400 {
            let kind = below(6);
            if kind == 0 {
                let mut batch = [0; 40];
                let free = available();
                let want = 1 + below(batch.len());
                let n = buddy::take_batch(&mut batch[..want], Depth::Data);
                assert_eq!(
                    n,
                    want.min(free.saturating_sub(buddy::reserved(Depth::Data)))
                );
                assert_eq!(available(), free - n);
                for &index in &batch[..n] {
                    hold(&mut held, index, 0);
                }
            } else if kind == 1 {
                // Upwards, downwards, or in any order.
                let singles = held.iter().filter(|(_, order)| **order == 0);
                let mut some: Vec<u32> = singles.map(|(&index, _)| index).collect();
                match below(3) {
                    0 => some.reverse(),
                    1 => some.sort_by_cached_key(|_| random_u64()),
                    _ => {}
                }
                some.truncate(below(50));
                some.iter().for_each(|index| {
                    held.remove(index);
                });
                buddy::give_batch(some.into_iter());
            } else if kind < 4 {
                let order = below(6);
                let Some(index) = buddy::take(order, Depth::Heap) else {
                    continue;
                };
                assert_eq!(index % (1 << order), 0);
                hold(&mut held, index, order);
            } else if let Some(&index) = held.keys().nth(below(held.len().max(1))) {
                let order = held.remove(&index).unwrap();
                buddy::give(index, order);
            }
        }
        for (index, order) in held {
            // Any way of cutting a block up gives the same frames back.
            if order > 0 && below(2) == 0 {
                buddy::give_run(index + 1..index + (1 << order));
                buddy::give(index, 0);
            } else {
                buddy::give(index, order);
            }
        }
        assert_eq!(largest(), orders);
        assert_eq!(usage(), before);
    });
}

#[test]
fn the_reserve_is_not_for_programs() {
    // What a CPU keeps for the kernel is not a program's.
    let like = Config {
        direct_map: Some(DirectMap::All),
        ..Config::default()
    };
    on_machines_like(
        "the reserve is not for programs",
        [1, 2, 4],
        1024,
        30,
        like,
        || {
            let before = usage();
            let mut held = Vec::new();
            while let Ok(frame) = Frame::alloc(Contents::Stale) {
                held.push(frame);
            }
            assert!(!is_scarce(), "programs' pages alone leave the kernel alone");
            assert!(held.len() > before.free * 9 / 10);
            let mut tables = Vec::new();
            while let Some(table) = take_table(1) {
                tables.push(table);
            }
            assert!(!tables.is_empty(), "page tables go deeper than pages");
            let mut heap = Vec::new();
            while let Ok(index) = take_own(Type::Heap) {
                heap.push(index);
                // What the heap takes of the reserve does not become a program's.
                assert!(Frame::alloc(Contents::Stale).is_err());
            }
            assert!(is_scarce());
            assert_eq!(usage().free, cache::kept());
            assert!(Frame::alloc(Contents::Stale).is_err());
            for index in heap {
                give_run(index..index + 1, Type::Heap);
            }
            for table in tables {
                give_table(1, table.index());
            }
            assert!(Frame::alloc(Contents::Stale).is_ok());
            held.clear();
            assert_eq!(usage(), before);
        },
    );
}

#[test]
fn allocations_fail_on_purpose() {
    on_machines_with("allocations fail on purpose", [1, 2, 4], 256, 30, || {
        fail_after(Some(2));
        let first = Frame::alloc(Contents::Zeroed);
        let second = Frame::alloc(Contents::Zeroed);
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(Frame::alloc(Contents::Zeroed), Err(OutOfMemory));
        assert_eq!(Frame::alloc(Contents::Zeroed), Err(OutOfMemory));
        fail_after(None);
        assert!(Frame::alloc(Contents::Zeroed).is_ok());
    });
}

/// More handles than 32 bits count, all but some of them forgotten: the frame is not free.
#[test]
fn counts_of_handles_do_not_wrap() {
    on_machines_with("counts do not wrap", [1], 256, 1, || {
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let forgotten = u64::from(u32::MAX) - 1;
        add_handles(frame.index(), forgotten);
        let clones: Vec<Frame> = (0..4).map(|_| frame.clone()).collect();
        assert_eq!(frame.handles(), forgotten + 5);
        drop(clones);
        let mut bundle = Bundle::new();
        (0..4).for_each(|_| bundle.add(frame.clone()));
        drop(bundle);
        let free = usage().free;
        drop(frame);
        assert_eq!(usage().free, free);
    });
}

#[test]
fn far_memory_gets_no_records_that_there_is_no_room_for() {
    const GIB: u64 = 1 << (30 - PAGE_SHIFT);
    let memory = |frames| {
        [Region {
            start: 0x100,
            end: frames,
            free: true,
            persistent: false,
        }]
    };
    // A record is a 128th of its frame.
    let small = memory(GIB / 8);
    assert!(records_reach(&small, 4 * GIB) && records_reach(&small, 7 * GIB));
    assert!(!records_reach(&small, 9 * GIB));
    let large = memory(2 * GIB);
    assert!(records_reach(&large, 31 * GIB));
    assert!(!records_reach(&large, 33 * GIB), "more than can have any");
    assert!(!records_reach(&large, u64::MAX) && !records_reach(&[], GIB));
}

/// Programs and the kernel take memory from each other, in all orders: pages of programs are never
/// in the direct map, what is the kernel's always is, no frame is lost, and either side can have
/// all that is free.
#[test]
fn frames_change_their_place() {
    let like = Config {
        direct_map: Some(DirectMap::Kernel),
        ..Config::default()
    };
    on_machines_like(
        "frames change their place",
        [1, 2, 4],
        1024,
        20,
        like,
        || {
            let before = usage();
            let together = Arc::new(Together::default());
            for _ in 0..3 {
                together.spawn(|| {
                    let (mut data, mut own) = (Vec::new(), Vec::new());
                    for _ in 0..20 {
                        let count = below(200);
                        match below(4) {
                            0 => data.extend((0..count).map_while(|_| data_frame())),
                            1 => own.extend((0..count).map_while(|_| own_frame())),
                            2 => data.truncate(data.len().saturating_sub(count)),
                            _ => give_own(&mut own, count),
                        }
                    }
                    give_own(&mut own, usize::MAX);
                });
            }
            together.join();
            assert_eq!(usage(), before);
            let data: Vec<Frame> = std::iter::from_fn(data_frame).collect();
            assert!(data.len() > before.free * 9 / 10);
            drop(data);
            let mut own: Vec<u32> = std::iter::from_fn(own_frame).collect();
            assert!(own.len() > before.free * 9 / 10);
            give_own(&mut own, usize::MAX);
            assert_eq!(usage(), before);
        },
    );
}

fn data_frame() -> Option<Frame> {
    let frame = Frame::alloc(Contents::Zeroed).ok()?;
    assert!(!frame.is_direct());
    Some(frame)
}

fn own_frame() -> Option<u32> {
    let index = take_own(Type::Heap).ok()?;
    assert!(record(index).is_direct());
    // SAFETY: it is this test's.
    unsafe { bytes(index).write(1) };
    Some(index)
}

fn give_own(own: &mut Vec<u32>, count: usize) {
    let rest = own.len().saturating_sub(count);
    own.drain(rest..)
        .for_each(|index| give_run(index..index + 1, Type::Heap));
}

/// With a direct map of fixed size, what programs hold and leave of all the memory takes nothing of
/// the kernel's reserve in the direct map; memory is scarce when that is used up, whatever is free
/// outside, and the kernel's own gets all of it.
#[test]
fn the_reserve_is_in_the_direct_map() {
    let like = Config {
        direct_map: Some(DirectMap::First(4)),
        ..Config::default()
    };
    let name = "the reserve is in the direct map";
    on_machines_like(name, [1, 2, 4], 4 * 1024, 10, like, || {
        let before = usage();
        let data: Vec<Frame> = std::iter::from_fn(|| Frame::alloc(Contents::Stale).ok()).collect();
        assert!(data.iter().any(Frame::is_direct), "programs may use it");
        let (direct, outside): (Vec<Frame>, Vec<Frame>) =
            data.into_iter().partition(Frame::is_direct);
        drop(outside);
        drain_for_test();
        assert!(available() > before.free / 2);
        assert!(!is_scarce());
        let reserve = buddy::reserved(Depth::Data);
        let mut own = Vec::new();
        while !is_scarce() {
            own.push(own_frame().expect("the kernel's own while memory is not scarce"));
        }
        // What has begun can end.
        for _ in 0..reserve / 4 {
            own.push(own_frame().expect("the kernel's own in the reserve"));
        }
        assert!(
            take_table(1).is_none(),
            "a page table from the last of the reserve"
        );
        // Programs don't mind.
        assert!(Frame::alloc(Contents::Stale).is_ok_and(|frame| !frame.is_direct()));
        give_own(&mut own, usize::MAX);
        drop(direct);
        assert_eq!(usage(), before);
    });
}

/// Memory that is on its way out of the direct map is free all the same: a task that asks for some
/// meanwhile gets it, a program's page as the kernel's own.
#[test]
fn memory_on_its_way_is_not_missing() {
    let like = Config {
        direct_map: Some(DirectMap::Kernel),
        ..Config::default()
    };
    let name = "memory on its way is not missing";
    on_machines_like(name, [2, 4], 1024, 40, like, || {
        // What CPUs may keep for themselves is no one else's.
        let apart = buddy::reserved(Depth::Data) + 20;
        let left = Arc::new(AtomicUsize::new(available() - apart));
        let together = Arc::new(Together::default());
        for task in 0..4 {
            let left = left.clone();
            together.spawn(move || {
                for _ in 0..12 {
                    let (mut data, mut own) = (Vec::new(), Vec::new());
                    let enough = |left: usize| left.checked_sub(1);
                    let order = Ordering::SeqCst;
                    for _ in 0..below(700) {
                        if left.fetch_update(order, order, enough).is_err() {
                            break;
                        }
                        match task % 2 {
                            0 => data.push(data_frame().expect("a page of a program")),
                            _ => own.push(take_own(Type::Kernel).expect("a page of the kernel")),
                        }
                        assert!(!is_scarce());
                    }
                    let count = data.len() + own.len();
                    drop(data);
                    own.drain(..)
                        .for_each(|index| give_run(index..index + 1, Type::Kernel));
                    left.fetch_add(count, order);
                }
            });
        }
        together.join();
    });
}
