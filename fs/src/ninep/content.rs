//! The bytes of a regular file: a page cache that is written through to a server.
//!
//! `reading` brings pages in, `writing` takes bytes to the server.

use alloc::sync::{Arc, Weak};
use core::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use abi::raw::general::{O_RDONLY, O_WRONLY};
use abi::{Errno, Result};
use nucleus::{
    Frame,
    sync::{Rank, SpinLock},
};
use vm::{Description, Lookup, Object, Pager, PagerError};

use super::{cache, client::Fid, codec::Attr, node::Node};
use crate::{
    OpenFlags,
    page_cache::{BackingStore, Found, Mapping, PAGE, PageCache, errno},
};

/// A file's pages.
pub(super) type Content = PageCache<Served>;

/// A file of a server.
pub(super) struct Served {
    me: Weak<Content>,
    /// The vnode that has the pages now.
    node: SpinLock<Weak<Node>>,
    /// The state of the server's copy when the pages were read.
    version: SpinLock<Version>,
    /// Written through here since the version was noted.
    pub(super) written: AtomicBool,
    /// Something that a mapping wrote could not be written back; the next `fsync` reports it.
    pub(super) lost: AtomicBool,
    /// The page after the last one that was read, and how many pages were read then.
    pub(super) read_to: AtomicU64,
    pub(super) read_pages: AtomicU64,
    /// It is among the files of the cache.
    listed: AtomicBool,
    /// Where the next pages are evicted.
    give_from: AtomicU64,
}

/// The attributes by which a change of the file is found.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    modified: Duration,
    changed: Duration,
    size: u64,
    number: u32,
}

impl Version {
    fn of(it: &Attr) -> Version {
        Version {
            modified: it.modified,
            changed: it.changed,
            size: it.size,
            number: it.qid.version,
        }
    }
}

/// Open handles of a file, shared by all its open files.
#[derive(Default)]
pub(super) struct Handles {
    reader: Option<Arc<Fid>>,
    writer: Option<Arc<Fid>>,
}

/// The object of a node that is no regular file; no map entry refers to it.
static NO_OBJECT: Object = Object::new();

impl Content {
    /// Returns a file as the server describes it, with no pages in memory.
    pub(super) fn of(attributes: &Attr) -> Arc<Content> {
        Arc::new_cyclic(|me| {
            let store = Served {
                me: me.clone(),
                node: SpinLock::new(Rank::Leaf, Weak::new()),
                version: SpinLock::new(Rank::Leaf, Version::of(attributes)),
                written: AtomicBool::new(false),
                lost: AtomicBool::new(false),
                read_to: AtomicU64::new(0),
                read_pages: AtomicU64::new(0),
                listed: AtomicBool::new(false),
                give_from: AtomicU64::new(0),
            };
            PageCache::with_store(store, attributes.size)
        })
    }

    /// A vnode of the file has the pages from now on.
    pub(super) fn set_node(&self, node: &Weak<Node>) {
        let before = core::mem::replace(&mut *self.store.node.lock(), node.clone());
        drop(before);
    }

    /// The vnode that has the pages.
    ///
    /// # Errors
    /// `EIO` while it is being dropped.
    pub(super) fn node(&self) -> Result<Arc<Node>> {
        let node = self.store.node.lock().upgrade();
        node.ok_or(Errno::EIO)
    }

    /// Counts pages that are in memory now.
    pub(super) fn added(&self, pages: usize) {
        if let Some(me) = self.store.me.upgrade() {
            cache::added(&me, pages);
        }
    }

