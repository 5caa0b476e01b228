//! `madvise`, `mincore` and `msync`: what a program says and asks about its memory.

use alloc::sync::Arc;
use nucleus::{PAGE_SHIFT, VirtAddr, VirtRange, pmap::Pending};

use crate::ahead;
use crate::entry::{MapEntry, Removed};
use crate::map::{Map, page_range};
use crate::pager::{Pager, PagerError};
use crate::request::{Advice, Inherit, Lock, MapError};
use crate::space::Space;

impl Map {
    /// `madvise`. What is mapped in the range is treated even if not all of it is mapped.
    ///
    /// # Errors
    /// [`MapError::NotMapped`] if something in the range is not mapped; [`MapError::Invalid`] if
    /// the advice does not fit what is mapped there; [`MapError::NoMemory`].
    pub fn advise(&self, range: VirtRange, advice: Advice) -> Result<(), MapError> {
        let range = page_range(range)?;
        if range.is_empty() {
            return Ok(());
        }
        match advice {
            Advice::DontNeed | Advice::DontNeedLocked | Advice::Free => self.give_up(range, advice),
            Advice::WillNeed => self.map_ahead(range),
            Advice::Normal | Advice::Random | Advice::Sequential => {
                self.set_attribute(range, |_| true, |entry| entry.advice = advice)
            }
            Advice::DontFork => {
                self.set_attribute(range, |_| true, |entry| entry.inherit = Inherit::None)
            }
            Advice::DoFork | Advice::KeepOnFork => self.set_attribute(
                range,
                |_| true,
                |entry| {
                    entry.inherit = match entry.shared {
                        true => Inherit::Share,
                        false => Inherit::Copy,
                    }
                },
            ),
            Advice::WipeOnFork => self.set_attribute(
                range,
                |entry| !entry.shared && entry.object.is_none(),
                |entry| entry.inherit = Inherit::Zero,
            ),
        }
    }

    /// Changes an attribute of all entries in `range`, if `fits` holds for each.
    fn set_attribute(
        &self,
        range: VirtRange,
        fits: impl Fn(&MapEntry) -> bool,
        change: impl Fn(&mut MapEntry),
    ) -> Result<(), MapError> {
        let mut removed = Removed::default();
        let mut space = self.space.write();
        if !space.overlapping(range).all(&fits) {
            return Err(MapError::Invalid);
        }
        let complete = space.is_mapped(range);
        space.clip_range(range)?;
        space.overlapping_mut(range).for_each(change);
        space.join_around(range, &mut removed);
        drop(space);
        drop(removed);
        match complete {
            true => Ok(()),
            false => Err(MapError::NotMapped),
        }
    }

    /// `MADV_DONTNEED` and `MADV_FREE`: drops the anons of private mappings. (Freeing at leisure
    /// means freeing at once here, which the program can't tell from memory having been short.)
    fn give_up(&self, range: VirtRange, advice: Advice) -> Result<(), MapError> {
        let mut space = self.space.write();
        let anonymous = |entry: &MapEntry| !entry.shared && entry.object.is_none();
        let locked = |entry: &MapEntry| entry.lock != Lock::None;
        if advice == Advice::Free && !space.overlapping(range).all(anonymous)
            || advice != Advice::DontNeedLocked && space.overlapping(range).any(locked)
        {
            return Err(MapError::Invalid);
        }
        let complete = space.is_mapped(range);
        for entry in space.overlapping_mut(range) {
            entry.unshare()?;
        }
        let mut pending = Pending::new();
        for entry in space.overlapping(range) {
            let part = entry.range.intersect(range);
            self.pmap.remove(part, &mut pending);
        }
        pending.flush();
        // No translation is left, so the references may go. The lock keeps faults out until then.
        for entry in space.overlapping_mut(range) {
            let keys = entry.keys(entry.range.intersect(range));
            // Unshared above, so `get_mut` succeeds wherever there is an amap.
            if let Some(amap) = entry.amap.as_mut().and_then(Arc::get_mut) {
                amap.clear_out(keys);
            }
        }
        match complete {
            true => Ok(()),
            false => Err(MapError::NotMapped),
        }
    }

    /// `MADV_WILLNEED`: maps what is resident.
    fn map_ahead(&self, range: VirtRange) -> Result<(), MapError> {
        let space = self.space.read();
        for entry in space.overlapping(range) {
            if !entry.prot.is_empty() {
                let part = entry.range.intersect(range);
                ahead::map_resident(&self.pmap, entry, part, false);
            }
        }
        match space.is_mapped(range) {
            true => Ok(()),
            false => Err(MapError::NotMapped),
        }
    }

    /// Which pages of a wholly mapped range are resident (`mincore`); calls `page` for each. `page`
    /// must not touch memory that this map maps.
    ///
    /// # Errors
    /// [`MapError::NotMapped`] if a part is not mapped, before the first call.
    pub fn resident(&self, range: VirtRange, page: &mut dyn FnMut(bool)) -> Result<(), MapError> {
        let range = page_range(range)?;
        let space = self.space.read();
        if !space.is_mapped(range) {
            return Err(MapError::NotMapped);
        }
        for entry in space.overlapping(range) {
            for va in entry.range.intersect(range).pages() {
                page(entry.is_resident(va));
            }
        }
        Ok(())
    }

    /// Writes shared dirty pages back (`msync`).
    ///
    /// # Errors
    /// [`MapError::NotMapped`] if a part of the range is not mapped (the rest is written);
    /// [`MapError::Invalid`]; [`MapError::Io`] if something can't be written.
    pub fn sync(&self, range: VirtRange) -> Result<(), MapError> {
        let range = page_range(range)?;
        let complete = self.space.read().is_mapped(range);
        let mut at = range.start;
        let mut written = Ok(());
        while at < range.end {
            let Some((part, target)) =
                next_shared(&self.space.read(), VirtRange::new(at, range.end))
            else {
                break;
            };
            at = part.end;
            if let Some((pager, first)) = target {
                let pages = first..first + (part.len() >> PAGE_SHIFT) as u64;
                written = written.and(pager.put(pages));
            }
        }
        match written {
            _ if !complete => Err(MapError::NotMapped),
            Err(PagerError::OutOfMemory) => Err(MapError::NoMemory),
            Err(_) => Err(MapError::Io),
            Ok(()) => Ok(()),
        }
    }
}

/// The first entry in `range`: which part of the range it is, and if it is shared, its pager and
/// the first page there.
#[allow(clippy::type_complexity)]
fn next_shared(
    space: &Space,
    range: VirtRange,
) -> Option<(VirtRange, Option<(Arc<dyn Pager>, u64)>)> {
    let entry = space.overlapping(range).next()?;
    let part = entry.range.intersect(range);
    let object = entry.object.as_ref().filter(|_| entry.shared);
    let target = object.map(|object| (object.pager.clone(), entry.index(object, part.start)));
    Some((part, target))
}

impl MapEntry {
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
