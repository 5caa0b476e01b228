//! A client's socket.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use libfbuf::{
    Aggregate, Contents, Domain, Fragment, Member, Mode, Path, Received, receive_descriptor,
};

use crate::error;
use crate::headers::LastHeader;
use crate::line::Line;
use crate::poll::poll_one;
use crate::protocol::{HEADER, HELLO, HELLO_RINGS, Header, NO_CHECKSUM, NO_VERIFY, Op, SOCKET};

/// How a socket is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the server listens.
    pub server: PathBuf,
    /// Chunks of 2 MiB of the path from here to the server; 0: the default, 32.
    pub chunks: usize,
    /// The mode of the path from here to the server, and of that from the server to here.
    pub mode: Mode,
    /// Whether datagrams have checksums, for which the server reads their bodies.
    pub has_checksum: bool,
    /// Whether the checksums of datagrams that come are looked at.
    pub is_verified: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            server: SOCKET.into(),
            chunks: 0,
            mode: Mode::CACHED_VOLATILE,
            has_checksum: true,
            is_verified: true,
        }
    }
}

/// A UDP socket of the server, with one port. Its datagrams are aggregates: what is sent is not
/// copied, nor what comes.
///
/// The bodies of a [connected](UdpSocket::connect) socket go without a copy to receivers on the
/// same server, which for that may read all fbufs of the socket's [path](UdpSocket::path). Those
/// of others are copied for such receivers.
///
/// When the server ends, calls fail with `ECONNRESET`, `EPIPE` or `ENOTCONN`, and with that error
/// until [`reconnect`](UdpSocket::reconnect).
pub struct UdpSocket {
    domain: Domain,
    options: Options,
    path: Path,
    header: LastHeader<HEADER>,
    connection: Option<Connection>,
    local: SocketAddrV4,
    peer: Option<SocketAddrV4>,
}

/// A connection to a server.
struct Connection {
    domain: Domain,
    line: Line,
    /// Brings paths of other clients.
    descriptors: UnixStream,
    shares: HashMap<u64, Share>,
    /// The one of the last datagram.
    last_share: Option<(u64, Share)>,
    /// Datagrams that came before a reply.
    waiting: VecDeque<Incoming>,
    requests: u32,
}

/// The right to read another client's fbufs; `None`: they are this process's own.
type Share = Option<Arc<Member>>;

/// Memberships of this process, which joins a path once: by the server and its client.
static MEMBERS: Mutex<Vec<(PathId, Weak<Member>)>> = Mutex::new(Vec::new());

/// A path's identity: 0 and the kernel's number, or the file of memfds.
type PathId = (u64, u64);

/// Returns the identity of a path by its descriptor.
fn identify(file: &File) -> io::Result<PathId> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()));
    let about = about.unwrap_or_default();
    let number = about.lines().find_map(|it| it.strip_prefix("fbuf-path:"));
    if let Some(number) = number.and_then(|it| it.trim().parse().ok()) {
        return Ok((0, number));
    }
    let about = file.metadata()?;
    Ok((about.dev(), about.ino()))
}

/// A datagram that came. Its drop tells its owner that its fbufs are free.
pub struct Incoming {
    from: SocketAddrV4,
    message: Received,
    /// Keeps the body readable.
    _share: Share,
}

impl UdpSocket {
    /// Connects to the server, and binds a port; 0: any.
    ///
    /// # Errors
    /// `ENOENT` or `ECONNREFUSED` without a server, `EADDRINUSE` for a port that is bound; those of
    /// paths.
    pub fn bind(domain: &Domain, port: u16, options: Options) -> io::Result<UdpSocket> {
        let path = Path::new(domain, options.mode, options.chunks)?;
        let mut socket = UdpSocket {
            domain: domain.clone(),
            options,
            path,
            header: LastHeader::default(),
            connection: None,
            local: SocketAddrV4::new([0; 4].into(), port),
            peer: None,
        };
        socket.reconnect()?;
        Ok(socket)
    }

