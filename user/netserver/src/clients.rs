//! A client as the server sees it: its line, its ports, and what it may take.

use std::collections::BTreeSet;
use std::io;
use std::mem;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use libfbuf::{Aggregate, Contents, Domain, Member, Path, Received, send_descriptor};

use crate::error;
use crate::headers::LastHeader;
use crate::line::Line;
use crate::poll::poll_one;
use crate::protocol::{CARD, HEADER, HELLO, HELLO_RINGS, Header, Op};

/// What one client may take. The limits are those of a server, for each of its clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Chunks of 2 MiB of the path from the server to the client.
    pub chunks: usize,
    /// Ports.
    pub ports: usize,
    /// Datagrams that it has not yet freed; more are dropped.
    pub datagrams: usize,
    /// Bytes of those, beyond which they are dropped; one of any size always goes.
    pub bytes: u64,
    /// Whether packets are read where the card has written them, if the system can do that.
    pub in_place: bool,
    /// Whether clients may read all that comes from the card, so that nothing of it is copied.
    pub shares_card: bool,
    /// Whether messages of clients with cached, volatile paths go by rings, without the kernel.
    pub has_rings: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            chunks: 32,
            ports: 64,
            datagrams: 64,
            bytes: 8 << 20,
            in_place: true,
            shares_card: false,
            has_rings: true,
        }
    }
}

/// Most pieces of a message of a client: 1 MiB in pages, with room.
const MOST_PIECES: usize = 1024;

/// Most clients that may read another's path, of the 15 that the kernel allows: the server is one.
const MOST_SHARES: usize = 14;

/// A client.
pub(crate) struct Client {
    pub(crate) number: u64,
    /// The server's end of the socket for descriptors.
    descriptors: UnixStream,
    state: State,
    header: LastHeader<HEADER>,
    pub(crate) ports: BTreeSet<u16>,
    /// Clients that may read its path.
    shared_with: BTreeSet<u64>,
    /// It was told how to read the card's fbufs.
    has_card: bool,
    /// By memfds, the paths of other clients that it may read.
    readable: Vec<(u64, Member)>,
}

enum State {
    /// Its part of the connection has not come yet.
    New(UnixStream),
    Open(Line, Path),
    /// Between the two, and after an error.
    Closed,
}

impl Client {
    /// Greets a client that has connected.
    pub(crate) fn greet(number: u64, socket: UnixStream, limits: &Limits) -> io::Result<Client> {
        let hello = match limits.has_rings {
            true => &HELLO_RINGS,
            false => &HELLO,
        };
        socket.set_nonblocking(true)?;
        let (descriptors, theirs) = UnixStream::pair()?;
        descriptors.set_nonblocking(true)?;
        send_descriptor(socket.as_fd(), hello, theirs.as_fd())?;
        Ok(Client {
            number,
            descriptors,
            state: State::New(socket),
            header: LastHeader::default(),
            ports: BTreeSet::new(),
            shared_with: BTreeSet::new(),
            has_card: false,
            readable: Vec::new(),
        })
    }

    /// Makes the connection if the client's part of it has come; returns whether it is there.
    ///
    /// # Errors
    /// Those of a client that does not keep to the protocol.
    pub(crate) fn open(&mut self, domain: &Domain, limits: &Limits) -> io::Result<bool> {
        if let State::New(socket) = &self.state {
            if poll_one(socket.as_fd(), libc::POLLIN)? & libc::POLLIN == 0 {
                return Ok(false);
            }
        }
        if let State::New(socket) = mem::replace(&mut self.state, State::Closed) {
            let (line, path) = Line::accept(domain, limits, socket)?;
            self.state = State::Open(line, path);
        }
        Ok(true)
    }

    pub(crate) fn is_new(&self) -> bool {
        matches!(self.state, State::New(_))
    }

    /// Returns the line.
    ///
    /// # Errors
    /// `ENOTCONN` before it is there.
    pub(crate) fn line(&mut self) -> io::Result<&mut Line> {
        match &mut self.state {
            State::Open(line, _) => Ok(line),
            _ => Err(error(libc::ENOTCONN)),
        }
    }

