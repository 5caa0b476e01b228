//! What an arriving segment acknowledges: the send queue, the peer's window, losses.

use super::{
    Block, Host, MS, State,
    sent::{Acked, Latest, Queue},
};
use crate::tcp::segment::{Flags, Segment, Seq};

/// Duplicates of an acknowledgement that show a loss where there is no SACK (RFC 5681).
const DUPLICATES: u32 = 3;

impl Block {
    /// Returns our clock, as timestamps show it: in milliseconds.
    pub(super) fn own_clock(&self, now: u64) -> u32 {
        ((now / MS) as u32).wrapping_add(self.clock)
    }

    /// Takes the acknowledgement of a segment, which was checked.
    pub(super) fn acknowledge(&mut self, segment: &Segment, host: &mut dyn Host) {
        let now = host.now();
        let ack = segment.ack;
        let is_news = ack > self.una;
        let in_flight = self.next.since(self.una);
        let scale = match segment.is(Flags::SYN) {
            // The first window has none (RFC 7323 2.2).
            true => 0,
            false => self.peer_scale,
        };
        let window = u32::from(segment.window) << scale;
        let is_duplicate = ack == self.una
            && !self.sent.is_empty()
            && segment.len() == 0
            && (window == self.window || !segment.options.sacks.is_empty());
        self.take_window(segment, window);
        let mut acked = Acked::default();
        let (rack, least) = (&mut self.rack, self.round_trip.least);
        let mut arrived = |latest: &mut Latest, at, end, is_again| {
            rack.arrived(latest, (at, end, is_again), least, now);
        };
        let mut sent = self.sent.queue();
        if is_news {
            if let Some(sent) = &mut sent {
                sent.acknowledge(ack, &mut acked, &mut arrived);
            }
            self.una = ack;
        }
        let mut is_doubled = false;
        if self.may_sack {
            for (nth, &(left, right)) in segment.options.sacks.as_slice().iter().enumerate() {
                let is_right = left < right && right <= self.next;
                // The first block may tell of a range that has arrived twice (RFC 2883).
                if nth == 0 && right <= ack {
                    is_doubled = true;
                } else if is_right
                    && left >= ack
                    && let Some(sent) = &mut sent
                {
                    let segment = self.segment;
                    sent.sack((left, right), segment, &mut acked, &mut arrived);
                }
            }
        }
        if is_doubled {
            self.rack.allow_more();
        }
        if is_news {
            host.acknowledged(acked.bytes);
            self.note_use(now);
            self.advance(segment, &acked, now);
            if acked.fin {
                self.fin_arrived();
            }
        } else if is_duplicate {
            self.duplicates += 1;
        }
        self.check_probe(ack, is_doubled);
        self.find_losses(is_news, is_duplicate, now);
        if self.congestion.is_recovering() {
            self.congestion
                .pace_recovery(acked.delivered, self.sent.flight());
        } else if is_news && (self.is_limited || in_flight >= self.congestion.window / 2) {
            let bytes = acked.delivered.max(acked.bytes as u32);
            self.congestion.grow(bytes, now, self.round_trip.smoothed);
            self.follow_window(host);
        }
        if is_news || acked.delivered > 0 {
            self.rearm(now);
        }
    }

    /// Notes the peer's window, unless the segment is older than the one that told it last.
    fn take_window(&mut self, segment: &Segment, window: u32) {
        let is_newer = self.window_seq < segment.seq
            || self.window_seq == segment.seq && self.window_ack <= segment.ack;
        if segment.ack >= self.una && is_newer {
            // The window is counted from the oldest number that is not acknowledged.
            self.window = window;
            self.widest = self.widest.max(window);
            (self.window_seq, self.window_ack) = (segment.seq, segment.ack);
        } else if segment.ack > self.una {
            // The right edge stays.
            self.window = self.window.saturating_sub(segment.ack.since(self.una));
        }
    }

    /// Notes that numbers were acknowledged for the first time.
    fn advance(&mut self, segment: &Segment, acked: &Acked, now: u64) {
        if let Some(sent_at) = acked.sampled {
            self.round_trip.sample(now.saturating_sub(sent_at), now);
        } else if let (Some((_, echo)), Some(sent_at)) = (segment.options.stamps, acked.again_at)
            && self.has_stamps
            && Seq(echo) >= Seq(self.own_clock(sent_at))
        {
            // The timestamp tells that the last copy has arrived.
            self.round_trip.sample(now.saturating_sub(sent_at), now);
        }
        self.round_trip.backoff = 0;
        self.repetitions = 0;
        self.stalled_at = None;
        self.duplicates = 0;
        if self.urgent < self.una {
            self.urgent = self.una;
        }
        if self.timed_out.is_some_and(|end| self.una >= end) {
            self.timed_out = None;
        }
        if self
            .congestion
            .recovery_end()
            .is_some_and(|end| self.una >= end)
        {
            self.congestion.end_recovery();
            self.rack.repaired();
        }
    }

    /// The peer has our FIN.
    fn fin_arrived(&mut self) {
        match self.state {
            State::FinWait1 => self.state = State::FinWait2,
            State::Closing => {
                self.state = State::TimeWait;
                self.stop_timers();
            }
            State::LastAck => self.close(None),
            _ => {}
        }
    }

    /// Ends the episode of a probe for the last segments (RFC 8985 7.4).
    fn check_probe(&mut self, ack: Seq, is_doubled: bool) {
        let Some((end, repeats)) = self.probe else {
            return;
        };
        if !repeats || is_doubled && ack >= end {
            if ack >= end {
                self.probe = None;
            }
        } else if ack > end {
            // The probe has repaired a loss.
            self.probe = None;
            self.congestion
                .begin_recovery(self.sent.flight(), self.next);
            self.congestion.end_recovery();
        }
    }

    /// Marks what is lost, and begins its repair.
    fn find_losses(&mut self, is_news: bool, is_duplicate: bool, now: u64) {
        if self.sent.is_empty() {
            return;
        }
        let recovers = self.congestion.is_recovering() || self.timed_out.is_some();
        let flight = self.sent.flight();
        let any = if self.may_sack {
            if self.sent.is_plain() {
                return;
            }
            let (any, wait) = self
                .rack
                .detect(&mut self.sent, &self.round_trip, recovers, now);
            self.set_reordering(wait.map(|wait| now + wait));
            any
        } else if recovers {
            // The next hole of several (RFC 6582).
            is_news && self.sent.queue().is_some_and(Queue::lose_first)
        } else {
            is_duplicate
                && self.duplicates == DUPLICATES
                && self.sent.queue().is_some_and(Queue::lose_first)
        };
        if any && self.timed_out.is_none() {
            self.congestion.begin_recovery(flight, self.next);
        }
    }
}
