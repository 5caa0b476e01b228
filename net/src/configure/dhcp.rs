//! A client of DHCP (RFC 2131 4.4): what to send, and what follows from an answer.
//!
//! ```text
//!      ┌────── an address is refused, another machine has it, or its time is over ──────┐
//!      ▼                                                                                │
//! ▶ Discovering ─ offer ─▶ Requesting ─ ack ─▶ Probing ─▶ Bound ─ T1 ─▶ Renewing ─ T2 ─▶ Rebinding
//!                                                           ▲              │              │
//!                                                           └──── ack ─────┴───── ack ────┘
//! ```

use core::net::Ipv4Addr;

use super::format::{Kind, Query, Reply};
use crate::link::Mac;

const SECOND: u64 = 1_000_000_000;
/// The longest time between two questions for an address, in seconds.
const SLOWEST: u64 = 64;
/// Questions for an offered address before it is given up.
const MOST_REQUESTS: u32 = 4;
/// Questions whether another machine has an address, and the time between them, in nanoseconds.
/// RFC 5227 has three and up to seven seconds, for links of its time; every start would wait.
const PROBES: u32 = 2;
const PROBE: u64 = SECOND / 10;
/// The time after which a server is asked again for another address, in seconds (RFC 2131 3.1).
const DECLINED: u64 = 10;
/// The least time between two questions for more time, in seconds (RFC 2131 4.4.5).
const LEAST_RENEWAL: u64 = 60;
/// A lease is for at least so long, whatever a server says: renewals are no flood.
const LEAST_LEASE: u64 = 60;
/// A lease of this many seconds is for ever.
const FOR_EVER: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Discovering,
    Requesting,
    Probing,
    Bound,
    Renewing,
    Rebinding,
}

/// An address for some time.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// What the server has said.
    pub reply: Reply,
    /// When the server is asked for more time, when others are, and when the time is over, in
    /// nanoseconds since boot; `None` for a lease for ever.
    times: Option<[u64; 3]>,
}

impl Lease {
    fn new(reply: Reply, asked_at: u64) -> Lease {
        let times = (reply.lease != FOR_EVER).then(|| {
            let len = u64::from(reply.lease).max(LEAST_LEASE);
            // Times of 0 would ask all the time.
            let least = LEAST_LEASE / 2;
            let rebind = reply.rebind.map_or(len * 7 / 8, u64::from);
            let rebind = rebind.clamp(least, len);
            let renew = reply.renew.map_or(len / 2, u64::from).clamp(least, rebind);
            [renew, rebind, len].map(|seconds| asked_at + seconds * SECOND)
        });
        Lease { reply, times }
    }

    /// Returns when the time is over, in nanoseconds since boot.
    pub fn ends_at(&self) -> Option<u64> {
        self.times.map(|[.., end]| end)
    }
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// What it says.
    pub query: Query,
    /// The server, and this machine's own address; `None` for all servers.
    pub to: Option<(Ipv4Addr, Ipv4Addr)>,
}

/// What has changed.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A server has given an address, which may be used when no other machine has it.
    Given(Lease),
    /// There is an address, or it is there for longer.
    Leased(Lease),
    /// The address must not be used any more.
    Lost(Lease),
}

/// A client for one interface.
#[derive(Debug)]
pub struct Client {
    mac: Mac,
    /// The number of the questions.
    number: u32,
    phase: Phase,
    /// When to do something next.
    due: Option<u64>,
    /// How often it was asked in this phase.
    asked: u32,
    asked_at: u64,
    offer: Option<Reply>,
    /// An address that is being probed.
    given: Option<Lease>,
    lease: Option<Lease>,
}

impl Client {
    /// A client that begins at once; `number` is random.
    pub fn new(mac: Mac, number: u32, now: u64) -> Client {
        Client {
            mac,
            number,
            phase: Phase::Discovering,
            due: Some(now),
            asked: 0,
            asked_at: now,
            offer: None,
            given: None,
            lease: None,
        }
    }

    /// Returns the address of its interface.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Returns the number of the questions.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the lease.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Returns the address that is being probed.
    pub fn given(&self) -> Option<Ipv4Addr> {
        self.given.map(|lease| lease.reply.ip)
    }

    /// Another machine has the address that is being probed: returns what the server is told.
    pub fn decline(&mut self, now: u64) -> Option<Message> {
        let reply = self.given.take()?.reply;
        let query = Query {
            kind: Kind::Decline,
            number: self.number,
            mac: self.mac,
            own: None,
            wanted: Some(reply.ip),
            server: Some(reply.server),
        };
        self.enter(Phase::Discovering, now);
        self.due = Some(now + DECLINED * SECOND);
        Some(Message { query, to: None })
    }

    /// Returns when [`run`](Client::run) is to be called, in nanoseconds since boot.
    pub fn due(&self) -> Option<u64> {
        self.due
    }

    /// The link was gone and is there again: perhaps it is another network.
    pub fn restart(&mut self, now: u64) {
        match self.lease {
            // Servers are asked whether the address still holds (RFC 2131 3.7).
            Some(_) => self.enter(Phase::Rebinding, now),
            None => self.enter(Phase::Discovering, now),
        }
    }

