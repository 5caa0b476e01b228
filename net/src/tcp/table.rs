//! All connections, listeners and ports, and the delivery of segments to ends.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{
    net::{IpAddr, SocketAddr},
    num::NonZeroU64,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use crate::counters::Counter;
use abi::{Errno, Result};
use nucleus::{
    Pieces,
    sync::{Mutex, MutexGuard},
};

use super::{
    Pair, Phase, Socket,
    block::{Block, State},
    connection::Connection as Line,
    cookies::Cookies,
    lookup::Lookup,
    pair_table::{HasPair, PairTable},
    secret::Secret,
    waiting::Waiting,
    wire::Wire,
};
use crate::{
    ip::{Network, Route},
    ports::{Hold, Ports, Rule},
    stream::Growth,
    timer::{Alarm, now},
};

/// Time that an end without a descriptor waits for its peer's end: Linux's `tcp_fin_timeout`, in
/// nanoseconds.
const ORPHAN: u64 = 60_000_000_000;

/// The most listeners of a port: each SYN looks at all of them.
const MOST_LISTENERS: usize = 512;
/// Places in the table that are looked at for handshakes before others may have the lock.
const ENDS_AT_ONCE: usize = 1024;

/// The connections of a machine. Guarded by a lock of `rank::NET`.
pub struct ConnectionTable {
    pub(super) wire: Wire,
    pub(super) secret: Secret,
    pub(super) ports: Ports,
    pub(super) ends: PairTable<End>,
    /// By port.
    pub(super) listeners: BTreeMap<u16, Vec<Arc<Socket>>>,
    pub(super) waiting: Waiting,
    /// Ends with a timer, by its time in nanoseconds since boot.
    deadlines: BTreeSet<(u64, Pair)>,
}

/// TCP of one machine: its connections, and the alarm for their timers.
pub struct Tcp {
    connections: Mutex<ConnectionTable>,
    pub(super) lookup: Lookup,
    pub(super) network: Arc<Network>,
    pub(super) cookies: Cookies,
    pub(super) growth: Arc<Growth>,
    pub(super) alarm: Arc<Alarm>,
    /// Connections inside this machine use packets too.
    by_packets: AtomicBool,
}

/// Packets that a call delivers inside this machine at most; the thread with the timers delivers
/// the others.
const MOST_DELIVERED: usize = 256;
/// Connections whose timers run before those of the table and of other layers get their turn.
const MOST_TIMED: usize = 1024;

impl Tcp {
    /// A TCP without connections.
    pub(crate) fn new(network: Arc<Network>, alarm: Arc<Alarm>) -> Tcp {
        Tcp {
            connections: Mutex::new(crate::rank::NET, ConnectionTable::new()),
            lookup: Lookup::new(),
            network,
            cookies: Cookies::new(),
            growth: Arc::default(),
            alarm,
            by_packets: AtomicBool::new(false),
        }
    }

    /// Decides whether new connections inside this machine send packets.
    pub(crate) fn set_by_packets(&self, by_packets: bool) {
        self.by_packets.store(by_packets, Relaxed);
    }

    /// Returns the way of a connection to `to`, by an interface unless that is 0; `None` if its
    /// ends are joined without packets.
    pub(super) fn way(&self, to: IpAddr, interface: u32) -> Result<Option<Route>> {
        let is_short = self.network.is_own(to) && !self.by_packets.load(Relaxed);
        match is_short {
            true => Ok(None),
            false => {
                let by = (interface != 0).then_some(interface);
                self.network.route_by(to, by).map(Some)
            }
        }
    }