    pub(super) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::SeqCst);
    }

    /// It is at least so long.
    pub(super) fn extend_to(&self, size: u64) {
        self.size.fetch_max(size, Ordering::SeqCst);
    }

    /// True once: it is to be put among the files of the cache.
    pub(super) fn list_once(&self) -> bool {
        !self.store.listed.load(Ordering::Relaxed)
            && !self.store.listed.swap(true, Ordering::Relaxed)
    }

    pub(super) fn unlist(&self) {
        self.store.listed.store(false, Ordering::Relaxed);
    }

    /// Evicts up to `most` unused pages, from where it stopped the last time; returns how many.
    pub(super) fn give_back(&self, most: usize) -> usize {
        let from = self.store.give_from.load(Ordering::Relaxed);
        let (mut given, stopped) = self.object.evict(from..u64::MAX, most);
        self.store
            .give_from
            .store(stopped.unwrap_or(0), Ordering::Relaxed);
        if stopped.is_none() && from > 0 {
            given += self.object.evict(0..from, most - given).0;
        }
        cache::removed(given);
        given
    }

    /// Compares the server's attributes at an open with the cached version: if the server's copy
    /// has changed, the pages are discarded. While the file is written through here, the changes
    /// are this client's.
    fn revalidate(&self, now: &Attr, in_use: bool) {
        let version = Version::of(now);
        if in_use && self.store.written.load(Ordering::Acquire) {
            return;
        }
        if *self.store.version.lock() == version {
            return;
        }
        cache::removed(self.object.discard(0..u64::MAX));
        self.set_size(now.size);
        *self.store.version.lock() = version;
    }

    /// Notes the server's attributes as the version of the cached pages.
    fn note_version(&self, now: &Attr) {
        self.store.written.store(false, Ordering::Release);
        *self.store.version.lock() = Version::of(now);
    }
}

impl Handles {
    /// The handle for this use, and the other one.
    fn slot(&mut self, write: bool) -> &mut Option<Arc<Fid>> {
        match write {
            true => &mut self.writer,
            false => &mut self.reader,
        }
    }
}

impl Node {
    /// An open handle to read from, or to write to.
    ///
    /// # Errors
    /// The server's.
    pub(super) fn open_handle(&self, write: bool) -> Result<Arc<Fid>> {
        if let Some(fid) = self.handles.lock().slot(write) {
            return Ok(fid.clone());
        }
        let fid = self.fid().duplicate()?;
        fid.open(if write { O_WRONLY } else { O_RDONLY })?;
        let fid = Arc::new(fid);
        let mut handles = self.handles.lock();
        let slot = handles.slot(write);
        let there = slot.get_or_insert_with(|| fid.clone()).clone();
        drop(handles);
        Ok(there)
    }

    /// A handle that is open for reading and writing: of a file that was just made.
    pub(super) fn adopt_handle(&self, fid: Fid) {
        let fid = Arc::new(fid);
        let mut handles = self.handles.lock();
        let before = core::mem::replace(
            &mut *handles,
            Handles {
                reader: Some(fid.clone()),
                writer: Some(fid),
            },
        );
        drop(handles);
        drop(before);
    }

    /// Opens the file.
    pub(super) fn open_content(&self, content: &Content, flags: OpenFlags) -> Result<()> {
        let now = self.recent()?;
        content.revalidate(&now, self.users.load(Ordering::Acquire) > 0);
        if flags.reads() {
            self.open_handle(false)?;
        }
        if flags.writes() {
            self.open_handle(true)?;
        }
        self.users.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Ends a use: an open file or a mapping.
    pub(super) fn leave_content(&self, content: &Content) {
        if self.users.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let handles = core::mem::take(&mut *self.handles.lock());
        drop(handles);
        if content.store.written.load(Ordering::Acquire)
            && let Ok(now) = self.refresh()
        {
            content.note_version(&now);
        }
    }

    /// Revalidates the pages for a mapping or a read without an open, as an open does.
    pub(super) fn revalidate_unopened(&self) {
        if let Some(content) = &self.content
            && self.users.load(Ordering::Acquire) == 0
            && let Ok(now) = self.recent()
        {
            content.revalidate(&now, false);
        }
    }
}

impl BackingStore for Served {
    fn find(cache: &Content, wanted: Range<u64>) -> Result<Found> {
        let node = cache.node()?;
        let window = cache.window(wanted.start, wanted.end - wanted.start);
        match cache.read_in(&node, wanted.start, window) {
            // The size that is known now says whether this is the end.
            Ok(()) | Err(PagerError::BeyondEnd) => Ok(Found::Again),
            Err(error) => Err(errno(error)),
        }
    }

