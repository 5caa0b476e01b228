//! Internet sockets: the families `AF_INET` and `AF_INET6` over the stack of `net`.
//!
//! - `stream`: TCP sockets; `datagram`: UDP, UDP-Lite and raw sockets;
//! - `name`: `struct sockaddr_in` and `sockaddr_in6`;
//! - `ip_options`, `tcp_options`: the options of their levels;
//! - `control`: control messages of datagrams; `interface`: `lo`, as `ioctl` shows it.
//!
//! The loopback interface is the only one. It is up from the start.

use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{
    Errno, Result,
    raw::{
        general::{CAP_NET_BIND_SERVICE, CAP_NET_RAW},
        net::{SOCK_DGRAM, SOCK_RAW, SOCK_STREAM},
    },
};
use net::{Stack, datagram::Protocol};
use nucleus::{
    frame,
    sync::OnceBox,
    task::{self, Spawn},
};

use super::{Family, Socket, common};

mod control;
mod datagram;
pub mod interface;
mod ip_options;
mod name;
mod stream;
mod tcp_options;

use datagram::Datagrams;

pub use tcp_options::state_number;

pub const AF_INET: u32 = 2;
pub const AF_INET6: u32 = 10;
/// The family of no address: connecting to one ends the connection.
const AF_UNSPEC: u32 = 0;

const IPPROTO_IP: u32 = 0;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
const IPPROTO_UDPLITE: u32 = 136;

/// IPv4.
pub const V4: Family = Family {
    domain: AF_INET,
    create: |kind, protocol| create(net::Family::V4, kind, protocol),
    pair: None,
};

/// IPv6.
pub const V6: Family = Family {
    domain: AF_INET6,
    create: |kind, protocol| create(net::Family::V6, kind, protocol),
    pair: None,
};

fn create(family: net::Family, kind: u32, protocol: u32) -> Result<Arc<dyn Socket>> {
    let echoes = match family {
        net::Family::V4 => net::ip::ICMP,
        net::Family::V6 => net::ip::ICMP_V6,
    };
    match (kind, protocol) {
        (SOCK_STREAM, IPPROTO_IP | IPPROTO_TCP) => Ok(stream::Stream::create(family)),
        (SOCK_DGRAM, IPPROTO_IP | IPPROTO_UDP) => Ok(Datagrams::create(family, Protocol::Udp)),
        (SOCK_DGRAM, IPPROTO_UDPLITE) => Ok(Datagrams::create(family, Protocol::UdpLite)),
        // As with Linux's default `ping_group_range`, no user may open an echo socket.
        (SOCK_DGRAM, protocol) if protocol == u32::from(echoes) => Err(Errno::EACCES),
        (SOCK_RAW, _) if !common::may(CAP_NET_RAW) => Err(Errno::EPERM),
        // TCP and UDP send no packets here that could be shown; headers are not read.
        (SOCK_RAW, IPPROTO_IP | IPPROTO_TCP | IPPROTO_UDP | 255..) => Err(Errno::EPROTONOSUPPORT),
        (SOCK_RAW, _) if frame::is_scarce() => Err(Errno::ENOMEM),
        (SOCK_RAW, _) => Ok(Datagrams::create(family, Protocol::Raw(protocol as u8))),
        (SOCK_STREAM | SOCK_DGRAM, _) => Err(Errno::EPROTONOSUPPORT),
        _ => Err(Errno::ESOCKTNOSUPPORT),
    }
}

/// Returns the number of a family.
fn domain(family: net::Family) -> u32 {
    match family {
        net::Family::V4 => AF_INET,
        net::Family::V6 => AF_INET6,
    }
}

/// Returns the machine's protocols. The thread that runs their timers starts with the first use.
pub fn stack() -> &'static Stack {
    static STACK: OnceBox<Stack> = OnceBox::new();
    static SERVED: AtomicBool = AtomicBool::new(false);
    let stack = STACK.get_or_insert(|| Box::new(Stack::new()));
    if !SERVED.load(Ordering::Relaxed) && !SERVED.swap(true, Ordering::Relaxed) {
        let spawn = Spawn {
            name: "net",
            pmap: None,
            attachment: None,
            cpus: u64::MAX,
            priority: Default::default(),
        };
        if task::spawn(spawn, Box::new(|| stack.serve())).is_err() {
            // The next caller tries again.
            SERVED.store(false, Ordering::Relaxed);
        }
    }
    stack
}

/// Checks that the current thread may bind to a port.
///
/// # Errors
/// `EACCES` for ports below 1024 without privilege.
fn check_port(port: u16) -> Result<()> {
    if (1..1024).contains(&port) && !common::may(CAP_NET_BIND_SERVICE) {
        return Err(Errno::EACCES);
    }
    Ok(())
}
