//! Options of the level `SOL_TCP`.
//!
//! Between two joined ends inside one machine nothing is lost, late or reordered: options for such
//! cases (keep-alives, Nagle's algorithm) are stored and shown, but have an effect only where
//! segments are packets.

use abi::{
    Errno, Result,
    raw::net::{self as raw, tcp_info},
};
use net::tcp::{
    self,
    block::{Algorithm, Settings},
};
use nucleus::sync::SpinLock;

use crate::socket::{Answer, Value};

/// The largest segment: `lo`'s MTU less headers and the timestamps that Linux sends with each.
const MAX_SEGMENT: u32 = 65_483;
/// The largest value of `TCP_MAXSEG`.
const MAX_SEGMENT_OPTION: i32 = 32_767;
/// The names of the congestion-control algorithms.
const CONGESTION: [&[u8]; 2] = [b"cubic", b"reno"];
/// Bytes of such a name.
const CONGESTION_NAME: usize = 16;

/// The values that a number may have.
enum Accepts {
    /// Any: off or on.
    Switch,
    /// Those in a range.
    Within(i32, i32),
    /// Any; those beyond the range become its ends.
    Clamped(i32, i32),
}

/// The options whose values are numbers: name, default, accepted values.
const NUMBERS: [(u32, i32, Accepts); 16] = [
    (raw::TCP_NODELAY, 0, Accepts::Switch),
    (raw::TCP_MAXSEG, 0, Accepts::Within(88, MAX_SEGMENT_OPTION)),
    (raw::TCP_CORK, 0, Accepts::Switch),
    (raw::TCP_KEEPIDLE, 7200, Accepts::Within(1, 32_767)),
    (raw::TCP_KEEPINTVL, 75, Accepts::Within(1, 32_767)),
    (raw::TCP_KEEPCNT, 9, Accepts::Within(1, 127)),
    (raw::TCP_SYNCNT, 6, Accepts::Within(1, 127)),
    (raw::TCP_LINGER2, 60, Accepts::Clamped(-1, 120)),
    (raw::TCP_DEFER_ACCEPT, 0, Accepts::Clamped(0, i32::MAX)),
    (raw::TCP_WINDOW_CLAMP, 0, Accepts::Clamped(0, i32::MAX)),
    (raw::TCP_QUICKACK, 1, Accepts::Switch),
    (raw::TCP_THIN_LINEAR_TIMEOUTS, 0, Accepts::Switch),
    (raw::TCP_THIN_DUPACK, 0, Accepts::Switch),
    (raw::TCP_USER_TIMEOUT, 0, Accepts::Within(0, i32::MAX)),
    (
        raw::TCP_NOTSENT_LOWAT,
        0,
        Accepts::Clamped(i32::MIN, i32::MAX),
    ),
    (raw::TCP_SAVE_SYN, 0, Accepts::Switch),
];

/// The values of one socket's options.
#[derive(Clone, Copy, Debug)]
pub struct TcpOptions {
    /// Those of [`NUMBERS`].
    numbers: [i32; NUMBERS.len()],
    /// Index into [`CONGESTION`].
    congestion: usize,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
            numbers: NUMBERS.map(|(_, default, _)| default),
            congestion: 0,
        }
    }
}

/// Returns the place of an option in [`NUMBERS`].
fn place(name: u32) -> Result<usize> {
    let place = NUMBERS.iter().position(|(known, ..)| *known == name);
    place.ok_or(Errno::ENOPROTOOPT)
}

/// Sets an option. Returns the time that a connection may wait for its first bytes, in
/// seconds, where the option is that time.
///
/// # Errors
/// `EINVAL` for a value out of range, `ENOENT` for an unknown algorithm, `ENOPROTOOPT` for an
/// unknown option.
pub fn set(options: &SpinLock<TcpOptions>, name: u32, value: &Value) -> Result<Option<u32>> {
    if name == raw::TCP_CONGESTION {
        let mut bytes = [0; CONGESTION_NAME];
        let n = value.bytes(&mut bytes)?;
        if n == 0 {
            return Err(Errno::EINVAL);
        }
        let asked = bytes[..n].split(|&byte| byte == 0).next().unwrap_or(&[]);
        let found = CONGESTION.iter().position(|known| *known == asked);
        options.lock().congestion = found.ok_or(Errno::ENOENT)?;
        return Ok(None);
    }
    let place = place(name)?;
    let number = value.int()?;
    let number = match NUMBERS[place].2 {
        Accepts::Switch => i32::from(number != 0),
        Accepts::Clamped(least, most) => number.clamp(least, most),
        // A largest segment of 0 leaves the choice to TCP.
        Accepts::Within(..) if name == raw::TCP_MAXSEG && number == 0 => 0,
        Accepts::Within(least, most) if number < least || number > most => {
            return Err(Errno::EINVAL);
        }
        Accepts::Within(..) => number,
    };
    options.lock().numbers[place] = number;
    Ok((name == raw::TCP_DEFER_ACCEPT).then_some(number.max(0) as u32))
}

