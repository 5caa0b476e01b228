//! Page tables of level 1 that several spaces lead to: what a fork makes of its parent's (`uvm.txt`
//! 5.2 for whole tables).
//!
//! A forked pmap leads to the tables of its parent, and in both the entry above takes the right to
//! write away for all that is below: one flush, and a cost that is the number of tables. The
//! entries of a shared table are as they were. A space that changes its mappings gets its own table
//! first ([`Pmap::own`]): a copy while others share the table, or the table itself when all
//! others have left it.
//!
//! # Locking
//!
//! *Which tables a pmap leads to* is guarded by its lock, as ever. *How many pmaps lead to a table*
//! is its count of sharers. Only a pmap that leads to a table can make others lead to it, too, and
//! that by [`Pmap::fork`], while no other task changes its mappings: so a pmap that leads to a
//! table and finds the count at one is alone, and stays so. A fork releases the lock after each
//! batch of tables: only page-wide operations come between, and the child is not published yet.
//!
//! *The entries of a shared table* are changed by page-wide operations only (`page`), which mean
//! all spaces anyway. So a pmap that has found the table, read an entry, and still leads to the
//! table after that, has read its own mapping.
//!
//! *The CPUs that are told* when an entry of a shared table changes: the CPUs that have any member
//! of the family loaded (`family`). A pmap that has gone over to a copy is told by the copy, whose
//! entries are on the frames' lists before it is attached; what its TLBs have read from the old
//! table is accounted for there, too ([`Pte::copied`]).
//!
//! *When a pmap has left a table* its share in it stays in a [`Pending`] set until the flush, since
//! a processor may walk through the table until then. The CPU that drops the last share empties the
//! table, and no TLB knows of it.
//!
//! The owner of a table stands in its record: see `owner`.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::entries::{GROUP, entry, load, next_entry};
use super::format::{ENTRIES, LEAF_SPAN, Pte, index};
use super::large::Why;
use super::leaf::{Leaf, entries_of, leaf_base, new_leaf, pin_attached};
use super::owner::{COMMON, leave_family, owner, sharers};
use super::pending::Pending;
use super::reverse;
use super::space::{Pmap, PmapRef};
use super::table::{count_entry, make_tables};
use crate::addr::USER_END;
use crate::counters::Counter;
use crate::frame::record::record;
use crate::frame::{add_handles, take_table};
use crate::hw::machine;
use crate::{OutOfMemory, VirtAddr, VirtRange};

/// What a fork does with the page tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fork {
    /// Parent and child share them until one of them changes its mappings.
    #[default]
    Share,
    /// The child starts with none, and the parent's mappings are write-protected one by one.
    Copy,
}

/// Tables that a fork looks at under one hold of its parent's lock; few on the simulated machine,
/// where a space has few.
const SHARED_TOGETHER: usize = if cfg!(target_os = "none") { 64 } else { 3 };

static SHARES: AtomicBool = AtomicBool::new(true);

/// Sets what forks do from now on.
pub fn set_fork(fork: Fork) {
    SHARES.store(fork == Fork::Share, Ordering::Relaxed);
}

/// See [`set_fork`].
pub fn fork_mode() -> Fork {
    match SHARES.load(Ordering::Relaxed) {
        true => Fork::Share,
        false => Fork::Copy,
    }
}

/// What a pmap that takes a table for its own does about the right to write, which the entries may
/// still have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    /// No other space has come to refer to the pages meanwhile: the rights to write come back.
    Kept,
    /// It is taken away.
    TakenAway,
}

