//! What experiments that move data between programs have in common.
//!
//! - [`Buffer`]: memory to send from and to receive into, at a chosen place in its page; stamped or filled with bytes that
//!   the receiver can check.
//! - [`Peer`]: the other program, which does what it is told and answers when it has.
//! - [`Line`]: two connected descriptors of some kind, one to send by, one to receive by.
//! - [`flow`]: bandwidth and latency over any line.

mod buffer;
pub mod flow;
mod line;
mod peer;

pub use buffer::{Buffer, PAGE, check_pattern, check_stamp, fill_pattern, stamp};
pub use line::{Line, Side, socket_pair};
pub use peer::{Order, Peer, pipe};

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};

/// A size in bytes as row names have it: `64B`, `4KiB`, `1MiB`.
pub fn size_name(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..0x10_0000 => format!("{}KiB", bytes / 1024),
        _ => format!("{}MiB", bytes >> 20),
    }
}

/// Fills `to` by as many reads as it takes.
///
/// # Errors
/// Those of `read`, and `UnexpectedEof` where the bytes end before.
pub fn read_whole(mut from: &File, to: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < to.len() {
        match from.read(&mut to[filled..])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
    }
    Ok(())
}

/// The error of a wrong byte.
pub fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, what.into())
}

/// The result of a call that says -1 for an error.
///
/// # Errors
/// `errno`'s.
pub fn checked<T: PartialEq + From<i8>>(result: T) -> Result<T> {
    match result == T::from(-1) {
        true => Err(Error::last_os_error()),
        false => Ok(result),
    }
}
