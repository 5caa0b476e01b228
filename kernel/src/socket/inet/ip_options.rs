//! Options of the levels `SOL_IP` and `SOL_IPV6`.

use core::ops::RangeInclusive;

use abi::{Errno, Result, raw::net as raw};
use net::Family;
use nucleus::sync::SpinLock;

use super::interface;
use crate::socket::{Answer, Value};

/// The MTU of the path to any address: `lo`'s.
const MTU: i32 = 65_536;
/// The default of time to live and hop limit.
const DEFAULT_HOPS: i32 = 64;
/// The default of `IPV6_ADDR_PREFERENCES`: either a temporary or a lasting source address.
const EITHER: i32 = raw::IPV6_PREFER_SRC_PUBTMP_DEFAULT as i32;

/// Options that are on or off, of `SOL_IP`.
const SWITCHES_V4: &[u32] = &[
    raw::IP_RECVOPTS,
    raw::IP_RETOPTS,
    raw::IP_PKTINFO,
    raw::IP_RECVERR,
    raw::IP_RECVTTL,
    raw::IP_RECVTOS,
    raw::IP_RECVORIGDSTADDR,
    raw::IP_BIND_ADDRESS_NO_PORT,
    raw::IP_MULTICAST_LOOP,
    raw::IP_MULTICAST_ALL,
    raw::IP_HDRINCL,
];
/// The same of `SOL_IPV6`.
const SWITCHES_V6: &[u32] = &[
    raw::IPV6_2292PKTINFO,
    raw::IPV6_2292HOPLIMIT,
    raw::IPV6_MULTICAST_LOOP,
    raw::IPV6_RECVERR,
    raw::IPV6_MULTICAST_ALL,
    raw::IPV6_RECVPKTINFO,
    raw::IPV6_RECVHOPLIMIT,
    raw::IPV6_RECVHOPOPTS,
    raw::IPV6_RECVRTHDR,
    raw::IPV6_RECVDSTOPTS,
    raw::IPV6_RECVPATHMTU,
    raw::IPV6_DONTFRAG,
    raw::IPV6_RECVTCLASS,
    raw::IPV6_AUTOFLOWLABEL,
    raw::IPV6_RECVORIGDSTADDR,
];

/// The values of one socket's options.
#[derive(Clone, Copy, Debug)]
pub struct IpOptions {
    /// Bit by option number.
    on_v4: u128,
    on_v6: u128,
    service: i32,
    traffic_class: i32,
    ttl: i32,
    hops: i32,
    multicast_ttl: i32,
    multicast_hops: i32,
    /// Index of the interface for datagrams to groups; 0 if none was chosen.
    multicast_interface: i32,
    min_ttl: i32,
    min_hops: i32,
    discover: i32,
    discover_v6: i32,
    preferences: i32,
}

impl Default for IpOptions {
    fn default() -> IpOptions {
        IpOptions {
            on_v4: 1 << raw::IP_MULTICAST_LOOP | 1 << raw::IP_MULTICAST_ALL,
            on_v6: 1 << raw::IPV6_MULTICAST_LOOP
                | 1 << raw::IPV6_MULTICAST_ALL
                | 1 << raw::IPV6_AUTOFLOWLABEL,
            service: 0,
            traffic_class: 0,
            ttl: DEFAULT_HOPS,
            hops: DEFAULT_HOPS,
            multicast_ttl: 1,
            multicast_hops: 1,
            multicast_interface: 0,
            min_ttl: 0,
            min_hops: 0,
            discover: raw::IP_PMTUDISC_WANT as i32,
            discover_v6: raw::IPV6_PMTUDISC_WANT as i32,
            preferences: EITHER,
        }
    }
}

impl IpOptions {
    /// Tells whether a flag of `SOL_IP` is set.
    pub fn v4(&self, name: u32) -> bool {
        self.on_v4 >> name & 1 != 0
    }

    /// Tells whether a flag of `SOL_IPV6` is set.
    pub fn v6(&self, name: u32) -> bool {
        self.on_v6 >> name & 1 != 0
    }

