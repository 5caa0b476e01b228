//! Senders and receivers between two guests, one for each way.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket as KernelSocket};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::process::Command;
use std::time::{Duration, Instant};

use libfbuf::{Aggregate, Backend, Contents, Domain, Fragment, Mode, Path, Received};
use netserver::{Card, Config, Limits, Link, Options, Server, Stack, Start, UdpSocket};

use super::Way;
use crate::Failure;
use crate::movement::{Buffer, PAGE, checked, pipe, read_whole, stamp, wrong};
use crate::partner::Partner;

/// Where the server of this guest listens.
const PLACE: &str = "/tmp/netserver-pair";

const BITS: u8 = 24;
const PORT: u16 = 7000;

/// Most bytes of a datagram of the kernel's.
const MOST_DATAGRAM: usize = 32 << 10;

/// Bytes of the receive buffer of the kernel's sockets: a window.
static BUFFER: libc::c_int = 8 << 20;

/// Frames that are taken before what they complete is looked at.
const FRAMES: usize = 64;

/// Which of the two guests this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Sender,
    Receiver,
}

impl Side {
    fn own(self) -> Ipv4Addr {
        match self {
            Side::Receiver => Ipv4Addr::new(10, 55, 0, 1),
            Side::Sender => Ipv4Addr::new(10, 55, 0, 2),
        }
    }

    fn peer(self) -> SocketAddrV4 {
        let other = match self {
            Side::Receiver => Side::Sender,
            Side::Sender => Side::Receiver,
        };
        SocketAddrV4::new(other.own(), PORT)
    }
}

/// A datagram that came: the word of its pages, its place in its message, and its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Came {
    pub stamp: u64,
    pub offset: u64,
    pub bytes: u64,
}

/// One end of a way.
pub(super) trait End {
    /// Sends a message of whole pages, each with this word.
    fn send(&mut self, word: u64, size: usize) -> io::Result<()>;

    /// Sends a number.
    fn acknowledge(&mut self, number: u64) -> io::Result<()>;

    /// Waits for a datagram, which it reads a word of each page of; `None` if none came in time.
    fn receive(&mut self, patience: Duration) -> io::Result<Option<Came>>;
}

/// Waits until a descriptor is readable; false if it is not in time.
pub(super) fn poll(fd: RawFd, patience: Duration) -> io::Result<bool> {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let milliseconds = i32::try_from(patience.as_millis()).unwrap_or(-1);
    // SAFETY: one entry, which lives across the call.
    let ready = checked(unsafe { libc::poll(&raw mut entry, 1, milliseconds) })?;
    Ok(ready > 0)
}

/// Starts the server of a way that has one; returns when it listens.
pub(super) fn server(way: Way, name: &str, side: Side) -> Result<Option<Partner>, Failure> {
    let Way::Server {
        has_rings,
        in_place,
        is_shared,
        ..
    } = way
    else {
        return Ok(None);
    };
    let (ready, mut to_tell) = pipe()?;
    let partner = Partner::start(0, move || {
        let domain = Domain::enter(Backend::Device)?;
        let card = card(name, side)?;
        let config = config(side, &card);
        let link = Link::Card(Box::new(card));
        let limits = Limits {
            has_rings,
            in_place,
            shares_card: is_shared,
            ..Limits::default()
        };
        let mut server = Server::new(&domain, PLACE, config, link, limits)?;
        to_tell.write_all(&[0])?;
        Ok(server.run()?)
    })?;
    read_whole(&ready, &mut [0])?;
    Ok(Some(partner))
}

/// Starts an end.
pub(super) fn start(way: Way, name: &str, side: Side) -> Result<Box<dyn End>, Failure> {
    Ok(match way {
        Way::Kernel => Box::new(Kernel::start(name, side)?),
        Way::User { in_place } => Box::new(User::start(name, side, in_place)?),
        Way::Server { mode, .. } => Box::new(Client::start(side, mode)?),
    })
}

fn card(name: &str, side: Side) -> io::Result<Card> {
    Card::open(name, side.own(), BITS, None)
}

fn config(side: Side, card: &Card) -> Config {
    Config {
        address: side.own(),
        pdu: card.mtu(),
        is_large: true,
    }
}

