//! How many things of a kind each user has.

use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nucleus::sync::{Rank, SpinLock};

/// Counts things of one kind by user, and holds the most that one may have.
pub struct Quota {
    counts: SpinLock<BTreeMap<u32, usize>>,
    limit: AtomicUsize,
}

/// One thing of a user; released by the drop.
pub struct Charge {
    quota: &'static Quota,
    uid: u32,
}

impl Quota {
    /// An empty account with a limit of `limit` for each user.
    pub const fn new(limit: usize) -> Quota {
        Quota {
            counts: SpinLock::new(Rank::Leaf, BTreeMap::new()),
            limit: AtomicUsize::new(limit),
        }
    }

    /// The most that one user may have.
    pub fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Changes the limit; a user above it keeps its things.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Relaxed);
    }

    /// One more for `uid`; `None` if that would be too many.
    pub fn charge(&'static self, uid: u32) -> Option<Charge> {
        let mut counts = self.counts.lock();
        let count = counts.entry(uid).or_insert(0);
        if *count >= self.limit() {
            if *count == 0 {
                counts.remove(&uid);
            }
            return None;
        }
        *count += 1;
        Some(Charge { quota: self, uid })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut counts = self.quota.counts.lock();
        if let Some(count) = counts.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_limit_of_its_own() {
        static QUOTA: Quota = Quota::new(2);
        let first = QUOTA.charge(1).unwrap();
        let _second = QUOTA.charge(1).unwrap();
        assert!(QUOTA.charge(1).is_none());
        let _other = QUOTA.charge(2).unwrap();
        drop(first);
        let _third = QUOTA.charge(1).unwrap();
        assert!(QUOTA.charge(1).is_none());
        QUOTA.set_limit(0);
        assert!(QUOTA.charge(3).is_none());
        assert_eq!(QUOTA.counts.lock().len(), 2);
    }
}
