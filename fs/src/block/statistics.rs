//! The statistics of a device, as `/proc/diskstats` shows them.
#![allow(missing_docs, reason = "fields and variants whose names say it")]

use core::time::Duration;

use super::Operation;

/// Requests of one kind.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    /// Commands that the disk has finished.
    pub commands: u64,
    /// Requests that went along with a neighbour's command.
    pub merged: u64,
    pub sectors: u64,
    /// From when requests came until they were done, summed up.
    pub time: Duration,
}

/// The statistics of a device since it was made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Statistics {
    pub reads: Tally,
    pub writes: Tally,
    pub discards: Tally,
    pub flushes: Tally,
    /// Requests that wait or that the disk works on.
    pub in_flight: usize,
    /// How long there was any.
    pub busy: Duration,
    /// The same, counted once for each.
    pub weighted: Duration,
    /// When `in_flight` changed last.
    pub(super) changed: Duration,
}

impl Statistics {
    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.changed);
        if self.in_flight > 0 {
            self.busy += passed;
            self.weighted += passed * u32::try_from(self.in_flight).unwrap_or(u32::MAX);
        }
        self.changed = now;
    }

    /// Requests came.
    pub(super) fn came(&mut self, count: usize, now: Duration) {
        self.advance(now);
        self.in_flight += count;
    }

    /// Requests are done.
    pub(super) fn went(&mut self, count: usize, now: Duration) {
        self.advance(now);
        self.in_flight -= count;
    }

    /// As of `now`.
    pub(super) fn at(mut self, now: Duration) -> Statistics {
        self.advance(now);
        self
    }

    /// Those of one kind.
    pub(super) fn of(&mut self, operation: Operation) -> &mut Tally {
        match operation {
            Operation::Read => &mut self.reads,
            Operation::Write => &mut self.writes,
            Operation::Discard => &mut self.discards,
            Operation::Flush => &mut self.flushes,
        }
    }
}
