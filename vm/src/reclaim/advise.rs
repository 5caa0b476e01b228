//! `madvise`, `minherit`, `mincore` and `msync`.

use alloc::sync::Arc;
use core::ops::Range;
use nucleus::{Mistake, PAGE_SHIFT, Prot, VirtAddr, VirtRange, frame, pmap::Pending};

use crate::chunks::SLOTS;
use crate::fault::fault_ahead;
use crate::map::{Advice, Inherit, LargeAdvice, Map, MapEntry, MapError, Space, page_range};
use crate::object::{Pager, PagerError};
use crate::swap;

/// Most parts of an amap that are discarded with the map read-locked; each costs a flush. Two
/// chunks are 64 pages, as many frames as a [`Pending`] holds: beyond that, one flush for many
/// pages is cheaper.
const DISCARDED_TOGETHER: usize = 2;

impl Map {
    /// Follows a program's advice (`madvise`), even if part of the range is not mapped.
    ///
    /// # Errors
    /// [`MapError::NotMapped`] if part of the range is not mapped; [`MapError::Invalid`] if the
    /// advice does not fit what is mapped there; [`MapError::NoMemory`].
    pub fn advise(&self, range: VirtRange, advice: Advice) -> Result<(), MapError> {
        let range = page_range(range)?;
        if range.is_empty() {
            return Ok(());
        }
        match advice {
            Advice::DontNeed | Advice::DontNeedLocked => self.discard(range, advice),
            Advice::Free => self.free_lazily(range),
            Advice::WillNeed => self.map_ahead(range),
            Advice::Cold => self.deactivate(range),
            Advice::PageOut => {
                self.deactivate(range)?;
                self.page_out_files(range);
                self.page_out(range).map(|_| ())
            }
            Advice::Remove => self.remove_pages(range),
            Advice::Normal | Advice::Random | Advice::Sequential => {
                self.set_attribute(range, |_| true, |entry| entry.advice = advice)
            }
            Advice::Large | Advice::NotLarge => {
                let large = match advice {
                    Advice::Large => LargeAdvice::Wanted,
                    _ => LargeAdvice::Refused,
                };
                self.set_attribute(range, |_| true, |entry| entry.large = large)
            }
            Advice::DontFork => {
                self.set_attribute(range, |_| true, |entry| entry.inherit = Inherit::None)
            }
            Advice::DoFork | Advice::KeepOnFork => self.set_attribute(
                range,
                |entry| !entry.stays,
                |entry| {
                    entry.inherit = match entry.shared {
                        true => Inherit::Share,
                        false => Inherit::Copy,
                    }
                },
            ),
            Advice::WipeOnFork => self.set_attribute(
                range,
                |entry| !entry.shared && entry.object.is_none() && !entry.stays,
                |entry| entry.inherit = Inherit::Zero,
            ),
        }
    }

    /// Sets what children inherit of `range` (`minherit`; `uvm.txt` 5.4). For private memory that
    /// is shared, and later copied, see `amap/shared_amap.rs`. A copy of shared memory shows other
    /// processes' writes until the child writes the page.
    ///
    /// # Errors
    /// [`MapError::NotMapped`] if part of the range is not mapped (the rest is set);
    /// [`MapError::Invalid`] to share a stack that grows, or for a mapping that
    /// [stays](crate::MapRequest::stays); [`MapError::NoMemory`].
    pub fn inherit(&self, range: VirtRange, inherit: Inherit) -> Result<(), MapError> {
        let range = page_range(range)?;
        if range.is_empty() {
            return Ok(());
        }
        self.set_attribute(
            range,
            |entry| {
                !entry.stays && (inherit != Inherit::Share || entry.shared || !entry.grows_down)
            },
            |entry| entry.inherit = inherit,
        )
    }

    /// Changes an attribute of all entries in `range` if `fits` holds for each.
    fn set_attribute(
        &self,
        range: VirtRange,
        fits: impl Fn(&MapEntry) -> bool,
        change: impl Fn(&mut MapEntry),
    ) -> Result<(), MapError> {
        let mut space = self.change();
        if !space.overlapping(range).all(&fits) {
            return Err(MapError::Invalid);
        }
        let complete = space.check_mapped(range);
        space.clip_range(range)?;
        space.overlapping_mut(range).for_each(change);
        space.join_around(range);
        complete
    }

    /// Drops the anons of private mappings (`MADV_DONTNEED`).
    fn discard(&self, range: VirtRange, advice: Advice) -> Result<(), MapError> {
        // A larger range of anons takes the write lock in any case.
        if range.len() <= (DISCARDED_TOGETHER * SLOTS) << PAGE_SHIFT {
            let space = self.space.read();
            self.unflushed.wait_for(range);
            check_discarded(&space, range, advice)?;
            let may = |it: &MapEntry| it.may_discard(range) && !self.has_shared_table(range);
            if space.overlapping(range).all(may) {
                for entry in space.overlapping(range) {
                    self.discard_part(entry, entry.range.intersect(range));
                }
                return space.check_mapped(range);
            }
        }
        self.discard_exclusively(range, advice)
    }

