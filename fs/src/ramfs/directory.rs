//! Directories: names and their nodes.

use alloc::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result};
use nucleus::{
    frame, heap,
    sync::{BiasedRwLock, ReadSection},
};
use vm::account;

use super::{
    Payer, Ramfs,
    names::{Record, TreePlace},
    node::{Body, Node},
    pay, pay_back, pay_if, payer,
    regular::Regular,
    shared_bytes,
};
use crate::{
    Credentials, Kind, Vnode,
    name_hash::name_hash,
    vnode::{self, Emit, EntryCount, Judged, Make, check_name, is_same},
};

/// Entries in the order of their hashes, which are also the cursors of a listing: an entry's cursor
/// never changes while others come and go.
pub(super) struct Directory {
    pub(super) entries: BiasedRwLock<Entries>,
    pub(super) count: EntryCount,
    /// The inode number of the directory that holds this one, or held it last; 0 for the root. A
    /// listing reads it without the lock of the place, which every listing would write.
    parent: AtomicU64,
}

/// One name.
pub(super) struct Entry {
    pub(super) name: Arc<[u8]>,
    pub(super) node: Arc<Node>,
    /// The user who gave the name.
    payer: Payer,
}

/// The bytes of a node of the map, which has eleven places.
pub(super) const MAP_NODE_BYTES: usize =
    heap::size_of_block(11 * (size_of::<u64>() + size_of::<Entry>()) + 16);
/// The bytes that an entry is charged with, besides its name: its part of a node of the map, of
/// whose places five are in use at least. A directory is charged with its first node.
const ENTRY_BYTES: usize = MAP_NODE_BYTES / 5;

/// Returns the bytes that an entry with a name of this length takes.
fn entry_bytes(name: &[u8]) -> usize {
    ENTRY_BYTES + shared_bytes(name.len())
}

impl Entry {
    /// Makes an entry, charged to `payer`.
    ///
    /// # Errors
    /// `ENOSPC` if that one may not keep it.
    pub(super) fn new(name: Arc<[u8]>, node: Arc<Node>, payer: Payer) -> Result<Entry> {
        pay(&payer, account::Kind::Files, entry_bytes(&name))?;
        Ok(Entry { name, node, payer })
    }

    /// As [`new`](Entry::new), for one that takes the place of one with the name `old`: a user at
    /// the limit may still give shorter names.
    pub(super) fn renamed(old: &[u8], name: Arc<[u8]>, node: Arc<Node>) -> Result<Entry> {
        let kind = account::Kind::Files;
        let bytes = entry_bytes(&name);
        let grows = bytes > entry_bytes(old);
        let payer = payer();
        let may = |user: &Arc<account::Account>| !grows || user.may_keep(kind, 0, 1);
        pay_if(&payer, kind, bytes, may)?;
        Ok(Entry { name, node, payer })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        pay_back(&self.payer, account::Kind::Files, entry_bytes(&self.name));
    }
}

/// Entries by hash; those with the same hash are adjacent.
#[derive(Default)]
pub(super) struct Entries {
    map: BTreeMap<u64, Entry>,
}

/// The low bits of a key distinguish names with the same hash.
const SAME: u64 = 0xff;
/// Keys stay below 2^61.
const KEY_BITS: u32 = 61;

/// Returns a copy of `name` for an entry and its node.
///
/// # Errors
/// `ENOMEM` when memory is scarce: the heap's reserve has room for this name and its entry.
pub(super) fn entry_name(name: &[u8]) -> Result<Arc<[u8]>> {
    frame::check_not_scarce()?;
    Ok(name.into())
}

/// Returns the first key for a name.
fn key(fs: &Ramfs, name: &[u8]) -> u64 {
    name_hash(fs.seed, name) >> (64 - KEY_BITS) & !SAME
}

impl Entries {
    fn find(&self, fs: &Ramfs, name: &[u8]) -> Option<(u64, &Entry)> {
        let first = key(fs, name);
        let mut same = self.map.range(first..=first | SAME);
        let found = same.find(|(_, entry)| *entry.name == *name);
        found.map(|(key, entry)| (*key, entry))
    }

