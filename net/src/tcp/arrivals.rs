//! Segments for the table: those on the wire, and packets without a connection.

use alloc::{boxed::Box, sync::Arc};
use core::net::SocketAddr;

use nucleus::{frame, random};

use super::{
    ConnectionTable, IpFields, Pair, Socket, Tcp,
    block::{Block, Settings, Start},
    connection::{self, Connection},
    format,
    segment::{Flags, Segment, Seq},
    table::{Link, WireEnd},
    waiting::Late,
    wire,
};
use crate::{
    counters::Counter,
    ip::{self, Cover, Received, Report, Route, Trouble},
    ports::Binding,
    timer::now,
};

/// The answer to a SYN.
enum SynReply {
    Granted(Arc<Socket>),
    /// The listener has too many handshakes: nothing is kept of this one.
    Cookie(Arc<Socket>),
    /// The listener's queue is full: the segment counts as lost, so that it is repeated.
    Ignored,
    Refused,
}

impl ConnectionTable {
    /// Delivers all segments on the wire, and the answers to them, until it is empty.
    pub(super) fn run(&mut self) {
        while let Some((pair, segment)) = self.wire.next() {
            let reply = match self.ends.get_mut(&pair) {
                Some(end) => {
                    if let Link::Wire(wired) = &mut end.link {
                        wired.block.arrive(segment, &mut self.wire.host(pair));
                        if let Some(change) = end.take_change() {
                            self.act_on(pair, change);
                        }
                        continue;
                    }
                    SynReply::Refused
                }
                None if segment.opens() => self.answer_syn(pair.local, ip::LOOPBACK),
                None => SynReply::Refused,
            };
            match reply {
                SynReply::Granted(listener) => self.begin(pair, &segment, &listener),
                SynReply::Ignored | SynReply::Cookie(_) => Counter::tcp_listen_overflows.add(1),
                SynReply::Refused => self.wire.refuse(pair, &segment),
            }
        }
    }

