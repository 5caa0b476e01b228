//! Fault-ahead: mapping resident pages near a fault together with it (`uvm.txt` 5.4).

use crate::counters::Counter;
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use nucleus::{PAGE_SHIFT, PAGE_SIZE, Pmap, Prot, VirtAddr, VirtRange};

use crate::amap::{Resident, Slot, Slots};
use crate::chunks::SLOTS;
use crate::map::{Advice, MapEntry, make_sole, widen_run};
use crate::object::Pager;

/// Pages behind (low half) and ahead (high half) for [`Advice::Normal`]: three and four, as in the
/// paper.
static WINDOW: AtomicU32 = AtomicU32::new(3 | 4 << 16);
/// Pages ahead for [`Advice::Sequential`].
const SEQUENTIAL_AHEAD: usize = 8;
/// The most pages ahead of a sequential access: 256 KiB, beyond which the cost of one fault a
/// window no longer matters.
const MOST_AHEAD: usize = 64;
/// A program that has written so many consecutive pages will write the next ones as well: zero-fill
/// pages and copies are made ahead. Shorter runs are common in stacks and heaps, which should not
/// get pages that the program never touches.
const MADE_FROM: usize = 8;
/// The most pages made ahead: 64 KiB.
const MADE_AHEAD: usize = 16;
/// The span of a page table: the window stays inside, so that mapping ahead allocates no table.
const TABLE_SPAN: usize = 512 << PAGE_SHIFT;

/// Sets the window for [`Advice::Normal`], in pages; 0, 0 switches fault-ahead off.
pub fn set_fault_ahead(behind: u16, ahead: u16) {
    WINDOW.store(behind as u32 | (ahead as u32) << 16, Ordering::Relaxed);
}

/// Returns the window for [`Advice::Normal`]: pages behind and ahead.
pub fn fault_ahead() -> (u16, u16) {
    let window = WINDOW.load(Ordering::Relaxed);
    (window as u16, (window >> 16) as u16)
}

/// Pages that are read around a missing one for [`Advice::Normal`]: an aligned cluster of the size
/// that Linux reads.
const CLUSTER: u64 = 32;
/// The same for [`Advice::Sequential`], from the page on.
const SEQUENTIAL_CLUSTER: u64 = 64;

/// Returns the object's pages around the missing page `index` that are worth reading with it.
pub(crate) fn read_window(entry: &MapEntry, index: u64) -> Range<u64> {
    match entry.advice {
        Advice::Random => index..index + 1,
        Advice::Sequential => index..index.saturating_add(SEQUENTIAL_CLUSTER),
        _ => {
            let first = index / CLUSTER * CLUSTER;
            first..first.saturating_add(CLUSTER)
        }
    }
}

/// Pages that are read from swap around a missing one for [`Advice::Normal`], half of them before
/// it. As many as Linux reads (`vm.page-cluster`).
const SWAP_CLUSTER: usize = 8;
/// Consecutive used pages from which on the whole cluster lies after the page.
const SWAP_IN_ORDER: usize = 4;

/// Returns how many pages before and after the swapped anon at `va` are to be read with it, if that
/// costs no more than a longer read. The caller will need `wanted` pages after it.
pub(crate) fn swap_window(
    pmap: &Pmap,
    entry: &MapEntry,
    va: VirtAddr,
    wanted: usize,
) -> (usize, usize) {
    let used = || used_before(pmap, entry, va, false, SWAP_IN_ORDER);
    let (before, behind) = match entry.advice {
        Advice::Random => (0, 0),
        Advice::Sequential => (0, SLOTS),
        _ if used() == SWAP_IN_ORDER => (0, SLOTS),
        _ => (SWAP_CLUSTER / 2, SWAP_CLUSTER / 2 - 1),
    };
    (before, behind.max(wanted))
}

/// Returns how many consecutive pages before `va` the program has used, by the bits that the
/// processor sets. 0 where fault-ahead is off.
fn used_before(pmap: &Pmap, entry: &MapEntry, va: VirtAddr, write: bool, most: usize) -> usize {
    if entry.advice == Advice::Random || fault_ahead().1 == 0 {
        return 0;
    }
    let pages = (va - entry.range.start) >> PAGE_SHIFT;
    pmap.used_before(va, write, pages.min(most))
}