    /// Returns whether a fork has made a page table of `range`, which is two chunks at most,
    /// common: without memory for a table of its own, a removal takes all its mappings away.
    fn has_shared_table(&self, range: VirtRange) -> bool {
        self.pmap.is_shared(range.start) || self.pmap.is_shared(range.end - 1)
    }

    /// Discards `range`, part of an entry that [allows](MapEntry::may_discard) it, with the map
    /// read-locked: other threads may discard, fault and use pages meanwhile. A chunk is locked
    /// from before its mappings are removed until they are flushed and its slots are empty, so no
    /// thread gets a new page while another one's TLB holds the old one, and no thread finds
    /// mappings removed that are not flushed yet. Page tables stay: the program will mostly touch
    /// the pages again.
    fn discard_part(&self, entry: &MapEntry, range: VirtRange) {
        let unmap = |range: VirtRange| {
            let mut pending = Pending::new();
            self.pmap.remove_pages(range, &mut pending);
            pending.flush();
        };
        let Some(amap) = &entry.amap else {
            // Pages of an object, which faults will find there again.
            return unmap(range);
        };
        let is_early = Mistake::DiscardedUnlocked.is_made();
        if is_early {
            unmap(range);
        }
        amap.discard(entry.keys(range), &mut |keys| {
            if !is_early {
                unmap(VirtRange::new(
                    entry.address(keys.start),
                    entry.address(keys.end),
                ));
            }
        });
    }

    /// As [`discard`](Map::discard) with the map write-locked: of large ranges, by one flush for
    /// many pages and with page tables and chunks, and of anons that other amaps have, too.
    fn discard_exclusively(&self, range: VirtRange, advice: Advice) -> Result<(), MapError> {
        let mut space = self.change();
        check_discarded(&space, range, advice)?;
        let complete = space.check_mapped(range);
        for entry in space.overlapping_mut(range) {
            entry.unshare()?;
        }
        let mut pending = Pending::new();
        for entry in space.overlapping(range) {
            let part = entry.range.intersect(range);
            self.pmap.remove(part, &mut pending);
        }
        pending.flush();
        // No translation is left, so the references may be dropped; the lock excludes faults until
        // then.
        for entry in space.overlapping_mut(range) {
            let keys = entry.keys(entry.range.intersect(range));
            // After `unshare` there is no other reference.
            if let Some(amap) = entry.amap.as_mut().and_then(Arc::get_mut) {
                amap.clear_out(keys)?;
            }
        }
        complete
    }

    /// Starts reading pages that are not resident, and maps those that are (`MADV_WILLNEED`).
    fn map_ahead(&self, range: VirtRange) -> Result<(), MapError> {
        self.for_each_object(range, false, &mut |pager, pages| pager.prefetch(pages));
        self.bring_back(range);
        let space = self.space.read();
        for entry in space.overlapping(range) {
            if !entry.prot.is_empty() {
                let part = entry.range.intersect(range);
                fault_ahead::map_resident(&self.pmap, entry, part, false);
            }
        }
        space.check_mapped(range)
    }

    /// Reads the anons of `range` back from swap, as far as memory is not short.
    fn bring_back(&self, range: VirtRange) {
        let mut at = range.start;
        while at < range.end && !frame::is_scarce() {
            let space = self.space.read();
            let Some(entry) = space.overlapping(VirtRange::new(at, range.end)).next() else {
                return;
            };
            let part = entry.range.intersect(VirtRange::new(at, range.end));
            let mut swapped = None;
            if let Some(amap) = &entry.amap {
                amap.for_each(entry.keys(part), &mut |key, slot, _| {
                    if slot.is_swapped() {
                        swapped = Some(swapped.map_or(key, |first: i64| first.min(key)));
                    }
                });
            }
            at = part.end;
            if let (Some(key), Some(amap)) = (swapped, &entry.amap) {
                at = entry.address(key + 1);
                let part = amap.part_of(key..key + 1);
                drop(space);
                if let Some((chunk, which)) = part.filter(|(_, which)| *which != 0)
                    && swap::page_in(chunk, which.trailing_zeros() as usize, (0, SLOTS)).is_err()
                {
                    return;
                }
            }
        }
    }

    /// Calls `f` with the pager of each entry of `range` that has one, and its pages mapped there;
    /// only shared entries if `shared`. No lock is held meanwhile.
    fn for_each_object(
        &self,
        range: VirtRange,
        shared: bool,
        f: &mut dyn FnMut(&Arc<dyn Pager>, Range<u64>),
    ) {
        let mut at = range.start;
        while at < range.end {
            let space = self.space.read();
            let Some(entry) = space.overlapping(VirtRange::new(at, range.end)).next() else {
                return;
            };
            let part = entry.range.intersect(VirtRange::new(at, range.end));
            let object = entry.object.as_ref().filter(|_| entry.shared || !shared);
            let target = object.map(|it| (it.pager.clone(), entry.index(it, part.start)));
            at = part.end;
            drop(space);
            if let Some((pager, first)) = target {
                f(&pager, first..first + (part.len() >> PAGE_SHIFT) as u64);
            }
        }
    }

