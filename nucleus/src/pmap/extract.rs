//! Looking at what is mapped: frames, rights, use, and how much.

use super::entries::load;
use super::format::{ENTRIES, LEAF_SPAN, Pte, index};
use super::leaf::Leaf;
use super::mapping::{page_in, part_of};
use super::space::Pmap;
use super::table::Found;
use crate::addr::USER_END;
use crate::addr::{Access, Prot};
use crate::counters::Counter;
use crate::{Frame, PAGE_SIZE, VirtAddr, VirtRange};

/// See [`Pmap::resident`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Resident {
    pub pages: usize,
    pub page_tables: usize,
}

impl Pmap {
    /// What is mapped at the page that holds `va`; `None` also for a page of a device.
    pub fn extract(&self, va: VirtAddr) -> Option<(Frame, Prot)> {
        let leaf = self.leaf(va)?;
        match leaf.is_shared() {
            false => page_in(&leaf, va),
            true => self.page_in_common(leaf, va),
        }
    }

    /// As [`extract`](Pmap::extract) for the pages from `range`'s start on, as long as something is
    /// mapped and `f` returns true. The way to a table is walked once for all pages that it maps.
    /// `f` must not sleep.
    pub fn extract_each(&self, range: VirtRange, mut f: impl FnMut(Frame, Prot) -> bool) {
        let mut at = range.start;
        while at < range.end {
            let Some(leaf) = self.leaf(at) else {
                return;
            };
            let end = VirtAddr(leaf.base.0 + LEAF_SPAN).min(range.end);
            while at < end {
                let page = match leaf.is_shared() {
                    false => page_in(&leaf, at),
                    // It may cease to be this pmap's between two pages.
                    true => self.extract(at),
                };
                let Some((frame, prot)) = page else {
                    return;
                };
                if !f(frame, prot) {
                    return;
                }
                at = at + PAGE_SIZE;
            }
        }
    }

    /// As [`extract`](Pmap::extract) where others share the table.
    #[inline(never)]
    fn page_in_common(&self, mut leaf: Leaf, va: VirtAddr) -> Option<(Frame, Prot)> {
        loop {
            let page = page_in(&leaf, va);
            if self.confirms(&leaf, va) {
                let right = match leaf.is_shared() {
                    true => Prot::WRITE,
                    false => Prot::empty(),
                };
                return page.map(|(frame, prot)| (frame, prot - right));
            }
            drop(page);
            leaf = self.leaf(va)?;
        }
    }

    /// Whether a program could do `access` at `va` now without a fault.
    pub fn permits(&self, va: VirtAddr, access: Access) -> bool {
        loop {
            let Some(leaf) = self.leaf(va) else {
                return false;
            };
            let permits = load(leaf.entry(index(va, 1))).permits(access);
            if !leaf.is_shared() {
                return permits;
            }
            if self.confirms(&leaf, va) {
                return permits && access != Access::Write;
            }
        }
    }

    /// How many pages before `va`, at most `most` and only those that one table of level 1 maps, a
    /// program has used since they were mapped: written, if `write`, as it still may; else read or
    /// written.
    pub fn used_before(&self, va: VirtAddr, write: bool, most: usize) -> usize {
        if most == 0 || va.0 < PAGE_SIZE {
            return 0;
        }
        let Some(leaf) = self.leaf(VirtAddr(va.0 - PAGE_SIZE)) else {
            return 0;
        };
        let last = index(VirtAddr(va.0 - PAGE_SIZE), 1);
        let most = match write && leaf.is_shared() {
            // These were written before a fork.
            true => 0,
            false => most.min(last + 1),
        };
        let is_used = |i: usize| {
            let pte = load(leaf.entry(i));
            match write {
                true => pte.permits(Access::Write) && pte.is_dirty(),
                false => pte.is_present() && pte.is_accessed(),
            }
        };
        let mut used = 0;
        while used < most && is_used(last - used) {
            used += 1;
        }
        used
    }

    /// Whether a program has used the page at `va` since it was mapped; `None` if nothing is mapped
    /// there for sure: a table that is being changed is not waited for.
    #[inline]
    pub fn use_of(&self, va: VirtAddr) -> Option<bool> {
        let Some(leaf) = self.leaf(va) else {
            // Where something is mapped the tables above stay.
            return self.walk(va).map(|_| false);
        };
        let pte = load(leaf.entry(index(va, 1)));
        let is_mapped = !leaf.is_own() || pte != Pte::ZERO;
        is_mapped.then(|| pte.is_present() && pte.is_accessed())
    }

    /// How many pages from `va` on, at most `most` and only those that one table of level 1 maps, a
    /// program has written since they were mapped, and may not write any more.
    pub fn written_from(&self, va: VirtAddr, most: usize) -> usize {
        let Some(leaf) = self.leaf(va) else {
            return 0;
        };
        let first = index(va, 1);
        let was_written = |i: &usize| {
            let pte = load(leaf.entry(*i));
            pte.is_present() && pte.is_dirty() && !pte.permits(Access::Write)
        };
        let pages = first..ENTRIES.min(first + most);
        pages.take_while(was_written).count()
    }

    /// Pages mapped in `range`. Costs no more than a look at each page table that exists there, and
    /// at each entry of those that the range does not cover. Exact when nothing changes.
    pub fn resident_in(&self, range: VirtRange) -> usize {
        self.nth_resident(range, usize::MAX).err().unwrap_or(0)
    }

    /// The address of the page number `n`, counted from 0 on, of those mapped in `range`. Costs
    /// what [`resident_in`](Pmap::resident_in) does up to there.
    ///
    /// # Errors
    /// There are no more than this.
    pub fn nth_resident(&self, mut range: VirtRange, n: usize) -> Result<VirtAddr, usize> {
        let mut pages = 0;
        while let Some(Found { leaf, .. }) = self.next_leaf(range, None) {
            Counter::page_tables_counted.add(1);
            let (first, stop) = part_of(range, leaf.base);
            let here = match stop - first {
                ENTRIES => leaf.entries(),
                _ => leaf.used(first, stop).count(),
            };
            // Some that were counted may be gone by now, here or in tables before.
            if n < pages + here
                && let Some(i) = leaf
                    .used(first, stop)
                    .take(n.saturating_sub(pages) + 1)
                    .last()
            {
                return Ok(leaf.base + i * PAGE_SIZE);
            }
            pages += here;
            range.start = leaf.base + LEAF_SPAN;
        }
        Err(pages)
    }

    /// Frames in page tables, with the reverse links.
    pub fn page_tables(&self) -> usize {
        *self.lock.lock()
    }

    /// Pages mapped, and page-table frames held. Costs a look at each page table.
    pub fn resident(&self) -> Resident {
        let everything = VirtRange::new(VirtAddr(0), USER_END + PAGE_SIZE);
        Resident {
            pages: self.resident_in(everything),
            page_tables: self.page_tables(),
        }
    }
}
