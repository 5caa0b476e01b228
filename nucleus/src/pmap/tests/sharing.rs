//! Page tables that a fork made common: against a model, and many spaces at once.

use super::*;

/// Whether spaces are forked.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Forks {
    Never,
    Often,
}

/// Changes so many spaces, with programs in them, and looks whether they map what they should.
pub(super) fn changes_agree_with_a_model(spaces: usize, forks: Forks) {
    random_coherence();
    let mut model = Spaces::new(spaces, tagged_frames(6), va_of);
    for _ in 0..12 {
        let readers = Readers::start(&model, || va_of(below(PAGES)));
        for _ in 0..30 {
            step(&mut model, forks);
        }
        readers.stop();
        check_all(&mut model, forks);
    }
    model.tear_down();
}

fn step(model: &mut Spaces, forks: Forks) {
    let (p, page) = (below(model.spaces.len()), below(PAGES));
    if forks == Forks::Often && below(5) == 0 {
        let q = below(model.spaces.len());
        if p != q {
            let spans = match below(2) {
                0 => tables_but(va_of(below(PAGES))).to_vec(),
                _ => all_tables().collect(),
            };
            model.fork(p, q, &spans, 0);
        }
        return;
    }
    let (pmap, pages) = &mut model.spaces[p];
    let at = va_of(page);
    match below(16) {
        0 if below(2) == 0 => pmap.own(at).unwrap(),
        0 => {
            if pmap.is_shared(at) {
                let base = leaf_base(at);
                let span = VirtRange::new(base, base + LEAF_SPAN);
                pages.retain(|&page, _| !span.contains(va_of(page)));
            }
            pmap.leave_shared(at);
        }
        1 => drop(pmap.reclaim(at, Writes::TakenAway)),
        2 => {
            if let Some((range, to)) = random_move() {
                // What was at the new place goes, as the caller has to see to.
                let there = VirtRange::new(to, to + range.len());
                pmap.remove(there, &mut Pending::new());
                pages.retain(|&page, _| !there.contains(va_of(page)));
                let inside = |page: &usize| range.contains(va_of(*page));
                let moving: Vec<_> = pages.keys().copied().filter(inside).collect();
                assert_eq!(pmap.move_range(range, to), moving.len());
                for page in moving {
                    let mapping = pages.remove(&page).unwrap();
                    let at = va_of(page) - range.start + to.0;
                    let moved = (0..PAGES).find(|&page| va_of(page).0 == at);
                    pages.insert(moved.unwrap(), mapping);
                }
            }
        }
        _ => model.change(p, page, random_range()),
    }
    model.check_one(p, below(PAGES));
}

/// No program runs.
fn check_all(model: &mut Spaces, forks: Forks) {
    model.tear_down_ended();
    for p in 0..model.spaces.len() {
        (0..PAGES).for_each(|page| model.check_one(p, page));
    }
    model.check_counts(random_range());
    for (f, frame) in model.frames.iter().enumerate() {
        let uses = model.spaces.iter().flat_map(|(_, pages)| pages.values());
        let uses = uses.filter(|used| used.0 == f).count() as u32;
        assert_eq!(mappings_of_spaces(frame), uses);
        match forks {
            Forks::Never => assert_eq!(frame.mappings(), uses),
            // One mapping in a shared table is one in each space.
            Forks::Often => {
                assert!(frame.mappings() <= uses && (frame.mappings() > 0) == (uses > 0));
            }
        }
        assert_eq!(frame.handles(), u64::from(frame.mappings()) + 1);
        assert_eq!(is_modified(frame), model.modified[f], "frame {f}");
    }
}

#[test]
fn forked_pmaps_are_maps() {
    on_machines("forked pmaps are maps", [1, 2, 4], 1024, 15, || {
        changes_agree_with_a_model(4, Forks::Often);
        assert!(Counter::page_tables_shared.total() > 0);
    });
}

