//! One TCP socket and its state.
#![allow(missing_docs, reason = "fields and variants whose names say it")]

use alloc::{boxed::Box, collections::VecDeque, sync::Arc};
use core::net::SocketAddr;

use abi::Errno;
use nucleus::sync::{Rank, SpinGuard, SpinLock};
use vm::account::{Account, Kind};

use super::{
    Pair, Tcp,
    block::{Info, Settings},
    connection::Connection,
};
use crate::{
    Family, Waits,
    ports::{Hold, NameOptions},
    stream::Stream,
};

/// Bytes that a new socket sends ahead of its peer's reading. Linux begins lower; a stream here
/// takes memory only for bytes that are in it.
pub const SEND_BUFFER: u32 = 128 * 1024;
/// Bytes that a new socket receives ahead of its program's reading: Linux's `tcp_rmem` default.
pub const RECEIVE_BUFFER: u32 = 128 * 1024;
/// The largest size to which a buffer grows by itself: Linux's `tcp_wmem` and `tcp_rmem`.
pub const MOST_SEND_BUFFER: usize = 4 << 20;
/// See [`MOST_SEND_BUFFER`].
pub const MOST_RECEIVE_BUFFER: usize = 6 << 20;

/// What a connection is charged with that another machine or program has asked for, in bytes: its
/// records. Those of others are in the charge of a descriptor.
const RECORDS: usize = 2048;

/// Handshakes of one listener that are kept; more are answered by cookies.
const MOST_EMBRYOS: usize = 256;

/// Fields of the header of IP that a program chooses.
#[derive(Clone, Copy, Debug)]
pub struct IpFields {
    /// Time to live, or hop limit.
    pub hops: u8,
    /// Type of service, or traffic class.
    pub service: u8,
}

impl Default for IpFields {
    fn default() -> IpFields {
        let usual = crate::ip::Sending::default();
        IpFields {
            hops: usual.hops,
            service: usual.service,
        }
    }
}

/// The options of `setsockopt` on which the protocol acts.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub name: NameOptions,
    /// What the headers of its packets say, by the version of IP.
    pub ip_v4: IpFields,
    pub ip_v6: IpFields,
    /// Bytes.
    pub send_buffer: u32,
    /// Bytes.
    pub receive_buffer: u32,
    /// The program has chosen the size of the buffer: it does not follow the connection.
    pub is_send_fixed: bool,
    /// See `is_send_fixed`.
    pub is_receive_fixed: bool,
    /// Bytes that must be queued before a reader is woken, at least 1.
    pub low_water: u32,
    /// Urgent bytes stay in the stream.
    pub urgent_in_line: bool,
    /// Time that a connection may wait for its first bytes, in seconds (`TCP_DEFER_ACCEPT`).
    pub defer_accept: u32,
    /// Those of connections whose segments are packets.
    pub settings: Settings,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: NameOptions::default(),
            ip_v4: IpFields::default(),
            ip_v6: IpFields::default(),
            send_buffer: SEND_BUFFER,
            receive_buffer: RECEIVE_BUFFER,
            is_send_fixed: false,
            is_receive_fixed: false,
            low_water: 1,
            urgent_in_line: false,
            defer_accept: 0,
            settings: Settings::default(),
        }
    }
}

impl Options {
    /// Returns the time that a connection may wait for its first bytes, in nanoseconds.
    pub fn defer_time(&self) -> u64 {
        u64::from(self.defer_accept) * 1_000_000_000
    }

    /// Returns what the headers of packets of one version of IP say.
    pub fn ip_fields(&self, is_v4: bool) -> IpFields {
        match is_v4 {
            true => self.ip_v4,
            false => self.ip_v6,
        }
    }
}

/// The phase of a socket's life.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Phase {
    /// No connection yet, or none any more.
    #[default]
    Idle,
    /// Accepts connections.
    Listening,
    /// A handshake has begun.
    Connecting,
    /// It has a connection, perhaps with one direction shut.
    Connected,
    /// It had a connection, which has ended.
    Ended,
}

