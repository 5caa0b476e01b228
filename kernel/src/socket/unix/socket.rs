//! The socket behind an open file.

use alloc::{boxed::Box, sync::Arc};

use abi::{
    Errno, Result,
    raw::{
        ioctl::{FIONREAD, SIOCATMARK, TIOCOUTQ},
        net::SOCK_DGRAM,
    },
};
use fs::Ready;
use nucleus::{
    VirtAddr,
    sync::{OnceBox, Rank, SpinLock},
    task::Watch,
    user,
};

use super::{
    channel, collect,
    end::{End, Inbox, Pending, Stage},
    messages,
    name::Name,
    packet,
};
use crate::process::files::OpenFile;
use crate::socket::{
    Address, Common, Incoming, Outgoing, PeerCredentials, Shutdown, Socket, SocketFile, Timeout,
};

/// A local socket.
pub struct UnixSocket {
    pub(super) end: Arc<End>,
    /// The other end of a stream or a connection of packets: once there, it stays.
    pub(super) connected: OnceBox<Arc<End>>,
    /// To whom datagrams go if not told otherwise.
    pub(super) target: SpinLock<Option<Arc<End>>>,
    /// The credentials at the other end when the connection was made.
    pub(super) peer: OnceBox<PeerCredentials>,
}

impl UnixSocket {
    pub(super) fn new(end: Arc<End>) -> UnixSocket {
        collect::register();
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

    pub(super) fn is_datagram(&self) -> bool {
        self.end.common.kind == SOCK_DGRAM
    }

    /// The other end, if there is one.
    pub(super) fn other(&self) -> Option<Arc<End>> {
        if self.is_datagram() {
            self.target.lock().clone()
        } else {
            self.connected.get().cloned()
        }
    }

    pub(super) fn set_peer_credentials(&self, peer: Option<PeerCredentials>) {
        if let Some(peer) = peer {
            self.peer.get_or_insert(|| Box::new(peer));
        }
    }

    /// Returns the readiness of a stream.
    fn poll_stream(&self, channel: &channel::Channel) -> Ready {
        let status = channel.status();
        let has_room = |other: &Arc<End>| match &other.inbox {
            Inbox::Bytes(channel) => channel.has_room(self.end.common.send_buffer()),
            Inbox::Messages(_) => true,
        };
        let mut ready = self.poll_connection(status.bytes > 0, true, has_room);
        ready.set(Ready::PRI, status.urgent);
        ready
    }

    /// Returns the readiness of datagrams and packets.
    fn poll_messages(&self, messages: &messages::Messages) -> Ready {
        let readable = messages.status().0 > 0;
        let mut writable = self.end.is_writable();
        if !self.is_datagram() {
            return self.poll_connection(readable, writable, |_| writable);
        }
        let target = self.target.lock().clone();
        if writable && let Some(target) = target {
            writable = !packet::is_full(&self.end, &target);
        }
        self.ready(readable, writable)
    }

    /// Returns the readiness of a stream or a connection of packets. With another end, `has_room`
    /// says whether it can be written to.
    fn poll_connection(
        &self,
        mut readable: bool,
        mut writable: bool,
        has_room: impl FnOnce(&Arc<End>) -> bool,
    ) -> Ready {
        let mut ready = Ready::empty();
        match (self.connected.get(), &*self.end.stage.lock()) {
            (_, Stage::Listening(listener)) => {
                readable = !listener.waiting.is_empty();
                writable = false;
            }
            (None, Stage::Connected) | (Some(_), _) => {}
            (None, _) => ready = Ready::HUP,
        }
        if let Some(other) = self.connected.get() {
            writable = has_room(other);
        }
        ready | self.ready(readable, writable)
    }

    /// Readiness as bits, with errors and ends.
    fn ready(&self, readable: bool, writable: bool) -> Ready {
        let mut ready = Ready::empty();
        let (no_more_in, no_more_out) = (self.end.is_receive_shut(), self.end.is_send_shut());
        ready.set(Ready::ERR, self.end.common.has_error());
        ready.set(Ready::RDHUP, no_more_in);
        ready.set(Ready::HUP, no_more_in && no_more_out);
        ready.set(Ready::IN | Ready::RDNORM, no_more_in || readable);
        ready.set(Ready::OUT | Ready::WRNORM | Ready::WRBAND, writable);
        ready
    }
}

impl Socket for UnixSocket {
    fn common(&self) -> &Common {
        &self.end.common
    }

    fn option_changed(&self, name: u32) {
        self.end.common.option_changed(name);
    }

    fn bind(&self, address: &Address) -> Result<()> {
        self.bind_name(address)
    }

    fn listen(&self, backlog: u32) -> Result<()> {
        self.start_listening(backlog)
    }

    fn accept(&self, timeout: Timeout) -> Result<Arc<dyn Socket>> {
        let accepted: Arc<dyn Socket> = self.accept_connection(timeout)?;
        Ok(accepted)
    }

    fn connect(&self, address: &Address, timeout: Timeout) -> Result<()> {
        if self.is_datagram() {
            self.set_target(address)
        } else {
            self.connect_to(address, timeout)
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

    /// A connected stream whose peer has read everything has room, whatever its limit.
    fn ready_now(&self) -> Option<Ready> {
        let other = self.connected.get()?;
        let (Inbox::Bytes(own), Inbox::Bytes(others)) = (&self.end.inbox, &other.inbox) else {
            return None;
        };
        let (false, _) = others.ready_now() else {
            return None;
        };
        let (has_bytes, is_urgent) = own.ready_now();
        let mut ready = self.ready(has_bytes, true);
        ready.set(Ready::PRI, is_urgent);
        Some(ready)
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
            TIOCOUTQ => match self.connected.get().map(|other| &other.inbox) {
                Some(Inbox::Bytes(channel)) => channel.status().bytes,
                _ => self.end.bytes_sent(),
            },
            SIOCATMARK => match &self.end.inbox {
                Inbox::Bytes(channel) => channel.is_at_urgent().into(),
                Inbox::Messages(_) => 0,
            },
            _ => return Err(Errno::ENOTTY),
        };
        user::write(argument, &(value as i32))?;
        Ok(0)
    }

    fn looks_from_a_place(&self) -> bool {
        true
    }

    fn carries_files(&self) -> bool {
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
        // Dropped outside of the lock: this may be the last handle of that end, and its drop frees
        // its queue.
        let target = self.target.lock().take();
        self.end.set_peer(None);
        drop(target);
    }
}

impl Pending for UnixSocket {
    fn end(&self) -> &Arc<End> {
        &self.end
    }

    fn refuse(&self) {
        if let Some(other) = self.connected.get() {
            other.reset();
        }
        self.release();
    }
}
