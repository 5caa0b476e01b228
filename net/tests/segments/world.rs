//! Two blocks, what is around them, and a bad link between them, with a clock of its own.

use std::{cmp::Reverse, collections::BinaryHeap};

use badlink::{Direction, Trouble};
use fbuf::{Aggregate, BytesSource};
use net::tcp::{
    State,
    block::{Block, Delivery, Host, Path, Settings, Start},
    segment::{Segment, Seq},
};
use nucleus::sim::Random;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;

/// Byte `at` of the stream of `side`.
pub fn pattern(side: usize, at: usize) -> u8 {
    (at.wrapping_mul(7) ^ at >> 8 ^ at >> 16) as u8 ^ (side as u8 * 0x55)
}

pub fn aggregate(bytes: &[u8]) -> Aggregate {
    let mut data = Aggregate::new();
    let mut source = BytesSource::new(bytes);
    data.fill_from(&mut source, bytes.len()).unwrap();
    data
}

pub fn bytes(data: &Aggregate) -> Vec<u8> {
    let mut bytes = vec![0; data.len()];
    assert_eq!(data.peek(0, &mut bytes), bytes.len());
    bytes
}

/// What is around one block.
pub struct Around {
    pub side: usize,
    pub now: u64,
    pub unsent: Aggregate,
    pub received: usize,
    /// Received bytes that the program has not taken.
    pub unread: usize,
    pub limit: usize,
    /// Bytes that the program sends ahead, and whether that and `limit` grow.
    pub send_limit: usize,
    pub grows: bool,
    pub in_flight: usize,
    pub sent: Vec<Segment>,
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
pub struct Link {
    pub trouble: Trouble,
    /// Bytes in a second.
    pub rate: u64,
}

pub struct Flying {
    pub at: u64,
    pub number: u64,
    pub to: usize,
    pub segment: Segment,
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

pub struct World {
    pub now: u64,
    pub sides: [Around; 2],
    pub blocks: [Option<Box<Block>>; 2],
    pub flying: BinaryHeap<Reverse<Flying>>,
    pub number: u64,
    pub link: Link,
    pub ways: [Direction; 2],
    pub free_at: [u64; 2],
    pub segments: usize,
    /// Those with data, by side.
    pub with_data: [usize; 2],
    pub random: Random,
    pub starts: [Start; 2],
    /// Segments keep their timestamps.
    pub has_stamps: bool,
}

pub fn start(number: u32, settings: Settings, largest: u16, buffer: usize) -> Start {
    Start {
        number: Seq(number),
        clock: number.wrapping_mul(5),
        path: Path { largest, bulk: 0 },
        buffer,
        settings,
    }
}

impl World {
    pub fn new(seed: u64, link: Link, settings: Settings, buffer: usize) -> World {
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

    pub fn with<R>(&mut self, side: usize, call: impl FnOnce(&mut Block, &mut Around) -> R) -> R {
        let around = &mut self.sides[side];
        around.now = self.now;
        let result = call(self.blocks[side].as_mut().unwrap(), around);
        self.launch(side);
        result
    }

    pub fn open(&mut self, side: usize) {
        self.sides[side].now = self.now;
        self.blocks[side] = Some(Block::open(self.starts[side], &mut self.sides[side]));
        self.launch(side);
    }

    pub fn launch(&mut self, side: usize) {
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
    pub fn lose_all(&mut self) {
        let lost = 1000;
        let trouble = Trouble {
            lost,
            ..self.link.trouble
        };
        self.ways
            .iter_mut()
            .for_each(|way| way.set_trouble(trouble));
    }

    pub fn arrive(&mut self, to: usize, segment: Segment) {
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
    pub fn step(&mut self, until: u64) {
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

    pub fn state(&self, side: usize) -> Option<State> {
        self.blocks[side].as_deref().map(Block::state)
    }
}

pub const GOOD: Link = Link {
    trouble: Trouble {
        delay: 10 * MS,
        ..badlink::GOOD
    },
    rate: 10_000_000,
};

/// Sends `totals` bytes from each side, at random times and in random portions.
pub fn exchange(
    seed: u64,
    link: Link,
    settings: Settings,
    buffer: usize,
    totals: [usize; 2],
) -> World {
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

/// An established pair over a good link.
pub fn established(seed: u64, settings: Settings) -> World {
    let mut world = World::new(seed, GOOD, settings, 65_536);
    world.open(0);
    while world.state(1) != Some(State::Established) {
        world.step(world.now + 5 * MS);
    }
    world
}
