//! Making mappings of sole anons and of shared objects' pages writable again without a fault for
//! each page.

use core::ops::Range;
use nucleus::{PAGE_SHIFT, Pmap, Prot, VirtAddr, VirtRange, pmap::Pending};

use super::{Map, Space, entry::MapEntry};
use crate::amap::{Slot, Slots};
use crate::object::{NARROWED, Object, Pager};

/// The span of a page table of level 1.
pub(super) const TABLE_SPAN: usize = 512 << PAGE_SHIFT;

/// Makes the mappings of the sole anons in `range` of `entry` writable, which the entry permits.
/// The map is locked.
pub(super) fn widen(pmap: &Pmap, entry: &MapEntry, range: VirtRange) {
    let Some(amap) = entry.amap.as_ref().filter(|_| !entry.needs_copy) else {
        return;
    };
    amap.for_each_part(entry.keys(range), &mut |keys, mut slots| {
        let part = VirtRange::new(entry.address(keys.start), entry.address(keys.end));
        make_sole(entry, &mut slots, part);
        for run in by_table(part) {
            widen_run(pmap, entry, &slots, run);
        }
    });
}

/// Splits a part of a chunk, which may extend into the next page table.
pub(super) fn by_table(part: VirtRange) -> [VirtRange; 2] {
    let middle = VirtAddr((part.start.0 & !(TABLE_SPAN - 1)) + TABLE_SPAN).min(part.end);
    [
        VirtRange::new(part.start, middle),
        VirtRange::new(middle, part.end),
    ]
}

impl Space {
    /// Calls `f` with each part of the pager's `pages` that a shared entry maps in its place, as if
    /// they were mapped from `start` on, with the part's address.
    pub(super) fn each_part_of(
        &self,
        pager: &dyn Pager,
        pages: Range<u64>,
        start: VirtAddr,
        f: &mut dyn FnMut(&MapEntry, Range<u64>, VirtAddr),
    ) {
        let end = start + (((pages.end - pages.start) as usize) << PAGE_SHIFT);
        let all = VirtRange::new(start, end);
        for entry in self.overlapping(all) {
            let here = entry.range.intersect(all);
            let first = pages.start + ((here.start - start) >> PAGE_SHIFT) as u64;
            let is_it = entry.object.as_ref().is_some_and(|object| {
                core::ptr::eq(object.pager.object(), pager.object())
                    && entry.index(object, here.start) == first
            });
            if is_it && entry.shared {
                f(
                    entry,
                    first..first + (here.len() >> PAGE_SHIFT) as u64,
                    here.start,
                );
            }
        }
    }
}

impl Map {
    /// Removes the right to write the object's `pages`, which are mapped from `start` on, as
    /// [`Object::write_protect`] does for all their mappings: for objects of which no other mapping
    /// can be written. It is gone once `pending` was flushed. Returns false if a device may be
    /// writing the object's pages.
    pub fn write_protect(
        &self,
        object: &Object,
        pages: Range<u64>,
        start: VirtAddr,
        pending: &mut Pending,
    ) -> bool {
        if object.is_pinned() {
            return false;
        }
        let _space = self.space.read();
        object.walk(&pages, &mut |first, chunk, slots| {
            let first = first + slots.start as u64 - pages.start;
            let start = start + ((first as usize) << PAGE_SHIFT);
            let part = VirtRange::new(start, start + (slots.len() << PAGE_SHIFT));
            // A fault that asked before has entered its mapping; a later one is refused.
            let _there = chunk.lock();
            self.pmap.protect(part, NARROWED, pending);
            true
        });
        // A pin counts before it looks for the right to write.
        !object.is_pinned()
    }

    /// Gives the mappings of `pages` of the pager's object from `start` on the right to write,
    /// where they are shared, may have it, and [`Pager::mark_dirty`] agrees. Other pages are left
    /// to faults.
    pub fn widen(&self, pager: &dyn Pager, pages: Range<u64>, start: VirtAddr) {
        let space = self.space.read();
        space.each_part_of(pager, pages, start, &mut |entry, part, va| {
            if entry.prot.contains(Prot::WRITE) {
                self.widen_shared(pager, part, va);
            }
        });
    }

    fn widen_shared(&self, pager: &dyn Pager, pages: Range<u64>, start: VirtAddr) {
        pager.object().walk(&pages, &mut |first, chunk, slots| {
            let at = |slot: usize| {
                let index = first + slot as u64 - pages.start;
                start + ((index as usize) << PAGE_SHIFT)
            };
            let there = chunk.lock();
            for run in by_table(VirtRange::new(at(slots.start), at(slots.end))) {
                let first_slot = slots.start + ((run.start - at(slots.start)) >> PAGE_SHIFT);
                self.pmap.widen_each(run, |va| {
                    let slot = first_slot + ((va - run.start) >> PAGE_SHIFT);
                    let frame = there.get(slot)?.writable()?;
                    let index = first + slot as u64;
                    let may_write = pager.mark_dirty(index, Some(frame));
                    may_write.then_some((frame, Prot::WRITE))
                });
            }
            true
        });
    }
}

/// Turns anons of `run` without other owners left into sole ones.
pub(crate) fn make_sole(entry: &MapEntry, slots: &mut Slots<'_>, run: VirtRange) {
    if slots.shared {
        return;
    }
    for va in run.pages() {
        let key = entry.key(va);
        if let Some(slot @ Slot::Shared(_)) = slots.get(key) {
            slot.make_sole();
        }
    }
}

/// Makes the mappings of sole anons in `run`, part of one page table, writable; returns how many.
pub(crate) fn widen_run(pmap: &Pmap, entry: &MapEntry, slots: &Slots<'_>, run: VirtRange) -> usize {
    if slots.shared {
        return 0;
    }
    pmap.widen_each(run, |va| {
        let frame = slots.peek(entry.key(va)).to_write()?;
        Some((frame, entry.anon_prot(true)))
    })
}
