//! Options of the level `SOL_TCP`.
//!
//! On a wire inside one machine nothing is lost, late or reordered: options for such cases
//! (keep-alives, delayed acknowledgements, Nagle's algorithm) are stored and shown, but have no
//! effect.

use core::time::Duration;

use abi::{
    Errno, Result,
    raw::net::{self as raw, tcp_info},
};
use net::tcp;
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

/// The values of one socket's options.
#[derive(Clone, Copy, Debug)]
pub struct TcpOptions {
    /// Bit by option number.
    on: u64,
    max_segment: i32,
    keep_idle: i32,
    keep_interval: i32,
    keep_count: i32,
    syn_count: i32,
    linger: i32,
    /// Seconds.
    defer_accept: i32,
    window_clamp: i32,
    user_timeout: i32,
    unsent_low_water: i32,
    /// Index into [`CONGESTION`].
    congestion: usize,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
            on: 1 << raw::TCP_QUICKACK,
            max_segment: 0,
            keep_idle: 7200,
            keep_interval: 75,
            keep_count: 9,
            syn_count: 6,
            linger: 60,
            defer_accept: 0,
            window_clamp: 0,
            user_timeout: 0,
            unsent_low_water: 0,
            congestion: 0,
        }
    }
}

impl TcpOptions {
    /// Returns the time that a connection may wait for its first bytes, in nanoseconds.
    pub fn defer_accept(&self) -> u64 {
        Duration::from_secs(self.defer_accept.max(0) as u64).as_nanos() as u64
    }
}

fn is_switch(name: u32) -> bool {
    matches!(
        name,
        raw::TCP_NODELAY
            | raw::TCP_CORK
            | raw::TCP_QUICKACK
            | raw::TCP_THIN_LINEAR_TIMEOUTS
            | raw::TCP_THIN_DUPACK
            | raw::TCP_SAVE_SYN
    )
}

/// Sets an option.
///
/// # Errors
/// `EINVAL` for a value out of range, `ENOENT` for an unknown algorithm, `ENOPROTOOPT` for an
/// unknown option.
pub fn set(options: &SpinLock<TcpOptions>, name: u32, value: &Value) -> Result<()> {
    if name == raw::TCP_CONGESTION {
        let mut bytes = [0; CONGESTION_NAME];
        let n = value.bytes(&mut bytes)?;
        if n == 0 {
            return Err(Errno::EINVAL);
        }
        let asked = bytes[..n].split(|&byte| byte == 0).next().unwrap_or(&[]);
        let found = CONGESTION.iter().position(|known| *known == asked);
        options.lock().congestion = found.ok_or(Errno::ENOENT)?;
        return Ok(());
    }
    let known = is_switch(name)
        || matches!(
            name,
            raw::TCP_MAXSEG
                | raw::TCP_KEEPIDLE
                | raw::TCP_KEEPINTVL
                | raw::TCP_KEEPCNT
                | raw::TCP_SYNCNT
                | raw::TCP_LINGER2
                | raw::TCP_DEFER_ACCEPT
                | raw::TCP_WINDOW_CLAMP
                | raw::TCP_USER_TIMEOUT
                | raw::TCP_NOTSENT_LOWAT
        );
    if !known {
        return Err(Errno::ENOPROTOOPT);
    }
    let number = value.int()?;
    let within = |range: core::ops::RangeInclusive<i32>| {
        if range.contains(&number) {
            Ok(number)
        } else {
            Err(Errno::EINVAL)
        }
    };
    let mut options = options.lock();
    match name {
        raw::TCP_MAXSEG if number == 0 => options.max_segment = 0,
        raw::TCP_MAXSEG => options.max_segment = within(88..=MAX_SEGMENT_OPTION)?,
        raw::TCP_KEEPIDLE => options.keep_idle = within(1..=32767)?,
        raw::TCP_KEEPINTVL => options.keep_interval = within(1..=32767)?,
        raw::TCP_KEEPCNT => options.keep_count = within(1..=127)?,
        raw::TCP_SYNCNT => options.syn_count = within(1..=127)?,
        raw::TCP_LINGER2 => options.linger = if number < 0 { -1 } else { number.min(120) },
        raw::TCP_DEFER_ACCEPT => options.defer_accept = number.max(0),
        raw::TCP_WINDOW_CLAMP => options.window_clamp = number.max(0),
        raw::TCP_USER_TIMEOUT => options.user_timeout = within(0..=i32::MAX)?,
        raw::TCP_NOTSENT_LOWAT => options.unsent_low_water = number,
        _ if number != 0 => options.on |= 1 << name,
        _ => options.on &= !(1 << name),
    }
    Ok(())
}

/// Returns the value of an option.
///
/// # Errors
/// `ENOPROTOOPT` for an unknown option.
pub fn get(options: &SpinLock<TcpOptions>, socket: &tcp::Socket, name: u32) -> Result<Answer> {
    let options = *options.lock();
    Ok(Answer::Int(match name {
        _ if is_switch(name) => (options.on >> name & 1) as i32,
        raw::TCP_MAXSEG => match (socket.phase(), options.max_segment) {
            (tcp::Phase::Connected, 0) => MAX_SEGMENT as i32,
            (_, 0) => raw::TCP_MSS_DEFAULT as i32,
            (_, set) => set,
        },
        raw::TCP_KEEPIDLE => options.keep_idle,
        raw::TCP_KEEPINTVL => options.keep_interval,
        raw::TCP_KEEPCNT => options.keep_count,
        raw::TCP_SYNCNT => options.syn_count,
        raw::TCP_LINGER2 => options.linger,
        raw::TCP_DEFER_ACCEPT => options.defer_accept,
        raw::TCP_WINDOW_CLAMP => options.window_clamp,
        raw::TCP_USER_TIMEOUT => options.user_timeout,
        raw::TCP_NOTSENT_LOWAT => options.unsent_low_water,
        raw::TCP_CONGESTION => {
            let mut name = [0; CONGESTION_NAME];
            let chosen = CONGESTION[options.congestion];
            name[..chosen.len()].copy_from_slice(chosen);
            return Ok(Answer::of(&name));
        }
        raw::TCP_INFO => return Ok(info(socket)),
        _ => return Err(Errno::ENOPROTOOPT),
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
