//! Small pmaps: how they take a region of a group, and leave it.
//!
//! A pmap that outgrows its region becomes *large*: its mappings are taken out and flushed, each
//! CPU that has it loaded loads its own root, and only then is the region free, for which no CPU
//! holds a translation. The mappings come back by faults. Kernel code in the middle of a copy holds
//! an address in the old region: a promoted pmap never maps anything from [`AREA`] on, so the copy
//! faults, and is begun again where it was (see `user`). The same holds for a thread whose segments
//! are still the old ones.

use alloc::sync::Arc;
use core::ptr::null_mut;
use core::sync::atomic::Ordering;

use super::group::{AREA, GROUPS, Group, SmallSpaces, find_region, region, small_spaces};
use super::pending::Pending;
use super::shootdown::{self, What};
use super::space::Pmap;
use crate::addr::USER_END;
use crate::counters::Counter;
use crate::hw::machine;
use crate::mem::frame;
use crate::mem::frame::record::NONE;
use crate::mem::mistake::Mistake;
use crate::{PAGE_SIZE, VirtAddr, VirtRange};

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

impl Pmap {
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
        let Some(group) = Group::new(user, size, is_shared).map(Arc::new) else {
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
        self.place.was_small.store(true, Ordering::Relaxed);
        self.place
            .is_shared
            .store(group.is_shared, Ordering::Relaxed);
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
        // Another CPU may have emptied an entry, and not yet told of it; with a root of its own,
        // whose tag is never used again, a space could end before that.
        pending.invalidate_all(self.holders());
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
