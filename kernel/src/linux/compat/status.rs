//! Attributes of files and file systems.

use abi::{Errno, Result, raw::general as raw};
use fs::device;
use nucleus::VirtAddr;

use super::{
    layout,
    row::{Row, differs, shim},
    translate::Difference::{self, Structure},
};
use crate::linux::syscall::Call;

pub(super) const CALLS: &[Row] = &[
    shim(99, raw::__NR_statfs, |call| {
        of_system(call, raw::__NR_statfs, 1)
    }),
    shim(100, raw::__NR_fstatfs, |call| {
        of_system(call, raw::__NR_fstatfs, 1)
    }),
    shim(106, raw::__NR_stat, |call| old(call, raw::__NR_stat)),
    shim(107, raw::__NR_lstat, |call| old(call, raw::__NR_lstat)),
    shim(108, raw::__NR_fstat, |call| old(call, raw::__NR_fstat)),
    differs(195, raw::__NR_stat, &[stat_64(1)]),
    differs(196, raw::__NR_lstat, &[stat_64(1)]),
    differs(197, raw::__NR_fstat, &[stat_64(1)]),
    shim(268, raw::__NR_statfs, |call| {
        of_system_64(call, raw::__NR_statfs)
    }),
    shim(269, raw::__NR_fstatfs, |call| {
        of_system_64(call, raw::__NR_fstatfs)
    }),
    differs(300, raw::__NR_newfstatat, &[stat_64(2)]),
];

/// Argument `n` points to a `struct stat64`.
const fn stat_64(n: usize) -> Difference {
    Structure(n, STAT, layout::STAT)
}

/// Words of a 64-bit `struct stat`.
const STAT: usize = 18;
/// Words of a 64-bit `struct statfs`.
const STATFS: usize = 15;

/// A device number of 16 bits.
fn old_device(number: u64) -> Result<u32> {
    let (major, minor) = (device::major(number), device::minor(number));
    match major > 255 || minor > 255 {
        true => Err(Errno::EOVERFLOW),
        false => Ok(major << 8 | minor),
    }
}

/// The `struct stat` of old, with 16-bit ids.
fn old(call: &mut Call<'_>, native: u32) -> Result<usize> {
    let to = call.lay_room(1, STAT * 8)?;
    call.native(native)?;
    if to.0 == 0 {
        return Err(Errno::EFAULT);
    }
    let mut wide: [u64; STAT] = call.read(1)?;
    let (links, size) = (wide[2], wide[6]);
    if size > i32::MAX as u64 || links > u64::from(u16::MAX) {
        return Err(Errno::EOVERFLOW);
    }
    wide[0] = old_device(wide[0])?.into();
    wide[5] = old_device(wide[5])?.into();
    layout::write(&[layout::OLD_STAT], &wide, to)?;
    Ok(0)
}

/// Calls a body that writes a `struct statfs` where argument `n` points.
fn statfs(call: &mut Call<'_>, native: u32, n: usize) -> Result<([u64; STATFS], VirtAddr)> {
    let to = call.address(n);
    call.args[1] = call.args[n];
    call.lay_room(1, STATFS * 8)?;
    call.native(native)?;
    if to.0 == 0 {
        return Err(Errno::EFAULT);
    }
    Ok((call.read(1)?, to))
}

/// `struct statfs`, whose counts have 32 bits.
fn of_system(call: &mut Call<'_>, native: u32, n: usize) -> Result<usize> {
    let (wide, to) = statfs(call, native, n)?;
    // All ones stand for an unknown count.
    let fits = |count: &u64| u32::try_from(*count).is_ok() || *count == u64::MAX;
    if !wide[..7].iter().all(fits) {
        return Err(Errno::EOVERFLOW);
    }
    layout::write(&[layout::STATFS], &wide, to)?;
    Ok(0)
}

/// `struct statfs64`, which has no holes: its length is an argument.
fn of_system_64(call: &mut Call<'_>, native: u32) -> Result<usize> {
    const LEN: usize = 84;
    if call.size(1) != LEN {
        return Err(Errno::EINVAL);
    }
    let (wide, to) = statfs(call, native, 2)?;
    layout::write(&[layout::STATFS_64], &wide, to)?;
    Ok(0)
}
