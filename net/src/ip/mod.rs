//! IPv4 and IPv6 as far as sockets need them.
//!
//! - `address`: this machine's addresses, and which of them a bound socket covers;
//! - `packet`: the packets of raw sockets, their headers and checksums;
//! - `icmp`: echo replies.

mod address;
pub(crate) mod icmp;
mod packet;

pub use address::{Cover, Family, destination, is_own, source_for};
pub(crate) use packet::Packet;

/// The protocol number of ICMP in IPv4.
pub const ICMP: u8 = 1;
/// The protocol number of ICMP for IPv6.
pub const ICMP_V6: u8 = 58;
