//! The common parts of the calls of System V interprocess communication.

use super::Call;
use crate::ipc::sysv::{
    Caller, ids,
    permission::{Change, Permission},
};

/// Returns the caller.
pub(super) fn caller<'a>(call: &'a Call<'_>) -> Caller<'a> {
    Caller {
        credentials: call.credentials(),
        pid: call.process().pid(),
    }
}

/// `struct ipc64_perm`: key, uid; gid, cuid; cgid, mode; the sequence number; two unused words.
pub(super) fn encode(p: &Permission, id: i32) -> [u64; 6] {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    [
        pair(p.key as u32, p.uid),
        pair(p.gid, p.creator_uid),
        pair(p.creator_gid, p.mode),
        u64::from(ids::sequence(id) & 0xffff),
        0,
        0,
    ]
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
