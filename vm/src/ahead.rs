//! Fault-ahead: resident pages near a fault are mapped with it (`uvm.txt` 5.4).

use core::sync::atomic::{AtomicU32, Ordering};
use nucleus::{
    Access, PAGE_SHIFT, PAGE_SIZE, Pmap, Prot, VirtAddr, VirtRange, counters::Counter,
    pmap::Pending,
};

use crate::amap::Slots;
use crate::anon::Slot;
use crate::entry::MapEntry;
use crate::object::Pages;
use crate::request::Advice;

/// Pages behind (low half) and ahead (high half) for [`Advice::Normal`]: three and four, as in the paper.
static WINDOW: AtomicU32 = AtomicU32::new(3 | 4 << 16);
/// Pages ahead for [`Advice::Sequential`].
const SEQUENTIAL_AHEAD: usize = 8;
/// What one L1 table maps: the window stays inside, so that mapping ahead costs no page table.
const TABLE_SPAN: usize = 512 << PAGE_SHIFT;

/// Sets the window for [`Advice::Normal`], in pages; 0, 0 switches fault-ahead off.
pub fn set_fault_ahead(behind: u16, ahead: u16) {
    WINDOW.store(behind as u32 | (ahead as u32) << 16, Ordering::Relaxed);
}

/// The window for [`Advice::Normal`]: pages behind and ahead.
pub fn fault_ahead() -> (u16, u16) {
    let window = WINDOW.load(Ordering::Relaxed);
    (window as u16, (window >> 16) as u16)
}

/// The pages around `va` that may be mapped with it.
fn window(entry: &MapEntry, va: VirtAddr) -> VirtRange {
    let (behind, ahead) = match entry.advice {
        Advice::Random => (0, 0),
        Advice::Sequential => (0, SEQUENTIAL_AHEAD),
        _ => {
            let (behind, ahead) = fault_ahead();
            (behind as usize, ahead as usize)
        }
    };
    let table = va.0 & !(TABLE_SPAN - 1);
    let span = VirtRange::new(
        VirtAddr(va.0.saturating_sub(behind << PAGE_SHIFT).max(table)),
        VirtAddr((va.0 + ((ahead + 1) << PAGE_SHIFT)).min(table + TABLE_SPAN)),
    );
    span.intersect(entry.range)
}

/// Maps the resident pages around `va` that are not mapped yet, with the rights that a read fault
/// would give. After a `write`, anons that this entry alone refers to get back the right to be
/// written that a fork took, so that a parent does not fault once a page after its child is gone.
/// The map is read-locked, and the page at `va` is mapped.
pub(crate) fn map_neighbours(pmap: &Pmap, entry: &MapEntry, va: VirtAddr, write: bool) {
    let window = window(entry, va);
    map_resident(pmap, entry, window, write);
}

/// Maps the resident pages of `range`, part of `entry`, that are not mapped yet; `widen` as in
/// [`map_neighbours`]. Stops quietly when there is no memory for a page table. The map is locked.
pub(crate) fn map_resident(pmap: &Pmap, entry: &MapEntry, range: VirtRange, widen: bool) {
    if range.len() <= PAGE_SIZE {
        return;
    }
    let mut entered = 0;
    let mut slots: Option<Slots<'_>> = None;
    let mut pages: Option<Pages<'_>> = None;
    for va in range.pages() {
        let key = entry.key(va);
        if let Some(amap) = &entry.amap
            && !slots.as_ref().is_some_and(|slots| slots.cover(key))
        {
            // An amap's lock comes before an object's, and one of each at a time.
            pages = None;
            drop(slots.take());
            slots = amap.lock_present(key);
            if slots.is_none() && !entry.needs_copy {
                // Another thread may put an anon here at any time.
                continue;
            }
        }
        let new = match slots.as_mut().map(|slots| slots.get(key)) {
            Some(slot @ (Slot::Sole(_) | Slot::Shared(_))) => {
                let sole = !entry.needs_copy && slot.make_sole();
                let Some(anon) = slot.anon() else {
                    continue;
                };
                let prot = entry.anon_prot(sole);
                let new = pmap.enter_ahead(va, anon.frame(), prot);
                if new == Ok(false) && sole && widen && !pmap.permits(va, Access::Write) {
                    // The same frame with wider rights: nothing to flush.
                    let mut pending = Pending::new();
                    let widened = pmap.enter(va, anon.frame(), prot, &mut pending);
                    widened.map(|()| true)
                } else {
                    new
                }
            }
            _ => {
                let Some(object) = &entry.object else {
                    continue;
                };
                let index = entry.index(object, va);
                if !pages.as_ref().is_some_and(|pages| pages.cover(index)) {
                    drop(pages.take());
                    pages = object.pager.object().lock(index);
                }
                match pages.as_ref().and_then(|pages| pages.get(index)) {
                    Some(frame) => pmap.enter_ahead(va, frame, entry.prot - Prot::WRITE),
                    None => continue,
                }
            }
        };
        match new {
            Ok(new) => entered += new as u64,
            Err(_) => break,
        }
    }
    Counter::fault_ahead_pages.add(entered);
}
