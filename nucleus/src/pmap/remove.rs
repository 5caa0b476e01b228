//! Removing mappings, and taking rights from those that stay.

use core::sync::atomic::{AtomicU64, Ordering};

use super::entries::change as change_entry;
use super::format::{LEAF_SPAN, Pte};
use super::large::Why;
use super::leaf::{Leaf, leaf_base};
use super::mapping::{Keep, Unmapped, empty, narrow, part_of, unmap};
use super::owner::{holders_of, owner as owner_of};
use super::pending::{Pending, bury};
use super::shootdown::must_be_told;
use super::space::{Holders, Pmap};
use super::table::Found;
use crate::addr::Prot;
use crate::counters::Counter;
use crate::frame::record::record;
use crate::mem::mistake::Mistake;
use crate::{PAGE_SIZE, VirtAddr, VirtRange};

impl Pmap {
    /// Removes every mapping in `range`; the frames' handles go to `pending`. Page tables that have
    /// become empty go there too.
    pub fn remove(&self, range: VirtRange, pending: &mut Pending) {
        let mut range = range;
        while let Some(Found { leaf, gone }) = self.next_leaf(range, Some(pending)) {
            let end = VirtAddr(leaf.base.0 + LEAF_SPAN);
            if leaf.is_shared() || leaf.is_large() && !gone {
                match gone {
                    true => {
                        range.start = end;
                        // The flush of the set takes its mappings out and waits for all walkers of
                        // the table.
                        drop(leaf);
                    }
                    // All of it would be too much: a table of its own, or none.
                    false => self.part_from(leaf, Why::Remove, pending),
                }
                if pending.is_full() {
                    pending.flush();
                }
                continue;
            }
            let owner = record(leaf.table).owner();
            if gone {
                empty(&leaf, |entry, va| {
                    // Processors knew a large page as a whole, and are told so.
                    if !leaf.is_large() {
                        self.forget(owner, entry, va, pending);
                    }
                    Keep::Pending
                });
                let table = leaf.table;
                drop(leaf);
                bury(table, pending);
                range.start = end;
                continue;
            }
            let (mut i, stop) = part_of(range, leaf.base);
            while let Some(next) = leaf.next_entry(i, stop) {
                i = next;
                if pending.is_full() {
                    break;
                }
                // One by one: mostly they are few.
                if self.take_out(&leaf, i, Pte::ZERO, pending) {
                    leaf.remove_entry();
                }
            }
            range.start = if pending.is_full() {
                leaf.base + i * PAGE_SIZE
            } else {
                end
            };
            // No other walker: the table may go.
            if leaf.entries() == 0 {
                self.prune(leaf, pending);
            } else {
                drop(leaf);
            }
            if pending.is_full() {
                pending.flush();
            }
        }
    }

    /// As [`remove`](Pmap::remove), but page tables stay, also empty ones: others of these pages
    /// will be mapped again.
    pub fn remove_pages(&self, range: VirtRange, pending: &mut Pending) {
        let mut range = range;
        while !range.is_empty() {
            if pending.is_full() {
                pending.flush();
            }
            // Mostly there is a table of its own, which is found without the lock.
            let own = self.leaf(range.start).filter(Leaf::is_own);
            let found = own.or_else(|| Some(self.next_leaf(range, None)?.leaf));
            let Some(leaf) = found else { return };
            if !leaf.is_own() {
                self.part_from(leaf, Why::Remove, pending);
                continue;
            }
            let end = VirtAddr(leaf.base.0 + LEAF_SPAN).min(range.end);
            range.start = self.take_out_part(&leaf, range, pending).unwrap_or(end);
        }
    }

