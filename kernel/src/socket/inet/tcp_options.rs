//! Options of the level `SOL_TCP`.
//!
//! Between two joined ends inside one machine nothing is lost, late or reordered: options for such
//! cases (keep-alives, Nagle's algorithm) are stored and shown, but have an effect only where
//! segments are packets.

use core::time::Duration;

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
/// nanoseconds, where the option is that time.
///
/// # Errors
/// `EINVAL` for a value out of range, `ENOENT` for an unknown algorithm, `ENOPROTOOPT` for an
/// unknown option.
pub fn set(options: &SpinLock<TcpOptions>, name: u32, value: &Value) -> Result<Option<u64>> {
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
    let time = Duration::from_secs(number.max(0) as u64).as_nanos() as u64;
    Ok((name == raw::TCP_DEFER_ACCEPT).then_some(time))
}

/// Returns what the options are for the protocol.
pub fn settings(options: &SpinLock<TcpOptions>, keep_alive: bool) -> Settings {
    let options = *options.lock();
    let number = |name| place(name).map_or(0, |place| options.numbers[place].max(0) as u64);
    let seconds = |name| number(name) * 1_000_000_000;
    Settings {
        no_delay: number(raw::TCP_NODELAY) != 0,
        cork: number(raw::TCP_CORK) != 0,
        keep_alive,
        keep_idle: seconds(raw::TCP_KEEPIDLE),
        keep_interval: seconds(raw::TCP_KEEPINTVL),
        keep_count: number(raw::TCP_KEEPCNT) as u32,
        user_timeout: number(raw::TCP_USER_TIMEOUT) * 1_000_000,
        syn_repetitions: number(raw::TCP_SYNCNT) as u32,
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
        raw::TCP_INFO => return Ok(info(socket)),
        _ => {}
    }
    let number = options.numbers[place(name)?];
    Ok(Answer::Int(match (name, socket.phase()) {
        (raw::TCP_MAXSEG, tcp::Phase::Connected) if number == 0 => MAX_SEGMENT as i32,
        (raw::TCP_MAXSEG, _) if number == 0 => raw::TCP_MSS_DEFAULT as i32,
        _ => number,
    }))
}

/// Returns a `struct tcp_info`; unknown fields have the values of a wire without a length.
fn info(socket: &tcp::Socket) -> Answer {
    let summary = socket.summary();
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
    put!(tcpi_state, state_number(socket.state()));
    let options = raw::TCPI_OPT_TIMESTAMPS | raw::TCPI_OPT_SACK | raw::TCPI_OPT_WSCALE;
    put!(tcpi_options, options);
    put!(tcpi_rto, 201_000);
    put!(tcpi_ato, 40_000);
    put!(tcpi_snd_mss, MAX_SEGMENT);
    put!(
        tcpi_rcv_mss,
        MAX_SEGMENT.min(summary.received as u32).max(536)
    );
    put!(tcpi_pmtu, 65_535);
    put!(tcpi_advmss, MAX_SEGMENT);
    put!(tcpi_snd_ssthresh, i32::MAX);
    put!(tcpi_snd_cwnd, 10);
    put!(tcpi_reordering, 3);
    put!(tcpi_rcv_space, summary.options.receive_buffer);
    put!(tcpi_rcv_ssthresh, summary.options.receive_buffer);
    put!(tcpi_notsent_bytes, summary.unsent);
    put!(tcpi_bytes_acked, summary.sent - summary.unsent as u64);
    put!(tcpi_bytes_received, summary.received);
    put!(tcpi_bytes_sent, summary.sent - summary.unsent as u64);
    if summary.phase == tcp::Phase::Listening {
        put!(tcpi_unacked, summary.waiting);
        put!(tcpi_sacked, summary.backlog);
    }
    Answer::of(&bytes)
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
