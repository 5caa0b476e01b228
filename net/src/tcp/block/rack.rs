//! Detection of losses by time (RACK-TLP, RFC 8985): a piece is lost when one that was sent some
//! time after it has arrived.

use super::{
    rtt::{MS, RoundTrip},
    sent::{Latest, Piece, Sent},
};
use crate::tcp::segment::Seq;

/// Repairs without reordering after which the window of reordering is small again.
const PERSISTENCE: u8 = 16;
/// Duplicates after which reordering that was never seen is ruled out (RFC 5681).
const DUPLICATES: usize = 3;
/// The time for which a receiver may delay an acknowledgement.
const DELAYED_ACK: u64 = 200 * MS;
/// The least time until a probe for the loss of the last segments.
const LEAST_PROBE: u64 = 2 * MS;

/// How much reordering the path has shown. What has arrived latest is kept with what was sent
/// ([`Latest`]).
#[derive(Debug)]
pub(super) struct Rack {
    has_reordered: bool,
    /// Quarters of the least round trip that reordering may take.
    quarters: u8,
    persists: u8,
}

impl Rack {
    pub const fn new() -> Rack {
        Rack {
            has_reordered: false,
            quarters: 1,
            persists: PERSISTENCE,
        }
    }

    /// Notes at `now` that a piece has arrived.
    pub fn arrived(
        &mut self,
        latest: &mut Latest,
        (sent_at, end, is_again): (u64, Seq, bool),
        least: u64,
        now: u64,
    ) {
        let time = now.saturating_sub(sent_at);
        if latest.highest < end {
            latest.highest = end;
        } else if !is_again && end < latest.highest {
            self.has_reordered = true;
        }
        // It may be the arrival of what was sent first.
        if is_again && time < least {
            return;
        }
        if is_later((sent_at, end), (latest.sent_at, latest.end)) {
            (latest.sent_at, latest.end) = (sent_at, end);
            latest.round_trip = time;
        }
    }

    /// Allows for more reordering: a piece was sent again although it had arrived.
    pub fn allow_more(&mut self) {
        self.quarters = (self.quarters + 1).min(16);
        self.persists = PERSISTENCE;
    }

    /// Notes the end of a repair.
    pub fn repaired(&mut self) {
        self.persists = self.persists.saturating_sub(1);
        if self.persists == 0 {
            self.quarters = 1;
        }
    }

    fn window(&self, round_trip: &RoundTrip, sacked: usize, recovers: bool) -> u64 {
        if !self.has_reordered && (recovers || sacked >= DUPLICATES) {
            return 0;
        }
        let window = round_trip.least / 4 * u64::from(self.quarters);
        window.min(round_trip.smoothed)
    }

    /// Marks lost pieces. Returns how long to wait until the next one may be lost, if any.
    pub fn detect(
        &self,
        sent: &mut Sent,
        round_trip: &RoundTrip,
        recovers: bool,
        now: u64,
    ) -> (bool, Option<u64>) {
        let sacked = match self.has_reordered || recovers {
            true => 0,
            false => {
                let sacked = sent.iter().filter(|piece| piece.is_sacked);
                sacked.take(DUPLICATES).count()
            }
        };
        let latest = (sent.latest.sent_at, sent.latest.end);
        let allowed = sent.latest.round_trip + self.window(round_trip, sacked, recovers);
        let mut wait = None;
        let any = sent.mark_lost(|piece: &Piece| {
            if !is_later(latest, (piece.sent_at, piece.end())) {
                return false;
            }
            let left = (piece.sent_at + allowed).saturating_sub(now);
            if left > 0 {
                wait = wait.max(Some(left));
            }
            left == 0
        });
        (any, wait)
    }
}

fn is_later((time, end): (u64, Seq), (other_time, other_end): (u64, Seq)) -> bool {
    time > other_time || time == other_time && end > other_end
}

/// Returns the time after which the last pieces are probed, if no acknowledgement comes.
pub(super) fn probe_time(round_trip: &RoundTrip, pieces: usize) -> u64 {
    let time = match round_trip.smoothed {
        0 => round_trip.base_timeout(),
        smoothed => 2 * smoothed + if pieces == 1 { DELAYED_ACK } else { 0 },
    };
    time.max(LEAST_PROBE).min(round_trip.timeout())
}
