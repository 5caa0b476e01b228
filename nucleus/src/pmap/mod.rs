//! Page tables in the BSD sense: the machine-dependent layer of `uvm.txt` 2.
//!
//! `format` is the x86-64 page-table format, used by both machines; `table` walks and builds
//! page tables, and says who may change what; `reverse` links every mapping of a frame, so that
//! page-wide operations (`page`) find them without an allocation; `transfer` moves mappings to other
//! addresses; `large` maps many pages by one entry, and splits it; `space` knows which CPU has
//! which pmap loaded; `transfer` moves mappings within a pmap; `shootdown` tells other CPUs; [`Pending`] holds what must not be reused before
//! they have answered.

mod family;
pub(crate) mod format;
mod large;
mod page;
mod pending;
mod reverse;
mod share;
mod shootdown;
mod space;
mod table;
#[cfg(all(test, not(target_os = "none")))]
mod tests;
mod transfer;

use alloc::sync::Arc;
use bitflags::bitflags;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::addr::USER_END;
use crate::arch::machine;
use crate::counters::Counter;
use crate::frame::record::{managed, record};
use crate::frame::{Table, give_table, take_table};
use crate::sync::{Rank, SpinLock};
use crate::{Frame, OutOfMemory, PAGE_SIZE, VirtAddr, VirtRange};
use family::Family;
use format::{ENTRIES, LEAF_SPAN, Pte, index};
use large::Why;
pub use large::{LargeKind, large_pages, large_shared_pages, large_splits};
pub use page::{
    Use, clear_modified, is_modified, is_wired, mappings_of_spaces, page_protect, set_modified,
    set_referenced, take_referenced, take_use, watch_references,
};
pub use pending::Pending;
pub use share::{Fork, Writes, fork_mode, set_fork};
pub(crate) use space::{activate, leave};
use table::{Found, Leaf, load};

/// Answers the shootdowns that other CPUs ask of this one: the handler of their interrupt.
pub(crate) fn on_shootdown() {
    shootdown::answer();
}

/// Makes every CPU forget addresses of the kernel's window for short-lived mappings, and waits until all have. Interrupts are
/// on, and the caller holds no spin lock.
pub(crate) fn forget_window(slots: &[u16]) {
    let since = machine::coherence_stamp();
    shootdown::run(shootdown::What::Window(slots), shootdown::all_cpus(), since);
}

/// Which CPUs are told that a mapping has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Coherence {
    /// Those that may hold it.
    #[default]
    Precise,
    /// All, always.
    Broadcast,
}

/// Sets whom changes of mappings are told from now on.
pub fn set_coherence(coherence: Coherence) {
    shootdown::set_broadcast(coherence == Coherence::Broadcast);
}

/// Whether some CPU is to be told that this entry is gone or changed.
#[inline]
fn must_be_told(old: Pte) -> bool {
    old.may_be_cached() || shootdown::is_broadcast()
}

/// Makes every other CPU take an interrupt, and waits until all have: each has passed a full barrier between the call
/// and its return. Interrupts are on.
pub fn interrupt_all() {
    let since = machine::coherence_stamp();
    shootdown::run(shootdown::What::Pages(&[]), shootdown::all_cpus(), since);
}

/// Forgets an earlier machine.
///
/// # Safety
/// The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(crate) unsafe fn init() {
    shootdown::start();
    space::start();
}

bitflags! {
    /// What a program may do with a mapping. Everything readable on x86-64 if anything is.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
    pub struct Prot: u8 {
        const READ = 1;
        const WRITE = 2;
        const EXEC = 4;
        /// No right: the mapping that is entered is wired, that is, the page is to stay in memory as long as it is mapped here
        /// (`uvm.txt` 3.2). Only what enters mappings looks at it.
        const WIRED = 8;
    }
}

/// What a program tried to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    Write,
    Execute,
}

impl Access {
    /// The protection that allows it.
    pub const fn needs(self) -> Prot {
        match self {
            Access::Read => Prot::READ,
            Access::Write => Prot::WRITE,
            Access::Execute => Prot::EXEC,
        }
    }
}

