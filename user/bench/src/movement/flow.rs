//! Bandwidth and latency over a [`Line`], between this program and another one.

use std::io::{self, Write};

use super::{
    Buffer, Line, Order, Peer, Side, check_filled, check_pattern, check_stamp, fill, fill_pattern,
    read_whole, size_name, stamp, wrong,
};
use crate::{Bench, Failure, Row};

/// Bytes that a batch moves, if that is at least [`LEAST_MESSAGES`].
const BATCH_BYTES: usize = 1 << 20;
const LEAST_MESSAGES: usize = 4;
/// Least number of messages in a batch.
const MOST_MESSAGES: usize = 1024;
/// Round trips in a batch.
const ROUND_TRIPS: u64 = 200;

/// Offsets of unaligned buffers in their pages: different ones, as in two independent programs.
const UNALIGNED: (usize, usize) = (64, 1000);

/// The acts of a receiver.
const RECEIVE: u8 = 0;
const VERIFY: u8 = 1;

/// What the two programs do with the bytes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// Neither looks at them.
    None,
    /// The sender stamps each page, and the receiver checks the stamps.
    Stamps,
    /// The sender writes all of them anew, and the receiver reads all.
    All,
}

/// What differs from a stream of aligned, stamped messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// Nothing.
    Plain,
    /// The buffers are not page-aligned.
    Unaligned,
    /// [`Touch::None`].
    Untouched,
    /// [`Touch::All`].
    Filled,
}

impl Variant {
    /// All of them.
    pub const ALL: [Variant; 4] = [
        Variant::Plain,
        Variant::Unaligned,
        Variant::Untouched,
        Variant::Filled,
    ];
}

/// Parameters of a stream of messages.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of a message: of a write, and of a read.
    pub size: usize,
    /// Whether both buffers are page-aligned.
    pub aligned: bool,
    /// What becomes of the bytes.
    pub touch: Touch,
    /// The receiver's CPU; the sender's is 0.
    pub cpu: usize,
    /// Messages in flight before the receiver acknowledges them, for a line that would drop more; 0
    /// for a line that blocks the sender.
    pub window: usize,
}

impl Shape {
    /// Returns a stream of aligned, stamped messages of `size` bytes on one CPU.
    pub fn of(size: usize) -> Shape {
        Shape {
            size,
            aligned: true,
            touch: Touch::Stamps,
            cpu: 0,
            window: 0,
        }
    }

    /// Returns the same stream in a variant.
    pub fn varied(self, variant: Variant) -> Shape {
        match variant {
            Variant::Plain => self,
            Variant::Unaligned => Shape {
                aligned: false,
                ..self
            },
            Variant::Untouched => Shape {
                touch: Touch::None,
                ..self
            },
            Variant::Filled => Shape {
                touch: Touch::All,
                ..self
            },
        }
    }

    /// Returns the variant's name: `bandwidth-64KiB-2cpu`, `bandwidth-4KiB-unaligned`.
    pub fn name(&self) -> String {
        let mut name = format!("bandwidth-{}", size_name(self.size));
        for (is_so, word) in [
            (!self.aligned, "-unaligned"),
            (self.touch == Touch::None, "-untouched"),
            (self.touch == Touch::All, "-filled"),
            (self.cpu != 0, "-2cpu"),
        ] {
            if is_so {
                name.push_str(word);
            }
        }
        name
    }

    /// Returns the messages in a batch.
    fn batch(&self) -> u64 {
        (BATCH_BYTES / self.size).clamp(LEAST_MESSAGES, MOST_MESSAGES) as u64
    }

    /// Returns whether the receiver answers after message `turn` of a batch.
    fn answers(&self, turn: u64) -> bool {
        self.window > 0 && (turn + 1) % self.window as u64 == 0
    }

    fn offsets(&self) -> (usize, usize) {
        if self.aligned { (0, 0) } else { UNALIGNED }
    }
}

/// Measures a stream of messages: the row `PREFIXbandwidth-…`. Every message is received in full
/// before the clock stops; all bytes of two messages are checked before.
///
/// # Errors
/// [`Failure::Output`] only, as for all rows.
pub fn bandwidth(bench: &mut Bench, prefix: &str, line: Line, shape: Shape) -> Result<(), Failure> {
    let row = bench.row(format!("{prefix}{}", shape.name()));
    let row = row.cpus(shape.cpu + 1).bytes(shape.size as u64);
    row.batch(shape.batch()).run(|meter| {
        let mut stream = Stream::start(line, shape)?;
        meter.measure(|count| stream.send(count))
    })
}

