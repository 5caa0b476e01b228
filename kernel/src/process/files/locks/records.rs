//! The record locks of one file.

use alloc::{collections::BTreeMap, sync::Arc};

use abi::{Errno, Result};
use vm::account::{Account, Charge, Kind};

use super::{
    Mode, most_locks,
    owner::Owner,
    tree::{self, Held, Spare, Tree},
};
use crate::process::Pid;

/// A record lock: bytes `start..=last`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub mode: Mode,
    pub start: u64,
    pub last: u64,
    /// The process that asked, for `F_GETLK`; 0 for an open file description.
    pub pid: Pid,
}

impl Record {
    fn overlaps(&self, other: &Record) -> bool {
        self.start <= other.last && other.start <= self.last
    }
}

/// The record locks of a file. Those of one owner have no byte in common, and neighbours of one
/// mode are one lock.
#[derive(Default)]
pub(super) struct Records {
    /// By first byte and owner.
    shared: Tree,
    exclusive: Tree,
    /// By owner and first byte.
    pub(super) by_owner: Tree,
    /// The accounts that the owners' locks are charged to, and how many there are.
    pub(super) charges: BTreeMap<Owner, (Arc<Account>, usize)>,
}

impl Records {
    fn by_start(&mut self, mode: Mode) -> &mut Tree {
        match mode {
            Mode::Shared => &mut self.shared,
            Mode::Exclusive => &mut self.exclusive,
        }
    }

    /// The lowest lock of others that would keep `record` from being taken.
    pub(super) fn conflict(&self, owner: Owner, record: &Record) -> Option<Held> {
        let find = |tree: &Tree| {
            tree.lowest_of_others(owner, record.start, record.last)
                .copied()
        };
        let exclusive = find(&self.exclusive);
        let shared = match record.mode {
            Mode::Shared => None,
            Mode::Exclusive => find(&self.shared),
        };
        let both = [exclusive, shared].into_iter().flatten();
        both.min_by_key(|(_, held)| held.start)
    }

    /// The lowest lock of `owner` with a byte at or after `from`.
    pub(super) fn next_of(&self, owner: Owner, from: u64) -> Option<Record> {
        let around = self.by_owner.around((owner.key(), from));
        let own = around.into_iter().flatten().filter(|(of, _)| *of == owner);
        own.map(|(_, held)| *held).find(|held| held.last >= from)
    }

    fn insert(&mut self, owner: Owner, record: Record, spare: &mut Spare) {
        let key = (record.start, owner.key());
        self.by_start(record.mode)
            .insert(key, (owner, record), spare);
        let key = (owner.key(), record.start);
        self.by_owner.insert(key, (owner, record), spare);
        if let Some((account, count)) = self.charges.get_mut(&owner) {
            *count += 1;
            account.add(Kind::Locks, 1, tree::LOCK_BYTES);
        }
    }

    pub(super) fn remove(&mut self, owner: Owner, record: &Record, spare: &mut Spare) {
        let key = (record.start, owner.key());
        self.by_start(record.mode).remove(key, spare);
        self.by_owner.remove((owner.key(), record.start), spare);
        if let Some((account, count)) = self.charges.get_mut(&owner) {
            *count -= 1;
            account.take_back(Kind::Locks, 1, tree::LOCK_BYTES);
        }
    }

    /// Gives the bytes of `range` its mode, or (`is_lock` false) no lock of `owner`. The parts of
    /// its locks on both sides stay, and neighbours of the same mode are joined. `spare` has nodes
    /// for two more locks. Returns whether others may have more than before.
    pub(super) fn set(
        &mut self,
        owner: Owner,
        range: &Record,
        is_lock: bool,
        spare: &mut Spare,
    ) -> bool {
        let (mut joined, mut frees) = (*range, false);
        let mut from = range.start.saturating_sub(1);
        while let Some(held) = self.next_of(owner, from) {
            if held.start > range.last.saturating_add(1) {
                break;
            }
            if is_lock && held.mode == range.mode {
                self.remove(owner, &held, spare);
                joined.start = joined.start.min(held.start);
                joined.last = joined.last.max(held.last);
            } else if held.overlaps(range) {
                self.remove(owner, &held, spare);
                frees |= !is_lock || held.mode == Mode::Exclusive;
                if held.start < range.start {
                    let last = range.start - 1;
                    self.insert(owner, Record { last, ..held }, spare);
                }
                if held.last > range.last {
                    let start = range.last + 1;
                    self.insert(owner, Record { start, ..held }, spare);
                }
            }
            match held.last.checked_add(1) {
                Some(next) => from = next,
                None => break,
            }
        }
        if is_lock {
            self.insert(owner, joined, spare);
        }
        frees
    }

    /// Has the locks of `owner` charged to `account`, unless it has some already. Returns
    /// [`room`] for one call.
    ///
    /// # Errors
    /// `ENOLCK` if its user has too many.
    pub(super) fn charge(&mut self, owner: Owner, account: &Arc<Account>) -> Result<Charge> {
        let known = self.charges.get(&owner);
        let room = room(known.map_or(account, |(account, _)| account))?;
        if known.is_none() {
            self.charges.insert(owner, (account.clone(), 0));
        }
        Ok(room)
    }

    /// Forgets the account of an owner without locks.
    pub(super) fn settle(&mut self, owner: Owner) {
        if self
            .charges
            .get(&owner)
            .is_some_and(|(_, count)| *count == 0)
        {
            self.charges.remove(&owner);
        }
    }
}

/// The locks that a call may make beyond those that there are.
pub(super) const MORE: usize = 2;

/// Nodes for them, in two trees each.
pub(super) const NODES: usize = 2 * MORE;

/// Charges the locks that one call may make to `account` until they are made: calls on other files
/// count them too, so many at a time do not exceed the limit either.
///
/// # Errors
/// `ENOLCK` if its user may not have as many.
pub(super) fn room(account: &Arc<Account>) -> Result<Charge> {
    let (kind, most) = (Kind::Locks, most_locks());
    let room = account.charge_within(kind, MORE, MORE * tree::LOCK_BYTES, most);
    room.ok_or(Errno::ENOLCK)
}

#[cfg(test)]
mod tests {
    use nucleus::sim::{self, Config};

    use super::*;

    /// Calls on several files at a time do not exceed the limit together: what one may make counts
    /// for the others before it is made.
    #[test]
    fn the_room_of_one_call_is_not_anothers() {
        sim::check("locks", 1..2, Config::default(), || {
            let user = Account::of_user(1);
            let (one, other) = (
                Account::of_process(10, &user),
                Account::of_process(11, &user),
            );
            let most = most_locks();
            let _there = user.charge(Kind::Locks, most - MORE, 0);
            let first = room(&one).unwrap();
            assert_eq!(room(&other).err(), Some(Errno::ENOLCK));
            assert_eq!(user.things(Kind::Locks), most);
            drop(first);
            assert!(room(&other).is_ok());
        });
    }
}