    /// Returns the time to live of a datagram, or the hop limit of one of IPv6.
    pub fn hops_for(&self, to: core::net::IpAddr) -> u8 {
        let hops = match (to.is_ipv4(), to.is_multicast()) {
            (true, false) => self.ttl,
            (true, true) => self.multicast_ttl,
            (false, false) => self.hops,
            (false, true) => self.multicast_hops,
        };
        hops as u8
    }

    /// Returns the type of service of a datagram, or the traffic class of one of IPv6.
    pub fn service_for(&self, to: core::net::IpAddr) -> u8 {
        match to.is_ipv4() {
            true => self.service as u8,
            false => self.traffic_class as u8,
        }
    }

    /// Clears the bits of congestion notification (RFC 3168), which belong to TCP.
    pub fn clear_congestion_bits(&mut self) {
        self.service &= !3;
        self.traffic_class &= !3;
    }

    /// Returns the number of the interface that the program has chosen for datagrams to groups; 0
    /// for none.
    pub fn multicast_interface(&self) -> u32 {
        self.multicast_interface as u32
    }

    /// Tells whether packets are not to be cut into fragments.
    pub fn is_whole(&self, family: Family) -> bool {
        // IP_PMTUDISC_DO, IP_PMTUDISC_PROBE.
        let discover = match family {
            Family::V4 => self.discover,
            Family::V6 => self.discover_v6,
        };
        matches!(discover, 2 | 3) || family == Family::V6 && self.v6(raw::IPV6_DONTFRAG)
    }

    /// Returns the bits of the flags of a level, if `name` is one of them.
    fn flags(&mut self, level: u32, name: u32) -> Option<&mut u128> {
        let (bits, flags) = match level {
            raw::SOL_IP => (&mut self.on_v4, SWITCHES_V4),
            _ => (&mut self.on_v6, SWITCHES_V6),
        };
        flags.contains(&name).then_some(bits)
    }

    /// Returns an option that is a number, the values that it accepts, and the one that -1 stands
    /// for.
    fn number(&mut self, level: u32, name: u32) -> Option<Number<'_>> {
        let any = i32::MIN..=i32::MAX;
        Some(match (level, name) {
            (raw::SOL_IP, raw::IP_TOS) => (&mut self.service, any, None),
            (raw::SOL_IP, raw::IP_TTL) => (&mut self.ttl, 1..=255, Some(DEFAULT_HOPS)),
            (raw::SOL_IP, raw::IP_MTU_DISCOVER) => (&mut self.discover, 0..=5, None),
            (raw::SOL_IP, raw::IP_MULTICAST_TTL) => (&mut self.multicast_ttl, 0..=255, Some(1)),
            (raw::SOL_IP, raw::IP_MINTTL) => (&mut self.min_ttl, 0..=255, None),
            (raw::SOL_IP, _) => return None,
            (_, raw::IPV6_UNICAST_HOPS) => (&mut self.hops, 0..=255, Some(DEFAULT_HOPS)),
            (_, raw::IPV6_MULTICAST_HOPS) => (&mut self.multicast_hops, 0..=255, Some(1)),
            (_, raw::IPV6_MTU_DISCOVER) => (&mut self.discover_v6, 0..=5, None),
            (_, raw::IPV6_TCLASS) => (&mut self.traffic_class, 0..=255, Some(0)),
            (_, raw::IPV6_ADDR_PREFERENCES) => (&mut self.preferences, any, None),
            (_, raw::IPV6_MINHOPCOUNT) => (&mut self.min_hops, 0..=255, None),
            _ => return None,
        })
    }
}

/// A number, the values that it accepts, and the one that -1 stands for.
type Number<'a> = (&'a mut i32, RangeInclusive<i32>, Option<i32>);

/// Reads the value of an option of `SOL_IP`: an `int`, or only a byte.
fn int_or_byte(value: &Value) -> Result<i32> {
    if value.len >= 4 {
        return value.int();
    }
    let mut byte = [0];
    match value.bytes(&mut byte)? {
        1 => Ok(byte[0].into()),
        _ => Err(Errno::EINVAL),
    }
}

