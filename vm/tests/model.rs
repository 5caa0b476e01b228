//! Address spaces against a plain model: bytes in arrays. One driver makes random operations on
//! several address spaces; workers on different CPUs make the accesses, and their TLBs keep any
//! entry that they may keep. Every access must give what the model says; in the end, every frame
//! and every page table must be free again.

mod support;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::{Arc, atomic::Ordering},
};

use nucleus::{
    Access, PAGE_SIZE, Prot, VirtAddr, VirtRange, ephemeral,
    frame::Owned,
    pmap::{self, Fork},
    sim, task,
};
use support::{Disk, File, Numbers, RW, TestFile, Worker};
use vm::swap::{self, DeviceId};
use vm::{
    Advice, AmapForm, Backing, Fault, Handing, Inherit, Limits, Lock, Map, MapError, MapRequest,
    Pager, Passing, Place,
};

/// The place of most mappings: few pages, so that operations meet, in the span of two page tables.
const ARENA: VirtAddr = VirtAddr(0x10_0020_0000 - 40 * PAGE_SIZE);
const ARENA_PAGES: usize = 96;
const MAX_SPACES: usize = 5;

type Bytes = Vec<u8>;
/// Pages that several mappings see, by index; absent ones are beyond the end.
type Store = Rc<RefCell<BTreeMap<u64, Bytes>>>;

#[derive(Clone)]
enum Below {
    Zero,
    Store(Store, u64),
}

#[derive(Clone)]
struct Page {
    prot: Prot,
    shared: bool,
    locked: bool,
    inherit: Inherit,
    /// Inherited by children as shared.
    shares: bool,
    /// A private copy; one for all sharers.
    copy: Rc<RefCell<Option<Bytes>>>,
    below: Below,
}

impl Page {
    /// The result of a read.
    fn bytes(&self) -> Result<Bytes, Fault> {
        match (&*self.copy.borrow(), &self.below) {
            (Some(copy), _) => Ok(copy.clone()),
            (None, Below::Zero) => Ok(vec![0; PAGE_SIZE]),
            (None, Below::Store(store, index)) => {
                store.borrow().get(index).cloned().ok_or(Fault::BeyondEnd)
            }
        }
    }

    fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), Fault> {
        let mut bytes = self.bytes()?;
        bytes[offset..offset + from.len()].copy_from_slice(from);
        match &self.below {
            Below::Store(store, index) if self.shared => {
                store.borrow_mut().insert(*index, bytes);
            }
            _ => *self.copy.borrow_mut() = Some(bytes),
        }
        Ok(())
    }
}

struct Space {
    map: Arc<Map>,
    workers: Vec<Worker>,
    /// By page number.
    pages: BTreeMap<usize, Page>,
}

impl Space {
    fn new(map: Arc<Map>, pages: BTreeMap<usize, Page>, cpus: usize) -> Space {
        let workers = Worker::on_each(&map, cpus);
        Space {
            map,
            workers,
            pages,
        }
    }

    fn end(self) {
        self.workers.into_iter().for_each(Worker::end);
        self.map.tear_down();
    }

    fn is_mapped(&self, at: VirtAddr) -> bool {
        self.pages.contains_key(&number(at))
    }

    /// Those pages of a range that are mapped.
    fn pages_of(&mut self, range: VirtRange) -> impl Iterator<Item = &mut Page> {
        let pages = number(range.start)..number(range.end);
        self.pages.range_mut(pages).map(|(_, page)| page)
    }

    /// The result that an access to the page must give.
    fn judge(&mut self, at: VirtAddr, access: Access) -> Result<&mut Page, Fault> {
        let page = self.pages.get_mut(&(at.0 / PAGE_SIZE));
        let page = page.ok_or(Fault::NotMapped)?;
        let allowed = match access {
            Access::Read => !page.prot.is_empty(),
            _ => page.prot.contains(access.needs()),
        };
        if !allowed {
            return Err(Fault::Protection);
        }
        page.bytes()?;
        Ok(page)
    }
}

