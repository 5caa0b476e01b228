//! Unix sockets.
//!
//! - `streams`: order of bytes, ends, space, splice.
//! - `looking`: urgent bytes, `SO_PEEK_OFF`.
//! - `names`: names, the backlog, refusals, `/proc/net/unix`.
//! - `packets`: datagrams and packets.
//! - `rights`: files and credentials in control messages.
//! - `options`: options, timeouts and signals.

use support::prelude::*;

pub mod looking;
pub mod names;
pub mod options;
pub mod packets;
pub mod rights;
pub mod streams;

pub fn send(to: &OwnedFd, bytes: &[u8], flags: c_int) -> Result<usize> {
    let n = call!(send(
        to.as_raw_fd(),
        bytes.as_ptr().cast(),
        bytes.len(),
        flags
    ));
    Ok(n as usize)
}

pub fn receive(from: &OwnedFd, bytes: &mut [u8], flags: c_int) -> Result<usize> {
    let n = call!(recv(
        from.as_raw_fd(),
        bytes.as_mut_ptr().cast(),
        bytes.len(),
        flags
    ));
    Ok(n as usize)
}

/// Returns the events that `poll` reports at once.
pub fn ready(fd: c_int) -> Result<c_int> {
    Ok(poll_for(&fd, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0)?.into())
}

/// Makes an address from bytes; returns it and its length.
pub fn address(name: &[u8]) -> (sockaddr_un, u32) {
    // SAFETY: all zeros is a valid address.
    let mut address: sockaddr_un = unsafe { zeroed() };
    address.sun_family = AF_UNIX as u16;
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = *from as c_char;
    }
    (address, 2 + name.len() as u32)
}

pub fn bind(fd: c_int, name: &[u8]) -> c_int {
    let (address, len) = address(name);
    // SAFETY: the address lives across the call.
    match unsafe { libc::bind(fd, (&raw const address).cast(), len) } {
        0 => 0,
        _ => errno(),
    }
}

pub fn connect(fd: c_int, name: &[u8]) -> c_int {
    let (address, len) = address(name);
    // SAFETY: the address lives across the call.
    match unsafe { libc::connect(fd, (&raw const address).cast(), len) } {
        0 => 0,
        _ => errno(),
    }
}

pub fn socket(kind: c_int) -> Result<c_int> {
    Ok(call!(socket(AF_UNIX, kind | SOCK_CLOEXEC, 0)))
}

pub extern "C" fn ignore(_: c_int) {}
