//! Page tables on the simulated machine: against a model, and against each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::format::{ENTRIES, LEAF_SPAN};
use super::large::Why;
use super::leaf::leaf_base;
use super::*;
use crate::addr::USER_END;
use crate::counters::Counter;
use crate::frame::{Contents, fail_after, leave_single_frames, usage};
use crate::mem::mistake::Mistake;
use crate::sim::{Config, Gate, below, on_machines_with};
use crate::task::{self, Spawn};
use crate::{Frame, PAGE_SIZE, VirtAddr, VirtRange, ephemeral, user};

mod audit;
mod contracts;
mod devices;
mod full_sets;
mod large;
mod sharing;
mod small;
mod spaces;
mod tags;

use spaces::{Readers, Spaces};

const READ_WRITE: Prot = Prot::READ.union(Prot::WRITE);
/// What a space without mappings has.
const EMPTY: Resident = Resident {
    pages: 0,
    page_tables: 1,
};

/// Runs `body` on machines where no fault is resolved. Nothing may be lost by it: not a frame, not
/// a page table, not a link.
fn on_machines<const N: usize>(name: &str, cpus: [usize; N], pages: usize, seeds: u64, body: fn()) {
    on_machines_with(name, cpus, pages, seeds, move || {
        user::set_fault_hook(|_, _| false);
        let before = usage();
        body();
        // A CPU that has nothing to do borrows the last space that it ran, until it is interrupted.
        interrupt_all();
        let now = usage();
        assert_eq!(now.data, before.data, "data frames");
        assert_eq!(now.page_tables, before.page_tables, "page tables");
        assert_eq!(now.free, before.free, "free frames");
    });
}

/// Starts a program in an address space, on one of these CPUs. What it ran in is left before it
/// passes the gate, so that it can be torn down.
fn spawn(gate: &Arc<Gate>, pmap: &PmapRef, cpus: u64, body: impl FnOnce() + Send + 'static) {
    let gate = gate.clone();
    let spawn = Spawn {
        pmap: Some(pmap.clone()),
        cpus,
        ..Spawn::kernel("test")
    };
    let run = move || {
        body();
        task::set_pmap(None);
        gate.pass();
    };
    task::spawn(spawn, Box::new(run)).unwrap();
}

/// Pages that the tests use: the ends of two neighbouring tables of level 1, pages far from them,
/// and the last page of all.
const PAGES: usize = 48;

fn va_of(page: usize) -> VirtAddr {
    match page {
        0..24 => VirtAddr(0x4060_0000 - 12 * PAGE_SIZE + page * PAGE_SIZE),
        24..36 => VirtAddr(0x7f00_0000_0000 + (page - 24) * PAGE_SIZE),
        36..47 => VirtAddr(0x10_0000_0000 + (page - 36) * LEAF_SPAN),
        _ => USER_END - PAGE_SIZE,
    }
}

/// The range of one page.
fn page_at(va: VirtAddr) -> VirtRange {
    VirtRange::new(va, va + PAGE_SIZE)
}

/// The spans of all page tables, for a fork.
fn all_tables() -> impl Iterator<Item = VirtRange> {
    core::iter::once(VirtRange::new(VirtAddr(0), VirtAddr(1 << 47)))
}

/// The spans of all page tables but the one for `va`.
fn tables_but(va: VirtAddr) -> [VirtRange; 2] {
    let base = leaf_base(va);
    let above = VirtRange::new(base + LEAF_SPAN, VirtAddr(1 << 47));
    [VirtRange::new(VirtAddr(0), base), above]
}

/// A range, often one that covers whole tables.
fn random_range() -> VirtRange {
    let start = va_of(below(PAGES));
    match below(4) {
        0 => page_at(start),
        1 => VirtRange::new(start, start + (1 + below(20)) * PAGE_SIZE),
        2 => {
            let base = leaf_base(start);
            VirtRange::new(base, base + LEAF_SPAN * (1 + below(3)))
        }
        _ => VirtRange::new(VirtAddr(below(2) * start.0), USER_END),
    }
    .intersect(VirtRange::new(VirtAddr(0), USER_END))
}

