//! One end of a connection: the state machine of RFC 9293.
//!
//! A [`Block`] knows no sockets, networks or locks: it is driven by arriving segments, timers and
//! calls, and acts on a [`Host`], which has the queues of bytes on both sides and sends segments.
//!
//! - this file: [`Block`], [`Host`], how a block begins and ends;
//! - `input`: arriving segments; `acks`: what they acknowledge; `output`: segments to send;
//! - `timers`: retransmission, probes, delayed acknowledgements, keep-alive;
//! - `sent`: the send queue; `gaps`: bytes behind a gap; `rack`: what is lost;
//! - `info`: what an end tells of itself;
//! - `congestion`, `rtt`: how much may be on its way, and for how long; `buffers`: how much is
//!   kept.

use alloc::boxed::Box;
use core::num::NonZeroU64;

use abi::Errno;
use fbuf::Aggregate;

use super::segment::{Flags, Options, Segment, Seq};

mod acks;
mod buffers;
mod congestion;
mod gaps;
mod info;
mod input;
mod output;
mod rack;
mod rtt;
mod sent;
mod timers;

use buffers::Pace;
pub use congestion::Algorithm;
use congestion::Congestion;
use gaps::Gaps;
pub use info::{Counts, Info};
use rack::Rack;
use rtt::{MS, RoundTrip, SECOND};
use sent::{Piece, Sent};
use timers::Timer;

/// The payload of a segment that any host takes over IPv4 (RFC 9293 3.7.1). Smaller ones are
/// refused: they make more packets than data.
const USUAL_LARGEST: u16 = 536;
const LEAST_LARGEST: u16 = 88;
/// Bytes of the option with timestamps, padded.
const STAMPS: u16 = 12;
/// The shift of windows: up to 8 MiB are described to 128 bytes.
const SCALE: u8 = 7;
/// The largest shift (RFC 7323 2.3).
const MOST_SCALE: u8 = 14;

/// States of an end (RFC 9293 3.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum State {
    Closed,
    Listen,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

/// What became of bytes that arrived in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// They are in the receive queue.
    Taken,
    /// There is no room or memory: they count as lost.
    Full,
    /// The receiving program is gone.
    Abandoned,
}

/// What a block has around it.
pub trait Host {
    /// Returns the time in nanoseconds since boot.
    fn now(&self) -> u64;
    /// Returns how many bytes wait to be sent.
    fn unsent(&self) -> usize;
    /// Returns how many bytes that wait come before the end of urgent data, if there is any.
    fn urgent(&self) -> Option<usize>;
    /// Returns how many of the first `len` bytes that wait end with a whole page; 0 if none do.
    fn to_page_end(&self, len: usize) -> usize {
        let _ = len;
        0
    }
    /// Takes the first bytes that wait; fewer than `n` if memory is short.
    fn take(&mut self, n: usize) -> Aggregate;
    /// Notes that bytes have arrived and need no memory any more.
    fn acknowledged(&mut self, bytes: usize);
    /// Returns how many bytes the receive queue has room for.
    fn room(&self) -> usize;
    /// Returns how many bytes of the receive queue the program has not read.
    fn unread(&self) -> usize;
    /// Asks for a receive queue of so many bytes. The host may have reasons against it.
    fn widen_receive_buffer(&mut self, bytes: usize) {
        let _ = bytes;
    }
    /// Asks for room for so many bytes that wait to be sent or are on their way.
    fn widen_send_buffer(&mut self, bytes: usize) {
        let _ = bytes;
    }
    /// Adds bytes to the receive queue. Byte `urgent` of them is the last one of urgent data.
    fn deliver(&mut self, data: Aggregate, urgent: Option<usize>) -> Delivery;
    /// Sends a segment.
    fn emit(&mut self, segment: Segment);
    /// Frees what the queues keep for their next bytes: there were none for some time.
    fn trim(&mut self) {}
}

