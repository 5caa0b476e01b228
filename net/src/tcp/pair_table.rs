//! Hash tables by the two ends of a connection.
//!
//! The hash is keyed and strongly universal: without the key, no choice of pairs makes two meet
//! more often than chance, however many are tried. It takes a multiplication for each 32 bits of a
//! pair (Lemire and Kaser, "Strongly universal string hashing is fast", 2014).

use core::net::{IpAddr, SocketAddr};

use abi::{Errno, Result};
use hashbrown::HashTable;
use nucleus::random;

use super::Pair;

/// The key of a hash: a summand, and a factor for each 32 bits of the addresses and ports.
#[derive(Clone)]
pub struct Key {
    summand: u64,
    ports: u64,
    addresses: [u64; 8],
}

impl Key {
    /// Makes a key.
    pub fn new() -> Key {
        Key {
            summand: random::u64(),
            ports: random::u64(),
            addresses: core::array::from_fn(|_| random::u64()),
        }
    }

    /// Returns the hash of a pair: 32 bits, twice. Labels and scopes of IPv6 do not count.
    #[inline(always)]
    pub fn hash(&self, pair: &Pair) -> u64 {
        let ports = u32::from(pair.remote.port()) << 16 | u32::from(pair.local.port());
        let sum = self.summand.wrapping_add(product(self.ports, ports));
        let sum = match (&pair.local, &pair.remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => sum
                .wrapping_add(product(self.addresses[0], local.ip().to_bits()))
                .wrapping_add(product(self.addresses[1], remote.ip().to_bits())),
            _ => sum.wrapping_add(self.sum(pair)),
        };
        (sum >> 32) * 0x1_0000_0001
    }

    #[inline(never)]
    fn sum(&self, pair: &Pair) -> u64 {
        let words = [pair.local, pair.remote].map(|end| words(end.ip()));
        let products = self.addresses.iter().zip(words.as_flattened());
        products.fold(0, |sum, (key, word)| sum.wrapping_add(product(*key, *word)))
    }
}

#[inline(always)]
fn product(key: u64, word: u32) -> u64 {
    key.wrapping_mul(word.into())
}

/// Returns an address in four words.
fn words(ip: IpAddr) -> [u32; 4] {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let bits = ip.to_bits();
    core::array::from_fn(|i| (bits >> (32 * i)) as u32)
}

/// What stands in a table: it knows its connection.
pub trait HasPair {
    /// Returns the two ends, which never change.
    fn pair(&self) -> &Pair;
}

/// Buckets of a table that has become too small which are moved at each growth by one.
const MOVED: usize = 16;
/// The least capacity of a table.
const LEAST: usize = 8;

/// A part of a table, with hashes, which mostly suffice to tell pairs apart.
type Part<V> = HashTable<(u64, V)>;

/// Memory for a table to grow, or what is left of one that has grown.
pub struct Room<V>(Part<V>);

impl<V> Room<V> {
    /// Makes room for so many values.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(capacity: usize) -> Result<Room<V>> {
        let mut part = Part::new();
        let room = part.try_reserve(capacity, |entry| entry.0);
        room.map_err(|_| Errno::ENOMEM)?;
        Ok(Room(part))
    }
}

/// Values by the two ends of their connections, in no order.
///
/// All operations take constant time: a table that is full gets a larger part, and each further
/// growth by one moves the values of a few buckets there.
pub struct PairTable<V> {
    key: Key,
    /// All new values, and those that were moved.
    entries: Part<V>,
    /// Those that were not moved yet.
    old: Part<V>,
    /// Buckets of `old` that are empty now.
    moved: usize,
}

impl<V: HasPair> PairTable<V> {
    /// Makes an empty table with a key of its own. Allocates nothing.
    pub fn new() -> PairTable<V> {
        PairTable {
            key: Key::new(),
            entries: Part::new(),
            old: Part::new(),
            moved: 0,
        }
    }

