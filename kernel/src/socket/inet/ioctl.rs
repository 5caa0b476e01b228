//! The `ioctl`s about interfaces, routes and neighbours, which every socket takes.

use alloc::sync::Arc;
use core::net::{IpAddr, Ipv4Addr};

use abi::{
    Errno, Result,
    raw::{general::CAP_NET_ADMIN, ioctl as raw},
};
use net::{
    ip::{
        Adding, Address, Interface, Name, Origin, Prefix, RouteChoice, RouteEntry, RouteKind, flags,
    },
    link::Mac,
};
use nucleus::{VirtAddr, user};

use super::{
    interface::{
        self, NAME_LEN, QUEUE, bits_of, by_name, first_v4, mask_of, read_address, socket_address,
    },
    stack::stack,
};
use crate::socket::{common, control::number};

/// Bytes of a `struct rtentry` and a `struct arpreq`, and where their parts are.
const ROUTE: usize = 120;
const ARP: usize = 68;
/// `RTF_GATEWAY`, `RTF_HOST`, `RTF_REJECT`.
const GATEWAY: u16 = 2;
const HOST: u16 = 4;
const REJECT: u16 = 0x200;
/// `ATF_COM`, `ATF_PERM`.
const KNOWN: u32 = 2;
const FIXED: u32 = 4;
/// `SIOCETHTOOL`, and its commands.
const ETHTOOL: u32 = 0x8946;

/// Finds the interface of a request; `eth0:1` means `eth0`.
fn named(name: &[u8]) -> Result<Arc<Interface>> {
    let name = name.split(|&byte| byte == 0 || byte == b':').next();
    by_name(name.unwrap_or(&[]))
}

