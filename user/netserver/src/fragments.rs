//! Fragmentation and reassembly of IPv4 datagrams by editing aggregates: no byte of a body is
//! copied (`fbufs.txt` 2.1.1).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use libfbuf::{Aggregate, Contents, Path};

use crate::wire::{IPV4, Ipv4, LARGE_UNIT};

/// Most bytes of a datagram that IPv4 can carry behind one header.
pub const MOST: u64 = 65_535 - IPV4 as u64;

/// Most bytes of a large datagram: a message of 1 MiB and its header, with room.
pub const MOST_LARGE: u64 = (1 << 20) + 65_536;

/// Most fragments that are held of one datagram: 1 MiB in PDUs of 1500 bytes, with room.
const MOST_PIECES: usize = 1024;

/// Most datagrams that are incomplete at once, in all and of one sender; the oldest makes room.
const MOST_PARTIAL: usize = 256;
const MOST_OF_SENDER: usize = 64;

/// How long an incomplete datagram is held (RFC 1122 3.3.2 wants 60 to 120 s, which a fast network
/// fills with losses; Linux takes 30).
const HELD: Duration = Duration::from_secs(30);

/// Cuts a datagram into packets of at most `pdu` bytes with headers in fbufs of `path`, and gives
/// each to `each`. `header` tells what they have in common.
///
/// # Errors
/// Those of making nodes and headers, and of `each`.
pub fn cut(
    path: &Path,
    header: Ipv4,
    datagram: &Aggregate,
    pdu: usize,
    mut each: impl FnMut(Ipv4, Aggregate) -> io::Result<()>,
) -> io::Result<()> {
    let unit = match header.is_large {
        true => LARGE_UNIT,
        false => 8,
    };
    let len = datagram.len();
    // The total length has 16 bits.
    let room = pdu.min(65_535) - IPV4;
    let step = match len <= room as u64 {
        true => len.max(1),
        false => (room as u64 / unit * unit).max(unit),
    };
    let mut at = 0;
    loop {
        let end = len.min(at + step);
        let part = match (at, end) {
            (0, end) if end == len => datagram.clone(),
            _ => datagram.slice(at..end)?,
        };
        let header = Ipv4 {
            offset: at,
            has_more: end < len,
            payload: (end - at) as usize,
            ..header
        };
        let bytes = header.emit();
        each(header, path.copy(&bytes)?.join(&part)?)?;
        at = end;
        if at == len {
            return Ok(());
        }
    }
}

/// What fragments of one datagram have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    from: Ipv4Addr,
    to: Ipv4Addr,
    protocol: u8,
    id: u16,
    is_large: bool,
}

impl Key {
    /// Returns the key of a fragment.
    pub fn of(header: &Ipv4) -> Key {
        Key {
            from: header.from,
            to: header.to,
            protocol: header.protocol,
            id: header.id,
            is_large: header.is_large,
        }
    }
}

/// An incomplete datagram.
struct Partial {
    /// By offset; they do not overlap.
    pieces: BTreeMap<u64, Aggregate>,
    /// Bytes of all pieces.
    held: u64,
    /// The datagram's length, once its last fragment came.
    len: Option<u64>,
    since: Instant,
    number: u64,
}

/// Counts of what did not become a datagram.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Lost {
    /// Datagrams given up because of fragments that contradict each other.
    pub conflicts: u64,
    /// Datagrams given up because of time or room.
    pub timed_out: u64,
}

/// Datagrams that are incomplete.
#[derive(Default)]
pub struct Reassembly {
    partial: HashMap<Key, Partial>,
    of_sender: HashMap<Ipv4Addr, usize>,
    count: u64,
    lost: Lost,
}

impl Reassembly {
    /// Takes a fragment's payload; returns the datagram if it completes one. Fragments that
    /// overlap others, other than exact repetitions, end their datagram (as RFC 5722 wants for
    /// IPv6), and so do those that end differently.
    ///
    /// # Errors
    /// Those of joining: the datagram is lost.
    pub fn add(
        &mut self,
        header: &Ipv4,
        payload: &Aggregate,
        now: Instant,
    ) -> io::Result<Option<Aggregate>> {
        if header.offset == 0 && !header.has_more {
            return Ok(Some(payload.clone()));
        }
        let key = Key::of(header);
        let (unit, most) = match header.is_large {
            true => (LARGE_UNIT, MOST_LARGE),
            false => (8, MOST),
        };
        let (start, end) = (header.offset, header.offset + payload.len());
        let is_bad = payload.is_empty() || end > most || (header.has_more && end % unit != 0);
        if is_bad {
            return Ok(None);
        }
        if !self.partial.contains_key(&key) {
            self.start(key, now);
        }
        let Some(partial) = self.partial.get_mut(&key) else {
            return Ok(None);
        };
        match partial.add(start, end, header.has_more, payload) {
            Added::Repeated | Added::Held => Ok(None),
            Added::Conflict => {
                self.lost.conflicts += 1;
                self.remove(&key);
                Ok(None)
            }
            Added::Complete => {
                let partial = self.remove(&key);
                let pieces = partial.map(|it| it.pieces).unwrap_or_default();
                join(pieces.into_values().collect()).map(Some)
            }
        }
    }

