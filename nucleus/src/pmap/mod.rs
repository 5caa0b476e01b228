//! Page tables in the BSD sense: the machine-dependent layer of `uvm.txt` 2.
//!
//! `format` is the x86-64 page-table format, used by both machines; `table` walks and builds
//! page tables, and says who may change what; `mapping` puts a single mapping into an entry and takes it out again, for `enter`,
//! `remove` and `extract`, which do what a map asks for; `transfer` moves mappings to other addresses of their pmap; `large` maps
//! many pages by one entry, and splits it; `family` and `share` let the pmaps of a fork use the same page tables. `reverse` links
//! every mapping of a frame, so that page-wide operations (`page`) find them without an allocation. `space` knows which CPU has
//! which pmap loaded; `shootdown` tells other CPUs; [`Pending`] holds what must not be reused before they have answered.

mod enter;
mod extract;
mod family;
pub(crate) mod format;
mod large;
mod mapping;
mod page;
mod pending;
mod remove;
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
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::addr::USER_END;
use crate::counters::Counter;
use crate::frame::record::managed;
use crate::frame::{Table, give_table, take_table};
use crate::hw::machine;
use crate::sync::{Rank, SpinLock};
use crate::{OutOfMemory, PAGE_SIZE, VirtAddr, VirtRange};
pub use extract::Resident;
use family::Family;
use format::{ENTRIES, LEAF_SPAN, Pte};
pub use large::{LargeKind, large_pages, large_shared_pages, large_splits};
use mapping::{Keep, empty};
pub use page::{
    Use, clear_modified, is_modified, is_wired, mappings_of_spaces, page_protect, set_modified,
    set_referenced, take_referenced, take_use, watch_references,
};
pub use pending::Pending;
pub use share::{Fork, Writes, fork_mode, set_fork};
pub(crate) use space::{activate, leave};
use table::Found;

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
