//! Address spaces, and families of spaces that may have page tables in common: a pmap and all that
//! came from it by [`Pmap::fork`].

use alloc::sync::{Arc, Weak};
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::entries::entry;
use super::format::{ENTRIES, Pte};
use super::group::Place;
use super::shootdown::Page;
use super::{shootdown, tags};
use crate::hw::machine;
use crate::lock::{Rank, SpinLock};
use crate::mem::frame::record::{NONE, address, first_managed};
use crate::mem::frame::{Table, give_table, take_table};
use crate::mem::mistake::Mistake;
use crate::{OutOfMemory, PhysAddr, VirtAddr};

/// A counted handle of a [`Pmap`], which stays in its place: its page tables lead back to it.
#[derive(Clone)]
pub struct PmapRef(Arc<Pmap>);

impl PmapRef {
    pub(super) fn new(pmap: Pmap) -> PmapRef {
        PmapRef(Arc::new(pmap))
    }

    /// Where the pmap is, for as long as any handle of it lives.
    pub(super) fn as_ptr(&self) -> *const Pmap {
        Arc::as_ptr(&self.0)
    }

    /// The handle as a pointer, to be taken back by [`from_raw`](PmapRef::from_raw).
    pub(super) fn into_raw(self) -> *mut Pmap {
        Arc::into_raw(self.0).cast_mut()
    }

    /// The handle that [`into_raw`](PmapRef::into_raw) gave away.
    ///
    /// # Safety
    /// The pointer is from there, and is taken back once.
    pub(super) unsafe fn from_raw(pmap: *mut Pmap) -> PmapRef {
        // SAFETY: the caller's promise.
        PmapRef(unsafe { Arc::from_raw(pmap) })
    }

    /// A handle that does not keep the pmap.
    pub fn downgrade(&self) -> PmapWeak {
        PmapWeak(Arc::downgrade(&self.0))
    }
}

/// A handle of a [`Pmap`] that does not keep it.
pub struct PmapWeak(Weak<Pmap>);

impl PmapWeak {
    /// A counted handle, if there still is one.
    pub fn upgrade(&self) -> Option<PmapRef> {
        self.0.upgrade().map(PmapRef)
    }
}

impl Deref for PmapRef {
    type Target = Pmap;
    #[inline]
    fn deref(&self) -> &Pmap {
        &self.0
    }
}

/// The mappings of one address space, in a hardware address space of its own or, while it is small,
/// in one that it shares with others (see `group`). All methods may be called on any CPU at the
/// same time.
pub struct Pmap {
    /// The table of level 4.
    pub(super) root: u32,
    /// The table of level 4 under which its program runs, where that is not `root`, else [`NONE`]:
    /// the same user half, and of the kernel's half what the ways into it need. Changed by
    /// [`Tops::set`] only, together with `root`: what a TLB can read from one it can read from
    /// the other, both are loaded on the same CPUs, and a load of either drops all of both.
    pub(super) user_root: u32,
    /// [`NO_TRUST`], or what programs have in common whose branch predictions may serve each other.
    pub(super) trust: AtomicU32,
    pub(super) cpus: Cpus,
    /// A number that no other pmap has had or will have.
    pub(super) id: u64,
    /// The spaces with which it may share page tables.
    pub(super) family: Arc<Family>,
    /// It was torn down: no CPU loads it any more.
    pub(super) is_dead: AtomicBool,
    /// It was forked, or came from a fork.
    pub(super) is_forked: AtomicBool,
    /// Guards the tables of level 2 to 4 (see `table`). The value: frames in page tables, with
    /// the reverse links.
    pub(super) lock: SpinLock<usize>,
    /// See [`Pmap::weight`].
    pub(super) weight: AtomicU32,
    /// Where it is while it is small.
    pub(super) place: Place,
}

/// Takes a page table of level 4 with the kernel half in place.
pub(crate) fn take_root() -> Option<u32> {
    Some(match take_table(4)? {
        Table::Ready(root) => root,
        Table::Fresh(root) => {
            // The tables that the kernel half refers to never change: once is enough.
            copy_upper_half(machine::kernel_root(), root);
            root
        }
    })
}

impl Pmap {
    /// An empty user half over the shared kernel half.
    ///
    /// # Errors
    /// [`OutOfMemory`]: no frame for the root.
    #[allow(clippy::new_ret_no_self)]
    pub fn new() -> Result<PmapRef, OutOfMemory> {
        Ok(PmapRef::new(Pmap::member(Family::new())?))
    }

