//! Netlink: the family by which programs ask the kernel for its interfaces, addresses and routes.
//!
//! - [`socket`](mod@socket): the sockets, their ports and queues; `name`: their names;
//! - `message`: the format of requests and answers;
//! - `route`: the only protocol, `NETLINK_ROUTE`: requests and permissions; `link`, `routes`: the
//!   answers.
//!
//! Requests are served inside the call that sends them; the answers wait in the socket's queue.

use alloc::sync::Arc;

use abi::{
    Errno, Result,
    raw::{
        net::{SOCK_DGRAM, SOCK_RAW},
        netlink::NETLINK_ROUTE,
    },
};

use super::{Family, Socket};

mod link;
mod message;
mod name;
mod numbers;
mod route;
mod routes;
mod socket;

pub use socket::{NetlinkSocket, list};

use name::AF_NETLINK;

/// Netlink.
pub const FAMILY: Family = Family {
    domain: AF_NETLINK,
    create,
    pair: None,
};

fn create(kind: u32, protocol: u32) -> Result<Arc<dyn Socket>> {
    if kind != SOCK_RAW && kind != SOCK_DGRAM {
        return Err(Errno::ESOCKTNOSUPPORT);
    }
    if protocol != NETLINK_ROUTE {
        return Err(Errno::EPROTONOSUPPORT);
    }
    Ok(socket::NetlinkSocket::make(kind))
}
