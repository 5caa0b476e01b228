//! All files that have pages in memory which can be read again, and the eviction of these.

use alloc::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};
use core::{
    ops::{Bound, Range},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use nucleus::{
    Frame,
    sync::{Rank, SpinLock},
};
use vm::{Fate, Scan};

use super::{backing_store::BackingStore, cache::PageCache, dirty, inode_cache};

static FILES: SpinLock<BTreeMap<u64, Weak<dyn Evictable>>> =
    SpinLock::new(Rank::Leaf, BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// The file that gave pages up last.
static TURN: AtomicU64 = AtomicU64::new(0);

/// Pages that are evicted to get frames where there are none.
pub(crate) const SHORTAGE: usize = 256;

/// A file whose pages can be evicted.
pub trait Evictable: Send + Sync {
    /// As [`Properties::is_device`](super::Properties::is_device).
    fn is_device(&self) -> bool;

    /// Pages in memory.
    fn resident(&self) -> usize;

    /// Evicts up to `most` pages, from where it stopped the last time; returns how many.
    fn give_back(&self, most: usize) -> usize;

    /// Scans its pages as `scan` wants, from where it stopped the last time to the end, and evicts
    /// those that are clean and were not used, even if they are mapped.
    fn age(&self, scan: &mut Scan);
}

/// A backing store from which pages can be read again.
#[allow(unused_variables, reason = "default bodies do nothing")]
pub trait Rereadable: BackingStore {
    /// The file's place in the list of all.
    fn listing(&self) -> &Listing<Self>;

    /// Whether page `index` is being written: a write that fails makes it dirty again.
    fn is_written(&self, index: u64) -> bool {
        false
    }

    /// Whether page `index` may be dirty although its frame is not.
    fn is_dirty(&self, index: u64) -> bool {
        false
    }
}

/// A file's place in the list of all files with pages.
pub struct Listing<S: BackingStore> {
    me: Weak<PageCache<S>>,
    /// Tells files apart in the lists of all.
    pub(super) id: u64,
    listed: AtomicBool,
    /// Where the next pages are evicted.
    give_from: AtomicU64,
}

impl<S: Rereadable> Listing<S> {
    /// Of a file that has no pages yet.
    pub(crate) fn new(me: &Weak<PageCache<S>>) -> Listing<S> {
        Listing {
            me: me.clone(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            listed: AtomicBool::new(false),
            give_from: AtomicU64::new(0),
        }
    }

    /// The cache as others hold it; `None` while it is being dropped.
    pub(crate) fn me(&self) -> Option<Arc<PageCache<S>>> {
        self.me.upgrade()
    }

    /// Pages are in memory that were not.
    #[inline]
    pub(crate) fn note_resident(&self) {
        if !self.listed.load(Ordering::Relaxed)
            && !self.listed.swap(true, Ordering::Relaxed)
            && let Some(me) = self.me()
        {
            let weak: Weak<dyn Evictable> = Arc::downgrade(&me) as Weak<dyn Evictable>;
            let before = FILES.lock().insert(self.id, weak);
            drop((before, me));
        }
    }
}

impl<S: BackingStore> Drop for Listing<S> {
    fn drop(&mut self) {
        if *self.listed.get_mut() {
            let gone = FILES.lock().remove(&self.id);
            drop(gone);
        }
    }
}

impl<S: Rereadable> PageCache<S> {
    /// As [`Object::evict`](vm::Object::evict), but skips pages that are being written, or are
    /// [dirty](PageCache::is_unwritten) though their frames are not modified.
    pub(super) fn evict(&self, pages: Range<u64>, most: usize) -> (usize, Option<u64>) {
        self.object
            .evict_but(pages, most, &|index| self.is_unwritten(index))
    }

    /// Whether page `index` is to be written, or is being written. The frame's modified bit does
    /// not tell: a frame that several files have is written for each of them, and the first write
    /// clears the bit.
    pub(super) fn is_unwritten(&self, index: u64) -> bool {
        // In this order: a page whose write failed is dirty before it is no longer written.
        self.store.is_written(index) || self.store.is_dirty(index)
    }
}

impl<S: Rereadable> Evictable for PageCache<S> {
    fn is_device(&self) -> bool {
        self.store.properties().is_device
    }

    fn resident(&self) -> usize {
        self.object.resident_count()
    }

    fn give_back(&self, most: usize) -> usize {
        let give_from = &self.store.listing().give_from;
        let from = give_from.load(Ordering::Relaxed);
        let (mut given, stopped) = self.evict(from..u64::MAX, most);
        give_from.store(stopped.unwrap_or(0), Ordering::Relaxed);
        if stopped.is_none() && from > 0 {
            given += self.evict(0..from, most - given).0;
        }
        given
    }

    fn age(&self, scan: &mut Scan) {
        let give_from = &self.store.listing().give_from;
        let from = give_from.load(Ordering::Relaxed);
        let mut fate =
            |index: u64, _: &Frame, modified: bool| match modified || self.is_unwritten(index) {
                true => Fate::Keep,
                false => Fate::Drop,
            };
        let stopped = self.object.age(from, scan, &mut fate);
        give_from.store(stopped.unwrap_or(0), Ordering::Relaxed);
    }
}

/// The next file after number `id`.
fn after(id: u64) -> Option<(u64, Weak<dyn Evictable>)> {
    let files = FILES.lock();
    let mut rest = files.range((Bound::Excluded(id), Bound::Unbounded));
    rest.next().map(|(id, file)| (*id, file.clone()))
}

/// Counts the pages in memory: of files, and of devices ([`Evictable::is_device`]).
pub fn count() -> (usize, usize) {
    let (mut files, mut devices) = (0, 0);
    let mut id = 0;
    while let Some((next, file)) = after(id) {
        if let Some(file) = file.upgrade() {
            let sum = match file.is_device() {
                true => &mut devices,
                false => &mut files,
            };
            *sum += file.resident();
        }
        id = next;
    }
    dirty::set_resident(files + devices);
    (files, devices)
}

/// Evicts up to `pages` pages: first of files that are not in use, the one unused longest first,
/// and those files themselves when they have no pages left; then clean, unmapped pages of others.
/// Returns how many. Starts writeback where that was not enough. For the pagedaemon: no lock is
/// held; may sleep.
pub fn reclaim(pages: usize) -> usize {
    let mut given = inode_cache::reclaim(pages);
    if given < pages {
        given += reclaim_clean(pages - given);
    }
    given
}

/// The files after number `from`, once round.
fn in_turn(from: u64) -> impl Iterator<Item = Arc<dyn Evictable>> {
    let last = TURN.load(Ordering::Relaxed);
    let (mut id, mut wrapped) = (from, false);
    core::iter::from_fn(move || {
        loop {
            match after(id) {
                Some((next, _)) if wrapped && next > last => return None,
                Some((next, file)) => {
                    id = next;
                    TURN.store(id, Ordering::Relaxed);
                    if let Some(file) = file.upgrade() {
                        return Some(file);
                    }
                }
                None if wrapped => return None,
                None => (wrapped, id) = (true, 0),
            }
        }
    })
}

/// Evicts up to `pages` clean, unused pages of files; returns how many. The caller may hold any
/// lock that comes before [`OBJECT`](vm::rank::OBJECT).
pub fn reclaim_clean(pages: usize) -> usize {
    let mut given = 0;
    for file in in_turn(TURN.load(Ordering::Relaxed)) {
        given += file.give_back(pages - given);
        if given >= pages {
            return given;
        }
    }
    dirty::wake();
    given
}

/// Scans the pages of all files, from the file where the last scan stopped, once round at most, and
/// evicts those that are clean and were not used (second chance). For the pagedaemon.
pub(super) fn age(scan: &mut Scan) {
    for file in in_turn(TURN.load(Ordering::Relaxed).saturating_sub(1)) {
        if scan.is_done() {
            return;
        }
        // One more than the pages: a file without any is looked at, too.
        scan.count(1, 0);
        file.age(scan);
    }
}

/// For a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    drop(core::mem::take(&mut *FILES.lock()));
}
