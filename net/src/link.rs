//! The loopback interface, the only one: every packet arrives where it was sent.

use alloc::{collections::VecDeque, vec, vec::Vec};

use crate::counters::Counter;
use smoltcp::{
    phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken},
    time::Instant,
    wire::IpVersion,
};

/// The largest packet that an IPv4 header can describe, in bytes. Linux's `lo` allows one more.
const MTU: usize = 65535;

/// A packet with its headers.
pub type Packet = Vec<u8>;

/// The interface as `smoltcp` drives it for one packet: at most one has arrived, and packets that
/// are sent join the queue `sent`.
pub struct Loopback<'a> {
    pub arrived: Option<Packet>,
    pub sent: &'a mut VecDeque<Packet>,
}

/// The packet that has arrived.
pub struct Arrived(Packet);
/// The queue for a packet that is to be sent.
pub struct Sent<'a>(&'a mut VecDeque<Packet>);

/// Counts one packet with `bytes` of payload that doesn't pass through a [`Loopback`].
pub fn count_packet(is_v6: bool, bytes: usize) {
    Counter::loopback_packets.add(1);
    Counter::loopback_packets_v6.add(is_v6.into());
    Counter::loopback_bytes.add(bytes as u64);
}

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        #[allow(
            clippy::disallowed_methods,
            reason = "headers only: TCP's window is a few bytes"
        )]
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        Counter::loopback_packets.add(1);
        let is_v6 = IpVersion::of_packet(&packet) == Ok(IpVersion::Ipv6);
        Counter::loopback_packets_v6.add(is_v6.into());
        self.0.push_back(packet);
        result
    }
}

impl Device for Loopback<'_> {
    type RxToken<'a>
        = Arrived
    where
        Self: 'a;
    type TxToken<'a>
        = Sent<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Sent<'_>)> {
        let packet = self.arrived.take()?;
        Some((Arrived(packet), Sent(self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sent<'_>> {
        Some(Sent(self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        // A packet can't be damaged on its way: no sums are made or checked, as on Linux's `lo`.
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities
    }
}
