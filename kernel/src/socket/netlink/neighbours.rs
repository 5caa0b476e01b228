//! Neighbours, as netlink tells of them and changes them.

use core::net::IpAddr;

use abi::{Errno, Result};
use net::{ip::Neighbour, link::Mac};

use super::{
    message::{self, Request, Writer},
    numbers as raw,
    route::structure,
};
use crate::{
    process::CLOCK_TICKS,
    socket::{
        control::number,
        inet::{interface, stack},
    },
};

/// Bytes of a `struct ndmsg`.
const HEAD: usize = 12;

/// Returns Linux's number of what is known of a neighbour.
pub fn state(entry: &Neighbour) -> u32 {
    match entry.mac {
        _ if entry.is_fixed => raw::NUD_PERMANENT,
        None if entry.is_asked => raw::NUD_INCOMPLETE,
        None => raw::NUD_FAILED,
        Some(_) if entry.is_asked => raw::NUD_PROBE,
        Some(_) if entry.is_fresh => raw::NUD_REACHABLE,
        Some(_) => raw::NUD_STALE,
    }
}

/// Lists neighbours; gives flags for the list's end.
///
/// # Errors
/// `ENODEV`, `ENOMEM`, `EINVAL`.
pub fn list(request: &Request<'_>, writer: &mut Writer, v4: bool, v6: bool) -> Result<u32> {
    let mut only = 0;
    for (kind, value) in request.attributes::<HEAD>() {
        if kind == raw::NDA_IFINDEX {
            only = message::number(value).ok_or(Errno::EINVAL)?;
            interface::by_index(only)?;
        }
    }
    let filtered = if only != 0 {
        raw::NLM_F_DUMP_FILTERED
    } else {
        0
    };
    for interface in stack().network().interfaces() {
        if only != 0 && interface.index() != only {
            continue;
        }
        for entry in interface.neighbour_list()? {
            if if entry.ip.is_ipv4() { v4 } else { v6 } {
                let flags = raw::NLM_F_MULTI | filtered;
                write(writer, raw::RTM_NEWNEIGH, flags, interface.index(), &entry);
            }
        }
    }
    Ok(filtered)
}

/// Writes a neighbour of an interface.
pub fn write(writer: &mut Writer, kind: u32, flags: u32, index: u32, entry: &Neighbour) {
    let mut head = [0; HEAD];
    head[0] = message::family(entry.ip) as u8;
    head[4..8].copy_from_slice(&index.to_le_bytes());
    head[8..10].copy_from_slice(&(state(entry) as u16).to_le_bytes());
    head[11] = raw::RTN_UNICAST as u8;
    let ticks = |time: u64| (time / (1_000_000_000 / u64::from(CLOCK_TICKS))) as u32;
    writer.message(kind, flags, &head, |all| {
        all.put_address(raw::NDA_DST, entry.ip);
        if let Some(mac) = entry.mac {
            all.put(raw::NDA_LLADDR, &mac.0);
        }
        let mut times = [0; 16];
        let words = [
            ticks(entry.confirmed),
            ticks(entry.used),
            ticks(entry.confirmed),
            1,
        ];
        for (n, word) in words.into_iter().enumerate() {
            times[n * 4..n * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        all.put(raw::NDA_CACHEINFO, &times);
        all.put_number(raw::NDA_PROBES, 0);
    });
}

/// The neighbour that a request means: interface, address, address on the link.
fn asked(request: &Request<'_>) -> Result<(u32, IpAddr, Option<Mac>)> {
    let head: [u8; HEAD] = structure(request)?;
    let (mut ip, mut mac) = (None, None);
    for (kind, value) in request.attributes::<HEAD>() {
        match kind {
            raw::NDA_DST => ip = Some(message::address(head[0].into(), value)?),
            raw::NDA_LLADDR => {
                let bytes = <[u8; 6]>::try_from(value).map_err(|_| Errno::EINVAL)?;
                mac = Some(Mac(bytes));
            }
            _ => {}
        }
    }
    let index = number(&head, 4);
    interface::by_index(index)?;
    Ok((index, ip.ok_or(Errno::EINVAL)?, mac))
}

/// Shows one neighbour.
///
/// # Errors
/// `ENOENT`, `ENODEV`, `EINVAL`.
pub fn show(request: &Request<'_>, writer: &mut Writer) -> Result<()> {
    let (index, ip, _) = asked(request)?;
    let all = interface::by_index(index)?.neighbour_list()?;
    let entry = all.iter().find(|entry| entry.ip == ip);
    let entry = entry.ok_or(Errno::ENOENT)?;
    write(writer, raw::RTM_NEWNEIGH, 0, index, entry);
    Ok(())
}

/// Adds or changes a neighbour.
///
/// # Errors
/// `EEXIST`, `ENOENT`, `ENODEV`, `EINVAL`.
pub fn add(request: &Request<'_>) -> Result<()> {
    let (index, ip, mac) = asked(request)?;
    let head: [u8; HEAD] = structure(request)?;
    let wanted = u32::from(u16::from_le_bytes([head[8], head[9]]));
    let known = interface::by_index(index)?.neighbour_list()?;
    let known = known.iter().find(|entry| entry.ip == ip);
    match known {
        Some(_) if request.has(raw::NLM_F_EXCL) => return Err(Errno::EEXIST),
        None if !request.has(raw::NLM_F_CREATE) => return Err(Errno::ENOENT),
        _ => {}
    }
    let mac = mac.or_else(|| known.and_then(|entry| entry.mac));
    let mac = mac.ok_or(Errno::EINVAL)?;
    let is_fixed = wanted & (raw::NUD_PERMANENT | raw::NUD_NOARP) != 0;
    let replaces = request.has(raw::NLM_F_REPLACE) || known.is_none_or(|it| it.mac.is_none());
    stack()
        .network()
        .put_neighbour(index, ip, mac, is_fixed, replaces)
}

/// Forgets a neighbour.
///
/// # Errors
/// `ENOENT`, `ENODEV`, `EINVAL`.
pub fn remove(request: &Request<'_>) -> Result<()> {
    let (index, ip, _) = asked(request)?;
    stack().network().remove_neighbour(index, ip)
}
