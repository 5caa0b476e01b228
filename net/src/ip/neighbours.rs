//! The neighbours of an interface: which address of the link an IP address has (RFC 826, and the
//! states of RFC 4861 for both versions).

use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use core::net::IpAddr;

use abi::Result;
use nucleus::frame;

use crate::{link::Mac, packet::Packet};

/// The most neighbours that are remembered. Strangers can fill the table; then those go first
/// that were not used for longest.
const MOST: usize = 256;
/// Packets that wait for one neighbour's address.
const MOST_WAITING: usize = 8;
/// The time for which an address holds without confirmation, in nanoseconds.
const REACHABLE: u64 = 30_000_000_000;
/// The time between two questions, and their number.
const RETRY: u64 = 1_000_000_000;
const RETRIES: u32 = 3;

/// A neighbour, for lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// Its address.
    pub ip: IpAddr,
    /// Its address on the link, if that is known.
    pub mac: Option<Mac>,
    /// That was confirmed not long ago.
    pub is_fresh: bool,
    /// It is being asked for its address.
    pub is_asked: bool,
    /// A program has fixed the address.
    pub is_fixed: bool,
    /// Nanoseconds since it was confirmed, and since it was used.
    pub confirmed: u64,
    /// See `confirmed`.
    pub used: u64,
}

impl Neighbour {
    /// One that is forgotten.
    pub fn gone(ip: IpAddr) -> Neighbour {
        Neighbour {
            ip,
            mac: None,
            is_fresh: false,
            is_asked: false,
            is_fixed: false,
            confirmed: 0,
            used: 0,
        }
    }
}

#[derive(Debug)]
struct Entry {
    mac: Option<Mac>,
    /// When the address was last confirmed.
    confirmed_at: u64,
    used_at: u64,
    /// When to ask next, if that was begun, and how often it was asked.
    asks_at: Option<u64>,
    asked: u32,
    /// A program has fixed the address.
    is_fixed: bool,
    waiting: VecDeque<Packet>,
}

impl Entry {
    fn is_old(&self, now: u64) -> bool {
        self.mac.is_none() || !self.is_fixed && now >= self.confirmed_at + REACHABLE
    }

    fn describe(&self, ip: IpAddr, now: u64) -> Neighbour {
        Neighbour {
            ip,
            mac: self.mac,
            is_fresh: !self.is_old(now),
            is_asked: self.asks_at.is_some(),
            is_fixed: self.is_fixed,
            confirmed: now.saturating_sub(self.confirmed_at),
            used: now.saturating_sub(self.used_at),
        }
    }
}

/// An ARP request or neighbour solicitation to send: for this address, to one machine if its own is
/// known, else to all.
pub(super) type Question = (IpAddr, Option<Mac>);

/// A neighbour that did not answer, and the packets that have waited for it.
pub(super) type Gone = (IpAddr, VecDeque<Packet>);

/// What to do with a packet to a neighbour.
pub(super) enum Answer {
    /// Send it to this address, and perhaps ask whether that still holds.
    Send(Mac, Packet, Option<Question>),
    /// It waits. Perhaps ask.
    Waits(Option<Question>),
}

/// The table of one interface.
#[derive(Default, Debug)]
pub(super) struct Neighbours {
    table: BTreeMap<IpAddr, Entry>,
}

impl Neighbours {
    /// Returns the address of a neighbour that holds for a packet at `now`, without a question.
    pub fn known(&mut self, to: IpAddr, now: u64) -> Option<Mac> {
        let entry = self.table.get_mut(&to)?;
        let mac = entry.mac.filter(|_| !entry.is_old(now))?;
        entry.used_at = now;
        Some(mac)
    }

    /// Decides about a packet to `to` at `now`.
    pub fn resolve(&mut self, to: IpAddr, packet: Packet, now: u64) -> Answer {
        if !self.table.contains_key(&to) {
            self.add(to, now);
        }
        let Some(entry) = self.table.get_mut(&to) else {
            return Answer::Waits(None);
        };
        entry.used_at = now;
        let is_old = entry.is_old(now);
        let question = (is_old && entry.asks_at.is_none()).then(|| {
            entry.asks_at = Some(now + RETRY);
            entry.asked = 1;
            (to, entry.mac)
        });
        match entry.mac {
            Some(mac) => Answer::Send(mac, packet, question),
            None => {
                if entry.waiting.len() >= MOST_WAITING {
                    entry.waiting.pop_front();
                }
                if entry.waiting.try_reserve(1).is_ok() {
                    entry.waiting.push_back(packet);
                }
                Answer::Waits(question)
            }
        }
    }

