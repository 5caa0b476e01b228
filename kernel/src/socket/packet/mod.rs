//! Packets of interfaces as they are: the family `AF_PACKET`.
//!
//! - `socket`: sockets, which see the packets of one interface or of all;
//! - `queue`: the packets that wait for a reader;
//! - `seen`: a packet as a filter and a receiver see it; `name`: `struct sockaddr_ll`;
//! - `list`: all sockets;
//! - `ring`: packets in memory that the program maps (`PACKET_RX_RING`);
//! - `fbufs`: packets in fbufs of the kernel.
//!
//! Connections between two programs of this machine exchange no packets unless `loopback=ip` says
//! so, and then there is nothing to see.

use alloc::sync::Arc;

use abi::{
    Errno, Result,
    raw::{
        general::CAP_NET_RAW,
        net::{SOCK_DGRAM, SOCK_RAW},
    },
};

use super::{Family, Socket, common};

mod fbufs;
mod list;
mod name;
mod queue;
mod ring;
mod seen;
mod socket;

pub use list::list;
use name::AF_PACKET;

/// Packets of interfaces.
pub const FAMILY: Family = Family {
    domain: AF_PACKET,
    create,
    pair: None,
};

fn create(kind: u32, protocol: u32) -> Result<Arc<dyn Socket>> {
    if !common::may(CAP_NET_RAW) {
        return Err(Errno::EPERM);
    }
    if kind != SOCK_RAW && kind != SOCK_DGRAM {
        return Err(Errno::ESOCKTNOSUPPORT);
    }
    // In network order.
    socket::PacketSocket::make(kind, (protocol as u16).swap_bytes())
}
