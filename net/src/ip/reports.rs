//! What the link is told of groups: IGMP version 3 and MLD version 2 (RFC 3376, RFC 3810), whose
//! reports name no sources, so that a group is one of all. Where a router speaks an older version
//! (RFC 2236, RFC 2710), reports are of that one.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{ICMP_V6, IGMP, address::pseudo_sum, interface::Interface};
use crate::packet::{Head, Sum};

/// Types of messages of IGMP, and of ICMP for IPv6.
const REPORT_V3: u8 = 0x22;
const REPORT_V2: u8 = 0x16;
const LEAVE_V2: u8 = 0x17;
const LISTENER_REPORT_V2: u8 = 143;
const LISTENER_REPORT_V1: u8 = 131;
const LISTENER_DONE_V1: u8 = 132;
/// Bytes of a report with one group.
const LEN_V3: usize = 16;
const LISTENER_LEN_V2: usize = 28;
/// The option that makes routers look at a packet, for IPv4 and as a header of IPv6 (RFC 2113, RFC
/// 2711).
const ALERT_V4: [u8; 4] = [0x94, 4, 0, 0];
const ALERT_V6: [u8; 8] = [ICMP_V6, 0, 5, 2, 0, 0, 1, 0];
/// Groups of all routers, and of those that speak the new versions.
const ROUTERS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
const ROUTERS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const NEW_ROUTERS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
const NEW_ROUTERS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Groups that all machines are members of: they are not reported.
const ALL_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// What a report says of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Membership {
    /// This machine is a member from now on.
    Begins,
    /// It is one, as a query asks.
    GoesOn,
    /// It is none any more.
    Ends,
}

impl Membership {
    /// Returns the type of a record: all sources but none, or none.
    fn record(self) -> u8 {
        match self {
            // CHANGE_TO_EXCLUDE_MODE, MODE_IS_EXCLUDE, CHANGE_TO_INCLUDE_MODE.
            Membership::Begins => 4,
            Membership::GoesOn => 2,
            Membership::Ends => 3,
        }
    }
}

/// Writes what an interface's link is told of a group, by the old versions if `is_old`; returns it
/// with its destination. `None` for groups of all machines.
pub(super) fn write(
    interface: &Interface,
    group: IpAddr,
    what: Membership,
    is_old: bool,
) -> Option<(Head, IpAddr)> {
    let mut head = Head::default();
    let to = match group {
        IpAddr::V4(ALL_V4) | IpAddr::V6(ALL_V6) => return None,
        IpAddr::V4(own) => write_v4(&mut head, interface, own, what, is_old).into(),
        IpAddr::V6(own) => write_v6(&mut head, interface, own, what, is_old).into(),
    };
    Some((head, to))
}

/// Writes a packet of IGMP; returns its destination.
fn write_v4(
    head: &mut Head,
    interface: &Interface,
    group: Ipv4Addr,
    what: Membership,
    is_old: bool,
) -> Ipv4Addr {
    let (to, len) = match (is_old, what) {
        (false, _) => (NEW_ROUTERS_V4, LEN_V3),
        (true, Membership::Ends) => (ROUTERS_V4, 8),
        (true, _) => (group, 8),
    };
    let message = head.push(len);
    if is_old {
        message[0] = match what {
            Membership::Ends => LEAVE_V2,
            _ => REPORT_V2,
        };
    } else {
        message[0] = REPORT_V3;
        // One record.
        message[7] = 1;
        message[8] = what.record();
    }
    message[len - 4..].copy_from_slice(&group.octets());
    let mut sum = Sum::default();
    sum.add(message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    let from = match interface.source_for(group.into()) {
        Some(IpAddr::V4(from)) => from,
        _ => Ipv4Addr::UNSPECIFIED,
    };
    let header = head.push(24);
    header[..4].copy_from_slice(&[0x46, 0xc0, 0, 24 + len as u8]);
    header[6..10].copy_from_slice(&[0x40, 0, 1, IGMP]);
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    header[20..].copy_from_slice(&ALERT_V4);
    let mut sum = Sum::default();
    sum.add(header);
    header[10..12].copy_from_slice(&sum.finish().to_be_bytes());
    to
}

/// Writes a packet of MLD; returns its destination.
fn write_v6(
    head: &mut Head,
    interface: &Interface,
    group: Ipv6Addr,
    what: Membership,
    is_old: bool,
) -> Ipv6Addr {
    let (to, len) = match (is_old, what) {
        (false, _) => (NEW_ROUTERS_V6, LISTENER_LEN_V2),
        (true, Membership::Ends) => (ROUTERS_V6, 24),
        (true, _) => (group, 24),
    };
    let near = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let from = match interface.source_for(near.into()) {
        Some(IpAddr::V6(from)) if from.is_unicast_link_local() => from,
        _ => Ipv6Addr::UNSPECIFIED,
    };
    let message = head.push(len);
    if is_old {
        message[0] = match what {
            Membership::Ends => LISTENER_DONE_V1,
            _ => LISTENER_REPORT_V1,
        };
    } else {
        message[0] = LISTENER_REPORT_V2;
        // One record.
        message[7] = 1;
        message[8] = what.record();
    }
    message[len - 16..].copy_from_slice(&group.octets());
    let mut sum = pseudo_sum(from.into(), to.into(), ICMP_V6, len);
    sum.add(message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    head.push(8).copy_from_slice(&ALERT_V6);
    let header = head.push(40);
    header[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 8 + len as u8, 0, 1]);
    header[8..24].copy_from_slice(&from.octets());
    header[24..].copy_from_slice(&to.octets());
    to
}