/// A TCP socket.
pub struct Socket {
    pub(super) tcp: Arc<Tcp>,
    family: Family,
    waits: Arc<Waits>,
    /// The account that its data is charged to; none for the kernel's own.
    account: Option<Arc<Account>>,
    /// Its records are charged to the account.
    is_charged: bool,
    /// Changes only under the table's lock too.
    state: SpinLock<Inner>,
}

/// The state that the spin lock guards.
#[derive(Default)]
pub(super) struct Inner {
    pub phase: Phase,
    pub options: Options,
    pub hold: Option<Hold>,
    /// `bind` has asked for the port.
    pub bound: bool,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    /// The error that the next call reports (`SO_ERROR`).
    pub error: Option<Errno>,
    /// The handshake that `connect` began is over, and no call has reported it.
    pub unreported: bool,
    pub inbound: Option<Arc<Stream>>,
    pub outbound: Option<Arc<Stream>>,
    /// The connection, if its segments are packets.
    pub line: Option<Arc<Connection>>,
    pub read_shut: bool,
    pub write_shut: bool,
    /// The peer's listener waits for the first bytes (`TCP_DEFER_ACCEPT`).
    pub announces: bool,
    /// The last descriptor is closed.
    pub closed: bool,
    /// Bytes, or the end behind them, are on their way to the peer, which has not got all.
    pub is_ending: bool,
    /// What only a listener has, once the socket is one.
    pub accepts: Option<Box<AcceptQueue>>,
}

/// What a listener has for its connections.
#[derive(Default)]
pub(super) struct AcceptQueue {
    /// Those that were not accepted yet.
    pub queue: VecDeque<Arc<Socket>>,
    /// The most that may wait, less one, as on Linux.
    pub backlog: usize,
    /// Handshakes in progress.
    pub embryos: usize,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(account) = self.account.as_ref().filter(|_| self.is_charged) {
            account.take_back(Kind::Sockets, 0, RECORDS);
        }
    }
}

impl Inner {
    /// Returns how many connections wait: to be accepted, for their handshake, or for their first
    /// bytes.
    pub fn handshakes(&self) -> usize {
        let accepts = self.accepts.as_deref();
        accepts.map_or(0, |accepts| accepts.queue.len() + accepts.embryos)
    }

    /// Tells whether a connection waits to be accepted.
    fn has_waiting(&self) -> bool {
        let accepts = self.accepts.as_deref();
        accepts.is_some_and(|accepts| !accepts.queue.is_empty())
    }

    /// Tells whether so many connections wait to be accepted that a SYN counts as lost.
    pub fn is_queue_full(&self) -> bool {
        let accepts = self.accepts.as_deref();
        accepts.is_none_or(|accepts| accepts.queue.len() > accepts.backlog)
    }

    /// Takes the connection that has waited longest to be accepted.
    pub fn take_waiting(&mut self) -> Option<Arc<Socket>> {
        self.accepts.as_mut()?.queue.pop_front()
    }

    /// Returns how many handshakes are in progress at this listener.
    pub fn embryos(&self) -> usize {
        self.accepts.as_deref().map_or(0, |accepts| accepts.embryos)
    }

    /// Notes that a handshake has begun at this listener.
    pub fn begin_embryo(&mut self) {
        if let Some(accepts) = &mut self.accepts {
            accepts.embryos += 1;
        }
    }

    /// Notes that a handshake is over.
    pub fn end_embryo(&mut self) {
        if let Some(accepts) = &mut self.accepts {
            accepts.embryos -= 1;
        }
    }

    /// Returns whether a read or an accept would not wait although no bytes are queued and the
    /// stream has not ended.
    pub fn is_readable_without_bytes(&self) -> bool {
        match self.phase {
            Phase::Listening => self.has_waiting(),
            Phase::Connecting => false,
            Phase::Idle => self.error.is_some(),
            Phase::Connected => self.read_shut || self.error.is_some(),
            Phase::Ended => true,
        }
    }