/// A range, and a place for it that does not overlap it, such that every page of the tests in the
/// range comes to lie on another one: within the two neighbouring tables, between them and the
/// pages far away, or from table to table.
fn random_move() -> Option<(VirtRange, VirtAddr)> {
    let (from, to) = (below(PAGES - 1), below(PAGES - 1));
    let room = |page: usize| match page {
        0..24 => 24 - page,
        24..36 => 36 - page,
        _ => 47 - page,
    };
    let count = 1 + below(room(from).min(room(to)));
    // Whole tables and single pages don't go together.
    let count = match (from >= 36, to >= 36) {
        (true, true) | (false, false) => count,
        _ => 1,
    };
    let end = va_of(from + count - 1) + PAGE_SIZE;
    let range = VirtRange::new(va_of(from), end);
    let there = VirtRange::new(va_of(to), va_of(to) + range.len());
    range
        .intersect(there)
        .is_empty()
        .then_some((range, va_of(to)))
}

fn random_prot() -> Prot {
    [
        Prot::READ,
        READ_WRITE,
        Prot::READ | Prot::EXEC,
        READ_WRITE | Prot::EXEC,
    ][below(4)]
}

/// Frames with their number at byte 8.
fn tagged_frames(count: usize) -> Vec<Frame> {
    let frame = |_| Frame::alloc(Contents::Zeroed).unwrap();
    tagged((0..count).map(frame).collect())
}

/// Writes each frame's number at its byte 8.
fn tagged(frames: Vec<Frame>) -> Vec<Frame> {
    for (tag, frame) in frames.iter().enumerate() {
        ephemeral::map(frame).write(8, &(tag as u64).to_le_bytes());
    }
    frames
}

/// Some machines tell all CPUs of every change.
fn random_coherence() {
    set_coherence([Coherence::Precise, Coherence::Precise, Coherence::Broadcast][below(3)]);
}

#[test]
fn a_pmap_is_a_map() {
    on_machines("a pmap is a map", [1, 2, 4], 1024, 12, || {
        sharing::changes_agree_with_a_model(3, sharing::Forks::Never);
    });
}

#[test]
fn all_at_once() {
    on_machines("all at once", [2, 3, 4], 1024, 20, change_at_once);
}

/// An entry is emptied and filled with other frames all the time, each of which others map, too.
#[test]
fn one_entry_for_several_frames() {
    on_machines("one entry", [2, 3, 4], 1024, 10, change_one_entry);
}

/// The simulated machine finds it if an entry can be used again before it is out of the list.
#[test]
fn links_are_taken_out_before_entries() {
    let like = Config {
        cpus: 4,
        pages: 1024,
        ..Config::default()
    };
    let body = || {
        user::set_fault_hook(|_, _| false);
        change_one_entry();
    };
    Mistake::UnlinkedLate.assert_found(like, body, "is not linked to frame");
}

fn change_one_entry() {
    let frames = Arc::new(tagged_frames(3));
    let pmap = Pmap::new().unwrap();
    let mut pending = Pending::new();
    for page in 1..13 {
        let frame = &frames[page % 3];
        let at = va_of(page);
        pmap.enter(at, frame, Prot::READ, &mut pending).unwrap();
    }
    let at = va_of(0);
    let gate = Gate::new();
    for _ in 0..4 {
        let (of, frames) = (pmap.clone(), frames.clone());
        spawn(&gate, &pmap, !0, move || {
            let mut pending = Pending::new();
            for _ in 0..100 {
                match below(2) {
                    0 => of.remove(page_at(at), &mut pending),
                    _ => drop(of.enter_ahead(at, &frames[below(3)], Prot::READ)),
                }
                pending.flush();
            }
        });
    }
    gate.wait_for(4);
    audit::finds_nothing([&pmap], true);
    pmap.tear_down();
}

