//! How many things of a kind each user has.

use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nucleus::sync::{Rank, SpinLock};

/// Counts things of one kind by user, and holds the most that one may have.
pub struct Quota {
    used: SpinLock<BTreeMap<u32, usize>>,
    limit: AtomicUsize,
}

/// Things of a user; released by the drop.
pub struct Charge {
    quota: &'static Quota,
    uid: u32,
    amount: usize,
}

impl Quota {
    /// An empty account with a limit of `limit` for each user.
    pub const fn new(limit: usize) -> Quota {
        Quota {
            used: SpinLock::new(Rank::Leaf, BTreeMap::new()),
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
        self.charge_within(uid, 1, self.limit())
    }

    /// `amount` more for `uid`, who may have `limit`; `None` if that would be too many.
    pub fn charge_within(&'static self, uid: u32, amount: usize, limit: usize) -> Option<Charge> {
        let mut used = self.used.lock();
        let sum = used.get(&uid).copied().unwrap_or(0).checked_add(amount);
        used.insert(uid, sum.filter(|sum| *sum <= limit)?);
        Some(Charge {
            quota: self,
            uid,
            amount,
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut users = self.quota.used.lock();
        if let Some(used) = users.get_mut(&self.uid) {
            *used -= self.amount;
            if *used == 0 {
                users.remove(&self.uid);
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
        assert!(QUOTA.charge_within(1, 3, 4).is_none());
        drop(QUOTA.charge_within(1, 2, 4).unwrap());
        QUOTA.set_limit(0);
        assert!(QUOTA.charge(3).is_none());
        assert_eq!(QUOTA.used.lock().len(), 2);
    }
}
