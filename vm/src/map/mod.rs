//! Address spaces: a map of entries over a pmap (`uvm.txt` 3). The lock order is in `lib.rs`.
//!
//! - `request`: what callers ask of a map, and the errors; `layout`: the layout of an address
//!   space; `policy`: overcommit and the limit of entries; `large`: which memory may be in large
//!   pages.
//! - `entry`: one mapping; `entries`: the table of them; `space`: the table with its sums, limits
//!   and the search for free addresses: all that the map's lock guards.
//! - `change`: maps locked to be changed; `unflushed`: ranges that were unmapped or protected and
//!   are not flushed yet.
//! - This file: map, unmap and protect; `fork`, `heap` (`brk` and stacks), `remap` (`mremap`),
//!   `wire` (`mlock`), `detach` (`shmdt`), `widen`, `shown`, `small`: the other operations.

mod audit;
mod change;
mod detach;
mod entries;
mod entry;
mod fork;
mod heap;
mod history;
mod large;
mod layout;
mod policy;
mod remap;
mod request;
mod shown;
mod small;
mod space;
mod unflushed;
mod widen;
mod wire;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use nucleus::{
    PAGE_SHIFT, Pmap, Prot, VirtAddr, VirtRange,
    addr::{USER_END, USER_START},
    frame,
    pmap::{Pending, PmapRef},
    sync::CpuRwLock,
    task::WaitQueue,
};

use crate::chunks::{Registry, Token};
use crate::object::Anonymous;
pub use audit::audit_page_tables;
pub(crate) use change::{Change, Pair};
pub(crate) use entry::{MapEntry, ObjectRef};
pub use fork::set_shared_tables;
pub use history::History;
pub use large::{LargePages, large_pages, set_large_pages};
pub(crate) use large::{Phase, SPAN, span_around};
pub use layout::{Layout, Randomness};
pub(crate) use policy::check_overcommit;
pub use policy::{Overcommit, max_entries, overcommit, set_max_entries, set_overcommit};
pub use request::{
    Advice, Backing, Entry, Fault, Inherit, LargeAdvice, Limits, Lock, MapError, MapRequest, Place,
    Sizes,
};
pub(crate) use space::Space;
pub use space::locked_pages;
use unflushed::Unflushed;
pub(crate) use widen::{make_sole, widen_run};

/// The pmaps of all address spaces; the pagedaemon weighs them from time to time.
pub(crate) static SPACES: Registry<PmapRef> = Registry::new(&NO_MARKS);
static NO_MARKS: AtomicUsize = AtomicUsize::new(0);

/// An address space: entries over a [`Pmap`]. All methods may be called by any task.
pub struct Map {
    pub(crate) pmap: PmapRef,
    pub(crate) space: CpuRwLock<Space>,
    /// Ranges of which TLBs may hold more than the entries allow.
    pub(crate) unflushed: Unflushed,
    /// The pmap's place in [`SPACES`].
    token: Token,
    /// Whether all new mappings are locked: a copy of the space's setting that is read without the
    /// lock.
    pub(crate) locks_future: AtomicBool,
    /// Pins of pages that a device writes, and forks that wait for them to end
    /// ([`PinnedPages`](crate::PinnedPages)).
    pub(crate) write_pins: AtomicUsize,
    /// Pages were lent or received.
    pub(crate) moves: AtomicBool,
    /// Forks that wait for the pins to end, and that new pins wait for: otherwise pins of several
    /// threads, none of them long, could keep a fork waiting for ever.
    pub(crate) waiting_forks: AtomicUsize,
    /// Woken when there are no pins any more, and when a waiting fork has its turn.
    pub(crate) unpinned: WaitQueue,
    /// What became of pages that it lent, and of those that it received.
    pub(crate) lent: History,
    pub(crate) received: History,
}

/// Rounds `len` up to pages.
///
/// # Errors
/// [`MapError::Invalid`] for 0, [`MapError::NoMemory`] on overflow.
pub(crate) fn whole_pages(len: usize) -> Result<usize, MapError> {
    match VirtAddr(len).page_ceil() {
        Some(VirtAddr(0)) => Err(MapError::Invalid),
        Some(VirtAddr(len)) => Ok(len),
        None => Err(MapError::NoMemory),
    }
}

