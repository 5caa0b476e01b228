//! Spaces that may have page tables in common: a pmap and all that came from it by [`Pmap::fork`].

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Pmap;

/// See the head of the file. A table of level 1 that several spaces lead to belongs to their family (see `share`).
pub(super) struct Family {
    /// Bit per CPU that has a member loaded, set and cleared as that of a pmap: see `shootdown`.
    pub(super) active: AtomicU64,
    /// See [`Pmap::set_weight`].
    pub(super) weight: AtomicU32,
    number: u32,
}

/// In a number of [`Holders`]: a family's. The numbers of pmaps are below.
const FAMILY: u32 = 1 << 27;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Who may hold translations that were read from a table.
#[derive(Clone, Copy)]
pub(super) struct Holders<'a> {
    /// Bit per CPU that may hold any.
    pub(super) cpus: &'a AtomicU64,
    /// Names them in shootdowns. Two families have the same one only if more than 2^27 were made between them; what that
    /// costs is an invalidation too many.
    pub(super) number: u32,
    weight: &'a AtomicU32,
}

impl Holders<'_> {
    /// How large they count: see [`Pmap::set_weight`].
    pub(super) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }
}

impl Family {
    pub(super) fn new() -> Arc<Family> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) & (FAMILY - 1) | FAMILY;
        Arc::new(Family {
            active: AtomicU64::new(0),
            weight: AtomicU32::new(0),
            number,
        })
    }

    /// Names the family in shootdowns.
    #[inline]
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// The CPUs that have any member loaded.
    #[inline]
    pub(super) fn holders(&self) -> Holders<'_> {
        Holders {
            cpus: &self.active,
            number: self.number,
            weight: &self.weight,
        }
    }
}

impl Pmap {
    /// The CPUs that have this pmap loaded.
    #[inline]
    pub(super) fn holders(&self) -> Holders<'_> {
        Holders {
            cpus: &self.active,
            number: self.space(),
            weight: &self.weight,
        }
    }
}
