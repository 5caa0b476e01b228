//! Reverse mappings: from a frame to every page-table entry that maps it, without an allocation.
//!
//! Each table of level 1 has a frame with one link per entry, anywhere in memory: the table's record
//! names it. The links of all entries that map one frame form a list; the frame's record has its
//! head. An entry is named by its *slot*: the table's number among the managed frames times 512,
//! plus the entry's index. Most frames are mapped once, so a list of one entry is in the record
//! alone, and what stands in that entry's link is of no interest.
//!
//! A list is guarded by the reverse lock of its frame ([`Mappings`]).

use core::sync::atomic::{AtomicU32, Ordering};

use super::format::ENTRIES;
use crate::frame::record::{
    Mappings, NONE, Record, Type, find, first_managed, record, table_bytes,
};

#[repr(C)]
struct Link {
    next: AtomicU32,
    previous: AtomicU32,
}

const _: () = assert!(ENTRIES * size_of::<Link>() == crate::PAGE_SIZE);

#[inline]
fn slot(table: u32, index: usize) -> u32 {
    (table - first_managed()) * ENTRIES as u32 + index as u32
}

/// The table and the index in it of a slot.
pub(super) fn entry_of(slot: u32) -> (u32, usize) {
    (
        slot / ENTRIES as u32 + first_managed(),
        slot as usize % ENTRIES,
    )
}

fn link_of(slot: u32) -> &'static Link {
    let (table, index) = entry_of(slot);
    link_in(table, index)
}

/// The link of an entry, by the table of level 1 that it is in.
#[inline]
fn link_in(table: u32, index: usize) -> &'static Link {
    // SAFETY: callers and slots name tables of level 1 only, whose records name a frame of links,
    // and entries of such a table; a slot is on a list only while its table is in use. They are
    // reached so forever.
    unsafe {
        &*table_bytes(record(table).link_frame())
            .cast::<Link>()
            .add(index)
    }
}

/// Whether a frame is a table of level 1, not the links of one.
pub(super) fn is_table(frame: u32) -> bool {
    let is = |it: &Record| it.kind() == Type::PageTable1 && it.link_frame() != NONE;
    find(frame.into()).is_some_and(is)
}

/// Adds the entry to the frame's list.
#[inline]
pub(super) fn link(mappings: &mut Mappings<'_>, table: u32, index: usize) {
    let slot = slot(table, index);
    let count = mappings.count();
    if count > 0 {
        let next = mappings.first();
        let link = link_in(table, index);
        link.next.store(next, Ordering::Relaxed);
        link.previous.store(NONE, Ordering::Relaxed);
        let behind = link_of(next);
        behind.previous.store(slot, Ordering::Relaxed);
        if count == 1 {
            behind.next.store(NONE, Ordering::Relaxed);
        }
    }
    mappings.add(slot);
}

/// Takes the entry out of the frame's list.
#[inline]
pub(super) fn unlink(mappings: &mut Mappings<'_>, table: u32, index: usize) {
    if mappings.count() == 1 {
        debug_assert_eq!(
            mappings.first(),
            slot(table, index),
            "reverse mappings are damaged"
        );
        return mappings.clear();
    }
    unlink_from(mappings, table, index);
}

/// As [`unlink`] where the list has others.
fn unlink_from(mappings: &mut Mappings<'_>, table: u32, index: usize) {
    let link = link_in(table, index);
    let next = link.next.load(Ordering::Relaxed);
    let previous = link.previous.load(Ordering::Relaxed);
    if next != NONE {
        link_of(next).previous.store(previous, Ordering::Relaxed);
    }
    if previous == NONE {
        debug_assert_eq!(
            mappings.first(),
            slot(table, index),
            "reverse mappings are damaged"
        );
        mappings.set_first(next);
    } else {
        link_of(previous).next.store(next, Ordering::Relaxed);
    }
    mappings.subtract();
}

/// Whether the entry is on the locked frame's list, by its neighbours there.
pub(super) fn is_linked(mappings: &Mappings<'_>, table: u32, index: usize) -> bool {
    let slot = slot(table, index);
    if mappings.count() <= 1 {
        return mappings.count() == 1 && mappings.first() == slot;
    }
    let link = link_in(table, index);
    let next = link.next.load(Ordering::Relaxed);
    let is_first = mappings.first() == slot;
    // Links are made and followed with this lock held, so they lead to links.
    let follows = is_first
        || match link.previous.load(Ordering::Relaxed) {
            NONE => false,
            previous => {
                find_link(previous).is_some_and(|it| it.next.load(Ordering::Relaxed) == slot)
            }
        };
    let precedes = next == NONE
        || find_link(next).is_some_and(|it| it.previous.load(Ordering::Relaxed) == slot);
    follows && precedes
}

/// The link of a slot that may be wrong.
fn find_link(slot: u32) -> Option<&'static Link> {
    let (table, index) = entry_of(slot);
    is_table(table).then(|| link_in(table, index))
}

/// The entries that map the locked frame, which a stale hint may have led to: their tables, and
/// their places there.
#[inline]
pub(super) fn entries(mappings: &Mappings<'_>) -> impl Iterator<Item = (u32, usize)> {
    let (count, first) = (mappings.count(), mappings.first());
    let mut last: Option<(u32, usize)> = None;
    core::iter::from_fn(move || {
        let slot = match last {
            None if count > 0 => first,
            // Followed when the caller has looked at the entry: the auditor does not trust it.
            Some((table, index)) if count > 1 => link_in(table, index).next.load(Ordering::Relaxed),
            _ => return None,
        };
        last = Some((slot != NONE).then(|| entry_of(slot))?);
        last
    })
}
