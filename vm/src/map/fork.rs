//! Fork: a copy of an address space that copies no page (`uvm.txt` 5.2).
//!
//! Parent and child refer to the same amaps, with needs-copy on both sides, and to the same page
//! tables, through which nothing may be written ([`Pmap::fork`]); one flush serves both. A page
//! table is not shared if the child does not inherit all its mappings, or if both may write through
//! it: the child's is then empty, and the private pages of the parent's become read-only. The
//! parent's map stays write-locked until the flush is done. Otherwise one of its threads could copy
//! a page in a fault while another still writes the old one through its TLB, and that write would
//! be lost.
//!
//! The first writer gets page tables of its own, one fault at a time. When no other sharers of a
//! table and its pages are left, the first write in its span makes all of it writable again.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering, Ordering::SeqCst};
use nucleus::{
    OutOfMemory, PAGE_SHIFT, Pmap, Prot, VirtAddr, VirtRange,
    addr::USER_END,
    pmap::{Fork, Pending, PmapRef, Writes, fork_mode},
    sync::CpuRwLock,
};

use super::Map;
use super::change::{Change, Pair};
use super::entry::MapEntry;
use super::request::{Inherit, MapError};
use super::space::Space;

/// The least number of pages in a shared page table: write-protecting fewer costs little more than
/// a table.
static SHARED_FROM: AtomicUsize = AtomicUsize::new(128);
/// The span of a page table of level 1.
const TABLE_SPAN: usize = 512 << PAGE_SHIFT;

/// Sets how many mappings a page table needs for a fork to share it, 128 by default, and only if it
/// lies within one entry. With 0 every table is shared that can be, for tests.
pub fn set_shared_tables(from: usize) {
    SHARED_FROM.store(from, Ordering::Relaxed);
}

impl Map {
    /// Returns a copy for a child: entries as inherited, private ones copy-on-write (`uvm.txt`
    /// 5.2).
    ///
    /// # Errors
    /// [`MapError::NoMemory`]; this address space is unchanged.
    pub fn fork(&self) -> Result<Arc<Map>, MapError> {
        let mut parents = self.lock_to_fork();
        let mut pending = Pending::new();
        let result = self.copy_space(&mut parents, &mut pending);
        pending.flush();
        drop(parents);
        let (pmap, copies) = result?;
        Map::with_pmap(pmap, copies)
    }

