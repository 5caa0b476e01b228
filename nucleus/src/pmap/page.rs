//! Operations on all mappings of one frame.

use super::entries::{change, entry, load};
use super::format::Pte;
use super::leaf::{base_of, release};
use super::mapping::{cut, narrow};
use super::owner::{holders_of, spaces};
use super::pending::Pending;
use super::reverse::{entries, entry_of};
use super::shootdown::must_be_told;
use super::space::Holders;
use super::{large, shootdown};
use crate::addr::Prot;
use crate::counters::Counter;
use crate::cpu::percpu::Pinned;
use crate::frame::record::{Mappings, record};
use crate::frame::subtract_handles;
use crate::hw::machine;
use crate::{Frame, PAGE_SIZE};

/// The CPUs that may hold translations that were read from the table of an entry of the locked
/// frame. The entry is counted in the table's use count.
fn holders<'a>(_mappings: &'a Mappings<'_>, table: u32) -> Holders<'a> {
    // SAFETY: a CPU that takes the table away from its owner empties it first, or is a member of
    // the family that owned it; for the one it needs the lock that is held, and waits for the
    // table's use count, which callers lower after this.
    unsafe { holders_of(record(table).owner()) }
}

/// An entry of the locked frame was changed: the CPUs that may hold its old value are told. The
/// owner of the table is looked up after the change: a space that came to share the table later has
/// never seen what the entry was.
fn invalidate(mappings: &Mappings<'_>, table: u32, i: usize, pending: &mut Pending) {
    let va = base_of(table) + i * PAGE_SIZE;
    pending.invalidate(holders(mappings, table), va);
}

/// As [`invalidate`], if any TLB may hold what the entry was.
fn forget(mappings: &Mappings<'_>, old: Pte, table: u32, i: usize, pending: &mut Pending) {
    if must_be_told(old) {
        invalidate(mappings, table, i, pending);
    } else {
        Counter::tlb_skipped_unaccessed.add(1);
    }
}

/// Locks the mappings of a frame to change them: large pages that it is a part of are split first.
/// The caller is pinned; interrupts are on.
#[inline]
fn lock_singly(frame: &Frame) -> Mappings<'_> {
    let mappings = record(frame.index()).lock_mappings();
    match mappings.may_be_in_large() {
        true => large::split_around(frame, mappings),
        false => mappings,
    }
}

/// Takes away, in every pmap, every right to `frame` that is not in `prot` (`Prot::empty()`
/// removes the mappings).
pub fn page_protect(frame: &Frame, prot: Prot, pending: &mut Pending) {
    if frame.mappings() == 0 {
        return;
    }
    if pending.is_full() {
        pending.flush();
    }
    let _pinned = Pinned::new();
    let mut mappings = lock_singly(frame);
    if !prot.is_empty() {
        for (table, i) in entries(&mappings) {
            if let Some(old) = narrow(entry(table, i), prot) {
                forget(&mappings, old, table, i, pending);
            }
        }
        return;
    }
    let mut removed = 0;
    while mappings.count() > 0 {
        let (table, i) = entry_of(mappings.first());
        let old = cut(&mut mappings, table, i, Pte::ZERO);
        forget(&mappings, old, table, i, pending);
        removed += 1;
        release(table);
    }
    drop(mappings);
    if removed > 0 {
        // One handle keeps the frame until the flush as well as many do. The others can go at once;
        // the caller's is still there, so none of them is the last.
        pending.add_frame(frame.index());
        subtract_handles(frame.index(), removed - 1);
    }
}

/// Collects and clears the referenced bits of all mappings of `frame`.
///
/// Nothing is flushed: a CPU that still has the translation cached will not set the bit again until
/// it forgets it by itself, which for the choice of victims is as good.
pub fn take_referenced(frame: &Frame) -> bool {
    let _pinned = Pinned::new();
    let mappings = lock_singly(frame);
    let mut referenced = mappings.take_referenced();
    for (table, i) in entries(&mappings) {
        let accessed = |pte: Pte| pte.is_accessed().then(|| pte.unreferenced());
        referenced |= change(entry(table, i), accessed).is_some();
    }
    referenced
}

