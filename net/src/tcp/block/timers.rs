//! Timers: each block has one for what it sends, and those that are computed from times that it
//! keeps.

use core::num::NonZeroU64;

use abi::Errno;

use super::{
    Block, Host, State, rack,
    rtt::{MOST, MS, SECOND},
    time,
};

/// Repetitions after which a connection ends: Linux's `tcp_retries2`, and `tcp_synack_retries`.
const REPETITIONS: u32 = 15;
const ANSWER_REPETITIONS: u32 = 5;
/// Those of an end that no program has: Linux's `tcp_orphan_retries`.
const ORPHAN_REPETITIONS: u32 = 8;

/// The time after which a connection without traffic frees the memory for its next bytes: the least
/// after which a handshake sets no timer earlier than the one for its SYN.
const IDLE: u64 = SECOND;
/// The time after which one is looked at again whose program leaves bytes unread.
const UNREAD: u64 = 60 * SECOND;

/// The time of a timer that does not run.
const NEVER: u64 = u64::MAX;

/// What the timer for what was sent is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Timer {
    /// All that was sent counts as lost.
    Retransmit,
    /// The last pieces may be lost: one is sent again.
    Probe,
    /// Pieces may be lost by now, and not only late.
    Reordering,
    /// The peer's window may have opened.
    Persist,
}

impl Block {
    /// Returns when [`run_timers`](Block::run_timers) is due, in nanoseconds since boot.
    pub fn timer_due(&self) -> Option<u64> {
        let at = |time: Option<NonZeroU64>| time.map_or(NEVER, NonZeroU64::get);
        let due = self
            .timer
            .map_or(NEVER, |(at, _)| at)
            .min(at(self.delayed_ack))
            .min(at(self.corked_until))
            .min(at(self.trim_at))
            .min(self.keep_due().unwrap_or(NEVER));
        (due != NEVER).then_some(due)
    }

    pub(super) fn keep_due(&self) -> Option<u64> {
        let lives = matches!(
            self.state,
            State::Established | State::CloseWait | State::FinWait1 | State::FinWait2
        );
        (self.settings.keep_alive && lives && self.sent.is_empty()).then(|| {
            let probes = u64::from(self.keep_probes);
            let settings = &self.settings;
            let wait = u64::from(settings.keep_idle) + probes * u64::from(settings.keep_interval);
            self.heard_at + wait * SECOND
        })
    }

    pub(super) fn stop_timers(&mut self) {
        self.timer = None;
        self.delayed_ack = None;
        self.corked_until = None;
        self.trim_at = None;
    }

    /// Notes that memory is in use which an idle connection frees.
    pub(super) fn note_use(&mut self, now: u64) {
        self.trim_at = time(now + IDLE);
    }

    /// Frees the send queue if it is empty: for an end that sends no further data by segments.
    pub fn trim_sent(&mut self) {
        self.sent.trim();
    }

    /// Frees memory that only bytes on their way need, unless some wait to be sent or acknowledged.
    fn trim(&mut self, now: u64, host: &mut dyn Host) {
        // What is acknowledged and received from now on sets the time anew.
        self.trim_at = None;
        if !self.sent.is_empty() || host.unsent() > 0 {
            return;
        }
        self.sent.trim();
        host.trim();
        if host.unread() > 0 {
            self.trim_at = time(now + UNREAD);
        }
    }

    /// Starts the timer for what was sent unless it runs.
    pub(super) fn arm(&mut self, now: u64) {
        match self.timer {
            None | Some((_, Timer::Persist)) => self.rearm(now),
            // A probe is due some time after the last segment.
            Some((_, Timer::Probe)) => self.rearm(now),
            Some(_) => {}
        }
    }

    /// Starts the timer for what was sent anew, or stops it.
    pub(super) fn rearm(&mut self, now: u64) {
        if self.sent.is_empty() {
            self.timer = None;
            return;
        }
        if let Some((_, Timer::Reordering)) = self.timer
            && self.sent.flight() > 0
        {
            return;
        }
        let may_probe = self.may_sack
            && self.state != State::SynSent
            && self.state != State::SynReceived
            && self.probe.is_none()
            && !self.congestion.is_recovering()
            && self.timed_out.is_none()
            && self.repetitions == 0
            && self.sent.is_plain();
        let (time, what) = match may_probe {
            true => {
                let time = rack::probe_time(&self.round_trip, self.sent.count());
                (time, Timer::Probe)
            }
            false => (self.round_trip.timeout(), Timer::Retransmit),
        };
        self.timer = Some((now + time, what));
    }

