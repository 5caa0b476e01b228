//! Large pages: address spaces against a plain model while memory is filled 2 MiB at a time, split
//! by various operations, and paged out. Workers on several CPUs make the accesses; their TLBs keep
//! any entry that they may keep.

mod support;

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use nucleus::{
    Access, PAGE_SIZE, Prot, VirtAddr, VirtRange,
    counters::Counter,
    frame,
    pmap::{self, Fork},
    sim,
};
use support::{HERE, Numbers, RW, Worker, map_zero, new_map, page, pages, swap, zero_at};
use vm::{Advice, LargePages, Map, MapRequest, Place, set_large_pages};

/// Three spans, with some room before the first and after the last.
const SPANS: usize = 3;
const FIRST: usize = HERE.0 / PAGE_SIZE - 8;
const END: usize = HERE.0 / PAGE_SIZE + SPANS * 512 + 8;

fn at(page: usize) -> VirtAddr {
    VirtAddr(page * PAGE_SIZE)
}

/// A page of an address space.
#[derive(Clone, Copy)]
struct Page {
    may_write: bool,
    /// Its first word.
    word: u64,
    /// It was freed lazily (`MADV_FREE`): it may be zero by now.
    maybe_zero: bool,
}

type Pages = BTreeMap<usize, Page>;

struct Space {
    map: Arc<Map>,
    workers: Vec<Worker>,
    pages: Pages,
}

impl Space {
    /// Changes those of `pages` that are mapped.
    fn each(&mut self, pages: Range<usize>, change: impl Fn(&mut Page)) {
        let there = self.pages.range_mut(pages);
        there.for_each(|(_, page)| change(page));
    }
}

struct Model {
    numbers: Numbers,
    cpus: usize,
    spaces: Vec<Space>,
}

impl Model {
    fn space(&self, map: Arc<Map>, pages: Pages) -> Space {
        let workers = Worker::on_each(&map, self.cpus);
        Space {
            map,
            workers,
            pages,
        }
    }

    /// Often one near a boundary.
    fn page(&mut self) -> usize {
        let within = match self.numbers.below(3) {
            0 => self.numbers.below(512),
            1 => *self.numbers.pick(&[0, 1, 31, 32, 33, 510, 511]),
            _ => 500 + self.numbers.below(24),
        };
        (FIRST + 8 + self.numbers.below(SPANS) * 512 + within).min(END - 1)
    }

    fn pages(&mut self) -> Range<usize> {
        let first = self.page();
        match self.numbers.below(4) {
            0 => first..first + 1,
            1 => first..(first + 1 + self.numbers.below(60)).min(END),
            2 => {
                let base = first / 512 * 512;
                base..(base + 512).min(END)
            }
            _ => {
                let other = self.page();
                first.min(other)..first.max(other) + 1
            }
        }
    }

    fn range(pages: &Range<usize>) -> VirtRange {
        VirtRange::new(at(pages.start), at(pages.end))
    }

