//! The bytes of a regular file: what of them is in memory, and how that is kept true.
//!
//! `reading` brings pages in, `writing` takes bytes to the server.

use alloc::sync::Arc;
use core::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use abi::raw::general::{O_RDONLY, O_WRONLY};
use abi::{Errno, Result};
use nucleus::{
    Frame, PAGE_SIZE,
    sync::{Mutex, Rank, SpinLock},
};
use vm::{Description, Object, Pager, PagerError};

use super::{cache, client::Fid, codec::Attr, node::Node};
use crate::OpenFlags;

pub(super) const PAGE: u64 = PAGE_SIZE as u64;

/// A file's pages, and what is known of them.
pub(super) struct Content {
    pub(super) object: Object,
    size: AtomicU64,
    /// What the server's copy was like when the pages were read.
    version: SpinLock<Version>,
    /// Held by who writes, truncates or passes pages on, across the copy from the program too. No fault takes it.
    pub(super) writers: Mutex<()>,
    /// Shared mappings that may write.
    pub(super) writable_mappings: AtomicU32,
    /// There were such mappings: bytes behind the end may not be zero.
    pub(super) was_mapped_writable: AtomicBool,
    /// A page of it was passed on to someone who keeps it, or came from someone who may.
    pub(super) passed: AtomicBool,
    /// Written through here since the version was noted.
    pub(super) written: AtomicBool,
    /// Something that a mapping wrote could not be written back; the next `fsync` says so.
    pub(super) lost: AtomicBool,
    /// The page after the last one that was read, and how many pages were read then.
    pub(super) read_to: AtomicU64,
    pub(super) read_pages: AtomicU64,
    /// It is among the files of the cache.
    listed: AtomicBool,
    /// Where the next pages are given up.
    give_from: AtomicU64,
}

/// What differs when a file was changed.
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

/// Open handles of a file, shared by all who have it open.
#[derive(Default)]
pub(super) struct Handles {
    reader: Option<Arc<Fid>>,
    writer: Option<Arc<Fid>>,
}

/// What the object of a node is that is no regular file; nobody maps it.
static NO_OBJECT: Object = Object::new();

impl Content {
    pub(super) fn new(attributes: &Attr) -> Arc<Content> {
        Arc::new(Content {
            object: Object::new(),
            size: AtomicU64::new(attributes.size),
            version: SpinLock::new(Rank::Leaf, Version::of(attributes)),
            writers: Mutex::new(Rank::Vnode, ()),
            writable_mappings: AtomicU32::new(0),
            was_mapped_writable: AtomicBool::new(false),
            passed: AtomicBool::new(false),
            written: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            read_to: AtomicU64::new(0),
            read_pages: AtomicU64::new(0),
            listed: AtomicBool::new(false),
            give_from: AtomicU64::new(0),
        })
    }

