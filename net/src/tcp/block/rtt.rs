//! Round-trip times, and the time after which a segment counts as lost (RFC 6298).

/// Milliseconds and seconds in nanoseconds.
pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1000 * MS;
/// The least and the most of a retransmission timeout: Linux's `TCP_RTO_MIN` and `TCP_RTO_MAX`.
const LEAST: u64 = 200 * MS;
pub(super) const MOST: u64 = 120 * SECOND;
/// The timeout before the first measurement.
const INITIAL: u64 = SECOND;
/// The time for which the least round trip is remembered.
const MINIMUM_AGE: u64 = 300 * SECOND;

/// Estimates of a connection's round-trip time, in nanoseconds.
#[derive(Debug)]
pub(super) struct RoundTrip {
    /// The smoothed time; 0 before the first measurement.
    pub smoothed: u64,
    variation: u64,
    /// The least time of late, and when it was measured.
    pub least: u64,
    least_at: u64,
    /// Doublings of the timeout since the last news.
    pub backoff: u32,
}

impl RoundTrip {
    pub const fn new() -> RoundTrip {
        RoundTrip {
            smoothed: 0,
            variation: 0,
            least: 0,
            least_at: 0,
            backoff: 0,
        }
    }

    /// Takes a measurement at `now`.
    pub fn sample(&mut self, time: u64, now: u64) {
        let time = time.max(1);
        if self.smoothed == 0 {
            self.smoothed = time;
            self.variation = time / 2;
        } else {
            let error = self.smoothed.abs_diff(time);
            self.variation = (3 * self.variation + error) / 4;
            self.smoothed = (7 * self.smoothed + time) / 8;
        }
        if self.least == 0 || time <= self.least || now > self.least_at + MINIMUM_AGE {
            (self.least, self.least_at) = (time, now);
        }
    }

    /// Returns how much measurements differ.
    pub fn variation(&self) -> u64 {
        self.variation
    }

    /// Returns the timeout without doublings.
    pub fn base_timeout(&self) -> u64 {
        match self.smoothed {
            0 => INITIAL,
            smoothed => (smoothed + (4 * self.variation).max(LEAST)).min(MOST),
        }
    }

    /// Returns the timeout.
    pub fn timeout(&self) -> u64 {
        (self.base_timeout() << self.backoff.min(16)).min(MOST)
    }
}
