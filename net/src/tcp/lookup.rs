//! The connections by their two ends, and their timers: what an arriving packet needs. Both are
//! spread over many locks by a keyed hash, so that packets of different connections do not meet.

use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::Ordering::Relaxed;

use abi::Result;
use nucleus::{
    Slots,
    sync::{Rank, SpinLock},
};

use super::{
    Pair,
    connection::Connection,
    pair_table::{HasPair, Key, PairTable, Room},
};
use crate::{
    due::{DueQueue, HasPlace, NEVER, Place},
    timer::Alarm,
};

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
    /// All of them, by their timers.
    timers: DueQueue<Arc<Connection>>,
}

impl HasPair for Arc<Connection> {
    fn pair(&self) -> &Pair {
        &self.pair
    }
}

impl HasPlace for Arc<Connection> {
    fn place(&self) -> &Place {
        &self.place
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
                    timers: DueQueue::new(),
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
        let shard = self.shard(&connection.pair);
        // Memory is taken and freed without the lock.
        let entry = (NEVER, connection.clone());
        Slots::add_with(entry, |entry, spare| shard.lock().timers.add(entry, spare))?;
        let mut room = None;
        loop {
            let needed = {
                let mut shard = shard.lock();
                match shard.connections.prepare(&mut room) {
                    Ok(()) => {
                        shard.connections.insert_new(connection);
                        return Ok(());
                    }
                    Err(needed) => needed,
                }
            };
            room = match Room::new(needed) {
                Ok(room) => Some(room),
                Err(error) => {
                    let removed = shard.lock().timers.remove(&connection.place);
                    drop(removed);
                    return Err(error);
                }
            };
        }
    }

    /// Removes a connection and its timer.
    pub fn remove(&self, pair: &Pair) {
        let mut shard = self.shard(pair).lock();
        let removed = shard.connections.remove(pair);
        let timed = removed
            .as_ref()
            .and_then(|connection| shard.timers.remove(&connection.place));
        drop(shard);
        drop((removed, timed));
    }

    /// Sees to it that the connection's timers run at `due`. A timer that was set to an earlier
    /// time stays, and is set anew when it runs: most packets only put timers off.
    pub fn note_timer(&self, connection: &Connection, due: Option<u64>, alarm: &Alarm) {
        let Some(due) = due.filter(|due| *due < connection.armed.load(Relaxed)) else {
            return;
        };
        {
            let mut shard = self.shard(&connection.pair).lock();
            // Another CPU may have set an earlier time meanwhile.
            if due >= connection.armed.load(Relaxed) || !shard.timers.set(&connection.place, due) {
                return;
            }
            connection.armed.store(due, Relaxed);
        }
        alarm.set(Some(due));
    }

    /// Takes a connection whose timers are due.
    pub fn next_due(&self, now: u64) -> Option<Arc<Connection>> {
        self.shards.iter().find_map(|shard| {
            let mut shard = shard.lock();
            let connection = shard.timers.take_due(now)?;
            connection.armed.store(NEVER, Relaxed);
            Some(connection)
        })
    }

    /// Returns when the next timers are due.
    pub fn next(&self) -> Option<u64> {
        let firsts = self.shards.iter();
        firsts.filter_map(|shard| shard.lock().timers.first()).min()
    }
}
