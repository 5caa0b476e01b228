//! What an end tells of itself (`TCP_INFO`).

use super::{Block, Timer};

/// Segments that an end has sent and received.
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Counts {
    pub sent: u32,
    pub received: u32,
    pub sent_with_data: u32,
    pub received_with_data: u32,
    /// Segments that were sent again, and the bytes in them.
    pub repeated: u32,
    pub repeated_bytes: u64,
}

/// How an end does. Times are in nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Info {
    /// Losses are being repaired.
    pub is_recovering: bool,
    /// They were found by a timeout.
    pub has_timed_out: bool,
    /// Repetitions without an answer, and doublings of the timeout.
    pub repetitions: u32,
    pub backoff: u32,
    pub keep_probes: u32,
    pub has_stamps: bool,
    pub may_sack: bool,
    pub peer_scale: u8,
    pub own_scale: u8,
    pub timeout: u64,
    pub round_trip: u64,
    pub variation: u64,
    pub least_round_trip: u64,
    /// Bytes of payload in the segments to and from the peer, and the most that it may send.
    pub segment: u32,
    pub peer_segment: u32,
    pub own_largest: u32,
    /// Bytes that may be on their way, and the limit of slow start; `u32::MAX` for none.
    pub window: u32,
    pub threshold: u32,
    /// Pieces that were sent and not acknowledged; how many of them arrived, are lost, were sent
    /// again.
    pub pieces: u32,
    pub sacked: u32,
    pub lost: u32,
    pub again: u32,
    /// The peer's receive window.
    pub peer_window: u32,
    /// Bytes that the program reads in a round trip, and that as the receiver sees it.
    pub read_in_trip: u32,
    pub receiver_trip: u64,
    /// Times since data were sent and the peer was heard.
    pub sent_before: u64,
    pub heard_before: u64,
    pub counts: Counts,
    /// Linux's number of the timer that runs (retransmission, keep-alive, window probe), and the
    /// time that it still takes.
    pub timer: u8,
    pub timer_left: u64,
}

impl Block {
    /// Returns how the end does at `now`.
    pub fn info(&self, now: u64) -> Info {
        let (sacked, lost, again) = self.sent.scores();
        let (timer, due) = match self.timer {
            Some((due, Timer::Persist)) => (4, due),
            Some((due, _)) => (1, due),
            None => match self.keep_due() {
                Some(due) => (2, due),
                None => (0, now),
            },
        };
        Info {
            is_recovering: self.congestion.is_recovering(),
            has_timed_out: self.timed_out.is_some(),
            repetitions: self.repetitions,
            backoff: self.round_trip.backoff,
            keep_probes: self.keep_probes,
            has_stamps: self.has_stamps,
            may_sack: self.may_sack,
            peer_scale: self.peer_scale,
            own_scale: self.own_scale,
            timeout: self.round_trip.timeout(),
            round_trip: self.round_trip.smoothed,
            variation: self.round_trip.variation(),
            least_round_trip: self.round_trip.least,
            segment: self.segment,
            peer_segment: self.arrives,
            own_largest: self.path.largest.into(),
            window: self.congestion.window,
            threshold: self.congestion.threshold,
            pieces: self.sent.count() as u32,
            sacked,
            lost,
            again,
            peer_window: self.window,
            read_in_trip: self.pace.best(),
            receiver_trip: self.pace.round_trip,
            sent_before: now.saturating_sub(self.sent_at),
            heard_before: now.saturating_sub(self.heard_at),
            counts: self.counts,
            timer,
            timer_left: due.saturating_sub(now),
        }
    }
}
