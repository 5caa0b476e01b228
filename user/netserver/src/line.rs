//! What carries messages between a client and the server: a channel's rings for cached, volatile
//! paths, and messages through the kernel for others. What a message names is checked for both: its
//! sender can read it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use libfbuf::{
    Aggregate, Backend, Channel, Domain, Member, Mode, Path, Received, To, receive_descriptor,
    send_descriptor,
};

use crate::clients::Limits;
use crate::error;
use crate::poll::{checked, poll_one};

/// The bytes that come with a path's descriptor; then follows the number by which the other side is
/// a member of the receiver's path, 0 if it is none yet.
const PATH: [u8; 8] = *b"netpath1";

/// Most messages of one direction that are not freed: the kernel queues 64, so that a send does not
/// block.
const MOST_IN_FLIGHT: usize = 64;

/// Finds the membership in the path of an address that the other side names.
pub(crate) type Lend<'a> = dyn FnMut(usize) -> Option<Member> + 'a;

/// One end of a line.
pub(crate) enum Line {
    Ring(Box<Channel>),
    Kernel(Kernel),
}

/// Messages through the kernel.
pub(crate) struct Kernel {
    path: Path,
    to: To,
    member: Member,
    socket: UnixStream,
    may_block: bool,
}

impl Line {
    /// Connects to the server.
    pub(crate) fn connect(
        domain: &Domain,
        path: &Path,
        socket: UnixStream,
        has_rings: bool,
    ) -> io::Result<Line> {
        let is_ring = has_rings && path.mode() == Mode::CACHED_VOLATILE;
        if is_ring || domain.backend() == Backend::Memfd {
            let channel = Channel::connect(domain, path, socket.into())?;
            return Ok(Line::Ring(Box::new(channel)));
        }
        offer(&socket, path, 0)?;
        let (member, to) = attach(domain, &socket)?;
        Ok(Line::Kernel(Kernel {
            path: path.clone(),
            // Receivers of the datagrams may be members of this path, too.
            to: Some(To::of(to))
                .filter(|to| *to != To::All)
                .ok_or_else(wrong)?,
            member,
            socket,
            may_block: true,
        }))
    }

    /// Accepts a client whose part has come; returns the path to it, too, which is of the mode that
    /// the client has chosen for its own.
    pub(crate) fn accept(
        domain: &Domain,
        limits: &Limits,
        socket: UnixStream,
    ) -> io::Result<(Line, Path)> {
        let chunks = limits.chunks;
        let is_ring = limits.has_rings && !is_offered(&socket)?;
        if is_ring || domain.backend() == Backend::Memfd {
            let path = Path::new(domain, Mode::CACHED_VOLATILE, chunks)?;
            let channel = Channel::connect(domain, &path, socket.into())?;
            return Ok((Line::Ring(Box::new(channel)), path));
        }
        let (member, _) = attach(domain, &socket)?;
        let path = Path::new(domain, member.mode(), chunks)?;
        offer(&socket, &path, member.number())?;
        let kernel = Kernel {
            path: path.clone(),
            to: To::All,
            member,
            socket,
            may_block: false,
        };
        Ok((Line::Kernel(kernel), path))
    }

    /// Returns the membership in the other's path.
    pub(crate) fn member(&self) -> &Member {
        match self {
            Line::Ring(channel) => channel.member(),
            Line::Kernel(kernel) => &kernel.member,
        }
    }

    /// Whether the kernel makes readable for the receiver what it cannot read yet.
    pub(crate) fn is_by_kernel(&self) -> bool {
        matches!(self, Line::Kernel(_))
    }

    /// Sends a message. A client waits for room, the server fails with `EAGAIN`.
    pub(crate) fn send(&mut self, message: &Aggregate) -> io::Result<()> {
        match self {
            Line::Ring(channel) => channel.send(message),
            Line::Kernel(kernel) => kernel.send(message),
        }
    }

    /// As [`send`](Line::send), but never waits.
    pub(crate) fn try_send(&mut self, message: &Aggregate) -> io::Result<()> {
        match self {
            Line::Ring(channel) => channel.try_send(message),
            Line::Kernel(kernel) => kernel.try_send(message),
        }
    }

    /// Whether the other side may read all of a body, or the kernel lets it.
    pub(crate) fn may_read(&mut self, body: &Aggregate, lend: &mut Lend<'_>) -> bool {
        match self {
            Line::Ring(channel) => channel.may_peer_read(body, lend),
            Line::Kernel(_) => true,
        }
    }

    /// Receives a message; waits for one. `ECONNRESET` when the other side is gone. By memfds,
    /// `lend` tells which other paths the other side may read.
    pub(crate) fn receive(&mut self, lend: &mut Lend<'_>) -> io::Result<Received> {
        let message = match self {
            Line::Ring(channel) => channel.receive_lent(lend)?,
            Line::Kernel(kernel) => return kernel.receive(),
        };
        message.ok_or_else(|| error(libc::ECONNRESET))
    }

