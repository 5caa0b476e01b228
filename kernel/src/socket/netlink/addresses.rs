//! Addresses, as netlink tells of them and changes them.

use core::net::IpAddr;

use abi::{Errno, Result};
use net::ip::{Address, AddressState, Interface, Origin, Prefix, scope_of};
use nucleus::time;

use super::{
    link,
    message::{self, Request, Writer},
    numbers as raw,
    route::{Asker, structure},
};
use crate::socket::{
    control::number,
    inet::{AF_INET, interface, stack},
};

/// Bytes of a `struct ifaddrmsg`.
const ADDRESS: usize = 8;
/// A time without an end, in seconds.
const FOREVER: u32 = u32::MAX;
/// `IFAPROT_KERNEL_LO`, `IFAPROT_KERNEL_RA`, `IFAPROT_KERNEL_LL`.
const KERNEL_LO: u8 = 1;
const KERNEL_ROUTER: u8 = 2;
const KERNEL_LINK: u8 = 3;

/// Lists addresses; gives flags for the list's end.
///
/// # Errors
/// `EINVAL` or `ENODEV` where it is checked strictly; `ENOMEM`.
pub fn list(
    request: &Request<'_>,
    asker: &Asker,
    writer: &mut Writer,
    v4: bool,
    v6: bool,
) -> Result<u32> {
    let mut flags = raw::NLM_F_MULTI;
    let mut only = 0;
    if asker.is_strict {
        let head: [u8; ADDRESS] = structure(request)?;
        if head[1..4] != [0; 3] || request.attributes::<ADDRESS>().next().is_some() {
            return Err(Errno::EINVAL);
        }
        only = number(&head, 4);
        if only != 0 {
            interface::by_index(only)?;
            flags |= raw::NLM_F_DUMP_FILTERED;
        }
    }
    for family_v4 in [true, false] {
        if !(if family_v4 { v4 } else { v6 }) {
            continue;
        }
        for interface in stack().network().interfaces() {
            if only != 0 && interface.index() != only {
                continue;
            }
            let addresses = interface.addresses()?;
            let seen = addresses.iter().filter(|it| it.ip.is_ipv4() == family_v4);
            for address in seen {
                write(writer, raw::RTM_NEWADDR, flags, &interface, address);
            }
        }
    }
    Ok(flags & !raw::NLM_F_MULTI)
}

/// Writes an address of an interface.
pub fn write(writer: &mut Writer, kind: u32, flags: u32, interface: &Interface, address: &Address) {
    let now = time::since_boot().as_nanos() as u64;
    let mut bits = 0;
    if address.valid_until.is_none() {
        bits |= raw::IFA_F_PERMANENT;
    }
    if address.is_deprecated(now) {
        bits |= raw::IFA_F_DEPRECATED;
    }
    if address.is_alone {
        bits |= raw::IFA_F_NOPREFIXROUTE;
    }
    bits |= match address.state {
        AddressState::Valid => 0,
        AddressState::Tentative => raw::IFA_F_TENTATIVE,
        AddressState::Duplicate => raw::IFA_F_TENTATIVE | raw::IFA_F_DADFAILED,
    };
    let is_v4 = address.ip.is_ipv4();
    if is_v4 && is_secondary(interface, address) {
        bits |= raw::IFA_F_SECONDARY;
    }
    let is_loopback = interface.is_loopback();
    let mut head = [0; ADDRESS];
    let scope = match address.ip {
        _ if is_loopback => 254,
        // Addresses of IPv4 are of the whole world unless a program says otherwise.
        IpAddr::V4(_) => 0,
        ip => scope_of(ip),
    };
    let family = message::family(address.ip) as u8;
    head[..4].copy_from_slice(&[family, address.prefix.bits(), bits as u8, scope]);
    head[4..].copy_from_slice(&interface.index().to_le_bytes());
    let left = |until: Option<u64>| match until {
        None => FOREVER,
        Some(until) => (until.saturating_sub(now) / 1_000_000_000) as u32,
    };
    writer.message(kind, flags, &head, |all| {
        all.put_address(raw::IFA_ADDRESS, address.peer.unwrap_or(address.ip));
        if is_v4 || address.peer.is_some() {
            all.put_address(raw::IFA_LOCAL, address.ip);
        }
        let broadcast = address.broadcast.or(match address.origin {
            // A server's answer means the whole network, as a program says it with `brd +`.
            Origin::Dhcp => address.prefix.broadcast(),
            _ => None,
        });
        if let (true, Some(broadcast)) = (is_v4, broadcast) {
            all.put(raw::IFA_BROADCAST, &broadcast.octets());
        }
        if is_v4 {
            let name = link::with_zero(interface);
            let len = interface.name().as_bytes().len() + 1;
            all.put(raw::IFA_LABEL, &name[..len.min(name.len())]);
        }
        let life = |all: &mut message::Attributes<'_>| {
            let mut life = [0; size_of::<raw::ifa_cacheinfo>()];
            life[..4].copy_from_slice(&left(address.preferred_until).to_le_bytes());
            life[4..8].copy_from_slice(&left(address.valid_until).to_le_bytes());
            all.put(raw::IFA_CACHEINFO, &life);
        };
        if is_v4 {
            all.put_number(raw::IFA_FLAGS, bits);
            life(all);
            return;
        }
        life(all);
        all.put_number(raw::IFA_FLAGS, bits);
        let protocol = match address.origin {
            Origin::Router => KERNEL_ROUTER,
            Origin::Kernel if is_loopback => KERNEL_LO,
            Origin::Kernel => KERNEL_LINK,
            _ => 0,
        };
        if protocol != 0 {
            all.put(raw::IFA_PROTO, &[protocol]);
        }
    });
}