/// A page that a program lent, with the bytes that it has for ever.
type Loan = (Owned, Bytes);

struct Model {
    numbers: Numbers,
    loans: Vec<Loan>,
    cpus: usize,
    /// Percentage of shared mappings: forks do not share page tables with writable shared mappings.
    shared_mappings: usize,
    spaces: Vec<Space>,
    files: Vec<(Arc<dyn TestFile>, Store)>,
    /// The swap devices, with their stores.
    devices: Vec<(DeviceId, Arc<support::swap::Store>, i32)>,
}

fn number(at: VirtAddr) -> usize {
    at.0 / PAGE_SIZE
}

impl Model {
    fn new(seed: u64, cpus: usize) -> Model {
        let map = Map::new(Limits::NONE, vm::Randomness::Everything).expect("a map");
        let files = (0..2).map(|i| {
            let pages = (0..12).map(|p| (p, vec![File::byte(i, p); PAGE_SIZE]));
            let store = Rc::new(RefCell::new(pages.collect()));
            let file: Arc<dyn TestFile> = match i {
                0 => File::new(i, 12),
                _ => Disk::new(i, 12, 0),
            };
            (file, store)
        });
        let mut numbers = Numbers::new(seed);
        pmap::set_fork(*numbers.pick(&[Fork::Share, Fork::Share, Fork::Copy]));
        vm::set_shared_tables(*numbers.pick(&[128, 0, 0]));
        Model {
            shared_mappings: *numbers.pick(&[40, 4, 0]),
            numbers,
            loans: Vec::new(),
            cpus,
            spaces: vec![Space::new(map, BTreeMap::new(), cpus)],
            files: files.collect(),
            devices: (0..3)
                .map(|i| {
                    // The last two have equal priority, and both are small.
                    let store = support::swap::Store::new(seed + i, [80, 30, 40][i as usize]);
                    let priority = i32::from(i == 0);
                    // Pages that cannot be written stay.
                    store.failing_writes.store(10, Ordering::SeqCst);
                    let id = swap::add(store.clone(), priority, &|| false).expect("a swap device");
                    (id, store, priority)
                })
                .collect(),
        }
    }

    fn range(&mut self) -> VirtRange {
        let start = self.numbers.below(ARENA_PAGES);
        let pages = 1 + self.numbers.below(10).min(ARENA_PAGES - start - 1);
        let start = ARENA + start * PAGE_SIZE;
        VirtRange::new(start, start + pages * PAGE_SIZE)
    }

    fn space(&mut self) -> usize {
        self.numbers.below(self.spaces.len())
    }

    fn prot(&mut self) -> Prot {
        *self.numbers.pick(&[RW, RW, RW, Prot::READ, Prot::empty()])
    }

    fn step(&mut self) {
        match self.numbers.below(100) {
            0..8 => self.map(),
            8..12 => self.unmap(),
            12..18 => self.protect(),
            18..22 => self.remap(),
            22..25 => self.dont_need(),
            25..29 => self.fork(),
            29..32 => self.exit(),
            32..34 => self.truncate(),
            34 => self.page_out(),
            35 => self.advise(),
            36..42 => self.swap_out(),
            42 => self.swap_off(),
            43..46 => self.lock(),
            46..49 => self.inherit(),
            49..55 => self.pass(),
            55..57 => self.hand_over(),
            57..68 => self.write(),
            68..72 => self.fault(),
            72..76 => self.foreign(),
            76..81 => self.lend(),
            81..85 => self.receive(),
            85..88 => self.give_back(),
            _ => self.read(),
        }
        self.check_loans(false);
    }

    /// A range that is mostly mapped completely.
    fn mapped_range(&mut self, space: usize) -> VirtRange {
        if self.numbers.chance(20) {
            return self.range();
        }
        let (start, most) = self.run(space);
        let pages = (0..most).take_while(|i| self.spaces[space].is_mapped(start + i * PAGE_SIZE));
        VirtRange::new(start, start + pages.count().max(1) * PAGE_SIZE)
    }

