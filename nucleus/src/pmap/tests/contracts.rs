//! What no argument and no order of calls may do, whether debug assertions are on or off.

use super::*;
use crate::frame::Run;
use crate::sim::{Config, run};

/// Addresses that no program has. By the bits that choose entries of tables, the last two are the
/// page that is mapped here.
const LOW: VirtAddr = VirtAddr(0x60_0000);
const FAR: [VirtAddr; 6] = [
    USER_END,
    VirtAddr(1 << 47),
    VirtAddr(0xffff_8000_0000_0000),
    VirtAddr(usize::MAX - PAGE_SIZE + 1),
    VirtAddr(1 << 48 | LOW.0),
    VirtAddr(1 << 63 | LOW.0),
];

#[test]
fn far_addresses_name_nothing() {
    on_machines("far addresses", [1], 256, 1, || {
        let pmap = Pmap::new().unwrap();
        let mut pending = Pending::new();
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        pmap.enter(LOW, &frame, READ_WRITE, &mut pending).unwrap();
        for far in FAR {
            let to_end = VirtRange::new(far, VirtAddr(usize::MAX));
            let page = VirtRange::new(far, far.checked_add(PAGE_SIZE - 1).unwrap());
            for range in [page, to_end] {
                pmap.remove(range, &mut pending);
                pmap.protect(range, Prot::READ, &mut pending);
                pmap.protect(range, Prot::empty(), &mut pending);
                pmap.wire(range, true);
                assert_eq!((pmap.resident_in(range), pmap.large_in(range)), (0, 0));
                pmap.extract_each(range, |_, _| panic!("something is mapped at {far:?}"));
                let ahead = |_| Some((frame.clone(), READ_WRITE));
                assert_eq!(pmap.enter_ahead_each(range, ahead), 0);
                assert_eq!(pmap.widen_each(range, |_| Some((&frame, READ_WRITE))), 0);
            }
            assert_eq!(pmap.move_range(page, VirtAddr(0x1000)), 0);
            assert!(pmap.extract(far).is_none() && !pmap.permits(far, Access::Read));
            assert!(!pmap.has_table(far) && !pmap.is_shared(far) && !pmap.is_last_sharer(far));
            assert_eq!(pmap.used_before(far + 1, false, 512), 0);
            pmap.own(far).unwrap();
            assert!(pmap.reclaim(far, Writes::TakenAway));
        }
        assert_eq!(pmap.extract(LOW), Some((frame.clone(), READ_WRITE)));
        assert_eq!((frame.mappings(), frame.handles()), (1, 2));
        pmap.remove(
            VirtRange::new(VirtAddr(0), VirtAddr(usize::MAX)),
            &mut pending,
        );
        assert_eq!(frame.mappings(), 0);
    });
}

/// The objection to what `body` does.
fn objection(body: impl FnOnce() + Send + 'static) -> String {
    run(Config::default(), body).unwrap_err().message
}

#[test]
fn nothing_is_entered_at_far_addresses() {
    type Enter = fn(&Pmap, VirtAddr);
    let ways: [Enter; 4] = [
        |pmap, far| {
            let frame = Frame::alloc(Contents::Zeroed).unwrap();
            let _ = pmap.enter(far, &frame, Prot::READ, &mut Pending::new());
        },
        |pmap, far| {
            let frame = Frame::alloc(Contents::Zeroed).unwrap();
            let _ = pmap.enter_ahead(far, &frame, Prot::READ);
        },
        |pmap, far| {
            let run = Run::alloc(Contents::Zeroed).unwrap();
            let _ = pmap.enter_large(
                leaf_base(far) + LEAF_SPAN,
                &run,
                Prot::READ,
                LargeKind::Private,
            );
        },
        |pmap, far| {
            let frame = Frame::alloc(Contents::Zeroed).unwrap();
            let _ = pmap.enter(LOW, &frame, Prot::READ, &mut Pending::new());
            pmap.move_range(page_at(LOW), far);
        },
    ];
    for far in [FAR[0], FAR[1], FAR[2], FAR[4]] {
        for enter in ways {
            let message = objection(move || enter(&Pmap::new().unwrap(), far));
            assert!(message.contains("not an address of a program"), "{message}");
        }
    }
}

/// What reaches beyond the table of the first page is left out, not put into it.
#[test]
fn fault_ahead_stays_in_its_table() {
    on_machines("one table", [1], 256, 1, || {
        let pmap = Pmap::new().unwrap();
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let last = VirtAddr(LEAF_SPAN - PAGE_SIZE);
        pmap.enter(last, &frame, Prot::READ, &mut Pending::new())
            .unwrap();
        let two = VirtRange::new(last, last + 2 * PAGE_SIZE);
        assert_eq!(
            pmap.enter_ahead_each(two, |_| Some((frame.clone(), Prot::READ))),
            0
        );
        assert!(pmap.extract(VirtAddr(0)).is_none());
    });
}

/// A space that was torn down without a flush is not run in again.
#[test]
fn a_dead_space_is_not_loaded() {
    let message = objection(|| {
        let pmap = Pmap::new().unwrap();
        pmap.tear_down();
        // The panic leaves the CPU's bit, to which the end of the pmap would object, too.
        core::mem::forget(pmap.clone());
        task::set_pmap(Some(pmap));
    });
    assert!(message.contains("torn down"), "{message}");
}

/// A fork beside changes of the same pages: the programs in both spaces never use what is free.
#[test]
fn a_fork_beside_changes_loses_no_flush() {
    on_machines("a fork beside changes", [2, 3], 512, 40, || {
        let pmap = Pmap::new().unwrap();
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let pages = VirtRange::new(LOW, LOW + 4 * PAGE_SIZE);
        for va in pages.pages() {
            pmap.enter(va, &frame, READ_WRITE, &mut Pending::new())
                .unwrap();
        }
        drop(frame);
        let gate = Arc::new(Gate::default());
        let changed = pmap.clone();
        spawn(&gate, &pmap, !0, move || {
            for i in 0..12 {
                let va = LOW + i % 4 * PAGE_SIZE;
                let mut pending = Pending::new();
                if below(3) == 0 {
                    changed.remove(page_at(va), &mut pending);
                } else {
                    let frame = Frame::alloc(Contents::Zeroed).unwrap();
                    changed.enter(va, &frame, READ_WRITE, &mut pending).unwrap();
                }
                drop(pending);
                let _ = user::write(va, &i);
            }
        });
        let parent = pmap.clone();
        spawn(&gate, &pmap, !0, move || {
            for _ in 0..4 {
                let mut pending = Pending::new();
                let child = parent.fork(&mut all_tables(), 0, &mut pending).unwrap().0;
                pending.flush();
                task::set_pmap(Some(child));
                for _ in 0..6 {
                    let _ = user::read::<u64>(LOW + below(4) * PAGE_SIZE);
                }
                task::set_pmap(Some(parent.clone()));
            }
        });
        gate.wait_for(2);
        task::set_pmap(None);
    });
}
