//! Memory that is locked: `mlock` and its relatives.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, VirtRange, addr::USER_END};
use vm::{Lock, Map, MapError};

use super::{
    Call, FlagSet, SystemCall, call, flag_set,
    memory::{errno, in_pieces, with_memory},
};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_mlock, |call| lock_range(call, Lock::Full)),
    call!(__NR_mlock2, mlock2).flags(&[&LOCK_FLAGS]),
    call!(__NR_munlock, munlock),
    call!(__NR_mlockall, mlockall).flags(&[&ALL_FLAGS]),
    call!(__NR_munlockall, munlockall),
];

const LOCK_FLAGS: FlagSet = flag_set!("flags", [raw::MLOCK_ONFAULT], EINVAL);
const ALL_FLAGS: FlagSet = flag_set!(
    "flags",
    [raw::MCL_CURRENT, raw::MCL_FUTURE, raw::MCL_ONFAULT],
    EINVAL
);

fn is_privileged(call: &Call<'_>) -> bool {
    call.credentials().may(raw::CAP_IPC_LOCK)
}

/// How `MAP_LOCKED` locks.
///
/// # Errors
/// `EPERM` for a program that may lock nothing.
pub(super) fn may_lock(call: &Call<'_>) -> Result<Lock> {
    let privileged = is_privileged(call);
    if !privileged && call.process().limits().soft(raw::RLIMIT_MEMLOCK) == 0 {
        return Err(Errno::EPERM);
    }
    call.space().map().set_lock_privilege(privileged);
    Ok(Lock::Full)
}

/// Before a call that may map more: where all that comes is locked, the limit is that of now.
pub(super) fn renew_privilege(call: &Call<'_>) {
    let map = call.space().map();
    if map.locks_future() {
        map.set_lock_privilege(is_privileged(call));
    }
}

/// The pages that a range touches.
fn touched(call: &Call<'_>) -> Result<VirtRange> {
    let start = call.address(0);
    let end = start
        .checked_add(call.size(1))
        .and_then(VirtAddr::page_ceil)
        .filter(|end| *end >= start)
        .ok_or(Errno::EINVAL)?;
    match end <= USER_END {
        true => Ok(VirtRange::new(start.page_floor(), end)),
        false => Err(Errno::ENOMEM),
    }
}

/// Brings all of `range` in.
fn bring_in(call: &Call<'_>, map: &Map, range: VirtRange) -> Result<()> {
    in_pieces(call, range, |piece| {
        map.populate(piece).map_err(|fault| match fault {
            vm::Fault::OutOfMemory => Errno::EAGAIN,
            _ => Errno::ENOMEM,
        })
    })
}

fn lock_range(call: &mut Call<'_>, lock: Lock) -> Result<usize> {
    may_lock(call)?;
    let range = touched(call)?;
    let map = call.space().map().clone();
    with_memory(|| map.lock(range, lock)).map_err(|error| match error {
        MapError::Again => Errno::ENOMEM,
        error => errno(error),
    })?;
    if lock == Lock::Full {
        bring_in(call, &map, range)?;
    }
    Ok(0)
}

fn mlock2(call: &mut Call<'_>) -> Result<usize> {
    match call.flags(2, &LOCK_FLAGS)? {
        0 => lock_range(call, Lock::Full),
        _ => lock_range(call, Lock::OnFault),
    }
}

fn munlock(call: &mut Call<'_>) -> Result<usize> {
    let range = touched(call)?;
    with_memory(|| call.space().map().lock(range, Lock::None)).map_err(errno)?;
    Ok(0)
}

fn mlockall(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(0, &ALL_FLAGS)?;
    if flags & (raw::MCL_CURRENT | raw::MCL_FUTURE) == 0 {
        return Err(Errno::EINVAL);
    }
    let lock = match may_lock(call)? {
        _ if flags & raw::MCL_ONFAULT != 0 => Lock::OnFault,
        lock => lock,
    };
    let current = (flags & raw::MCL_CURRENT != 0).then_some(lock);
    let future = match flags & raw::MCL_FUTURE {
        0 => Lock::None,
        _ => lock,
    };
    let map = call.space().map().clone();
    with_memory(|| map.lock_all(current, future)).map_err(errno)?;
    if current == Some(Lock::Full) {
        let mut at = VirtAddr(0);
        while let Some(range) = map.next_locked(at) {
            // Pages that cannot be brought in come by faults, or not at all.
            if bring_in(call, &map, range) == Err(Errno::EINTR) {
                return Err(Errno::EINTR);
            }
            at = range.end;
        }
    }
    Ok(0)
}

fn munlockall(call: &mut Call<'_>) -> Result<usize> {
    let map = call.space().map();
    with_memory(|| map.lock_all(Some(Lock::None), Lock::None)).map_err(errno)?;
    Ok(0)
}
