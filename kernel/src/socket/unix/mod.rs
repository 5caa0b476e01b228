//! Local sockets (`AF_UNIX`): streams, datagrams, and connections of packets.
//!
//! - [`UnixSocket`]: the socket behind an open file; [`end`]: the part of it that other sockets hold.
//! - [`channel`]: a stream's bytes, as slices of pages; [`messages`]: datagrams and packets.
//! - `stream`, `packet`: sending and receiving of either; `connect`: names and connections.
//! - [`name`]: names in the file system and abstract ones.
//! - [`credentials`], [`rights`]: who sends, and the files that go with what is sent; [`collect`]: finding sockets that only
//!   sockets in flight lead to.
//! - [`listing`] makes the text of `/proc/net/unix`.
//!
//! Two sockets that are connected hold each other's [`End`](end::End), and an end holds no socket, so nothing
//! keeps itself alive but files in flight. Locks, in the order in which they are taken:
//!
//! ```text
//! reading (the one reader of a stream copies)       Rank::PipeReading
//!    writing (its one writer copies)                Rank::Pipe        also the frame for small messages
//!       sockets in flight                           Rank::InFlight
//!          a queue, a stage, a shard of names       Rank::Leaf        one at a time, spinning
//! ```
//! No two ends' locks are ever held at once, but a reader's and a writer's when splice moves from one to another.

mod channel;
mod collect;
mod connect;
mod credentials;
mod end;
pub mod listing;
mod messages;
mod name;
mod packet;
mod rights;
mod stream;

use alloc::{boxed::Box, sync::Arc};

use abi::{
    Errno, Result,
    raw::{
        ioctl::{FIONREAD, SIOCATMARK, TIOCOUTQ},
        net::{AF_UNIX, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET, SOCK_STREAM},
    },
};
use fs::Ready;
use nucleus::{
    VirtAddr, frame,
    sync::{OnceBox, Rank, SpinLock},
    task::Watch,
    user,
};

use super::{
    Address, Common, Family, Incoming, Outgoing, Patience, PeerCredentials, Shutdown, Socket,
    SocketFile,
};
use crate::process::files::OpenFile;
use end::{End, Inbox, Stage};
use name::Name;

/// The family of local sockets.
pub const FAMILY: Family = Family {
    domain: AF_UNIX,
    create,
    pair: Some(pair),
};

/// A local socket.
pub struct UnixSocket {
    end: Arc<End>,
    /// The other end of a stream or a connection of packets: once there, it stays.
    connected: OnceBox<Arc<End>>,
    /// To whom datagrams go if not told otherwise.
    target: SpinLock<Option<Arc<End>>>,
    /// Who was at the other end when the connection was made.
    peer: OnceBox<PeerCredentials>,
}

/// The type of a new socket.
///
/// # Errors
/// `ESOCKTNOSUPPORT`, `EPROTONOSUPPORT`.
fn check(kind: u32, protocol: u32) -> Result<u32> {
    if protocol != 0 && protocol != AF_UNIX {
        return Err(Errno::EPROTONOSUPPORT);
    }
    match kind {
        SOCK_STREAM | SOCK_DGRAM | SOCK_SEQPACKET => Ok(kind),
        // Believed to be another word for datagrams, as ever.
        SOCK_RAW => Ok(SOCK_DGRAM),
        _ => Err(Errno::ESOCKTNOSUPPORT),
    }
}

fn create(kind: u32, protocol: u32) -> Result<Arc<dyn Socket>> {
    let end = End::new(check(kind, protocol)?)?;
    Ok(Arc::new(UnixSocket::new(end)))
}

fn pair(kind: u32, protocol: u32) -> Result<[Arc<dyn Socket>; 2]> {
    let kind = check(kind, protocol)?;
    let (a, b) = (End::new(kind)?, End::new(kind)?);
    let sockets = [UnixSocket::new(a.clone()), UnixSocket::new(b.clone())];
    for (socket, other) in sockets.iter().zip([&b, &a]) {
        socket.end.set_peer(Some(other));
        if kind == SOCK_DGRAM {
            *socket.target.lock() = Some(other.clone());
        } else {
            *socket.end.stage.lock() = Stage::Connected;
            socket.connected.get_or_insert(|| Box::new(other.clone()));
        }
        socket.set_peer_credentials(credentials::current_peer());
    }
    Ok(sockets.map(|socket| Arc::new(socket) as Arc<dyn Socket>))
}

