//! What the model knows of domains, paths, messages and pages.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fbuf::region::{Domain, Mode, Path};
use nucleus::{PAGE_SIZE, VirtAddr, sync::OnceArc};
use vm::Map;

use super::support::{Worker, new_map};

/// A domain, by the order in which they were made.
pub type Who = usize;

/// A live domain.
pub struct Space {
    pub domain: Arc<Domain>,
    pub map: Arc<Map>,
    pub workers: Vec<Worker>,
}

impl Space {
    pub fn new(cpus: usize) -> Space {
        let map = new_map();
        let place = OnceArc::new();
        let domain = Domain::enter(&map, 1, &place).expect("room");
        let workers = Worker::on_each(&map, cpus);
        Space {
            domain,
            map,
            workers,
        }
    }

    /// As the end of a process, in its two orders.
    pub fn end(self, domain_first: bool) {
        if domain_first {
            self.domain.end();
        }
        self.workers.into_iter().for_each(Worker::end);
        if !domain_first {
            self.domain.end();
        }
        self.map.tear_down();
    }
}

pub struct ModelPath {
    pub path: Arc<Path>,
    pub mode: Mode,
    /// `None` once it is gone.
    pub originator: Option<Who>,
    /// Receivers by their index.
    pub members: BTreeMap<u64, Who>,
    pub is_closed: bool,
}

/// A page of a run.
pub struct Page {
    /// The path, by its place in the list.
    pub path: usize,
    /// The first page of its run.
    pub run: u64,
    pub bytes: Vec<u8>,
    pub is_secured: bool,
    pub is_noticed: bool,
    /// Its bytes may become zeros.
    pub is_idle: bool,
    /// Domains that were given it.
    pub granted: BTreeSet<Who>,
}

pub struct Message {
    pub path: usize,
    pub id: u64,
    pub root: u64,
    pub bytes: u64,
    /// Page numbers.
    pub pages: BTreeSet<u64>,
    pub queued: BTreeSet<Who>,
    pub held: BTreeSet<Who>,
}

#[derive(Default)]
pub struct Model {
    /// Live domains.
    pub spaces: BTreeMap<Who, Space>,
    pub paths: Vec<ModelPath>,
    /// By page number.
    pub pages: BTreeMap<u64, Page>,
    /// In the order in which they were sent.
    pub messages: Vec<Message>,
    pub made: Who,
}

impl ModelPath {
    /// Whether the domain reads all of the path's pages.
    pub fn reads_all(&self, who: Who) -> bool {
        let is_member = self.members.values().any(|&member| member == who);
        self.originator == Some(who) || self.mode.is_cached() && is_member
    }
}

impl Model {
    /// Whether any message includes the page.
    pub fn is_referenced(&self, page: u64) -> bool {
        self.messages.iter().any(|it| it.pages.contains(&page))
    }

    pub fn may_read(&self, who: Who, page: u64) -> bool {
        self.pages
            .get(&page)
            .is_some_and(|it| self.paths[it.path].reads_all(who) || it.granted.contains(&who))
    }

    pub fn may_write(&self, who: Who, page: u64) -> bool {
        let found = self.pages.get(&page);
        found.is_some_and(|it| self.paths[it.path].originator == Some(who) && !it.is_secured)
    }

    /// What a domain reads in the region.
    pub fn seen(&self, who: Who, page: u64) -> Vec<u8> {
        match self.pages.get(&page) {
            Some(it) if self.may_read(who, page) => it.bytes.clone(),
            _ => vec![0; PAGE_SIZE],
        }
    }

    /// Pages of messages that no member has any more are withdrawn; runs end.
    pub fn settle(&mut self, notes: bool) {
        let mut freed = BTreeSet::new();
        self.messages.retain_mut(|message| {
            let is_live = !message.queued.is_empty() || !message.held.is_empty();
            if !is_live {
                freed.append(&mut message.pages);
            }
            is_live
        });
        for page in freed {
            if !self.is_referenced(page)
                && let Some(it) = self.pages.get_mut(&page)
            {
                it.is_secured = false;
                it.granted.clear();
                it.is_noticed |= notes && self.paths[it.path].originator.is_some();
            }
        }
        // Runs that no domain can use.
        let used: BTreeSet<u64> = self
            .pages
            .iter()
            .filter(|(page, _)| self.is_referenced(**page))
            .map(|(_, it)| it.run)
            .collect();
        self.pages.retain(|_, it| {
            let path = &self.paths[it.path];
            let has_readers = path.mode.is_cached() && !path.members.is_empty();
            path.originator.is_some() || has_readers || used.contains(&it.run)
        });
    }

    /// The domain leaves the path.
    pub fn leave(&mut self, who: Who, path: usize) {
        let it = &mut self.paths[path];
        if it.originator == Some(who) {
            it.originator = None;
            self.pages
                .values_mut()
                .filter(|page| page.path == path)
                .for_each(|page| page.is_noticed = false);
        } else if it.members.values().any(|&member| member == who) {
            it.members.retain(|_, member| *member != who);
            for message in self.messages.iter_mut().filter(|it| it.path == path) {
                message.queued.remove(&who);
                message.held.remove(&who);
            }
        } else {
            return;
        }
        self.settle(true);
    }
}

/// The address of a page.
pub fn address(page: u64) -> VirtAddr {
    VirtAddr(page as usize * PAGE_SIZE)
}
