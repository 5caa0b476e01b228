//! Sizes of buffers that follow the connection (dynamic right-sizing, as Linux's
//! `tcp_moderate_rcvbuf`): the receive buffer has room for twice what the program reads in a round
//! trip, the send buffer for twice what may be on its way.

use super::{Block, Host, MS};
use crate::tcp::segment::{Segment, Seq};

/// Segments of the first window, which a program reads in the first round trip.
const FIRST_WINDOW: u32 = 10;
/// Segments that are added to the receive buffer, for those that are on their way meanwhile.
const SPARE_SEGMENTS: u64 = 16;
/// The send buffer follows in steps of this part of its size.
const STEP: u32 = 4;

/// What the program reads, by round trips.
#[derive(Debug)]
pub(super) struct Pace {
    /// Bytes that it has read in the best round trip.
    best: u32,
    /// The first number that it reads in the present one, and when that began.
    from: Seq,
    since: u64,
    /// The round-trip time as the receiver sees it, in nanoseconds; 0 before the first measurement.
    pub round_trip: u64,
    /// The last echo of our clock that was measured.
    echo: u32,
    /// Without timestamps: the right edge of a window that is being filled, and since when; 0 for
    /// none.
    edge: Seq,
    filled_since: u64,
    /// The send buffer that was asked for last, in bytes.
    asked: u32,
}

impl Pace {
    pub const fn new() -> Pace {
        Pace {
            best: 0,
            from: Seq(0),
            since: 0,
            round_trip: 0,
            echo: 0,
            edge: Seq(0),
            filled_since: 0,
            asked: 0,
        }
    }

    /// Returns how many bytes the program reads in a round trip.
    pub fn best(&self) -> u32 {
        self.best
    }
}

impl Block {
    /// Measures the round-trip time by a segment with data in order, before these count as
    /// received: what it echoes of our clock, or the time in which the peer fills a window.
    pub(super) fn measure_as_receiver(&mut self, segment: &Segment, now: u64) {
        let stamps = segment.options.stamps.filter(|_| self.has_stamps);
        if let Some((_, echo)) = stamps {
            // Less than a full segment may have waited for more data.
            let is_full = segment.data.len() as u32 >= self.arrives.min(self.segment);
            if is_full && echo != self.pace.echo {
                self.pace.echo = echo;
                let time = u64::from(self.own_clock(now).wrapping_sub(echo)).max(1) * MS;
                let old = self.pace.round_trip;
                self.pace.round_trip = match old {
                    0 => time,
                    _ => old - old / 8 + time / 8,
                };
            }
            return;
        }
        let since = self.pace.filled_since;
        if since != 0 {
            if self.due < self.pace.edge {
                return;
            }
            let time = now.saturating_sub(since).max(1);
            let old = self.pace.round_trip;
            self.pace.round_trip = if old == 0 { time } else { old.min(time) };
        }
        (self.pace.edge, self.pace.filled_since) = (self.edge, now);
    }

    /// Asks for a larger receive buffer after a round trip in which the program has read more than
    /// ever before.
    pub(super) fn follow_reader(&mut self, host: &mut dyn Host) {
        let now = host.now();
        let trip = self.pace.round_trip;
        if trip == 0 || now < self.pace.since + trip {
            return;
        }
        let read = self.due - host.unread() as u32;
        let is_first = self.pace.since == 0;
        let bytes = match is_first || read < self.pace.from {
            true => 0,
            false => read.since(self.pace.from),
        };
        (self.pace.from, self.pace.since) = (read, now);
        let best = u64::from(self.pace.best.max(FIRST_WINDOW * self.segment));
        let bytes = u64::from(bytes);
        if bytes <= best {
            return;
        }
        // In slow start the peer sends twice as much in the next round trip, and the program's
        // pace is known one round trip late.
        let spare = SPARE_SEGMENTS * u64::from(self.segment);
        let twice = 2 * bytes + spare;
        let growth = 2 * (twice * (bytes - best) / best);
        self.pace.best = bytes as u32;
        host.widen_receive_buffer((twice + growth) as usize);
    }

    /// Asks for a send buffer of twice the window of congestion, when that has become larger.
    pub(super) fn follow_window(&mut self, host: &mut dyn Host) {
        let asks = self.congestion.window.saturating_mul(2);
        if asks >= self.pace.asked + self.pace.asked / STEP {
            self.pace.asked = asks;
            host.widen_send_buffer(asks as usize);
        }
    }
}
