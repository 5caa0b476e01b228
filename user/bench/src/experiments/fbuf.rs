//! The cost of moving a page from one program to another (`fbufs.txt` section 4, Table 1), the
//! throughput of one crossing (Figure 3), and the latency of rings of fbufs.

mod crossing;
#[cfg(feature = "iceoryx2")]
mod iceoryx;
mod udp;

use std::time::{Duration, Instant};

use libfbuf::{Backend, Mode};

use crate::movement::flow::{Shape, Stream};
use crate::movement::{Line, PAGE, size_name};
use crate::{Bench, Experiment, Failure};
pub(super) use crossing::enter;
use crossing::{Calls, Lent, ThroughKernel, ThroughRing};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "fbuf",
    title: "What each page of a message costs, as in fbufs.txt Table 1",
    help: "\
One program writes a word into each page of a message and passes it on; the other reads a word of
each page and answers. Each message is allocated anew, and freed by both. What each page of a
message adds to its time, without what a message costs by itself: that of 16 pages less that of one,
by 15; ns. All but the copies, the socket and the memfds need Causeway's
devices.

fbuf/page-cached-volatile  fbufs that stay mapped in both, and may be written at any time
fbuf/page-volatile         they are mapped in the receiver for each message
fbuf/page-cached           they stay mapped, and the sender loses its right to write until they are
                           freed
fbuf/page-plain            both
fbuf/page-ring             cached and volatile, by a ring without the kernel
fbuf/page-memfd            the same ring in memory of memfds
fbuf/page-cow              by copy-on-write: pages that are lent by /dev/causeway
fbuf/page-copy             through a pipe, which has the meaning of a copy
fbuf/page-socket           through a local stream socket

One crossing, each message answered, for 4, 16, 64, 256 KiB and 1 MiB (SIZE); MiB/s (Figure 3):
  fbuf/bandwidth-cached-volatile-SIZE, ...-volatile-SIZE, ...-cached-SIZE, ...-plain-SIZE,
  ...-ring-SIZE, ...-cow-SIZE, ...-copy-SIZE

The same as a time, for 64 B, 4 KiB, 64 KiB and 1 MiB, the answer by the same way; ns. With -2cpu
the other program runs on another CPU:
  fbuf/latency-ring-SIZE, ...-call-SIZE (through the kernel), ...-memfd-SIZE, ...-pipe-SIZE,
  ...-socket-SIZE, ...-iceoryx2-SIZE (the crate iceoryx2, whose bytes both programs can write)

UDP/IP by netserver (Figure 4), whose packets of PDU bytes (4, 16, 32 KiB) turn around below IP, for
4 KiB to 1 MiB; MiB/s:
  fbuf/udp-single-PDU-SIZE   the sender, the server and the receiver in one program
  fbuf/udp-two-cached-PDU-SIZE, ...-two-volatile-...
                             the sender and the protocols in one, the receiver in another
  fbuf/udp-cached-PDU-SIZE   in three, by cached and volatile fbufs through the kernel
  fbuf/udp-volatile-PDU-SIZE in three, by uncached ones
  fbuf/udp-rings-PDU-SIZE    in three, by cached and volatile fbufs and rings
  fbuf/udp-kernel-SIZE       the kernel's own UDP by 127.0.0.1, in datagrams of at most 32 KiB",
    run,
};

/// Pages of the longer message: as many as a pipe holds.
const PAGES: usize = 16;

/// Messages of each size in a batch.
const MESSAGES: u64 = 64;

/// Repetitions of both sizes in a batch, of which the shortest count: noise would hide the small
/// difference.
const TURNS: usize = 3;

/// Bytes of the messages of Figure 3.
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Messages of Figure 4 in a batch, at least.
const LEAST_UDP: u64 = 32;

/// Bytes of a packet of Figure 4.
const PDUS: [usize; 3] = [4 << 10, 16 << 10, 32 << 10];

/// Bytes of messages whose latency is measured.
const LATENCY_SIZES: [usize; 4] = [64, 4 << 10, 64 << 10, 1 << 20];

/// A way from one program to another.
#[derive(Clone, Copy)]
enum Way {
    /// A message through the kernel.
    Kernel(Mode),
    /// The same, whose answer comes by the same system call.
    Call,
    Ring(Backend),
    /// Pages that are lent.
    Lent,
    Line(Line),
    /// Middleware in shared memory.
    #[cfg(feature = "iceoryx2")]
    Samples,
}

const fn mode(is_uncached: bool, is_secured: bool) -> Way {
    Way::Kernel(Mode {
        is_uncached,
        is_secured,
    })
}

/// The rows of Table 1; Figure 3 has them by the same names.
const WAYS: [(&str, Way); 9] = [
    ("cached-volatile", mode(false, false)),
    ("volatile", mode(true, false)),
    ("cached", mode(false, true)),
    ("plain", mode(true, true)),
    ("ring", Way::Ring(Backend::Device)),
    ("memfd", Way::Ring(Backend::Memfd)),
    ("cow", Way::Lent),
    ("copy", Way::Line(Line::Pipe)),
    ("socket", Way::Line(Line::Unix(libc::SOCK_STREAM))),
];

