//! Wiring: memory that stays (`uvm.txt` 3.2).
//!
//! Of all that the kernel wires, only what a program locks (`mlock`) has to be remembered in its map, so only that ever parts an
//! entry. What is mapped of a locked entry is entered as wired, and the mapping itself says so to whoever looks for
//! pages that may go ([`nucleus::pmap::Use`]): nothing is counted, and nothing stays behind when it is unmapped. Memory that
//! the kernel needs for the length of one input or output is [held](crate::PinnedPages) by handles of its frames on the stack of who
//! needs it; page tables are the pmap's own business. Neither touches an entry.

use core::sync::atomic::Ordering::Relaxed;
use nucleus::{PAGE_SHIFT, VirtAddr, VirtRange};

use super::entry::{MapEntry, Removed};
use super::request::{Lock, MapError};
use super::space::Space;
use super::{Map, page_range};

impl Map {
    /// Whether a part of `range` is in a locked entry.
    pub fn has_locked(&self, range: VirtRange) -> bool {
        let space = self.space.read();
        space.overlapping(range).any(is_locked)
    }

    /// Locks or unlocks the pages of `range` (`mlock2`, `munlock`). To bring in what is to be there at once is the caller's part:
    /// [`populate`](Map::populate). What is mapped in the range is treated even if not all of it is mapped; what the
    /// kernel maps into programs is left out.
    ///
    /// # Errors
    /// [`MapError::Again`] beyond the limit, with nothing changed; [`MapError::NotMapped`] if something in the range is not
    /// mapped; [`MapError::NoMemory`] if an entry can't be parted.
    pub fn lock(&self, range: VirtRange, lock: Lock) -> Result<(), MapError> {
        let range = page_range(range)?;
        if range.is_empty() {
            return Ok(());
        }
        let mut removed = Removed::default();
        let mut space = self.space.write();
        if lock != Lock::None {
            let locked = |entry: &&_| is_locked(entry);
            let pages = |range: VirtRange| range.len() >> PAGE_SHIFT;
            let already: usize = space
                .overlapping(range)
                .filter(locked)
                .map(|entry| pages(entry.range.intersect(range)))
                .sum();
            space.check_locked(pages(range) - already)?;
        }
        let complete = space.is_mapped(range);
        let parts = |entry: &MapEntry| entry.lock != lock && is_lockable(entry);
        // What is locked already is not parted.
        if space.lookup(range.start).is_some_and(parts) {
            space.clip(range.start)?;
        }
        if space.lookup(range.end).is_some_and(parts) {
            space.clip(range.end)?;
        }
        self.set_lock(&mut space, range, lock);
        space.join_around(range, &mut removed);
        drop(space);
        drop(removed);
        match complete {
            true => Ok(()),
            false => Err(MapError::NotMapped),
        }
    }

    /// Locks what is mapped now, unless `current` is `None`, and all that will be mapped (`mlockall`, `munlockall`).
    ///
    /// # Errors
    /// [`MapError::NoMemory`] beyond the limit; nothing has changed then.
    pub fn lock_all(&self, current: Option<Lock>, future: Lock) -> Result<(), MapError> {
        let mut removed = Removed::default();
        let mut space = self.space.write();
        if let Some(lock) = current {
            let more = space.total - space.locked;
            if lock != Lock::None && space.check_locked(more).is_err() {
                return Err(MapError::NoMemory);
            }
            let everything = VirtRange::new(VirtAddr(0), space.layout.end);
            self.set_lock(&mut space, everything, lock);
            space.join_around(everything, &mut removed);
        }
        space.lock_future = future;
        self.locks_future.store(future != Lock::None, Relaxed);
        drop(space);
        drop(removed);
        Ok(())
    }

    /// Whether all that will be mapped is to be locked.
    pub fn locks_future(&self) -> bool {
        self.locks_future.load(Relaxed)
    }

    /// Says whether the limit for locked memory does not hold for what the program does from now on.
    pub fn set_lock_privilege(&self, privileged: bool) {
        // Rarely new, and asked for often.
        if self.space.read().may_lock_all != privileged {
            self.space.write().may_lock_all = privileged;
        }
    }

    /// The first part of an entry at or above `at` whose pages are all to be in memory.
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

    /// Sets the lock of the entries that lie in `range`.
    fn set_lock(&self, space: &mut Space, range: VirtRange, lock: Lock) {
        let mut at = range.start;
        while let Some(entry) = space.at_or_above(at)
            && entry.range.start < range.end
        {
            let (part, changes) = (entry.range, entry.lock != lock && is_lockable(entry));
            at = part.end;
            if changes {
                space.replace(part.start, |entry| entry.lock = lock);
                self.pmap.wire(part, lock != Lock::None);
            }
        }
    }
}

fn is_locked(entry: &MapEntry) -> bool {
    entry.lock != Lock::None
}

/// Not what the kernel maps into every program: there is no need to lock it, and its page counts for nobody.
fn is_lockable(entry: &MapEntry) -> bool {
    !entry.label.starts_with("[v")
}
