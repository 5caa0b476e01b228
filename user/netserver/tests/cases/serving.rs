//! A server with clients, by loopback.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::{env, process};

use libfbuf::{Aggregate, Backend, Contents, Domain};
use netserver::{Config, Limits, Link, Options, Server, UdpSocket};

use super::{Draws, fork, wait};

const OWN: Ipv4Addr = Ipv4Addr::LOCALHOST;

pub fn address(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(OWN, port)
}

/// A server in a process of its own; its drop kills it.
pub struct Served {
    socket: PathBuf,
    backend: Backend,
    limits: Limits,
    process: libc::pid_t,
}

impl Served {
    pub fn start(backend: Backend, limits: Limits) -> Served {
        let socket = env::temp_dir().join(format!("netserver-{}", process::id()));
        let mut served = Served {
            socket,
            backend,
            limits,
            process: 0,
        };
        served.again();
        served
    }

    /// Starts it, and waits until it listens.
    pub fn again(&mut self) {
        self.process = fork_ready(|ready| {
            let domain = Domain::enter(self.backend).expect("the region");
            let config = Config {
                address: OWN,
                pdu: 4096,
                is_large: true,
            };
            let socket = self.socket.to_str().expect("a name");
            let server = Server::new(&domain, socket, config, Link::Loopback, self.limits);
            let mut server = server.expect("a server");
            ready();
            server.run().expect("served");
        });
    }

    pub fn kill(&mut self) {
        if self.process != 0 {
            // SAFETY: takes numbers; the child was not waited for.
            unsafe { libc::kill(self.process, libc::SIGKILL) };
            super::status_of(self.process);
            self.process = 0;
        }
    }

    pub fn options(&self) -> Options {
        Options {
            server: self.socket.clone(),
            ..Options::default()
        }
    }

    pub fn bind(&self, port: u16) -> UdpSocket {
        let domain = Domain::enter(self.backend).expect("the region");
        UdpSocket::bind(&domain, port, self.options()).expect("a socket")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(&self.socket);
    }
}

pub fn bytes_of(contents: &impl Contents) -> Vec<u8> {
    contents.to_vec(2 << 20).expect("bytes")
}

/// Forks a child, and waits until it calls what it is given.
pub fn fork_ready(body: impl FnOnce(&dyn Fn())) -> libc::pid_t {
    let (mut read, write) = UnixStream::pair().expect("sockets");
    let mut write = Some(write);
    let child = fork(|| {
        let write = Cell::new(write.take());
        body(&|| drop(write.take()));
    });
    drop(write);
    read.read_to_end(&mut Vec::new()).expect("the end");
    child
}

/// Two clients exchange datagrams of many sizes.
pub fn two_clients(backend: Backend) {
    exchange(&Served::start(backend, Limits::default()));
}

/// The same through the kernel.
pub fn by_kernel(backend: Backend) {
    let limits = Limits {
        has_rings: false,
        ..Limits::default()
    };
    let served = Served::start(backend, limits);
    exchange(&served);
    datagrams_to_a_stranger(&served);
}

fn exchange(served: &Served) {
    let echo = fork_ready(|ready| {
        let mut socket = served.bind(7);
        socket.connect(address(8)).expect("a peer");
        ready();
        loop {
            let datagram = socket.receive().expect("a datagram");
            assert_eq!(datagram.from(), address(8));
            if datagram.is_empty() {
                return;
            }
            let answer = datagram.aggregate(socket.path()).expect("nodes");
            let answer = answer.prepend(b">").expect("a header");
            socket.send(&answer).expect("sent");
        }
    });
    let mut socket = served.bind(8);
    socket.connect(address(7)).expect("a peer");
    let mut draws = Draws(1);
    for len in [
        1,
        100,
        4068,
        4069,
        5000,
        65_506,
        65_507,
        65_508,
        300_000,
        1 << 20,
    ] {
        let bytes = draws.bytes(len);
        let body = socket.path().copy(&bytes).expect("a body");
        socket.send(&body).expect("sent");
        let answer = bytes_of(&socket.receive().expect("an answer"));
        assert!(answer[0] == b'>' && answer[1..] == bytes[..], "{len} bytes");
    }
    socket.send(&socket.path().empty()).expect("sent");
    wait(echo);
}