fn put(to: &mut [u8], bytes: &[u8]) -> usize {
    to[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

/// Answers the requests about interfaces; the structures of a 32-bit program (`compatible`) are
/// shorter.
///
/// # Errors
/// `ENODEV` for another interface, `EADDRNOTAVAIL` without an address, `EPERM` for changes without
/// privilege, `ENOTTY` for an unknown request, `EFAULT`, those of the changes.
pub fn ioctl(command: u32, argument: VirtAddr, compatible: bool) -> Result<usize> {
    let request = interface::request_len(compatible);
    match command {
        raw::SIOCGIFCONF => return interface::configuration(argument, request),
        raw::SIOCGIFNAME => return interface::name_of(argument),
        raw::SIOCADDRT | raw::SIOCDELRT if !compatible => return route(command, argument),
        raw::SIOCGARP | raw::SIOCSARP | raw::SIOCDARP => return neighbour(command, argument),
        ETHTOOL if !compatible => return ethtool(argument),
        _ => {}
    }
    let asks = matches!(
        command,
        raw::SIOCGIFFLAGS
            | raw::SIOCGIFINDEX
            | raw::SIOCGIFMTU
            | raw::SIOCGIFMETRIC
            | raw::SIOCGIFTXQLEN
            | raw::SIOCGIFHWADDR
            | raw::SIOCGIFMAP
            | raw::SIOCGIFADDR
            | raw::SIOCGIFDSTADDR
            | raw::SIOCGIFBRDADDR
            | raw::SIOCGIFNETMASK
    );
    let sets = matches!(
        command,
        raw::SIOCSIFFLAGS
            | raw::SIOCSIFADDR
            | raw::SIOCSIFNETMASK
            | raw::SIOCSIFMTU
            | raw::SIOCSIFHWADDR
            | raw::SIOCSIFBRDADDR
            | raw::SIOCSIFDSTADDR
            | raw::SIOCSIFTXQLEN
            | raw::SIOCSIFNAME
    );
    if !asks && !sets {
        return Err(Errno::ENOTTY);
    }
    let name: [u8; NAME_LEN] = user::read(argument)?;
    if sets && !common::may(CAP_NET_ADMIN) {
        return Err(Errno::EPERM);
    }
    let interface = named(&name)?;
    if sets {
        let given: [u8; 16] = user::read(argument + NAME_LEN)?;
        change(command, &interface, &given)?;
        return Ok(0);
    }
    let mut answer = [0; 24];
    let own = || first_v4(&interface).ok_or(Errno::EADDRNOTAVAIL);
    let len = match command {
        raw::SIOCGIFFLAGS => put(&mut answer, &(interface.flags() as u16).to_le_bytes()),
        raw::SIOCGIFINDEX => put(&mut answer, &interface.index().to_le_bytes()),
        raw::SIOCGIFMTU => put(&mut answer, &interface.shown_mtu().to_le_bytes()),
        raw::SIOCGIFMETRIC => put(&mut answer, &0i32.to_le_bytes()),
        raw::SIOCGIFTXQLEN => put(&mut answer, &QUEUE.to_le_bytes()),
        raw::SIOCGIFHWADDR => {
            let kind = crate::socket::netlink::hardware(&interface);
            put(&mut answer, &kind.to_le_bytes());
            let mac = interface.mac().map_or([0; 6], |mac| mac.0);
            put(&mut answer[2..], &mac);
            16
        }
        raw::SIOCGIFMAP => request - NAME_LEN,
        raw::SIOCGIFADDR => put(&mut answer, &socket_address(own()?.0)),
        raw::SIOCGIFDSTADDR => {
            let (ip, address) = own()?;
            let far = match address.peer {
                Some(IpAddr::V4(far)) => far,
                _ => ip,
            };
            put(&mut answer, &socket_address(far))
        }
        raw::SIOCGIFBRDADDR => {
            let all = own()?.1.broadcast.unwrap_or(Ipv4Addr::UNSPECIFIED);
            put(&mut answer, &socket_address(all))
        }
        _ => put(
            &mut answer,
            &socket_address(mask_of(own()?.1.prefix.bits())),
        ),
    };
    user::copy_out(argument + NAME_LEN, &answer[..len])?;
    Ok(0)
}

/// Changes an interface.
fn change(command: u32, interface: &Interface, given: &[u8; 16]) -> Result<()> {
    let network = stack().network();
    let index = interface.index();
    let own = || first_v4(interface).ok_or(Errno::EADDRNOTAVAIL);
    match command {
        raw::SIOCSIFFLAGS => {
            let values = u32::from(u16::from_le_bytes([given[0], given[1]]));
            network.set_flags(index, values, flags::UP | flags::PROMISCUOUS)
        }
        raw::SIOCSIFMTU => {
            let mtu = number(given, 0);
            match mtu == interface.shown_mtu() {
                true => Ok(()),
                false => network.limit_packets(index, mtu),
            }
        }
        raw::SIOCSIFTXQLEN if number(given, 0) == QUEUE as u32 => Ok(()),
        raw::SIOCSIFNAME => {
            let name = Name::new(given).ok_or(Errno::EINVAL)?;
            interface::rename(interface, name)
        }
        raw::SIOCSIFHWADDR => {
            let mut mac = [0; 6];
            mac.copy_from_slice(&given[2..8]);
            network.set_mac(index, Mac(mac))
        }
        raw::SIOCSIFADDR => interface::set_first_v4(interface, read_address(given)?, None),
        raw::SIOCSIFNETMASK => {
            let bits = bits_of(read_address(given)?)?;
            interface::set_first_v4(interface, own()?.0, Some(bits))
        }
        raw::SIOCSIFBRDADDR | raw::SIOCSIFDSTADDR => {
            let (_, address) = own()?;
            let given = read_address(given)?;
            if interface.is_loopback() {
                return Err(Errno::EOPNOTSUPP);
            }
            network.put_address(
                index,
                match command {
                    raw::SIOCSIFBRDADDR => Address {
                        broadcast: (!given.is_unspecified()).then_some(given),
                        ..address
                    },
                    _ => Address {
                        peer: Some(given.into()),
                        ..address
                    },
                },
            )
        }
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// Adds or removes a route of IPv4 (`struct rtentry`).
fn route(command: u32, argument: VirtAddr) -> Result<usize> {
    if !common::may(CAP_NET_ADMIN) {
        return Err(Errno::EPERM);
    }
    let bytes: [u8; ROUTE] = user::read(argument)?;
    let flags = u16::from_le_bytes([bytes[56], bytes[57]]);
    let to = read_address(&bytes[8..24])?;
    let mask = Ipv4Addr::new(bytes[44], bytes[45], bytes[46], bytes[47]);
    let bits = match flags & HOST {
        0 => bits_of(mask)?,
        _ => 32,
    };
    let prefix = Prefix::new(to.into(), bits).ok_or(Errno::EINVAL)?;
    if prefix.network() != IpAddr::V4(to) {
        return Err(Errno::EINVAL);
    }
    let gateway = match flags & GATEWAY {
        0 => None,
        _ => Some(IpAddr::V4(read_address(&bytes[24..40])?)),
    };
    let network = stack().network();
    let mut at = [0; 8];
    at.copy_from_slice(&bytes[88..96]);
    let device = usize::from_le_bytes(at);
    let index = if device != 0 {
        let name: [u8; NAME_LEN] = user::read(VirtAddr(device))?;
        Some(named(&name)?.index())
    } else {
        None
    };
    // The number is one more than the metric.
    let metric = u32::from(u16::from_le_bytes([bytes[80], bytes[81]])).saturating_sub(1);
    let kind = match flags & REJECT {
        0 => RouteKind::Unicast,
        _ => RouteKind::Unreachable,
    };
    if command == raw::SIOCDELRT {
        let choice = RouteChoice {
            interface: index,
            gateway,
            metric: (metric != 0).then_some(metric),
            ..RouteChoice::default()
        };
        network.remove_route_if(|own| own.prefix == prefix && choice.fits(own))?;
        return Ok(0);
    }
    let interface = match (index, gateway) {
        (Some(index), _) => index,
        (None, Some(gateway)) => network.route(gateway)?.interface.index(),
        (None, None) if kind != RouteKind::Unicast => net::ip::LOOPBACK,
        (None, None) => return Err(Errno::ENODEV),
    };
    let entry = RouteEntry {
        metric,
        kind,
        origin: Origin::Static,
        ..RouteEntry::new(prefix, interface, gateway)
    };
    network.configure_route(entry, Adding::New, false)?;
    Ok(0)
}

/// Tells of a neighbour, sets or forgets one (`struct arpreq`).
fn neighbour(command: u32, argument: VirtAddr) -> Result<usize> {
    let mut bytes: [u8; ARP] = user::read(argument)?;
    if command != raw::SIOCGARP && !common::may(CAP_NET_ADMIN) {
        return Err(Errno::EPERM);
    }
    let ip = IpAddr::V4(read_address(&bytes[..16])?);
    let network = stack().network();
    let interface = match bytes[52] {
        0 => network.route(ip)?.interface,
        _ => named(&bytes[52..])?,
    };
    let index = interface.index();
    match command {
        raw::SIOCGARP => {
            let all = interface.neighbour_list()?;
            let entry = all.iter().find(|entry| entry.ip == ip);
            let entry = entry.ok_or(Errno::ENXIO)?;
            bytes[16..18].copy_from_slice(&1u16.to_le_bytes());
            let mac = entry.mac.map_or([0; 6], |mac| mac.0);
            bytes[18..24].copy_from_slice(&mac);
            let mut flags = if entry.mac.is_some() { KNOWN } else { 0 };
            if entry.is_fixed {
                flags |= FIXED;
            }
            bytes[32..36].copy_from_slice(&flags.to_le_bytes());
            bytes[52..].copy_from_slice(&interface.name().0);
            user::copy_out(argument, &bytes)?;
        }
        raw::SIOCSARP => {
            let mut mac = [0; 6];
            mac.copy_from_slice(&bytes[18..24]);
            let is_fixed = number(&bytes, 32) & FIXED != 0;
            network.put_neighbour(index, ip, Mac(mac), is_fixed, true)?;
        }
        _ => network
            .remove_neighbour(index, ip)
            .map_err(|_| Errno::ENXIO)?,
    }
    Ok(0)
}

/// Answers what `ethtool` asks first: the driver, the link, what the device computes.
fn ethtool(argument: VirtAddr) -> Result<usize> {
    const DRIVER: u32 = 3;
    const LINK: u32 = 0xa;
    const RECEIVE_SUMS: u32 = 0x14;
    const SEND_SUMS: u32 = 0x16;
    const SCATTER: u32 = 0x18;
    const CUTS: u32 = 0x1e;
    const SOFT_CUTS: u32 = 0x23;
    const FLAGS: u32 = 0x25;
    const MERGES: u32 = 0x2b;
    /// Bytes of a `struct ethtool_drvinfo`.
    const DRIVER_LEN: usize = 196;
    let name: [u8; NAME_LEN] = user::read(argument)?;
    let interface = named(&name)?;
    let at = VirtAddr(user::read::<usize>(argument + NAME_LEN)?);
    let command: u32 = user::read(at)?;
    let features = interface.features();
    let value = match command {
        DRIVER => {
            let mut info = [0; DRIVER_LEN];
            info[..4].copy_from_slice(&command.to_le_bytes());
            let kind = interface.device().kind();
            let driver: &[u8] = match kind {
                "" if interface.is_loopback() => b"lo",
                "" => b"virtio_net",
                kind => kind.as_bytes(),
            };
            info[4..4 + driver.len()].copy_from_slice(driver);
            info[36..41].copy_from_slice(b"1.0.0");
            user::copy_out(at, &info)?;
            return Ok(0);
        }
        LINK => u32::from(interface.has_carrier()),
        RECEIVE_SUMS | SEND_SUMS => u32::from(features.checksums),
        SCATTER | SOFT_CUTS => 1,
        CUTS => u32::from(features.cuts > 0),
        MERGES | FLAGS => 0,
        _ => return Err(Errno::EOPNOTSUPP),
    };
    user::write(at + 4, &value)?;
    Ok(0)
}
