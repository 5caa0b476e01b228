//! Pipes: latency and bandwidth.

use crate::movement::{self, Line, flow, flow::Shape, flow::Variant};
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
               stamps (fbufs.txt section 4); -untouched leaves that out; with -filled the writer
               writes all of its buffer anew, and the reader reads all.
               Buffers begin at a page's start; with -unaligned at two other places.
bw-pipe        50 MB in 800 untouched messages of 64 KiB, an operation: lmbench's program, as in
               ephemeral-mappings.txt 6.3
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

/// Messages of lmbench's `bw_pipe`: 50 MB in all.
const BW_PIPE: u64 = 800;

/// Returns the variants in which a size is measured.
fn variants(size: usize, cpu: usize, all: bool) -> &'static [Variant] {
    use Variant::{Filled, Plain, Unaligned, Untouched};
    match (size, cpu) {
        _ if all => &Variant::ALL,
        (0x1000, 0) => &[Plain, Unaligned, Untouched],
        (0x1_0000 | 0x10_0000, 0) => &Variant::ALL,
        (0x1_0000 | 0x10_0000, _) => &[Plain, Untouched, Filled],
        _ => &[Plain],
    }
}

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for cpu in [0, 1] {
        flow::latency(bench, "pipe/", Line::Pipe, cpu)?;
    }
    for size in SIZES {
        for cpu in [0, 1] {
            for &variant in variants(size, cpu, bench.is_full()) {
                let shape = Shape {
                    cpu,
                    ..Shape::of(size)
                };
                flow::bandwidth(bench, "pipe/", Line::Pipe, shape.varied(variant))?;
            }
        }
    }
    for (cpu, suffix) in [(0, ""), (1, "-2cpu")] {
        let row = bench.row(format!("pipe/bw-pipe{suffix}"));
        let shape = Shape {
            cpu,
            ..Shape::of(64 << 10).varied(Variant::Untouched)
        };
        flow::transfer(row, Line::Pipe, shape, BW_PIPE)?;
    }
    bench.row("pipe/create-close").batch(200).measure(|count| {
        for _ in 0..count {
            drop(movement::pipe()?);
        }
        Ok(())
    })
}
