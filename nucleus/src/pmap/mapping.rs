//! Single mappings: an entry of a table of level 1, the handle of a frame that it holds, and its
//! place among the frame's reverse links. Their locking: see `table`.

use core::sync::atomic::{AtomicU64, Ordering};

use super::device;
use super::entries::{entry, load};
use super::format::{LEAF_SPAN, Pte, index};
use super::leaf::Leaf;
use super::reverse;
use crate::addr::Prot;
use crate::hw::machine;
use crate::mem::frame::add_handles;
use crate::mem::frame::record::{Mappings, record};
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
    loop {
        let old = load(entry);
        if !old.is_present() || (prot | Prot::READ).contains(old.prot()) {
            return None;
        }
        let new = old.with_rights(old.prot() & prot);
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
            if let Some(old) = unmap_keeping(leaf.table, i) {
                if each(old, leaf.base + i * PAGE_SIZE) == Keep::Dropped {
                    leaf.entry(i).store(0, Ordering::Relaxed);
                    if !old.is_device() {
                        drop(Frame::from_index(old.frame()));
                    }
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
    // An exchange, so that bits which the processor sets until the last moment are seen.
    let old = Pte(entry(table, i).swap(instead.0, Ordering::AcqRel));
    reverse::unlink(mappings, table, i);
    mappings.note(old.is_accessed(), old.is_dirty());
    old
}

/// What the entry of `leaf` for `va` maps, unless that is a device's.
#[inline]
pub(super) fn page_in(leaf: &Leaf, va: VirtAddr) -> Option<(Frame, Prot)> {
    let entry = leaf.entry(index(va, 1));
    loop {
        let pte = load(entry);
        if !pte.is_present() || pte.is_device() {
            return None;
        }
        let mappings = record(pte.frame()).lock_mappings();
        // With the lock held the mapping stays, and with it its handle.
        if load(entry).maps(pte.frame()) {
            add_handles(pte.frame(), 1);
            drop(mappings);
            return Some((Frame::from_index(pte.frame()), pte.prot()));
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

/// Takes the mapping out of an entry of a pinned table and returns what was there; its handle, if
/// it is not a device's, is the caller's now.
#[inline]
pub(super) fn unmap(table: u32, i: usize, instead: Pte) -> Option<Pte> {
    loop {
        let pte = load(entry(table, i));
        if !pte.is_present() {
            return None;
        }
        if pte.is_device() {
            match device::cut(table, i, pte, instead) {
                Some(old) => return Some(old),
                None => continue,
            }
        }
        let mut mappings = record(pte.frame()).lock_mappings();
        // Only a holder of this lock may replace the frame, so if it is still this one, it stays.
        if load(entry(table, i)).maps(pte.frame()) {
            return Some(cut(&mut mappings, table, i, instead));
        }
    }
}

/// As [`unmap`], leaving the frame's name in the entry as pending. `None` also if the entry has
/// changed: the caller looks again.
fn unmap_keeping(table: u32, i: usize) -> Option<Pte> {
    let pte = load(entry(table, i));
    if pte.is_device() {
        return device::cut(table, i, pte, Pte::ZERO);
    }
    let frame = pte.is_present().then_some(pte.pending())?;
    unmap_if(table, i, pte.frame(), frame)
}

/// As [`unmap`] if the entry maps this frame.
fn unmap_if(table: u32, i: usize, frame: u32, instead: Pte) -> Option<Pte> {
    let mut mappings = record(frame).lock_mappings();
    load(entry(table, i))
        .maps(frame)
        .then(|| cut(&mut mappings, table, i, instead))
}
