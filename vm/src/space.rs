//! The entries of a map, in order: what the map's lock guards.

use alloc::collections::BTreeMap;
use nucleus::{PAGE_SHIFT, VirtAddr, VirtRange, addr::USER_START, counters::Counter};

use crate::entry::{MapEntry, Removed};
use crate::layout::{GUARD_GAP, Layout};
use crate::policy::max_entries;
use crate::request::{Limits, Lock, MapError};
use crate::wire;

/// The entries and what is known of all of them together.
pub(crate) struct Space {
    /// By start address; they do not overlap and none is empty.
    entries: BTreeMap<usize, MapEntry>,
    pub layout: Layout,
    pub limits: Limits,
    /// From the heap's start to the current break; not page-aligned.
    pub heap: VirtRange,
    /// Sums over the entries, in pages.
    pub total: usize,
    pub peak: usize,
    pub data: usize,
    pub stack: usize,
    pub text: usize,
    pub locked: usize,
    /// How entries that come are locked.
    pub lock_future: Lock,
    /// The limit for locked pages does not hold.
    pub may_lock_all: bool,
    /// Where the search for room starts: everything above has no hole greater than `hole`.
    search_from: usize,
    /// Bytes.
    hole: usize,
}

/// What an entry adds to the sums over all of them, in pages.
struct Sizes {
    total: usize,
    data: usize,
    stack: usize,
    text: usize,
    locked: usize,
}

impl Sizes {
    fn of(entry: &MapEntry) -> Sizes {
        let pages = entry.pages();
        let counts = |counts: bool| if counts { pages } else { 0 };
        Sizes {
            total: pages,
            data: counts(entry.is_data()),
            stack: counts(entry.grows_down),
            text: counts(entry.is_text()),
            locked: counts(entry.lock != Lock::None),
        }
    }
}

impl Space {
    /// No entries.
    pub fn new(layout: Layout, limits: Limits) -> Space {
        Space {
            entries: BTreeMap::new(),
            layout,
            limits,
            heap: VirtRange::default(),
            total: 0,
            peak: 0,
            data: 0,
            stack: 0,
            text: 0,
            locked: 0,
            lock_future: Lock::None,
            may_lock_all: false,
            search_from: layout.mmap_top.0,
            hole: 0,
        }
    }

    /// An empty space that is otherwise like this one.
    pub fn sibling(&self) -> Space {
        Space {
            heap: self.heap,
            search_from: self.search_from,
            hole: self.hole,
            ..Space::new(self.layout, self.limits)
        }
    }

    /// Entries.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// The entry at `va`.
    pub fn lookup(&self, va: VirtAddr) -> Option<&MapEntry> {
        let (_, entry) = self.entries.range(..=va.0).next_back()?;
        (va < entry.range.end).then_some(entry)
    }

    /// The entry at `va`, to change in a way that leaves its range and size class.
    pub fn lookup_mut(&mut self, va: VirtAddr) -> Option<&mut MapEntry> {
        let (_, entry) = self.entries.range_mut(..=va.0).next_back()?;
        (va < entry.range.end).then_some(entry)
    }

    /// The first entry that ends above `va`.
    pub fn at_or_above(&self, va: VirtAddr) -> Option<&MapEntry> {
        self.lookup(va)
            .or_else(|| Some(self.entries.range(va.0..).next()?.1))
    }

    /// The last entry that starts below `va`.
    pub fn below(&self, va: VirtAddr) -> Option<&MapEntry> {
        Some(self.entries.range(..va.0).next_back()?.1)
    }

    /// All entries, by address.
    pub fn iter(&self) -> impl Iterator<Item = &MapEntry> {
        self.entries.values()
    }

