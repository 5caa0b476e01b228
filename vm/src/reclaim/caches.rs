//! Who else has pages that can be had again: the caches of file systems.

use alloc::vec::Vec;
use nucleus::sync::{Rank, SpinLock};

use super::scan::Scan;

/// Pages of files that a file system keeps because they may be wanted again. It knows its files and their order; the pagedaemon
/// knows how many pages are needed.
pub trait Cache: Sync {
    /// Resident pages, as far as it is known without much ado.
    fn pages(&self) -> usize;

    /// Goes round its files with [`Object::age`](crate::Object::age), going on where it stopped the last time, until `scan`
    /// [is done](Scan::is_done) or it has been round once. Pages of files that nobody has open go first. Writing dirty pages
    /// back is begun here but not waited for: they are clean when they come up again.
    ///
    /// The pagedaemon's task calls this, with no lock held. It must not wait for memory, nor for I/O, nor for anything that
    /// may wait for one of those.
    fn reclaim(&self, scan: &mut Scan);

    /// Pages whose write-back has begun and not ended: while there are some, memory is not exhausted.
    fn in_flight(&self) -> usize {
        0
    }
}

static CACHES: SpinLock<Vec<&'static dyn Cache>> = SpinLock::new(Rank::Leaf, Vec::new());

/// The pagedaemon will ask this cache as well. Once is enough.
pub fn register_cache(cache: &'static dyn Cache) {
    let mut caches = CACHES.lock();
    if !caches.iter().any(|other| core::ptr::addr_eq(*other, cache)) {
        caches.push(cache);
    }
}

/// Asks none of them any more: what they refer to was a machine that has ended (tests).
pub(super) fn forget_all() {
    let caches = core::mem::take(&mut *CACHES.lock());
    drop(caches);
}

/// Pages of all caches.
pub(super) fn pages() -> usize {
    each().map(|cache| cache.pages()).sum()
}

/// Pages of all caches that are being written back.
pub(super) fn in_flight() -> usize {
    each().map(|cache| cache.in_flight()).sum()
}

/// Asks one after the other until `scan` is done.
pub(super) fn reclaim(scan: &mut Scan) {
    for cache in each() {
        if scan.is_done() {
            return;
        }
        cache.reclaim(scan);
    }
}

/// All caches; the list is not locked while one is used.
fn each() -> impl Iterator<Item = &'static dyn Cache> {
    (0..).map_while(|i| CACHES.lock().get(i).copied())
}
