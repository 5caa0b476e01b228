//! Segments to send: SYNs, data and its repetition, acknowledgements.

use super::{Block, Host, MS, Piece, State, rtt::SECOND, time};
use crate::{
    counters::Counter,
    tcp::segment::{Flags, MAX_SACKS, Options, Sacks, Segment, Seq},
};
use fbuf::Aggregate;
use nucleus::PAGE_SIZE;

/// The time for which a small segment is held back (`TCP_CORK`).
const CORKED: u64 = 200 * MS;
/// Less than a large packet waits for more while so many segments are under way: the peer
/// acknowledges these at once.
const GATHERED_BEHIND: u32 = 4;
/// The longest round-trip time with which it waits, in nanoseconds.
const NEAR: u64 = MS;
/// The least segment that may end with a page instead: it loses less than half of its bytes.
const LEAST_PAGED: u32 = 2 * PAGE_SIZE as u32;
/// Blocks of SACK that fit beside timestamps.
const SACKS_BESIDE_STAMPS: usize = 3;
/// Bytes of an option with one block.
const ONE_SACK: u32 = 12;

impl Block {
    /// Sends the SYN, alone or with an acknowledgement, for the first time.
    pub(super) fn send_syn(&mut self, host: &mut dyn Host) {
        if self.sent.reserve(self.start).is_ok() {
            self.sent.push(Piece {
                seq: self.start,
                data: Aggregate::new(),
                flags: Flags::SYN,
                sent_at: host.now(),
                is_again: false,
                is_sacked: false,
                is_lost: false,
            });
        }
        self.next = self.start + 1;
        self.emit_syn(host);
        self.rearm(host.now());
    }

    /// Sends the SYN again.
    pub(super) fn send_syn_again(&mut self, host: &mut dyn Host) {
        self.sent.resend_last(0, host.now());
        self.emit_syn(host);
    }

    fn emit_syn(&mut self, host: &mut dyn Host) {
        self.counts.sent = self.counts.sent.wrapping_add(1);
        let answers = self.state != State::SynSent;
        let window = (host.room() as u32).min(u16::MAX.into());
        let now = host.now();
        let mut segment = Segment {
            seq: self.start,
            flags: Flags::SYN,
            window: window as u16,
            options: Options {
                largest: Some(self.path.largest),
                // An answer has the options that the SYN had.
                scale: (self.own_scale > 0).then_some(self.own_scale),
                may_sack: self.may_sack,
                stamps: self.has_stamps.then(|| (self.own_clock(now), 0)),
                sacks: Sacks::default(),
            },
            ..Segment::default()
        };
        if answers {
            segment.flags = Flags::SYN.with(Flags::ACK);
            segment.ack = self.due;
            if let Some((_, echo)) = &mut segment.options.stamps {
                *echo = self.peer_clock;
            }
            self.edge = self.edge.max(self.due + window);
            self.told = self.due;
        }
        host.emit(segment);
    }

    /// Sends all that may be sent now, and an acknowledgement if one is owed.
    pub fn output(&mut self, host: &mut dyn Host) {
        match self.state {
            State::Closed | State::Listen | State::SynSent | State::SynReceived => return,
            State::TimeWait | State::FinWait2 => {}
            _ => {
                self.resend(host);
                self.send_data(host);
            }
        }
        if self.ack_now {
            self.send_ack(self.next, host);
        }
    }

    /// The program has taken bytes from the receive queue: tells the peer if the window has become
    /// much larger.
    pub fn room_grew(&mut self, host: &mut dyn Host) {
        if !matches!(
            self.state,
            State::Established | State::FinWait1 | State::FinWait2
        ) {
            return;
        }
        self.follow_reader(host);
        let (told, new) = (self.edge.since(self.due), host.room() as u32);
        // Twice what is left, as on Linux, or enough after silence.
        if new >= 2 * told && new.saturating_sub(told) >= self.least_growth(new) {
            self.send_ack(self.next, host);
        }
    }

    /// Returns by how much the window grows at least (RFC 9293 3.8.6.2.2).
    fn least_growth(&self, room: u32) -> u32 {
        self.arrives.min((room / 2).max(1))
    }

    /// Computes the window that a segment shows, and moves its edge.
    fn advertise(&mut self, host: &dyn Host) -> u16 {
        let room = (host.room() as u32).min(u32::from(u16::MAX) << self.own_scale);
        let edge = self.due + (room >> self.own_scale << self.own_scale);
        if edge > self.edge && edge.since(self.edge) >= self.least_growth(room) {
            self.edge = edge;
        }
        let window = self.edge.since(self.due) >> self.own_scale;
        window.min(u16::MAX.into()) as u16
    }

