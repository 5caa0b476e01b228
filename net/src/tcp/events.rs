//! The effects that a change of an end's state has on its socket.

use alloc::sync::Arc;
use core::{num::NonZeroU64, sync::atomic::Ordering::SeqCst};

use crate::counters::Counter;
use abi::Errno;
use vm::account::{Kind, Stock};

use super::{
    ConnectionTable, Pair, Phase, Socket,
    block::{Block, State},
    connection::Connection,
    table::{End, Link},
};
use crate::{stream::Stream, timer::now};

impl ConnectionTable {
    /// Compares an end's state with the last one, after segments have come or gone, and acts on
    /// changes.
    pub(super) fn settle(&mut self, pair: Pair) {
        let change = self.ends.get_mut(&pair).and_then(End::take_change);
        if let Some(change) = change {
            self.act_on(pair, change);
        }
    }

    /// Acts on a change of an end's state, from one to another.
    pub(super) fn act_on(&mut self, pair: Pair, (old, new): (State, State)) {
        // Several changes may have come with one segment.
        let is_open = matches!(new, State::Established | State::CloseWait);
        if is_open && matches!(old, State::SynSent | State::SynReceived) {
            self.established(pair, old);
        }
        match new {
            State::CloseWait => self.peer_finished(&pair),
            // An end without a descriptor does not wait for its peer for ever.
            State::FinWait2 => {
                if let Some(end) = self.ends.get(&pair) {
                    end.socket().inner().is_ending = false;
                    end.socket().waits().writable.wake_all();
                }
                self.note_deadline(pair);
            }
            State::Closing => self.peer_finished(&pair),
            State::TimeWait => {
                self.peer_finished(&pair);
                if let Some(end) = self.ends.get(&pair) {
                    let hold = end.socket().inner().hold.take();
                    let remains = match &end.link {
                        Link::Wire(end) => (end.block.remains(), false),
                        Link::Line(connection) => (connection.with(Block::remains), true),
                    };
                    self.waiting
                        .add(pair, hold, remains, now(), &mut self.ports);
                }
                self.over(&pair, None);
            }
            State::Closed => {
                match old {
                    State::SynSent | State::SynReceived => Counter::tcp_attempt_failures.add(1),
                    State::Established | State::CloseWait => {
                        Counter::tcp_established_resets.add(1);
                    }
                    _ => {}
                }
                let error = self.ends.get(&pair).and_then(|end| end.link.error());
                self.over(&pair, error);
            }
            _ => {}
        }
    }

    /// Handles an established connection: the end that asked is fused with its peer, the other one
    /// goes to its listener.
    fn established(&mut self, pair: Pair, old: State) {
        // Data goes into the peer's stream, without the send queue.
        if let Some(Link::Wire(end)) = self.ends.get_mut(&pair).map(|end| &mut end.link) {
            end.block.trim_sent();
        }
        let Some(end) = self.ends.get(&pair) else {
            return;
        };
        let is_deferred = match &end.link {
            Link::Line(connection) => {
                attach(connection);
                end.listener.is_some() && self.defers_line(pair)
            }
            Link::Wire(_) if old == State::SynSent => {
                if let Some(peer) = self.ends.get(&pair.mirrored()) {
                    fuse(end.socket(), peer.socket());
                }
                return;
            }
            Link::Wire(_) => match end.defer_time() {
                0 => false,
                time => self.defers(pair, time),
            },
        };
        if !is_deferred {
            self.hand_over(pair);
        }
    }

    /// Tells whether an established connection has to wait for its first bytes
    /// (`TCP_DEFER_ACCEPT`), for up to `time`.
    fn defers(&mut self, pair: Pair, time: u64) -> bool {
        let peer = self.ends.get(&pair.mirrored());
        let peer = peer.map(|end| end.socket().clone());
        let Some(end) = self.ends.get_mut(&pair) else {
            return false;
        };
        let Some(peer) = peer else {
            return false;
        };
        // The peer reads this flag after it has sent, so either it sees the flag or its bytes are
        // seen here.
        peer.inner().announces = true;
        if end.socket().has_unread() {
            return false;
        }
        end.deferred = NonZeroU64::new(now() + time);
        self.note_deadline(pair);
        true
    }

    /// As [`defers`](ConnectionTable::defers) for a connection whose segments are packets. Those of
    /// which more wait than of other handshakes are queued at once, where the backlog limits them:
    /// a cookie has let them in.
    fn defers_line(&mut self, pair: Pair) -> bool {
        let Some(end) = self.ends.get_mut(&pair) else {
            return false;
        };
        let listener = end.listener.as_ref().and_then(alloc::sync::Weak::upgrade);
        let time = listener.map_or(0, |listener| {
            let inner = listener.inner();
            // This one is among them.
            match inner.handshakes() > inner.most_handshakes() + 1 {
                true => 0,
                false => inner.options.defer_time(),
            }
        });
        if time == 0 {
            return false;
        }
        if let Link::Line(connection) = &end.link {
            // The CPU that delivers bytes reads the flag after the delivery.
            connection.is_deferred.store(true, SeqCst);
        }
        if end.socket().has_unread() {
            return false;
        }
        end.deferred = NonZeroU64::new(now() + time);
        self.note_deadline(pair);
        true
    }

