//! Domains by themselves: the list of them, their tables, devices that are given up.

use core::slice;
use std::vec::Vec;

use super::tables::{self, ENTRIES, Table};
use super::*;
use crate::PAGE_SHIFT;
use crate::dma::{self, Addresses, Part};
use crate::frame::{self, Contents, DirectMap, record::Type};
use crate::hw::iommu::Entry;
use crate::hw::sim::{device_read, device_write, invalidations, iommu_reserved};
use crate::sim::{Config, Together, below, on_machines_like};

fn machines(
    name: &str,
    policy: Policy,
    seeds: u64,
    body: impl Fn() + Send + Sync + Clone + 'static,
) {
    let like = Config {
        iommu: Some(policy),
        ..Config::default()
    };
    on_machines_like(name, [1, 3], 1024, seeds, like, body);
}

/// A device reaches all memory that the firmware reserves for it, also when others are attached.
#[test]
fn a_device_reaches_what_it_uses_for_the_firmware() {
    for policy in [Policy::Open, Policy::Strict] {
        machines("firmware", policy, 10, reserved);
    }
}

fn reserved() {
    let look = |device: Device, like: Device| {
        let mut all = true;
        iommu_reserved(like, |start, end| {
            for page in start.frame_number()..end.frame_number() {
                all &= device_read(device.0, page << PAGE_SHIFT, &mut [0]);
            }
        });
        all
    };
    let mut domains = Vec::new();
    // Those with odd numbers have no such memory; units may remember that there is none.
    for device in [1, 3, 0, 2].map(Device) {
        domains.push(Domain::new(device).unwrap());
        if device.0 % 2 == 1 {
            look(device, Device(0));
        }
    }
    for domain in &domains {
        let device = domain.device();
        let reaches = look(device, device);
        assert!(reaches, "it does not reach reserved memory");
    }
}

/// A device before which no unit stands, or that units can't tell from others, gets no domain, and
/// takes nothing from others.
#[test]
fn a_device_without_a_number_at_a_unit_gets_no_domain() {
    no_domain(0xff01, AttachError::NoUnit);
    no_domain(0xfe01, AttachError::SharedNumber);
}

fn no_domain(place: u16, wanted: AttachError) {
    for policy in [Policy::Open, Policy::Strict] {
        machines("no domain", policy, 3, move || {
            let kernel = frame::usage().kernel;
            for _ in 0..300 {
                let error = Domain::new(Device(place)).err();
                assert_eq!(error, Some(wanted));
            }
            assert!(!any());
            // No unit holds a translation, so none is invalidated.
            let before = invalidations();
            let heap = frame::take_own(Type::Heap).unwrap();
            assert_eq!(invalidations(), before);
            frame::give_run(heap..heap + 1, Type::Heap);
            assert_eq!(frame::usage().kernel, kernel);
            let domain = Domain::new(Device(1)).unwrap();
            assert!(!domain.is_revoked());
        });
    }
}

/// A walk along all domains meets each that lives all the time, while others come and go.
#[test]
fn no_domain_is_passed_over_while_others_come_and_go() {
    machines("walk", Policy::Strict, 3, walk);
}

fn walk() {
    let ended = Domain::new(Device(1)).unwrap();
    let live = [2, 3].map(|n| Domain::new(Device(n)).unwrap());
    drop(ended);
    let (mut seen, mut new) = (Vec::new(), Vec::new());
    each(|domain| {
        seen.push(domain.device());
        if new.is_empty() {
            new.push(Domain::new(Device(4)).unwrap());
        }
    });
    for domain in &live {
        assert!(seen.contains(&domain.device()), "only {seen:?}");
    }
}

/// A task that finds a device given up, by any of its queues, finds that it reaches nothing.
#[test]
fn a_device_that_is_given_up_reaches_nothing() {
    for policy in [Policy::Open, Policy::Strict] {
        machines("given up", policy, 40, given_up);
    }
}

fn given_up() {
    let domain = Domain::new(Device(2)).unwrap();
    let frame = Frame::alloc(Contents::Zeroed).unwrap();
    let at = domain.map_lasting(&frame, true, true).unwrap();
    assert!(device_write(2, at, &[1]));
    let together = Arc::new(Together::default());
    for queue in 0..3 {
        let domain = domain.clone();
        together.spawn(move || {
            let is_known = match queue {
                0 => domain.is_revoked(),
                _ => domain.revoke(),
            };
            let reaches = device_write(2, at, &[2]);
            assert!(!is_known || !reaches, "it reaches memory still");
        });
    }
    together.join();
    assert!(domain.is_revoked());
}