    fn step(&mut self) {
        let s = self.numbers.below(self.spaces.len());
        let pages = self.pages();
        let range = Model::range(&pages);
        let whole = |space: &Space| pages.clone().all(|page| space.pages.contains_key(&page));
        match self.numbers.below(28) {
            0..3 => {
                // Mostly all of it.
                let pages = match self.numbers.chance(70) {
                    true => FIRST..END,
                    false => pages,
                };
                let space = &mut self.spaces[s];
                let range = Model::range(&pages);
                map_zero(&space.map, range, false);
                if self.numbers.chance(80) {
                    space.map.advise(range, Advice::Large).expect("mapped");
                }
                let new = Page {
                    may_write: true,
                    word: 0,
                    maybe_zero: false,
                };
                space.pages.extend(pages.map(|page| (page, new)));
            }
            3 => {
                let space = &mut self.spaces[s];
                space.map.unmap(range).expect("unmap");
                space.pages.retain(|page, _| !pages.contains(page));
            }
            4 => {
                let write = self.numbers.chance(50);
                let space = &mut self.spaces[s];
                let prot = if write { RW } else { Prot::READ };
                let complete = whole(space);
                assert_eq!(space.map.protect(range, prot).is_ok(), complete);
                if complete {
                    space.each(pages, |page| page.may_write = write);
                }
            }
            5 => {
                let space = &mut self.spaces[s];
                let _ = space.map.advise(range, Advice::DontNeed);
                space.each(pages, |page| page.word = 0);
            }
            20 => {
                let space = &mut self.spaces[s];
                if whole(space) {
                    space.map.advise(range, Advice::Free).expect("mapped");
                    space.each(pages, |page| page.maybe_zero = true);
                }
            }
            21 => {
                // By the kernel, for another process: across large and small pages.
                let value = (1 + self.numbers.next()).to_le_bytes();
                let bytes: Vec<u8> = value.iter().copied().cycle().take(2 * PAGE_SIZE).collect();
                let space = &mut self.spaces[s];
                let written = space.map.write(at(pages.start), &bytes);
                for page in pages.start..pages.start + written / PAGE_SIZE {
                    let page = space.pages.get_mut(&page).expect("it was written");
                    assert!(page.may_write);
                    (page.word, page.maybe_zero) = (u64::from_le_bytes(value), false);
                }
                let refused = pages.start + written / PAGE_SIZE;
                let may = space.pages.get(&refused).is_some_and(|page| page.may_write);
                assert!(written == bytes.len() || !may, "{written} bytes");
            }
            6 if self.spaces.len() < 3 => {
                let space = &self.spaces[s];
                let (child, copy) = (space.map.fork().expect("memory"), space.pages.clone());
                let child = self.space(child, copy);
                self.spaces.push(child);
            }
            7 if self.spaces.len() > 1 => {
                let space = self.spaces.remove(s);
                space.workers.into_iter().for_each(Worker::end);
                space.map.tear_down();
            }
            8 => {
                let _ = self.spaces[s].map.page_out(range);
            }
            9 => {
                let _ = self.spaces[s].map.advise(range, Advice::WillNeed);
            }
            10 => {
                let advice = *self
                    .numbers
                    .pick(&[Advice::Large, Advice::NotLarge, Advice::Cold]);
                let _ = self.spaces[s].map.advise(range, advice);
            }
            11 => {
                // There and back.
                let space = &mut self.spaces[s];
                if whole(space) {
                    let away = VirtAddr(0x20_0000_0000 + self.numbers.below(2) * 5 * PAGE_SIZE);
                    let there = VirtRange::new(away, away + range.len());
                    for (from, to) in [(range, there), (there, range)] {
                        // One entry at a time.
                        let mut start = from.start;
                        while let Some(entry) =
                            space.map.entry_at(start).filter(|_| start < from.end)
                        {
                            let part = entry.range.intersect(from);
                            let target = to.start + (part.start - from.start);
                            space
                                .map
                                .remap(part, part.len(), true, Place::Fixed(target), false)
                                .expect("room");
                            start = part.end;
                        }
                    }
                }
            }
            12..20 => {
                let page = pages.start;
                let value = 1 + self.numbers.next();
                let w = self.numbers.below(self.cpus);
                let space = &mut self.spaces[s];
                let written = space.workers[w].write(at(page), value.to_le_bytes().to_vec());
                let may = space.pages.get(&page).is_some_and(|page| page.may_write);
                assert_eq!(written, may, "a write to page {:#x}", page - FIRST);
                if written && let Some(page) = space.pages.get_mut(&page) {
                    (page.word, page.maybe_zero) = (value, false);
                }
            }
            _ => self.check(s, pages.start),
        }
        let page = self.page();
        let s = self.numbers.below(self.spaces.len());
        self.check(s, page);
    }

    fn check(&mut self, s: usize, page: usize) {
        let w = self.numbers.below(self.cpus);
        let space = &mut self.spaces[s];
        let read = space.workers[w].read(at(page), 8);
        let known = space.pages.get_mut(&page);
        if let Some(known) = known
            && known.maybe_zero
            && read.as_deref() == Some(&[0; 8])
        {
            (known.word, known.maybe_zero) = (0, false);
        }
        let expected = space
            .pages
            .get(&page)
            .map(|page| page.word.to_le_bytes().to_vec());
        assert_eq!(read, expected, "page {:#x} of space {s}", page - FIRST);
    }
}

