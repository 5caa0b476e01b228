//! Fbufs against plain bytes: random operations of several domains, with deaths at random points.
//! Workers on different CPUs make the accesses, and their TLBs keep any entry that they may keep.
//! Each access must give what the model says; in the end every frame must be free again, and no
//! run or path must be left.

mod addresses;
mod attacks;
mod model;
mod races;
#[path = "../../../vm/tests/support/mod.rs"]
mod support;

use std::collections::BTreeSet;

use abi::Errno;
use fbuf::region::{
    CHUNK, Domain, Mode, Path, REGION_SIZE, REGION_START, Received, reclaim_idle, statuses,
};
use model::{Message, Model, ModelPath, Page, Space, Who, address};
use nucleus::{
    PAGE_SIZE, VirtAddr, VirtRange,
    frame::{self, Owned},
    sim,
    sync::OnceArc,
    task,
};
use support::Numbers;
use vm::{Advice, Layout, Limits, Lock, Map, Randomness, Scan, Urgency, swap};

/// Pages of a run that are used, from its start and around the end of its first page table.
const USED: u64 = 12;
const CHUNK_PAGES: u64 = (CHUNK / PAGE_SIZE) as u64;

struct Run {
    model: Model,
    numbers: Numbers,
    cpus: usize,
    /// Pages that were lent, with their bytes, which stay.
    loans: Vec<(Owned, Vec<u8>)>,
    /// The kernel's memory seems short now and then.
    shortages: bool,
}

impl Run {
    fn new(seed: u64, cpus: usize, shortages: bool) -> Run {
        Run {
            model: Model::default(),
            numbers: Numbers::new(seed),
            cpus,
            loans: Vec::new(),
            shortages,
        }
    }

    fn who(&mut self) -> Option<Who> {
        let all: Vec<Who> = self.model.spaces.keys().copied().collect();
        (!all.is_empty()).then(|| *self.numbers.pick(&all))
    }

    fn path(&mut self) -> Option<usize> {
        let paths = self.model.paths.iter().enumerate();
        let open: Vec<usize> = paths
            .filter(|(_, it)| !it.is_closed)
            .map(|it| it.0)
            .collect();
        (!open.is_empty()).then(|| *self.numbers.pick(&open))
    }

    /// A page that is in use, or next to one.
    fn page(&mut self) -> Option<u64> {
        let pages: Vec<u64> = self.model.pages.keys().copied().collect();
        (!pages.is_empty()).then(|| *self.numbers.pick(&pages))
    }

    fn step(&mut self) -> Option<()> {
        match self.numbers.below(100) {
            0..3 if self.model.spaces.len() < 5 => self.enter(),
            3..6 if self.model.paths.iter().filter(|it| !it.is_closed).count() < 5 => {
                self.make_path()?;
            }
            6..14 => self.attach()?,
            14..20 => self.grow()?,
            20..22 => self.shrink()?,
            22..36 => self.write()?,
            36..52 => self.read()?,
            52..66 => self.send()?,
            66..76 => self.receive()?,
            76..84 => self.free()?,
            84..87 => self.secure()?,
            87..90 => self.notices()?,
            90..92 => self.leave()?,
            92 => self.die()?,
            93 => self.close()?,
            94 => self.lend()?,
            95 | 96 => self.idle()?,
            97 => self.page_out()?,
            98 => match self.numbers.below(3) {
                0 => self.lock()?,
                1 => self.remove()?,
                _ => self.fork()?,
            },
            _ => self.nonsense()?,
        }
        Some(())
    }

    fn enter(&mut self) {
        let who = self.model.made;
        self.model.made += 1;
        self.model.spaces.insert(who, Space::new(self.cpus));
    }

    fn make_path(&mut self) -> Option<()> {
        let who = self.who()?;
        let mode = Mode::from_bits(self.numbers.below(4) as u32)?;
        let path = Path::new(&self.model.spaces[&who].domain, mode, 4).expect("memory");
        self.model.paths.push(ModelPath {
            path,
            mode,
            originator: Some(who),
            members: Default::default(),
            is_closed: false,
        });
        Some(())
    }

