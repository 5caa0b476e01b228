//! `shmdt`: unmaps what is left of one mapping of an object, wherever the program has split it.

use alloc::{sync::Arc, vec::Vec};
use nucleus::{PAGE_SHIFT, VirtAddr, VirtRange};

use super::Map;
use super::entry::{MapEntry, ObjectRef};
use super::request::MapError;

impl Map {
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