    /// Returns whether fragments of this datagram are held.
    pub fn has(&self, key: &Key) -> bool {
        self.partial.contains_key(key)
    }

    /// Returns the first fragment's payload of an incomplete datagram.
    pub fn first(&self, key: &Key) -> Option<&Aggregate> {
        self.partial.get(key)?.pieces.get(&0)
    }

    /// Gives up datagrams that are too old.
    pub fn expire(&mut self, now: Instant) {
        let old: Vec<Key> = self
            .partial
            .iter()
            .filter(|(_, it)| now.saturating_duration_since(it.since) >= HELD)
            .map(|(key, _)| *key)
            .collect();
        for key in old {
            self.lost.timed_out += 1;
            self.remove(&key);
        }
    }

    /// Returns whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    /// Returns the counts of what was lost.
    pub fn lost(&self) -> Lost {
        self.lost
    }

    fn start(&mut self, key: Key, now: Instant) {
        let of_sender = self.of_sender.get(&key.from).copied().unwrap_or(0);
        if of_sender >= MOST_OF_SENDER {
            self.evict(|it| it.from == key.from);
        } else if self.partial.len() >= MOST_PARTIAL {
            self.evict(|_| true);
        }
        self.count += 1;
        let partial = Partial {
            pieces: BTreeMap::new(),
            held: 0,
            len: None,
            since: now,
            number: self.count,
        };
        self.partial.insert(key, partial);
        *self.of_sender.entry(key.from).or_default() += 1;
    }

    /// Gives up the oldest of some.
    fn evict(&mut self, may: impl Fn(&Key) -> bool) {
        let candidates = self.partial.iter().filter(|(key, _)| may(key));
        let oldest = candidates.min_by_key(|(_, it)| it.number);
        if let Some(key) = oldest.map(|(key, _)| *key) {
            self.lost.timed_out += 1;
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Partial> {
        let partial = self.partial.remove(key)?;
        if let Some(count) = self.of_sender.get_mut(&key.from) {
            *count -= 1;
            if *count == 0 {
                self.of_sender.remove(&key.from);
            }
        }
        Some(partial)
    }
}

enum Added {
    Held,
    Repeated,
    Complete,
    Conflict,
}

impl Partial {
    fn add(&mut self, start: u64, end: u64, has_more: bool, payload: &Aggregate) -> Added {
        let is_end_wrong = match (self.len, has_more) {
            (Some(len), true) => end > len,
            (Some(len), false) => end != len,
            (None, true) => false,
            (None, false) => self.end() > end,
        };
        if is_end_wrong {
            return Added::Conflict;
        }
        let before = self.pieces.range(..end).next_back();
        if let Some((at, piece)) = before {
            let is_same = (*at, *at + piece.len()) == (start, end);
            if is_same {
                return Added::Repeated;
            }
            if *at + piece.len() > start {
                return Added::Conflict;
            }
        }
        if self.pieces.len() >= MOST_PIECES {
            return Added::Conflict;
        }
        if !has_more {
            self.len = Some(end);
        }
        self.held += end - start;
        self.pieces.insert(start, payload.clone());
        match self.len == Some(self.held) {
            true => Added::Complete,
            false => Added::Held,
        }
    }

    fn end(&self) -> u64 {
        let last = self.pieces.last_key_value();
        last.map_or(0, |(at, piece)| at + piece.len())
    }
}

/// Joins parts by a tree of little depth.
fn join(mut parts: Vec<Aggregate>) -> io::Result<Aggregate> {
    while parts.len() > 1 {
        let mut above = Vec::with_capacity(parts.len().div_ceil(2));
        for pair in parts.chunks(2) {
            above.push(match pair {
                [a, b] => a.join(b)?,
                _ => pair[0].clone(),
            });
        }
        parts = above;
    }
    parts.pop().ok_or_else(|| io::ErrorKind::InvalidData.into())
}