/// How an end behaves, by the options of its socket.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Small segments are not held back (`TCP_NODELAY`).
    pub no_delay: bool,
    /// Small segments are held back for 200 ms (`TCP_CORK`).
    pub cork: bool,
    /// A silent peer is probed (`SO_KEEPALIVE`).
    pub keep_alive: bool,
    /// After this time, then in this interval, in seconds, and so often.
    pub keep_idle: u16,
    /// See `keep_idle`.
    pub keep_interval: u16,
    /// See `keep_idle`.
    pub keep_count: u8,
    /// The time after which unacknowledged bytes end the connection, in milliseconds; 0 for the
    /// usual number of repetitions (`TCP_USER_TIMEOUT`).
    pub user_timeout: u32,
    /// Repetitions of a SYN (`TCP_SYNCNT`).
    pub syn_repetitions: u8,
    /// The most bytes of payload in a segment; 0 leaves that to the path (`TCP_MAXSEG`).
    pub largest: u16,
    /// Congestion control (`TCP_CONGESTION`).
    pub algorithm: Algorithm,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            no_delay: false,
            cork: false,
            keep_alive: false,
            keep_idle: 7200,
            keep_interval: 75,
            keep_count: 9,
            user_timeout: 0,
            syn_repetitions: 6,
            largest: 0,
            algorithm: Algorithm::Cubic,
        }
    }
}

/// What a connection's path carries.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Bytes of payload that fit in a packet without options.
    pub largest: u16,
    /// Bytes that may be sent as one segment, which a lower layer cuts into packets.
    pub bulk: u32,
}

/// How an end begins.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The first number that it sends (RFC 6528).
    pub number: Seq,
    /// What is added to its clock for timestamps (RFC 7323 5.4).
    pub clock: u32,
    /// Its path.
    pub path: Path,
    /// Bytes of its receive buffer.
    pub buffer: usize,
    /// Its settings.
    pub settings: Settings,
}

/// Returns a time that a block keeps, in nanoseconds since boot.
fn time(at: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(at)
}

/// One end of a connection.
#[derive(Debug)]
pub struct Block {
    state: State,
    /// Why it is closed, if that is an error.
    error: Option<Errno>,
    /// The connection was asked for here.
    is_active: bool,
    /// No program has it.
    is_orphan: bool,
    settings: Settings,
    path: Path,

    /// The oldest number that is not acknowledged, and the next to be sent.
    una: Seq,
    next: Seq,
    /// The first number of all.
    start: Seq,
    /// The peer's window in bytes from `una`, the largest so far, and the segment that told it.
    window: u32,
    widest: u32,
    window_seq: Seq,
    window_ack: Seq,
    /// The shifts of the peer's windows and of ours.
    peer_scale: u8,
    own_scale: u8,
    /// The payload that the peer takes in a segment; that of ours, without options.
    peer_largest: u16,
    segment: u32,
    /// The number behind urgent data.
    urgent: Seq,
    sent: Sent,
    wants_fin: bool,
    fin_sent: bool,
    /// When bytes were last sent.
    sent_at: u64,
    /// The window of congestion kept bytes from being sent.
    is_limited: bool,
    /// What fits in a small window is sent.
    pushes: bool,

    /// The next number that is due, and the right edge of the window that was advertised.
    due: Seq,
    edge: Seq,
    /// `due` in the last segment that was sent.
    told: Seq,
    gaps: Gaps,
    /// The number of the peer's FIN, which has arrived; perhaps behind a gap.
    fin_at: Option<Seq>,
    /// The number behind the peer's urgent data.
    peer_urgent: Option<Seq>,
    /// The largest payload that has arrived.
    arrives: u32,
    /// A range that has arrived twice, for the next report (RFC 2883).
    doubled: Option<(Seq, Seq)>,
    /// Segments with data since the last acknowledgement; how many more are acknowledged at once.
    unacked: u16,
    quick: u8,
    ack_now: bool,

    may_sack: bool,
    has_stamps: bool,
    clock: u32,
    /// The peer's clock, and when it was seen.
    peer_clock: u32,
    peer_clock_at: u64,

    round_trip: RoundTrip,
    congestion: Congestion,
    pace: Pace,
    rack: Rack,
    duplicates: u32,
    /// A probe for the last segments is under way: the number behind it, and whether it repeats.
    probe: Option<(Seq, bool)>,
    /// Losses by a timeout are repaired until this number.
    timed_out: Option<Seq>,

    timer: Option<(u64, Timer)>,
    delayed_ack: Option<NonZeroU64>,
    corked_until: Option<NonZeroU64>,
    /// Repetitions without an answer, since when.
    repetitions: u32,
    stalled_at: Option<NonZeroU64>,
    /// When the peer was last heard, and probes of a silent one.
    heard_at: u64,
    keep_probes: u32,
    /// When a segment out of place was last answered.
    challenged_at: u64,
    /// When memory for further bytes is freed, unless some have come by then; none if none is kept.
    trim_at: Option<NonZeroU64>,
    counts: Counts,
}