/// The detachment of a device invalidates all of its domain: nothing is invalidated again.
#[test]
fn a_domain_that_ends_is_invalidated_once() {
    machines("end", Policy::Strict, 10, || {
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        for is_revoked in [false, true] {
            let domain = Domain::new(Device(2)).unwrap();
            let at = domain.map_lasting(&frame, true, true).unwrap();
            assert!(device_write(2, at, &[1]));
            let before = invalidations();
            if is_revoked {
                domain.revoke();
            }
            drop(domain);
            assert_eq!(invalidations(), before);
            assert!(!device_write(2, at, &[1]));
        }
    });
}

/// Frames that are mapped together lie in a row, up to the end of the window; what is left follows
/// at its beginning. The device reaches each until the request is done, and none is free before.
#[test]
fn frames_are_mapped_in_runs_around_the_window() {
    machines("runs", Policy::Strict, 10, runs);
}

fn runs() {
    let domain = Domain::new(Device(2)).unwrap();
    let strict = domain.strict().unwrap();
    let window = strict.add_window().unwrap();
    let alloc = || Frame::alloc(Contents::Zeroed).unwrap();
    let frames: [_; 7] = core::array::from_fn(|_| alloc());
    fn some(frame: &Frame) -> Option<&Frame> {
        Some(frame)
    }
    let mut next = 0;
    for round in 0..WINDOW_PAGES / 4 {
        let frames = &frames[..1 + round % frames.len()];
        if !window.has_room(frames.len()) {
            strict.flush(Counter::iotlb_ring_full);
        }
        let (mut rest, mut pages) = (frames, Vec::new());
        while !rest.is_empty() {
            let (page, _, count) = window.map(rest, some, true, true);
            assert_eq!(page % ENTRIES, next);
            assert_eq!(count, rest.len().min((ENTRIES - next) as usize));
            next = (next + count as u64) % ENTRIES;
            pages.extend(page..page + count as u64);
            rest = &rest[count..];
        }
        strict.give(&window, frames.len());
        for (page, frame) in pages.into_iter().zip(frames) {
            assert!(frame::is_held_data(frame.index(), 0));
            assert!(device_write(2, page << PAGE_SHIFT, &[round as u8]));
            let mut byte = [0];
            crate::ephemeral::map(frame).read(0, &mut byte);
            assert_eq!(byte, [round as u8]);
        }
        strict.take(&window);
    }
    strict.flush(Counter::iotlb_other);
    for frame in frames {
        assert!(!frame::is_held_data(frame.index(), 0));
    }
}

/// A block, or some pages of one, is in a row for a device, wherever in the table; after its
/// request and an invalidation none of it is reached, and it is free.
#[test]
fn blocks_are_mapped_in_a_row() {
    machines("blocks", Policy::Strict, 10, blocks);
}

fn blocks() {
    let domain = Domain::new(Device(2)).unwrap();
    let strict = domain.strict().unwrap();
    let window = strict.add_window().unwrap();
    let count = || {
        let [mapped, unmapped] = [Counter::iommu_pages_mapped, Counter::iommu_pages_unmapped];
        mapped.total() - unmapped.total()
    };
    let (before, mapped) = (frame::usage().data, count());
    let mut old = Vec::new();
    for round in 0..300 {
        let order = below(4);
        let Ok(block) = Frame::alloc_block(order, Contents::Zeroed) else {
            assert!(order > 0, "no frame");
            assert_ne!(frame::direct_map(), DirectMap::All, "no block");
            continue;
        };
        let (frames, size) = (block.frames(), block.size());
        let first = below(frames);
        let part = match below(2) {
            0 => Part::all(block.clone()),
            _ => Part::new(
                block.clone(),
                first << PAGE_SHIFT,
                size - (first << PAGE_SHIFT),
            ),
        };
        let needed = dma::addresses_of(slice::from_ref(&part));
        if !window.has_room(needed) {
            strict.flush(Counter::iotlb_ring_full);
            old.clear();
        }
        let mut addresses = Addresses::new(&domain, Some(&window), needed).unwrap();
        let extent = addresses.of(slice::from_ref(&part), true);
        addresses.give();
        assert_eq!(extent.len as usize, part.len);
        let bytes = std::vec![round as u8; part.len];
        assert!(device_write(2, extent.address, &bytes));
        let mut found = bytes.clone();
        crate::ephemeral::map(&block).read(part.offset, &mut found);
        assert_eq!(found, bytes);
        assert_eq!(
            audit(|frame| panic!("{frame:#x} is reached")),
            part.len >> PAGE_SHIFT
        );
        let data = frame::usage().data;
        drop((block, part));
        strict.take(&window);
        assert_eq!(frame::usage().data, data, "reused too early");
        old.push(extent.address);
        if below(20) == 0 {
            strict.flush(Counter::iotlb_batch);
            old.drain(..)
                .for_each(|at| assert!(!device_write(2, at, &[1])));
            assert_eq!(frame::usage().data, before, "blocks did not come back");
        }
    }
    strict.flush(Counter::iotlb_other);
    assert_eq!((frame::usage().data, count()), (before, mapped));
}