/// Rounds the end of `range` up to a page boundary.
///
/// # Errors
/// [`MapError::Invalid`] if it does not start at a page boundary, [`MapError::NotMapped`] if it
/// ends above user space.
pub(crate) fn page_range(range: VirtRange) -> Result<VirtRange, MapError> {
    if !range.start.is_page_aligned() {
        return Err(MapError::Invalid);
    }
    match range.end.page_ceil() {
        Some(end) if end <= USER_END => Ok(VirtRange::new(range.start, end)),
        _ => Err(MapError::NotMapped),
    }
}

impl Map {
    /// Returns an empty address space.
    ///
    /// # Errors
    /// [`MapError::NoMemory`].
    pub fn new(limits: Limits, randomness: Randomness) -> Result<Arc<Map>, MapError> {
        Map::with_layout(limits, Layout::new(limits.stack, randomness))
    }

    /// Returns an empty address space with this layout.
    ///
    /// # Errors
    /// [`MapError::NoMemory`].
    pub fn with_layout(limits: Limits, layout: Layout) -> Result<Arc<Map>, MapError> {
        Map::with_space(Space::new(layout, limits))
    }

    pub(crate) fn with_space(space: Space) -> Result<Arc<Map>, MapError> {
        Map::with_pmap(Pmap::new()?, space)
    }

    /// Returns an address space of these entries and their mappings.
    pub(crate) fn with_pmap(pmap: PmapRef, space: Space) -> Result<Arc<Map>, MapError> {
        if frame::is_scarce() {
            return Err(MapError::NoMemory);
        }
        let map = Map {
            pmap,
            space: CpuRwLock::new(crate::rank::MAP, space)?,
            unflushed: Unflushed::new(),
            locks_future: AtomicBool::new(false),
            write_pins: AtomicUsize::new(0),
            moves: AtomicBool::new(false),
            waiting_forks: AtomicUsize::new(0),
            unpinned: WaitQueue::new(),
            lent: History::default(),
            received: History::default(),
            token: Token::new(),
        };
        SPACES.enroll(&map.pmap, &map.token);
        Ok(Arc::new(map))
    }

    /// The pmap, for [`nucleus::task::set_pmap`].
    pub fn pmap(&self) -> &PmapRef {
        &self.pmap
    }

    /// Returns the layout of the address space.
    pub fn layout(&self) -> Layout {
        self.space.read().layout
    }

    /// Enters a mapping in one step (`uvm.txt` 3.1). Returns its range, and whether its pages are
    /// to be brought in at once.
    ///
    /// # Errors
    /// As [`MapError`] says; nothing has changed then.
    pub(crate) fn establish(&self, request: &MapRequest) -> Result<(VirtRange, bool), MapError> {
        let len = whole_pages(request.len)?;
        if frame::is_scarce() {
            return Err(MapError::NoMemory);
        }
        let private_data = !request.shared && request.prot.contains(Prot::WRITE);
        if private_data && !request.no_reserve {
            check_overcommit(len)?;
        }
        let phase = request.phase(len);
        let writable = request.shared && request.max_prot.contains(Prot::WRITE);
        let object = match &request.backing {
            Backing::Zero if !request.shared => None,
            Backing::Zero => {
                let memory = Anonymous::new((len >> PAGE_SHIFT) as u64)?;
                Some(ObjectRef::new(memory, 0, writable))
            }
            Backing::Object { pager, offset } => {
                if !offset.is_multiple_of(1 << PAGE_SHIFT)
                    || offset.checked_add(len as u64).is_none()
                {
                    return Err(MapError::Invalid);
                }
                Some(ObjectRef::new(
                    pager.clone(),
                    offset >> PAGE_SHIFT,
                    writable,
                ))
            }
        };
        let mut space = self.change_unflushed();
        let pages = len >> PAGE_SHIFT;
        let replaced = match request.place {
            Place::Fixed(start) | Place::FixedOverStaying(start)
                if start <= USER_END - len.min(USER_END.0) =>
            {
                space.mapped_pages(VirtRange::new(start, start + len))
            }
            _ => 0,
        };
        space.check_limits(pages - replaced, if private_data { pages } else { 0 })?;
        let lock = match request.stays {
            true => request.lock,
            false => request.lock.max(space.lock_future),
        };
        if lock != Lock::None {
            space.check_locked(pages)?;
        }
        let phase = phase.filter(|_| !space.layout.is_32_bits());
        let start = self.make_room(&mut space, request.place, len, phase)?;
        let range = VirtRange::new(start, start + len);
        let mut entry = MapEntry::new(range, request, lock, object);
        // With an amap, the first fault does not write-lock the map, which threads share. Larger
        // ones may be filled by large pages, or reserved and hardly used.
        if private_data && entry.object.is_none() && len < SPAN && self.pmap.is_used_elsewhere() {
            entry.ensure_amap(start);
        }
        space.insert(entry);
        Ok((range, request.populate || lock == Lock::Full))
    }

