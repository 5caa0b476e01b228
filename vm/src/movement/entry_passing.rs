//! Map entry passing (`uvm.txt` 7): entries of one address space are copied, moved or shared into
//! another one, or into another place of the same one, without a look at their pages.
//!
//! ```text
//!                    private memory                       mapped as shared
//!   copy   needs-copy on both sides, as at a fork   a private mapping of the object
//!   share  one amap for both, as by `minherit`      a second mapping of the object
//!   move   the entry with its amap, and the page-table entries where they can move along
//! ```
//! Ranges are clipped first, so entries are passed as wholes: every anon of a shared or common amap
//! lies inside each entry that refers to it, as after a fork. Memory that is copy-on-write already
//! may be shared: the amap becomes the sharers' own, and a page that has further owners is replaced
//! for all sharers at once (`amap/shared_amap.rs`).
//!
//! *What is passed.* Rights, advice and inheritance go along; a copy is inherited as a copy. Locks
//! do not, as at a fork, unless an entry moves inside its own map; a receiver that locks all future
//! mappings locks these. A stack no longer grows. The kernel's own pages (`[vdso]`) are not passed.
//!
//! *Races.* Both maps are write-locked, the one at the lower address first, until all translations
//! that lose a right are flushed. No page of the source is pinned for a device's writes meanwhile:
//! they would reach pages that are copy-on-write or another program's. What is replaced at the
//! target is dropped when both locks are released.

use alloc::{boxed::Box, vec::Vec};
use nucleus::{PAGE_SHIFT, Prot, VirtAddr, VirtRange, frame, pmap::Pending};

use crate::counters::Counter;
use crate::map::{
    Inherit, LargePages, Lock, Map, MapEntry, MapError, Pair, Phase, Place, SPAN, check_overcommit,
    large_pages, page_range,
};

/// What becomes of map entries that are passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passing {
    /// The receiver gets a copy-on-write copy.
    Copy,
    /// The receiver gets them, and the sender's addresses are free.
    Move,
    /// Both have the same memory: each sees what the other writes.
    Share,
}

/// What the receiver gets.
#[derive(Default)]
struct Load {
    entries: usize,
    /// Private and writable pages.
    data: usize,
}

impl Load {
    /// Adds up the entries in `range`, which may all be passed.
    ///
    /// # Errors
    /// [`MapError::NotMapped`], [`MapError::Unsupported`], [`MapError::Invalid`] for a stack that
    /// grows and is to be shared, [`MapError::NoMemory`] for an obvious overcommit.
    fn of(maps: &mut Pair<'_>, range: VirtRange, how: Passing) -> Result<Load, MapError> {
        let source = maps.source();
        source.check_mapped(range)?;
        let mut load = Load::default();
        for entry in source.overlapping(range) {
            if entry.is_kernels() || entry.stays {
                return Err(MapError::Unsupported);
            }
            if how == Passing::Share && entry.grows_down {
                return Err(MapError::Invalid);
            }
            load.entries += 1;
            let is_private = !entry.shared || how == Passing::Copy;
            if is_private && entry.prot.contains(Prot::WRITE) {
                let len = entry.range.intersect(range).len();
                load.data += len >> PAGE_SHIFT;
                if how != Passing::Move && !entry.no_reserve {
                    check_overcommit(len)?;
                }
            }
        }
        Ok(load)
    }
}

