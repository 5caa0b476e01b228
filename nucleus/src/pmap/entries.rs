//! Entries of page tables, and the groups that say where some are in use.

use core::sync::atomic::{AtomicU64, Ordering};

use super::format::{ENTRIES, Pte};
use crate::hw::machine;
use crate::mem::frame::record::table_bytes;

/// log2 of the entries in a group of a table of level 2 to 4.
pub(super) const GROUP: usize = 3;

/// One entry of a table of any level.
#[inline]
pub(super) fn entry(table: u32, index: usize) -> &'static AtomicU64 {
    debug_assert!(index < ENTRIES);
    // SAFETY: the number of a managed frame that is or was a page table, whose bytes are reached so
    // forever; aligned, and inside the frame. A walker that follows a stale hint reads, and never
    // writes, through this what may be another's data, and believes nothing of it before it has
    // pinned the record.
    unsafe { &*table_bytes(table).cast::<AtomicU64>().add(index) }
}

#[inline]
pub(super) fn load(entry: &AtomicU64) -> Pte {
    machine::point();
    Pte(entry.load(Ordering::Acquire))
}

/// The first entry in use from `first` to before `end`, by the table's groups of 2^`shift` entries.
#[inline]
pub(super) fn next_entry(
    table: u32,
    groups: u64,
    shift: usize,
    first: usize,
    end: usize,
) -> Option<usize> {
    let mut i = first;
    while i < end {
        let ahead = groups >> (i >> shift);
        if ahead & 1 == 0 {
            if ahead == 0 {
                return None;
            }
            i = ((i >> shift) + ahead.trailing_zeros() as usize) << shift;
        } else if load(entry(table, i)).is_present() {
            return Some(i);
        } else {
            i += 1;
        }
    }
    None
}

/// The group of an entry of a table of level 2 to 4, as a bit.
pub(super) fn group(index: usize) -> u64 {
    1 << (index >> GROUP)
}

/// Changes an entry from what it is to what `change` makes of it; `None` leaves it. Returns what it
/// was before the change.
pub(super) fn change(entry: &AtomicU64, change: impl Fn(Pte) -> Option<Pte>) -> Option<Pte> {
    loop {
        let old = load(entry);
        let new = change(old)?;
        machine::point();
        if entry
            .compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return Some(old);
        }
    }
}
