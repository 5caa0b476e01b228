//! Unmapping that follows the mapping rather than a range of addresses: `shmdt` unmaps what is left
//! of one mapping of an object, wherever the program has split it; mappings that stay are removed
//! by their maker, whatever the program has mapped between them.

use alloc::{sync::Arc, vec::Vec};
use nucleus::{PAGE_SHIFT, VirtAddr, VirtRange};

use super::Map;
use super::entry::{MapEntry, ObjectRef};
use super::request::MapError;
use super::space::Space;

impl Map {
    /// Unmaps what is mapped of objects in `range` by mappings that
    /// [stay](crate::MapRequest::stays), and nothing else. Without memory to split entries, all of
    /// each such entry is unmapped, so that this cannot fail.
    pub fn unmap_staying(&self, range: VirtRange) {
        let mut space = self.change();
        // Entries that could not be split are taken whole.
        let _ = space.clip_range(range);
        let next = |space: &Space| {
            let mut entries = space.overlapping(range);
            let staying = entries.find(|entry| entry.stays && entry.object.is_some());
            staying.map(|entry| entry.range)
        };
        while let Some(whole) = next(&space) {
            if self.take_range(&mut space, whole).is_err() {
                return;
            }
        }
    }

    /// Unmaps the mapping of an object's start that was made with `label` at `at`: every entry of
    /// that object at its original distance from `at`. The first entry may have been unmapped.
    ///
    /// # Errors
    /// [`MapError::NotMapped`] if there is none, [`MapError::NoMemory`].
    pub fn unmap_object(&self, at: VirtAddr, label: &'static str) -> Result<(), MapError> {
        /// The object, if the entry is part of a mapping that started at `at`.
        fn part<'a>(entry: &'a MapEntry, at: VirtAddr, label: &str) -> Option<&'a ObjectRef> {
            let distance = (entry.range.start.0.checked_sub(at.0)? >> PAGE_SHIFT) as u64;
            let object = entry.object.as_ref()?;
            (entry.label == label && object.first == distance).then_some(object)
        }
        let mut space = self.change();
        let mut found = None;
        let mut ranges: Vec<VirtRange> = Vec::new();
        let mut from = at;
        while let Some(entry) = space.at_or_above(from) {
            from = entry.range.end;
            let Some(object) = part(entry, at, label) else {
                continue;
            };
            let known = *found.get_or_insert(Arc::as_ptr(&object.pager));
            if core::ptr::addr_eq(known, Arc::as_ptr(&object.pager)) {
                ranges.try_reserve(1).map_err(|_| MapError::NoMemory)?;
                ranges.push(entry.range);
            }
        }
        let taken = ranges
            .iter()
            .try_for_each(|range| self.take_range(&mut space, *range));
        match ranges.is_empty() {
            true => Err(MapError::NotMapped),
            false => taken,
        }
    }
}