/// Returns what the options are for the protocol.
pub fn settings(options: &SpinLock<TcpOptions>, keep_alive: bool) -> Settings {
    let options = *options.lock();
    let number = |name| place(name).map_or(0, |place| options.numbers[place].max(0) as u64);
    Settings {
        no_delay: number(raw::TCP_NODELAY) != 0,
        cork: number(raw::TCP_CORK) != 0,
        keep_alive,
        keep_idle: number(raw::TCP_KEEPIDLE) as u16,
        keep_interval: number(raw::TCP_KEEPINTVL) as u16,
        keep_count: number(raw::TCP_KEEPCNT) as u8,
        user_timeout: number(raw::TCP_USER_TIMEOUT) as u32,
        syn_repetitions: number(raw::TCP_SYNCNT) as u8,
        largest: number(raw::TCP_MAXSEG) as u16,
        algorithm: [Algorithm::Cubic, Algorithm::NewReno][options.congestion],
    }
}

/// Returns the value of an option.
///
/// # Errors
/// `ENOPROTOOPT` for an unknown option.
pub fn get(options: &SpinLock<TcpOptions>, socket: &tcp::Socket, name: u32) -> Result<Answer> {
    let options = *options.lock();
    match name {
        raw::TCP_CONGESTION => {
            let mut name = [0; CONGESTION_NAME];
            let chosen = CONGESTION[options.congestion];
            name[..chosen.len()].copy_from_slice(chosen);
            return Ok(Answer::of(&name));
        }
        raw::TCP_INFO => return Ok(Answer::of(&info(socket, socket.state()))),
        _ => {}
    }
    let number = options.numbers[place(name)?];
    Ok(Answer::Int(match (name, socket.phase()) {
        (raw::TCP_MAXSEG, tcp::Phase::Connected) if number == 0 => MAX_SEGMENT as i32,
        (raw::TCP_MAXSEG, _) if number == 0 => raw::TCP_MSS_DEFAULT as i32,
        _ => number,
    }))
}

/// Bytes of a `struct tcp_info`.
pub const INFO: usize = size_of::<tcp_info>();

/// How a connection does that needs no packets: a wire without a length.
const WIRE: tcp::block::Info = tcp::block::Info {
    is_recovering: false,
    has_timed_out: false,
    repetitions: 0,
    backoff: 0,
    keep_probes: 0,
    has_stamps: true,
    may_sack: true,
    peer_scale: 7,
    own_scale: 7,
    timeout: 201_000_000,
    round_trip: 0,
    variation: 0,
    least_round_trip: 0,
    segment: MAX_SEGMENT,
    peer_segment: MAX_SEGMENT,
    own_largest: MAX_SEGMENT,
    window: 10 * MAX_SEGMENT,
    threshold: u32::MAX,
    pieces: 0,
    sacked: 0,
    lost: 0,
    again: 0,
    peer_window: 0,
    read_in_trip: 0,
    receiver_trip: 0,
    sent_before: 0,
    heard_before: 0,
    counts: tcp::block::Counts {
        sent: 0,
        received: 0,
        sent_with_data: 0,
        received_with_data: 0,
        repeated: 0,
        repeated_bytes: 0,
    },
    timer: 0,
    timer_left: 0,
};