    /// Receives a message that is there, or fails with `EAGAIN`; with `EFAULT` for one that names
    /// what its sender may not read.
    pub(crate) fn try_receive(&mut self, lend: &mut Lend<'_>) -> io::Result<Received> {
        let message = match self {
            Line::Ring(channel) => channel.try_receive_lent(lend)?,
            Line::Kernel(kernel) => return kernel.try_receive(),
        };
        message.ok_or_else(|| error(libc::ECONNRESET))
    }

    /// Prepares for waiting at the [descriptor](AsFd::as_fd); true if something is there.
    pub(crate) fn arm(&mut self) -> bool {
        match self {
            Line::Ring(channel) => channel.arm(),
            Line::Kernel(_) => false,
        }
    }

    /// Fails if the other side is gone.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        match self {
            Line::Ring(channel) => channel.check(),
            Line::Kernel(kernel) => kernel.check(),
        }
    }

    /// Returns whether what is not freed, as messages and their bytes, `fits`. Notices are read
    /// before the answer is no.
    pub(crate) fn has_room(&mut self, fits: impl Fn(usize, u64) -> bool) -> io::Result<bool> {
        let is_within = |(count, bytes)| fits(count, bytes);
        match self {
            Line::Ring(channel) => {
                channel.collect()?;
                Ok(fits(channel.in_flight(), channel.bytes_in_flight()))
            }
            Line::Kernel(kernel) => {
                let path = &kernel.path;
                Ok(is_within(path.in_flight()) || {
                    path.collect()?;
                    is_within(path.in_flight())
                })
            }
        }
    }

    /// Returns the descriptors that are readable when there is something to do.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let second = match self {
            Line::Ring(_) => None,
            Line::Kernel(kernel) => Some(kernel.socket.as_fd()),
        };
        [self.as_fd()].into_iter().chain(second)
    }
}

fn offer(socket: &UnixStream, path: &Path, number: u64) -> io::Result<()> {
    let bytes = [PATH, number.to_le_bytes()];
    send_descriptor(socket.as_fd(), bytes.as_flattened(), path.as_fd())
}

/// Whether the other side, whose part has come, offers a path for messages through the kernel.
fn is_offered(socket: &UnixStream) -> io::Result<bool> {
    let mut first = [0; PATH.len()];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the buffer has that length.
    let len = checked(unsafe {
        libc::recv(
            socket.as_raw_fd(),
            first.as_mut_ptr().cast(),
            first.len(),
            flags,
        )
    })?;
    Ok(len as usize == first.len() && first == PATH)
}

/// Joins the path that the other side offers; returns the number that comes with it, too.
fn attach(domain: &Domain, socket: &UnixStream) -> io::Result<(Member, u64)> {
    let mut bytes = [[0; 8]; 2];
    let path = receive_descriptor(socket.as_fd(), bytes.as_flattened_mut())?;
    match bytes {
        [PATH, number] => Ok((Member::attach(domain, path)?, u64::from_le_bytes(number))),
        _ => Err(wrong()),
    }
}

fn wrong() -> io::Error {
    error(libc::EPROTO)
}

impl Kernel {
    fn send(&self, message: &Aggregate) -> io::Result<()> {
        match self.may_block {
            true => self.path.send(self.to, message).map(drop),
            false => self.try_send(message),
        }
    }

    fn try_send(&self, message: &Aggregate) -> io::Result<()> {
        if self.path.in_flight().0 >= MOST_IN_FLIGHT {
            self.path.collect()?;
        }
        self.path.try_send(self.to, message).map(drop)
    }

    fn receive(&self) -> io::Result<Received> {
        let message = self.member.receive()?;
        let message = message.ok_or_else(|| error(libc::ECONNRESET))?;
        Ok(message.contents().clone())
    }

    fn try_receive(&self) -> io::Result<Received> {
        let message = self.member.try_receive_checked()?;
        let message = message.ok_or_else(|| error(libc::ECONNRESET))?;
        Ok(message.contents().clone())
    }

    fn check(&self) -> io::Result<()> {
        // Nothing more comes by the socket: bytes would keep the server busy.
        match poll_one(self.socket.as_fd(), libc::POLLRDHUP | libc::POLLIN)? {
            0 => Ok(()),
            libc::POLLIN => Err(error(libc::EPROTO)),
            _ => Err(error(libc::ECONNRESET)),
        }
    }
}

/// The descriptor to wait at after [`arm`](Line::arm).
impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Line::Ring(channel) => channel.as_fd(),
            Line::Kernel(kernel) => kernel.member.as_fd(),
        }
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Line({})", self.as_fd().as_raw_fd())
    }
}
