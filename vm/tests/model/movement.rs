//! Pages that change hands: loans, transfers, and passed entries.

use std::{cell::RefCell, rc::Rc};

use nucleus::{Access, PAGE_SIZE, Prot, VirtAddr, VirtRange, ephemeral};
use vm::{Handing, Inherit, MapError, Passing, Place};

use super::{
    Model, RW, number,
    space::{Below, Page},
};

impl Model {
    /// A range that is mostly mapped completely.
    pub(super) fn mapped_range(&mut self, space: usize) -> VirtRange {
        if self.numbers.chance(20) {
            return self.range();
        }
        let (start, most) = self.run(space);
        let pages = (0..most).take_while(|i| self.spaces[space].is_mapped(start + i * PAGE_SIZE));
        VirtRange::new(start, start + pages.count().max(1) * PAGE_SIZE)
    }

    /// Lends or transfers pages from one space to another, or inside one.
    pub(super) fn hand_over(&mut self) {
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
    pub(super) fn pass(&mut self) {
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
    pub(super) fn write_both(&mut self, range: VirtRange, from: usize, start: VirtAddr, to: usize) {
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
    pub(super) fn run(&mut self, space: usize) -> (VirtAddr, usize) {
        let at = self.address(space);
        (at, 1 + self.numbers.below(12))
    }

    /// Lends what can be lent of a run of pages.
    pub(super) fn lend(&mut self) {
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
    pub(super) fn receive(&mut self) {
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
    pub(super) fn give_back(&mut self) {
        let numbers = &mut self.numbers;
        self.loans.retain(|_| numbers.chance(50));
    }

    /// Checks that the bytes of lent pages are what they were: of all, or of one.
    pub(super) fn check_loans(&mut self, all: bool) {
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
}