    /// Queues a connection at its listener, unless that was done before.
    pub(super) fn hand_over(&mut self, pair: Pair) {
        let Some(end) = self.ends.get_mut(&pair) else {
            return;
        };
        end.deferred = None;
        if let Link::Line(connection) = &end.link {
            connection.is_deferred.store(false, SeqCst);
        }
        let Some(listener) = end.listener.take() else {
            return;
        };
        let socket = end.socket().clone();
        let queued = listener.upgrade().is_some_and(|listener| {
            let mut inner = listener.inner();
            inner.end_embryo();
            let listens = inner.phase == Phase::Listening;
            let accepts = inner.accepts.as_mut().filter(|_| listens);
            let queued = accepts.is_some_and(|accepts| {
                let has_room = accepts.queue.try_reserve(1).is_ok();
                if has_room {
                    accepts.queue.push_back(socket);
                }
                has_room
            });
            drop(inner);
            listener.waits().wake_for_connection();
            queued
        });
        if !queued {
            self.reset(&pair);
        }
    }

    /// Handles the end of the peer's stream.
    fn peer_finished(&mut self, pair: &Pair) {
        let Some(mut end) = self.ends.get(pair) else {
            return;
        };
        if end.deferred.is_some() {
            self.hand_over(*pair);
            let Some(left) = self.ends.get(pair) else {
                return;
            };
            end = left;
        }
        if let (Some(inbound), _) = end.socket().streams() {
            inbound.finish();
            // Waiters for a hang-up wait for either side's end.
            end.socket().waits().wake_all();
        }
    }

    /// Removes an end that exchanges no more segments.
    pub(super) fn over(&mut self, pair: &Pair, error: Option<Errno>) {
        if let Some(end) = self.remove(pair) {
            self.ended(&end, error);
        }
    }

    /// Updates the socket of an end that was removed.
    pub(super) fn ended(&mut self, end: &End, error: Option<Errno>) {
        if let Some(listener) = end.listener.as_ref().and_then(alloc::sync::Weak::upgrade) {
            listener.inner().end_embryo();
        }
        let (inbound, outbound) = {
            let mut inner = end.socket().inner();
            inner.error = inner.error.or(error);
            inner.is_ending = false;
            if inner.phase == Phase::Connecting {
                // The program may try again.
                inner.phase = Phase::Idle;
                inner.unreported = true;
                inner.remote = None;
                if !inner.bound {
                    inner.local = None;
                }
            } else {
                inner.phase = Phase::Ended;
            }
            inner.line = None;
            (inner.inbound.clone(), inner.outbound.clone())
        };
        for stream in [inbound, outbound].into_iter().flatten() {
            stream.break_off();
        }
        end.socket().waits().wake_all();
    }
}

/// Gives a socket the streams of its connection, whose segments are packets.
fn attach(connection: &Arc<Connection>) {
    let socket = &connection.socket;
    {
        let mut inner = socket.inner();
        inner.unreported = inner.phase == Phase::Connecting;
        inner.phase = Phase::Connected;
        inner.inbound = Some(connection.inbound.clone());
        inner.outbound = Some(connection.outbound.clone());
        inner.line = Some(connection.clone());
    }
    socket.waits().wake_all();
}

/// Connects two sockets by streams: a send on one joins the chain from which the other reads.
fn fuse(a: &Arc<Socket>, b: &Arc<Socket>) {
    let is_v6 = a.pair().is_some_and(|pair| pair.remote.is_ipv6());
    // Both directions are charged to the side that asked for the connection: a server neither
    // chooses who connects to it, nor who sends more than it reads or reads less than it sends.
    let asks = |socket: &Arc<Socket>| socket.inner().phase == Phase::Connecting;
    let payer = if asks(a) { a } else { b }.account();
    let stream = |from: &Arc<Socket>, to: &Arc<Socket>| {
        let sender = from.inner().options;
        let receiver = to.inner().options;
        let limit = sender.send_buffer as usize + receiver.receive_buffer as usize;
        let waits = (from.waits().clone(), to.waits().clone());
        let stream = Stream::new(
            waits.0,
            waits.1,
            limit,
            is_v6,
            Stock::new(payer.cloned(), Kind::Sockets),
        )
        .with_spare_frames();
        stream.set_low_water(receiver.low_water as usize);
        Arc::new(stream)
    };
    let (there, back) = (stream(a, b), stream(b, a));
    for (socket, inbound, outbound) in [(a, &back, &there), (b, &there, &back)] {
        let mut inner = socket.inner();
        inner.unreported = inner.phase == Phase::Connecting;
        inner.phase = Phase::Connected;
        inner.inbound = Some(inbound.clone());
        inner.outbound = Some(outbound.clone());
    }
    a.waits().wake_all();
}
