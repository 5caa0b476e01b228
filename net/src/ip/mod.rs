//! IPv4 and IPv6.
//!
//! - `address`: addresses and networks, and which of them a bound socket covers;
//! - [`Interface`] (`interface`): a device with its name, addresses, state and counts;
//! - [`Network`] (`network`): the interfaces and their addresses; `routes`: the routes, and MTUs of
//!   paths; `own`: which addresses are this machine's; `configure`: more of what programs change;
//!   `source`: the choice of a packet's source;
//! - `input`: packets that arrive; `output`: packets that are sent;
//! - `neighbours`: addresses on the link; `ethernet`: formats of the link;
//! - `groups`: membership in groups; `reports`: how IGMP and MLD tell of it;
//! - `fragments`: parts of packets; `errors`: messages of ICMP about packets;
//! - `raw`: the packets of raw sockets; `icmp`: the echo replies to those.
//!
//! Every table that strangers can fill is bounded. Locks here are spinning leaves, held for a few
//! loads and stores; none is held while a packet goes to a device or to the protocols above.

mod address;
mod configure;
mod errors;
mod ethernet;
mod fragments;
mod groups;
pub(crate) mod icmp;
mod input;
mod interface;
mod neighbours;
mod network;
mod output;
mod own;
mod raw;
mod reports;
mod routes;
mod source;

pub use address::{Cover, Family, Prefix, destination, is_own, source_for};
pub use configure::{Adding, RouteChoice, flags};
pub use errors::{Refusal, Report, Trouble};
pub use ethernet::group_mac;
pub use input::Received;
pub use interface::{
    Address, AddressState, Interface, LOOPBACK, Name, Origin, Traffic, is_link_local,
};
pub use neighbours::Neighbour;
pub use network::{Change, Network, Upper};
pub use output::Sending;
pub(crate) use raw::Packet;
pub use routes::{Route, RouteEntry, RouteKind};
pub use source::scope_of;

/// The protocol number of ICMP in IPv4.
pub const ICMP: u8 = 1;
/// The protocol number of group management in IPv4.
pub const IGMP: u8 = 2;
/// The protocol number of TCP.
pub const TCP: u8 = 6;
/// The protocol number of UDP.
pub const UDP: u8 = 17;
/// The protocol number of ICMP for IPv6.
pub const ICMP_V6: u8 = 58;
