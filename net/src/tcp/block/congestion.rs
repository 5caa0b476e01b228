//! Congestion control: NewReno (RFC 5681, RFC 6582), CUBIC (RFC 9438), and proportional rate
//! reduction while losses are repaired (RFC 6937).

use super::rtt::MS;
use crate::tcp::segment::Seq;

/// Segments of the first window (RFC 6928).
const FIRST_WINDOW: u32 = 10;
/// The largest window in bytes: no receiver's is larger.
const MOST: u32 = 1 << 30;

/// How the window grows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Algorithm {
    /// By a function of the time since the last loss.
    #[default]
    Cubic,
    /// By a segment for each round trip.
    NewReno,
}

/// The repair of losses, which ends when all that was sent before it has arrived.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    end: Seq,
    /// Bytes that were on their way at the beginning.
    flight: u32,
    delivered: u32,
    sent: u32,
}

/// The state of CUBIC since the last loss.
#[derive(Clone, Copy, Default, Debug)]
struct Cubic {
    /// The window before it, in bytes.
    top: u32,
    /// When growth began, in nanoseconds; 0 if it has not.
    since: u64,
    /// Milliseconds until the window is `top` again.
    rise: u64,
    /// The window of NewReno at the same time, in bytes.
    friendly: u32,
}

/// The congestion window of a connection.
#[derive(Debug)]
pub(super) struct Congestion {
    pub algorithm: Algorithm,
    /// Bytes of a segment.
    segment: u32,
    /// Bytes that may be on their way.
    pub window: u32,
    pub threshold: u32,
    /// Bytes that count towards the next step of growth.
    credit: u32,
    cubic: Cubic,
    recovery: Option<Recovery>,
}

