//! Page tables that a fork made common: against a model, and many spaces at once.

use super::*;

/// Spaces that fork, change and end, with programs in them; a right to write that a fork took away
/// comes back by `enter` and `reclaim` only.
struct Families {
    spaces: Vec<(Arc<Pmap>, BTreeMap<usize, (usize, Prot)>)>,
    /// Programs may still run in them.
    ended: Vec<Arc<Pmap>>,
    frames: Vec<Frame>,
    modified: Vec<bool>,
}

impl Families {
    fn new(spaces: usize, frames: usize) -> Families {
        Families {
            spaces: (0..spaces)
                .map(|_| (Pmap::new().unwrap(), BTreeMap::new()))
                .collect(),
            ended: Vec::new(),
            frames: tagged_frames(frames),
            modified: vec![false; frames],
        }
    }

    /// A child of space `p` takes the place of space `q`.
    fn fork(&mut self, p: usize, q: usize) {
        let mut spans: Vec<VirtRange> = all_tables().collect();
        if below(2) == 0 {
            spans = tables_but(va_of(below(PAGES))).to_vec();
        }
        let mut pending = Pending::new();
        let forked = self.spaces[p]
            .0
            .fork(&mut spans.iter().copied(), 0, &mut pending);
        let (child, complete) = forked.unwrap();
        pending.flush();
        let is_shared = |page: usize| {
            spans
                .iter()
                .any(|span: &VirtRange| span.contains(va_of(page)))
        };
        let mut map = self.spaces[p].1.clone();
        map.retain(|&page, _| is_shared(page));
        assert_eq!(complete, map.len() == self.spaces[p].1.len());
        for (page, (_, prot)) in self.spaces[p].1.iter_mut().chain(map.iter_mut()) {
            if is_shared(*page) {
                *prot -= Prot::WRITE;
            }
        }
        task::set_pmap(None);
        let ended = core::mem::replace(&mut self.spaces[q], (child, map));
        self.ended.push(ended.0);
    }

