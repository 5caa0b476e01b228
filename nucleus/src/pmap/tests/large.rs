//! Large pages: against a model, with programs that use them meanwhile.

use super::*;
use crate::frame::{RUN_FRAMES, Run};

/// Neighbouring spans of 2 MiB that the tests use.
const SPANS: usize = 3;
const START: VirtAddr = VirtAddr(0x4000_0000);
/// What lies behind a page that is moved singly.
const FAR: VirtAddr = VirtAddr(0x7f00_0000_0000);

fn span_at(span: usize) -> VirtAddr {
    START + span * LEAF_SPAN
}

fn at(page: usize) -> VirtAddr {
    START + page * PAGE_SIZE
}

/// Often one at the border of something.
fn random_page() -> usize {
    let within = match below(3) {
        0 => [0, 1, 15, 16, 17, 255, 510, 511][below(8)],
        _ => below(ENTRIES),
    };
    below(SPANS) * ENTRIES + within
}

/// Pages from the first to before the last.
fn random_pages() -> core::ops::Range<usize> {
    let (a, b) = (random_page(), random_page());
    match below(4) {
        0 => a..a + 1,
        1 => a / ENTRIES * ENTRIES..(a / ENTRIES + 1) * ENTRIES,
        2 => a..(a + 1 + below(40)).min(SPANS * ENTRIES),
        _ => a.min(b)..a.max(b) + 1,
    }
}

fn range_of(pages: &core::ops::Range<usize>) -> VirtRange {
    VirtRange::new(at(pages.start), at(pages.end))
}

/// Mappings by page: a frame's tag, and the rights.
type Pages = BTreeMap<usize, (usize, Prot)>;

struct Spaces {
    spaces: Vec<(Arc<Pmap>, Pages)>,
    /// Programs may still run in them.
    ended: Vec<Arc<Pmap>>,
    runs: Vec<Run>,
    frames: Vec<Frame>,
    /// By tag: written by a program since it was cleaned.
    written: Vec<bool>,
}

impl Spaces {
    fn new(spaces: usize, runs: usize) -> Spaces {
        let runs: Vec<Run> = (0..runs)
            .map(|_| Run::alloc(Contents::Zeroed).unwrap())
            .collect();
        let of = |run: &Run| {
            (0..ENTRIES as u32)
                .map(|i| run.first() + i)
                .collect::<Vec<_>>()
        };
        let numbers: Vec<u32> = runs.iter().flat_map(of).collect();
        let frames: Vec<Frame> = numbers
            .into_iter()
            .map(|number| {
                record(number).handles.fetch_add(1, Ordering::Relaxed);
                Frame::from_index(number)
            })
            .collect();
        for (tag, frame) in frames.iter().enumerate() {
            ephemeral::map(frame).write(8, &(tag as u64).to_le_bytes());
        }
        Spaces {
            spaces: (0..spaces)
                .map(|_| (Pmap::new().unwrap(), Pages::new()))
                .collect(),
            ended: Vec::new(),
            written: vec![false; frames.len()],
            runs,
            frames,
        }
    }

