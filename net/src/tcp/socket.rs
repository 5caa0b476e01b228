//! One TCP socket and its state.

use alloc::{collections::VecDeque, sync::Arc};
use core::net::SocketAddr;

use abi::Errno;
use nucleus::sync::{Rank, SpinGuard, SpinLock};

use super::{Tcp, wire::Pair};
use crate::{Family, Waits, ports::Hold, stream::Stream};

/// Bytes that a new socket sends ahead of its peer's reading. Linux begins lower and grows to 4 MiB; a stream here takes
/// memory only for bytes that are in it.
pub const SEND_BUFFER: usize = 128 * 1024;
/// Bytes that a new socket receives ahead of its program's reading: Linux's `tcp_rmem` default.
pub const RECEIVE_BUFFER: usize = 128 * 1024;

/// What `setsockopt` sets, as far as the protocol acts by it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub reuse_address: bool,
    pub reuse_port: bool,
    /// An IPv6 socket does without IPv4.
    pub v6_only: bool,
    /// Bytes.
    pub send_buffer: usize,
    /// Bytes.
    pub receive_buffer: usize,
    /// Bytes that must be there before a reader is woken, at least 1.
    pub low_water: usize,
    /// Urgent bytes stay in the stream.
    pub urgent_in_line: bool,
    /// How long a listener lets a connection wait for its first bytes, in nanoseconds (`TCP_DEFER_ACCEPT`).
    pub defer_accept: u64,
    /// Who made the socket.
    pub user: u32,
    /// What the floor above calls it: an inode's number.
    pub tag: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            reuse_address: false,
            reuse_port: false,
            v6_only: false,
            send_buffer: SEND_BUFFER,
            receive_buffer: RECEIVE_BUFFER,
            low_water: 1,
            urgent_in_line: false,
            defer_accept: 0,
            user: 0,
            tag: 0,
        }
    }
}

/// What a socket is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Nothing yet, or nothing any more.
    Idle,
    /// Accepts connections.
    Listening,
    /// Has asked for a connection.
    Connecting,
    /// Has one, perhaps with an end shut.
    Connected,
    /// Had one.
    Ended,
}

/// A TCP socket.
pub struct Socket {
    pub(super) tcp: Arc<Tcp>,
    family: Family,
    waits: Arc<Waits>,
    /// Changed by holders of the table's lock; read by anybody.
    state: SpinLock<Inner>,
}

/// What the state's lock guards.
pub(super) struct Inner {
    pub phase: Phase,
    pub options: Options,
    pub hold: Option<Hold>,
    /// The port was asked for by `bind`.
    pub bound: bool,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    /// What the next call that fails reports (`SO_ERROR`).
    pub error: Option<Errno>,
    /// What `connect` began has ended and nobody was told.
    pub unreported: bool,
    pub inbound: Option<Arc<Stream>>,
    pub outbound: Option<Arc<Stream>>,
    pub read_shut: bool,
    pub write_shut: bool,
    /// The peer's listener waits for the first bytes.
    pub announces: bool,
    /// No descriptor leads here any more.
    pub closed: bool,
    /// A listener's connections that nobody has accepted yet.
    pub queue: VecDeque<Arc<Socket>>,
    /// How many there may be, less one, as on Linux.
    pub backlog: usize,
    /// Connections that are being made through this listener.
    pub embryos: usize,
}

/// A socket at one time, for those who only look.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    pub phase: Phase,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    pub options: Options,
    /// Connections to accept, and how many there may be.
    pub waiting: usize,
    pub backlog: usize,
    /// Bytes to read.
    pub unread: usize,
    /// Bytes that the peer's receive buffer has no room for yet.
    pub unsent: usize,
    /// Bytes sent and received since the beginning.
    pub sent: u64,
    pub received: u64,
}

impl Socket {
    /// A socket without a name.
    pub(crate) fn new(tcp: &Arc<Tcp>, family: Family, options: Options) -> Arc<Socket> {
        Arc::new(Socket {
            tcp: tcp.clone(),
            family,
            waits: Arc::default(),
            state: SpinLock::new(
                Rank::Leaf,
                Inner {
                    phase: Phase::Idle,
                    options,
                    hold: None,
                    bound: false,
                    local: None,
                    remote: None,
                    error: None,
                    unreported: false,
                    inbound: None,
                    outbound: None,
                    read_shut: false,
                    write_shut: false,
                    announces: false,
                    closed: false,
                    queue: VecDeque::new(),
                    backlog: 0,
                    embryos: 0,
                },
            ),
        })
    }

    /// The version of IP that it was made for.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Who waits for it.
    pub fn waits(&self) -> &Waits {
        &self.waits
    }

    pub(super) fn waits_handle(&self) -> &Arc<Waits> {
        &self.waits
    }

    pub(super) fn inner(&self) -> SpinGuard<'_, Inner> {
        self.state.lock()
    }

    /// Its place in the table of connections.
    pub(super) fn pair(&self) -> Option<Pair> {
        let inner = self.inner();
        Some(Pair {
            local: inner.local?,
            remote: inner.remote?,
        })
    }

    /// What it is doing.
    pub fn phase(&self) -> Phase {
        self.inner().phase
    }

    /// The streams from and to the peer.
    pub(super) fn streams(&self) -> (Option<Arc<Stream>>, Option<Arc<Stream>>) {
        let inner = self.inner();
        (inner.inbound.clone(), inner.outbound.clone())
    }

    /// All that is known of it.
    pub fn summary(&self) -> Summary {
        let (inbound, outbound) = self.streams();
        let inbound = inbound.map(|stream| stream.status());
        let outbound = outbound.map(|stream| stream.status());
        let inner = self.inner();
        Summary {
            phase: inner.phase,
            local: inner.local,
            remote: inner.remote,
            options: inner.options,
            waiting: inner.queue.len(),
            backlog: inner.backlog,
            unread: inbound.map_or(0, |status| status.bytes),
            unsent: outbound.map_or(0, |status| {
                let window = status.limit.saturating_sub(inner.options.send_buffer);
                status.bytes.saturating_sub(window)
            }),
            sent: outbound.map_or(0, |status| status.added),
            received: inbound.map_or(0, |status| status.added),
        }
    }

    /// Takes the pending error, which is reported once.
    pub fn take_error(&self) -> Option<Errno> {
        self.inner().error.take()
    }

    /// Puts an error back that a call found after it had moved bytes, so that the next one reports it.
    pub fn keep_error(&self, error: Errno) {
        let of_connection = [Errno::ECONNRESET, Errno::ETIMEDOUT, Errno::ECONNREFUSED];
        if of_connection.contains(&error) {
            let mut inner = self.inner();
            inner.error = inner.error.or(Some(error));
        }
    }

    /// Whether there are bytes to read, however few.
    pub fn has_input(&self) -> bool {
        let inbound = self.inner().inbound.clone();
        inbound.is_some_and(|stream| stream.status().bytes > 0)
    }

    /// Changes options. Those of buffers and of waking take effect at once.
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) {
        let (old, new, inbound, outbound) = {
            let mut inner = self.inner();
            let old = inner.options;
            change(&mut inner.options);
            let new = inner.options;
            (old, new, inner.inbound.clone(), inner.outbound.clone())
        };
        if let Some(inbound) = inbound {
            inbound.set_low_water(new.low_water);
            inbound.change_limit(old.receive_buffer, new.receive_buffer);
        }
        if let Some(outbound) = outbound {
            outbound.change_limit(old.send_buffer, new.send_buffer);
        }
    }
}
