//! The tree of page tables of one pmap: finding, making and taking out its tables.
//!
//! # Locking
//!
//! | what | guarded by |
//! |---|---|
//! | entries of tables of level 2 to 4, and their records | the pmap's lock |
//! | which frame an entry of level 1 maps | the reverse lock of that frame, old or new |
//! | rights, accessed and dirty bits of an entry of level 1 | compare-exchange of the whole entry |
//! | the use count of a table of level 1 (in its record) | atomic: see below |
//!
//! No lock is taken inside the reverse lock, and only one of these at a time. The pmap's lock is
//! taken outside of no other lock but the allocator's.
//!
//! How a table of level 1 is found and kept without the pmap's lock: see `leaf`. Tables of level 1
//! that several spaces lead to: see `share`. Those behind a large page: see `large`.

use core::sync::atomic::Ordering;

use super::entries::{GROUP, entry, group, load, next_entry};
use super::format::{ENTRIES, LEAF_SPAN, Pte, index, span};
use super::large;
use super::leaf::{BASE, COUNT, DYING, Leaf, Status, leaf_base, new_leaf};
use super::owner::{common_owner, owner};
use super::pending::{Pending, bury};
use super::space::{Pmap, Tops};
use crate::addr::USER_END;
use crate::cpu::percpu::Pinned;
use crate::frame::record::{NONE, Type, find, record};
use crate::frame::{give_table, take_table};
use crate::hw::machine;
use crate::{OutOfMemory, PAGE_SIZE, VirtAddr, VirtRange};

/// What the tables of level 1 of programs map, the page at [`USER_END`] with the last of them.
const PROGRAMS: VirtRange = VirtRange {
    start: VirtAddr(0),
    end: VirtAddr(USER_END.0 + PAGE_SIZE),
};

const _: () = assert!(PROGRAMS.end.0 == span(4) * ENTRIES / 2);

impl Pmap {
    /// The table of level 1 that maps `va`, if there is one. No lock.
    #[inline]
    pub(super) fn leaf(&self, va: VirtAddr) -> Option<Leaf> {
        let pte = self.walk(va)?;
        if !pte.is_shared_table()
            && let Some(leaf) = self.pin(pte, leaf_base(va))
        {
            return Some(leaf);
        }
        self.common_leaf(va, pte)
    }

    /// As [`leaf`](Pmap::leaf) where `pte` leads to a table that others share, or one that goes.
    #[inline(never)]
    fn common_leaf(&self, va: VirtAddr, mut pte: Pte) -> Option<Leaf> {
        loop {
            let leaf = self.pin(pte, leaf_base(va));
            // Where sharing begins or ends the table has another owner than the entry said.
            if leaf.as_ref().is_some_and(|leaf| !leaf.is_shared()) || self.leads_to(va, pte) {
                return leaf;
            }
            pte = self.walk(va)?;
        }
    }

    /// The entry of level 2 for `va`: a hint. None where no program may have anything.
    #[inline]
    pub(super) fn walk(&self, va: VirtAddr) -> Option<Pte> {
        if va >= USER_END {
            return None;
        }
        if self.place.is_small() {
            return self.walk_small(va);
        }
        let mut table = self.root;
        let mut level = 4;
        loop {
            let pte = load(entry(table, index(va, level)));
            if !pte.is_present() {
                if level == 2 && pte == Pte::SPLITTING {
                    machine::spin_hint();
                    (table, level) = (self.root, 4);
                    continue;
                }
                return None;
            }
            table = pte.frame();
            find(table as u64)?;
            level -= 1;
            if level == 1 {
                return Some(pte);
            }
        }
    }

    /// As [`walk`](Pmap::walk) in a small pmap.
    #[inline(never)]
    fn walk_small(&self, va: VirtAddr) -> Option<Pte> {
        loop {
            let pte = load(self.place.above(va)?);
            if pte == Pte::SPLITTING {
                machine::spin_hint();
                continue;
            }
            if !pte.is_present() {
                return None;
            }
            find(pte.frame() as u64)?;
            return Some(pte);
        }
    }

    /// Whether the entry of level 2 for `va` still refers to what it referred to as `pte`, shared
    /// or not.
    #[inline(never)]
    fn leads_to(&self, va: VirtAddr, pte: Pte) -> bool {
        let same =
            |now: Pte| now.frame() == pte.frame() && now.is_shared_table() == pte.is_shared_table();
        self.walk(va).is_some_and(same)
    }

