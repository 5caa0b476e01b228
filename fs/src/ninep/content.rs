//! The bytes of a regular file: a page cache that is written through to a server.
//!
//! `reading` brings pages in, `writing` takes bytes to the server.

use alloc::sync::{Arc, Weak};
use core::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use abi::raw::general::{O_RDONLY, O_WRONLY};
use abi::{Errno, Result};
use nucleus::{
    PAGE_SIZE,
    sync::{Rank, SpinLock},
};
use vm::{Lookup, PagerError};

use super::{
    client::{Fid, SetAttr},
    codec::Attr,
    node::Node,
};
use crate::{
    OpenFlags,
    page_cache::{
        BackingStore, Listing, Mapping, PAGE, PageCache, Properties, Rereadable, Streams, errno,
        pager_error,
    },
};

/// A file's pages.
pub(super) type Content = PageCache<Served>;

/// A file of a server.
pub(super) struct Served {
    pub(super) listing: Listing<Served>,
    /// With the mount's device number, and the server's number for the file.
    pub(super) properties: Properties,
    /// The vnode that has the pages now.
    node: SpinLock<Weak<Node>>,
    /// The state of the server's copy when the pages were read.
    version: SpinLock<Version>,
    /// Written through here since the version was noted.
    pub(super) written: AtomicBool,
    /// Something that a mapping wrote could not be written back; the next `fsync` reports it.
    pub(super) lost: AtomicBool,
    pub(super) streams: Streams,
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

impl Content {
    /// Returns a file as the server describes it, with no pages in memory.
    pub(super) fn of(device: u64, attributes: &Attr) -> Arc<Content> {
        Arc::new_cyclic(|me| {
            let store = Served {
                listing: Listing::new(me),
                properties: Properties::of((device, attributes.qid.path)),
                node: SpinLock::new(Rank::Leaf, Weak::new()),
                version: SpinLock::new(Rank::Leaf, Version::of(attributes)),
                written: AtomicBool::new(false),
                lost: AtomicBool::new(false),
                streams: Streams::new(),
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

    pub(super) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::SeqCst);
    }

    /// It is at least so long.
    pub(super) fn extend_to(&self, size: u64) {
        self.size.fetch_max(size, Ordering::SeqCst);
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
        self.discard(0..u64::MAX);
        self.set_size(now.size);
        *self.store.version.lock() = version;
    }

    /// Removes the pages of `pages`, which the server has other bytes for, except those that
    /// mappings have modified. Without such mappings a modified frame is another file's as well.
    pub(super) fn discard(&self, pages: Range<u64>) {
        match self.was_mapped_writable.load(Ordering::Acquire) {
            true => self.object.discard(pages),
            false => self
                .object
                .remove_pages(pages.start, pages.end - pages.start),
        };
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
    #[inline]
    fn properties(&self) -> &Properties {
        &self.properties
    }

    #[inline]
    fn streams(&self) -> Option<&Streams> {
        Some(&self.streams)
    }

    fn prefetch(cache: &Content, pages: Range<u64>) {
        if let Ok(node) = cache.node() {
            // A reader that needs the pages retries and gets the error.
            let _ = cache.read_in(&node, pages.start, pages);
        }
    }

    /// The server changes the size first.
    fn may_resize(cache: &Content, size: u64) -> Result<()> {
        let node = cache.node()?;
        cache.store.written.store(true, Ordering::Release);
        let change = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        let changed = node.fid().set_attributes(&change);
        node.forget_attributes();
        changed
    }

    fn free(cache: &Content, pages: Range<u64>, size: Option<u64>) -> Result<()> {
        cache.drop_pages(pages, size);
        let end = size.unwrap_or_else(|| cache.size());
        let (last, in_page) = (end / PAGE, (end % PAGE) as usize);
        // A concurrent read may have brought the old end.
        if cache.object.resident(last).is_none() {
            cache.drop_pages(last..last + 1, None);
        } else if in_page > 0 {
            cache.clear(last, in_page, PAGE_SIZE)?;
        }
        Ok(())
    }

    fn lookup(_: &Content, _: u64) -> Mapping<Lookup> {
        // Also beyond the end: the file may have grown on the server.
        Ok(Lookup::Absent)
    }

    fn bring_in(cache: &Content, index: u64, window: Range<u64>) -> Mapping<()> {
        let node = cache.node().map_err(pager_error)?;
        if index >= cache.pages() {
            // It may have grown on the server.
            let now = node.refresh().map_err(|_| PagerError::Io)?;
            if index >= now.size.div_ceil(PAGE) {
                return Err(PagerError::BeyondEnd);
            }
            cache.extend_to(now.size);
        }
        cache.read_in(&node, index, window)
    }

    fn writeback(cache: &Content, pages: Range<u64>, _: bool) -> Mapping<()> {
        let node = cache.node().map_err(pager_error)?;
        cache.write_back_mapped(&node, pages)
    }

    /// A mapping keeps the vnode, and with it the handles that are open.
    fn referenced(cache: &Content) {
        if let Ok(node) = cache.node() {
            node.users.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn detached(cache: &Content, last_writer: bool) {
        let Ok(node) = cache.node() else { return };
        if last_writer {
            // A failure is kept for `fsync`.
            let _ = cache.write_back_mapped(&node, 0..u64::MAX);
        }
        node.leave_content(cache);
    }
}

impl Rereadable for Served {
    fn listing(&self) -> &Listing<Served> {
        &self.listing
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
        Errno::EIO.unless(!lost)
    }
}