    /// Lends or transfers pages from one space to another, or inside one.
    fn hand_over(&mut self) {
        let (from, to) = (self.space(), self.space());
        let range = self.mapped_range(from);
        let how = *self.numbers.pick(&[Handing::Lend, Handing::Transfer]);
        let at = match self.numbers.chance(70) {
            true => Some(self.address(to)),
            false => None,
        };
        let there = at.map(|at| VirtRange::new(at, at + range.len()));
        let is_private = |page: &Page| !page.shared && !page.shares;
        let pages: Option<Vec<Page>> = range
            .pages()
            .map(|va| self.spaces[from].pages.get(&number(va)).cloned())
            .collect();
        let readable = |page: &Page| !page.prot.is_empty();
        let mut bytes = Vec::new();
        let may_send = pages.as_ref().is_some_and(|it| {
            bytes.extend(it.iter().map(Page::bytes));
            it.iter().all(readable)
        });
        let may_transfer = pages
            .iter()
            .flatten()
            .all(|page| is_private(page) && matches!(page.below, Below::Zero));
        let may_receive = there.is_none_or(|there| {
            there.pages().all(|va| {
                let page = self.spaces[to].pages.get(&number(va));
                page.is_some_and(|it| is_private(it) && it.prot.contains(Prot::WRITE))
            })
        });
        let beyond_end = there.is_some_and(|there| {
            let mut pages = self.spaces[to].pages_of(there);
            pages.any(|page| page.bytes().is_err())
        });
        if beyond_end {
            // A page that is lent takes such a place, and one that is copied does not.
            return;
        }
        let overlaps = from == to && there.is_some_and(|it| !it.intersect(range).is_empty());
        let maps = [from, to].map(|space| self.spaces[space].map.clone());
        let result = maps[0].hand_over(range, &maps[1], at, how, &|| true);
        let is_allowed =
            may_send && may_receive && !overlaps && (how == Handing::Lend || may_transfer);
        if !is_allowed {
            assert!(matches!(
                result,
                Err(MapError::NotMapped | MapError::Invalid)
            ));
            return;
        }
        // Up to the first page beyond the end of a file.
        let whole = bytes.iter().take_while(|it| it.is_ok()).count();
        let start = match (result, at) {
            (Ok(handed), _) => {
                assert_eq!(handed.passed + handed.copied, bytes.len());
                assert_eq!(whole, bytes.len());
                handed.at
            }
            (Err(error), at) => {
                assert!(whole < bytes.len(), "{error:?}");
                let Some(at) = at else { return };
                at
            }
        };
        for (i, bytes) in bytes.into_iter().map_while(Result::ok).enumerate() {
            let copy = Rc::new(RefCell::new(Some(bytes)));
            let there = number(start) + i;
            match self.spaces[to].pages.get_mut(&there) {
                Some(page) => page.copy = copy,
                None => {
                    let page = Page {
                        prot: RW,
                        shared: false,
                        locked: false,
                        inherit: Inherit::Copy,
                        shares: false,
                        copy,
                        below: Below::Zero,
                    };
                    self.spaces[to].pages.insert(there, page);
                }
            }
            if how == Handing::Transfer {
                let page = self.spaces[from].pages.get_mut(&(number(range.start) + i));
                page.expect("a page").copy = Rc::default();
            }
        }
        self.write_both(range, from, start, to);
    }

