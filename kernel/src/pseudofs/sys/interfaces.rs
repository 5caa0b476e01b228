//! `/sys/class/net` and `/sys/devices/virtual/net`: the network interfaces, as they are when a file
//! is read.

use alloc::{format, string::String, vec::Vec};
use core::fmt::Write;

use abi::{Errno, Result};
use fs::{
    Kind,
    pseudofs::{Directory, EmitName, Entry, Table},
};
use net::ip::{Interface, flags};

use super::{directory, link};
use crate::socket::{
    inet::{
        interface::{self, Counts},
        stack,
    },
    netlink,
};

/// A folder with a name for each interface.
pub(super) enum Interfaces {
    /// Links to the devices.
    Links,
    /// The devices.
    Devices,
}

impl Directory for Interfaces {
    fn lookup(&self, name: &[u8]) -> Result<Entry> {
        let index = interface::by_name(name).map_err(|_| Errno::ENOENT)?.index();
        Ok(match self {
            Interfaces::Links => Entry::link(move || {
                let it = interface::by_index(index)?;
                let mut to = Vec::from(b"../../devices/virtual/net/");
                to.extend_from_slice(it.name().as_bytes());
                Ok(to)
            }),
            Interfaces::Devices => directory(device(index)),
        })
    }

    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()> {
        let kind = match self {
            Interfaces::Links => Kind::Link,
            Interfaces::Devices => Kind::Directory,
        };
        for it in stack().network().interfaces() {
            let index = u64::from(it.index());
            if index > cursor && !emit(it.name().as_bytes(), kind, index) {
                break;
            }
        }
        Ok(())
    }
}

/// Makes a file with a line about an interface; reading it fails when the interface is gone.
fn about(index: u32, show: fn(&Interface) -> Result<String>) -> Entry {
    Entry::text(move |out| {
        let line = show(&*interface::by_index(index)?)?;
        writeln!(out, "{line}");
        Ok(())
    })
}

fn device(index: u32) -> Table {
    /// Files that are the same for all interfaces.
    const SAME: [(&str, &str); 7] = [
        ("addr_assign_type", "0"),
        ("dev_id", "0x0"),
        ("dev_port", "0"),
        ("dormant", "0"),
        ("ifalias", ""),
        ("link_mode", "0"),
        ("netdev_group", "0"),
    ];
    const FILES: [(&str, fn(&Interface) -> Result<String>); 14] = [
        ("addr_len", |it| Ok(format!("{}", hardware(it, 0).len()))),
        ("address", |it| {
            let own = it.mac().map(|mac| mac.0);
            Ok(colons(&own.map_or(hardware(it, 0), Vec::from)))
        }),
        ("broadcast", |it| {
            let byte = if it.is_loopback() { 0 } else { 0xff };
            Ok(colons(&hardware(it, byte)))
        }),
        ("carrier", |it| match it.is_up() {
            true => Ok(format!("{}", u8::from(it.has_carrier()))),
            // As Linux: nothing is known of it.
            false => Err(Errno::EINVAL),
        }),
        ("carrier_changes", |it| {
            Ok(format!("{}", it.carrier_changes()))
        }),
        // The device's own flags, without those of its state.
        ("flags", |it| {
            let own = it.flags() & !(flags::RUNNING | flags::LOWER_UP);
            Ok(format!("{own:#x}"))
        }),
        ("ifindex", |it| Ok(format!("{}", it.index()))),
        ("iflink", |it| Ok(format!("{}", it.index()))),
        ("mtu", |it| Ok(format!("{}", it.shown_mtu()))),
        ("operstate", |it| {
            Ok(String::from(match it.flags() & flags::RUNNING {
                _ if it.is_loopback() => "unknown",
                0 => "down",
                _ => "up",
            }))
        }),
        ("proto_down", |_| Ok(String::from("0"))),
        ("tx_queue_len", |_| Ok(format!("{}", interface::QUEUE))),
        ("type", |it| Ok(format!("{}", netlink::hardware(it)))),
        ("uevent", |it| {
            let name = it.name();
            let name = String::from_utf8_lossy(name.as_bytes());
            Ok(format!("INTERFACE={name}\nIFINDEX={}", it.index()))
        }),
    ];
    let same = SAME.iter().fold(Table::new(), |table, (name, text)| {
        table.with(name, super::value(text))
    });
    FILES
        .iter()
        .fold(same, |table, (name, show)| {
            table.with(name, about(index, *show))
        })
        .with("statistics", directory(statistics(index)))
        .with("subsystem", link("../../../../class/net"))
}

/// Returns a link-layer address of equal bytes; empty where the link has no addresses.
fn hardware(it: &Interface, byte: u8) -> Vec<u8> {
    let has_macs = it.is_loopback() || it.mac().is_some();
    if has_macs {
        Vec::from([byte; 6])
    } else {
        Vec::new()
    }
}

fn colons(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (nth, byte) in bytes.iter().enumerate() {
        let colon = if nth > 0 { ":" } else { "" };
        // A string takes whatever is written.
        let _ = write!(text, "{colon}{byte:02x}");
    }
    text
}

fn statistics(index: u32) -> Table {
    /// Counters that no device here has.
    const NEVER: [&str; 15] = [
        "collisions",
        "rx_compressed",
        "rx_crc_errors",
        "rx_fifo_errors",
        "rx_frame_errors",
        "rx_length_errors",
        "rx_missed_errors",
        "rx_nohandler",
        "rx_over_errors",
        "tx_aborted_errors",
        "tx_carrier_errors",
        "tx_compressed",
        "tx_fifo_errors",
        "tx_heartbeat_errors",
        "tx_window_errors",
    ];
    const COUNTED: [(&str, fn(&Counts) -> u64); 9] = [
        ("multicast", |it| it.received_multicast),
        ("rx_bytes", |it| it.received_bytes),
        ("rx_dropped", |it| it.received_dropped),
        ("rx_errors", |it| it.received_errors),
        ("rx_packets", |it| it.received_packets),
        ("tx_bytes", |it| it.sent_bytes),
        ("tx_dropped", |it| it.sent_dropped),
        ("tx_errors", |it| it.sent_errors),
        ("tx_packets", |it| it.sent_packets),
    ];
    let never = NEVER.iter().fold(Table::new(), |table, name| {
        table.with(name, super::value("0"))
    });
    COUNTED.iter().fold(never, |table, &(name, count)| {
        let file = Entry::text(move |out| {
            let counts = interface::traffic(&*interface::by_index(index)?);
            writeln!(out, "{}", count(&counts));
            Ok(())
        });
        table.with(name, file)
    })
}
