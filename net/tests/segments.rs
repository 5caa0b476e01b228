//! Two ends of a connection over a bad link, segment by segment, with a clock of the test's own.

use std::{cmp::Reverse, collections::BinaryHeap};

use abi::Errno;
use badlink::{Direction, Trouble};
use fbuf::{Aggregate, BytesSource, Slice};
use net::tcp::{
    State,
    block::{Algorithm, Block, Delivery, Host, Path, Settings, Start},
    segment::{Flags, Segment, Seq},
};
use nucleus::{
    Frame, ephemeral,
    frame::{self, Contents},
    sim::{Random, on_machines},
};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Byte `at` of the stream of `side`.
fn pattern(side: usize, at: usize) -> u8 {
    (at.wrapping_mul(7) ^ at >> 8 ^ at >> 16) as u8 ^ (side as u8 * 0x55)
}

fn aggregate(bytes: &[u8]) -> Aggregate {
    let mut data = Aggregate::new();
    let mut source = BytesSource::new(bytes);
    data.fill_from(&mut source, bytes.len()).unwrap();
    data
}

fn bytes(data: &Aggregate) -> Vec<u8> {
    let mut bytes = vec![0; data.len()];
    assert_eq!(data.peek(0, &mut bytes), bytes.len());
    bytes
}

/// What is around one block.
struct Around {
    side: usize,
    now: u64,
    unsent: Aggregate,
    received: usize,
    /// Received bytes that the program has not taken.
    unread: usize,
    limit: usize,
    /// Bytes that the program sends ahead, and whether that and `limit` grow.
    send_limit: usize,
    grows: bool,
    in_flight: usize,
    sent: Vec<Segment>,
}

impl Host for Around {
    fn now(&self) -> u64 {
        self.now
    }

    fn unsent(&self) -> usize {
        self.unsent.len()
    }

    fn urgent(&self) -> Option<usize> {
        None
    }

    fn take(&mut self, n: usize) -> Aggregate {
        let mut taken = Aggregate::new();
        let mut left = n;
        while let Some(slice) = self.unsent.take_slice(left) {
            left -= slice.len;
            taken.append(slice).unwrap();
        }
        self.in_flight += taken.len();
        taken
    }

    fn acknowledged(&mut self, bytes: usize) {
        self.in_flight -= bytes;
    }

    fn room(&self) -> usize {
        self.limit - self.unread
    }

    fn unread(&self) -> usize {
        self.unread
    }

    fn widen_receive_buffer(&mut self, bytes: usize) {
        if self.grows {
            self.limit = self.limit.max(bytes.min(6 << 20));
        }
    }

    fn widen_send_buffer(&mut self, bytes: usize) {
        if self.grows {
            self.send_limit = self.send_limit.max(bytes.min(4 << 20));
        }
    }

    fn deliver(&mut self, data: Aggregate, _: Option<usize>) -> Delivery {
        assert!(data.len() <= self.room(), "more than was offered");
        for byte in bytes(&data) {
            let right = pattern(1 - self.side, self.received);
            assert_eq!(byte, right, "byte {}", self.received);
            self.received += 1;
        }
        self.unread += data.len();
        Delivery::Taken
    }

    fn emit(&mut self, segment: Segment) {
        self.sent.push(segment);
    }
}

/// How bad the link is, and how fast.
#[derive(Clone, Copy)]
struct Link {
    trouble: Trouble,
    /// Bytes in a second.
    rate: u64,
}

struct Flying {
    at: u64,
    number: u64,
    to: usize,
    segment: Segment,
}