/// A page table of level 1 and its links need not be neighbours: with no two free frames in a row,
/// tables are made, shared, audited and given back all the same.
#[test]
fn pmaps_are_made_of_single_frames() {
    on_machines("pmaps of single frames", [1, 2, 4], 2048, 10, || {
        let before = usage();
        let give_back = leave_single_frames();
        let batches = Counter::device_batches_page_tables.total();
        let pmap = Pmap::new().unwrap();
        let frame = tagged_frames(1).remove(0);
        let mut pending = Pending::new();
        pmap.enter(va_of(0), &frame, READ_WRITE, &mut pending)
            .unwrap();
        let made = Counter::device_batches_page_tables.total() - batches;
        assert_eq!(made, 4, "one batch for each table, with its links");
        drop((pmap, frame, pending));
        changes_agree_with_a_model(4, Forks::Often);
        while crate::frame::drain_for_test() {}
        give_back();
        assert_eq!(usage().page_tables, before.page_tables);
        assert_eq!(usage().free, before.free);
    });
}

/// Spaces of one family in the hands of several tasks: each changes its own, forks it and ends it,
/// and all of them change frames wherever they are mapped.
#[test]
fn a_family_at_once() {
    on_machines("a family at once", [2, 3, 4], 1024, 25, change_a_family);
}

/// See [`a_family_at_once`].
pub(super) fn change_a_family() {
    random_coherence();
    let frames = Arc::new(tagged_frames(4));
    let root = Pmap::new().unwrap();
    let mut pending = Pending::new();
    for page in 0..PAGES {
        let frame = &frames[below(4)];
        root.enter(va_of(page), frame, random_prot(), &mut pending)
            .unwrap();
    }
    let gate = Gate::new();
    for _ in 0..4 {
        let first = root.fork(&mut all_tables(), 0, &mut pending).unwrap().0;
        pending.flush();
        let frames = frames.clone();
        let own = first.clone();
        spawn(&gate, &first, !0, move || one_of_a_family(own, &frames));
    }
    gate.wait_for(4);
    for page in 0..PAGES {
        let own = root.extract(va_of(page));
        assert!(own.is_none_or(|(_, prot)| !prot.contains(Prot::WRITE)));
    }
    let everything = VirtRange::new(VirtAddr(0), USER_END);
    root.remove(everything, &mut pending);
    pending.flush();
    for frame in frames.iter() {
        assert_eq!((frame.mappings(), frame.handles()), (0, 1));
    }
}

fn one_of_a_family(first: PmapRef, frames: &[Frame]) {
    let mut spaces = vec![first];
    // Of another family, so that the CPU has none of this one's loaded at times.
    let stranger = Pmap::new().unwrap();
    let mut pending = Pending::new();
    for _ in 0..60 {
        let frame = &frames[below(frames.len())];
        let at = va_of(below(PAGES));
        let n = below(spaces.len());
        let pmap = spaces[n].clone();
        match below(13) {
            0 | 1 if spaces.len() < 3 => {
                let mut spans = tables_but(va_of(below(PAGES))).into_iter();
                let (child, _) = pmap.fork(&mut spans, 0, &mut pending).unwrap();
                pending.flush();
                spaces.push(child);
            }
            0..3 if spaces.len() > 1 => {
                task::set_pmap(None);
                spaces.swap_remove(n).tear_down();
                task::set_pmap(Some(spaces[0].clone()));
            }
            3 if below(2) == 0 => task::set_pmap(Some(stranger.clone())),
            3 => task::set_pmap(Some(pmap)),
            5 if below(4) == 0 => audit::finds_nothing(spaces.iter(), false),
            4 => {
                page_protect(frame, Prot::READ, &mut pending);
                take_referenced(frame);
                clear_modified(frame, &mut pending);
            }
            _ => change(&pmap, at, frame, &mut pending),
        }
        if below(3) == 0 {
            pending.flush();
        }
    }
    pending.flush();
    task::set_pmap(None);
    stranger.tear_down();
    spaces.iter().for_each(|pmap| pmap.tear_down());
}

