//! Page counts of mappings, for `/proc/PID/smaps` and `pagemap`.
#![allow(missing_docs, reason = "fields and variants whose names say it")]

use alloc::sync::Arc;
use nucleus::{Frame, PAGE_SHIFT, PAGE_SIZE, VirtAddr, VirtRange, pmap};

use crate::amap::anon;
use crate::map::MapEntry;
use crate::{Entry, Map, swap};

/// Mapped pages, by whether they have several mappings and were modified.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PageCounts {
    pub shared_clean: usize,
    pub shared_dirty: usize,
    pub private_clean: usize,
    pub private_dirty: usize,
    /// Bytes, each page divided by its number of mappings.
    pub proportional: u64,
    /// The same of modified pages.
    pub proportional_dirty: u64,
    /// The same of anonymous pages.
    pub proportional_anonymous: u64,
    /// Pages in large mappings of private memory.
    pub large: usize,
    /// Pages in large mappings of shared memory.
    pub large_shared: usize,
    /// Pages that may be freed lazily and were not modified since (`MADV_FREE`).
    pub lazy: usize,
    /// Pages that are in swap only, and mapped nowhere.
    pub swapped: usize,
    /// Their bytes, each page divided by the number of amaps that refer to it.
    pub proportional_swapped: u64,
}

impl PageCounts {
    /// All mapped pages.
    pub fn resident(&self) -> usize {
        self.shared_clean + self.shared_dirty + self.private_clean + self.private_dirty
    }

    /// Adds another sum.
    pub fn add(&mut self, other: &PageCounts) {
        self.shared_clean += other.shared_clean;
        self.shared_dirty += other.shared_dirty;
        self.private_clean += other.private_clean;
        self.private_dirty += other.private_dirty;
        self.proportional += other.proportional;
        self.proportional_dirty += other.proportional_dirty;
        self.proportional_anonymous += other.proportional_anonymous;
        self.large += other.large;
        self.large_shared += other.large_shared;
        self.lazy += other.lazy;
        self.swapped += other.swapped;
        self.proportional_swapped += other.proportional_swapped;
    }

    fn count(&mut self, frame: &Frame, anonymous: bool) {
        let mappings = pmap::mappings_of_spaces(frame).max(1);
        let dirty = pmap::is_modified(frame);
        let share = (PAGE_SIZE / mappings as usize) as u64;
        self.proportional += share;
        if dirty {
            self.proportional_dirty += share;
        }
        if anonymous {
            self.proportional_anonymous += share;
        }
        *match (mappings > 1, dirty) {
            (true, false) => &mut self.shared_clean,
            (true, true) => &mut self.shared_dirty,
            (false, false) => &mut self.private_clean,
            (false, true) => &mut self.private_dirty,
        } += 1;
    }
}

/// A mapped page.
#[derive(Clone, Debug)]
pub struct MappedPage {
    pub frame: Frame,
    /// It belongs to an anon.
    pub anonymous: bool,
}

impl Map {
    /// Calls `f` for each entry, in order of address, with its page counts. `f` must not access
    /// memory that this map maps.
    pub fn for_each_entry_counted(&self, f: &mut dyn FnMut(&Entry, &PageCounts)) {
        let space = self.space.read();
        for entry in space.iter() {
            let mut counts = PageCounts::default();
            self.count_pages(entry, entry.range, &mut counts);
            entry.count_swapped(&mut counts);
            counts.lazy = entry.lazy_pages();
            *match entry.shared {
                true => &mut counts.large_shared,
                false => &mut counts.large,
            } = self.pmap.large_in(entry.range);
            f(&self.describe(&space, entry), &counts);
        }
    }

    /// Counts what is mapped in `range` by bisection: parts without a page cost little.
    fn count_pages(&self, entry: &MapEntry, range: VirtRange, counts: &mut PageCounts) {
        /// Below this, each page is looked up.
        const FEW: usize = 32 * PAGE_SIZE;
        if self.pmap.resident_in(range) == 0 {
            return;
        }
        if range.len() <= FEW {
            let mut at = range.start;
            while at < range.end {
                if let Some((frame, _)) = self.pmap.extract(at) {
                    counts.count(&frame, entry.has_anon(at));
                }
                at = at + PAGE_SIZE;
            }
            return;
        }
        let half = (range.len() / 2) >> PAGE_SHIFT << PAGE_SHIFT;
        let middle = range.start + half;
        self.count_pages(entry, VirtRange::new(range.start, middle), counts);
        self.count_pages(entry, VirtRange::new(middle, range.end), counts);
    }

