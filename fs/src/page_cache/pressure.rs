//! The pagedaemon's way to the pages of files.

use core::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use nucleus::time;
use vm::{Scan, Urgency};

use super::{dirty, inode_cache, reclaim};

/// All files that have pages in memory, to the pagedaemon.
struct Files {
    /// Pages at the last count, and when that was, in nanoseconds since boot.
    pages: AtomicUsize,
    counted: AtomicU64,
}

static ALL: Files = Files {
    pages: AtomicUsize::new(0),
    counted: AtomicU64::new(0),
};

/// How long a count of all pages is good enough.
const COUNTED: Duration = Duration::from_millis(100);

impl vm::Cache for Files {
    fn pages(&self) -> usize {
        let now = time::since_boot().as_nanos() as u64;
        let then = self.counted.load(Ordering::Relaxed);
        if then == 0 || now.saturating_sub(then) > COUNTED.as_nanos() as u64 {
            self.counted.store(now, Ordering::Relaxed);
            let (files, devices) = reclaim::count();
            self.pages.store(files + devices, Ordering::Relaxed);
        }
        self.pages.load(Ordering::Relaxed)
    }

    fn reclaim(&self, scan: &mut Scan) {
        reclaim::age(scan);
        if !scan.is_done() && scan.urgency() > Urgency::Calm {
            // Pages of unused files go with their inodes.
            let given = inode_cache::reclaim(scan.wanted());
            scan.count(given, given);
        }
        let (dirty, _) = dirty::counts();
        if !scan.is_done() && dirty > 0 {
            dirty::write_soon(scan.wanted());
        }
    }

    fn in_flight(&self) -> usize {
        let (dirty, writing) = dirty::counts();
        writing + dirty::wanted().min(dirty)
    }
}

/// Lets the pagedaemon have pages of files.
pub(super) fn register() {
    vm::register_cache(&ALL);
}

/// For a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    ALL.counted.store(0, Ordering::Relaxed);
}