    /// Makes room for one more value. Allocates and frees memory.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn reserve(&mut self) -> Result<()> {
        let mut room = None;
        while let Err(capacity) = self.prepare(&mut room) {
            room = Some(Room::new(capacity)?);
        }
        Ok(())
    }

    /// Makes room for one more value with the memory in `room`. Allocates and frees nothing: the
    /// caller drops what it finds in `room`.
    ///
    /// # Errors
    /// The capacity of the room that is needed.
    pub fn prepare(&mut self, room: &mut Option<Room<V>>) -> core::result::Result<(), usize> {
        for _ in 0..MOVED {
            if self.old.is_empty() {
                break;
            }
            self.move_bucket();
        }
        if self.old.is_empty() && self.old.num_buckets() > 0 && room.is_none() {
            *room = Some(Room(core::mem::take(&mut self.old)));
        }
        let len = self.entries.len();
        if len < self.entries.capacity() {
            return Ok(());
        }
        // All is moved before the new part is full, and often room is only what was removed.
        let steps = self.entries.num_buckets() / MOVED + 1;
        let capacity = (len + steps).max(2 * len).max(LEAST);
        let Some(Room(part)) = room.take_if(|room| room.0.capacity() >= capacity) else {
            return Err(capacity);
        };
        debug_assert!(self.old.is_empty());
        while !self.old.is_empty() {
            self.move_bucket();
        }
        let full = core::mem::replace(&mut self.entries, part);
        let empty = core::mem::replace(&mut self.old, full);
        if empty.num_buckets() > 0 {
            *room = Some(Room(empty));
        }
        self.moved = 0;
        Ok(())
    }

    fn move_bucket(&mut self) {
        if let Ok(entry) = self.old.get_bucket_entry(self.moved) {
            let (entry, _) = entry.remove();
            self.entries.insert_unique(entry.0, entry, |entry| entry.0);
        }
        self.moved += 1;
    }

    /// Returns the part that has a pair, if any does.
    #[inline]
    fn part(&mut self, hash: u64, pair: &Pair) -> &mut Part<V> {
        let is_moved = self.old.is_empty() || self.entries.find(hash, is(hash, pair)).is_some();
        match is_moved {
            true => &mut self.entries,
            false => &mut self.old,
        }
    }

    /// Adds a value, and returns the one that its pair had. There is
    /// [room](PairTable::reserve) for it.
    pub fn insert(&mut self, value: V) -> Option<V> {
        let hash = self.key.hash(value.pair());
        let part = self.part(hash, value.pair());
        match part.find_mut(hash, is(hash, value.pair())) {
            Some(entry) => Some(core::mem::replace(&mut entry.1, value)),
            None => {
                debug_assert!(self.entries.len() < self.entries.capacity());
                let entry = (hash, value);
                self.entries.insert_unique(hash, entry, |entry| entry.0);
                None
            }
        }
    }

    /// Adds a value whose pair has none. There is [room](PairTable::reserve) for it.
    pub fn insert_new(&mut self, value: V) {
        let hash = self.key.hash(value.pair());
        debug_assert!(self.get(value.pair()).is_none());
        debug_assert!(self.entries.len() < self.entries.capacity());
        let entry = (hash, value);
        self.entries.insert_unique(hash, entry, |entry| entry.0);
    }

    /// Removes and returns the value of a pair.
    pub fn remove(&mut self, pair: &Pair) -> Option<V> {
        let hash = self.key.hash(pair);
        let part = self.part(hash, pair);
        let entry = part.find_entry(hash, is(hash, pair));
        Some(entry.ok()?.remove().0.1)
    }

    /// Returns the value of a pair.
    #[inline]
    pub fn get(&self, pair: &Pair) -> Option<&V> {
        let hash = self.key.hash(pair);
        if let Some(entry) = self.entries.find(hash, is(hash, pair)) {
            return Some(&entry.1);
        }
        match self.old.is_empty() {
            true => None,
            false => Some(&self.old.find(hash, is(hash, pair))?.1),
        }
    }

    /// Returns the value of a pair.
    #[inline]
    pub fn get_mut(&mut self, pair: &Pair) -> Option<&mut V> {
        let hash = self.key.hash(pair);
        let part = self.part(hash, pair);
        Some(&mut part.find_mut(hash, is(hash, pair))?.1)
    }

    /// Tells whether a pair has a value.
    #[inline]
    pub fn contains(&self, pair: &Pair) -> bool {
        self.get(pair).is_some()
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.entries.len() + self.old.len()
    }

    /// Returns the values.
    pub fn iter(&self) -> impl Iterator<Item = &V> {
        self.entries
            .iter()
            .chain(self.old.iter())
            .map(|entry| &entry.1)
    }

    /// Visits up to `most` buckets from `at` on; returns where the next ones are, `None` at the
    /// end. Values that are moved between two calls may be missed.
    pub fn visit(&self, at: usize, most: usize, mut visit: impl FnMut(&V)) -> Option<usize> {
        let first = self.entries.num_buckets();
        let all = first + self.old.num_buckets();
        let end = all.min(at.saturating_add(most));
        for at in at..end {
            let entry = match at.checked_sub(first) {
                None => self.entries.get_bucket(at),
                Some(at) => self.old.get_bucket(at),
            };
            if let Some((_, value)) = entry {
                visit(value);
            }
        }
        (end < all).then_some(end)
    }
}

