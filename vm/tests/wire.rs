//! Locked memory, and memory that is pinned for a device.

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use nucleus::{
    Access, PAGE_SIZE, Prot, VirtAddr, VirtRange, addr::USER_END, ephemeral, pmap, sim, task,
};
use support::{HERE, Tasks, page, pages, zero_at};
use vm::{Advice, Fault, Limits, Lock, Map, MapError, Place};

fn place(map: &Map, range: VirtRange) -> Result<VirtAddr, MapError> {
    map.map(zero_at(range))
}

fn limited(pages: usize) -> Arc<Map> {
    let limits = Limits {
        locked: (pages * PAGE_SIZE) as u64,
        ..Limits::NONE
    };
    Map::new(limits, vm::Randomness::Nothing).expect("a map")
}

#[test]
fn only_locking_splits_entries_and_unlocking_joins_them() {
    support::once("parts", || {
        let map = limited(100);
        place(&map, pages(0, 20)).expect("room");
        map.lock(pages(5, 3), Lock::Full).expect("within the limit");
        map.populate(pages(5, 3)).expect("memory");
        assert_eq!((map.sizes().entries, map.sizes().locked), (3, 3));
        for va in pages(5, 3).pages() {
            let (frame, prot) = map.pmap().extract(va).expect("it was brought in");
            assert!(pmap::is_wired(&frame) && prot.contains(Prot::WRITE));
        }
        // Pins do not show in entries.
        let held = map.pin(pages(0, 20), Access::Write).expect("memory");
        assert_eq!(map.sizes().entries, 3);
        drop(held);
        map.lock(pages(0, 20), Lock::None).expect("mapped");
        assert_eq!((map.sizes().entries, map.sizes().locked), (1, 0));
        map.lock(pages(18, 4), Lock::OnFault)
            .expect_err("a part of it is not mapped");
        assert_eq!(map.sizes().locked, 2);
        drop(map);
    });
}

/// A failed pin leaves no waiter.
#[test]
fn a_fork_does_not_wait_for_failed_pins() {
    support::once("not-held", || {
        let map = limited(1);
        place(&map, pages(0, 3)).expect("room");
        // More than any list has room for, and what is not mapped.
        for range in [VirtRange::new(VirtAddr(0), USER_END), pages(3, 2)] {
            assert!(map.pin(range, Access::Write).is_err());
            map.fork().expect("memory").tear_down();
        }
        // As far as it is mapped, also behind others.
        let mut held = map.pin(pages(1, 4), Access::Write).expect("memory");
        assert_eq!(held.len(), 2 * PAGE_SIZE);
        assert_eq!(held.add(pages(2, 4)), Ok(PAGE_SIZE));
        assert_eq!(held.add(pages(4, 1)), Err(Fault::NotMapped));
        assert_eq!((held.len(), held.parts().len()), (3 * PAGE_SIZE, 3));
        drop(held);
        map.fork().expect("memory").tear_down();
    });
}

#[test]
fn the_limit_holds_for_all_that_grows() {
    support::once("limit", || {
        let map = limited(10);
        place(&map, pages(0, 20)).expect("room");
        assert_eq!(map.lock(pages(0, 11), Lock::Full), Err(MapError::Again));
        map.lock(pages(0, 8), Lock::Full).expect("within the limit");
        // Pages that are locked already do not count twice.
        map.lock(pages(2, 8), Lock::OnFault)
            .expect("within the limit");
        assert_eq!(map.sizes().locked, 10);
        map.lock(pages(2, 2), Lock::None).expect("mapped");
        map.lock_all(None, Lock::Full)
            .expect("nothing is locked by this");
        assert_eq!(place(&map, pages(30, 3)), Err(MapError::Again));
        place(&map, pages(30, 2)).expect("within the limit");
        let (frame, _) = map.pmap().extract(page(31)).expect("it was brought in");
        assert!(pmap::is_wired(&frame));
        drop(frame);
        let at_limit = map.remap(pages(30, 2), 3 * PAGE_SIZE, true, Place::Any, false);
        assert_eq!(at_limit, Err(MapError::Again));
        map.set_heap_start(HERE + 100 * PAGE_SIZE);
        let heap = map.heap();
        assert_eq!(
            map.set_break(heap.start + PAGE_SIZE),
            heap.end,
            "no heap beyond the limit"
        );
        map.set_lock_privilege(true);
        assert_ne!(map.set_break(heap.start + PAGE_SIZE), heap.end);
        assert!(
            map.pmap()
                .extract(heap.start.page_ceil().unwrap())
                .is_some()
        );
        assert!(map.lock_all(Some(Lock::Full), Lock::None).is_ok());
        map.set_lock_privilege(false);
        map.lock_all(Some(Lock::None), Lock::None)
            .expect("to unlock is free");
        assert_eq!(map.sizes().locked, 0);
        assert_eq!(
            map.lock_all(Some(Lock::Full), Lock::None),
            Err(MapError::NoMemory)
        );
    });
}

