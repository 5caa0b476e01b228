//! Allocates anonymous memory up to the machine's memory and beyond (`uvm.txt` Figure 5).

use crate::mapping::Mapping;
use crate::{Bench, Experiment, Failure, Row, Unit, memory, scratch};

/// Allocation up to and beyond the machine's memory.
pub const EXPERIMENT: Experiment = Experiment {
    name: "memory-pressure",
    title: "Memory allocation up to and beyond memory",
    help: "\
A program maps anonymous memory, writes each page, and gives it back; one operation is all of that,
in seconds. Sizes are parts of the memory that is available when the row starts. Beyond it a kernel
has to page out, as in the paper's figure; where it cannot, the row says what is missing (swap
space), and the memory is not touched.

Rows:
  memory-pressure/allocate-PART-percent  for 10, 50, 90 (--full: to 200)
  memory-pressure/full-PART-percent      1 MiB is mapped, written and unmapped (nanoseconds) while
                                         the program holds that part,
                                         for 10 and 90 (--full: 50 and 110, too)",
    run,
};

/// Percent of the available memory that a program may take without swap space.
const MOST_WITHOUT_SWAP: u64 = 95;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let full = bench.is_full();
    let parts: &[u64] = if full {
        &[10, 25, 50, 75, 90, 110, 125, 150, 175, 200]
    } else {
        // Beyond memory Linux takes minutes.
        &[10, 50, 90]
    };
    for &part in parts {
        let row = bench.row(format!("memory-pressure/allocate-{part}-percent"));
        beyond(part, row.unit(Unit::Seconds)).run(|meter| {
            let size = size(part)?;
            meter.measure(|n| {
                for _ in 0..n {
                    Mapping::zero_fill(size)?.write_pages();
                }
                Ok(())
            })
        })?;
    }
    let parts: &[u64] = if full { &[10, 50, 90, 110] } else { &[10, 90] };
    for &part in parts {
        let row = bench.row(format!("memory-pressure/full-{part}-percent"));
        beyond(part, row.batch(5)).run(|meter| {
            let held = Mapping::zero_fill(size(part)?)?;
            held.write_pages();
            meter.measure(|n| {
                for _ in 0..n {
                    Mapping::zero_fill(1 << 20)?.small().write_pages();
                }
                Ok(())
            })
        })?;
    }
    Ok(())
}

/// Measures a row that takes so many percent of the memory; it waits for the swap disk if that is
/// more than there is.
fn beyond<'b, 'a>(part: u64, row: Row<'b, 'a>) -> Row<'b, 'a> {
    if part > MOST_WITHOUT_SWAP {
        row.waits_for_disks()
    } else {
        row
    }
}

/// Returns so many percent of the available memory, in bytes.
///
/// # Errors
/// [`Failure::Missing`] when there is not so much, swap space included.
fn size(percent: u64) -> Result<usize, Failure> {
    let available = memory::amount("MemAvailable")?;
    let wanted = available / 100 * percent;
    // A kernel needs some memory of its own to page out with.
    let reserve = available / 100 * (100 - MOST_WITHOUT_SWAP);
    if percent > MOST_WITHOUT_SWAP {
        scratch::swap()?;
        if wanted + reserve > available + memory::amount("SwapFree")? {
            return Err(Failure::Missing("swap space".into()));
        }
    }
    Ok((wanted as usize).next_multiple_of(2 << 20))
}