/// One hardware address space. All methods may be called on any CPU at the same time.
pub struct Pmap {
    /// The table of level 4.
    root: u32,
    /// Bit per CPU that has it loaded: see `shootdown`.
    active: AtomicU64,
    /// With whom it may share page tables.
    family: Arc<Family>,
    /// It was forked, or came from a fork.
    is_forked: AtomicBool,
    /// Guards the tables of level 2 to 4 (see `table`). The value: frames in page tables, with
    /// the reverse links.
    lock: SpinLock<usize>,
    /// See [`Pmap::weight`].
    weight: AtomicU32,
}

impl Pmap {
    /// As [`interrupt_all`], for the CPUs that have this pmap loaded. One that loads it later has passed a barrier by
    /// that.
    pub fn interrupt(&self) {
        core::sync::atomic::fence(Ordering::SeqCst);
        let cpus = self.active.load(Ordering::SeqCst);
        shootdown::run(
            shootdown::What::Pages(&[]),
            cpus,
            machine::coherence_stamp(),
        );
    }

    /// An empty user half over the shared kernel half.
    ///
    /// # Errors
    /// [`OutOfMemory`]: no frame for the root.
    pub fn new() -> Result<Arc<Pmap>, OutOfMemory> {
        Ok(Arc::new(Pmap::member(Family::new())?))
    }

    /// As [`new`](Pmap::new), a member of this family.
    fn member(family: Arc<Family>) -> Result<Pmap, OutOfMemory> {
        let root = match take_table(4).ok_or(OutOfMemory)? {
            Table::Ready(root) => root,
            Table::Fresh(root) => {
                // The tables that the kernel half refers to never change: once is enough.
                let kernel = machine::kernel_root().frame_number() as u32;
                for i in ENTRIES / 2..ENTRIES {
                    let pte = table::entry(kernel, i).load(Ordering::Relaxed);
                    table::entry(root, i).store(pte, Ordering::Relaxed);
                }
                root
            }
        };
        Ok(Pmap {
            root,
            active: AtomicU64::new(0),
            family,
            is_forked: AtomicBool::new(false),
            lock: SpinLock::new(Rank::Pmap, 1),
            weight: AtomicU32::new(0),
        })
    }

    /// How large it counts where pages are chosen that have to go: what [`set_weight`](Pmap::set_weight) said last, at first 0.
    pub fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    /// Sets its weight, in pages: to count them costs a look at each page table, so it is done now and then.
    /// Page tables that it shares with others count as large as the last of them that was told.
    pub fn set_weight(&self, pages: u32) {
        self.weight.store(pages, Ordering::Relaxed);
        self.family.weight.store(pages, Ordering::Relaxed);
    }

    /// The table of level 4. Who loads it without [`activate`] sees to it that no mapping changes meanwhile.
    #[cfg(target_os = "none")]
    pub(crate) fn root(&self) -> crate::PhysAddr {
        crate::frame::record::address(self.root)
    }

    /// Names the pmap in shootdowns: its root's number among the managed frames.
    #[inline]
    fn space(&self) -> u32 {
        self.root - managed().start
    }

    /// Maps `frame` at the page `va` with its final attributes in one step, replacing what was
    /// there. The mapping holds a handle of its own. When another frame or a wider right was
    /// replaced, the old one goes to `pending`. A spurious call (same frame, same or wider
    /// rights) flushes nothing.
    ///
    /// # Errors
    /// [`OutOfMemory`]: no frame for a page table; nothing has changed.
    pub fn enter(
        &self,
        va: VirtAddr,
        frame: &Frame,
        prot: Prot,
        pending: &mut Pending,
    ) -> Result<(), OutOfMemory> {
        debug_assert!(va.is_page_aligned() && va < USER_END);
        loop {
            if pending.is_full() {
                pending.flush();
            }
            let leaf = self.make_leaf(va)?;
            if self.enter_in(&leaf, va, frame, prot, pending) {
                return Ok(());
            }
        }
    }

