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

/// Spaces in which runs of frames are mapped as large pages.
struct Large {
    model: Spaces,
    runs: Vec<Run>,
}

impl Large {
    fn new(spaces: usize, runs: usize) -> Large {
        let run = |_| Run::alloc(Contents::Zeroed).unwrap().into_frames();
        let frames = tagged((0..runs).flat_map(run).collect());
        let run_of = |frames: &[Frame]| Run::of(frames.iter()).unwrap();
        Large {
            runs: frames.chunks(ENTRIES).map(run_of).collect(),
            model: Spaces::new(spaces, frames, at),
        }
    }

    fn step(&mut self) {
        let (p, page) = (below(self.model.spaces.len()), random_page());
        if below(12) == 0 {
            let q = below(self.model.spaces.len());
            if p != q {
                let refused = span_at(below(SPANS + 2));
                let least = 1 + [0, ENTRIES][below(2)];
                self.model.fork(p, q, &tables_but(refused), least);
            }
            return;
        }
        let (pmap, map) = &mut self.model.spaces[p];
        match below(18) {
            0..5 => {
                let (span, r, prot) = (below(SPANS), below(self.runs.len()), random_prot());
                let pages = span * ENTRIES..(span + 1) * ENTRIES;
                if below(4) != 0 {
                    pmap.remove(range_of(&pages), &mut Pending::new());
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
            6 => pmap.wire(range_of(&random_pages()), below(2) == 0),
            7 => pmap.own(at(page)).unwrap(),
            _ => self.model.change(p, page, range_of(&random_pages())),
        }
        self.model.check_one(p, random_page());
    }

    fn check_all(&self) {
        for (p, (pmap, map)) in self.model.spaces.iter().enumerate() {
            (0..40).for_each(|_| self.model.check_one(p, random_page()));
            assert!(pmap.large_in(VirtRange::new(VirtAddr(0), USER_END)) <= map.len());
        }
        self.model.check_counts(range_of(&random_pages()));
        for (tag, frame) in self.model.frames.iter().enumerate() {
            assert!(
                !self.model.modified[tag] || is_modified(frame),
                "a write to {tag} left no trace"
            );
        }
    }

    /// Ends all spaces: nothing is mapped any more.
    fn end(&mut self) {
        self.model.tear_down();
        for frame in &self.model.frames {
            assert_eq!((frame.mappings(), frame.handles()), (0, 2));
        }
    }
}

#[test]
fn large_pages_are_pages() {
    on_machines("large pages", [1, 2, 4], 4 * 1024, 3, || {
        random_coherence();
        let mut large = Large::new(3, 2);
        let readers = Readers::start(&large.model, || at(random_page()));
        for _ in 0..6 {
            (0..20).for_each(|_| large.step());
            large.check_all();
        }
        readers.stop();
        large.end();
    });
}

/// One change in many tasks at once: each lookup sees the page, large or split.
#[test]
fn all_split_at_once() {
    on_machines("all split at once", [4], 4 * 1024, 10, || {
        random_coherence();
        user::set_fault_hook(|_, _| {
            // As the fault routine does for a page that is there: again, when another CPU had time
            // to go on.
            crate::hw::machine::spin_hint();
            true
        });
        let splits = || {
            let why = [Why::Remove, Why::Protect, Why::Fork, Why::Page, Why::Other];
            why.map(|why| why.counter().total()).iter().sum::<u64>()
        };
        let split = splits();
        let large = Arc::new(Large::new(2, 1));
        for (pmap, _) in &large.model.spaces {
            let entered = pmap.enter_large(START, &large.runs[0], READ_WRITE, LargeKind::Private);
            assert_eq!(entered, Ok(true));
        }
        let gate = Gate::new();
        for me in 0..4 {
            let inner = large.clone();
            spawn(&gate, &large.model.spaces[me % 2].0, !0, move || {
                let Spaces { spaces, frames, .. } = &inner.model;
                let pmap = &spaces[me % 2].0;
                for _ in 0..20 {
                    let page = below(ENTRIES);
                    match below(5) {
                        0 => pmap.own(at(page)).unwrap(),
                        1 => drop(take_referenced(&frames[page])),
                        2 => {
                            let mut pending = Pending::new();
                            clear_modified(&frames[page], &mut pending);
                        }
                        3 => assert_eq!(user::write(at(page) + 16, &7u32), Ok(())),
                        _ => assert_eq!(user::read::<u64>(at(page) + 8), Ok(page as u64)),
                    }
                    let (frame, prot) = pmap.extract(at(page)).unwrap();
                    assert_eq!((&frame, prot), (&frames[page], READ_WRITE));
                }
            });
        }
        gate.wait_for(4);
        assert!(splits() - split <= 2);
        Arc::into_inner(large).expect("all tasks have ended").end();
    });
}

/// A large page that there is no memory for leaves nothing behind.
#[test]
fn no_memory_for_a_large_page() {
    on_machines("no memory for a large page", [1], 2 * 1024, 4, || {
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
    });
}
