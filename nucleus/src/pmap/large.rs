//! Large pages: 2 MiB by one entry of level 2.
//!
//! Behind each large page stands the table of level 1 that would map the same, complete: 512
//! entries in use, linked to their frames and counted. No processor walks it, but the kernel does,
//! so a lookup (what is mapped where, what is it allowed, which entries map this frame) finds what
//! it finds elsewhere. A change of an entry has the large page *split* first: the entry of level 2
//! leads to the table from then on. So a split needs no memory and can't fail, and costs the same
//! for all sizes; and the small-page way is taken by all other code as if there were nothing
//! larger.
//!
//! ```text
//!              level 2                          level 1
//!   large      entry -- LARGE --> 512 frames    512 entries, one a frame, found by the
//!   split      entry -------------------------> reverse mappings, or by `LARGE` in `use_count`
//! ```
//!
//! # Accessed and dirty
//!
//! The processor notes use in the entry that it walks. A large page's, and all entries behind it,
//! say from the start that the page was read and written: it is made because a program is about to.
//! After a split the bits are a page's own. Where the use of single pages is asked for, that is,
//! where memory is short, the large page is split.
//!
//! # Splitting
//!
//! If an entry changed from a large page to a table in one step, a TLB might hold translations of
//! both sizes for an address. The architecture lets it use either; some processors take a machine
//! check (AMD family 10h, erratum 383; Intel's, where code is fetched). So the entry is made not
//! present first, all CPUs that may hold the large page forget it, and then the entry leads to the
//! table ("break before make"). All of this happens with the pmap's lock held: a spinning one, but
//! CPUs that wait for it, and those that meet [`Pte::SPLITTING`] without it, do so with interrupts
//! on, and answer the shootdown. A program that comes in between faults, and waits in the fault
//! routine like the others.
//!
//! # Locking
//!
//! A large page is made and split under the pmap's lock. `LARGE` in a table's record is set before
//! the table can be found, and cleared for good when no entry of level 2 is a large page in its
//! place any more and no TLB will get one: only after that may its entries be changed, except for
//! [`wired`](Pte::wired), which no processor looks at.

use core::sync::atomic::{AtomicU64, Ordering};

use super::entries::load;
use super::format::{ENTRIES, LEAF_SPAN, Pte};
use super::leaf::{BASE, LARGE, LARGE_SHARED, Leaf, Status, leaf_base, pin_linked};
use super::owner::owner;
use super::reverse;
use super::shootdown::{self, What};
use super::space::Pmap;
use super::table::Found;
use crate::addr::Prot;
use crate::counters::Counter;
use crate::frame::record::{Mappings, Type, find, record};
use crate::frame::{Run, add_handles};
use crate::hw::machine;
use crate::{Frame, OutOfMemory, VirtAddr, VirtRange};

const _: () = assert!(crate::frame::RUN_FRAMES == ENTRIES);

/// The owner of the pages in a large one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LargeKind {
    /// Anons.
    Private,
    /// An object's.
    Shared,
}

/// Why a large page is split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// A part is to be removed.
    Remove,
    /// A part, or all, loses rights.
    Protect,
    /// The space is forked.
    Fork,
    /// One page is to be changed in all spaces.
    Page,
    /// A page is moved, or another takes its place.
    Other,
}

impl Why {
    pub(super) fn counter(self) -> Counter {
        match self {
            Why::Remove => Counter::large_split_remove,
            Why::Protect => Counter::large_split_protect,
            Why::Fork => Counter::large_split_fork,
            Why::Page => Counter::large_split_page,
            Why::Other => Counter::large_split_other,
        }
    }
}

impl Pmap {
    /// Maps all frames of `run` from `base` on, a multiple of 2 MiB below
    /// [`USER_END`](crate::addr::USER_END), by one entry. Each mapping holds a handle of its own.
    /// Returns whether it did: not where there is a page table, be it an empty one.
    ///
    /// The pages count as read and written.
    ///
    /// # Errors
    /// [`OutOfMemory`]: no frame for a page table; nothing has changed.
    ///
    /// # Panics
    /// If `base` is no such address.
    pub fn enter_large(
        &self,
        base: VirtAddr,
        run: &Run,
        prot: Prot,
        kind: LargeKind,
    ) -> Result<bool, OutOfMemory> {
        assert!(base.0.is_multiple_of(LEAF_SPAN), "a large page at {base:?}");
        let made = self.build(base, |leaf| {
            let r = record(leaf.table);
            // All groups are in use; and the entries are counted before one can be taken out.
            r.in_use.store(u32::MAX, Ordering::Relaxed);
            let mark = match kind {
                LargeKind::Private => LARGE,
                LargeKind::Shared => LARGE | LARGE_SHARED,
            };
            r.use_count()
                .fetch_add(mark | ENTRIES as u64, Ordering::Relaxed);
            let first = Pte::page(run.first(), prot, true).dirty();
            let slot = reverse::slot(leaf.table, 0);
            for i in 0..ENTRIES {
                let r = record(run.first() + i as u32);
                add_handles(run.first() + i as u32, 1);
                let pte = first.further(i);
                leaf.entry(i).store(pte.0, Ordering::Relaxed);
                let mut mappings = r.lock_mappings();
                mappings.set_in_large(true);
                reverse::link_slot(&mut mappings, slot + i as u32);
            }
            Pte::large(run.first(), prot)
        })?;
        if made.is_some() {
            Counter::large_entered.add(1);
            if kind == LargeKind::Shared {
                Counter::large_shared_entered.add(1);
            }
        }
        Ok(made.is_some())
    }

