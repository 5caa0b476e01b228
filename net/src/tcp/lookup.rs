//! The connections by their two ends, and their timers: what an arriving packet needs. Both are
//! spread over many locks by a keyed hash, so that packets of different connections do not meet.

use alloc::{boxed::Box, collections::BTreeSet, sync::Arc};
use core::sync::atomic::Ordering::Relaxed;

use abi::Result;
use nucleus::sync::{Rank, SpinLock};

use super::{
    Pair,
    connection::Connection,
    pair_table::{HasPair, Key, PairTable, Room},
};
use crate::timer::Alarm;

/// The number of locks: a power of two.
const SHARDS: usize = 64;

/// The connections of a machine.
pub struct Lookup {
    shards: Box<[SpinLock<Shard>]>,
    key: Key,
}

/// A part of the connections, and their timers.
struct Shard {
    connections: PairTable<Arc<Connection>>,
    timers: BTreeSet<(u64, Pair)>,
}

impl HasPair for Arc<Connection> {
    fn pair(&self) -> &Pair {
        &self.pair
    }
}

impl Lookup {
    /// A table without connections.
    pub fn new() -> Lookup {
        let shard = |_| {
            SpinLock::new(
                Rank::Leaf,
                Shard {
                    connections: PairTable::new(),
                    timers: BTreeSet::new(),
                },
            )
        };
        Lookup {
            // One by one: all of them are larger than a stack.
            shards: (0..SHARDS).map(shard).collect(),
            key: Key::new(),
        }
    }

    fn shard(&self, pair: &Pair) -> &SpinLock<Shard> {
        &self.shards[self.key.hash(pair) as usize % SHARDS]
    }

    /// Finds a connection.
    pub fn find(&self, pair: &Pair) -> Option<Arc<Connection>> {
        self.shard(pair).lock().connections.get(pair).cloned()
    }

    /// Adds a connection; there is none with its ends.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&self, connection: Arc<Connection>) -> Result<()> {
        let mut room = None;
        loop {
            let needed = {
                let mut shard = self.shard(&connection.pair).lock();
                match shard.connections.prepare(&mut room) {
                    Ok(()) => {
                        shard.connections.insert_new(connection);
                        break;
                    }
                    Err(needed) => needed,
                }
            };
            // Memory is taken and freed without the lock.
            room = Some(Room::new(needed)?);
        }
        Ok(())
    }

    /// Removes a connection and its timer.
    pub fn remove(&self, pair: &Pair) {
        let mut shard = self.shard(pair).lock();
        let removed = shard.connections.remove(pair);
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
        {
            let mut shard = self.shard(&pair).lock();
            let is_here = shard
                .connections
                .get(&pair)
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
                if let Some(connection) = shard.connections.get(&pair) {
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
