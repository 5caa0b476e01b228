//! Names of internet sockets: `struct sockaddr_in` and `struct sockaddr_in6`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::{Errno, Result};
use net::Family;

use super::{AF_INET, AF_INET6};
use crate::socket::Address;

/// Bytes of a `struct sockaddr_in`.
const LEN_V4: usize = 16;
/// Bytes of a `struct sockaddr_in6`.
const LEN_V6: usize = 28;
/// Bytes of one without a scope, which Linux takes too.
const LEN_V6_SHORT: usize = 24;

/// The call for which an address is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    Bind,
    Connect,
    Send,
}

fn port(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[2], bytes[3]])
}

fn v4(bytes: &[u8]) -> SocketAddr {
    let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
    SocketAddr::new(ip.into(), port(bytes))
}

/// Reads the address that a program gives to a socket of `family`. An IPv4-mapped IPv6 address
/// becomes an IPv4 address.
///
/// # Errors
/// `EINVAL` when it is too short, `EAFNOSUPPORT` for another family's.
pub fn read(family: Family, address: &Address, asked: Asked) -> Result<SocketAddr> {
    let bytes = address.bytes();
    let given = address.family().ok_or(Errno::EINVAL)?;
    match family {
        Family::V4 => {
            if bytes.len() < LEN_V4 {
                return Err(Errno::EINVAL);
            }
            let name = v4(bytes);
            match given {
                AF_INET => Ok(name),
                // Old programs leave the family out.
                0 if asked == Asked::Bind && name.ip().is_unspecified() => Ok(name),
                0 if asked == Asked::Send => Ok(name),
                _ => Err(Errno::EAFNOSUPPORT),
            }
        }
        Family::V6 => {
            // A datagram may be sent to an IPv4 address in its own form.
            if given == AF_INET && asked == Asked::Send && bytes.len() >= LEN_V4 {
                return Ok(v4(bytes));
            }
            if bytes.len() < LEN_V6_SHORT {
                return Err(Errno::EINVAL);
            }
            if given != AF_INET6 {
                return Err(Errno::EAFNOSUPPORT);
            }
            let mut ip = [0; 16];
            ip.copy_from_slice(&bytes[8..24]);
            let ip = Ipv6Addr::from(ip);
            let ip = match ip.to_ipv4_mapped() {
                Some(v4) => IpAddr::V4(v4),
                None => IpAddr::V6(ip),
            };
            Ok(SocketAddr::new(ip, port(bytes)))
        }
    }
}

/// Returns the number of the interface that an address of IPv6 names, where that is valid on one
/// link only; 0 for none.
pub fn scope(address: &Address) -> u32 {
    let bytes = address.bytes();
    let is_near = address.family() == Some(AF_INET6)
        && bytes.len() >= LEN_V6
        && (bytes[8] == 0xfe && bytes[9] & 0xc0 == 0x80 || bytes[8..10] == [0xff, 2]);
    match is_near {
        true => u32::from_le_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]),
        false => 0,
    }
}

/// Writes a name as a socket of `family` shows it; without one, the family's unspecified address.
pub fn write(family: Family, name: Option<SocketAddr>) -> Address {
    let name = name.unwrap_or(SocketAddr::new(family.unspecified(), 0));
    let port = name.port().to_be_bytes();
    match family {
        Family::V4 => {
            let mut bytes = [0; LEN_V4];
            bytes[..2].copy_from_slice(&(AF_INET as u16).to_le_bytes());
            bytes[2..4].copy_from_slice(&port);
            if let IpAddr::V4(ip) = name.ip() {
                bytes[4..8].copy_from_slice(&ip.octets());
            }
            Address::new(&bytes)
        }
        Family::V6 => {
            let mut bytes = [0; LEN_V6];
            bytes[..2].copy_from_slice(&(AF_INET6 as u16).to_le_bytes());
            bytes[2..4].copy_from_slice(&port);
            bytes[8..24].copy_from_slice(&as_v6(name.ip()).octets());
            Address::new(&bytes)
        }
    }
}

/// Returns an address in IPv6's form.
pub fn as_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// Checks that a socket without IPv4 was not given an IPv4 address.
///
/// # Errors
/// `EINVAL` in `bind`, `ENETUNREACH` otherwise.
pub fn check_version(family: Family, v6_only: bool, name: SocketAddr, asked: Asked) -> Result<()> {
    if family == Family::V6 && v6_only && name.is_ipv4() {
        return Err(match asked {
            Asked::Bind => Errno::EINVAL,
            _ => Errno::ENETUNREACH,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_written() {
        let v4: SocketAddr = "127.0.0.5:80".parse().unwrap();
        let v6: SocketAddr = "[::1]:443".parse().unwrap();
        for (family, name) in [(Family::V4, v4), (Family::V6, v6), (Family::V6, v4)] {
            let address = write(family, Some(name));
            assert_eq!(read(family, &address, Asked::Connect), Ok(name));
        }
        let short = Address::new(&write(Family::V6, Some(v6)).bytes()[..23]);
        assert_eq!(read(Family::V6, &short, Asked::Bind), Err(Errno::EINVAL));
        let other = write(Family::V4, Some(v4));
        assert_eq!(read(Family::V6, &other, Asked::Bind), Err(Errno::EINVAL));
        assert_eq!(read(Family::V6, &other, Asked::Send), Ok(v4));
        let wrong = write(Family::V6, Some(v6));
        assert_eq!(
            read(Family::V4, &wrong, Asked::Connect),
            Err(Errno::EAFNOSUPPORT)
        );
    }
}