    /// Copies, moves or shares entries between two spaces, or inside one.
    fn pass(&mut self) {
        let (from, to) = (self.space(), self.space());
        let (range, other) = (self.mapped_range(from), self.range());
        let how = *self
            .numbers
            .pick(&[Passing::Copy, Passing::Move, Passing::Share]);
        let place = match self.numbers.below(8) {
            0 => Place::Any,
            1 => Place::Hint(other.start),
            2 => Place::FixedNoReplace(other.start),
            _ => Place::Fixed(other.start),
        };
        let there = VirtRange::new(other.start, other.start + range.len());
        let maps = [from, to].map(|space| self.spaces[space].map.clone());
        let result = maps[0].pass_entries(range, &maps[1], place, how, &|| true);
        let expected =
            if from == to && matches!(place, Place::Fixed(_)) && !there.intersect(range).is_empty()
            {
                Some(MapError::Invalid)
            } else if !range.pages().all(|va| self.spaces[from].is_mapped(va)) {
                Some(MapError::NotMapped)
            } else if matches!(place, Place::FixedNoReplace(_))
                && there.pages().any(|va| self.spaces[to].is_mapped(va))
            {
                Some(MapError::Exists)
            } else {
                None
            };
        assert_eq!(result.err(), expected, "{how:?} of {range:?} to {place:?}");
        let Ok(start) = result else {
            return;
        };
        let mut passed = Vec::new();
        for va in range.pages() {
            let pages = &mut self.spaces[from].pages;
            if how == Passing::Move {
                let page = pages.remove(&number(va)).expect("a page");
                let locked = page.locked && from == to;
                passed.push(Page { locked, ..page });
                continue;
            }
            let page = pages.get_mut(&number(va)).expect("a page");
            page.shares |= how == Passing::Share && !page.shared;
            let page = page.clone();
            passed.push(match how {
                Passing::Copy => Page {
                    locked: false,
                    shared: false,
                    shares: false,
                    inherit: Inherit::Copy,
                    copy: Rc::new(RefCell::new(page.copy.borrow().clone())),
                    ..page
                },
                _ => Page {
                    locked: false,
                    ..page
                },
            });
        }
        if !matches!(place, Place::Fixed(_)) {
            let new = VirtRange::new(start, start + range.len());
            let is_free = !new.pages().any(|va| self.spaces[to].is_mapped(va));
            assert!(is_free, "{place:?} replaced something");
        }
        for (i, page) in passed.into_iter().enumerate() {
            self.spaces[to].pages.insert(number(start) + i, page);
        }
        self.write_both(range, from, start, to);
    }

    /// Writes some pages of two ranges, one of which came from the other, and looks at both.
    fn write_both(&mut self, range: VirtRange, from: usize, start: VirtAddr, to: usize) {
        for va in range.pages() {
            let sides = [(from, va), (to, start + (va - range.start))];
            if self.numbers.chance(60) {
                let &(space, at) = self.numbers.pick(&sides);
                self.write_at(space, at);
            }
            for (space, at) in sides {
                let worker = self.numbers.below(self.cpus);
                self.check(space, at, worker);
            }
        }
    }

    /// The pages of a space from a random one on.
    fn run(&mut self, space: usize) -> (VirtAddr, usize) {
        let at = self.address(space);
        (at, 1 + self.numbers.below(12))
    }

    /// Lends what can be lent of a run of pages.
    fn lend(&mut self) {
        let space = self.space();
        let (at, most) = self.run(space);
        let mut lent = vec![None; most];
        let count = self.spaces[space].map.lend(at, &mut lent);
        assert!(lent[count..].iter().all(Option::is_none));
        for (i, page) in lent.into_iter().flatten().enumerate() {
            let of = self.spaces[space].judge(at + i * PAGE_SIZE, Access::Read);
            let of = of.expect("a page that may be read");
            assert!(!of.shares, "its amap has other writers");
            self.loans.push((page, of.bytes().expect("bytes")));
        }
        self.check_loans(true);
    }

    /// Gives lent pages to a program, some of them twice.
    fn receive(&mut self) {
        let space = self.space();
        let (at, most) = self.run(space);
        let mut given = Vec::new();
        while given.len() < most && !self.loans.is_empty() {
            let loan = self.numbers.below(self.loans.len());
            given.push(match self.numbers.chance(70) {
                true => self.loans.swap_remove(loan),
                false => self.loans[loan].clone(),
            });
        }
        let (pages, bytes): (Vec<_>, Vec<_>) = given.into_iter().unzip();
        let mut pages: Vec<_> = pages.into_iter().map(Some).collect();
        let count = self.spaces[space].map.receive(at, &mut pages);
        assert!(pages[..count].iter().all(Option::is_none));
        assert!(pages[count..].iter().all(Option::is_some));
        for (i, bytes) in bytes.into_iter().take(count).enumerate() {
            let page = self.spaces[space].pages.get_mut(&(number(at) + i));
            let page = page.expect("a page that is mapped");
            assert!(page.prot.contains(Prot::WRITE) && !page.shared && !page.shares);
            page.copy = Rc::new(RefCell::new(Some(bytes)));
        }
    }

