//! Memory that a program will not need soon, or not at all (`MADV_COLD`, `MADV_FREE`).

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use nucleus::{
    VirtRange,
    pmap::{self, Pending},
};

use super::page_out::Part;
use crate::amap::anon;
use crate::chunks::{Chunk, slots_in};
use crate::map::{Lock, Map, MapEntry, MapError, page_range};
use crate::object;
use crate::swap::Paged;

impl Map {
    /// Allows freeing the anons of private memory as long as the program does not write them
    /// (`MADV_FREE`). Read meanwhile, a page has its old bytes or zeros; a write keeps it without a
    /// fault.
    pub(crate) fn free_lazily(&self, range: VirtRange) -> Result<(), MapError> {
        let mut space = self.change();
        let fits = |entry: &MapEntry| entry.is_private_anonymous() && !entry.is_locked();
        if !space.overlapping(range).all(fits) {
            return Err(MapError::Invalid);
        }
        let complete = space.check_mapped(range);
        for entry in space.overlapping_mut(range) {
            entry.unshare()?;
        }
        anon::note_lazy();
        let mut pending = Pending::new();
        for entry in space.overlapping(range) {
            let part = entry.range.intersect(range);
            if let Some(amap) = &entry.amap {
                amap.for_each_part(entry.keys(part), &mut |keys, mut slots| {
                    for key in keys {
                        slots.free_lazily(key, &mut pending);
                    }
                });
            }
        }
        // After the flush, every CPU's write sets the modified bit again; the program is in this
        // call until then.
        pending.flush();
        deactivate_range(&space, range);
        complete
    }

    /// Deactivates the pages (`MADV_COLD`), also those of files that other processes use, which
    /// will reference them again.
    pub(crate) fn deactivate(&self, range: VirtRange) -> Result<(), MapError> {
        let range = page_range(range)?;
        let space = self.space.read();
        if space
            .overlapping(range)
            .any(|entry| entry.lock != Lock::None)
        {
            return Err(MapError::Invalid);
        }
        deactivate_range(&space, range);
        space.check_mapped(range)
    }
}

fn deactivate_range(space: &crate::map::Space, range: VirtRange) {
    for entry in space.overlapping(range) {
        entry.for_each_chunk(entry.range.intersect(range), &mut |part| match part {
            Part::Anons(chunk, which) => set_unused(&chunk, which, Some(&anon::INACTIVE)),
            Part::Pages(chunk, which, true) => set_unused(&chunk, which, Some(&object::INACTIVE)),
            // Pages with a backing store start as inactive ones.
            Part::Pages(chunk, which, false) => set_unused(&chunk, which, None),
        });
    }
}

/// Deactivates pages of a chunk and clears their referenced bits. Where pages start as active ones,
/// `inactive` counts the others; where they start as inactive ones, [`object::ACTIVE`] does.
fn set_unused<T: Paged>(chunk: &Chunk<T>, which: u32, inactive: Option<&AtomicUsize>) {
    let mut slots = chunk.lock();
    let mut resident = 0;
    for i in slots_in(which) {
        slots[i].with_state(&mut |location| {
            if let Some(frame) = location.frame() {
                resident |= 1 << i;
                pmap::take_referenced(frame);
            }
        });
    }
    let before = chunk.aged();
    match inactive {
        Some(inactive) => {
            chunk.set_aged(before | resident);
            let more = (resident & !before).count_ones();
            inactive.fetch_add(more as usize, Relaxed);
        }
        None => {
            chunk.set_aged(before & !resident);
            let fewer = (resident & before).count_ones();
            object::ACTIVE.fetch_sub(fewer as usize, Relaxed);
        }
    }
}
