//! Tables of level 1, pinned: a [`Leaf`] keeps its table what it is.
//!
//! # Groups
//!
//! Tables are sparse, and looking through 512 entries for two is most of what a small process would
//! cost. So a table's record has a bit for each group of entries: clear, and none in the group is
//! in use. At level 2 to 4 a group is a cache line of 8 entries and the bits, `groups`, are exact.
//! At level 1 it has 16 entries and the bits, in `in_use`, are set before an entry is used and not
//! cleared.
//!
//! # The use count of a table of level 1
//!
//! One while the table is attached to the tree, one for each entry in use, and one for each
//! [`Leaf`]. Page tables are found without the pmap's lock: the walk down may meet a table that was
//! taken out and even used again for something else, so what it finds is a hint. The record is the
//! truth: to make a [`Leaf`] the count is raised from a value that is not zero and stands in one
//! word with the table's base address; then the table can't go away, and its owner is looked at. (A
//! word of another type of frame can't be mistaken for it: the use count is zero in all of them.)
//!
//! A table is taken out (*killed*) in this order: under the pmap's lock, mark the count as dying,
//! so that no new `Leaf` is made, and clear the entry above. Then take out its entries until the
//! count says that no other CPU is there. The table is reused only after the flush, like a frame: a
//! processor may walk through it until then.

use core::sync::atomic::{AtomicU64, Ordering};

use super::entries::{entry, load, next_entry};
use super::format::{LEAF_SPAN, Pte};
use crate::addr::Prot;
use crate::cpu::percpu::Pinned;
use crate::hw::machine;
use crate::mem::frame::record::record;
use crate::{Frame, VirtAddr};

/// In the word of the use count: the count itself.
pub(super) const COUNT: u64 = 0xfff;
/// In the same word: the table is being taken out of the tree.
pub(super) const DYING: u64 = 1 << 12;
/// In the same word: the entry above maps all that the table does as a large page, and no processor
/// walks the table.
pub(super) const LARGE: u64 = 1 << 13;
/// In the same word, beside `LARGE`: its pages are an object's.
pub(super) const LARGE_SHARED: u64 = 1 << 14;
/// In the same word: the base address.
pub(super) const BASE: u64 = !(LEAF_SPAN as u64 - 1);

/// log2 of the entries in a group.
pub(super) const LEAF_GROUP: usize = 4;

/// What may change the entries of a table of level 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    /// Its pmap.
    Own,
    /// Other spaces lead to it, too: only page-wide operations, through a frame, and none may be
    /// written through.
    Shared,
    /// Nothing before it is split: it stands behind a large page, or did when it was found.
    Large,
}

/// A table of level 1 that stays what it is while this lives. The task is pinned to its CPU.
pub(super) struct Leaf {
    pub(super) table: u32,
    /// What the table's first entry maps.
    pub(super) base: VirtAddr,
    pub(super) status: Status,
    pub(super) _pinned: Pinned,
}

impl Leaf {
    /// Whether its pmap changes its entries as it likes.
    #[inline]
    pub(super) fn is_own(&self) -> bool {
        self.status == Status::Own
    }

    /// See [`Status::Shared`].
    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        self.status == Status::Shared
    }

    /// See [`Status::Large`].
    #[inline]
    pub(super) fn is_large(&self) -> bool {
        self.status == Status::Large
    }

    /// The entry for a page in the table's span.
    #[inline]
    pub(super) fn entry(&self, index: usize) -> &'static AtomicU64 {
        entry(self.table, index)
    }

    /// One entry more is in use: this one. Before it is written.
    #[inline]
    pub(super) fn add_entry(&self, index: usize) {
        self.use_group(index);
        self.add_entries(1);
    }

    /// As [`add_entry`](Leaf::add_entry) for so many entries, whose [groups](Leaf::use_group) are
    /// put in use before they are written. Those that are not written after all are
    /// [removed](Leaf::remove_entries).
    #[inline]
    pub(super) fn add_entries(&self, count: usize) {
        let r = record(self.table);
        r.use_count().fetch_add(count as u64, Ordering::Relaxed);
    }

    /// The group of this entry is in use.
    #[inline]
    pub(super) fn use_group(&self, index: usize) {
        let r = record(self.table);
        let group = 1 << (index >> LEAF_GROUP);
        if r.in_use.load(Ordering::Relaxed) & group == 0 {
            r.in_use.fetch_or(group, Ordering::Relaxed);
        }
    }

    /// The first entry in use from `first` to before `end`.
    #[inline]
    pub(super) fn next_entry(&self, first: usize, end: usize) -> Option<usize> {
        let groups = record(self.table).in_use.load(Ordering::Acquire);
        next_entry(self.table, u64::from(groups), LEAF_GROUP, first, end)
    }

    /// The entries in use from `first` to before `end`, each looked for when it is its turn.
    #[inline]
    pub(super) fn used(&self, first: usize, end: usize) -> impl Iterator<Item = usize> {
        let mut first = first;
        core::iter::from_fn(move || {
            let found = self.next_entry(first, end)?;
            first = found + 1;
            Some(found)
        })
    }

    /// Calls `f` with each entry from `first` to before `end` that may be in use, all those of
    /// groups in use, until it says that it was the last.
    #[inline(always)]
    pub(super) fn walk_part(&self, first: usize, end: usize, mut f: impl FnMut(usize) -> bool) {
        let mut groups = 0;
        let mut i = first;
        while i < end {
            if i == first || i.is_multiple_of(1 << LEAF_GROUP) {
                groups = record(self.table).in_use.load(Ordering::Acquire);
            }
            if groups >> (i >> LEAF_GROUP) & 1 == 0 {
                i = ((i >> LEAF_GROUP) + 1) << LEAF_GROUP;
                continue;
            }
            if f(i) {
                return;
            }
            i += 1;
        }
    }

    /// Calls `f` with each entry that may be in use, all those of groups in use, until it says that
    /// it was the last.
    #[inline]
    pub(super) fn walk_entries(&self, f: impl FnMut(usize) -> bool) {
        walk_entries(record(self.table).in_use.load(Ordering::Acquire), f);
    }

    /// Whether any entry from `first` to before `end` gives a right that is not in `rights`.
    pub(super) fn any_beyond(&self, rights: Prot, first: usize, end: usize) -> bool {
        self.used(first, end)
            .any(|i| !rights.contains(load(self.entry(i)).prot()))
    }

    /// One entry less is in use. After the entry was cleared and unlinked.
    #[inline]
    pub(super) fn remove_entry(&self) {
        release(self.table);
    }

    /// As [`remove_entry`](Leaf::remove_entry) for so many, all of which were cleared and unlinked.
    pub(super) fn remove_entries(&self, count: usize) {
        machine::point();
        let old = record(self.table)
            .use_count()
            .fetch_sub(count as u64, Ordering::Release);
        debug_assert!(
            old & COUNT >= count as u64,
            "a page table was released twice"
        );
    }

    /// Entries in use, other walkers included.
    pub(super) fn entries(&self) -> usize {
        let b = record(self.table).use_count().load(Ordering::Acquire);
        let attached = usize::from(b & DYING == 0);
        (b & COUNT) as usize - 1 - attached
    }
}