/// Returns a message of fbufs.
fn message(path: &Path, word: u64, size: usize) -> io::Result<Aggregate> {
    let mut fbuf = path.allocate(size)?;
    stamp(&mut fbuf[..size], word);
    fbuf[8..16].fill(0);
    Aggregate::new(fbuf, size)
}

/// Reads the word of each page.
fn came(contents: &impl Contents) -> io::Result<Came> {
    let mut first = [0; 16];
    if contents.copy_at(0, &mut first) < 8 {
        return Err(wrong("a datagram without a word"));
    }
    let [stamp, offset] = [0, 8].map(|at| {
        let bytes = first[at..at + 8].try_into();
        bytes.map_or(0, u64::from_le_bytes)
    });
    let mut at: usize = 0;
    for fragment in contents.fragments() {
        let start = at.next_multiple_of(PAGE) - at;
        check(fragment, start, stamp)?;
        at += fragment.len();
    }
    Ok(Came {
        stamp,
        offset,
        bytes: contents.len(),
    })
}

fn check(fragment: Fragment<'_>, start: usize, stamp: u64) -> io::Result<()> {
    for at in (start..fragment.len()).step_by(PAGE) {
        let mut word = [0; 8];
        let len = fragment.part(at, 8).copy_to(&mut word);
        // A packet may end within a word.
        if word[..len] != stamp.to_le_bytes()[..len] {
            return Err(wrong(format!("another word than {stamp} at {at}")));
        }
    }
    Ok(())
}

/// The kernel's sockets.
struct Kernel {
    socket: KernelSocket,
    buffer: Buffer,
}

impl Kernel {
    fn start(name: &str, side: Side) -> Result<Self, Failure> {
        let own = side.own().to_string();
        let words = [name, &own, "netmask", "255.255.255.0", "up"];
        let status = Command::new("ifconfig").args(words).status()?;
        if !status.success() {
            return Err("ifconfig failed".into());
        }
        let socket = KernelSocket::bind((side.own(), PORT))?;
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the value lives across the call and has that size.
        checked(unsafe {
            let (fd, value) = (socket.as_raw_fd(), (&raw const BUFFER).cast());
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, value, size)
        })?;
        socket.connect(side.peer())?;
        Ok(Self {
            socket,
            buffer: Buffer::new(MOST_DATAGRAM, 0)?,
        })
    }
}

impl End for Kernel {
    fn send(&mut self, word: u64, size: usize) -> io::Result<()> {
        for offset in (0..size).step_by(MOST_DATAGRAM) {
            let len = (size - offset).min(MOST_DATAGRAM);
            let bytes = &mut self.buffer.bytes_mut()[..len];
            stamp(bytes, word);
            bytes[8..16].copy_from_slice(&(offset as u64).to_le_bytes());
            self.socket.send(bytes)?;
        }
        Ok(())
    }

    fn acknowledge(&mut self, number: u64) -> io::Result<()> {
        self.socket.send(&number.to_le_bytes()).map(drop)
    }

    fn receive(&mut self, patience: Duration) -> io::Result<Option<Came>> {
        if !poll(self.socket.as_raw_fd(), patience)? {
            return Ok(None);
        }
        let len = self.socket.recv(self.buffer.bytes_mut())?;
        let bytes = &self.buffer.bytes()[..len];
        let word = |at: usize| {
            let word = bytes.get(at..at + 8).unwrap_or_default().try_into();
            word.map_or(0, u64::from_le_bytes)
        };
        if (0..len).step_by(PAGE).any(|at| word(at) != word(0)) {
            return Err(wrong("pages of different messages"));
        }
        Ok(Some(Came {
            stamp: word(0),
            offset: word(8),
            bytes: len as u64,
        }))
    }
}

/// The protocols and the card in this program.
struct User {
    card: Card,
    stack: Stack,
    path: Path,
    to: SocketAddrV4,
    waiting: VecDeque<Came>,
    frames: Vec<Received>,
}

