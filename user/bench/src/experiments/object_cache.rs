//! Maps and reads a growing number of files, as a web server does (`uvm.txt` 4, Figure 2).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::mapping::Mapping;
use crate::{Bench, Experiment, Failure, Unit, scratch};

/// Mapping a growing number of files.
pub const EXPERIMENT: Experiment = Experiment {
    name: "object-cache",
    title: "Mapping and reading more and more files",
    help: "\
Files of 16 KiB on a disk are opened, mapped, read byte by byte, unmapped and closed, one after the
other; one operation is that for each of them once. All of them fit in memory.

Rows, for 10, 100, 500 and 2000 files (--full: 50, 200, 1000 and 1500, too):
  object-cache/first-N-files   from the disk, which was mounted anew, in seconds
  object-cache/map-N-files     from then on
  object-cache/reads-N-files   how often the disk is read in the second pass and the third, in pages
                               that a read brings at least: 0 is
                               what there should be",
    run,
};

/// Bytes of a file.
const SIZE: usize = 16 << 10;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let counts: &[usize] = if bench.is_full() {
        &[10, 50, 100, 200, 500, 1000, 1500, 2000]
    } else {
        &[10, 100, 500, 2000]
    };
    for &count in counts {
        bench
            .row(format!("object-cache/first-{count}-files"))
            .waits_for_disks()
            .unit(Unit::Seconds)
            .run(|meter| {
                let folder = files(count)?;
                // Mounting is not measured.
                scratch::mount_again()?;
                let start = Instant::now();
                pass(&folder, count)?;
                meter.value(start.elapsed().as_secs_f64());
                Ok(())
            })?;
        bench
            .row(format!("object-cache/map-{count}-files"))
            .waits_for_disks()
            .batch(1)
            .run(|meter| {
                let folder = files(count)?;
                pass(&folder, count)?;
                meter.measure(|n| (0..n).try_for_each(|_| pass(&folder, count)))
            })?;
        bench
            .row(format!("object-cache/reads-{count}-files"))
            .waits_for_disks()
            .unit(Unit::Pages)
            .run(|meter| {
                let folder = files(count)?;
                pass(&folder, count)?;
                let before = scratch::reads()?;
                pass(&folder, count)?;
                pass(&folder, count)?;
                meter.value((scratch::reads()? - before) as f64);
                Ok(())
            })?;
    }
    Ok(())
}

/// In folders of a hundred: the cost of path lookup is not measured here.
fn name(folder: &Path, i: usize) -> PathBuf {
    folder.join(format!("{}/file-{i}", i / 100))
}

/// Makes so many files unless they exist.
fn files(count: usize) -> Result<PathBuf, Failure> {
    let folder = scratch::folder()?;
    for i in 0..count {
        let path = name(&folder, i);
        if !path.exists() {
            fs::create_dir_all(folder.join((i / 100).to_string()))?;
            fs::write(path, vec![i as u8; SIZE])?;
        }
    }
    Ok(folder)
}

/// Maps and reads each file once.
fn pass(folder: &Path, count: usize) -> Result<(), Failure> {
    for i in 0..count {
        let file = File::open(name(folder, i))?;
        let memory = Mapping::new(Some(&file), SIZE, libc::PROT_READ, libc::MAP_SHARED)?;
        if memory.sum_bytes() != SIZE as u64 * (i as u8) as u64 {
            return Err(format!("file {i} has other bytes").into());
        }
    }
    Ok(())
}
