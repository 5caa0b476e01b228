//! Mappings of a device's memory (`uvm.txt` 4, 6): they reach the device, follow every change of
//! the map, and give the kernel no frame.

mod support;

use std::sync::Arc;

use nucleus::{
    Access, PAGE_SIZE, Prot, VirtAddr,
    sim::{device_bytes, device_memory},
};
use support::{HERE, Numbers, RW, Worker, new_map, on_cpus, page, pages, pages_at};
use vm::{Advice, Backing, Description, DeviceObject, Fault, Map, MapRequest, Pager, Place};

const PAGES: usize = 20;

fn device() -> Arc<dyn Pager> {
    DeviceObject::new(device_memory(), Description::default()).expect("memory")
}

fn map_device(map: &Map, at: VirtAddr, first: u64, count: usize, shared: bool) {
    let request = MapRequest {
        place: Place::Fixed(at),
        backing: Backing::Object {
            pager: device(),
            offset: first * PAGE_SIZE as u64,
        },
        shared,
        ..MapRequest::zero(count * PAGE_SIZE, RW)
    };
    map.map(request).expect("room");
}

#[test]
fn stores_reach_the_device_and_loads_come_from_it() {
    support::check("device", 0..10, on_cpus(2), || {
        let map = new_map();
        map_device(&map, HERE, 5, PAGES, true);
        let worker = Worker::new(&map, 1);
        for i in 0..PAGES {
            assert!(worker.write(page(i), vec![i as u8 + 1; 8]));
            assert_eq!(device_bytes()[5 + i], i as u8 + 1);
        }
        // A second mapping, elsewhere, shows the same pages, and so does a child's.
        let there = HERE + (1 << 30);
        map_device(&map, there, 7, 3, true);
        assert_eq!(worker.read(there, 8), Some(vec![3; 8]));
        let child = map.fork().expect("fork");
        let childs = Worker::new(&child, 0);
        assert!(childs.write(page(2), vec![77; 8]));
        assert_eq!(worker.read(there, 1), Some(vec![77]));
        assert!(worker.write(there, vec![78; 8]));
        assert_eq!(childs.read(page(2), 1), Some(vec![78]));
        childs.end();
        child.tear_down();
        // Rights, moves, discarding, unmapping.
        map.protect(pages(0, 4), Prot::READ).unwrap();
        assert!(!worker.write(page(2), vec![1; 8]));
        map.protect(pages(0, 4), RW).unwrap();
        assert!(worker.write(page(2), vec![79; 8]));
        map.advise(pages(0, PAGES), Advice::DontNeed).unwrap();
        assert_eq!(worker.read(page(2), 1), Some(vec![79]));
        let to = HERE + (2 << 30);
        map.remap(
            pages(0, PAGES),
            PAGES * PAGE_SIZE,
            true,
            Place::Fixed(to),
            false,
        )
        .unwrap();
        assert_eq!(worker.read(to + 2 * PAGE_SIZE, 1), Some(vec![79]));
        assert!(worker.read(page(2), 1).is_none());
        map.unmap(pages_at(to, PAGES)).unwrap();
        assert!(worker.read(to, 1).is_none());
        assert_eq!(device_bytes()[7], 79, "the device keeps it");
        worker.end();
        map.tear_down();
    });
}

#[test]
fn the_kernel_gets_no_frame_of_a_device() {
    support::once("no frame", || {
        let map = new_map();
        map_device(&map, HERE, 0, 2, true);
        for access in [Access::Read, Access::Write] {
            assert_eq!(map.fault(HERE, access), Ok(()));
            let pinned = map.pin(pages(0, 1), access);
            assert!(matches!(pinned, Err(Fault::Io)));
        }
        assert_eq!(map.read(HERE, &mut [0; 8]), 0);
        assert_eq!(map.write(HERE, &[1; 8]), 0);
        assert_eq!(map.hold_each(HERE, &mut [const { None }; 4]), 0);
        // The ends: of the mapping's device, and of rights.
        let memory = device_memory().pages();
        map_device(&map, page(8), memory - 1, 2, true);
        assert_eq!(map.fault(page(8), Access::Write), Ok(()));
        assert_eq!(map.fault(page(9), Access::Read), Err(Fault::BeyondEnd));
        // A private mapping reads the device and is never written.
        map_device(&map, page(16), 0, 1, false);
        assert_eq!(map.fault(page(16), Access::Read), Ok(()));
        assert_eq!(map.fault(page(16), Access::Write), Err(Fault::Io));
        map.tear_down();
    });
}

/// Mappings of the device and zero-fill memory replace each other while another CPU uses them; in
/// the end all memory is back.
#[test]
fn devices_and_memory_replace_each_other() {
    support::check("mixed", 0..10, on_cpus(2), || {
        let map = new_map();
        let worker = Worker::new(&map, 1);
        let mut numbers = Numbers::new(nucleus::sim::random_u64());
        let mut is_device = [None; PAGES];
        for round in 0..150u8 {
            let i = numbers.below(PAGES);
            match numbers.below(5) {
                0 => {
                    let number = 1 + numbers.below(900) as u64;
                    map_device(&map, page(i), number, 1, true);
                    is_device[i] = Some(number);
                }
                1 => {
                    support::map_zero(&map, pages(i, 1), numbers.chance(50));
                    is_device[i] = None;
                }
                2 => {
                    let child = map.fork().expect("fork");
                    child.tear_down();
                }
                _ => {
                    let before = device_bytes();
                    if worker.write(page(i), vec![round; 4]) {
                        assert_eq!(worker.read(page(i), 1), Some(vec![round]));
                        let changed = |at: usize| is_device[i] == Some(at as u64);
                        for (at, (old, new)) in before.iter().zip(device_bytes()).enumerate() {
                            assert!(new == if changed(at) { round } else { *old }, "page {at}");
                        }
                    }
                }
            }
        }
        worker.end();
        map.tear_down();
    });
}
