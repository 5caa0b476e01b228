//! Minor faults by several threads at once, in one mapping and in separate ones.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::mapping::{self, Mapping};
use crate::partner::together;
use crate::{Bench, Experiment, Failure, Watch};

/// Scaling of faults.
pub const EXPERIMENT: Experiment = Experiment {
    name: "fault-bandwidth",
    title: "Minor faults by several threads",
    help: "\
Threads of one process, each on a CPU of its own, fault memory in: 4 MiB each, once a page of 4 KiB.
What is measured is from the first thread's first fault to the last one's last; mapping and
unmapping are not.

Rows, for 1, 2 and 4 threads (those for which there are CPUs):
  fault-bandwidth/one-mapping-THREADS        zero-fill memory, one mapping for all, a part for each
                                             thread
  fault-bandwidth/separate-mappings-THREADS  zero-fill memory, a mapping for each thread
  fault-bandwidth/one-file-THREADS           all read the same resident pages of a file, by one
                                             shared mapping
  fault-bandwidth/large-THREADS              as one-mapping, where the kernel may use large pages",
    run,
};

/// Bytes that each thread touches in one operation.
const SHARE: usize = 4 << 20;

/// Memory that the threads touch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    One,
    Separate,
    File,
    Large,
}

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for (name, memory) in [
        ("one-mapping", Memory::One),
        ("separate-mappings", Memory::Separate),
        ("one-file", Memory::File),
        ("large", Memory::Large),
    ] {
        for threads in [1, 2, 4] {
            let cpus: Vec<usize> = (0..threads).collect();
            bench
                .row(format!("fault-bandwidth/{name}-{threads}"))
                .cpus(threads)
                .bytes((threads * SHARE) as u64)
                .run(|meter| {
                    let file = mapping::file(SHARE)?;
                    meter.timed(|watch, n| {
                        for _ in 0..n {
                            match memory {
                                Memory::One => one(
                                    watch,
                                    &cpus,
                                    &Mapping::zero_fill(threads * SHARE)?.small(),
                                )?,
                                Memory::Large => {
                                    one(watch, &cpus, &Mapping::zero_fill(threads * SHARE)?)?;
                                }
                                Memory::Separate => separate(watch, &cpus)?,
                                Memory::File => {
                                    let shared = Mapping::new(
                                        Some(&file),
                                        SHARE,
                                        libc::PROT_READ,
                                        libc::MAP_SHARED,
                                    )?;
                                    same(watch, &cpus, &shared)?;
                                }
                            }
                        }
                        Ok(())
                    })
                })?;
        }
    }
    Ok(())
}

/// Each thread writes its part.
fn one(watch: &mut Watch, cpus: &[usize], memory: &Mapping) -> Result<(), Failure> {
    watch.take(|| {
        together(cpus, |thread| {
            memory.write_part(thread * SHARE, (thread + 1) * SHARE);
            Ok(())
        })
    })
}

/// Each thread writes its mapping.
fn separate(watch: &mut Watch, cpus: &[usize]) -> Result<(), Failure> {
    let map = |_: &usize| Ok(Mapping::zero_fill(SHARE)?.small());
    let mappings = cpus
        .iter()
        .map(map)
        .collect::<Result<Vec<Mapping>, Failure>>()?;
    watch.take(|| {
        together(cpus, |thread| {
            mappings[thread].write_pages();
            Ok(())
        })
    })
}

/// All threads read everything.
fn same(watch: &mut Watch, cpus: &[usize], memory: &Mapping) -> Result<(), Failure> {
    let sum = AtomicU64::new(0);
    watch.take(|| {
        together(cpus, |_| {
            sum.fetch_add(memory.read_pages(), Ordering::Relaxed);
            Ok(())
        })
    })
}
