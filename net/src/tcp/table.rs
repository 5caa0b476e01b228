//! All connections, listeners and ports, and the delivery of segments to ends.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    vec::Vec,
};
use core::net::SocketAddr;

use crate::counters::Counter;
use abi::Result;
use nucleus::{
    Pieces, random,
    sync::{Mutex, MutexGuard},
};

use super::{
    Pair, Phase, Socket,
    block::{Block, Settings, Start, State},
    secret::Secret,
    segment::Segment,
    waiting::Waiting,
    wire::{self, Wire},
};
use crate::{
    ip::Cover,
    ports::{Binding, Hold, Ports, Rule},
    timer::{Alarm, now},
};

/// Time that an end without a descriptor waits for its peer's end: Linux's `tcp_fin_timeout`, in
/// nanoseconds.
const ORPHAN: u64 = 60_000_000_000;

/// The connections of a machine. Guarded by a lock of `rank::NET`.
pub struct ConnectionTable {
    pub(super) wire: Wire,
    secret: Secret,
    pub(super) ports: Ports,
    pub(super) ends: BTreeMap<Pair, End>,
    /// By port.
    listeners: BTreeMap<u16, Vec<Arc<Socket>>>,
    pub(super) waiting: Waiting,
    /// Ends with a timer, by its time in nanoseconds since boot.
    deadlines: BTreeSet<(u64, Pair)>,
}

/// TCP of one machine: its connections, and the alarm for their timers.
pub struct Tcp {
    connections: Mutex<ConnectionTable>,
    alarm: Alarm,
}