/// What could be written before a fork can be again, all at once, when the child is gone; until
/// then it can't.
#[test]
fn rights_come_back_when_the_child_is_gone() {
    on_machines("rights come back", [1, 2], 1024, 10, || {
        let frame = tagged_frames(1).remove(0);
        let pmap = Pmap::new().unwrap();
        let mut pending = Pending::new();
        let start = VirtAddr(0x4000_0000);
        let range = VirtRange::new(start, start + 100 * PAGE_SIZE);
        for va in range.pages() {
            pmap.enter(va, &frame, READ_WRITE, &mut pending).unwrap();
        }
        // This CPU holds what the fork takes away.
        task::set_pmap(Some(pmap.clone()));
        for va in range.pages() {
            user::write(va + 16, &1u32).unwrap();
        }
        let child = pmap.fork(&mut all_tables(), 0, &mut pending).unwrap().0;
        pending.flush();
        for va in range.pages() {
            assert!(user::write(va + 16, &1u32).is_err(), "written after a fork");
        }
        task::set_pmap(None);
        assert_eq!(frame.mappings(), 100);
        let can_write = |pmap: &PmapRef| {
            task::set_pmap(Some(pmap.clone()));
            let write = |va| user::write(va + 16, &1u32).is_ok();
            // What the CPU still holds may be narrower: after a fault it looks again.
            let can: Vec<bool> = range.pages().map(|va| write(va) || write(va)).collect();
            task::set_pmap(None);
            can
        };
        assert_eq!(can_write(&pmap), [false; 100]);
        assert_eq!(can_write(&child), [false; 100]);
        assert!(!pmap.reclaim(start, Writes::Kept));
        let copied = below(2) == 0;
        if copied {
            // The child has its own table now, and the parent the old one alone.
            child.own(start).unwrap();
            assert_eq!(frame.mappings(), 200);
            assert_eq!(can_write(&child), [false; 100]);
        }
        task::set_pmap(None);
        if !copied {
            child.tear_down();
        }
        assert_eq!(can_write(&pmap), [false; 100]);
        let (kept, writes) = [(true, Writes::Kept), (false, Writes::TakenAway)][below(2)];
        assert!(pmap.reclaim(start, writes));
        assert_eq!(can_write(&pmap), [kept; 100]);
        if copied {
            assert_eq!(can_write(&child), [false; 100]);
        }
        drop((child, pmap));
        assert_eq!((frame.mappings(), frame.handles()), (0, 1));
    });
}

/// Whatever fails for lack of memory, nothing is lost, and no more can be done than before.
#[test]
fn a_fork_without_memory_leaves_nothing_behind() {
    on_machines("a fork without memory", [1, 2], 1024, 6, || {
        let frame = tagged_frames(1).remove(0);
        for n in 0..8 {
            let pmap = Pmap::new().unwrap();
            let mut pending = Pending::new();
            for page in 0..PAGES {
                pmap.enter(va_of(page), &frame, Prot::all(), &mut pending)
                    .unwrap();
            }
            while crate::frame::drain_for_test() {}
            fail_after(Some(n));
            let child = pmap.fork(&mut all_tables(), 0, &mut pending);
            pending.flush();
            if let Ok((child, _)) = &child {
                // Without a table of its own it has no mapping rather than another's.
                child.remove(page_at(va_of(3)), &mut pending);
                pending.flush();
                assert!(!child.permits(va_of(3), Access::Read));
                assert!(pmap.permits(va_of(3), Access::Read));
                let range = VirtRange::new(va_of(24), va_of(30));
                child.move_range(range, VirtAddr(0x7f00_4000_0000));
            }
            fail_after(None);
            for page in 0..PAGES {
                assert_eq!(
                    pmap.extract(va_of(page)).as_ref().map(|found| &found.0),
                    Some(&frame)
                );
            }
            drop((child, pmap, pending));
            assert_eq!((frame.mappings(), frame.handles()), (0, 1));
        }
    });
}

