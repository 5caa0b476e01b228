//! Fork: a copy of an address space in which nothing is copied yet (`uvm.txt` 5.2).
//!
//! Parent and child refer to the same amaps, needs-copy set on both sides, and to the same page tables, where
//! nothing may be written any more ([`Pmap::fork`]); both with one flush. Page tables with mappings that only one of them shall
//! have, or that parent and child may both write, are not shared: there the child's stay empty, and what is private in the
//! parent's loses the right to be written. The parent's map stays write-locked until the flush is done. Otherwise
//! one of its threads could copy a page in a fault while another still writes the old one through its TLB, and that
//! write would be lost.
//!
//! Who writes first gets page tables of its own, one at a time, with faults as they come. When the others are gone, so that the tables and
//! the pages are its own again, the first write in what a table maps brings the right back for all of it.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering, Ordering::SeqCst};
use nucleus::{
    OutOfMemory, PAGE_SHIFT, Pmap, Prot, VirtAddr, VirtRange, frame,
    pmap::{Fork, Pending, Writes, fork_mode},
    sync::CpuWriteGuard,
    task::Sleep,
};

use super::Map;
use super::entry::{MapEntry, Removed};
use super::request::{Inherit, Lock, MapError};
use super::space::Space;

/// A page table with fewer pages is not shared: to take away the right to write from each costs little more than the table.
static SHARED_FROM: AtomicUsize = AtomicUsize::new(128);
/// What a page table of level 1 maps.
const TABLE_SPAN: usize = 512 << PAGE_SHIFT;

/// Sets how many mappings a page table has to have for a fork to share it: 128 by itself, and then only if it lies within one entry.
/// With 0 every table is shared for which that is possible, which is good for tests of it.
pub fn set_shared_tables(from: usize) {
    SHARED_FROM.store(from, Ordering::Relaxed);
}

impl Map {
    /// A copy for a child: entries by their inheritance, private ones copy-on-write (`uvm.txt`
    /// 5.2).
    ///
    /// # Errors
    /// [`MapError::NoMemory`]; this address space is as before.
    pub fn fork(&self) -> Result<Arc<Map>, MapError> {
        let mut removed = Removed::default();
        let mut parents = self.lock_to_fork();
        let mut pending = Pending::new();
        let result = self.copy_space(&mut parents, &mut pending, &mut removed);
        pending.flush();
        drop(parents);
        drop(removed);
        let (pmap, copies) = result?;
        Map::with_pmap(pmap, copies)
    }

    /// Locks the map for a fork: nobody holds pages to write them.
    fn lock_to_fork(&self) -> CpuWriteGuard<'_, Space> {
        loop {
            let space = self.space.write();
            if self.held.load(SeqCst) == 0 {
                return space;
            }
            drop(space);
            let unheld = || (self.held.load(SeqCst) == 0).then_some(());
            // Inputs come to their end.
            let _ = self.unheld.wait(Sleep::SOUND, unheld);
        }
    }

    /// The pmap and the entries of a child. What is in `removed` after a failure was never mapped.
    fn copy_space(
        &self,
        parents: &mut Space,
        pending: &mut Pending,
        removed: &mut Removed,
    ) -> Result<(Arc<Pmap>, Space), MapError> {
        let mut any_refused = true;
        let pmap = match fork_mode() == Fork::Share && may_share_any(parents) {
            // Most programs are so small: not even a look at their page tables.
            false => Pmap::new()?,
            true => {
                any_refused = false;
                // Up to here reaches the entry that was looked at last and whose tables are shared.
                let mut inside = VirtAddr(0);
                let may_share = |span, pages| {
                    let shall = shall_share_table(parents, span, pages, &mut inside);
                    any_refused |= !shall;
                    shall
                };
                self.pmap.fork(may_share, pending)?
            }
        };
        let mut copies = parents.sibling();
        for entry in parents.iter_mut() {
            if frame::is_scarce() {
                copies
                    .take_all()
                    .into_all()
                    .for_each(|copy| removed.put(Some(copy)));
                return Err(MapError::NoMemory);
            }
            let may_be_mapped_writable = entry.amap.is_some()
                && !entry.shared
                && !entry.needs_copy
                && entry.prot.contains(Prot::WRITE);
            let copy = match entry.inherit(pending) {
                Ok(copy) => copy,
                Err(OutOfMemory) => {
                    copies
                        .take_all()
                        .into_all()
                        .for_each(|copy| removed.put(Some(copy)));
                    return Err(MapError::NoMemory);
                }
            };
            if let Some(copy) = copy {
                if any_refused && may_be_mapped_writable && entry.needs_copy {
                    // The right to write only: shared page tables give none as it is.
                    self.pmap
                        .protect(entry.range, Prot::READ | Prot::EXEC, pending);
                }
                copies.append(copy);
            }
        }
        Ok((pmap, copies))
    }

    /// Gives this space a page table of its own for `va`, if a fork made it common: the old one with all rights that it
    /// had, where all others have left it and the pages that are mapped with it; else one where nothing private may be written.
    /// Not for what is mapped shared alone.
    pub(crate) fn own_table(&self, va: VirtAddr) -> Result<(), OutOfMemory> {
        let mut space = self.space.write();
        if !self.take_table_back(&mut space, va) {
            self.pmap.own(va)?;
        }
        Ok(())
    }

    /// As [`own_table`](Map::own_table), as far as nothing has to be copied for it; returns whether the table is its own. The map is
    /// write-locked.
    pub(crate) fn take_table_back(&self, space: &mut Space, va: VirtAddr) -> bool {
        if !self.pmap.is_shared(va) {
            return true;
        }
        let base = VirtAddr(va.0 & !(TABLE_SPAN - 1));
        let span = VirtRange::new(base, base + TABLE_SPAN);
        // Not before all others have left the table: it is done again for the next who writes.
        let writes = match self.pmap.is_last_sharer(va)
            && space
                .overlapping_mut(span)
                .all(|entry| entry.is_sole_in(span))
        {
            true => Writes::Kept,
            false => Writes::TakenAway,
        };
        self.pmap.reclaim(va, writes)
    }
}

