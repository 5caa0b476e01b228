//! A connection whose segments are packets: its block, under a lock of its own, and its streams.

use alloc::{boxed::Box, sync::Arc};
use core::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicU64},
};

use abi::Errno;
use fbuf::Aggregate;
use nucleus::sync::{Mutex, Rank, SpinLock};
use vm::account::{Kind, Stock};

use super::{
    IpFields, MOST_RECEIVE_BUFFER, MOST_SEND_BUFFER, Options, Pair, Socket, Tcp,
    block::{Block, Delivery, Host, Path, State},
    format,
    segment::Segment,
};
use crate::{
    counters::Counter,
    due::{NEVER, Place},
    ip::{self, Network, Route, Sending},
    packet::Head,
    stream::Stream,
    timer::once,
};

/// Bytes of the headers of IP and TCP.
const HEADERS_V4: u16 = 40;
const HEADERS_V6: u16 = 60;

/// Returns what a route carries.
pub fn path(route: &Route, pair: &Pair) -> Path {
    Path {
        largest: largest(route.mtu, pair),
        bulk: route.interface.features().cuts,
    }
}

/// Returns the payload that fits in a packet.
pub fn largest(mtu: u16, pair: &Pair) -> u16 {
    let headers = if pair.remote.is_ipv4() {
        HEADERS_V4
    } else {
        HEADERS_V6
    };
    mtu.saturating_sub(headers)
}

/// A connection over a route.
pub struct Connection {
    pub pair: Pair,
    pub socket: Arc<Socket>,
    pub inbound: Arc<Stream>,
    pub outbound: Arc<Stream>,
    route: SpinLock<Route>,
    driven: Mutex<Driven>,
    /// The time at which its timers run at the latest: see [`Lookup`](super::lookup::Lookup).
    pub armed: AtomicU64,
    /// Its place among the timers.
    pub place: Place,
    /// Its listener waits for the first bytes (`TCP_DEFER_ACCEPT`).
    pub is_deferred: AtomicBool,
}

/// What the lock of a connection guards.
struct Driven {
    /// Boxed, so that it is built in place and not moved.
    block: Box<Block>,
    /// Charges the frames that the block keeps: sent and not acknowledged, or behind a gap.
    stock: Stock,
}

/// Makes the streams from and to the network for a socket.
fn streams(tcp: &Tcp, socket: &Socket, is_v6: bool) -> (Arc<Stream>, Arc<Stream>) {
    let options = socket.inner().options;
    let stream = |limit: u32| {
        let stock = Stock::new(socket.account().cloned(), Kind::Sockets);
        let waits = socket.waits();
        Stream::new(waits.clone(), waits.clone(), limit as usize, is_v6, stock)
            .by_packets(tcp.growth.clone())
    };
    let inbound = stream(options.receive_buffer);
    inbound.set_low_water(options.low_water as usize);
    (Arc::new(inbound), Arc::new(stream(options.send_buffer)))
}

impl Connection {
    /// Makes a connection, whose block begins as `begin` says.
    pub fn new(
        tcp: &Tcp,
        pair: Pair,
        socket: Arc<Socket>,
        route: Route,
        begin: impl FnOnce(&mut dyn Host) -> Box<Block>,
    ) -> Arc<Connection> {
        let (inbound, outbound) = streams(tcp, &socket, pair.remote.is_ipv6());
        let route = SpinLock::new(Rank::Leaf, route);
        let (interface, fields) = {
            let options = &socket.inner().options;
            (options.name.interface, options.ip_fields(pair.is_v4()))
        };
        let mut line = Line {
            network: &tcp.network,
            socket: &socket,
            pair: &pair,
            route: &route,
            inbound: &inbound,
            outbound: &outbound,
            interface,
            fields,
            in_line: false,
            has_delivered: false,
            too_big: None,
            now: Cell::new(0),
        };
        let driven = Driven {
            block: begin(&mut line),
            stock: Stock::new(socket.account().cloned(), Kind::Sockets),
        };
        Arc::new(Connection {
            pair,
            socket,
            inbound,
            outbound,
            route,
            driven: Mutex::new(crate::rank::NET_CONNECTION, driven),
            armed: AtomicU64::new(NEVER),
            place: Place::none(),
            is_deferred: AtomicBool::new(false),
        })
    }

    /// Returns the state.
    pub fn state(&self) -> State {
        self.driven.lock().block.state()
    }

    /// Reads the block.
    pub fn with<R>(&self, read: impl FnOnce(&Block) -> R) -> R {
        read(&self.driven.lock().block)
    }

    /// Drives the block. Returns whether its state has changed, which the caller has to settle.
    pub fn drive(&self, tcp: &Tcp, act: impl FnOnce(&mut Block, &mut dyn Host)) -> bool {
        let (interface, fields, in_line) = {
            let options = &self.socket.inner().options;
            let fields = options.ip_fields(self.pair.is_v4());
            (options.name.interface, fields, options.urgent_in_line)
        };
        let mut line = Line {
            network: &tcp.network,
            socket: &self.socket,
            pair: &self.pair,
            route: &self.route,
            inbound: &self.inbound,
            outbound: &self.outbound,
            interface,
            fields,
            in_line,
            has_delivered: false,
            too_big: None,
            now: Cell::new(0),
        };
        let (has_changed, due) = {
            let mut driven = self.driven.lock();
            let Driven { block, stock } = &mut *driven;
            let old = block.state();
            act(block, &mut line);
            if let Some(mtu) = line.too_big.take() {
                block.narrow(largest(mtu, &self.pair), &mut line);
            }
            stock.cover(block.frames());
            (block.state() != old, block.timer_due())
        };
        if line.has_delivered {
            self.inbound.wake_reader();
        }
        tcp.lookup.note_timer(self, due, &tcp.alarm);
        has_changed
    }