    fn step(&mut self) {
        let mut pending = Pending::new();
        let p = below(self.spaces.len());
        if below(5) == 0 {
            let q = below(self.spaces.len());
            if p != q {
                self.fork(p, q);
            }
            return;
        }
        let (pmap, map) = &mut self.spaces[p];
        let page = below(PAGES);
        let at = va_of(page);
        let f = below(self.frames.len());
        let frame = &self.frames[f];
        let prot = random_prot();
        match below(16) {
            0..3 => {
                pmap.enter(at, frame, prot, &mut pending).unwrap();
                map.insert(page, (f, prot));
            }
            3 => {
                let entered = pmap.enter_ahead(at, frame, prot);
                assert_eq!(entered, Ok(!map.contains_key(&page)));
                map.entry(page).or_insert((f, prot));
            }
            4 => {
                // Only where this pmap has a table of its own.
                let range = VirtRange::new(at, at + PAGE_SIZE);
                if pmap.enter_ahead_each(range, |_| Some((frame, prot))) == 1 {
                    assert_eq!(map.insert(page, (f, prot)), None);
                }
                let widened = pmap.widen_each(range, |_| Some((frame, Prot::WRITE)));
                if widened == 1 {
                    let mapping = map.get_mut(&page).unwrap();
                    assert_eq!(mapping.0, f);
                    mapping.1 |= Prot::WRITE;
                }
            }
            5..7 => {
                let range = random_range();
                pmap.remove(range, &mut pending);
                map.retain(|&page, _| !range.contains(va_of(page)));
            }
            7 => {
                let range = random_range();
                pmap.protect(range, prot, &mut pending);
                for (&page, (_, rights)) in map {
                    if range.contains(va_of(page)) {
                        *rights &= prot;
                    }
                }
            }
            8 => {
                page_protect(frame, prot, &mut pending);
                for (_, map) in &mut self.spaces {
                    for (_, rights) in map.values_mut().filter(|(frame, _)| *frame == f) {
                        *rights &= prot;
                    }
                }
            }
            9 => {
                page_protect(frame, Prot::empty(), &mut pending);
                for (_, map) in &mut self.spaces {
                    map.retain(|_, (frame, _)| *frame != f);
                }
            }
            10 => {
                take_referenced(frame);
                clear_modified(frame, &mut pending);
                self.modified[f] = false;
            }
            11 if below(2) == 0 => pmap.own(at).unwrap(),
            11 => {
                if pmap.is_shared(at) {
                    let base = VirtAddr(at.0 & !(LEAF_SPAN - 1));
                    let span = VirtRange::new(base, base + LEAF_SPAN);
                    map.retain(|&page, _| !span.contains(va_of(page)));
                }
                pmap.leave_shared(at);
            }
            12 => drop(pmap.reclaim(at, Writes::TakenAway)),
            13 => {
                if let Some((range, to)) = random_move() {
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
            _ => {
                task::set_pmap(Some(pmap.clone()));
                let mapped = map.get(&page);
                let read = user::read::<u64>(at + 8).ok();
                assert_eq!(read, mapped.map(|&(f, _)| f as u64));
                let write = user::write(at + 16, &1u32).is_ok();
                assert_eq!(write, mapped.is_some_and(|m| m.1.contains(Prot::WRITE)));
                if let Some(&(f, _)) = mapped.filter(|_| write) {
                    self.modified[f] = true;
                }
                if below(2) == 0 {
                    task::set_pmap(None);
                }
            }
        }
        pending.flush();
        drop(pending);
        self.check_one(p, below(PAGES));
    }

    fn check_one(&self, p: usize, page: usize) {
        let (pmap, map) = &self.spaces[p];
        let expected = map.get(&page);
        let found = pmap.extract(va_of(page));
        let found = found.as_ref().map(|(frame, prot)| (frame, *prot));
        let model = expected.map(|&(f, prot)| (&self.frames[f], prot));
        assert_eq!(found, model, "page {page} of pmap {p}");
        for access in [Access::Read, Access::Write, Access::Execute] {
            let allowed = expected.is_some_and(|(_, prot)| prot.contains(access.needs()));
            assert_eq!(pmap.permits(va_of(page), access), allowed);
        }
    }

    /// No program runs.
    fn check_all(&mut self) {
        task::set_pmap(None);
        self.ended.drain(..).for_each(|pmap| pmap.tear_down());
        for (p, (pmap, map)) in self.spaces.iter().enumerate() {
            (0..PAGES).for_each(|page| self.check_one(p, page));
            assert_eq!(pmap.resident().pages, map.len());
        }
        for (f, frame) in self.frames.iter().enumerate() {
            let uses = self.spaces.iter().flat_map(|(_, map)| map.values());
            let uses = uses.filter(|used| used.0 == f).count() as u32;
            // One mapping in a shared table is one in each space.
            assert!(frame.mappings() <= uses && (frame.mappings() > 0) == (uses > 0));
            assert_eq!(mappings_of_spaces(frame), uses);
            assert_eq!(frame.handles(), frame.mappings() + 1);
            assert_eq!(is_modified(frame), self.modified[f], "frame {f}");
        }
    }
}

#[test]
fn forked_pmaps_are_maps() {
    on_machines_with("forked pmaps are maps", [1, 2, 4], 1024, 15, || {
        random_coherence();
        user::set_fault_hook(|_, _| false);
        let before = usage();
        let mut model = Families::new(4, 6);
        for _ in 0..12 {
            let gate = Gate::new();
            let stop = Arc::new(AtomicBool::new(false));
            // Programs that look at all pages all the time, on other CPUs if there are any.
            let running = model.spaces.len();
            for (pmap, _) in &model.spaces {
                let stop = stop.clone();
                spawn(&gate, Some(pmap.clone()), move || {
                    while !stop.load(Ordering::SeqCst) {
                        if let Ok(tag) = user::read::<u64>(va_of(below(PAGES)) + 8) {
                            assert!(tag < 6, "no frame has the tag {tag:#x}");
                        }
                        task::yield_now();
                    }
                });
            }
            for _ in 0..30 {
                model.step();
            }
            stop.store(true, Ordering::SeqCst);
            gate.wait_for(running);
            model.check_all();
        }
        assert!(Counter::page_tables_shared.total() > 0);
        task::set_pmap(None);
        model.spaces.iter().for_each(|(pmap, _)| pmap.tear_down());
        drop(model);
        assert_back(before);
    });
}

/// Spaces of one family in the hands of several tasks: each changes its own, forks it and ends it,
/// and all of them change frames wherever they are mapped.
#[test]
fn a_family_at_once() {
    on_machines_with("a family at once", [2, 3, 4], 1024, 25, || {
        random_coherence();
        user::set_fault_hook(|_, _| false);
        let before = usage();
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
            spawn(&gate, Some(first.clone()), move || {
                one_of_a_family(first, &frames);
            });
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
        drop((root, frames));
        assert_back(before);
    });
}

fn one_of_a_family(first: Arc<Pmap>, frames: &[Frame]) {
    let mut spaces = vec![first];
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
            3 => task::set_pmap(Some(pmap)),
            4 => pmap.enter(at, frame, random_prot(), &mut pending).unwrap(),
            // One without another holder: free as soon as it is unmapped everywhere.
            5 => {
                let own = tagged_frames(1).remove(0);
                pmap.enter(at, &own, random_prot(), &mut pending).unwrap();
            }
            6 => pmap.remove(random_range(), &mut pending),
            7 => pmap.protect(random_range(), random_prot(), &mut pending),
            8 => page_protect(frame, Prot::empty(), &mut pending),
            9 => {
                page_protect(frame, Prot::READ, &mut pending);
                take_referenced(frame);
                clear_modified(frame, &mut pending);
            }
            10 => {
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
    pending.flush();
    task::set_pmap(None);
    spaces.iter().for_each(|pmap| pmap.tear_down());
}

/// What could be written before a fork can be again, all at once, when the child is gone; until
/// then it can't.
#[test]
fn rights_come_back_when_the_child_is_gone() {
    on_machines_with("rights come back", [1, 2], 1024, 10, || {
        let before = usage();
        user::set_fault_hook(|_, _| false);
        let frame = tagged_frames(1).remove(0);
        let pmap = Pmap::new().unwrap();
        let mut pending = Pending::new();
        let start = VirtAddr(0x4000_0000);
        let range = VirtRange::new(start, start + 100 * PAGE_SIZE);
        for va in range.pages() {
            pmap.enter(va, &frame, Prot::READ | Prot::WRITE, &mut pending)
                .unwrap();
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
        let can_write = |pmap: &Arc<Pmap>| {
            task::set_pmap(Some(pmap.clone()));
            let can: Vec<bool> = range
                .pages()
                .map(|va| user::write(va + 16, &1u32).is_ok())
                .collect();
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
        let kept = below(2) == 0;
        let writes = if kept {
            Writes::Kept
        } else {
            Writes::TakenAway
        };
        assert!(pmap.reclaim(start, writes));
        assert_eq!(can_write(&pmap), [kept; 100]);
        assert_eq!(can_write(&child), [false; 100]);
        drop((child, pmap));
        assert_eq!((frame.mappings(), frame.handles()), (0, 1));
        drop(frame);
        assert_back(before);
    });
}

/// Whatever fails for lack of memory, nothing is lost, and no more can be done than before.
#[test]
fn a_fork_without_memory_leaves_nothing_behind() {
    on_machines_with("a fork without memory", [1, 2], 1024, 6, || {
        let before = usage();
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
                let page = VirtRange::new(va_of(3), va_of(3) + PAGE_SIZE);
                child.remove(page, &mut pending);
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
        drop(frame);
        assert_back(before);
    });
}

/// Changes of a shared mapping are told to the CPUs that run a member of the family, and to no
/// other.
#[test]
fn a_shared_mapping_is_the_business_of_the_family() {
    on_machines_with("the business of the family", [4], 1024, 10, || {
        user::set_fault_hook(|_, _| false);
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
            let done = gate.clone();
            let run = move || {
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
                task::set_pmap(None);
                done.pass();
            };
            let spawn = Spawn {
                pmap: Some(pmap.clone()),
                cpus: 1 << cpu,
                ..Spawn::kernel("pinned")
            };
            task::spawn(spawn, Box::new(run)).unwrap();
        }
        ready.wait_for(2);
        // Through the parent's table, in which no CPU runs.
        let told = Counter::tlb_remote.total();
        let other = tagged_frames(1).remove(0);
        stranger.remove(VirtRange::new(at, at + PAGE_SIZE), &mut pending);
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
        drop(other);
        stop.store(true, Ordering::SeqCst);
        gate.wait_for(2);
    });
}

/// A table that takes the place of a shared one knows that TLBs may hold what was read from that
/// until the very end: entries that had not been used when they were copied, too.
#[test]
fn what_was_read_while_a_table_was_copied_is_not_forgotten() {
    on_machines_with("read while copied", [2], 1024, 40, || {
        user::set_fault_hook(|_, _| false);
        let before = usage();
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
        let (stopped, ended, begun) = (stop.clone(), gate.clone(), ready.clone());
        let run = move || {
            begun.pass();
            while !stopped.load(Ordering::SeqCst) {
                let _ = user::read::<u64>(start + below(24) * PAGE_SIZE + 8);
            }
            for va in range.pages() {
                let read = user::read::<u64>(va + 8);
                assert!(read.is_err(), "read through a mapping that is gone");
            }
            task::set_pmap(None);
            ended.pass();
        };
        let spawn = Spawn {
            pmap: Some(child.clone()),
            cpus: 1 << 1,
            ..Spawn::kernel("reader")
        };
        task::spawn(spawn, Box::new(run)).unwrap();
        ready.wait_for(1);
        child.own(start).unwrap();
        // One of 512 at a time, so that only what is known of each entry counts.
        for va in range.pages() {
            child.remove(VirtRange::new(va, va + PAGE_SIZE), &mut pending);
        }
        pending.flush();
        stop.store(true, Ordering::SeqCst);
        gate.wait_for(1);
        child.tear_down();
        parent.tear_down();
        drop((child, parent, pending));
        assert_eq!((frame.mappings(), frame.handles()), (0, 1));
        drop(frame);
        assert_back(before);
    });
}
