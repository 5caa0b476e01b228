//! Interfaces, as netlink tells of them and changes them.

use alloc::sync::Arc;

use abi::{
    Errno, Result,
    raw::if_arp::{ARPHRD_ETHER, ARPHRD_LOOPBACK, ARPHRD_NONE},
};
use net::{
    ip::{Interface, flags},
    link::Mac,
};

use super::{
    message::{self, Attributes, Request, Writer},
    numbers as raw,
    route::{Asker, structure},
};
use crate::socket::{
    control::number,
    inet::{AF_INET6, interface, stack},
};

/// Bytes of a `struct ifinfomsg`.
const LINK: usize = 16;
/// In `IFLA_EXT_MASK`: without the counts of packets (`RTEXT_FILTER_SKIP_STATS`).
const SKIP_STATISTICS: u32 = 8;
/// Bytes of a hardware address.
const HARDWARE: usize = 6;
/// The queueing disciplines: of an interface whose packets wait nowhere, and of a card.
const NO_QUEUE: &[u8] = b"noqueue\0";
const CARD_QUEUE: &[u8] = b"fq_codel\0";
/// The most segments that a packet may be cut into, and bytes that it may have before.
const SEGMENTS: u32 = 65_535;
const SEGMENTED: u32 = 65_536;
/// Numbers in `struct rtnl_link_stats` and `struct rtnl_link_stats64`.
const COUNTS: usize = 24;
const COUNTS_64: usize = 25;
/// `IF_OPER_UNKNOWN`, `IF_OPER_DOWN`, `IF_OPER_UP`.
const UNKNOWN: u8 = 0;
const DOWN: u8 = 2;
const WORKS: u8 = 6;

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
    let counts = wants_statistics(request);
    for interface in stack().network().interfaces() {
        write(
            writer,
            raw::RTM_NEWLINK,
            raw::NLM_F_MULTI,
            &interface,
            counts,
        );
    }
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
    let interface = named(request, &asked)?;
    write(
        writer,
        raw::RTM_NEWLINK,
        0,
        &interface,
        wants_statistics(request),
    );
    Ok(())
}

/// Finds the interface that a request means, by number or name.
fn named(request: &Request<'_>, asked: &Asked) -> Result<Arc<Interface>> {
    if asked.index != 0 {
        return interface::by_index(asked.index);
    }
    let names = [raw::IFLA_IFNAME, raw::IFLA_ALT_IFNAME];
    let mut attributes = request.attributes::<LINK>();
    let name = attributes.find(|(kind, _)| names.contains(kind));
    let (_, name) = name.ok_or(Errno::EINVAL)?;
    interface::by_name(name)
}

/// Changes an interface.
///
/// # Errors
/// `EOPNOTSUPP` for a new one and for what can't be changed, `EEXIST`, `ENODEV`, `EINVAL`.
pub fn change(request: &Request<'_>) -> Result<()> {
    let asked = Asked::of(request)?;
    let makes = request.kind == raw::RTM_NEWLINK;
    let found = match named(request, &asked) {
        // `ip` asks so whether there is this request at all.
        Err(Errno::EINVAL) if makes => Err(Errno::ENODEV),
        found => found,
    };
    let interface = match found {
        Ok(_) if makes && request.has(raw::NLM_F_EXCL) => return Err(Errno::EEXIST),
        Ok(interface) => interface,
        Err(Errno::ENODEV) if makes && request.has(raw::NLM_F_CREATE) => {
            return Err(Errno::EOPNOTSUPP);
        }
        Err(error) => return Err(error),
    };
    let index = interface.index();
    let network = stack().network();
    // All is checked before anything is changed.
    for (kind, value) in request.attributes::<LINK>() {
        let word = || message::number(value).ok_or(Errno::EINVAL);
        match kind {
            raw::IFLA_IFNAME => {
                net::ip::Name::new(value).ok_or(Errno::EINVAL)?;
            }
            raw::IFLA_MTU | raw::IFLA_EXT_MASK => {
                word()?;
            }
            raw::IFLA_ADDRESS if value.len() == HARDWARE => {}
            raw::IFLA_ADDRESS => return Err(Errno::EINVAL),
            raw::IFLA_TXQLEN if word()? == interface::QUEUE as u32 => {}
            raw::IFLA_GROUP if word()? == 0 => {}
            raw::IFLA_AF_SPEC | raw::IFLA_LINKINFO => {}
            _ => return Err(Errno::EOPNOTSUPP),
        }
    }
    for (kind, value) in request.attributes::<LINK>() {
        match kind {
            raw::IFLA_IFNAME if asked.index != 0 => {
                let name = net::ip::Name::new(value).ok_or(Errno::EINVAL)?;
                if name != interface.name() {
                    interface::rename(&interface, name)?;
                }
            }
            raw::IFLA_MTU => {
                let mtu = message::number(value).ok_or(Errno::EINVAL)?;
                if mtu != interface.shown_mtu() {
                    network.limit_packets(index, mtu)?;
                }
            }
            raw::IFLA_ADDRESS => {
                let mac = value.first_chunk::<HARDWARE>().ok_or(Errno::EINVAL)?;
                network.set_mac(index, Mac(*mac))?;
            }
            _ => {}
        }
    }
    // Without a mask all flags are meant.
    let mask = if asked.change == 0 && asked.flags != 0 {
        u32::MAX
    } else {
        asked.change
    };
    network.set_flags(index, asked.flags, mask)
}

