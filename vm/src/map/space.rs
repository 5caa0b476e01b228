//! The data under the map's lock: the entries, their sums and limits, and the search for free
//! addresses.

use crate::counters::Counter;
use alloc::boxed::Box;
use core::mem::take;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use nucleus::{PAGE_SHIFT, VirtAddr, VirtRange, addr::USER_START, frame};

use super::entries::{Entries, FIRST, Position};
use super::entry::{MapEntry, Removed};
use super::large::{Phase, SPAN};
use super::layout::{GUARD_GAP, Layout};
use super::policy::max_entries;
use super::request::{Limits, Lock, MapError};
use super::unflushed::Unflushed;

/// The entries and their common state.
pub(crate) struct Space {
    /// Neither overlapping nor empty.
    entries: Entries,
    pub layout: Layout,
    pub limits: Limits,
    /// From the heap's start to the current break; not page-aligned.
    pub heap: VirtRange,
    pub sums: Sums,
    /// The largest [`Sums::total`] so far.
    pub peak: usize,
    /// How new entries are locked.
    pub lock_future: Lock,
    /// The limit for locked pages does not apply.
    pub may_lock_all: bool,
    /// Large pages may be made.
    pub may_be_large: bool,
    /// The search for any place.
    anywhere: Search,
    /// The search for places aligned for large pages. Separate, so that each continues where it
    /// stopped.
    aligned: Search,
}

/// Pages of locked entries of all maps.
static LOCKED: AtomicUsize = AtomicUsize::new(0);

/// Returns the pages of locked entries of all maps.
pub fn locked_pages() -> usize {
    LOCKED.load(Relaxed)
}

/// Adjusts the count of pages in locked entries.
fn count_locked(pages: usize, add: bool) {
    match add {
        true => LOCKED.fetch_add(pages, Relaxed),
        false => LOCKED.fetch_sub(pages, Relaxed),
    };
}

/// Where a search for free addresses continues.
#[derive(Clone, Copy)]
struct Search {
    /// No hole above this address is larger than `hole`.
    from: usize,
    /// Bytes.
    hole: usize,
}

impl Search {
    /// Returns a search that starts at `top`, downwards.
    fn new(top: VirtAddr) -> Search {
        Search {
            from: top.0,
            hole: 0,
        }
    }
}

/// The highest place for `len` bytes that ends at or below `top`.
fn below_top(top: usize, len: usize, phase: Option<Phase>) -> Option<usize> {
    let start = top.checked_sub(len)?;
    match phase {
        None => Some(start),
        Some(Phase(phase)) => start.checked_sub(start.wrapping_sub(phase) % SPAN),
    }
}

/// The bytes that fit between `end` and `top`.
fn room(end: usize, top: usize, phase: Option<Phase>) -> usize {
    let first = match phase {
        None => end,
        Some(Phase(phase)) => end.saturating_add(phase.wrapping_sub(end) % SPAN),
    };
    top.saturating_sub(first)
}

/// A place that a search has found.
struct Found {
    start: usize,
    /// Bytes free above it in its hole that were passed over.
    above: usize,
}

/// Finds the highest place for `len` bytes in a hole, outside of what is `unflushed`.
#[inline]
fn place_below(
    end: usize,
    top: usize,
    len: usize,
    phase: Option<Phase>,
    unflushed: &Unflushed,
) -> Option<Found> {
    let mut below = top;
    loop {
        let start = below_top(below, len, phase).filter(|&start| start >= end)?;
        let range = VirtRange::new(VirtAddr(start), VirtAddr(start + len));
        match unflushed.overlapping(range) {
            None => {
                return Some(Found {
                    start,
                    above: top - below,
                });
            }
            Some(range) => below = range.start.0,
        }
    }
}

/// Sums over entries, in pages.
#[derive(Default)]
pub(crate) struct Sums {
    pub total: usize,
    pub data: usize,
    pub stack: usize,
    pub text: usize,
    pub locked: usize,
}

impl Sums {
    fn of(entry: &MapEntry) -> Sums {
        let pages = entry.pages();
        let counts = |counts: bool| if counts { pages } else { 0 };
        Sums {
            total: pages,
            data: counts(entry.is_data()),
            stack: counts(entry.grows_down),
            text: counts(entry.is_text()),
            locked: counts(entry.is_locked()),
        }
    }
}