impl Tcp {
    /// A TCP without connections.
    pub(crate) fn new() -> Tcp {
        Tcp {
            connections: Mutex::new(crate::rank::NET, ConnectionTable::new()),
            alarm: Alarm::new(),
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

    /// Runs the timers that are due; returns when the next one will be, in nanoseconds since boot.
    pub(crate) fn run_timers(&self) -> Option<u64> {
        self.connections.lock().run_timers()
    }

    /// Runs the timers for ever.
    pub(crate) fn serve(&self) -> ! {
        loop {
            self.alarm.serve(|| self.run_timers());
        }
    }
}

/// One end of a connection.
pub(super) struct End {
    pub block: Box<Block>,
    pub socket: Arc<Socket>,
    /// The listener that will accept it, until it is in that queue.
    pub listener: Option<Weak<Socket>>,
    /// The block's state when it was last compared.
    pub state: State,
    pub deadline: Option<u64>,
    /// It is withheld from its listener until the first bytes arrive, or until this time.
    pub deferred: Option<u64>,
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

/// The answer to a SYN.
enum SynReply {
    Granted(Arc<Socket>),
    /// The listener's queue is full: the segment counts as lost, so that it is repeated.
    Ignored,
    Refused,
}

impl ConnectionTable {
    /// An empty table.
    pub fn new() -> ConnectionTable {
        ConnectionTable {
            wire: Wire::default(),
            secret: Secret::new(),
            ports: Ports::new(Rule::UnlessListening),
            ends: BTreeMap::new(),
            listeners: BTreeMap::new(),
            waiting: Waiting::default(),
            deadlines: BTreeSet::new(),
        }
    }

    /// Delivers all segments on the wire, and the answers to them, until it is empty.
    pub(super) fn run(&mut self) {
        while let Some((pair, segment)) = self.wire.next() {
            if let Some(end) = self.ends.get_mut(&pair) {
                end.block.arrive(segment, &mut self.wire.host(pair));
                self.settle(pair);
                continue;
            }
            let reply = match segment.opens() {
                true => self.answer_syn(pair.local),
                false => SynReply::Refused,
            };
            match reply {
                SynReply::Granted(listener) => self.begin(pair, &segment, &listener),
                SynReply::Ignored => Counter::tcp_listen_overflows.add(1),
                SynReply::Refused => self.wire.refuse(pair, &segment),
            }
        }
    }

    /// Finds the listener at `local`.
    fn answer_syn(&self, local: SocketAddr) -> SynReply {
        let Some(listeners) = self.listeners.get(&local.port()) else {
            return SynReply::Refused;
        };
        let score = |socket: &Arc<Socket>| {
            let inner = socket.inner();
            let address = inner.local.map(|address| address.ip());
            let cover = address.map(|address| Cover::of(address, inner.options.name.v6_only));
            cover.map_or(0, |cover| cover.score(local.ip()))
        };
        let best = listeners.iter().map(&score).max().unwrap_or(0);
        if best == 0 {
            return SynReply::Refused;
        }
        // Listeners with `SO_REUSEPORT` share the connections.
        let fitting = || listeners.iter().filter(|socket| score(socket) == best);
        let count = fitting().count() as u64;
        let chosen = if count > 1 { random::u64() % count } else { 0 };
        match fitting().nth(chosen as usize) {
            Some(listener) => {
                let inner = listener.inner();
                if inner.queue.len() + inner.embryos > inner.backlog {
                    return SynReply::Ignored;
                }
                drop(inner);
                SynReply::Granted(listener.clone())
            }
            None => SynReply::Refused,
        }
    }

    /// Creates an end for a connection that a SYN asks for at a listener.
    fn begin(&mut self, pair: Pair, syn: &Segment, listener: &Arc<Socket>) {
        let start = self.start(&pair);
        let block = Block::answer(syn, start, &mut self.wire.host(pair));
        Counter::tcp_passive_opens.add(1);
        let options = listener.inner().options;
        let account = listener.account().cloned();
        let socket = Socket::new(&listener.tcp, listener.family(), options, account);
        // A peer that reuses both addresses so soon has forgotten the old connection.
        self.waiting.forget(&pair, &mut self.ports);
        let binding = Binding {
            cover: Cover::of(pair.local.ip(), true),
            ..options.name.binding(pair.local.ip())
        };
        let hold = self.ports.add(pair.local.port(), binding);
        {
            let mut inner = socket.inner();
            inner.hold = Some(hold);
            inner.local = Some(pair.local);
            inner.remote = Some(pair.remote);
        }
        listener.inner().embryos += 1;
        self.add(pair, block, socket, Some(Arc::downgrade(listener)));
    }

    /// Returns how an end begins whose segments need no packets.
    pub(super) fn start(&self, pair: &Pair) -> Start {
        Start {
            number: self.secret.first_number(pair, now()),
            clock: 0,
            path: wire::PATH,
            buffer: 0,
            settings: Settings::default(),
        }
    }

    /// Adds an end that `connect` has opened, or that its listener will accept.
    pub(super) fn add(
        &mut self,
        pair: Pair,
        block: Block,
        socket: Arc<Socket>,
        listener: Option<Weak<Socket>>,
    ) {
        let end = End {
            state: block.state(),
            block: Box::new(block),
            socket,
            listener,
            deadline: None,
            deferred: None,
        };
        self.ends.insert(pair, end);
    }

    /// Removes an end. Its port is released unless `bind` has asked for it and the socket is still
    /// open.
    pub(super) fn remove(&mut self, pair: &Pair) -> Option<End> {
        let end = self.ends.remove(pair)?;
        if let Some(deadline) = end.deadline {
            self.deadlines.remove(&(deadline, *pair));
        }
        let hold = {
            let mut inner = end.socket.inner();
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
    pub(super) fn add_listener(&mut self, port: u16, socket: &Arc<Socket>) {
        let listeners = self.listeners.entry(port).or_default();
        listeners.push(socket.clone());
    }

    /// Removes a listener. The caller closes the connections in its queue; handshakes are reset.
    pub(super) fn remove_listener(&mut self, port: u16, socket: &Arc<Socket>) {
        if let Some(listeners) = self.listeners.get_mut(&port) {
            listeners.retain(|other| !Arc::ptr_eq(other, socket));
            if listeners.is_empty() {
                self.listeners.remove(&port);
            }
        }
        if socket.inner().embryos == 0 {
            return;
        }
        let own = |end: &End| {
            let listener = end.listener.as_ref();
            listener.is_some_and(|listener| core::ptr::eq(listener.as_ptr(), &**socket))
        };
        let embryos = self.ends.iter().filter(|(_, end)| own(end));
        let embryos: Pieces<Pair> = embryos.map(|(pair, _)| *pair).collect();
        for pair in embryos {
            self.reset(&pair);
        }
    }

    /// Resets a connection from this end, and removes it.
    pub(super) fn reset(&mut self, pair: &Pair) {
        if let Some(mut end) = self.remove(pair) {
            if matches!(end.state, State::Established | State::CloseWait) {
                Counter::tcp_established_resets.add(1);
            }
            end.block.abort(&mut self.wire.host(*pair));
            self.ended(&end, None);
            self.run();
        }
    }

    /// Ends the outbound stream of this end.
    pub(super) fn finish(&mut self, pair: &Pair) {
        if let Some(end) = self.ends.get_mut(pair) {
            end.block.finish(&mut self.wire.host(*pair));
            self.settle(*pair);
            self.run();
        }
    }

    /// Updates an end's timer: for segments to repeat, deferred connections, and orphans.
    pub(super) fn note_deadline(&mut self, pair: Pair) {
        let Some(end) = self.ends.get_mut(&pair) else {
            return;
        };
        let due = match end.state {
            State::Established | State::CloseWait => end.deferred,
            State::FinWait2 if end.socket.inner().closed => {
                Some(end.deadline.unwrap_or(now() + ORPHAN))
            }
            State::FinWait2 => None,
            _ => end.block.timer_due(),
        };
        if let Some(old) = end.deadline {
            self.deadlines.remove(&(old, pair));
        }
        end.deadline = due;
        if let Some(due) = due {
            self.deadlines.insert((due, pair));
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
            end.block.run_timers(&mut self.wire.host(pair));
            self.settle(pair);
            self.run();
            self.note_deadline(pair);
        }
        self.waiting.expire(now, &mut self.ports);
        self.next_deadline()
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
        entries.try_extend(self.ends.iter().map(|(pair, end)| Connection {
            local: pair.local,
            remote: Some(pair.remote),
            state: Some(end.state),
            socket: Some(end.socket.clone()),
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
            (_, Some(end)) if core::ptr::eq(&*end.socket, socket) => end.state,
            _ => State::Closed,
        }
    }
}
