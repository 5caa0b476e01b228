//! Entering mappings, and giving those that are there more rights.

use core::ops::Deref;
use core::sync::atomic::Ordering;

use super::entries::load;
use super::format::{ENTRIES, LEAF_SPAN, Pte, index};
use super::leaf::Leaf;
use super::mapping::{INSTALLED_TOGETHER, InstallBatch, install};
use super::pending::Pending;
use super::space::Pmap;
use crate::addr::{Access, Prot};
use crate::frame::record::record;
use crate::frame::{add_handles, subtract_handles};
use crate::hw::machine;
use crate::{Frame, OutOfMemory, PAGE_SIZE, VirtAddr, VirtRange};

impl Pmap {
    /// Maps `frame` at the page `va` with its final attributes in one step, replacing what was
    /// there. The mapping holds a handle of its own. When another frame or a wider right was
    /// replaced, the old one goes to `pending`. A spurious call (same frame, same or wider
    /// rights) flushes nothing.
    ///
    /// # Errors
    /// [`OutOfMemory`]: no frame for a page table; nothing has changed.
    ///
    /// # Panics
    /// If `va` is not below [`USER_END`](crate::addr::USER_END).
    pub fn enter(
        &self,
        va: VirtAddr,
        frame: &Frame,
        prot: Prot,
        pending: &mut Pending,
    ) -> Result<(), OutOfMemory> {
        loop {
            if pending.is_full() {
                pending.flush();
            }
            let leaf = self.make_leaf(va)?;
            if self.enter_in(&leaf, va, frame, prot, pending) {
                return Ok(());
            }
        }
    }

