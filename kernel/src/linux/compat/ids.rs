//! User and group ids of 16 bits, of which all ones stand for "leave as it is", and those of 32
//! bits.

use abi::{Errno, Result, raw::general as raw};
use nucleus::user::{self, compat_scratch};

use super::{
    row::{Row, differs, same, shim},
    translate::{
        Difference::{GivesId, Id, OutId},
        short_id,
    },
};
use crate::linux::syscall::Call;

pub(super) const CALLS: &[Row] = &[
    differs(16, raw::__NR_lchown, &[Id(1), Id(2)]),
    differs(23, raw::__NR_setuid, &[Id(0)]),
    differs(24, raw::__NR_getuid, &[GivesId]),
    differs(46, raw::__NR_setgid, &[Id(0)]),
    differs(47, raw::__NR_getgid, &[GivesId]),
    differs(49, raw::__NR_geteuid, &[GivesId]),
    differs(50, raw::__NR_getegid, &[GivesId]),
    differs(70, raw::__NR_setreuid, &[Id(0), Id(1)]),
    differs(71, raw::__NR_setregid, &[Id(0), Id(1)]),
    shim(80, raw::__NR_getgroups, getgroups),
    shim(81, raw::__NR_setgroups, setgroups),
    differs(95, raw::__NR_fchown, &[Id(1), Id(2)]),
    differs(138, raw::__NR_setfsuid, &[Id(0), GivesId]),
    differs(139, raw::__NR_setfsgid, &[Id(0), GivesId]),
    differs(164, raw::__NR_setresuid, &[Id(0), Id(1), Id(2)]),
    differs(165, raw::__NR_getresuid, &[OutId(0), OutId(1), OutId(2)]),
    differs(170, raw::__NR_setresgid, &[Id(0), Id(1), Id(2)]),
    differs(171, raw::__NR_getresgid, &[OutId(0), OutId(1), OutId(2)]),
    differs(182, raw::__NR_chown, &[Id(1), Id(2)]),
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

fn getgroups(call: &mut Call<'_>) -> Result<usize> {
    let room = usize::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
    let to = call.lay_room(1, room.min(GROUPS_MAX) * 4)?;
    let count = call.native(raw::__NR_getgroups)?;
    if room == 0 {
        return Ok(count);
    }
    for i in 0..count {
        let id: u32 = user::read(call.address(1) + i * 4)?;
        user::write(to + i * 2, &short_id(id))?;
    }
    Ok(count)
}

fn setgroups(call: &mut Call<'_>) -> Result<usize> {
    let count = call.size(0);
    if count > GROUPS_MAX {
        return Err(Errno::EINVAL);
    }
    let from = call.address(1);
    let to = compat_scratch::reserve(count * 4)?;
    for i in 0..count {
        let id: u16 = user::read(from + i * 2)?;
        user::write(to + i * 4, &u32::from(id))?;
    }
    call.args[1] = to.0 as u64;
    call.native(raw::__NR_setgroups)
}
