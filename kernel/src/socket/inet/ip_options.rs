//! Options of the levels `SOL_IP` and `SOL_IPV6`.

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
    pub service: u8,
    pub traffic_class: u8,
    /// -1 for the default.
    ttl: i32,
    hops: i32,
    pub multicast_ttl: u8,
    pub multicast_hops: u8,
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
            ttl: -1,
            hops: -1,
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
        let chosen = |hops: i32| if hops < 0 { DEFAULT_HOPS } else { hops } as u8;
        match (to.is_ipv4(), to.is_multicast()) {
            (true, false) => chosen(self.ttl),
            (true, true) => self.multicast_ttl,
            (false, false) => chosen(self.hops),
            (false, true) => self.multicast_hops,
        }
    }

    /// Returns the type of service of a datagram, or the traffic class of one of IPv6.
    pub fn service_for(&self, to: core::net::IpAddr) -> u8 {
        if to.is_ipv4() {
            self.service
        } else {
            self.traffic_class
        }
    }

    /// Tells whether the program has chosen `lo` for datagrams to groups.
    pub fn multicast_by_loopback(&self) -> bool {
        self.multicast_interface == interface::INDEX
    }
}

fn switch(bits: &mut u128, name: u32, on: bool) {
    if on {
        *bits |= 1 << name;
    } else {
        *bits &= !(1 << name);
    }
}

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

fn within(value: i32, range: core::ops::RangeInclusive<i32>) -> Result<i32> {
    if range.contains(&value) {
        Ok(value)
    } else {
        Err(Errno::EINVAL)
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
    match level {
        raw::SOL_IP => set_v4(options, name, value),
        raw::SOL_IPV6 if family == Family::V6 => set_v6(options, name, value),
        _ => Err(Errno::ENOPROTOOPT),
    }
}

fn set_v4(options: &SpinLock<IpOptions>, name: u32, value: &Value) -> Result<()> {
    if name == raw::IP_MULTICAST_IF {
        let index = interface::chosen(value)?;
        options.lock().multicast_interface = index;
        return Ok(());
    }
    if name == raw::IP_OPTIONS && value.len == 0 {
        return Ok(());
    }
    // The program's memory is read before the lock is taken.
    let known = SWITCHES_V4.contains(&name)
        || matches!(
            name,
            raw::IP_TOS
                | raw::IP_TTL
                | raw::IP_MTU_DISCOVER
                | raw::IP_MULTICAST_TTL
                | raw::IP_MINTTL
                | raw::IP_UNICAST_IF
        );
    if !known {
        return Err(Errno::ENOPROTOOPT);
    }
    let number = int_or_byte(value)?;
    let mut options = options.lock();
    match name {
        raw::IP_TOS => options.service = number as u8,
        raw::IP_TTL if number == -1 => options.ttl = -1,
        raw::IP_TTL => options.ttl = within(number, 1..=255)?,
        raw::IP_MTU_DISCOVER => options.discover = within(number, 0..=5)?,
        raw::IP_MULTICAST_TTL => {
            let ttl = within(number, -1..=255)?;
            options.multicast_ttl = if ttl == -1 { 1 } else { ttl as u8 };
        }
        raw::IP_MINTTL => options.min_ttl = within(number, 0..=255)?,
        raw::IP_UNICAST_IF => interface::check_index(u32::from_be(number as u32) as i32)?,
        _ => switch(&mut options.on_v4, name, number != 0),
    }
    Ok(())
}

fn set_v6(options: &SpinLock<IpOptions>, name: u32, value: &Value) -> Result<()> {
    let known = SWITCHES_V6.contains(&name)
        || matches!(
            name,
            raw::IPV6_UNICAST_HOPS
                | raw::IPV6_MULTICAST_HOPS
                | raw::IPV6_MULTICAST_IF
                | raw::IPV6_MTU_DISCOVER
                | raw::IPV6_MTU
                | raw::IPV6_TCLASS
                | raw::IPV6_ADDR_PREFERENCES
                | raw::IPV6_MINHOPCOUNT
                | raw::IPV6_UNICAST_IF
        );
    if !known {
        return Err(Errno::ENOPROTOOPT);
    }
    let number = value.int()?;
    let mut options = options.lock();
    match name {
        raw::IPV6_UNICAST_HOPS => options.hops = within(number, -1..=255)?,
        raw::IPV6_MULTICAST_HOPS => {
            let hops = within(number, -1..=255)?;
            options.multicast_hops = if hops == -1 { 1 } else { hops as u8 };
        }
        raw::IPV6_MULTICAST_IF => {
            interface::check_index(number)?;
            options.multicast_interface = number;
        }
        raw::IPV6_MTU_DISCOVER => options.discover_v6 = within(number, 0..=5)?,
        // No path has an MTU smaller than `lo`'s.
        raw::IPV6_MTU if number == 0 || number >= raw::IPV6_MIN_MTU as i32 => {}
        raw::IPV6_MTU => return Err(Errno::EINVAL),
        raw::IPV6_TCLASS => options.traffic_class = within(number, -1..=255)?.max(0) as u8,
        raw::IPV6_ADDR_PREFERENCES => options.preferences = number,
        raw::IPV6_MINHOPCOUNT => options.min_hops = within(number, 0..=255)?,
        raw::IPV6_UNICAST_IF => interface::check_index(u32::from_be(number as u32) as i32)?,
        _ => switch(&mut options.on_v6, name, number != 0),
    }
    Ok(())
}

/// Returns the value of an option.
///
/// # Errors
/// As Linux; `ENOPROTOOPT` for unknown options.
pub fn get(options: &SpinLock<IpOptions>, family: Family, level: u32, name: u32) -> Result<Answer> {
    let options = *options.lock();
    let hops = |hops: i32| if hops < 0 { DEFAULT_HOPS } else { hops };
    let number = match (level, name) {
        (raw::SOL_IP, raw::IP_OPTIONS) => return Ok(Answer::Bytes(alloc::vec::Vec::new())),
        (raw::SOL_IP, raw::IP_MULTICAST_IF) => {
            return Ok(Answer::of(&interface::address_of(
                options.multicast_interface,
            )));
        }
        (raw::SOL_IP, name) => match name {
            raw::IP_TOS => options.service.into(),
            raw::IP_TTL => hops(options.ttl),
            raw::IP_MTU_DISCOVER => options.discover,
            raw::IP_MTU => MTU,
            raw::IP_MULTICAST_TTL => options.multicast_ttl.into(),
            raw::IP_MINTTL => options.min_ttl,
            raw::IP_UNICAST_IF => 0,
            _ if SWITCHES_V4.contains(&name) => options.v4(name).into(),
            _ => return Err(Errno::ENOPROTOOPT),
        },
        (raw::SOL_IPV6, name) if family == Family::V6 => match name {
            raw::IPV6_UNICAST_HOPS => hops(options.hops),
            raw::IPV6_MULTICAST_HOPS => options.multicast_hops.into(),
            raw::IPV6_MULTICAST_IF => options.multicast_interface,
            raw::IPV6_MTU_DISCOVER => options.discover_v6,
            raw::IPV6_MTU => MTU,
            raw::IPV6_TCLASS => options.traffic_class.into(),
            raw::IPV6_ADDR_PREFERENCES => options.preferences,
            raw::IPV6_MINHOPCOUNT => options.min_hops,
            raw::IPV6_UNICAST_IF => 0,
            _ if SWITCHES_V6.contains(&name) => options.v6(name).into(),
            _ => return Err(Errno::ENOPROTOOPT),
        },
        _ => return Err(Errno::ENOPROTOOPT),
    };
    Ok(Answer::Int(number))
}