impl Pmap {
    /// Returns a pmap with the same mappings, none of which may be written, in either, before
    /// [`own`](Pmap::own) or [`enter`](Pmap::enter) was called for its page. A page table is shared
    /// if it maps `least` pages or more and its 2 MiB lie in one of `spans`, which are disjoint and
    /// in order of address; the mappings of all others stay as they are here and are absent there.
    /// With [`Fork::Copy`] these are all. Also returns whether every mapping is shared. The rights
    /// that are taken away here are gone once `pending` was flushed.
    ///
    /// Meanwhile this pmap's mappings change by page-wide operations only.
    ///
    /// # Errors
    /// [`OutOfMemory`]: no frame for a page table. Some rights may have been taken away.
    pub fn fork(
        &self,
        spans: &mut dyn Iterator<Item = VirtRange>,
        least: usize,
        pending: &mut Pending,
    ) -> Result<(PmapRef, bool), OutOfMemory> {
        let mut child = Pmap::member(self.family.clone())?;
        let complete = match fork_mode() {
            // A table of level 1 maps the same addresses of all programs that share it, but not the
            // same linear ones in two regions.
            Fork::Share if !self.is_small() => {
                self.share_with(&mut child, spans, least, pending)?
            }
            Fork::Share | Fork::Copy => false,
        };
        Ok((PmapRef::new(child), complete))
    }

