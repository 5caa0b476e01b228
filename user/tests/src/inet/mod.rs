//! Internet sockets on the loopback interface.
//!
//! - `connections`: setup, shutdown and errors; `reading`: readiness, ways of reading and writing;
//! - `ports`: sharing of ports; `accepting`: several waiters for a connection;
//! - `datagrams`, `raw`: datagrams, packets that programs build themselves;
//! - `options`: options, the interface, `/proc/net`.

use support::prelude::*;

pub mod accepting;
pub mod connections;
pub mod datagrams;
pub mod options;
pub mod ports;
pub mod raw;
pub mod reading;

fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, peer) = listener.accept()?;
    ensure!(peer == client.local_addr()?, "accepted from {peer}");
    Ok((client, server))
}

fn bind_v6(fd: c_int, port: u16) -> Outcome {
    // SAFETY: all zeros is a valid address.
    let mut address: sockaddr_in6 = unsafe { zeroed() };
    address.sin6_family = AF_INET6 as u16;
    address.sin6_port = port.to_be();
    let len = size_of::<sockaddr_in6>() as u32;
    call!(bind(fd, (&raw const address).cast(), len));
    Ok(())
}

fn bind_v4(fd: c_int, ip: [u8; 4], port: u16) -> c_int {
    let address = v4(ip, port);
    let len = size_of::<sockaddr_in>() as u32;
    // SAFETY: the address is alive.
    unsafe { libc::bind(fd, (&raw const address).cast(), len) }
}

fn v4(ip: [u8; 4], port: u16) -> sockaddr_in {
    // SAFETY: all zeros is a valid address.
    let mut address: sockaddr_in = unsafe { zeroed() };
    address.sin_family = AF_INET as u16;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from_ne_bytes(ip);
    address
}
