//! Single mappings: an entry of a table of level 1, the handle of a frame that it holds, and its
//! place among the frame's reverse links. Their locking: see `table`.

use core::sync::atomic::{AtomicU64, Ordering};

use super::device;
use super::entries::{entry, load};
use super::format::{LEAF_SPAN, Pte, index};
use super::leaf::{LEAF_GROUP, Leaf};
use super::reverse;
use crate::addr::Prot;
use crate::hw::machine;
use crate::mem::frame::add_handles;
use crate::mem::frame::record::{Mappings, record};
use crate::mem::mistake::Mistake;
use crate::{Frame, PAGE_SIZE, VirtAddr, VirtRange};

/// The entries of the table of level 1 at `base` that map a part of the range.
#[inline]
pub(super) fn part_of(range: VirtRange, base: VirtAddr) -> (usize, usize) {
    let part = range.intersect(VirtRange::new(base, base + LEAF_SPAN));
    let first = (part.start - base) / PAGE_SIZE;
    (first, first + part.len().div_ceil(PAGE_SIZE))
}

/// Takes rights away from one entry, whatever it maps; returns what it was if there were any.
#[inline]
pub(super) fn narrow(entry: &AtomicU64, prot: Prot) -> Option<Pte> {
    let (clear, set) = Pte::narrowing(prot);
    loop {
        let old = load(entry);
        let new = Pte(old.0 & !clear | set);
        if !old.is_present() || new == old {
            return None;
        }
        // An exchange of the whole entry: the bits that the processor sets are not lost, and
        // no new mapping is narrowed by mistake.
        machine::point();
        if entry
            .compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return Some(old);
        }
    }
}

/// Empties a dying table and waits until no other CPU uses it. `each` sees every entry taken out
/// and says what becomes of the frame's handle.
pub(super) fn empty(leaf: &Leaf, mut each: impl FnMut(Pte, VirtAddr) -> Keep) {
    loop {
        let there = leaf.entries();
        if there == 0 {
            return;
        }
        let mut taken = 0;
        leaf.walk_entries(|i| {
            // The frame's name goes in with the exchange, so that it is never nowhere.
            if let Some(Unmapped { old, frame }) = unmap_keeping(leaf.table, i) {
                if each(old, leaf.base + i * PAGE_SIZE) == Keep::Dropped {
                    leaf.entry(i).store(0, Ordering::Relaxed);
                    drop(frame.map(Frame::from_index));
                }
                taken += 1;
            }
            taken == there
        });
        leaf.remove_entries(taken);
        if taken < there {
            // Another walker that was here before the table was marked may still add an entry, or
            // be about to finish taking one out.
            machine::spin_hint();
        }
    }
}

/// What becomes of the handle of an entry taken out of a dying table.
#[derive(PartialEq, Eq)]
pub(super) enum Keep {
    /// It stays in the entry, which is pending.
    Pending,
    /// It is given up at once: no CPU can hold the translation.
    Dropped,
}

/// Takes the mapping out of an entry that maps the locked frame, and puts `instead` there. Returns
/// what was there. The use count of the table stays.
pub(super) fn cut(mappings: &mut Mappings<'_>, table: u32, i: usize, instead: Pte) -> Pte {
    machine::point();
    if Mistake::UnlinkedLate.is_made() {
        let old = Pte(entry(table, i).swap(instead.0, Ordering::AcqRel));
        machine::point();
        reverse::unlink(mappings, table, i);
        return old;
    }
    // Before the exchange: an empty entry may get a mapping of another frame at once, whose links
    // are in the same place, and whose lock is not held here.
    reverse::unlink(mappings, table, i);
    machine::point();
    // An exchange, so that bits which the processor sets until the last moment are seen.
    let old = Pte(entry(table, i).swap(instead.0, Ordering::AcqRel));
    mappings.note(old.is_accessed(), old.is_dirty());
    old
}

/// What the entry of `leaf` for `va` maps, unless that is a device's.
#[inline]
pub(super) fn page_in(leaf: &Leaf, va: VirtAddr) -> Option<(Frame, Prot)> {
    let entry = leaf.entry(index(va, 1));
    loop {
        let pte = load(entry);
        if !pte.has_frame() {
            return None;
        }
        let mappings = record(pte.frame()).lock_mappings();
        // With the lock held the mapping stays, and with it its handle. A call that has narrowed
        // its rights by the frame either sees the new handle, or its change is seen here.
        let now = load(entry);
        if now.maps(pte.frame()) {
            add_handles(pte.frame(), 1);
            drop(mappings);
            return Some((Frame::from_index(pte.frame()), now.prot()));
        }
    }
}