impl Space {
    /// Returns a space without entries.
    pub fn new(layout: Layout, limits: Limits) -> Space {
        Space {
            entries: Entries::new(),
            layout,
            limits,
            heap: VirtRange::default(),
            sums: Sums::default(),
            peak: 0,
            lock_future: Lock::None,
            may_lock_all: false,
            may_be_large: true,
            anywhere: Search::new(layout.mmap_top),
            aligned: Search::new(layout.mmap_top),
        }
    }

    /// Returns a space without entries that is otherwise like this one.
    pub fn sibling(&self) -> Space {
        Space {
            heap: self.heap,
            may_be_large: self.may_be_large,
            anywhere: self.anywhere,
            aligned: self.aligned,
            ..Space::new(self.layout, self.limits)
        }
    }

    /// Gives the space another layout, which has all its entries.
    pub fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
        self.anywhere = Search::new(layout.mmap_top);
        self.aligned = Search::new(layout.mmap_top);
    }

    /// The number of entries.
    pub fn count(&self) -> usize {
        self.entries.count()
    }

    /// The position of the entry at `va`.
    #[inline]
    fn find(&self, va: VirtAddr) -> Option<(Position, &MapEntry)> {
        let at = self.entries.floor(va)?;
        let entry = self.entries.get(at)?;
        (va < entry.range.end).then_some((at, entry))
    }

    /// The entry at `va`.
    #[inline]
    pub fn lookup(&self, va: VirtAddr) -> Option<&MapEntry> {
        Some(self.find(va)?.1)
    }

    /// The entry at `va`, mutable except for its range and sizes.
    pub fn lookup_mut(&mut self, va: VirtAddr) -> Option<&mut MapEntry> {
        let at = self.find(va)?.0;
        self.entries.get_mut(at)
    }

    /// The first entry that ends above `va`.
    pub fn at_or_above(&self, va: VirtAddr) -> Option<&MapEntry> {
        self.entries.get(self.entries.ending_above(va))
    }

    /// The position of the last entry that starts below `va`.
    #[inline]
    pub fn find_below(&self, va: VirtAddr) -> Option<Position> {
        self.entries.floor(VirtAddr(va.0.checked_sub(1)?))
    }

    /// The last entry that starts below `va`.
    pub fn below(&self, va: VirtAddr) -> Option<&MapEntry> {
        self.entries.get(self.find_below(va)?)
    }

    /// All entries, by address.
    pub fn iter(&self) -> impl Iterator<Item = &MapEntry> {
        self.entries.from(FIRST)
    }

    /// All entries, by address, mutable except for their ranges.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut MapEntry> {
        self.entries.rest_mut(FIRST)
    }

    /// The entries that overlap `range`, by address.
    #[inline]
    pub fn overlapping(&self, range: VirtRange) -> impl Iterator<Item = &MapEntry> {
        let first = self.entries.ending_above(range.start);
        let entries = self.entries.from(first);
        entries.take_while(move |entry| entry.range.start < range.end)
    }

    /// Returns whether an entry overlaps `range`.
    #[inline]
    pub fn has_any(&self, range: VirtRange) -> bool {
        let first = self.at_or_above(range.start);
        first.is_some_and(|entry| entry.range.start < range.end)
    }

    /// As [`overlapping`](Space::overlapping), mutable except for their ranges.
    pub fn overlapping_mut(&mut self, range: VirtRange) -> impl Iterator<Item = &mut MapEntry> {
        let first = self.entries.ending_above(range.start);
        let entries = self.entries.rest_mut(first);
        entries.take_while(move |entry| entry.range.start < range.end)
    }

    /// Checks whether every page of `range` is mapped.
    ///
    /// # Errors
    /// [`MapError::NotMapped`].
    pub fn check_mapped(&self, range: VirtRange) -> Result<(), MapError> {
        self.check_each(range, |_| Ok(()))
    }

    /// Checks each entry of `range`, in order.
    ///
    /// # Errors
    /// That of the first entry that `check` refuses; [`MapError::NotMapped`] for a gap before it.
    pub fn check_each(
        &self,
        range: VirtRange,
        check: impl Fn(&MapEntry) -> Result<(), MapError>,
    ) -> Result<(), MapError> {
        let mut at = range.start;
        for entry in self.overlapping(range) {
            if entry.range.start > at {
                break;
            }
            check(entry)?;
            at = entry.range.end;
        }
        (at >= range.end).then_some(()).ok_or(MapError::NotMapped)
    }

    /// The number of mapped pages in `range`.
    pub fn mapped_pages(&self, range: VirtRange) -> usize {
        self.overlapping(range)
            .map(|entry| entry.range.intersect(range).len() >> PAGE_SHIFT)
            .sum()
    }

    fn account(&mut self, sizes: Sums, add: bool) {
        let sums = &mut self.sums;
        let change = |sum: &mut usize, pages: usize| match add {
            true => *sum += pages,
            false => *sum -= pages,
        };
        change(&mut sums.total, sizes.total);
        change(&mut sums.data, sizes.data);
        change(&mut sums.stack, sizes.stack);
        change(&mut sums.text, sizes.text);
        if sizes.locked != 0 {
            change(&mut sums.locked, sizes.locked);
            count_locked(sizes.locked, add);
        }
        self.peak = self.peak.max(sums.total);
    }

    /// Checks whether `pages` more, `data` of them private and writable, stay within the limits.
    pub fn check_limits(&self, pages: usize, data: usize) -> Result<(), MapError> {
        let over = |sum: usize, more: usize, limit: u64| {
            more != 0 && (sum as u64 + more as u64) > limit >> PAGE_SHIFT
        };
        if over(self.sums.total, pages, self.limits.address_space)
            || over(self.sums.data, data, self.limits.data)
        {
            return Err(MapError::NoMemory);
        }
        Ok(())
    }

    /// Checks whether `pages` more may be locked.
    ///
    /// # Errors
    /// [`MapError::Again`].
    pub fn check_locked(&self, pages: usize) -> Result<(), MapError> {
        match self.may_lock_all
            || (self.sums.locked + pages) as u64 <= self.limits.locked >> PAGE_SHIFT
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
        let Some((position, _)) = self.find(at).filter(|(_, entry)| entry.range.start != at) else {
            return Ok(());
        };
        self.allow_more()?;
        if let Some(entry) = self.entries.get_mut(position) {
            let upper = entry.split_off(at)?;
            Counter::map_entries.add(1);
            self.entries.insert(upper);
        }
        Ok(())
    }

    /// Makes both ends of `range` boundaries between entries.
    pub fn clip_range(&mut self, range: VirtRange) -> Result<(), MapError> {
        self.clip(range.start)?;
        self.clip(range.end)
    }

    /// About how many pages of the kernel's memory the entries take.
    pub fn pages_of_entries(&self) -> usize {
        self.entries.pages()
    }

    /// Checks whether another entry is allowed, and makes room for the few of one change.
    ///
    /// # Errors
    /// [`MapError::NoMemory`], also while memory is scarce.
    pub fn allow_more(&mut self) -> Result<(), MapError> {
        self.allow(1)
    }

    /// Checks whether so many more entries are allowed, and makes room for them and for the few of
    /// one change.
    ///
    /// # Errors
    /// [`MapError::NoMemory`], also while memory is scarce.
    #[inline]
    pub fn allow(&mut self, more: usize) -> Result<(), MapError> {
        if self.count() + more > max_entries() || frame::is_scarce() {
            return Err(MapError::NoMemory);
        }
        self.entries.reserve(more).map_err(|_| MapError::NoMemory)
    }

    pub fn insert(&mut self, entry: impl Into<Box<MapEntry>>, removed: &mut Removed) {
        let entry = entry.into();
        Counter::map_entries.add(1);
        self.account(Sums::of(&entry), true);
        let start = entry.range.start;
        let at = self.entries.insert(entry);
        let first = self.entries.before(at).unwrap_or(at);
        self.join_from(first, start, removed);
    }

    /// Appends an entry above all others, without joining it.
    pub fn append(&mut self, entry: MapEntry) {
        Counter::map_entries.add(1);
        self.account(Sums::of(&entry), true);
        self.entries.insert(entry);
    }

    /// Joins entries from `at` on where possible, up to the first that ends above `end`.
    pub fn join_from(&mut self, mut at: Position, end: VirtAddr, removed: &mut Removed) {
        while let Some(entry) = self.entries.get(at) {
            let behind = self.entries.after(at);
            let Some(next) = self.entries.get(behind) else {
                break;
            };
            if entry.can_join(next) {
                let start = entry.range.start;
                if let Some(mut next) = self.entries.remove(behind)
                    && let Some(found) = self.entries.floor(start)
                    && let Some(entry) = self.entries.get_mut(found)
                {
                    entry.join(&mut next, removed);
                    at = found;
                }
                continue;
            }
            if entry.range.end > end || next.range.start > end {
                break;
            }
            at = behind;
        }
    }

    /// Moves the entries of `range`, whose ends are boundaries, to `removed`.
    pub fn take_to(&mut self, range: VirtRange, removed: &mut Removed) {
        self.take_each(range, |entry| removed.put(Some(entry)));
    }

    /// Takes the entries of `range`, whose ends are boundaries, out, by address.
    pub fn take_each(&mut self, range: VirtRange, mut f: impl FnMut(Box<MapEntry>)) {
        let mut at = self.entries.ending_above(range.start);
        while let Some(entry) = self.entries.get(at)
            && entry.range.start < range.end
        {
            let sizes = Sums::of(entry);
            self.account(sizes, false);
            if let Some(entry) = self.entries.remove(at) {
                f(entry);
            }
            at = self.entries.ending_above(range.start);
        }
        self.freed(range);
    }

    /// Removes all entries.
    pub fn take_all(&mut self) -> Entries {
        count_locked(take(&mut self.sums).locked, false);
        take(&mut self.entries)
    }

    /// Changes the entry that starts at `start`, possibly its range or sizes.
    pub fn replace(&mut self, start: VirtAddr, change: impl FnOnce(&mut MapEntry)) {
        let Some((at, _)) = self
            .find(start)
            .filter(|(_, entry)| entry.range.start == start)
        else {
            return;
        };
        let Some(entry) = self.entries.get_mut(at) else {
            return;
        };
        let before = Sums::of(entry);
        change(entry);
        let (after, starts) = (Sums::of(entry), entry.range.start);
        self.account(before, false);
        self.account(after, true);
        if starts != start {
            self.entries.moved(at);
        }
    }

    /// The lowest address that must stay free below an entry.
    fn floor(entry: &MapEntry) -> usize {
        match entry.grows_down {
            true => entry.range.start.0.saturating_sub(GUARD_GAP),
            false => entry.range.start.0,
        }
    }

    /// Returns whether a mapping may be placed at `range`: in user space, free, and outside guard
    /// gaps.
    pub fn is_free(&self, range: VirtRange) -> bool {
        range.start >= USER_START
            && range.end <= self.layout.end
            && self
                .at_or_above(range.start)
                .is_none_or(|next| Space::floor(next) >= range.end.0)
    }

    /// Tells the searches that `range` became free.
    fn freed(&mut self, range: VirtRange) {
        if range.end.0 > self.anywhere.from.min(self.aligned.from) {
            let start = self.below(range.start).map_or(0, |e| e.range.end.0);
            let end = self
                .at_or_above(range.end)
                .map_or(self.layout.end.0, |e| e.range.start.0);
            for search in [&mut self.anywhere, &mut self.aligned] {
                if range.end.0 > search.from {
                    search.hole = search.hole.max(end - start);
                }
            }
        }
    }

    /// Finds room for `len` bytes: the highest below the top of mappings, else above it. A search
    /// continues where the last one stopped unless a hole above may suffice, so that a program that
    /// only adds mappings does not pay for those that it has. `phase` applies below the top.
    /// Skips what is `unflushed`.
    pub fn find_room(
        &mut self,
        len: usize,
        phase: Option<Phase>,
        unflushed: &Unflushed,
    ) -> Option<VirtAddr> {
        let mut search = match phase {
            None => self.anywhere,
            Some(_) => self.aligned,
        };
        let top = self.layout.mmap_top;
        if len <= search.hole {
            search = Search::new(top);
        }
        let look = |search: &mut Search| match phase {
            None => self.search(len, search, |end, top| top.saturating_sub(end)),
            Some(_) => self.search(len, search, |end, top| room(end, top, phase)),
        };
        let found = look(&mut search).or_else(|| {
            search = Search::new(top);
            look(&mut search)
        });
        let mut found = found.and_then(|top| below_top(top, len, phase));
        if let Some(start) = found
            && unflushed
                .overlapping(VirtRange::new(VirtAddr(start), VirtAddr(start + len)))
                .is_some()
        {
            found = self.find_flushed(start + len, len, phase, unflushed, &mut search);
        }
        if let Some(found) = found {
            search.from = found;
        }
        match phase {
            None => self.anywhere = search,
            Some(_) => self.aligned = search,
        }
        let found = found.map(VirtAddr);
        found.or_else(|| {
            let mut at = top;
            while at.checked_add(len)? <= self.layout.end {
                match self.at_or_above(at) {
                    Some(next) if Space::floor(next) < at.0 + len => at = next.range.end.max(at),
                    _ => match unflushed.overlapping(VirtRange::new(at, at + len)) {
                        Some(range) => at = range.end,
                        None => return Some(at),
                    },
                }
            }
            None
        })
    }

    /// Finds the highest place for `len` bytes below `top` outside of what is `unflushed`. Notes
    /// the room that it passes over.
    #[cold]
    fn find_flushed(
        &self,
        mut top: usize,
        len: usize,
        phase: Option<Phase>,
        unflushed: &Unflushed,
        search: &mut Search,
    ) -> Option<usize> {
        let mut next = self.find_below(VirtAddr(top));
        loop {
            let entry = next.and_then(|at| self.entries.get(at));
            let end = entry.map_or(USER_START.0, |entry| entry.range.end.0);
            if let Some(found) = place_below(end, top, len, phase, unflushed) {
                search.hole = search.hole.max(found.above);
                return Some(found.start);
            }
            // An unflushed hole is free soon.
            search.hole = search.hole.max(top.saturating_sub(end));
            let (Some(at), Some(entry)) = (next, entry) else {
                return None;
            };
            top = top.min(Space::floor(entry));
            next = self.entries.before(at);
        }
    }

    /// Finds the highest hole that has `room` for `len` bytes; returns its end.
    #[inline]
    fn search(
        &self,
        len: usize,
        from: &mut Search,
        room: impl Fn(usize, usize) -> usize,
    ) -> Option<usize> {
        let mut top = from.from;
        if let Some(above) = self.at_or_above(VirtAddr(top)) {
            top = top.min(Space::floor(above));
        }
        let mut hole = from.hole;
        let mut next = self.find_below(VirtAddr(top));
        while let Some(at) = next
            && let Some(entry) = self.entries.get(at)
        {
            let room = room(entry.range.end.0, top);
            if room >= len {
                from.hole = hole;
                return Some(top);
            }
            hole = hole.max(room);
            top = top.min(Space::floor(entry));
            next = self.entries.before(at);
        }
        from.hole = hole;
        (room(USER_START.0, top) >= len).then_some(top)
    }
}