/// Reads the value of `IPV6_V6ONLY`.
///
/// # Errors
/// `ENOPROTOOPT` for an IPv4 socket, `EINVAL`, `EFAULT`.
pub fn v6_only(family: Family, value: &Value) -> Result<bool> {
    if family == Family::V4 {
        return Err(Errno::ENOPROTOOPT);
    }
    Ok(value.int()? != 0)
}

/// Sets an option.
///
/// # Errors
/// As Linux; `ENOPROTOOPT` for unknown options.
pub fn set(
    options: &SpinLock<IpOptions>,
    family: Family,
    level: u32,
    name: u32,
    value: &Value,
) -> Result<()> {
    let is_v4 = level == raw::SOL_IP;
    if !is_v4 && (level, family) != (raw::SOL_IPV6, Family::V6) {
        return Err(Errno::ENOPROTOOPT);
    }
    match (is_v4, name) {
        (true, raw::IP_MULTICAST_IF) => {
            let index = interface::chosen(value)?;
            options.lock().multicast_interface = index;
            return Ok(());
        }
        (true, raw::IP_OPTIONS) if value.len == 0 => return Ok(()),
        (true, raw::IP_UNICAST_IF) => {}
        (false, raw::IPV6_MULTICAST_IF | raw::IPV6_MTU | raw::IPV6_UNICAST_IF) => {}
        _ => {
            let mut known = IpOptions::default();
            if known.flags(level, name).is_none() && known.number(level, name).is_none() {
                return Err(Errno::ENOPROTOOPT);
            }
        }
    }
    // The program's memory is read before the lock is taken.
    let given = match is_v4 {
        true => int_or_byte(value)?,
        false => value.int()?,
    };
    let mut options = options.lock();
    if let Some(flags) = options.flags(level, name) {
        *flags = *flags & !(1 << name) | u128::from(given != 0) << name;
        return Ok(());
    }
    if let Some((number, accepts, default)) = options.number(level, name) {
        *number = match default {
            Some(default) if given == -1 => default,
            _ if accepts.contains(&given) => given,
            _ => return Err(Errno::EINVAL),
        };
        // A type of service is a byte.
        options.service &= 0xff;
        return Ok(());
    }
    match (is_v4, name) {
        (false, raw::IPV6_MULTICAST_IF) => {
            interface::check_index(given)?;
            options.multicast_interface = given;
            Ok(())
        }
        // No path has an MTU smaller than `lo`'s.
        (false, raw::IPV6_MTU) if given == 0 || given >= raw::IPV6_MIN_MTU as i32 => Ok(()),
        (false, raw::IPV6_MTU) => Err(Errno::EINVAL),
        _ => interface::check_index(u32::from_be(given as u32) as i32),
    }
}

/// Returns the value of an option.
///
/// # Errors
/// As Linux; `ENOPROTOOPT` for unknown options.
pub fn get(options: &SpinLock<IpOptions>, family: Family, level: u32, name: u32) -> Result<Answer> {
    let mut options = *options.lock();
    let index = options.multicast_interface;
    if level != raw::SOL_IP && (level, family) != (raw::SOL_IPV6, Family::V6) {
        return Err(Errno::ENOPROTOOPT);
    }
    if let Some(flags) = options.flags(level, name) {
        return Ok(Answer::flag(*flags >> name & 1 != 0));
    }
    if let Some((number, ..)) = options.number(level, name) {
        return Ok(Answer::Int(*number));
    }
    Ok(match (level, name) {
        (raw::SOL_IP, raw::IP_OPTIONS) => Answer::Bytes(alloc::vec::Vec::new()),
        (raw::SOL_IP, raw::IP_MULTICAST_IF) => Answer::of(&interface::address_of(index)),
        (raw::SOL_IPV6, raw::IPV6_MULTICAST_IF) => Answer::Int(index),
        (raw::SOL_IP, raw::IP_MTU) | (raw::SOL_IPV6, raw::IPV6_MTU) => Answer::Int(MTU),
        (raw::SOL_IP, raw::IP_UNICAST_IF) | (raw::SOL_IPV6, raw::IPV6_UNICAST_IF) => Answer::Int(0),
        _ => return Err(Errno::ENOPROTOOPT),
    })
}
