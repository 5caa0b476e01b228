//! Addresses: this machine's own, those that a bound socket covers, and the source of a packet.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::{Errno, Result};

use crate::packet::Sum;

/// Returns the sum of the pseudo header, which is part of a transport checksum.
pub(super) fn pseudo_sum(from: IpAddr, to: IpAddr, protocol: u8, len: usize) -> Sum {
    let mut sum = Sum::default();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) if protocol != super::ICMP => {
            sum.add(&from.octets());
            sum.add(&to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            sum.add(&from.octets());
            sum.add(&to.octets());
        }
        _ => return sum,
    }
    sum.add(&(len as u32).to_be_bytes());
    sum.add(&[0, 0, 0, protocol]);
    sum
}

/// The version of IP for which a socket was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Returns the address that stands for all of the family.
    pub fn unspecified(self) -> IpAddr {
        match self {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }

    /// Returns the family of an address.
    pub fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }
}

/// A network: the addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    network: IpAddr,
    bits: u8,
}

impl Prefix {
    /// Returns the network of an address, of which `bits` bits count; `None` if it has fewer.
    pub fn new(address: IpAddr, bits: u8) -> Option<Prefix> {
        let most = if address.is_ipv4() { 32 } else { 128 };
        (bits <= most).then(|| Prefix {
            network: masked(address, bits),
            bits,
        })
    }

    /// Returns the network of all addresses of the same version as `address`.
    pub fn all(address: IpAddr) -> Option<Prefix> {
        Prefix::new(address, 0)
    }

    /// Returns the network's own address: the bits that do not count are 0.
    pub fn network(&self) -> IpAddr {
        self.network
    }

    /// Tells whether it is a network of IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.network.is_ipv4()
    }

    /// Returns the address for all machines of the network, if it has one.
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        match self.network {
            IpAddr::V4(network) if self.bits <= 30 => {
                let host = u32::MAX.checked_shr(self.bits.into()).unwrap_or(0);
                Some(Ipv4Addr::from(u32::from(network) | host))
            }
            _ => None,
        }
    }

    /// Returns how many bits count.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Tells whether an address is in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.network.is_ipv4() && masked(address, self.bits) == self.network
    }

    /// Tells whether an address is the one for all machines of the network.
    pub fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        // A network of two machines has none (RFC 3021).
        self.broadcast() == Some(address)
    }
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            Ipv4Addr::from(u32::from(address) & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            Ipv6Addr::from(u128::from(address) & mask).into()
        }
    }
}

/// Tells whether the address is one of the loopback interface's: all of 127.0.0.0/8, or ::1.
pub fn is_own(address: IpAddr) -> bool {
    address.is_loopback()
}

/// Returns the source address of packets to `to`: the interface's first one.
///
/// # Errors
/// `ENETUNREACH`: the loopback interface is the only one.
pub fn source_for(to: IpAddr) -> Result<IpAddr> {
    if !is_own(to) {
        return Err(Errno::ENETUNREACH);
    }
    Ok(match to {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    })
}

/// Returns the destination of a packet to `to`: "any address" means this machine.
pub fn destination(to: SocketAddr) -> SocketAddr {
    let ip = match to.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, to.port())
}

/// The local addresses for which a bound socket receives: one of a family, all of it, or all of
/// both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cover {
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
}

impl Cover {
    /// Returns what binding to `address` covers. `::` covers IPv4 too, unless `v6_only`.
    pub fn of(address: IpAddr, v6_only: bool) -> Cover {
        match address {
            IpAddr::V4(v4) => Cover {
                v4: Some(v4),
                v6: None,
            },
            IpAddr::V6(v6) => Cover {
                v4: (v6.is_unspecified() && !v6_only).then_some(Ipv4Addr::UNSPECIFIED),
                v6: Some(v6),
            },
        }
    }

    /// Tells whether an address belongs to both.
    pub fn overlaps(&self, other: &Cover) -> bool {
        let v4 = match (self.v4, other.v4) {
            (Some(a), Some(b)) => a == b || a.is_unspecified() || b.is_unspecified(),
            _ => false,
        };
        let v6 = match (self.v6, other.v6) {
            (Some(a), Some(b)) => a == b || a.is_unspecified() || b.is_unspecified(),
            _ => false,
        };
        v4 || v6
    }

    /// Returns how well it fits a packet to `address`: 0 if it does not, more for a more specific
    /// name.
    pub fn score(&self, address: IpAddr) -> u32 {
        match address {
            IpAddr::V4(to) => match self.v4 {
                Some(own) if own == to => 3,
                // A socket of the packet's own family has precedence over one of both.
                Some(own) if own.is_unspecified() => 2 - u32::from(self.v6.is_some()),
                _ => 0,
            },
            IpAddr::V6(to) => match self.v6 {
                Some(own) if own == to => 3,
                Some(own) if own.is_unspecified() => 2,
                _ => 0,
            },
        }
    }
}