#[cfg(all(test, not(target_os = "none")))]
mod tests {
    use super::*;

    /// Compares the search with one that tries every address of a small space.
    #[test]
    fn places_within_a_hole() {
        for end in (0..3 * SPAN).step_by(SPAN / 4) {
            for top in (end..4 * SPAN).step_by(SPAN / 4) {
                for phase in [None, Some(Phase(0)), Some(Phase(SPAN / 4))] {
                    for len in (SPAN / 4..3 * SPAN).step_by(SPAN / 4) {
                        let fits = |at: &usize| phase.is_none_or(|Phase(p)| at % SPAN == p);
                        let places = (end..=top.saturating_sub(len)).step_by(SPAN / 4);
                        let best = places.filter(fits).filter(|at| at + len <= top).max();
                        assert_eq!(best.is_some(), room(end, top, phase) >= len);
                        if best.is_some() {
                            assert_eq!(below_top(top, len, phase), best);
                        }
                    }
                }
            }
        }
    }

    /// As above, beside a range that is not flushed.
    #[test]
    fn places_beside_an_unflushed_range() {
        const STEP: usize = SPAN / 4;
        for noted in (0..4 * SPAN).step_by(STEP) {
            let range = VirtRange::new(VirtAddr(noted), VirtAddr(noted + 2 * STEP));
            let unflushed = Unflushed::new();
            // Not withdrawn: that is for tasks of a machine.
            core::mem::forget(unflushed.note(range));
            for top in (0..4 * SPAN).step_by(STEP) {
                for phase in [None, Some(Phase(0)), Some(Phase(STEP))] {
                    for len in (STEP..3 * SPAN).step_by(STEP) {
                        let fits = |at: &usize| phase.is_none_or(|Phase(p)| at % SPAN == p);
                        let is_flushed = |at: &usize| at + len <= noted || *at >= noted + 2 * STEP;
                        let places = (0..=top.saturating_sub(len)).step_by(STEP);
                        let places = places.filter(|at| at + len <= top);
                        let best = places.filter(fits).filter(is_flushed).max();
                        let found = place_below(0, top, len, phase, &unflushed);
                        assert_eq!(found.map(|found| found.start), best);
                    }
                }
            }
        }
    }
}
