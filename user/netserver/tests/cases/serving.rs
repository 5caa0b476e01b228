//! A server with clients, by loopback.

use std::cell::Cell;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::{env, process};

use libfbuf::{Backend, Contents, Domain};
use netserver::{Config, Limits, Link, Options, Server, UdpSocket};

use super::{Draws, fork, wait};

const OWN: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn address(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(OWN, port)
}

/// A server in a process of its own; its drop kills it.
struct Served {
    socket: PathBuf,
    backend: Backend,
    limits: Limits,
    process: libc::pid_t,
}

impl Served {
    fn start(backend: Backend, limits: Limits) -> Served {
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
    fn again(&mut self) {
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

    fn kill(&mut self) {
        if self.process != 0 {
            // SAFETY: takes numbers; the child was not waited for.
            unsafe { libc::kill(self.process, libc::SIGKILL) };
            super::status_of(self.process);
            self.process = 0;
        }
    }

    fn options(&self) -> Options {
        Options {
            server: self.socket.clone(),
            ..Options::default()
        }
    }

    fn bind(&self, port: u16) -> UdpSocket {
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

fn bytes_of(contents: &impl Contents) -> Vec<u8> {
    contents.to_vec(2 << 20).expect("bytes")
}

/// Forks a child, and waits until it calls what it is given.
fn fork_ready(body: impl FnOnce(&dyn Fn())) -> libc::pid_t {
    let (mut read, write) = io::pipe().expect("a pipe");
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
    let served = Served::start(backend, Limits::default());
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
