//! Small spaces (`small-spaces.txt` 2): several 32-bit programs in one hardware address space.
//!
//! ```text
//!   a group's root ── level 3 ──[3]── level 2:  | region 0 | region 1 | region 2 | ... |
//!                                                 tables of   tables of
//!                                                 one pmap    another one
//! ```
//! A *group* is a hardware address space with nothing in its user half but the small area,
//! [`AREA`], one entry of level 3. The area is divided into *regions* of equal size; a pmap that
//! has one is *small*. A program knows nothing of that: its addresses begin at 0, and its segments
//! have the region's base and limit ([`Window`]). Only what touches a translation adds the base:
//! page tables are found by [`Place::above`], TLBs are told by [`Holders`], the kernel's own
//! accesses go through [`user`](crate::user).
//!
//! All small pmaps of a group have one level-2 table, and one root is loaded for all: to join is to
//! take a region, and to switch between two of them loads nothing and flushes nothing. What a CPU
//! holds of one it holds as long as it has the group's root loaded, whichever of them runs: the
//! masks and the number by which it is told are the group's.
//!
//! # Locking
//!
//! The entries of a region are its pmap's, guarded by that pmap's lock. The table itself is never
//! taken out of the group's tree, and its record counts nothing. A region is taken and released by
//! one locked instruction.
//!
//! # Promotion
//!
//! A pmap that outgrows its region becomes *large*: its mappings are taken out and flushed, each
//! CPU that has it loaded loads its own root, and only then is the region free, for which no CPU
//! holds a translation. The mappings come back by faults. Kernel code in the middle of a copy holds
//! an address in the old region: a promoted pmap never maps anything from [`AREA`] on, so the copy
//! faults, and is begun again where it was (see `user`). The same holds for a thread whose segments
//! are still the old ones.

use alloc::sync::{Arc, Weak};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::entries::{entry, load};
use super::format::{ENTRIES, LEAF_SPAN, Pte, span};
use super::pending::Pending;
use super::shootdown::{self, What};
use super::space::{Cpus, Hardware, Pmap, Tops, next_id, number_of};
use crate::addr::USER_END;
use crate::counters::Counter;
use crate::hw::{Window, machine};
use crate::lock::{Rank, SpinLock};
use crate::mem::frame::record::NONE;
use crate::mem::frame::{self, give_table, take_table};
use crate::mem::mistake::Mistake;
use crate::{PAGE_SIZE, VirtAddr, VirtRange};

/// The small area: the last GiB of those that 32 bits address, so that no base with an offset in a
/// region wraps.
pub const AREA: VirtRange = VirtRange {
    start: VirtAddr(INDEX * span(3)),
    end: VirtAddr((INDEX + 1) * span(3)),
};
/// Its entry in a table of level 3.
const INDEX: usize = 3;
const _: () = assert!(AREA.end.0 == 1 << 32);

/// The sizes of regions, in bytes: powers of two.
pub const REGIONS: core::ops::RangeInclusive<usize> = 4 << 20..=512 << 20;
/// Most regions of a group.
const MOST_REGIONS: usize = span(3) / *REGIONS.start();
/// Groups at most: 4 frames each, taken for programs and charged to none of them.
const MOST_GROUPS: usize = 64;

/// Which spaces are small.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum SmallSpaces {
    /// None.
    #[default]
    None,
    /// Those of 32-bit programs, beside others of the same user.
    OfUsers,
    /// Those of 32-bit programs, beside any.
    Shared,
}

/// Which spaces that begin from now on are small.
static SPACES: AtomicU8 = AtomicU8::new(SmallSpaces::None as u8);
/// The size of new groups' regions in bytes.
static REGION: AtomicUsize = AtomicUsize::new(DEFAULT_REGION);
/// Programs that are linked to a fixed address begin at 128 MiB.
const DEFAULT_REGION: usize = 256 << 20;

/// Sets which spaces that begin from now on are small.
pub fn set_small_spaces(spaces: SmallSpaces) {
    SPACES.store(spaces as u8, Ordering::Relaxed);
}

/// Which spaces that begin now are small.
pub fn small_spaces() -> SmallSpaces {
    let all = [SmallSpaces::OfUsers, SmallSpaces::Shared];
    let now = SPACES.load(Ordering::Relaxed);
    let known = all.into_iter().find(|it| *it as u8 == now);
    known.unwrap_or_default()
}

/// Sets the size of the regions of new groups, in bytes.
///
/// # Panics
/// If it is not a power of two in [`REGIONS`].
pub fn set_region(bytes: usize) {
    assert!(
        bytes.is_power_of_two() && REGIONS.contains(&bytes),
        "regions of {bytes} bytes"
    );
    REGION.store(bytes, Ordering::Relaxed);
}

