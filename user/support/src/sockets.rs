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

/// Makes a socket that is full of answers of the kernel's.
pub fn unread_answers() -> Result<c_int> {
    let socket = call!(socket(libc::AF_NETLINK, libc::SOCK_RAW, 0));
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let mut question = [0_u8; 32];
    question[0] = 32;
    question[4..6].copy_from_slice(&libc::RTM_GETLINK.to_le_bytes());
    question[6..8].copy_from_slice(&flags.to_le_bytes());
    for _ in 0..300 {
        let bytes = question.as_ptr().cast();
        // SAFETY: sends from a buffer that is this long; it may be refused.
        unsafe { libc::send(socket, bytes, question.len(), libc::MSG_DONTWAIT) };
    }
    Ok(socket)
}