    /// Returns the node of `name`.
    pub(super) fn get(&self, fs: &Ramfs, name: &[u8]) -> Option<&Arc<Node>> {
        self.find(fs, name).map(|(_, entry)| &entry.node)
    }

    /// Adds an entry for a name that is free.
    pub(super) fn insert(&mut self, fs: &Ramfs, entry: Entry) -> Result<()> {
        let first = key(fs, &entry.name);
        // More than 256 names with one 53-bit hash occur neither by chance nor by intent: the seed
        // is secret.
        let free = (first..=first | SAME).find(|key| !self.map.contains_key(key));
        let free = free.ok_or(Errno::ENOSPC)?;
        self.map.insert(free, entry);
        Ok(())
    }

    pub(super) fn remove(&mut self, fs: &Ramfs, name: &[u8]) -> Option<Entry> {
        let (key, _) = self.find(fs, name)?;
        self.map.remove(&key)
    }

    /// Makes an existing name stand for another node; returns the name and the old node.
    pub(super) fn replace(
        &mut self,
        fs: &Ramfs,
        name: &[u8],
        node: Arc<Node>,
    ) -> Option<(Arc<[u8]>, Arc<Node>)> {
        let (key, _) = self.find(fs, name)?;
        let entry = self.map.get_mut(&key)?;
        let old = core::mem::replace(&mut entry.node, node);
        Some((entry.name.clone(), old))
    }
}

impl Directory {
    pub(super) fn new() -> Directory {
        Directory {
            entries: BiasedRwLock::new(crate::rank::DIRECTORY, Entries::default()),
            count: EntryCount::new(true),
            parent: AtomicU64::new(0),
        }
    }

    /// Returns the inode number of the directory that holds this one, or held it last; `None` for
    /// the root.
    pub(super) fn parent_inode(&self) -> Option<u64> {
        Some(self.parent.load(Ordering::Relaxed)).filter(|&inode| inode != 0)
    }

    /// Notes that it is in this directory now.
    pub(super) fn set_parent(&self, parent: &Weak<Node>) {
        let inode = parent.upgrade().map_or(0, |parent| parent.inode);
        self.parent.store(inode, Ordering::Relaxed);
    }

    pub(super) fn lookup(&self, fs: &Ramfs, name: &[u8]) -> Result<Arc<Node>> {
        let found = self.entries.read_with(|it| it.get(fs, name).cloned());
        found.ok_or(Errno::ENOENT)
    }

    /// Emits in batches, each gathered under the lock and emitted without it.
    pub(super) fn list(&self, cursor: u64, emit: &mut Emit<'_>) -> Result<()> {
        const BATCH: usize = 16;
        let mut from = cursor;
        loop {
            let mut batch = [const { None::<(u64, Arc<[u8]>, u64, Kind)> }; BATCH];
            self.entries.read_with(|entries| {
                for (slot, (key, entry)) in batch.iter_mut().zip(entries.map.range(from..)) {
                    let node = &entry.node;
                    *slot = Some((*key, entry.name.clone(), node.inode, node.kind()));
                }
            });
            let mut full = true;
            for slot in batch {
                let Some((key, name, inode, kind)) = slot else {
                    full = false;
                    break;
                };
                from = key + 1;
                if !emit(&name, inode, kind, from) {
                    return Ok(());
                }
            }
            if !full {
                return Ok(());
            }
        }
    }
}

impl Node {
    /// Creates a node, charged as of this kind, with the owner and mode that a new one in this
    /// directory gets.
    pub(super) fn make_node(
        &self,
        body: Body,
        mode: u32,
        who: &Credentials,
        place: Option<(&Weak<Node>, Arc<[u8]>)>,
        (payer, kind): (&Payer, account::Kind),
    ) -> Result<Arc<Node>> {
        let own = (self.mode(), self.gid());
        let (mode, gid) = vnode::inherited(own, false, body.kind(), mode, who);
        self.fs.take_node()?;
        let pages = body.text_pages();
        let taken = match pages {
            0 => Ok(()),
            _ => self.fs.take_pages(pages as u64),
        };
        taken.inspect_err(|_| self.fs.give_node())?;
        let paid = pay(payer, kind, body.bytes());
        paid.inspect_err(|_| {
            self.fs.give_pages(pages);
            self.fs.give_node();
        })?;
        Ok(Node::new(
            self.fs.clone(),
            body,
            mode,
            (who.uid, gid),
            place,
            (payer.clone(), kind),
        ))
    }

