//! Options of datagram sockets: of UDP, of raw sockets, and multicast groups.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::{Errno, Result, raw::net as raw};
use net::{
    Family,
    datagram::{Filter, Protocol},
    ip::{ICMP, ICMP_V6},
};

use super::Datagrams;
use crate::socket::{
    Address, Answer, Value,
    control::number,
    inet::{
        IPPROTO_UDPLITE,
        control::Ancillary,
        interface, ip_options,
        name::{self, Asked},
    },
};

/// Options of `SOL_UDP`.
const UDP_CORK: u32 = 1;
const UDP_NO_CHECK6_TX: u32 = 101;
const UDP_NO_CHECK6_RX: u32 = 102;
/// Options that only UDP-Lite has.
const UDPLITE_SEND_CSCOV: u32 = 10;
const UDPLITE_RECV_CSCOV: u32 = 11;
/// The level that means the same as `SOL_UDP`.
const SOL_UDPLITE: u32 = IPPROTO_UDPLITE;
/// The fewest bytes that a checksum covers: the header's.
const MIN_COVERAGE: i32 = 8;
/// The level of raw sockets, and its options: `ICMP_FILTER`, and the place of a checksum.
const SOL_RAW: u32 = 255;
const ICMP_FILTER: u32 = 1;
const IPV6_CHECKSUM: u32 = 7;
/// The option of `SOL_ICMPV6`.
const ICMPV6_FILTER: u32 = 1;
/// The place of the checksum in messages of ICMP for IPv6; it is always made.
const SUM: i32 = 2;

/// Returns how many bytes a checksum covers, the header's included; 0 for all.
fn coverage(asked: i32) -> u16 {
    match asked {
        0 => 0,
        ..MIN_COVERAGE => MIN_COVERAGE as u16,
        _ => u16::try_from(asked).unwrap_or(u16::MAX),
    }
}

impl Datagrams {
    /// Sets an option of any level.
    ///
    /// # Errors
    /// As Linux; `ENOPROTOOPT` for an option that is not known.
    pub(super) fn set(&self, level: u32, name: u32, value: &Value) -> Result<()> {
        let family = self.socket.family();
        match (self.socket.protocol(), level) {
            (Protocol::Raw(number), _) => {
                if let Some(done) = self.set_raw(number, level, name, value) {
                    return done;
                }
            }
            (_, raw::SOL_UDP | SOL_UDPLITE) => return self.set_udp(name, value),
            (_, raw::SOL_IPV6) if name == raw::IPV6_V6ONLY => {
                let on = ip_options::v6_only(family, value)?;
                if self.socket.local().is_some() {
                    return Err(Errno::EINVAL);
                }
                self.socket.set_options(|options| options.name.v6_only = on);
                return Ok(());
            }
            _ => {
                if let Some(done) = self.set_membership(level, name, value) {
                    return done;
                }
            }
        }
        ip_options::set(&self.ip, family, level, name, value)?;
        let ip = *self.ip.lock();
        self.socket.set_options(|options| {
            options.multicast_interface = ip.multicast_interface();
            options.is_whole = ip.is_whole(family);
            options.has_header = ip.v4(raw::IP_HDRINCL);
            options.multicast_loop = match family {
                Family::V4 => ip.v4(raw::IP_MULTICAST_LOOP),
                Family::V6 => ip.v6(raw::IPV6_MULTICAST_LOOP),
            };
            options.multicast_all = match family {
                Family::V4 => ip.v4(raw::IP_MULTICAST_ALL),
                Family::V6 => ip.v6(raw::IPV6_MULTICAST_ALL),
            };
            options.receive_errors = ip.v4(raw::IP_RECVERR) || ip.v6(raw::IPV6_RECVERR);
        });
        Ok(())
    }

    /// Returns the value of an option.
    ///
    /// # Errors
    /// As Linux; `ENOPROTOOPT` for an option that is not known.
    pub(super) fn get(&self, level: u32, name: u32) -> Result<Answer> {
        let family = self.socket.family();
        match (self.socket.protocol(), level, name) {
            (Protocol::Raw(number), SOL_RAW, ICMP_FILTER) if family == Family::V4 => match number {
                ICMP => Ok(Answer::of(&self.socket.filter().0[0])),
                _ => Err(Errno::EOPNOTSUPP),
            },
            (Protocol::Raw(ICMP_V6), raw::SOL_ICMPV6, ICMPV6_FILTER) => {
                Ok(Answer::of(&self.socket.filter().0))
            }
            (Protocol::Raw(ICMP_V6), SOL_RAW, IPV6_CHECKSUM) => Ok(Answer::Int(SUM)),
            (Protocol::Raw(_), ..) => ip_options::get(&self.ip, family, level, name),
            (_, raw::SOL_UDP | SOL_UDPLITE, _) => self.get_udp(name),
            (_, raw::SOL_IPV6, raw::IPV6_V6ONLY) if family == Family::V6 => {
                Ok(Answer::flag(self.socket.options().name.v6_only))
            }
            _ => ip_options::get(&self.ip, family, level, name),
        }
    }

