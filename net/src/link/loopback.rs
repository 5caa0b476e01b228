//! The loopback device: every packet arrives where it was sent.

use alloc::collections::VecDeque;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use nucleus::{
    sync::{Rank, SpinLock},
    task::{Sleep, WaitQueue},
};

use super::{Device, Features};
use crate::{
    counters::Counter,
    packet::{Checksum, Packet},
};

/// The largest packet that an IPv4 header can describe, in bytes. Linux's `lo` allows one more.
const MTU: u16 = u16::MAX;
/// Packets that may be on their way.
const MOST: usize = 4096;
/// Times that a caller waits for others: a handshake and an end have fewer packets.
const MOST_WAITS: usize = 16;

/// The loopback device.
pub struct Loopback {
    packets: SpinLock<VecDeque<Packet>>,
    /// How many packets were ever added.
    added: AtomicU64,
    /// How many of them were taken off.
    taken: AtomicU64,
    /// How many of these were delivered.
    delivered: AtomicU64,
    waiters: WaitQueue,
    mtu: AtomicU32,
}

impl Loopback {
    /// A device without packets.
    pub fn new() -> Loopback {
        Loopback {
            packets: SpinLock::new(Rank::Leaf, VecDeque::new()),
            added: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            waiters: WaitQueue::new(),
            mtu: AtomicU32::new(MTU.into()),
        }
    }

    /// Takes the next packet on its way.
    fn next(&self) -> Option<Packet> {
        let mut packets = self.packets.lock();
        let packet = packets.pop_front()?;
        self.taken.fetch_add(1, SeqCst);
        Some(packet)
    }

    /// Notes that a packet which was taken is delivered.
    pub fn note_delivered(&self) {
        self.delivered.fetch_add(1, SeqCst);
        self.waiters.wake_all();
    }

    /// Tells whether all packets that were sent before have been delivered. Takes no lock.
    #[inline]
    pub fn is_idle(&self) -> bool {
        // `delivered` never exceeds `added`, and neither decreases: if they are equal, nothing was
        // under way when `delivered` was read.
        self.delivered.load(SeqCst) == self.added.load(SeqCst)
    }

    /// As [`next`](Loopback::next), but waits for other callers to deliver what they have taken:
    /// `None` if that has caused no packets either. The caller has to
    /// [note the delivery](Loopback::note_delivered).
    pub fn next_of_all(&self) -> Option<Packet> {
        // Others go on for as long as they like; this caller's packets have arrived by then.
        for _ in 0..MOST_WAITS {
            let packet = self.next();
            if packet.is_some() || !self.wait_for_others() {
                return packet;
            }
        }
        None
    }

    /// Waits until as many packets are delivered as were taken before; false if they are already.
    fn wait_for_others(&self) -> bool {
        let goal = self.taken.load(SeqCst);
        let is_done = || (self.delivered.load(SeqCst) >= goal).then_some(());
        if is_done().is_some() {
            return false;
        }
        let how = Sleep {
            interruptible: false,
            deadline: None,
        };
        let _ = self.waiters.wait(how, is_done);
        true
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

    fn send(&self, packet: &mut Packet) -> bool {
        packet.checksum = Checksum::Right;
        let bytes = packet.len();
        let mut first = [0];
        packet.peek(0, &mut first);
        let mut packets = self.packets.lock();
        let has_room = packets.len() < MOST && packets.try_reserve(1).is_ok();
        if has_room {
            packets.push_back(core::mem::take(packet));
            self.added.fetch_add(1, SeqCst);
            drop(packets);
            count_packet(first[0] >> 4 == 6, bytes);
        }
        has_room
    }
}

/// Counts one packet with `bytes` of payload.
pub fn count_packet(is_v6: bool, bytes: usize) {
    Counter::loopback_packets.add(1);
    Counter::loopback_packets_v6.add(is_v6.into());
    Counter::loopback_bytes.add(bytes as u64);
}
