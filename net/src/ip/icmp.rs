//! The part of ICMP that this machine answers: echo requests.

use crate::counters::Counter;

use super::{ICMP, ICMP_V6, Packet};

/// Types of messages: echo request and echo reply.
const REQUEST: u8 = 8;
const REPLY: u8 = 0;
const REQUEST_V6: u8 = 128;
const REPLY_V6: u8 = 129;
/// Bytes of a message's header; the checksum is at byte 2.
const HEADER: usize = 8;
const SUM: usize = 2;
/// The time to live of an answer.
const HOPS: u8 = 64;

/// Returns the answer to a packet for this machine, if it asks for one.
pub fn answer(packet: &Packet) -> Option<Packet> {
    let (request, reply) = match packet.protocol {
        ICMP => (REQUEST, REPLY),
        ICMP_V6 => (REQUEST_V6, REPLY_V6),
        _ => return None,
    };
    let is_request = packet.start().len() >= HEADER && packet.start()[0] == request;
    if !is_request || packet.to.is_multicast() {
        return None;
    }
    if packet.sum() != 0 {
        Counter::icmp_errors.add(1);
        return None;
    }
    let mut answer = packet.clone();
    answer.from = packet.to;
    answer.to = packet.from;
    answer.hops = HOPS;
    answer.start_mut()[0] = reply;
    answer.set_sum(SUM);
    Some(answer)
}