    /// One attempt to change the entry; false if it was changed under our hands, or had to be emptied
    /// first. Adds at most one frame to `pending`.
    fn enter_in(
        &self,
        leaf: &Leaf,
        va: VirtAddr,
        frame: &Frame,
        prot: Prot,
        pending: &mut Pending,
    ) -> bool {
        let i = index(va, 1);
        let entry = leaf.entry(i);
        let old = load(entry);
        if !old.is_present() {
            return install(leaf, i, frame.clone(), Pte::page(frame.index(), prot, true));
        }
        if old.frame() == frame.index() {
            // The frame stays, so neither its lists nor its handles are concerned.
            let new = old
                .with_rights(prot)
                .wired(old.is_wired() || prot.contains(Prot::WIRED));
            if new == old {
                return true;
            }
            let new = new.accessed();
            machine::point();
            if entry
                .compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                return false;
            }
            // Wider rights need no flush: at worst a CPU faults once more on its old entry, which
            // makes it look again.
            if !prot.contains(old.prot()) {
                self.forget(old, va, pending);
            }
            return true;
        }
        // Another frame: first without any, then with the new one. A program that looks in
        // between faults and waits for the map's lock like any other.
        if self.take_out(leaf, i, Pte::ZERO, pending) {
            leaf.remove_entry();
        }
        false
    }

    /// As [`enter`](Pmap::enter) but only where nothing is mapped, with the accessed bit clear
    /// (for fault-ahead). Returns whether it mapped.
    ///
    /// # Errors
    /// [`OutOfMemory`]: no frame for a page table.
    pub fn enter_ahead(
        &self,
        va: VirtAddr,
        frame: &Frame,
        prot: Prot,
    ) -> Result<bool, OutOfMemory> {
        debug_assert!(va.is_page_aligned() && va < USER_END);
        let leaf = self.make_leaf(va)?;
        let pte = Pte::page(frame.index(), prot, false);
        Ok(install(&leaf, index(va, 1), frame.clone(), pte))
    }

    /// As [`enter_ahead`](Pmap::enter_ahead) for the pages of `range`, which lies in what one table of
    /// level 1 maps: the way to the table is walked once. Asks `page` what to map where nothing is mapped; it
    /// must not sleep. Returns how many pages it mapped: none if there is no table yet, or others share it.
    pub fn enter_ahead_each<F: Into<Frame>>(
        &self,
        range: VirtRange,
        mut page: impl FnMut(VirtAddr) -> Option<(F, Prot)>,
    ) -> usize {
        debug_assert!(range.is_empty() || range.end <= USER_END);
        let Some(leaf) = self.leaf(range.start).filter(Leaf::is_own) else {
            return 0;
        };
        let mut mapped = 0;
        for va in range.pages() {
            let i = index(va, 1);
            if load(leaf.entry(i)) != Pte::ZERO {
                continue;
            }
            if let Some((frame, prot)) = page(va) {
                let frame = frame.into();
                let pte = Pte::page(frame.index(), prot, false);
                mapped += usize::from(install(&leaf, i, frame, pte));
            }
        }
        mapped
    }

    /// Gives mappings in `range`, which lies in what one table of level 1 maps, more rights. `page` is
    /// asked for each that may not be written: the frame that it should have, and the rights to add. A mapping of another
    /// frame stays as it is. Nothing has to be flushed. Returns how many mappings were changed: none if others share the table.
    pub fn widen_each<F: Deref<Target = Frame>>(
        &self,
        range: VirtRange,
        mut page: impl FnMut(VirtAddr) -> Option<(F, Prot)>,
    ) -> usize {
        debug_assert!(range.is_empty() || range.end <= USER_END);
        let Some(leaf) = self.leaf(range.start).filter(Leaf::is_own) else {
            return 0;
        };
        let mut widened = 0;
        for va in range.pages() {
            let entry = leaf.entry(index(va, 1));
            let old = load(entry);
            if !old.is_present() || old.permits(Access::Write) {
                continue;
            }
            let Some((frame, prot)) = page(va) else {
                continue;
            };
            let new = old.with_rights(old.prot() | prot);
            if old.frame() == frame.index() && new != old {
                machine::point();
                let changed = entry
                    .compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok();
                widened += usize::from(changed);
            }
        }
        widened
    }

    /// Removes every mapping in `range`; the frames' handles go to `pending`. Page tables that have
    /// become empty go there too.
    pub fn remove(&self, range: VirtRange, pending: &mut Pending) {
        let mut range = range;
        while let Some(Found { leaf, gone }) = self.next_leaf(range, Some(pending)) {
            let end = VirtAddr(leaf.base.0 + LEAF_SPAN);
            if leaf.is_shared() || leaf.is_large() && !gone {
                match gone {
                    true => {
                        range.start = end;
                        // Who takes its mappings out, when the set is flushed, waits for all who look at it.
                        drop(leaf);
                    }
                    // All of it would be too much: a table of its own, or none.
                    false => self.part_from(leaf, Why::Remove, pending),
                }
                if pending.is_full() {
                    pending.flush();
                }
                continue;
            }
            if gone {
                empty(&leaf, |entry, va| {
                    // Processors knew a large page as a whole, and are told so.
                    if !leaf.is_large() {
                        self.forget(entry, va, pending);
                    }
                    Keep::Pending
                });
                let table = leaf.table;
                drop(leaf);
                table::bury(table, pending);
                range.start = end;
                continue;
            }
            let (mut i, stop) = part_of(range, leaf.base);
            while let Some(next) = leaf.next_entry(i, stop) {
                i = next;
                if pending.is_full() {
                    break;
                }
                if self.take_out(&leaf, i, Pte::ZERO, pending) {
                    leaf.remove_entry();
                }
            }
            range.start = if pending.is_full() {
                leaf.base + i * PAGE_SIZE
            } else {
                end
            };
            // Besides this walker nobody: the table may go.
            if leaf.entries() == 0 {
                self.prune(leaf, pending);
            } else {
                drop(leaf);
            }
            if pending.is_full() {
                pending.flush();
            }
        }
    }

    /// Takes away every right in `range` that is not in `prot`; never adds one.
    pub fn protect(&self, range: VirtRange, prot: Prot, pending: &mut Pending) {
        if !prot.contains(Prot::READ) && !prot.intersects(Prot::WRITE | Prot::EXEC) {
            return self.remove(range, pending);
        }
        let mut range = range;
        while let Some(Found { leaf, .. }) = self.next_leaf(range, None) {
            let (mut i, stop) = part_of(range, leaf.base);
            if !leaf.is_own() {
                let rights = match leaf.is_shared() {
                    // None may be written as it is.
                    true => prot | Prot::READ | Prot::WRITE,
                    false => prot | Prot::READ,
                };
                let narrows = !rights.contains(Prot::EXEC | Prot::WRITE);
                match narrows && leaf.any_beyond(rights, i, stop) {
                    true => self.part_from(leaf, Why::Protect, pending),
                    false => range.start = leaf.base + LEAF_SPAN,
                }
                continue;
            }
            while let Some(next) = leaf.next_entry(i, stop) {
                if let Some(old) = narrow(leaf.entry(next), prot) {
                    self.forget(old, leaf.base + next * PAGE_SIZE, pending);
                }
                i = next + 1;
            }
            range.start = leaf.base + LEAF_SPAN;
        }
    }

    /// Wires or unwires what is mapped in `range`: whoever chooses pages that have to go passes wired ones by
    /// ([`Use`]). What is mapped later is wired if its rights say so. Nothing is flushed, since no processor looks at this.
    pub fn wire(&self, range: VirtRange, wired: bool) {
        let mut range = range;
        let mut pending = Pending::new();
        while let Some(Found { leaf, .. }) = self.next_leaf(range, None) {
            if leaf.is_shared() {
                self.part_from(leaf, Why::Other, &mut pending);
                continue;
            }
            // Behind a large page the entries are what says which pages are wired, too.
            let (mut i, stop) = part_of(range, leaf.base);
            while let Some(next) = leaf.next_entry(i, stop) {
                let change = |pte: Pte| {
                    (pte.is_present() && pte.is_wired() != wired).then(|| pte.wired(wired))
                };
                page::change(leaf.entry(next), change);
                i = next + 1;
            }
            range.start = leaf.base + LEAF_SPAN;
        }
    }

    /// The table is shared, or behind a large page, and this pmap's mappings are to become others: a table of its own, or for lack of
    /// memory none, so that its mappings are gone.
    fn part_from(&self, leaf: Leaf, why: Why, pending: &mut Pending) {
        let va = leaf.base;
        let is_large = leaf.is_large();
        drop(leaf);
        if is_large {
            return self.split(va, why);
        }
        if self.own(va).is_err() {
            if pending.is_full() {
                pending.flush();
            }
            self.give_up_shared(va, pending);
        }
    }

    /// The old state of an entry was replaced: a TLB may hold it.
    #[inline]
    fn forget(&self, old: Pte, va: VirtAddr, pending: &mut Pending) {
        if must_be_told(old) {
            pending.invalidate(self.holders(), va);
        } else {
            Counter::tlb_skipped_unaccessed.add(1);
        }
    }

    /// Takes the mapping out of an entry and puts `instead` there; its handle goes to `pending`, which
    /// is not full. False if there was none. The use count of the table is the caller's business.
    fn take_out(&self, leaf: &Leaf, i: usize, instead: Pte, pending: &mut Pending) -> bool {
        match unmap(leaf.table, i, instead) {
            Some(old) => {
                self.forget(old, VirtAddr(leaf.base.0 + i * PAGE_SIZE), pending);
                pending.add_frame(old.frame());
                true
            }
            None => false,
        }
    }

    /// What is mapped at the page that holds `va`.
    pub fn extract(&self, va: VirtAddr) -> Option<(Frame, Prot)> {
        if va >= USER_END {
            return None;
        }
        let leaf = self.leaf(va)?;
        match leaf.is_shared() {
            false => page_in(&leaf, va),
            true => self.page_in_common(leaf, va),
        }
    }

    /// As [`extract`](Pmap::extract) for the pages from `range`'s start on, as long as something is mapped and `f` returns true. The way
    /// to a table is walked once for all pages that it maps. `f` must not sleep.
    pub fn extract_each(&self, range: VirtRange, mut f: impl FnMut(Frame, Prot) -> bool) {
        debug_assert!(range.is_empty() || range.end <= USER_END);
        let mut at = range.start;
        while at < range.end {
            let Some(leaf) = self.leaf(at) else {
                return;
            };
            let end = VirtAddr(leaf.base.0 + LEAF_SPAN).min(range.end);
            while at < end {
                let page = match leaf.is_shared() {
                    false => page_in(&leaf, at),
                    // It may cease to be this pmap's between two pages.
                    true => self.extract(at),
                };
                let Some((frame, prot)) = page else {
                    return;
                };
                if !f(frame, prot) {
                    return;
                }
                at = at + PAGE_SIZE;
            }
        }
    }

    /// As [`extract`](Pmap::extract) where others share the table.
    #[inline(never)]
    fn page_in_common(&self, mut leaf: Leaf, va: VirtAddr) -> Option<(Frame, Prot)> {
        loop {
            let page = page_in(&leaf, va);
            if self.confirms(&leaf, va) {
                let right = match leaf.is_shared() {
                    true => Prot::WRITE,
                    false => Prot::empty(),
                };
                return page.map(|(frame, prot)| (frame, prot - right));
            }
            drop(page);
            leaf = self.leaf(va)?;
        }
    }

    /// Whether a program could do `access` at `va` now without a fault.
    pub fn permits(&self, va: VirtAddr, access: Access) -> bool {
        if va >= USER_END {
            return false;
        }
        loop {
            let Some(leaf) = self.leaf(va) else {
                return false;
            };
            let permits = load(leaf.entry(index(va, 1))).permits(access);
            if !leaf.is_shared() {
                return permits;
            }
            if self.confirms(&leaf, va) {
                return permits && access != Access::Write;
            }
        }
    }

    /// How many pages before `va`, at most `most` and only those that one table of level 1 maps, a program has used
    /// since they were mapped: written, if `write`, as it still may; else read or written.
    pub fn used_before(&self, va: VirtAddr, write: bool, most: usize) -> usize {
        if most == 0 || va.0 < PAGE_SIZE {
            return 0;
        }
        let Some(leaf) = self.leaf(VirtAddr(va.0 - PAGE_SIZE)) else {
            return 0;
        };
        let last = index(VirtAddr(va.0 - PAGE_SIZE), 1);
        let most = match write && leaf.is_shared() {
            // Whoever wrote these did it before a fork.
            true => 0,
            false => most.min(last + 1),
        };
        let is_used = |i: usize| {
            let pte = load(leaf.entry(i));
            match write {
                true => pte.permits(Access::Write) && pte.is_dirty(),
                false => pte.is_present() && pte.is_accessed(),
            }
        };
        let mut used = 0;
        while used < most && is_used(last - used) {
            used += 1;
        }
        used
    }

    /// Pages mapped in `range`. Costs no more than a look at each page table that exists there, and
    /// at each entry of those that the range does not cover. Exact when nothing changes.
    pub fn resident_in(&self, range: VirtRange) -> usize {
        let mut pages = 0;
        let mut range = range;
        while let Some(Found { leaf, .. }) = self.next_leaf(range, None) {
            let (mut i, stop) = part_of(range, leaf.base);
            if stop - i == ENTRIES {
                pages += leaf.entries();
            } else {
                while let Some(next) = leaf.next_entry(i, stop) {
                    pages += 1;
                    i = next + 1;
                }
            }
            range.start = leaf.base + LEAF_SPAN;
        }
        pages
    }

    /// Pages mapped, and page-table frames held.
    pub fn resident(&self) -> Resident {
        let everything = VirtRange::new(VirtAddr(0), USER_END + PAGE_SIZE);
        Resident {
            pages: self.resident_in(everything),
            page_tables: *self.lock.lock(),
        }
    }

    /// Removes everything without a single TLB flush. For an address space that no task will run
    /// in again; the caller's task has switched away from it ([`crate::task::set_pmap`]).
    pub fn tear_down(&self) {
        // Other CPUs may have borrowed it for tasks without a program; they are made to leave.
        let since = machine::coherence_stamp();
        let borrowers = self.active.load(Ordering::SeqCst);
        if borrowers != 0 {
            shootdown::run(shootdown::What::All, borrowers, since);
        }
        assert!(
            self.active.load(Ordering::SeqCst) == 0,
            "an address space is torn down while a task runs in it"
        );
        // The tables above level 1 need no flush either: the mask is empty.
        let mut dead = Pending::new();
        self.leave_shared_tables(&mut dead);
        let mut range = VirtRange::new(VirtAddr(0), USER_END + PAGE_SIZE);
        let mut any = false;
        while let Some(Found { leaf, gone }) = self.next_leaf(range, Some(&mut dead)) {
            debug_assert!(gone, "the whole range covers each table");
            any = true;
            range.start = VirtAddr(leaf.base.0 + LEAF_SPAN);
            let table = leaf.table;
            if leaf.is_shared() {
                drop(leaf);
                if dead.is_full() {
                    dead.flush();
                }
                continue;
            }
            empty(&leaf, |_, _| Keep::Dropped);
            drop(leaf);
            table::bury(table, &mut dead);
        }
        if any {
            Counter::tlb_skipped_dead.add(1);
        }
    }
}

