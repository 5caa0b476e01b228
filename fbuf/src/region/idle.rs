//! Idle pages, of fbufs on free lists: the originator does not need their contents, and the
//! pagedaemon drops these instead of writing them to swap (`fbufs.txt` 3.3). Their mappings stay. A
//! store into such a page, or a message that includes it, ends that.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;

use abi::{Errno, Result};
use nucleus::VirtRange;
use vm::{Cache, Scan};

use super::{domain::Domain, path::Path, run::IDLE_PAGES, table};

/// The idle pages as a cache that the pagedaemon shrinks.
struct IdlePages;

static IDLE: IdlePages = IdlePages;

impl Cache for IdlePages {
    fn pages(&self) -> usize {
        IDLE_PAGES.load(Relaxed)
    }

    fn reclaim(&self, scan: &mut Scan) {
        reclaim_idle(scan);
    }
}

/// Drops contents of idle pages until the scan has found what it wants.
pub fn reclaim_idle(scan: &mut Scan) {
    if IDLE_PAGES.load(Relaxed) == 0 {
        return;
    }
    // If a run comes or goes now, the next scan drops them.
    if let Some(table) = table::try_lock() {
        for run in table.runs() {
            let dropped = run.drop_idle(scan.wanted());
            scan.count(dropped, dropped);
        }
    }
}

impl Path {
    /// Marks the whole pages in `bytes`, which lie in one run, as idle until the originator writes
    /// or sends them again.
    ///
    /// # Errors
    /// `EPERM` for another domain, `EFAULT` for memory that is not the path's, `EBUSY` while
    /// messages include some of it or a device may be writing it.
    pub fn set_idle(&self, domain: &Arc<Domain>, bytes: VirtRange) -> Result<()> {
        let mut state = self.state.lock();
        state.check_originator(domain)?;
        let start = bytes.start.page_ceil().ok_or(Errno::EFAULT)?;
        let bytes = start.0..bytes.end.page_floor().0;
        if bytes.is_empty() {
            return Ok(());
        }
        let run = state.run_at(bytes.start as u64).ok_or(Errno::EFAULT)?;
        let first = run.page_at(bytes.start as u64).ok_or(Errno::EFAULT)?;
        let last = run.page_at(bytes.end as u64 - 1).ok_or(Errno::EFAULT)?;
        let shares = state.shares(&run).ok_or(Errno::EFAULT)?;
        vm::register_cache(&IDLE);
        shares.set_idle(first..last + 1)
    }
}