/// Returns the largest number whose cube is at most `n`.
fn cube_root(n: u64) -> u64 {
    let (mut low, mut high) = (0, 2_642_245);
    while low < high {
        let middle = u64::midpoint(low, high + 1);
        if middle * middle * middle <= n {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

impl Congestion {
    pub const fn new(algorithm: Algorithm, segment: u32) -> Congestion {
        Congestion {
            algorithm,
            segment,
            window: FIRST_WINDOW * segment,
            threshold: MOST,
            credit: 0,
            cubic: Cubic {
                top: 0,
                since: 0,
                rise: 0,
                friendly: 0,
            },
            recovery: None,
        }
    }

    /// Notes the size of segments. Before anything was sent, the first window follows it.
    pub fn set_segment(&mut self, segment: u32, is_first: bool) {
        self.segment = segment.max(1);
        if is_first {
            self.window = FIRST_WINDOW * self.segment;
        }
    }

    pub fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    /// Returns the number whose arrival ends the repair.
    pub fn recovery_end(&self) -> Option<Seq> {
        self.recovery.map(|recovery| recovery.end)
    }

    /// Grows after `bytes` have arrived, while the window limits the sender.
    pub fn grow(&mut self, bytes: u32, now: u64, round_trip: u64) {
        if self.window < self.threshold {
            // All bytes count, without RFC 3465's limit of two segments, as on Linux: where cards
            // merge segments, one acknowledgement is for up to 64 KiB.
            let most = self.threshold.max(self.window + self.segment).min(MOST);
            self.window = (self.window + bytes).min(most);
            return;
        }
        let target = match self.algorithm {
            Algorithm::NewReno => self.window + self.segment,
            Algorithm::Cubic => self.cubic_target(bytes, now + round_trip),
        };
        // In one round trip the window reaches the target.
        let missing = u64::from(target.saturating_sub(self.window));
        let step = missing * u64::from(bytes) + u64::from(self.credit);
        let window = u64::from(self.window.max(1));
        self.credit = (step % window) as u32;
        // More may have arrived than the window, which losses have made small.
        self.window = (self.window + (step / window).min(missing) as u32).min(MOST);
    }

    fn cubic_target(&mut self, bytes: u32, at: u64) -> u32 {
        let segment = self.segment;
        let cubic = &mut self.cubic;
        if cubic.since == 0 {
            cubic.since = at;
            cubic.friendly = self.window;
            cubic.top = cubic.top.max(self.window);
            let below = u64::from((cubic.top - self.window) / segment);
            // K = cbrt(segments / 0.4) seconds.
            cubic.rise = cube_root(below.min(1 << 31) * 2_500_000_000);
        }
        let time = at.saturating_sub(cubic.since) / MS;
        let distance = (time as i64 - cubic.rise as i64).clamp(-1_000_000, 1_000_000);
        // 0.4 segments times the cube of seconds.
        let segments = distance * distance * distance / 10_000_000 * 4 / 1000;
        let target = i64::from(cubic.top) + segments.clamp(-1 << 20, 1 << 20) * i64::from(segment);
        // 3 (1 - 0.7) / (1 + 0.7) segments for each window.
        let step = u64::from(segment) * u64::from(bytes) * 9 / 17 / u64::from(self.window.max(1));
        cubic.friendly = cubic.friendly.saturating_add(step as u32).min(MOST);
        // Not more than half as much again for each round trip.
        let most = i64::from(self.window) * 3 / 2;
        let target = target.clamp(i64::from(self.window), most) as u32;
        target.max(cubic.friendly)
    }

    /// Returns what a loss leaves of the window.
    fn reduce(&mut self) -> u32 {
        let window = self.window;
        self.credit = 0;
        let kept = match self.algorithm {
            Algorithm::NewReno => window / 2,
            Algorithm::Cubic => {
                // Fast convergence: a flow that lost below its last top makes room for others.
                let top = match window < self.cubic.top {
                    true => (u64::from(window) * 17 / 20) as u32,
                    false => window,
                };
                self.cubic = Cubic {
                    top,
                    ..Cubic::default()
                };
                (u64::from(window) * 7 / 10) as u32
            }
        };
        kept.max(2 * self.segment)
    }

    /// Begins the repair of losses, with `flight` bytes on their way and `end` the next number.
    pub fn begin_recovery(&mut self, flight: u32, end: Seq) {
        if self.recovery.is_none() {
            self.threshold = self.reduce();
            self.recovery = Some(Recovery {
                end,
                flight: flight.max(1),
                delivered: 0,
                sent: 0,
            });
        }
    }

    /// Sets the window during the repair, after `delivered` more bytes have arrived and `flight`
    /// are on their way.
    pub fn pace_recovery(&mut self, delivered: u32, flight: u32) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        recovery.delivered = recovery.delivered.saturating_add(delivered);
        let may_send = if flight > self.threshold {
            let share = u64::from(recovery.delivered) * u64::from(self.threshold);
            let share = share.div_ceil(u64::from(recovery.flight)) as u32;
            share.saturating_sub(recovery.sent)
        } else {
            let owed = recovery.delivered.saturating_sub(recovery.sent);
            (self.threshold - flight).min(owed.max(delivered) + self.segment)
        };
        let least = if recovery.sent == 0 { self.segment } else { 0 };
        self.window = flight + may_send.max(least);
    }

    /// Counts bytes that were sent.
    pub fn sent(&mut self, bytes: u32) {
        if let Some(recovery) = &mut self.recovery {
            recovery.sent = recovery.sent.saturating_add(bytes);
        }
    }

    /// Ends the repair.
    pub fn end_recovery(&mut self) {
        if self.recovery.take().is_some() {
            self.window = self.threshold;
        }
    }

    /// Begins anew after a timeout. Further ones for the same bytes change only the window.
    pub fn time_out(&mut self, is_first: bool) {
        if is_first {
            self.threshold = self.reduce();
        }
        self.recovery = None;
        self.window = self.segment;
    }

    /// Takes back growth that is too old to say anything about the path (RFC 2861).
    pub fn restart_after_idle(&mut self) {
        self.window = self.window.min(FIRST_WINDOW * self.segment);
        self.cubic.since = 0;
    }
}
