//! Out of memory: every allocation of a frame fails once, in turn. The operation under way must
//! leave the address spaces as the model has them and succeed when it is retried, and nothing may
//! leak.

mod support;

use std::sync::Arc;

use nucleus::{
    Access, PAGE_SIZE, Prot, VirtAddr,
    frame::{self, fail_after},
    sim,
};
use support::{File, HERE, on_cpus, pages_at, zero_at, zero_map};
use vm::{Advice, Backing, Fault, Limits, Map, MapError, MapRequest, Place};

const FILE: VirtAddr = VirtAddr(0x20_0000_0000);
const SHARED: VirtAddr = VirtAddr(0x30_0000_0000);
const STACK: VirtAddr = VirtAddr(0x40_0000_0000);
const MOVED: VirtAddr = VirtAddr(0x50_0000_0000);

/// Retries until it succeeds: the injection ends at the first failure.
fn insist<T, E: PartialEq + std::fmt::Debug>(
    no_memory: E,
    mut step: impl FnMut() -> Result<T, E>,
) -> T {
    match step() {
        Ok(value) => value,
        Err(error) => {
            assert_eq!(error, no_memory);
            fail_after(None);
            step().expect("memory enough")
        }
    }
}

fn place(map: &Map, at: VirtAddr, count: usize, change: impl Fn(&mut MapRequest)) {
    insist(MapError::NoMemory, || {
        let mut request = zero_at(pages_at(at, count));
        change(&mut request);
        map.map(request)
    });
}

fn write(map: &Map, at: VirtAddr, byte: u8) {
    // A short write means that memory ran out.
    insist(0, || match map.write(at, &[byte; 64]) {
        64 => Ok(()),
        n => Err(n),
    });
}

#[track_caller]
fn expect(map: &Map, at: VirtAddr, byte: u8) {
    let mut bytes = [0; 64];
    insist(0, || match map.read(at, &mut bytes) {
        64 => Ok(()),
        n => Err(n),
    });
    assert_eq!(bytes, [byte; 64], "at {at:?}");
}

fn fork(map: &Arc<Map>) -> Arc<Map> {
    insist(MapError::NoMemory, || map.fork())
}

fn page(base: VirtAddr, i: usize) -> VirtAddr {
    base + i * PAGE_SIZE
}

