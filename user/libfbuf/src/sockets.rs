//! Paths by Unix sockets: the right to join a path is its descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::path::Path;
use crate::raw;

/// The byte that comes with a path's descriptor.
const BYTE: [u8; 1] = *b"p";

/// Sends a path's descriptor to the process at the other end of a Unix socket.
///
/// # Errors
/// Those of `sendmsg`.
pub fn send_path(socket: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    raw::send_descriptor(socket, &BYTE, path.as_fd())
}

/// Receives the descriptor that [`send_path`] sent, to [attach](crate::Member::attach) to.
///
/// # Errors
/// `EPIPE` when the other end is closed, `EPROTO` for anything else than a descriptor.
pub fn receive_path(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    raw::receive_descriptor(socket, &mut [0; 1])
}
