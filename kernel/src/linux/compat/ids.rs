//! User and group ids of 16 bits, of which all ones stand for "leave as it is", and those of 32
//! bits.

use abi::{Errno, Result, raw::general as raw};
use nucleus::user::{self, desk};

use super::row::{Row, give, same, shim, take};
use crate::linux::syscall::Call;

pub(super) const CALLS: &[Row] = &[
    shim(16, raw::__NR_lchown, |call| {
        widen(call, 1..3);
        call.native(raw::__NR_lchown)
    }),
    shim(23, raw::__NR_setuid, |call| {
        widen(call, 0..1);
        call.native(raw::__NR_setuid)
    }),
    shim(24, raw::__NR_getuid, |call| narrow(call, raw::__NR_getuid)),
    shim(46, raw::__NR_setgid, |call| {
        widen(call, 0..1);
        call.native(raw::__NR_setgid)
    }),
    shim(47, raw::__NR_getgid, |call| narrow(call, raw::__NR_getgid)),
    shim(49, raw::__NR_geteuid, |call| {
        narrow(call, raw::__NR_geteuid)
    }),
    shim(50, raw::__NR_getegid, |call| {
        narrow(call, raw::__NR_getegid)
    }),
    shim(70, raw::__NR_setreuid, |call| {
        widen(call, 0..2);
        call.native(raw::__NR_setreuid)
    }),
    shim(71, raw::__NR_setregid, |call| {
        widen(call, 0..2);
        call.native(raw::__NR_setregid)
    }),
    shim(80, raw::__NR_getgroups, getgroups),
    shim(81, raw::__NR_setgroups, setgroups),
    shim(95, raw::__NR_fchown, |call| {
        widen(call, 1..3);
        call.native(raw::__NR_fchown)
    }),
    shim(138, raw::__NR_setfsuid, |call| {
        widen(call, 0..1);
        narrow(call, raw::__NR_setfsuid)
    }),
    shim(139, raw::__NR_setfsgid, |call| {
        widen(call, 0..1);
        narrow(call, raw::__NR_setfsgid)
    }),
    shim(164, raw::__NR_setresuid, |call| {
        widen(call, 0..3);
        call.native(raw::__NR_setresuid)
    }),
    shim(165, raw::__NR_getresuid, |call| {
        three(call, raw::__NR_getresuid)
    }),
    shim(170, raw::__NR_setresgid, |call| {
        widen(call, 0..3);
        call.native(raw::__NR_setresgid)
    }),
    shim(171, raw::__NR_getresgid, |call| {
        three(call, raw::__NR_getresgid)
    }),
    shim(182, raw::__NR_chown, |call| {
        widen(call, 1..3);
        call.native(raw::__NR_chown)
    }),
    same(198, raw::__NR_lchown),
    same(199, raw::__NR_getuid),
    same(200, raw::__NR_getgid),
    same(201, raw::__NR_geteuid),
    same(202, raw::__NR_getegid),
    same(203, raw::__NR_setreuid),
    same(204, raw::__NR_setregid),
    same(205, raw::__NR_getgroups),
    same(206, raw::__NR_setgroups),
    same(207, raw::__NR_fchown),
    same(208, raw::__NR_setresuid),
    same(209, raw::__NR_getresuid),
    same(210, raw::__NR_setresgid),
    same(211, raw::__NR_getresgid),
    same(212, raw::__NR_chown),
    same(213, raw::__NR_setuid),
    same(214, raw::__NR_setgid),
    same(215, raw::__NR_setfsuid),
    same(216, raw::__NR_setfsgid),
];

/// The most groups of a process (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;

/// Makes arguments of 16 bits some of 32.
fn widen(call: &mut Call<'_>, arguments: core::ops::Range<usize>) {
    for argument in &mut call.args[arguments] {
        *argument = match *argument as u16 {
            u16::MAX => u64::from(u32::MAX),
            id => u64::from(id),
        };
    }
}

/// An id of 16 bits; larger ones become the overflow id.
fn short(id: u32) -> u16 {
    u16::try_from(id).unwrap_or(super::layout::OVERFLOW_ID)
}

/// A body that gives an id.
fn narrow(call: &mut Call<'_>, native: u32) -> Result<usize> {
    let id = call.native(native)?;
    Ok(usize::from(short(id as u32)))
}

/// A body that writes three ids.
fn three(call: &mut Call<'_>, native: u32) -> Result<usize> {
    let mut to = [call.address(0); 3];
    for (n, to) in to.iter_mut().enumerate() {
        *to = call.lay_room(n, 4)?;
    }
    let result = call.native(native)?;
    for (n, to) in to.into_iter().enumerate() {
        give(to, &short(call.read(n)?))?;
    }
    Ok(result)
}

fn getgroups(call: &mut Call<'_>) -> Result<usize> {
    let room = usize::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
    let to = call.lay_room(1, room.min(GROUPS_MAX) * 4)?;
    let count = call.native(raw::__NR_getgroups)?;
    if room == 0 {
        return Ok(count);
    }
    for i in 0..count {
        let id: u32 = take(call.address(1) + i * 4)?;
        give(to + i * 2, &short(id))?;
    }
    Ok(count)
}

fn setgroups(call: &mut Call<'_>) -> Result<usize> {
    let count = call.size(0);
    if count > GROUPS_MAX {
        return Err(Errno::EINVAL);
    }
    let from = call.address(1);
    let to = desk::reserve(count * 4).map_err(|_| Errno::ENOMEM)?;
    for i in 0..count {
        let id: u16 = take(from + i * 2)?;
        user::write(to + i * 4, &u32::from(id)).map_err(|_| Errno::EFAULT)?;
    }
    call.args[1] = to.0 as u64;
    call.native(raw::__NR_setgroups)
}