    fn enter(&mut self, phase: Phase, now: u64) {
        self.phase = phase;
        self.asked = 0;
        self.due = Some(now);
        self.given = None;
        self.number = self.number.wrapping_add(1);
    }

    /// Does what is due: returns a message to send, and whether an address was lost.
    pub fn run(&mut self, now: u64) -> (Option<Message>, Option<Event>) {
        if self.due.is_none_or(|due| now < due) {
            return (None, None);
        }
        let mut event = None;
        if let Some(lease) = self.lease {
            let [renew, rebind, end] = lease.times.unwrap_or([u64::MAX; 3]);
            if now >= end {
                self.lease = None;
                event = Some(Event::Lost(lease));
                self.enter(Phase::Discovering, now);
            } else if now >= rebind && self.phase != Phase::Rebinding {
                self.enter(Phase::Rebinding, now);
            } else if now >= renew && self.phase == Phase::Bound {
                self.enter(Phase::Renewing, now);
            }
        }
        if let Some(lease) = self.given {
            if self.asked < PROBES {
                self.asked += 1;
                self.due = Some(now + PROBE);
                return (None, Some(Event::Given(lease)));
            }
            self.given = None;
            self.lease = Some(lease);
            self.phase = Phase::Bound;
            self.due = lease.times.map(|[renew, ..]| renew);
            return (None, Some(Event::Leased(lease)));
        }
        if self.phase == Phase::Requesting && self.asked >= MOST_REQUESTS {
            self.enter(Phase::Discovering, now);
        }
        let query = Query {
            kind: Kind::Request,
            number: self.number,
            mac: self.mac,
            own: None,
            wanted: None,
            server: None,
        };
        let own = self.lease.map(|lease| lease.reply.ip);
        let (query, to) = match (self.phase, self.offer, self.lease) {
            (Phase::Requesting, Some(offer), _) => {
                let query = Query {
                    wanted: Some(offer.ip),
                    server: Some(offer.server),
                    ..query
                };
                (query, None)
            }
            (Phase::Renewing, _, Some(lease)) => {
                let to = Some((lease.reply.server, lease.reply.ip));
                (Query { own, ..query }, to)
            }
            (Phase::Rebinding, _, Some(_)) => (Query { own, ..query }, None),
            (Phase::Bound, ..) => {
                self.due = self.lease.and_then(|lease| lease.times.map(|[t1, ..]| t1));
                return (None, event);
            }
            _ => {
                let query = Query {
                    kind: Kind::Discover,
                    ..query
                };
                (query, None)
            }
        };
        self.asked += 1;
        self.asked_at = now;
        self.due = Some(self.next_try(now));
        (Some(Message { query, to }), event)
    }

    /// Returns when to ask again.
    fn next_try(&self, now: u64) -> u64 {
        let until = match (self.phase, self.lease.and_then(|lease| lease.times)) {
            (Phase::Renewing, Some([_, rebind, _])) => rebind,
            // A restart asks soon, since the network may be another one.
            (Phase::Rebinding, Some([.., end])) if self.asked > 3 => end,
            _ => {
                let wait = 1 << (self.asked.saturating_sub(1)).min(6);
                return now + SLOWEST.min(wait) * SECOND;
            }
        };
        let half = until.saturating_sub(now) / 2;
        (now + half.max(LEAST_RENEWAL * SECOND)).min(until)
    }

    /// Takes an answer to the questions with this client's number.
    pub fn take(&mut self, reply: Reply, now: u64) -> Option<Event> {
        match (self.phase, reply.kind) {
            (Phase::Discovering, Kind::Offer) => {
                self.offer = Some(reply);
                // The same number: it is one conversation.
                self.phase = Phase::Requesting;
                self.asked = 0;
                self.due = Some(now);
                None
            }
            (Phase::Requesting | Phase::Renewing | Phase::Rebinding, Kind::Ack) => {
                let is_chosen = self.phase != Phase::Requesting
                    || self
                        .offer
                        .is_some_and(|it| it.server == reply.server && it.ip == reply.ip);
                if !is_chosen {
                    return None;
                }
                let lease = Lease::new(reply, self.asked_at);
                self.offer = None;
                if self.phase == Phase::Requesting {
                    self.phase = Phase::Probing;
                    self.given = Some(lease);
                    self.asked = 0;
                    self.due = Some(now);
                    return None;
                }
                self.phase = Phase::Bound;
                self.due = lease.times.map(|[renew, ..]| renew);
                let old = self.lease.replace(lease);
                if let Some(old) = old.filter(|old| old.reply.ip != reply.ip) {
                    // A server that gives another address is asked anew.
                    self.lease = None;
                    self.enter(Phase::Discovering, now);
                    return Some(Event::Lost(old));
                }
                Some(Event::Leased(lease))
            }
            (Phase::Requesting | Phase::Renewing | Phase::Rebinding, Kind::Nak) => {
                self.offer = None;
                let old = self.lease.take();
                self.enter(Phase::Discovering, now);
                // Not at once: a server that refuses and offers in turn is no reason for a flood.
                self.due = Some(now + SECOND);
                old.map(Event::Lost)
            }
            _ => None,
        }
    }
}
