//! Shared parts of experiments that move data between programs.
//!
//! - [`Buffer`]: memory to send from and to receive into, at a chosen offset in its page; stamped
//!   or filled with bytes that the receiver can check.
//! - [`Peer`]: the other program, which executes orders and answers each.
//! - [`Line`]: two connected descriptors of some kind, one to send by, one to receive by.
//! - [`flow`]: bandwidth and latency over any line.

mod buffer;
pub mod flow;
mod line;
mod peer;

pub use buffer::{
    Buffer, PAGE, check_filled, check_pattern, check_stamp, fill, fill_pattern, stamp,
};
pub use line::{Line, Side, socket_pair};
pub use peer::{Order, Peer, pipe};

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::fd::AsRawFd;

/// Formats a size in bytes for row names: `64B`, `4KiB`, `1MiB`.
pub fn size_name(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..0x10_0000 => format!("{}KiB", bytes / 1024),
        _ => format!("{}MiB", bytes >> 20),
    }
}

/// Fills `to` by as many reads as needed.
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

/// Sends a file's first bytes by `sendfile`, and leaves the file's place as it is.
///
/// # Errors
/// Those of `sendfile`, and a file that ends before.
pub fn send_file(to: &impl AsRawFd, file: &File, size: usize) -> Result<()> {
    let mut at: libc::off_t = 0;
    while (at as usize) < size {
        let left = size - at as usize;
        // SAFETY: the descriptors are open, and the place is a variable of this function.
        let moved = checked(unsafe {
            libc::sendfile(to.as_raw_fd(), file.as_raw_fd(), &raw mut at, left)
        })?;
        if moved == 0 {
            return Err(wrong("a file ended too early"));
        }
    }
    Ok(())
}

/// Returns the error of a wrong byte.
pub fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, what.into())
}

/// Converts the result of a call that returns -1 for an error.
///
/// # Errors
/// That of `errno`.
pub fn checked<T: PartialEq + From<i8>>(result: T) -> Result<T> {
    match result == T::from(-1) {
        true => Err(Error::last_os_error()),
        false => Ok(result),
    }
}