    /// As [`make_node`](Node::make_node), charged as a file with a place.
    pub(super) fn make_file(
        &self,
        body: Body,
        mode: u32,
        who: &Credentials,
        place: Option<(&Weak<Node>, Arc<[u8]>)>,
        payer: &Payer,
    ) -> Result<Arc<Node>> {
        self.make_node(body, mode, who, place, (payer, account::Kind::Files))
    }

    /// Counts one more name of a node that is no directory. Each beyond the first takes a place of
    /// a node, as on Linux.
    ///
    /// # Errors
    /// `ENOENT` for a node that has lost its last name: it can't get a new one, unless it never had
    /// one. `ENOSPC`, `ENOMEM`.
    fn gain_name(&self) -> Result<()> {
        self.fs.take_node()?;
        let unnamed = self.unnamed.load(Ordering::Relaxed);
        let more = |links: u32| {
            (links > 0 || unnamed)
                .then(|| links.checked_add(1))
                .flatten()
        };
        let before = self
            .links
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
        if before.unwrap_or(0) == 0 {
            self.fs.give_node();
        }
        before.map(drop).map_err(|_| Errno::ENOENT)
    }

    /// Handles the removal of its name `name` in `directory`. A directory is dead already.
    pub(super) fn lose_name(&self, directory: &Arc<Node>, name: &Arc<[u8]>) {
        let (links, old) = {
            // The names of a file may go at the same time, from several directories: the one that
            // is counted last finds what the others have left.
            let mut place = self.place.lock();
            let links = match self.is_directory() {
                true => self.links.swap(0, Ordering::Relaxed).min(1),
                false => self.links.fetch_sub(1, Ordering::AcqRel),
            };
            let (was_here, old) = place.remove(Arc::as_ptr(directory).cast(), name);
            // With names left, the directory may still refer to the node, so the node must not
            // refer to the directory.
            let lost = (was_here && links == 1).then(|| {
                let removed = TreePlace::Removed(directory.clone(), name.clone());
                core::mem::replace(&mut *place, removed)
            });
            (links, (old, lost))
        };
        if links > 1 {
            self.fs.give_node();
        }
        // Its directory is alive: nothing is freed here.
        drop(old);
    }

    /// Drops all entries below this node, which is being freed, in a loop instead of recursion:
    /// directories without another owner wait in a chain through their own parent links, which are
    /// unused by then.
    pub(super) fn drop_below(&mut self) {
        let mut chain = None;
        self.chain_entries(&mut chain);
        while let Some(node) = chain {
            chain = node.take_removed_from();
            if let Some(mut node) = Arc::into_inner(node) {
                node.chain_entries(&mut chain);
            }
        }
    }

    fn chain_entries(&mut self, chain: &mut Option<Arc<Node>>) {
        let Body::Directory(directory) = &mut self.body else {
            return;
        };
        let map = core::mem::take(&mut directory.entries.get_mut().map);
        for entry in map.into_values() {
            let (name, node) = (entry.name.clone(), entry.node.clone());
            drop(entry);
            if !node.is_directory() || Arc::strong_count(&node) != 1 {
                continue;
            }
            let old = match chain.take() {
                Some(next) => node.set_place(TreePlace::Removed(next, name)),
                None => node.set_place(TreePlace::Nowhere),
            };
            drop(old);
            *chain = Some(node);
        }
    }
}

