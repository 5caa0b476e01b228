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

use alloc::sync::{Arc, Weak};
use core::ptr::null_mut;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use super::entries::{entry, load};
use super::format::{ENTRIES, LEAF_SPAN, Pte, span};
use super::space::{Cpus, Hardware, Pmap, Tops, next_id, number_of};
use crate::addr::USER_END;
use crate::hw::Window;
use crate::lock::{Rank, SpinLock};
use crate::mem::frame::record::NONE;
use crate::mem::frame::{give_table, take_table};
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
pub(super) static GROUPS: SpinLock<[Weak<Group>; MOST_GROUPS]> =
    SpinLock::new(Rank::Leaf, [const { Weak::new() }; MOST_GROUPS]);

/// A hardware address space for small pmaps.
pub(super) struct Group {
    tops: Tops,
    /// The table of level 3.
    upper: u32,
    /// The table of level 2, which maps the area.
    pub(super) table: u32,
    cpus: Cpus,
    id: u64,
    /// The user whose programs it is for.
    pub(super) user: u32,
    /// The size of a region.
    pub(super) size: usize,
    /// Programs of all users may be neighbours in it: decided when it was made.
    pub(super) is_shared: bool,
    /// Bit per region that is in use.
    used: [AtomicU64; MOST_REGIONS / 64],
}

impl Group {
    /// A group without members; `None` without memory.
    pub(super) fn new(user: u32, size: usize, is_shared: bool) -> Option<Group> {
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
            is_shared,
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
    pub(super) fn take_region(&self) -> Option<usize> {
        (0..self.regions()).find(|region| {
            let (word, bit) = (&self.used[region / 64], 1 << (region % 64));
            word.load(Ordering::Relaxed) & bit == 0
                && word.fetch_or(bit, Ordering::Acquire) & bit == 0
        })
    }

    /// Releases a region: no CPU holds a translation of it.
    pub(super) fn release(&self, region: usize) {
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
pub(super) fn find_region(
    near: Option<*const Group>,
    user: u32,
    size: usize,
    is_shared: bool,
) -> Option<(Arc<Group>, usize)> {
    let first = near.and_then(|near| GROUPS.lock().iter().position(|it| it.as_ptr() == near));
    // One by one: the last handle of a group may go here, without the lock.
    let candidate = |at: usize| GROUPS.lock()[at].upgrade();
    let all = first.into_iter().chain(0..MOST_GROUPS);
    all.filter_map(candidate).find_map(|group| {
        let fits = group.size == size && group.is_shared == is_shared;
        if !fits || !is_shared && group.user != user {
            return None;
        }
        let region = group.take_region()?;
        Some((group, region))
    })
}

/// Where a pmap is: in a region of a group, or by itself.
pub(super) struct Place {
    /// From `Arc::into_raw`, or null.
    pub(super) group: AtomicPtr<Group>,
    /// The group's table of level 2, or [`NONE`].
    pub(super) table: AtomicU32,
    /// The first address of its region, and the region's size. They stay what they are when it is
    /// promoted: a CPU that has found the group takes them from here.
    pub(super) base: AtomicUsize,
    pub(super) size: AtomicUsize,
    /// Whether it has ever had a region.
    pub(super) was_small: AtomicBool,
    /// Whether its neighbours may be any user's.
    pub(super) is_shared: AtomicBool,
    /// The user for whom it has joined.
    pub(super) user: AtomicU32,
    /// The end of the addresses that the program may use without a group.
    pub(super) end: AtomicUsize,
}

impl Default for Place {
    fn default() -> Place {
        Place {
            group: AtomicPtr::new(null_mut()),
            table: AtomicU32::new(NONE),
            base: AtomicUsize::new(0),
            size: AtomicUsize::new(0),
            was_small: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
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

    /// Whether it has ever had a region: if not, its addresses are all, as they are.
    #[inline]
    pub(super) fn was_small(&self) -> bool {
        self.was_small.load(Ordering::Relaxed)
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
                end: self.size.load(Ordering::Relaxed)
                    + match Mistake::LimitTooWide.is_made() {
                        true => 2 * PAGE_SIZE,
                        false => 0,
                    },
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

    /// Whether it is in a group for the programs of all users.
    pub fn is_in_shared_group(&self) -> bool {
        self.is_small() && self.place.is_shared.load(Ordering::Relaxed)
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
}

/// The state of a group, as `/proc/causeway/spaces` shows it.
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