    /// Whether what was read from a table that was found for `va`, and that others share, was still
    /// this pmap's own business: none of the others changes it as long as this pmap leads to it.
    #[inline]
    pub(super) fn confirms(&self, leaf: &Leaf, va: VirtAddr) -> bool {
        !leaf.is_shared() || self.leads_to(va, Pte::shared_table(leaf.table))
    }

    /// Pins what may be this pmap's table of level 1 for `base`, by the entry of level 2 that leads
    /// to it.
    #[inline]
    fn pin(&self, pte: Pte, base: VirtAddr) -> Option<Leaf> {
        let pinned = Pinned::new();
        let table = pte.frame();
        let is_shared = pte.is_shared_table();
        let r = record(table);
        if r.kind() != Type::PageTable1 {
            return match pte.is_large() {
                true => self.pin_large(pte, base),
                false => None,
            };
        }
        let mut b = r.use_count().load(Ordering::Relaxed);
        loop {
            if b & COUNT == 0 || b & DYING != 0 || b & BASE != base.0 as u64 {
                return None;
            }
            machine::point();
            match r.use_count().compare_exchange_weak(
                b,
                b + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => b = now,
            }
        }
        let leaf = Leaf {
            table,
            base,
            status: match is_shared {
                true => Status::Shared,
                false => Status::Own,
            },
            _pinned: pinned,
        };
        // Pinned now, so this is the owner, or one of them, for good.
        let wanted = match is_shared {
            false => owner(self),
            true => common_owner(&self.family),
        };
        (r.owner().load(Ordering::Relaxed) == wanted).then_some(leaf)
    }

    /// The pmap's own table of level 1 that maps `va`; makes it, and those above it, where it is
    /// missing. Where others share it, or a large page takes its place, that is what
    /// [`own`](Pmap::own) does.
    #[inline]
    pub(super) fn make_leaf(&self, va: VirtAddr) -> Result<Leaf, OutOfMemory> {
        if let Some(leaf) = self.leaf(va)
            && leaf.is_own()
        {
            return Ok(leaf);
        }
        // Not pinned here any more: a CPU that makes a table its own waits for all walkers.
        self.own_leaf(va)
    }

    /// As [`make_leaf`](Pmap::make_leaf) where there is none, or not of its own.
    #[cold]
    fn own_leaf(&self, va: VirtAddr) -> Result<Leaf, OutOfMemory> {
        loop {
            let leaf = match self.leaf(va) {
                Some(leaf) => leaf,
                None => match self.build(va, |leaf| Pte::table(leaf.table))? {
                    Some(leaf) => leaf,
                    None => continue,
                },
            };
            if leaf.is_own() {
                return Ok(leaf);
            }
            drop(leaf);
            self.own(va)?;
        }
    }

    /// Makes the table of level 1 for `va`: `fill` gets it before it can be found, and says what
    /// stands in the entry above. `None`: there is one.
    ///
    /// # Panics
    /// If the program may have nothing at `va`: the tables there are the kernel's, and all pmaps
    /// share them, or in a small space the neighbours'.
    #[cold]
    pub(super) fn build(
        &self,
        va: VirtAddr,
        fill: impl FnOnce(&Leaf) -> Pte,
    ) -> Result<Option<Leaf>, OutOfMemory> {
        assert!(va < self.end(), "{va:?} is not an address of a program");
        let mut frames = self.lock.lock();
        let mut leaf = None;
        if self.place.is_small() {
            let Some(above) = self.place.above(va) else {
                unreachable!("a small pmap was promoted while its mappings change")
            };
            if load(above).is_present() {
                return Ok(None);
            }
            let table = take_table(1).ok_or(OutOfMemory)?.index();
            let new = leaf.insert(new_leaf(owner(self), table, leaf_base(va)));
            let reference = fill(new);
            machine::point();
            above.store(reference.0, Ordering::Release);
            // The frame with its links, too.
            *frames += 2;
            return Ok(leaf);
        }
        make_tables(self.tops(), &mut frames, va, 1, |table| {
            fill(leaf.insert(new_leaf(owner(self), table, leaf_base(va))))
        })?;
        // The frame with its links. Without a leaf another CPU was faster.
        *frames += usize::from(leaf.is_some());
        Ok(leaf)
    }

