//! UDP/IP between two guests (`fbufs.txt` section 4, Figures 5 and 6): throughput over message
//! size, and the CPU load of the receiving one.
//!
//! ```text
//!   this guest                          the second guest, which runs `bench --second`
//!   row: Pair::start ── START ────────> serve: ends the last receiver, starts another
//!        End::send   ── messages ─────> End::receive
//!        acknowledged <── a number ──── after half a window
//!
//!   row: Reverse::start ── SEND ──────> serve: ends the last part, starts a sender
//!                       ── MORE ──────> End::send
//!        End::receive  <── messages ───
//! ```
//!
//! - [`control`]: what the guests say to each other besides messages, in frames of their own.
//! - [`ends`]: a sender or receiver of each way.

mod control;
mod ends;

use std::time::{Duration, Instant};

use libfbuf::{Backend, Mode};

use super::fbuf::enter;
use crate::movement::size_name;
use crate::partner::Partner;
use crate::sample::Unit;
use crate::{Bench, Experiment, Failure};
use control::{Control, Order, Times};
use ends::{Came, End, Side};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "fbuf-network",
    title: "UDP/IP between two guests, as in fbufs.txt Figures 5 and 6",
    help: "\
This guest sends messages of SIZE bytes (4 KiB to 1 MiB) to a second one, with a word in each page,
which the receiver reads. Packets have 16 KiB. A window of 2 MiB, of 32 messages at most, is in
flight; what is lost is sent again.

fbuf-network/kernel-SIZE   the kernel's sockets, in datagrams of at most 32 KiB; MiB/s
fbuf-network/user-SIZE     UDP/IP in the programs themselves, over packet sockets; what comes is
                           read in fbufs of the kernel, where the card has written it
fbuf-network/copied-SIZE   the same, but what comes is copied
fbuf-network/shared-SIZE   netserver and a program, by cached, volatile fbufs and rings; both read
                           what the card has written
fbuf-network/rings-SIZE    the same, but netserver copies what is for the program
fbuf-network/cached-SIZE   netserver and the program, by cached and volatile fbufs
fbuf-network/plain-SIZE    the same by uncached and secured ones
fbuf-network/receive-...   the same rows, in which the second guest sends and this one receives
fbuf-network/load-...      the part of the time in which the receiving guest's CPU is not idle; %",
    run,
};

/// Bytes of messages.
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Bytes in flight, and most messages.
const WINDOW: usize = 2 << 20;
const MOST: u64 = 32;

/// How long an acknowledgement may take before what is not acknowledged is sent again.
const PATIENCE: Duration = Duration::from_millis(200);

/// How often in a row nothing may come.
const TRIES: u32 = 50;

/// How long the load is measured.
const LOAD_TIME: Duration = Duration::from_secs(1);

/// Bytes of a batch of messages.
const BATCH_BYTES: usize = 4 << 20;

/// A way from one guest to the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// The kernel's sockets.
    Kernel,
    /// The protocols in the program.
    User {
        /// Whether it reads packets where the card has written them.
        in_place: bool,
    },
    /// The protocols in a server.
    Server {
        /// The mode of the paths.
        mode: Mode,
        /// Whether messages go by rings.
        has_rings: bool,
        /// Whether it reads packets where the card has written them.
        in_place: bool,
        /// Whether the program does so, too.
        is_shared: bool,
    },
}

const PLAIN: Mode = Mode {
    is_uncached: true,
    is_secured: true,
};

/// The ways; an order names one by its place.
const WAYS: [(&str, Way); 7] = [
    ("kernel", Way::Kernel),
    ("user", Way::User { in_place: true }),
    ("copied", Way::User { in_place: false }),
    ("shared", server(Mode::CACHED_VOLATILE, true, true)),
    ("rings", server(Mode::CACHED_VOLATILE, true, false)),
    ("cached", server(Mode::CACHED_VOLATILE, false, false)),
    ("plain", server(PLAIN, false, false)),
];

