//! UDP between two programs of this machine.

use crate::movement::{Line, flow, flow::Shape};
use crate::{Bench, Experiment, Failure};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "udp-loopback",
    title: "latency and bandwidth of UDP by 127.0.0.1",
    help: "\
Two programs, on one CPU or (-2cpu) on two, with a UDP socket each.

latency         one byte there and one back: ns a round trip
bandwidth-SIZE  datagrams of SIZE bytes, stamped and looked at in every page: MiB/s
                The receiver answers after each window of 32 KiB, or of one datagram, so that
                none is lost for want of room.",
    run,
};

/// A datagram has at most 65,507 bytes.
const SIZES: [usize; 4] = [64, 1 << 10, 4 << 10, 32 << 10];

/// Bytes in flight. Linux charges much more than the bytes of a small datagram to its buffer of 208
/// KiB.
const WINDOW: usize = 32 << 10;
/// Datagrams in flight.
const MOST: usize = 64;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for cpu in [0, 1] {
        flow::latency(bench, "udp-loopback/", Line::Udp, cpu)?;
    }
    for size in SIZES {
        for cpu in [0, 1] {
            let window = (WINDOW / size).clamp(1, MOST);
            let shape = Shape {
                cpu,
                window,
                ..Shape::of(size)
            };
            flow::bandwidth(bench, "udp-loopback/", Line::Udp, shape)?;
        }
    }
    Ok(())
}