/// Returns how many consecutive pages from `va` on the program had written before it lost the right
/// to. 0 where fault-ahead is off.
fn written_from(pmap: &Pmap, entry: &MapEntry, va: VirtAddr) -> usize {
    if entry.advice == Advice::Random || fault_ahead().1 == 0 {
        return 0;
    }
    pmap.written_from(va, MOST_AHEAD)
}

/// Returns whether the program has written enough consecutive pages before `va` to make pages
/// ahead.
pub(crate) fn writes_in_order(pmap: &Pmap, entry: &MapEntry, va: VirtAddr) -> bool {
    used_before(pmap, entry, va, true, MADE_FROM) == MADE_FROM
}

/// Returns whether the program has written so many consecutive pages before `va` that it fills
/// memory sequentially.
pub(crate) fn writes_on(pmap: &Pmap, entry: &MapEntry, va: VirtAddr) -> bool {
    used_before(pmap, entry, va, true, MOST_AHEAD) == MOST_AHEAD
}

/// The pages around `va` that may be mapped with it: the window of the advice, or `ahead` pages if
/// that is more.
fn window(entry: &MapEntry, va: VirtAddr, ahead: usize) -> VirtRange {
    let (behind, least) = match entry.advice {
        Advice::Random => (0, 0),
        Advice::Sequential => (0, SEQUENTIAL_AHEAD),
        _ => {
            let (behind, ahead) = fault_ahead();
            (behind as usize, ahead as usize)
        }
    };
    let ahead = ahead.min(MOST_AHEAD).max(least);
    let table = va.0 & !(TABLE_SPAN - 1);
    let span = VirtRange::new(
        VirtAddr(va.0.saturating_sub(behind << PAGE_SHIFT).max(table)),
        VirtAddr((va.0 + ((ahead + 1) << PAGE_SHIFT)).min(table + TABLE_SPAN)),
    );
    span.intersect(entry.range)
}

/// How far from a fault resident pages are mapped with it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Neighbours {
    /// None.
    None,
    /// The window of the entry's advice.
    Near,
    /// That window, or as many pages ahead as the program has used before this one: the window
    /// doubles during sequential access.
    InOrder,
    /// As [`InOrder`](Neighbours::InOrder), and the pages ahead that the program had written before
    /// it lost the right to: one that fills a buffer again which it had lent writes all of it.
    Again,
}

/// Maps the resident pages around `va` that are not mapped yet, with the rights of a read fault.
/// After a `write`, sole anons of this entry regain the right to be written that a fork took away,
/// so that a parent does not fault once a page after its child has exited. The map is read-locked,
/// and the page at `va` is mapped. The caller will need `wanted` pages ahead. Returns the pages
/// that are mapped now as far as they were resident.
#[inline]
pub(crate) fn map_neighbours(
    pmap: &Pmap,
    entry: &MapEntry,
    va: VirtAddr,
    write: bool,
    far: Neighbours,
    wanted: usize,
) -> VirtRange {
    match far {
        Neighbours::None => VirtRange::new(va, va + PAGE_SIZE),
        far => map_window(pmap, entry, va, write, far, wanted),
    }
}

#[inline(never)]
fn map_window(
    pmap: &Pmap,
    entry: &MapEntry,
    va: VirtAddr,
    write: bool,
    far: Neighbours,
    wanted: usize,
) -> VirtRange {
    let mut ahead = match far {
        Neighbours::InOrder | Neighbours::Again => {
            used_before(pmap, entry, va, write, MOST_AHEAD).max(wanted)
        }
        _ => wanted,
    };
    if far == Neighbours::Again {
        ahead = ahead.max(written_from(pmap, entry, va + PAGE_SIZE));
    }
    let window = window(entry, va, ahead);
    map_resident(pmap, entry, window, write);
    window
}

/// Returns the pages that the pager of `entry` should read next, now that a fault has mapped the
/// resident ones of `mapped`: asynchronous page-in, which `uvm.txt` 5.4 leaves for later. The map
/// is locked.
#[inline]
pub(crate) fn next_window(
    entry: &MapEntry,
    mapped: VirtRange,
) -> Option<(Arc<dyn Pager>, Range<u64>)> {
    let object = entry.object.as_ref()?;
    if entry.advice == Advice::Random {
        return None;
    }
    let first = entry.index(object, mapped.start);
    let pages = first..first + (mapped.len() >> PAGE_SHIFT) as u64;
    let next = object.pager.touched(pages)?;
    Some((object.pager.clone(), next))
}

