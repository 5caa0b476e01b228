//! Domains by themselves: the list of them, their tables, devices that are given up.

use std::vec::Vec;

use super::tables::{self, ENTRIES, Table};
use super::*;
use crate::PAGE_SHIFT;
use crate::hw::iommu::Entry;
use crate::hw::sim::{device_read, iommu_reserved};
use crate::sim::{Config, on_machines_like};

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

/// Where the firmware has memory of a device's, the device reaches all of it, whatever it is
/// attached beside.
#[test]
fn a_device_reaches_what_it_uses_for_the_firmware() {
    for policy in [Policy::Open, Policy::Strict] {
        machines("firmware", policy, 10, || {
            let domains: Vec<_> = (0..4).map(|n| Domain::new(Device(n)).unwrap()).collect();
            for domain in &domains {
                let device = domain.device();
                iommu_reserved(device, |start, end| {
                    for page in start.frame_number()..end.frame_number() {
                        assert!(device_read(device.0, page << PAGE_SHIFT, &mut [0]));
                    }
                });
            }
        });
    }
}

/// A page that a tree has no entry for is none: it is not one of those at the indices that it has.
#[test]
fn pages_beyond_a_tree_are_not_in_it() {
    machines("beyond", Policy::Strict, 1, || {
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
    });
}