/// The size of the regions of new groups, in bytes.
pub fn region() -> usize {
    REGION.load(Ordering::Relaxed)
}

/// The groups that there are.
static GROUPS: SpinLock<[Weak<Group>; MOST_GROUPS]> =
    SpinLock::new(Rank::Leaf, [const { Weak::new() }; MOST_GROUPS]);

/// Why a small space became large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promotion {
    /// A mapping had no room in the region.
    Mapping,
    /// A mapping was to be at a fixed address beyond the region.
    Fixed,
    /// The program tried to leave its segments, or ran into another general protection fault.
    Access,
    /// A segment of its own served for offsets of both signs too often.
    Segments,
    /// It is another user's now.
    User,
}

impl Promotion {
    fn counter(self) -> Counter {
        match self {
            Promotion::Mapping => Counter::promotions_mapping,
            Promotion::Fixed => Counter::promotions_fixed,
            Promotion::Access => Counter::promotions_access,
            Promotion::Segments => Counter::promotions_segments,
            Promotion::User => Counter::promotions_user,
        }
    }
}

/// A hardware address space for small pmaps.
pub(super) struct Group {
    tops: Tops,
    /// The table of level 3.
    upper: u32,
    /// The table of level 2, which maps the area.
    table: u32,
    cpus: Cpus,
    id: u64,
    /// The user whose programs it is for.
    user: u32,
    /// The size of a region.
    size: usize,
    /// Bit per region that is in use.
    used: [AtomicU64; MOST_REGIONS / 64],
}

impl Group {
    /// A group without members; `None` without memory.
    fn new(user: u32, size: usize) -> Option<Group> {
        let tops = Tops::take()?;
        let Some(upper) = take_table(3) else {
            tops.give();
            return None;
        };
        let Some(table) = take_table(2) else {
            give_table(3, upper.index());
            tops.give();
            return None;
        };
        let (upper, table) = (upper.index(), table.index());
        entry(upper, INDEX).store(Pte::table(table).0, Ordering::Release);
        tops.set(0, Pte::table(upper));
        Some(Group {
            tops,
            upper,
            table,
            cpus: Cpus::default(),
            id: next_id(),
            user,
            size,
            used: [const { AtomicU64::new(0) }; MOST_REGIONS / 64],
        })
    }

    /// The CPUs that may hold a translation of any member: not a member's own, under which others
    /// run, too.
    #[inline]
    pub(super) fn cpus<'a>(&'a self, member: &'a Cpus) -> &'a Cpus {
        match Mistake::GroupMaskForgotten.is_made() {
            true => member,
            false => &self.cpus,
        }
    }

    /// The mask of the CPUs that have its root loaded.
    pub(super) fn active(&self) -> &AtomicU64 {
        &self.cpus.active
    }

    /// Names the space in shootdowns.
    #[inline]
    pub(super) fn number(&self) -> u32 {
        number_of(self.tops.root)
    }

    /// What a CPU loads.
    pub(super) fn space(&self) -> Hardware<'_> {
        Hardware {
            tops: self.tops,
            id: self.id,
            cpus: &self.cpus,
            family: None,
        }
    }

    fn regions(&self) -> usize {
        AREA.len() / self.size
    }

    fn in_use(&self) -> usize {
        let ones = |word: &AtomicU64| word.load(Ordering::Relaxed).count_ones() as usize;
        self.used.iter().map(ones).sum()
    }

    /// Takes a region that no pmap has.
    fn take_region(&self) -> Option<usize> {
        (0..self.regions()).find(|region| {
            let (word, bit) = (&self.used[region / 64], 1 << (region % 64));
            word.load(Ordering::Relaxed) & bit == 0
                && word.fetch_or(bit, Ordering::Acquire) & bit == 0
        })
    }

    /// Releases a region: no CPU holds a translation of it.
    fn release(&self, region: usize) {
        let bit = 1 << (region % 64);
        self.used[region / 64].fetch_and(!bit, Ordering::Release);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Without a member it is loaded nowhere, and a CPU that keeps it never uses its tag again.
        entry(self.upper, INDEX).store(0, Ordering::Relaxed);
        self.tops.set(0, Pte::ZERO);
        give_table(2, self.table);
        give_table(3, self.upper);
        self.tops.give();
    }
}

/// A free region of a group for programs of `user`, and the group: `near`, if it has one.
fn find_region(
    near: Option<*const Group>,
    user: u32,
    size: usize,
    is_shared: bool,
) -> Option<(Arc<Group>, usize)> {
    let groups = GROUPS.lock();
    let first = groups.iter().filter(|it| Some(it.as_ptr()) == near);
    first.chain(groups.iter()).find_map(|weak| {
        let group = weak.upgrade()?;
        if group.size != size || !is_shared && group.user != user {
            return None;
        }
        let region = group.take_region()?;
        Some((group, region))
    })
}