    /// The first table of level 1 for anything in `range`. If the range covers all that the table
    /// maps, it is killed: detached, and the tables above that have become empty go to `pending`,
    /// which is not full; if others share it, this pmap's share goes there.
    pub(super) fn next_leaf(&self, range: VirtRange, kill: Option<&mut Pending>) -> Option<Found> {
        // The rest of the tree is the kernel's.
        let range = range.intersect(PROGRAMS);
        if range.is_empty() {
            return None;
        }
        let pinned = Pinned::new();
        let mut frames = self.lock.lock();
        let (pte, va) = self.first_in(range)?;
        let base = leaf_base(va);
        let (table, status) = match pte.is_large() {
            true => (self.behind(pte, base), Status::Large),
            false if pte.is_shared_table() => (pte.frame(), Status::Shared),
            false => (pte.frame(), Status::Own),
        };
        let leaf = Leaf {
            table,
            base,
            status,
            _pinned: pinned,
        };
        record(table).use_count().fetch_add(1, Ordering::Acquire);
        let covered = range.start <= base && base.0 + (LEAF_SPAN - 1) < range.end.0;
        let gone = match kill {
            Some(pending) if covered => {
                if leaf.is_shared() {
                    self.leave(table, base, pending, &mut frames);
                } else {
                    // The mark instead of the attachment's own count.
                    machine::point();
                    record(table)
                        .use_count()
                        .fetch_add(DYING - 1, Ordering::AcqRel);
                    self.detach(base, pending, &mut frames);
                    if leaf.is_large() {
                        large::gone(table);
                    }
                }
                true
            }
            _ => false,
        };
        Some(Found { leaf, gone })
    }

    /// Takes a table that others share out of this pmap. [pmap lock]
    fn leave(&self, table: u32, base: VirtAddr, pending: &mut Pending, frames: &mut usize) {
        self.detach(base, pending, frames);
        // Its entries are as they were, and say nothing of the CPUs that have cached them here.
        pending.invalidate_all(self.holders());
        pending.add_share(table);
    }

    /// Takes all mappings away that come from the table for `va` if others share it. `pending` is
    /// not full.
    #[cold]
    pub(super) fn give_up_shared(&self, va: VirtAddr, pending: &mut Pending) {
        let mut frames = self.lock.lock();
        if let Some(pte) = self.walk(va)
            && pte.is_shared_table()
        {
            self.leave(pte.frame(), leaf_base(va), pending, &mut frames);
        }
    }

    /// The entry that leads to the first table of level 1 for anything in `range`, and the first
    /// address of the range that it maps. [pmap lock]
    fn first_in(&self, range: VirtRange) -> Option<(Pte, VirtAddr)> {
        if self.place.is_small() {
            return self.place.first_in(range);
        }
        let mut tables = [NONE; 5];
        tables[4] = self.root;
        let mut level = 4;
        let mut va = range.start;
        loop {
            // The entries of this table that stand for a part of the range.
            let table = tables[level];
            let first = index(va, level);
            let left = (range.end.0 - 1 - (va.0 & !(span(level) - 1))) >> span(level).ilog2();
            let end = ENTRIES.min(first + left + 1);
            let groups = record(table).groups().load(Ordering::Relaxed);
            let found = next_entry(table, groups, GROUP, first, end);
            let i = found.unwrap_or(end);
            if i > first {
                va = VirtAddr((va.0 & !(span(level) - 1)) + (i - first) * span(level));
            }
            if found.is_some() {
                let below = load(entry(table, i));
                level -= 1;
                if level == 1 {
                    return Some((below, va));
                }
                tables[level] = below.frame();
                continue;
            }
            // Nothing more here: go on behind what the table maps, in the ones above.
            while index(va, level) == 0 {
                level += 1;
                if level > 4 {
                    return None;
                }
            }
            if va >= range.end {
                return None;
            }
        }
    }

    /// Takes a table that has become empty out of the tree, unless another walker uses it, or a
    /// fork that came in between has shared it.
    pub(super) fn prune(&self, leaf: Leaf, pending: &mut Pending) {
        let mut frames = self.lock.lock();
        if record(leaf.table).owner().load(Ordering::Relaxed) != owner(self) {
            return;
        }
        let b = record(leaf.table).use_count();
        let alone = leaf.base.0 as u64 | 2;
        let dead = leaf.base.0 as u64 | DYING | 1;
        machine::point();
        if b.compare_exchange(alone, dead, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            self.detach(leaf.base, pending, &mut frames);
            drop(frames);
            let table = leaf.table;
            drop(leaf);
            bury(table, pending);
        }
    }