#[test]
fn large_memory_matches_the_model() {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    for cpus in [1, 2, 3] {
        let config = support::machine(cpus, 8 * 1024);
        let body = move || {
            let mut numbers = Numbers::new(sim::random_u64());
            pmap::set_fork(*numbers.pick(&[Fork::Share, Fork::Share, Fork::Copy]));
            set_large_pages(*numbers.pick(&[LargePages::Advised, LargePages::On]));
            let (device, _) = swap::add(numbers.next(), 1500);
            let entered = Counter::large_entered.total();
            let mut model = Model {
                numbers,
                cpus,
                spaces: Vec::new(),
            };
            let first = model.space(new_map(), Pages::new());
            model.spaces.push(first);
            for _ in 0..120 {
                model.step();
            }
            for s in 0..model.spaces.len() {
                for page in FIRST..END {
                    if page % 13 == 0 || page % 512 < 2 {
                        model.check(s, page);
                    }
                }
            }
            RUNS.fetch_add(1, Relaxed);
            if Counter::large_entered.total() > entered {
                SEEN.fetch_add(1, Relaxed);
            }
            for space in model.spaces.drain(..) {
                space.workers.into_iter().for_each(Worker::end);
                space.map.tear_down();
            }
            swap::remove(device);
            assert_eq!(pmap::large_pages(), 0);
        };
        support::check(&format!("large memory on {cpus}"), 0..12, config, body);
    }
    // A single seed may have none; few seeds run when one is repeated.
    let (seen, runs) = (SEEN.load(Relaxed), RUNS.load(Relaxed));
    assert!(runs < 36 || seen >= 24, "{seen} of {runs} had large pages");
}

fn spans(count: usize) -> VirtRange {
    pages(0, count * 512)
}

fn map_spans(count: usize) -> Arc<Map> {
    let map = new_map();
    let request = MapRequest {
        no_reserve: true,
        ..zero_at(spans(count))
    };
    map.map(request).expect("room");
    map
}

/// Scattered accesses get single pages; advice or sequential writes get 2 MiB.
#[test]
fn large_pages_are_made_when_worthwhile() {
    let config = support::machine(2, 12 * 1024);
    support::check("large pages", 0..1, config, || {
        let entered = || Counter::large_entered.total();
        let touch = |map: &Map, i: usize| {
            let at = page(i);
            map.fault(at, Access::Write).expect("memory");
            // Sets the bits as the processor does.
            if let Some((frame, _)) = map.pmap().extract(at) {
                pmap::set_modified(&frame);
            }
        };
        for (mode, advised, expected) in [
            (LargePages::Off, true, 0),
            (LargePages::Advised, false, 0),
            (LargePages::Advised, true, 3),
            (LargePages::On, true, 3),
            (LargePages::On, false, 0),
        ] {
            set_large_pages(mode);
            let map = map_spans(3);
            if advised {
                map.advise(spans(3), Advice::Large).expect("mapped");
            }
            let start = entered();
            for page in [700, 5, 1535, 6, 1024] {
                touch(&map, page);
            }
            assert_eq!(entered() - start, expected, "{mode:?}, advised: {advised}");
            if expected > 0 {
                assert_eq!(map.sizes().resident, 3 * 512);
                map.allow_large_pages(false);
                map.advise(spans(3), Advice::DontNeed).expect("mapped");
                touch(&map, 700);
                assert_eq!(map.sizes().resident, 1, "they are not allowed");
            }
            map.tear_down();
        }
    });
}

/// Without memory, or without consecutive frames, small pages are made and the content is right.
#[test]
fn small_ones_where_memory_is_short() {
    support::check("small ones", 0..4, support::machine(2, 3 * 1024), || {
        set_large_pages(LargePages::Advised);
        let map = map_spans(8);
        map.advise(spans(8), Advice::Large).expect("mapped");
        let entered = Counter::large_entered.total();
        for span in 0..8 {
            map.fault(page(span * 512), Access::Write).expect("memory");
        }
        let large = (Counter::large_entered.total() - entered) as usize;
        assert!((1..6).contains(&large), "{large} large pages");
        // Small pages may have been made ahead after a large one.
        assert!(map.sizes().resident >= large * 512 + 8 - large);
        assert!(map.sizes().resident < (large + 1) * 512);
        assert!(frame::available() >= frame::targets().high);
    });
}
