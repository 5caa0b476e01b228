//! The cached pages of servers' files, of all mounts together, and their eviction.

use alloc::{
    collections::VecDeque,
    sync::{Arc, Weak},
};
use core::sync::atomic::{AtomicIsize, Ordering};

use nucleus::{
    frame,
    sync::{Rank, SpinLock},
};

use super::content::Content;

/// The part of the machine's memory that may hold pages which can be read again.
const SHARE: usize = 4;
/// Pages that are evicted at a time.
const BATCH: usize = 256;
/// Files whose pages stay when no vnode is left.
const KEPT_MAX: usize = 128;

/// Identifies a file among all mounts: the mount's device number, and the server's number for the
/// file.
pub(super) type Key = (u64, u64);

struct Cache {
    /// Pages are counted after they are visible, and may be gone by then: the sum may be negative
    /// for a moment.
    pages: AtomicIsize,
    /// Files that have pages; the one whose turn it is to give some up is in front.
    files: SpinLock<VecDeque<Weak<Content>>>,
    /// Files without a vnode, the one that lost it last at the end.
    kept: SpinLock<VecDeque<(Key, Arc<Content>)>>,
}

static CACHE: Cache = Cache {
    pages: AtomicIsize::new(0),
    files: SpinLock::new(Rank::Leaf, VecDeque::new()),
    kept: SpinLock::new(Rank::Leaf, VecDeque::new()),
};

/// More pages of a file are resident; others go if that is too many.
pub(super) fn added(content: &Arc<Content>, pages: usize) {
    CACHE.pages.fetch_add(pages as isize, Ordering::Relaxed);
    let now = cached_pages();
    if content.list_once() {
        let mut files = CACHE.files.lock();
        match files.try_reserve(1) {
            Ok(()) => files.push_back(Arc::downgrade(content)),
            Err(_) => content.unlist(),
        }
    }
    let limit = frame::usage().total / SHARE;
    if now > limit {
        give_back(now - limit + BATCH);
    }
}

impl vm::Cache for Cache {
    fn pages(&self) -> usize {
        cached_pages()
    }

    fn reclaim(&self, scan: &mut vm::Scan) {
        let given = give_back(scan.wanted());
        scan.count(given, given);
    }
}

/// Lets the pagedaemon have pages of servers' files.
pub(super) fn register() {
    vm::register_cache(&CACHE);
}

/// Pages of a file are resident no more.
pub(super) fn removed(pages: usize) {
    CACHE.pages.fetch_sub(pages as isize, Ordering::Relaxed);
}

/// Pages of servers' files in memory.
pub fn cached_pages() -> usize {
    CACHE.pages.load(Ordering::Relaxed).max(0) as usize
}

/// Evicts up to `pages` pages that can be read from their servers again; returns how many. No lock
/// is held.
pub fn give_back(pages: usize) -> usize {
    let mut given = 0;
    let rounds = CACHE.files.lock().len();
    for _ in 0..rounds {
        if given >= pages {
            break;
        }
        let Some(first) = CACHE.files.lock().pop_front() else {
            break;
        };
        let Some(content) = first.upgrade() else {
            continue;
        };
        given += content.give_back(pages - given);
        let mut files = CACHE.files.lock();
        match files.try_reserve(1) {
            Ok(()) => files.push_back(first),
            Err(_) => content.unlist(),
        }
    }
    // Files without a vnode are dropped as a whole.
    while given < pages {
        let Some((_, content)) = CACHE.kept.lock().pop_front() else {
            break;
        };
        given += content.object.resident_count();
    }
    given
}

/// The last vnode of a file is gone: its pages stay a while.
pub(super) fn keep(key: Key, content: Arc<Content>) {
    let mut kept = CACHE.kept.lock();
    let full = kept.len() >= KEPT_MAX;
    let oldest = if full { kept.pop_front() } else { None };
    let refused = match kept.try_reserve(1) {
        Ok(()) => {
            kept.push_back((key, content));
            None
        }
        Err(_) => Some(content),
    };
    drop(kept);
    // Both free pages: with no lock held.
    drop((oldest, refused));
}

/// Takes the kept pages of a file.
pub(super) fn take(key: Key) -> Option<Arc<Content>> {
    let mut kept = CACHE.kept.lock();
    let at = kept.iter().position(|(other, _)| *other == key)?;
    kept.remove(at).map(|(_, content)| content)
}

/// Drops the kept pages of a mount that has ended.
pub(super) fn forget(device: u64) {
    loop {
        let mut kept = CACHE.kept.lock();
        let Some(at) = kept.iter().position(|((of, _), _)| *of == device) else {
            return;
        };
        let gone = kept.remove(at);
        drop(kept);
        drop(gone);
    }
}