#[test]
fn a_child_has_nothing_locked_and_the_parent_keeps_it() {
    support::once("child", || {
        let map = limited(10);
        place(&map, pages(0, 4)).expect("room");
        map.lock(pages(0, 4), Lock::Full).expect("within the limit");
        map.populate(pages(0, 4)).expect("memory");
        let child = map.fork().expect("a child");
        assert_eq!((child.sizes().locked, map.sizes().locked), (0, 4));
        child.write(page(1), b"child");
        let (theirs, _) = child.pmap().extract(page(1)).expect("written");
        assert!(!pmap::is_wired(&theirs));
        map.write(page(2), b"parent");
        for va in pages(0, 4).pages() {
            let (ours, _) = map.pmap().extract(va).expect("it stays");
            assert!(pmap::is_wired(&ours));
        }
        assert_eq!(
            map.advise(pages(0, 4), Advice::DontNeed),
            Err(MapError::Invalid)
        );
        map.advise(pages(0, 4), Advice::DontNeedLocked)
            .expect("if it says so");
    });
}

/// Threads that pin pages in turn, so that some always are, do not keep a fork waiting.
#[test]
fn a_fork_gets_its_turn_among_pins() {
    sim::check("turns", 0..10, support::on_cpus(2), || {
        let map = limited(0);
        place(&map, pages(0, 3)).expect("room");
        let stop = Arc::new(AtomicBool::new(false));
        let pinned = Arc::new(AtomicUsize::new(0));
        let tasks = Tasks::new();
        for _ in 0..3 {
            let (map, stop, pinned) = (map.clone(), stop.clone(), pinned.clone());
            tasks.spawn(!0, move || {
                while !stop.load(Ordering::SeqCst) {
                    let held = map.pin(pages(0, 3), Access::Write).expect("memory");
                    pinned.fetch_add(1, Ordering::SeqCst);
                    for _ in 0..10 {
                        task::yield_now();
                    }
                    drop(held);
                }
            });
        }
        for _ in 0..4 {
            while pinned.load(Ordering::SeqCst) < 3 {
                task::yield_now();
            }
            pinned.store(0, Ordering::SeqCst);
            map.fork().expect("memory").tear_down();
            let passed = pinned.load(Ordering::SeqCst);
            assert!(passed < 60, "{passed} pins came before the fork");
        }
        stop.store(true, Ordering::SeqCst);
        tasks.wait_until(0);
    });
}

/// A device writes while the program forks and both processes write: the device's bytes are the
/// parent's.
#[test]
fn device_writes_belong_to_the_program() {
    sim::check("device", 0..40, support::on_cpus(2), || {
        let map = limited(0);
        place(&map, pages(0, 3)).expect("room");
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, stopped) = (map.clone(), stop.clone());
        Tasks::new().spawn(!0, move || {
            while !stopped.load(Ordering::SeqCst) {
                let child = theirs.fork().expect("a child");
                child.write(page(1), &[0xee; 8]);
                task::yield_now();
            }
        });
        for round in 0..20u8 {
            let range = VirtRange::new(HERE + 100, HERE + 2 * PAGE_SIZE + 50);
            let held = map.pin(range, Access::Write).expect("memory");
            let parts = held.parts();
            assert_eq!(parts.len(), 3);
            assert_eq!(
                parts.iter().map(|part| part.len).sum::<usize>(),
                range.len()
            );
            // Meanwhile the program writes beside it.
            map.write(HERE, &[round; 100]);
            task::yield_now();
            for part in parts {
                ephemeral::map(&part.frame).fill(part.offset, part.len, round + 100);
                task::yield_now();
            }
            drop(held);
            let mut bytes = vec![0; range.len() + 100];
            assert_eq!(map.read(HERE, &mut bytes), bytes.len());
            assert!(bytes[..100].iter().all(|&byte| byte == round));
            assert!(
                bytes[100..].iter().all(|&byte| byte == round + 100),
                "round {round}"
            );
        }
        stop.store(true, Ordering::SeqCst);
    });
}
