//! User and group ids.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;

use abi::{Errno, Result, raw::general as raw};

use super::{Call, SystemCall, call};
use crate::process::Credentials;

/// Most supplementary groups (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;
/// "Leave as it is" in `setreuid` and related calls.
const KEEP: u32 = u32::MAX;

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_getuid, |call| Ok(call.credentials().real_uid as usize)),
    call!(__NR_geteuid, |call| {
        Ok(call.credentials().effective_uid as usize)
    }),
    call!(__NR_getgid, |call| Ok(call.credentials().real_gid as usize)),
    call!(__NR_getegid, |call| {
        Ok(call.credentials().effective_gid as usize)
    }),
    call!(__NR_getresuid, |call| get_triple(call, Ids::Users)),
    call!(__NR_getresgid, |call| get_triple(call, Ids::Groups)),
    call!(__NR_setuid, |call| set_one(call, Ids::Users)),
    call!(__NR_setgid, |call| set_one(call, Ids::Groups)),
    call!(__NR_setreuid, |call| setre(call, Ids::Users)),
    call!(__NR_setregid, |call| setre(call, Ids::Groups)),
    call!(__NR_setresuid, |call| setres(call, Ids::Users)),
    call!(__NR_setresgid, |call| setres(call, Ids::Groups)),
    call!(__NR_setfsuid, |call| setfs(call, Ids::Users)),
    call!(__NR_setfsgid, |call| setfs(call, Ids::Groups)),
    call!(__NR_getgroups, getgroups),
    call!(__NR_setgroups, setgroups),
];

/// The ids of users or of groups: real, effective, saved, and that for files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ids {
    Users,
    Groups,
}

impl Ids {
    fn of(self, c: &Credentials) -> [u32; 4] {
        match self {
            Ids::Users => [c.real_uid, c.effective_uid, c.saved_uid, c.fs.uid],
            Ids::Groups => [c.real_gid, c.effective_gid, c.saved_gid, c.fs.gid],
        }
    }

    /// The capability to set them at will.
    fn capability(self) -> u32 {
        match self {
            Ids::Users => raw::CAP_SETUID,
            Ids::Groups => raw::CAP_SETGID,
        }
    }
}

/// `getresuid` and `getresgid`.
fn get_triple(call: &Call<'_>, ids: Ids) -> Result<usize> {
    for (n, id) in ids.of(call.credentials())[..3].iter().enumerate() {
        call.write(n, id)?;
    }
    Ok(0)
}

/// Makes `new` the caller's credentials.
pub(super) fn adopt(call: &mut Call<'_>, new: Credentials) {
    let old = call.credentials();
    if new.acts_differently(old) {
        // Before the new credentials are seen: other processes may not look into the space.
        call.space().make_private();
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

/// Gives the caller the real, effective and saved ids that `change` makes of its own, told whether
/// it is privileged; that for files is the effective one.
fn set(
    call: &mut Call<'_>,
    ids: Ids,
    change: impl FnOnce([u32; 3], bool) -> Result<[u32; 3]>,
) -> Result<usize> {
    let mut new = copy(call);
    let [real, effective, saved, _] = ids.of(&new);
    let privileged = new.may(ids.capability());
    let [real, effective, saved] = change([real, effective, saved], privileged)?;
    match ids {
        Ids::Users => {
            (new.real_uid, new.effective_uid, new.saved_uid) = (real, effective, saved);
            new.fs.uid = effective;
            new.follow_uids(call.credentials());
        }
        Ids::Groups => {
            (new.real_gid, new.effective_gid, new.saved_gid) = (real, effective, saved);
            new.fs.gid = effective;
        }
    }
    adopt(call, new);
    Ok(0)
}

/// `setuid` and `setgid`.
fn set_one(call: &mut Call<'_>, ids: Ids) -> Result<usize> {
    let id = call.unsigned(0);
    set(call, ids, |[real, _, saved], privileged| match privileged {
        _ if id == KEEP => Err(Errno::EINVAL),
        true => Ok([id; 3]),
        false if id == real || id == saved => Ok([real, id, saved]),
        false => Err(Errno::EPERM),
    })
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

fn setre(call: &mut Call<'_>, ids: Ids) -> Result<usize> {
    let new = [call.unsigned(0), call.unsigned(1)];
    set(call, ids, |old, privileged| set_pair(old, new, privileged))
}

fn setres(call: &mut Call<'_>, ids: Ids) -> Result<usize> {
    let new = [call.unsigned(0), call.unsigned(1), call.unsigned(2)];
    set(call, ids, |old, privileged| {
        set_triple(old, new, privileged)
    })
}

/// `setfsuid` and `setfsgid`, which return the old id whether it changed or not, as Linux does.
fn setfs(call: &mut Call<'_>, ids: Ids) -> Result<usize> {
    let id = call.unsigned(0);
    let mut new = copy(call);
    let known = ids.of(&new);
    let old = known[3];
    if id != KEEP && (new.may(ids.capability()) || known.contains(&id)) {
        match ids {
            Ids::Users => {
                new.fs.uid = id;
                new.follow_fs_uid(old);
            }
            Ids::Groups => new.fs.gid = id,
        }
        adopt(call, new);
    }
    Ok(old as usize)
}

fn getgroups(call: &mut Call<'_>) -> Result<usize> {
    let size = usize::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
    let groups = &call.credentials().fs.groups;
    if size == 0 {
        return Ok(groups.len());
    }
    if size < groups.len() {
        return Err(Errno::EINVAL);
    }
    call.write_many(1, groups)?;
    Ok(groups.len())
}

fn setgroups(call: &mut Call<'_>) -> Result<usize> {
    call.require(raw::CAP_SETGID)?;
    let size = usize::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
    if size > GROUPS_MAX {
        return Err(Errno::EINVAL);
    }
    let groups = call.read_many(1, size)?;
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
