//! Processes, their limits and their use of resources.

use abi::{Errno, Result, raw::general as raw};
use nucleus::user;

use super::{
    row::{Row, differs, shim},
    translate::Difference::Out,
    waiting::USAGE,
};
use crate::linux::syscall::Call;

pub(super) const CALLS: &[Row] = &[
    shim(34, raw::__NR_setpriority, nice),
    shim(75, raw::__NR_setrlimit, setrlimit),
    shim(76, raw::__NR_getrlimit, |call| {
        getrlimit(call, i32::MAX as u32)
    }),
    differs(77, raw::__NR_getrusage, &[Out(1, USAGE)]),
    shim(116, raw::__NR_sysinfo, sysinfo),
    // The last two arguments stand the other way round.
    shim(120, raw::__NR_clone, |call| {
        call.args.swap(3, 4);
        call.native(raw::__NR_clone)
    }),
    shim(191, raw::__NR_getrlimit, |call| getrlimit(call, u32::MAX)),
    shim(241, raw::__NR_sched_setaffinity, |call| {
        let mut mask = [0u8; 128];
        let len = call.size(1).min(mask.len());
        user::copy_in(&mut mask[..len], call.address(2))?;
        call.args[1] = mask.len() as u64;
        call.lay(2, &mask)?;
        call.native(raw::__NR_sched_setaffinity)
    }),
    shim(242, raw::__NR_sched_getaffinity, getaffinity),
];

/// The length is one of 32-bit words.
fn getaffinity(call: &mut Call<'_>) -> Result<usize> {
    let len = call.size(1);
    if !len.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    call.args[1] = len.next_multiple_of(8).min(4096) as u64;
    let to = call.lay_room(2, len.next_multiple_of(8).min(4096))?;
    let written = call.native(raw::__NR_sched_getaffinity)?.min(len);
    let mut bytes = [0; 4096];
    user::copy_in(&mut bytes[..written], call.address(2))?;
    user::copy_out(to, &bytes[..written])?;
    Ok(written)
}

/// `nice`: adds to the caller's own value.
fn nice(call: &mut Call<'_>) -> Result<usize> {
    let to = call.thread.nice() + call.int(0).clamp(-40, 40);
    let which = u64::from(raw::PRIO_PROCESS);
    let value = to.clamp(-20, 19) as i64 as u64;
    call.native_with(raw::__NR_setpriority, [which, 0, value, 0, 0, 0])
        .map_err(|error| match error {
            Errno::EACCES => Errno::EPERM,
            other => other,
        })
}

/// All ones stand for no limit.
fn setrlimit(call: &mut Call<'_>) -> Result<usize> {
    let limits: [u32; 2] = call.read(1)?;
    let wide = limits.map(|limit| match limit {
        u32::MAX => u64::MAX,
        limit => u64::from(limit),
    });
    call.lay(1, &wide)?;
    call.native(raw::__NR_setrlimit)
}

/// Limits from `most` on are shown as `most`.
fn getrlimit(call: &mut Call<'_>, most: u32) -> Result<usize> {
    let to = call.lay_room(1, 16)?;
    let result = call.native(raw::__NR_getrlimit)?;
    let limits: [u64; 2] = call.read(1)?;
    user::write(to, &limits.map(|limit| limit.min(u64::from(most)) as u32))?;
    Ok(result)
}

/// Words of a 64-bit `struct sysinfo`.
const SYSINFO: usize = 14;

/// Sizes that don't fit are given in pages.
fn sysinfo(call: &mut Call<'_>) -> Result<usize> {
    let to = call.lay_room(0, SYSINFO * 8)?;
    let result = call.native(raw::__NR_sysinfo)?;
    let wide: [u64; SYSINFO] = call.read(0)?;
    let mut words = [0u32; 16];
    // Time up and three loads.
    for (narrow, wide) in words.iter_mut().zip(&wide[..4]) {
        *narrow = *wide as u32;
    }
    let too_large = wide[4..10].iter().any(|size| *size > u64::from(u32::MAX));
    let shift = if too_large { nucleus::PAGE_SHIFT } else { 0 };
    for (narrow, wide) in words[4..10].iter_mut().zip(&wide[4..10]) {
        *narrow = (*wide >> shift) as u32;
    }
    // Processes; two sizes; the unit.
    words[10] = wide[10] as u16 as u32;
    words[11] = (wide[11] >> shift) as u32;
    words[12] = (wide[12] >> shift) as u32;
    words[13] = (wide[13] as u32) << shift;
    user::write(to, &words)?;
    Ok(result)
}
