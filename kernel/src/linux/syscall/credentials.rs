//! User and group ids.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::Ordering::Relaxed;

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, user};

use super::{Call, SystemCall};
use crate::process::Credentials;

/// Most supplementary groups (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;
/// "Leave as it is" in `setreuid` and related calls.
const KEEP: u32 = u32::MAX;

pub(super) const CALLS: &[SystemCall] = &[
    SystemCall::new(raw::__NR_getuid, "getuid", getuid),
    SystemCall::new(raw::__NR_geteuid, "geteuid", geteuid),
    SystemCall::new(raw::__NR_getgid, "getgid", getgid),
    SystemCall::new(raw::__NR_getegid, "getegid", getegid),
    SystemCall::new(raw::__NR_getresuid, "getresuid", getresuid),
    SystemCall::new(raw::__NR_getresgid, "getresgid", getresgid),
    SystemCall::new(raw::__NR_setuid, "setuid", setuid),
    SystemCall::new(raw::__NR_setgid, "setgid", setgid),
    SystemCall::new(raw::__NR_setreuid, "setreuid", setreuid),
    SystemCall::new(raw::__NR_setregid, "setregid", setregid),
    SystemCall::new(raw::__NR_setresuid, "setresuid", setresuid),
    SystemCall::new(raw::__NR_setresgid, "setresgid", setresgid),
    SystemCall::new(raw::__NR_setfsuid, "setfsuid", setfsuid),
    SystemCall::new(raw::__NR_setfsgid, "setfsgid", setfsgid),
    SystemCall::new(raw::__NR_getgroups, "getgroups", getgroups),
    SystemCall::new(raw::__NR_setgroups, "setgroups", setgroups),
];

pub(super) fn getuid(call: &mut Call<'_>) -> Result<usize> {
    Ok(call.credentials().real_uid as usize)
}

pub(super) fn geteuid(call: &mut Call<'_>) -> Result<usize> {
    Ok(call.credentials().effective_uid as usize)
}

pub(super) fn getgid(call: &mut Call<'_>) -> Result<usize> {
    Ok(call.credentials().real_gid as usize)
}

pub(super) fn getegid(call: &mut Call<'_>) -> Result<usize> {
    Ok(call.credentials().effective_gid as usize)
}

fn getresuid(call: &mut Call<'_>) -> Result<usize> {
    let c = call.credentials().clone();
    call.write(0, &c.real_uid)?;
    call.write(1, &c.effective_uid)?;
    call.write(2, &c.saved_uid)?;
    Ok(0)
}

fn getresgid(call: &mut Call<'_>) -> Result<usize> {
    let c = call.credentials().clone();
    call.write(0, &c.real_gid)?;
    call.write(1, &c.effective_gid)?;
    call.write(2, &c.saved_gid)?;
    Ok(0)
}

/// Makes `new` the caller's credentials.
pub(super) fn adopt(call: &mut Call<'_>, new: Credentials) {
    let old = call.credentials();
    let moves = |old: u32, new: u32| old != new;
    if moves(old.effective_uid, new.effective_uid)
        || moves(old.effective_gid, new.effective_gid)
        || moves(old.fs.uid, new.fs.uid)
        || moves(old.fs.gid, new.fs.gid)
        || !new
            .capabilities
            .permitted
            .is_within(old.capabilities.permitted)
    {
        // A thread that changes its identity is no longer dumpable, nor tied to its parent.
        call.process().dumpable.store(0, Relaxed);
        call.thread.parent_death_signal.store(0, Relaxed);
    }
    let process = call.process();
    if process.real_uid() != new.real_uid {
        process.set_real_uid(new.real_uid);
        // As on Linux the change itself goes well; an `execve` after it does not.
        let too_many = process.has_too_many_threads(0);
        process.exceeds_user.store(too_many, Relaxed);
    }
    call.own.credentials = Arc::new(new);
    call.thread.publish(Some(call.own.shared()));
}

pub(super) fn copy(call: &Call<'_>) -> Credentials {
    Credentials::clone(call.credentials())
}

pub(super) fn setuid(call: &mut Call<'_>) -> Result<usize> {
    let uid = call.unsigned(0);
    let mut new = copy(call);
    if uid == KEEP {
        return Err(Errno::EINVAL);
    }
    if new.may(raw::CAP_SETUID) {
        new.real_uid = uid;
        new.saved_uid = uid;
    } else if uid != new.real_uid && uid != new.saved_uid {
        return Err(Errno::EPERM);
    }
    new.effective_uid = uid;
    new.fs.uid = uid;
    new.follow_uids(call.credentials());
    adopt(call, new);
    Ok(0)
}

pub(super) fn setgid(call: &mut Call<'_>) -> Result<usize> {
    let gid = call.unsigned(0);
    let mut new = copy(call);
    if gid == KEEP {
        return Err(Errno::EINVAL);
    }
    if new.may(raw::CAP_SETGID) {
        new.real_gid = gid;
        new.saved_gid = gid;
    } else if gid != new.real_gid && gid != new.saved_gid {
        return Err(Errno::EPERM);
    }
    new.effective_gid = gid;
    new.fs.gid = gid;
    adopt(call, new);
    Ok(0)
}

/// `setreuid` for user or group ids given as (real, effective, saved): the new ones.
fn set_pair(
    [real, effective, saved]: [u32; 3],
    [new_real, new_effective]: [u32; 2],
    privileged: bool,
) -> Result<[u32; 3]> {
    let may = |id: u32, allowed: &[u32]| privileged || allowed.contains(&id);
    let mut ids = [real, effective, saved];
    if new_real != KEEP {
        if !may(new_real, &[real, effective]) {
            return Err(Errno::EPERM);
        }
        ids[0] = new_real;
    }
    if new_effective != KEEP {
        if !may(new_effective, &[real, effective, saved]) {
            return Err(Errno::EPERM);
        }
        ids[1] = new_effective;
    }
    if new_real != KEEP || (new_effective != KEEP && new_effective != real) {
        ids[2] = ids[1];
    }
    Ok(ids)
}