/// Puts a mapping into an empty entry, which gets the handle. False if the entry is not empty.
#[inline(always)]
pub(super) fn install(leaf: &Leaf, i: usize, frame: Frame, pte: Pte) -> bool {
    let entry = leaf.entry(i);
    // The count first: from the moment it is linked, others may take it out again.
    leaf.add_entry(i);
    let mut mappings = record(frame.index()).lock_mappings();
    if entry
        .compare_exchange(0, pte.0, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        drop(mappings);
        leaf.remove_entry();
        return false;
    }
    reverse::link(&mut mappings, leaf.table, i);
    drop(mappings);
    frame.into_index();
    true
}

/// Entries whose use is counted at once: few, so that the count of a table has room for all CPUs.
pub(super) const INSTALLED_TOGETHER: usize = 32;

/// Mappings put into one table, as [`install`] does. What is the same for all is done once.
pub(super) struct InstallBatch<'a> {
    leaf: &'a Leaf,
    /// The slot of the table's first entry.
    slot: u32,
    /// The group that is known to be in use.
    group: usize,
    pub(super) entered: usize,
}

impl<'a> InstallBatch<'a> {
    /// For at most [`INSTALLED_TOGETHER`].
    #[inline]
    pub(super) fn of(leaf: &'a Leaf) -> InstallBatch<'a> {
        leaf.add_entries(INSTALLED_TOGETHER);
        InstallBatch {
            leaf,
            slot: reverse::slot(leaf.table, 0),
            group: usize::MAX,
            entered: 0,
        }
    }

    /// As [`install`]; the caller gives the mapping a handle that was counted before.
    #[inline(always)]
    pub(super) fn install(&mut self, i: usize, frame: u32, pte: Pte) -> bool {
        if self.group != i >> LEAF_GROUP {
            self.group = i >> LEAF_GROUP;
            self.leaf.use_group(i);
        }
        let mut mappings = record(frame).lock_mappings();
        let entry = self.leaf.entry(i);
        let put = entry.compare_exchange(0, pte.0, Ordering::AcqRel, Ordering::Relaxed);
        if put.is_ok() {
            reverse::link_slot(&mut mappings, self.slot + i as u32);
            self.entered += 1;
        }
        put.is_ok()
    }
}

impl Drop for InstallBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        // Entries that others took out again meanwhile, they have counted themselves.
        match INSTALLED_TOGETHER.saturating_sub(self.entered) {
            0 => {}
            left => self.leaf.remove_entries(left),
        }
    }
}

/// A mapping that was taken out.
pub(super) struct Unmapped {
    /// What the entry was.
    pub old: Pte,
    /// The frame, unless the page was a device's. Its handle is whose this is.
    pub frame: Option<u32>,
}

impl Unmapped {
    fn device(old: Pte) -> Unmapped {
        Unmapped { old, frame: None }
    }
}

/// Takes the mapping out of an entry of a pinned table and returns it.
#[inline]
pub(super) fn unmap(table: u32, i: usize, instead: Pte) -> Option<Unmapped> {
    loop {
        let pte = load(entry(table, i));
        if !pte.has_frame() {
            if !pte.is_present() {
                return None;
            }
            match device::cut(table, i, pte, instead) {
                Some(old) => return Some(Unmapped::device(old)),
                None => continue,
            }
        }
        // Only a holder of the frame's lock may replace it, so if it is still this one, it stays.
        if let Some(unmapped) = unmap_if(table, i, pte, instead) {
            return Some(unmapped);
        }
    }
}

/// As [`unmap`], leaving the frame's name in the entry as pending. `None` also if the entry has
/// changed: the caller looks again.
#[inline]
fn unmap_keeping(table: u32, i: usize) -> Option<Unmapped> {
    let pte = load(entry(table, i));
    if !pte.has_frame() {
        let cut = || device::cut(table, i, pte, Pte::ZERO);
        return pte.is_present().then(cut)?.map(Unmapped::device);
    }
    unmap_if(table, i, pte, pte.pending())
}

/// As [`unmap`] if the entry still maps the frame that it did as `pte`.
#[inline]
fn unmap_if(table: u32, i: usize, pte: Pte, instead: Pte) -> Option<Unmapped> {
    let frame = pte.frame();
    let mut mappings = record(frame).lock_mappings();
    if !load(entry(table, i)).maps_same(pte) {
        return None;
    }
    Some(Unmapped {
        old: cut(&mut mappings, table, i, instead),
        frame: Some(frame),
    })
}
