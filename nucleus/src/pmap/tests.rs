//! Page tables on the simulated machine: against a model, and against each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::format::{ENTRIES, LEAF_SPAN};
use super::large::Why;
use super::*;
use crate::addr::USER_END;
use crate::counters::Counter;
use crate::frame::record::record;
use crate::frame::{Contents, Usage, fail_after, usage};
use crate::sim::{Gate, below, on_machines_with};
use crate::task::{self, Spawn};
use crate::{Frame, PAGE_SIZE, VirtAddr, VirtRange, ephemeral, user};

mod large;
mod sharing;

fn spawn(gate: &Arc<Gate>, pmap: Option<Arc<Pmap>>, body: impl FnOnce() + Send + 'static) {
    let gate = gate.clone();
    let spawn = Spawn {
        pmap,
        ..Spawn::kernel("test")
    };
    let run = move || {
        body();
        // What the task ran in is left before anybody is told, so that it can be torn down.
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

/// The spans of all page tables, for a fork.
fn all_tables() -> impl Iterator<Item = VirtRange> {
    core::iter::once(VirtRange::new(VirtAddr(0), VirtAddr(1 << 47)))
}

/// The spans of all page tables but the one for `va`.
fn tables_but(va: VirtAddr) -> [VirtRange; 2] {
    let base = VirtAddr(va.0 / LEAF_SPAN * LEAF_SPAN);
    let above = VirtRange::new(base + LEAF_SPAN, VirtAddr(1 << 47));
    [VirtRange::new(VirtAddr(0), base), above]
}

/// A range, often one that covers whole tables.
fn random_range() -> VirtRange {
    let start = va_of(below(PAGES));
    match below(4) {
        0 => VirtRange::new(start, start + PAGE_SIZE),
        1 => VirtRange::new(start, start + (1 + below(20)) * PAGE_SIZE),
        2 => {
            let base = VirtAddr(start.0 & !(LEAF_SPAN - 1));
            VirtRange::new(base, base + LEAF_SPAN * (1 + below(3)))
        }
        _ => VirtRange::new(VirtAddr(below(2) * start.0), USER_END),
    }
    .intersect(VirtRange::new(VirtAddr(0), USER_END))
}

/// The page at an address that a move leads to.
fn page_at(va: VirtAddr) -> usize {
    (0..PAGES).find(|&page| va_of(page) == va).unwrap()
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
        Prot::READ | Prot::WRITE,
        Prot::READ | Prot::EXEC,
        Prot::READ | Prot::WRITE | Prot::EXEC,
    ][below(4)]
}

/// Frames with their number at byte 8.
fn tagged_frames(count: usize) -> Vec<Frame> {
    let tagged = |i: usize| {
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        ephemeral::map(&frame).write(8, &(i as u64).to_le_bytes());
        frame
    };
    (0..count).map(tagged).collect()
}

/// Some machines tell all CPUs of every change.
fn random_coherence() {
    set_coherence([Coherence::Precise, Coherence::Precise, Coherence::Broadcast][below(3)]);
}

/// Nothing is lost: not a frame, not a page table, not a link.
fn assert_back(before: Usage) {
    let now = usage();
    assert_eq!(now.data, before.data, "data frames");
    assert_eq!(now.page_tables, before.page_tables, "page tables");
    assert_eq!(now.free, before.free, "free frames");
}

struct Model {
    pmaps: Vec<Arc<Pmap>>,
    maps: Vec<BTreeMap<usize, (usize, Prot)>>,
    frames: Vec<Frame>,
    modified: Vec<bool>,
}

impl Model {
    fn new(pmaps: usize, frames: usize) -> Model {
        Model {
            pmaps: (0..pmaps).map(|_| Pmap::new().unwrap()).collect(),
            maps: vec![BTreeMap::new(); pmaps],
            frames: tagged_frames(frames),
            modified: vec![false; frames],
        }
    }

    fn step(&mut self) {
        let mut pending = Pending::new();
        let p = below(self.pmaps.len());
        let pmap = self.pmaps[p].clone();
        let map = &mut self.maps[p];
        match below(17) {
            0..5 => {
                let (page, f, prot) = (below(PAGES), below(self.frames.len()), random_prot());
                pmap.enter(va_of(page), &self.frames[f], prot, &mut pending)
                    .unwrap();
                map.insert(page, (f, prot));
            }
            5..7 => {
                let (page, f, prot) = (below(PAGES), below(self.frames.len()), random_prot());
                let entered = pmap.enter_ahead(va_of(page), &self.frames[f], prot);
                assert_eq!(entered, Ok(!map.contains_key(&page)));
                map.entry(page).or_insert((f, prot));
            }
            7..9 => {
                let range = random_range();
                pmap.remove(range, &mut pending);
                map.retain(|&page, _| !range.contains(va_of(page)));
            }
            9 => {
                let (range, prot) = (random_range(), random_prot());
                pmap.protect(range, prot, &mut pending);
                for (&page, (_, rights)) in map {
                    if range.contains(va_of(page)) {
                        *rights &= prot;
                    }
                }
            }
            10 => {
                let (f, prot) = (below(self.frames.len()), random_prot());
                page_protect(&self.frames[f], prot, &mut pending);
                for (frame, rights) in self.maps.iter_mut().flat_map(BTreeMap::values_mut) {
                    if *frame == f {
                        *rights &= prot;
                    }
                }
            }
            11 => {
                let f = below(self.frames.len());
                page_protect(&self.frames[f], Prot::empty(), &mut pending);
                for map in &mut self.maps {
                    map.retain(|_, (frame, _)| *frame != f);
                }
            }
            12 => {
                let f = below(self.frames.len());
                take_referenced(&self.frames[f]);
            }
            13 => {
                if let Some((range, to)) = random_move() {
                    // What was at the new place goes, as the caller has to see to.
                    let there = VirtRange::new(to, to + range.len());
                    pmap.remove(there, &mut pending);
                    pending.flush();
                    let inside = |page: &usize| range.contains(va_of(*page));
                    let moving: Vec<_> = map.keys().copied().filter(inside).collect();
                    assert_eq!(pmap.move_range(range, to), moving.len());
                    map.retain(|&page, _| !there.contains(va_of(page)));
                    for page in moving {
                        let mapping = map.remove(&page).unwrap();
                        let at = va_of(page) - range.start + to.0;
                        map.insert(page_at(VirtAddr(at)), mapping);
                    }
                }
            }
            14 => {
                let f = below(self.frames.len());
                clear_modified(&self.frames[f], &mut pending);
                self.modified[f] = false;
            }
            _ => {
                // As a program on whatever CPU this is: reads see the frame that is mapped, writes
                // go where they may and leave a trace.
                task::set_pmap(Some(pmap.clone()));
                let page = below(PAGES);
                let at = va_of(page);
                let mapped = self.maps[p].get(&page);
                let read = user::read::<u64>(at + 8).ok();
                assert_eq!(read, mapped.map(|&(f, _)| f as u64));
                let write = user::write(at + 16, &1u32).is_ok();
                assert_eq!(write, mapped.is_some_and(|m| m.1.contains(Prot::WRITE)));
                if let Some(&(f, _)) = mapped.filter(|_| write) {
                    self.modified[f] = true;
                    if below(3) == 0 {
                        // Cleaned, and written again at once.
                        clear_modified(&self.frames[f], &mut pending);
                        pending.flush();
                        assert!(!is_modified(&self.frames[f]));
                        assert_eq!(user::write(at + 16, &2u32), Ok(()));
                        assert!(is_modified(&self.frames[f]), "a write left no trace");
                    }
                }
                if below(2) == 0 {
                    task::set_pmap(None);
                }
            }
        }
        // Often one flush for several changes, as it comes.
        pending.flush();
        drop(pending);
        self.check_one(p, below(PAGES));
    }

    fn check_one(&self, p: usize, page: usize) {
        let expected = self.maps[p].get(&page);
        let found = self.pmaps[p].extract(va_of(page));
        let found = found.as_ref().map(|(frame, prot)| (frame, *prot));
        let model = expected.map(|&(f, prot)| (&self.frames[f], prot));
        assert_eq!(found, model, "page {page} of pmap {p}");
        for access in [Access::Read, Access::Write, Access::Execute] {
            let allowed = expected.is_some_and(|(_, prot)| prot.contains(access.needs()));
            assert_eq!(self.pmaps[p].permits(va_of(page), access), allowed);
        }
    }

    fn check_all(&self) {
        for (p, pmap) in self.pmaps.iter().enumerate() {
            (0..PAGES).for_each(|page| self.check_one(p, page));
            assert_eq!(pmap.resident().pages, self.maps[p].len());
            let range = random_range();
            let inside = |page: &&usize| range.contains(va_of(**page));
            assert_eq!(
                pmap.resident_in(range),
                self.maps[p].keys().filter(inside).count()
            );
        }
        for (f, frame) in self.frames.iter().enumerate() {
            let uses = self.maps.iter().flat_map(BTreeMap::values);
            let uses = uses.filter(|used| used.0 == f).count() as u32;
            assert_eq!(frame.mappings(), uses);
            assert_eq!(frame.handles(), uses + 1);
            assert_eq!(is_modified(frame), self.modified[f], "frame {f}");
        }
    }
}

#[test]
fn a_pmap_is_a_map() {
    on_machines_with("a pmap is a map", [1, 2, 4], 1024, 12, || {
        random_coherence();
        user::set_fault_hook(|_, _| false);
        let before = usage();
        let mut model = Model::new(3, 6);
        let gate = Gate::new();
        let stop = Arc::new(AtomicBool::new(false));
        // Programs that look at all pages all the time, on other CPUs if there are any.
        for p in 0..model.pmaps.len() {
            let stop = stop.clone();
            spawn(&gate, Some(model.pmaps[p].clone()), move || {
                while !stop.load(Ordering::SeqCst) {
                    if let Ok(tag) = user::read::<u64>(va_of(below(PAGES)) + 8) {
                        assert!(tag < 6, "no frame has the tag {tag:#x}");
                    }
                    task::yield_now();
                }
            });
        }
        for _ in 0..15 {
            for _ in 0..20 {
                model.step();
            }
            model.check_all();
        }
        stop.store(true, Ordering::SeqCst);
        gate.wait_for(model.pmaps.len());
        task::set_pmap(None);
        // A CPU that only borrows a space keeps it until it is told, or runs something else.
        model.pmaps.iter().for_each(|pmap| pmap.tear_down());
        drop(model);
        assert_back(before);
    });
}

#[test]
fn all_at_once() {
    on_machines_with("all at once", [2, 3, 4], 1024, 20, || {
        random_coherence();
        user::set_fault_hook(|_, _| false);
        let before = usage();
        let pmaps: Arc<Vec<_>> = Arc::new((0..2).map(|_| Pmap::new().unwrap()).collect());
        let frames = Arc::new(tagged_frames(4));
        let gate = Gate::new();
        for me in 0..4 {
            let (pmaps, frames) = (pmaps.clone(), frames.clone());
            spawn(&gate, Some(pmaps[me % 2].clone()), move || {
                let mut pending = Pending::new();
                for _ in 0..60 {
                    let pmap = &pmaps[below(pmaps.len())];
                    let frame = &frames[below(frames.len())];
                    let at = va_of(below(PAGES));
                    match below(11) {
                        0 => pmap.enter(at, frame, random_prot(), &mut pending).unwrap(),
                        // One without another holder: free as soon as it is unmapped everywhere.
                        1 | 9 => {
                            let own = tagged_frames(1).remove(0);
                            pmap.enter(at, &own, random_prot(), &mut pending).unwrap();
                        }
                        2 => drop(pmap.enter_ahead(at, frame, random_prot())),
                        3 => pmap.remove(random_range(), &mut pending),
                        4 => pmap.protect(random_range(), random_prot(), &mut pending),
                        5 => page_protect(frame, Prot::empty(), &mut pending),
                        6 => page_protect(frame, random_prot(), &mut pending),
                        7 => {
                            if let Some((frame, _)) = pmap.extract(at) {
                                take_referenced(&frame);
                                clear_modified(&frame, &mut pending);
                            }
                        }
                        8 => {
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
                    if below(3) == 0 {
                        pending.flush();
                    }
                }
            });
        }
        gate.wait_for(4);
        // What is mapped and what is linked are the same.
        for frame in frames.iter() {
            let maps = |pmap: &Arc<Pmap>| {
                let here = |page: &usize| {
                    let found = pmap.extract(va_of(*page));
                    found.is_some_and(|(found, _)| found == *frame)
                };
                (0..PAGES).filter(here).count()
            };
            let mapped = pmaps.iter().map(maps).sum::<usize>() as u32;
            assert_eq!(frame.mappings(), mapped);
            assert_eq!(frame.handles(), mapped + 1);
        }
        for pmap in pmaps.iter() {
            let mapped = (0..PAGES).filter(|&page| pmap.extract(va_of(page)).is_some());
            assert_eq!(pmap.resident().pages, mapped.count());
            pmap.tear_down();
            assert_eq!(
                pmap.resident(),
                Resident {
                    pages: 0,
                    page_tables: 1
                }
            );
        }
        drop(pmaps);
        drop(frames);
        assert_back(before);
    });
}

#[test]
fn a_large_range_comes_back_whole() {
    on_machines_with("a large range comes back whole", [1, 2], 1024, 6, || {
        let before = usage();
        let frame = tagged_frames(1).remove(0);
        let pmap = Pmap::new().unwrap();
        let mut pending = Pending::new();
        let start = VirtAddr(0x4000_0000 + 5 * PAGE_SIZE);
        let pages = 3 * ENTRIES;
        for i in 0..pages {
            pmap.enter(start + i * PAGE_SIZE, &frame, Prot::READ, &mut pending)
                .unwrap();
        }
        assert_eq!(frame.mappings(), pages as u32);
        assert_eq!(
            pmap.resident(),
            Resident {
                pages,
                page_tables: 1 + 2 + 4 * 2
            }
        );
        let range = VirtRange::new(start, start + pages * PAGE_SIZE);
        pmap.remove(range, &mut pending);
        assert_eq!(frame.mappings(), 0);
        assert_eq!(
            pmap.resident(),
            Resident {
                pages: 0,
                page_tables: 1
            }
        );
        pending.flush();
        assert_eq!(frame.handles(), 1);
        drop((frame, pmap));
        assert_back(before);
    });
}

/// Several tables and batches, to a place where they are cut otherwise; and with too little memory
/// for page tables at the new place, which costs mappings and nothing else.
#[test]
fn a_large_range_moves() {
    on_machines_with("a large range moves", [1, 2], 1024, 6, || {
        let before = usage();
        user::set_fault_hook(|_, _| false);
        let frames = tagged_frames(3);
        let start = VirtAddr(0x4000_0000 + 5 * PAGE_SIZE);
        let to = VirtAddr(0x7f00_0000_0000 + below(ENTRIES) * PAGE_SIZE);
        let pages = ENTRIES + below(ENTRIES);
        let range = VirtRange::new(start, start + pages * PAGE_SIZE);
        let there = VirtRange::new(to, to + range.len());
        for tables in [None, Some(0), Some(below(5))] {
            let pmap = Pmap::new().unwrap();
            task::set_pmap(Some(pmap.clone()));
            let mut pending = Pending::new();
            for (i, va) in range.pages().enumerate() {
                let frame = &frames[i % 3];
                pmap.enter(va, frame, Prot::READ | Prot::WRITE, &mut pending)
                    .unwrap();
            }
            user::write(start + 16, &7u32).unwrap();
            if tables.is_some() {
                while crate::frame::drain_for_test() {}
            }
            fail_after(tables.map(|tables| tables as u64));
            let moved = pmap.move_range(range, to);
            fail_after(None);
            assert!(moved == pages || tables.is_some() && moved < pages);
            assert_eq!(pmap.resident_in(range), 0);
            assert_eq!(pmap.resident_in(there), moved);
            let mut seen = 0;
            for (i, (old, new)) in range.pages().zip(there.pages()).enumerate() {
                assert!(user::read::<u64>(old + 8).is_err(), "the old address works");
                if let Ok(tag) = user::read::<u64>(new + 8) {
                    assert_eq!(tag, i as u64 % 3);
                    assert_eq!(user::write(new + 16, &(i as u32)), Ok(()));
                    seen += 1;
                }
            }
            assert_eq!(seen, moved);
            assert!(is_modified(&frames[0]));
            let handles: u32 = frames.iter().map(|frame| frame.handles() - 1).sum();
            let mappings: u32 = frames.iter().map(Frame::mappings).sum();
            assert_eq!((handles, mappings), (moved as u32, moved as u32));
            task::set_pmap(None);
            pmap.tear_down();
        }
        drop(frames);
        assert_back(before);
    });
}

#[test]
fn only_who_may_hold_it_is_told() {
    on_machines_with("only who may hold it is told", [2, 4], 1024, 20, || {
        user::set_fault_hook(|_, _| false);
        let frames = tagged_frames(1);
        let pmap = Pmap::new().unwrap();
        let at = VirtAddr(0x1000);
        let page = VirtRange::new(at, at + PAGE_SIZE);
        let mut pending = Pending::new();
        let sent = || Counter::ipi_shootdown.total();
        let start = sent();
        // Nobody runs in it.
        pmap.enter(at, &frames[0], Prot::READ, &mut pending)
            .unwrap();
        pmap.remove(page, &mut pending);
        pending.flush();
        assert_eq!(sent(), start);
        // Only this CPU runs in it; other CPUs have never seen it.
        let gate = Gate::new();
        let inner = (pmap.clone(), frames[0].clone());
        let spawn = Spawn {
            pmap: Some(pmap.clone()),
            cpus: 1,
            ..Spawn::kernel("pinned")
        };
        let done = gate.clone();
        let run = move || {
            let (pmap, frame) = inner;
            let mut pending = Pending::new();
            for _ in 0..10 {
                pmap.enter(at, &frame, Prot::READ | Prot::WRITE, &mut pending)
                    .unwrap();
                assert_eq!(user::read::<u64>(at + 8), Ok(0));
                pmap.protect(page, Prot::READ, &mut pending);
                pending.flush();
                assert!(user::write(at + 8, &0u64).is_err());
                pmap.remove(page, &mut pending);
                pending.flush();
                assert!(user::read::<u64>(at + 8).is_err());
                // Never touched: not even this CPU has anything to forget.
                let skipped = Counter::tlb_skipped_unaccessed.total();
                assert_eq!(
                    pmap.enter_ahead(VirtAddr(0x7000_0000_0000), &frame, Prot::READ),
                    Ok(true)
                );
                let far = VirtRange::new(VirtAddr(0x7000_0000_0000), VirtAddr(0x7000_0000_1000));
                pmap.remove(far, &mut pending);
                assert_eq!(Counter::tlb_skipped_unaccessed.total(), skipped + 1);
                pending.flush();
            }
            drop(pending);
            task::set_pmap(None);
            drop(pmap);
            done.pass();
        };
        task::spawn(spawn, Box::new(run)).unwrap();
        gate.wait_for(1);
        assert_eq!(sent(), start);
        // A dead one costs no interrupt.
        for i in 0..100 {
            pmap.enter(at + i * PAGE_SIZE, &frames[0], Prot::READ, &mut pending)
                .unwrap();
        }
        let local = Counter::tlb_local_page.total() + Counter::tlb_local_full.total();
        pmap.tear_down();
        assert_eq!(sent(), start);
        assert_eq!(
            Counter::tlb_local_page.total() + Counter::tlb_local_full.total(),
            local
        );
    });
}

#[test]
fn out_of_memory_leaves_nothing_behind() {
    on_machines_with(
        "out of memory leaves nothing behind",
        [1, 2],
        1024,
        10,
        || {
            let before = usage();
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
                assert_eq!(frame.mappings(), 0);
                assert_eq!(frame.handles(), 1);
            }
            drop(frame);
            assert_back(before);
        },
    );
}

/// A mapping is wired until it is unwired or removed, whatever becomes of its rights.
#[test]
fn wired_mappings_stay_wired() {
    on_machines_with("wired", [1], 1024, 1, || {
        let pmap = Pmap::new().unwrap();
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let (rw, at) = (Prot::READ | Prot::WRITE, va_of(3));
        let page = VirtRange::new(at, at + PAGE_SIZE);
        let mut pending = Pending::new();
        pmap.enter(at, &frame, rw | Prot::WIRED, &mut pending)
            .unwrap();
        assert!(is_wired(&frame) && take_use(&frame).wired);
        assert_eq!(pmap.extract(at).unwrap().1, rw, "wiring is no right");
        pmap.protect(page, Prot::READ, &mut pending);
        page_protect(&frame, Prot::READ, &mut pending);
        pmap.enter(at, &frame, rw, &mut pending).unwrap();
        assert!(is_wired(&frame));
        pmap.wire(page, false);
        assert!(!is_wired(&frame) && !take_use(&frame).wired);
        pmap.wire(page, true);
        assert!(is_wired(&frame));
        // A second mapping that is not wired changes nothing, and neither does its end.
        pmap.enter(va_of(4), &frame, rw, &mut pending).unwrap();
        let other = VirtRange::new(va_of(4), va_of(4) + PAGE_SIZE);
        pmap.wire(other, false);
        pmap.remove(other, &mut pending);
        assert!(is_wired(&frame));
        pmap.move_range(page, va_of(9));
        assert!(is_wired(&frame));
        page_protect(&frame, Prot::empty(), &mut pending);
        assert!(!is_wired(&frame));
        pending.flush();
    });
}