    /// Sends a segment with an acknowledgement.
    fn emit(&mut self, seq: Seq, flags: Flags, data: Aggregate, host: &mut dyn Host) {
        let now = host.now();
        let window = self.advertise(host);
        let mut options = Options::default();
        if self.has_stamps {
            options.stamps = Some((self.own_clock(now), self.peer_clock));
        }
        let has_report = self.may_sack && (self.doubled.is_some() || !self.gaps.is_empty());
        // A segment that is full of data has no room for a report, which goes alone then.
        let fits = data.len() as u32 + ONE_SACK <= self.segment;
        let owes_report = has_report && !fits && self.ack_now;
        if has_report && (fits || data.is_empty()) {
            if let Some((left, right)) = self.doubled.take() {
                options.sacks.push(left, right);
            }
            self.gaps.report(&mut options.sacks);
            options
                .sacks
                .truncate(match (self.has_stamps, data.is_empty()) {
                    (_, false) => 1,
                    (true, true) => SACKS_BESIDE_STAMPS,
                    (false, true) => MAX_SACKS,
                });
        }
        let mut segment = Segment {
            seq,
            ack: self.due,
            flags: flags.with(Flags::ACK),
            window,
            urgent: 0,
            options,
            data,
            cut: 0,
        };
        if segment.data.len() > self.segment as usize {
            segment.cut = self.segment as u16;
        }
        if self.urgent > seq {
            let ahead = self.urgent.since(seq);
            segment.flags = segment.flags.with(Flags::URG);
            segment.urgent = ahead.min(u16::MAX.into()) as u16;
        }
        self.told = self.due;
        self.ack_now = owes_report;
        self.delayed_ack = None;
        self.unacked = 0;
        self.counts.sent = self.counts.sent.wrapping_add(1);
        if !segment.data.is_empty() {
            self.counts.sent_with_data = self.counts.sent_with_data.wrapping_add(1);
        }
        host.emit(segment);
    }

    /// Sends an acknowledgement without data.
    pub(super) fn send_ack(&mut self, seq: Seq, host: &mut dyn Host) {
        self.emit(seq, Flags::default(), Aggregate::new(), host);
    }

    /// Returns the most bytes of one segment; a lower layer cuts it.
    fn burst(&self) -> u32 {
        let bulk = self.path.bulk.min(u16::MAX.into());
        (bulk / self.segment * self.segment).max(self.segment)
    }

    fn note_repeated(&mut self, bytes: usize) {
        Counter::tcp_segments_repeated.add(1);
        self.counts.repeated = self.counts.repeated.wrapping_add(1);
        self.counts.repeated_bytes += bytes as u64;
    }

    /// Sends lost pieces again.
    fn resend(&mut self, host: &mut dyn Host) {
        while self.sent.has_lost() {
            let flight = self.sent.flight();
            if flight > 0 && flight >= self.congestion.window {
                return;
            }
            let edge = self.una + self.window.max(1);
            let (now, most) = (host.now(), self.segment as usize);
            let piece = self.sent.queue();
            let Some(piece) = piece.and_then(|sent| sent.resend(edge, most, now)) else {
                return;
            };
            let (seq, flags, data) = (piece.seq, piece.flags, piece.data.clone());
            self.note_repeated(data.len());
            if flags.has(Flags::SYN) {
                self.emit_syn(host);
            } else {
                self.congestion.sent(data.len() as u32);
                self.emit(seq, flags.with(Flags::PSH), data, host);
            }
            self.sent_at = now;
            self.arm(now);
        }
    }

    /// Sends new data, and the FIN behind it.
    fn send_data(&mut self, host: &mut dyn Host) {
        let now = host.now();
        self.is_limited = false;
        if self.fin_sent {
            return;
        }
        let waits = host.unsent();
        if waits == 0 && !self.wants_fin {
            return;
        }
        if self.sent.is_empty() && now > self.sent_at + self.round_trip.timeout().max(SECOND / 5) {
            self.congestion.restart_after_idle();
        }
        if let Some(ahead) = host.urgent() {
            self.urgent = self.urgent.max(self.next + ahead as u32);
        }
        while let Some((len, fin)) = self.next_segment(host, now) {
            if !self.send_piece(len, fin, host, now) {
                // Memory is short: the timer tries again.
                self.arm_persist(now);
                return;
            }
            if fin {
                return;
            }
        }
        if self.sent.is_empty() && (host.unsent() > 0 || self.wants_fin) {
            self.arm_persist(now);
        }
    }

