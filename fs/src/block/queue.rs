//! Requests that wait for their disk, and which of them it is told next.
//!
//! Reads and writes stand apart, each sorted by sector, and leave in one direction, as a lift goes; at the end it begins anew. Somebody waits for
//! a read, as a rule, so reads go first, but for a turn of the writes now and then, and writes never take all of the disk's room. The
//! neighbours of what leaves go with it.

use alloc::{boxed::Box, vec::Vec};

use super::{
    Limits, Operation,
    command::{Entries, Entry},
};

/// Commands that read in a row while somebody waits to write.
const READS_IN_A_ROW: u32 = 16;
/// Entries for which there is room from the start.
const ROOM: usize = 256;

/// Entries of one direction by sector.
struct Lane {
    #[expect(
        clippy::vec_box,
        reason = "an entry goes in between others, and is linked to others later"
    )]
    sorted: Vec<Box<Entry>>,
    /// The sector behind what left last.
    at: u64,
}

impl Lane {
    fn new() -> Lane {
        Lane {
            sorted: Vec::with_capacity(ROOM),
            at: 0,
        }
    }

    fn put(&mut self, entry: Box<Entry>) {
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
        Some(taken)
    }
}

/// What waits, and how much the disk has.
pub(super) struct Queue {
    reads: Lane,
    /// Writes and discards.
    writes: Lane,
    flushes: Entries,
    reads_in_a_row: u32,
    /// Commands that the disk has, and those among them that are no reads.
    in_flight: usize,
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

    /// Commands that the disk has.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Requests that the disk does not have yet.
    pub(super) fn waiting(&self) -> usize {
        self.reads.sorted.len() + self.writes.sorted.len() + self.flushes.len()
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
        let changes = !self.writes.sorted.is_empty() || !self.flushes.is_empty();
        !self.reads.sorted.is_empty() && self.in_flight < limits.depth
            || changes && self.may_change(limits)
    }

    /// What the disk is told next, if it has room and anything waits. It is in flight from now on.
    pub(super) fn take(&mut self, limits: &Limits) -> Option<Entries> {
        if self.in_flight >= limits.depth {
            return None;
        }
        let waits = self.may_change(limits) && !self.writes.sorted.is_empty();
        let changes = self.may_change(limits) && !self.flushes.is_empty()
            || waits && self.reads_in_a_row >= READS_IN_A_ROW
            || self.reads.sorted.is_empty() && waits;
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
