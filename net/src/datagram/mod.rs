//! Sockets that exchange datagrams: UDP, UDP-Lite and raw sockets.
//!
//! - [`Socket`] (`socket`): what a program's descriptor leads to: names, options, groups;
//! - [`SocketTable`] (`table`): the bindings of a protocol, and the receivers of a datagram;
//! - `queue`: the receive queue, reports of errors, readiness;
//! - `send`: datagrams with ports; `arrivals`: those of other machines; `packets`: those of raw
//!   sockets, with their IP header.
//!
//! All but UDP-Lite reach other machines. Inside this one, a datagram goes from the sender's call
//! straight into the receiver's queue as an aggregate of slices: on the loopback interface it needs
//! no header and no stop on the way. So of UDP-Lite's checksums over a part of a datagram (RFC
//! 3828) only the extent remains, by which a receiver may refuse datagrams, and raw sockets see no
//! packets of TCP and UDP.

mod arrivals;
mod packets;
mod queue;
mod send;
mod socket;
mod table;

pub(crate) use arrivals::{
    has_raw_sender, has_sender, receive, receive_echo, show_raw, take_raw_report, take_report,
};
pub use packets::Filter;
pub use queue::{Datagram, ErrorReport};
pub use send::{MAX_V4, MAX_V6, SendOptions};
pub use socket::{Options, Protocol, Socket, Summary};
pub use table::SocketTable;