    /// Finds the listener at `local` for a segment that has arrived at an interface.
    fn answer_syn(&self, local: SocketAddr, interface: u32) -> SynReply {
        let Some(listeners) = self.listeners.get(&local.port()) else {
            return SynReply::Refused;
        };
        let score = |socket: &Arc<Socket>| {
            let inner = socket.inner();
            let address = inner.local.map(|address| address.ip());
            let cover = address.map(|address| Cover::of(address, inner.options.name.v6_only));
            let score = cover.map_or(0, |cover| cover.score(local.ip()));
            match inner.options.name.interface {
                0 => score * 2,
                // One that is bound to the interface has precedence.
                own if own == interface && score > 0 => score * 2 + 1,
                _ => 0,
            }
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
                if inner.is_queue_full() {
                    return SynReply::Ignored;
                }
                // Handshakes with strangers take memory only as far as they are few.
                if inner.handshakes() > inner.most_handshakes() {
                    drop(inner);
                    return SynReply::Cookie(listener.clone());
                }
                drop(inner);
                SynReply::Granted(listener.clone())
            }
            None => SynReply::Refused,
        }
    }

    /// Creates an end for a connection that a SYN asks for at a listener. Without memory the SYN
    /// counts as lost.
    fn begin(&mut self, pair: Pair, syn: &Segment, listener: &Arc<Socket>) {
        if self.ends.reserve().is_err() {
            return;
        }
        let start = ConnectionTable::start();
        let block = Block::answer(syn, start, &mut self.wire.host(pair));
        let socket = self.child(pair, listener, 0);
        let end = WireEnd {
            pair,
            socket,
            block,
        };
        self.add(Link::Wire(Box::new(end)), Some(Arc::downgrade(listener)));
    }

    /// Creates the socket of a connection that a listener will accept; `interface` is the number of
    /// the only one that its packets use, 0 for the listener's.
    fn child(&mut self, pair: Pair, listener: &Arc<Socket>, interface: u32) -> Arc<Socket> {
        Counter::tcp_passive_opens.add(1);
        let mut options = listener.inner().options;
        if interface != 0 {
            options.name.interface = interface;
        }
        let socket = Socket::child(listener, options);
        // A peer that reuses both addresses so soon has forgotten the old connection.
        self.waiting.forget(&pair, &mut self.ports);
        let binding = Binding {
            cover: Cover::of(pair.local.ip(), true),
            ..options.name.binding(pair.local.ip())
        };
        let hold = self.ports.add_accepted(pair.local.port(), binding);
        {
            let mut inner = socket.inner();
            inner.hold = Some(hold);
            inner.local = Some(pair.local);
            inner.remote = Some(pair.remote);
        }
        listener.inner().begin_embryo();
        socket
    }

    /// Returns how an end begins whose segments need no packets.
    pub(super) fn start() -> Start {
        Start {
            // No stranger reaches it: its numbers need not be secret.
            number: Seq(0),
            clock: 0,
            path: wire::PATH,
            buffer: 0,
            settings: Settings::default(),
        }
    }

    /// Returns how an end begins whose segments are packets.
    pub(super) fn start_on(&self, pair: &Pair, route: &Route, socket: &Socket) -> Start {
        let options = socket.inner().options;
        Start {
            number: self.secret.first_number(pair, now()),
            clock: self.secret.hash((pair.local.ip(), pair.remote.ip())) as u32,
            path: connection::path(route, pair),
            buffer: options.receive_buffer as usize,
            settings: options.settings,
        }
    }

    /// Answers the SYN of a packet.
    fn answer_packet(&mut self, tcp: &Tcp, pair: Pair, syn: &Segment, at: u32) {
        let reply = match self.answer_syn(pair.local, at) {
            // The last free frames are reserved for programs.
            SynReply::Granted(listener) if frame::is_scarce() => SynReply::Cookie(listener),
            reply => reply,
        };
        match reply {
            SynReply::Granted(listener) => {
                let interface = back_by(&pair, at, &listener);
                let Some(route) = back(tcp, &pair, interface) else {
                    return;
                };
                if self.ends.reserve().is_err() {
                    return;
                }
                let start = self.start_on(&pair, &route, &listener);
                let socket = self.child(pair, &listener, interface);
                let begun = Connection::new(tcp, pair, socket, route, |host| {
                    Block::answer(syn, start, host)
                });
                self.join(tcp, begun, Some(&listener));
            }
            SynReply::Cookie(listener) => {
                let Some(route) = back(tcp, &pair, back_by(&pair, at, &listener)) else {
                    return;
                };
                // A peer that uses both addresses again has forgotten the old connection, which
                // would ignore the confirmation.
                self.waiting.forget(&pair, &mut self.ports);
                let path = connection::path(&route, &pair);
                let answer = tcp.cookies.answer(&pair, syn, path.largest, now());
                let fields = listener.inner().options.ip_fields(pair.is_v4());
                let _ = connection::send(&tcp.network, &route, &pair, answer, fields);
            }
            SynReply::Ignored => Counter::tcp_listen_overflows.add(1),
            SynReply::Refused => refuse(tcp, &pair, syn, at),
        }
    }

    /// Adds a connection to the table, which has room for it, and to the lookup; false without
    /// memory.
    pub(super) fn join(
        &mut self,
        tcp: &Tcp,
        begun: Arc<Connection>,
        listener: Option<&Arc<Socket>>,
    ) -> bool {
        let pair = begun.pair;
        let listener = listener.map(Arc::downgrade);
        // Packets find it only after its state was noted: a change that comes first would be none.
        self.add(Link::Line(begun.clone()), listener);
        let is_known = tcp.lookup.add(begun.clone()).is_ok();
        if !is_known {
            self.over(&pair, Some(abi::Errno::ENOMEM));
            return false;
        }
        tcp.lookup
            .note_timer(&begun, begun.with(Block::timer_due), &tcp.alarm);
        true
    }

    /// Takes the confirmation of a cookie; `None` if it is none. Without room for the connection,
    /// the segment counts as lost.
    fn recall(
        &mut self,
        tcp: &Tcp,
        pair: Pair,
        segment: &Segment,
        at: u32,
    ) -> Option<Option<Arc<Connection>>> {
        if !self.listeners.contains_key(&pair.local.port()) {
            return None;
        }
        let syn = tcp.cookies.recall(&pair, segment, now())?;
        // Handshakes that are kept leave room for these.
        let listener = match self.answer_syn(pair.local, at) {
            // The last free frames are reserved for programs.
            SynReply::Ignored => return Some(None),
            _ if frame::is_scarce() => return Some(None),
            SynReply::Granted(listener) | SynReply::Cookie(listener) => listener,
            SynReply::Refused => return None,
        };
        let interface = back_by(&pair, at, &listener);
        let Some(route) = back(tcp, &pair, interface) else {
            return Some(None);
        };
        if self.ends.reserve().is_err() {
            return Some(None);
        }
        let mut start = self.start_on(&pair, &route, &listener);
        start.number = segment.ack - 1;
        start.clock = tcp.cookies.clock(&pair);
        let socket = self.child(pair, &listener, interface);
        let begun = Connection::new(tcp, pair, socket, route, |host| {
            Block::recall(&syn, start, host)
        });
        let is_there = self.join(tcp, begun.clone(), Some(&listener));
        Some(is_there.then_some(begun))
    }

    /// Takes a packet without a connection, which has arrived at interface `at`; returns the
    /// connection for which it is after all.
    fn take_stray(
        &mut self,
        tcp: &Tcp,
        pair: Pair,
        segment: &Segment,
        at: u32,
    ) -> Option<Arc<Connection>> {
        // It may have been made meanwhile.
        if let Some(connection) = tcp.lookup.find(&pair) {
            return Some(connection);
        }
        match self.waiting.late(&pair, segment, now()) {
            Some(Late::Ignored) => return None,
            Some(Late::Answered(answer)) => {
                answer_stray(tcp, &pair, answer, at);
                return None;
            }
            Some(Late::Anew) | None => {}
        }
        // Ends that need no packets are not reached by any.
        if self.ends.contains(&pair) {
            return None;
        }
        if segment.opens() {
            self.answer_packet(tcp, pair, segment, at);
            return None;
        }
        let confirms = segment.is(Flags::ACK) && !segment.is(Flags::SYN) && !segment.is(Flags::RST);
        if confirms && let Some(recalled) = self.recall(tcp, pair, segment, at) {
            return recalled;
        }
        refuse(tcp, &pair, segment, at);
        None
    }
}

