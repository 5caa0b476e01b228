//! Wiring (`uvm.txt` 3.2).
//!
//! Only memory that a program locks (`mlock`) is recorded in a map, so only locking splits entries.
//! Mappings of a locked entry are entered as wired, which the pagedaemon sees in the mapping itself
//! ([`nucleus::pmap::Use`]): there is no wire count, and unmapping leaves nothing behind. Pages
//! that the kernel needs during one transfer are [pinned](crate::PinnedPages) by references to
//! their frames; page tables are the pmap's business. Neither touches an entry.

use core::sync::atomic::Ordering::Relaxed;
use nucleus::{PAGE_SHIFT, VirtAddr, VirtRange};

use super::entry::MapEntry;
use super::request::{Lock, MapError};
use super::space::Space;
use super::{Map, page_range};

impl Map {
    /// Returns whether part of `range` is in a locked entry.
    pub fn has_locked(&self, range: VirtRange) -> bool {
        let space = self.space.read();
        space.overlapping(range).any(MapEntry::is_locked)
    }

    /// Locks or unlocks the pages of `range` (`mlock2`, `munlock`), even if part of it is not
    /// mapped. Skips what the kernel maps into programs. The caller brings the pages in with
    /// [`populate`](Map::populate).
    ///
    /// # Errors
    /// [`MapError::Again`] beyond the limit, with nothing changed; [`MapError::NotMapped`] if part
    /// of the range is not mapped; [`MapError::NoMemory`] if an entry cannot be split.
    pub fn lock(&self, range: VirtRange, lock: Lock) -> Result<(), MapError> {
        let range = page_range(range)?;
        if range.is_empty() {
            return Ok(());
        }
        let mut space = self.change();
        if lock != Lock::None {
            let pages = |range: VirtRange| range.len() >> PAGE_SHIFT;
            let already: usize = space
                .overlapping(range)
                .filter(|entry| entry.is_locked())
                .map(|entry| pages(entry.range.intersect(range)))
                .sum();
            space.check_locked(pages(range) - already)?;
        }
        let complete = space.check_mapped(range);
        let parts = |entry: &MapEntry| entry.lock != lock && !entry.is_kernels();
        // Entries that have this lock already are not split.
        if space.lookup(range.start).is_some_and(parts) {
            space.clip(range.start)?;
        }
        if space.lookup(range.end).is_some_and(parts) {
            space.clip(range.end)?;
        }
        self.set_lock(&mut space, range, lock, |_| true);
        space.join_around(range);
        complete
    }

    /// Locks all mappings, unless `current` is `None`, and all future ones (`mlockall`,
    /// `munlockall`). Mappings that [stay](crate::MapRequest::stays) are only unlocked.
    ///
    /// # Errors
    /// [`MapError::NoMemory`] beyond the limit; nothing has changed then.
    pub fn lock_all(&self, current: Option<Lock>, future: Lock) -> Result<(), MapError> {
        let mut space = self.change();
        if let Some(lock) = current {
            let stays = |entry: &&MapEntry| entry.stays && !entry.is_locked();
            let staying: usize = space.iter().filter(stays).map(MapEntry::pages).sum();
            let more = space.sums.total - space.sums.locked - staying;
            if lock != Lock::None && space.check_locked(more).is_err() {
                return Err(MapError::NoMemory);
            }
            let everything = VirtRange::new(VirtAddr(0), space.layout.end);
            self.set_lock(&mut space, everything, lock, |entry| {
                lock == Lock::None || !entry.stays
            });
            space.join_around(everything);
        }
        space.lock_future = future;
        self.locks_future.store(future != Lock::None, Relaxed);
        Ok(())
    }

    /// Returns whether future mappings are locked.
    pub fn locks_future(&self) -> bool {
        self.locks_future.load(Relaxed)
    }

    /// Sets whether the program is exempt from the limit for locked memory from now on.
    pub fn set_lock_privilege(&self, privileged: bool) {
        // Read often, changed rarely.
        if self.space.read().may_lock_all != privileged {
            self.space.write().may_lock_all = privileged;
        }
    }

    /// Returns the first part at or above `at` of an entry whose pages must be resident.
    pub fn next_locked(&self, at: VirtAddr) -> Option<VirtRange> {
        let space = self.space.read();
        let mut from = at;
        while let Some(entry) = space.at_or_above(from) {
            if entry.lock == Lock::Full {
                return Some(VirtRange::new(entry.range.start.max(at), entry.range.end));
            }
            from = entry.range.end;
        }
        None
    }

    /// Sets the lock of those entries that lie in `range` and for which `fits` holds.
    fn set_lock(
        &self,
        space: &mut Space,
        range: VirtRange,
        lock: Lock,
        fits: impl Fn(&MapEntry) -> bool,
    ) {
        let mut at = range.start;
        while let Some(entry) = space.at_or_above(at)
            && entry.range.start < range.end
        {
            let part = entry.range;
            let changes = entry.lock != lock && !entry.is_kernels() && fits(entry);
            at = part.end;
            if changes {
                space.replace(part.start, |entry| entry.lock = lock);
                self.pmap.wire(part, lock != Lock::None);
            }
        }
    }
}
