//! A client as the server sees it: its channel, its ports, and what it may take.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use libfbuf::{Aggregate, Channel, Contents, Domain, Mode, Path, Received, send_descriptor};

use crate::error;
use crate::protocol::{HELLO, Header, Op};

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
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            chunks: 32,
            ports: 64,
            datagrams: 64,
            bytes: 8 << 20,
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
    /// From the server to the client.
    pub(crate) path: Path,
    /// The server's end of the socket for descriptors.
    descriptors: UnixStream,
    line: Line,
    pub(crate) ports: BTreeSet<u16>,
    /// Clients that may read its path.
    shared_with: BTreeSet<u64>,
}

enum Line {
    /// Its offer has not come yet.
    New(UnixStream),
    Open(Channel),
    /// Between the two, and after an error.
    Closed,
}

impl Client {
    /// Greets a client that has connected.
    pub(crate) fn greet(
        domain: &Domain,
        limits: &Limits,
        number: u64,
        socket: UnixStream,
    ) -> io::Result<Client> {
        socket.set_nonblocking(true)?;
        let (descriptors, theirs) = UnixStream::pair()?;
        descriptors.set_nonblocking(true)?;
        send_descriptor(socket.as_fd(), &HELLO, theirs.as_fd())?;
        Ok(Client {
            number,
            path: Path::new(domain, Mode::CACHED_VOLATILE, limits.chunks)?,
            descriptors,
            line: Line::New(socket),
            ports: BTreeSet::new(),
            shared_with: BTreeSet::new(),
        })
    }

    /// Makes the channel if the client's offer has come.
    ///
    /// # Errors
    /// Those of a client that does not keep to the protocol.
    pub(crate) fn open(&mut self, domain: &Domain) -> io::Result<()> {
        if let Line::New(socket) = &self.line {
            let mut byte = 0u8;
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            let fd = std::os::fd::AsRawFd::as_raw_fd(socket);
            // SAFETY: the byte lives across the call.
            let peeked = unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, flags) };
            match crate::poll::checked(peeked) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(why) => return Err(why),
                Ok(0) => return Err(error(libc::EPIPE)),
                Ok(_) => {}
            }
        }
        if let Line::New(socket) = std::mem::replace(&mut self.line, Line::Closed) {
            self.line = Line::Open(Channel::connect(domain, &self.path, socket.into())?);
        }
        Ok(())
    }

    /// Returns the channel.
    ///
    /// # Errors
    /// `ENOTCONN` before it is there.
    pub(crate) fn channel(&mut self) -> io::Result<&mut Channel> {
        match &mut self.line {
            Line::Open(channel) => Ok(channel),
            _ => Err(error(libc::ENOTCONN)),
        }
    }

    pub(crate) fn is_new(&self) -> bool {
        matches!(self.line, Line::New(_))
    }

    /// Receives a message, without those that have too many pieces.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Received>> {
        let message = self.channel()?.try_receive()?;
        match &message {
            Some(it) if it.fragments().nth(MOST_PIECES).is_some() => Err(error(libc::E2BIG)),
            _ => Ok(message),
        }
    }

    /// Returns whether it may have a datagram of so many bytes.
    pub(crate) fn has_room(&mut self, limits: &Limits, len: u64) -> io::Result<bool> {
        let channel = self.channel()?;
        channel.collect()?;
        Ok(match channel.in_flight() {
            0 => true,
            count => count < limits.datagrams && channel.bytes_in_flight() + len <= limits.bytes,
        })
    }

    /// Sends a header and a body, whose nodes are in this client's path.
    pub(crate) fn send(&mut self, header: &Header, body: Option<&Aggregate>) -> io::Result<()> {
        let mut message = self.path.copy(&header.emit())?;
        if let Some(body) = body {
            message = message.join(body)?;
        }
        self.channel()?.try_send(&message)
    }

    /// Lets another client read this one's path; false if too many may already.
    pub(crate) fn share_with(&mut self, other: &Client) -> io::Result<bool> {
        if other.number == self.number || self.shared_with.contains(&other.number) {
            return Ok(true);
        }
        if self.shared_with.len() >= MOST_SHARES {
            return Ok(false);
        }
        let number = self.number.to_le_bytes();
        let member = self.channel()?.member();
        send_descriptor(other.descriptors.as_fd(), &number, member.as_fd())?;
        self.shared_with.insert(other.number);
        Ok(true)
    }

    /// Notes the end of another client; tells this one if it may still read that one's path.
    pub(crate) fn forget(&mut self, other: &Client) {
        self.shared_with.remove(&other.number);
        if other.shared_with.contains(&self.number) {
            let none = std::net::SocketAddrV4::new([0; 4].into(), 0);
            let mut header = Header::new(Op::Gone, 0, none);
            header.share = other.number;
            // Without room, the client keeps the path until its own end.
            let _ = self.send(&header, None);
        }
    }
}

/// The connection.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.line {
            Line::New(socket) => socket.as_fd(),
            Line::Open(channel) => channel.as_fd(),
            Line::Closed => self.descriptors.as_fd(),
        }
    }
}
