//! Reads a memory disk from its start, as `dd` does.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use crate::movement::Buffer;
use crate::{Bench, Experiment, Failure, Meter, call, scratch};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "disk-dump",
    title: "Reading a memory disk from its start on (dd), as in ephemeral-mappings.txt 6.4.1",
    help: "\
The first 128 MiB of a memory disk, and 512 MiB with --full, are read 64 KiB at a time: MiB/s.

disk-dump/direct-SIZE    past the page cache, as the paper's system reads a disk
disk-dump/buffered-SIZE  through the page cache, from which it is dropped before

An operation is a pass over all of it, and so its events are. Where the disk is smaller, the row
says so.",
    run,
};

/// MiB that are read.
const SIZES: [u64; 2] = [128, 512];

/// Bytes per call, the paper's.
const BLOCK: usize = 64 << 10;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let count = if bench.is_full() { 2 } else { 1 };
    for mebibytes in &SIZES[..count] {
        for (way, is_direct) in [("direct", true), ("buffered", false)] {
            let bytes = mebibytes << 20;
            bench
                .row(format!("disk-dump/{way}-{mebibytes}MiB"))
                .bytes(bytes)
                .run(|meter| dump(meter, bytes, is_direct))?;
        }
    }
    Ok(())
}

fn dump(meter: &mut Meter, bytes: u64, is_direct: bool) -> Result<(), Failure> {
    let mut disk = open(bytes, is_direct)?;
    let mut block = Buffer::new(BLOCK, 0)?;
    meter.measure(|count| {
        for _ in 0..count {
            if !is_direct {
                let fd = disk.as_raw_fd();
                call!(posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED))?;
            }
            disk.rewind()?;
            for _ in 0..bytes / BLOCK as u64 {
                disk.read_exact(block.bytes_mut())?;
            }
        }
        Ok(())
    })
}

/// Opens the disk, which has so many bytes.
fn open(bytes: u64, is_direct: bool) -> Result<File, Failure> {
    let device = format!("/dev/{}", scratch::memory_disk()?);
    let mut options = OpenOptions::new();
    options.read(true);
    if is_direct {
        options.custom_flags(libc::O_DIRECT);
    }
    let mut disk = options.open(&device)?;
    match disk.seek(SeekFrom::End(0))? {
        size if size < bytes => Err(Failure::Missing(format!("{device} has only {size} bytes"))),
        _ => Ok(disk),
    }
}