    /// As [`drive`](Connection::drive), and settles a change. No lock is held.
    pub fn act(&self, tcp: &Tcp, act: impl FnOnce(&mut Block, &mut dyn Host)) {
        if self.drive(tcp, act) {
            tcp.change(|table| table.settle(self.pair));
        }
    }
}

/// What the block of a connection has around it.
struct Line<'a> {
    network: &'a Network,
    socket: &'a Socket,
    pair: &'a Pair,
    route: &'a SpinLock<Route>,
    inbound: &'a Stream,
    outbound: &'a Stream,
    /// The number of the only interface that packets use; 0 for all.
    interface: u32,
    fields: IpFields,
    /// Urgent bytes stay in the stream.
    in_line: bool,
    has_delivered: bool,
    /// A segment was too large for its path, which takes packets of this size.
    too_big: Option<u16>,
    /// The time, once it was asked for.
    now: Cell<u64>,
}

impl Line<'_> {
    /// Returns the route, which is looked up again after changes of the configuration and of the
    /// socket's interface; `None` without one by that interface.
    fn route(&self) -> Option<Route> {
        let route = self.route.lock().clone();
        let index = route.interface.index();
        let may_be_used = [0, index].contains(&self.interface) || index == ip::LOOPBACK;
        if may_be_used && self.network.is_current(&route) {
            return Some(route);
        }
        let by = (self.interface != 0).then_some(self.interface);
        match self.network.route_by(self.pair.remote.ip(), by) {
            Ok(new) => {
                let old = core::mem::replace(&mut *self.route.lock(), new.clone());
                drop(old);
                Some(new)
            }
            Err(_) => may_be_used.then_some(route),
        }
    }
}

impl Line<'_> {
    /// Makes the buffer of a stream up to `bytes` large, whose size is one of the socket's options,
    /// unless a program has chosen that.
    fn grow(
        &self,
        stream: &Stream,
        bytes: usize,
        size: impl FnOnce(&mut Options) -> (bool, &mut u32),
    ) {
        let (old, new) = {
            let options = &mut self.socket.inner().options;
            let (is_fixed, size) = size(options);
            let old = *size as usize;
            if is_fixed || bytes <= old {
                return;
            }
            let new = old + stream.add_growth(bytes - old);
            *size = new as u32;
            (old, new)
        };
        stream.change_limit(old, new);
    }
}

impl Host for Line<'_> {
    fn now(&self) -> u64 {
        once(&self.now)
    }

    fn unsent(&self) -> usize {
        self.outbound.unsent()
    }

    fn urgent(&self) -> Option<usize> {
        self.outbound.urgent_ahead()
    }

    fn to_page_end(&self, len: usize) -> usize {
        self.outbound.to_page_end(len)
    }

    fn take(&mut self, n: usize) -> Aggregate {
        self.outbound.take_to_send(n)
    }

    fn acknowledged(&mut self, bytes: usize) {
        self.outbound.acknowledge(bytes);
    }

    fn room(&self) -> usize {
        self.inbound.room()
    }

    fn unread(&self) -> usize {
        self.inbound.unread()
    }

    fn widen_receive_buffer(&mut self, bytes: usize) {
        let bytes = bytes.min(MOST_RECEIVE_BUFFER);
        self.grow(self.inbound, bytes, |options| {
            (options.is_receive_fixed, &mut options.receive_buffer)
        });
    }

    fn widen_send_buffer(&mut self, bytes: usize) {
        let bytes = bytes.min(MOST_SEND_BUFFER);
        self.grow(self.outbound, bytes, |options| {
            (options.is_send_fixed, &mut options.send_buffer)
        });
    }

    fn deliver(&mut self, data: Aggregate, urgent: Option<usize>) -> Delivery {
        match self.inbound.deliver(data, urgent, self.in_line) {
            Ok(()) => {
                self.has_delivered = true;
                Delivery::Taken
            }
            Err(Errno::EPIPE) => Delivery::Abandoned,
            Err(_) => Delivery::Full,
        }
    }

    fn trim(&mut self) {
        self.inbound.trim();
        self.outbound.trim();
    }

    fn emit(&mut self, segment: Segment) {
        let Some(route) = self.route() else { return };
        if send(self.network, &route, self.pair, segment, self.fields) == Err(Errno::EMSGSIZE) {
            self.too_big = Some(route.mtu);
        }
    }
}

/// Sends a segment as a packet.
///
/// # Errors
/// Those of [`Network::send`].
pub fn send(
    network: &Network,
    route: &Route,
    pair: &Pair,
    segment: Segment,
    fields: IpFields,
) -> abi::Result<()> {
    let mut head = Head::default();
    format::write(pair, &segment, &mut head);
    if segment.is(super::segment::Flags::RST) {
        Counter::tcp_resets_sent.add(1);
    }
    let sending = Sending {
        from: pair.local.ip(),
        to: pair.remote.ip(),
        protocol: ip::TCP,
        service: fields.service,
        hops: fields.hops,
        is_whole: true,
        checksum: Some(format::CHECKSUM),
    };
    network.send(route, sending, head, segment.data, segment.cut)
}