    /// Bytes, as far as is known here.
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(super) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// It is at least so long.
    pub(super) fn extend_to(&self, size: u64) {
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    /// Resident pages.
    pub(super) fn pages(&self) -> usize {
        self.object.resident_count()
    }

    /// True once: it is to be put among the files of the cache.
    pub(super) fn list_once(&self) -> bool {
        !self.listed.load(Ordering::Relaxed) && !self.listed.swap(true, Ordering::Relaxed)
    }

    pub(super) fn unlist(&self) {
        self.listed.store(false, Ordering::Relaxed);
    }

    /// Gives up to `most` pages up that nobody uses, from where it stopped the last time on; returns how many.
    pub(super) fn give_back(&self, most: usize) -> usize {
        let from = self.give_from.load(Ordering::Relaxed);
        let (mut given, stopped) = self.object.evict(from..u64::MAX, most);
        self.give_from
            .store(stopped.unwrap_or(0), Ordering::Relaxed);
        if stopped.is_none() && from > 0 {
            given += self.object.evict(0..from, most - given).0;
        }
        cache::removed(given);
        given
    }

    /// Takes pages out for good.
    pub(super) fn drop_pages(&self, pages: Range<u64>) {
        let count = pages.end.saturating_sub(pages.start);
        cache::removed(self.object.remove_pages(pages.start, count));
    }

    /// What the server says of the file when it is opened: if its copy has changed, what is here goes. While it is being
    /// written through here the changes are ours.
    fn revalidate(&self, now: &Attr, in_use: bool) {
        let version = Version::of(now);
        if in_use && self.written.load(Ordering::Acquire) {
            return;
        }
        if *self.version.lock() == version {
            return;
        }
        cache::removed(self.object.discard(0..u64::MAX));
        self.set_size(now.size);
        *self.version.lock() = version;
    }

    /// The server's copy is what is here: what it says of it now is noted.
    fn note_version(&self, now: &Attr) {
        self.written.store(false, Ordering::Release);
        *self.version.lock() = Version::of(now);
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        cache::removed(self.object.resident_count());
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

    /// Somebody opens the file.
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

    /// Somebody who opened or mapped the file does not use it any more.
    pub(super) fn leave_content(&self, content: &Content) {
        if self.users.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let handles = core::mem::take(&mut *self.handles.lock());
        drop(handles);
        if content.written.load(Ordering::Acquire)
            && let Ok(now) = self.refresh()
        {
            content.note_version(&now);
        }
    }

    /// What who maps or reads the file without having it open sees: as for those who open.
    pub(super) fn revalidate_unopened(&self) {
        if let Some(content) = &self.content
            && self.users.load(Ordering::Acquire) == 0
            && let Ok(now) = self.recent()
        {
            content.revalidate(&now, false);
        }
    }
}

pub(super) fn errno(error: PagerError) -> Errno {
    match error {
        PagerError::OutOfMemory => Errno::ENOMEM,
        PagerError::BeyondEnd | PagerError::Io | PagerError::Sleeps => Errno::EIO,
    }
}

impl Pager for Node {
    fn object(&self) -> &Object {
        self.content.as_ref().map_or(&NO_OBJECT, |it| &it.object)
    }

    fn get(&self, index: u64) -> core::result::Result<Frame, PagerError> {
        let content = self.content.as_ref().ok_or(PagerError::Io)?;
        match content.object.resident(index) {
            Some(frame) => Ok(frame),
            None => Err(PagerError::Sleeps),
        }
    }

    fn read_in(&self, index: u64, window: Range<u64>) -> core::result::Result<(), PagerError> {
        let content = self.content.as_ref().ok_or(PagerError::Io)?;
        if index >= content.size().div_ceil(PAGE) {
            // It may have grown on the server.
            let now = self.refresh().map_err(|_| PagerError::Io)?;
            if index >= now.size.div_ceil(PAGE) {
                return Err(PagerError::BeyondEnd);
            }
            content.extend_to(now.size);
        }
        content.read_in(self, index, window)
    }

    fn writeback(&self, pages: Range<u64>) -> core::result::Result<(), PagerError> {
        match &self.content {
            Some(content) => content.writeback(self, pages),
            None => Ok(()),
        }
    }

    fn reference(&self, writable: bool) {
        self.users.fetch_add(1, Ordering::AcqRel);
        if let (Some(content), true) = (&self.content, writable) {
            content.was_mapped_writable.store(true, Ordering::Release);
            content.writable_mappings.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn detach(&self, writable: bool) {
        let Some(content) = &self.content else {
            return;
        };
        if writable && content.writable_mappings.fetch_sub(1, Ordering::SeqCst) == 1 {
            // A failure is kept for `fsync`.
            let _ = content.writeback(self, 0..u64::MAX);
        }
        self.leave_content(content);
    }

    fn about_to_write(&self, index: u64) -> core::result::Result<(), PagerError> {
        let Some(content) = &self.content else {
            return Ok(());
        };
        let own = content.page_to_write(index);
        own.map(drop).map_err(|_| PagerError::OutOfMemory)
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
        let put = content.writeback(self, 0..u64::MAX);
        let lost = content.lost.swap(false, Ordering::AcqRel);
        let writer = self.handles.lock().slot(true).clone();
        if let Some(fid) = writer {
            fid.sync()?;
        }
        put.map_err(errno)?;
        match lost {
            true => Err(Errno::EIO),
            false => Ok(()),
        }
    }
}