/// Datagrams between clients that have not said whom they send to.
pub fn not_connected(backend: Backend) {
    datagrams_to_a_stranger(&Served::start(backend, Limits::default()));
}

fn datagrams_to_a_stranger(served: &Served) {
    let mut first = served.bind(1);
    let other = fork_ready(|ready| {
        let mut second = served.bind(2);
        ready();
        for _ in 0..300 {
            let datagram = second.receive().expect("a datagram");
            let answer = second.path().copy(&bytes_of(&datagram)).expect("memory");
            let from = datagram.from();
            drop(datagram);
            second.send_to(&answer, from).expect("sent");
        }
    });
    let mut draws = Draws(2);
    for _ in 0..300 {
        let len = draws.below(30_000);
        let bytes = draws.bytes(len);
        let body = first.path().copy(&bytes).expect("memory");
        first.send_to(&body, address(2)).expect("sent");
        let answer = first.receive().expect("an answer");
        assert!(answer.from() == address(2) && bytes_of(&answer) == bytes);
    }
    // To oneself.
    let body = first.path().copy(b"self").expect("memory");
    first.send_to(&body, address(1)).expect("sent");
    assert_eq!(bytes_of(&first.receive().expect("a datagram")), b"self");
    wait(other);
}

/// A client sends a body back that came from one that is not connected to it: what the server has
/// copied, which only the client reads.
pub fn sent_back(backend: Backend) {
    let served = Served::start(backend, Limits::default());
    let mut first = served.bind(1);
    let other = fork_ready(|ready| {
        let mut second = served.bind(2);
        second.connect(address(1)).expect("a peer");
        ready();
        for _ in 0..20 {
            let datagram = second.receive().expect("a datagram");
            let body = datagram.aggregate(second.path()).expect("nodes");
            second.send(&body).expect("sent");
        }
    });
    for round in 0..20u8 {
        let body = first.path().copy(&[round; 5000]).expect("memory");
        first.send_to(&body, address(2)).expect("sent");
        let answer = first.receive().expect("an answer");
        assert_eq!(bytes_of(&answer), [round; 5000]);
    }
    wait(other);
}

/// More datagrams of a connected sender than any queue holds.
pub fn many(backend: Backend) {
    let served = Served::start(backend, Limits::default());
    let mut sender = served.bind(1);
    let other = fork_ready(|ready| {
        let mut receiver = served.bind(3);
        ready();
        for round in 0..400u32 {
            let came = receiver.receive().expect("a datagram");
            assert_eq!(bytes_of(&came), round.to_le_bytes());
            let from = came.from();
            drop(came);
            receiver
                .send_to(&receiver.path().empty(), from)
                .expect("sent");
        }
    });
    sender.connect(address(3)).expect("a peer");
    for round in 0..400u32 {
        let body = sender.path().copy(&round.to_le_bytes()).expect("memory");
        sender.send(&body).expect("sent");
        assert!(libfbuf::Contents::is_empty(
            &sender.receive().expect("an answer")
        ));
    }
    wait(other);
}

/// Ports are bound once, chosen, and freed.
pub fn ports(backend: Backend) {
    let served = Served::start(backend, Limits::default());
    let domain = Domain::enter(backend).expect("the region");
    let bind = |port| UdpSocket::bind(&domain, port, served.options());
    let first = bind(100).expect("a socket");
    assert_eq!(first.local(), address(100));
    let refused = bind(100).map(drop).map_err(|it| it.raw_os_error());
    assert_eq!(refused, Err(Some(libc::EADDRINUSE)));
    let any: Vec<_> = (0..5).map(|_| bind(0).expect("a socket")).collect();
    let mut numbers: Vec<_> = any.iter().map(|it| it.local().port()).collect();
    numbers.dedup();
    assert!(numbers.len() == 5 && numbers.iter().all(|it| *it >= 49_152));
    drop(first);
    // The server sees the end of the connection before the next one.
    bind(100).expect("a socket");
}

