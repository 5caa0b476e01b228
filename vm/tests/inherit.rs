//! What children inherit (`minherit`): shared private memory, and copies of shared memory.

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use nucleus::{Access, Prot, ephemeral, frame, task};
use support::{File, HERE, Tasks, Worker, file_at, new_map, page, pages, zero_map};
use vm::{Advice, Inherit, Map, MapError, Passing, Place};

fn byte(map: &Map, i: usize) -> u8 {
    support::byte(map, page(i))
}

fn write(map: &Map, i: usize, byte: u8) {
    assert_eq!(map.write(page(i), &[byte; 16]), 16);
}

/// Returns a map of `count` private pages that children share.
fn shared(count: usize) -> Arc<Map> {
    let map = zero_map(pages(0, count));
    map.inherit(pages(0, count), Inherit::Share)
        .expect("mapped");
    map
}

#[test]
fn no_page_stays_allocated_out_of_reach() {
    support::once("reach", || {
        let before = frame::usage().data;
        let map = shared(16);
        for i in 0..16 {
            write(&map, i, i as u8);
        }
        let (a, b) = (map.fork().expect("a child"), map.fork().expect("a child"));
        let used = || frame::usage().data - before;
        assert_eq!(used(), 16);
        map.unmap(pages(0, 8)).expect("mapped");
        a.unmap(pages(4, 8)).expect("mapped");
        assert_eq!(used(), 16, "the second child has them all");
        b.unmap(pages(2, 8)).expect("mapped");
        // The parts left: 8..16; 0..4 and 12..16; 0..2 and 10..16.
        assert_eq!(used(), 12);
        b.protect(pages(12, 2), Prot::READ).expect("mapped");
        drop(map);
        // 0..4 and 12..16; 0..2 and 10..16.
        assert_eq!(used(), 10);
        drop(b);
        assert_eq!(used(), 8);
        assert_eq!((byte(&a, 3), byte(&a, 13)), (3, 13));
        drop(a);
        assert_eq!(used(), 0);
    });
}

#[test]
fn a_private_file_mapping_is_shared_with_its_writes() {
    support::once("file", || {
        let map = new_map();
        map.map(file_at(pages(0, 4), File::new(1, 4)))
            .expect("room");
        write(&map, 0, 9);
        map.inherit(pages(0, 4), Inherit::Share).expect("mapped");
        let child = map.fork().expect("a child");
        // Both read the file's page before one of them writes.
        let original = byte(&map, 1);
        assert_eq!((byte(&child, 1), byte(&child, 0)), (original, 9));
        write(&child, 1, 77);
        assert_eq!(byte(&map, 1), 77);
        // A copy has the content of the moment of the fork.
        map.inherit(pages(0, 4), Inherit::Copy).expect("mapped");
        let copy = map.fork().expect("a child");
        write(&child, 1, 78);
        write(&copy, 0, 1);
        assert_eq!(
            (byte(&map, 1), byte(&child, 1), byte(&copy, 1)),
            (78, 78, 77)
        );
        assert_eq!((byte(&map, 0), byte(&child, 0), byte(&copy, 0)), (9, 9, 1));
        // Discarding shared pages removes their mappings only.
        map.advise(pages(0, 4), Advice::DontNeed).expect("mapped");
        assert_eq!(byte(&map, 1), 78);
        assert_eq!(
            map.advise(pages(0, 1), Advice::Free),
            Err(MapError::Invalid)
        );
    });
}

/// A device writes pages for one program while another one that shares them makes copies: those
/// keep the bytes of their moment, and the sharers get what the device writes.
#[test]
fn a_copy_does_not_show_what_a_device_writes_for_a_sharer() {
    support::check("device", 0..10, support::on_cpus(2), || {
        let map = shared(3);
        (0..3).for_each(|i| write(&map, i, 1));
        let sharer = map.fork().expect("a child");
        let held = map.pin(pages(0, 2), Access::Write).expect("memory");
        sharer.inherit(pages(0, 3), Inherit::Copy).expect("mapped");
        let copy = sharer.fork().expect("a copy");
        let other = new_map();
        sharer
            .pass_entries(
                pages(0, 3),
                &other,
                Place::Fixed(HERE),
                Passing::Copy,
                &|| true,
            )
            .expect("room");
        for part in held.parts() {
            ephemeral::map(&part.frame).fill(part.offset, part.len, 100);
        }
        drop(held);
        for i in 0..3 {
            let common = if i < 2 { 100 } else { 1 };
            assert_eq!((byte(&copy, i), byte(&other, i)), (1, 1), "page {i}");
            assert_eq!((byte(&map, i), byte(&sharer, i)), (common, common), "{i}");
        }
    });
}

/// Parents, children and grandchildren write beside each other while copies are made of the shared
/// memory: no write is lost, and each copy shows one moment of every page.
#[test]
fn no_write_is_lost_to_a_copy() {
    const WRITERS: usize = 3;
    const ROUNDS: u8 = 30;
    support::check("sharers", 0..25, support::on_cpus(4), || {
        let first = shared(2);
        let second = first.fork().expect("a child");
        let third = second.fork().expect("a grandchild");
        let maps = [first, second, third];
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, stopped) = (maps[0].clone(), stop.clone());
        let tasks = Tasks::new();
        tasks.spawn(!0, move || {
            while !stopped.load(Ordering::SeqCst) {
                theirs.inherit(pages(0, 1), Inherit::Copy).expect("mapped");
                let copy = theirs.fork().expect("a child");
                theirs.inherit(pages(0, 1), Inherit::Share).expect("mapped");
                write(&copy, 0, 0xee);
                task::yield_now();
                assert_eq!(byte(&copy, 0), 0xee);
            }
        });
        let workers: Vec<_> = (0..WRITERS).map(|i| Worker::new(&maps[i], i + 1)).collect();
        let place = |i: usize| HERE + 64 * i + 8;
        for round in 1..ROUNDS {
            for (i, worker) in workers.iter().enumerate() {
                assert!(worker.write(place(i), vec![round; 8]));
            }
            for (i, worker) in workers.iter().enumerate() {
                for other in 0..WRITERS {
                    let bytes = worker.read(place(other), 8);
                    assert_eq!(bytes, Some(vec![round; 8]), "{i} sees what {other} wrote");
                }
            }
        }
        stop.store(true, Ordering::SeqCst);
        tasks.wait_until(0);
        workers.into_iter().for_each(Worker::end);
    });
}
