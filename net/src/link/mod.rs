//! Links: what carries packets.
//!
//! - this file: [`Device`], which a driver implements;
//! - [`Taps`] (`taps`): those that see all packets;
//! - [`Pools`] (`pools`): fbufs that devices fill;
//! - `loopback`: the device whose packets arrive where they were sent;
//! - [`bad`]: a simulated link between two machines, for tests.

use crate::packet::Packet;

#[cfg(not(target_os = "none"))]
pub mod bad;
mod loopback;
mod pools;
mod taps;

pub use loopback::{Loopback, count_packet};
pub use pools::Pools;
pub use taps::{Direction, Tap, Taps};

/// An address of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The address of all devices.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Tells whether it is that of several devices.
    pub fn is_for_many(self) -> bool {
        self.0[0] & 1 != 0
    }
}

/// What a device can do.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Its address; packets have a header of Ethernet then.
    pub mac: Option<Mac>,
    /// Bytes of the largest packet, without the link's header.
    pub mtu: u16,
    /// It computes checksums of packets that are sent.
    pub checksums: bool,
    /// The most bytes of payload that it cuts into segments of TCP; 0 for none.
    pub cuts: u32,
}

/// A device that sends packets. Those that arrive go to [`Network::receive`].
///
/// [`Network::receive`]: crate::ip::Network::receive
pub trait Device: Send + Sync {
    /// Returns what it can do.
    fn features(&self) -> Features;

    /// Sends a packet, or drops it if there is no room; returns false then. Never sleeps for long.
    /// The packet, which is large, stays in its place where the device takes its data only.
    fn send(&self, packet: &mut Packet) -> bool;

    /// Tells whether its link is there.
    fn has_carrier(&self) -> bool {
        true
    }

    /// Lets it receive packets for other machines, too, or not.
    fn set_promiscuous(&self, _is_wanted: bool) {}

    /// Returns the kind by which netlink tells of it; empty for a card.
    fn kind(&self) -> &'static str {
        ""
    }
}