    fn set_udp(&self, name: u32, value: &Value) -> Result<()> {
        let number = value.int()?;
        let on = number != 0;
        let is_lite = self.socket.protocol() == Protocol::UdpLite;
        match name {
            UDP_CORK => {
                let mut corked = self.corked.lock();
                corked.always = on;
                if !on {
                    self.push(&mut corked, &Ancillary::default())?;
                }
            }
            // The loopback interface makes no checksums anyway.
            UDP_NO_CHECK6_TX | UDP_NO_CHECK6_RX => {}
            UDPLITE_SEND_CSCOV if is_lite => {
                let covered = coverage(number);
                self.socket
                    .set_options(|options| options.send_coverage = covered);
            }
            UDPLITE_RECV_CSCOV if is_lite => {
                let covered = Some(coverage(number));
                self.socket
                    .set_options(|options| options.receive_coverage = covered);
            }
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(())
    }

    fn get_udp(&self, name: u32) -> Result<Answer> {
        let options = self.socket.options();
        Ok(match name {
            UDP_CORK => Answer::flag(self.corked.lock().always),
            UDP_NO_CHECK6_TX | UDP_NO_CHECK6_RX => Answer::Int(0),
            UDPLITE_SEND_CSCOV => Answer::Int(options.send_coverage.into()),
            UDPLITE_RECV_CSCOV => Answer::Int(options.receive_coverage.unwrap_or(0).into()),
            _ => return Err(Errno::ENOPROTOOPT),
        })
    }

    /// Sets an option that only raw sockets of a protocol have.
    fn set_raw(&self, protocol: u8, level: u32, name: u32, value: &Value) -> Option<Result<()>> {
        let is_v4 = self.socket.family() == Family::V4;
        let mut filter = Filter::default();
        let words = match (level, name) {
            (SOL_RAW, ICMP_FILTER) if is_v4 && protocol != ICMP => {
                return Some(Err(Errno::EOPNOTSUPP));
            }
            (SOL_RAW, ICMP_FILTER) if is_v4 => 1,
            (raw::SOL_ICMPV6, ICMPV6_FILTER) if protocol == ICMP_V6 => filter.0.len(),
            (SOL_RAW, IPV6_CHECKSUM) if protocol == ICMP_V6 => {
                return Some(match value.int() {
                    Ok(SUM) => Ok(()),
                    Ok(_) => Err(Errno::EINVAL),
                    Err(error) => Err(error),
                });
            }
            _ => return None,
        };
        let mut bytes = [0; 32];
        Some(value.bytes(&mut bytes[..words * 4]).map(|_| {
            for (n, to) in filter.0.iter_mut().enumerate() {
                *to = number(&bytes, n * 4);
            }
            self.socket.set_filter(filter);
        }))
    }

    /// Joins or leaves a group (`IP_ADD_MEMBERSHIP` and its like). `None` for other options.
    fn set_membership(&self, level: u32, name: u32, value: &Value) -> Option<Result<()>> {
        let (group, join) = match (level, name) {
            (raw::SOL_IP, raw::IP_ADD_MEMBERSHIP | raw::IP_DROP_MEMBERSHIP) => {
                (group_v4(value), name == raw::IP_ADD_MEMBERSHIP)
            }
            (raw::SOL_IPV6, raw::IPV6_ADD_MEMBERSHIP | raw::IPV6_DROP_MEMBERSHIP)
                if self.socket.family() == Family::V6 =>
            {
                (group_v6(value), name == raw::IPV6_ADD_MEMBERSHIP)
            }
            (raw::SOL_IP, raw::MCAST_JOIN_GROUP | raw::MCAST_LEAVE_GROUP) => (
                group_of_any(Family::V4, value),
                name == raw::MCAST_JOIN_GROUP,
            ),
            (raw::SOL_IPV6, raw::MCAST_JOIN_GROUP | raw::MCAST_LEAVE_GROUP) => (
                group_of_any(Family::V6, value),
                name == raw::MCAST_JOIN_GROUP,
            ),
            _ => return None,
        };
        Some(group.and_then(|(group, interface)| {
            if join {
                self.socket.join(group, interface)
            } else {
                self.socket.leave(group, interface)
            }
        }))
    }
}

/// Reads a `struct ip_mreq` or `ip_mreqn`: the group, and the interface's number.
fn group_v4(value: &Value) -> Result<(IpAddr, u32)> {
    let mut bytes = [0; 8];
    if value.bytes(&mut bytes)? < 8 {
        return Err(Errno::EINVAL);
    }
    let index = interface::chosen(value)? as u32;
    let group = Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]);
    Ok((group.into(), index))
}

/// Reads a `struct ipv6_mreq`: the group, and the interface's number.
fn group_v6(value: &Value) -> Result<(IpAddr, u32)> {
    let bytes: [u8; 20] = value.read()?;
    interface::check_index(number(&bytes, 16) as i32)?;
    let mut ip = [0; 16];
    ip.copy_from_slice(&bytes[..16]);
    Ok((Ipv6Addr::from(ip).into(), number(&bytes, 16)))
}

/// Reads a `struct group_req`: the interface's number, padding, a `struct sockaddr_storage`.
fn group_of_any(family: Family, value: &Value) -> Result<(IpAddr, u32)> {
    let bytes: [u8; 36] = value.read()?;
    interface::check_index(number(&bytes, 0) as i32)?;
    let address = Address::new(&bytes[8..]);
    let group = name::read(family, &address, Asked::Connect)?.ip();
    Ok((group, number(&bytes, 0)))
}
