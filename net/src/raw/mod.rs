//! Raw sockets: programs that make a protocol's packets themselves, such as `ping`.
//!
//! - [`Socket`] (`socket`): names, filter and queue;
//! - [`Packet`] (`packet`): a packet on its way, and its sums;
//! - `echo`: this machine's own part of ICMP, which answers echo requests.
//!
//! TCP and UDP are not reached this way: on the loopback interface theirs need no packets.

mod echo;
mod packet;
mod socket;

pub use packet::Packet;
pub use socket::{Filter, Manner, Options, Socket, Summary};

/// ICMP, as an IPv4 packet names its protocol.
pub const ICMP: u8 = 1;
/// ICMP for IPv6.
pub const ICMP_V6: u8 = 58;
