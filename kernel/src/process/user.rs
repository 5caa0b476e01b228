//! The shared account of the processes of one real user id, as far as they have limits for it.

use alloc::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nucleus::sync::SpinLock;

/// A real user id, and the counts that it has.
#[derive(Debug)]
pub struct User {
    pub uid: u32,
    /// Signals that wait with their details (`RLIMIT_SIGPENDING`).
    signals: AtomicUsize,
    /// Threads (`RLIMIT_NPROC`).
    threads: AtomicUsize,
}

/// Those that a process has.
static USERS: SpinLock<BTreeMap<u32, Weak<User>>> =
    SpinLock::new(crate::rank::FAMILY, BTreeMap::new());

/// A signal that a user has waiting; released by the drop.
#[derive(Debug)]
pub struct WaitingSignal(Arc<User>);

impl User {
    pub fn find(uid: u32) -> Arc<User> {
        let mut users = USERS.lock();
        if let Some(user) = users.get(&uid).and_then(Weak::upgrade) {
            return user;
        }
        // Few ids are used: this is rare enough to look for those that are not any more.
        users.retain(|_, user| user.strong_count() > 0);
        let user = Arc::new(User {
            uid,
            signals: AtomicUsize::new(0),
            threads: AtomicUsize::new(0),
        });
        users.insert(uid, Arc::downgrade(&user));
        user
    }

    pub fn signals(&self) -> usize {
        self.signals.load(Relaxed)
    }

    pub fn threads(&self) -> usize {
        self.threads.load(Relaxed)
    }

    /// One more signal that waits; `None` if there are `limit` already.
    pub fn charge_signal(self: &Arc<Self>, limit: u64) -> Option<WaitingSignal> {
        let charge = WaitingSignal(self.clone());
        let before = self.signals.fetch_add(1, Relaxed);
        ((before as u64) < limit).then_some(charge)
    }
}

impl Drop for WaitingSignal {
    fn drop(&mut self) {
        self.0.signals.fetch_sub(1, Relaxed);
    }
}

/// A process's user, and how many of that one's threads are the process's.
pub(super) struct Account {
    pub user: Arc<User>,
    threads: usize,
}

impl Account {
    pub(super) fn new(uid: u32) -> Account {
        Account {
            user: User::find(uid),
            threads: 0,
        }
    }

    /// Another user's from now on; gives the old one, to be dropped without a lock.
    pub(super) fn move_to(&mut self, user: Arc<User>) -> Arc<User> {
        self.user.threads.fetch_sub(self.threads, Relaxed);
        user.threads.fetch_add(self.threads, Relaxed);
        core::mem::replace(&mut self.user, user)
    }

    pub(super) fn add_thread(&mut self) {
        self.threads += 1;
        self.user.threads.fetch_add(1, Relaxed);
    }

    pub(super) fn remove_thread(&mut self) {
        self.threads -= 1;
        self.user.threads.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_counted_together_and_given_back() {
        let user = User::find(70_001);
        assert!(Arc::ptr_eq(&user, &User::find(70_001)));
        let first = user.charge_signal(2).unwrap();
        let _second = user.charge_signal(2).unwrap();
        assert!(user.charge_signal(2).is_none());
        assert_eq!(user.signals(), 2);
        drop(first);
        assert!(user.charge_signal(2).is_some());
        assert_eq!(user.signals(), 1);
        assert!(user.charge_signal(0).is_none());
    }

    #[test]
    fn threads_move_with_their_process() {
        let (one, other) = (User::find(70_002), User::find(70_003));
        let mut account = Account::new(70_002);
        account.add_thread();
        account.add_thread();
        assert_eq!((one.threads(), other.threads()), (2, 0));
        account.move_to(other.clone());
        account.remove_thread();
        assert_eq!((one.threads(), other.threads()), (0, 1));
    }
}
