//! Local sockets: streams, datagrams, packets, names, and what goes with messages.
//!
//! - `streams`: streams: bytes in order, ends, room, splice.
//! - `looking`: urgent bytes, looks that go on.
//! - `names`: names, the backlog, what is refused, what `/proc` lists.
//! - `packets`: datagrams and packets.
//! - `rights`: files and credentials that go with messages.
//! - `options`: options, time limits and signals.

pub mod looking;
pub mod names;
pub mod options;
pub mod packets;
pub mod rights;
pub mod streams;

use crate::call;
use crate::support::{Outcome, errno};
use libc::c_int;
use std::{
    mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

pub fn fail(what: &str) -> impl Fn(std::io::Error) -> String + '_ {
    move |error| format!("{what}: {error}")
}

/// A pair of connected sockets.
pub fn pair(kind: c_int) -> Result<[OwnedFd; 2], String> {
    let mut fds = [0; 2];
    call!(socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()));
    // SAFETY: the call has just given these descriptors to nobody else.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

pub fn send(to: &OwnedFd, bytes: &[u8], flags: c_int) -> Result<usize, String> {
    Ok(call!(send(
        to.as_raw_fd(),
        bytes.as_ptr().cast(),
        bytes.len(),
        flags
    )) as usize)
}

pub fn receive(from: &OwnedFd, bytes: &mut [u8], flags: c_int) -> Result<usize, String> {
    let n = call!(recv(
        from.as_raw_fd(),
        bytes.as_mut_ptr().cast(),
        bytes.len(),
        flags
    ));
    Ok(n as usize)
}

/// What `poll` says at once.
pub fn ready(fd: c_int) -> Result<c_int, String> {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI,
        revents: 0,
    };
    call!(poll(&mut entry, 1, 0));
    Ok(entry.revents.into())
}

pub fn option(fd: c_int, name: c_int) -> Result<c_int, String> {
    let (mut value, mut len) = (0, 4);
    call!(getsockopt(
        fd,
        libc::SOL_SOCKET,
        name,
        (&raw mut value).cast(),
        &mut len
    ));
    Ok(value)
}

pub fn set_option(fd: c_int, name: c_int, value: c_int) -> Outcome {
    let value = &raw const value;
    call!(setsockopt(fd, libc::SOL_SOCKET, name, value.cast(), 4));
    Ok(())
}

/// An address from bytes, and its length.
pub fn address(name: &[u8]) -> (libc::sockaddr_un, u32) {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
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

pub fn socket(kind: c_int) -> Result<c_int, String> {
    Ok(call!(socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0)))
}

pub const O_NONBLOCK: c_int = libc::O_NONBLOCK;

pub extern "C" fn ignore(_: c_int) {}
