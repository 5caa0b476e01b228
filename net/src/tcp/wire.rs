//! The wire inside this machine: segments between two ends of connections that need no packets.
//!
//! A segment goes to the other end as it is, without a header. Segments join the wire, a queue
//! that every caller empties before it releases the table's lock. Data does not pass here (see the
//! crate's front page).

use alloc::collections::VecDeque;
use core::cell::Cell;

use fbuf::Aggregate;

use super::{
    Pair,
    block::{Delivery, Host, Path},
    segment::{Flags, Segment},
};
use crate::{counters::Counter, timer::once};

/// The largest payload beside the headers of a packet of 65,535 bytes.
pub const PATH: Path = Path {
    largest: 65_483,
    bulk: 0,
};

/// The segments on their way, with the ends as the receiver sees them.
#[derive(Default)]
pub struct Wire {
    segments: VecDeque<(Pair, Segment)>,
}

impl Wire {
    /// Takes the next segment on its way.
    pub fn next(&mut self) -> Option<(Pair, Segment)> {
        let next = self.segments.pop_front()?;
        Counter::tcp_segments.add(1);
        Some(next)
    }

    /// Returns what the block of an end is driven with.
    pub fn host(&mut self, pair: Pair) -> End<'_> {
        let now = Cell::new(0);
        End {
            wire: self,
            pair,
            now,
        }
    }

    /// Answers a segment that has no end: with a reset, unless it is one.
    pub fn refuse(&mut self, pair: Pair, segment: &Segment) {
        if let Some(reset) = segment.refusal() {
            self.host(pair).emit(reset);
        }
    }
}

/// An end at the wire.
pub struct End<'a> {
    wire: &'a mut Wire,
    pair: Pair,
    /// The time, once it was asked for.
    now: Cell<u64>,
}

impl Host for End<'_> {
    fn now(&self) -> u64 {
        once(&self.now)
    }

    fn unsent(&self) -> usize {
        0
    }

    fn urgent(&self) -> Option<usize> {
        None
    }

    fn take(&mut self, _: usize) -> Aggregate {
        Aggregate::new()
    }

    fn acknowledged(&mut self, _: usize) {}

    fn room(&self) -> usize {
        usize::from(u16::MAX)
    }

    fn unread(&self) -> usize {
        0
    }

    fn deliver(&mut self, _: Aggregate, _: Option<usize>) -> Delivery {
        Delivery::Full
    }

    /// A segment for which there is no memory counts as lost.
    fn emit(&mut self, segment: Segment) {
        Counter::loopback_packets.add(1);
        Counter::loopback_packets_v6.add(self.pair.remote.is_ipv6().into());
        if segment.is(Flags::RST) {
            Counter::tcp_resets_sent.add(1);
        }
        if self.wire.segments.try_reserve(1).is_ok() {
            let there = self.pair.mirrored();
            self.wire.segments.push_back((there, segment));
        }
    }
}
