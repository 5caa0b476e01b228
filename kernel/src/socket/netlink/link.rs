//! The interface and its addresses, as netlink tells of them.

use core::net::{Ipv4Addr, Ipv6Addr};

use abi::{Errno, Result, raw::if_arp::ARPHRD_LOOPBACK};
use net::counters::Counter;

use super::{
    message::{self, Attributes, Request, Writer},
    numbers as raw,
    route::{Asker, check_index, structure},
};
use crate::socket::{
    control::number,
    inet::{AF_INET, AF_INET6, interface},
};

/// Bytes of a `struct ifinfomsg` and a `struct ifaddrmsg`.
const LINK: usize = 16;
const ADDRESS: usize = 8;
/// `IFF_LOWER_UP`, beside the flags that `ioctl` shows.
const LOWER_UP: u32 = 0x1_0000;
/// `IFF_UP`.
const UP: u32 = 1;
/// In `IFLA_EXT_MASK`: without the counts of packets (`RTEXT_FILTER_SKIP_STATS`).
const SKIP_STATISTICS: u32 = 8;
/// Bytes of a hardware address, all zero here.
const HARDWARE: usize = 6;
/// The interface and its queueing discipline cannot be renamed.
const QUEUE: &[u8] = b"noqueue\0";
/// The most segments that a packet may be cut into, and bytes that it may have before.
const SEGMENTS: u32 = 65_535;
const SEGMENTED: u32 = 65_536;
/// Numbers in `struct rtnl_link_stats` and `struct rtnl_link_stats64`.
const COUNTS: usize = 24;
const COUNTS_64: usize = 25;
/// An address's time: it is for ever.
const FOREVER: u32 = u32::MAX;
/// `RT_SCOPE_HOST`.
const HOST: u8 = 254;
/// `IFAPROT_KERNEL_LO`.
const KERNEL_LO: u8 = 1;

/// The `struct ifinfomsg` of a request.
struct Asked {
    index: u32,
    flags: u32,
    change: u32,
    /// Nothing but the index is set.
    is_plain: bool,
}

impl Asked {
    fn of(request: &Request<'_>) -> Result<Asked> {
        let head: [u8; LINK] = structure(request)?;
        let word = |at| number(&head, at);
        Ok(Asked {
            index: word(4),
            flags: word(8),
            change: word(12),
            is_plain: head[1..4] == [0; 3] && head[8..] == [0; 8],
        })
    }
}

/// Whether a request wants the counts of packets.
fn wants_statistics(request: &Request<'_>) -> bool {
    let mut attributes = request.attributes::<LINK>();
    let mask = attributes.find(|(kind, _)| *kind == raw::IFLA_EXT_MASK);
    let mask = mask.and_then(|(_, value)| message::number(value));
    mask.unwrap_or(0) & SKIP_STATISTICS == 0
}

/// Lists the interfaces; gives flags for the list's end.
///
/// # Errors
/// `EINVAL` where it is checked strictly.
pub fn list(request: &Request<'_>, asker: &Asker, writer: &mut Writer) -> Result<u32> {
    if asker.is_strict {
        let asked = Asked::of(request)?;
        if !asked.is_plain || asked.index != 0 {
            return Err(Errno::EINVAL);
        }
    }
    write(writer, raw::NLM_F_MULTI, wants_statistics(request));
    Ok(0)
}

/// Shows the interface with a number or a name.
///
/// # Errors
/// `EINVAL` without either, `ENODEV`.
pub fn show(request: &Request<'_>, asker: &Asker, writer: &mut Writer) -> Result<()> {
    let asked = Asked::of(request)?;
    if asker.is_strict && !asked.is_plain {
        return Err(Errno::EINVAL);
    }
    check_named(request, &asked)?;
    write(writer, 0, wants_statistics(request));
    Ok(())
}

/// Checks that a request is for `lo`, by number or name.
fn check_named(request: &Request<'_>, asked: &Asked) -> Result<()> {
    if asked.index != 0 {
        return check_index(asked.index);
    }
    let names = [raw::IFLA_IFNAME, raw::IFLA_ALT_IFNAME];
    let mut attributes = request.attributes::<LINK>();
    let name = attributes.find(|(kind, _)| names.contains(kind));
    let (_, name) = name.ok_or(Errno::EINVAL)?;
    let name = name.split(|&byte| byte == 0).next().unwrap_or(&[]);
    if name == interface::NAME {
        Ok(())
    } else {
        Err(Errno::ENODEV)
    }
}