/// Answers a segment without a connection by a reset, unless it is one.
fn refuse(tcp: &Tcp, pair: &Pair, segment: &Segment, at: u32) {
    if let Some(reset) = segment.refusal() {
        answer_stray(tcp, pair, reset, at);
    }
}

/// Sends a segment of no socket, the answer to one that has arrived at interface `at`.
fn answer_stray(tcp: &Tcp, pair: &Pair, answer: Segment, at: u32) {
    if let Some(route) = back(tcp, pair, back_near(pair, at)) {
        let fields = IpFields::default();
        let _ = connection::send(&tcp.network, &route, pair, answer, fields);
    }
}

/// Returns the number of the only interface by which a peer is reached whose segment has arrived
/// at interface `at`: link-local addresses mean another machine on each link. 0 for any.
fn back_near(pair: &Pair, at: u32) -> u32 {
    match ip::is_link_local(pair.remote.ip()) {
        true => at,
        false => 0,
    }
}

/// As [`back_near`], for a listener.
fn back_by(pair: &Pair, at: u32, listener: &Socket) -> u32 {
    match listener.inner().options.name.interface {
        0 => back_near(pair, at),
        own => own,
    }
}

/// Returns the way to a peer by an interface, or by any if that is 0.
fn back(tcp: &Tcp, pair: &Pair, interface: u32) -> Option<Route> {
    let by = (interface != 0).then_some(interface);
    tcp.network.route_by(pair.remote.ip(), by).ok()
}

impl Tcp {
    /// Takes a packet.
    pub(crate) fn receive(&self, packet: &mut Received) {
        // TCP is between two machines (RFC 1122 4.2.3.10).
        if packet.is_for_many || packet.from.is_unspecified() || !packet.is_intact() {
            return;
        }
        let at = packet.interface;
        let Some((pair, segment)) = format::read(packet) else {
            return;
        };
        Counter::tcp_segments.add(1);
        let found = self.lookup.find(&pair);
        let found =
            found.or_else(|| self.change(|table| table.take_stray(self, pair, &segment, at)));
        if let Some(connection) = found.filter(|it| it.is_by(at)) {
            connection.arrive(self, segment);
        }
    }
}

impl Connection {
    /// Tells whether it takes segments from an interface.
    fn is_by(&self, index: u32) -> bool {
        let own = self.socket.inner().options.name.interface;
        [0, index].contains(&own) || index == ip::LOOPBACK
    }

    /// Takes a segment.
    fn arrive(&self, tcp: &Tcp, segment: Segment) {
        let has_data = !segment.data.is_empty();
        self.act(tcp, |block, host| block.arrive(segment, host));
        if has_data && self.is_deferred.load(core::sync::atomic::Ordering::Relaxed) {
            tcp.change(|table| table.hand_over(self.pair));
        }
    }
}

impl Tcp {
    /// Takes the news that a packet of ours did not arrive. It counts only where it names bytes
    /// that are on their way (RFC 5927).
    pub(crate) fn take_report(&self, report: Report) {
        if report.protocol != ip::TCP {
            return;
        }
        let pair = Pair {
            local: report.from,
            remote: report.to,
        };
        let Some(connection) = self.lookup.find(&pair) else {
            return;
        };
        let number = Seq(report.number);
        let is_ours = connection.with(|block| block.has_in_flight(number));
        if !is_ours {
            return;
        }
        match report.trouble {
            Trouble::TooBig(mtu) => {
                let mtu = self.network.narrow_path(pair.remote.ip(), mtu);
                let largest = connection::largest(mtu, &pair);
                connection.act(self, |block, host| {
                    block.narrow(largest, host);
                });
            }
            Trouble::Refused => connection.act(self, |block, _| block.be_refused()),
            // The timers find out whether that lasts.
            Trouble::Unreachable | Trouble::Other => {}
        }
    }
}