    /// Clears the entry for the table of level 1 at `base`, and takes out the tables above that
    /// have no entry left. [pmap lock]
    fn detach(&self, base: VirtAddr, pending: &mut Pending, frames: &mut usize) {
        if let Some(above) = self.place.above(base) {
            machine::point();
            let old = Pte(above.swap(0, Ordering::AcqRel));
            *frames -= 2;
            if old.may_be_cached() {
                pending.invalidate(self.holders(), base);
            }
            return;
        }
        let mut tables = [NONE; 5];
        tables[4] = self.root;
        for level in [4, 3] {
            tables[level - 1] = load(entry(tables[level], index(base, level))).frame();
        }
        *frames -= 2;
        let mut walked = false;
        for (level, &table) in tables.iter().enumerate().skip(2) {
            machine::point();
            let old = match level {
                4 => self.tops().set(index(base, level), Pte::ZERO),
                _ => Pte(entry(table, index(base, level)).swap(0, Ordering::AcqRel)),
            };
            walked |= old.may_be_cached();
            forget_group(table, index(base, level));
            let left = record(table).in_use.fetch_sub(1, Ordering::Relaxed) - 1;
            if left > 0 || level == 4 {
                break;
            }
            *frames -= 1;
            pending.add_table(table);
        }
        // A processor that ever went this way may have cached it; invalidating a page behind it
        // makes it forget that.
        if walked {
            pending.invalidate(self.holders(), base);
        }
    }
}

/// Makes the tables for `va` that are missing, down to level `lowest`: `prepare` gets that table
/// before it can be found, and says what stands in the entry above. Returns the table of that
/// level, which may have been there; adds those made to `frames`. [pmap lock]
///
/// # Errors
/// [`OutOfMemory`]; nothing has changed.
pub(super) fn make_tables(
    tops: Tops,
    frames: &mut usize,
    va: VirtAddr,
    lowest: usize,
    prepare: impl FnOnce(u32) -> Pte,
) -> Result<u32, OutOfMemory> {
    let (mut parent, mut level) = (tops.root, 4);
    while level > lowest {
        let pte = load(entry(parent, index(va, level)));
        if !pte.is_present() {
            break;
        }
        parent = pte.frame();
        level -= 1;
    }
    if level == lowest {
        return Ok(parent);
    }
    // Take all that is missing before anything is attached: a failure leaves nothing behind.
    let mut tables = [NONE; 4];
    for l in lowest..level {
        match take_table(l) {
            Some(table) => tables[l] = table.index(),
            None => {
                (lowest..l).for_each(|l| give_table(l, tables[l]));
                return Err(OutOfMemory);
            }
        }
    }
    let mut reference = prepare(tables[lowest]);
    // From the bottom up, so that what is attached is whole.
    for (l, &table) in tables.iter().enumerate().take(level).skip(lowest + 1) {
        entry(table, index(va, l)).store(reference.0, Ordering::Release);
        reference = Pte::table(table);
        record(table).in_use.store(1, Ordering::Relaxed);
        let bit = group(index(va, l));
        record(table).groups().store(bit, Ordering::Relaxed);
    }
    *frames += level - lowest;
    machine::point();
    match level {
        4 => {
            tops.set(index(va, level), reference);
        }
        _ => entry(parent, index(va, level)).store(reference.0, Ordering::Release),
    }
    count_entry(parent, index(va, level));
    Ok(tables[lowest])
}

/// An entry of a table of level 2 to 4 was filled. [pmap lock]
pub(super) fn count_entry(table: u32, index: usize) {
    let r = record(table);
    r.in_use.fetch_add(1, Ordering::Relaxed);
    let groups = r.groups().load(Ordering::Relaxed) | group(index);
    r.groups().store(groups, Ordering::Relaxed);
}

/// An entry of a table of level 2 to 4 was cleared. [pmap lock]
fn forget_group(table: u32, index: usize) {
    let first = index >> GROUP << GROUP;
    let in_use = |i| load(entry(table, i)).is_present();
    if !(first..first + (1 << GROUP)).any(in_use) {
        let r = record(table);
        let groups = r.groups().load(Ordering::Relaxed) & !group(index);
        r.groups().store(groups, Ordering::Relaxed);
    }
}

/// See [`Pmap::next_leaf`].
pub(super) struct Found {
    pub(super) leaf: Leaf,
    /// It was taken out of the tree. Unless others share it, the caller takes out its entries and
    /// buries it.
    pub(super) gone: bool,
}
