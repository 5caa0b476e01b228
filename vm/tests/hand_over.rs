//! Pages that a program hands to another one at its request (`uvm.txt` 7): what a device writes
//! meanwhile, and memory that was never touched. The random programs of `model` hand pages over,
//! too.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};

use nucleus::{Access, PAGE_SIZE, Prot, VirtAddr, ephemeral, frame, task};
use support::{File, Tasks, file_at, new_map, page, pages, pages_at, zero_at, zero_map};
use vm::{Handing, Limits, Lock, Map, MapError, Movement, set_movement};

const WAYS: [Handing; 2] = [Handing::Lend, Handing::Transfer];
const THERE: VirtAddr = VirtAddr(0x9000_0000);

fn byte(map: &Map, at: VirtAddr) -> u8 {
    support::byte(map, at)
}

fn write(map: &Map, at: VirtAddr, byte: u8) {
    assert_eq!(map.write(at, &[byte; 16]), 16, "{at:?}");
}

/// A device is writing pages of a program when it hands them over: the receiver has all that the
/// device writes, and none is lost.
#[test]
fn a_device_that_writes_is_waited_for() {
    for movement in [Movement::Copy, Movement::Auto] {
        for how in WAYS {
            support::check("device", 0..40, support::on_cpus(2), move || {
                set_movement(movement);
                let (map, to) = (zero_map(pages(0, 3)), new_map());
                (0..3).for_each(|i| write(&map, page(i), 1));
                let held = map.pin(pages(0, 3), Access::Write).expect("memory");
                let tasks = Tasks::new();
                let (theirs, receiver) = (map.clone(), to.clone());
                tasks.spawn(!0, move || {
                    let handed = theirs
                        .hand_over(pages(0, 3), &receiver, None, how, &|| true)
                        .expect("room");
                    for i in 0..3 {
                        let at = handed.at + i * PAGE_SIZE;
                        assert_eq!(byte(&receiver, at), 100, "page {i}");
                        write(&receiver, at, 2);
                    }
                });
                for part in held.parts() {
                    (0..50).for_each(|_| task::yield_now());
                    ephemeral::map(&part.frame).fill(part.offset, part.len, 100);
                }
                drop(held);
                tasks.wait_until(0);
                let expected = if how == Handing::Lend { 100 } else { 0 };
                (0..3).for_each(|i| assert_eq!(byte(&map, page(i)), expected, "page {i}"));
                set_movement(Movement::Auto);
            });
        }
    }
}

/// A device begins to write again and again while pages are lent: a loan does not change, and
/// every loan comes to its end.
#[test]
fn what_a_device_writes_later_reaches_no_borrower() {
    support::check("loans", 0..40, support::on_cpus(2), || {
        let (map, to) = (zero_map(pages(0, 3)), new_map());
        (0..3).for_each(|i| write(&map, page(i), 1));
        to.map(zero_at(pages_at(THERE, 3))).expect("room");
        support::pass_while_a_device_writes(&map, to, THERE, |map, to| {
            map.hand_over(pages(0, 3), to, Some(THERE), Handing::Lend, &|| true)
                .expect("room");
        });
    });
}

/// Memory that was never touched takes no frame on either side, and reads zero in the place of
/// other pages.
#[test]
fn untouched_pages_take_no_memory() {
    const COUNT: usize = 1000;
    support::check("sparse", 0..1, support::machine(2, 2048), || {
        for movement in [Movement::Copy, Movement::Auto] {
            set_movement(movement);
            for how in WAYS {
                for at in [None, Some(THERE)] {
                    let (map, to) = (zero_map(pages(0, COUNT)), new_map());
                    for i in [77, 78, 500] {
                        write(&map, page(i), 7);
                    }
                    if at.is_some() {
                        to.map(zero_at(pages_at(THERE, COUNT))).expect("room");
                        for i in [3, 77, 900] {
                            write(&to, THERE + i * PAGE_SIZE, 9);
                        }
                    }
                    let before = frame::usage().data;
                    let handed = map
                        .hand_over(pages(0, COUNT), &to, at, how, &|| true)
                        .expect("room");
                    assert_eq!(handed.passed + handed.copied, COUNT);
                    let after = frame::usage().data;
                    assert!(after < before + 100, "{} frames", after - before);
                    for (i, there) in [(3, 0), (77, 7), (78, 7), (500, 7), (900, 0)] {
                        assert_eq!(byte(&to, handed.at + i * PAGE_SIZE), there, "page {i}");
                        let here = if how == Handing::Lend { there } else { 0 };
                        assert_eq!(byte(&map, page(i)), here, "page {i}");
                    }
                }
            }
        }
        set_movement(Movement::Auto);
    });
}

/// Untouched pages hide what a file has below their place, and are there where the receiver locks
/// its memory.
#[test]
fn untouched_pages_go_to_any_place() {
    support::once("places", || {
        for how in WAYS {
            let (map, to) = (zero_map(pages(0, 4)), new_map());
            write(&map, page(1), 7);
            to.map(file_at(pages_at(THERE, 4), File::new(1, 4)))
                .expect("room");
            map.hand_over(pages(0, 4), &to, Some(THERE), how, &|| true)
                .expect("room");
            for (i, expected) in [0, 7, 0, 0].into_iter().enumerate() {
                assert_eq!(byte(&to, THERE + i * PAGE_SIZE), expected, "page {i}");
            }
            let to = Map::new(Limits::NONE, vm::Randomness::Nothing).expect("a map");
            to.lock_all(None, Lock::Full).expect("nothing is locked");
            map.hand_over(pages(0, 4), &to, None, how, &|| true)
                .expect("room");
            assert_eq!((to.sizes().locked, to.sizes().resident), (4, 4));
        }
    });
}

/// A receiver that locks all its memory gets as much as it likes: the request ends early for a
/// sender that is killed.
#[test]
fn a_request_ends_early() {
    support::check("early", 0..1, support::machine(2, 2048), || {
        let map = zero_map(pages(0, 1000));
        (0..1000).step_by(50).for_each(|i| write(&map, page(i), 1));
        for how in WAYS {
            let to = Map::new(Limits::NONE, vm::Randomness::Nothing).expect("a map");
            to.lock_all(None, Lock::Full).expect("nothing is locked");
            let asked = AtomicUsize::new(0);
            let most = AtomicUsize::new(0);
            let before = frame::usage().data;
            let goes_on = || {
                most.fetch_max(frame::usage().data - before, Ordering::SeqCst);
                asked.fetch_add(1, Ordering::SeqCst) < 10
            };
            let result = map.hand_over(pages(0, 1000), &to, None, how, &goes_on);
            assert_eq!(result.err(), Some(MapError::Again), "{how:?}");
            assert_eq!(to.sizes().total, 0);
            let most = most.into_inner();
            assert!(most < 600, "{most} frames");
            assert_eq!(byte(&map, page(50)), 1);
        }
        assert!(
            map.entry_at(page(0))
                .is_some_and(|it| it.prot.contains(Prot::WRITE))
        );
    });
}