    /// Finds a place for `len` bytes; removes and flushes what is mapped at a fixed place. The
    /// caller has checked the limits. `phase` is the preferred alignment where any place is
    /// acceptable.
    pub(crate) fn make_room(
        &self,
        space: &mut Change<'_>,
        place: Place,
        len: usize,
        phase: Option<Phase>,
    ) -> Result<VirtAddr, MapError> {
        let range = self.find_place(space, place, len, phase)?;
        let replaces = matches!(place, Place::Fixed(_) | Place::FixedOverStaying(_));
        if replaces && space.has_any(range) {
            self.take_range(space, range)?;
        }
        Ok(range.start)
    }

    /// As [`make_room`](Map::make_room), but removes nothing. The place is flushed.
    pub(crate) fn find_place(
        &self,
        space: &mut Change<'_>,
        place: Place,
        len: usize,
        phase: Option<Phase>,
    ) -> Result<VirtRange, MapError> {
        space.allow_more()?;
        let mut result = self.place_in(space, place, len, phase);
        if result == Err(MapError::NoMemory) {
            // The search skips what is unflushed.
            self.unflushed.wait_for_all();
            result = self.place_in(space, place, len, phase);
        }
        if result == Err(MapError::NoMemory) && self.make_large_for(space, place, len) {
            result = self.place_in(space, place, len, phase);
        }
        self.unflushed.wait_for(result?);
        result
    }

    /// As [`find_place`](Map::find_place) in the layout as it is.
    fn place_in(
        &self,
        space: &mut Space,
        place: Place,
        len: usize,
        phase: Option<Phase>,
    ) -> Result<VirtRange, MapError> {
        let last = space.layout.end;
        let at = |start: VirtAddr| {
            let end = start.checked_add(len).filter(|&end| end <= last);
            let end = end.ok_or(MapError::NoMemory)?;
            match start.is_page_aligned() && start >= USER_START {
                true => Ok(VirtRange::new(start, end)),
                false => Err(MapError::Invalid),
            }
        };
        match place {
            Place::Fixed(start) => return at(start),
            Place::FixedNoReplace(start) => {
                return match space.has_any(at(start)?) {
                    false => at(start),
                    true => Err(MapError::Exists),
                };
            }
            Place::FixedOverStaying(start) => {
                let range = at(start)?;
                return match space.overlapping(range).all(|entry| entry.stays) {
                    true => Ok(range),
                    false => Err(MapError::Exists),
                };
            }
            Place::Hint(start) => {
                if let Ok(range) = at(start.page_floor())
                    && space.is_free(range)
                {
                    return Ok(range);
                }
            }
            Place::Any => {}
        }
        let start = space.find_room(len, phase, &self.unflushed);
        let start = start.ok_or(MapError::NoMemory)?;
        Ok(VirtRange::new(start, start + len))
    }