/// Sets `setresuid`'s ids.
fn set_triple(old: [u32; 3], new: [u32; 3], privileged: bool) -> Result<[u32; 3]> {
    let mut ids = old;
    for (id, new) in ids.iter_mut().zip(new) {
        if new != KEEP {
            if !privileged && !old.contains(&new) {
                return Err(Errno::EPERM);
            }
            *id = new;
        }
    }
    Ok(ids)
}

fn set_uids(
    call: &mut Call<'_>,
    change: impl FnOnce([u32; 3], bool) -> Result<[u32; 3]>,
) -> Result<usize> {
    let mut new = copy(call);
    let old = [new.real_uid, new.effective_uid, new.saved_uid];
    [new.real_uid, new.effective_uid, new.saved_uid] = change(old, new.may(raw::CAP_SETUID))?;
    new.fs.uid = new.effective_uid;
    new.follow_uids(call.credentials());
    adopt(call, new);
    Ok(0)
}

fn set_gids(
    call: &mut Call<'_>,
    change: impl FnOnce([u32; 3], bool) -> Result<[u32; 3]>,
) -> Result<usize> {
    let mut new = copy(call);
    let old = [new.real_gid, new.effective_gid, new.saved_gid];
    [new.real_gid, new.effective_gid, new.saved_gid] = change(old, new.may(raw::CAP_SETGID))?;
    new.fs.gid = new.effective_gid;
    adopt(call, new);
    Ok(0)
}

pub(super) fn setreuid(call: &mut Call<'_>) -> Result<usize> {
    let new = [call.unsigned(0), call.unsigned(1)];
    set_uids(call, |old, privileged| set_pair(old, new, privileged))
}

pub(super) fn setregid(call: &mut Call<'_>) -> Result<usize> {
    let new = [call.unsigned(0), call.unsigned(1)];
    set_gids(call, |old, privileged| set_pair(old, new, privileged))
}

pub(super) fn setresuid(call: &mut Call<'_>) -> Result<usize> {
    let new = [call.unsigned(0), call.unsigned(1), call.unsigned(2)];
    set_uids(call, |old, privileged| set_triple(old, new, privileged))
}

pub(super) fn setresgid(call: &mut Call<'_>) -> Result<usize> {
    let new = [call.unsigned(0), call.unsigned(1), call.unsigned(2)];
    set_gids(call, |old, privileged| set_triple(old, new, privileged))
}

/// Returns the old one whether it changed or not, as Linux does.
fn setfsuid(call: &mut Call<'_>) -> Result<usize> {
    let uid = call.unsigned(0);
    let mut new = copy(call);
    let old = new.fs.uid;
    let known = [new.real_uid, new.effective_uid, new.saved_uid, old];
    if uid != KEEP && (new.may(raw::CAP_SETUID) || known.contains(&uid)) {
        new.fs.uid = uid;
        new.follow_fs_uid(old);
        adopt(call, new);
    }
    Ok(old as usize)
}

fn setfsgid(call: &mut Call<'_>) -> Result<usize> {
    let gid = call.unsigned(0);
    let mut new = copy(call);
    let old = new.fs.gid;
    let known = [new.real_gid, new.effective_gid, new.saved_gid, old];
    if gid != KEEP && (new.may(raw::CAP_SETGID) || known.contains(&gid)) {
        new.fs.gid = gid;
        adopt(call, new);
    }
    Ok(old as usize)
}

pub(super) fn getgroups(call: &mut Call<'_>) -> Result<usize> {
    let size = usize::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
    let credentials = call.credentials().clone();
    let groups = &credentials.fs.groups;
    if size == 0 {
        return Ok(groups.len());
    }
    if size < groups.len() {
        return Err(Errno::EINVAL);
    }
    let base = call.address(1);
    for (at, group) in groups.iter().enumerate() {
        let address = VirtAddr(base.0.wrapping_add(at * 4));
        user::write(address, group)?;
    }
    Ok(groups.len())
}

pub(super) fn setgroups(call: &mut Call<'_>) -> Result<usize> {
    if !call.credentials().may(raw::CAP_SETGID) {
        return Err(Errno::EPERM);
    }
    let size = usize::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
    if size > GROUPS_MAX {
        return Err(Errno::EINVAL);
    }
    let mut groups = Vec::new();
    groups.try_reserve_exact(size)?;
    let base = call.address(1);
    for at in 0..size {
        let address = VirtAddr(base.0.wrapping_add(at * 4));
        groups.push(user::read(address)?);
    }
    let mut new = copy(call);
    new.fs.groups = groups;
    adopt(call, new);
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_user_moves_between_its_own_ids_only() {
        let ids = [1000, 1000, 2000];
        assert_eq!(
            set_triple(ids, [KEEP, 2000, KEEP], false),
            Ok([1000, 2000, 2000])
        );
        assert_eq!(set_triple(ids, [0, KEEP, KEEP], false), Err(Errno::EPERM));
        assert_eq!(set_pair(ids, [KEEP, 2000], false), Ok([1000, 2000, 2000]));
        assert_eq!(set_pair(ids, [2000, KEEP], false), Err(Errno::EPERM));
        assert_eq!(set_pair([0, 0, 0], [5, 6], true), Ok([5, 6, 6]));
    }
}