    /// Ends some loans.
    fn give_back(&mut self) {
        let numbers = &mut self.numbers;
        self.loans.retain(|_| numbers.chance(50));
    }

    /// Checks that the bytes of lent pages are what they were: of all, or of one.
    fn check_loans(&mut self, all: bool) {
        let some = match self.loans.len() {
            0 => 0..0,
            len if all => 0..len,
            len => {
                let one = self.numbers.below(len);
                one..one + 1
            }
        };
        for (page, expected) in &self.loans[some] {
            let mut bytes = vec![0; PAGE_SIZE];
            ephemeral::map(page).read(0, &mut bytes);
            assert!(bytes == *expected, "the bytes of a lent page have changed");
        }
    }

    fn map(&mut self) {
        let range = self.range();
        let (space, prot, shared) = (
            self.space(),
            self.prot(),
            self.numbers.chance(self.shared_mappings),
        );
        let pages = range.len() / PAGE_SIZE;
        let (file, first) = (self.numbers.below(self.files.len()), self.numbers.below(8));
        let (backing, store) = match self.numbers.chance(40) {
            true => {
                let (file, store) = &self.files[file];
                let backing = Backing::Object {
                    pager: file.clone() as Arc<dyn Pager>,
                    offset: (first * PAGE_SIZE) as u64,
                };
                (backing, Some((store.clone(), first as u64)))
            }
            false if shared => {
                let zeros = (0..pages as u64).map(|i| (i, vec![0; PAGE_SIZE]));
                let store = Rc::new(RefCell::new(zeros.collect()));
                (Backing::Zero, Some((store, 0)))
            }
            false => (Backing::Zero, None),
        };
        let place = match self.numbers.below(10) {
            0 => Place::Any,
            1 => Place::Hint(range.start),
            2 => Place::FixedNoReplace(range.start),
            _ => Place::Fixed(range.start),
        };
        let populate = self.numbers.chance(15);
        let space = &mut self.spaces[space];
        let result = space.map.map(MapRequest {
            place,
            backing,
            shared,
            populate,
            ..MapRequest::zero(range.len(), prot)
        });
        let taken = range.pages().any(|va| space.is_mapped(va));
        let start = match (result, place) {
            (Err(error), Place::FixedNoReplace(_)) if taken => {
                assert_eq!(error, vm::MapError::Exists);
                return;
            }
            (result, _) => result.expect("room"),
        };
        if let Place::Any | Place::Hint(_) = place {
            let new = VirtRange::new(start, start + range.len());
            assert!(!new.pages().any(|va| space.is_mapped(va)));
        } else {
            assert_eq!(start, range.start);
        }
        for i in 0..pages {
            let below = match &store {
                None => Below::Zero,
                Some((store, first)) => Below::Store(store.clone(), first + i as u64),
            };
            let page = Page {
                prot,
                shared,
                locked: false,
                inherit: match shared {
                    true => Inherit::Share,
                    false => Inherit::Copy,
                },
                shares: false,
                copy: Rc::default(),
                below,
            };
            space.pages.insert(number(start) + i, page);
        }
        if populate && !shared && prot.contains(Prot::WRITE) {
            // As empty writes, up to the first page beyond the end.
            let mut new = (0..pages).map(|i| number(start) + i);
            new.all(|n| {
                let page = space.pages.get_mut(&n).expect("a page");
                page.write(0, &[]).is_ok()
            });
        }
    }

