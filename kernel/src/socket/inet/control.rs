//! Control messages of datagrams and packets.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::{Errno, Result, raw::net as raw};
use fbuf::Aggregate;
use net::{
    Family,
    datagram::{Datagram, ErrorReport},
    stream::Completion,
};

use super::{interface, ip_options::IpOptions, name, stack};
use crate::socket::{
    Common, Incoming,
    control::{Control, number},
};

/// The requests in the control data of a message.
#[derive(Default)]
pub struct Ancillary {
    /// The source address.
    pub from: Option<IpAddr>,
    /// Type of service or traffic class.
    pub service: Option<u8>,
    /// Time to live or hop limit.
    pub hops: Option<u8>,
    /// The number of the interface where it leaves; 0 for any.
    pub interface: u32,
}

/// Reads the control data of a message.
///
/// # Errors
/// `EINVAL` for unknown messages and values out of range, `ENODEV` for another interface.
pub fn read(control: &Control<'_>) -> Result<Ancillary> {
    let mut ancillary = Ancillary::default();
    for message in control.messages() {
        let message = message?;
        let int = || {
            let bytes = <[u8; 4]>::try_from(message.data);
            bytes.map(i32::from_le_bytes).map_err(|_| Errno::EINVAL)
        };
        match (message.level, message.kind) {
            (raw::SOL_IP, raw::IP_PKTINFO) => {
                let data = message.data.first_chunk::<12>().ok_or(Errno::EINVAL)?;
                interface::check_index(number(data, 0) as i32)?;
                ancillary.interface = number(data, 0);
                let ip = Ipv4Addr::new(data[4], data[5], data[6], data[7]);
                ancillary.from = (!ip.is_unspecified()).then_some(ip.into());
            }
            (raw::SOL_IPV6, raw::IPV6_PKTINFO) => {
                let data = message.data.first_chunk::<20>().ok_or(Errno::EINVAL)?;
                interface::check_index(number(data, 16) as i32)?;
                ancillary.interface = number(data, 16);
                let mut ip = [0; 16];
                ip.copy_from_slice(&data[..16]);
                let ip = Ipv6Addr::from(ip);
                ancillary.from = (!ip.is_unspecified()).then_some(match ip.to_ipv4_mapped() {
                    Some(v4) => v4.into(),
                    None => ip.into(),
                });
            }
            (raw::SOL_IP, raw::IP_TOS) => {
                let service = match message.data {
                    [byte] => i32::from(*byte),
                    _ => int()?,
                };
                ancillary.service = Some(u8::try_from(service).map_err(|_| Errno::EINVAL)?);
            }
            (raw::SOL_IP, raw::IP_TTL) => {
                let hops = u8::try_from(int()?).map_err(|_| Errno::EINVAL)?;
                if hops == 0 {
                    return Err(Errno::EINVAL);
                }
                ancillary.hops = Some(hops);
            }
            (raw::SOL_IPV6, raw::IPV6_TCLASS | raw::IPV6_HOPLIMIT) => {
                let value = match int()? {
                    // -1 selects the default.
                    -1 => None,
                    value => Some(u8::try_from(value).map_err(|_| Errno::EINVAL)?),
                };
                if message.kind == raw::IPV6_TCLASS {
                    ancillary.service = value;
                } else {
                    ancillary.hops = value;
                }
            }
            // Marks and times of sending concern interfaces with queues.
            (raw::SOL_SOCKET, _) => return Err(Errno::EINVAL),
            // Other levels' messages are ignored, as on Linux.
            (raw::SOL_IP | raw::SOL_IPV6, _) => return Err(Errno::EINVAL),
            _ => {}
        }
    }
    Ok(ancillary)
}

/// Adds the control messages that the program has asked for, of a datagram that is received by a
/// socket of `family`, which has dropped `dropped` others.
pub fn describe(
    datagram: &Datagram,
    family: Family,
    ip: IpOptions,
    common: &Common,
    dropped: u64,
    message: &mut Incoming<'_>,
) {
    let control = &mut message.control;
    common.put_time(control, datagram.at);
    if common.is_on(raw::SO_RXQ_OVFL) {
        let dropped = dropped as u32;
        control.put(raw::SOL_SOCKET, raw::SO_RXQ_OVFL, &dropped.to_le_bytes());
    }
    let (service, hops) = (datagram.service, datagram.hops);
    if let IpAddr::V4(to) = datagram.to.ip() {
        if ip.v4(raw::IP_PKTINFO) {
            // The interface, the local address, and the destination.
            let local = match datagram.interface {
                _ if stack().network().is_own(to.into()) => to.octets(),
                index => interface::address_of(index as i32),
            };
            let mut info = [0; 12];
            info[..4].copy_from_slice(&datagram.interface.to_le_bytes());
            info[4..8].copy_from_slice(&local);
            info[8..].copy_from_slice(&to.octets());
            control.put(raw::SOL_IP, raw::IP_PKTINFO, &info);
        }
        if ip.v4(raw::IP_RECVTTL) {
            let hops = i32::from(hops).to_le_bytes();
            control.put(raw::SOL_IP, raw::IP_TTL, &hops);
        }
        if ip.v4(raw::IP_RECVTOS) {
            control.put(raw::SOL_IP, raw::IP_TOS, &[service]);
        }
        if ip.v4(raw::IP_RECVORIGDSTADDR) {
            let name = name::write(Family::V4, Some(datagram.to));
            control.put(raw::SOL_IP, raw::IP_ORIGDSTADDR, name.bytes());
        }
    }
    if family == Family::V6 {
        let mut info = [0; 20];
        info[..16].copy_from_slice(&name::as_v6(datagram.to.ip()).octets());
        info[16..].copy_from_slice(&datagram.interface.to_le_bytes());
        if ip.v6(raw::IPV6_RECVPKTINFO) {
            control.put(raw::SOL_IPV6, raw::IPV6_PKTINFO, &info);
        }
        if ip.v6(raw::IPV6_2292PKTINFO) {
            control.put(raw::SOL_IPV6, raw::IPV6_2292PKTINFO, &info);
        }
        if datagram.to.is_ipv6() {
            let hops = i32::from(hops).to_le_bytes();
            if ip.v6(raw::IPV6_RECVHOPLIMIT) {
                control.put(raw::SOL_IPV6, raw::IPV6_HOPLIMIT, &hops);
            }
            if ip.v6(raw::IPV6_2292HOPLIMIT) {
                control.put(raw::SOL_IPV6, raw::IPV6_2292HOPLIMIT, &hops);
            }
            if ip.v6(raw::IPV6_RECVTCLASS) {
                let service = i32::from(service).to_le_bytes();
                control.put(raw::SOL_IPV6, raw::IPV6_TCLASS, &service);
            }
        }
    }
}

