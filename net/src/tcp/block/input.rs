//! Arriving segments (RFC 9293 3.10.7, with RFC 5961 and RFC 7323).

use abi::Errno;

use super::{Block, Delivery, Host, MS, SECOND, State, Timer, time};
use crate::tcp::segment::{Flags, Segment, Seq};

/// Segments out of place are answered once in this time, unless they have data: Linux's
/// `tcp_invalid_ratelimit`.
const CHALLENGE_INTERVAL: u64 = 500 * MS;
/// The time after which the peer's clock may have gone round (RFC 7323 5.5).
const CLOCK_AGE: u64 = 24 * 86_400 * SECOND;
/// The time for which an acknowledgement may wait for data.
const DELAYED_ACK: u64 = 40 * MS;

impl Block {
    /// Takes a segment, and answers it.
    pub fn arrive(&mut self, segment: Segment, host: &mut dyn Host) {
        self.counts.received = self.counts.received.wrapping_add(1);
        if !segment.data.is_empty() {
            self.counts.received_with_data = self.counts.received_with_data.wrapping_add(1);
        }
        match self.state {
            State::Closed | State::Listen => return,
            State::SynSent => self.arrive_in_syn_sent(segment, host),
            _ => self.arrive_in_sequence(segment, host),
        }
        self.output(host);
    }

    fn arrive_in_syn_sent(&mut self, mut segment: Segment, host: &mut dyn Host) {
        let acks = segment.is(Flags::ACK);
        let is_right = segment.ack > self.start && segment.ack <= self.next;
        if acks && !is_right {
            if let Some(reset) = segment.refusal() {
                host.emit(reset);
            }
            return;
        }
        if segment.is(Flags::RST) {
            if acks {
                self.close(Some(Errno::ECONNREFUSED));
            }
            return;
        }
        if !segment.is(Flags::SYN) {
            return;
        }
        self.take_syn(&segment, host);
        self.heard_at = host.now();
        if !acks {
            // Both ends have asked at once.
            self.state = State::SynReceived;
            self.send_syn_again(host);
            return;
        }
        self.state = State::Established;
        self.acknowledge(&segment, host);
        self.ack_now = true;
        // What comes with the SYN is in the window that was offered.
        segment.seq += 1;
        segment.flags = segment.flags.without(Flags::SYN);
        if segment.len() > 0 {
            self.edge = self.due + (host.room() as u32).min(u16::MAX.into());
            self.take_data(segment, host);
        }
    }

    fn arrive_in_sequence(&mut self, mut segment: Segment, host: &mut dyn Host) {
        if self.state == State::SynReceived
            && segment.is(Flags::SYN)
            && !segment.is(Flags::RST)
            && segment.seq + 1 == self.due
        {
            if !segment.is(Flags::ACK) {
                // Our answer was lost.
                self.send_syn_again(host);
                return;
            }
            // The answer to ours, where both have asked at once.
            segment.seq += 1;
            segment.flags = segment.flags.without(Flags::SYN);
        }
        if !self.is_in_window(&segment) || self.is_old(&segment, host.now()) {
            self.answer_stray(segment, host);
            return;
        }
        if segment.is(Flags::RST) {
            if segment.seq == self.due {
                self.be_reset();
            } else {
                self.challenge(host);
            }
            return;
        }
        if segment.is(Flags::SYN) {
            self.challenge(host);
            return;
        }
        if !segment.is(Flags::ACK) {
            return;
        }
        if !self.confirms(&segment, host) {
            return;
        }
        self.heard_at = host.now();
        self.keep_probes = 0;
        if let Some((_, Timer::Persist)) = self.timer
            && !self.is_orphan
        {
            // A peer that answers probes lives.
            self.repetitions = 0;
            self.stalled_at = None;
        }
        if let Some((clock, _)) = segment.options.stamps
            && self.has_stamps
            && segment.seq <= self.told
        {
            (self.peer_clock, self.peer_clock_at) = (clock, host.now());
        }
        self.acknowledge(&segment, host);
        if self.state == State::Closed {
            return;
        }
        if segment.is(Flags::URG) && segment.urgent > 0 && self.receives() {
            let urgent = segment.seq + u32::from(segment.urgent);
            if urgent > self.due && self.peer_urgent.is_none_or(|old| urgent > old) {
                self.peer_urgent = Some(urgent);
            }
        }
        if segment.len() > 0 {
            self.take_data(segment, host);
        }
    }

    /// Tells whether the peer's stream has not ended.
    fn receives(&self) -> bool {
        matches!(
            self.state,
            State::Established | State::FinWait1 | State::FinWait2
        )
    }

    /// Tells whether a segment begins or ends in the receive window.
    fn is_in_window(&self, segment: &Segment) -> bool {
        let window = self.edge.since(self.due);
        let begins = segment.seq >= self.due && segment.seq < self.due + window;
        match (segment.len(), window) {
            (_, 0) => segment.seq == self.due,
            (0, _) => begins || segment.seq == self.edge,
            (len, _) => begins || segment.seq < self.due && segment.seq + len > self.due,
        }
    }

    /// Tells whether the timestamp shows a segment of earlier (PAWS, RFC 7323 5).
    fn is_old(&self, segment: &Segment, now: u64) -> bool {
        if !self.has_stamps || segment.is(Flags::RST) {
            return false;
        }
        segment.options.stamps.is_some_and(|(clock, _)| {
            Seq(clock) < Seq(self.peer_clock) && now < self.peer_clock_at + CLOCK_AGE
        })
    }