    fn fork(&mut self, p: usize, q: usize) {
        let refused = below(SPANS + 2);
        let mut spans = tables_but(START + refused * LEAF_SPAN).into_iter();
        let least = 1 + [0, ENTRIES][below(2)];
        let mut pending = Pending::new();
        let (child, complete) = self.spaces[p]
            .0
            .fork(&mut spans, least, &mut pending)
            .unwrap();
        pending.flush();
        let mapped = |span: usize| {
            let pages = span * ENTRIES..(span + 1) * ENTRIES;
            self.spaces[p].1.range(pages).count()
        };
        let shared: Vec<usize> = (0..SPANS)
            .filter(|&span| span != refused && mapped(span) >= least)
            .collect();
        let is_shared = |page: &usize| shared.contains(&(page / ENTRIES));
        let mut map = self.spaces[p].1.clone();
        map.retain(|page, _| is_shared(page));
        assert_eq!(complete, map.len() == self.spaces[p].1.len());
        for (page, (_, prot)) in self.spaces[p].1.iter_mut().chain(map.iter_mut()) {
            if is_shared(page) {
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
        if below(12) == 0 {
            let q = below(self.spaces.len());
            if p != q {
                self.fork(p, q);
            }
            return;
        }
        let (pmap, map) = &mut self.spaces[p];
        let page = random_page();
        let tag = below(self.frames.len());
        let prot = random_prot();
        match below(18) {
            0..5 => {
                let (span, r) = (below(SPANS), below(self.runs.len()));
                let pages = span * ENTRIES..(span + 1) * ENTRIES;
                if below(4) != 0 {
                    pmap.remove(range_of(&pages), &mut pending);
                    pending.flush();
                    map.retain(|page, _| !pages.contains(page));
                }
                let kind = [LargeKind::Private, LargeKind::Shared][below(2)];
                let entered = pmap.enter_large(span_at(span), &self.runs[r], prot, kind);
                let is_empty = map.range(pages.clone()).next().is_none();
                if entered == Ok(true) {
                    assert!(is_empty, "mappings were replaced");
                    map.extend(pages.map(|page| (page, (r * ENTRIES + page % ENTRIES, prot))));
                } else {
                    // A table whose mappings were taken out by their frames stays.
                    assert_eq!(entered, Ok(false));
                    assert!(pmap.has_table(span_at(span)));
                }
            }
            5 => {
                pmap.enter(at(page), &self.frames[tag], prot, &mut pending)
                    .unwrap();
                map.insert(page, (tag, prot));
            }
            6 => {
                let entered = pmap.enter_ahead(at(page), &self.frames[tag], prot);
                assert_eq!(entered, Ok(!map.contains_key(&page)));
                map.entry(page).or_insert((tag, prot));
            }
            7 => {
                let range = VirtRange::new(at(page), at(page + 1));
                let same = map.get(&page).map_or(tag, |mapping| mapping.0);
                let frame = &self.frames[same];
                if pmap.widen_each(range, |_| Some((frame, Prot::WRITE))) == 1 {
                    map.get_mut(&page).unwrap().1 |= Prot::WRITE;
                }
                if pmap.enter_ahead_each(range, |_| Some((frame, prot))) == 1 {
                    assert_eq!(map.insert(page, (same, prot)), None);
                }
            }
            8..10 => {
                let pages = random_pages();
                pmap.remove(range_of(&pages), &mut pending);
                map.retain(|page, _| !pages.contains(page));
            }
            10 => {
                let pages = random_pages();
                pmap.protect(range_of(&pages), prot, &mut pending);
                map.range_mut(pages)
                    .for_each(|(_, (_, rights))| *rights &= prot);
            }
            11 => {
                let prot = if below(2) == 0 { prot } else { Prot::empty() };
                page_protect(&self.frames[tag], prot, &mut pending);
                for (_, map) in &mut self.spaces {
                    map.values_mut()
                        .filter(|(frame, _)| *frame == tag)
                        .for_each(|(_, rights)| *rights &= prot);
                    map.retain(|_, (_, rights)| !rights.is_empty());
                }
            }
            12 => match below(3) {
                0 => drop(take_referenced(&self.frames[tag])),
                1 => assert_eq!(
                    take_use(&self.frames[tag]).mappings,
                    self.frames[tag].mappings()
                ),
                _ => {
                    clear_modified(&self.frames[tag], &mut pending);
                    pending.flush();
                    self.written[tag] = false;
                    assert!(!is_modified(&self.frames[tag]));
                }
            },
            13 => {
                // There and back, which has to leave everything as it was but for the size of
                // pages.
                let pages = random_pages();
                let count = map.range(pages.clone()).count();
                let range = range_of(&pages);
                assert_eq!(pmap.move_range(range, FAR), count);
                assert_eq!(pmap.resident_in(range), 0);
                let there = VirtRange::new(FAR, FAR + range.len());
                assert_eq!(pmap.move_range(there, range.start), count);
            }
            14 => pmap.wire(range_of(&random_pages()), below(2) == 0),
            15 => pmap.own(at(page)).unwrap(),
            _ => {
                task::set_pmap(Some(pmap.clone()));
                let mapped = map.get(&page).copied();
                let read = user::read::<u64>(at(page) + 8).ok();
                assert_eq!(read, mapped.map(|(tag, _)| tag as u64));
                let write = user::write(at(page) + 16, &1u32).is_ok();
                assert_eq!(
                    write,
                    mapped.is_some_and(|(_, prot)| prot.contains(Prot::WRITE))
                );
                if let Some((tag, _)) = mapped.filter(|_| write) {
                    self.written[tag] = true;
                }
            }
        }
        pending.flush();
        drop(pending);
        self.check_one(p, random_page());
    }

    fn check_one(&self, p: usize, page: usize) {
        let (pmap, map) = &self.spaces[p];
        let expected = map.get(&page);
        let found = pmap.extract(at(page));
        let found = found.as_ref().map(|(frame, prot)| (frame, *prot));
        let model = expected.map(|&(tag, prot)| (&self.frames[tag], prot));
        assert_eq!(found, model, "page {page} of space {p}");
        for access in [Access::Read, Access::Write, Access::Execute] {
            let allowed = expected.is_some_and(|(_, prot)| prot.contains(access.needs()));
            assert_eq!(pmap.permits(at(page), access), allowed);
        }
    }

    fn check_all(&self) {
        for (p, (pmap, map)) in self.spaces.iter().enumerate() {
            (0..40).for_each(|_| self.check_one(p, random_page()));
            assert_eq!(pmap.resident().pages, map.len());
            let pages = random_pages();
            assert_eq!(pmap.resident_in(range_of(&pages)), map.range(pages).count());
            assert!(pmap.large_in(VirtRange::new(VirtAddr(0), USER_END)) <= map.len());
        }
        for (tag, frame) in self.frames.iter().enumerate() {
            assert!(
                !self.written[tag] || is_modified(frame),
                "a write to {tag} left no trace"
            );
        }
    }
}

#[test]
fn large_pages_are_pages() {
    on_machines_with("large pages", [1, 2, 4], 4 * 1024, 3, || {
        random_coherence();
        user::set_fault_hook(|_, _| false);
        let before = usage();
        let mut spaces = Spaces::new(3, 2);
        let frames = spaces.frames.len() as u64;
        let gate = Gate::new();
        let stop = Arc::new(AtomicBool::new(false));
        for (pmap, _) in &spaces.spaces {
            let stop = stop.clone();
            spawn(&gate, Some(pmap.clone()), move || {
                while !stop.load(Ordering::SeqCst) {
                    if let Ok(tag) = user::read::<u64>(at(random_page()) + 8) {
                        assert!(tag < frames, "no frame has the tag {tag:#x}");
                    }
                    task::yield_now();
                }
            });
        }
        for _ in 0..6 {
            (0..20).for_each(|_| spaces.step());
            spaces.check_all();
        }
        stop.store(true, Ordering::SeqCst);
        gate.wait_for(spaces.spaces.len());
        task::set_pmap(None);
        for pmap in spaces
            .spaces
            .iter()
            .map(|space| &space.0)
            .chain(&spaces.ended)
        {
            pmap.tear_down();
        }
        assert!(spaces.frames.iter().all(|frame| frame.mappings() == 0));
        assert!(spaces.frames.iter().all(|frame| frame.handles() == 2));
        drop(spaces);
        assert_back(before);
    });
}

/// One change in many tasks at once: each lookup sees the page, large or split.
#[test]
fn all_split_at_once() {
    on_machines_with("all split at once", [4], 4 * 1024, 10, || {
        random_coherence();
        user::set_fault_hook(|_, _| {
            // As the fault routine does for a page that is there: again, when another CPU had time
            // to go on.
            crate::hw::machine::spin_hint();
            true
        });
        let before = usage();
        let splits = || {
            let why = [Why::Remove, Why::Protect, Why::Fork, Why::Page, Why::Other];
            why.map(|why| why.counter().total()).iter().sum::<u64>()
        };
        let split = splits();
        let spaces = Arc::new(Spaces::new(2, 1));
        let rw = Prot::READ | Prot::WRITE;
        for (pmap, _) in &spaces.spaces {
            assert_eq!(
                pmap.enter_large(START, &spaces.runs[0], rw, LargeKind::Private),
                Ok(true)
            );
        }
        let gate = Gate::new();
        for me in 0..4 {
            let spaces = spaces.clone();
            spawn(&gate, Some(spaces.spaces[me % 2].0.clone()), move || {
                let pmap = &spaces.spaces[me % 2].0;
                for _ in 0..20 {
                    let page = below(ENTRIES);
                    match below(5) {
                        0 => pmap.own(at(page)).unwrap(),
                        1 => drop(take_referenced(&spaces.frames[page])),
                        2 => {
                            let mut pending = Pending::new();
                            clear_modified(&spaces.frames[page], &mut pending);
                        }
                        3 => assert_eq!(user::write(at(page) + 16, &7u32), Ok(())),
                        _ => assert_eq!(user::read::<u64>(at(page) + 8), Ok(page as u64)),
                    }
                    let (frame, prot) = pmap.extract(at(page)).unwrap();
                    assert_eq!((&frame, prot), (&spaces.frames[page], rw));
                }
            });
        }
        gate.wait_for(4);
        task::set_pmap(None);
        assert!(splits() - split <= 2);
        spaces.spaces.iter().for_each(|(pmap, _)| pmap.tear_down());
        assert!(spaces.frames.iter().all(|frame| frame.handles() == 2));
        drop(spaces);
        assert_back(before);
    });
}

/// A large page that there is no memory for leaves nothing behind.
#[test]
fn no_memory_for_a_large_page() {
    on_machines_with("no memory for a large page", [1], 2 * 1024, 4, || {
        let before = usage();
        let run = Run::alloc(Contents::Zeroed).unwrap();
        for n in 0..4 {
            let pmap = Pmap::new().unwrap();
            while crate::frame::drain_for_test() {}
            fail_after(Some(n));
            let entered = pmap.enter_large(START, &run, Prot::READ, LargeKind::Shared);
            fail_after(None);
            assert_eq!(entered.is_ok(), n == 3);
            assert_eq!(pmap.resident().pages, if n == 3 { RUN_FRAMES } else { 0 });
        }
        assert!(Run::of((0..RUN_FRAMES).map(|_| unreachable!()).take(0)).is_none());
        drop(run);
        assert_back(before);
    });
}
