//! Two machines with a link between them, and streams whose bytes are known.
#![allow(dead_code, reason = "each test uses some of it")]

pub mod tap;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use abi::Errno;
use fbuf::{BytesSink, BytesSource};
use net::{
    Family, Stack,
    link::bad::{self, Trouble, Way},
    stream::Read,
    tcp::{Options, Phase, Socket},
};
use nucleus::{
    sim::Random,
    task::{self, Sleep},
    time,
};

pub const MS: u64 = 1_000_000;

pub fn receive(socket: &Socket, max: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; max];
    let mut sink = BytesSink::new(&mut buffer);
    let n = socket.receive(&mut sink, max, Read::default())?;
    buffer.truncate(n);
    Ok(buffer)
}

pub fn send(socket: &Socket, bytes: &[u8]) -> Result<usize, Errno> {
    socket.send(&mut BytesSource::new(bytes))
}

/// Two machines with a link between them.
pub struct Pair {
    pub stacks: [Stack; 2],
    pub ways: [Arc<Way>; 2],
}

pub const ADDRESSES: [[&str; 2]; 2] = [["10.1.0.1", "10.1.0.2"], ["fd00::1", "fd00::2"]];

pub fn address(side: usize, family: Family) -> IpAddr {
    ADDRESSES[usize::from(family == Family::V6)][side]
        .parse()
        .unwrap()
}

impl Pair {
    pub fn new(seed: u64, trouble: Trouble, mtu: u16) -> Pair {
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
    pub fn run(&self, most: u64) {
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

    pub fn run_until(&self, mut is_over: impl FnMut() -> bool) {
        let end = time::since_boot() + Duration::from_secs(4000);
        while !is_over() {
            assert!(time::since_boot() < end, "no end");
            self.run(100 * MS);
        }
    }

    /// Tells whether all connections are over.
    pub fn is_quiet(&self) -> bool {
        let is_over = |stack: &Stack| {
            let sockets = stack.tcp_sockets().unwrap();
            sockets.into_iter().all(|entry| entry.socket.is_none())
        };
        self.stacks.iter().all(is_over)
    }

    /// A listener on the second machine, and a connection to it from the first.
    pub fn connect(&self, family: Family, options: Options) -> [Arc<Socket>; 2] {
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

pub fn pattern(side: usize, at: usize) -> u8 {
    (at.wrapping_mul(7) ^ at >> 8 ^ at >> 16) as u8 ^ (side as u8 * 0x55)
}

/// Sends `totals` bytes from each end to the other, and ends the connection.
pub fn exchange(
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
