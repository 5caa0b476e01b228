//! UDP/IP by `netserver`, whose packets turn around below IP.

use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process;
use std::time::Instant;

use libfbuf::{Aggregate, Backend, Channel, Contents, Domain, Member, Mode, Path, To};
use netserver::{Config, Limits, Link, Options, Server, Stack, UdpSocket};

use super::Crossing;
use super::crossing::{check, enter, message};
use crate::Failure;
use crate::movement::flow::{Shape, Stream};
use crate::movement::{Line as KernelLine, Peer, pipe, read_whole, wrong};
use crate::partner::Partner;

/// Bytes in flight before the receiver answers.
const WINDOW: usize = 1 << 20;

/// Most messages in flight: the server holds 64 for each client.
const MOST: u64 = 32;

/// The acts of the receiver.
const BIND: u8 = 0;
const RECEIVE: u8 = 1;

fn config(pdu: usize) -> Config {
    Config {
        address: Ipv4Addr::LOCALHOST,
        pdu,
        is_large: true,
    }
}

fn address(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

/// The sender, the server and the receiver in processes of their own.
pub(super) struct ThreeDomains {
    socket: UdpSocket,
    peer: Peer,
    answers: File,
    _server: Partner,
    size: usize,
    number: u64,
}

fn window(size: usize) -> u64 {
    ((WINDOW / size) as u64).clamp(1, MOST)
}

fn bind(mode: Mode, server: &str, port: u16) -> io::Result<UdpSocket> {
    let options = Options {
        server: server.into(),
        mode,
        has_checksum: false,
        is_verified: false,
        ..Options::default()
    };
    UdpSocket::bind(&Domain::enter(Backend::Device)?, port, options)
}

impl ThreeDomains {
    pub(super) fn start(
        mode: Mode,
        has_rings: bool,
        pdu: usize,
        size: usize,
    ) -> Result<Self, Failure> {
        // So that a missing device is told here.
        enter(Backend::Device)?;
        let place = format!("/tmp/netserver-{}", process::id());
        let (ready, mut to_tell) = pipe()?;
        let (answers, to_answer) = pipe()?;
        let there = place.clone();
        let server = Partner::start(0, move || {
            let domain = Domain::enter(Backend::Device)?;
            let limits = Limits {
                has_rings,
                ..Limits::default()
            };
            let link = Link::Loopback;
            let mut server = Server::new(&domain, &there, config(pdu), link, limits)?;
            to_tell.write_all(&[0])?;
            Ok(server.run()?)
        })?;
        read_whole(&ready, &mut [0])?;
        let (mut socket, mut number, there) = (None, 0, place.clone());
        let mut peer = Peer::start(0, move |order| {
            if order.act == BIND {
                socket = Some(bind(mode, &there, 2)?);
            }
            let Some(socket) = &mut socket else {
                return Ok(());
            };
            for left in (0..order.count).rev() {
                let datagram = socket.receive()?;
                check(datagram.fragments(), number)?;
                drop(datagram);
                number += 1;
                if left % window(size) == 0 {
                    (&to_answer).write_all(&[0])?;
                }
            }
            Ok(())
        })?;
        peer.with(BIND, 0, || Ok(()))?;
        let mut socket = bind(mode, &place, 1)?;
        socket.connect(address(2))?;
        Ok(Self {
            socket,
            peer,
            answers,
            _server: server,
            size,
            number: 0,
        })
    }
}

impl Crossing for ThreeDomains {
    fn send(&mut self, count: u64) -> Result<(), Failure> {
        let (socket, answers, number) = (&mut self.socket, &self.answers, &mut self.number);
        let size = self.size;
        self.peer.with(RECEIVE, count, || {
            for left in (0..count).rev() {
                let body = message(socket.path(), size, *number)?;
                socket.send(&body)?;
                *number += 1;
                if left % window(size) == 0 {
                    read_whole(answers, &mut [0])?;
                }
            }
            Ok(())
        })
    }
}

/// The sender and the protocols in this process, the receiver in another one.
pub(super) struct TwoDomains {
    stack: Stack,
    path: Path,
    line: Line,
    peer: Peer,
    answers: File,
    size: usize,
    number: u64,
}

/// What carries messages to the receiver: a ring for cached paths, the kernel for uncached ones.
enum Line {
    Ring(Box<Channel>),
    Kernel,
}

/// The receiver's end.
enum FarLine {
    Ring(Box<Channel>),
    Kernel(Member),
}

impl FarLine {
    fn attach(socket: UnixStream, fd: OwnedFd, is_ring: bool) -> io::Result<Self> {
        let domain = Domain::enter(Backend::Device)?;
        Ok(match is_ring {
            true => {
                let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0)?;
                let channel = Channel::connect(&domain, &path, socket.into())?;
                Self::Ring(Box::new(channel))
            }
            false => Self::Kernel(Member::attach(&domain, fd)?),
        })
    }

    fn receive(&mut self, number: u64) -> io::Result<()> {
        match self {
            Self::Ring(channel) => {
                let message = channel.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
                check(message.fragments(), number)
            }
            Self::Kernel(member) => {
                let message = member.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
                check(message.contents().fragments(), number)
            }
        }
    }
}

