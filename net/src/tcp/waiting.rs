//! TIME-WAIT: connections that are over, remembered so that their ports are not given out at once.

use alloc::collections::VecDeque;
use core::net::SocketAddr;

use super::{
    Pair,
    block::Remains,
    pair_table::{HasPair, PairTable},
    segment::{Flags, Options, Segment, Seq},
};
use crate::ports::{Hold, Ports};

/// Time that a connection is remembered: Linux's `TCP_TIMEWAIT_LEN`, in nanoseconds.
const REMEMBERED: u64 = 60_000_000_000;
/// Time after which a new connection may reuse both addresses, in nanoseconds (Linux's
/// `tcp_tw_reuse`): on a wire inside one machine no old segment can still arrive.
const REUSABLE: u64 = 1_000_000_000;
/// The most that are remembered; then the oldest is forgotten (Linux's `tcp_max_tw_buckets`, which
/// grows with memory).
const MOST: usize = 16384;

/// A connection that is over.
struct Over {
    pair: Pair,
    hold: Option<Hold>,
    since: u64,
    remains: Remains,
    /// Its segments were packets, which may still arrive.
    has_packets: bool,
}

impl HasPair for Over {
    fn pair(&self) -> &Pair {
        &self.pair
    }
}

/// What becomes of a segment for a connection that is over.
pub enum Late {
    Ignored,
    Answered(Segment),
    /// It asks for a new connection, which may begin.
    Anew,
}

/// The connections in TIME-WAIT.
pub struct Waiting {
    /// The hold on the local port, and the time of the end.
    over: PairTable<Over>,
    /// In the order of their ends. A pair that was used again since has another time in `over`.
    order: VecDeque<(Pair, u64)>,
}

impl Waiting {
    /// Makes an empty set.
    pub fn new() -> Waiting {
        Waiting {
            over: PairTable::new(),
            order: VecDeque::new(),
        }
    }

    /// Adds a connection that has ended at `now`. Without memory it is forgotten at once.
    pub fn add(
        &mut self,
        pair: Pair,
        hold: Option<Hold>,
        (remains, has_packets): (Remains, bool),
        now: u64,
        ports: &mut Ports,
    ) {
        // A pair that is used again and again has several places in the order.
        while self.over.len() >= MOST || self.order.len() >= 2 * MOST {
            self.forget_first(ports);
        }
        if self.over.reserve().is_err() || self.order.try_reserve(1).is_err() {
            if let Some(hold) = hold {
                ports.release(hold);
            }
            return;
        }
        let over = Over {
            pair,
            hold,
            since: now,
            remains,
            has_packets,
        };
        if let Some(Over {
            hold: Some(old), ..
        }) = self.over.insert(over)
        {
            ports.release(old);
        }
        self.order.push_back((pair, now));
    }

    /// Tells whether a new connection that begins at `now` may have the two addresses.
    pub fn allows(&self, pair: &Pair, now: u64) -> bool {
        self.over
            .get(pair)
            .is_none_or(|over| now >= over.since + REUSABLE)
    }

    /// Decides about a segment at `now` for a connection that is over; `None` if there is none.
    pub fn late(&mut self, pair: &Pair, segment: &Segment, now: u64) -> Option<Late> {
        let Over {
            remains,
            has_packets,
            ..
        } = self.over.get(pair)?;
        if !has_packets {
            return None;
        }
        // A reset does not end TIME-WAIT (RFC 1337).
        if segment.is(Flags::RST) {
            return Some(Late::Ignored);
        }
        if segment.opens() {
            let stamp = segment.options.stamps.map(|(stamp, _)| stamp);
            let is_newer = match (stamp, remains.peer_clock) {
                (Some(stamp), Some(last)) => Seq(stamp) > Seq(last),
                _ => segment.seq > remains.due,
            };
            if is_newer {
                return Some(Late::Anew);
            }
        }
        if segment.len() == 0 {
            return Some(Late::Ignored);
        }
        let clock = ((now / 1_000_000) as u32).wrapping_add(remains.clock);
        Some(Late::Answered(Segment {
            seq: remains.next,
            ack: remains.due,
            flags: Flags::ACK,
            options: Options {
                stamps: remains.peer_clock.map(|theirs| (clock, theirs)),
                ..Options::default()
            },
            ..Segment::default()
        }))
    }

    /// Forgets a connection, because a new one has its addresses.
    pub fn forget(&mut self, pair: &Pair, ports: &mut Ports) {
        if let Some(Over {
            hold: Some(hold), ..
        }) = self.over.remove(pair)
        {
            ports.release(hold);
        }
    }

    fn forget_first(&mut self, ports: &mut Ports) {
        if let Some((pair, since)) = self.order.pop_front()
            && self.over.get(&pair).is_some_and(|over| over.since == since)
        {
            self.forget(&pair, ports);
        }
    }

    /// Forgets connections whose time is over; returns when the next one's will be.
    pub fn expire(&mut self, now: u64, ports: &mut Ports) -> Option<u64> {
        while let Some((_, since)) = self.order.front() {
            if now < since + REMEMBERED {
                break;
            }
            self.forget_first(ports);
        }
        self.next()
    }

    /// Returns when the next one will be forgotten.
    pub fn next(&self) -> Option<u64> {
        self.order.front().map(|(_, since)| since + REMEMBERED)
    }

    /// Lists the local and remote addresses, and the nanoseconds that are left of TIME-WAIT.
    pub fn list(&self, now: u64) -> impl Iterator<Item = (SocketAddr, SocketAddr, u64)> {
        let left = move |since: u64| (since + REMEMBERED).saturating_sub(now);
        let over = self.over.iter();
        over.map(move |it| (it.pair.local, it.pair.remote, left(it.since)))
    }
}