/// What an end that is over needs to answer late segments.
#[derive(Clone, Copy, Debug)]
pub struct Remains {
    /// The next number to send and the next due.
    pub next: Seq,
    /// See `next`.
    pub due: Seq,
    /// The peer's clock, if there are timestamps.
    pub peer_clock: Option<u32>,
    /// What is added to our clock.
    pub clock: u32,
}

impl Block {
    /// Inlined, so that it is built where it stays.
    #[inline(always)]
    fn new(state: State, start: Start, now: u64) -> Block {
        let needed = usize::BITS - (start.buffer >> 16).leading_zeros();
        let Start {
            number,
            path,
            settings,
            ..
        } = start;
        Block {
            state,
            error: None,
            is_active: state == State::SynSent,
            is_orphan: false,
            settings,
            path,
            una: number,
            next: number,
            start: number,
            window: 0,
            widest: 0,
            window_seq: Seq(0),
            window_ack: Seq(0),
            peer_scale: 0,
            own_scale: (needed as u8).clamp(SCALE, MOST_SCALE),
            peer_largest: USUAL_LARGEST,
            segment: USUAL_LARGEST.into(),
            urgent: number,
            sent: Sent::default(),
            wants_fin: false,
            fin_sent: false,
            sent_at: now,
            is_limited: false,
            pushes: false,
            due: Seq(0),
            edge: Seq(0),
            told: Seq(0),
            gaps: Gaps::default(),
            fin_at: None,
            peer_urgent: None,
            arrives: USUAL_LARGEST.into(),
            doubled: None,
            unacked: 0,
            quick: 16,
            ack_now: false,
            may_sack: true,
            has_stamps: true,
            clock: start.clock,
            peer_clock: 0,
            peer_clock_at: 0,
            round_trip: RoundTrip::new(),
            congestion: Congestion::new(settings.algorithm, USUAL_LARGEST.into()),
            pace: Pace::new(),
            rack: Rack::new(),
            duplicates: 0,
            probe: None,
            timed_out: None,
            timer: None,
            delayed_ack: None,
            corked_until: None,
            repetitions: 0,
            stalled_at: None,
            heard_at: now,
            keep_probes: 0,
            challenged_at: 0,
            trim_at: None,
            counts: Counts::default(),
        }
    }

    /// Asks for a connection: sends a SYN.
    pub fn open(start: Start, host: &mut dyn Host) -> Box<Block> {
        let mut block = Box::new(Block::new(State::SynSent, start, host.now()));
        block.send_syn(host);
        block
    }

    /// Answers a SYN.
    pub fn answer(syn: &Segment, start: Start, host: &mut dyn Host) -> Box<Block> {
        let mut block = Box::new(Block::new(State::SynReceived, start, host.now()));
        block.take_syn(syn, host);
        block.send_syn(host);
        block
    }

    /// Makes the end whose SYN was answered without keeping anything; `syn` is what that said, and
    /// `ack` the segment that confirms it, which is to [arrive](Block::arrive) next.
    pub fn recall(syn: &Segment, start: Start, host: &mut dyn Host) -> Box<Block> {
        let mut block = Box::new(Block::new(State::SynReceived, start, host.now()));
        block.take_syn(syn, host);
        block.next = block.start + 1;
        block.edge = block.due + u32::from(u16::MAX).min(host.room() as u32);
        block.told = block.due;
        block
    }

    /// Notes what the peer's SYN says.
    fn take_syn(&mut self, syn: &Segment, host: &dyn Host) {
        let Options {
            largest,
            scale,
            may_sack,
            stamps,
            ..
        } = syn.options;
        self.due = syn.seq + 1;
        self.edge = self.due;
        self.told = self.due;
        self.peer_urgent = None;
        self.peer_largest = largest.unwrap_or(USUAL_LARGEST).max(LEAST_LARGEST);
        match scale {
            Some(scale) => self.peer_scale = scale.min(MOST_SCALE),
            None => (self.peer_scale, self.own_scale) = (0, 0),
        }
        self.may_sack &= may_sack;
        match stamps {
            Some((clock, _)) => (self.peer_clock, self.peer_clock_at) = (clock, host.now()),
            None => self.has_stamps = false,
        }
        self.window = syn.window.into();
        self.widest = self.window;
        (self.window_seq, self.window_ack) = (syn.seq, syn.ack);
        self.size_segments(true);
    }