    fn unmap(&mut self) {
        let (range, space) = (self.range(), self.space());
        let space = &mut self.spaces[space];
        space.map.unmap(range).expect("unmap");
        space
            .pages
            .retain(|&n, _| !range.contains(VirtAddr(n * PAGE_SIZE)));
    }

    fn protect(&mut self) {
        let (range, space, prot) = (self.range(), self.space(), self.prot());
        let space = &mut self.spaces[space];
        let whole = range.pages().all(|va| space.is_mapped(va));
        assert_eq!(space.map.protect(range, prot).is_ok(), whole);
        if whole {
            space.pages_of(range).for_each(|page| page.prot = prot);
        }
    }

    fn remap(&mut self) {
        let (range, space, other) = (self.range(), self.space(), self.range());
        let to = match self.numbers.chance(50) {
            true => Place::Fixed(other.start),
            false => Place::Any,
        };
        let space = &mut self.spaces[space];
        let pages = other.len() / PAGE_SIZE;
        let result = space.map.remap(range, other.len(), true, to, false);
        // The result depends on the boundaries of entries, which the model does not know.
        let Ok(start) = result else {
            return;
        };
        let moved: Vec<_> = range
            .pages()
            .map(|va| {
                space
                    .pages
                    .remove(&number(va))
                    .expect("mapped, as it was moved")
            })
            .collect();
        let last = moved[moved.len() - 1].clone();
        for (i, page) in (0..pages).zip(moved.into_iter().map(Some).chain(std::iter::repeat(None)))
        {
            let page = page.unwrap_or_else(|| Page {
                copy: Rc::default(),
                below: match &last.below {
                    Below::Zero => Below::Zero,
                    Below::Store(store, index) => {
                        let more = (i + 1 - range.len() / PAGE_SIZE) as u64;
                        Below::Store(store.clone(), index + more)
                    }
                },
                ..last.clone()
            });
            space.pages.insert(number(start) + i, page);
        }
    }

    fn dont_need(&mut self) {
        let (range, space) = (self.range(), self.space());
        let space = &mut self.spaces[space];
        let whole = range.pages().all(|va| space.is_mapped(va));
        let done = space.map.advise(range, Advice::DontNeed);
        if space.pages_of(range).any(|page| page.locked) {
            assert_eq!(done, Err(MapError::Invalid));
            return;
        }
        assert_eq!(done.is_ok(), whole);
        for page in space.pages_of(range).filter(|page| !page.shares) {
            page.copy = Rc::default();
        }
    }

    fn advise(&mut self) {
        let (range, space) = (self.range(), self.space());
        let advice = *self.numbers.pick(&[
            Advice::Normal,
            Advice::Random,
            Advice::Sequential,
            Advice::WillNeed,
            Advice::Cold,
            Advice::PageOut,
        ]);
        // The result depends only on addresses, and no byte changes.
        let _ = self.spaces[space].map.advise(range, advice);
    }

    /// Changes no byte.
    fn lock(&mut self) {
        let (range, space) = (self.range(), self.space());
        let lock = match self.numbers.chance(60) {
            true => Lock::OnFault,
            false => Lock::None,
        };
        let space = &mut self.spaces[space];
        let whole = range.pages().all(|va| space.is_mapped(va));
        assert_eq!(space.map.lock(range, lock).is_ok(), whole);
        let locked = lock != Lock::None;
        space.pages_of(range).for_each(|page| page.locked = locked);
    }

    /// Changes what children inherit.
    fn inherit(&mut self) {
        let (range, space) = (self.range(), self.space());
        let inherit = *self.numbers.pick(&[
            Inherit::Share,
            Inherit::Share,
            Inherit::Copy,
            Inherit::Copy,
            Inherit::None,
            Inherit::Zero,
        ]);
        let space = &mut self.spaces[space];
        let whole = range.pages().all(|va| space.is_mapped(va));
        assert_eq!(space.map.inherit(range, inherit).is_ok(), whole);
        space
            .pages_of(range)
            .for_each(|page| page.inherit = inherit);
    }