impl UnixSocket {
    fn new(end: Arc<End>) -> UnixSocket {
        UnixSocket {
            end,
            connected: OnceBox::new(),
            target: SpinLock::new(Rank::Leaf, None),
            peer: OnceBox::new(),
        }
    }

    /// The local socket that an open file is.
    pub fn of(open: &OpenFile) -> Option<&UnixSocket> {
        let socket: &dyn core::any::Any = &**SocketFile::of(open).ok()?;
        socket.downcast_ref()
    }

    /// What other sockets hold of it.
    pub fn end(&self) -> &Arc<End> {
        &self.end
    }

    fn is_datagram(&self) -> bool {
        self.end.common.kind() == SOCK_DGRAM
    }

    /// The other end, if there is one.
    fn other(&self) -> Option<Arc<End>> {
        if self.is_datagram() {
            self.target.lock().clone()
        } else {
            self.connected.get().cloned()
        }
    }

    fn set_peer_credentials(&self, peer: Option<PeerCredentials>) {
        if let Some(peer) = peer {
            self.peer.get_or_insert(|| Box::new(peer));
        }
    }

    /// It is closed before anybody accepted it: the other end learns of it in any case.
    fn refuse(&self) {
        if let Some(other) = self.connected.get() {
            other.reset();
        }
        self.release();
    }

    /// What is ready of a stream.
    fn poll_stream(&self, channel: &channel::Channel) -> Ready {
        let mut ready = Ready::empty();
        let status = channel.status();
        ready.set(Ready::PRI, status.urgent);
        let (mut readable, mut writable) = (status.bytes > 0, true);
        match (self.connected.get(), &*self.end.stage.lock()) {
            (_, Stage::Listening(listener)) => {
                readable = !listener.waiting.is_empty();
                writable = false;
            }
            (None, Stage::Connected) | (Some(_), _) => {}
            (None, _) => ready |= Ready::HUP,
        }
        if let Some(other) = self.connected.get()
            && let Inbox::Bytes(channel) = &other.inbox
        {
            writable = channel.has_room(self.end.common.send_buffer());
        }
        ready | self.ready(readable, writable)
    }

    /// What is ready of datagrams and packets.
    fn poll_messages(&self, messages: &messages::Messages) -> Ready {
        let mut ready = Ready::empty();
        let mut readable = messages.status().0 > 0;
        let mut writable = self.end.is_writable();
        if self.is_datagram() {
            let target = self.target.lock().clone();
            if writable && let Some(target) = target {
                writable = !packet::is_full(&self.end, &target);
            }
        } else {
            match (self.connected.get(), &*self.end.stage.lock()) {
                (_, Stage::Listening(listener)) => {
                    readable = !listener.waiting.is_empty();
                    writable = false;
                }
                (None, Stage::Connected) | (Some(_), _) => {}
                (None, _) => ready |= Ready::HUP,
            }
        }
        ready | self.ready(readable, writable)
    }

    /// Readiness as bits, with errors and ends.
    fn ready(&self, readable: bool, writable: bool) -> Ready {
        let mut ready = Ready::empty();
        let (no_more_in, no_more_out) = (self.end.is_receive_shut(), self.end.is_send_shut());
        if self.end.common.has_error() {
            ready |= Ready::ERR;
        }
        if no_more_in {
            ready |= Ready::RDHUP | Ready::IN | Ready::RDNORM;
        }
        if no_more_in && no_more_out {
            ready |= Ready::HUP;
        }
        if readable {
            ready |= Ready::IN | Ready::RDNORM;
        }
        if writable {
            ready |= Ready::OUT | Ready::WRNORM | Ready::WRBAND;
        }
        ready
    }
}

impl Socket for UnixSocket {
    fn common(&self) -> &Common {
        &self.end.common
    }

