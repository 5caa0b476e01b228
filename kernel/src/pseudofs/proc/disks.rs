//! Block devices: `/proc/diskstats`, `/proc/partitions`, and their part of `/proc/devices`.

use core::time::Duration;

use fs::{
    block::{self, Device, MEMORY_MAJOR, SECTOR, Tally, VIRTIO_MAJOR},
    device::{major, minor},
    pseudofs::Text,
};

/// `/proc/diskstats`: a line a device.
pub fn statistics(out: &mut Text) {
    for device in block::all() {
        let number = device.number();
        write!(
            out,
            "{:4} {:7} {} ",
            major(number),
            minor(number),
            device.name()
        );
        device_statistics(out, &device);
        writeln!(out);
    }
}

/// A device's numbers, as in `/proc/diskstats` and `/sys/block/NAME/stat`.
pub fn device_statistics(out: &mut Text, device: &Device) {
    let all = device.statistics();
    let tally = |out: &mut Text, tally: &Tally| {
        let Tally {
            commands,
            merged,
            sectors,
            time,
        } = tally;
        write!(
            out,
            "{commands} {merged} {sectors} {} ",
            milliseconds(*time)
        );
    };
    tally(out, &all.reads);
    tally(out, &all.writes);
    write!(
        out,
        "{} {} {} ",
        all.in_flight,
        milliseconds(all.busy),
        milliseconds(all.weighted)
    );
    tally(out, &all.discards);
    write!(
        out,
        "{} {}",
        all.flushes.commands,
        milliseconds(all.flushes.time)
    );
}

fn milliseconds(time: Duration) -> u128 {
    time.as_millis()
}

/// `/proc/partitions`: devices in KiB; partition tables are not read.
pub fn partitions(out: &mut Text) {
    writeln!(out, "major minor  #blocks  name\n");
    for device in block::all() {
        let number = device.number();
        writeln!(
            out,
            "{:4}  {:7} {:10} {}",
            major(number),
            minor(number),
            device.sectors() * SECTOR as u64 / 1024,
            device.name()
        );
    }
}

/// The drivers of block devices that there are, by major number.
pub fn drivers(out: &mut Text) {
    let devices = block::all();
    for (number, name) in [(MEMORY_MAJOR, "md"), (VIRTIO_MAJOR, "virtblk")] {
        if devices
            .iter()
            .any(|device| major(device.number()) == number)
        {
            writeln!(out, "{number:3} {name}");
        }
    }
}