    /// Estimates how many resident pages of anonymous memory are this map's, each page of several
    /// maps in equal parts: those that are mapped from about `samples` pages at places that `seed`
    /// chooses, exactly for a map that shares all of an entry or none; and those that are mapped
    /// nowhere, such as memory without rights, or pages that were received and not touched yet.
    /// Each page table is looked at twice, and none where there is no anonymous memory. Sleeps for
    /// the map's locks only.
    pub fn own_pages(&self, samples: usize, mut seed: u64) -> usize {
        let space = self.space.read();
        let may_have_some = |entry: &&MapEntry| !entry.shared && entry.amap.is_some();
        let with_some = || space.iter().filter(may_have_some);
        let resident = |entry: &MapEntry| self.pmap.resident_in(entry.range);
        let all: usize = with_some().map(resident).sum();
        let step = (all / samples.max(1)).max(1);
        let mut thousandths = 0;
        for entry in with_some() {
            // The constants of Knuth's generator.
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let share = |at| match self.pmap.extract(at) {
                Some((frame, _)) if entry.has_anon(at) => {
                    1000 / pmap::mappings_of_spaces(&frame).max(1) as usize
                }
                _ => 0,
            };
            let (mut pages, mut sum, mut taken) = (0, 0, 0);
            let first = (seed >> 33) as usize % step;
            let (mut rest, mut skipped) = (entry.range, first);
            pages += loop {
                let at = match self.pmap.nth_resident(rest, skipped) {
                    Ok(at) => at,
                    Err(last) => break last,
                };
                (sum, taken, pages) = (sum + share(at), taken + 1, pages + skipped + 1);
                // Threads of the map may have mapped many since all were counted.
                skipped = match taken < 2 * samples {
                    true => step - 1,
                    false => usize::MAX,
                };
                rest.start = at + PAGE_SIZE;
            };
            // Fewer than a step.
            if (1..=first).contains(&pages)
                && let Ok(at) = self.pmap.nth_resident(entry.range, first % pages)
            {
                (sum, taken) = (share(at), 1);
            }
            let own = (pages * sum).checked_div(taken).unwrap_or(0) + entry.thousandths_unmapped();
            // A page may have been unmapped between the two looks.
            thousandths += own.min(1000 * entry.pages());
        }
        thousandths / 1000
    }

    /// About how many pages of the kernel's memory its entries take. Sleeps for the map's lock
    /// only.
    pub fn pages_of_entries(&self) -> usize {
        self.space.read().pages_of_entries()
    }

    /// Returns the page mapped at `va`.
    pub fn mapped_page(&self, va: VirtAddr) -> Option<MappedPage> {
        let space = self.space.read();
        let entry = space.lookup(va)?;
        let (frame, _) = self.pmap.extract(va)?;
        let anonymous = entry.has_anon(va);
        Some(MappedPage { frame, anonymous })
    }
}

impl Map {
    /// The number of pages of private mappings that are in swap only.
    pub fn swapped(&self) -> usize {
        let mut counts = PageCounts::default();
        if swap::usage().used > 0 {
            let space = self.space.read();
            let private = space.iter().filter(|entry| !entry.shared);
            private.for_each(|entry| entry.count_swapped(&mut counts));
        }
        counts.swapped
    }
}

impl MapEntry {
    /// The number of mapped pages that may be freed lazily.
    fn lazy_pages(&self) -> usize {
        let mut count = 0;
        if let Some(amap) = self.amap.as_ref().filter(|_| anon::may_be_lazy()) {
            amap.for_each(self.keys(self.range), &mut |_, slot, _| {
                count += usize::from(slot.is_mapped_and_lazy());
            });
        }
        count
    }

    /// The resident pages of private memory that are mapped nowhere, in thousandths; each counts
    /// for all of its owners in equal parts.
    fn thousandths_unmapped(&self) -> usize {
        let Some(amap) = self.amap.as_ref().filter(|_| !self.shared) else {
            return 0;
        };
        // As long as programs that fork have not written, they have one amap.
        let entries = match self.shares_amap() {
            true => 1,
            false => Arc::strong_count(amap),
        };
        let mut sum = 0;
        amap.for_each(self.keys(self.range), &mut |_, slot, owners| {
            if let Some(page) = slot.resident().filter(|page| page.mappings() == 0) {
                let owners = entries * owners as usize * slot.sharers();
                sum += 1000 / owners.max(1) / page.owners() as usize;
            }
        });
        sum
    }

    /// Counts pages that are in swap only.
    fn count_swapped(&self, counts: &mut PageCounts) {
        if swap::usage().used == 0 {
            return;
        }
        let mut count = |sharers: usize| {
            counts.swapped += 1;
            counts.proportional_swapped += (PAGE_SIZE / sharers.max(1)) as u64;
        };
        if let Some(amap) = self.amap.as_ref().filter(|_| !self.shared) {
            amap.for_each(self.keys(self.range), &mut |_, slot, owners| {
                if slot.is_swapped() {
                    count(slot.sharers() * owners as usize);
                }
            });
        }
        if let Some(object) = self.object.as_ref().filter(|_| self.shared) {
            let first = self.index(object, self.range.start);
            let pages = first..first + self.pages() as u64;
            for _ in 0..object.pager.object().swapped_in(pages) {
                count(1);
            }
        }
    }

    /// Returns whether the anonymous layer has the page at `va`.
    pub(crate) fn has_anon(&self, va: VirtAddr) -> bool {
        let key = self.key(va);
        let above = self.amap.as_ref();
        above.is_some_and(|amap| amap.count(key..key + 1) > 0)
    }
}
