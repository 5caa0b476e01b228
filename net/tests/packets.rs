//! TCP over packets: on the loopback interface, and between two machines over a bad link.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use abi::Errno;
use fbuf::{BytesSink, BytesSource};
use net::{
    Family, Stack,
    ip::Prefix,
    link::bad::{self, GOOD, Trouble, Way},
    stream::Read,
    tcp::{Options, Phase, Socket},
};
use nucleus::{
    frame,
    sim::{Random, on_machines},
    task::{self, Sleep},
    time,
};

const MS: u64 = 1_000_000;

fn receive(socket: &Socket, max: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; max];
    let mut sink = BytesSink::new(&mut buffer);
    let n = socket.receive(&mut sink, max, Read::default())?;
    buffer.truncate(n);
    Ok(buffer)
}

fn send(socket: &Socket, bytes: &[u8]) -> Result<usize, Errno> {
    socket.send(&mut BytesSource::new(bytes))
}

/// Two machines with a link between them.
struct Pair {
    stacks: [Stack; 2],
    ways: [Arc<Way>; 2],
}

const ADDRESSES: [[&str; 2]; 2] = [["10.1.0.1", "10.1.0.2"], ["fd00::1", "fd00::2"]];

fn address(side: usize, family: Family) -> IpAddr {
    ADDRESSES[usize::from(family == Family::V6)][side]
        .parse()
        .unwrap()
}

impl Pair {
    fn new(seed: u64, trouble: Trouble, mtu: u16) -> Pair {
        let [(a, to_a), (b, to_b)] = bad::link(seed, trouble, mtu);
        let stacks = [Stack::new(), Stack::new()];
        for (side, device) in [a, b].into_iter().enumerate() {
            let network = stacks[side].network();
            let index = network.add_interface(device).unwrap();
            for (family, bits) in [(Family::V4, 24), (Family::V6, 64)] {
                let address = address(side, family);
                network.add_address(index, address, bits).unwrap();
            }
        }
        Pair {
            stacks,
            ways: [to_a, to_b],
        }
    }

    /// Delivers what has arrived and runs the timers; sleeps until there is more to do, or for
    /// `most` nanoseconds.
    fn run(&self, most: u64) {
        let now = time::since_boot();
        let mut due = now + Duration::from_nanos(most);
        for side in 0..2 {
            while let Some(packet) = self.ways[side].next() {
                self.stacks[side].receive(2, packet);
            }
            let timers = self.stacks[side].run_timers();
            let arrival = self.ways[side].due().map(Duration::from_nanos);
            due = [timers, arrival]
                .into_iter()
                .flatten()
                .fold(due, Duration::min);
        }
        task::sleep(Sleep {
            interruptible: false,
            deadline: Some(due.max(now + Duration::from_micros(10))),
        });
    }

    fn run_until(&self, mut is_over: impl FnMut() -> bool) {
        let end = time::since_boot() + Duration::from_secs(4000);
        while !is_over() {
            assert!(time::since_boot() < end, "no end");
            self.run(100 * MS);
        }
    }

    /// Tells whether all connections are over.
    fn is_quiet(&self) -> bool {
        let is_over = |stack: &Stack| {
            let sockets = stack.tcp_sockets().unwrap();
            sockets.into_iter().all(|entry| entry.socket.is_none())
        };
        self.stacks.iter().all(is_over)
    }

    /// A listener on the second machine, and a connection to it from the first.
    fn connect(&self, family: Family, options: Options) -> [Arc<Socket>; 2] {
        let listener = self.stacks[1].tcp_socket(family, options);
        listener
            .bind(SocketAddr::new(address(1, family), 80))
            .unwrap();
        listener.listen(3).unwrap();
        let client = self.stacks[0].tcp_socket(family, options);
        client
            .connect(SocketAddr::new(address(1, family), 80))
            .unwrap();
        let mut server = None;
        self.run_until(|| {
            server = server.take().or_else(|| listener.accept().ok());
            server.is_some() && client.phase() != Phase::Connecting
        });
        assert_eq!(client.phase(), Phase::Connected);
        listener.close(false);
        [client, server.unwrap()]
    }
}

fn pattern(side: usize, at: usize) -> u8 {
    (at.wrapping_mul(7) ^ at >> 8 ^ at >> 16) as u8 ^ (side as u8 * 0x55)
}

