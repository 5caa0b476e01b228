//! Owners of locks: open file descriptions and descriptor tables.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The owner of a lock: an open file description or a descriptor table, by a number that no other
/// ever gets; its locks end before it does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Owner(u64);

impl Owner {
    /// None yet.
    pub(super) const NONE: Owner = Owner(0);

    /// A number, for an order.
    pub(super) fn key(self) -> u64 {
        self.0
    }
}

/// The number of the next owner.
static NEXT_OWNER: AtomicU64 = AtomicU64::new(1);

/// What an open file description or a descriptor table is as an owner of locks: none until it asks
/// for the first one.
#[derive(Debug)]
pub(in crate::process::files) struct Ownership(AtomicU64);

impl Ownership {
    /// No owner yet.
    pub const fn new() -> Ownership {
        Ownership(AtomicU64::new(0))
    }

    /// The owner, which may have locks; one without any if it never asked for one.
    pub fn owner(&self) -> Owner {
        Owner(self.0.load(Relaxed))
    }

    /// The owner, which is about to have a lock.
    pub(super) fn become_owner(&self) -> Owner {
        match self.owner() {
            Owner::NONE => {
                let new = NEXT_OWNER.fetch_add(1, Relaxed);
                let was = self.0.compare_exchange(0, new, Relaxed, Relaxed);
                Owner(was.map_or_else(|other| other, |_| new))
            }
            owner => owner,
        }
    }
}
