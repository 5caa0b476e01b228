//! Pipes: latency and bandwidth.

use crate::movement::{self, Line, flow, flow::Shape};
use crate::{Bench, Experiment, Failure};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "pipe",
    title: "latency and bandwidth of pipes between two programs",
    help: "\
Two programs, on one CPU or (-2cpu) on two, joined by pipes.

latency        one byte there and one back, by two pipes: ns a round trip
bandwidth-SIZE one program writes messages of SIZE bytes, the other reads them: MiB/s
               Each message is stamped in every page by the writer, and the reader looks at the
               stamps (fbufs.txt section 4); -untouched leaves that out.
               Buffers begin at a page's start; with -unaligned at two other places.
               64KiB is lmbench's bw_pipe, as in ephemeral-mappings.txt 6.3.
create-close   pipe2 and two closes: ns

--full measures every size in every variant.",
    run,
};

const SIZES: [usize; 8] = [
    64,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
];

/// Sizes that the short set measures unaligned and untouched, too.
const VARIED: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for cpu in [0, 1] {
        flow::latency(bench, "pipe/", Line::Pipe, cpu)?;
    }
    for size in SIZES {
        let shape = Shape::of(size);
        let all = bench.is_full();
        for cpu in [0, 1] {
            flow::bandwidth(bench, "pipe/", Line::Pipe, Shape { cpu, ..shape })?;
            if all || (cpu == 0 && VARIED.contains(&size)) {
                let unaligned = Shape {
                    cpu,
                    aligned: false,
                    ..shape
                };
                flow::bandwidth(bench, "pipe/", Line::Pipe, unaligned)?;
                let untouched = Shape {
                    cpu,
                    touched: false,
                    ..shape
                };
                flow::bandwidth(bench, "pipe/", Line::Pipe, untouched)?;
            }
        }
    }
    bench.row("pipe/create-close").batch(200).measure(|count| {
        for _ in 0..count {
            drop(movement::pipe()?);
        }
        Ok(())
    })
}
