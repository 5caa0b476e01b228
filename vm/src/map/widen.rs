//! Making mappings of sole anons writable again without a fault for each page.

use nucleus::{PAGE_SHIFT, Pmap, VirtAddr, VirtRange};

use super::entry::MapEntry;
use crate::amap::{Slot, Slots};

/// The span of a page table of level 1.
const TABLE_SPAN: usize = 512 << PAGE_SHIFT;

/// Makes the mappings of the sole anons in `range` of `entry` writable, which the entry permits.
/// The map is locked.
pub(super) fn widen(pmap: &Pmap, entry: &MapEntry, range: VirtRange) {
    let Some(amap) = entry.amap.as_ref().filter(|_| !entry.needs_copy) else {
        return;
    };
    amap.for_each_part(entry.keys(range), &mut |keys, mut slots| {
        let part = VirtRange::new(entry.address(keys.start), entry.address(keys.end));
        make_sole(entry, &mut slots, part);
        // A part may extend into the next page table.
        let middle = VirtAddr((part.start.0 & !(TABLE_SPAN - 1)) + TABLE_SPAN).min(part.end);
        for run in [
            VirtRange::new(part.start, middle),
            VirtRange::new(middle, part.end),
        ] {
            widen_run(pmap, entry, &slots, run);
        }
    });
}

/// Turns anons of `run` without other owners left into sole ones.
pub(crate) fn make_sole(entry: &MapEntry, slots: &mut Slots<'_>, run: VirtRange) {
    if slots.shared {
        return;
    }
    for va in run.pages() {
        let key = entry.key(va);
        if let Some(slot @ Slot::Shared(_)) = slots.get(key) {
            slot.make_sole();
        }
    }
}

/// Makes the mappings of sole anons in `run`, part of one page table, writable; returns how many.
pub(crate) fn widen_run(pmap: &Pmap, entry: &MapEntry, slots: &Slots<'_>, run: VirtRange) -> usize {
    if slots.shared {
        return 0;
    }
    pmap.widen_each(run, |va| {
        let frame = slots.peek(entry.key(va)).to_write()?;
        Some((frame, entry.anon_prot(true)))
    })
}