    /// Pages in `range` that are parts of large ones which lie wholly inside.
    pub fn large_in(&self, range: VirtRange) -> usize {
        let mut pages = 0;
        let mut range = range;
        while let Some(Found { leaf, .. }) = self.next_leaf(range, None) {
            let end = VirtAddr(leaf.base.0 + LEAF_SPAN);
            if leaf.is_large() && range.start <= leaf.base && end <= range.end {
                pages += ENTRIES;
            }
            range.start = end;
        }
        pages
    }

    /// Whether any page table, or a large page, is there for `va`. It may appear at any time unless
    /// the caller prevents it.
    pub fn has_table(&self, va: VirtAddr) -> bool {
        self.walk(va).is_some()
    }

    /// The table behind a large page at `base`, for a caller that has the entry from a walk without
    /// a lock; `None` if it is not there any more.
    #[cold]
    pub(super) fn pin_large(&self, pte: Pte, base: VirtAddr) -> Option<Leaf> {
        let r = find(pte.frame().into())?;
        if r.kind() != Type::Writable {
            return None;
        }
        // The links of all frames are guarded alike, whatever has become of this one.
        let mappings = r.lock_mappings();
        let table = self.linked(&mappings, base)?;
        Some(pin_linked(table, Status::Large))
    }

    /// The table behind the large page at `base`. [pmap lock]
    pub(super) fn behind(&self, pte: Pte, base: VirtAddr) -> u32 {
        let mappings = record(pte.frame()).lock_mappings();
        self.linked(&mappings, base)
            .expect("a large page has lost the table behind it")
    }

    /// This pmap's table behind a large page at `base`, by the mappings of the page's first frame.
    fn linked(&self, mappings: &Mappings<'_>, base: VirtAddr) -> Option<u32> {
        let is_it = |&(table, i): &(u32, usize)| {
            let r = record(table);
            let b = r.use_count().load(Ordering::Relaxed);
            i == 0
                && b & LARGE != 0
                && b & BASE == base.0 as u64
                && r.owner().load(Ordering::Relaxed) == owner(self)
        };
        let found = reverse::entries(mappings).find(is_it);
        found.map(|(table, _)| table)
    }

    /// Splits the large page at `va`, if there is one. When this returns, the table is the pmap's
    /// own, or there is none. Interrupts are on and no spin lock is held that is taken with
    /// interrupts off elsewhere.
    #[cold]
    pub(super) fn split(&self, va: VirtAddr, why: Why) {
        let _frames = self.lock.lock();
        if let Some(above) = self.above_leaf(va)
            && load(above).is_large()
        {
            self.split_entry(above, leaf_base(va), why);
        }
    }

    /// As [`split`](Pmap::split) for an entry of level 2 that is a large page. [pmap lock]
    pub(super) fn split_entry(&self, above: &AtomicU64, base: VirtAddr, why: Why) {
        let table = self.behind(load(above), base);
        machine::point();
        above.swap(Pte::SPLITTING.0, Ordering::AcqRel);
        let holders = self.holders();
        // The mask after the change: see `shootdown`.
        let since = machine::coherence_stamp();
        let cpus = holders.told(Some(base));
        if cpus != 0 {
            // Any address of a large page makes a processor forget all of it.
            let page = [holders.page(base)];
            shootdown::run(What::Pages(&page), cpus, since);
        }
        end(table);
        machine::point();
        above.store(Pte::table(table).0, Ordering::Release);
        why.counter().add(1);
    }
}

const SPLITS: [Counter; 5] = [
    Counter::large_split_remove,
    Counter::large_split_protect,
    Counter::large_split_fork,
    Counter::large_split_page,
    Counter::large_split_other,
];

/// Pages that are parts of large ones in all pmaps, each mapping counted; exact when nothing
/// changes.
pub fn large_pages() -> usize {
    let gone = Counter::large_removed.total() + large_splits();
    Counter::large_entered.total().saturating_sub(gone) as usize * ENTRIES
}

/// As [`large_pages`], those of memory that processes share.
pub fn large_shared_pages() -> usize {
    let gone = Counter::large_shared_gone.total();
    Counter::large_shared_entered.total().saturating_sub(gone) as usize * ENTRIES
}

/// Large pages that were split, whatever for.
pub fn large_splits() -> u64 {
    SPLITS.iter().map(|counter| counter.total()).sum()
}

/// The entry that was a large page in the table's place is cleared, and the table dying.
pub(super) fn gone(table: u32) {
    end(table);
    Counter::large_removed.add(1);
}

/// No large page is in the table's place any more.
fn end(table: u32) {
    let b = record(table)
        .use_count()
        .fetch_and(!(LARGE | LARGE_SHARED), Ordering::AcqRel);
    if b & LARGE_SHARED != 0 {
        Counter::large_shared_gone.add(1);
    }
}

/// Splits all large pages that a frame is a part of, and gives its mappings back locked.
#[cold]
pub(super) fn split_around<'a>(frame: &'a Frame, mut mappings: Mappings<'a>) -> Mappings<'a> {
    loop {
        let is_large =
            |table: &u32| record(*table).use_count().load(Ordering::Acquire) & LARGE != 0;
        let found = reverse::entries(&mappings)
            .map(|(table, _)| table)
            .find(is_large);
        let Some(table) = found else {
            mappings.set_in_large(false);
            return mappings;
        };
        let leaf = pin_linked(table, Status::Large);
        drop(mappings);
        // SAFETY: a table behind a large page belongs to one pmap, whose address is in its record.
        // The pmap empties the table, and waits for all that have pinned it, before it ends.
        let pmap = unsafe { &*(record(table).owner().load(Ordering::Relaxed) as *const Pmap) };
        pmap.split(leaf.base, Why::Page);
        drop(leaf);
        mappings = record(frame.index()).lock_mappings();
    }
}
