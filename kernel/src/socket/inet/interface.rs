//! `lo`, the one interface, as `ioctl` and options name it.

use core::net::Ipv4Addr;

use abi::{
    Errno, Result,
    raw::{general::CAP_NET_ADMIN, ioctl as raw},
};
use nucleus::{VirtAddr, user};

use crate::socket::{Value, common, control::number};

/// Its number.
pub const INDEX: i32 = 1;
/// Its name.
pub const NAME: &[u8] = b"lo";
/// The largest packet.
pub const MTU: i32 = 65_536;
/// `IFF_UP | IFF_LOOPBACK | IFF_RUNNING`.
pub const FLAGS: u16 = 0x1 | 0x8 | 0x40;
/// `ARPHRD_LOOPBACK`.
const HARDWARE: u16 = 772;
/// Packets that may wait to be sent.
pub const QUEUE: i32 = 1000;
/// Bytes of a `struct ifreq` of 64-bit and of 32-bit programs, and of the name in it.
const REQUEST: usize = 40;
const REQUEST_32: usize = 32;
const NAME_LEN: usize = 16;
const AF_INET: u16 = 2;

/// Tells whether a name that a program gives means `lo`; `lo:1` does too.
fn is_lo(name: &[u8]) -> bool {
    let name = name.split(|&byte| byte == 0).next().unwrap_or(&[]);
    name.split(|&byte| byte == b':').next() == Some(NAME)
}

/// Returns a `struct sockaddr_in` with only an address.
fn socket_address(ip: Ipv4Addr) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&AF_INET.to_le_bytes());
    bytes[4..8].copy_from_slice(&ip.octets());
    bytes
}

/// Answers the requests of `struct ifreq` and `struct ifconf`, which every socket takes; those of a
/// 32-bit program (`compatible`) are shorter.
///
/// # Errors
/// `ENODEV` for another interface, `EPERM` or `EOPNOTSUPP` for changes, `ENOTTY` for an unknown
/// request, `EFAULT`.
pub fn ioctl(command: u32, argument: VirtAddr, compatible: bool) -> Result<usize> {
    let request = if compatible { REQUEST_32 } else { REQUEST };
    match command {
        raw::SIOCGIFCONF => return configuration(argument, request),
        raw::SIOCGIFNAME => return name_of(argument),
        _ => {}
    }
    let mut answer = [0; REQUEST - NAME_LEN];
    let len = match command {
        raw::SIOCGIFFLAGS => put(&mut answer, &FLAGS.to_le_bytes()),
        raw::SIOCGIFINDEX => put(&mut answer, &INDEX.to_le_bytes()),
        raw::SIOCGIFMTU => put(&mut answer, &MTU.to_le_bytes()),
        raw::SIOCGIFMETRIC => put(&mut answer, &0i32.to_le_bytes()),
        raw::SIOCGIFTXQLEN => put(&mut answer, &QUEUE.to_le_bytes()),
        raw::SIOCGIFHWADDR => put(&mut answer, &HARDWARE.to_le_bytes()).max(16),
        raw::SIOCGIFMAP => request - NAME_LEN,
        raw::SIOCGIFADDR | raw::SIOCGIFDSTADDR => {
            put(&mut answer, &socket_address(Ipv4Addr::LOCALHOST))
        }
        // A loopback interface has none.
        raw::SIOCGIFBRDADDR => put(&mut answer, &socket_address(Ipv4Addr::UNSPECIFIED)),
        raw::SIOCGIFNETMASK => put(&mut answer, &socket_address(Ipv4Addr::new(255, 0, 0, 0))),
        raw::SIOCSIFFLAGS
        | raw::SIOCSIFADDR
        | raw::SIOCSIFNETMASK
        | raw::SIOCSIFMTU
        | raw::SIOCSIFHWADDR
        | raw::SIOCSIFBRDADDR
        | raw::SIOCSIFDSTADDR => 0,
        _ => return Err(Errno::ENOTTY),
    };
    let name: [u8; NAME_LEN] = user::read(argument)?;
    if len == 0 {
        return change(command, &name, argument);
    }
    if !is_lo(&name) {
        return Err(Errno::ENODEV);
    }
    user::copy_out(argument + NAME_LEN, &answer[..len])?;
    Ok(0)
}

