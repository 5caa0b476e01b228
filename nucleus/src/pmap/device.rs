//! Mappings of memory that is not RAM (`uvm.txt` 4, 6: devices).
//!
//! Such a page has no frame record: no handle is counted, no reverse link leads to the entry, and
//! none is pending. So an entry of a device is guarded by nothing but the exchange of the whole
//! entry, and it goes when its pmap removes it. Every function that takes a frame from an entry
//! asks [`Pte::maps`] or [`Pte::is_device`] first.

use core::sync::atomic::Ordering;

use super::entries::{entry, load};
use super::format::{Pte, index};
use super::leaf::Leaf;
use super::pending::Pending;
use super::space::Pmap;
use crate::addr::Prot;
use crate::frame::record::record;
use crate::hw::machine;
use crate::mem::device::DevicePage;
use crate::{OutOfMemory, VirtAddr};

impl Pmap {
    /// Maps a page of a device at the page `va`, as [`enter`](Pmap::enter) does a frame.
    ///
    /// # Errors
    /// [`OutOfMemory`]: no frame for a page table; nothing has changed.
    ///
    /// # Panics
    /// If `va` is not below [`USER_END`](crate::addr::USER_END).
    pub fn enter_device(
        &self,
        va: VirtAddr,
        page: DevicePage,
        prot: Prot,
        pending: &mut Pending,
    ) -> Result<(), OutOfMemory> {
        let pte = Pte::device(page, prot);
        loop {
            if pending.is_full() {
                pending.flush();
            }
            let leaf = self.make_leaf(va)?;
            let i = index(va, 1);
            let old = load(leaf.entry(i));
            if !old.is_present() {
                if install(&leaf, i, pte) {
                    return Ok(());
                }
            } else if old.is_same_device(pte) {
                let new = old.with_rights(prot).accessed();
                machine::point();
                let changed = leaf.entry(i).compare_exchange(
                    old.0,
                    new.0,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                if changed.is_ok() {
                    if !prot.contains(old.prot()) {
                        self.forget(record(leaf.table).owner(), old, va, pending);
                    }
                    return Ok(());
                }
            } else if self.take_out(&leaf, i, Pte::ZERO, pending) {
                // Another page: first none, then this one, as `enter` does.
                leaf.remove_entry();
            }
        }
    }
}

/// Puts a device's page into an empty entry. False if the entry is not empty.
pub(super) fn install(leaf: &Leaf, i: usize, pte: Pte) -> bool {
    leaf.add_entry(i);
    machine::point();
    let put = leaf
        .entry(i)
        .compare_exchange(0, pte.0, Ordering::AcqRel, Ordering::Relaxed);
    if put.is_err() {
        leaf.remove_entry();
    }
    put.is_ok()
}

/// Takes a device's page out of an entry that was `pte`, and puts `instead` there. Returns what was
/// there, `None` if the entry has changed.
#[cold]
pub(super) fn cut(table: u32, i: usize, pte: Pte, instead: Pte) -> Option<Pte> {
    machine::point();
    entry(table, i)
        .compare_exchange(pte.0, instead.0, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
        .then_some(pte)
}