    /// Returns how many bytes the next segment has, and whether the FIN; `None` if none is sent
    /// now.
    fn next_segment(&mut self, host: &dyn Host, now: u64) -> Option<(u32, bool)> {
        let waits = host.unsent().min(1 << 30) as u32;
        let edge = self.una + self.window;
        let usable = if edge > self.next {
            edge.since(self.next)
        } else {
            0
        };
        let flight = self.sent.flight();
        let allowed = self.congestion.window.saturating_sub(flight);
        let mut len = waits.min(usable).min(self.burst());
        if len > allowed {
            self.is_limited = true;
            len = allowed;
        }
        let is_last = len == waits;
        if is_last && self.wants_fin && usable > len {
            return Some((len, true));
        }
        if len == 0 {
            return None;
        }
        if is_last && !self.wants_fin && self.gathers(len, flight) {
            return None;
        }
        if len == self.segment && self.burst() == self.segment {
            return Some((self.whole_pages(len, host), false));
        }
        let part = len % self.segment;
        if part == 0 || is_last && self.may_send_part(now) {
            return Some((len, false));
        }
        if len > part {
            return Some((len - part, false));
        }
        // A part of a segment, because there is no room for more (RFC 9293 3.8.6.2.1).
        let is_worth = len >= self.widest / 2
            || self.sent.is_empty() && self.is_limited
            || core::mem::take(&mut self.pushes);
        (!is_last && is_worth).then_some((len, false))
    }

    /// Tells whether the last `len` bytes wait for more of them, to be sent together: where a lower
    /// layer cuts, each packet costs about as much as a large one. This is Nagle's algorithm for
    /// large packets, where an acknowledgement comes soon.
    fn gathers(&self, len: u32, flight: u32) -> bool {
        let burst = self.burst();
        burst > self.segment
            && len < burst
            && flight >= GATHERED_BEHIND * self.segment
            && (1..=NEAR).contains(&self.round_trip.smoothed)
            && !self.settings.no_delay
            && self.urgent <= self.next
    }

    /// Returns how many bytes of a full segment are sent: it ends with a page where that is most of
    /// it, so that the receiver finds whole pages, too.
    fn whole_pages(&self, len: u32, host: &dyn Host) -> u32 {
        if len < LEAST_PAGED {
            return len;
        }
        let end = host.to_page_end(len as usize) as u32;
        if end >= len / 2 { end } else { len }
    }

    /// Tells whether the last bytes that wait are sent although they fill no segment (Nagle's
    /// algorithm, RFC 9293 3.7.4).
    fn may_send_part(&mut self, now: u64) -> bool {
        if self.settings.cork {
            self.corked_until = self.corked_until.or(time(now + CORKED));
            if self.corked_until.is_some_and(|until| now < until.get()) {
                return false;
            }
        }
        self.corked_until = None;
        self.settings.no_delay || self.sent.is_empty() || self.urgent > self.next
    }

    /// Sends `len` new bytes; false without memory.
    fn send_piece(&mut self, len: u32, fin: bool, host: &mut dyn Host, now: u64) -> bool {
        if self.sent.reserve(self.next).is_err() {
            return false;
        }
        let data = match len {
            0 => Aggregate::new(),
            _ => host.take(len as usize),
        };
        let is_short = data.len() < len as usize;
        let mut copy = Aggregate::new();
        if is_short && data.is_empty() || copy.reserve(data.slice_count()).is_err() {
            return false;
        }
        copy.clone_from(&data);
        let fin = fin && !is_short;
        let mut flags = Flags::default();
        if fin {
            flags = Flags::FIN;
            self.fin_sent = true;
        }
        let seq = self.next;
        let piece = Piece {
            seq,
            data,
            flags,
            sent_at: now,
            is_again: false,
            is_sacked: false,
            is_lost: false,
        };
        self.next = piece.end();
        self.congestion.sent(piece.len());
        self.sent.push(piece);
        let ends = fin || host.unsent() == 0;
        let push = if ends { Flags::PSH } else { Flags::default() };
        self.emit(seq, flags.with(push), copy, host);
        self.sent_at = now;
        self.arm(now);
        !is_short
    }

    /// Sends the last piece, or a new one, to learn whether the last pieces were lost.
    pub(super) fn send_probe(&mut self, host: &mut dyn Host) {
        let now = host.now();
        let before = self.next;
        let edge = self.una + self.window;
        let usable = if edge > self.next {
            edge.since(self.next)
        } else {
            0
        };
        let len = (host.unsent() as u32).min(usable).min(self.segment);
        let fresh = !self.fin_sent && len > 0 && self.send_piece(len, false, host, now);
        if !fresh {
            let most = self.segment as usize;
            let Some(piece) = self.sent.resend_last(most, now) else {
                return;
            };
            let (seq, flags, data) = (piece.seq, piece.flags, piece.data.clone());
            self.note_repeated(data.len());
            self.emit(seq, flags.with(Flags::PSH), data, host);
        }
        self.probe = Some((self.next, self.next == before));
    }
}