    /// Locks the table of connections, for calls that leave its timers as they are.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.connections.lock()
    }

    /// Changes the table of connections, and then sets the alarm to the next timer.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut ConnectionTable) -> R) -> R {
        let mut table = self.connections.lock();
        let result = change(&mut table);
        let due = table.next_deadline();
        drop(table);
        self.alarm.set(due);
        result
    }

    /// Resets the handshakes of a socket that listens no more.
    pub(super) fn reset_embryos(&self, socket: &Socket) {
        let mut at = Some(0);
        while let Some(next) = at {
            at = self.change(|table| table.reset_embryos(socket, next));
        }
    }

    /// Delivers the packets that a call has sent inside this machine. No lock is held.
    pub(super) fn deliver(&self) {
        if !self.network.run_loopback(MOST_DELIVERED) {
            self.alarm.set(Some(0));
        }
    }

    /// Runs the timers that are due, of up to [`MOST_TIMED`] connections; returns when the next one
    /// will be, in nanoseconds since boot.
    pub(crate) fn run_timers(&self) -> Option<u64> {
        self.deliver();
        let table = self.connections.lock().run_timers();
        for _ in 0..MOST_TIMED {
            let Some(connection) = self.lookup.next_due(now()) else {
                break;
            };
            connection.act(self, |block, host| block.run_timers(host));
            self.deliver();
        }
        [table, self.lookup.next()].into_iter().flatten().min()
    }
}

/// How the segments of an end travel.
pub(super) enum Link {
    /// To the other end's block, which is in the table too.
    Wire(Box<WireEnd>),
    /// As packets.
    Line(Arc<Line>),
}

/// An end whose segments need no packets.
pub(super) struct WireEnd {
    pub pair: Pair,
    pub socket: Arc<Socket>,
    pub block: Box<Block>,
}

impl Link {
    /// Returns the state.
    pub fn state(&self) -> State {
        match self {
            Link::Wire(end) => end.block.state(),
            Link::Line(connection) => connection.state(),
        }
    }

    /// Returns why the connection is over, if that is an error.
    pub fn error(&self) -> Option<Errno> {
        match self {
            Link::Wire(end) => end.block.error(),
            Link::Line(connection) => connection.with(Block::error),
        }
    }
}

/// One end of a connection. Its ends and its socket stand where `link` leads.
pub(super) struct End {
    pub link: Link,
    /// The listener that will accept it, until it is in that queue.
    pub listener: Option<Weak<Socket>>,
    /// The link's state when it was last compared.
    pub state: State,
    pub deadline: Option<NonZeroU64>,
    /// It is withheld from its listener until the first bytes arrive, or until this time.
    pub deferred: Option<NonZeroU64>,
}

impl HasPair for End {
    #[inline]
    fn pair(&self) -> &Pair {
        match &self.link {
            Link::Wire(end) => &end.pair,
            Link::Line(connection) => &connection.pair,
        }
    }
}

impl End {
    /// Returns the socket.
    #[inline]
    pub fn socket(&self) -> &Arc<Socket> {
        match &self.link {
            Link::Wire(end) => &end.socket,
            Link::Line(connection) => &connection.socket,
        }
    }

    /// Compares the link's state with the last one; returns both if they differ.
    pub fn take_change(&mut self) -> Option<(State, State)> {
        let new = self.link.state();
        let old = core::mem::replace(&mut self.state, new);
        (old != new).then_some((old, new))
    }

    /// Returns for how long its listener waits for the first bytes, in nanoseconds; 0 for none.
    pub fn defer_time(&self) -> u64 {
        let listener = self.listener.as_ref().and_then(Weak::upgrade);
        listener.map_or(0, |listener| listener.inner().options.defer_time())
    }
}

/// One line of `/proc/net/tcp`.
#[allow(missing_docs)]
pub struct Connection {
    pub local: SocketAddr,
    pub remote: Option<SocketAddr>,
    /// `None` for a listener.
    pub state: Option<State>,
    /// `None` in TIME-WAIT.
    pub socket: Option<Arc<Socket>>,
    /// Nanoseconds that TIME-WAIT will still last.
    pub left: u64,
}

impl ConnectionTable {
    /// An empty table.
    pub(super) fn new() -> ConnectionTable {
        ConnectionTable {
            wire: Wire::default(),
            secret: Secret::new(),
            ports: Ports::new(Rule::UnlessListening),
            ends: PairTable::new(),
            listeners: BTreeMap::new(),
            waiting: Waiting::new(),
            deadlines: BTreeSet::new(),
        }
    }