fn put(to: &mut [u8], bytes: &[u8]) -> usize {
    to[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

/// Handles changes to `lo`: root may set values that it has already; other changes are refused.
fn change(command: u32, name: &[u8], argument: VirtAddr) -> Result<usize> {
    if !common::may(CAP_NET_ADMIN) {
        return Err(Errno::EPERM);
    }
    if !is_lo(name) {
        return Err(Errno::ENODEV);
    }
    let given: [u8; 16] = user::read(argument + NAME_LEN)?;
    let as_it_is = match command {
        raw::SIOCSIFFLAGS => given[0] & 1 != 0,
        raw::SIOCSIFADDR => given[..8] == socket_address(Ipv4Addr::LOCALHOST)[..8],
        raw::SIOCSIFNETMASK => given[4..8] == [255, 0, 0, 0],
        raw::SIOCSIFMTU => given[..4] == MTU.to_le_bytes(),
        _ => false,
    };
    if as_it_is {
        Ok(0)
    } else {
        Err(Errno::EOPNOTSUPP)
    }
}

/// Writes the name of the interface with a number.
fn name_of(argument: VirtAddr) -> Result<usize> {
    let index: i32 = user::read(argument + NAME_LEN)?;
    if index != INDEX {
        return Err(Errno::ENODEV);
    }
    let mut name = [0; NAME_LEN];
    name[..NAME.len()].copy_from_slice(NAME);
    user::copy_out(argument, &name)?;
    Ok(0)
}

/// Writes all interfaces with an IPv4 address, each in `request` bytes.
fn configuration(argument: VirtAddr, request: usize) -> Result<usize> {
    let room: i32 = user::read(argument)?;
    let buffer: usize = if request == REQUEST_32 {
        user::read::<u32>(argument + 4)? as usize
    } else {
        user::read(argument + 8)?
    };
    let mut filled = 0;
    if buffer == 0 {
        filled = request;
    } else if room >= request as i32 {
        let mut entry = [0; REQUEST];
        entry[..NAME.len()].copy_from_slice(NAME);
        entry[NAME_LEN..NAME_LEN + 16].copy_from_slice(&socket_address(Ipv4Addr::LOCALHOST));
        user::copy_out(VirtAddr(buffer), &entry[..request])?;
        filled = request;
    }
    user::write(argument, &(filled as i32))?;
    Ok(0)
}

/// Checks the number of an interface; 0 stands for none.
///
/// # Errors
/// `ENODEV`.
pub fn check_index(index: i32) -> Result<()> {
    match index {
        0 | INDEX => Ok(()),
        _ => Err(Errno::ENODEV),
    }
}

/// Returns the number of the interface that a `struct in_addr`, `ip_mreq` or `ip_mreqn` names, 0
/// for none.
///
/// # Errors
/// `EADDRNOTAVAIL` for an address of no interface, `ENODEV` for an unknown number, `EINVAL`,
/// `EFAULT`.
pub fn chosen(value: &Value) -> Result<i32> {
    let mut bytes = [0; 12];
    let n = value.bytes(&mut bytes)?;
    let (address, index) = match n {
        12.. => (&bytes[4..8], number(&bytes, 8) as i32),
        8.. => (&bytes[4..8], 0),
        4.. => (&bytes[..4], 0),
        _ => return Err(Errno::EINVAL),
    };
    if index != 0 {
        check_index(index)?;
        return Ok(index);
    }
    match address {
        [0, 0, 0, 0] => Ok(0),
        [127, ..] => Ok(INDEX),
        _ => Err(Errno::EADDRNOTAVAIL),
    }
}

/// Returns the IPv4 address of the interface with a number, in network order.
pub fn address_of(index: i32) -> [u8; 4] {
    if index == INDEX {
        Ipv4Addr::LOCALHOST.octets()
    } else {
        [0; 4]
    }
}