    fn bind(&self, address: &Address) -> Result<()> {
        self.bind_name(address)
    }

    fn listen(&self, backlog: u32) -> Result<()> {
        self.start_listening(backlog)
    }

    fn accept(&self, patience: Patience) -> Result<Arc<dyn Socket>> {
        let accepted: Arc<dyn Socket> = self.accept_connection(patience)?;
        Ok(accepted)
    }

    fn connect(&self, address: &Address, patience: Patience) -> Result<()> {
        if self.is_datagram() {
            self.set_target(address)
        } else {
            self.connect_to(address, patience)
        }
    }

    fn name(&self) -> Result<Address> {
        Ok(self
            .end
            .name()
            .map_or_else(Name::none, |name| name.address()))
    }

    fn peer_name(&self) -> Result<Address> {
        let other = self.other().ok_or(Errno::ENOTCONN)?;
        Ok(other.name().map_or_else(Name::none, |name| name.address()))
    }

    fn shutdown(&self, what: Shutdown) -> Result<()> {
        self.end.shut(what);
        if let Some(other) = self.connected.get() {
            other.shut(Shutdown {
                receive: what.send,
                send: what.receive,
            });
        }
        Ok(())
    }

    fn send(&self, message: &mut Outgoing<'_>) -> Result<usize> {
        match &self.end.inbox {
            Inbox::Bytes(_) => self.send_bytes(message),
            Inbox::Messages(_) => self.send_message(message),
        }
    }

    fn receive(&self, message: &mut Incoming<'_>) -> Result<usize> {
        match &self.end.inbox {
            Inbox::Bytes(channel) => self.receive_bytes(channel, message),
            Inbox::Messages(messages) => self.receive_message(messages, message),
        }
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        if let Some(watch) = watch {
            watch.add(&self.end.common.readers);
            watch.add(&self.end.common.writers);
        }
        match &self.end.inbox {
            Inbox::Bytes(channel) => self.poll_stream(channel),
            Inbox::Messages(messages) => self.poll_messages(messages),
        }
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        let value = match command {
            FIONREAD => {
                if self.is_listening() {
                    return Err(Errno::EINVAL);
                }
                match &self.end.inbox {
                    Inbox::Bytes(channel) => channel.status().bytes,
                    Inbox::Messages(messages) => messages.status().1,
                }
            }
            TIOCOUTQ => self.bytes_sent(),
            SIOCATMARK => match &self.end.inbox {
                Inbox::Bytes(channel) => channel.is_at_urgent().into(),
                Inbox::Messages(_) => 0,
            },
            _ => return Err(Errno::ENOTTY),
        };
        user::write(argument, &(value as i32)).map_err(|_| Errno::EFAULT)?;
        Ok(0)
    }

    fn looks_from_a_place(&self) -> bool {
        true
    }

    fn is_listening(&self) -> bool {
        matches!(*self.end.stage.lock(), Stage::Listening(_))
    }

    fn peer_credentials(&self) -> Option<PeerCredentials> {
        match &*self.end.stage.lock() {
            Stage::Listening(listener) => listener.credentials.clone(),
            _ => self.peer.get().cloned(),
        }
    }

    fn release(&self) {
        let unread = self.end.release();
        if let Some(other) = self.connected.get() {
            if unread {
                other.reset();
            }
            other.shut(Shutdown {
                receive: true,
                send: true,
            });
        }
        // Out of the lock first: this may be the last handle of that end, and its drop frees what is in its queue.
        let target = self.target.lock().take();
        self.end.set_peer(None);
        drop(target);
    }
}

impl UnixSocket {
    /// Bytes sent and not received yet (`SIOCOUTQ`).
    fn bytes_sent(&self) -> usize {
        match self.connected.get().map(|other| &other.inbox) {
            Some(Inbox::Bytes(channel)) => channel.status().bytes,
            _ => self.end.bytes_sent(),
        }
    }

    /// Refuses to make what there is no memory for.
    fn check_memory() -> Result<()> {
        if frame::is_scarce() {
            return Err(Errno::ENOMEM);
        }
        Ok(())
    }
}