    /// Adds an end that `connect` has opened, or that its listener will accept. There is room for
    /// it.
    pub(super) fn add(&mut self, link: Link, listener: Option<Weak<Socket>>) {
        let end = End {
            state: link.state(),
            link,
            listener,
            deadline: None,
            deferred: None,
        };
        self.ends.insert_new(end);
    }

    /// Removes an end. Its port is released unless `bind` has asked for it and the socket is still
    /// open.
    pub(super) fn remove(&mut self, pair: &Pair) -> Option<End> {
        let end = self.ends.remove(pair)?;
        if let Some(deadline) = end.deadline {
            self.deadlines.remove(&(deadline.get(), *pair));
        }
        if let Link::Line(_) = end.link {
            end.socket().tcp.lookup.remove(pair);
        }
        let hold = {
            let mut inner = end.socket().inner();
            if inner.closed || !inner.bound {
                inner.hold.take()
            } else {
                None
            }
        };
        self.release(hold);
        Some(end)
    }

    /// Releases a port.
    pub(super) fn release(&mut self, hold: Option<Hold>) {
        if let Some(hold) = hold {
            self.ports.release(hold);
        }
    }

    /// Adds a listener that has a port.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOBUFS` if the port has too many.
    pub(super) fn add_listener(&mut self, port: u16, socket: &Arc<Socket>) -> Result<()> {
        let listeners = self.listeners.entry(port).or_default();
        let room = match listeners.len() < MOST_LISTENERS {
            true => listeners.try_reserve(1).map_err(Errno::from),
            false => Err(Errno::ENOBUFS),
        };
        if room.is_ok() {
            listeners.push(socket.clone());
        } else if listeners.is_empty() {
            self.listeners.remove(&port);
        }
        room
    }

    /// Removes a listener. The caller closes the connections in its queue, and [resets] handshakes.
    ///
    /// [resets]: ConnectionTable::reset_embryos
    pub(super) fn remove_listener(&mut self, port: u16, socket: &Arc<Socket>) {
        if let Some(listeners) = self.listeners.get_mut(&port) {
            listeners.retain(|other| !Arc::ptr_eq(other, socket));
            if listeners.is_empty() {
                self.listeners.remove(&port);
            }
        }
    }

    /// Resets the handshakes of a former listener among some ends, from place `at` on; returns
    /// where the next ones are. One that is missed is reset when it is complete.
    fn reset_embryos(&mut self, socket: &Socket, at: usize) -> Option<usize> {
        if socket.inner().embryos() == 0 {
            return None;
        }
        let mut embryos = Pieces::new();
        let next = self.ends.visit(at, ENDS_AT_ONCE, |end| {
            let listener = end.listener.as_ref();
            if listener.is_some_and(|listener| core::ptr::eq(listener.as_ptr(), socket)) {
                embryos.push(*end.pair());
            }
        });
        for pair in embryos {
            self.reset(&pair);
        }
        next
    }

    /// Resets a connection from this end, and removes it.
    pub(super) fn reset(&mut self, pair: &Pair) {
        if let Some(mut end) = self.remove(pair) {
            if matches!(end.state, State::Established | State::CloseWait) {
                Counter::tcp_established_resets.add(1);
            }
            match &mut end.link {
                Link::Wire(end) => end.block.abort(&mut self.wire.host(*pair)),
                Link::Line(connection) => {
                    let tcp = connection.socket.tcp.clone();
                    connection.drive(&tcp, |block, host| block.abort(host));
                }
            }
            self.ended(&end, None);
            self.run();
        }
    }

    /// Ends the outbound stream of this end; `is_orphan` if its socket is closed.
    pub(super) fn finish(&mut self, pair: &Pair, is_orphan: bool) {
        let Some(end) = self.ends.get_mut(pair) else {
            return;
        };
        match &mut end.link {
            Link::Wire(end) => end.block.finish(&mut self.wire.host(*pair)),
            Link::Line(connection) => {
                let tcp = connection.socket.tcp.clone();
                connection.drive(&tcp, |block, host| {
                    if is_orphan {
                        block.be_orphan();
                    }
                    block.finish(host);
                });
            }
        }
        let change = end.take_change();
        let ends = [State::FinWait1, State::Closing, State::LastAck];
        end.socket().inner().is_ending = ends.contains(&end.state);
        if let Some(change) = change {
            self.act_on(*pair, change);
        }
        self.run();
    }

