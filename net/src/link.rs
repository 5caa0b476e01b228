//! The loopback interface, the only one: every packet arrives where it was sent.

use crate::counters::Counter;

/// Counts one packet with `bytes` of payload.
pub fn count_packet(is_v6: bool, bytes: usize) {
    Counter::loopback_packets.add(1);
    Counter::loopback_packets_v6.add(is_v6.into());
    Counter::loopback_bytes.add(bytes as u64);
}
