//! Messages, their pages, and nonsense.

use std::collections::BTreeSet;

use abi::Errno;
use fbuf::region::{Mode, REGION_SIZE, REGION_START, Received};
use nucleus::{PAGE_SIZE, VirtAddr, VirtRange, frame};

use super::{
    Run,
    model::{Message, Page, Who, address},
};

impl Run {
    /// Sends a leaf, or a pair of some, at the start of a page that the sender may write.
    pub(super) fn send(&mut self) -> Option<()> {
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

    pub(super) fn receive(&mut self) -> Option<()> {
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
                // All of it can be read, and nothing else was checked.
                let pages = message.pages.clone();
                let mut ranges = Vec::new();
                let domain = &self.model.spaces[&who].domain;
                let count = it
                    .path
                    .ranges_of(domain, message.id, &mut |it| ranges.push(it));
                assert_eq!(count, Ok(ranges.len()));
                let found = ranges.iter().flat_map(|range| range.pages());
                let found: BTreeSet<u64> = found.map(|at| (at.0 / PAGE_SIZE) as u64).collect();
                assert_eq!(found, pages);
                let worker = self.numbers.below(self.cpus);
                for page in pages {
                    assert!(self.model.may_read(who, page));
                    self.check(who, page, worker);
                }
            }
        }
        Some(())
    }

    pub(super) fn free(&mut self) -> Option<()> {
        if self.model.messages.is_empty() {
            return None;
        }
        let at = self.numbers.below(self.model.messages.len());
        let who = self.who()?;
        self.be_short();
        let message = &mut self.model.messages[at];
        let it = &self.model.paths[message.path];
        let domain = &self.model.spaces[&who].domain;
        let ranges = it.path.ranges_of(domain, message.id, &mut |_| {});
        let result = it.path.free(domain, message.id);
        frame::seem_scarce_after(None);
        assert_eq!(ranges.map(drop), result);
        let is_member = it.members.values().any(|&member| member == who);
        match message.held.remove(&who) {
            true => assert_eq!(result, Ok(())),
            false if is_member => assert_eq!(result, Err(Errno::EINVAL)),
            false => assert_eq!(result, Err(Errno::EPERM)),
        }
        self.model.settle(true);
        Some(())
    }

    pub(super) fn secure(&mut self) -> Option<()> {
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

    pub(super) fn notices(&mut self) -> Option<()> {
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
        // Those that later messages include are told once those are freed.
        let included = |page: &u64| self.model.messages.iter().any(|it| it.pages.contains(page));
        let mut expected = BTreeSet::new();
        for (page, it) in &mut self.model.pages {
            if it.path == path && core::mem::take(&mut it.is_noticed) && !included(page) {
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

    /// Roots that lead nowhere are errors.
    pub(super) fn nonsense(&mut self) -> Option<()> {
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
}