/// A flush is for the addresses that were stale when it began: it ends, though others become stale.
#[test]
fn a_flush_ends_whatever_ends_meanwhile() {
    const WINDOWS: usize = 300;
    machines("flush", Policy::Strict, 10, || {
        let domain = Domain::new(Device(2)).unwrap();
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let strict = domain.strict().unwrap();
        let windows: Vec<_> = (0..WINDOWS)
            .map_while(|_| strict.add_window().ok())
            .collect();
        assert_eq!(windows.len(), WINDOWS);
        let use_one = |domain: &Domain, frame: &Frame, window: &Window| {
            let strict = domain.strict().unwrap();
            if window.has_room(1) {
                window.map_pages(frame, 0, 1, (true, false));
                strict.give(window, 1);
                strict.take(window);
            }
        };
        windows.iter().for_each(|it| use_one(&domain, &frame, it));
        let together = Arc::new(Together::default());
        together.spawn({
            let (domain, frame, first) = (domain.clone(), frame.clone(), windows[0].clone());
            move || {
                for _ in 0..200 {
                    use_one(&domain, &frame, &first);
                    crate::task::yield_now();
                }
            }
        });
        let count = || Counter::iotlb_batch.total();
        let before = count();
        for done in 1..=5 {
            strict.flush(Counter::iotlb_batch);
            assert!(count() - before <= 3 * done, "{}", count() - before);
        }
        together.join();
        strict.flush(Counter::iotlb_other);
        assert_eq!(strict.stale(), 0);
    });
}

/// A page that a tree has no entry for is none: it is not one of those at the indices that it has.
#[test]
fn pages_beyond_a_tree_are_not_in_it() {
    machines("beyond", Policy::Strict, 1, beyond);
}

fn beyond() {
    let root = Table::new().unwrap();
    tables::walk(root, 3, 7, 1).unwrap();
    let beyond = 1 << 27;
    assert!(tables::find(root, 3, 7).is_some());
    assert_eq!(tables::find(root, 3, beyond + 7), None);
    assert!(tables::walk(root, 3, beyond + 7, 1).is_err());
    let above = tables::walk(root, 3, ENTRIES, 2).unwrap();
    above.put(1, Entry::large(crate::PhysAddr(0)));
    assert_eq!(tables::find(root, 3, ENTRIES), None);
    assert!(tables::walk(root, 3, ENTRIES, 1).is_err());
    above.put(1, Entry::ABSENT);
    tables::free(root, 3, &mut |_| ());
    assert!(open::fits(3, beyond) && !open::fits(3, beyond + 1));
}

/// Each rule that is removed makes a test here fail, in few runs.
#[test]
fn mistakes_are_found() {
    let (open, strict) = (Policy::Open, Policy::Strict);
    let cases: [(Mistake, Policy, fn(), &str); 6] = [
        (
            Mistake::ReservedNotMapped,
            open,
            reserved,
            "reserved memory",
        ),
        (
            Mistake::ReservedNotMapped,
            strict,
            reserved,
            "reserved memory",
        ),
        (Mistake::AbsentKept, open, reserved, "reserved memory"),
        (
            Mistake::RevokedEarly,
            strict,
            given_up,
            "reaches memory still",
        ),
        (Mistake::DomainsMove, strict, walk, "only"),
        (Mistake::PagesWrap, strict, beyond, "left == right"),
    ];
    for (mistake, policy, body, wanted) in cases {
        let like = Config {
            cpus: 3,
            pages: 1024,
            iommu: Some(policy),
            ..Config::default()
        };
        mistake.assert_found(like, body, wanted);
    }
}
