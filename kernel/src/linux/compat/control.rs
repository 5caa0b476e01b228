//! `ioctl`: the few commands whose structures have pointers or long numbers.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, user};

use super::row::{Row, shim};
use crate::linux::syscall::Call;

pub(super) const CALLS: &[Row] = &[shim(54, raw::__NR_ioctl, ioctl)];

/// Commands whose numbers encode the length of a long number, 32-bit and 64-bit: flags and version
/// of a file; block size of a disk in use, and its size in bytes, of which only the command
/// differs.
const LONG: &[(u32, u32)] = &[
    (0x8004_6601, 0x8008_6601),
    (0x4004_6602, 0x4008_6602),
    (0x8004_7601, 0x8008_7601),
    (0x4004_7602, 0x4008_7602),
    (0x8004_1270, 0x8008_1270),
    (0x4004_1271, 0x4008_1271),
    (0x8004_1272, 0x8008_1272),
];

/// Commands that give a long number, and don't say so: how large a disk is, in sectors, and how
/// much is read ahead.
const GIVES_LONG: [u32; 2] = [0x1260, 0x1263];

/// The list of network interfaces: a length and a pointer.
const SIOCGIFCONF: u32 = 0x8912;
/// Commands about one network interface, which take a `struct ifreq`.
const INTERFACE: core::ops::RangeInclusive<u32> = 0x8910..=0x89ef;
/// Bytes of one, narrow and wide.
const REQUEST: usize = 32;
const WIDE_REQUEST: usize = 40;

fn ioctl(call: &mut Call<'_>) -> Result<usize> {
    let (command, at) = (call.unsigned(1), call.address(2));
    if let Some((_, wide)) = LONG.iter().find(|(narrow, _)| *narrow == command) {
        call.args[1] = u64::from(*wide);
        return call.native(raw::__NR_ioctl);
    }
    match command {
        SIOCGIFCONF => interfaces(call, at),
        _ if GIVES_LONG.contains(&command) => {
            call.lay(2, &0u64)?;
            let result = call.native(raw::__NR_ioctl)?;
            let wide: u64 = call.read(2)?;
            user::write(at, &u32::try_from(wide).map_err(|_| Errno::EFBIG)?)?;
            Ok(result)
        }
        _ if INTERFACE.contains(&command) => {
            let mut request = [0u8; WIDE_REQUEST];
            user::copy_in(&mut request[..REQUEST], at)?;
            call.lay(2, &request)?;
            let result = call.native(raw::__NR_ioctl)?;
            let request: [u8; REQUEST] = call.read(2)?;
            user::write(at, &request)?;
            Ok(result)
        }
        _ => call.native(raw::__NR_ioctl),
    }
}

/// The most interfaces that are listed.
const INTERFACES_MAX: usize = 16;

fn interfaces(call: &mut Call<'_>, at: VirtAddr) -> Result<usize> {
    let [len, to]: [u32; 2] = user::read(at)?;
    let count = (len as usize / REQUEST).min(INTERFACES_MAX);
    let room = user::compat_scratch::reserve(INTERFACES_MAX * WIDE_REQUEST)?;
    // Without a place to put them, their length is asked for.
    let wide = match to {
        0 => [0, 0],
        _ => [(count * WIDE_REQUEST) as u64, room.0 as u64],
    };
    call.lay(2, &wide)?;
    let result = call.native(raw::__NR_ioctl)?;
    let [len, _]: [u64; 2] = call.read(2)?;
    let count = len as u32 as usize / WIDE_REQUEST;
    user::write(at, &((count * REQUEST) as u32))?;
    if to != 0 {
        for i in 0..count.min(INTERFACES_MAX) {
            let request: [u8; REQUEST] = user::read(room + i * WIDE_REQUEST)?;
            user::write(VirtAddr(to as usize + i * REQUEST), &request)?;
        }
    }
    Ok(result)
}
