//! Memory that is freed lazily, locked, or discarded by one of several sharers.

mod support;

use nucleus::{
    PAGE_SIZE, Prot, frame,
    sim::{self, Config},
    task,
};
use support::{HERE, Numbers, Worker, byte, map_zero, new_map, page, pages, swap, zero_map};
use vm::{Advice, Lock, MapError};

const PAGES: usize = 48;

/// Waits for all writes to swap.
fn settle() {
    for _ in 0..400 {
        task::yield_now();
    }
}

/// Pages written after the advice keep their bytes; others have their old bytes or zeros, and their
/// frames are free for other uses.
fn against_model(seed: u64) {
    let before = frame::usage();
    let mut numbers = Numbers::new(seed);
    let (device, _) = swap::add(seed, 64);
    let map = zero_map(pages(0, PAGES));
    let workers = Worker::on_each(&map, 2);
    // The content of each page, and whether it may be zero by now.
    let mut model = [(0u8, false); PAGES];
    for _ in 0..150 {
        let (first, worker) = (numbers.below(PAGES), numbers.below(2));
        let count = 1 + numbers.below(PAGES - first).min(12);
        let range = pages(first, count.min(PAGES - first));
        let its = first..first + range.len() / PAGE_SIZE;
        match numbers.below(10) {
            0..2 => {
                map.advise(range, Advice::Free).expect("mapped");
                model[its].iter_mut().for_each(|it| it.1 = true);
            }
            2 => {
                map.page_out(range).expect("mapped");
                if numbers.chance(50) {
                    settle();
                }
            }
            3 => {
                map.advise(range, Advice::Cold).expect("mapped");
                map.advise(range, Advice::WillNeed).expect("mapped");
            }
            4 => {
                // A child sees the same content, whatever happens to it here.
                let child = map.fork().expect("a child");
                for i in its {
                    let seen = byte(&child, page(i) + 7);
                    let (expected, maybe_zero) = model[i];
                    assert!(seen == expected || maybe_zero && seen == 0);
                    let again = byte(&map, page(i) + 7);
                    assert_eq!(seen, again, "parent and child differ in page {i}");
                    model[i] = (seen, maybe_zero);
                }
                child.tear_down();
            }
            5..8 => {
                let value = numbers.next() as u8 | 1;
                assert!(workers[worker].write(page(first), vec![value; PAGE_SIZE]));
                model[first] = (value, false);
            }
            _ => {
                for i in its {
                    let bytes = workers[worker].read(page(i), PAGE_SIZE).expect("readable");
                    let (expected, maybe_zero) = model[i];
                    assert!(
                        bytes.iter().all(|&byte| byte == bytes[0]),
                        "page {i} is torn"
                    );
                    assert!(
                        bytes[0] == expected || maybe_zero && bytes[0] == 0,
                        "page {i} is {:#x} in place of {expected:#x}",
                        bytes[0]
                    );
                    if bytes[0] == 0 {
                        model[i].0 = 0;
                    }
                }
            }
        }
    }
    // Unwritten pages are dropped without a write to swap.
    map.advise(pages(0, PAGES), Advice::Free).expect("mapped");
    map.page_out(pages(0, PAGES)).expect("mapped");
    settle();
    assert_eq!(frame::usage().data, before.data, "lazily freed frames");
    swap::expect_empty();
    workers.into_iter().for_each(Worker::end);
    drop(map);
    swap::remove(device);
}

#[test]
fn lazily_freed_pages_are_whole_or_zero() {
    support::check("lazy", 0..12, Config::default(), || {
        against_model(sim::random_u64());
    });
}

#[test]
fn locked_pages_stay_resident() {
    support::check("kept", 0..1, Config::default(), || {
        let (device, _) = swap::add(1, 64);
        let map = new_map();
        for (i, shared) in [(0, false), (8, true), (16, false)] {
            map_zero(&map, pages(i, 8), shared);
        }
        let all = pages(0, 24);
        map.populate(all).expect("memory");
        map.lock(pages(2, 8), Lock::Full).expect("no limit");
        assert_eq!(map.advise(all, Advice::PageOut), Err(MapError::Invalid));
        assert_eq!(map.advise(all, Advice::Free), Err(MapError::Invalid));
        map.page_out(all).expect("mapped");
        settle();
        let mut resident = Vec::new();
        map.resident(all, &mut |is| resident.push(is))
            .expect("mapped");
        let expected: Vec<_> = (0..24).map(|i| (2..10).contains(&i)).collect();
        assert_eq!(resident, expected);
        // A second mapping that is not locked does not undo the lock.
        let child = map.fork().expect("a child");
        child.populate(pages(8, 8)).expect("memory");
        child.page_out(pages(8, 8)).expect("mapped");
        settle();
        map.lock(all, Lock::None).expect("mapped");
        map.page_out(all).expect("mapped");
        settle();
        map.resident(all, &mut |is| assert!(!is)).expect("mapped");
        map.advise(all, Advice::WillNeed).expect("mapped");
        map.resident(all, &mut |is| assert!(is)).expect("mapped");
        drop((map, child));
        swap::remove(device);
    });
}

#[test]
fn pages_of_shared_memory_can_be_removed() {
    support::check("removed", 0..1, Config::default(), || {
        let map = new_map();
        map_zero(&map, pages(0, 4), true);
        map_zero(&map, pages(8, 4), false);
        map.write(HERE, &[7; 4 * PAGE_SIZE]);
        let child = map.fork().expect("a child");
        child
            .advise(pages(1, 2), Advice::Remove)
            .expect("shared and writable");
        let mut bytes = vec![1; 4 * PAGE_SIZE];
        map.read(HERE, &mut bytes);
        for (i, expected) in [7, 0, 0, 7].into_iter().enumerate() {
            assert_eq!(bytes[i * PAGE_SIZE], expected);
        }
        map.protect(pages(0, 1), Prot::READ).expect("mapped");
        for (i, error) in [
            (8, MapError::Invalid),
            (0, MapError::Access),
            (4, MapError::NotMapped),
        ] {
            assert_eq!(map.advise(pages(i, 1), Advice::Remove), Err(error));
        }
    });
}