    /// Checks that exactly the mappings of locked memory are wired.
    fn check_wired(&self) {
        let mut wired = BTreeSet::new();
        let mut mapped = Vec::new();
        for space in &self.spaces {
            let locked = space.pages.values().filter(|page| page.locked).count();
            assert_eq!(space.map.sizes().locked, locked, "locked pages");
            for (&n, page) in &space.pages {
                if let Some((frame, _)) = space.map.pmap().extract(VirtAddr(n * PAGE_SIZE)) {
                    if page.locked {
                        wired.insert(frame.number());
                    }
                    mapped.push(frame);
                }
            }
        }
        for frame in mapped {
            let expected = wired.contains(&frame.number());
            assert_eq!(pmap::is_wired(&frame), expected, "{frame:?} is wired");
        }
    }

    fn fork(&mut self) {
        if self.spaces.len() == MAX_SPACES {
            return;
        }
        let parent = self.space();
        let map = self.spaces[parent].map.fork().expect("fork");
        let parent = &mut self.spaces[parent];
        let mut pages = BTreeMap::new();
        for (&n, page) in &mut parent.pages {
            let child = page.clone();
            let child = match page.inherit {
                Inherit::None => continue,
                Inherit::Zero => Page {
                    shared: false,
                    shares: false,
                    copy: Rc::default(),
                    below: Below::Zero,
                    ..child
                },
                Inherit::Share => {
                    page.shares |= !page.shared;
                    page.clone()
                }
                Inherit::Copy => Page {
                    shared: false,
                    shares: false,
                    copy: Rc::new(RefCell::new(page.copy.borrow().clone())),
                    ..child
                },
            };
            pages.insert(
                n,
                Page {
                    locked: false,
                    ..child
                },
            );
        }
        let child = Space::new(map, pages, self.cpus);
        self.spaces.push(child);
    }

    fn exit(&mut self) {
        if self.spaces.len() > 1 {
            let space = self.space();
            self.spaces.swap_remove(space).end();
        }
    }

    /// Changes no byte.
    fn page_out(&mut self) {
        for (file, _) in &self.files {
            file.page_out();
        }
    }

    /// Changes no byte.
    fn swap_out(&mut self) {
        let (range, space) = (self.range(), self.space());
        let _ = self.spaces[space].map.page_out(range);
        if self.numbers.chance(50) {
            // Mostly until the writes have ended; else the next operations meet them.
            for _ in 0..40 {
                task::yield_now();
            }
            let _ = self.spaces[space].map.page_out(range);
        }
    }

    /// Removes a device and adds it again; changes no byte.
    fn swap_off(&mut self) {
        let i = self.numbers.below(self.devices.len());
        let (id, store, priority) = self.devices[i].clone();
        vm::swap_off(id, &|| false).expect("memory enough");
        self.devices[i].0 = swap::add(store, priority, &|| false).expect("a swap device");
    }

    fn truncate(&mut self) {
        let pages = self.numbers.below(16) as u64;
        let file = self.numbers.below(self.files.len());
        let (file, store) = &self.files[file];
        file.set_pages(pages);
        let mut store = store.borrow_mut();
        store.retain(|&index, _| index < pages);
        for index in 0..pages {
            store.entry(index).or_insert_with(|| vec![0; PAGE_SIZE]);
        }
    }

    /// An address in the arena or in any mapping.
    fn address(&mut self, space: usize) -> VirtAddr {
        let pages: Vec<_> = self.spaces[space].pages.keys().copied().collect();
        let page = match pages.is_empty() || self.numbers.chance(10) {
            true => number(ARENA) + self.numbers.below(ARENA_PAGES),
            false => *self.numbers.pick(&pages),
        };
        VirtAddr(page * PAGE_SIZE)
    }

    fn write(&mut self) {
        let space = self.space();
        let at = self.address(space);
        self.write_at(space, at);
    }