    fn page(cache: &Content, index: u64) -> Result<Option<Frame>> {
        Ok(cache.object.resident(index))
    }

    fn uncharge(&self, pages: usize) {
        cache::removed(pages);
    }

    fn lookup(_: &Content, _: u64) -> Mapping<Lookup> {
        // Also beyond the end: the file may have grown on the server.
        Ok(Lookup::Absent)
    }

    fn page_in(cache: &Content, index: u64, window: Range<u64>) -> Mapping<()> {
        let node = cache.node().map_err(|_| PagerError::Io)?;
        if index >= cache.size().div_ceil(PAGE) {
            // It may have grown on the server.
            let now = node.refresh().map_err(|_| PagerError::Io)?;
            if index >= now.size.div_ceil(PAGE) {
                return Err(PagerError::BeyondEnd);
            }
            cache.extend_to(now.size);
        }
        cache.read_in(&node, index, window)
    }
}

/// A mapping keeps the vnode, and with it the handles that are open.
impl Pager for Node {
    fn object(&self) -> &Object {
        self.content.as_ref().map_or(&NO_OBJECT, |it| &it.object)
    }

    fn lookup(&self, index: u64) -> Mapping<Lookup> {
        self.content.as_ref().ok_or(PagerError::Io)?.lookup(index)
    }

    fn page_in(&self, index: u64, window: Range<u64>) -> Mapping<()> {
        let content = self.content.as_ref().ok_or(PagerError::Io)?;
        content.page_in(index, window)
    }

    fn writeback(&self, pages: Range<u64>, _: bool) -> Mapping<()> {
        match &self.content {
            Some(content) => content.write_back_mapped(self, pages),
            None => Ok(()),
        }
    }

    fn reference(&self, writable: bool) {
        self.users.fetch_add(1, Ordering::AcqRel);
        if let Some(content) = &self.content {
            content.reference(writable);
        }
    }

    fn detach(&self, writable: bool) {
        let Some(content) = &self.content else {
            return;
        };
        content.detach(writable);
        if writable && !content.is_mapped_writable() {
            // A failure is kept for `fsync`.
            let _ = content.write_back_mapped(self, 0..u64::MAX);
        }
        self.leave_content(content);
    }

    fn mark_dirty(&self, index: u64, entering: Option<&Frame>) -> bool {
        let content = self.content.as_ref();
        content.is_none_or(|it| it.mark_dirty(index, entering))
    }

    fn reserve(&self, index: u64) -> Mapping<()> {
        let content = self.content.as_ref();
        content.map_or(Ok(()), |it| it.reserve(index))
    }

    fn describe(&self) -> Description {
        let attributes = self.last_seen();
        Description {
            device: self.attributes_device(),
            inode: attributes.qid.path,
            name: alloc::vec::Vec::new(),
        }
    }
}

impl Node {
    /// As [`Vnode::closed`](crate::Vnode::closed).
    pub(super) fn close(&self) {
        if let Some(content) = &self.content {
            self.leave_content(content);
        }
    }

    /// As [`Vnode::sync`](crate::Vnode::sync).
    pub(super) fn sync_content(&self, content: &Content) -> Result<()> {
        let written = content.write_back_mapped(self, 0..u64::MAX);
        let lost = content.store.lost.swap(false, Ordering::AcqRel);
        let writer = self.handles.lock().slot(true).clone();
        if let Some(fid) = writer {
            fid.sync()?;
        }
        written.map_err(errno)?;
        match lost {
            true => Err(Errno::EIO),
            false => Ok(()),
        }
    }
}
