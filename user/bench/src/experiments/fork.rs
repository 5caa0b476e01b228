//! Forks and waits for the child (`uvm.txt` Figure 6).

use crate::mapping::Mapping;
use crate::{Bench, Experiment, Failure, call};

/// Fork with growing memory.
pub const EXPERIMENT: Experiment = Experiment {
    name: "fork",
    title: "Fork and wait: processes with more and more memory",
    help: "\
A process with a private mapping of some size forks; the child ends at once; the process waits for
it. One operation is such a cycle. The mapping is as any program gets it: a kernel may use large
pages for it.

Rows, for 0, 1, 16 and 64 MiB (--full: 2, 4, 8, 32 and 48, too):
  fork/SIZE               mapped, and never touched
  fork/SIZE-written       each page written once, before the first fork
  fork/SIZE-rewritten     each page written by the parent after each cycle (part of the time)
  fork/SIZE-child-writes  each page written by the child before it ends: the cost of copy-on-write

The paper's upper two curves are child-writes, its lower two written.",
    run,
};

const SHORT: &[usize] = &[1, 16, 64];
const FULL: &[usize] = &[1, 2, 4, 8, 16, 32, 48, 64];
/// Largest size written after each fork in the short set, where a page costs microseconds.
const SHORT_WRITES: usize = 16;

/// Writer of the memory, and time of the writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    Never,
    Before,
    Parent,
    Child,
}

impl Writes {
    const ALL: [Self; 4] = [Self::Never, Self::Before, Self::Parent, Self::Child];

    fn suffix(self) -> &'static str {
        match self {
            Self::Never => "",
            Self::Before => "-written",
            Self::Parent => "-rewritten",
            Self::Child => "-child-writes",
        }
    }
}

fn run(bench: &mut Bench) -> Result<(), Failure> {
    bench
        .row("fork/0MiB")
        .batch(20)
        .measure(|n| (0..n).try_for_each(|_| cycle(|| {})))?;
    let full = bench.is_full();
    for &size in if full { FULL } else { SHORT } {
        for writes in Writes::ALL {
            let each_time = matches!(writes, Writes::Parent | Writes::Child);
            if each_time && size > SHORT_WRITES && !full {
                continue;
            }
            // A count for which a batch of any size takes some milliseconds.
            let batch = if each_time { (16 / size).max(1) } else { 10 };
            bench
                .row(format!("fork/{size}MiB{}", writes.suffix()))
                .batch(batch as u64)
                .run(|meter| {
                    let memory = Mapping::zero_fill(size << 20)?;
                    if writes != Writes::Never {
                        memory.write_pages();
                    }
                    meter.measure(|n| {
                        for _ in 0..n {
                            match writes {
                                Writes::Child => cycle(|| memory.write_pages())?,
                                _ => cycle(|| {})?,
                            }
                            if writes == Writes::Parent {
                                memory.write_pages();
                            }
                        }
                        Ok(())
                    })
                })?;
        }
    }
    Ok(())
}

/// Forks a child that does `work` and ends, and waits for it.
fn cycle(work: impl FnOnce()) -> Result<(), Failure> {
    let child = call!(fork())?;
    if child == 0 {
        work();
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    call!(waitpid(child, &mut status, 0))?;
    match status {
        0 => Ok(()),
        status => Err(format!("the child ended with status {status:#x}").into()),
    }
}
