//! The model: address spaces, and what each should map.

use super::*;

/// Mappings by page: a frame's number, and the rights.
pub(super) type Pages = BTreeMap<usize, (usize, Prot)>;

/// Address spaces that fork, change and end. A right to write that a fork took away comes back by
/// [`enter`](Pmap::enter), [`widen_each`](Pmap::widen_each) and [`reclaim`](Pmap::reclaim) only.
pub(super) struct Spaces {
    pub(super) spaces: Vec<(PmapRef, Pages)>,
    /// Programs may still run in them.
    pub(super) ended: Vec<PmapRef>,
    pub(super) frames: Vec<Frame>,
    /// By frame: written by a program since it was cleaned.
    pub(super) modified: Vec<bool>,
    /// Where a page is.
    va_of: fn(usize) -> VirtAddr,
}

impl Spaces {
    /// Spaces without mappings, for frames with their tags.
    pub(super) fn new(spaces: usize, frames: Vec<Frame>, va_of: fn(usize) -> VirtAddr) -> Spaces {
        Spaces {
            spaces: (0..spaces)
                .map(|_| (Pmap::new().unwrap(), Pages::new()))
                .collect(),
            ended: Vec::new(),
            modified: vec![false; frames.len()],
            frames,
            va_of,
        }
    }

    /// A child of space `p`, with the tables in `spans` that map `least` pages or more, takes the
    /// place of space `q`.
    pub(super) fn fork(&mut self, p: usize, q: usize, spans: &[VirtRange], least: usize) {
        let va_of = self.va_of;
        let (parent, pages) = &mut self.spaces[p];
        let mut pending = Pending::new();
        let forked = parent.fork(&mut spans.iter().copied(), least, &mut pending);
        let (child, complete) = forked.unwrap();
        pending.flush();
        let mut in_table = BTreeMap::new();
        for page in pages.keys() {
            *in_table.entry(leaf_base(va_of(*page))).or_insert(0) += 1;
        }
        let is_shared = |page: &usize| {
            let va = va_of(*page);
            spans.iter().any(|span| span.contains(va)) && in_table[&leaf_base(va)] >= least
        };
        let mut childs = pages.clone();
        childs.retain(|page, _| is_shared(page));
        assert_eq!(complete, childs.len() == pages.len());
        for (page, (_, prot)) in pages.iter_mut().chain(childs.iter_mut()) {
            if is_shared(page) {
                *prot -= Prot::WRITE;
            }
        }
        task::set_pmap(None);
        let ended = core::mem::replace(&mut self.spaces[q], (child, childs));
        self.ended.push(ended.0);
    }

    /// Ends the spaces whose place was taken. No program runs in them.
    pub(super) fn tear_down_ended(&mut self) {
        task::set_pmap(None);
        self.ended.drain(..).for_each(|pmap| pmap.tear_down());
    }

    /// Ends all. A CPU that only borrows a space keeps it until it is told, or runs something else.
    pub(super) fn tear_down(&mut self) {
        self.tear_down_ended();
        self.spaces.iter().for_each(|(pmap, _)| pmap.tear_down());
    }

    /// Changes mappings of a page in space `p`, or takes a look as a program does. `range` is for
    /// changes of several.
    pub(super) fn change(&mut self, p: usize, page: usize, range: VirtRange) {
        let mut pending = Pending::new();
        let va_of = self.va_of;
        let at = va_of(page);
        let f = below(self.frames.len());
        let frame = &self.frames[f];
        let prot = random_prot();
        let (pmap, pages) = &mut self.spaces[p];
        match below(12) {
            0..3 => {
                pmap.enter(at, frame, prot, &mut pending).unwrap();
                pages.insert(page, (f, prot));
            }
            3 => {
                let entered = pmap.enter_ahead(at, frame, prot);
                assert_eq!(entered, Ok(!pages.contains_key(&page)));
                pages.entry(page).or_insert((f, prot));
            }
            // Only where this pmap has a table of its own.
            4 => {
                let there = pages.get(&page).map_or(f, |mapping| mapping.0);
                let f = [f, there][below(2)];
                let frame = &self.frames[f];
                if pmap.widen_each(page_at(at), |_| Some((frame, Prot::WRITE))) == 1 {
                    let (mapped, rights) = pages.get_mut(&page).unwrap();
                    assert_eq!(*mapped, f);
                    *rights |= Prot::WRITE;
                }
                if pmap.enter_ahead_each(page_at(at), |_| Some((frame, prot))) == 1 {
                    assert_eq!(pages.insert(page, (f, prot)), None);
                }
            }
            5 | 6 => {
                pmap.remove(range, &mut pending);
                pages.retain(|&page, _| !range.contains(va_of(page)));
            }
            7 => {
                pmap.protect(range, prot, &mut pending);
                for (&page, (_, rights)) in pages {
                    if range.contains(va_of(page)) {
                        *rights &= prot;
                    }
                }
            }
            8 => {
                let prot = [prot, Prot::empty()][below(2)];
                page_protect(frame, prot, &mut pending);
                for (_, pages) in &mut self.spaces {
                    for (_, rights) in pages.values_mut().filter(|(frame, _)| *frame == f) {
                        *rights &= prot;
                    }
                    pages.retain(|_, (_, rights)| !rights.is_empty());
                }
            }
            9 => match below(3) {
                0 => drop(take_referenced(frame)),
                1 => assert_eq!(take_use(frame).mappings, frame.mappings()),
                _ => self.clean(f),
            },
            _ => self.use_page(p, page),
        }
        // Often one flush for several changes, as it comes.
        pending.flush();
    }

