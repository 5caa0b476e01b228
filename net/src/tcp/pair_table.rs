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

/// Values by the two ends of their connections, in no order. Lookups take constant time.
pub struct PairTable<V> {
    key: Key,
    /// With their hashes, which mostly suffice to tell pairs apart.
    entries: HashTable<(u64, V)>,
}

impl<V: HasPair> PairTable<V> {
    /// Makes an empty table with a key of its own. Allocates nothing.
    pub fn new() -> PairTable<V> {
        PairTable {
            key: Key::new(),
            entries: HashTable::new(),
        }
    }

    /// Makes room for one more value. Allocates and frees memory.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn reserve(&mut self) -> Result<()> {
        let room = self.entries.try_reserve(1, |entry| entry.0);
        room.map_err(|_| Errno::ENOMEM)
    }

    /// Adds a value, and returns the one that its pair had. There is
    /// [room](PairTable::reserve) for it.
    pub fn insert(&mut self, value: V) -> Option<V> {
        let hash = self.key.hash(value.pair());
        match self.entries.find_mut(hash, is(hash, value.pair())) {
            Some(entry) => Some(core::mem::replace(&mut entry.1, value)),
            None => {
                debug_assert!(self.entries.len() < self.entries.capacity());
                let entry = (hash, value);
                self.entries.insert_unique(hash, entry, |entry| entry.0);
                None
            }
        }
    }

    /// Removes and returns the value of a pair.
    pub fn remove(&mut self, pair: &Pair) -> Option<V> {
        let hash = self.key.hash(pair);
        let entry = self.entries.find_entry(hash, is(hash, pair));
        Some(entry.ok()?.remove().0.1)
    }

    /// Returns the value of a pair.
    #[inline]
    pub fn get(&self, pair: &Pair) -> Option<&V> {
        let hash = self.key.hash(pair);
        let entry = self.entries.find(hash, is(hash, pair))?;
        Some(&entry.1)
    }

    /// Returns the value of a pair.
    #[inline]
    pub fn get_mut(&mut self, pair: &Pair) -> Option<&mut V> {
        let hash = self.key.hash(pair);
        let entry = self.entries.find_mut(hash, is(hash, pair))?;
        Some(&mut entry.1)
    }

    /// Tells whether a pair has a value.
    #[inline]
    pub fn contains(&self, pair: &Pair) -> bool {
        self.get(pair).is_some()
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the values.
    pub fn iter(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|entry| &entry.1)
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