const fn server(mode: Mode, has_rings: bool, is_shared: bool) -> Way {
    Way::Server {
        mode,
        has_rings,
        in_place: !mode.is_uncached,
        is_shared,
    }
}

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let card = match bench.card() {
        Ok(card) => card,
        Err(why) => return bench.row("fbuf-network/kernel-4KiB").value(Err(why)),
    };
    let card = &card;
    if bench.is_second() {
        return serve(card);
    }
    for (place, (name, _)) in WAYS.iter().enumerate() {
        for size in SIZES {
            let row = bench.row(format!("fbuf-network/{name}-{}", size_name(size)));
            let batch = (BATCH_BYTES / size) as u64;
            row.bytes(size as u64).batch(batch).run(|meter| {
                let mut pair = Pair::start(card, place, size)?;
                meter.measure(|count| pair.sender.send(count))?;
                if pair.sender.again > 0 {
                    meter.note(format!("{} times sent again", pair.sender.again));
                }
                Ok(())
            })?;
            let row = bench.row(format!("fbuf-network/receive-{name}-{}", size_name(size)));
            row.bytes(size as u64).batch(batch).run(|meter| {
                let mut pair = Reverse::start(card, place, size)?;
                meter.measure(|count| pair.receive(count))
            })?;
            let row = bench.row(format!("fbuf-network/load-{name}-{}", size_name(size)));
            row.unit(Unit::Percent).run(|meter| {
                let mut pair = Pair::start(card, place, size)?;
                let load = pair.load(batch)?;
                meter.value(load);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Returns how many messages may be in flight.
fn window(size: usize) -> u64 {
    ((WINDOW / size) as u64).clamp(1, MOST)
}

/// The sender here, and the receiver in the second guest.
struct Pair {
    control: Control,
    sender: Sender,
}

impl Pair {
    fn start(card: &str, place: usize, size: usize) -> Result<Self, Failure> {
        let way = way_that_is_there(place)?;
        let mut control = Control::open(card)?;
        control.ask(Order::Start {
            way: place as u8,
            size: size as u32,
        })?;
        let sender = Sender::start(card, way, size, Side::Sender)?;
        Ok(Self { control, sender })
    }

    /// Sends for a while; returns by how many per cent the second guest's CPU was busy.
    fn load(&mut self, batch: u64) -> Result<f64, Failure> {
        let before = self.control.ask(Order::Times)?;
        let since = Instant::now();
        while since.elapsed() < LOAD_TIME {
            self.sender.send(batch)?;
        }
        let after = self.control.ask(Order::Times)?;
        let up = after.up.saturating_sub(before.up).max(1);
        let idle = after.idle.saturating_sub(before.idle).min(up);
        Ok((up - idle) as f64 * 100.0 / up as f64)
    }
}

/// The receiver here, and the sender in the second guest.
struct Reverse {
    control: Control,
    _receiver: (Option<Partner>, Partner),
}

impl Reverse {
    fn start(card: &str, place: usize, size: usize) -> Result<Self, Failure> {
        let way = way_that_is_there(place)?;
        let mut control = Control::open(card)?;
        // What the second guest had before is for the other direction.
        let receiver = receive(card, way, size, Side::Receiver)?;
        control.ask(Order::Send {
            way: place as u8,
            size: size as u32,
        })?;
        Ok(Self {
            control,
            _receiver: receiver,
        })
    }

    fn receive(&mut self, count: u64) -> Result<(), Failure> {
        self.control.ask(Order::More(count))?;
        Ok(())
    }
}

/// Returns the way with this number, if this kernel has it.
fn way_that_is_there(place: usize) -> Result<Way, Failure> {
    let (_, way) = WAYS.get(place).ok_or("an unknown way")?;
    if *way != Way::Kernel {
        // So that a missing device is told here.
        enter(Backend::Device)?;
    }
    Ok(*way)
}

/// A sender, with its server if it has one.
struct Sender {
    end: Box<dyn End>,
    _server: Option<Partner>,
    size: usize,
    /// The next message's number.
    next: u64,
    /// How often was sent again.
    again: u64,
}

impl Sender {
    fn start(card: &str, way: Way, size: usize, side: Side) -> Result<Self, Failure> {
        let server = ends::server(way, card, side)?;
        let mut sender = Self {
            end: ends::start(way, card, side)?,
            _server: server,
            size,
            next: 0,
            again: 0,
        };
        // The neighbours know each other then.
        sender.send(1)?;
        sender.again = 0;
        Ok(sender)
    }

    /// Sends so many messages; returns when all are acknowledged.
    fn send(&mut self, count: u64) -> Result<(), Failure> {
        let end = self.next + count;
        let mut acknowledged = self.next;
        let mut tries = 0;
        while acknowledged < end {
            while self.next < end.min(acknowledged + window(self.size)) {
                self.end.send(stamp_of(self.next, end), self.size)?;
                self.next += 1;
            }
            match self.end.receive(PATIENCE)? {
                Some(Came { stamp, .. }) => {
                    acknowledged = acknowledged.max(stamp.min(end));
                    tries = 0;
                }
                None => {
                    self.next = acknowledged;
                    self.again += 1;
                    tries += 1;
                    if tries > TRIES {
                        return Err("the second guest acknowledges nothing".into());
                    }
                }
            }
        }
        Ok(())
    }
}

/// The word of each page of a message: its number, and whether it is the last for now.
fn stamp_of(number: u64, end: u64) -> u64 {
    number << 1 | u64::from(number + 1 == end)
}

/// What the second guest has.
enum Part {
    Receiver(#[expect(dead_code, reason = "its drop matters")] (Option<Partner>, Partner)),
    Sender(Sender),
}

/// Serves the guest that measures, until the machine is ended.
fn serve(card: &str) -> Result<(), Failure> {
    let mut control = Control::open(card)?;
    let mut part: Option<Part> = None;
    let mut last = None;
    loop {
        let (number, order) = control.hear()?;
        if order != Order::Times && last != Some(number) {
            last = Some(number);
            match order {
                Order::Start { way, size } | Order::Send { way, size } => {
                    // The last server ends before the next one has the card.
                    drop(part.take());
                    let way = way_that_is_there(way.into())?;
                    part = Some(match order {
                        Order::Start { .. } => {
                            Part::Receiver(receive(card, way, size as usize, Side::Receiver)?)
                        }
                        _ => Part::Sender(Sender::start(card, way, size as usize, Side::Sender)?),
                    });
                }
                Order::More(count) => {
                    if let Some(Part::Sender(sender)) = &mut part {
                        sender.send(count)?;
                    }
                }
                Order::Times => {}
            }
        }
        control.answer(number, Times::now()?)?;
    }
}

/// Starts a receiver of messages, with its server if it has one.
fn receive(
    card: &str,
    way: Way,
    size: usize,
    side: Side,
) -> Result<(Option<Partner>, Partner), Failure> {
    let card = card.to_owned();
    let server = ends::server(way, &card, side)?;
    let (ready, to_tell) = crate::movement::pipe()?;
    let receiver = Partner::start(0, move || {
        let mut end = ends::start(way, &card, side)?;
        std::io::Write::write_all(&mut &to_tell, &[0])?;
        let step = window(size).div_ceil(2);
        let (mut expected, mut have) = (0, 0);
        loop {
            let Some(came) = end.receive(Duration::MAX)? else {
                continue;
            };
            let (number, is_last) = (came.stamp >> 1, came.stamp & 1 != 0);
            let is_next = number == expected && came.offset == have;
            have = if is_next { have + came.bytes } else { 0 };
            let is_whole = have >= size as u64;
            if is_whole {
                expected += 1;
                have = 0;
            }
            // What is lost is told by the number again.
            if (is_whole && (is_last || expected % step == 0)) || (!is_next && came.offset == 0) {
                end.acknowledge(expected)?;
            }
        }
    })?;
    crate::movement::read_whole(&ready, &mut [0])?;
    Ok((server, receiver))
}