fn change_at_once() {
    random_coherence();
    let pmaps: Arc<Vec<_>> = Arc::new((0..2).map(|_| Pmap::new().unwrap()).collect());
    let frames = Arc::new(tagged_frames(4));
    let gate = Gate::new();
    for me in 0..4 {
        let (of, frames) = (pmaps.clone(), frames.clone());
        spawn(&gate, &pmaps[me % 2], !0, move || {
            let mut pending = Pending::new();
            for _ in 0..60 {
                let pmap = &of[below(of.len())];
                let frame = &frames[below(frames.len())];
                let at = va_of(below(PAGES));
                match below(30) {
                    29 => audit::finds_nothing(of.iter(), false),
                    0..3 => drop(pmap.enter_ahead(at, frame, random_prot())),
                    3..6 => {
                        if let Some((frame, _)) = pmap.extract(at) {
                            take_referenced(&frame);
                            clear_modified(&frame, &mut pending);
                        }
                    }
                    _ => change(pmap, at, frame, &mut pending),
                }
                if below(3) == 0 {
                    pending.flush();
                }
            }
        });
    }
    gate.wait_for(4);
    interrupt_all();
    audit::finds_nothing(pmaps.iter(), true);
    // What is mapped and what is linked are the same.
    for frame in frames.iter() {
        let maps = |pmap: &PmapRef| {
            let here = |page: &usize| {
                let found = pmap.extract(va_of(*page));
                found.is_some_and(|(found, _)| found == *frame)
            };
            (0..PAGES).filter(here).count()
        };
        let mapped = pmaps.iter().map(maps).sum::<usize>() as u64;
        assert_eq!(
            (frame.mappings().into(), frame.handles()),
            (mapped, mapped + 1)
        );
    }
    for pmap in pmaps.iter() {
        let mapped = (0..PAGES).filter(|&page| pmap.extract(va_of(page)).is_some());
        assert_eq!(pmap.resident().pages, mapped.count());
        pmap.tear_down();
        assert_eq!(pmap.resident(), EMPTY);
    }
}

/// Changes something at random: a mapping in a space, a frame's mappings, or what a program writes.
fn change(pmap: &Pmap, at: VirtAddr, frame: &Frame, pending: &mut Pending) {
    match below(8) {
        0 => pmap.enter(at, frame, random_prot(), pending).unwrap(),
        // One without another holder: free as soon as it is unmapped everywhere.
        1 => {
            let own = tagged_frames(1).remove(0);
            pmap.enter(at, &own, random_prot(), pending).unwrap();
        }
        2 => pmap.remove(random_range(), pending),
        3 => pmap.protect(random_range(), random_prot(), pending),
        4 => page_protect(frame, Prot::empty(), pending),
        5 => page_protect(frame, random_prot(), pending),
        6 => {
            if let Some((range, to)) = random_move() {
                pmap.move_range(range, to);
            }
        }
        _ => {
            let _ = user::write(at + 16, &1u32);
            if let Ok(tag) = user::read::<u64>(at + 8) {
                assert!(tag < 4, "no frame has the tag {tag:#x}");
            }
        }
    }
}

#[test]
fn a_large_range_comes_back_whole() {
    on_machines("a large range comes back whole", [1, 2], 1024, 6, || {
        let frame = tagged_frames(1).remove(0);
        let pmap = Pmap::new().unwrap();
        let mut pending = Pending::new();
        let start = VirtAddr(0x4000_0000 + 5 * PAGE_SIZE);
        let pages = 3 * ENTRIES;
        let range = VirtRange::new(start, start + pages * PAGE_SIZE);
        for va in range.pages() {
            pmap.enter(va, &frame, Prot::READ, &mut pending).unwrap();
        }
        assert_eq!(frame.mappings(), pages as u32);
        let page_tables = 1 + 2 + 4 * 2;
        assert_eq!(pmap.resident(), Resident { pages, page_tables });
        pmap.remove(range, &mut pending);
        assert_eq!(frame.mappings(), 0);
        assert_eq!(pmap.resident(), EMPTY);
        pending.flush();
        assert_eq!(frame.handles(), 1);
    });
}

