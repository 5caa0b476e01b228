//! TCP between two programs of this machine.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::movement::{Line, flow, flow::Shape, flow::Variant};
use crate::{Bench, Experiment, Failure, Meter, Unit};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "tcp-loopback",
    title: "latency and bandwidth of TCP by 127.0.0.1, connections per second",
    help: "\
Two programs, on one CPU or (-2cpu) on two, joined by a TCP connection (TCP_NODELAY).

latency         one byte there and one back: ns a round trip
bandwidth-SIZE  writes of SIZE bytes, stamped and looked at in every page: MiB/s
                -untouched: no stamps; -filled: the writer writes, and the reader reads, all bytes
                64KiB is netperf's stream with buffers of 64 KB (ephemeral-mappings.txt 6.5.1)
connect-close   connect, accept, close of both ends, the server's first: connections a second

--full measures every size, also with unaligned buffers and without stamps.",
    run,
};

const SIZES: [usize; 5] = [64, 1 << 10, 16 << 10, 64 << 10, 1 << 20];
const SHORT: [usize; 3] = [1 << 10, 64 << 10, 1 << 20];

/// Returns the variants in which a size is measured.
fn variants(size: usize, all: bool) -> &'static [Variant] {
    use Variant::{Filled, Plain, Untouched};
    match size {
        _ if all => &Variant::ALL,
        0x1_0000 | 0x10_0000 => &[Plain, Untouched, Filled],
        _ => &[Plain],
    }
}

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let all = bench.is_full();
    for cpu in [0, 1] {
        flow::latency(bench, "tcp-loopback/", Line::Tcp, cpu)?;
    }
    for size in SIZES {
        if !all && !SHORT.contains(&size) {
            continue;
        }
        for cpu in [0, 1] {
            for &variant in variants(size, all) {
                let shape = Shape {
                    cpu,
                    ..Shape::of(size)
                };
                flow::bandwidth(bench, "tcp-loopback/", Line::Tcp, shape.varied(variant))?;
            }
        }
    }
    let row = bench.row("tcp-loopback/connect-close");
    row.unit(Unit::OperationsPerSecond)
        .batch(64)
        .run(connect_close)
}

fn connect_close(meter: &mut Meter) -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    meter.measure(|count| {
        for _ in 0..count {
            let near = TcpStream::connect(address)?;
            let (far, _) = listener.accept()?;
            drop(far);
            drop(near);
        }
        Ok(())
    })
}