/// Returns what tells whether an entry is that of a pair.
#[inline(always)]
fn is<V: HasPair>(hash: u64, pair: &Pair) -> impl Fn(&(u64, V)) -> bool {
    #[inline(never)]
    fn same(a: &Pair, b: &Pair) -> bool {
        a == b
    }
    move |entry| entry.0 == hash && same(entry.1.pair(), pair)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use nucleus::sim::{Random, on_machines};
    use std::collections::{BTreeMap, HashSet};

    impl HasPair for (Pair, u32) {
        fn pair(&self) -> &Pair {
            &self.0
        }
    }

    /// Pairs that differ in few bits, as those of one client and one server do.
    fn pair(number: u16) -> Pair {
        let v4 = Ipv4Addr::new(10, 0, 2, (number >> 12) as u8);
        let local: IpAddr = match number % 3 {
            0 => v4.to_ipv6_mapped().into(),
            _ => v4.into(),
        };
        Pair {
            local: SocketAddr::new(local, 80 + number % 2),
            remote: SocketAddr::new(local, number & 0xfff),
        }
    }

    #[test]
    fn a_table_has_what_was_put_in_and_not_removed() {
        on_machines(20, |seed| {
            let mut random = Random::new(seed);
            let mut next = |below: usize| random.below(below) as u32;
            let mut table: PairTable<(Pair, u32)> = PairTable::new();
            let mut model = BTreeMap::new();
            for _ in 0..4000 {
                let it = pair(next(600) as u16);
                match next(3) {
                    0 => assert_eq!(table.remove(&it).map(|it| it.1), model.remove(&it)),
                    1 => {
                        table.reserve().unwrap();
                        let value = next(1 << 32);
                        let old = table.insert((it, value)).map(|it| it.1);
                        assert_eq!(old, model.insert(it, value));
                    }
                    _ => assert_eq!(table.get(&it).map(|it| it.1), model.get(&it).copied()),
                }
                assert_eq!(table.len(), model.len());
            }
            let all: BTreeMap<Pair, u32> = table.iter().copied().collect();
            assert_eq!(all, model);
        });
    }

    /// No growth moves more than a few values, however many there are: the others stay where they
    /// are.
    #[test]
    fn growth_takes_small_steps() {
        on_machines(3, |seed| {
            let mut random = Random::new(seed);
            let mut table: PairTable<(Pair, u32)> = PairTable::new();
            for number in 0..20_000 {
                let first = pair(number as u16);
                let port = (number >> 12) as u16;
                let it = Pair {
                    local: SocketAddr::new(first.local.ip(), 1000 + port),
                    ..first
                };
                let unmoved = table.old.len();
                let mut room = None;
                while let Err(capacity) = table.prepare(&mut room) {
                    assert!(table.old.is_empty(), "all was moved in time");
                    room = Some(Room::new(capacity).unwrap());
                }
                assert!(unmoved <= table.old.len() + MOVED, "few values are moved");
                table.insert((it, number));
                assert_eq!(table.get(&it).map(|it| it.1), Some(number));
                if random.below(3) == 0 {
                    assert!(table.remove(&it).is_some());
                }
            }
            let mut seen = 0;
            let mut at = Some(0);
            while let Some(next) = at {
                at = table.visit(next, 100, |_| seen += 1);
            }
            assert_eq!(seen, table.len());
        });
    }

    #[test]
    fn pairs_that_differ_little_have_hashes_all_over() {
        on_machines(1, |_| spread(&Key::new()));
    }

    fn spread(key: &Key) {
        let hashes: Vec<u64> = (0..8192).map(|number| key.hash(&pair(number))).collect();
        let different: HashSet<_> = hashes.iter().collect();
        // Two of so many meet by chance once in a hundred keys.
        assert!(different.len() >= 8190, "{}", different.len());
        for shift in [0, 10, 25] {
            let mut counts = [0; 64];
            for hash in &hashes {
                counts[(hash >> shift) as usize % 64] += 1;
            }
            let most = counts.iter().max().unwrap();
            assert!(
                *most < 512,
                "{most} of 8192 in one of 64 places from bit {shift}"
            );
        }
    }
}
