//! Changes of mappings while other CPUs run threads of the same program, or other programs (TLB
//! shootdowns).

use crate::mapping::{Mapping, PAGE};
use crate::{Bench, Experiment, Failure, Partner, Threads, cpus};

/// The cost of TLB coherence.
pub const EXPERIMENT: Experiment = Experiment {
    name: "mmap-threads",
    title: "Mappings changed while other CPUs run: TLB shootdowns",
    help: "\
One operation changes mappings whose pages were just used, on CPU 0. Meanwhile the other CPUs do
nothing (alone), run threads of the same process (beside-threads), which have to be told, or other
processes (beside-processes), which must not be:
the counters ipi_shootdown and tlb_remote show it (interrupts_shootdown and interrupts_call on
Linux).

Rows, each -alone, -beside-threads and -beside-processes:
  mmap-threads/unmap-1        a page is mapped, written and unmapped
  mmap-threads/unmap-64       64 pages are
  mmap-threads/protect-1      a written page is made read-only, then writable and written again
  mmap-threads/protect-64     64 pages are
  mmap-threads/dontneed-1     a page is written and given up by MADV_DONTNEED
  mmap-threads/dontneed-64    64 pages are
  mmap-threads/untouched-1    a page is mapped and unmapped, and never used: no CPU has to be told",
    run,
};

/// The load on the other CPUs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nobody,
    Threads,
    Processes,
}

/// One kind of change, done to so many pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Unmap,
    Protect,
    DontNeed,
    Untouched,
}

const RIGHTS: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for (name, change, pages, batch) in [
        ("unmap-1", Change::Unmap, 1, 100),
        ("unmap-64", Change::Unmap, 64, 10),
        ("protect-1", Change::Protect, 1, 100),
        ("protect-64", Change::Protect, 64, 10),
        ("dontneed-1", Change::DontNeed, 1, 100),
        ("dontneed-64", Change::DontNeed, 64, 10),
        ("untouched-1", Change::Untouched, 1, 100),
    ] {
        for (suffix, beside) in [
            ("alone", Beside::Nobody),
            ("beside-threads", Beside::Threads),
            ("beside-processes", Beside::Processes),
        ] {
            bench
                .row(format!("mmap-threads/{name}-{suffix}"))
                .cpus(if beside == Beside::Nobody { 1 } else { 2 })
                .batch(batch)
                .run(|meter| {
                    let others: Vec<usize> = (1..cpus::count()).collect();
                    let _threads = match beside {
                        Beside::Threads => Some(Threads::spin(&others)?),
                        _ => None,
                    };
                    let mut processes = Vec::new();
                    if beside == Beside::Processes {
                        for &cpu in &others {
                            processes.push(Partner::start(cpu, || {
                                loop {
                                    std::hint::spin_loop();
                                }
                            })?);
                        }
                    }
                    let memory = Mapping::zero_fill(pages * PAGE)?.small();
                    meter.measure(|n| (0..n).try_for_each(|_| operation(change, &memory)))
                })?;
        }
    }
    Ok(())
}

fn operation(change: Change, memory: &Mapping) -> Result<(), Failure> {
    match change {
        Change::Unmap => Mapping::zero_fill(memory.len())?.write_pages(),
        Change::Untouched => drop(Mapping::zero_fill(memory.len())?),
        Change::Protect => {
            memory.write_pages();
            memory.protect(libc::PROT_READ)?;
            memory.protect(RIGHTS)?;
        }
        Change::DontNeed => {
            memory.write_pages();
            memory.advise(libc::MADV_DONTNEED)?;
        }
    }
    Ok(())
}