    /// All entries, by address, to change in a way that leaves their ranges.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut MapEntry> {
        self.entries.values_mut()
    }

    /// The entries that overlap `range`, by address.
    pub fn overlapping(&self, range: VirtRange) -> impl Iterator<Item = &MapEntry> {
        let first = self
            .lookup(range.start)
            .map_or(range.start, |e| e.range.start);
        let end = range.end.max(first).0;
        self.entries.range(first.0..end).map(|(_, entry)| entry)
    }

    /// As [`overlapping`](Space::overlapping), to change in a way that leaves their ranges.
    pub fn overlapping_mut(&mut self, range: VirtRange) -> impl Iterator<Item = &mut MapEntry> {
        let first = self
            .lookup(range.start)
            .map_or(range.start, |e| e.range.start);
        let end = range.end.max(first).0;
        self.entries.range_mut(first.0..end).map(|(_, entry)| entry)
    }

    /// Whether every page of `range` is mapped.
    pub fn is_mapped(&self, range: VirtRange) -> bool {
        let mut at = range.start;
        for entry in self.overlapping(range) {
            if entry.range.start > at {
                return false;
            }
            at = entry.range.end;
        }
        at >= range.end
    }

    /// Pages of `range` that are mapped.
    pub fn mapped_pages(&self, range: VirtRange) -> usize {
        self.overlapping(range)
            .map(|entry| entry.range.intersect(range).len() >> PAGE_SHIFT)
            .sum()
    }

    fn account(&mut self, sizes: Sizes, add: bool) {
        let change = |sum: &mut usize, pages: usize| match add {
            true => *sum += pages,
            false => *sum -= pages,
        };
        change(&mut self.total, sizes.total);
        change(&mut self.data, sizes.data);
        change(&mut self.stack, sizes.stack);
        change(&mut self.text, sizes.text);
        if sizes.locked != 0 {
            change(&mut self.locked, sizes.locked);
            wire::count_locked(sizes.locked, add);
        }
        self.peak = self.peak.max(self.total);
    }

    /// Whether `pages` more, `data` of them private and writable, would exceed a limit.
    pub fn check_limits(&self, pages: usize, data: usize) -> Result<(), MapError> {
        let over = |sum: usize, more: usize, limit: u64| {
            more != 0 && (sum as u64 + more as u64) > limit >> PAGE_SHIFT
        };
        if over(self.total, pages, self.limits.address_space)
            || over(self.data, data, self.limits.data)
        {
            return Err(MapError::NoMemory);
        }
        Ok(())
    }

    /// Whether `pages` more may be locked.
    ///
    /// # Errors
    /// [`MapError::Again`].
    pub fn check_locked(&self, pages: usize) -> Result<(), MapError> {
        match self.may_lock_all || (self.locked + pages) as u64 <= self.limits.locked >> PAGE_SHIFT
        {
            true => Ok(()),
            false => Err(MapError::Again),
        }
    }

    /// Makes `at` a boundary between entries.
    ///
    /// # Errors
    /// [`MapError::NoMemory`] if there is none for another entry; nothing has changed then.
    pub fn clip(&mut self, at: VirtAddr) -> Result<(), MapError> {
        let Some(start) = self.lookup(at).map(|entry| entry.range.start) else {
            return Ok(());
        };
        if start == at {
            return Ok(());
        }
        self.check_count()?;
        if let Some(entry) = self.entries.get_mut(&start.0) {
            let upper = entry.split_off(at)?;
            Counter::map_entries.add(1);
            self.entries.insert(at.0, upper);
        }
        Ok(())
    }

    /// Makes both ends of `range` boundaries between entries.
    pub fn clip_range(&mut self, range: VirtRange) -> Result<(), MapError> {
        self.clip(range.start)?;
        self.clip(range.end)
    }

    /// Whether another entry may come.
    pub fn check_count(&self) -> Result<(), MapError> {
        match self.count() < max_entries() {
            true => Ok(()),
            false => Err(MapError::NoMemory),
        }
    }

    /// Adds an entry where there is none, joining it with its neighbours if it can be.
    pub fn insert(&mut self, entry: MapEntry, removed: &mut Removed) {
        Counter::map_entries.add(1);
        self.account(Sizes::of(&entry), true);
        let start = entry.range.start;
        self.entries.insert(start.0, entry);
        self.join_around(VirtRange::new(start, start), removed);
    }

    /// Adds an entry above all others, as it is.
    pub fn append(&mut self, entry: MapEntry) {
        Counter::map_entries.add(1);
        self.account(Sizes::of(&entry), true);
        self.entries.insert(entry.range.start.0, entry);
    }

    /// Joins the entries that overlap or touch `range` where they can be.
    pub fn join_around(&mut self, range: VirtRange, removed: &mut Removed) {
        let Some(first) = self
            .below(range.start)
            .or_else(|| self.at_or_above(range.start))
        else {
            return;
        };
        let mut at = first.range.start;
        while let Some(entry) = self.entries.get(&at.0) {
            let end = entry.range.end;
            if let Some(next) = self.entries.get(&end.0)
                && entry.can_join(next)
            {
                if let Some(next) = self.entries.remove(&end.0)
                    && let Some(entry) = self.entries.get_mut(&at.0)
                {
                    entry.join(next, removed);
                }
                continue;
            }
            if end > range.end {
                break;
            }
            match self.entries.range(end.0..).next() {
                Some((_, next)) if next.range.start <= range.end => at = next.range.start,
                _ => break,
            }
        }
    }

    /// Takes the entries of `range`, whose ends are boundaries, out.
    pub fn take(&mut self, range: VirtRange, removed: &mut Removed) {
        while let Some((&start, _)) = self.entries.range(range.start.0..range.end.0).next() {
            if let Some(entry) = self.entries.remove(&start) {
                self.account(Sizes::of(&entry), false);
                removed.entries.push_back(entry);
            }
        }
        self.freed(range);
    }

    /// Takes all entries out.
    pub fn take_all(&mut self) -> BTreeMap<usize, MapEntry> {
        (self.total, self.data, self.stack, self.text) = (0, 0, 0, 0);
        wire::count_locked(core::mem::take(&mut self.locked), false);
        core::mem::take(&mut self.entries)
    }

    /// Changes an entry that starts at `start` in a way that may change its range or its sizes.
    pub fn replace(&mut self, start: VirtAddr, change: impl FnOnce(&mut MapEntry)) {
        let Some(entry) = self.entries.get_mut(&start.0) else {
            return;
        };
        let before = Sizes::of(entry);
        change(entry);
        let (after, starts) = (Sizes::of(entry), entry.range.start);
        self.account(before, false);
        self.account(after, true);
        if starts != start
            && let Some(entry) = self.entries.remove(&start.0)
        {
            self.entries.insert(starts.0, entry);
        }
    }

    /// The lowest address that must stay free below an entry.
    fn floor(entry: &MapEntry) -> usize {
        match entry.grows_down {
            true => entry.range.start.0.saturating_sub(GUARD_GAP),
            false => entry.range.start.0,
        }
    }

    /// Whether a mapping may go to `range`: inside the program's part, nothing there, no guard gap
    /// touched.
    pub fn is_free(&self, range: VirtRange) -> bool {
        range.start >= USER_START
            && range.end <= self.layout.end
            && self
                .at_or_above(range.start)
                .is_none_or(|next| Space::floor(next) >= range.end.0)
    }

    /// Notes that `range` became free, for the search.
    fn freed(&mut self, range: VirtRange) {
        if range.end.0 > self.search_from {
            let start = self.below(range.start).map_or(0, |e| e.range.end.0);
            let end = self
                .at_or_above(range.end)
                .map_or(self.layout.end.0, |e| e.range.start.0);
            self.hole = self.hole.max(end - start);
        }
    }

    /// Room for `len` bytes: the highest below the top of mappings, or above it if there is none. A
    /// search resumes where the last one ended unless a hole above may do, so a program that only
    /// maps more and more does not pay for what it has.
    pub fn find_room(&mut self, len: usize) -> Option<VirtAddr> {
        if len <= self.hole {
            self.search_from = self.layout.mmap_top.0;
            self.hole = 0;
        }
        let found = self.search(len).or_else(|| {
            self.search_from = self.layout.mmap_top.0;
            self.hole = 0;
            self.search(len)
        });
        found.or_else(|| {
            let mut at = self.layout.mmap_top;
            while at.checked_add(len)? <= self.layout.end {
                match self.at_or_above(at) {
                    Some(next) if Space::floor(next) < at.0 + len => at = next.range.end.max(at),
                    _ => return Some(at),
                }
            }
            None
        })
    }

    fn search(&mut self, len: usize) -> Option<VirtAddr> {
        let mut top = self.search_from;
        if let Some(above) = self.at_or_above(VirtAddr(top)) {
            top = top.min(Space::floor(above));
        }
        let mut hole = self.hole;
        let mut found = None;
        for (_, entry) in self.entries.range(..top).rev() {
            let room = top.saturating_sub(entry.range.end.0);
            if room >= len {
                found = Some(top - len);
                break;
            }
            hole = hole.max(room);
            top = top.min(Space::floor(entry));
        }
        if found.is_none() && top.saturating_sub(USER_START.0) >= len {
            found = Some(top - len);
        }
        self.hole = hole;
        self.search_from = found?;
        found.map(VirtAddr)
    }
}
