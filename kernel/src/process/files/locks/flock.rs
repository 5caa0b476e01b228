//! Locks of whole files: `flock`.

use alloc::sync::Arc;

use abi::{Errno, Result};
use vm::account::{Account, Kind};

use super::{
    super::OpenFile,
    Mode,
    file_locks::{Whole, find_or_add, put, release},
    may_allocate, most_locks,
};
use crate::process::{Pid, signal};

/// What a lock of a whole file is charged with, in bytes: its place, and the file's, if it is the
/// only one.
const WHOLE_BYTES: usize = 512;

/// `flock`: ends the lock of an open file description.
///
/// # Errors
/// Those of `fstat`.
pub fn unlock_whole(open: &OpenFile) -> Result<()> {
    let owner = open.ownership().owner();
    let mut ended = None;
    release(open.identity()?, |held| {
        ended = held.unlock_whole(owner);
        ended.is_some()
    });
    Ok(())
}

/// `flock`: takes or changes the lock of an open file description, for the process `pid`, charged
/// to `account`.
///
/// # Errors
/// `EAGAIN` if another has it and `wait` is false, a restart number, `ENOLCK`.
pub fn lock_whole(
    open: &OpenFile,
    mode: Mode,
    wait: bool,
    pid: Pid,
    account: &Arc<Account>,
) -> Result<()> {
    may_allocate()?;
    // At the limit, an owner can still change the mode of the lock that it has.
    let mut charge = account.charge_within(Kind::Locks, 1, WHOLE_BYTES, most_locks());
    let file = find_or_add(open.identity()?);
    let owner = open.ownership().become_owner();
    let attempt = || {
        let mut held = file.held.lock();
        if held.whole.get(&owner).is_some_and(|lock| lock.mode == mode) {
            return Some(Ok(()));
        }
        // A change of mode is not atomic: the old lock goes first, as on Linux. Its charge goes on.
        let old = held.unlock_whole(owner);
        let dropped = old.is_some();
        let unused = old.and_then(|old| charge.replace(old.charge));
        let conflict = match mode {
            Mode::Exclusive => !held.whole.is_empty(),
            Mode::Shared => held.exclusive > 0,
        };
        let result = match conflict {
            _ if charge.is_none() => Some(Err(Errno::ENOLCK)),
            true => None,
            false => charge.take().map(|charge| {
                held.whole.insert(owner, Whole { mode, pid, charge });
                held.exclusive += usize::from(mode == Mode::Exclusive);
                Ok(())
            }),
        };
        drop(held);
        drop(unused);
        if dropped {
            file.ended.wake_all();
        }
        result
    };
    let result = signal::take_or_wait(&file.ended, wait, attempt).and_then(|locked| locked);
    put(file);
    result
}