/// A client that frees nothing loses datagrams; the sender and others go on.
pub fn hoarder(backend: Backend) {
    let limits = Limits {
        datagrams: 8,
        ..Limits::default()
    };
    let served = Served::start(backend, limits);
    let mut hoarder = served.bind(1);
    let mut sender = served.bind(2);
    let mut other = served.bind(3);
    for round in 0..200u32 {
        let body = sender.path().copy(&round.to_le_bytes()).expect("memory");
        sender.send_to(&body, address(1)).expect("sent");
        sender.send_to(&body, address(3)).expect("sent");
        let came = other.receive().expect("a datagram");
        assert_eq!(bytes_of(&came), round.to_le_bytes());
    }
    let mut held = Vec::new();
    while let Ok(datagram) = hoarder.try_receive() {
        held.push(datagram);
    }
    assert_eq!(held.len(), 8);
    let first: Vec<_> = held.iter().map(bytes_of).collect();
    let expected: Vec<_> = (0..8u32).map(|it| it.to_le_bytes().to_vec()).collect();
    assert_eq!(first, expected);
    drop(held);
    // Once they are freed, others come.
    let body = sender.path().copy(b"after").expect("memory");
    sender.send_to(&body, address(1)).expect("sent");
    assert_eq!(bytes_of(&hoarder.receive().expect("a datagram")), b"after");
}

/// A connected sender and its receiver in one process.
pub fn alone(backend: Backend) {
    let served = Served::start(backend, Limits::default());
    let (mut sender, mut receiver) = (served.bind(1), served.bind(3));
    sender.connect(address(3)).expect("a peer");
    for burst in [1, 2, 40, 10] {
        for round in 1..=burst {
            let body = sender.path().copy(&u32::to_le_bytes(round));
            sender.send(&body.expect("memory")).expect("sent");
        }
        for round in 1..=burst {
            let came = receiver.receive().expect("a datagram");
            assert_eq!(bytes_of(&came), round.to_le_bytes());
        }
    }
}

/// Large datagrams one after the other, each freed before the next: none is lost, however many
/// there were.
pub fn large(backend: Backend) {
    const LEN: usize = 1 << 20;
    const ROUNDS: u8 = 24;
    let served = Served::start(backend, Limits::default());
    let (mut is_bound, bound) = UnixStream::pair().expect("sockets");
    let sender = fork(|| {
        is_bound.read_exact(&mut [0]).expect("a receiver");
        let mut socket = served.bind(4);
        socket.connect(address(3)).expect("a peer");
        for round in 0..ROUNDS {
            let mut fbuf = socket.path().allocate(LEN).expect("memory");
            fbuf.fill(round);
            let body = Aggregate::new(fbuf, LEN).expect("a body");
            socket.send(&body).expect("sent");
            // Where the body is lost, the receiver gets this instead.
            socket.send(&socket.path().empty()).expect("sent");
            assert!(socket.receive().expect("an answer").is_empty());
        }
    });
    let mut receiver = served.bind(3);
    (&bound).write_all(&[0]).expect("told");
    for round in 0..ROUNDS {
        let came = receiver.receive().expect("a datagram");
        assert_eq!(came.len(), LEN as u64, "datagram {round}");
        assert!(bytes_of(&came).iter().all(|it| *it == round));
        let from = came.from();
        drop(came);
        assert!(receiver.receive().expect("a datagram").is_empty());
        let answer = receiver.path().empty();
        receiver.send_to(&answer, from).expect("sent");
    }
    wait(sender);
}
