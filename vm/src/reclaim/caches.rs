//! The caches of file systems, from which the pagedaemon reclaims pages.

use alloc::vec::Vec;
use nucleus::sync::{Rank, SpinLock};

use super::scan::Scan;

/// A page cache. It knows its files and their order; the pagedaemon knows how many pages are
/// needed.
pub trait Cache: Sync {
    /// A cheap estimate of the resident pages.
    fn pages(&self) -> usize;

    /// Goes round its files with [`Object::age`](crate::Object::age), continuing where it last
    /// stopped, until `scan` [is done](Scan::is_done) or it has gone round once. Pages of files
    /// that are not open go first. Starts writeback of dirty pages without waiting for it: they are
    /// clean when they come up again.
    ///
    /// Called by the pagedaemon's task without a lock. Must not wait for memory or I/O, or for
    /// anything that may wait for these.
    fn reclaim(&self, scan: &mut Scan);

    /// Pages under writeback: while there are some, memory is not exhausted.
    fn in_flight(&self) -> usize {
        0
    }
}

static CACHES: SpinLock<Vec<&'static dyn Cache>> = SpinLock::new(Rank::Leaf, Vec::new());

/// Registers a cache with the pagedaemon; repeated calls have no effect.
pub fn register_cache(cache: &'static dyn Cache) {
    let mut caches = CACHES.lock();
    if !caches.iter().any(|other| core::ptr::addr_eq(*other, cache)) {
        caches.push(cache);
    }
}

/// Forgets all caches: they belong to a machine that has ended (tests).
pub(super) fn forget_all() {
    let caches = core::mem::take(&mut *CACHES.lock());
    drop(caches);
}

/// Pages of all caches.
pub(super) fn pages() -> usize {
    each().map(|cache| cache.pages()).sum()
}

/// Pages of all caches under writeback.
pub(super) fn in_flight() -> usize {
    each().map(|cache| cache.in_flight()).sum()
}

/// Reclaims from one cache after the other until `scan` is done.
pub(super) fn reclaim(scan: &mut Scan) {
    for cache in each() {
        if scan.is_done() {
            return;
        }
        cache.reclaim(scan);
    }
}

/// All caches; the list is not locked while one is in use.
fn each() -> impl Iterator<Item = &'static dyn Cache> {
    (0..).map_while(|i| CACHES.lock().get(i).copied())
}
