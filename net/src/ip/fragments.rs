//! Fragments of packets, until they are complete (RFC 791, RFC 8200 4.5, RFC 5722).

use alloc::collections::{BTreeMap, VecDeque};
use core::net::IpAddr;

use fbuf::Aggregate;
use nucleus::frame;

/// The longest packet.
const MOST_BYTES: usize = 65_535;
/// Fragments of one packet, and packets, that are kept. Small fragments hold whole frames, so
/// they count by number: in all at most 2 MiB.
const MOST_FRAGMENTS: usize = 48;
const MOST_PACKETS: usize = 64;
const MOST_SLICES: usize = 512;
/// Packets of one sender: a flood leaves room for others.
const MOST_OF_ONE: usize = 16;
/// The time until a packet must be complete, in nanoseconds: Linux's `ipfrag_time`.
const TIME: u64 = 30_000_000_000;

/// Which packet a fragment belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    pub from: IpAddr,
    pub to: IpAddr,
    pub protocol: u8,
    pub ident: u32,
}

/// A part of a packet's payload.
#[derive(Debug)]
pub(super) struct Fragment {
    pub offset: usize,
    pub is_last: bool,
    pub data: Aggregate,
}

#[derive(Debug)]
struct Partial {
    since: u64,
    /// In the order of their offsets, without overlaps.
    fragments: VecDeque<Fragment>,
    /// The length, when the last fragment is there.
    len: Option<usize>,
    /// Overlapping fragments came: all that belong to it are dropped (RFC 5722).
    is_spoiled: bool,
    slices: usize,
}

/// All packets that are incomplete.
#[derive(Default, Debug)]
pub(super) struct Fragments {
    packets: BTreeMap<Key, Partial>,
    slices: usize,
}

impl Fragments {
    /// Adds a fragment at `now`. Returns the payload if that completes it.
    pub fn add(&mut self, key: Key, fragment: Fragment, now: u64) -> Option<Aggregate> {
        self.expire(now);
        let end = fragment.offset + fragment.data.len();
        let is_whole = fragment.is_last || fragment.data.len().is_multiple_of(8);
        if end > MOST_BYTES || !is_whole || fragment.data.is_empty() {
            return None;
        }
        let count = fragment.data.frame_count();
        if count > MOST_FRAGMENTS {
            return None;
        }
        if !self.packets.contains_key(&key) && !self.admit(&key) {
            return None;
        }
        while self.slices + count > MOST_SLICES {
            // The packet itself may be the oldest.
            self.drop_oldest();
        }
        let partial = self.packets.entry(key).or_insert_with(|| Partial {
            since: now,
            fragments: VecDeque::new(),
            len: None,
            is_spoiled: false,
            slices: 0,
        });
        if partial.is_spoiled {
            return None;
        }
        match partial.insert(fragment) {
            Inserted::Added => {
                partial.slices += count;
                self.slices += count;
            }
            Inserted::Known => return None,
            Inserted::Wrong => {
                self.slices -= partial.slices;
                partial.slices = 0;
                partial.fragments.clear();
                partial.is_spoiled = true;
                return None;
            }
        }
        if !partial.is_complete() {
            return None;
        }
        let partial = self.packets.remove(&key)?;
        self.slices -= partial.slices;
        let mut whole = Aggregate::new();
        for mut fragment in partial.fragments {
            whole.join(&mut fragment.data).ok()?;
        }
        Some(whole)
    }

    /// Makes room for another packet of the sender; false if it has too many, or without memory.
    fn admit(&mut self, key: &Key) -> bool {
        let own = self.packets.keys().filter(|other| other.from == key.from);
        if own.count() >= MOST_OF_ONE || frame::is_scarce() {
            return false;
        }
        if self.packets.len() >= MOST_PACKETS {
            self.drop_oldest();
        }
        true
    }

    fn drop_oldest(&mut self) {
        let oldest = self.packets.iter().min_by_key(|(_, partial)| partial.since);
        if let Some((key, partial)) = oldest {
            self.slices -= partial.slices;
            let key = *key;
            self.packets.remove(&key);
        } else {
            self.slices = 0;
        }
    }

    /// Drops packets whose time is over.
    pub fn expire(&mut self, now: u64) {
        let slices = &mut self.slices;
        self.packets.retain(|_, partial| {
            let stays = now < partial.since + TIME;
            if !stays {
                *slices -= partial.slices;
            }
            stays
        });
    }

    /// Returns when the next one's time is over.
    pub fn next(&self) -> Option<u64> {
        let packets = self.packets.values();
        packets.map(|partial| partial.since + TIME).min()
    }

    /// Returns the number of packets.
    pub fn count(&self) -> usize {
        self.packets.len()
    }
}

enum Inserted {
    Added,
    /// A copy of one that is there.
    Known,
    /// It overlaps others, or contradicts them.
    Wrong,
}

impl Partial {
    fn insert(&mut self, fragment: Fragment) -> Inserted {
        let (start, end) = (fragment.offset, fragment.offset + fragment.data.len());
        let at = self
            .fragments
            .partition_point(|other| other.offset + other.data.len() <= start);
        if let Some(other) = self.fragments.get(at)
            && other.offset < end
        {
            let is_copy = other.offset == start && other.data.len() == fragment.data.len();
            return if is_copy {
                Inserted::Known
            } else {
                Inserted::Wrong
            };
        }
        let contradicts = match self.len {
            Some(len) => end > len || fragment.is_last && end != len,
            None => fragment.is_last && at < self.fragments.len(),
        };
        if contradicts || self.fragments.len() >= MOST_FRAGMENTS {
            return Inserted::Wrong;
        }
        if self.fragments.try_reserve(1).is_err() {
            return Inserted::Known;
        }
        if fragment.is_last {
            self.len = Some(end);
        }
        self.fragments.insert(at, fragment);
        Inserted::Added
    }

    fn is_complete(&self) -> bool {
        let there: usize = self.fragments.iter().map(|part| part.data.len()).sum();
        self.len == Some(there)
    }
}