    fn share_with(
        &self,
        child: &mut Pmap,
        spans: &mut dyn Iterator<Item = VirtRange>,
        least: usize,
        pending: &mut Pending,
    ) -> Result<bool, OutOfMemory> {
        let mut span = spans.next();
        let (mut is_complete, mut any_own, mut shared) = (true, false, 0);
        let (mut i4, mut i3, mut i2) = (0, 0, 0);
        let result = 'all: loop {
            // Held for one batch: how many tables there are, the program decides.
            let _frames = self.lock.lock();
            let Some((n4, table3)) = below(self.root, i4, ENTRIES / 2) else {
                break Ok(());
            };
            if n4 != i4 {
                (i4, i3, i2) = (n4, 0, 0);
            }
            let Some((n3, table2)) = below(table3, i3, ENTRIES) else {
                (i4, i3, i2) = (n4 + 1, 0, 0);
                continue;
            };
            if n3 != i3 {
                (i3, i2) = (n3, 0);
            }
            let mut childs = None;
            let mut batch = SHARED_TOGETHER;
            while batch > 0
                && let Some((n2, mut table)) = below(table2, i2, ENTRIES)
            {
                batch -= 1;
                i2 = n2 + 1;
                let base = VirtAddr(((n4 * ENTRIES + n3) * ENTRIES + n2) * LEAF_SPAN);
                let above = entry(table2, n2);
                let is_large = load(above).is_large();
                if is_large {
                    table = self.behind(load(above), base);
                }
                let pages = entries_of(table);
                if pages == 0 {
                    continue;
                }
                while span.is_some_and(|it| it.end < base + LEAF_SPAN) {
                    span = spans.next();
                }
                if pages < least || span.is_none_or(|it| base < it.start) {
                    is_complete = false;
                    continue;
                }
                let childs = match childs {
                    Some(childs) => childs,
                    None => match child.upper(base) {
                        Ok(table) => *childs.insert(table),
                        Err(error) => break 'all Err(error),
                    },
                };
                if is_large {
                    // Before the parent loses a right, so that nothing is left of the large
                    // page when the child comes.
                    self.split_entry(above, base, Why::Fork);
                }
                any_own |= self.share(above, table);
                entry(childs, n2).store(Pte::shared_table(table).0, Ordering::Release);
                count_entry(childs, n2);
                *child.lock.get_mut() += 2;
                shared += 1;
            }
            if batch > 0 {
                (i3, i2) = (n3 + 1, 0);
            }
        };
        if shared > 0 {
            self.is_forked.store(true, Ordering::Relaxed);
            child.is_forked.store(true, Ordering::Relaxed);
        }
        if any_own {
            pending.invalidate_all(self.holders());
        }
        Counter::page_tables_shared.add(shared);
        result.map(|()| is_complete)
    }

    /// One sharer more for the table that an entry of level 2 leads to. Returns whether it was this
    /// pmap's own. [pmap lock]
    fn share(&self, above: &AtomicU64, table: u32) -> bool {
        if load(above).is_shared_table() {
            sharers(table).fetch_add(1, Ordering::Relaxed);
            return false;
        }
        sharers(table).store(2, Ordering::Relaxed);
        // Before any other CPU can have seen an entry, so that a change of one looks for its
        // holders and finds the family.
        let family = Arc::into_raw(self.family.clone()) as u64 | COMMON;
        record(table).owner().store(family, Ordering::SeqCst);
        machine::point();
        above.fetch_and(!Pte::WRITE_BIT, Ordering::AcqRel);
        true
    }

    /// Takes nearly all shared tables out at once, for a pmap that is torn down: of each table of
    /// level 2 one entry stays, so that it is still found. No CPU has the pmap loaded.
    pub(super) fn leave_shared_tables(&self, dead: &mut Pending) {
        if !self.is_forked.load(Ordering::Relaxed) {
            return;
        }
        let (mut i4, mut i3, mut i2) = (0, 0, 0);
        loop {
            if dead.is_full() {
                dead.flush();
            }
            let mut frames = self.lock.lock();
            let Some((n4, table3)) = below(self.root, i4, ENTRIES / 2) else {
                return;
            };
            let Some((n3, table2)) = below(table3, i3, ENTRIES) else {
                (i4, i3, i2) = (n4 + 1, 0, 0);
                continue;
            };
            let in_use = &record(table2).in_use;
            while !dead.is_full()
                && in_use.load(Ordering::Relaxed) > 1
                && let Some((n2, table)) = below(table2, i2, ENTRIES)
            {
                i2 = n2 + 1;
                let above = entry(table2, n2);
                if load(above).is_shared_table() {
                    above.store(0, Ordering::Relaxed);
                    in_use.fetch_sub(1, Ordering::Relaxed);
                    *frames -= 2;
                    dead.add_share(table);
                }
            }
            if dead.is_full() {
                (i4, i3) = (n4, n3);
            } else {
                (i4, i3, i2) = (n4, n3 + 1, 0);
            }
        }
    }

    /// The table of level 2 for `va` in a pmap that is not published yet.
    fn upper(&mut self, va: VirtAddr) -> Result<u32, OutOfMemory> {
        make_tables(self.tops(), self.lock.get_mut(), va, 2, |table| {
            record(table).in_use.store(0, Ordering::Relaxed);
            record(table).groups().store(0, Ordering::Relaxed);
            Pte::table(table)
        })
    }

    /// Makes the table of level 1 for `va` this pmap's own, if it is one that a fork made common;
    /// its mappings stay, but for the right to write. A large page there is split. Sleeps never;
    /// interrupts are on and no spin lock is held.
    ///
    /// # Errors
    /// [`OutOfMemory`]: no frame for a page table; nothing has changed.
    pub fn own(&self, va: VirtAddr) -> Result<(), OutOfMemory> {
        let mut pending = Pending::new();
        let frames = self.lock.lock();
        let Some((above, table)) = self.shared_table(va) else {
            drop(frames);
            self.split(va, Why::Other);
            return Ok(());
        };
        if self.take_back(above, table, Writes::TakenAway) {
            return Ok(());
        }
        let new = take_table(1).ok_or(OutOfMemory)?.index();
        let leaf = new_leaf(owner(self), new, leaf_base(va));
        copy(table, &leaf);
        drop(leaf);
        machine::point();
        let old = Pte(above.swap(Pte::table(new).0, Ordering::AcqRel));
        // Invalidating a page behind it makes a processor forget the way to the old table.
        if old.may_be_cached() {
            pending.invalidate(self.holders(), leaf_base(va));
        }
        pending.add_share(table);
        drop(frames);
        pending.flush();
        Counter::page_tables_copied.add(1);
        Ok(())
    }

    /// Takes all mappings away that come from the table of level 1 for `va`, if a fork made it
    /// common: replacing most of them is better off than with a copy. When this returns, no CPU
    /// uses one of them. Sleeps never; interrupts are on and no spin lock is held.
    pub fn leave_shared(&self, va: VirtAddr) {
        let mut pending = Pending::new();
        self.give_up_shared(va, &mut pending);
        pending.flush();
    }

    /// If a fork made the table of level 1 for `va` common, and all others have left it, it is this
    /// pmap's own again. Returns whether it is now or was before.
    pub fn reclaim(&self, va: VirtAddr, writes: Writes) -> bool {
        let _frames = self.lock.lock();
        match self.shared_table(va) {
            Some((above, table)) => self.take_back(above, table, writes),
            None => true,
        }
    }

    /// Whether a fork made the table of level 1 for `va` common, so that nothing can be written
    /// through it.
    #[inline]
    pub fn is_shared(&self, va: VirtAddr) -> bool {
        self.is_forked.load(Ordering::Relaxed) && self.walk(va).is_some_and(Pte::is_shared_table)
    }

    /// Whether a fork made the table of level 1 for `va` common, and all others have left it: that
    /// stays so until this pmap is forked.
    pub fn is_last_sharer(&self, va: VirtAddr) -> bool {
        let _frames = self.lock.lock();
        self.shared_table(va)
            .is_some_and(|(_, table)| sharers(table).load(Ordering::Relaxed) == 1)
    }

    /// The table of level 1 for `va` and the entry above it, if it is a shared one. [pmap lock]
    fn shared_table(&self, va: VirtAddr) -> Option<(&'static AtomicU64, u32)> {
        let above = self.above_leaf(va)?;
        let pte = load(above);
        (pte.is_present() && pte.is_shared_table()).then(|| (above, pte.frame()))
    }

    /// The entry of level 2 for `va`, an address of a program, whatever it is, if there is a table
    /// for it. [pmap lock]
    pub(super) fn above_leaf(&self, va: VirtAddr) -> Option<&'static AtomicU64> {
        if va >= USER_END {
            return None;
        }
        if self.place.is_small() {
            return self.place.above(va);
        }
        let mut table = self.root;
        for level in [4, 3] {
            let pte = load(entry(table, index(va, level)));
            if !pte.is_present() {
                return None;
            }
            table = pte.frame();
        }
        Some(entry(table, index(va, 2)))
    }

    /// Takes a table for this pmap's own if it is the only one that still leads to it. Nothing has
    /// to be flushed: rights only become more. [pmap lock]
    fn take_back(&self, above: &AtomicU64, table: u32, writes: Writes) -> bool {
        // Acquire: what the others did comes before what this one does.
        if sharers(table).load(Ordering::Acquire) > 1 {
            return false;
        }
        if writes == Writes::TakenAway {
            let leaf = pin_attached(table);
            for i in leaf.used(0, ENTRIES) {
                // Page-wide operations go on.
                if load(leaf.entry(i)).0 & Pte::WRITE_BIT != 0 {
                    leaf.entry(i).fetch_and(!Pte::WRITE_BIT, Ordering::AcqRel);
                }
            }
        }
        leave_family(table, owner(self));
        machine::point();
        above.fetch_or(Pte::WRITE_BIT, Ordering::AcqRel);
        Counter::page_tables_reclaimed.add(1);
        true
    }
}