/// Where a pmap is: in a region of a group, or by itself.
pub(super) struct Place {
    /// From `Arc::into_raw`, or null.
    group: AtomicPtr<Group>,
    /// The group's table of level 2, or [`NONE`].
    table: AtomicU32,
    /// The first address of its region, and the region's size. They stay what they are when it is
    /// promoted: a CPU that has found the group takes them from here.
    base: AtomicUsize,
    size: AtomicUsize,
    /// The user for whom it has joined.
    user: AtomicU32,
    /// The end of the addresses that the program may use without a group.
    end: AtomicUsize,
}

impl Default for Place {
    fn default() -> Place {
        Place {
            group: AtomicPtr::new(null_mut()),
            table: AtomicU32::new(NONE),
            base: AtomicUsize::new(0),
            size: AtomicUsize::new(0),
            user: AtomicU32::new(0),
            end: AtomicUsize::new(USER_END.0),
        }
    }
}

impl Place {
    /// Added to an address of the program, it is that in the group's hardware address space.
    #[inline]
    pub(super) fn base(&self) -> usize {
        self.base.load(Ordering::Relaxed)
    }

    /// Whether [`above`](Place::above) finds entries. The answer may be out of date.
    #[inline]
    pub(super) fn is_small(&self) -> bool {
        self.table.load(Ordering::Relaxed) != NONE
    }

    /// The entry of level 2 for an address of a small pmap; `None` beyond the region. Without the
    /// pmap's lock it is a hint, as the tables above level 1 are elsewhere.
    pub(super) fn above(&self, va: VirtAddr) -> Option<&'static AtomicU64> {
        let table = self.table.load(Ordering::Relaxed);
        let first = (self.base().saturating_sub(AREA.start.0)) / LEAF_SPAN;
        let is_inside = table != NONE && va.0 < self.size.load(Ordering::Relaxed);
        let index = first + va.0 / LEAF_SPAN;
        (is_inside && index < ENTRIES).then(|| entry(table, index))
    }

    /// The first entry of level 2 in use for anything in `range`, and the first address of the
    /// range that it maps. [pmap lock]
    pub(super) fn first_in(&self, range: VirtRange) -> Option<(Pte, VirtAddr)> {
        let mut va = range.start;
        while va < range.end {
            let pte = load(self.above(va)?);
            if pte.is_present() {
                return Some((pte, va));
            }
            va = VirtAddr((va.0 & !(LEAF_SPAN - 1)) + LEAF_SPAN);
        }
        None
    }

    /// What the program's addresses are to a CPU that loads the group's root, or without one the
    /// pmap's own.
    pub(super) fn window(&self, group: Option<&Group>) -> Window {
        match group {
            None => Window {
                base: 0,
                end: self.end.load(Ordering::Relaxed),
            },
            Some(_) => Window {
                base: self.base(),
                end: self.size.load(Ordering::Relaxed),
            },
        }
    }

    /// The group, which lives as long as the pmap stays small, and longer where a CPU has set its
    /// bit in the pmap's mask before this.
    #[inline]
    pub(super) fn group(&self) -> Option<&Group> {
        // SAFETY: a handle is behind the pointer, until the pmap is promoted: what that waits for,
        // callers prevent or hold.
        unsafe { self.group.load(Ordering::SeqCst).as_ref() }
    }
}

impl Pmap {
    /// The group, while the pmap is small: see [`Holders`](super::space::Holders).
    #[inline]
    pub(super) fn group(&self) -> Option<&Group> {
        self.place.group()
    }

    /// Whether it is in a region of a group.
    #[inline]
    pub fn is_small(&self) -> bool {
        self.place.is_small()
    }

    /// The end of the addresses at which a page may be mapped.
    #[inline]
    pub fn end(&self) -> VirtAddr {
        let end = match self.is_small() {
            true => &self.place.size,
            false => &self.place.end,
        };
        VirtAddr(end.load(Ordering::Relaxed))
    }

    /// Makes the pmap, in which nothing was ever mapped, small: in the group of the pmap `beside`
    /// if there is room, else in another one of the `user`'s programs, or in a new one. Returns
    /// whether it is: there may be no region left, or no memory.
    ///
    /// # Panics
    /// If it has page tables.
    pub fn join(&self, user: u32, beside: Option<&Pmap>) -> bool {
        let size = region();
        let is_shared = match small_spaces() {
            SmallSpaces::None => return false,
            SmallSpaces::OfUsers => false,
            SmallSpaces::Shared => true,
        };
        self.place.user.store(user, Ordering::Relaxed);
        let near = beside.map(|it| it.place.group.load(Ordering::SeqCst).cast_const());
        if let Some((group, region)) = find_region(near, user, size, is_shared) {
            self.enter_region(group, region);
            return true;
        }
        if frame::is_scarce() {
            return false;
        }
        let Some(group) = Group::new(user, size).map(Arc::new) else {
            return false;
        };
        // All are free: this one stays free when others find the group.
        let region = group.take_region();
        let is_known = {
            let mut groups = GROUPS.lock();
            let free = groups.iter_mut().find(|it| it.strong_count() == 0);
            free.map(|free| core::mem::replace(free, Arc::downgrade(&group)))
        };
        match (is_known, region) {
            (Some(_), Some(region)) => {
                self.enter_region(group, region);
                true
            }
            _ => false,
        }
    }

