//! `getsockopt` and `setsockopt`.

use abi::{Errno, Result, raw::net::SOL_SOCKET};
use nucleus::user::{self, as_bytes};

use super::{Call, SystemCall, call};
use crate::socket::{
    Answer, SocketFile, Value,
    common::{self, READABLE, SETTABLE},
};
use crate::unsupported::note_unsupported;

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_getsockopt, getsockopt).flags(&[&READABLE]),
    call!(__NR_setsockopt, setsockopt).flags(&[&SETTABLE]).note(
        "TCP's `TCP_QUICKACK`, `TCP_LINGER2`, `TCP_WINDOW_CLAMP`, `TCP_THIN_LINEAR_TIMEOUTS`, \
             `TCP_THIN_DUPACK`, `TCP_NOTSENT_LOWAT` and `TCP_SAVE_SYN` are kept and change \
             nothing; between programs of one machine nothing is held back, and an end that is \
             gone is always told, so that no option of pace changes anything there; \
             `SO_PEEK_OFF` is for local sockets \
             (`EOPNOTSUPP` else, as for TCP before Linux 6.9)",
    ),
];

/// The name under which an unknown option is counted.
fn option_number(level: u32, name: u32) -> u64 {
    u64::from(level) << 32 | u64::from(name)
}

pub(super) fn setsockopt(call: &mut Call<'_>) -> Result<usize> {
    let (level, name) = (call.unsigned(1), call.unsigned(2));
    let open = call.opened(0)?;
    let socket = SocketFile::of(&open)?;
    let value = Value {
        at: call.address(3),
        len: usize::try_from(call.int(4)).map_err(|_| Errno::EINVAL)?,
        compatible: call.own.compatible_call,
    };
    let result = if level == SOL_SOCKET && SETTABLE.unknown(name.into()) == 0 {
        common::set(&**socket, name, &value)
    } else {
        socket.set_option(level, name, &value)
    };
    if matches!(result, Err(Errno::ENOPROTOOPT | Errno::EOPNOTSUPP)) {
        note_unsupported(call.caller(), "optname", option_number(level, name));
    }
    result.map(|()| 0)
}

pub(super) fn getsockopt(call: &mut Call<'_>) -> Result<usize> {
    let (level, name) = (call.unsigned(1), call.unsigned(2));
    let open = call.opened(0)?;
    let socket = SocketFile::of(&open)?;
    let room: i32 = call.read(4)?;
    let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
    let compatible = call.own.compatible_call;
    let given = Value {
        at: call.address(3),
        len: room,
        compatible,
    };
    let answer = if let Some(answer) = socket.exchange_option(level, name, &given) {
        answer
    } else if level == SOL_SOCKET && READABLE.unknown(name.into()) == 0 {
        common::get(&**socket, name, compatible)
    } else {
        socket.option(level, name)
    };
    if matches!(answer, Err(Errno::ENOPROTOOPT | Errno::EOPNOTSUPP)) {
        note_unsupported(call.caller(), "optname", option_number(level, name));
    }
    let answer = answer?;
    let bytes = match &answer {
        Answer::Int(value) => as_bytes(value),
        Answer::Bytes(bytes) => bytes,
        Answer::Whole(bytes) if bytes.len() > room => {
            call.write(4, &(bytes.len() as i32))?;
            return Err(Errno::ERANGE);
        }
        Answer::Whole(bytes) => bytes,
    };
    let n = bytes.len().min(room);
    user::copy_out(call.address(3), &bytes[..n])?;
    call.write(4, &(n as i32))?;
    Ok(0)
}