    /// As [`new`](Pmap::new), a member of this family.
    pub(super) fn member(family: Arc<Family>) -> Result<Pmap, OutOfMemory> {
        let Tops { root, user_root } = Tops::take().ok_or(OutOfMemory)?;
        Ok(Pmap {
            root,
            user_root,
            trust: AtomicU32::new(NO_TRUST),
            cpus: Cpus::default(),
            id: next_id(),
            family,
            is_dead: AtomicBool::new(false),
            is_forked: AtomicBool::new(false),
            lock: SpinLock::new(Rank::Pmap, Tops { root, user_root }.count()),
            weight: AtomicU32::new(0),
            place: Place::default(),
        })
    }

    /// How large it counts where pages are chosen that have to go: what
    /// [`set_weight`](Pmap::set_weight) said last, at first 0.
    pub fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    /// Sets its weight, in pages: to count them costs a look at each page table, so it is done now
    /// and then. Page tables that it shares with others count as large as the last of them that was
    /// told.
    pub fn set_weight(&self, pages: u32) {
        self.weight.store(pages, Ordering::Relaxed);
        self.family.weight.store(pages, Ordering::Relaxed);
    }

    /// The table of level 4. A caller that loads it without [`activate`] prevents changes of
    /// mappings meanwhile.
    #[cfg(target_os = "none")]
    pub(crate) fn root(&self) -> crate::PhysAddr {
        crate::frame::record::address(self.root)
    }

    /// Says whose program it is: programs of one user may use the branch predictions that they
    /// teach a CPU. `None`, and at first: those of no other program.
    pub fn set_trust(&self, user: Option<u32>) {
        let trust = user.map_or(NO_TRUST, |user| user.wrapping_add(1));
        self.trust.store(trust, Ordering::Relaxed);
        if trust == NO_TRUST {
            // The program may run on this CPU now.
            machine::forget_predictions();
        }
    }

    /// The trust of a fork's child is its parent's.
    pub fn take_trust(&self, parent: &Pmap) {
        let trust = parent.trust.load(Ordering::Relaxed);
        self.trust.store(trust, Ordering::Relaxed);
    }

    /// The root under which its program runs, where that is one of its own.
    #[cfg(target_os = "none")]
    pub(crate) fn user_root(&self) -> Option<crate::PhysAddr> {
        (self.user_root != NONE).then(|| crate::frame::record::address(self.user_root))
    }

    /// The tables of level 4.
    #[inline]
    pub(super) fn tops(&self) -> Tops {
        Tops {
            root: self.root,
            user_root: self.user_root,
        }
    }

    /// The hardware address space of its own.
    #[inline]
    pub(super) fn own_space(&self) -> Hardware<'_> {
        Hardware {
            tops: self.tops(),
            id: self.id,
            cpus: &self.cpus,
            family: Some(&self.family),
        }
    }

    /// The CPUs that may hold its translations. The caller keeps it from being promoted: the map is
    /// locked, or an entry of one of its tables is counted.
    #[inline]
    pub(super) fn holders(&self) -> Holders<'_> {
        match self.group() {
            None => Holders {
                cpus: &self.cpus,
                number: number_of(self.root),
                weight: &self.weight,
                shift: 0,
            },
            Some(group) => Holders {
                cpus: group.cpus(&self.cpus),
                number: group.number(),
                weight: &self.weight,
                shift: self.place.base(),
            },
        }
    }
}

/// Names a hardware address space in shootdowns, by its root: the number among managed frames.
#[inline]
pub(super) fn number_of(root: u32) -> u32 {
    root - first_managed()
}

/// A hardware address space: what a CPU loads.
pub(super) struct Hardware<'a> {
    pub(super) tops: Tops,
    /// A number that no other has had or will have.
    pub(super) id: u64,
    pub(super) cpus: &'a Cpus,
    /// The spaces with which its tables may be shared.
    pub(super) family: Option<&'a Family>,
}

/// The CPUs that may hold translations of a space, or of some member of a family.
#[derive(Default)]
pub(super) struct Cpus {
    /// Bit per CPU that has it loaded: see `shootdown`.
    pub(super) active: AtomicU64,
    /// Bit per CPU that keeps what it holds of it: see `tags`.
    pub(super) kept: AtomicU64,
}

/// The program trusts no other one: see [`Pmap::set_trust`].
pub(super) const NO_TRUST: u32 = 0;

/// A pmap's tables of level 4: see its fields.
#[derive(Clone, Copy)]
pub(super) struct Tops {
    pub(super) root: u32,
    user_root: u32,
}

impl Tops {
    /// Takes what a hardware address space needs, with empty user halves.
    pub(super) fn take() -> Option<Tops> {
        let root = take_root()?;
        let Some(entry_root) = machine::entry_root() else {
            return Some(Tops {
                root,
                user_root: NONE,
            });
        };
        let Some(table) = take_table(4) else {
            give_table(4, root);
            return None;
        };
        copy_upper_half(entry_root, table.index());
        Some(Tops {
            root,
            user_root: table.index(),
        })
    }

