//! Two ends of a connection over a bad link, segment by segment, with a clock of the test's own.

mod world;

use std::{
    cmp::Reverse,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use abi::Errno;
use badlink::Trouble;
use fbuf::Slice;
use net::tcp::{
    State,
    block::{Algorithm, Settings},
    segment::{Flags, Segment},
};
use nucleus::{
    Frame, ephemeral,
    frame::{self, Contents, DirectMap},
    sim::on_machines,
};

use world::{GOOD, Link, MS, SECOND, World, aggregate, established, exchange, pattern};

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

#[test]
fn silent_peers_end_a_connection() {
    on_machines(1, |seed| {
        let settings = Settings {
            keep_alive: true,
            keep_idle: 10,
            keep_interval: 1,
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

        // Probes go on in their interval until the peer has been silent for too long.
        let settings = Settings {
            keep_alive: true,
            keep_idle: 1,
            keep_interval: 1,
            user_timeout: 400_000,
            ..Settings::default()
        };
        let mut world = established(seed, settings);
        world.lose_all();
        while world.state(0) != Some(State::Closed) {
            assert!(world.now < 500 * SECOND);
            world.step(world.now + SECOND);
        }

        let settings = Settings {
            user_timeout: 20_000,
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
    static CHECKED: AtomicUsize = AtomicUsize::new(0);
    on_machines(4, |seed| {
        let mut world = established(seed, Settings::default());
        let parts = 100;
        for part in 0..parts {
            let Ok(block) = Frame::alloc_block(3, Contents::Zeroed) else {
                assert_ne!(frame::direct_map(), DirectMap::All, "no block");
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
            // A segment may end within a slice, whose block counts for both parts.
            let most = 8 * (world.sides[0].in_flight / 100 + 2 + world.with_data[0]);
            assert!(frames <= most, "{frames} of {most} frames");
            world.step(world.now + MS);
        }
        CHECKED.fetch_add(1, Relaxed);
        assert_eq!(world.blocks[0].as_ref().unwrap().frames(), 0);
        assert!(frame::usage().data < before);
    });
    assert!(CHECKED.load(Relaxed) > 0, "no machine has blocks");
}