    /// Adds an entry without an address; makes room for it if necessary. Without memory there is
    /// none.
    fn add(&mut self, to: IpAddr, now: u64) {
        if frame::is_scarce() {
            return;
        }
        if self.table.len() >= MOST {
            let oldest = self.table.iter().filter(|(_, entry)| !entry.is_fixed);
            let oldest = oldest.min_by_key(|(_, entry)| entry.used_at);
            let oldest = oldest.map(|(ip, _)| *ip);
            oldest.map(|ip| self.table.remove(&ip));
        }
        self.table.insert(
            to,
            Entry {
                mac: None,
                confirmed_at: 0,
                used_at: now,
                asks_at: None,
                asked: 0,
                is_fixed: false,
                waiting: VecDeque::new(),
            },
        );
    }

    /// Notes the address of a neighbour. An unknown one is added only if it `asks` for us, and
    /// counts as not used. Returns the packets that have waited for it.
    pub fn learn(&mut self, ip: IpAddr, mac: Mac, asks: bool, now: u64) -> VecDeque<Packet> {
        if mac.is_for_many() || ip.is_multicast() || ip.is_unspecified() {
            return VecDeque::new();
        }
        if asks && !self.table.contains_key(&ip) {
            self.add(ip, 0);
        }
        let Some(entry) = self.table.get_mut(&ip).filter(|entry| !entry.is_fixed) else {
            return VecDeque::new();
        };
        entry.mac = Some(mac);
        entry.confirmed_at = now;
        entry.asks_at = None;
        entry.asked = 0;
        core::mem::take(&mut entry.waiting)
    }

    /// Repeats the questions that are due; entries without an answer are dropped. Returns the
    /// questions, the neighbours that were dropped with what has waited for them, and when the next
    /// question is due.
    pub fn expire(&mut self, now: u64) -> (Vec<Question>, Vec<Gone>, Option<u64>) {
        let (mut questions, mut gone) = (Vec::new(), Vec::new());
        self.table.retain(|ip, entry| {
            let Some(at) = entry.asks_at.filter(|at| *at <= now) else {
                return true;
            };
            if entry.asked >= RETRIES {
                if gone.try_reserve(1).is_ok() {
                    gone.push((*ip, core::mem::take(&mut entry.waiting)));
                }
                return false;
            }
            entry.asked += 1;
            entry.asks_at = Some(at.max(now) + RETRY);
            if questions.try_reserve(1).is_ok() {
                // The last question goes to all: the address may have moved.
                let mac = entry.mac.filter(|_| entry.asked < RETRIES);
                questions.push((*ip, mac));
            }
            true
        });
        let next = self.table.values().filter_map(|entry| entry.asks_at).min();
        (questions, gone, next)
    }

    /// Lists the entries at `now`.
    pub fn list(&self, now: u64) -> Result<Vec<Neighbour>> {
        let mut list = nucleus::try_vec(self.table.len())?;
        let all = self.table.iter();
        list.extend(all.map(|(ip, entry)| entry.describe(*ip, now)));
        Ok(list)
    }

    /// Returns what is known of one at `now`.
    pub fn get(&self, ip: IpAddr, now: u64) -> Option<Neighbour> {
        Some(self.table.get(&ip)?.describe(ip, now))
    }

    /// Fixes the address that one has, or frees it. Half of the table may be fixed.
    pub fn fix(&mut self, ip: IpAddr, is_fixed: bool) {
        let fixed = self.table.values().filter(|entry| entry.is_fixed).count();
        if let Some(entry) = self.table.get_mut(&ip) {
            entry.is_fixed = is_fixed && fixed < MOST / 2;
        }
    }

    /// Forgets one; false if it is not there.
    pub fn remove(&mut self, ip: IpAddr) -> bool {
        self.table.remove(&ip).is_some()
    }

    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        self.table.len()
    }
}