    /// As [`join`](Pmap::join) for the child of a small pmap: of the same user, beside its parent
    /// if there is room.
    ///
    /// # Panics
    /// As [`join`](Pmap::join).
    pub fn join_as(&self, parent: &Pmap) -> bool {
        let user = parent.place.user.load(Ordering::Relaxed);
        parent.is_small() && self.join(user, Some(parent))
    }

    /// The region is the pmap's from now on.
    fn enter_region(&self, group: Arc<Group>, region: usize) {
        let frames = self.lock.lock();
        let own = self.cpus.active.load(Ordering::SeqCst);
        assert!(
            *frames == self.tops().count() && own == 0 && !self.is_small(),
            "a pmap that is in use becomes small"
        );
        let base = AREA.start + region * group.size;
        self.place.base.store(base.0, Ordering::Relaxed);
        self.place.size.store(group.size, Ordering::Relaxed);
        self.place.table.store(group.table, Ordering::Relaxed);
        let group = Arc::into_raw(group).cast_mut();
        self.place.group.store(group, Ordering::SeqCst);
        Counter::small_joins.add(1);
    }

    /// Makes a small pmap large: see the head of the file. Returns whether it was small. The caller
    /// keeps others from changing mappings, or asking for them, meanwhile; interrupts are on and no
    /// spin lock is held.
    pub fn promote(&self, why: Promotion) -> bool {
        let is_small = self.leave_region(AREA.start);
        if is_small {
            why.counter().add(1);
        }
        is_small
    }

    /// Takes the pmap out of its group: its mappings are gone, and it may map pages up to `end`.
    pub(super) fn leave_region(&self, end: VirtAddr) -> bool {
        if self.group().is_none() {
            return false;
        }
        if Mistake::RegionFreedEarly.is_made()
            && let Some(group) = self.group()
        {
            group.release((self.place.base() - AREA.start.0) / group.size);
        }
        let since = machine::coherence_stamp();
        let mut pending = Pending::new();
        self.remove(
            VirtRange::new(VirtAddr(0), USER_END + PAGE_SIZE),
            &mut pending,
        );
        pending.flush();
        let base = self.place.base();
        {
            let _frames = self.lock.lock();
            self.place.table.store(NONE, Ordering::Relaxed);
            self.place.end.store(end.0, Ordering::Relaxed);
        }
        // Before the mask is read: a CPU that loads the pmap from now on loads its own root.
        let group = self.place.group.swap(null_mut(), Ordering::SeqCst);
        // SAFETY: the handle that `enter_region` put there, taken out once.
        let Some(group) = (unsafe { (!group.is_null()).then(|| Arc::from_raw(group)) }) else {
            return false;
        };
        let cpus = self.cpus.active.load(Ordering::SeqCst);
        if cpus != 0 {
            shootdown::run(What::Root, cpus, since);
        }
        if !Mistake::RegionFreedEarly.is_made() {
            group.release((base - AREA.start.0) / group.size);
        }
        true
    }
}

/// A group, for those who look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupState {
    /// The user whose programs it is for.
    pub user: u32,
    /// Bytes of a region.
    pub region: usize,
    /// How many regions it has, and how many of them are in use.
    pub regions: [usize; 2],
    /// Bit per CPU that has its root loaded.
    pub loaded: u64,
}

/// The groups, one after another: the first from number `from` on, and its number.
pub fn group_from(from: usize) -> Option<(usize, GroupState)> {
    let found = {
        let groups = GROUPS.lock();
        let mut alive = groups.iter().enumerate().skip(from);
        alive.find_map(|(i, weak)| Some((i, weak.upgrade()?)))
    };
    found.map(|(i, group)| {
        let state = GroupState {
            user: group.user,
            region: group.size,
            regions: [group.regions(), group.in_use()],
            loaded: group.cpus.active.load(Ordering::Relaxed),
        };
        (i, state)
    })
}

/// Forgets an earlier machine's groups. The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(super) fn start() {
    set_small_spaces(SmallSpaces::None);
    set_region(DEFAULT_REGION);
    // Their tables were in that machine's memory.
    GROUPS.lock().fill_with(Weak::new);
}