/// Changes to the interface: a change to the present state succeeds.
///
/// # Errors
/// `EOPNOTSUPP` for all else, `EEXIST`, `ENODEV`, `EINVAL`.
pub fn change(request: &Request<'_>) -> Result<()> {
    let asked = Asked::of(request)?;
    let makes = request.kind == raw::RTM_NEWLINK;
    match check_named(request, &asked) {
        Ok(()) if makes && request.has(raw::NLM_F_EXCL) => return Err(Errno::EEXIST),
        Ok(()) => {}
        Err(Errno::ENODEV) if makes && request.has(raw::NLM_F_CREATE) => {
            return Err(Errno::EOPNOTSUPP);
        }
        Err(error) => return Err(error),
    }
    // Without a mask all flags are meant.
    let mask = if asked.change == 0 && asked.flags != 0 {
        u32::MAX
    } else {
        asked.change
    };
    let changed = (asked.flags ^ u32::from(interface::FLAGS)) & mask & UP;
    let as_it_is = |(kind, value): (u32, &[u8])| match kind {
        raw::IFLA_IFNAME | raw::IFLA_EXT_MASK => true,
        raw::IFLA_MTU => message::number(value) == Some(interface::MTU as u32),
        raw::IFLA_TXQLEN => message::number(value) == Some(interface::QUEUE as u32),
        _ => false,
    };
    if changed == 0 && request.attributes::<LINK>().all(as_it_is) {
        Ok(())
    } else {
        Err(Errno::EOPNOTSUPP)
    }
}

