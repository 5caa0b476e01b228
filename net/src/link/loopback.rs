//! The loopback device: every packet arrives where it was sent.

use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use nucleus::sync::{Rank, SpinLock};

use super::{Device, Features};
use crate::{
    counters::Counter,
    packet::{Checksum, Packet},
};

/// The largest packet that an IPv4 header can describe, in bytes. Linux's `lo` allows one more.
const MTU: u16 = u16::MAX;
/// Packets that may be on their way.
const MOST: usize = 4096;

/// The loopback device.
pub struct Loopback {
    packets: SpinLock<VecDeque<Packet>>,
    mtu: AtomicU32,
}

impl Loopback {
    /// A device without packets.
    pub fn new() -> Loopback {
        Loopback {
            packets: SpinLock::new(Rank::Leaf, VecDeque::new()),
            mtu: AtomicU32::new(MTU.into()),
        }
    }

    /// Takes the next packet on its way.
    pub fn next(&self) -> Option<Packet> {
        self.packets.lock().pop_front()
    }

    /// Changes the largest packet, for new connections.
    pub fn set_mtu(&self, mtu: u16) {
        self.mtu.store(mtu.into(), Relaxed);
    }
}

impl Default for Loopback {
    fn default() -> Loopback {
        Loopback::new()
    }
}

impl Device for Loopback {
    fn features(&self) -> Features {
        Features {
            mac: None,
            mtu: self.mtu.load(Relaxed) as u16,
            // A packet can't be damaged on its way: no sums are made or checked, as on Linux.
            checksums: true,
            cuts: 0,
        }
    }

    fn send(&self, mut packet: Packet) {
        packet.checksum = Checksum::Right;
        let bytes = packet.len();
        let mut first = [0];
        packet.peek(0, &mut first);
        let mut packets = self.packets.lock();
        if packets.len() < MOST && packets.try_reserve(1).is_ok() {
            packets.push_back(packet);
            drop(packets);
            count_packet(first[0] >> 4 == 6, bytes);
        }
    }
}

/// Counts one packet with `bytes` of payload.
pub fn count_packet(is_v6: bool, bytes: usize) {
    Counter::loopback_packets.add(1);
    Counter::loopback_packets_v6.add(is_v6.into());
    Counter::loopback_bytes.add(bytes as u64);
}