    /// How many there are.
    pub(super) fn count(self) -> usize {
        1 + usize::from(self.user_root != NONE)
    }

    /// Gives them back. Their user halves are empty.
    pub(super) fn give(self) {
        if self.user_root != NONE {
            // Those kept ready have the kernel's half.
            copy_upper_half(machine::kernel_root(), self.user_root);
            give_table(4, self.user_root);
        }
        give_table(4, self.root);
    }

    /// The root that the kernel loads.
    #[inline]
    pub(super) fn kernel(self) -> PhysAddr {
        address(self.root)
    }

    /// The root under which the program runs.
    #[inline]
    pub(super) fn user(self) -> PhysAddr {
        match self.user_root {
            NONE => address(self.root),
            user => address(user),
        }
    }

    /// Replaces an entry of the user half. Returns what it was: accessed if it was by either table.
    /// [pmap lock]
    pub(super) fn set(self, index: usize, pte: Pte) -> Pte {
        debug_assert!(index < ENTRIES / 2);
        let mut old = Pte(entry(self.root, index).swap(pte.0, Ordering::AcqRel));
        if self.user_root != NONE {
            let other = Pte(entry(self.user_root, index).swap(pte.0, Ordering::AcqRel));
            if other.may_be_cached() {
                old = old.accessed();
            }
        }
        old
    }
}

/// Copies the kernel's half of a table of level 4.
fn copy_upper_half(from: PhysAddr, to: u32) {
    let from = from.frame_number() as u32;
    for i in ENTRIES / 2..ENTRIES {
        let pte = entry(from, i).load(Ordering::Relaxed);
        entry(to, i).store(pte, Ordering::Relaxed);
    }
}

/// See the head of the file. A table of level 1 that several spaces lead to belongs to their family
/// (see `share`).
pub(super) struct Family {
    pub(super) cpus: Cpus,
    /// See [`Pmap::set_weight`].
    pub(super) weight: AtomicU32,
    /// Names the family in shootdowns.
    pub(super) number: u32,
}

/// In a number of [`Holders`]: a family's. The numbers of pmaps are below.
const FAMILY: u32 = 1 << 27;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The next pmap's number: 0 is none's.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A number for a hardware address space.
pub(super) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// The CPUs that may hold translations that were read from a table.
#[derive(Clone, Copy)]
pub(super) struct Holders<'a> {
    cpus: &'a Cpus,
    /// Names them in shootdowns. Two families have the same one only if more than 2^27 were made
    /// between them; what that costs is an invalidation too many.
    pub(super) number: u32,
    weight: &'a AtomicU32,
    /// Added to an address of the program, it is that in the hardware address space.
    shift: usize,
}

impl Holders<'_> {
    /// The page of the program, as shootdowns name it.
    #[inline]
    pub(super) fn page(&self, va: VirtAddr) -> Page {
        Page::new(self.number, va + self.shift)
    }

    /// After a change of an entry: the CPUs that have to be told. The others have nothing loaded
    /// that the change concerns; they drop what they keep before they load it again. `page`: what
    /// may be cached of the entry, or all.
    #[inline]
    pub(super) fn told(&self, page: Option<VirtAddr>) -> u64 {
        let active = self.cpus.active.load(Ordering::SeqCst);
        let others = self.cpus.kept.load(Ordering::SeqCst) & !active;
        match others != 0 || shootdown::is_broadcast() {
            // Not `self`, which would have to be in memory then.
            true => told_slowly(self.cpus, self.number, page.map(|va| va + self.shift)),
            false => active,
        }
    }

    /// How large they count: see [`Pmap::set_weight`].
    pub(super) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }
}

/// See [`Holders::told`].
#[cold]
#[inline(never)]
fn told_slowly(cpus: &Cpus, number: u32, page: Option<VirtAddr>) -> u64 {
    if shootdown::is_broadcast() {
        return shootdown::all_cpus();
    }
    loop {
        let active = cpus.active.load(Ordering::SeqCst);
        let others = cpus.kept.load(Ordering::SeqCst) & !active;
        if others == 0 {
            return active;
        }
        tags::condemn(others, number, page);
        if Mistake::KeptForgotten.is_made() {
            return active;
        }
        cpus.kept.fetch_and(!others, Ordering::SeqCst);
    }
}

impl Family {
    pub(super) fn new() -> Arc<Family> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) & (FAMILY - 1) | FAMILY;
        Arc::new(Family {
            cpus: Cpus::default(),
            weight: AtomicU32::new(0),
            number,
        })
    }

    /// The CPUs that have any member loaded.
    #[inline]
    pub(super) fn holders(&self) -> Holders<'_> {
        Holders {
            cpus: &self.cpus,
            number: self.number,
            weight: &self.weight,
            shift: 0,
        }
    }
}
