//! Interfaces as options and `ioctl` name them.

use alloc::{sync::Arc, vec::Vec};
use core::net::{IpAddr, Ipv4Addr};

use abi::{Errno, Result, raw::ioctl as raw};
use net::{
    counters::Counter,
    ip::{Address, Interface, LOOPBACK, Name, Origin, Prefix},
};
use nucleus::{VirtAddr, user};

use super::stack::stack;
use crate::socket::{Value, control::number};

/// Packets that may wait to be sent.
pub const QUEUE: i32 = 1000;
/// Bytes of the name in a `struct ifreq`.
pub const NAME_LEN: usize = 16;
/// Bytes of a `struct ifreq` of 64-bit and of 32-bit programs.
const REQUEST: usize = 40;
const REQUEST_32: usize = 32;
const AF_INET: u16 = 2;

/// The traffic of an interface.
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Counts {
    pub received_packets: u64,
    pub received_bytes: u64,
    pub received_errors: u64,
    pub received_dropped: u64,
    pub received_multicast: u64,
    pub sent_packets: u64,
    pub sent_bytes: u64,
    pub sent_errors: u64,
    pub sent_dropped: u64,
}

impl Counts {
    /// The counts in the order of `struct rtnl_link_stats`.
    pub fn in_order(&self) -> [u64; 9] {
        [
            self.received_packets,
            self.sent_packets,
            self.received_bytes,
            self.sent_bytes,
            self.received_errors,
            self.sent_errors,
            self.received_dropped,
            self.sent_dropped,
            self.received_multicast,
        ]
    }
}

/// Returns the traffic of an interface; every packet that `lo` sends is received.
pub fn traffic(interface: &Interface) -> Counts {
    use core::sync::atomic::Ordering::Relaxed;
    if interface.is_loopback() {
        let packets = Counter::loopback_packets.total();
        let bytes = Counter::loopback_bytes.total();
        return Counts {
            received_packets: packets,
            received_bytes: bytes,
            sent_packets: packets,
            sent_bytes: bytes,
            ..Counts::default()
        };
    }
    let it = &interface.traffic;
    Counts {
        received_packets: it.received_packets.load(Relaxed),
        received_bytes: it.received_bytes.load(Relaxed),
        received_errors: it.receive_errors.load(Relaxed),
        received_dropped: it.receive_dropped.load(Relaxed),
        received_multicast: it.received_multicast.load(Relaxed),
        sent_packets: it.sent_packets.load(Relaxed),
        sent_bytes: it.sent_bytes.load(Relaxed),
        sent_errors: it.send_errors.load(Relaxed),
        sent_dropped: it.send_dropped.load(Relaxed),
    }
}

/// Returns the interface with a number.
///
/// # Errors
/// `ENODEV`.
pub fn by_index(index: u32) -> Result<Arc<Interface>> {
    stack().network().interface(index).ok_or(Errno::ENODEV)
}

/// Returns the interface with a name, which may end at a zero.
///
/// # Errors
/// `ENODEV`.
pub fn by_name(name: &[u8]) -> Result<Arc<Interface>> {
    let name = Name::new(name).ok_or(Errno::ENODEV)?;
    let found = stack().network().interface_by_name(name);
    found.ok_or(Errno::ENODEV)
}

/// Changes an interface's name.
///
/// # Errors
/// `EEXIST`, `EOPNOTSUPP` for `lo`.
pub fn rename(interface: &Interface, name: Name) -> Result<()> {
    if interface.is_loopback() {
        return Err(Errno::EOPNOTSUPP);
    }
    stack().network().rename(interface.index(), name)
}

/// Gives an interface an address, or changes one that it has. One of IPv6 is checked first, unless
/// the program knows that no other machine has it.
///
/// # Errors
/// `ENOBUFS` if there are too many, `ENOMEM`.
pub fn add_address(interface: &Interface, address: Address, is_checked: bool) -> Result<()> {
    let index = interface.index();
    match is_checked {
        true => stack().configurator().put_address(index, address),
        false => stack().network().put_address(index, address),
    }
}

/// Returns the number of the interface to which a socket is bound; 0 for none.
///
/// # Errors
/// `ENODEV`.
pub fn index_of(name: &[u8]) -> Result<u32> {
    match name.first() {
        None | Some(0) => Ok(0),
        Some(_) => Ok(by_name(name)?.index()),
    }
}

