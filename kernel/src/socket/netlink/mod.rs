//! Netlink: the family by which programs ask the kernel for its interfaces, addresses and routes.
//!
//! - [`socket`](mod@socket): the sockets, their ports and queues; `name`: their names;
//! - `message`: the format of requests and answers;
//! - `route`: the protocol `NETLINK_ROUTE`: requests and permissions; `link`, `addresses`,
//!   `routes`, `neighbours`: the answers and the changes; `events`: news of changes;
//! - `diagnosis`: the protocol `NETLINK_SOCK_DIAG`, which lists sockets.
//!
//! Requests are served inside the call that sends them; the answers wait in the socket's queue.

use alloc::{boxed::Box, sync::Arc};

use abi::{
    Errno, Result,
    raw::{
        net::{SOCK_DGRAM, SOCK_RAW},
        netlink::{NETLINK_ROUTE, NETLINK_SOCK_DIAG},
    },
};

use super::{Family, Socket, inet::stack};

mod addresses;
mod diagnosis;
mod events;
mod link;
mod message;
mod name;
mod neighbours;
mod numbers;
mod route;
mod routes;
mod socket;

pub use link::hardware;
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
    if protocol != NETLINK_ROUTE && protocol != NETLINK_SOCK_DIAG {
        return Err(Errno::EPROTONOSUPPORT);
    }
    // Changes are told from the first socket on that may want to know.
    stack().network().set_observer(Box::new(events::tell));
    Ok(socket::NetlinkSocket::make(kind, protocol))
}