    /// Returns how many may wait before handshakes are answered by cookies.
    pub fn most_handshakes(&self) -> usize {
        let accepts = self.accepts.as_deref();
        accepts.map_or(0, |accepts| accepts.backlog.min(MOST_EMBRYOS))
    }

    /// Forgets the streams of a connection, and how they ended.
    pub fn forget_connection(&mut self) {
        self.error = None;
        self.inbound = None;
        self.outbound = None;
        self.line = None;
        self.read_shut = false;
        self.write_shut = false;
        self.announces = false;
        // Another connection begins as the first one did.
        if !self.options.is_send_fixed {
            self.options.send_buffer = SEND_BUFFER;
        }
        if !self.options.is_receive_fixed {
            self.options.receive_buffer = RECEIVE_BUFFER;
        }
    }
}

/// A snapshot of a socket.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    pub phase: Phase,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    pub options: Options,
    /// Connections to accept, and the most that may wait.
    pub waiting: usize,
    pub backlog: usize,
    /// Bytes to read.
    pub unread: usize,
    /// Bytes for which the peer's receive buffer has no room yet.
    pub unsent: usize,
    /// Bytes sent and received since the beginning.
    pub sent: u64,
    pub received: u64,
}

impl Socket {
    /// Creates a socket without a name.
    pub(crate) fn new(
        tcp: &Arc<Tcp>,
        family: Family,
        options: Options,
        account: Option<Arc<Account>>,
    ) -> Arc<Socket> {
        Socket::charged(tcp, family, options, account, false)
    }

    /// Creates the socket of a connection that a listener will accept. Nothing else is charged for
    /// it until then, and there are as many as there are listeners and places in their backlogs.
    pub(super) fn child(listener: &Socket, options: Options) -> Arc<Socket> {
        let account = listener.account.clone();
        if let Some(account) = &account {
            account.add(Kind::Sockets, 0, RECORDS);
        }
        Socket::charged(&listener.tcp, listener.family, options, account, true)
    }

    fn charged(
        tcp: &Arc<Tcp>,
        family: Family,
        options: Options,
        account: Option<Arc<Account>>,
        is_charged: bool,
    ) -> Arc<Socket> {
        let inner = Inner {
            options,
            ..Inner::default()
        };
        Arc::new(Socket {
            tcp: tcp.clone(),
            family,
            waits: Arc::default(),
            account,
            is_charged,
            state: SpinLock::new(Rank::Leaf, inner),
        })
    }

    /// Returns the version of IP for which it was created.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Returns the account that is charged for its data.
    pub(super) fn account(&self) -> Option<&Arc<Account>> {
        self.account.as_ref()
    }

    /// Returns its wait queues.
    pub fn waits(&self) -> &Arc<Waits> {
        &self.waits
    }