/// Checks the number of an interface; 0 stands for none.
///
/// # Errors
/// `ENODEV`.
pub fn check_index(index: i32) -> Result<()> {
    match u32::try_from(index) {
        Ok(0 | LOOPBACK) => Ok(()),
        Ok(index) => by_index(index).map(drop),
        Err(_) => Err(Errno::ENODEV),
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
    let ip = Ipv4Addr::new(address[0], address[1], address[2], address[3]);
    if ip.is_unspecified() {
        return Ok(0);
    }
    let owner = stack().network().owner(ip.into());
    Ok(owner.ok_or(Errno::EADDRNOTAVAIL)?.index() as i32)
}

/// Returns the IPv4 address of the interface with a number, in network order.
pub fn address_of(index: i32) -> [u8; 4] {
    let interface = u32::try_from(index)
        .ok()
        .and_then(|index| by_index(index).ok());
    let first = interface.and_then(|interface| first_v4(&interface));
    first.map_or([0; 4], |(ip, _)| ip.octets())
}

/// Returns an interface's first IPv4 address.
pub fn first_v4(interface: &Interface) -> Option<(Ipv4Addr, Address)> {
    let all = interface.addresses().ok()?;
    all.into_iter().find_map(|address| match address.ip {
        IpAddr::V4(ip) => Some((ip, address)),
        IpAddr::V6(_) => None,
    })
}

/// Returns the number of ones at the beginning of a mask.
///
/// # Errors
/// `EINVAL` if ones follow zeros.
pub fn bits_of(mask: Ipv4Addr) -> Result<u8> {
    let mask = u32::from(mask);
    match mask.leading_ones() + mask.trailing_zeros() {
        32 | 64 => Ok(mask.leading_ones() as u8),
        _ if mask == u32::MAX => Ok(32),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the mask of a network of so many bits.
pub fn mask_of(bits: u8) -> Ipv4Addr {
    Ipv4Addr::from(u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0))
}

/// Returns a `struct sockaddr_in` with only an address.
pub fn socket_address(ip: Ipv4Addr) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&AF_INET.to_le_bytes());
    bytes[4..8].copy_from_slice(&ip.octets());
    bytes
}

/// Returns the address in a `struct sockaddr_in`.
///
/// # Errors
/// `EINVAL` for another family's.
pub fn read_address(bytes: &[u8]) -> Result<Ipv4Addr> {
    if bytes[..2] != AF_INET.to_le_bytes() {
        return Err(Errno::EINVAL);
    }
    Ok(Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]))
}

/// Gives an interface its first IPv4 address, in place of the old one.
///
/// # Errors
/// `EINVAL`, `EOPNOTSUPP` for `lo`'s, `ENOBUFS`, `ENOMEM`.
pub fn set_first_v4(interface: &Interface, ip: Ipv4Addr, bits: Option<u8>) -> Result<()> {
    let network = stack().network();
    let index = interface.index();
    let old = first_v4(interface);
    if let Some((old, address)) = old {
        if old == ip && bits.is_none_or(|bits| bits == address.prefix.bits()) {
            return Ok(());
        }
        network.drop_address(index, old.into())?;
    }
    if ip.is_unspecified() {
        return Ok(());
    }
    // The classes of old.
    let class = match ip.octets()[0] {
        ..128 => 8,
        128..192 => 16,
        _ => 24,
    };
    let bits = bits.unwrap_or(class);
    let prefix = Prefix::new(ip.into(), bits).ok_or(Errno::EINVAL)?;
    let address = Address {
        broadcast: prefix.broadcast(),
        ..Address::lasting(ip.into(), prefix, Origin::Static)
    };
    network.put_address(index, address)
}

/// Bytes of a `struct ifreq` of a program.
pub fn request_len(compatible: bool) -> usize {
    if compatible { REQUEST_32 } else { REQUEST }
}

/// Writes the name of the interface with a number.
///
/// # Errors
/// `ENODEV`, `EFAULT`.
pub fn name_of(argument: VirtAddr) -> Result<usize> {
    let index: u32 = user::read(argument + NAME_LEN)?;
    user::copy_out(argument, &by_index(index)?.name().0)?;
    Ok(0)
}

/// Writes all interfaces with an IPv4 address, each in `request` bytes (`SIOCGIFCONF`).
///
/// # Errors
/// `EFAULT`, `ENOMEM`.
pub fn configuration(argument: VirtAddr, request: usize) -> Result<usize> {
    const { assert!(raw::SIOCGIFCONF == 0x8912) };
    let room: i32 = user::read(argument)?;
    let buffer: usize = if request == REQUEST_32 {
        user::read::<u32>(argument + 4)? as usize
    } else {
        user::read(argument + 8)?
    };
    let mut entries = Vec::new();
    for interface in stack().network().interfaces() {
        for address in interface.addresses()? {
            if let IpAddr::V4(ip) = address.ip {
                entries.try_reserve(1)?;
                entries.push((interface.name(), ip));
            }
        }
    }
    let mut filled = 0;
    if buffer == 0 {
        filled = request * entries.len();
    } else {
        let room = usize::try_from(room).unwrap_or(0) / request;
        for (name, ip) in entries.into_iter().take(room) {
            let mut entry = [0; REQUEST];
            entry[..NAME_LEN].copy_from_slice(&name.0);
            entry[NAME_LEN..NAME_LEN + 16].copy_from_slice(&socket_address(ip));
            user::copy_out(VirtAddr(buffer) + filled, &entry[..request])?;
            filled += request;
        }
    }
    user::write(argument, &(filled as i32))?;
    Ok(0)
}