    fn attach(&mut self) -> Option<()> {
        let (who, path) = (self.who()?, self.path()?);
        self.be_short();
        let it = &mut self.model.paths[path];
        let result = it.path.attach(&self.model.spaces[&who].domain);
        frame::seem_scarce_after(None);
        if self.shortages && result == Err(Errno::ENOMEM) {
            return None;
        }
        let known = it.members.iter().find(|(_, member)| **member == who);
        match known {
            Some((index, _)) => assert_eq!(result, Ok(*index)),
            None if it.originator == Some(who) => assert_eq!(result, Err(Errno::EPERM)),
            None if it.originator.is_none() => assert_eq!(result, Err(Errno::EPIPE)),
            None => {
                let index = result.expect("room");
                assert!(it.members.insert(index, who).is_none());
            }
        }
        Some(())
    }

    /// The used pages of a run that starts with this page.
    fn used(first: u64, chunks: u64) -> impl Iterator<Item = u64> {
        let end = first + chunks * CHUNK_PAGES;
        (first..first + USED / 2).chain(end - USED / 2..end)
    }

    fn grow(&mut self) -> Option<()> {
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

    fn shrink(&mut self) -> Option<()> {
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

    fn write(&mut self) -> Option<()> {
        let (who, page) = (self.who()?, self.page()?);
        let (offset, len) = (self.numbers.below(4000), 1 + self.numbers.below(90));
        let bytes: Vec<u8> = (0..len).map(|_| self.numbers.next() as u8).collect();
        self.write_at(who, page, offset, bytes);
        Some(())
    }

    fn write_at(&mut self, who: Who, page: u64, offset: usize, bytes: Vec<u8>) {
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

    fn read(&mut self) -> Option<()> {
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

    fn check(&self, who: Who, page: u64, worker: usize) {
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

    /// Sends a leaf, or a pair of some, at the start of a page that the sender may write.
    fn send(&mut self) -> Option<()> {
        let path = self.path()?;
        let who = self.model.paths[path].originator?;
        let own = |(page, it): (&u64, &Page)| (it.path == path).then_some(*page);
        let own: Vec<u64> = self.model.pages.iter().filter_map(own).collect();
        if own.is_empty() {
            return None;
        }
        let node_page = *self.numbers.pick(&own);
        if !self.model.may_write(who, node_page) {
            return None;
        }
        // Data anywhere that it may read, and sometimes where it may not.
        let careless = self.numbers.chance(5);
        let all = self.model.pages.keys().copied();
        let readable: Vec<u64> = all
            .filter(|&page| careless || self.model.may_read(who, page))
            .collect();
        let root = address(node_page).0 as u64;
        let count = 1 + self.numbers.below(3) as u64;
        let (mut pages, mut bytes, mut is_allowed) = (BTreeSet::from([node_page]), 0, true);
        let mut nodes = Vec::new();
        for i in 0..count {
            let page = *self.numbers.pick(&readable);
            is_allowed &= self.model.may_read(who, page);
            let (offset, len) = (
                self.numbers.below(PAGE_SIZE - 100),
                1 + self.numbers.below(100),
            );
            let data = (address(page).0 + offset) as u64;
            pages.insert(page);
            bytes += len as u64;
            let next = if i + 1 < count { i + 1 } else { i };
            bytes += if next == i { len as u64 } else { 0 };
            nodes.push([
                2,
                0,
                root + 64 * i + 32,
                root + 64 * next + if next == i { 32 } else { 0 },
            ]);
            nodes.push([1, len as u64, data, 0]);
        }
        let nodes: Vec<u8> = nodes
            .iter()
            .flatten()
            .flat_map(|word: &u64| word.to_le_bytes())
            .collect();
        self.write_at(who, node_page, 0, nodes);
        let it = &self.model.paths[path];
        let to = match self.numbers.chance(50) || it.members.is_empty() {
            true => None,
            false => {
                let all: Vec<u64> = it.members.keys().copied().collect();
                Some(*self.numbers.pick(&all))
            }
        };
        self.be_short();
        let it = &self.model.paths[path];
        let domain = &self.model.spaces[&who].domain;
        let result = it.path.send(domain, to, root);
        if self.is_short(&result) {
            return None;
        }
        let members = it.members.iter();
        let receivers: BTreeSet<Who> = members
            .filter(|(index, _)| to.is_none_or(|to| to == **index))
            .map(|(_, who)| *who)
            .collect();
        let mode = it.mode;
        let mode_secures = |owner: Mode| mode.is_secured() || owner.is_secured();
        // Pages that others may write cannot be sent as if they were secured.
        let is_unsafe = mode.is_secured()
            && pages.iter().any(|page| {
                self.model.pages.get(page).is_some_and(|it| {
                    let originator = self.model.paths[it.path].originator;
                    originator.is_some_and(|originator| originator != who) && !it.is_secured
                })
            });
        match result {
            Err(Errno::EPIPE) => assert!(receivers.is_empty()),
            Err(Errno::EAGAIN) => assert!(self.model.messages.len() > 60),
            Err(Errno::EPERM) => assert!(is_unsafe),
            Err(error) => assert_eq!((error, is_allowed), (Errno::EFAULT, false)),
            Ok((id, notices)) => {
                assert!(is_allowed && !is_unsafe && !receivers.is_empty());
                let noted = self.model.pages.values();
                let noted = noted.filter(|it| it.path == path && it.is_noticed).count();
                assert_eq!(notices, noted);
                for page in &pages {
                    let Some(it) = self.model.pages.get_mut(page) else {
                        continue;
                    };
                    let owner = &self.model.paths[it.path];
                    it.is_secured |= owner.originator == Some(who) && mode_secures(owner.mode);
                    it.is_idle = false;
                    if it.path != path || !owner.mode.is_cached() {
                        it.granted.extend(&receivers);
                    }
                }
                self.model.messages.push(Message {
                    path,
                    id,
                    root,
                    bytes,
                    pages,
                    queued: receivers,
                    held: BTreeSet::new(),
                });
            }
        }
        Some(())
    }

    fn receive(&mut self) -> Option<()> {
        let (who, path) = (self.who()?, self.path()?);
        let it = &self.model.paths[path];
        let result = it.path.receive(&self.model.spaces[&who].domain);
        if !it.members.values().any(|&member| member == who) {
            assert_eq!(result, Err(Errno::EPERM));
            return None;
        }
        let mut messages = self.model.messages.iter_mut();
        let next = messages.find(|it| it.path == path && it.queued.contains(&who));
        match next {
            None if it.originator.is_some() => assert_eq!(result, Ok(None)),
            None => assert_eq!(result, Err(Errno::EPIPE)),
            Some(message) => {
                let expected = Received {
                    root: message.root,
                    id: message.id,
                    sender: it.path.originator(),
                    bytes: message.bytes,
                };
                assert_eq!(result, Ok(Some(expected)));
                message.queued.remove(&who);
                message.held.insert(who);
                // All of it can be read.
                let pages = message.pages.clone();
                let worker = self.numbers.below(self.cpus);
                for page in pages {
                    assert!(self.model.may_read(who, page));
                    self.check(who, page, worker);
                }
            }
        }
        Some(())
    }

    fn free(&mut self) -> Option<()> {
        if self.model.messages.is_empty() {
            return None;
        }
        let at = self.numbers.below(self.model.messages.len());
        let who = self.who()?;
        self.be_short();
        let message = &mut self.model.messages[at];
        let it = &self.model.paths[message.path];
        let result = it.path.free(&self.model.spaces[&who].domain, message.id);
        frame::seem_scarce_after(None);
        let is_member = it.members.values().any(|&member| member == who);
        match message.held.remove(&who) {
            true => assert_eq!(result, Ok(())),
            false if is_member => assert_eq!(result, Err(Errno::EINVAL)),
            false => assert_eq!(result, Err(Errno::EPERM)),
        }
        self.model.settle(true);
        Some(())
    }

    fn secure(&mut self) -> Option<()> {
        if self.model.messages.is_empty() {
            return None;
        }
        let at = self.numbers.below(self.model.messages.len());
        let who = self.who()?;
        let message = &self.model.messages[at];
        let page = *message.pages.iter().next()?;
        let path = message.path;
        let it = &self.model.paths[path];
        let start = address(page);
        let range = VirtRange::new(start + 5, start + 9);
        let result = it.path.secure(&self.model.spaces[&who].domain, range);
        let held =
            |it: &Message| it.path == path && it.held.contains(&who) && it.pages.contains(&page);
        let holds = self.model.messages.iter().any(held);
        assert_eq!(result.is_ok(), holds, "{result:?}");
        if holds && let Some(it) = self.model.pages.get_mut(&page) {
            it.is_secured = true;
        }
        Some(())
    }

    fn notices(&mut self) -> Option<()> {
        let (who, path) = (self.who()?, self.path()?);
        let it = &self.model.paths[path];
        let domain = &self.model.spaces[&who].domain;
        let mut found = BTreeSet::new();
        let result = it.path.take_notices(domain, 1000, &mut |range| {
            found.extend(range.pages().map(|page| (page.0 / PAGE_SIZE) as u64));
        });
        if it.originator != Some(who) {
            assert_eq!(result, Err(Errno::EPERM));
            return None;
        }
        let mut expected = BTreeSet::new();
        for (page, it) in &mut self.model.pages {
            if it.path == path && core::mem::take(&mut it.is_noticed) {
                expected.insert(*page);
            }
        }
        assert_eq!(found, expected);
        let own = |it: &&Page| self.model.paths[it.path].originator == Some(who);
        let left = self
            .model
            .pages
            .values()
            .filter(own)
            .filter(|it| it.is_noticed);
        assert_eq!(domain.notices(), left.count());
        Some(())
    }

    fn leave(&mut self) -> Option<()> {
        let (who, path) = (self.who()?, self.path()?);
        self.model.paths[path]
            .path
            .leave(&self.model.spaces[&who].domain);
        self.model.leave(who, path);
        Some(())
    }

    fn die(&mut self) -> Option<()> {
        let who = self.who()?;
        let space = self.model.spaces.remove(&who)?;
        self.be_short();
        space.end(self.numbers.chance(50));
        frame::seem_scarce_after(None);
        for path in 0..self.model.paths.len() {
            self.model.leave(who, path);
        }
        for page in self.model.pages.values_mut() {
            page.granted.remove(&who);
        }
        Some(())
    }

    fn close(&mut self) -> Option<()> {
        let path = self.path()?;
        self.be_short();
        self.model.paths[path].path.close();
        frame::seem_scarce_after(None);
        self.model.paths[path].is_closed = true;
        for who in 0..self.model.made {
            self.model.leave(who, path);
        }
        Some(())
    }

    /// Pages that are lent keep their bytes.
    fn lend(&mut self) -> Option<()> {
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

    fn check_loans(&self) {
        for (page, bytes) in &self.loans {
            let mut now = vec![0; PAGE_SIZE];
            nucleus::ephemeral::map(page).read(0, &mut now);
            assert!(now == *bytes, "a lent page has changed");
        }
    }

    /// Changes no byte.
    fn page_out(&mut self) -> Option<()> {
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
    fn lock(&mut self) -> Option<()> {
        let (who, page) = (self.who()?, self.page()?);
        let range = VirtRange::new(address(page), address(page + 3));
        let lock = *self.numbers.pick(&[Lock::Full, Lock::OnFault, Lock::None]);
        let _ = self.model.spaces[&who].map.lock(range, lock);
        Some(())
    }

    /// Drops the contents of a page.
    fn remove(&mut self) -> Option<()> {
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
    fn idle(&mut self) -> Option<()> {
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

    /// A child has nothing of the region.
    fn fork(&mut self) -> Option<()> {
        let who = self.who()?;
        let child = self.model.spaces[&who].map.fork().expect("memory");
        child.for_each_entry(&mut |entry| {
            let start = entry.range.start;
            assert!(start < REGION_START || start >= REGION_START + REGION_SIZE);
        });
        Some(())
    }

    /// Lets the kernel's memory seem short at some time within the next call.
    fn be_short(&mut self) {
        if self.shortages && self.numbers.chance(40) {
            let when = self.numbers.below(5) as u64;
            match self.numbers.chance(50) {
                true => frame::seem_scarce_once(when),
                false => frame::seem_scarce_after(Some(when)),
            }
        }
    }

    /// Ends [`be_short`](Run::be_short); whether this result is due to it.
    fn is_short<T>(&self, result: &abi::Result<T>) -> bool {
        frame::seem_scarce_after(None);
        let failed = matches!(result, Err(Errno::ENOMEM));
        assert!(self.shortages || !failed);
        failed
    }

    /// Roots that lead nowhere are errors.
    fn nonsense(&mut self) -> Option<()> {
        let (who, path) = (self.who()?, self.path()?);
        let it = &self.model.paths[path];
        let root = match self.numbers.below(4) {
            0 => self.numbers.next(),
            1 => (REGION_START + REGION_SIZE).0 as u64 - 16,
            2 => REGION_START.0 as u64 - 8,
            _ => VirtAddr(8).0 as u64,
        };
        let result = it.path.send(&self.model.spaces[&who].domain, None, root);
        let error = result.err()?;
        let expected = match it.originator == Some(who) {
            false => vec![Errno::EPERM],
            true => vec![Errno::EFAULT, Errno::EPIPE, Errno::EAGAIN],
        };
        assert!(expected.contains(&error), "{error:?}");
        Some(())
    }

    /// Checks each used page in each domain from each CPU, and the figures.
    fn check_all(&self) {
        for (who, space) in &self.model.spaces {
            for page in self.model.pages.keys() {
                for worker in 0..space.workers.len() {
                    self.check(*who, *page, worker);
                }
            }
        }
        self.check_loans();
        let statuses = statuses().expect("memory");
        let sum =
            |of: fn(&fbuf::region::PathStatus) -> usize| statuses.iter().map(of).sum::<usize>();
        assert_eq!(sum(|it| it.messages), self.model.messages.len());
        let secured = self.model.pages.values().filter(|it| it.is_secured);
        assert_eq!(sum(|it| it.secured), secured.count());
        let noted = self.model.pages.values().filter(|it| it.is_noticed);
        assert_eq!(sum(|it| it.notices), noted.count());
    }

    fn end(mut self) {
        self.loans.clear();
        for (_, space) in core::mem::take(&mut self.model.spaces) {
            space.end(self.numbers.chance(50));
        }
        drop(self.model.paths);
        let left = statuses().expect("memory");
        assert!(left.is_empty(), "{left:?}");
    }
}

fn against_model(seed: u64, cpus: usize, steps: usize, shortages: bool) {
    let store = support::swap::Store::new(seed, 200);
    let device = swap::add(store, 0, &|| false).expect("a swap device");
    let mut run = Run::new(seed, cpus, shortages);
    for _ in 0..3 {
        run.enter();
    }
    for step in 0..steps {
        run.step();
        if step % 100 == 99 {
            run.check_all();
        }
    }
    run.check_all();
    run.end();
    support::swap::remove(device);
}

#[test]
fn domains_against_the_model() {
    for cpus in [1, 2, 4] {
        support::check("fbufs", 0..20, support::on_cpus(cpus), move || {
            against_model(sim::random_u64(), cpus, 600, false);
        });
    }
}

/// The kernel's memory is short at random points of calls: they fail and change nothing, or what
/// was readable is not any more.
#[test]
fn domains_without_memory() {
    support::check("fbufs without memory", 0..40, support::on_cpus(2), || {
        against_model(sim::random_u64(), 2, 500, true);
    });
}

/// Several domains at once, each on a CPU of its own, with deaths: no oracle of bytes, but no stale
/// translation is used, each receiver's message has the sender's bytes, and all comes back.
#[test]
fn domains_at_once() {
    support::check("fbufs at once", 0..60, support::on_cpus(4), || {
        races::run(sim::random_u64());
    });
}

#[test]
fn a_message_is_mapped_as_a_whole() {
    support::once("half mapped", attacks::half_mapped);
}

#[test]
fn secured_messages_do_not_change() {
    support::check("secured meanwhile", 0..4, support::on_cpus(2), || {
        attacks::secured_meanwhile(0);
        attacks::secured_meanwhile(1);
    });
}

#[test]
fn what_was_not_sent_can_be_written() {
    support::once("forwarded", attacks::forwarded_unsent);
}

#[test]
fn ranges_in_two_runs_count_twice() {
    support::once("many ranges", attacks::many_ranges);
}

#[test]
fn addresses_stay_with_their_path() {
    support::once("addresses", addresses::stay_with_their_path);
}

#[test]
fn addresses_have_owners() {
    support::once("owners", addresses::have_owners);
}

#[test]
fn a_receivers_number_is_never_anothers() {
    support::once("numbers", attacks::number_of_another);
}

/// A space of 32 bits has no room for the region.
#[test]
fn narrow_spaces_are_refused() {
    support::once("narrow", || {
        let layout = Layout::for_32_bits(8 << 20, Randomness::Everything);
        let map = Map::with_layout(Limits::NONE, layout).expect("memory");
        let entered = Domain::enter(&map, 1, &OnceArc::new());
        assert_eq!(entered.err(), Some(Errno::EINVAL));
    });
}
