//! Files on a disk, by the page cache and past it (`O_DIRECT`; `uvm.txt` 3.2: `physio`).

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use crate::movement::{Buffer, check_pattern, fill_pattern};
use crate::{Bench, Experiment, Failure, Meter, call, scratch};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "direct-io",
    title: "Reading and writing a file on a disk, through the page cache and past it",
    help: "\
A file of 1 MiB on a disk's file system, moved by one call.

direct-io/read-direct      into the program's memory, past the cache: MiB/s
direct-io/read-buffered    through the cache, from which it is dropped before, into memory that is
                           not aligned: no page of the cache changes hands
direct-io/read-cached      from the cache
direct-io/write-direct     over what is there, past the cache; then fdatasync
direct-io/write-buffered   through the cache; then fdatasync",
    run,
};

const SIZE: usize = 1 << 20;

/// A way to move the file.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    ReadDirect,
    ReadBuffered,
    ReadCached,
    WriteDirect,
    WriteBuffered,
}

const WAYS: [(&str, Way); 5] = [
    ("direct-io/read-direct", Way::ReadDirect),
    ("direct-io/read-buffered", Way::ReadBuffered),
    ("direct-io/read-cached", Way::ReadCached),
    ("direct-io/write-direct", Way::WriteDirect),
    ("direct-io/write-buffered", Way::WriteBuffered),
];

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for (name, way) in WAYS {
        bench
            .row(name)
            .waits_for_disks()
            .bytes(SIZE as u64)
            .batch(8)
            .run(|meter| measure(meter, way))?;
    }
    Ok(())
}

fn measure(meter: &mut Meter, way: Way) -> Result<(), Failure> {
    let path = scratch::folder()?.join("direct-io");
    let drops = way == Way::ReadBuffered;
    let mut buffer = Buffer::new(SIZE, if drops { 64 } else { 0 })?;
    fill_pattern(buffer.bytes_mut(), 1);
    std::fs::write(&path, buffer.bytes())?;
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if matches!(way, Way::ReadDirect | Way::WriteDirect) {
        options.custom_flags(libc::O_DIRECT);
    }
    let file = options.open(&path)?;
    file.sync_all()?;
    meter.measure(|count| {
        for _ in 0..count {
            if matches!(way, Way::WriteDirect | Way::WriteBuffered) {
                file.write_all_at(buffer.bytes(), 0)?;
                file.sync_data()?;
            } else {
                if drops {
                    let fd = file.as_raw_fd();
                    call!(posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED))?;
                }
                file.read_exact_at(buffer.bytes_mut(), 0)?;
            }
        }
        Ok(())
    })?;
    check_pattern(buffer.bytes(), 1)?;
    if std::fs::read(&path)? != buffer.bytes() {
        return Err("the file has other bytes".to_string().into());
    }
    Ok(())
}
