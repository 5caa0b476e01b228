//! Reverse mappings: from a frame to every page-table entry that maps it, without an allocation.
//!
//! Each table of level 1 has a frame with one link per entry, anywhere in memory; the records of
//! both name each other. The links of all entries that map one frame form a list; the frame's
//! record has its head. An entry is named by its *slot*: the number of the frame with its link
//! among the managed frames times 512, plus the entry's index. Most frames are mapped once, so a
//! list of one entry is in the record alone, and what stands in that entry's link is of no
//! interest.
//!
//! A list is guarded by the reverse lock of its frame ([`Mappings`]).

use core::sync::atomic::{AtomicU32, Ordering};

use super::format::ENTRIES;
use crate::PhysAddr;
use crate::frame::record::{Mappings, NONE, Type, address, find, first_managed, record};
use crate::hw::machine;

#[repr(C)]
struct Link {
    next: AtomicU32,
    previous: AtomicU32,
}

const _: () = assert!(ENTRIES * size_of::<Link>() == crate::PAGE_SIZE);

/// The slot of an entry of a table of level 1.
#[inline]
pub(super) fn slot(table: u32, index: usize) -> u32 {
    (record(table).partner() - first_managed()) * ENTRIES as u32 + index as u32
}

/// The frame with the link of a slot, and the link's index there.
#[inline]
fn place_of(slot: u32) -> (u32, usize) {
    (
        slot / ENTRIES as u32 + first_managed(),
        slot as usize % ENTRIES,
    )
}

/// The table and the index in it of a slot.
#[inline]
pub(super) fn entry_of(slot: u32) -> (u32, usize) {
    let (links, index) = place_of(slot);
    (record(links).partner(), index)
}

#[inline]
fn link_of(slot: u32) -> &'static Link {
    let at = address(first_managed()).0 + u64::from(slot) * size_of::<Link>() as u64;
    // SAFETY: a slot names a link in a frame of links; it is on a list, or made of an entry, only
    // while its table is in use. Such frames are reached as page tables forever.
    unsafe { &*machine::table_ptr(PhysAddr(at)).cast::<Link>() }
}

/// Adds the entry to the frame's list.
#[inline]
pub(super) fn link(mappings: &mut Mappings<'_>, table: u32, index: usize) {
    link_slot(mappings, slot(table, index));
}

/// As [`link`], the entry by its slot: that of the table's first entry and its index.
#[inline]
pub(super) fn link_slot(mappings: &mut Mappings<'_>, slot: u32) {
    let count = mappings.count();
    if count > 0 {
        let first = mappings.first();
        let (link, behind) = (link_of(slot), link_of(first));
        link.next.store(first, Ordering::Relaxed);
        link.previous.store(NONE, Ordering::Relaxed);
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
    let slot = slot(table, index);
    if mappings.count() == 2 && mappings.first() == slot {
        // Fast path: the links of an only entry do not matter.
        mappings.set_first(link_of(slot).next.load(Ordering::Relaxed));
        return mappings.subtract();
    }
    let first = unlink_from(mappings.first(), table, index);
    mappings.set_first(first);
    mappings.subtract();
}

/// Takes the entry out of a list of several, and returns the first one that is left. Out of line,
/// so that the way of most entries is short, and without the [`Mappings`], which stay in registers.
#[inline(never)]
fn unlink_from(first: u32, table: u32, index: usize) -> u32 {
    let slot = slot(table, index);
    let link = link_of(slot);
    let next = link.next.load(Ordering::Relaxed);
    let previous = link.previous.load(Ordering::Relaxed);
    if next != NONE {
        link_of(next).previous.store(previous, Ordering::Relaxed);
    }
    if previous == NONE {
        debug_assert_eq!(first, slot, "reverse mappings are damaged");
        return next;
    }
    link_of(previous).next.store(next, Ordering::Relaxed);
    first
}

/// Whether the entry is on the locked frame's list, by its neighbours there.
pub(super) fn is_linked(mappings: &Mappings<'_>, table: u32, index: usize) -> bool {
    let slot = slot(table, index);
    if mappings.count() <= 1 {
        return mappings.count() == 1 && mappings.first() == slot;
    }
    let link = link_of(slot);
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
    let record = find(place_of(slot).0.into())?;
    (record.kind() == Type::PageTable1).then(|| link_of(slot))
}

/// The entries that map the locked frame, which a stale hint may have led to: their tables, and
/// their places there.
#[inline]
pub(super) fn entries(mappings: &Mappings<'_>) -> impl Iterator<Item = (u32, usize)> {
    follow(mappings, link_of).map(entry_of)
}

/// As [`entries`], for one who doubts the links: a frame that is no table instead of one that has
/// no links, and nothing after that.
pub(super) fn entries_to_check(mappings: &Mappings<'_>) -> impl Iterator<Item = (u32, usize)> {
    static END: Link = Link {
        next: AtomicU32::new(NONE),
        previous: AtomicU32::new(NONE),
    };
    let slots = follow(mappings, |slot| find_link(slot).unwrap_or(&END));
    slots.map(|slot| match find_link(slot) {
        Some(_) => entry_of(slot),
        None => place_of(slot),
    })
}

/// The slots of a list, by the links that `link` finds.
#[inline(always)]
fn follow(
    mappings: &Mappings<'_>,
    link: impl Fn(u32) -> &'static Link,
) -> impl Iterator<Item = u32> {
    let count = mappings.count();
    let mut next = if count > 0 { mappings.first() } else { NONE };
    core::iter::from_fn(move || {
        let slot = (next != NONE).then_some(next)?;
        next = match count {
            1 => NONE,
            _ => link(slot).next.load(Ordering::Relaxed),
        };
        Some(slot)
    })
}
