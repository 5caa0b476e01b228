//! Mappings of a device's memory: alone, and among frames at the same addresses.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::*;
use crate::sim::{device_bytes, device_memory, random_u64};
use crate::{DeviceMemory, PAGE_SHIFT};

const HERE: VirtAddr = VirtAddr(0x40_0000);
const PAGES: usize = 24;

fn range() -> VirtRange {
    VirtRange::new(HERE, HERE + PAGES * PAGE_SIZE)
}

fn enter(pmap: &Pmap, page: usize, index: u64, prot: Prot) {
    let device = device_memory().page(index).unwrap();
    let mut pending = Pending::new();
    let at = HERE + page * PAGE_SIZE;
    pmap.enter_device(at, device, prot, &mut pending).unwrap();
}

#[test]
fn a_program_reaches_the_device() {
    on_machines("device", [1, 2], 256, 20, || {
        let pmap = Pmap::new().unwrap();
        for page in 0..PAGES {
            enter(&pmap, page, page as u64 * 3, READ_WRITE);
        }
        assert_eq!(pmap.resident_in(range()), PAGES);
        assert!(pmap.extract(HERE).is_none(), "it is no frame");
        pmap.extract_each(range(), |_, _| panic!("it is no frame"));
        let gate = Gate::new();
        spawn(&gate, &pmap, u64::MAX, || {
            for page in 0..PAGES {
                let at = HERE + page * PAGE_SIZE;
                user::write(at, &(page as u8 + 1)).unwrap();
            }
        });
        gate.wait_for(1);
        for page in 0..PAGES {
            assert_eq!(device_bytes()[page * 3], page as u8 + 1);
        }
        // Rights go at once, and come back.
        let mut pending = Pending::new();
        pmap.protect(range(), Prot::READ, &mut pending);
        pending.flush();
        let theirs = pmap.clone();
        spawn(&gate, &pmap, u64::MAX, move || {
            assert!(user::write(HERE, &9u8).is_err());
            assert_eq!(user::read::<u8>(HERE), Ok(1));
            enter(&theirs, 0, 0, READ_WRITE);
            // A CPU may fault once more on the entry that it holds.
            while user::write(HERE, &9u8).is_err() {}
        });
        gate.wait_for(2);
        assert_eq!(device_bytes()[0], 9);
        pmap.remove(range(), &mut pending);
        pending.flush();
        assert_eq!(pmap.resident_in(range()), 0);
        spawn(&gate, &pmap, u64::MAX, || {
            assert!(user::read::<u8>(HERE).is_err());
        });
        gate.wait_for(3);
        pmap.tear_down();
    });
}

#[test]
fn ram_is_no_device_memory() {
    on_machines("no RAM", [1], 256, 1, || {
        let first = u64::from(crate::frame::record::managed().start);
        let outside = |first, pages| {
            DeviceMemory::outside_ram(first, pages, crate::Caching::WriteBack).is_some()
        };
        assert!(!outside(first, 1) && !outside(first - 1, 2) && !outside(first + 255, 2));
        assert!(outside(first + 256, 4), "behind all frames");
        let at =
            |address, bytes| DeviceMemory::new(address, bytes, crate::Caching::Uncached).is_some();
        let page = PAGE_SIZE as u64;
        let free = 0x8000_0000;
        assert!(at(free, page) && at(1 << 40, page << 20));
        assert!(!at(free + 1, page) && !at(free, page - 1) && !at(free, 0));
        assert!(!at(0xfee0_0000, page), "the interrupt controller");
        assert!(!at(0xfebf_f000, 2 * page) && at(0xfebf_f000, page));
        assert!(!at(0x1000, page) && !at(first << PAGE_SHIFT, page));
        assert!(!at(u64::MAX - page + 1, page) && !at(1 << 52, page));
        assert!(device_memory().page(device_memory().pages()).is_none());
    });
}

#[test]
fn assigned_memory_is_released_once_and_says_whether_it_was_used() {
    static RELEASED: AtomicU64 = AtomicU64::new(0);
    on_machines("assigned", [1], 256, 1, || {
        let release = |function: u16, is_used| {
            RELEASED.store(u64::from(function) << 1 | u64::from(is_used), SeqCst);
        };
        for is_used in [false, true] {
            RELEASED.store(u64::MAX, SeqCst);
            let memory = device_memory().assigned(0x1234, release);
            let memory = memory.with_caching(crate::Caching::WriteCombining);
            assert!(memory.page(memory.pages()).is_none());
            assert!(!is_used || memory.page(0).is_some());
            assert_eq!(RELEASED.load(SeqCst), u64::MAX);
            drop(memory);
            assert_eq!(RELEASED.load(SeqCst), 0x2468 | u64::from(is_used));
        }
    });
}

/// Frames and pages of the device come and go at the same addresses in spaces that fork and move
/// them; `on_machines` counts what is left.
#[test]
fn frames_and_devices_replace_each_other() {
    on_machines("mixed", [1, 3], 512, 40, || {
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let mut spaces = vec![Pmap::new().unwrap()];
        let elsewhere = VirtAddr(0x80_0000);
        let all = [
            range(),
            VirtRange::new(elsewhere, elsewhere + range().len()),
        ];
        for _ in 0..300 {
            let pmap = spaces[below(spaces.len())].clone();
            let (page, index) = (below(PAGES), random_u64() % 1000);
            let at = HERE + page * PAGE_SIZE;
            let to_end = VirtRange::new(at, range().end);
            let mut pending = Pending::new();
            match below(10) {
                0..3 => enter(&pmap, page, index, READ_WRITE),
                3 | 4 => pmap.enter(at, &frame, READ_WRITE, &mut pending).unwrap(),
                5 => pmap.remove(to_end, &mut pending),
                6 => pmap.protect(to_end, Prot::READ, &mut pending),
                7 => {
                    pmap.remove(all[1], &mut pending);
                    pending.flush();
                    pmap.move_range(range(), elsewhere);
                }
                8 if spaces.len() < 4 => {
                    let (child, _) = pmap.fork(&mut all.into_iter(), 1, &mut pending).unwrap();
                    spaces.push(child);
                }
                _ if spaces.len() > 1 => spaces.swap_remove(below(spaces.len())).tear_down(),
                _ => {}
            }
            pending.flush();
            let mapped = pmap.extract(at);
            assert!(mapped.is_none_or(|(it, _)| it == frame));
        }
        for pmap in spaces {
            pmap.tear_down();
        }
        assert_eq!((frame.mappings(), frame.handles()), (0, 1));
    });
}