    /// Evicts clean pages of files in `range` that are mapped nowhere else.
    fn page_out_files(&self, range: VirtRange) {
        {
            let space = self.space.read();
            let mut pending = Pending::new();
            for entry in space.overlapping(range) {
                if entry.object.is_some() && entry.amap.is_none() {
                    let part = entry.range.intersect(range);
                    self.pmap.remove(part, &mut pending);
                }
            }
            pending.flush();
        }
        self.for_each_object(range, false, &mut |pager, pages| pager.evict(pages));
    }

    /// Punches holes into what shared mappings map (`MADV_REMOVE`).
    fn remove_pages(&self, range: VirtRange) -> Result<(), MapError> {
        {
            let space = self.space.read();
            space.check_mapped(range)?;
            for entry in space.overlapping(range) {
                if entry.is_locked() || entry.object.is_none() {
                    return Err(MapError::Invalid);
                }
                if !entry.shared || !entry.prot.contains(Prot::WRITE) {
                    return Err(MapError::Access);
                }
            }
        }
        let mut removed = Ok(());
        self.for_each_object(range, true, &mut |pager, pages| {
            removed = removed.and_then(|()| match pager.punch_hole(pages) {
                None => Err(MapError::Unsupported),
                Some(Err(PagerError::OutOfMemory)) => Err(MapError::NoMemory),
                Some(Err(_)) => Err(MapError::Io),
                Some(Ok(())) => Ok(()),
            });
        });
        removed
    }

    /// Calls `page` for each page of a completely mapped range with whether it is resident
    /// (`mincore`). `page` must not access memory that this map maps.
    ///
    /// # Errors
    /// [`MapError::NotMapped`] if part of it is not mapped, before the first call.
    pub fn resident(&self, range: VirtRange, page: &mut dyn FnMut(bool)) -> Result<(), MapError> {
        let range = page_range(range)?;
        let space = self.space.read();
        space.check_mapped(range)?;
        for entry in space.overlapping(range) {
            for va in entry.range.intersect(range).pages() {
                page(entry.is_resident(va));
            }
        }
        Ok(())
    }

    /// Writes dirty pages of shared mappings back (`msync`), and with `wait` waits until they are
    /// on stable storage.
    ///
    /// # Errors
    /// [`MapError::NotMapped`] if part of the range is not mapped (the rest is written);
    /// [`MapError::Invalid`]; [`MapError::Io`] if a write fails.
    pub fn sync(&self, range: VirtRange, wait: bool) -> Result<(), MapError> {
        let range = page_range(range)?;
        let complete = self.space.read().check_mapped(range);
        let mut written = Ok(());
        self.for_each_object(range, true, &mut |pager, pages| {
            written = written.and(pager.writeback(pages, wait));
        });
        complete?;
        match written {
            Err(PagerError::OutOfMemory) => Err(MapError::NoMemory),
            Err(_) => Err(MapError::Io),
            Ok(()) => Ok(()),
        }
    }
}

/// Checks that no entry of `range` is locked, unless the advice allows it.
///
/// # Errors
/// [`MapError::Invalid`].
fn check_discarded(space: &Space, range: VirtRange, advice: Advice) -> Result<(), MapError> {
    let refuses_locked = advice != Advice::DontNeedLocked;
    match refuses_locked && space.overlapping(range).any(MapEntry::is_locked) {
        true => Err(MapError::Invalid),
        false => Ok(()),
    }
}

impl MapEntry {
    /// Returns whether the read lock suffices to discard `range` of this entry: it has only anons,
    /// in few parts that no other amap shares, or is private and has only pages of its object,
    /// mapped read-only. Not for shared mappings: `hide_pages` and `write_protect` read-lock the
    /// map, too, and take an absent entry for one that no TLB has.
    fn may_discard(&self, range: VirtRange) -> bool {
        let Some(amap) = &self.amap else {
            return !self.shared;
        };
        let keys = self.keys(self.range.intersect(range));
        self.object.is_none()
            && !self.needs_copy
            && !self.shares_amap()
            && amap.parts_in(&keys) <= DISCARDED_TOGETHER
            && !amap.is_shared_in(keys)
    }

    fn is_resident(&self, va: VirtAddr) -> bool {
        let key = self.key(va);
        let anonymous = self.amap.as_ref().and_then(|amap| {
            let slots = amap.lock_present(key)?;
            let slot = slots.peek(key);
            (!slot.is_empty()).then(|| !slot.is_swapped())
        });
        match anonymous {
            Some(resident) => resident,
            None => self.object.as_ref().is_some_and(|object| {
                let index = self.index(object, va);
                object.pager.object().resident(index).is_some()
            }),
        }
    }
}