    /// Updates an end's timer: for segments to repeat, deferred connections, and orphans.
    pub(super) fn note_deadline(&mut self, pair: Pair) {
        let Some(end) = self.ends.get_mut(&pair) else {
            return;
        };
        let due = match end.state {
            State::Established | State::CloseWait => end.deferred,
            State::FinWait2 if end.socket().inner().closed => {
                end.deadline.or(NonZeroU64::new(now() + ORPHAN))
            }
            State::FinWait2 => None,
            _ => match &end.link {
                Link::Wire(end) => end.block.timer_due().and_then(NonZeroU64::new),
                // Its timers are in the lookup.
                Link::Line(_) => None,
            },
        };
        if let Some(old) = end.deadline {
            self.deadlines.remove(&(old.get(), pair));
        }
        end.deadline = due;
        if let Some(due) = due {
            self.deadlines.insert((due.get(), pair));
        }
    }

    /// Returns when the next timer is due, in nanoseconds since boot.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        let ends = self.deadlines.first().map(|(due, _)| *due);
        match (ends, self.waiting.next()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Runs the timers that are due; returns when the next one will be.
    pub fn run_timers(&mut self) -> Option<u64> {
        let now = now();
        while let Some(&(due, pair)) = self.deadlines.first() {
            if due > now {
                break;
            }
            self.deadlines.remove(&(due, pair));
            let Some(end) = self.ends.get_mut(&pair) else {
                continue;
            };
            end.deadline = None;
            if end.deferred.is_some() {
                self.hand_over(pair);
                continue;
            }
            if end.state == State::FinWait2 {
                // The peer's time is over: a reset answers all that it sends from now on.
                self.remove(&pair);
                continue;
            }
            if let Link::Wire(end) = &mut end.link {
                end.block.run_timers(&mut self.wire.host(pair));
                self.settle(pair);
                self.run();
                self.note_deadline(pair);
            }
        }
        self.waiting.expire(now, &mut self.ports);
        self.next_deadline()
    }

    /// See [`Stack::is_closing`](crate::Stack::is_closing).
    pub fn is_closing(&self) -> bool {
        let waits = |state| matches!(state, State::FinWait1 | State::Closing | State::LastAck);
        let mut ends = self.ends.iter();
        ends.any(|end| waits(end.state) && !end.pair().remote.ip().is_loopback())
    }

    /// Lists all that `/proc/net/tcp` shows.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn list(&self) -> Result<Pieces<Connection>> {
        let mut entries = Pieces::new();
        for socket in self.listeners.values().flatten() {
            let local = socket.inner().local;
            entries.try_extend(local.map(|local| Connection {
                local,
                remote: None,
                state: None,
                socket: Some(socket.clone()),
                left: 0,
            }))?;
        }
        entries.try_extend(self.ends.iter().map(|end| Connection {
            local: end.pair().local,
            remote: Some(end.pair().remote),
            state: Some(end.state),
            socket: Some(end.socket().clone()),
            left: 0,
        }))?;
        let waiting = self.waiting.list(now());
        entries.try_extend(waiting.map(|(local, remote, left)| Connection {
            local,
            remote: Some(remote),
            state: Some(State::TimeWait),
            socket: None,
            left,
        }))?;
        Ok(entries)
    }

    /// Returns the state of a socket's connection.
    pub fn state(&self, socket: &Socket) -> State {
        let end = socket.pair().and_then(|pair| self.ends.get(&pair));
        match (socket.phase(), end) {
            (Phase::Listening, _) => State::Listen,
            (_, Some(end)) if core::ptr::eq(&**end.socket(), socket) => end.state,
            _ => State::Closed,
        }
    }
}