impl Map {
    /// Passes the entries of `range` to `to`, which may be this map, and returns where they are
    /// there. Where the receiver locks them, their pages are brought in as long as `goes_on`
    /// returns true. May sleep; no lock is held.
    ///
    /// # Errors
    /// [`MapError::NotMapped`] if part of the range is not mapped; [`MapError::Invalid`] for an
    /// empty or unaligned range, for a place that overlaps it, and for sharing a stack that grows;
    /// [`MapError::Unsupported`] for pages of the kernel and mappings that stay; for the place, and
    /// for limits of the receiver, as [`map`](Map::map). Neither side has changed then, except that
    /// entries may have been split.
    pub fn pass_entries(
        &self,
        range: VirtRange,
        to: &Map,
        place: Place,
        how: Passing,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<VirtAddr, MapError> {
        let range = page_range(range)?;
        let overlaps = |start: VirtAddr| {
            let end = start.checked_add(range.len());
            end.is_none_or(|end| !VirtRange::new(start, end).intersect(range).is_empty())
        };
        let is_within = core::ptr::eq(self, to);
        match place {
            _ if range.is_empty() => return Err(MapError::Invalid),
            Place::Fixed(start) if is_within && overlaps(start) => return Err(MapError::Invalid),
            _ => {}
        }
        let mut maps = self.lock_to_pass(to);
        let result = self.pass_locked(&mut maps, range, to, place, how);
        maps.source().join_around(range);
        let (there, is_full) = result?;
        drop(maps);
        if is_full {
            // Pages for which memory is missing are left to later faults.
            let _ = to.populate_while(there, goes_on);
        }
        Ok(there.start)
    }

    /// Returns the new range, and whether its pages are to be brought in at once.
    fn pass_locked(
        &self,
        maps: &mut Pair<'_>,
        range: VirtRange,
        to: &Map,
        place: Place,
        how: Passing,
    ) -> Result<(VirtRange, bool), MapError> {
        let is_within = core::ptr::eq(self, to);
        let load = Load::of(maps, range, how)?;
        let keeps_lock = is_within && how == Passing::Move;
        let target = maps.target();
        let is_large = range.len() >= SPAN && large_pages() != LargePages::Off;
        let phase = Some(Phase(range.start.0 % SPAN));
        let phase = phase.filter(|_| is_large && !target.layout.is_32_bits());
        let there = to.find_place(target, place, range.len(), phase)?;
        if !keeps_lock {
            let pages = range.len() >> PAGE_SHIFT;
            let replaced = target.mapped_pages(there);
            target.check_limits(pages.saturating_sub(replaced), load.data)?;
            if target.lock_future != Lock::None {
                target.check_locked(pages)?;
            }
        }
        // From here on only memory can be missing.
        maps.source().clip_range(range)?;
        let target = maps.target();
        target.clip_range(there)?;
        target.allow(load.entries)?;
        let mut passed = Vec::new();
        passed
            .try_reserve_exact(load.entries)
            .map_err(|_| MapError::NoMemory)?;
        if how != Passing::Move
            && let Err(error) = self.copy_entries(maps, range, how, &mut passed)
        {
            for copy in passed {
                maps.source().removed.put(Some(copy));
            }
            return Err(error);
        }
        if maps.target().has_any(there) {
            to.take_range(maps.target(), there)?;
        }
        if how == Passing::Move {
            maps.source().take_each(range, |entry| passed.push(entry));
            self.move_mappings(&passed, range.start, to, there.start);
        }
        match how {
            Passing::Copy => Counter::entries_copied.add(passed.len() as u64),
            Passing::Move => Counter::entries_moved.add(passed.len() as u64),
            Passing::Share => Counter::entries_shared.add(passed.len() as u64),
        }
        let target = maps.target();
        let lock = target.lock_future;
        for mut entry in passed {
            let old = entry.range;
            let start = there.start + (old.start - range.start);
            entry.range = VirtRange::new(start, start + old.len());
            entry.shift += (old.start.0 >> PAGE_SHIFT) as i64 - (start.0 >> PAGE_SHIFT) as i64;
            if !keeps_lock {
                if how == Passing::Move && entry.is_locked() != (lock != Lock::None) {
                    to.pmap.wire(entry.range, lock != Lock::None);
                }
                entry.lock = lock;
            }
            entry.grows_down = false;
            if entry.label.starts_with('[') {
                // The names of the heap and of stacks are for their places.
                entry.label = "";
            }
            target.insert(entry);
        }
        Ok((there, !keeps_lock && lock == Lock::Full))
    }

    /// Appends copies or sharers of the entries of `range`, whose ends are boundaries, to `passed`,
    /// which has room for them.
    #[allow(
        clippy::vec_box,
        reason = "entries keep their boxes on the way into a map"
    )]
    fn copy_entries(
        &self,
        maps: &mut Pair<'_>,
        range: VirtRange,
        how: Passing,
        passed: &mut Vec<Box<MapEntry>>,
    ) -> Result<(), MapError> {
        let inherit = match how {
            Passing::Share => Inherit::Share,
            _ => Inherit::Copy,
        };
        let mut pending = Pending::new();
        let mut result = Ok(());
        for entry in maps.source().overlapping_mut(range) {
            let may_be_mapped_writable = entry.may_be_mapped_writable();
            let copy = match frame::is_scarce() {
                true => Err(MapError::NoMemory),
                false => entry.another(inherit, &mut pending).map_err(MapError::from),
            };
            match copy {
                Ok(None) => {}
                Ok(Some(copy)) => passed.push(Box::new(MapEntry {
                    inherit: match how {
                        Passing::Copy => Inherit::Copy,
                        _ => copy.inherit,
                    },
                    ..copy
                })),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
            if may_be_mapped_writable && entry.needs_copy {
                self.pmap
                    .protect(entry.range, Prot::READ | Prot::EXEC, &mut pending);
            }
        }
        pending.flush();
        result
    }

    /// Moves the mappings of entries that were taken out at `start` to `there` in another map,
    /// where nothing is mapped, as far as they can move; removes the others.
    fn move_mappings(&self, entries: &[Box<MapEntry>], start: VirtAddr, to: &Map, there: VirtAddr) {
        let mut pending = Pending::new();
        let mut moved = 0;
        for entry in entries {
            match entry.has_movable_mappings() {
                true => {
                    let place = there + (entry.range.start - start);
                    moved += self.pmap.move_range_to(entry.range, &to.pmap, place);
                }
                false => self.pmap.remove(entry.range, &mut pending),
            }
        }
        pending.flush();
        Counter::mappings_moved.add(moved as u64);
    }
}