/// Whether parent and child could share any page table by [`shall_share_table`].
fn may_share_any(space: &Space) -> bool {
    SHARED_FROM.load(Ordering::Relaxed) == 0
        || space.iter().any(|entry| {
            let start = entry.range.start.0.next_multiple_of(TABLE_SPAN);
            start + TABLE_SPAN <= entry.range.end.0 && entry.may_share_tables()
        })
}

/// Whether parent and child shall share a page table for `span` that has so many mappings. They may if the child is to have them
/// all, and nobody may write through them before it has faulted.
///
/// It pays for what lies in the middle of large memory. At its ends, as in small programs, one table maps what is written next
/// and what is not: both would need a table of their own at once. Sets `inside` to where the entry ends.
fn shall_share_table(space: &Space, span: VirtRange, pages: usize, inside: &mut VirtAddr) -> bool {
    let from = SHARED_FROM.load(Ordering::Relaxed);
    if from == 0 {
        return space.overlapping(span).all(MapEntry::may_share_tables);
    }
    if pages < from {
        return false;
    }
    if span.end <= *inside {
        return true;
    }
    if let Some(entry) = space.lookup(span.start)
        && entry.may_share_tables()
    {
        *inside = entry.range.end;
    }
    span.end <= *inside
}

impl MapEntry {
    /// Whether parent and child may both have its mappings in one table.
    fn may_share_tables(&self) -> bool {
        // A child's pages are not wired.
        self.lock == Lock::None
            && match self.inherit {
                Inherit::Copy => !self.shared && !self.shares_amap(),
                Inherit::Share => self.shared && !self.prot.contains(Prot::WRITE),
                Inherit::None | Inherit::Zero => false,
            }
    }

    /// Whether all that is mapped in `span`, as far as it is this entry's and may be written by its page-table entries, belongs
    /// to this space alone; then it may be written. Clears needs-copy where nobody else refers to the amap any more.
    fn is_sole_in(&mut self, span: VirtRange) -> bool {
        if self.shared {
            return true;
        }
        let Some(amap) = &mut self.amap else {
            return true;
        };
        if !self.prot.contains(Prot::WRITE) || Arc::get_mut(amap).is_none() {
            return false;
        }
        self.needs_copy = false;
        let mut is_sole = true;
        if let Some(amap) = &self.amap {
            let keys = self.keys(span.intersect(self.range));
            amap.for_each(keys, &mut |_, slot, owners| {
                is_sole &= owners == 1 && slot.is_sole();
            });
        }
        is_sole
    }
}