/// What the mappings of a frame tell about its use: see [`take_use`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// Some mapping was used since it was last asked.
    pub referenced: bool,
    /// Some mapping wrote the frame since [`clear_modified`].
    pub modified: bool,
    /// Some mapping is [wired](Pmap::wire): the page has to stay.
    pub wired: bool,
    /// Mappings there are.
    pub mappings: u32,
    /// The smallest [`weight`](super::Pmap::weight) of the address spaces that map it; the largest
    /// number if none does.
    pub weight: u32,
}

/// As [`take_referenced`], and all else that the choice of victims wants to know, with one look at
/// each mapping.
pub fn take_use(frame: &Frame) -> Use {
    let _pinned = Pinned::new();
    let mappings = lock_singly(frame);
    let mut found = Use {
        referenced: mappings.take_referenced(),
        modified: mappings.was_modified(),
        wired: false,
        mappings: mappings.count(),
        weight: u32::MAX,
    };
    for (table, i) in entries(&mappings) {
        let accessed = |pte: Pte| pte.is_accessed().then(|| pte.unreferenced());
        found.referenced |= change(entry(table, i), accessed).is_some();
        found.modified |= load(entry(table, i)).is_dirty();
        found.wired |= load(entry(table, i)).is_wired();
        found.weight = found.weight.min(holders(&mappings, table).weight());
    }
    found
}

/// How many times spaces map `frame`: its mappings, those in a page table that several spaces share
/// counted for each.
pub fn mappings_of_spaces(frame: &Frame) -> u32 {
    if frame.mappings() == 0 {
        return 0;
    }
    let _pinned = Pinned::new();
    let mappings = record(frame.index()).lock_mappings();
    entries(&mappings).map(|(table, _)| spaces(table)).sum()
}

/// Notes that the kernel used `frame` past its mappings, as a `read` of a file does.
pub fn set_referenced(frame: &Frame) {
    let _pinned = Pinned::new();
    record(frame.index()).lock_mappings().note(true, false);
}

/// Makes all CPUs forget all translations, so that each page that is used after this is seen to be
/// [referenced](take_referenced) again. Interrupts are on, and the caller holds no spin lock.
pub fn watch_references() {
    let since = machine::coherence_stamp();
    shootdown::run(shootdown::What::All, shootdown::all_cpus(), since);
}

/// Whether some mapping of `frame` is [wired](Pmap::wire). Out of line: its callers are shorter
/// without it.
#[inline(never)]
pub fn is_wired(frame: &Frame) -> bool {
    let _pinned = Pinned::new();
    let mappings = record(frame.index()).lock_mappings();
    entries(&mappings).any(|(table, i)| load(entry(table, i)).is_wired())
}

/// Whether any mapping ever wrote `frame` since the last [`clear_modified`]. Out of
/// line, as [`is_wired`].
#[inline(never)]
pub fn is_modified(frame: &Frame) -> bool {
    let _pinned = Pinned::new();
    let mappings = record(frame.index()).lock_mappings();
    mappings.was_modified() || entries(&mappings).any(|(table, i)| load(entry(table, i)).is_dirty())
}

/// Notes that the kernel wrote `frame` on behalf of a mapping, past its page-table entry.
pub fn set_modified(frame: &Frame) {
    let _pinned = Pinned::new();
    record(frame.index()).lock_mappings().note(false, true);
}

/// Clears the modified state of `frame`; later writes set it again, once `pending` was flushed.
pub fn clear_modified(frame: &Frame, pending: &mut Pending) {
    let _pinned = Pinned::new();
    let mappings = lock_singly(frame);
    mappings.clear_modified();
    for (table, i) in entries(&mappings) {
        let dirty = |pte: Pte| pte.is_dirty().then(|| pte.clean());
        if change(entry(table, i), dirty).is_some() {
            // A CPU that has the dirty entry cached would write without telling.
            invalidate(&mappings, table, i, pending);
        }
    }
}
