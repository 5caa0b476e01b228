//! The calls for record locks: `fcntl`.

use alloc::sync::Arc;

use abi::{Errno, Result};
use nucleus::task::Sleep;
use vm::account::Account;

use super::{
    super::{FileTable, OpenFile},
    deadlock,
    file_locks::{find, find_or_add, put, release},
    may_allocate,
    owner::Ownership,
    records::{NODES, Record, room},
    tree::Spare,
};
use crate::process::signal;

/// The owner of the record lock that a call is about.
#[derive(Clone, Copy)]
pub enum For<'a> {
    /// The process that uses this table (`F_SETLK`).
    Process(&'a FileTable),
    /// The open file description itself (`F_OFD_SETLK`).
    Description,
}

impl<'a> For<'a> {
    fn ownership(self, open: &'a OpenFile) -> &'a Ownership {
        match self {
            For::Process(table) => table.ownership(),
            For::Description => open.ownership(),
        }
    }
}

/// `F_GETLK`: the lowest lock that would keep `record` from being taken.
///
/// # Errors
/// Those of `fstat`.
pub fn conflicting_record(open: &OpenFile, by: For<'_>, record: &Record) -> Result<Option<Record>> {
    let Some(file) = find(open.identity()?) else {
        return Ok(None);
    };
    let owner = by.ownership(open).owner();
    let found = file.held.lock().records.conflict(owner, record);
    put(file);
    Ok(found.map(|(_, held)| held))
}

/// `F_UNLCK`: ends the locks on the bytes of `range`.
///
/// # Errors
/// Those of `fstat`; `ENOLCK` if a lock would become two and there is no memory, or its user has
/// too many.
pub fn unlock_record(open: &OpenFile, by: For<'_>, range: &Record) -> Result<()> {
    let owner = by.ownership(open).owner();
    let mut spare = Spare::default();
    let may_split = spare.add(NODES).is_ok();
    let mut result = Ok(());
    release(open.identity()?, |held| {
        let records = &mut held.records;
        let cut = records.next_of(owner, range.start);
        let mut charged = None;
        if cut.is_some_and(|cut| cut.start < range.start && range.last < cut.last) {
            let account = records.charges.get(&owner);
            match account.map(|(account, _)| room(account)).transpose() {
                Ok(room) if may_split => charged = room,
                _ => result = Err(Errno::ENOLCK),
            }
        }
        let frees = result.is_ok() && records.set(owner, range, false, &mut spare);
        records.settle(owner);
        drop(charged);
        frees
    });
    result
}

/// `F_SETLK`, `F_SETLKW`: takes a record lock, charged to `account`.
///
/// # Errors
/// `EAGAIN` if another has one and `wait` is false, `EDEADLK`, a restart number, `ENOLCK`.
pub fn lock_record(
    open: &OpenFile,
    by: For<'_>,
    record: Record,
    wait: bool,
    account: &Arc<Account>,
) -> Result<()> {
    may_allocate()?;
    let mut spare = Spare::default();
    spare.add(NODES).map_err(|_| Errno::ENOLCK)?;
    let file = find_or_add(open.identity()?);
    let owner = by.ownership(open).become_owner();
    let key = deadlock::new_thread(owner);
    let attempt = || -> Option<Result<()>> {
        let mut held = file.held.lock();
        let records = &mut held.records;
        if records.conflict(owner, &record).is_none() {
            let charged = records.charge(owner, account);
            // A lock that became weaker lets others in.
            let frees = charged.is_ok() && records.set(owner, &record, true, &mut spare);
            drop(held);
            if frees {
                file.ended.wake_all();
            }
            return Some(charged.map(drop));
        }
        drop(held);
        if !wait {
            return Some(Err(Errno::EAGAIN));
        }
        let is_process = matches!(by, For::Process(_));
        (is_process && deadlock::would_deadlock(key, &file, &record)).then_some(Err(Errno::EDEADLK))
    };
    let result = file.ended.wait(Sleep::INTERRUPTIBLE, attempt);
    if wait {
        deadlock::end_wait(key);
    }
    put(file);
    result.map_err(signal::woken)?
}
