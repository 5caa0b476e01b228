//! Carries data between two machines by `netserver`, which each side kills and starts again while
//! it goes on.
//!
//! ```text
//! carry receive ADDRESS/BITS BYTES        carry send ADDRESS/BITS PEER BYTES
//! ```
//!
//! Datagrams have a number; the receiver takes them in order and tells how many it has. The
//! sender sends those of a window, and again what is not acknowledged in time: UDP loses some,
//! and a server that ends all that it has.

use std::env;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use libfbuf::{Aggregate, Contents, Domain, Path};
use netserver::{Incoming, Options, UdpSocket};

/// Bytes of a datagram: its number, and words that follow from it.
const LEN: usize = 32 << 10;
/// Datagrams that are sent before the first is acknowledged.
const WINDOW: u64 = 16;
/// How often each side kills its server.
const KILLS: u64 = 10;
/// Milliseconds after which is sent again.
const PATIENCE: i32 = 200;
/// The number that ends it.
const END: u64 = u64::MAX;
/// How often the end is told without an answer: the receiver may have gone.
const FAREWELLS: usize = 20;

const PORT: u16 = 7000;

fn main() {
    let words: Vec<String> = env::args().collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[1..] {
        ["receive", own, bytes] => receive(own, count(bytes)),
        ["send", own, peer, bytes] => send(own, peer, count(bytes)),
        _ => panic!("carry receive ADDRESS/BITS BYTES | carry send ADDRESS/BITS PEER BYTES"),
    };
    done.expect("carried");
}

fn count(bytes: &str) -> u64 {
    bytes.parse::<u64>().expect("a number").div_ceil(LEN as u64)
}

/// This side's server, and the socket of it.
struct Side {
    own: String,
    server: Child,
    socket: UdpSocket,
    /// How often the server was killed, and the socket found its server gone.
    kills: u64,
    errors: u64,
}

fn start(own: &str) -> io::Result<Child> {
    let mut server = Command::new("/tests/netserver")
        .args([
            "--interface",
            "eth0",
            "--ip",
            own,
            "--socket",
            "/tmp/netserver",
        ])
        .stdout(Stdio::piped())
        .spawn()?;
    // It tells that it listens.
    let said = server.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    BufReader::new(said).read_line(&mut String::new())?;
    Ok(server)
}

impl Side {
    fn start(own: &str, peer: Option<SocketAddrV4>) -> io::Result<Side> {
        let server = start(own)?;
        let options = Options {
            server: "/tmp/netserver".into(),
            ..Options::default()
        };
        let mut socket = UdpSocket::bind(&Domain::enter_any()?, PORT, options)?;
        if let Some(peer) = peer {
            socket.connect(peer)?;
        }
        Ok(Side {
            own: own.to_owned(),
            server,
            socket,
            kills: 0,
            errors: 0,
        })
    }

    /// Kills the server and starts it again when a further part of all is done.
    fn disturb(&mut self, done: u64, all: u64) -> io::Result<()> {
        if self.kills < KILLS && done * (KILLS + 1) >= all * (self.kills + 1) {
            self.kills += 1;
            self.server.kill()?;
            self.server.wait()?;
            self.server = start(&self.own)?;
        }
        Ok(())
    }

    /// Does something with the socket; if its server is gone, connects to the next one instead.
    fn attempt<T>(
        &mut self,
        mut act: impl FnMut(&mut UdpSocket) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        match act(&mut self.socket) {
            Ok(it) => Ok(Some(it)),
            Err(why) => match why.raw_os_error() {
                Some(libc::EAGAIN) => Ok(None),
                Some(libc::ECONNRESET | libc::EPIPE | libc::ENOTCONN) => {
                    self.errors += 1;
                    self.socket.reconnect()?;
                    Ok(None)
                }
                _ => Err(why),
            },
        }
    }

    fn send(&mut self, body: &Aggregate, to: SocketAddrV4) -> io::Result<()> {
        self.attempt(|socket| socket.send_to(body, to)).map(drop)
    }