impl TwoDomains {
    pub(super) fn start(mode: Mode, pdu: usize, size: usize) -> Result<Self, Failure> {
        let domain = enter(Backend::Device)?;
        let path = Path::new(&domain, mode, 0)?;
        let fd = path.as_fd().try_clone_to_owned()?;
        let (here, there) = UnixStream::pair()?;
        let (answers, to_answer) = pipe()?;
        let is_ring = !mode.is_uncached;
        let (mut line, mut number) = (None, 0);
        let mut peer = Peer::start(0, move |order| {
            if order.act == BIND {
                let (there, fd) = (there.try_clone()?, fd.try_clone()?);
                line = Some(FarLine::attach(there, fd, is_ring)?);
            }
            let Some(line) = &mut line else {
                return Ok(());
            };
            for left in (0..order.count).rev() {
                line.receive(number)?;
                number += 1;
                if left % window(size) == 0 {
                    (&to_answer).write_all(&[0])?;
                }
            }
            Ok(())
        })?;
        let mut line = Line::Kernel;
        peer.with(BIND, 0, || {
            if is_ring {
                let channel = Channel::connect(&domain, &path, here.into())?;
                line = Line::Ring(Box::new(channel));
            }
            Ok(())
        })?;
        Ok(Self {
            stack: Stack::new(&domain, config(pdu))?,
            path,
            line,
            peer,
            answers,
            size,
            number: 0,
        })
    }
}

impl Crossing for TwoDomains {
    fn send(&mut self, count: u64) -> Result<(), Failure> {
        let Self {
            stack,
            path,
            line,
            answers,
            number,
            ..
        } = self;
        let size = self.size;
        self.peer.with(RECEIVE, count, || {
            for left in (0..count).rev() {
                let body = turn_around(stack, path, message(path, size, *number)?)?;
                match line {
                    Line::Ring(channel) => channel.send(&body)?,
                    Line::Kernel => path.send(To::All, &body).map(drop)?,
                }
                *number += 1;
                if left % window(size) == 0 {
                    read_whole(answers, &mut [0])?;
                }
            }
            Ok(())
        })
    }
}

/// Sends a body down the protocols, and receives it again.
fn turn_around(stack: &mut Stack, path: &Path, body: Aggregate) -> io::Result<Aggregate> {
    stack.send(1, address(2), &body, false)?;
    let mut came = None;
    while let Some((_, packet)) = stack.take() {
        came = stack.receive(&packet, Instant::now())?;
    }
    let datagram = came.ok_or_else(|| wrong("no datagram"))?;
    // What the server does with it, too: the parts are one again.
    path.adopt(&datagram.body)
}

/// All in this process.
pub(super) struct OneDomain {
    stack: Stack,
    path: Path,
    size: usize,
    number: u64,
}

impl OneDomain {
    pub(super) fn start(pdu: usize, size: usize) -> Result<Self, Failure> {
        let domain = enter(Backend::Device)?;
        Ok(Self {
            stack: Stack::new(&domain, config(pdu))?,
            path: Path::new(&domain, Mode::CACHED_VOLATILE, 0)?,
            size,
            number: 0,
        })
    }
}

impl Crossing for OneDomain {
    fn send(&mut self, count: u64) -> Result<(), Failure> {
        for _ in 0..count {
            let body = message(&self.path, self.size, self.number)?;
            let body = turn_around(&mut self.stack, &self.path, body)?;
            check(body.fragments(), self.number)?;
            self.number += 1;
        }
        Ok(())
    }
}

/// The kernel's UDP by 127.0.0.1, in datagrams of at most 32 KiB.
pub(super) struct ByKernel {
    stream: Stream,
    datagrams: u64,
}

impl ByKernel {
    /// Most bytes of a datagram: of a receiver's buffer, nothing is lost.
    const MOST: usize = 32 << 10;

    pub(super) fn start(size: usize) -> Result<Self, Failure> {
        let part = size.min(Self::MOST);
        let shape = Shape {
            window: Self::MOST / part,
            ..Shape::of(part)
        };
        Ok(Self {
            stream: Stream::start(KernelLine::Udp, shape)?,
            datagrams: (size / part) as u64,
        })
    }
}

impl Crossing for ByKernel {
    fn send(&mut self, count: u64) -> Result<(), Failure> {
        self.stream.send(count * self.datagrams)
    }
}