    /// Takes the mappings in `range` out of a table of this pmap's own, until `pending` is full:
    /// then returns the first address that is left.
    #[inline]
    fn take_out_part(
        &self,
        leaf: &Leaf,
        range: VirtRange,
        pending: &mut Pending,
    ) -> Option<VirtAddr> {
        let (first, stop) = part_of(range, leaf.base);
        let mut old = OldEntries::of(self, pending);
        let mut taken = 0;
        let mut room = pending.room();
        let mut left = None;
        leaf.walk_part(first, stop, |i| {
            if room == 0 {
                left = Some(leaf.base + i * PAGE_SIZE);
                return true;
            }
            if let Some(unmapped) = unmap(leaf.table, i, Pte::ZERO) {
                taken += 1;
                old.note(unmapped.old, leaf.base + i * PAGE_SIZE, pending);
                if let Some(frame) = unmapped.frame {
                    pending.add_frame(frame);
                    room -= 1;
                }
            }
            false
        });
        old.tell(leaf, pending);
        if taken > 0 {
            leaf.remove_entries(taken);
        }
        left
    }

    /// Takes away every right in `range` that is not in `prot`; never adds one.
    pub fn protect(&self, range: VirtRange, prot: Prot, pending: &mut Pending) {
        if !prot.contains(Prot::READ) && !prot.intersects(Prot::WRITE | Prot::EXEC) {
            return self.remove(range, pending);
        }
        // Mostly it is a part of what one table maps, which is found without the lock.
        if leaf_base(range.start) == leaf_base(VirtAddr(range.end.0.saturating_sub(1)))
            && let Some(leaf) = self.leaf(range.start)
            && leaf.is_own()
        {
            return self.narrow_part(&leaf, range, prot, pending);
        }
        let mut range = range;
        while let Some(Found { leaf, .. }) = self.next_leaf(range, None) {
            let (first, stop) = part_of(range, leaf.base);
            if !leaf.is_own() {
                let rights = match leaf.is_shared() {
                    // None may be written as it is.
                    true => prot | Prot::READ | Prot::WRITE,
                    false => prot | Prot::READ,
                };
                let narrows = !rights.contains(Prot::EXEC | Prot::WRITE);
                match narrows && leaf.any_beyond(rights, first, stop) {
                    true => self.part_from(leaf, Why::Protect, pending),
                    false => range.start = leaf.base + LEAF_SPAN,
                }
                continue;
            }
            self.narrow_part(&leaf, range, prot, pending);
            range.start = leaf.base + LEAF_SPAN;
        }
    }

    /// As [`protect`](Pmap::protect) for what `leaf`, a table of this pmap's own, maps of `range`.
    #[inline]
    fn narrow_part(&self, leaf: &Leaf, range: VirtRange, prot: Prot, pending: &mut Pending) {
        let (first, stop) = part_of(range, leaf.base);
        let mut old = OldEntries::of(self, pending);
        leaf.walk_part(first, stop, |i| {
            if let Some(entry) = narrow(leaf.entry(i), prot) {
                old.note(entry, leaf.base + i * PAGE_SIZE, pending);
            }
            false
        });
        old.tell(leaf, pending);
    }

    /// Wires or unwires what is mapped in `range`: the choice of victims passes wired ones by
    /// ([`Use`]). What is mapped later is wired if its rights say so. Nothing is flushed, since no
    /// processor looks at this.
    pub fn wire(&self, range: VirtRange, wired: bool) {
        let mut range = range;
        let mut pending = Pending::new();
        while let Some(Found { leaf, .. }) = self.next_leaf(range, None) {
            if leaf.is_shared() {
                self.part_from(leaf, Why::Other, &mut pending);
                continue;
            }
            // Behind a large page the entries are what says which pages are wired, too.
            let (first, stop) = part_of(range, leaf.base);
            for i in leaf.used(first, stop) {
                let change = |pte: Pte| {
                    (pte.is_present() && pte.is_wired() != wired).then(|| pte.wired(wired))
                };
                change_entry(leaf.entry(i), change);
            }
            range.start = leaf.base + LEAF_SPAN;
        }
    }