    /// Returns the path from the server to the client.
    ///
    /// # Errors
    /// As [`line`](Client::line).
    pub(crate) fn path(&self) -> io::Result<&Path> {
        match &self.state {
            State::Open(_, path) => Ok(path),
            _ => Err(error(libc::ENOTCONN)),
        }
    }

    /// Receives a message, without those that have too many pieces.
    pub(crate) fn receive(&mut self) -> io::Result<Received> {
        let message = self.try_receive()?;
        let has_too_many = message.fragments().nth(MOST_PIECES).is_some();
        match has_too_many {
            true => Err(error(libc::E2BIG)),
            false => Ok(message),
        }
    }

    fn try_receive(&mut self) -> io::Result<Received> {
        match &mut self.state {
            State::Open(line, _) => line.try_receive(&mut |at| lender(&self.readable, at)),
            _ => Err(error(libc::ENOTCONN)),
        }
    }

    /// Returns whether it may read all of a body, or the kernel lets it.
    pub(crate) fn may_read(&mut self, body: &Aggregate) -> bool {
        match &mut self.state {
            State::Open(line, _) => line.may_read(body, &mut |at| lender(&self.readable, at)),
            _ => false,
        }
    }

    /// Returns whether it may have a datagram of so many bytes.
    pub(crate) fn has_room(&mut self, limits: &Limits, len: u64) -> io::Result<bool> {
        self.line()?.has_room(|count, bytes| {
            count == 0 || (count < limits.datagrams && bytes + len <= limits.bytes)
        })
    }

    /// Sends a header and a body, whose nodes are in this client's path.
    pub(crate) fn send(&mut self, header: &Header, body: Option<&Aggregate>) -> io::Result<()> {
        let State::Open(line, path) = &mut self.state else {
            return Err(error(libc::ENOTCONN));
        };
        let header = self.header.of(path, header.emit(), !line.is_by_kernel())?;
        match body {
            Some(body) => line.try_send(&header.join(body)?),
            None => line.try_send(header),
        }
    }

    /// Returns the descriptors that are readable when it has something to be done.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match &self.state {
            State::New(socket) => vec![socket.as_fd()],
            State::Open(line, _) => line.descriptors().collect(),
            State::Closed => Vec::new(),
        }
    }

    /// Returns whether its fbufs are mapped in their receivers for each message.
    pub(crate) fn is_uncached(&self) -> bool {
        match &self.state {
            State::Open(line, _) => line.member().mode().is_uncached,
            _ => true,
        }
    }

    /// Lets another client read this one's path; false if too many may already.
    pub(crate) fn share_with(&mut self, other: &mut Client) -> io::Result<bool> {
        if other.number == self.number || self.shared_with.contains(&other.number) {
            return Ok(true);
        }
        if self.shared_with.len() >= MOST_SHARES {
            return Ok(false);
        }
        let number = self.number;
        let member = self.line()?.member().clone();
        let bytes = number.to_le_bytes();
        send_descriptor(other.descriptors.as_fd(), &bytes, member.as_fd())?;
        if member.range().is_some() {
            other.readable.push((number, member));
        }
        self.shared_with.insert(other.number);
        Ok(true)
    }

    /// Lets it read all that comes from the card.
    pub(crate) fn share_card(&mut self, card: &Member) -> io::Result<()> {
        if !self.has_card {
            send_descriptor(self.descriptors.as_fd(), &CARD.to_le_bytes(), card.as_fd())?;
            self.has_card = true;
        }
        Ok(())
    }

    /// Notes the end of another client; tells this one if it may still read that one's path.
    pub(crate) fn forget(&mut self, other: &Client) {
        self.shared_with.remove(&other.number);
        self.readable.retain(|(number, _)| *number != other.number);
        if other.shared_with.contains(&self.number) {
            let none = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
            let mut header = Header::new(Op::Gone, 0, none);
            header.share = other.number;
            // Without room, the client keeps the path until its own end.
            let _ = self.send(&header, None);
        }
    }
}

/// Finds the path with this address.
fn lender(readable: &[(u64, Member)], address: usize) -> Option<Member> {
    let has = |it: &Member| it.range().is_some_and(|it| it.contains(&address));
    let found = readable.iter().find(|(_, it)| has(it));
    found.map(|(_, it)| it.clone())
}