impl Drop for Pmap {
    fn drop(&mut self) {
        self.tear_down();
        give_table(4, self.root);
    }
}

/// The entries of the table of level 1 at `base` that map a part of the range.
fn part_of(range: VirtRange, base: VirtAddr) -> (usize, usize) {
    let part = range.intersect(VirtRange::new(base, base + LEAF_SPAN));
    let first = (part.start - base) / PAGE_SIZE;
    (first, first + part.len().div_ceil(PAGE_SIZE))
}

/// Takes rights away from one entry, whatever it maps; returns what it was if there were any.
fn narrow(entry: &AtomicU64, prot: Prot) -> Option<Pte> {
    loop {
        let old = load(entry);
        if !old.is_present() || (prot | Prot::READ).contains(old.prot()) {
            return None;
        }
        let new = old.with_rights(old.prot() & prot);
        // An exchange of the whole entry: the bits that the processor sets are not lost, and
        // nobody's new mapping is narrowed by mistake.
        machine::point();
        if entry
            .compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return Some(old);
        }
    }
}

/// Empties a dying table and waits until nobody else uses it. `each` sees every entry taken out
/// and says what becomes of the frame's handle.
fn empty(leaf: &Leaf, mut each: impl FnMut(Pte, VirtAddr) -> Keep) {
    let mut i = 0;
    // While it lasts, another walker that was here before the table was marked may still add an
    // entry, or be about to finish taking one out.
    while leaf.entries() > 0 {
        let Some(next) = leaf.next_entry(i, ENTRIES) else {
            machine::spin_hint();
            i = 0;
            continue;
        };
        i = next;
        // The frame's name goes in with the exchange, so that it is never nowhere.
        let Some(old) = unmap_keeping(leaf.table, i) else {
            continue;
        };
        if each(old, leaf.base + i * PAGE_SIZE) == Keep::Dropped {
            leaf.entry(i).store(0, Ordering::Relaxed);
            drop(Frame::from_index(old.frame()));
        }
        leaf.remove_entry();
    }
}