    /// Cleans a frame.
    fn clean(&mut self, f: usize) {
        let mut pending = Pending::new();
        clear_modified(&self.frames[f], &mut pending);
        pending.flush();
        assert!(!is_modified(&self.frames[f]));
        self.modified[f] = false;
    }

    /// As a program on whatever CPU this is: reads see the frame that is mapped, writes go where
    /// they may and leave a trace.
    fn use_page(&mut self, p: usize, page: usize) {
        let (pmap, pages) = &self.spaces[p];
        let at = (self.va_of)(page);
        task::set_pmap(Some(pmap.clone()));
        let mapped = pages.get(&page).copied();
        let read = user::read::<u64>(at + 8).ok();
        assert_eq!(read, mapped.map(|(f, _)| f as u64));
        let write = user::write(at + 16, &1u32).is_ok();
        assert_eq!(write, mapped.is_some_and(|m| m.1.contains(Prot::WRITE)));
        if let Some((f, _)) = mapped.filter(|_| write) {
            if below(3) == 0 {
                // Cleaned, and written again at once.
                self.clean(f);
                assert_eq!(user::write(at + 16, &2u32), Ok(()));
                assert!(is_modified(&self.frames[f]), "a write left no trace");
            }
            self.modified[f] = true;
        }
        if below(2) == 0 {
            task::set_pmap(None);
        }
    }

    /// A page of a space is mapped as the model says.
    pub(super) fn check_one(&self, p: usize, page: usize) {
        let (pmap, pages) = &self.spaces[p];
        let at = (self.va_of)(page);
        let expected = pages.get(&page);
        let found = pmap.extract(at);
        let found = found.as_ref().map(|(frame, prot)| (frame, *prot));
        let model = expected.map(|&(f, prot)| (&self.frames[f], prot));
        assert_eq!(found, model, "page {page} of space {p}");
        for access in [Access::Read, Access::Write, Access::Execute] {
            let allowed = expected.is_some_and(|(_, prot)| prot.contains(access.needs()));
            assert_eq!(pmap.permits(at, access), allowed);
        }
    }

    /// Each space maps as many pages as the model says, in all and in `range`, and one of these is
    /// found by its number.
    pub(super) fn check_counts(&self, range: VirtRange) {
        for (pmap, pages) in &self.spaces {
            assert_eq!(pmap.resident().pages, pages.len());
            let all = pages.keys().map(|page| (self.va_of)(*page));
            let mut inside: Vec<VirtAddr> = all.filter(|va| range.contains(*va)).collect();
            inside.sort_unstable();
            assert_eq!(pmap.resident_in(range), inside.len());
            let n = below(inside.len() + 1);
            let expected = inside.get(n).copied().ok_or(inside.len());
            assert_eq!(pmap.nth_resident(range, n), expected);
        }
    }
}

/// Programs that look at pages all the time, on other CPUs if there are any: one in each space.
pub(super) struct Readers {
    stop: Arc<AtomicBool>,
    gate: Arc<Gate>,
    count: usize,
}

impl Readers {
    /// Starts them; each looks where `at` says.
    pub(super) fn start(spaces: &Spaces, at: fn() -> VirtAddr) -> Readers {
        let readers = Readers {
            stop: Arc::default(),
            gate: Gate::new(),
            count: spaces.spaces.len(),
        };
        let tags = spaces.frames.len() as u64;
        for (pmap, _) in &spaces.spaces {
            let stop = readers.stop.clone();
            spawn(&readers.gate, pmap, !0, move || {
                while !stop.load(Ordering::SeqCst) {
                    if let Ok(tag) = user::read::<u64>(at() + 8) {
                        assert!(tag < tags, "no frame has the tag {tag:#x}");
                    }
                    task::yield_now();
                }
            });
        }
        readers
    }

    /// Waits until all have ended.
    pub(super) fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.gate.wait_for(self.count);
    }
}