/// Several tables and batches, to a place where they are cut otherwise; and with too little memory
/// for page tables at the new place, which costs mappings and nothing else.
#[test]
fn a_large_range_moves() {
    on_machines("a large range moves", [1, 2], 1024, 6, || {
        let frames = tagged_frames(3);
        let start = VirtAddr(0x4000_0000 + 5 * PAGE_SIZE);
        let to = VirtAddr(0x7f00_0000_0000 + below(ENTRIES) * PAGE_SIZE);
        let pages = ENTRIES + below(ENTRIES);
        let range = VirtRange::new(start, start + pages * PAGE_SIZE);
        let there = VirtRange::new(to, to + range.len());
        let cases = [None, Some(0), Some(below(5))];
        for (tables, far) in cases.into_iter().flat_map(|it| [(it, false), (it, true)]) {
            let pmap = Pmap::new().unwrap();
            let target = match far {
                true => Pmap::new().unwrap(),
                false => pmap.clone(),
            };
            task::set_pmap(Some(pmap.clone()));
            let mut pending = Pending::new();
            for (i, va) in range.pages().enumerate() {
                pmap.enter(va, &frames[i % 3], READ_WRITE, &mut pending)
                    .unwrap();
            }
            user::write(start + 16, &7u32).unwrap();
            if tables.is_some() {
                while crate::frame::drain_for_test() {}
            }
            fail_after(tables.map(|tables| tables as u64));
            let moved = pmap.move_range_to(range, &target, to);
            fail_after(None);
            assert!(moved == pages || tables.is_some() && moved < pages);
            assert_eq!(pmap.resident_in(range), 0);
            assert_eq!(target.resident_in(there), moved);
            let mut seen = 0;
            for (i, (old, new)) in range.pages().zip(there.pages()).enumerate() {
                task::set_pmap(Some(pmap.clone()));
                assert!(user::read::<u64>(old + 8).is_err(), "the old address works");
                task::set_pmap(Some(target.clone()));
                if let Ok(tag) = user::read::<u64>(new + 8) {
                    assert_eq!(tag, i as u64 % 3);
                    assert_eq!(user::write(new + 16, &(i as u32)), Ok(()));
                    seen += 1;
                }
            }
            assert_eq!(seen, moved);
            assert!(is_modified(&frames[0]));
            let handles: u64 = frames.iter().map(|frame| frame.handles() - 1).sum();
            let mappings: u32 = frames.iter().map(Frame::mappings).sum();
            assert_eq!((handles, mappings), (moved as u64, moved as u32));
            task::set_pmap(None);
            pmap.tear_down();
        }
    });
}

#[test]
fn only_cpus_that_may_hold_it_are_told() {
    on_machines("only those that may hold it", [2, 4], 1024, 20, || {
        let frame = tagged_frames(1).remove(0);
        let pmap = Pmap::new().unwrap();
        let at = VirtAddr(0x1000);
        let mut pending = Pending::new();
        let sent = || Counter::ipi_shootdown.total();
        let start = sent();
        // No task runs in it.
        pmap.enter(at, &frame, Prot::READ, &mut pending).unwrap();
        pmap.remove(page_at(at), &mut pending);
        pending.flush();
        assert_eq!(sent(), start);
        // Only one CPU runs in it; the others have never seen it.
        let gate = Gate::new();
        let (space, page) = (pmap.clone(), frame.clone());
        spawn(&gate, &pmap, 1, move || {
            let mut pending = Pending::new();
            for _ in 0..10 {
                space.enter(at, &page, READ_WRITE, &mut pending).unwrap();
                assert_eq!(user::read::<u64>(at + 8), Ok(0));
                space.protect(page_at(at), Prot::READ, &mut pending);
                pending.flush();
                assert!(user::write(at + 8, &0u64).is_err());
                space.remove(page_at(at), &mut pending);
                pending.flush();
                assert!(user::read::<u64>(at + 8).is_err());
                // Never touched: not even this CPU has anything to forget.
                let skipped = Counter::tlb_skipped_unaccessed.total();
                let far = VirtAddr(0x7000_0000_0000);
                assert_eq!(space.enter_ahead(far, &page, Prot::READ), Ok(true));
                space.remove(page_at(far), &mut pending);
                assert_eq!(Counter::tlb_skipped_unaccessed.total(), skipped + 1);
                pending.flush();
            }
        });
        gate.wait_for(1);
        assert_eq!(sent(), start);
        // A dead one costs no interrupt.
        for i in 0..100 {
            pmap.enter(at + i * PAGE_SIZE, &frame, Prot::READ, &mut pending)
                .unwrap();
        }
        let local = || Counter::tlb_local_page.total() + Counter::tlb_local_full.total();
        let before = local();
        pmap.tear_down();
        assert_eq!((sent(), local()), (start, before));
    });
}

/// A change that no CPU can have seen: told to no CPU, or to all.
#[test]
fn all_are_told_where_changes_are_broadcast() {
    on_machines("all are told", [4], 512, 10, || {
        let frame = tagged_frames(1).remove(0);
        let pmap = Pmap::new().unwrap();
        let at = VirtAddr(0x1000);
        let told = |coherence| {
            set_coherence(coherence);
            let before = Counter::tlb_remote.total();
            let mut pending = Pending::new();
            assert_eq!(pmap.enter_ahead(at, &frame, Prot::READ), Ok(true));
            pmap.remove(page_at(at), &mut pending);
            pending.flush();
            Counter::tlb_remote.total() - before
        };
        assert_eq!(told(Coherence::Precise), 0);
        assert_eq!(told(Coherence::Broadcast), 3);
    });
}