impl Drop for Leaf {
    #[inline]
    fn drop(&mut self) {
        release(self.table);
    }
}

/// Lowers a table's use count. When it was the last use of a dying table, the table belongs to the
/// CPU that killed it.
#[inline]
pub(super) fn release(table: u32) {
    machine::point();
    let old = record(table).use_count().fetch_sub(1, Ordering::Release);
    debug_assert!(old & COUNT != 0, "a page table was released twice");
}

/// Entries in use of a table of level 1 that is attached, walkers included.
pub(super) fn entries_of(table: u32) -> usize {
    (record(table).use_count().load(Ordering::Relaxed) & COUNT) as usize - 1
}

/// Pins a table of level 1 that the caller, by a lock or as its last sharer, keeps attached.
pub(super) fn pin_attached(table: u32) -> Leaf {
    pin_linked(table, Status::Shared)
}

/// Pins the table of an entry that is counted and linked, with the reverse lock of the frame held
/// that it maps.
pub(super) fn pin_linked(table: u32, status: Status) -> Leaf {
    let pinned = Pinned::new();
    record(table).use_count().fetch_add(1, Ordering::Acquire);
    Leaf {
        table,
        base: base_of(table),
        status,
        _pinned: pinned,
    }
}

/// Makes a table that was taken a table of level 1 of this owner for `base`, pinned and to be
/// attached by the caller.
pub(super) fn new_leaf(owner: u64, table: u32, base: VirtAddr) -> Leaf {
    let r = record(table);
    r.owner().store(owner, Ordering::Relaxed);
    r.in_use.store(0, Ordering::Relaxed);
    // Attached, and pinned.
    r.use_count().store(base.0 as u64 | 2, Ordering::Release);
    Leaf {
        table,
        base,
        status: Status::Own,
        _pinned: Pinned::new(),
    }
}

/// What the first entry of a table of level 1 maps.
pub(super) fn base_of(table: u32) -> VirtAddr {
    VirtAddr((record(table).use_count().load(Ordering::Relaxed) & BASE) as usize)
}

pub(super) fn leaf_base(va: VirtAddr) -> VirtAddr {
    VirtAddr(va.0 & !(LEAF_SPAN - 1))
}

/// Gives up the frames that a dead table of level 1 still names, and leaves it empty.
pub(super) fn give_up_entries(table: u32) {
    let groups = record(table).in_use.swap(0, Ordering::Relaxed);
    walk_entries(groups, |i| {
        let entry = entry(table, i);
        let pte = Pte(entry.load(Ordering::Relaxed));
        if pte.is_pending() {
            entry.store(0, Ordering::Relaxed);
            drop(Frame::from_index(pte.pending_frame()));
        }
        false
    });
}

/// Calls `f` with each entry of these groups of a table of level 1, until it says that it was the
/// last.
#[inline]
fn walk_entries(mut groups: u32, mut f: impl FnMut(usize) -> bool) {
    while groups != 0 {
        let first = (groups.trailing_zeros() as usize) << LEAF_GROUP;
        groups &= groups - 1;
        if (first..first + (1 << LEAF_GROUP)).any(&mut f) {
            return;
        }
    }
}