/// Removes an interface that a program has made.
///
/// # Errors
/// `EOPNOTSUPP` for others, `ENODEV`, `EINVAL`.
pub fn remove(request: &Request<'_>) -> Result<()> {
    let asked = Asked::of(request)?;
    let interface = named(request, &asked)?;
    if interface.device().kind().is_empty() {
        return Err(Errno::EOPNOTSUPP);
    }
    stack().network().remove_interface(interface.index())
}

/// Returns Linux's number of the kind of an interface's addresses.
pub fn hardware(interface: &Interface) -> u16 {
    let kind = match interface.mac() {
        _ if interface.is_loopback() => ARPHRD_LOOPBACK,
        Some(_) => ARPHRD_ETHER,
        None => ARPHRD_NONE,
    };
    kind as u16
}

/// Writes all that is known of an interface.
pub fn write(writer: &mut Writer, kind: u32, flags: u32, interface: &Interface, statistics: bool) {
    let mut head = [0; LINK];
    head[2..4].copy_from_slice(&hardware(interface).to_le_bytes());
    head[4..8].copy_from_slice(&interface.index().to_le_bytes());
    let state = interface.flags();
    head[8..12].copy_from_slice(&state.to_le_bytes());
    let is_loopback = interface.is_loopback();
    let mac = interface.mac().map_or([0; HARDWARE], |mac| mac.0);
    let has_macs = is_loopback || interface.mac().is_some();
    let device = interface.device().features();
    let changes = interface.carrier_changes() as u32;
    writer.message(kind, flags, &head, |all| {
        all.put(raw::IFLA_IFNAME, &with_zero(interface));
        all.put_number(raw::IFLA_TXQLEN, interface::QUEUE as u32);
        let works = match state & flags::RUNNING {
            // As Linux says of an interface that can't lose its carrier.
            _ if is_loopback => UNKNOWN,
            0 => DOWN,
            _ => WORKS,
        };
        all.put(raw::IFLA_OPERSTATE, &[works]);
        all.put(raw::IFLA_LINKMODE, &[0]);
        all.put_number(raw::IFLA_MTU, interface.shown_mtu());
        let (least, most) = match is_loopback {
            true => (0, 0),
            false => (68, device.mtu.into()),
        };
        all.put_number(raw::IFLA_MIN_MTU, least);
        all.put_number(raw::IFLA_MAX_MTU, most);
        all.put_number(raw::IFLA_GROUP, 0);
        all.put_number(raw::IFLA_PROMISCUITY, interface.is_promiscuous().into());
        all.put_number(raw::IFLA_NUM_TX_QUEUES, 1);
        all.put_number(raw::IFLA_GSO_MAX_SEGS, SEGMENTS);
        all.put_number(raw::IFLA_GSO_MAX_SIZE, SEGMENTED);
        all.put_number(raw::IFLA_NUM_RX_QUEUES, 1);
        all.put(raw::IFLA_CARRIER, &[interface.has_carrier().into()]);
        all.put(
            raw::IFLA_QDISC,
            if is_loopback { NO_QUEUE } else { CARD_QUEUE },
        );
        all.put_number(raw::IFLA_CARRIER_CHANGES, changes);
        all.put_number(raw::IFLA_CARRIER_UP_COUNT, changes / 2);
        all.put_number(raw::IFLA_CARRIER_DOWN_COUNT, changes.div_ceil(2));
        all.put(raw::IFLA_PROTO_DOWN, &[0]);
        all.put(raw::IFLA_MAP, &[0; size_of::<raw::rtnl_link_ifmap>()]);
        if has_macs {
            let all_ones = if is_loopback {
                [0; HARDWARE]
            } else {
                Mac::BROADCAST.0
            };
            all.put(raw::IFLA_ADDRESS, &mac);
            all.put(raw::IFLA_BROADCAST, &all_ones);
        }
        if let (false, Some(mac)) = (is_loopback, device.mac) {
            all.put(raw::IFLA_PERM_ADDRESS, &mac.0);
        }
        if statistics {
            write_statistics(all, interface);
        }
        let kind = interface.device().kind();
        if !kind.is_empty() {
            all.nested(raw::IFLA_LINKINFO, |info| {
                info.put(raw::IFLA_INFO_KIND, kind.as_bytes());
            });
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

/// An interface's name with a zero behind it.
pub fn with_zero(interface: &Interface) -> [u8; 16] {
    interface.name().0
}

/// Writes the traffic counts.
fn write_statistics(all: &mut Attributes<'_>, interface: &Interface) {
    let traffic = interface::traffic(interface);
    let mut wide = [0; COUNTS_64 * 8];
    let mut narrow = [0; COUNTS * 4];
    for (n, count) in traffic.in_order().into_iter().enumerate() {
        wide[n * 8..n * 8 + 8].copy_from_slice(&count.to_le_bytes());
        narrow[n * 4..n * 4 + 4].copy_from_slice(&(count as u32).to_le_bytes());
    }
    all.put(raw::IFLA_STATS64, &wide);
    all.put(raw::IFLA_STATS, &narrow);
}