    /// Connects to the server again, and binds the same port and destination. What waited is lost.
    ///
    /// # Errors
    /// Those of [`bind`](UdpSocket::bind): while there is no server, try again.
    pub fn reconnect(&mut self) -> io::Result<()> {
        self.connection = None;
        let mut connection = Connection::open(&self.domain, &self.path, &self.options.server)?;
        let mut header = Header::new(Op::Bind, self.local.port(), self.local);
        if !self.options.is_verified {
            header.flags |= NO_VERIFY;
        }
        self.local = connection.ask(&self.path, header)?;
        if let Some(peer) = self.peer {
            connection.ask(
                &self.path,
                Header::new(Op::Connect, self.local.port(), peer),
            )?;
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Sets the only destination and sender of datagrams.
    ///
    /// # Errors
    /// Those of a server that is gone.
    pub fn connect(&mut self, peer: SocketAddrV4) -> io::Result<()> {
        let header = Header::new(Op::Connect, self.local.port(), peer);
        let path = self.path.clone();
        self.connection()?.ask(&path, header)?;
        self.peer = Some(peer);
        Ok(())
    }

    /// Returns the own address and port.
    pub fn local(&self) -> SocketAddrV4 {
        self.local
    }

    /// Returns the path in whose fbufs bodies are made.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends a datagram. Waits while 256 messages are not yet freed.
    ///
    /// # Errors
    /// Those of a server that is gone; `ENOSPC` or `ENOMEM` without memory for the header. A
    /// datagram may be lost afterwards, which nothing tells: it is UDP.
    pub fn send_to(&mut self, body: &Aggregate, to: SocketAddrV4) -> io::Result<()> {
        let mut header = Header::new(Op::Send, self.local.port(), to);
        if !self.options.has_checksum {
            header.flags |= NO_CHECKSUM;
        }
        let connection = self.connection.as_mut();
        let line = &mut connection.ok_or_else(|| error(libc::ENOTCONN))?.line;
        let is_reused = !line.is_by_kernel();
        let header = self.header.of(&self.path, header.emit(), is_reused)?;
        line.send(&header.join(body)?)
    }

    /// Sends a datagram to the destination of [`connect`](UdpSocket::connect).
    ///
    /// # Errors
    /// Those of [`send_to`](UdpSocket::send_to); `EDESTADDRREQ` without a destination.
    pub fn send(&mut self, body: &Aggregate) -> io::Result<()> {
        let peer = self.peer.ok_or_else(|| error(libc::EDESTADDRREQ))?;
        self.send_to(body, peer)
    }

    /// Receives a datagram; waits for one.
    ///
    /// # Errors
    /// Those of a server that is gone.
    pub fn receive(&mut self) -> io::Result<Incoming> {
        loop {
            let connection = self.connection()?;
            if let Some(datagram) = connection.waiting.pop_front() {
                return Ok(datagram);
            }
            let message = connection.receive()?;
            connection.take(message)?;
        }
    }

    /// Receives a datagram, or fails with `EAGAIN` instead of waiting.
    ///
    /// # Errors
    /// Those of [`receive`](UdpSocket::receive), and `EAGAIN`.
    pub fn try_receive(&mut self) -> io::Result<Incoming> {
        loop {
            let connection = self.connection()?;
            if let Some(datagram) = connection.waiting.pop_front() {
                return Ok(datagram);
            }
            let message = connection.try_receive()?;
            connection.take(message)?;
        }
    }

    /// Prepares for waiting by `poll` or `epoll` at the [descriptor](UdpSocket::as_fd). Returns
    /// true if something is there already.
    ///
    /// # Errors
    /// Those of a server that is gone.
    pub fn arm(&mut self) -> io::Result<bool> {
        let connection = self.connection()?;
        connection.line.check()?;
        Ok(!connection.waiting.is_empty() || connection.line.arm())
    }

    /// Returns the descriptor to wait at after [`arm`](UdpSocket::arm); it changes when the socket
    /// reconnects.
    ///
    /// # Errors
    /// `ENOTCONN` without a server.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        let connection = self.connection.as_ref();
        Ok(connection
            .ok_or_else(|| error(libc::ENOTCONN))?
            .line
            .as_fd())
    }

    fn connection(&mut self) -> io::Result<&mut Connection> {
        self.connection
            .as_mut()
            .ok_or_else(|| error(libc::ENOTCONN))
    }
}

impl Connection {
    fn open(domain: &Domain, path: &Path, server: &FilePath) -> io::Result<Connection> {
        let socket = UnixStream::connect(server)?;
        let mut hello = [0; HELLO.len()];
        let descriptors = receive_descriptor(socket.as_fd(), &mut hello)?;
        let has_rings = hello == HELLO_RINGS;
        if !has_rings && hello != HELLO {
            return Err(error(libc::EPROTO));
        }
        Ok(Connection {
            domain: domain.clone(),
            line: Line::connect(domain, path, socket, has_rings)?,
            descriptors: descriptors.into(),
            shares: HashMap::new(),
            last_share: None,
            waiting: VecDeque::new(),
            requests: 0,
        })
    }

    /// Makes a request; returns the own address.
    fn ask(&mut self, path: &Path, header: Header) -> io::Result<SocketAddrV4> {
        self.requests += 1;
        let number = self.requests;
        let header = Header {
            request: number,
            ..header
        };
        self.line.send(&path.copy(&header.emit())?)?;
        loop {
            let message = self.receive()?;
            if let Some(reply) = self.take(message)?
                && reply.request == number
            {
                return match reply.error {
                    0 => Ok(SocketAddrV4::new(*reply.peer.ip(), reply.port)),
                    number => Err(error(number.into())),
                };
            }
        }
    }