    /// The table is shared, or behind a large page, and this pmap's mappings are to become others:
    /// a table of its own, or for lack of memory none, so that its mappings are gone.
    pub(super) fn part_from(&self, leaf: Leaf, why: Why, pending: &mut Pending) {
        let va = leaf.base;
        let is_large = leaf.is_large();
        drop(leaf);
        if is_large {
            return self.split(va, why);
        }
        if self.own(va).is_err() {
            if pending.is_full() {
                pending.flush();
            }
            self.give_up_shared(va, pending);
        }
    }

    /// The old state of an entry was replaced: a TLB may hold it. The `owner` of the entry's table,
    /// which is pinned, is read after the change: a fork may have shared the table since.
    #[inline]
    pub(super) fn forget(&self, owner: &AtomicU64, old: Pte, va: VirtAddr, pending: &mut Pending) {
        if !must_be_told(old) {
            Counter::tlb_skipped_unaccessed.add(1);
        } else if owner.load(Ordering::SeqCst) == owner_of(self) {
            pending.invalidate(self.holders(), va);
        } else {
            forget_shared(owner, va, pending);
        }
    }

    /// Takes the mapping out of an entry and puts `instead` there; its handle goes to `pending`,
    /// which is not full. False if there was none. The use count of the table is the caller's
    /// business.
    #[inline(always)]
    pub(super) fn take_out(
        &self,
        leaf: &Leaf,
        i: usize,
        instead: Pte,
        pending: &mut Pending,
    ) -> bool {
        match unmap(leaf.table, i, instead) {
            Some(Unmapped { old, frame }) => {
                let va = VirtAddr(leaf.base.0 + i * PAGE_SIZE);
                self.forget(record(leaf.table).owner(), old, va, pending);
                if let Some(frame) = frame {
                    pending.add_frame(frame);
                }
                true
            }
            None => false,
        }
    }
}

/// The old states of entries of one table, which TLBs may hold: told together, since the CPUs are
/// looked up after a change.
struct OldEntries<'a> {
    pmap: &'a Pmap,
    holders: Holders<'a>,
    /// Where theirs begin in the set.
    place: usize,
    /// Entries that a TLB may hold. Not the difference of places: a full set has but one.
    noted: usize,
    /// Entries that no TLB can hold.
    skipped: usize,
}

impl<'a> OldEntries<'a> {
    #[inline]
    fn of(pmap: &'a Pmap, pending: &Pending) -> OldEntries<'a> {
        OldEntries {
            pmap,
            holders: pmap.holders(),
            place: pending.place(),
            noted: 0,
            skipped: 0,
        }
    }

    /// The old state of the entry for `va` was replaced.
    #[inline]
    fn note(&mut self, old: Pte, va: VirtAddr, pending: &mut Pending) {
        match must_be_told(old) {
            true => {
                pending.note(&self.holders, va);
                self.noted += 1;
            }
            false => self.skipped += 1,
        }
    }

    /// The `leaf`, in which all of them were, is still pinned: see [`Pmap::forget`].
    #[inline]
    fn tell(self, leaf: &Leaf, pending: &mut Pending) {
        if self.skipped > 0 {
            Counter::tlb_skipped_unaccessed.add(self.skipped as u64);
        }
        let is_over = Mistake::FullSetNotTold.is_made() && pending.place() == self.place;
        if self.noted == 0 || is_over {
            return;
        }
        let owner = record(leaf.table).owner();
        match owner.load(Ordering::SeqCst) == owner_of(self.pmap) {
            true => pending.tell_from(self.place, &self.holders),
            // SAFETY: as for `forget_shared`.
            false => pending.tell_all_from(self.place, unsafe { holders_of(owner) }),
        }
    }
}

/// As [`Pmap::forget`] for a table that a fork has shared since it was pinned.
#[cold]
fn forget_shared(owner: &AtomicU64, va: VirtAddr, pending: &mut Pending) {
    // SAFETY: a CPU that takes the table away from its owner makes a living member of the owner's
    // family its owner, and a pmap ends only after its tables are no longer pinned.
    pending.invalidate(unsafe { holders_of(owner) }, va);
}