    pub(super) fn inner(&self) -> SpinGuard<'_, Inner> {
        self.state.lock()
    }

    /// Returns its place in the table of connections.
    pub(super) fn pair(&self) -> Option<Pair> {
        let inner = self.inner();
        Some(Pair {
            local: inner.local?,
            remote: inner.remote?,
        })
    }

    /// Tells whether it is for IPv6 alone.
    pub fn is_v6_only(&self) -> bool {
        self.inner().options.name.v6_only
    }

    /// Returns its name and its peer's.
    pub fn names(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let inner = self.inner();
        (inner.local, inner.remote)
    }

    /// Returns its phase.
    pub fn phase(&self) -> Phase {
        self.inner().phase
    }

    /// Returns the streams from and to the peer.
    pub(super) fn streams(&self) -> (Option<Arc<Stream>>, Option<Arc<Stream>>) {
        let inner = self.inner();
        (inner.inbound.clone(), inner.outbound.clone())
    }

    /// Tells whether the socket is closed and the peer has not got all that was sent, and its end.
    /// Waiters for room are woken when it has.
    pub fn lingers(&self) -> bool {
        let inner = self.inner();
        inner.closed && inner.is_ending
    }

    /// Returns a snapshot of it.
    pub fn summary(&self) -> Summary {
        let (inbound, outbound) = self.streams();
        let inbound = inbound.map(|stream| stream.status());
        let deficit = outbound.as_ref().map_or(0, |stream| stream.deficit());
        let outbound = outbound.map(|stream| stream.status());
        let inner = self.inner();
        let accepts = inner.accepts.as_deref();
        Summary {
            phase: inner.phase,
            local: inner.local,
            remote: inner.remote,
            options: inner.options,
            waiting: accepts.map_or(0, |accepts| accepts.queue.len()),
            backlog: accepts.map_or(0, |accepts| accepts.backlog),
            unread: inbound.map_or(0, |status| status.bytes),
            unsent: outbound.map_or(0, |status| {
                let own = inner.options.send_buffer as usize;
                match status.limit.checked_sub(own) {
                    Some(window) => status.bytes.saturating_sub(window),
                    // The limit lacks the bytes that were sent and not acknowledged.
                    None => status.bytes + (own - status.limit) + deficit,
                }
            }),
            sent: outbound.map_or(0, |status| status.added),
            received: inbound.map_or(0, |status| status.added),
        }
    }

    /// Returns how its connection does; `None` if that needs no packets, or is not there.
    pub fn info(&self) -> Option<Info> {
        let line = self.inner().line.clone()?;
        let now = crate::timer::now();
        Some(line.with(|block| block.info(now)))
    }

    /// Takes the pending error, which is reported once.
    pub fn take_error(&self) -> Option<Errno> {
        self.inner().error.take()
    }

    /// Keeps an error for the next call: the one that met it has moved bytes and reports those.
    pub fn keep_error(&self, error: Errno) {
        let of_connection = [Errno::ECONNRESET, Errno::ETIMEDOUT, Errno::ECONNREFUSED];
        if of_connection.contains(&error) {
            let mut inner = self.inner();
            inner.error = inner.error.or(Some(error));
        }
    }

    /// Returns whether unread bytes are queued.
    pub(super) fn has_unread(&self) -> bool {
        let inbound = self.inner().inbound.clone();
        inbound.is_some_and(|stream| stream.unread() > 0)
    }

    /// Returns whether a read or an accept would not wait: bytes are queued, whatever the low-water
    /// mark, the stream has ended, an error is pending, or a listener has a connection.
    pub fn has_input(&self) -> bool {
        let inbound = {
            let inner = self.inner();
            if inner.is_readable_without_bytes() {
                return true;
            }
            inner.inbound.clone()
        };
        inbound.is_some_and(|stream| stream.has_input())
    }

    /// Changes options. Sizes of buffers and the low-water mark take effect at once.
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) {
        let (old, new, inbound, outbound, line) = {
            let mut inner = self.inner();
            let old = inner.options;
            change(&mut inner.options);
            let new = inner.options;
            let line = inner.line.clone();
            (
                old,
                new,
                inner.inbound.clone(),
                inner.outbound.clone(),
                line,
            )
        };
        let interface = new.name.interface;
        if old.name.interface != interface {
            let mut table = self.tcp.lock();
            let hold = self.inner().hold;
            if let Some(hold) = hold {
                let hold = table
                    .ports
                    .change(hold, |binding| binding.interface = interface);
                self.inner().hold = Some(hold);
            }
        }
        if let Some(inbound) = inbound {
            inbound.set_low_water(new.low_water as usize);
            let sizes = [old.receive_buffer, new.receive_buffer];
            let [old, new] = sizes.map(|size| size as usize);
            inbound.change_limit(old, new);
        }
        if let Some(outbound) = outbound {
            outbound.change_limit(old.send_buffer as usize, new.send_buffer as usize);
        }
        if let Some(line) = line {
            line.act(&self.tcp, |block, host| block.set(new.settings, host));
            self.tcp.deliver();
        }
    }
}