    fn receive(&mut self) -> io::Result<Received> {
        let (line, shares) = (&mut self.line, &mut self.shares);
        let (domain, descriptors) = (&self.domain, self.descriptors.as_fd());
        line.receive(&mut |address| lender(domain, descriptors, shares, address))
    }

    fn try_receive(&mut self) -> io::Result<Received> {
        let (line, shares) = (&mut self.line, &mut self.shares);
        let (domain, descriptors) = (&self.domain, self.descriptors.as_fd());
        line.try_receive(&mut |address| lender(domain, descriptors, shares, address))
    }

    /// Takes a message of the server; returns a reply.
    fn take(&mut self, message: Received) -> io::Result<Option<Header>> {
        let mut bytes = [0; HEADER];
        message.copy_at(0, &mut bytes);
        let header = Header::read(&bytes).ok_or_else(|| error(libc::EPROTO))?;
        match header.op {
            Op::Reply => return Ok(Some(header)),
            Op::Datagram => {
                let share = self.share(header.share)?;
                self.waiting.push_back(Incoming {
                    from: header.peer,
                    message,
                    _share: share,
                });
            }
            Op::Gone => {
                // It may still wait at the socket, if none of its datagrams was delivered.
                if self.share(header.share).is_ok() {
                    self.shares.remove(&header.share);
                    self.last_share = None;
                }
            }
            _ => return Err(error(libc::EPROTO)),
        }
        Ok(None)
    }

    /// Returns the right to read the fbufs of a client, whose path has come before its datagrams.
    fn share(&mut self, number: u64) -> io::Result<Share> {
        if number == 0 {
            return Ok(None);
        }
        if let Some((last, share)) = &self.last_share
            && *last == number
        {
            return Ok(share.clone());
        }
        while !self.shares.contains_key(&number) {
            add_share(&self.domain, self.descriptors.as_fd(), &mut self.shares)?;
        }
        let share = self.shares.get(&number).cloned().flatten();
        self.last_share = Some((number, share.clone()));
        Ok(share)
    }
}

/// Receives the next client's path.
fn add_share(
    domain: &Domain,
    descriptors: BorrowedFd<'_>,
    shares: &mut HashMap<u64, Share>,
) -> io::Result<()> {
    let mut bytes = [0; 8];
    let path = receive_descriptor(descriptors, &mut bytes)?;
    shares.insert(u64::from_le_bytes(bytes), join(domain, path)?);
    Ok(())
}

/// Returns the right to read the client's path with this address, which has come before messages
/// that name it.
fn lender(
    domain: &Domain,
    descriptors: BorrowedFd<'_>,
    shares: &mut HashMap<u64, Share>,
    address: usize,
) -> Option<Member> {
    loop {
        let has = |it: &&Arc<Member>| it.range().is_some_and(|it| it.contains(&address));
        if let Some(member) = shares.values().flatten().find(has) {
            return Some(Member::clone(member));
        }
        let found = poll_one(descriptors, libc::POLLIN).ok()?;
        if found & libc::POLLIN == 0 {
            return None;
        }
        add_share(domain, descriptors, shares).ok()?;
    }
}

/// Joins a path, once in this process; `None` if it is this process's own.
fn join(domain: &Domain, path: OwnedFd) -> io::Result<Share> {
    let file = File::from(path);
    let id = identify(&file)?;
    let mut members = MEMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    members.retain(|(_, member)| member.strong_count() > 0);
    let found = members.iter().find(|(other, _)| *other == id);
    if let Some(member) = found.and_then(|(_, it)| it.upgrade()) {
        return Ok(Some(member));
    }
    match Member::attach(domain, file.into()) {
        Ok(member) => {
            let member = Arc::new(member);
            members.push((id, Arc::downgrade(&member)));
            Ok(Some(member))
        }
        Err(why) if why.raw_os_error() == Some(libc::EPERM) => Ok(None),
        Err(why) => Err(why),
    }
}

impl Incoming {
    /// Returns the sender.
    pub fn from(&self) -> SocketAddrV4 {
        self.from
    }

    /// Returns the body as an aggregate in a path, without copying it.
    ///
    /// # Errors
    /// Those of making nodes.
    pub fn aggregate(&self, path: &Path) -> io::Result<Aggregate> {
        path.forward(&self.message).clip_front(HEADER as u64)
    }
}

/// The body.
impl Contents for Incoming {
    fn fragments(&self) -> impl Iterator<Item = Fragment<'_>> {
        let mut header = HEADER;
        self.message.fragments().filter_map(move |fragment| {
            let skipped = header.min(fragment.len());
            header -= skipped;
            let rest = fragment.part(skipped, usize::MAX);
            (!rest.is_empty()).then_some(rest)
        })
    }

    fn len(&self) -> u64 {
        self.message.len().saturating_sub(HEADER as u64)
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Incoming({} bytes from {})", self.len(), self.from)
    }
}

impl std::fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpSocket")
            .field("local", &self.local)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
