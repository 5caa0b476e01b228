//! The users that have processes, each with its [account](vm::account).

use alloc::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    vec::Vec,
};

use nucleus::sync::SpinLock;
use vm::account::{Account, Kind};

/// What a thread costs its user, in bytes: the kernel stack (four pages), its records, the state of
/// its registers, and its share of the process's tables.
pub(super) const THREAD_BYTES: usize = 6 * nucleus::PAGE_SIZE;

/// What stays of a process until it has been waited for, in bytes: its records, its signal actions,
/// its id.
pub(super) const PROCESS_BYTES: usize = nucleus::PAGE_SIZE;

/// The accounts that a process has, or something that a process made.
static USERS: SpinLock<BTreeMap<u32, Weak<Account>>> =
    SpinLock::new(crate::rank::FAMILY, BTreeMap::new());

/// Returns the account of the user with this id, made if it has none.
pub fn find(uid: u32) -> Arc<Account> {
    let mut users = USERS.lock();
    if let Some(user) = users.get(&uid).and_then(Weak::upgrade) {
        return user;
    }
    // Few ids are used: this is rare enough to look for those that are not any more.
    users.retain(|_, user| user.strong_count() > 0);
    let user = Account::of_user(uid);
    users.insert(uid, Arc::downgrade(&user));
    user
}

/// Returns the accounts of all users, by id.
///
/// # Errors
/// `ENOMEM`.
pub fn all() -> abi::Result<Vec<Arc<Account>>> {
    let mut list = Vec::new();
    loop {
        let users = USERS.lock();
        if list.capacity() >= users.len() {
            list.extend(users.values().filter_map(Weak::upgrade));
            return Ok(list);
        }
        let count = users.len();
        drop(users);
        list.try_reserve(count)?;
    }
}

/// Moves the threads of one account to another one: their process changes its user.
pub(super) fn move_threads(from: &Account, to: &Account) {
    let (threads, bytes) = (from.things(Kind::Threads), from.bytes(Kind::Threads));
    from.take_back(Kind::Threads, threads, bytes);
    to.add(Kind::Threads, threads, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_one_account() {
        let user = find(70_001);
        assert!(Arc::ptr_eq(&user, &find(70_001)));
        assert_eq!(user.uid(), 70_001);
        assert!(all().unwrap().iter().any(|one| Arc::ptr_eq(one, &user)));
    }

    #[test]
    fn threads_move_with_their_process() {
        let (one, other) = (find(70_002), find(70_003));
        let from = Account::of_process(5, &one);
        from.add(Kind::Threads, 2, 2 * THREAD_BYTES);
        let to = Account::of_process(5, &other);
        move_threads(&from, &to);
        assert_eq!(
            (one.things(Kind::Threads), other.things(Kind::Threads)),
            (0, 2)
        );
        to.take_back(Kind::Threads, 2, 2 * THREAD_BYTES);
    }
}
