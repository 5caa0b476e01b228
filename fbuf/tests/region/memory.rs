//! Runs, and the memory of domains in them.

use std::collections::BTreeSet;

use abi::Errno;
use fbuf::region::{CHUNK, REGION_SIZE, REGION_START, reclaim_idle};
use nucleus::{PAGE_SIZE, VirtRange, frame, task};
use vm::{Advice, Lock, Scan, Urgency};

use super::{
    Run,
    model::{Page, Who, address},
};

/// Pages of a run that are used, from its start and around the end of its first page table.
const USED: u64 = 12;
const CHUNK_PAGES: u64 = (CHUNK / PAGE_SIZE) as u64;

impl Run {
    /// The used pages of a run that starts with this page.
    pub(super) fn used(first: u64, chunks: u64) -> impl Iterator<Item = u64> {
        let end = first + chunks * CHUNK_PAGES;
        (first..first + USED / 2).chain(end - USED / 2..end)
    }

    pub(super) fn grow(&mut self) -> Option<()> {
        let (who, path) = (self.who()?, self.path()?);
        let chunks = 1 + self.numbers.below(2) as u64;
        self.be_short();
        let it = &self.model.paths[path];
        let result = it
            .path
            .grow(&self.model.spaces[&who].domain, chunks as usize);
        if self.is_short(&result) {
            return None;
        }
        if it.originator != Some(who) {
            assert_eq!(result.err(), Some(Errno::EPERM));
            return None;
        }
        let Ok(range) = result else {
            assert_eq!(result.err(), Some(Errno::ENOSPC));
            return None;
        };
        assert_eq!(range.len(), chunks as usize * CHUNK);
        let run = (range.start.0 / PAGE_SIZE) as u64;
        for page in Run::used(run, chunks) {
            let new = Page {
                path,
                run,
                bytes: vec![0; PAGE_SIZE],
                is_secured: false,
                is_noticed: false,
                is_idle: false,
                granted: BTreeSet::new(),
            };
            let before = self.model.pages.insert(page, new);
            assert!(before.is_none(), "the addresses are in use");
        }
        Some(())
    }

    pub(super) fn shrink(&mut self) -> Option<()> {
        let (who, page) = (self.who()?, self.page()?);
        let run = self.model.pages[&page].run;
        let path = self.model.pages[&page].path;
        let it = &self.model.paths[path];
        if it.is_closed {
            return None;
        }
        let start = address(run).0 as u64;
        self.be_short();
        let it = &self.model.paths[path];
        let result = it.path.shrink(&self.model.spaces[&who].domain, start);
        frame::seem_scarce_after(None);
        let of_run = |it: &Page| it.run == run;
        let mut pages = self.model.pages.iter();
        let is_used = pages.any(|(page, it)| of_run(it) && self.model.is_referenced(*page));
        match result {
            Err(Errno::EPERM) => assert_ne!(it.originator, Some(who)),
            Err(error) => assert_eq!((error, is_used), (Errno::EBUSY, true)),
            Ok(()) => {
                assert!(!is_used && it.originator == Some(who));
                self.model.pages.retain(|_, it| !of_run(it));
            }
        }
        Some(())
    }

    pub(super) fn write(&mut self) -> Option<()> {
        let (who, page) = (self.who()?, self.page()?);
        let (offset, len) = (self.numbers.below(4000), 1 + self.numbers.below(90));
        let bytes: Vec<u8> = (0..len).map(|_| self.numbers.next() as u8).collect();
        self.write_at(who, page, offset, bytes);
        Some(())
    }

    pub(super) fn write_at(&mut self, who: Who, page: u64, offset: usize, bytes: Vec<u8>) {
        let worker = self.numbers.below(self.cpus);
        let space = &self.model.spaces[&who];
        let done = match self.numbers.chance(10) {
            true => space.map.write(address(page) + offset, &bytes) == bytes.len(),
            false => space.workers[worker].write(address(page) + offset, bytes.clone()),
        };
        let may = self.model.may_write(who, page);
        assert_eq!(done, may, "{who} writes {page:x}");
        if done && let Some(it) = self.model.pages.get_mut(&page) {
            it.bytes[offset..offset + bytes.len()].copy_from_slice(&bytes);
            it.is_idle = false;
        }
    }

    pub(super) fn read(&mut self) -> Option<()> {
        let who = self.who()?;
        let page = match self.numbers.chance(80) {
            true => self.page()?,
            false => {
                let pages = REGION_SIZE / PAGE_SIZE;
                let page = match self.numbers.chance(50) {
                    true => self.numbers.below(8 * CHUNK / PAGE_SIZE),
                    false => self.numbers.below(pages),
                };
                (REGION_START.0 / PAGE_SIZE + page) as u64
            }
        };
        let worker = self.numbers.below(self.cpus);
        self.check(who, page, worker);
        Some(())
    }