/// Changes of a shared mapping are told to the CPUs that run a member of the family, and to no
/// other.
#[test]
fn a_shared_mapping_is_the_business_of_the_family() {
    on_machines("the business of the family", [4], 1024, 10, || {
        let frame = tagged_frames(1).remove(0);
        let at = VirtAddr(0x1000);
        let (parent, stranger) = (Pmap::new().unwrap(), Pmap::new().unwrap());
        let mut pending = Pending::new();
        for pmap in [&parent, &stranger] {
            pmap.enter(at, &frame, Prot::READ, &mut pending).unwrap();
        }
        let child = parent.fork(&mut all_tables(), 0, &mut pending).unwrap().0;
        pending.flush();
        let gate = Gate::new();
        let ready = Gate::new();
        let stop = Arc::new(AtomicBool::new(false));
        for (cpu, pmap) in [(1, &child), (2, &stranger)] {
            let (stop, ready) = (stop.clone(), ready.clone());
            let (first, then) = (stranger.clone(), pmap.clone());
            spawn(&gate, pmap, 1 << cpu, move || {
                // From one family to another.
                task::set_pmap(Some(first));
                let _ = user::read::<u64>(at + 8);
                task::set_pmap(Some(then));
                let _ = user::read::<u64>(at + 8);
                ready.pass();
                while !stop.load(Ordering::SeqCst) {
                    task::yield_now();
                }
                assert!(
                    user::read::<u64>(at + 8).is_err(),
                    "read through a mapping that is gone"
                );
            });
        }
        ready.wait_for(2);
        // Through the parent's table, in which no CPU runs.
        let told = Counter::tlb_remote.total();
        stranger.remove(page_at(at), &mut pending);
        pending.flush();
        let after = Counter::tlb_remote.total();
        assert!(after <= told + 1, "the stranger's own CPU at most");
        page_protect(&frame, Prot::empty(), &mut pending);
        pending.flush();
        let family = Counter::tlb_remote.total() - after;
        assert!(
            family <= 1,
            "{family} CPUs were told, one runs in the family"
        );
        assert!(!child.permits(at, Access::Read) && !parent.permits(at, Access::Read));
        stop.store(true, Ordering::SeqCst);
        gate.wait_for(2);
    });
}

/// A table that takes the place of a shared one knows that TLBs may hold what was read from that
/// until the very end: entries that had not been used when they were copied, too.
#[test]
fn what_was_read_while_a_table_was_copied_is_not_forgotten() {
    on_machines("read while copied", [2], 1024, 40, || {
        let frame = tagged_frames(1).remove(0);
        let start = VirtAddr(0x4000_0000);
        let range = VirtRange::new(start, start + 24 * PAGE_SIZE);
        let parent = Pmap::new().unwrap();
        let mut pending = Pending::new();
        for va in range.pages() {
            assert_eq!(parent.enter_ahead(va, &frame, Prot::READ), Ok(true));
        }
        let child = parent.fork(&mut all_tables(), 0, &mut pending).unwrap().0;
        pending.flush();
        let stop = Arc::new(AtomicBool::new(false));
        let gate = Gate::new();
        let ready = Gate::new();
        let (stopped, begun) = (stop.clone(), ready.clone());
        spawn(&gate, &child, 1 << 1, move || {
            begun.pass();
            while !stopped.load(Ordering::SeqCst) {
                let _ = user::read::<u64>(start + below(24) * PAGE_SIZE + 8);
            }
            for va in range.pages() {
                let read = user::read::<u64>(va + 8);
                assert!(read.is_err(), "read through a mapping that is gone");
            }
        });
        ready.wait_for(1);
        child.own(start).unwrap();
        // One of 512 at a time, so that only what is known of each entry counts.
        for va in range.pages() {
            child.remove(page_at(va), &mut pending);
        }
        pending.flush();
        stop.store(true, Ordering::SeqCst);
        gate.wait_for(1);
        child.tear_down();
        parent.tear_down();
        drop((child, parent, pending));
        assert_eq!((frame.mappings(), frame.handles()), (0, 1));
    });
}