    /// Locks the map to change it. Nothing is unflushed.
    pub(crate) fn change(&self) -> Change<'_> {
        let space = self.change_unflushed();
        self.unflushed.wait_for_all();
        space
    }

    /// Locks the map to change it while ranges may be [unflushed](Unflushed). The caller waits for
    /// the ranges that it changes, and maps only at a place that
    /// [`find_place`](Map::find_place) has returned.
    pub(crate) fn change_unflushed(&self) -> Change<'_> {
        self.space.write().into()
    }

    /// The first phase of unmap: removes the entries of `range` and their translations.
    pub(crate) fn take_range(
        &self,
        space: &mut Change<'_>,
        range: VirtRange,
    ) -> Result<(), MapError> {
        space.clip_range(range)?;
        space.take(range);
        let mut pending = Pending::new();
        self.pmap.remove(range, &mut pending);
        pending.flush();
        Ok(())
    }

    /// Unmaps the range in two phases (`uvm.txt` 3.1): entries and translations with the map
    /// locked, then the references to amaps and objects with the map unlocked. The flush belongs to
    /// the second phase if only private anonymous memory is unmapped, see [`Unflushed`]: no other
    /// code relies on its absent translations being flushed once its entries are gone.
    ///
    /// # Errors
    /// [`MapError::Invalid`] if the range is empty, unaligned or not in user space;
    /// [`MapError::NoMemory`] if an entry cannot be split.
    pub fn unmap(&self, range: VirtRange) -> Result<(), MapError> {
        let range = page_range(range).map_err(|_| MapError::Invalid)?;
        if range.is_empty() {
            return Err(MapError::Invalid);
        }
        let mut space = self.change_unflushed();
        // Another thread may be unmapping a part of it.
        self.unflushed.wait_for(range);
        let (mut is_mapped, mut may_flush_unlocked) = (false, true);
        for entry in space.overlapping(range) {
            is_mapped = true;
            may_flush_unlocked &= entry.is_private_anonymous();
        }
        if !is_mapped {
            return Ok(());
        }
        space.clip_range(range)?;
        space.take(range);
        let mut pending = Pending::new();
        self.pmap.remove(range, &mut pending);
        self.unlock_and_flush(space, range, may_flush_unlocked, &mut pending);
        Ok(())
    }

    /// Ends a change of `range`: flushes, unlocks the map, and drops what the change took out of
    /// it. If it `may_flush_unlocked`, the flush comes after the map is unlocked: but not if the
    /// pmap has left a page table that it shared, which takes away mappings outside of the range as
    /// well, that faults replace without a flush.
    #[inline]
    fn unlock_and_flush(
        &self,
        space: Change<'_>,
        range: VirtRange,
        may_flush_unlocked: bool,
        pending: &mut Pending,
    ) {
        let is_late = may_flush_unlocked
            && pending.concerns_others()
            && !pending.has_shares()
            && !self.is_small();
        match is_late.then(|| self.unflushed.note(range)).flatten() {
            Some(note) => {
                let removed = space.unlock();
                pending.flush();
                drop(note);
                drop(removed);
            }
            None => pending.flush(),
        }
    }

    /// Changes the protection of a range that is mapped completely. Rights that are removed are
    /// gone on return. Rights that are added take effect by faults, except the right to write
    /// private pages, which garbage collectors and checkpoints remove and add frequently. The flush
    /// is as for [`unmap`](Map::unmap).
    ///
    /// # Errors
    /// [`MapError::Invalid`], [`MapError::NotMapped`] or [`MapError::Access`], with nothing
    /// changed; [`MapError::NoMemory`].
    pub fn protect(&self, range: VirtRange, prot: Prot) -> Result<(), MapError> {
        let range = page_range(range)?;
        if range.is_empty() {
            return Ok(());
        }
        let mut pending = Pending::new();
        let mut space = self.change_unflushed();
        // Another thread may be changing a part of it.
        self.unflushed.wait_for(range);
        let mut more_data = 0;
        let mut may_flush_unlocked = true;
        let mut mapped_to = range.start;
        for entry in space.overlapping(range) {
            if entry.range.start > mapped_to {
                return Err(MapError::NotMapped);
            }
            mapped_to = entry.range.end;
            may_flush_unlocked &= entry.is_private_anonymous();
            if !entry.max_prot.contains(prot) {
                return Err(MapError::Access);
            }
            let becomes_data = !entry.shared && !entry.grows_down && prot.contains(Prot::WRITE);
            if becomes_data && !entry.is_data() {
                let len = entry.range.intersect(range).len();
                more_data += len >> PAGE_SHIFT;
                if !entry.no_reserve {
                    check_overcommit(len)?;
                }
            }
        }
        if mapped_to < range.end {
            return Err(MapError::NotMapped);
        }
        space.check_limits(0, more_data)?;
        space.clip_range(range)?;
        let mut at = range.start;
        while at < range.end
            && let Some(entry) = space.lookup(at)
        {
            at = entry.range.end;
            if entry.prot != prot {
                if !prot.contains(entry.prot) {
                    self.pmap.protect(entry.range, prot, &mut pending);
                }
                let start = entry.range.start;
                let may_widen = prot.contains(Prot::WRITE) && !entry.prot.is_empty();
                space.replace(start, |entry| entry.prot = prot);
                if may_widen && let Some(entry) = space.lookup(start) {
                    widen::widen(&self.pmap, entry, entry.range);
                }
            }
        }
        space.join_around(range);
        self.unlock_and_flush(space, range, may_flush_unlocked, &mut pending);
        Ok(())
    }

    /// Unmaps everything without a flush: no task runs in the address space any more.
    pub fn tear_down(&self) {
        let entries = {
            let mut space = self.space.write();
            self.pmap.tear_down();
            space.take_all()
        };
        if self.moves.load(Relaxed) {
            let first = entries.ending_above(VirtAddr(0));
            entries.from(first).for_each(MapEntry::end);
        }
        drop(entries);
    }

    /// Calls `f` for each entry, in order of address. `f` must not access memory that this map
    /// maps.
    pub fn for_each_entry(&self, f: &mut dyn FnMut(&Entry)) {
        let space = self.space.read();
        for entry in space.iter() {
            f(&self.describe(&space, entry));
        }
    }

    /// Returns a description of the entry at `va`.
    pub fn entry_at(&self, va: VirtAddr) -> Option<Entry> {
        let space = self.space.read();
        space.lookup(va).map(|entry| self.describe(&space, entry))
    }

    pub(crate) fn describe(&self, space: &Space, entry: &MapEntry) -> Entry {
        let anonymous_pages = match &entry.amap {
            Some(amap) => amap.count(entry.keys(entry.range)),
            None => 0,
        };
        Entry {
            range: entry.range,
            prot: entry.prot,
            max_prot: entry.max_prot,
            shared: entry.shared,
            grows_down: entry.grows_down,
            lock: entry.lock,
            inherit: entry.inherit,
            shares_anonymous: entry.shares_amap(),
            backing: match &entry.object {
                None => Backing::Zero,
                Some(object) => Backing::Object {
                    pager: object.pager.clone(),
                    offset: object.first << PAGE_SHIFT,
                },
            },
            label: entry.label,
            large_eligible: space.may_be_large && entry.is_eligible(),
            large: entry.large,
            resident_pages: self.pmap.resident_in(entry.range),
            anonymous_pages,
        }
    }

    /// Returns the largest total of pages so far ([`Sizes::peak`]) without reading page tables.
    pub fn peak(&self) -> usize {
        self.space.read().peak
    }

    /// Returns sizes for `/proc` and `getrusage`.
    pub fn sizes(&self) -> Sizes {
        let resident = self.pmap.resident();
        let space = self.space.read();
        let shared_resident = space
            .iter()
            .filter(|entry| entry.object.is_some())
            .map(|entry| self.pmap.resident_in(entry.range))
            .sum();
        Sizes {
            total: space.sums.total,
            peak: space.peak,
            resident: resident.pages,
            data: space.sums.data,
            stack: space.sums.stack,
            text: space.sums.text,
            locked: space.sums.locked,
            shared_resident,
            page_tables: resident.page_tables,
            entries: space.count(),
        }
    }

    /// Sets the limits to what `limits` gives under the map's lock: the last of several callers
    /// sets the newest ones.
    pub fn set_limits(&self, limits: impl FnOnce() -> Limits) {
        self.space.write().limits = limits();
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // Without a reference to the map, no task runs in it.
        self.tear_down();
        SPACES.withdraw(&mut self.token, 0);
    }
}