/// What becomes of the handle of an entry taken out of a dying table.
#[derive(PartialEq, Eq)]
enum Keep {
    /// It stays in the entry, which is pending.
    Pending,
    /// It is given up at once: no CPU can hold the translation.
    Dropped,
}

/// What the entry of `leaf` for `va` maps.
#[inline]
fn page_in(leaf: &Leaf, va: VirtAddr) -> Option<(Frame, Prot)> {
    let entry = leaf.entry(index(va, 1));
    loop {
        let pte = load(entry);
        if !pte.is_present() {
            return None;
        }
        let mappings = record(pte.frame()).lock_mappings();
        // With the lock held the mapping stays, and with it its handle.
        let now = load(entry);
        if now.is_present() && now.frame() == pte.frame() {
            record(pte.frame()).handles.fetch_add(1, Ordering::Relaxed);
            drop(mappings);
            return Some((Frame::from_index(pte.frame()), pte.prot()));
        }
    }
}

/// Puts a mapping into an empty entry, which gets the handle. False if the entry is not empty.
fn install(leaf: &Leaf, i: usize, frame: Frame, pte: Pte) -> bool {
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

/// Takes the mapping out of an entry of a pinned table and returns what was there; its handle is the
/// caller's now.
fn unmap(table: u32, i: usize, instead: Pte) -> Option<Pte> {
    let entry = table::entry(table, i);
    loop {
        let pte = load(entry);
        if !pte.is_present() {
            return None;
        }
        let mut mappings = record(pte.frame()).lock_mappings();
        // Only who holds this lock may replace the frame, so if it is still this one, it stays.
        let now = load(entry);
        if now.is_present() && now.frame() == pte.frame() {
            return Some(page::cut(&mut mappings, table, i, instead));
        }
    }
}

/// As [`unmap`], leaving the frame's name in the entry as pending.
fn unmap_keeping(table: u32, i: usize) -> Option<Pte> {
    let pte = load(table::entry(table, i));
    let frame = pte.is_present().then_some(pte.pending())?;
    unmap_if(table, i, pte.frame(), frame)
}

/// As [`unmap`] if the entry maps this frame.
fn unmap_if(table: u32, i: usize, frame: u32, instead: Pte) -> Option<Pte> {
    let mut mappings = record(frame).lock_mappings();
    let now = load(table::entry(table, i));
    (now.is_present() && now.frame() == frame).then(|| page::cut(&mut mappings, table, i, instead))
}

/// See [`Pmap::resident`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    pub pages: usize,
    pub page_tables: usize,
}