/// Measures transfers of so many messages each, an operation of this row.
///
/// # Errors
/// [`Failure::Output`] only, as for all rows.
pub fn transfer(row: Row<'_, '_>, line: Line, shape: Shape, messages: u64) -> Result<(), Failure> {
    let row = row.cpus(shape.cpu + 1).bytes(shape.size as u64 * messages);
    row.run(|meter| {
        let mut stream = Stream::start(line, shape)?;
        meter.measure(|count| stream.send(count * messages))
    })
}

/// Two programs and the line between them.
#[derive(Debug)]
pub struct Stream {
    shape: Shape,
    near: Side,
    peer: Peer,
    outgoing: Buffer,
    /// The next message's number.
    number: u64,
}

impl Stream {
    /// Starts the other program, and sends it two messages of which it checks every byte.
    ///
    /// # Errors
    /// When the line or the program cannot be made, or a byte is wrong.
    pub fn start(line: Line, shape: Shape) -> Result<Stream, Failure> {
        let (near, far) = line.both_ways()?;
        let (from, to) = shape.offsets();
        let mut stream = Stream {
            shape,
            near,
            peer: Peer::start(shape.cpu, receiver(far, shape, to))?,
            outgoing: Buffer::new(shape.size, from)?,
            number: 0,
        };
        for seed in [1, 2] {
            let bytes = stream.outgoing.bytes_mut();
            fill_pattern(bytes, seed);
            let mut to = &stream.near.send;
            stream.peer.with(VERIFY, seed, || to.write_all(bytes))?;
        }
        Ok(stream)
    }

    /// Sends so many messages; returns when the other program has received them all.
    ///
    /// # Errors
    /// When a call fails, or a stamp is wrong.
    pub fn send(&mut self, count: u64) -> Result<(), Failure> {
        let shape = self.shape;
        let (number, outgoing) = (&mut self.number, &mut self.outgoing);
        let near = &self.near;
        self.peer.with(RECEIVE, count, || {
            for turn in 0..count {
                match shape.touch {
                    Touch::None => {}
                    Touch::Stamps => stamp(outgoing.bytes_mut(), *number),
                    Touch::All => fill(outgoing.bytes_mut(), *number),
                }
                *number += 1;
                (&near.send).write_all(outgoing.bytes())?;
                if shape.answers(turn) {
                    read_whole(&near.receive, &mut [0])?;
                }
            }
            Ok(())
        })
    }
}

/// Serves the receiver's orders. Its buffer begins `offset` bytes behind a page's start.
fn receiver(far: Side, shape: Shape, offset: usize) -> impl FnMut(Order) -> io::Result<()> {
    let mut buffer = None;
    let mut number = 0;
    move |order| {
        // Made here, in the receiver's own process.
        if buffer.is_none() {
            buffer = Some(Buffer::new(shape.size, offset)?);
        }
        let Some(incoming) = &mut buffer else {
            return Ok(());
        };
        if order.act == VERIFY {
            read_whole(&far.receive, incoming.bytes_mut())?;
            return check_pattern(incoming.bytes(), order.count);
        }
        for turn in 0..order.count {
            read_whole(&far.receive, incoming.bytes_mut())?;
            match shape.touch {
                Touch::None => {}
                Touch::Stamps => check_stamp(incoming.bytes(), number)?,
                Touch::All => check_filled(incoming.bytes(), number)?,
            }
            number += 1;
            if shape.answers(turn) {
                (&far.send).write_all(&[0])?;
            }
        }
        Ok(())
    }
}

/// Measures round trips of one byte: the row `PREFIXlatency`, or `…-2cpu` if the other program runs
/// on another CPU.
///
/// # Errors
/// [`Failure::Output`] only, as for all rows.
pub fn latency(bench: &mut Bench, prefix: &str, line: Line, cpu: usize) -> Result<(), Failure> {
    let suffix = if cpu == 0 { "" } else { "-2cpu" };
    let row = bench.row(format!("{prefix}latency{suffix}"));
    row.cpus(cpu + 1).batch(ROUND_TRIPS).run(|meter| {
        let (near, far) = line.both_ways()?;
        let mut peer = Peer::start(cpu, move |order| {
            let mut byte = [0];
            for _ in 0..order.count {
                read_whole(&far.receive, &mut byte)?;
                byte[0] = !byte[0];
                (&far.send).write_all(&byte)?;
            }
            Ok(())
        })?;
        meter.measure(|count| {
            peer.with(RECEIVE, count, || {
                for turn in 0..count {
                    let sent = turn as u8;
                    (&near.send).write_all(&[sent])?;
                    let mut byte = [0];
                    read_whole(&near.receive, &mut byte)?;
                    if byte[0] != !sent {
                        return Err(wrong(format!("{sent} came back as {}", byte[0])));
                    }
                }
                Ok(())
            })
        })
    })
}