    pub(super) fn check(&self, who: Who, page: u64, worker: usize) {
        let space = &self.model.spaces[&who];
        let found = space.workers[worker].read(address(page), PAGE_SIZE);
        let known = self.model.pages.contains_key(&page);
        let expected = self.model.seen(who, page);
        // Without memory the empty region does not come back, and neighbours of pages that are
        // withdrawn may go with them.
        let page_of = self.model.pages.get(&page);
        let is_sure = page_of.is_some_and(|it| self.model.paths[it.path].reads_all(who));
        if found.is_none() && self.shortages && !is_sure {
            return;
        }
        if found.as_ref() != Some(&expected) {
            let first = |bytes: &[u8]| bytes[..8].to_vec();
            let found = found.as_deref().map(first);
            let expected = first(&expected);
            panic!(
                "{who} on CPU {worker} reads {page:x} ({known}): {found:?}, not {expected:?} ..."
            );
        }
    }

    /// Pages that are lent keep their bytes.
    pub(super) fn lend(&mut self) -> Option<()> {
        let (who, page) = (self.who()?, self.page()?);
        let mut lent = [None];
        if self.model.spaces[&who].map.lend(address(page), &mut lent) == 1
            && let [Some(page_lent)] = lent
        {
            self.loans.push((page_lent, self.model.seen(who, page)));
        }
        self.check_loans();
        if self.loans.len() > 6 {
            let at = self.numbers.below(self.loans.len());
            self.loans.swap_remove(at);
        }
        Some(())
    }

    pub(super) fn check_loans(&self) {
        for (page, bytes) in &self.loans {
            let mut now = vec![0; PAGE_SIZE];
            nucleus::ephemeral::map(page).read(0, &mut now);
            assert!(now == *bytes, "a lent page has changed");
        }
    }

    /// Changes no byte.
    pub(super) fn page_out(&mut self) -> Option<()> {
        let (who, page) = (self.who()?, self.page()?);
        let range = VirtRange::new(address(page), address(page + 4));
        for _ in 0..2 {
            let _ = self.model.spaces[&who].map.page_out(range);
            for _ in 0..20 {
                task::yield_now();
            }
        }
        Some(())
    }

    /// Locks pages, or unlocks them; changes no byte.
    pub(super) fn lock(&mut self) -> Option<()> {
        let (who, page) = (self.who()?, self.page()?);
        let range = VirtRange::new(address(page), address(page + 3));
        let lock = *self.numbers.pick(&[Lock::Full, Lock::OnFault, Lock::None]);
        let _ = self.model.spaces[&who].map.lock(range, lock);
        Some(())
    }

    /// Drops the contents of a page.
    pub(super) fn remove(&mut self) -> Option<()> {
        let (who, page) = (self.who()?, self.page()?);
        let map = &self.model.spaces[&who].map;
        let range = VirtRange::new(address(page), address(page + 1));
        let is_locked = map.entry_at(address(page))?.lock != Lock::None;
        let removed = map.advise(range, Advice::Remove).is_ok();
        let may = self.model.may_write(who, page);
        assert!(removed == may || is_locked && !removed);
        if removed && let Some(it) = self.model.pages.get_mut(&page) {
            it.bytes.fill(0);
        }
        Some(())
    }

    /// The originator does not need some pages; they may be dropped, and others are not.
    pub(super) fn idle(&mut self) -> Option<()> {
        let (who, first) = (self.who()?, self.page()?);
        let (path, run) = (self.model.pages[&first].path, self.model.pages[&first].run);
        let pages = first..first + 1 + self.numbers.below(3) as u64;
        let it = &self.model.paths[path];
        let range = VirtRange::new(address(pages.start), address(pages.end));
        let result = it.path.set_idle(&self.model.spaces[&who].domain, range);
        let is_used = pages.clone().any(|page| self.model.is_referenced(page));
        match result {
            Err(Errno::EPERM) => assert_ne!(it.originator, Some(who)),
            Err(Errno::EBUSY) => assert!(is_used),
            // Beyond the end of the run.
            Err(error) => assert_eq!(error, Errno::EFAULT),
            Ok(()) => {
                assert!(!is_used && it.originator == Some(who));
                let pages = self.model.pages.range_mut(pages);
                pages.for_each(|(_, page)| page.is_idle |= page.run == run);
            }
        }
        if self.numbers.chance(40) {
            reclaim_idle(&mut Scan::new(1000, 1000, Urgency::Desperate));
            for page in self.model.pages.values_mut().filter(|it| it.is_idle) {
                page.bytes.fill(0);
            }
        }
        Some(())
    }
}