/// Sends `totals` bytes from each end to the other, and ends the connection.
fn exchange(
    ends: &[Arc<Socket>; 2],
    totals: [usize; 2],
    random: &mut Random,
    mut run: impl FnMut(),
) {
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    let (mut finished, mut over) = ([false; 2], [false; 2]);
    let end = time::since_boot() + Duration::from_secs(4000);
    while !over[0] || !over[1] {
        assert!(
            time::since_boot() < end,
            "no end: {sent:?} sent, {received:?} received"
        );
        for side in 0..2 {
            let n = (1 + random.below(20_000)).min(totals[side] - sent[side]);
            if n > 0 {
                let bytes: Vec<u8> = (0..n).map(|i| pattern(side, sent[side] + i)).collect();
                match send(&ends[side], &bytes) {
                    Ok(n) => sent[side] += n,
                    Err(error) => assert_eq!(
                        error,
                        Errno::EAGAIN,
                        "{:?} {sent:?} {received:?} {side} {finished:?}",
                        time::since_boot()
                    ),
                }
            } else if !finished[side] {
                finished[side] = true;
                ends[side].shut(false, true).unwrap();
            }
            match receive(&ends[side], 1 + random.below(30_000)) {
                Ok(bytes) if bytes.is_empty() => over[side] = true,
                Ok(bytes) => {
                    for byte in bytes {
                        assert_eq!(byte, pattern(1 - side, received[side]));
                        received[side] += 1;
                    }
                }
                Err(error) => assert_eq!(
                    error,
                    Errno::EAGAIN,
                    "{:?} {sent:?} {received:?} {side} {finished:?} {over:?}",
                    time::since_boot()
                ),
            }
        }
        run();
    }
    assert_eq!([received[1], received[0]], totals);
}

#[test]
fn loopback_by_packets() {
    on_machines(4, |seed| {
        let mut random = Random::new(seed);
        for (to, mtu) in [("127.0.0.1", 1500), ("::1", 1500), ("127.0.0.1", 65535)] {
            let free = frame::usage().free;
            let stack = Stack::new();
            stack.set_loopback_by_packets(Some(mtu));
            let to = SocketAddr::new(to.parse().unwrap(), 80);
            let family = Family::of(to.ip());
            let listener = stack.tcp_socket(family, Options::default());
            listener.bind(to).unwrap();
            listener.listen(1).unwrap();
            let client = stack.tcp_socket(family, Options::default());
            client.connect(to).unwrap();
            assert_eq!(client.phase(), Phase::Connected);
            let server = listener.accept().unwrap();
            let ends = [client, server];
            exchange(&ends, [300_000, 100_000], &mut random, || {
                let due = stack.run_timers().unwrap_or(Duration::MAX);
                task::sleep(Sleep {
                    interruptible: false,
                    deadline: Some(due.min(time::since_boot() + Duration::from_millis(1))),
                });
            });
            for end in &ends {
                end.close(false);
            }
            listener.close(false);
            // Refused, and told at once.
            let client = stack.tcp_socket(family, Options::default());
            client.connect(to).unwrap();
            assert_eq!(client.progress(), Err(Errno::ECONNREFUSED));
            client.close(false);
            drop((ends, stack));
            assert_eq!(frame::usage().free, free, "frames are lost");
        }
    });
}

#[test]
fn streams_arrive_over_a_bad_link() {
    let bad = Trouble {
        lost: 50,
        doubled: 20,
        late: 50,
        lateness: 20 * MS,
        damaged: 10,
        delay: 5 * MS,
        cut: 0,
    };
    let cut = Trouble {
        cut: 900 * MS,
        ..bad
    };
    on_machines(8, move |seed| {
        let mut random = Random::new(seed);
        for (family, trouble) in [(Family::V4, bad), (Family::V6, bad), (Family::V4, cut)] {
            let free = frame::usage().free;
            let pair = Pair::new(seed, trouble, 1500);
            let ends = pair.connect(family, Options::default());
            exchange(&ends, [200_000, 60_000], &mut random, || pair.run(5 * MS));
            for end in &ends {
                end.close(false);
            }
            pair.run_until(|| pair.is_quiet());
            drop((ends, pair));
            assert_eq!(frame::usage().free, free, "frames are lost");
        }
    });
}

#[test]
fn neighbours_and_routes() {
    on_machines(2, |seed| {
        let pair = Pair::new(seed, GOOD, 1500);
        let network = pair.stacks[0].network();
        let route = |to: &str| {
            network
                .route(to.parse().unwrap())
                .map(|route| (route.interface.index(), route.next_hop))
        };
        assert_eq!(route("192.0.2.1").err(), Some(Errno::ENETUNREACH));
        let gateway: IpAddr = "10.1.0.2".parse().unwrap();
        let far = Prefix::new("192.0.2.0".parse().unwrap(), 24).unwrap();
        network
            .add_route(
                Prefix::new("0.0.0.0".parse().unwrap(), 0).unwrap(),
                2,
                Some(gateway),
            )
            .unwrap();
        network.add_route(far, 2, None).unwrap();
        assert_eq!(route("192.0.2.1"), Ok((2, "192.0.2.1".parse().unwrap())));
        assert_eq!(route("198.51.100.1"), Ok((2, gateway)));
        assert_eq!(route("10.1.0.9"), Ok((2, "10.1.0.9".parse().unwrap())));
        network.remove_route(far, 2).unwrap();
        assert_eq!(route("192.0.2.1"), Ok((2, gateway)));
        assert_eq!(route("10.1.0.1"), Ok((1, "10.1.0.1".parse().unwrap())));
        // Nobody answers there: the connection fails after the repetitions of its SYN.
        let client = pair.stacks[0].tcp_socket(Family::V4, Options::default());
        client.connect("10.1.0.77:80".parse().unwrap()).unwrap();
        pair.run_until(|| client.phase() != Phase::Connecting);
        assert_eq!(client.progress(), Err(Errno::ETIMEDOUT));
        client.close(false);
    });
}