/// Ways whose latency is measured.
const LATENCY_WAYS: &[(&str, Way)] = &[
    ("ring", Way::Ring(Backend::Device)),
    ("call", Way::Call),
    ("memfd", Way::Ring(Backend::Memfd)),
    ("pipe", Way::Line(Line::Pipe)),
    ("socket", Way::Line(Line::Unix(libc::SOCK_STREAM))),
    #[cfg(feature = "iceoryx2")]
    ("iceoryx2", Way::Samples),
];

/// A started way, for messages of one size, each of which is answered.
trait Crossing {
    /// Sends so many messages; returns when the last was answered.
    fn send(&mut self, count: u64) -> Result<(), Failure>;
}

impl Crossing for Stream {
    fn send(&mut self, count: u64) -> Result<(), Failure> {
        Stream::send(self, count)
    }
}

impl Way {
    fn start(self, size: usize, cpu: usize) -> Result<Box<dyn Crossing>, Failure> {
        Ok(match self {
            Way::Kernel(mode) => Box::new(ThroughKernel::start(mode, size)?),
            Way::Call => Box::new(Calls::start(size, cpu)?),
            Way::Ring(backend) => Box::new(ThroughRing::start(backend, size, cpu)?),
            Way::Lent => Box::new(Lent::start(size)?),
            #[cfg(feature = "iceoryx2")]
            Way::Samples => Box::new(iceoryx::BySamples::start(size, cpu)?),
            Way::Line(line) => {
                let shape = Shape {
                    // Each message is answered, so that both sizes have the same switches.
                    window: 1,
                    cpu,
                    ..Shape::of(size)
                };
                Box::new(Stream::start(line, shape)?)
            }
        })
    }
}

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for (name, way) in WAYS {
        page(bench, name, way)?;
    }
    for (name, way) in WAYS {
        if name == "socket" || name == "memfd" {
            continue;
        }
        for size in SIZES {
            let row = bench.row(format!("fbuf/bandwidth-{name}-{}", size_name(size)));
            row.bytes(size as u64).batch(batch(size)).run(|meter| {
                let mut crossing = way.start(size, 0)?;
                meter.measure(|count| crossing.send(count))
            })?;
        }
    }
    udp(bench)?;
    for (cpu, suffix) in [(0, ""), (1, "-2cpu")] {
        for &(name, way) in LATENCY_WAYS {
            for size in LATENCY_SIZES {
                let row = format!("fbuf/latency-{name}-{}{suffix}", size_name(size));
                let row = bench.row(row).cpus(cpu + 1);
                row.batch(batch(size)).run(|meter| {
                    let mut crossing = way.start(size, cpu)?;
                    meter.measure(|count| crossing.send(count))
                })?;
            }
        }
    }
    Ok(())
}

/// Figure 4.
fn udp(bench: &mut Bench) -> Result<(), Failure> {
    for size in SIZES {
        let mut measure = |name: String, start: &dyn Fn() -> Result<Box<dyn Crossing>, Failure>| {
            let row = bench.row(format!("fbuf/udp-{name}-{}", size_name(size)));
            // The batch before the first that counts fills the allocators' lists.
            let batch = batch(size).max(LEAST_UDP);
            row.bytes(size as u64).batch(batch).run(|meter| {
                let mut crossing = start()?;
                meter.measure(|count| crossing.send(count))
            })
        };
        for pdu in PDUS {
            let pdu_name = size_name(pdu);
            measure(format!("single-{pdu_name}"), &|| {
                Ok(Box::new(udp::OneDomain::start(pdu, size)?))
            })?;
            for is_uncached in [false, true] {
                let name = if is_uncached { "volatile" } else { "cached" };
                let mode = Mode {
                    is_uncached,
                    is_secured: false,
                };
                measure(format!("two-{name}-{pdu_name}"), &|| {
                    Ok(Box::new(udp::TwoDomains::start(mode, pdu, size)?))
                })?;
                measure(format!("{name}-{pdu_name}"), &|| {
                    Ok(Box::new(udp::ThreeDomains::start(mode, false, pdu, size)?))
                })?;
            }
            measure(format!("rings-{pdu_name}"), &|| {
                let mode = Mode::CACHED_VOLATILE;
                Ok(Box::new(udp::ThreeDomains::start(mode, true, pdu, size)?))
            })?;
        }
        measure("kernel".into(), &|| {
            Ok(Box::new(udp::ByKernel::start(size)?))
        })?;
    }
    Ok(())
}

/// Returns the messages in a batch.
fn batch(size: usize) -> u64 {
    ((1 << 20) / size as u64).clamp(4, 100)
}

/// Measures what a page adds to a message: nothing where other load hides it, which the median of
/// the batches leaves out.
fn page(bench: &mut Bench, name: &str, way: Way) -> Result<(), Failure> {
    let row = bench.row(format!("fbuf/page-{name}"));
    row.batch(MESSAGES).run(|meter| {
        let mut long = way.start(PAGES * PAGE, 0)?;
        let mut short = way.start(PAGE, 0)?;
        meter.timed(|watch, count| {
            let (mut most, mut least) = (Duration::MAX, Duration::MAX);
            for _ in 0..TURNS {
                most = most.min(time(&mut *long, count)?);
                least = least.min(time(&mut *short, count)?);
            }
            watch.add(most.saturating_sub(least) / (PAGES as u32 - 1));
            Ok(())
        })
    })
}

/// Measures the time of so many messages.
fn time(crossing: &mut dyn Crossing, count: u64) -> Result<Duration, Failure> {
    let start = Instant::now();
    crossing.send(count)?;
    Ok(start.elapsed())
}
