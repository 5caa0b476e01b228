//! Operations on all mappings of one frame.

use core::sync::atomic::Ordering;

use super::format::{Pte, index};
use super::table::{base_of, entry, load, owner_of, release};
use super::{Pending, Pmap, Prot, reverse, shootdown};
use crate::arch::machine;
use crate::frame::record::{Mappings, NONE, record};
use crate::pinned::Pinned;
use crate::{Frame, PAGE_SIZE, VirtAddr};

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

/// The pmap that a slot's table belongs to, and the address that its entry maps.
///
/// The entry is in use and the reverse lock of its frame held, so the table is attached or dying;
/// its pmap waits for the entry to go before it goes itself.
fn place(table: u32, i: usize) -> (&'static Pmap, VirtAddr) {
    // SAFETY: `Pmap::drop` empties each table, for which it needs the lock that the caller holds,
    // and waits for the table's use count; the callers lower that after they have used the pmap.
    let pmap = unsafe { &*owner_of(table) };
    (pmap, base_of(table) + i * PAGE_SIZE)
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
    let mut mappings = record(frame.index()).lock_mappings();
    if !prot.is_empty() {
        let mut slot = mappings.first();
        while slot != NONE {
            let (table, i) = reverse::entry_of(slot);
            let (pmap, va) = place(table, i);
            pmap.narrow(table, i, va, prot, pending);
            slot = reverse::after(slot);
        }
        return;
    }
    let mut removed = 0;
    while mappings.first() != NONE {
        let (table, i) = reverse::entry_of(mappings.first());
        let (pmap, va) = place(table, i);
        debug_assert_eq!(index(va, 1), i);
        let old = cut(&mut mappings, table, i, Pte::ZERO);
        pmap.forget(old, va, pending);
        removed += 1;
        release(table);
    }
    drop(mappings);
    if removed > 0 {
        // One handle keeps the frame until the flush as well as many do. The others can go at once;
        // the caller's is still there, so none of them is the last.
        pending.add_frame(frame.index());
        record(frame.index())
            .handles
            .fetch_sub(removed - 1, Ordering::Release);
    }
}

/// Calls `each` with the entry of every mapping of `frame`, its pmap and its address, with the reverse
/// lock held.
fn for_each(
    mappings: &Mappings<'_>,
    mut each: impl FnMut(&core::sync::atomic::AtomicU64, &Pmap, VirtAddr),
) {
    let mut slot = mappings.first();
    while slot != NONE {
        let (table, i) = reverse::entry_of(slot);
        let (pmap, va) = place(table, i);
        each(entry(table, i), pmap, va);
        slot = reverse::after(slot);
    }
}

/// Changes an entry from what it is to what `change` makes of it; `None` leaves it. Returns what it was
/// before the change.
pub(super) fn change(
    entry: &core::sync::atomic::AtomicU64,
    change: impl Fn(Pte) -> Option<Pte>,
) -> Option<Pte> {
    loop {
        let old = load(entry);
        let new = change(old)?;
        machine::point();
        if entry
            .compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return Some(old);
        }
    }
}

/// Collects and clears the referenced bits of all mappings of `frame`.
///
/// Nothing is flushed: a CPU that still has the translation cached will not set the bit again until
/// it forgets it by itself, which for the choice of victims is as good.
pub fn take_referenced(frame: &Frame) -> bool {
    let _pinned = Pinned::new();
    let mappings = record(frame.index()).lock_mappings();
    let mut referenced = mappings.take_referenced();
    for_each(&mappings, |entry, _, _| {
        let accessed = |pte: Pte| pte.is_accessed().then(|| pte.unreferenced());
        referenced |= change(entry, accessed).is_some();
    });
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
    /// The smallest [`weight`](Pmap::weight) of the address spaces that map it; the largest number if none does.
    pub weight: u32,
}

/// As [`take_referenced`], and all else that the choice of victims wants to know, with one look at each mapping.
pub fn take_use(frame: &Frame) -> Use {
    let _pinned = Pinned::new();
    let mappings = record(frame.index()).lock_mappings();
    let mut found = Use {
        referenced: mappings.take_referenced(),
        modified: mappings.was_modified(),
        wired: false,
        mappings: mappings.count(),
        weight: u32::MAX,
    };
    for_each(&mappings, |entry, pmap, _| {
        let accessed = |pte: Pte| pte.is_accessed().then(|| pte.unreferenced());
        found.referenced |= change(entry, accessed).is_some();
        found.modified |= load(entry).is_dirty();
        found.wired |= load(entry).is_wired();
        found.weight = found.weight.min(pmap.weight());
    });
    found
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

/// Whether some mapping of `frame` is [wired](Pmap::wire).
pub fn is_wired(frame: &Frame) -> bool {
    let _pinned = Pinned::new();
    let mappings = record(frame.index()).lock_mappings();
    let mut wired = false;
    for_each(&mappings, |entry, _, _| wired |= load(entry).is_wired());
    wired
}

/// Whether any mapping ever wrote `frame` since the last [`clear_modified`].
pub fn is_modified(frame: &Frame) -> bool {
    let _pinned = Pinned::new();
    let mappings = record(frame.index()).lock_mappings();
    let mut modified = mappings.was_modified();
    for_each(&mappings, |entry, _, _| modified |= load(entry).is_dirty());
    modified
}

/// Notes that the kernel wrote `frame` on behalf of a mapping, past its page-table entry.
pub fn set_modified(frame: &Frame) {
    let _pinned = Pinned::new();
    record(frame.index()).lock_mappings().note(false, true);
}

/// Clears the modified state of `frame`; later writes set it again, once `pending` was flushed.
pub fn clear_modified(frame: &Frame, pending: &mut Pending) {
    let _pinned = Pinned::new();
    let mappings = record(frame.index()).lock_mappings();
    mappings.clear_modified();
    for_each(&mappings, |entry, pmap, va| {
        let dirty = |pte: Pte| pte.is_dirty().then(|| pte.clean());
        if change(entry, dirty).is_some() {
            // A CPU that has the dirty entry cached would write without telling.
            pending.invalidate(pmap, va);
        }
    });
}