#[test]
fn out_of_memory_leaves_nothing_behind() {
    on_machines("out of memory", [1, 2], 1024, 10, || {
        let frame = tagged_frames(1).remove(0);
        for n in 0..6 {
            // Frames kept ready would satisfy everything.
            while crate::frame::drain_for_test() {}
            fail_after(Some(n));
            let mut pending = Pending::new();
            if let Ok(pmap) = Pmap::new() {
                let at = VirtAddr(0x1234_5678_9000);
                let entered = pmap.enter(at, &frame, Prot::READ, &mut pending);
                assert_eq!(entered.is_ok(), pmap.permits(at, Access::Read));
                assert_eq!(entered.is_ok(), frame.mappings() == 1);
            }
            fail_after(None);
            assert_eq!((frame.mappings(), frame.handles()), (0, 1));
        }
    });
}

/// A mapping is wired until it is unwired or removed, whatever becomes of its rights.
#[test]
fn wired_mappings_stay_wired() {
    on_machines("wired", [1], 1024, 1, || {
        let pmap = Pmap::new().unwrap();
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let at = va_of(3);
        let page = page_at(at);
        let mut pending = Pending::new();
        pmap.enter(at, &frame, READ_WRITE | Prot::WIRED, &mut pending)
            .unwrap();
        assert!(is_wired(&frame) && take_use(&frame).wired);
        let (_, rights) = pmap.extract(at).unwrap();
        assert_eq!(rights, READ_WRITE, "wiring is no right");
        pmap.protect(page, Prot::READ, &mut pending);
        page_protect(&frame, Prot::READ, &mut pending);
        pmap.enter(at, &frame, READ_WRITE, &mut pending).unwrap();
        assert!(is_wired(&frame));
        pmap.wire(page, false);
        assert!(!is_wired(&frame) && !take_use(&frame).wired);
        pmap.wire(page, true);
        assert!(is_wired(&frame));
        // A second mapping that is not wired changes nothing, and neither does its end.
        pmap.enter(va_of(4), &frame, READ_WRITE, &mut pending)
            .unwrap();
        pmap.wire(page_at(va_of(4)), false);
        pmap.remove(page_at(va_of(4)), &mut pending);
        assert!(is_wired(&frame));
        pmap.move_range(page, va_of(9));
        assert!(is_wired(&frame));
        page_protect(&frame, Prot::empty(), &mut pending);
        assert!(!is_wired(&frame));
    });
}

/// Predictions go when a CPU loads the space of a program that does not trust the last one,
/// whatever was loaded in between, and when the program that runs begins to trust none.
#[test]
fn predictions_serve_programs_that_trust_each_other() {
    on_machines("predictions", [1], 1024, 10, || {
        let pmaps: Vec<_> = (0..5).map(|_| Pmap::new().unwrap()).collect();
        let mut trusts = [None; 5];
        let mut loaded = None;
        let mut last = None;
        for _ in 0..200 {
            let before = Counter::prediction_barriers.total();
            let p = below(pmaps.len());
            let mut expected = 0;
            match below(6) {
                0 => {
                    trusts[p] = [None, Some(0), Some(1000)][below(3)];
                    pmaps[p].set_trust(trusts[p]);
                    expected += u64::from(trusts[p].is_none());
                }
                1 => {
                    let parent = below(pmaps.len());
                    pmaps[p].take_trust(&pmaps[parent]);
                    trusts[p] = trusts[parent];
                }
                2 => {
                    if let Some(loaded) = loaded.take() {
                        last = trusts[loaded];
                    }
                    task::set_pmap(None);
                }
                _ => {
                    if loaded != Some(p) {
                        let last = loaded.map_or(last, |loaded: usize| trusts[loaded]);
                        expected += u64::from(trusts[p].is_none() || trusts[p] != last);
                    }
                    loaded = Some(p);
                    task::set_pmap(Some(pmaps[p].clone()));
                }
            }
            let barriers = Counter::prediction_barriers.total() - before;
            assert_eq!(barriers, expected);
        }
        task::set_pmap(None);
    });
}