/// Adds an address: those that are there are there.
///
/// # Errors
/// `EEXIST` for these, `EOPNOTSUPP` for others, `ENODEV`, `EINVAL`.
pub fn add_address(request: &Request<'_>) -> Result<()> {
    let head: [u8; ADDRESS] = structure(request)?;
    check_index(number(&head, 4))?;
    let find = |wanted| {
        let mut attributes = request.attributes::<ADDRESS>();
        attributes.find(|(kind, _)| *kind == wanted)
    };
    let address = find(raw::IFA_LOCAL).or_else(|| find(raw::IFA_ADDRESS));
    let (_, address) = address.ok_or(Errno::EINVAL)?;
    let is_there = match u32::from(head[0]) {
        AF_INET => head[1] == 8 && address == Ipv4Addr::LOCALHOST.octets(),
        AF_INET6 => address == Ipv6Addr::LOCALHOST.octets(),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    match is_there {
        false => Err(Errno::EOPNOTSUPP),
        true if request.has(raw::NLM_F_REPLACE) && !request.has(raw::NLM_F_EXCL) => Ok(()),
        true => Err(Errno::EEXIST),
    }
}

/// Writes all that is known of `lo`.
fn write(writer: &mut Writer, flags: u32, statistics: bool) {
    let mut head = [0; LINK];
    head[2..4].copy_from_slice(&(ARPHRD_LOOPBACK as u16).to_le_bytes());
    head[4..8].copy_from_slice(&interface::INDEX.to_le_bytes());
    let state = u32::from(interface::FLAGS) | LOWER_UP;
    head[8..12].copy_from_slice(&state.to_le_bytes());
    let kind = raw::RTM_NEWLINK;
    writer.message(kind, flags, &head, |all| {
        all.put(raw::IFLA_IFNAME, b"lo\0");
        all.put_number(raw::IFLA_TXQLEN, interface::QUEUE as u32);
        // As Linux says of an interface that can't lose its carrier.
        all.put(raw::IFLA_OPERSTATE, &[0]);
        all.put(raw::IFLA_LINKMODE, &[0]);
        all.put_number(raw::IFLA_MTU, interface::MTU as u32);
        all.put_number(raw::IFLA_MIN_MTU, 0);
        all.put_number(raw::IFLA_MAX_MTU, 0);
        all.put_number(raw::IFLA_GROUP, 0);
        all.put_number(raw::IFLA_PROMISCUITY, 0);
        all.put_number(raw::IFLA_NUM_TX_QUEUES, 1);
        all.put_number(raw::IFLA_GSO_MAX_SEGS, SEGMENTS);
        all.put_number(raw::IFLA_GSO_MAX_SIZE, SEGMENTED);
        all.put_number(raw::IFLA_NUM_RX_QUEUES, 1);
        all.put(raw::IFLA_CARRIER, &[1]);
        all.put(raw::IFLA_QDISC, QUEUE);
        all.put_number(raw::IFLA_CARRIER_CHANGES, 0);
        all.put_number(raw::IFLA_CARRIER_UP_COUNT, 0);
        all.put_number(raw::IFLA_CARRIER_DOWN_COUNT, 0);
        all.put(raw::IFLA_PROTO_DOWN, &[0]);
        all.put(raw::IFLA_MAP, &[0; size_of::<raw::rtnl_link_ifmap>()]);
        all.put(raw::IFLA_ADDRESS, &[0; HARDWARE]);
        all.put(raw::IFLA_BROADCAST, &[0; HARDWARE]);
        if statistics {
            write_statistics(all);
        }
        all.nested(raw::IFLA_AF_SPEC, |families| {
            families.nested(AF_INET6, |v6| {
                // It is ready for use, and addresses would be made out of hardware addresses.
                v6.put_number(raw::IFLA_INET6_FLAGS, 0x8000_0000);
                v6.put(raw::IFLA_INET6_ADDR_GEN_MODE, &[0]);
            });
        });
    });
}

/// Writes the traffic counts; every sent packet is received.
fn write_statistics(all: &mut Attributes<'_>) {
    let packets = Counter::loopback_packets.total();
    let bytes = Counter::loopback_bytes.total();
    let counts = [packets, packets, bytes, bytes];
    let mut wide = [0; COUNTS_64 * 8];
    let mut narrow = [0; COUNTS * 4];
    for (n, count) in counts.into_iter().enumerate() {
        wide[n * 8..n * 8 + 8].copy_from_slice(&count.to_le_bytes());
        narrow[n * 4..n * 4 + 4].copy_from_slice(&(count as u32).to_le_bytes());
    }
    all.put(raw::IFLA_STATS64, &wide);
    all.put(raw::IFLA_STATS, &narrow);
}

/// Lists addresses; gives flags for the list's end.
///
/// # Errors
/// `EINVAL` or `ENODEV` where it is checked strictly.
pub fn list_addresses(
    request: &Request<'_>,
    asker: &Asker,
    writer: &mut Writer,
    v4: bool,
    v6: bool,
) -> Result<u32> {
    let mut flags = raw::NLM_F_MULTI;
    if asker.is_strict {
        let head: [u8; ADDRESS] = structure(request)?;
        if head[1..4] != [0; 3] || request.attributes::<ADDRESS>().next().is_some() {
            return Err(Errno::EINVAL);
        }
        let index = number(&head, 4);
        if index != 0 {
            check_index(index)?;
            flags |= raw::NLM_F_DUMP_FILTERED;
        }
    }
    if v4 {
        let ip = Ipv4Addr::LOCALHOST.octets();
        write_address(writer, flags, AF_INET, 8, |all| {
            all.put(raw::IFA_ADDRESS, &ip);
            all.put(raw::IFA_LOCAL, &ip);
            all.put(raw::IFA_LABEL, b"lo\0");
            all.put_number(raw::IFA_FLAGS, raw::IFA_F_PERMANENT);
            write_life(all);
        });
    }
    if v6 {
        write_address(writer, flags, AF_INET6, 128, |all| {
            all.put(raw::IFA_ADDRESS, &Ipv6Addr::LOCALHOST.octets());
            write_life(all);
            all.put_number(raw::IFA_FLAGS, raw::IFA_F_PERMANENT);
            all.put(raw::IFA_PROTO, &[KERNEL_LO]);
        });
    }
    Ok(flags & !raw::NLM_F_MULTI)
}

fn write_address(
    writer: &mut Writer,
    flags: u32,
    family: u32,
    prefix: u8,
    attributes: impl FnOnce(&mut Attributes<'_>),
) {
    let mut head = [0; ADDRESS];
    head[..4].copy_from_slice(&[family as u8, prefix, raw::IFA_F_PERMANENT as u8, HOST]);
    head[4..].copy_from_slice(&interface::INDEX.to_le_bytes());
    writer.message(raw::RTM_NEWADDR, flags, &head, attributes);
}

/// Preferred and valid for ever, since the start.
fn write_life(all: &mut Attributes<'_>) {
    let mut life = [0; size_of::<raw::ifa_cacheinfo>()];
    life[..4].copy_from_slice(&FOREVER.to_le_bytes());
    life[4..8].copy_from_slice(&FOREVER.to_le_bytes());
    all.put(raw::IFA_CACHEINFO, &life);
}