    /// Answers a segment that does not belong here.
    fn answer_stray(&mut self, segment: Segment, host: &mut dyn Host) {
        if segment.is(Flags::RST) {
            return;
        }
        if segment.data.is_empty() && !segment.is(Flags::FIN) {
            self.challenge(host);
            return;
        }
        if self.may_sack && segment.end() <= self.due {
            self.doubled = Some((segment.seq, segment.seq + segment.data.len() as u32));
        }
        self.ack_now = true;
    }

    /// Acknowledges a segment that may be an attacker's guess, at a limited rate.
    fn challenge(&mut self, host: &mut dyn Host) {
        let now = host.now();
        if now >= self.challenged_at + CHALLENGE_INTERVAL || self.challenged_at == 0 {
            self.challenged_at = now;
            self.ack_now = true;
        }
    }

    fn be_reset(&mut self) {
        let error = match self.state {
            State::SynReceived if self.is_active => Some(Errno::ECONNREFUSED),
            State::SynReceived => Some(Errno::ECONNABORTED),
            // Both ends have finished.
            State::LastAck | State::TimeWait | State::Closing => None,
            State::CloseWait => Some(Errno::EPIPE),
            _ => Some(Errno::ECONNRESET),
        };
        self.close(error);
    }

    /// Checks the acknowledgement of a segment; establishes the connection by the first one.
    fn confirms(&mut self, segment: &Segment, host: &mut dyn Host) -> bool {
        // A connection may have been finished before it was established.
        if self.una == self.start {
            if segment.ack <= self.una || segment.ack > self.next {
                if let Some(reset) = segment.refusal() {
                    host.emit(reset);
                }
                return false;
            }
            if self.state == State::SynReceived {
                self.state = State::Established;
            }
            self.window_seq = segment.seq - 1;
            return true;
        }
        // RFC 5961 5: not older than the largest window.
        let oldest = self.una - self.widest.max(u16::MAX.into());
        if segment.ack > self.next || segment.ack < oldest {
            self.challenge(host);
            return false;
        }
        true
    }

    /// Takes the data and the end of the stream in a segment that overlaps the window.
    fn take_data(&mut self, mut segment: Segment, host: &mut dyn Host) {
        if !self.receives() {
            // The peer goes on behind its own end: nothing of that is kept.
            self.ack_now = true;
            return;
        }
        if segment.seq < self.due {
            let known = self.due.since(segment.seq);
            if self.may_sack {
                self.doubled = Some((segment.seq, self.due.min(segment.end())));
            }
            segment.data.clip_front(known as usize);
            segment.seq = self.due;
            self.ack_now = true;
        }
        let room = self.edge.since(segment.seq) as usize;
        let is_cut = segment.data.len() > room;
        if is_cut {
            self.ack_now = true;
            let mut data = core::mem::take(&mut segment.data);
            match super::sent::split(&mut data, room) {
                Ok(front) => segment.data = front,
                Err(_) => return,
            }
        }
        let end = segment.seq + segment.data.len() as u32;
        if segment.is(Flags::FIN) && !is_cut && self.fin_at.is_none() {
            self.fin_at = Some(end);
        }
        self.arrives = self
            .arrives
            .max((segment.data.len() as u32).min(u16::MAX.into()));
        if segment.seq > self.due {
            if !segment.data.is_empty() {
                let window = self.edge.since(self.due) as usize;
                let known = self.gaps.insert(segment.seq, segment.data, window);
                if known && self.may_sack {
                    self.doubled = Some((segment.seq, end));
                }
            }
            self.ack_now = true;
            self.quick = self.quick.max(1);
            return;
        }
        let closes_gap = !self.gaps.is_empty();
        if !closes_gap && !segment.data.is_empty() {
            self.measure_as_receiver(&segment, host.now());
        }
        if !segment.data.is_empty() && !self.deliver(segment.data, host) {
            return;
        }
        while let Some(data) = self.gaps.take(self.due) {
            if !data.is_empty() && !self.deliver(data, host) {
                return;
            }
        }
        if self.fin_at == Some(self.due) {
            self.take_fin();
            return;
        }
        self.acknowledge_data(closes_gap, host.now());
    }

    /// Adds bytes in order to the receive queue. Returns whether the connection goes on with them.
    fn deliver(&mut self, data: fbuf::Aggregate, host: &mut dyn Host) -> bool {
        let len = data.len() as u32;
        // The urgent byte is the one before the place.
        let urgent = self.peer_urgent.and_then(|urgent| {
            let at = (urgent - 1).since(self.due);
            (urgent > self.due && at < len).then_some(at as usize)
        });
        match host.deliver(data, urgent) {
            Delivery::Taken => {
                if urgent.is_some() {
                    self.peer_urgent = None;
                }
                self.due += len;
                self.note_use(host.now());
                true
            }
            Delivery::Full => {
                self.ack_now = true;
                false
            }
            Delivery::Abandoned => {
                self.send_reset(host);
                self.close(None);
                false
            }
        }
    }

    fn take_fin(&mut self) {
        self.due += 1;
        self.edge = self.edge.max(self.due);
        self.ack_now = true;
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => {
                self.state = State::TimeWait;
                self.stop_timers();
            }
            _ => {}
        }
    }

    /// Decides when data in order is acknowledged.
    fn acknowledge_data(&mut self, closes_gap: bool, now: u64) {
        self.unacked = self.unacked.saturating_add(1);
        let is_much = self.due.since(self.told) >= 2 * self.arrives;
        if closes_gap || is_much || self.unacked >= 2 && self.arrives > 2 * self.segment {
            self.ack_now = true;
        } else if self.quick > 0 {
            self.quick -= 1;
            self.ack_now = true;
        } else if self.delayed_ack.is_none() {
            self.delayed_ack = time(now + DELAYED_ACK);
        }
    }
}