impl PartialEq for Flying {
    fn eq(&self, other: &Flying) -> bool {
        self.number == other.number
    }
}
impl Eq for Flying {}
impl PartialOrd for Flying {
    fn partial_cmp(&self, other: &Flying) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Flying {
    fn cmp(&self, other: &Flying) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

struct World {
    now: u64,
    sides: [Around; 2],
    blocks: [Option<Box<Block>>; 2],
    flying: BinaryHeap<Reverse<Flying>>,
    number: u64,
    link: Link,
    ways: [Direction; 2],
    free_at: [u64; 2],
    segments: usize,
    /// Those with data, by side.
    with_data: [usize; 2],
    random: Random,
    starts: [Start; 2],
    /// Segments keep their timestamps.
    has_stamps: bool,
}

fn start(number: u32, settings: Settings, largest: u16, buffer: usize) -> Start {
    Start {
        number: Seq(number),
        clock: number.wrapping_mul(5),
        path: Path { largest, bulk: 0 },
        buffer,
        settings,
    }
}

impl World {
    fn new(seed: u64, link: Link, settings: Settings, buffer: usize) -> World {
        let mut random = Random::new(seed);
        let around = |side| Around {
            side,
            now: SECOND,
            unsent: Aggregate::new(),
            received: 0,
            unread: 0,
            limit: buffer,
            send_limit: buffer,
            grows: false,
            in_flight: 0,
            sent: Vec::new(),
        };
        // Numbers go round soon.
        let mut start = |largest| {
            start(
                u32::MAX - random.below(99_999) as u32,
                settings,
                largest,
                buffer,
            )
        };
        let starts = [start(1460), start(1400)];
        World {
            now: SECOND,
            sides: [around(0), around(1)],
            blocks: [None, None],
            flying: BinaryHeap::new(),
            number: 0,
            link,
            ways: [0, 1].map(|side| Direction::new(2 * seed + side, link.trouble)),
            free_at: [0; 2],
            segments: 0,
            with_data: [0; 2],
            random,
            starts,
            has_stamps: true,
        }
    }

    fn with<R>(&mut self, side: usize, call: impl FnOnce(&mut Block, &mut Around) -> R) -> R {
        let around = &mut self.sides[side];
        around.now = self.now;
        let result = call(self.blocks[side].as_mut().unwrap(), around);
        self.launch(side);
        result
    }

    fn open(&mut self, side: usize) {
        self.sides[side].now = self.now;
        self.blocks[side] = Some(Block::open(self.starts[side], &mut self.sides[side]));
        self.launch(side);
    }

    fn launch(&mut self, side: usize) {
        let sent = std::mem::take(&mut self.sides[side].sent);
        for mut segment in sent {
            if !self.has_stamps {
                segment.options.stamps = None;
            }
            self.segments += 1;
            self.with_data[side] += usize::from(!segment.data.is_empty());
            let now = self.now;
            for arrives in self.ways[side].send(now, &mut []).into_iter().flatten() {
                let length = (segment.data.len() + 60) as u64;
                let free_at = self.free_at[side].max(now) + length * SECOND / self.link.rate;
                self.free_at[side] = free_at;
                self.number += 1;
                self.flying.push(Reverse(Flying {
                    at: free_at + (arrives - now),
                    number: self.number,
                    to: 1 - side,
                    segment: segment.clone(),
                }));
            }
        }
    }

    /// Loses all segments from now on.
    fn lose_all(&mut self) {
        let lost = 1000;
        let trouble = Trouble {
            lost,
            ..self.link.trouble
        };
        self.ways
            .iter_mut()
            .for_each(|way| way.set_trouble(trouble));
    }

    fn arrive(&mut self, to: usize, segment: Segment) {
        if self.blocks[to].is_some() {
            self.with(to, |block, around| block.arrive(segment, around));
        } else if segment.opens() {
            self.sides[to].now = self.now;
            let block = Block::answer(&segment, self.starts[to], &mut self.sides[to]);
            self.blocks[to] = Some(block);
            self.launch(to);
        }
    }

    /// Moves the clock to the next event before `until` and handles it.
    fn step(&mut self, until: u64) {
        let arrival = self.flying.peek().map(|Reverse(flying)| flying.at);
        let timers = [0, 1].map(|side| self.blocks[side].as_deref().and_then(Block::timer_due));
        let times = [arrival, timers[0], timers[1], Some(until)];
        let next = times.into_iter().flatten().min().unwrap();
        self.now = self.now.max(next);
        if arrival == Some(next) {
            let Reverse(flying) = self.flying.pop().unwrap();
            self.arrive(flying.to, flying.segment);
            return;
        }
        for (side, timer) in timers.into_iter().enumerate() {
            if timer == Some(next) {
                self.with(side, |block, around| block.run_timers(around));
                let again = self.blocks[side].as_deref().and_then(Block::timer_due);
                assert!(
                    again.is_none_or(|at| at > self.now),
                    "a timer stays due: {:?}",
                    self.blocks[side]
                );
            }
        }
    }

    fn state(&self, side: usize) -> Option<State> {
        self.blocks[side].as_deref().map(Block::state)
    }
}

const GOOD: Link = Link {
    trouble: Trouble {
        delay: 10 * MS,
        ..badlink::GOOD
    },
    rate: 10_000_000,
};

/// Sends `totals` bytes from each side, at random times and in random portions.
fn exchange(seed: u64, link: Link, settings: Settings, buffer: usize, totals: [usize; 2]) -> World {
    let mut world = World::new(seed, link, settings, buffer);
    world.open(0);
    let mut written = [0; 2];
    let mut finished = [false; 2];
    let mut pause = [0; 2];
    // Programs look every 5 ms.
    let over = |state| matches!(state, Some(State::TimeWait | State::Closed));
    while !over(world.state(0)) || !over(world.state(1)) {
        assert!(world.now < 3600 * SECOND, "no end: {:?}", world.blocks);
        for side in 0..2 {
            if world.blocks[side].is_none() || over(world.state(side)) {
                continue;
            }
            let waits = world.sides[side].unsent.len() + world.sides[side].in_flight;
            if written[side] < totals[side] && waits < buffer.max(100_000) {
                let n = (1 + world.random.below(30_000)).min(totals[side] - written[side]);
                let data: Vec<u8> = (0..n).map(|i| pattern(side, written[side] + i)).collect();
                written[side] += n;
                world.sides[side]
                    .unsent
                    .join(&mut aggregate(&data))
                    .unwrap();
                world.with(side, |block, around| block.output(around));
            }
            if written[side] == totals[side]
                && !finished[side]
                && world.state(side) != Some(State::SynSent)
            {
                finished[side] = true;
                world.with(side, |block, around| block.finish(around));
            }
            let unread = world.sides[side].unread;
            if unread > 0 && world.now >= pause[side] {
                if link.trouble.lost > 0 && world.random.below(200) == 0 {
                    pause[side] = world.now + world.random.below(900) as u64 * MS;
                }
                world.sides[side].unread -= match link.trouble.lost {
                    0 => unread,
                    _ => 1 + world.random.below(unread),
                };
                world.with(side, |block, around| block.room_grew(around));
            }
        }
        world.step(world.now + 5 * MS);
    }
    for side in 0..2 {
        let block = world.blocks[side].as_ref().unwrap();
        assert_eq!(block.error(), None);
        assert_eq!(world.sides[side].received, totals[1 - side], "{block:?}");
        assert_eq!(world.sides[side].in_flight, 0);
    }
    world
}

#[test]
fn streams_arrive_over_a_bad_link() {
    on_machines(24, |seed| {
        let free = frame::usage().free;
        let trouble = Trouble {
            lost: 60,
            doubled: 20,
            late: 50,
            lateness: 40 * MS,
            ..GOOD.trouble
        };
        let bad = Link { trouble, ..GOOD };
        let settings = Settings {
            algorithm: [Algorithm::Cubic, Algorithm::NewReno][seed as usize % 2],
            no_delay: seed % 3 == 0,
            ..Settings::default()
        };
        let buffer = [9_000, 65_536, 400_000][seed as usize % 3];
        drop(exchange(seed, bad, settings, buffer, [400_000, 150_000]));
        let trouble = Trouble {
            cut: 1700 * MS,
            ..trouble
        };
        let cut = Link { trouble, ..bad };
        drop(exchange(seed, cut, settings, buffer, [300_000, 10]));
        assert_eq!(frame::usage().free, free, "frames are lost");
    });
}

#[test]
fn a_good_link_is_used_well() {
    on_machines(2, |seed| {
        let world = exchange(seed, GOOD, Settings::default(), 400_000, [3_000_000, 0]);
        let took = world.now - SECOND;
        assert!(took < SECOND, "{took} ns for 0.3 s of the link");
        // An acknowledgement for two segments at least, and nothing sent twice.
        assert!(
            world.segments < 3_000_000 / 1388 * 8 / 5,
            "{}",
            world.segments
        );
    });
}

/// Buffers grow until a path of a tenth of a second is full, and no further than that takes. With
/// those of the beginning it would take 19 seconds.
#[test]
fn buffers_grow_until_a_long_path_is_full() {
    const TOTAL: usize = 24 << 20;
    const START: usize = 128 << 10;
    let run = |delay: u64, has_stamps: bool, grows: bool| {
        let trouble = Trouble {
            delay,
            ..badlink::GOOD
        };
        let rate = 100_000_000;
        let mut world = World::new(1, Link { trouble, rate }, Settings::default(), START);
        world.sides.iter_mut().for_each(|side| side.grows = grows);
        world.has_stamps = has_stamps;
        world.open(0);
        let mut written = 0;
        while world.sides[1].received < TOTAL {
            assert!(world.now < 100 * SECOND, "no end");
            let side = &mut world.sides[0];
            let waits = side.unsent.len() + side.in_flight;
            let room = side.send_limit.saturating_sub(waits);
            if room > 0 && written < TOTAL {
                let end = TOTAL.min(written + room);
                let data: Vec<u8> = (written..end).map(|i| pattern(0, i)).collect();
                written = end;
                side.unsent.join(&mut aggregate(&data)).unwrap();
                world.with(0, |block, around| block.output(around));
            }
            world.step(world.now + MS);
            if world.sides[1].unread > 0 {
                world.sides[1].unread = 0;
                world.with(1, |block, around| block.room_grew(around));
            }
        }
        let sizes = (world.sides[0].send_limit, world.sides[1].limit);
        (world.now - SECOND, sizes)
    };
    on_machines(1, move |_| {
        for has_stamps in [true, false] {
            let (slow, _) = run(50 * MS, has_stamps, false);
            assert!(slow > 18 * SECOND, "{slow} ns");
            let (took, sizes) = run(50 * MS, has_stamps, true);
            assert!(took < 4 * SECOND, "{took} ns with {sizes:?}, {has_stamps}");
            assert!(sizes.0 > 1 << 20 && sizes.1 > 1 << 20, "{sizes:?}");
        }
    });
}

/// Where a lower layer cuts, short writes behind much that is under way go together on a near path,
/// and at once on a far one or where the program asks for it.
#[test]
fn short_writes_are_sent_together_where_their_wait_is_short() {
    const WRITE: usize = 16_000;
    const WRITES: usize = 100;
    let run = |delay: u64, no_delay: bool| {
        let settings = Settings {
            no_delay,
            ..Settings::default()
        };
        let trouble = Trouble {
            delay,
            ..badlink::GOOD
        };
        let link = Link {
            trouble,
            rate: 1_000_000_000,
        };
        let mut world = World::new(1, link, settings, 4 << 20);
        world.starts[0].path.bulk = u16::MAX.into();
        world.open(0);
        while world.state(1) != Some(State::Established) {
            world.step(u64::MAX);
        }
        let mut written = 0;
        // The first ones open the congestion window.
        for _ in 0..2 {
            world.with_data[0] = 0;
            for _ in 0..WRITES {
                let data: Vec<u8> = (written..written + WRITE).map(|i| pattern(0, i)).collect();
                written += WRITE;
                let side = &mut world.sides[0];
                side.unsent.join(&mut aggregate(&data)).unwrap();
                world.with(0, |block, around| block.output(around));
                let next = world.now + 20_000;
                while world.now < next {
                    world.step(next);
                    world.sides[1].unread = 0;
                }
            }
            while world.sides[1].received < written {
                world.step(world.now + MS);
                world.sides[1].unread = 0;
            }
            let end = world.now + 100 * MS;
            while world.now < end {
                world.step(end);
            }
        }
        world.with_data[0]
    };
    on_machines(1, move |_| {
        let (near, hurried, far) = (run(MS / 8, false), run(MS / 8, true), run(4 * MS, false));
        assert!(
            3 * near < 2 * hurried && near < far,
            "{near} {hurried} {far}"
        );
    });
}

#[test]
fn both_ends_may_ask_at_once() {
    on_machines(2, |seed| {
        let mut world = World::new(seed, GOOD, Settings::default(), 65_536);
        world.open(0);
        world.open(1);
        while world.state(0) != Some(State::Established)
            || world.state(1) != Some(State::Established)
        {
            assert!(world.now < 5 * SECOND, "{:?}", world.blocks);
            world.step(world.now + 5 * MS);
        }
        for side in 0..2 {
            world.with(side, |block, around| block.finish(around));
        }
        while world.state(0) != Some(State::TimeWait) || world.state(1) != Some(State::TimeWait) {
            assert!(world.now < 9 * SECOND, "{:?}", world.blocks);
            world.step(world.now + 5 * MS);
        }
    });
}

/// An established pair over a good link.
fn established(seed: u64, settings: Settings) -> World {
    let mut world = World::new(seed, GOOD, settings, 65_536);
    world.open(0);
    while world.state(1) != Some(State::Established) {
        world.step(world.now + 5 * MS);
    }
    world
}

#[test]
fn silent_peers_end_a_connection() {
    on_machines(1, |seed| {
        let settings = Settings {
            keep_alive: true,
            keep_idle: 10 * SECOND,
            keep_interval: SECOND,
            keep_count: 3,
            ..Settings::default()
        };
        let mut world = established(seed, settings);
        // A peer that answers keeps the connection.
        while world.now < 100 * SECOND {
            world.step(world.now + SECOND);
        }
        assert_eq!(world.state(0), Some(State::Established));
        world.lose_all();
        while world.state(0) != Some(State::Closed) {
            assert!(world.now < 130 * SECOND, "{:?}", world.blocks[0]);
            world.step(world.now + SECOND);
        }
        assert_eq!(
            world.blocks[0].as_ref().unwrap().error(),
            Some(Errno::ETIMEDOUT)
        );

        let settings = Settings {
            user_timeout: 20 * SECOND,
            ..Settings::default()
        };
        for (settings, least, most) in [(settings, 20, 40), (Settings::default(), 600, 1500)] {
            let mut world = established(seed, settings);
            world.lose_all();
            world.sides[0].unsent = aggregate(b"unheard");
            world.with(0, |block, around| block.output(around));
            while world.state(0) != Some(State::Closed) {
                assert!(world.now < 2000 * SECOND);
                world.step(world.now + SECOND);
            }
            assert_eq!(
                world.blocks[0].as_ref().unwrap().error(),
                Some(Errno::ETIMEDOUT)
            );
            assert!(
                (least..most).contains(&(world.now / SECOND)),
                "{}",
                world.now
            );
        }
    });
}

#[test]
fn a_closed_window_is_probed_for_as_long_as_the_peer_answers() {
    on_machines(1, |seed| {
        let mut world = established(seed, Settings::default());
        let data: Vec<u8> = (0..200_000).map(|at| pattern(0, at)).collect();
        world.sides[0].unsent = aggregate(&data);
        world.with(0, |block, around| block.output(around));
        while world.now < 5000 * SECOND {
            world.step(world.now + 10 * SECOND);
        }
        assert!(
            (65_400..=65_536).contains(&world.sides[1].received),
            "all that fits"
        );
        let before = world.segments;
        while world.now < 6000 * SECOND {
            world.step(world.now + 10 * SECOND);
        }
        assert!(world.segments - before <= 20, "probes become rare");
        // An end that no program has gives up.
        let mut other = established(seed, Settings::default());
        other.sides[0].unsent = aggregate(&data);
        other.with(0, |block, around| {
            block.be_orphan();
            block.finish(around);
        });
        while other.state(0) != Some(State::Closed) {
            assert!(other.now < 1000 * SECOND, "{:?}", other.blocks[0]);
            other.step(other.now + 10 * SECOND);
        }
        // The update of the window is lost: a probe finds it.
        world.sides[1].unread = 0;
        while world.sides[1].received < data.len() {
            assert!(world.now < 6400 * SECOND, "{:?}", world.blocks);
            world.sides[1].unread = 0;
            world.step(world.now + SECOND);
        }
    });
}

#[test]
fn guesses_of_strangers_do_not_end_a_connection() {
    on_machines(1, |seed| {
        let mut world = established(seed, Settings::default());
        let (next, due) = {
            let block = world.blocks[0].as_ref().unwrap();
            (block.remains().next, block.remains().due)
        };
        let segment = |seq, flags| Segment {
            seq,
            ack: next,
            flags,
            ..Segment::default()
        };
        let rst = Flags::RST;
        // Neither inside nor outside of the window, nor a SYN.
        for guess in [
            segment(due + 1, rst),
            segment(due - 1, rst),
            segment(due + 60_000, rst.with(Flags::ACK)),
            segment(due, Flags::SYN),
            segment(due + 9, Flags::SYN.with(Flags::ACK)),
        ] {
            world.now += SECOND;
            world.arrive(0, guess);
            assert_eq!(world.state(0), Some(State::Established));
        }
        let sent = world.segments;
        for _ in 0..1000 {
            world.arrive(0, segment(due + 1, rst));
            world.arrive(0, segment(due, Flags::SYN));
        }
        assert!(world.segments <= sent + 1, "answers are limited");
        world.arrive(0, segment(due, rst));
        assert_eq!(world.state(0), Some(State::Closed));
        assert_eq!(
            world.blocks[0].as_ref().unwrap().error(),
            Some(Errno::ECONNRESET)
        );
    });
}

/// The window in a SYN has no scale, whatever the other windows have.
#[test]
fn the_first_window_is_what_it_says() {
    on_machines(1, |seed| {
        let mut world = World::new(seed, GOOD, Settings::default(), 65_536);
        for start in &mut world.starts {
            start.path.largest = 32_000;
        }
        world.sides[0].unsent = aggregate(&[0; 300_000]);
        world.open(0);
        while world.state(0) != Some(State::Established) {
            world.step(world.now + 5 * MS);
        }
        let sent: usize = world
            .flying
            .iter()
            .map(|Reverse(flying)| flying.segment.data.len())
            .sum();
        assert!((31_000..=65_535).contains(&sent), "{sent} bytes");
    });
}

/// A peer that reports the arrival of single bytes makes no more pieces than there are segments.
#[test]
fn reports_of_single_bytes_do_not_cut_segments() {
    on_machines(1, |seed| {
        let mut world = established(seed, Settings::default());
        world.lose_all();
        world.sides[0].unsent = aggregate(&[0; 60_000]);
        world.with(0, |block, around| block.output(around));
        let (una, due) = {
            let block = world.blocks[0].as_ref().unwrap();
            (block.unacknowledged(), block.remains().due)
        };
        let bytes = world.sides[0].in_flight as u32;
        let before = world.blocks[0].as_ref().unwrap().info(world.now).pieces;
        assert!(
            bytes > 10_000 && before < 20,
            "{bytes} bytes, {before} pieces"
        );
        let report = |world: &mut World, from: u32, to: u32| {
            let mut report = Segment {
                seq: due,
                ack: una,
                flags: Flags::ACK,
                window: 512,
                ..Segment::default()
            };
            report.options.sacks.push(una + from, una + to);
            world.arrive(0, report);
        };
        for at in (1..bytes - 1).step_by(2) {
            report(&mut world, at, at + 1);
        }
        let info = world.blocks[0].as_ref().unwrap().info(world.now);
        let segments = world.sides[0].in_flight as u32 / info.segment + 1;
        assert!(info.pieces <= 2 * segments, "{} pieces", info.pieces);
        // Whole segments are believed.
        report(&mut world, info.segment, 3 * info.segment);
        let info = world.blocks[0].as_ref().unwrap().info(world.now);
        assert_eq!(info.sacked, 2);
    });
}

/// Bytes that are sent and not acknowledged count by the frames that their slices keep, which are
/// all of a block's.
#[test]
fn parts_of_blocks_count_as_their_blocks() {
    on_machines(1, |seed| {
        let mut world = established(seed, Settings::default());
        let parts = 100;
        for part in 0..parts {
            // Machines whose direct map has not all memory have none.
            let Ok(block) = Frame::alloc_block(3, Contents::Zeroed) else {
                return;
            };
            let at = world.random.below(block.size() - 100);
            let bytes: Vec<u8> = (0..100).map(|i| pattern(0, 100 * part + i)).collect();
            ephemeral::map(&block).write(at, &bytes);
            let slice = Slice::part(&block, at, 100);
            world.sides[0].unsent.append(slice).unwrap();
        }
        let before = frame::usage().data;
        world.with(0, |block, around| block.output(around));
        let in_flight = world.sides[0].in_flight;
        assert!(in_flight > 3000, "{in_flight} bytes are under way");
        // Reports and losses cut pieces, and acknowledgements clip them.
        while world.sides[0].in_flight > 0 {
            let frames = world.blocks[0].as_ref().unwrap().frames();
            let kept = 8 * world.sides[0].in_flight.div_ceil(100);
            assert!(frames >= kept, "{frames} of {kept} frames");
            world.step(world.now + MS);
        }
        assert_eq!(world.blocks[0].as_ref().unwrap().frames(), 0);
        assert!(frame::usage().data < before);
    });
}
