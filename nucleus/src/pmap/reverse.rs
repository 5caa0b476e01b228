//! Reverse mappings: from a frame to every page-table entry that maps it, without an allocation.
//!
//! Beside each table of level 1 stands a frame with one link per entry. The links of all entries
//! that map one frame form a list; the frame's record has its head. An entry is named by its
//! *slot*: the table's number among the managed frames times 512, plus the entry's index.
//!
//! A list is guarded by the reverse lock of its frame ([`Mappings`]).

use core::sync::atomic::{AtomicU32, Ordering};

use super::format::ENTRIES;
use crate::frame::record::{Mappings, NONE, Type, find, first_managed, table_bytes};

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
    link_beside(table, index)
}

/// The link of an entry, by the table of level 1 that it is in.
#[inline]
fn link_beside(table: u32, index: usize) -> &'static Link {
    // SAFETY: callers and slots name tables of level 1 only, whose next frame consists of links,
    // and entries of such a table; a slot is on a list only while its table is in use. They are
    // reached so forever.
    unsafe { &*table_bytes(table + 1).cast::<Link>().add(index) }
}

/// Adds the entry to the frame's list.
#[inline]
pub(super) fn link(mappings: &mut Mappings<'_>, table: u32, index: usize) {
    let slot = slot(table, index);
    let next = mappings.first();
    let link = link_beside(table, index);
    link.next.store(next, Ordering::Relaxed);
    link.previous.store(NONE, Ordering::Relaxed);
    if next != NONE {
        link_of(next).previous.store(slot, Ordering::Relaxed);
    }
    mappings.add(slot);
}

/// Takes the entry out of the frame's list.
#[inline]
pub(super) fn unlink(mappings: &mut Mappings<'_>, table: u32, index: usize) {
    if mappings.count() == 1 {
        // Most frames are mapped once, and what stands in the link of the only one is of no
        // interest.
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
    let link = link_beside(table, index);
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
        // Its link says nothing: see `unlink`.
        return mappings.count() == 1 && mappings.first() == slot;
    }
    let link = link_beside(table, index);
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
    let record = find(table.into())?;
    (record.kind() == Type::PageTable1).then(|| link_beside(table, index))
}

/// The entries that map the locked frame: their tables, and their places there.
#[inline]
pub(super) fn entries(mappings: &Mappings<'_>) -> impl Iterator<Item = (u32, usize)> {
    let mut slot = mappings.first();
    core::iter::from_fn(move || {
        let entry = (slot != NONE).then(|| entry_of(slot))?;
        slot = link_beside(entry.0, entry.1).next.load(Ordering::Relaxed);
        Some(entry)
    })
}
