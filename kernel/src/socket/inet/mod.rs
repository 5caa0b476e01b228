//! Internet sockets: the families `AF_INET` and `AF_INET6` over the stack of `net`.
//!
//! - `stream`: TCP sockets; `datagram`: UDP, UDP-Lite and raw sockets;
//! - `name`: `struct sockaddr_in` and `sockaddr_in6`;
//! - `ip_options`, `tcp_options`: the options of their levels;
//! - `stack`: the one protocol stack;
//! - `control`: control messages of datagrams; `interface`: interfaces, as programs name them;
//!   `ioctl`: what is asked and changed by it.
//!
//! The loopback interface is up from the start, and stays so.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use abi::{
    Errno, Result,
    raw::{
        general::CAP_NET_RAW,
        net::{SOCK_DGRAM, SOCK_RAW, SOCK_STREAM},
    },
};
use fs::Ready;
use net::{Readiness, datagram::Protocol, ports::NameOptions};
use nucleus::frame;

use super::{Common, Family, Socket, common};
use crate::process::thread;

mod control;
mod datagram;
pub mod interface;
pub mod ioctl;
mod ip_options;
mod name;
mod stack;
mod stream;
mod tcp_options;
mod zero_copy;

use datagram::Datagrams;
use stack::{AF_UNSPEC, IPPROTO_IP, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_UDPLITE, check_port, domain};

pub use stack::{AF_INET, AF_INET6, stack};
pub use tcp_options::{congestion_name, info, state_number};

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
        (SOCK_DGRAM, IPPROTO_IP | IPPROTO_UDP) => Datagrams::create(family, Protocol::Udp),
        (SOCK_DGRAM, IPPROTO_UDPLITE) => Datagrams::create(family, Protocol::UdpLite),
        (SOCK_DGRAM, protocol) if protocol == u32::from(echoes) => match may_ping() {
            true => Datagrams::create(family, Protocol::Ping),
            false => Err(Errno::EACCES),
        },
        (SOCK_RAW, _) if !common::may(CAP_NET_RAW) => Err(Errno::EPERM),
        (SOCK_RAW, IPPROTO_IP | 256..) => Err(Errno::EPROTONOSUPPORT),
        (SOCK_RAW, _) if frame::is_scarce() => Err(Errno::ENOMEM),
        (SOCK_RAW, _) => Datagrams::create(family, Protocol::Raw(protocol as u8)),
        (SOCK_STREAM | SOCK_DGRAM, _) => Err(Errno::EPROTONOSUPPORT),
        _ => Err(Errno::ESOCKTNOSUPPORT),
    }
}

/// The first and the last group whose members may open echo sockets (`ping_group_range`); none with
/// Linux's default.
pub static PING_GROUPS: [AtomicU32; 2] = [AtomicU32::new(1), AtomicU32::new(0)];

/// Tells whether the current thread may open an echo socket.
fn may_ping() -> bool {
    let [first, last] = [0, 1].map(|n| PING_GROUPS[n].load(Relaxed));
    thread::current_shared().is_some_and(|shared| {
        let credentials = &shared.credentials;
        let range = first..=last;
        let groups = &credentials.fs.groups;
        range.contains(&credentials.effective_gid) || groups.iter().any(|it| range.contains(it))
    })
}

/// Returns the options of a new socket's name.
fn name_options(common: &Common) -> NameOptions {
    NameOptions {
        user: common.owner.0,
        tag: common.inode,
        ..NameOptions::default()
    }
}

/// Returns what can be done with a socket as `poll` shows it.
fn ready_bits(ready: Readiness) -> Ready {
    let mut bits = Ready::empty();
    bits.set(Ready::IN | Ready::RDNORM, ready.readable);
    bits.set(Ready::OUT | Ready::WRNORM, ready.writable);
    bits.set(Ready::PRI, ready.urgent);
    bits.set(Ready::ERR, ready.error || ready.has_completion);
    bits.set(Ready::RDHUP, ready.read_hung_up);
    bits.set(Ready::HUP, ready.hung_up);
    bits
}
