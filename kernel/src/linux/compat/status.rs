//! Attributes of files and file systems.

use abi::{Errno, Result, raw::general as raw};
use fs::device;
use nucleus::VirtAddr;

use super::row::{Row, give, shim};
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
    shim(195, raw::__NR_stat, |call| of_file(call, raw::__NR_stat, 1)),
    shim(196, raw::__NR_lstat, |call| {
        of_file(call, raw::__NR_lstat, 1)
    }),
    shim(197, raw::__NR_fstat, |call| {
        of_file(call, raw::__NR_fstat, 1)
    }),
    shim(268, raw::__NR_statfs, |call| {
        of_system_64(call, raw::__NR_statfs)
    }),
    shim(269, raw::__NR_fstatfs, |call| {
        of_system_64(call, raw::__NR_fstatfs)
    }),
    shim(300, raw::__NR_newfstatat, |call| {
        of_file(call, raw::__NR_newfstatat, 2)
    }),
];

/// Words of a 64-bit `struct stat`.
const STAT: usize = 18;
/// Words of a 64-bit `struct statfs`.
const STATFS: usize = 15;

/// A `struct stat` that a body wrote: the file's numbers in order.
struct FileStatus {
    device: u64,
    inode: u64,
    links: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    special: u64,
    size: u64,
    block_size: u64,
    blocks: u64,
    /// Access, modification and change, in seconds and nanoseconds.
    times: [u64; 6],
}

/// Calls a body that writes a `struct stat` where argument `n` points; gives where it was to go,
/// too.
fn stat(call: &mut Call<'_>, native: u32, n: usize) -> Result<(FileStatus, VirtAddr)> {
    let to = call.address(n);
    call.lay_room(n, STAT * 8)?;
    call.native(native)?;
    if to.0 == 0 {
        return Err(Errno::EFAULT);
    }
    let w: [u64; STAT] = call.read(n)?;
    let status = FileStatus {
        device: w[0],
        inode: w[1],
        links: w[2],
        mode: w[3] as u32,
        uid: (w[3] >> 32) as u32,
        gid: w[4] as u32,
        special: w[5],
        size: w[6],
        block_size: w[7],
        blocks: w[8],
        times: [w[9], w[10], w[11], w[12], w[13], w[14]],
    };
    Ok((status, to))
}

/// `struct stat64`.
fn of_file(call: &mut Call<'_>, native: u32, n: usize) -> Result<usize> {
    let (s, to) = stat(call, native, n)?;
    let high = |word: u64| (word >> 32) as u32;
    let mut words = [0u32; 24];
    (words[0], words[1]) = (s.device as u32, high(s.device));
    words[3] = s.inode as u32;
    (words[4], words[5], words[6], words[7]) = (s.mode, s.links as u32, s.uid, s.gid);
    (words[8], words[9]) = (s.special as u32, high(s.special));
    (words[11], words[12]) = (s.size as u32, high(s.size));
    words[13] = s.block_size as u32;
    (words[14], words[15]) = (s.blocks as u32, high(s.blocks));
    words[16..22].copy_from_slice(&s.times.map(|time| time as u32));
    (words[22], words[23]) = (s.inode as u32, high(s.inode));
    give(to, &words)?;
    Ok(0)
}

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
    let (s, to) = stat(call, native, 1)?;
    if s.size > i32::MAX as u64 || s.links > u64::from(u16::MAX) {
        return Err(Errno::EOVERFLOW);
    }
    let id = |id: u32| if id > 0xffff { 65_534 } else { id };
    let mut words = [0u32; 16];
    words[0] = old_device(s.device)?;
    words[1] = s.inode as u32;
    words[2] = s.mode | (s.links as u32) << 16;
    words[3] = id(s.uid) | id(s.gid) << 16;
    words[4] = old_device(s.special)?;
    words[5] = s.size as u32;
    words[6] = s.block_size as u32;
    words[7] = s.blocks as u32;
    words[8..14].copy_from_slice(&s.times.map(|time| time as u32));
    give(to, &words)?;
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
    let mut words = [0u32; 16];
    for (narrow, wide) in words.iter_mut().zip(&wide[..7]) {
        // All ones stand for an unknown count.
        let unknown = *wide == u64::MAX;
        *narrow = match u32::try_from(*wide) {
            Ok(count) => count,
            Err(_) if unknown => u32::MAX,
            Err(_) => return Err(Errno::EOVERFLOW),
        };
    }
    (words[7], words[8]) = (wide[7] as u32, (wide[7] >> 32) as u32);
    (words[9], words[10], words[11]) = (wide[8] as u32, wide[9] as u32, wide[10] as u32);
    give(to, &words)?;
    Ok(0)
}

/// `struct statfs64`, which has no holes: its length is an argument.
fn of_system_64(call: &mut Call<'_>, native: u32) -> Result<usize> {
    const LEN: usize = 84;
    if call.size(1) != LEN {
        return Err(Errno::EINVAL);
    }
    let (wide, to) = statfs(call, native, 2)?;
    let mut words = [0u32; LEN / 4];
    (words[0], words[1]) = (wide[0] as u32, wide[1] as u32);
    for (i, wide) in wide[2..8].iter().enumerate() {
        (words[2 + 2 * i], words[3 + 2 * i]) = (*wide as u32, (*wide >> 32) as u32);
    }
    (words[14], words[15], words[16]) = (wide[8] as u32, wide[9] as u32, wide[10] as u32);
    give(to, &words)?;
    Ok(0)
}
