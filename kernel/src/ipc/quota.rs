//! How many things of a kind each user may have.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use vm::account::{Account, Charge, Kind};

/// The most things of a kind that each user may have, and what one is charged with.
pub struct Quota {
    kind: Kind,
    bytes: usize,
    limit: AtomicUsize,
}

impl Quota {
    /// A limit of `limit` things of `bytes` bytes for each user.
    pub const fn new(kind: Kind, bytes: usize, limit: usize) -> Quota {
        Quota {
            kind,
            bytes,
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

    /// One more for `account`; `None` if its user would have too many.
    pub fn charge(&self, account: &Arc<Account>) -> Option<Charge> {
        account.charge_within(self.kind, 1, self.bytes, self.limit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_limit_of_its_own() {
        let quota = Quota::new(Kind::EpollWatches, 100, 2);
        let (one, other) = (Account::of_user(1), Account::of_user(2));
        let first = quota.charge(&one).unwrap();
        let _second = quota.charge(&one).unwrap();
        assert!(quota.charge(&one).is_none());
        let _other = quota.charge(&other).unwrap();
        drop(first);
        let _third = quota.charge(&one).unwrap();
        assert!(quota.charge(&one).is_none());
        quota.set_limit(0);
        assert!(quota.charge(&other).is_none());
        assert_eq!(one.bytes(Kind::EpollWatches), 200);
    }
}
