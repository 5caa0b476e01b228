//! TIME-WAIT: connections that are over, remembered so that their ports are not given out at once.

use alloc::collections::{BTreeMap, VecDeque};
use core::net::SocketAddr;

use super::wire::Pair;
use crate::ports::{Hold, Ports};

/// How long a connection is remembered: Linux's `TCP_TIMEWAIT_LEN`, in nanoseconds.
const REMEMBERED: u64 = 60_000_000_000;
/// After this time a new connection may have the same two addresses: no segment of the old one can come any more on a wire
/// inside one machine (Linux's `tcp_tw_reuse`), in nanoseconds.
const REUSABLE: u64 = 1_000_000_000;
/// How many are remembered; the oldest are forgotten first (Linux's `tcp_max_tw_buckets`, which grows with memory).
const MOST: usize = 16384;

/// Connections that are over, for a while.
#[derive(Default)]
pub struct Waiting {
    /// The hold on the local port, and when the connection ended.
    over: BTreeMap<Pair, (Option<Hold>, u64)>,
    /// In the order of their ends. A pair that was used again since has another time in `over`.
    order: VecDeque<(Pair, u64)>,
}

impl Waiting {
    /// A connection has ended at `now`.
    pub fn add(&mut self, pair: Pair, hold: Option<Hold>, now: u64, ports: &mut Ports) {
        if self.over.len() >= MOST {
            self.forget_first(ports);
        }
        if let Some((Some(old), _)) = self.over.insert(pair, (hold, now)) {
            ports.release(old);
        }
        self.order.push_back((pair, now));
    }

    /// Whether the two addresses can be used by a new connection that is begun at `now`.
    pub fn allows(&self, pair: &Pair, now: u64) -> bool {
        self.over
            .get(pair)
            .is_none_or(|(_, since)| now >= since + REUSABLE)
    }

    /// A new connection has these addresses.
    pub fn forget(&mut self, pair: &Pair, ports: &mut Ports) {
        if let Some((Some(hold), _)) = self.over.remove(pair) {
            ports.release(hold);
        }
    }

    fn forget_first(&mut self, ports: &mut Ports) {
        if let Some((pair, since)) = self.order.pop_front()
            && self.over.get(&pair).is_some_and(|(_, time)| *time == since)
        {
            self.forget(&pair, ports);
        }
    }

    /// Forgets what has been remembered for long enough; returns when the next one will have been.
    pub fn expire(&mut self, now: u64, ports: &mut Ports) -> Option<u64> {
        while let Some((_, since)) = self.order.front() {
            if now < since + REMEMBERED {
                break;
            }
            self.forget_first(ports);
        }
        self.next()
    }

    /// When the next one will be forgotten.
    pub fn next(&self) -> Option<u64> {
        self.order.front().map(|(_, since)| since + REMEMBERED)
    }

    /// The local and remote addresses of all, and the nanoseconds that each will still be remembered.
    pub fn list(&self, now: u64) -> impl Iterator<Item = (SocketAddr, SocketAddr, u64)> {
        let left = move |since: u64| (since + REMEMBERED).saturating_sub(now);
        let pairs = self.over.iter();
        pairs.map(move |(pair, (_, since))| (pair.local, pair.remote, left(*since)))
    }
}