impl User {
    fn start(name: &str, side: Side, in_place: bool) -> io::Result<Self> {
        let domain = Domain::enter(Backend::Device)?;
        let mut card = card(name, side)?;
        if in_place {
            card.use_fbufs(&domain);
        }
        Ok(Self {
            stack: Stack::new(&domain, config(side, &card))?,
            card,
            path: Path::new(&domain, Mode::CACHED_VOLATILE, 0)?,
            to: side.peer(),
            waiting: VecDeque::new(),
            frames: Vec::new(),
        })
    }

    fn transmit(&mut self, body: &Aggregate) -> io::Result<()> {
        self.stack.send(PORT, self.to, body, false)?;
        while let Some((to, packet)) = self.stack.take() {
            match self.card.send(to, packet, self.stack.path()) {
                // It is lost, and sent again.
                Err(why) if is_full(&why) => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Takes frames that wait.
    fn take(&mut self) -> io::Result<()> {
        let (_, has_others) = self.card.take_frames(&mut self.frames)?;
        for frame in self.frames.drain(..) {
            let path = self.stack.path();
            if Start::of(&frame).packet().is_none() {
                self.card.look_at_other(&frame, path)?;
                continue;
            }
            let packet = path.forward_frame(&frame)?;
            let packet = packet.clip_front(netserver::wire::ETHERNET as u64)?;
            if let Some(datagram) = self.stack.receive(&packet, Instant::now())? {
                self.waiting.push_back(came(&datagram.body)?);
            }
        }
        if !has_others {
            return Ok(());
        }
        for _ in 0..FRAMES {
            let start = match self.card.peek() {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                result => result?,
            };
            if start.packet().is_none() {
                self.card.take_other(self.stack.path())?;
                continue;
            }
            let mut fbuf = self.path.allocate(start.len)?;
            let len = self.card.take(&mut fbuf)?;
            let packet = Aggregate::new(fbuf, len)?;
            let packet = packet.clip_front(netserver::wire::ETHERNET as u64)?;
            if let Some(datagram) = self.stack.receive(&packet, Instant::now())? {
                self.waiting.push_back(came(&datagram.body)?);
            }
        }
        Ok(())
    }
}

fn is_full(why: &io::Error) -> bool {
    let full = [libc::EAGAIN, libc::ENOBUFS];
    why.raw_os_error().is_some_and(|it| full.contains(&it))
}

impl End for User {
    fn send(&mut self, word: u64, size: usize) -> io::Result<()> {
        let body = message(&self.path, word, size)?;
        self.transmit(&body)
    }

    fn acknowledge(&mut self, number: u64) -> io::Result<()> {
        let body = self.path.copy(&number.to_le_bytes())?;
        self.transmit(&body)
    }

    fn receive(&mut self, patience: Duration) -> io::Result<Option<Came>> {
        loop {
            if let Some(came) = self.waiting.pop_front() {
                return Ok(Some(came));
            }
            if !poll(self.card.as_fd().as_raw_fd(), patience)? {
                self.card.expire();
                return Ok(None);
            }
            self.take()?;
        }
    }
}

/// A socket of a server.
struct Client {
    socket: UdpSocket,
}

impl Client {
    fn start(side: Side, mode: Mode) -> io::Result<Self> {
        let options = Options {
            server: PLACE.into(),
            mode,
            has_checksum: false,
            is_verified: false,
            ..Options::default()
        };
        let mut socket = UdpSocket::bind(&Domain::enter(Backend::Device)?, PORT, options)?;
        socket.connect(side.peer())?;
        Ok(Self { socket })
    }
}

impl End for Client {
    fn send(&mut self, word: u64, size: usize) -> io::Result<()> {
        let body = message(self.socket.path(), word, size)?;
        self.socket.send(&body)
    }

    fn acknowledge(&mut self, number: u64) -> io::Result<()> {
        let body = self.socket.path().copy(&number.to_le_bytes())?;
        self.socket.send(&body)
    }

    fn receive(&mut self, patience: Duration) -> io::Result<Option<Came>> {
        loop {
            match self.socket.try_receive() {
                Ok(datagram) => return came(&datagram).map(Some),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                Err(why) => return Err(why),
            }
            if !self.socket.arm()? && !poll(self.socket.descriptor()?.as_raw_fd(), patience)? {
                return Ok(None);
            }
        }
    }
}