/// The pages after the one at `va`, which was just made for a write, that are to be made with it,
/// after many consecutive writes or if the caller `wanted` them. All their keys are among `slots`.
pub(crate) fn made_ahead(
    pmap: &Pmap,
    entry: &MapEntry,
    va: VirtAddr,
    slots: &Slots<'_>,
    wanted: usize,
) -> VirtRange {
    let key = entry.key(va);
    // Fast path: mostly one slot answers, without a walk through the page tables.
    let is_first = |before: i64| slots.holds(key - before) && slots.peek(key - before).is_empty();
    let used = match is_first(1) || is_first(MADE_FROM as i64) {
        true => 0,
        false => used_before(pmap, entry, va, true, MADE_AHEAD),
    };
    let ahead = match used {
        0..MADE_FROM => wanted.min(MOST_AHEAD),
        used => used.max(wanted.min(MOST_AHEAD)),
    };
    let ahead = ahead.min(slots.after(key));
    let start = va + PAGE_SIZE;
    VirtRange::new(start, start + (ahead << PAGE_SHIFT)).intersect(entry.range)
}

/// Maps the anons of `range`, just made for the entry and all among `slots`.
pub(crate) fn map_made(pmap: &Pmap, entry: &MapEntry, slots: &Slots<'_>, range: VirtRange) {
    // The next page table is made by its first fault.
    let table_end = VirtAddr((range.start.0 & !(TABLE_SPAN - 1)) + TABLE_SPAN);
    let run = VirtRange::new(range.start, range.end.min(table_end));
    let mapped = pmap.enter_ahead_each(run, |va| {
        Some((slots.peek(entry.key(va)).sole_frame()?, entry.rights()))
    });
    Counter::fault_ahead_pages.add(mapped as u64);
}

/// Maps the resident pages of `range`, part of `entry`, that are not mapped yet, where a page table
/// exists; `widen` is described at [`map_neighbours`]. The map is locked.
pub(crate) fn map_resident(pmap: &Pmap, entry: &MapEntry, range: VirtRange, widen: bool) {
    // The page of the fault is mapped.
    if range.len() > PAGE_SIZE {
        map_all(pmap, entry, range, widen);
    }
}

/// As [`map_resident`], also for a single page.
pub(crate) fn map_all(pmap: &Pmap, entry: &MapEntry, range: VirtRange, widen: bool) {
    let mut entered = 0;
    let mut at = range.start;
    while at < range.end {
        // One chunk of each layer and one page table at a time.
        let key = entry.key(at);
        let mut end = VirtAddr((at.0 & !(TABLE_SPAN - 1)) + TABLE_SPAN).min(range.end);
        let mut slots = None;
        if let Some(amap) = &entry.amap {
            end = end.min(at + ((SLOTS - key as usize % SLOTS) << PAGE_SHIFT));
            slots = amap.lock_present(key);
            if slots.is_none() && !entry.needs_copy {
                // Another thread may put an anon here at any time.
                at = end;
                continue;
            }
        }
        let mut pages = None;
        if let Some(object) = &entry.object {
            let index = entry.index(object, at);
            end = end.min(at + ((SLOTS - index as usize % SLOTS) << PAGE_SHIFT));
            pages = object.pager.object().lock(index);
        }
        let run = VirtRange::new(at, end);
        if let Some(slots) = &mut slots
            && !entry.needs_copy
        {
            make_sole(entry, slots, run);
            if widen {
                entered += widen_run(pmap, entry, slots, run);
            }
        }
        let shared = slots.as_ref().is_some_and(|slots| slots.shared);
        entered += pmap.enter_ahead_each(run, |va| {
            let slot = slots.as_ref().map(|slots| slots.peek(entry.key(va)));
            if let Some(slot) = slot.filter(|slot| !slot.is_empty()) {
                let page = slot.resident()?;
                let sole = !shared && matches!(slot, Slot::Sole(_));
                let prot = entry.anon_prot(sole && !page.is_fixed);
                return Some((page, prot));
            }
            let object = entry.object.as_ref()?;
            let frame = pages.as_ref()?.get(entry.index(object, va))?;
            Some((Resident::of(frame), entry.rights() - Prot::WRITE))
        });
        at = end;
    }
    Counter::fault_ahead_pages.add(entered as u64);
}