    /// Sets the time at which late pieces are lost, or takes it back.
    pub(super) fn set_reordering(&mut self, at: Option<u64>) {
        match (at, self.timer) {
            (Some(at), _) => self.timer = Some((at, Timer::Reordering)),
            (None, Some((_, Timer::Reordering))) => self.timer = None,
            _ => {}
        }
    }

    /// Starts to ask for a window, unless that goes on.
    pub(super) fn arm_persist(&mut self, now: u64) {
        if self.timer.is_none() {
            self.timer = Some((now + self.round_trip.timeout(), Timer::Persist));
        }
    }

    /// Runs the timers that are due.
    pub fn run_timers(&mut self, host: &mut dyn Host) {
        let now = host.now();
        if self.delayed_ack.is_some_and(|at| at.get() <= now) {
            self.ack_now = true;
        }
        if let Some((at, what)) = self.timer
            && at <= now
        {
            self.timer = None;
            match what {
                Timer::Retransmit => self.time_out(host),
                Timer::Probe => {
                    self.send_probe(host);
                    self.rearm(now);
                }
                Timer::Reordering => self.time_out_reordering(now),
                Timer::Persist => self.persist(host),
            }
        }
        if self.keep_due().is_some_and(|at| at <= now) {
            self.keep_alive(host);
        }
        if self.state != State::Closed {
            self.output(host);
        }
        if self.corked_until.is_some_and(|at| at.get() <= now) {
            self.corked_until = None;
        }
        if self.trim_at.is_some_and(|at| at.get() <= now) {
            self.trim(now, host);
        }
    }

    /// Counts a repetition. Returns whether the peer has been silent for too long.
    fn gives_up(&mut self, now: u64) -> bool {
        self.stalled_at = self.stalled_at.or(time(now));
        let since = self.stalled_at.map_or(now, NonZeroU64::get);
        self.repetitions += 1;
        self.round_trip.backoff = (self.round_trip.backoff + 1).min(16);
        let most = match self.state {
            State::SynSent => self.settings.syn_repetitions.into(),
            State::SynReceived => ANSWER_REPETITIONS,
            _ if self.is_orphan => ORPHAN_REPETITIONS,
            _ => REPETITIONS,
        };
        let timeout = u64::from(self.settings.user_timeout) * MS;
        let is_over = match timeout > 0 && self.state != State::SynReceived {
            true => now - since >= timeout,
            false => self.repetitions > most,
        };
        if is_over {
            self.close(Some(Errno::ETIMEDOUT));
        }
        is_over
    }

    fn time_out(&mut self, host: &mut dyn Host) {
        let now = host.now();
        if self.gives_up(now) {
            return;
        }
        if matches!(self.state, State::SynSent | State::SynReceived) {
            self.send_syn_again(host);
            self.rearm(now);
            return;
        }
        let is_first = self.timed_out.is_none();
        self.timed_out = Some(self.next);
        self.probe = None;
        self.duplicates = 0;
        if is_first {
            self.congestion.time_out(true);
        } else {
            self.congestion.time_out(false);
            // The receiver may have dropped what it had reported (RFC 2018 8).
            if let Some(sent) = self.sent.queue() {
                sent.forget_sacks();
            }
        }
        self.sent.mark_lost(|_| true);
        self.rearm(now);
    }

    fn time_out_reordering(&mut self, now: u64) {
        let flight = self.sent.flight();
        let recovers = self.congestion.is_recovering() || self.timed_out.is_some();
        let (any, wait) = self
            .rack
            .detect(&mut self.sent, &self.round_trip, recovers, now);
        if any && self.timed_out.is_none() {
            self.congestion.begin_recovery(flight, self.next);
            self.congestion.pace_recovery(0, self.sent.flight());
        }
        self.set_reordering(wait.map(|wait| now + wait));
        if self.timer.is_none() {
            self.rearm(now);
        }
    }

    /// Asks for the peer's window by a segment that it must answer.
    fn persist(&mut self, host: &mut dyn Host) {
        let now = host.now();
        if self.window > 0 {
            // Memory was short, or the window is small for long.
            self.pushes = true;
            return;
        }
        if self.gives_up(now) {
            return;
        }
        self.send_ack(self.una - 1, host);
        self.timer = Some((now + self.round_trip.timeout().min(MOST), Timer::Persist));
    }

    fn keep_alive(&mut self, host: &mut dyn Host) {
        let now = host.now();
        let timeout = u64::from(self.settings.user_timeout) * MS;
        let is_over = match timeout > 0 {
            true => self.keep_probes > 0 && now - self.heard_at >= timeout,
            false => self.keep_probes >= self.settings.keep_count.into(),
        };
        if is_over {
            self.send_reset(host);
            self.close(Some(Errno::ETIMEDOUT));
            return;
        }
        self.keep_probes += 1;
        self.send_ack(self.una - 1, host);
    }
}