    /// Locks the map for a fork: no page is pinned for writing.
    fn lock_to_fork(&self) -> Change<'_> {
        self.while_unpinned(|| self.change())
    }

    /// Locks this map and another one, which may be the same, to pass entries from here to there:
    /// no page here is pinned for writing.
    pub(crate) fn lock_to_pass<'a>(&'a self, to: &'a Map) -> Pair<'a> {
        self.while_unpinned(|| {
            if core::ptr::eq(self, to) {
                return Pair::new(self.change(), None);
            }
            let (source, target) = CpuRwLock::write_pair(&self.space, &to.space);
            self.unflushed.wait_for_all();
            to.unflushed.wait_for_all();
            Pair::new(source.into(), Some(target.into()))
        })
    }

    /// Calls `begin`, which locks the map or takes pages so that no later pin reaches them, until
    /// no page is pinned for writing when it returns. New pins wait meanwhile. With no lock held
    /// and no pins of the caller.
    pub(crate) fn while_unpinned<T>(&self, mut begin: impl FnMut() -> T) -> T {
        let mut waits = false;
        loop {
            let begun = begin();
            if self.write_pins.load(SeqCst) == 0 {
                if waits {
                    self.waiting_forks.fetch_sub(1, SeqCst);
                    self.unpinned.wake_all();
                }
                return begun;
            }
            drop(begun);
            if !waits {
                self.waiting_forks.fetch_add(1, SeqCst);
                waits = true;
            }
            let unpinned = || (self.write_pins.load(SeqCst) == 0).then_some(());
            // Pins end with their transfer.
            self.unpinned.wait_soundly(unpinned);
        }
    }

    /// Returns the pmap and the entries of a child. After a failure, entries that were never mapped
    /// are among the removed ones.
    fn copy_space(
        &self,
        parents: &mut Change<'_>,
        pending: &mut Pending,
    ) -> Result<(PmapRef, Space), MapError> {
        let Change {
            space: parents,
            removed,
        } = parents;
        // Most programs are so small that their page tables need not be inspected.
        let (pmap, complete) = match fork_mode() == Fork::Share && may_share_any(parents) {
            true => self.share_tables(parents, pending)?,
            false => (Pmap::new()?, false),
        };
        if self.is_small() {
            // Beside its parent, with which it most likely has to do; large without a region.
            pmap.join_as(&self.pmap);
        }
        let mut copies = parents.sibling();
        for entry in parents.iter_mut() {
            let may_be_mapped_writable = entry.may_be_mapped_writable();
            let allowed = copies.allow_more();
            let Ok(copy) = allowed.and_then(|()| Ok(entry.inherit(pending)?)) else {
                let copies = copies.take_all().into_all();
                copies.for_each(|copy| removed.put(Some(copy)));
                return Err(MapError::NoMemory);
            };
            if let Some(copy) = copy {
                if !complete && may_be_mapped_writable && entry.needs_copy {
                    // Only the right to write: shared page tables do not give it.
                    self.pmap
                        .protect(entry.range, Prot::READ | Prot::EXEC, pending);
                }
                copies.append(copy);
            }
        }
        Ok((pmap, copies))
    }

    /// Returns a pmap for a child that shares the page tables of which the child inherits every
    /// mapping, and through which neither writes without a fault. Also returns whether it has all
    /// mappings.
    ///
    /// Sharing pays in the middle of large memory. A table at its ends, as in a small program, also
    /// maps pages that are written next: both sides would need a table of their own at once.
    fn share_tables(
        &self,
        space: &Space,
        pending: &mut Pending,
    ) -> Result<(PmapRef, bool), OutOfMemory> {
        let least = SHARED_FROM.load(Ordering::Relaxed);
        if least > 0 {
            let entries = space.iter().filter(|entry| entry.may_share_tables());
            return self
                .pmap
                .fork(&mut entries.map(|it| it.range), least, pending);
        }
        // The gaps between entries whose tables cannot be shared.
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

    /// Gives this address space a page table of its own for `va` if the table is shared: the old
    /// one with all its rights if no other sharers of the table and its pages are left, else one
    /// without the right to write private pages. Not for tables of shared mappings alone.
    pub(crate) fn own_table(&self, va: VirtAddr) -> Result<(), OutOfMemory> {
        let mut space = self.space.write();
        if !self.take_table_back(&mut space, va) {
            self.pmap.own(va)?;
        }
        Ok(())
    }

    /// As [`own_table`](Map::own_table), but without making a copy. Returns whether the table is
    /// its own. The map is write-locked.
    pub(crate) fn take_table_back(&self, space: &mut Space, va: VirtAddr) -> bool {
        if !self.pmap.is_shared(va) {
            return true;
        }
        let base = VirtAddr(va.0 & !(TABLE_SPAN - 1));
        let span = VirtRange::new(base, base + TABLE_SPAN);
        // Needs the table's other sharers to have left; the next writer tries again.
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
    /// Returns whether a page table with the entry's mappings may be shared.
    fn may_share_tables(&self) -> bool {
        // A child does not inherit wiring.
        !self.is_locked()
            && match self.inherit {
                Inherit::Copy => !self.shared && !self.shares_amap(),
                Inherit::Share => self.shared && !self.prot.contains(Prot::WRITE),
                Inherit::None | Inherit::Zero => false,
            }
    }

    /// Returns whether every page of the entry that is mapped in `span` and writable belongs to
    /// this address space alone and may be written. Clears needs-copy if the amap has no other
    /// references.
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
        let keys = self.keys(span.intersect(self.range));
        self.amap.as_ref().is_none_or(|amap| amap.is_sole_in(keys))
    }
}
