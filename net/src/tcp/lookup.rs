//! The connections by their two ends, and their timers: what an arriving packet needs. Both are
//! spread over many locks by a keyed hash, so that packets of different connections do not meet.

use alloc::{collections::BTreeSet, sync::Arc, vec::Vec};
use core::sync::atomic::Ordering::Relaxed;

use abi::Result;
use nucleus::sync::{Rank, SpinLock};

use super::{Pair, connection::Connection, secret::Secret};
use crate::timer::Alarm;

/// The number of locks: a power of two.
const SHARDS: usize = 64;
/// Places of a new shard.
const FIRST: usize = 8;

/// The connections of a machine.
pub struct Lookup {
    shards: [SpinLock<Shard>; SHARDS],
    secret: Secret,
}

/// A hash table with linear probing, at most half full, and the timers of its connections.
struct Shard {
    places: Vec<Option<(u64, Arc<Connection>)>>,
    count: usize,
    timers: BTreeSet<(u64, Pair)>,
}

impl Shard {
    /// Returns the place of a pair, or the free one where it would be.
    fn place(&self, hash: u64, pair: &Pair) -> usize {
        let mask = self.places.len() - 1;
        let mut at = hash as usize & mask;
        while let Some((_, other)) = &self.places[at]
            && other.pair != *pair
        {
            at = (at + 1) & mask;
        }
        at
    }

    fn find(&self, hash: u64, pair: &Pair) -> Option<&Arc<Connection>> {
        if self.places.is_empty() {
            return None;
        }
        let place = &self.places[self.place(hash, pair)];
        place.as_ref().map(|(_, connection)| connection)
    }

    /// Doubles the places when half are taken.
    fn grow(&mut self) -> Result<Vec<Option<(u64, Arc<Connection>)>>> {
        if (self.count + 1) * 2 <= self.places.len() {
            return Ok(Vec::new());
        }
        let len = (self.places.len() * 2).max(FIRST);
        let mut new = nucleus::try_vec(len)?;
        new.resize_with(len, || None);
        let mut old = core::mem::replace(&mut self.places, new);
        for entry in &mut old {
            if let Some((hash, connection)) = entry.take() {
                let at = self.place(hash, &connection.pair);
                self.places[at] = Some((hash, connection));
            }
        }
        Ok(old)
    }

    /// Removes the entry at a place, and moves up those that stood behind it for its sake.
    fn remove(&mut self, mut free: usize) -> Option<Arc<Connection>> {
        let mask = self.places.len() - 1;
        let (_, removed) = self.places[free].take()?;
        self.count -= 1;
        let mut at = (free + 1) & mask;
        while let Some((hash, _)) = &self.places[at] {
            let home = *hash as usize & mask;
            // It may move if its home is not between the free place and its own.
            let distance = at.wrapping_sub(home) & mask;
            if distance >= at.wrapping_sub(free) & mask {
                self.places[free] = self.places[at].take();
                free = at;
            }
            at = (at + 1) & mask;
        }
        Some(removed)
    }
}

impl Lookup {
    /// A table without connections.
    pub fn new() -> Lookup {
        let shard = |_| {
            SpinLock::new(
                Rank::Leaf,
                Shard {
                    places: Vec::new(),
                    count: 0,
                    timers: BTreeSet::new(),
                },
            )
        };
        Lookup {
            shards: core::array::from_fn(shard),
            secret: Secret::new(),
        }
    }

    fn shard(&self, pair: &Pair) -> (u64, &SpinLock<Shard>) {
        let hash = self.secret.hash(pair);
        // The other bits choose the place in the shard.
        (hash, &self.shards[(hash >> 32) as usize % SHARDS])
    }

    /// Finds a connection.
    pub fn find(&self, pair: &Pair) -> Option<Arc<Connection>> {
        let (hash, shard) = self.shard(pair);
        shard.lock().find(hash, pair).cloned()
    }

    /// Adds a connection; there is none with its ends.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&self, connection: Arc<Connection>) -> Result<()> {
        let (hash, shard) = self.shard(&connection.pair);
        let mut shard = shard.lock();
        let old = shard.grow()?;
        let at = shard.place(hash, &connection.pair);
        shard.places[at] = Some((hash, connection));
        shard.count += 1;
        drop(shard);
        drop(old);
        Ok(())
    }

    /// Removes a connection and its timer.
    pub fn remove(&self, pair: &Pair) {
        let (hash, shard) = self.shard(pair);
        let mut shard = shard.lock();
        if shard.find(hash, pair).is_none() {
            return;
        }
        let at = shard.place(hash, pair);
        let removed = shard.remove(at);
        if let Some(connection) = &removed {
            let armed = connection.armed.swap(u64::MAX, Relaxed);
            shard.timers.remove(&(armed, *pair));
        }
        drop(shard);
        drop(removed);
    }

    /// Sees to it that the connection's timers run at `due`. A timer that was set to an earlier
    /// time stays, and is set anew when it runs: most packets only put timers off.
    pub fn note_timer(&self, connection: &Connection, due: Option<u64>, alarm: &Alarm) {
        let Some(due) = due.filter(|due| *due < connection.armed.load(Relaxed)) else {
            return;
        };
        let pair = connection.pair;
        let (hash, shard) = self.shard(&pair);
        {
            let mut shard = shard.lock();
            let is_here = shard
                .find(hash, &pair)
                .is_some_and(|other| core::ptr::eq(&**other, connection));
            if !is_here {
                return;
            }
            let old = connection.armed.swap(due, Relaxed);
            shard.timers.remove(&(old, pair));
            shard.timers.insert((due, pair));
        }
        alarm.set(Some(due));
    }

    /// Takes a connection whose timers are due.
    pub fn next_due(&self, now: u64) -> Option<Arc<Connection>> {
        for shard in &self.shards {
            let mut shard = shard.lock();
            while let Some(&(at, pair)) = shard.timers.first()
                && at <= now
            {
                shard.timers.pop_first();
                let hash = self.secret.hash(pair);
                if let Some(connection) = shard.find(hash, &pair) {
                    connection.armed.store(u64::MAX, Relaxed);
                    return Some(connection.clone());
                }
            }
        }
        None
    }

    /// Returns when the next timers are due.
    pub fn next(&self) -> Option<u64> {
        let firsts = self.shards.iter().filter_map(|shard| {
            let shard = shard.lock();
            shard.timers.first().map(|(at, _)| *at)
        });
        firsts.min()
    }
}