    /// One attempt to change the entry; false if it was changed under our hands, or had to be
    /// emptied first. Adds at most one frame to `pending`.
    fn enter_in(
        &self,
        leaf: &Leaf,
        va: VirtAddr,
        frame: &Frame,
        prot: Prot,
        pending: &mut Pending,
    ) -> bool {
        let i = index(va, 1);
        let entry = leaf.entry(i);
        let old = load(entry);
        if !old.is_present() {
            return install(leaf, i, frame.clone(), Pte::page(frame.index(), prot, true));
        }
        if old.maps(frame.index()) {
            // The frame stays, so neither its lists nor its handles are concerned.
            let new = old
                .with_rights(prot)
                .wired(old.is_wired() || prot.contains(Prot::WIRED));
            if new == old {
                return true;
            }
            let new = new.accessed();
            machine::point();
            if entry
                .compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                return false;
            }
            // Wider rights need no flush: at worst a CPU faults once more on its old entry, which
            // makes it look again.
            if !prot.contains(old.prot()) {
                self.forget(record(leaf.table).owner(), old, va, pending);
            }
            return true;
        }
        // Another frame: first without any, then with the new one. A program that looks in
        // between faults and waits for the map's lock like any other.
        if self.take_out(leaf, i, Pte::ZERO, pending) {
            leaf.remove_entry();
        }
        false
    }

    /// As [`enter`](Pmap::enter) but only where nothing is mapped, with the accessed bit clear
    /// (for fault-ahead). Returns whether it mapped.
    ///
    /// # Errors
    /// [`OutOfMemory`]: no frame for a page table.
    ///
    /// # Panics
    /// As [`enter`](Pmap::enter).
    pub fn enter_ahead(
        &self,
        va: VirtAddr,
        frame: &Frame,
        prot: Prot,
    ) -> Result<bool, OutOfMemory> {
        let leaf = self.make_leaf(va)?;
        let pte = Pte::page(frame.index(), prot, false);
        Ok(install(&leaf, index(va, 1), frame.clone(), pte))
    }

    /// Sees to it that there is a table of level 1 of this pmap's own for `va`, so that
    /// [`enter_ahead_each`](Pmap::enter_ahead_each) can map there.
    ///
    /// # Errors
    /// [`OutOfMemory`]: no frame for a page table.
    ///
    /// # Panics
    /// As [`enter`](Pmap::enter).
    pub fn make_table(&self, va: VirtAddr) -> Result<(), OutOfMemory> {
        self.make_leaf(va).map(drop)
    }

    /// As [`enter_ahead`](Pmap::enter_ahead) for the pages of `range`, as far as the table of level
    /// 1 goes that maps the first: the way to the table is walked once. Asks `page` what to map
    /// where nothing is mapped; it must not sleep. Returns how many pages it mapped: none if there
    /// is no table yet, or others share it.
    pub fn enter_ahead_each<F: Into<Frame>>(
        &self,
        range: VirtRange,
        mut page: impl FnMut(VirtAddr) -> Option<(F, Prot)>,
    ) -> usize {
        let Some(leaf) = self.leaf(range.start).filter(Leaf::is_own) else {
            return 0;
        };
        let end = range.end.min(leaf.base + LEAF_SPAN);
        let mut range = VirtRange::new(range.start, end);
        let mut entered = 0;
        while !range.is_empty() {
            let mut batch = InstallBatch::of(&leaf);
            let rest = range.start + INSTALLED_TOGETHER * PAGE_SIZE;
            for va in VirtRange::new(range.start, range.end.min(rest)).pages() {
                let i = index(va, 1);
                if load(leaf.entry(i)) == Pte::ZERO
                    && let Some((frame, prot)) = page(va)
                {
                    let frame: Frame = frame.into();
                    let pte = Pte::page(frame.index(), prot, false);
                    if batch.install(i, frame.index(), pte) {
                        frame.into_index();
                    }
                }
            }
            entered += batch.entered;
            range.start = rest.min(range.end);
        }
        entered
    }

    /// As [`enter_ahead_each`](Pmap::enter_ahead_each) with the same rights for all. Asks `page`
    /// by the number of the page in `range`.
    pub fn enter_run<'a>(
        &self,
        range: VirtRange,
        prot: Prot,
        page: impl Fn(usize) -> Option<&'a Frame>,
    ) -> usize {
        let Some(leaf) = self.leaf(range.start).filter(Leaf::is_own) else {
            return 0;
        };
        let first = index(range.start, 1);
        let pages = range.len().div_ceil(PAGE_SIZE).min(ENTRIES - first);
        let rights = Pte::page(0, prot, false);
        let mut entered = 0;
        let mut next = 0;
        while next < pages {
            let mut batch = InstallBatch::of(&leaf);
            let end = pages.min(next + INSTALLED_TOGETHER);
            for n in next..end {
                if load(leaf.entry(first + n)) == Pte::ZERO
                    && let Some(frame) = page(n)
                {
                    let frame = frame.index();
                    add_handles(frame, 1);
                    if !batch.install(first + n, frame, rights.further(frame as usize)) {
                        // The caller's is left.
                        subtract_handles(frame, 1);
                    }
                }
            }
            entered += batch.entered;
            next = end;
        }
        entered
    }

    /// Gives mappings in `range`, as far as one table of level 1 goes, more rights. `page`
    /// is asked for each that may not be written: the frame that it should have, and the rights to
    /// add. A mapping of another frame stays as it is. Nothing has to be flushed. Returns how many
    /// mappings were changed: none if others share the table.
    pub fn widen_each<F: Deref<Target = Frame>>(
        &self,
        range: VirtRange,
        mut page: impl FnMut(VirtAddr) -> Option<(F, Prot)>,
    ) -> usize {
        self.count_changes(range, |leaf, i, va| {
            let entry = leaf.entry(i);
            let old = load(entry);
            if !old.has_frame() || old.permits(Access::Write) {
                return false;
            }
            let Some((frame, prot)) = page(va) else {
                return false;
            };
            let new = old.with_more_rights(prot);
            if old.frame() != frame.index() || new == old {
                return false;
            }
            machine::point();
            entry
                .compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// Calls `change` with the table's entry for each page of `range`, as far as the table of level
    /// 1 goes that maps the first, and counts how often it says that it changed the entry: never if
    /// there is no table, or others share it.
    #[inline]
    fn count_changes(
        &self,
        range: VirtRange,
        mut change: impl FnMut(&Leaf, usize, VirtAddr) -> bool,
    ) -> usize {
        let Some(leaf) = self.leaf(range.start).filter(Leaf::is_own) else {
            return 0;
        };
        let end = range.end.min(leaf.base + LEAF_SPAN);
        let pages = VirtRange::new(range.start, end).pages();
        pages.filter(|&va| change(&leaf, index(va, 1), va)).count()
    }
}
