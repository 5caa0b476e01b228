//! Maps, touches and unmaps one page (`uvm.txt` Table 3).

use std::fs::File;

use crate::mapping::{self, Mapping, PAGE};
use crate::{Bench, Experiment, Failure};

/// The six cases of the paper's table.
pub const EXPERIMENT: Experiment = Experiment {
    name: "map-fault-unmap",
    title: "Map a page, fault it in, unmap it",
    help: "\
One operation maps one page, reads or writes its first byte, and unmaps it. Files are in the
in-memory file system, and resident.

Rows, the paper's six:
  map-fault-unmap/read-shared-file    map-fault-unmap/write-shared-file
  map-fault-unmap/read-private-file   map-fault-unmap/write-private-file
  map-fault-unmap/read-zero-fill      map-fault-unmap/write-zero-fill
and, for the part that is not the fault:
  map-fault-unmap/untouched           zero-fill memory, mapped and unmapped only",
    run,
};

/// Operations of one batch.
const BATCH: u64 = 200;

/// The first access.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    None,
    Read,
    Write,
}

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for (name, access, flags, with_file) in [
        ("read-shared-file", Access::Read, libc::MAP_SHARED, true),
        ("read-private-file", Access::Read, libc::MAP_PRIVATE, true),
        ("write-shared-file", Access::Write, libc::MAP_SHARED, true),
        ("write-private-file", Access::Write, libc::MAP_PRIVATE, true),
        (
            "read-zero-fill",
            Access::Read,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            false,
        ),
        (
            "write-zero-fill",
            Access::Write,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            false,
        ),
        (
            "untouched",
            Access::None,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            false,
        ),
    ] {
        bench
            .row(format!("map-fault-unmap/{name}"))
            .batch(BATCH)
            .run(|meter| {
                let file = if with_file {
                    Some(mapping::file(PAGE)?)
                } else {
                    None
                };
                meter.measure(|n| (0..n).try_for_each(|_| cycle(file.as_ref(), flags, access)))
            })?;
    }
    Ok(())
}

fn cycle(file: Option<&File>, flags: i32, access: Access) -> Result<(), Failure> {
    let mapping = Mapping::new(file, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags)?;
    match access {
        Access::None => {}
        Access::Read => {
            mapping.read_pages();
        }
        Access::Write => mapping.write_pages(),
    }
    Ok(())
}
