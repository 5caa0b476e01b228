//! `/sys/block`, and the devices behind it.

use alloc::{format, string::String, sync::Arc};

use abi::{Errno, Result};
use fs::{
    Kind,
    block::{self, Device, SECTOR, VIRTIO_MINORS},
    device::{major, minor},
    pseudofs::{Directory, EmitName, Entry, Table, Text},
};
use nucleus::{PAGE_SIZE, speculation};

use super::{directory, line, link, shown, value};
use crate::pseudofs::proc::disks;

/// Names of all block devices and their kinds.
struct Devices {
    kind: Kind,
    name: fn(&Device) -> String,
    entry: fn(Arc<Device>) -> Entry,
}

impl Directory for Devices {
    fn lookup(&self, name: &[u8]) -> Result<Entry> {
        block::all()
            .into_iter()
            .find(|device| (self.name)(device).as_bytes() == name)
            .map(|device| (self.entry)(device))
            .ok_or(Errno::ENOENT)
    }

    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()> {
        let devices = block::all();
        let from_cursor = speculation::rest(&devices, cursor as usize).iter();
        for (device, next) in from_cursor.zip(1..) {
            if !emit((self.name)(device).as_bytes(), self.kind, cursor + next) {
                break;
            }
        }
        Ok(())
    }
}

fn name(device: &Device) -> String {
    device.name().into()
}

fn numbers(device: &Device) -> String {
    let number = device.number();
    format!("{}:{}", major(number), minor(number))
}

/// A link to a device, from a directory at this depth below `/sys`.
fn to_device(device: &Device, up: &'static str) -> Entry {
    let text = format!("{up}devices/virtual/block/{}", device.name());
    Entry::link(move || Ok(text.clone().into_bytes()))
}

/// `/sys/block`: links to the devices.
pub(super) fn links() -> Entry {
    directory(Devices {
        kind: Kind::Link,
        name,
        entry: |device| to_device(&device, "../"),
    })
}

/// `/sys/class/block`.
pub(super) fn class() -> Entry {
    directory(Devices {
        kind: Kind::Link,
        name,
        entry: |device| to_device(&device, "../../"),
    })
}

/// `/sys/dev/block`: links to the devices by number.
pub(super) fn by_number() -> Entry {
    directory(Devices {
        kind: Kind::Link,
        name: numbers,
        entry: |device| to_device(&device, "../../"),
    })
}

/// `/sys/devices/virtual/block`.
pub(super) fn devices() -> Entry {
    directory(Devices {
        kind: Kind::Directory,
        name,
        entry: |device| directory(table(&device)),
    })
}

/// A file whose text is asked of the device when it is read.
fn asked(device: &Arc<Device>, show: fn(&mut Text, &Device)) -> Entry {
    let device = device.clone();
    shown(move |out| {
        show(out, &device);
        writeln!(out);
    })
}

fn table(device: &Arc<Device>) -> Table {
    let numbers = numbers(device);
    let event = {
        let (device, minor) = (device.clone(), minor(device.number()));
        move || {
            let (major, name) = (major(device.number()), device.name());
            format!("MAJOR={major}\nMINOR={minor}\nDEVNAME={name}\nDEVTYPE=disk")
        }
    };
    let serial = String::from_utf8_lossy(device.disk().serial()).into_owned();
    let minors = match major(device.number()) {
        block::VIRTIO_MAJOR => VIRTIO_MINORS,
        _ => 1,
    };
    let table = Table::new()
        .with("alignment_offset", value("0"))
        .with("dev", line(move || numbers.clone()))
        .with("discard_alignment", value("0"))
        .with("ext_range", value(minors))
        .with("hidden", value("0"))
        .with("holders", directory(Table::new()))
        .with(
            "inflight",
            asked(device, |out, device| {
                write!(out, "{:8} {:8}", 0, device.statistics().in_flight);
            }),
        )
        .with("queue", directory(queue(device)))
        .with("range", value(minors))
        .with("removable", value("0"))
        .with("ro", value(u8::from(device.is_read_only())))
        .with("size", value(device.sectors()))
        .with("slaves", directory(Table::new()))
        .with("stat", asked(device, disks::device_statistics))
        .with("subsystem", link("../../../../class/block"))
        .with("uevent", line(event));
    match serial.is_empty() {
        true => table,
        // Without a newline, as virtio's disks show it.
        false => table.with("serial", shown(move |out| out.push(serial.as_bytes()))),
    }
}

fn queue(device: &Device) -> Table {
    let limits = *device.limits();
    let granularity = match limits.max_discard {
        0 => 0,
        _ => limits.block_size,
    };
    let discard = limits.max_discard.saturating_mul(SECTOR as u64);
    let transfer = limits.max_sectors * SECTOR as u64 / 1024;
    Table::new()
        .with("add_random", value("0"))
        .with("discard_granularity", value(granularity))
        .with("discard_max_bytes", value(discard))
        .with("discard_max_hw_bytes", value(discard))
        .with("discard_zeroes_data", value("0"))
        .with("fua", value("0"))
        .with("hw_sector_size", value(limits.block_size))
        .with("iostats", value("1"))
        .with("logical_block_size", value(limits.block_size))
        .with("max_hw_sectors_kb", value(transfer))
        .with("max_sectors_kb", value(transfer))
        .with("max_segment_size", value(PAGE_SIZE as u64))
        .with("max_segments", value(limits.max_parts as u64))
        .with("minimum_io_size", value(limits.physical_block_size))
        .with("nomerges", value("0"))
        .with("nr_requests", value(limits.depth as u64))
        .with("optimal_io_size", value("0"))
        .with("physical_block_size", value(limits.physical_block_size))
        .with("read_ahead_kb", value("128"))
        .with("rotational", value("0"))
        .with("scheduler", value("[none]"))
        .with(
            "write_cache",
            value(match limits.volatile_cache {
                true => "write back",
                false => "write through",
            }),
        )
        .with("zoned", value("none"))
}
