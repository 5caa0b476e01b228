//! Sockets and their options.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use libc::c_int;

use crate::call;
use crate::failure::{Outcome, Result};

/// Makes a pair of connected Unix sockets.
pub fn socket_pair(kind: c_int) -> Result<[OwnedFd; 2]> {
    let mut fds = [0; 2];
    call!(socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()));
    // SAFETY: the call has just made these descriptors, and nothing else owns them.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Sets an option to a value of plain bytes.
pub fn set_option<T>(socket: &impl AsRawFd, level: c_int, name: c_int, value: T) -> Outcome {
    let len = size_of::<T>() as u32;
    call!(setsockopt(
        socket.as_raw_fd(),
        level,
        name,
        ptr::from_ref(&value).cast(),
        len
    ));
    Ok(())
}

/// Returns an option that is a number.
pub fn option(socket: &impl AsRawFd, level: c_int, name: c_int) -> Result<c_int> {
    let (mut value, mut len) = (0, 4);
    call!(getsockopt(
        socket.as_raw_fd(),
        level,
        name,
        (&raw mut value).cast(),
        &mut len
    ));
    Ok(value)
}