/// A sequence of all operations that allocate.
fn life(file: &Arc<File>) {
    let map = insist(MapError::NoMemory, || {
        Map::new(Limits::NONE, vm::Randomness::Everything)
    });
    place(&map, HERE, 6, |_| {});
    for i in 0..6 {
        write(&map, page(HERE, i), i as u8 + 1);
    }
    let child = fork(&map);
    for i in 0..3 {
        write(&map, page(HERE, i), 0x10);
        expect(&child, page(HERE, i), i as u8 + 1);
    }
    write(&child, page(HERE, 5), 0x20);
    expect(&map, page(HERE, 5), 6);

    place(&map, FILE, 4, |request| {
        request.backing = Backing::Object {
            pager: file.clone(),
            offset: 0,
        };
    });
    expect(&map, page(FILE, 1), File::byte(3, 1));
    write(&map, page(FILE, 1), 0x30);
    write(&map, page(FILE, 2), 0x31);
    let second = fork(&map);
    write(&second, page(FILE, 1), 0x32);
    expect(&map, page(FILE, 1), 0x30);
    expect(&second, page(FILE, 2), 0x31);

    place(&map, SHARED, 3, |request| request.shared = true);
    write(&map, page(SHARED, 2), 0x40);
    let third = fork(&map);
    write(&third, page(SHARED, 0), 0x41);
    expect(&map, page(SHARED, 0), 0x41);
    expect(&third, page(SHARED, 2), 0x40);

    place(&map, STACK, 2, |request| request.grows_down = true);
    let deep = STACK - 9 * PAGE_SIZE;
    write(&map, deep, 0x50);
    expect(&map, deep, 0x50);

    // The middle of a shared amap: clipping must copy the amap first.
    let middle = pages_at(page(HERE, 2), 2);
    let fourth = fork(&map);
    insist(MapError::NoMemory, || map.protect(middle, Prot::READ));
    insist(MapError::NoMemory, || second.unmap(middle));
    let tail = pages_at(page(HERE, 4), 2);
    insist(MapError::NoMemory, || {
        map.remap(tail, 5 * PAGE_SIZE, true, Place::Fixed(MOVED), false)
    });
    expect(&map, MOVED, 5);
    expect(&map, page(MOVED, 1), 6);
    write(&map, page(MOVED, 4), 0x60);
    expect(&fourth, page(HERE, 4), 5);
    expect(&fourth, page(HERE, 2), 0x10);
    insist(MapError::NoMemory, || {
        fourth.advise(middle, Advice::DontNeed)
    });
    expect(&fourth, page(HERE, 2), 0);
    expect(&map, page(HERE, 2), 0x10);
    map.set_heap_start(VirtAddr(0x100_0000));
    let start = map.heap().start;
    insist(start, || match map.set_break(start + 3 * PAGE_SIZE) {
        end if end == start + 3 * PAGE_SIZE => Ok(()),
        end => Err(end),
    });
    write(&map, start + 2 * PAGE_SIZE, 0x70);

    // All that was written is there, in each of them.
    for (i, byte) in [0x10, 0x10, 0x10, 4].into_iter().enumerate() {
        expect(&map, page(HERE, i), byte);
    }
    for i in 0..5 {
        expect(&child, page(HERE, i), i as u8 + 1);
    }
    expect(&child, page(HERE, 5), 0x20);
    expect(&second, page(HERE, 1), 0x10);
    expect(&second, page(HERE, 5), 6);
    for map in [map, child, second, third, fourth] {
        map.tear_down();
    }
}

#[test]
fn every_allocation_fails_once() {
    sim::check("every allocation", 0..1, on_cpus(1), || {
        let mut allocations = 0;
        for n in 0.. {
            let before = frame::usage();
            let file = File::new(3, 4);
            fail_after(Some(n));
            life(&file);
            // The injection is over if it struck.
            let struck = !frame_alloc_fails_later();
            fail_after(None);
            drop(file);
            support::expect_all_back(before);
            if !struck {
                allocations = n;
                break;
            }
        }
        assert!(allocations > 40, "only {allocations} allocations to fail");
    });
}

/// Returns whether the injection has not struck yet: further allocations would trigger it.
fn frame_alloc_fails_later() -> bool {
    let mut held = Vec::new();
    for _ in 0..400 {
        match nucleus::Frame::alloc(frame::Contents::Stale) {
            Ok(frame) => held.push(frame),
            Err(_) => return true,
        }
    }
    false
}

#[test]
fn memory_runs_out_and_comes_back() {
    support::check("out of memory", 0..3, support::machine(2, 700), || {
        let before = frame::usage();
        let pages = before.total - 1;
        let map = zero_map(pages_at(HERE, pages));
        let too_much = MapRequest::zero((before.total + 1) * PAGE_SIZE, support::RW);
        let refused = map.map(too_much);
        assert!(before.total < 1024 || refused == Err(MapError::NoMemory));
        let mut touched = 0;
        let fault = loop {
            match map.fault(page(HERE, touched), Access::Write) {
                Ok(()) => touched += 1,
                Err(fault) => break fault,
            }
        };
        assert_eq!(fault, Fault::OutOfMemory);
        assert!(touched > pages / 2, "only {touched} of {pages} pages");
        // Operations that use the kernel's reserve may succeed or fail; nothing breaks.
        if let Ok(child) = map.fork() {
            child.tear_down();
        }
        expect(&map, page(HERE, touched - 1), 0);
        let half = pages_at(HERE, touched / 2);
        map.advise(half, Advice::DontNeed).expect("mapped");
        map.fault(page(HERE, touched), Access::Write)
            .expect("memory again");
        map.fork().expect("memory again").tear_down();
        map.tear_down();
    });
}