/// Writes an error that came back for a datagram of a socket of `family`: its data, its destination
/// and the reason. Returns the result of the call.
///
/// # Errors
/// `EFAULT`.
pub fn take_report(
    report: ErrorReport,
    family: Family,
    message: &mut Incoming<'_>,
) -> Result<usize> {
    message.from = Some(name::write(family, Some(report.to)));
    message.answer |= raw::MSG_ERRQUEUE;
    // `struct sock_extended_err`: by this machine, or by a message of either ICMP.
    let origin = match (report.offender, report.to) {
        (None, _) => 1,
        (_, SocketAddr::V4(_)) => 2,
        (_, SocketAddr::V6(_)) => 3,
    };
    let mut error = [0; 16 + 28];
    error[..4].copy_from_slice(&u32::from(report.error.number()).to_le_bytes());
    error[4..7].copy_from_slice(&[origin, report.kind, report.code]);
    error[8..12].copy_from_slice(&report.info.to_le_bytes());
    let mut end = 16;
    match report.offender {
        Some(offender) => {
            let offender = name::write(family, Some(SocketAddr::new(offender, 0)));
            end += offender.len();
            error[16..end].copy_from_slice(offender.bytes());
        }
        // An address of no family.
        None => end += 16,
    }
    let (level, kind) = error_kind(family);
    message.control.put(level, kind, &error[..end]);
    copy(report.data, message).map(|(copied, _)| copied)
}

/// Returns level and type of the control message with a `struct sock_extended_err`.
fn error_kind(family: Family) -> (u32, u32) {
    match family {
        Family::V4 => (raw::SOL_IP, raw::IP_RECVERR),
        Family::V6 => (raw::SOL_IPV6, raw::IPV6_RECVERR),
    }
}

/// Writes the news that bytes of some calls have arrived (`SO_EE_ORIGIN_ZEROCOPY`), as a
/// `struct sock_extended_err` without an error and an address of no family.
pub fn put_completion(completion: Completion, family: Family, message: &mut Incoming<'_>) {
    const ORIGIN_ZEROCOPY: u8 = 5;
    const ADDRESS_V4: usize = 16;
    const ADDRESS_V6: usize = 28;
    let mut error = [0; 16 + ADDRESS_V6];
    error[4] = ORIGIN_ZEROCOPY;
    // `SO_EE_CODE_ZEROCOPY_COPIED`.
    error[6] = completion.is_copied.into();
    error[8..12].copy_from_slice(&completion.first.to_le_bytes());
    error[12..16].copy_from_slice(&completion.last.to_le_bytes());
    let end = 16
        + match family {
            Family::V4 => ADDRESS_V4,
            Family::V6 => ADDRESS_V6,
        };
    let (level, kind) = error_kind(family);
    message.control.put(level, kind, &error[..end]);
    message.answer |= raw::MSG_ERRQUEUE;
}

/// Moves a datagram's bytes to the program, as many as it has room for; returns the result of the
/// call.
///
/// # Errors
/// `EFAULT`.
pub fn take(datagram: Datagram, message: &mut Incoming<'_>) -> Result<usize> {
    let (copied, whole) = copy(datagram.data, message)?;
    Ok(if message.has(raw::MSG_TRUNC) {
        whole
    } else {
        copied
    })
}

/// Moves bytes to the program, as many as it has room for; returns how many were moved, and how
/// many there are.
fn copy(mut data: Aggregate, message: &mut Incoming<'_>) -> Result<(usize, usize)> {
    let whole = data.len();
    let wanted = whole.min(message.data.room());
    let mut copied = 0;
    while copied < wanted {
        match data.drain_into(message.data, wanted - copied)? {
            0 => return Err(Errno::EFAULT),
            n => copied += n,
        }
    }
    if copied < whole {
        message.answer |= raw::MSG_TRUNC;
    }
    Ok((copied, whole))
}
