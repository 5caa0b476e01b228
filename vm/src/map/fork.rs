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
    OutOfMemory, PAGE_SHIFT, Pmap, Prot, VirtAddr, VirtRange,
    addr::USER_END,
    frame,
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
            if self.write_pins.load(SeqCst) == 0 {
                return space;
            }
            drop(space);
            let unpinned = || (self.write_pins.load(SeqCst) == 0).then_some(());
            // Inputs come to their end.
            let _ = self.unpinned.wait(Sleep::SOUND, unpinned);
        }
    }

    /// The pmap and the entries of a child. What is in `removed` after a failure was never mapped.
    fn copy_space(
        &self,
        parents: &mut Space,
        pending: &mut Pending,
        removed: &mut Removed,
    ) -> Result<(Arc<Pmap>, Space), MapError> {
        // Most programs are so small that their page tables need not be looked at.
        let (pmap, complete) = match fork_mode() == Fork::Share && may_share_any(parents) {
            true => self.share_tables(parents, pending)?,
            false => (Pmap::new()?, false),
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
                if !complete && may_be_mapped_writable && entry.needs_copy {
                    // The right to write only: shared page tables give none as it is.
                    self.pmap
                        .protect(entry.range, Prot::READ | Prot::EXEC, pending);
                }
                copies.append(copy);
            }
        }
        Ok((pmap, copies))
    }

    /// Makes a pmap for a child that shares those page tables of which it is to have all mappings,
    /// and through which no mapping may be written before a fault. Also returns whether it has all.
    ///
    /// Sharing pays in the middle of large memory. A table at its ends, as in a small program, maps
    /// pages that are written next together with others: both would need a table of their own at
    /// once.
    fn share_tables(
        &self,
        space: &Space,
        pending: &mut Pending,
    ) -> Result<(Arc<Pmap>, bool), OutOfMemory> {
        let least = SHARED_FROM.load(Ordering::Relaxed);
        if least > 0 {
            let entries = space.iter().filter(|entry| entry.may_share_tables());
            return self
                .pmap
                .fork(&mut entries.map(|it| it.range), least, pending);
        }
        // Everything between the entries that can't be shared.
        let last = VirtAddr(USER_END.0.next_multiple_of(TABLE_SPAN));
        let refused = space.iter().filter(|entry| !entry.may_share_tables());
        let refused = refused
            .map(|it| it.range)
            .chain([VirtRange::new(last, last)]);
        let mut spans = refused.scan(VirtAddr(0), |end, it| {
            let span = VirtRange::new(*end, it.start);
            *end = it.end;
            Some(span)
        });
        self.pmap.fork(&mut spans, 0, pending)
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

/// Returns whether parent and child could share any page table.
fn may_share_any(space: &Space) -> bool {
    SHARED_FROM.load(Ordering::Relaxed) == 0
        || space.iter().any(|entry| {
            let start = entry.range.start.0.next_multiple_of(TABLE_SPAN);
            start + TABLE_SPAN <= entry.range.end.0 && entry.may_share_tables()
        })
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