/// Whether another address of the network comes before this one.
fn is_secondary(interface: &Interface, address: &Address) -> bool {
    let all = interface.addresses().unwrap_or_default();
    let mut before = all.iter().take_while(|other| other.ip != address.ip);
    before.any(|other| other.prefix == address.prefix)
}

/// An address in a request.
struct Asked {
    index: u32,
    ip: IpAddr,
    address: Address,
    /// Other machines are asked whether they have it.
    is_checked: bool,
}

impl Asked {
    fn of(request: &Request<'_>) -> Result<Asked> {
        let head: [u8; ADDRESS] = structure(request)?;
        let (family, bits) = (u32::from(head[0]), head[1]);
        let (mut local, mut far, mut broadcast) = (None, None, None);
        let (mut preferred, mut valid) = (FOREVER, FOREVER);
        let mut flags = u32::from(head[2]);
        for (kind, value) in request.attributes::<ADDRESS>() {
            match kind {
                raw::IFA_LOCAL => local = Some(message::address(family, value)?),
                raw::IFA_ADDRESS => far = Some(message::address(family, value)?),
                raw::IFA_BROADCAST => {
                    broadcast = match message::address(family, value)? {
                        IpAddr::V4(all) => Some(all),
                        IpAddr::V6(_) => return Err(Errno::EINVAL),
                    };
                }
                raw::IFA_FLAGS => flags = message::number(value).ok_or(Errno::EINVAL)?,
                raw::IFA_CACHEINFO => {
                    let life = value.first_chunk::<8>().ok_or(Errno::EINVAL)?;
                    (preferred, valid) = (number(life, 0), number(life, 4));
                    if valid == 0 || preferred > valid {
                        return Err(Errno::EINVAL);
                    }
                }
                _ => {}
            }
        }
        let ip = local.or(far).ok_or(Errno::EINVAL)?;
        let peer = far.filter(|far| *far != ip);
        let prefix = Prefix::new(peer.unwrap_or(ip), bits).ok_or(Errno::EINVAL)?;
        let now = time::since_boot().as_nanos() as u64;
        let until = |seconds: u32| {
            let time = u64::from(seconds) * 1_000_000_000;
            (seconds != FOREVER).then_some(now + time)
        };
        Ok(Asked {
            index: number(&head, 4),
            ip,
            is_checked: flags & raw::IFA_F_NODAD == 0,
            address: Address {
                peer,
                broadcast,
                is_alone: flags & raw::IFA_F_NOPREFIXROUTE != 0,
                preferred_until: until(preferred),
                valid_until: until(valid),
                ..Address::lasting(ip, prefix, Origin::Static)
            },
        })
    }
}

/// Adds an address.
///
/// # Errors
/// `EEXIST`, `ENODEV`, `EINVAL`, `EAFNOSUPPORT`, `ENOBUFS` if there are too many.
pub fn add(request: &Request<'_>) -> Result<()> {
    let asked = Asked::of(request)?;
    let interface = interface::by_index(asked.index)?;
    let (ip, is_v4) = (asked.ip, asked.ip.is_ipv4());
    if ip.is_unspecified() || ip.is_multicast() || is_v4 && ip == IpAddr::from([255; 4]) {
        return Err(match is_v4 {
            true => Errno::EINVAL,
            false => Errno::EADDRNOTAVAIL,
        });
    }
    match interface.address(ip) {
        Some(_) if !request.has(raw::NLM_F_REPLACE) || request.has(raw::NLM_F_EXCL) => {
            return Err(Errno::EEXIST);
        }
        // Those that are always there stay as they are.
        Some(_) if interface.is_loopback() => return Ok(()),
        _ => {}
    }
    interface::add_address(&interface, asked.address, asked.is_checked)
}

/// Removes an address.
///
/// # Errors
/// `EADDRNOTAVAIL`, `ENODEV`, `EINVAL`, `EAFNOSUPPORT`, `EOPNOTSUPP` for one that is always there.
pub fn remove(request: &Request<'_>) -> Result<()> {
    let head: [u8; ADDRESS] = structure(request)?;
    let asked = Asked::of(request)?;
    let interface = interface::by_index(asked.index)?;
    let own = interface.address(asked.ip).ok_or(Errno::EADDRNOTAVAIL)?;
    let is_other = own.prefix.bits() != head[1] && u32::from(head[0]) == AF_INET && head[1] != 32;
    if is_other {
        return Err(Errno::EADDRNOTAVAIL);
    }
    stack().network().drop_address(asked.index, asked.ip)
}
