//! Reads a disk from its start, as `dd` does.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};

use crate::movement::Buffer;
use crate::{Bench, Experiment, Failure};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "disk-dump",
    title: "Reading a disk from its start on (dd), as in ephemeral-mappings.txt 6.4.1",
    help: "\
The device is read 64 KiB at a time, up to its first 128 MiB, or 512 MiB with --full: MiB/s.

disk-dump/ram0   a memory disk, /dev/ram0
disk-dump/vda    a virtio disk, /dev/vda

Where there is no such device, the row says so.",
    run,
};

/// Rows and their devices.
const DEVICES: [(&str, &str); 2] = [
    ("disk-dump/ram0", "/dev/ram0"),
    ("disk-dump/vda", "/dev/vda"),
];

/// Bytes per call, the paper's.
const BLOCK: usize = 64 << 10;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let most = if bench.is_full() {
        512 << 20
    } else {
        128 << 20
    };
    for (name, device) in DEVICES {
        let row = bench.row(name);
        let (mut disk, size) = match open(device) {
            Ok(found) => found,
            Err(failure) => {
                row.value(Err(failure))?;
                continue;
            }
        };
        let bytes = size.min(most) / BLOCK as u64 * BLOCK as u64;
        row.bytes(bytes).run(|meter| {
            let mut block = Buffer::new(BLOCK, 0)?;
            meter.measure(|count| {
                for _ in 0..count {
                    disk.rewind()?;
                    for _ in 0..bytes / BLOCK as u64 {
                        disk.read_exact(block.bytes_mut())?;
                    }
                }
                Ok(())
            })
        })?;
    }
    Ok(())
}

/// Opens the device; returns it and its size in bytes.
fn open(device: &str) -> Result<(File, u64), Failure> {
    let mut disk = match File::open(device) {
        Ok(disk) => disk,
        // A driver that has found no device answers with one of these two.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Failure::Missing(format!("no {device}")));
        }
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
            return Err(Failure::Missing(format!("no {device}")));
        }
        Err(error) => return Err(Failure::of(device, &error)),
    };
    match disk.seek(SeekFrom::End(0))? {
        size if size < BLOCK as u64 => Err(Failure::Missing(format!("{device} is empty"))),
        size => Ok((disk, size)),
    }
}