    /// Receives a datagram, for which it waits so many milliseconds (-1: forever). Other things
    /// wake it, too (notices of fbufs, the end of the server): those take nothing from the time.
    fn receive(&mut self, milliseconds: i32) -> io::Result<Option<Incoming>> {
        let since = Instant::now();
        loop {
            if let Some(it) = self.attempt(UdpSocket::try_receive)? {
                return Ok(Some(it));
            }
            let passed = i32::try_from(since.elapsed().as_millis()).unwrap_or(i32::MAX);
            let left = match milliseconds {
                ..0 => milliseconds,
                0.. => milliseconds.saturating_sub(passed),
            };
            if left == 0 {
                return Ok(None);
            }
            if self.attempt(UdpSocket::arm)? == Some(false) {
                let mut entry = libc::pollfd {
                    fd: self.socket.descriptor()?.as_raw_fd(),
                    events: libc::POLLIN | libc::POLLRDHUP,
                    revents: 0,
                };
                // SAFETY: one entry, which lives across the call.
                unsafe { libc::poll(&raw mut entry, 1, left) };
            }
        }
    }
}

/// The bytes of a datagram.
fn fill(number: u64, to: &mut [u8]) {
    let mut word = number;
    for bytes in to.chunks_exact_mut(8) {
        bytes.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
    }
}

fn datagram(path: &Path, number: u64) -> io::Result<Aggregate> {
    let mut fbuf = path.allocate(LEN)?;
    fill(number, &mut fbuf[..LEN]);
    if number == END {
        return path.copy(&number.to_le_bytes());
    }
    Aggregate::new(fbuf, LEN)
}

fn number_of(datagram: &Incoming) -> u64 {
    let mut number = [0; 8];
    datagram.copy_at(0, &mut number);
    u64::from_le_bytes(number)
}

fn receive(own: &str, all: u64) -> io::Result<()> {
    let mut side = Side::start(own, None)?;
    println!("ready");
    let (mut next, mut expected) = (0, vec![0; LEN]);
    loop {
        let Some(datagram) = side.receive(-1)? else {
            continue;
        };
        let number = number_of(&datagram);
        if number == next {
            fill(number, &mut expected);
            assert!(datagram.to_vec(LEN)? == expected, "datagram {number}");
            next += 1;
        }
        let from = datagram.from();
        drop(datagram);
        let answer = if number == END { END } else { next };
        let answer = side.socket.path().copy(&answer.to_le_bytes())?;
        side.send(&answer, from)?;
        if number == END {
            break;
        }
        side.disturb(next, all)?;
    }
    assert_eq!((next, side.kills), (all, KILLS));
    assert!(side.errors > 0);
    println!(
        "{next} datagrams, {} servers, {} errors",
        side.kills + 1,
        side.errors
    );
    side.server.kill()
}

fn send(own: &str, peer: &str, all: u64) -> io::Result<()> {
    let peer: Ipv4Addr = peer.parse().map_err(io::Error::other)?;
    let peer = SocketAddrV4::new(peer, PORT);
    let mut side = Side::start(own, Some(peer))?;
    let since = Instant::now();
    let (mut acknowledged, mut sent, mut again) = (0, 0, 0);
    while acknowledged < all {
        while sent < all && sent < acknowledged + WINDOW {
            let body = datagram(side.socket.path(), sent)?;
            side.send(&body, peer)?;
            sent += 1;
        }
        match side.receive(PATIENCE)? {
            Some(answer) => acknowledged = acknowledged.max(number_of(&answer).min(all)),
            None => {
                again += sent - acknowledged;
                sent = acknowledged;
            }
        }
        side.disturb(acknowledged, all)?;
    }
    let took = since.elapsed();
    let end = datagram(side.socket.path(), END)?;
    for _ in 0..FAREWELLS {
        side.send(&end, peer)?;
        if side
            .receive(PATIENCE)?
            .is_some_and(|it| number_of(&it) == END)
        {
            break;
        }
    }
    assert_eq!(side.kills, KILLS);
    assert!(side.errors > 0);
    println!(
        "{all} datagrams, {again} again, {} servers, {} errors, {} KiB/s",
        side.kills + 1,
        side.errors,
        (u128::from(all) * LEN as u128 * 1000 / took.as_millis().max(1)) >> 10
    );
    side.server.kill()
}