impl vnode::Directory for Node {
    fn peek<'s>(&'s self, name: &[u8], section: &'s ReadSection) -> Option<&'s dyn Vnode> {
        let entries = self.as_directory().ok()?.entries.peek(section)?;
        let node = entries.get(&self.fs, name)?;
        Some(&**node)
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Vnode>> {
        let found = self.as_directory()?.lookup(&self.fs, name);
        found.map(|node| node as Arc<dyn Vnode>)
    }

    fn create(
        &self,
        name: &[u8],
        make: Make,
        mode: u32,
        who: &Credentials,
    ) -> Result<Arc<dyn Vnode>> {
        let directory = self.as_directory()?;
        check_name(name)?;
        let name = entry_name(name)?;
        let mode = if matches!(make, Make::Link(_)) {
            0o777
        } else {
            mode
        };
        let payer = payer();
        let body = Body::make(&self.fs, make, &payer)?;
        let place = Some((&self.me, name.clone()));
        let node = self.make_file(body, mode, who, place, &payer)?;
        let entry = Entry::new(name, node.clone(), payer)?;
        {
            let mut entries = directory.entries.write();
            if entries.get(&self.fs, &entry.name).is_some() {
                drop(entries);
                return Err(Errno::EEXIST);
            }
            directory.count.add()?;
            if let Err(error) = entries.insert(&self.fs, entry) {
                directory.count.remove();
                return Err(error);
            }
            if node.is_directory() {
                self.links.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.touch_modified();
        Ok(node)
    }

    fn create_unnamed(
        &self,
        mode: u32,
        may_link: bool,
        who: &Credentials,
    ) -> Result<Arc<dyn Vnode>> {
        self.as_directory()?;
        let payer = payer();
        let body = Body::Regular(Regular::new(&self.fs, payer.clone()));
        let node = self.make_file(body, mode, who, None, &payer)?;
        node.unnamed.store(may_link, Ordering::Relaxed);
        Ok(node)
    }

    fn link(&self, name: &[u8], node: &Arc<dyn Vnode>) -> Result<()> {
        let (directory, node) = (self.as_directory()?, self.of_same(node)?);
        if node.is_directory() {
            return Err(Errno::EPERM);
        }
        check_name(name)?;
        let name = entry_name(name)?;
        let entry = Entry::new(name.clone(), node.handle()?, payer())?;
        let mut entries = directory.entries.write();
        if entries.get(&self.fs, &name).is_some() {
            return Err(Errno::EEXIST);
        }
        directory.count.add()?;
        let inserted = entries.insert(&self.fs, entry);
        if let Err(error) = inserted.and_then(|()| node.gain_name()) {
            let gone = entries.remove(&self.fs, &name);
            directory.count.remove();
            drop(entries);
            drop(gone);
            return Err(error);
        }
        node.unnamed.store(false, Ordering::Relaxed);
        let old = node.place.lock().add(Record::new(&self.me, name));
        drop(entries);
        drop(old);
        node.touch_changed();
        self.touch_modified();
        Ok(())
    }

    fn remove(&self, name: &[u8], judged: &dyn Vnode, is_directory: bool) -> Result<()> {
        let directory = self.as_directory()?;
        let me = self.handle()?;
        let mut entries = directory.entries.write();
        let node = entries.get(&self.fs, name).ok_or(Errno::ENOENT)?;
        if !is_same(&**node, judged) {
            return Err(Errno::ESTALE);
        }
        match (&node.body, is_directory) {
            (Body::Directory(child), true) => child.count.die()?,
            (Body::Directory(_), false) => return Err(Errno::EISDIR),
            (_, true) => return Err(Errno::ENOTDIR),
            (_, false) => {}
        }
        let entry = entries.remove(&self.fs, name).ok_or(Errno::ENOENT)?;
        directory.count.remove();
        if is_directory {
            self.links.fetch_sub(1, Ordering::Relaxed);
        }
        entry.node.lose_name(&me, &entry.name);
        drop(entries);
        entry.node.touch_changed();
        self.touch_modified();
        // The node may be freed now, with all its pages, and no lock is held.
        drop(entry);
        Ok(())
    }

    fn rename(
        &self,
        name: &[u8],
        to: &Arc<dyn Vnode>,
        to_name: &[u8],
        flags: u32,
        judged: Judged<'_>,
    ) -> Result<()> {
        self.rename_entry(name, self.of_same(to)?, to_name, flags, judged)
    }

    fn list(&self, cursor: u64, emit: &mut Emit<'_>) -> Result<()> {
        self.as_directory()?.list(cursor, emit)
    }
}
