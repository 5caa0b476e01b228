//! TCP between two programs of this machine.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::movement::{Line, flow, flow::Shape};
use crate::{Bench, Experiment, Failure, Meter, Unit};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "tcp-loopback",
    title: "latency and bandwidth of TCP by 127.0.0.1, connections per second",
    help: "\
Two programs, on one CPU or (-2cpu) on two, joined by a TCP connection (TCP_NODELAY).

latency         one byte there and one back: ns a round trip
bandwidth-SIZE  writes of SIZE bytes, stamped and looked at in every page: MiB/s
                64KiB is netperf's stream with buffers of 64 KB (ephemeral-mappings.txt 6.5.1)
connect-close   connect, accept, close of both ends, the server's first: connections a second

--full measures every size, also with unaligned buffers and without stamps.",
    run,
};

const SIZES: [usize; 5] = [64, 1 << 10, 16 << 10, 64 << 10, 1 << 20];
const SHORT: [usize; 3] = [1 << 10, 64 << 10, 1 << 20];

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let all = bench.is_full();
    for cpu in [0, 1] {
        flow::latency(bench, "tcp-loopback/", Line::Tcp, cpu)?;
    }
    for size in SIZES {
        if !all && !SHORT.contains(&size) {
            continue;
        }
        let shape = Shape::of(size);
        for cpu in [0, 1] {
            flow::bandwidth(bench, "tcp-loopback/", Line::Tcp, Shape { cpu, ..shape })?;
            if all {
                let unaligned = Shape {
                    cpu,
                    aligned: false,
                    ..shape
                };
                flow::bandwidth(bench, "tcp-loopback/", Line::Tcp, unaligned)?;
                let untouched = Shape {
                    cpu,
                    touched: false,
                    ..shape
                };
                flow::bandwidth(bench, "tcp-loopback/", Line::Tcp, untouched)?;
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