    /// Computes the payload of segments.
    fn size_segments(&mut self, is_first: bool) {
        let mut segment = self.peer_largest.min(self.path.largest);
        if self.settings.largest > 0 {
            segment = segment.min(self.settings.largest.max(LEAST_LARGEST));
        }
        if self.has_stamps {
            segment = segment.saturating_sub(STAMPS);
        }
        self.segment = segment.max(LEAST_LARGEST - STAMPS).into();
        self.congestion.set_segment(self.segment, is_first);
    }

    /// Notes that the path carries packets of `largest` bytes of payload only. Returns whether
    /// segments become smaller; what was sent and was too large is sent again.
    pub fn narrow(&mut self, largest: u16, host: &mut dyn Host) -> bool {
        if largest >= self.path.largest {
            return false;
        }
        self.path.largest = largest.max(LEAST_LARGEST);
        self.size_segments(false);
        let segment = self.segment as usize;
        if self.sent.mark_lost(|piece| piece.data.len() > segment) {
            self.output(host);
        }
        true
    }

    /// Changes the settings.
    pub fn set(&mut self, settings: Settings, host: &mut dyn Host) {
        self.settings = settings;
        self.congestion.algorithm = settings.algorithm;
        self.output(host);
    }

    /// Returns the state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns why it is closed, if that is an error.
    pub fn error(&self) -> Option<Errno> {
        self.error
    }

    /// Tells whether the connection was asked for here.
    pub fn is_active(&self) -> bool {
        self.is_active
    }

    /// Returns the next number that it sends.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// Returns the oldest number that is not acknowledged.
    pub fn unacknowledged(&self) -> Seq {
        self.una
    }

    /// Notes that no program has the end any more: a peer that keeps its window closed does not
    /// keep the end for ever.
    pub fn be_orphan(&mut self) {
        self.is_orphan = true;
    }

    /// Tells whether a number was sent and is not acknowledged.
    pub fn has_in_flight(&self, number: Seq) -> bool {
        number >= self.una && number < self.next
    }

    /// A router or the peer's machine says that there is no such port: that ends a handshake, and
    /// nothing else (RFC 5461).
    pub fn be_refused(&mut self) {
        if self.state == State::SynSent {
            self.close(Some(Errno::ECONNREFUSED));
        }
    }

    /// Returns how many frames its slices keep, as far as each keeps its own: those of a block
    /// where they are a part of one.
    pub fn frames(&self) -> usize {
        self.sent.frames() + self.gaps.frames()
    }

    /// Returns what is left when it is over.
    pub fn remains(&self) -> Remains {
        Remains {
            next: self.next,
            due: self.due,
            peer_clock: self.has_stamps.then_some(self.peer_clock),
            clock: self.clock,
        }
    }

    /// Ends the stream to the peer behind the bytes that wait.
    pub fn finish(&mut self, host: &mut dyn Host) {
        match self.state {
            State::SynReceived | State::Established | State::CloseWait => {
                self.wants_fin = true;
                self.state = match self.state {
                    State::CloseWait => State::LastAck,
                    _ => State::FinWait1,
                };
                self.output(host);
            }
            State::SynSent => self.close(None),
            _ => {}
        }
    }

    /// Resets the connection.
    pub fn abort(&mut self, host: &mut dyn Host) {
        let tells = !matches!(
            self.state,
            State::Closed | State::Listen | State::SynSent | State::TimeWait
        );
        if tells {
            self.send_reset(host);
        }
        self.close(None);
    }

    fn send_reset(&mut self, host: &mut dyn Host) {
        host.emit(Segment {
            seq: self.next,
            ack: self.due,
            flags: Flags::RST.with(Flags::ACK),
            ..Segment::default()
        });
    }

    /// Ends everything. Frees what it keeps.
    fn close(&mut self, error: Option<Errno>) {
        self.state = State::Closed;
        self.error = error;
        self.sent.clear();
        self.gaps.clear();
        self.stop_timers();
    }
}
