//! All files that have pages in memory, and giving pages up.

use alloc::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};
use core::{
    ops::Bound,
    sync::atomic::{AtomicU64, Ordering},
};

use nucleus::sync::{Rank, SpinLock};
use vm::Scan;

use super::{cached::Cached, dirty, inode_cache};

static FILES: SpinLock<BTreeMap<u64, Weak<dyn Cached>>> =
    SpinLock::new(Rank::Leaf, BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// The file that gave pages up last.
static TURN: AtomicU64 = AtomicU64::new(0);

/// Pages that are evicted to get frames where there are none.
pub(super) const SHORTAGE: usize = 256;

pub(super) fn new_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// The file has pages in memory.
pub(super) fn enlist(id: u64, file: Arc<dyn Cached>) {
    let weak = Arc::downgrade(&file);
    let before = FILES.lock().insert(id, weak);
    drop((before, file));
}

/// The file is gone.
pub(super) fn delist(id: u64) {
    let gone = FILES.lock().remove(&id);
    drop(gone);
}

/// The next file after number `id`.
fn after(id: u64) -> Option<(u64, Weak<dyn Cached>)> {
    let files = FILES.lock();
    let mut rest = files.range((Bound::Excluded(id), Bound::Unbounded));
    rest.next().map(|(id, file)| (*id, file.clone()))
}

/// Counts the pages in memory: of files, and of devices ([`Cached::is_device`]).
pub fn count() -> (usize, usize) {
    let (mut files, mut devices) = (0, 0);
    let mut id = 0;
    while let Some((next, file)) = after(id) {
        if let Some(file) = file.upgrade() {
            let sum = match file.is_device() {
                true => &mut devices,
                false => &mut files,
            };
            *sum += file.counts().resident;
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

/// Evicts up to `pages` clean, unused pages of files; returns how many. The caller may hold any
/// lock that comes before [`Rank::Object`].
pub fn reclaim_clean(pages: usize) -> usize {
    let mut given = 0;
    // Each file once.
    let first = TURN.load(Ordering::Relaxed);
    let mut id = first;
    let mut wrapped = false;
    while given < pages {
        let Some((next, file)) = after(id) else {
            if wrapped {
                break;
            }
            wrapped = true;
            id = 0;
            continue;
        };
        if wrapped && next > first {
            break;
        }
        id = next;
        TURN.store(id, Ordering::Relaxed);
        if let Some(file) = file.upgrade() {
            given += file.give_back(pages - given);
        }
    }
    if given < pages {
        dirty::wake();
    }
    given
}

/// Scans the pages of all files, from the file where the last scan stopped, once round at most, and
/// evicts those that are clean and were not used (second chance). For the pagedaemon.
pub(super) fn age(scan: &mut Scan) {
    let first = TURN.load(Ordering::Relaxed);
    let (mut id, mut wrapped) = (first.saturating_sub(1), false);
    while !scan.is_done() {
        let Some((next, file)) = after(id) else {
            if wrapped {
                break;
            }
            (wrapped, id) = (true, 0);
            continue;
        };
        if wrapped && next > first {
            break;
        }
        id = next;
        TURN.store(id, Ordering::Relaxed);
        // One more than the pages: a file without any is looked at, too.
        scan.count(1, 0);
        if let Some(file) = file.upgrade() {
            file.age(scan);
        }
    }
}

/// For a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    drop(core::mem::take(&mut *FILES.lock()));
}