/// Copies the mappings of a shared table into a new one that is not attached yet. From the moment
/// on that an entry is copied, page-wide operations find both.
fn copy(table: u32, new: &Leaf) {
    let from = pin_attached(table);
    let slot = reverse::slot(new.table, 0);
    for next in from.used(0, ENTRIES) {
        let pte = load(from.entry(next));
        if !pte.is_present() {
            continue;
        }
        if pte.is_device() {
            new.add_entry(next);
            new.entry(next).store(pte.copied().0, Ordering::Release);
            continue;
        }
        let frame = pte.frame();
        let mut mappings = record(frame).lock_mappings();
        // The lock keeps the mapping, and with it its handle, if it is still this one; entries of a
        // shared table are never replaced by others.
        let pte = load(from.entry(next));
        if pte.maps(frame) {
            add_handles(frame, 1);
            new.add_entry(next);
            new.entry(next).store(pte.copied().0, Ordering::Release);
            reverse::link_slot(&mut mappings, slot + next as u32);
        }
    }
}

/// The first entry in use of a table above level 1 from `from` to before `end`, and the table that
/// it leads to.
#[inline]
fn below(table: u32, from: usize, end: usize) -> Option<(usize, u32)> {
    let groups = record(table).groups().load(Ordering::Relaxed);
    let found = next_entry(table, groups, GROUP, from, end)?;
    Some((found, load(entry(table, found)).frame()))
}