    fn write_at(&mut self, space: usize, at: VirtAddr) {
        let (offset, len) = (self.numbers.below(4000), 1 + self.numbers.below(90));
        let bytes: Bytes = (0..len).map(|_| self.numbers.next() as u8).collect();
        let worker = self.numbers.below(self.cpus);
        let space = &mut self.spaces[space];
        let expected = space
            .judge(at, Access::Write)
            .and_then(|page| page.write(offset, &bytes));
        let done = space.workers[worker].write(at + offset, bytes);
        assert_eq!(done, expected.is_ok(), "write at {at:?}: {expected:?}");
    }

    fn read(&mut self) {
        let space = self.space();
        let at = self.address(space);
        let worker = self.numbers.below(self.cpus);
        self.check(space, at, worker);
    }

    fn check(&mut self, space: usize, at: VirtAddr, worker: usize) {
        let space = &mut self.spaces[space];
        let expected = space
            .judge(at, Access::Read)
            .and_then(|page| page.bytes())
            .ok();
        let bytes = space.workers[worker].read(at, PAGE_SIZE);
        if bytes != expected {
            let first = |bytes: &Option<Bytes>| bytes.as_ref().map(|bytes| bytes[..8].to_vec());
            let (got, want) = (first(&bytes), first(&expected));
            panic!("read at {at:?} on CPU {worker}: {got:?} instead of {want:?} ...");
        }
    }

    /// Calls the fault routine and checks the kind of error.
    fn fault(&mut self) {
        let space = self.space();
        let at = self.address(space);
        let access = *self
            .numbers
            .pick(&[Access::Read, Access::Write, Access::Execute]);
        let space = &mut self.spaces[space];
        let expected = space.judge(at, access).map(|_| ());
        if let (Ok(()), Access::Write) = (expected, access) {
            // It may make a copy, which is invisible until a byte changes: like an empty write.
            let page = space.pages.get_mut(&number(at)).expect("a page");
            page.write(0, &[]).expect("a page that can be read");
        }
        assert_eq!(space.map.fault(at, access), expected);
    }

    /// Accesses from outside the address space.
    fn foreign(&mut self) {
        let space = self.space();
        let at = self.address(space);
        let (offset, value) = (self.numbers.below(PAGE_SIZE), self.numbers.next() as u8);
        let space = &mut self.spaces[space];
        let expected = space
            .judge(at, Access::Write)
            .and_then(|page| page.write(offset, &[value]));
        let done = space.map.write(at + offset, &[value]);
        assert_eq!(done == 1, expected.is_ok());
        let expected = space.judge(at, Access::Read).and_then(|page| page.bytes());
        let mut byte = [0];
        let done = space.map.read(at + offset, &mut byte);
        assert_eq!(done == 1, expected.is_ok());
        if let Ok(expected) = expected {
            assert_eq!(byte[0], expected[offset]);
        }
    }

    /// Checks everything in every address space from every CPU.
    fn check_all(&mut self) {
        for space in 0..self.spaces.len() {
            let pages: BTreeSet<_> = self.spaces[space].pages.keys().copied().collect();
            for page in pages {
                for worker in 0..self.cpus {
                    self.check(space, VirtAddr(page * PAGE_SIZE), worker);
                }
            }
        }
    }

    fn end(mut self) {
        self.check_loans(true);
        self.loans.clear();
        for space in self.spaces {
            space.end();
        }
        for (id, ..) in self.devices {
            support::swap::remove(id);
        }
    }
}

fn against_model(seed: u64, cpus: usize, steps: usize) {
    let mut model = Model::new(seed, cpus);
    for step in 0..steps {
        model.step();
        if step % 100 == 99 {
            model.check_all();
            model.check_wired();
        }
    }
    model.check_all();
    model.end();
}

#[test]
fn address_spaces_against_the_model() {
    for (cpus, form) in [
        (1, AmapForm::Hybrid),
        (2, AmapForm::Hybrid),
        (2, AmapForm::Sparse),
        (4, AmapForm::Sparse),
    ] {
        vm::set_amap_form(form);
        support::check("model", 0..8, support::on_cpus(cpus), move || {
            against_model(sim::random_u64(), cpus, 400);
        });
    }
}