/// Returns a `struct tcp_info`.
pub fn info(socket: &tcp::Socket, state: tcp::State) -> [u8; INFO] {
    let summary = socket.summary();
    let info = socket.info();
    let mut bytes = [0; size_of::<tcp_info>()];
    let mut put = |at: usize, value: u64, len: usize| {
        bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    };
    macro_rules! put {
        ($field:ident, $value:expr) => {{
            // The size of the field follows from its type.
            fn size<T>(_: fn(&tcp_info) -> &T) -> usize {
                size_of::<T>()
            }
            put(
                core::mem::offset_of!(tcp_info, $field),
                $value as u64,
                size(|info| &info.$field),
            );
        }};
    }
    put!(tcpi_state, state_number(state));
    let default = info.unwrap_or(WIRE);
    let is_listener = summary.phase == tcp::Phase::Listening;
    let mut options = 0;
    for (has, option) in [
        (default.has_stamps, raw::TCPI_OPT_TIMESTAMPS),
        (default.may_sack, raw::TCPI_OPT_SACK),
        (default.own_scale > 0, raw::TCPI_OPT_WSCALE),
    ] {
        if has {
            options |= option;
        }
    }
    let us = |nanoseconds: u64| nanoseconds / 1000;
    let ms = |nanoseconds: u64| nanoseconds / 1_000_000;
    // TCP_CA_Open, Recovery, Loss.
    let congestion = match (default.is_recovering, default.has_timed_out) {
        (_, true) => 4,
        (true, _) => 3,
        _ => 0,
    };
    put!(tcpi_ca_state, congestion);
    put!(tcpi_retransmits, default.repetitions.min(255));
    put!(tcpi_probes, default.keep_probes.min(255));
    put!(tcpi_backoff, default.backoff.min(255));
    put!(tcpi_options, options);
    // The shifts of windows share a byte behind the options.
    put(
        core::mem::offset_of!(tcp_info, tcpi_options) + 1,
        u64::from(default.peer_scale & 15 | default.own_scale << 4),
        1,
    );
    put!(tcpi_rto, us(default.timeout));
    put!(tcpi_ato, 40_000);
    put!(tcpi_snd_mss, default.segment);
    put!(tcpi_rcv_mss, default.peer_segment.max(536));
    put!(tcpi_lost, default.lost);
    put!(tcpi_retrans, default.again);
    put!(tcpi_last_data_sent, ms(default.sent_before));
    put!(tcpi_last_data_recv, ms(default.heard_before));
    put!(tcpi_last_ack_recv, ms(default.heard_before));
    let headers = if socket.family() == net::Family::V4 {
        40
    } else {
        60
    };
    put!(tcpi_pmtu, default.own_largest + headers);
    put!(tcpi_advmss, default.own_largest);
    put!(tcpi_rtt, us(default.round_trip));
    put!(tcpi_rttvar, us(default.variation));
    put!(tcpi_min_rtt, us(default.least_round_trip));
    let segments = |bytes: u32| (bytes / default.segment.max(1)).max(1);
    let threshold = match default.threshold {
        threshold if threshold >= 1 << 30 => i32::MAX as u32,
        threshold => segments(threshold),
    };
    put!(tcpi_snd_ssthresh, threshold);
    put!(tcpi_snd_cwnd, segments(default.window));
    put!(tcpi_snd_wnd, default.peer_window);
    put!(tcpi_reordering, 3);
    put!(tcpi_rcv_rtt, us(default.receiver_trip));
    // The first one is that of ten segments.
    let read = default.read_in_trip.max(10 * default.segment);
    put!(tcpi_rcv_space, read.min(summary.options.receive_buffer));
    put!(tcpi_rcv_ssthresh, summary.options.receive_buffer);
    put!(tcpi_notsent_bytes, summary.unsent);
    // Another thread may change the size of the buffer meanwhile.
    let acked = summary.sent.saturating_sub(summary.unsent as u64);
    put!(tcpi_bytes_acked, acked);
    put!(tcpi_bytes_received, summary.received);
    let again = default.counts.repeated_bytes;
    put!(tcpi_bytes_sent, acked + again);
    put!(tcpi_bytes_retrans, again);
    put!(tcpi_total_retrans, default.counts.repeated);
    put!(tcpi_segs_out, default.counts.sent);
    put!(tcpi_segs_in, default.counts.received);
    put!(tcpi_data_segs_out, default.counts.sent_with_data);
    put!(tcpi_data_segs_in, default.counts.received_with_data);
    let rate = u64::from(default.window) * 1_000_000_000;
    put!(
        tcpi_pacing_rate,
        rate.checked_div(default.round_trip).unwrap_or(0)
    );
    put!(
        tcpi_unacked,
        if is_listener {
            summary.waiting as u32
        } else {
            default.pieces
        }
    );
    put!(
        tcpi_sacked,
        if is_listener {
            summary.backlog as u32
        } else {
            default.sacked
        }
    );
    bytes
}

/// Returns the name of a connection's congestion control.
pub fn congestion_name(algorithm: Algorithm) -> &'static [u8] {
    match algorithm {
        Algorithm::Cubic => CONGESTION[0],
        Algorithm::NewReno => CONGESTION[1],
    }
}

/// Returns Linux's number of a state.
pub fn state_number(state: tcp::State) -> u8 {
    match state {
        tcp::State::Established => 1,
        tcp::State::SynSent => 2,
        tcp::State::SynReceived => 3,
        tcp::State::FinWait1 => 4,
        tcp::State::FinWait2 => 5,
        tcp::State::TimeWait => 6,
        tcp::State::Closed => 7,
        tcp::State::CloseWait => 8,
        tcp::State::LastAck => 9,
        tcp::State::Listen => 10,
        tcp::State::Closing => 11,
    }
}
