//! Requests that wait for their disk, and the choice of the next one.
//!
//! Reads and writes stand apart, each sorted by sector, and leave in one direction, as a lift goes;
//! at the end it begins anew. A read usually has a waiter, so reads go first, but for a turn of the
//! writes now and then, and writes never take all of the disk's room. Neighbours of a request leave
//! with it.
//!
//! Nothing here needs memory once the queue exists: pageout uses it.

use alloc::{boxed::Box, vec::Vec};

use super::{
    Limits, Operation,
    command::{Entries, Entry},
};

/// Commands that read in a row while a write waits.
const READS_IN_A_ROW: u32 = 16;
/// Entries of a lane that are sorted at most, for which there is room from the start.
const ROOM: usize = 256;

/// Entries of one direction by sector.
struct Lane {
    #[expect(
        clippy::vec_box,
        reason = "an entry goes in between others, and is linked to others later"
    )]
    sorted: Vec<Box<Entry>>,
    /// Requests for which there is no room there yet, in the order of their arrival. Empty while
    /// there is.
    behind: Entries,
    /// The sector after the last request that left.
    at: u64,
}

impl Lane {
    #[allow(clippy::disallowed_methods, reason = "2 KiB")]
    fn new() -> Lane {
        Lane {
            sorted: Vec::with_capacity(ROOM),
            behind: Entries::default(),
            at: 0,
        }
    }

    fn len(&self) -> usize {
        self.sorted.len() + self.behind.len()
    }

    fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    fn put(&mut self, entry: Box<Entry>) {
        match self.sorted.len() < ROOM {
            true => self.sort_in(entry),
            false => self.behind.push(entry),
        }
    }

    fn sort_in(&mut self, entry: Box<Entry>) {
        let sector = entry.request.sector;
        let at = self
            .sorted
            .partition_point(|other| other.request.sector <= sector);
        self.sorted.insert(at, entry);
    }

    /// The next one with its neighbours, as many as one command takes.
    fn take(&mut self, limits: &Limits) -> Option<Entries> {
        let at = self.at;
        let from = self
            .sorted
            .partition_point(|entry| entry.request.sector < at);
        let from = if from < self.sorted.len() { from } else { 0 };
        let first = self.sorted.get(from)?;
        let (mut sectors, mut parts) = (first.request.sectors, first.request.parts.len());
        let mut end = first.end();
        let max = match first.request.operation {
            Operation::Discard => limits.max_discard,
            _ => limits.max_sectors,
        };
        let mut count = 1;
        if !first.alone {
            for next in &self.sorted[from + 1..] {
                sectors += next.request.sectors;
                parts += next.request.parts.len();
                let joins = next.request.sector == end
                    && next.request.operation == first.request.operation
                    && !next.alone
                    && sectors <= max
                    && parts <= limits.max_parts;
                if !joins {
                    break;
                }
                end = next.end();
                count += 1;
            }
        }
        self.at = end;
        let mut taken = Entries::default();
        self.sorted
            .drain(from..from + count)
            .for_each(|entry| taken.push(entry));
        while self.sorted.len() < ROOM
            && let Some(entry) = self.behind.pop()
        {
            self.sort_in(entry);
        }
        Some(taken)
    }
}

/// The waiting requests, and the number of commands in flight.
pub(super) struct Queue {
    reads: Lane,
    /// Writes and discards.
    writes: Lane,
    flushes: Entries,
    reads_in_a_row: u32,
    /// Commands that the disk has, and those among them that are no reads.
    pub(super) in_flight: usize,
    changes_in_flight: usize,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue {
            reads: Lane::new(),
            writes: Lane::new(),
            flushes: Entries::default(),
            reads_in_a_row: 0,
            in_flight: 0,
            changes_in_flight: 0,
        }
    }

    /// Requests that the disk does not have yet.
    pub(super) fn waiting(&self) -> usize {
        self.reads.len() + self.writes.len() + self.flushes.len()
    }

    pub(super) fn put(&mut self, entry: Box<Entry>) {
        match entry.request.operation {
            Operation::Read => self.reads.put(entry),
            Operation::Write | Operation::Discard => self.writes.put(entry),
            Operation::Flush => self.flushes.push(entry),
        }
    }

    fn may_change(&self, limits: &Limits) -> bool {
        let most = (limits.depth * 3 / 4).max(1);
        self.in_flight < limits.depth && self.changes_in_flight < most
    }

    /// Whether [`take`](Queue::take) would give something.
    pub(super) fn has_turn(&self, limits: &Limits) -> bool {
        let changes = !self.writes.is_empty() || !self.flushes.is_empty();
        !self.reads.is_empty() && self.in_flight < limits.depth
            || changes && self.may_change(limits)
    }

    /// Takes the next command, if the disk has room and a request waits. It is in flight from now
    /// on.
    pub(super) fn take(&mut self, limits: &Limits) -> Option<Entries> {
        if self.in_flight >= limits.depth {
            return None;
        }
        let waits = self.may_change(limits) && !self.writes.is_empty();
        let changes = self.may_change(limits) && !self.flushes.is_empty()
            || waits && self.reads_in_a_row >= READS_IN_A_ROW
            || self.reads.is_empty() && waits;
        if !changes {
            let taken = self.reads.take(limits)?;
            self.reads_in_a_row = match waits {
                true => self.reads_in_a_row + 1,
                false => 0,
            };
            self.in_flight += 1;
            return Some(taken);
        }
        self.reads_in_a_row = 0;
        self.in_flight += 1;
        self.changes_in_flight += 1;
        match self.flushes.is_empty() {
            // One flush is as good as several.
            false => Some(core::mem::take(&mut self.flushes)),
            true => self.writes.take(limits),
        }
    }

    /// A command is no longer in flight.
    pub(super) fn landed(&mut self, operation: Operation) {
        self.in_flight -= 1;
        if operation != Operation::Read {
            self.changes_in_flight -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{super::command::Completion, *};
    use crate::{block::Request, support::Random};

    #[test]
    fn what_there_is_no_room_for_has_its_turn_all_the_same() {
        let limits = Limits {
            max_discard: 1 << 10,
            ..Limits::plain(1 << 20)
        };
        let mut queue = Queue::new();
        let mut waiting = BTreeSet::new();
        let mut random = Random::new(7);
        let mut most = 0;
        for step in 0..20_000 {
            // Now more come, now more leave.
            if random.below(10) < if step / 2000 % 2 == 0 { 8 } else { 3 } {
                let sector = random.below(100_000) as u64;
                if waiting.insert(sector) {
                    let done = Completion::Call(Box::new(|_| {}));
                    let request = Request::discard(sector, 1);
                    queue.put(Entry::new(request, done, Default::default()));
                }
            } else if let Some(mut taken) = queue.take(&limits) {
                let mut last = None;
                while let Some(entry) = taken.pop() {
                    let sector = entry.request.sector;
                    assert!(waiting.remove(&sector), "{sector} leaves twice");
                    assert!(last.is_none_or(|last| last + 1 == sector));
                    last = Some(sector);
                }
                queue.landed(Operation::Discard);
            }
            assert_eq!(queue.waiting(), waiting.len());
            assert_eq!(queue.has_turn(&limits), !waiting.is_empty());
            assert_eq!(queue.writes.sorted.capacity(), ROOM, "that took memory");
            most = most.max(waiting.len());
        }
        assert!(most > 3 * ROOM, "only {most} waited at once");
    }
}
