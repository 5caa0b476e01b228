//! Internet sockets on the loopback interface.
//!
//! - `connections`: their beginnings, ends and errors; `reading`: readiness and ways of reading and writing;
//! - `ports`: who may share them; `accepting`: who gets a connection;
//! - `datagrams`, `raw`: datagrams, and packets that programs make themselves;
//! - `options`: options, the interface, `/proc/net`.

use std::io::{ErrorKind, Read, Write};
use std::mem::{size_of, zeroed};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket,
};
use std::os::fd::{AsRawFd, FromRawFd};
use std::thread;
use std::time::{Duration, Instant};

use libc::{
    AF_INET, AF_INET6, EPOLLHUP, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, MSG_DONTWAIT, MSG_NOSIGNAL,
    MSG_OOB, MSG_PEEK, MSG_TRUNC, POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDHUP, SO_ERROR,
    SO_LINGER, SO_RCVBUF, SO_REUSEADDR, SO_REUSEPORT, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM,
    SOL_SOCKET, c_int,
};

use crate::support::{Outcome, errno, file, pipe};
use crate::{Test, call, ensure, refused};

/// The result of something that the standard library does.
macro_rules! io {
    ($e:expr) => {
        $e.map_err(|error| format!("{}: {error}", stringify!($e)))?
    };
}

pub mod accepting;
pub mod connections;
pub mod datagrams;
pub mod options;
pub mod ports;
pub mod raw;
pub mod reading;

fn pair() -> Result<(TcpStream, TcpStream), String> {
    let listener = io!(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let client = io!(TcpStream::connect(io!(listener.local_addr())));
    let (server, peer) = io!(listener.accept());
    ensure!(peer == io!(client.local_addr()), "accepted from {peer}");
    Ok((client, server))
}

fn poll(socket: &impl AsRawFd, events: i16) -> Result<i16, String> {
    let mut entry = libc::pollfd {
        fd: socket.as_raw_fd(),
        events,
        revents: 0,
    };
    call!(poll(&mut entry, 1, 0));
    Ok(entry.revents)
}

fn set(socket: &impl AsRawFd, level: c_int, name: c_int, value: c_int) -> Outcome {
    call!(setsockopt(
        socket.as_raw_fd(),
        level,
        name,
        (&raw const value).cast(),
        4
    ));
    Ok(())
}

fn get(socket: &impl AsRawFd, level: c_int, name: c_int) -> Result<c_int, String> {
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

fn bind_v6(fd: c_int, port: u16) -> Outcome {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_in6 = unsafe { zeroed() };
    address.sin6_family = AF_INET6 as u16;
    address.sin6_port = port.to_be();
    let len = size_of::<libc::sockaddr_in6>() as u32;
    call!(bind(fd, (&raw const address).cast(), len));
    Ok(())
}

fn bind_v4(fd: c_int, ip: [u8; 4], port: u16) -> c_int {
    let address = v4(ip, port);
    let len = size_of::<libc::sockaddr_in>() as u32;
    // SAFETY: the address is alive.
    unsafe { libc::bind(fd, (&raw const address).cast(), len) }
}

fn v4(ip: [u8; 4], port: u16) -> libc::sockaddr_in {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_in = unsafe { zeroed() };
    address.sin_family = AF_INET as u16;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from_ne_bytes(ip);
    address
}
