//! The common parts of the calls of System V interprocess communication.

use abi::{Errno, Result};

use super::Call;
use crate::ipc::sysv::{
    Caller, IPC_RMID, IPC_SET, IPC_STAT,
    ids::{self, Ids, MOST, Object},
    permission::{Change, Permission, READ},
};

/// Returns the caller.
pub(super) fn caller<'a>(call: &'a Call<'_>) -> Caller<'a> {
    Caller {
        credentials: call.credentials(),
        pid: call.process().pid(),
    }
}

/// A structure that begins with a `struct ipc64_perm`: key, uid; gid, cuid; cgid, mode; the
/// sequence number; two unused words. `own` are the words behind it; those that it lacks are
/// unused.
pub(super) fn encode<const WORDS: usize>(p: &Permission, id: i32, own: &[u64]) -> [u64; WORDS] {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let mut words = [0; WORDS];
    words[0] = pair(p.key as u32, p.uid);
    words[1] = pair(p.gid, p.creator_uid);
    words[2] = pair(p.creator_gid, p.mode);
    words[3] = u64::from(ids::sequence(id) & 0xffff);
    words[6..6 + own.len()].copy_from_slice(own);
    words
}

/// Returns the fields that `IPC_SET` changes, from a structure that begins with a `struct
/// ipc64_perm`.
pub(super) fn change(words: &[u64]) -> Change {
    Change {
        uid: (words[0] >> 32) as u32,
        gid: words[1] as u32,
        mode: (words[2] >> 32) as u32,
    }
}

/// An object that a control call shows and changes as the words of a structure.
pub(super) trait Controlled<const WORDS: usize>: Object {
    /// The structure that `IPC_STAT` gives.
    fn encode(&self) -> [u64; WORDS];

    /// Sets what a structure says (`IPC_SET`).
    ///
    /// # Errors
    /// `EPERM`, `EINVAL`, and those of the kind of object.
    fn change(&self, caller: Caller<'_>, words: &[u64; WORDS]) -> Result<()>;
}

/// The commands that all control calls have: `IPC_SET`, `IPC_RMID`, `IPC_STAT`, and the two by
/// index, of which `any` asks for no permission. Argument `n` points to the structure.
///
/// # Errors
/// `EINVAL` without such an object, `EACCES`, `EFAULT`, those of [`Controlled`].
pub(super) fn control<T: Controlled<WORDS>, const WORDS: usize>(
    call: &Call<'_>,
    objects: &Ids<T>,
    command: u32,
    any: u32,
    n: usize,
) -> Result<usize> {
    let id = call.int(0);
    let caller = caller(call);
    match command {
        IPC_SET => {
            let words = call.read(n)?;
            objects.get(id)?.change(caller, &words)?;
        }
        IPC_RMID => objects.get(id)?.remove(caller)?,
        _ => {
            let (object, result) = match command {
                IPC_STAT => (objects.get(id)?, 0),
                _ => {
                    let object = objects.at(id as usize % MOST).ok_or(Errno::EINVAL)?;
                    let id = object.id();
                    (object, id as usize)
                }
            };
            if command != any {
                object.permission().check(caller.credentials, READ)?;
            }
            call.write(n, &object.encode())?;
            return Ok(result);
        }
    }
    Ok(0)
}
