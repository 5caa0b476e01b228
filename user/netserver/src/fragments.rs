//! Fragmentation and reassembly of IPv4 datagrams by editing aggregates: no byte of a body is
//! copied (`fbufs.txt` 2.1.1).

use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use libfbuf::{Aggregate, Contents, Path};

use crate::wire::{IPV4, Ipv4, LARGE_UNIT};

/// Most bytes of a datagram that IPv4 can carry behind one header.
pub const MOST: u64 = 65_535 - IPV4 as u64;

/// Most bytes of a large datagram: a message of 1 MiB and its header, with room.
pub const MOST_LARGE: u64 = (1 << 20) + 65_536;

/// Fragments of one datagram for which there is room at once.
const PIECES: usize = 32;

/// Most fragments that are held of one datagram: 1 MiB in PDUs of 1500 bytes, with room.
const MOST_PIECES: usize = 1024;

/// Most datagrams that are incomplete at once, in all and of one sender; the oldest makes room.
const MOST_PARTIAL: usize = 256;
const MOST_OF_SENDER: usize = 64;

/// How long an incomplete datagram is held (RFC 1122 3.3.2 wants 60 to 120 s, which a fast network
/// fills with losses; Linux takes 30).
const HELD: Duration = Duration::from_secs(30);

/// Bytes of an fbuf that a header takes.
const PLACE: usize = 32;

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
    let count = len.div_ceil(step).max(1);
    let header_of = |at: u64| {
        let end = len.min(at + step);
        Ipv4 {
            offset: at,
            has_more: end < len,
            payload: (end - at) as usize,
            ..header
        }
    };
    // The headers lie beside each other in one fbuf.
    let mut fbuf = path.allocate(count as usize * PLACE)?;
    for (number, place) in (0..count).zip(fbuf.chunks_exact_mut(PLACE)) {
        place[..IPV4].copy_from_slice(&header_of(number * step).emit());
    }
    let headers = Aggregate::new(fbuf, count as usize * PLACE)?;
    for number in 0..count {
        let at = number * step;
        let end = len.min(at + step);
        let part = match (at, end) {
            (0, end) if end == len => datagram.clone(),
            _ => datagram.slice(at..end)?,
        };
        let place = number * PLACE as u64;
        let bytes = headers.slice(place..place + IPV4 as u64)?;
        each(header_of(at), bytes.join(&part)?)?;
    }
    Ok(())
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
    key: Key,
    /// By offset; they do not overlap.
    pieces: Vec<(u64, Aggregate)>,
    /// Bytes of all pieces.
    held: u64,
    /// The datagram's length, once its last fragment came.
    len: Option<u64>,
    since: Instant,
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
    /// The oldest first.
    partial: Vec<Partial>,
    lost: Lost,
}

impl Reassembly {
    /// Takes a fragment's payload; returns the datagram if it completes one. Fragments that
    /// overlap others, other than exact repetitions, end their datagram (as RFC 5722 wants for
    /// IPv6), and so do those that end differently.
    ///
    /// # Errors
    /// Those of joining, with nodes in `path`: the datagram is lost.
    pub fn add(
        &mut self,
        path: &Path,
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
        let place = match self.find(&key) {
            Some(place) => place,
            None => self.start(key, now),
        };
        match self.partial[place].add(start, end, header.has_more, payload) {
            Added::Repeated | Added::Held => Ok(None),
            Added::Conflict => {
                self.lost.conflicts += 1;
                self.partial.remove(place);
                Ok(None)
            }
            Added::Complete => {
                let pieces = self.partial.remove(place).pieces;
                let pieces: Vec<_> = pieces.into_iter().map(|(_, piece)| piece).collect();
                path.adopt_all(&pieces).map(Some)
            }
        }
    }

    /// Finds an incomplete datagram, of which the last one that began is looked at first.
    fn find(&self, key: &Key) -> Option<usize> {
        self.partial.iter().rposition(|it| it.key == *key)
    }

    /// Returns whether fragments of this datagram are held.
    pub fn has(&self, key: &Key) -> bool {
        self.find(key).is_some()
    }

    /// Returns the first fragment's payload of an incomplete datagram.
    pub fn first(&self, key: &Key) -> Option<&Aggregate> {
        let (at, piece) = self.partial[self.find(key)?].pieces.first()?;
        (*at == 0).then_some(piece)
    }

    /// Gives up datagrams that are too old.
    pub fn expire(&mut self, now: Instant) {
        let before = self.partial.len();
        let is_old = |it: &Partial| now.saturating_duration_since(it.since) >= HELD;
        self.partial.retain(|it| !is_old(it));
        self.lost.timed_out += (before - self.partial.len()) as u64;
    }

    /// Returns whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    /// Returns the counts of what was lost.
    pub fn lost(&self) -> Lost {
        self.lost
    }

    /// Begins a datagram; returns its place.
    fn start(&mut self, key: Key, now: Instant) -> usize {
        let of_sender = self.partial.iter().filter(|it| it.key.from == key.from);
        if of_sender.count() >= MOST_OF_SENDER {
            self.evict(|it| it.from == key.from);
        } else if self.partial.len() >= MOST_PARTIAL {
            self.evict(|_| true);
        }
        self.partial.push(Partial {
            key,
            pieces: Vec::with_capacity(PIECES),
            held: 0,
            len: None,
            since: now,
        });
        self.partial.len() - 1
    }

    /// Gives up the oldest of some.
    fn evict(&mut self, may: impl Fn(&Key) -> bool) {
        let oldest = self.partial.iter().position(|it| may(&it.key));
        if let Some(place) = oldest {
            self.lost.timed_out += 1;
            self.partial.remove(place);
        }
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
        // Most come in order.
        let place = match self.pieces.last() {
            Some((at, _)) if *at >= end => self.pieces.partition_point(|(at, _)| *at < end),
            _ => self.pieces.len(),
        };
        let before = place.checked_sub(1).map(|before| &self.pieces[before]);
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
        self.pieces.insert(place, (start, payload.clone()));
        match self.len == Some(self.held) {
            true => Added::Complete,
            false => Added::Held,
        }
    }

    fn end(&self) -> u64 {
        let last = self.pieces.last();
        last.map_or(0, |(at, piece)| at + piece.len())
    }
}
