//! Datagrams that come from other machines.

use core::net::SocketAddr;

use nucleus::{sync::Mutex, time};

use super::{
    Datagram, SocketTable,
    send::{CHECKSUM, HEADER},
};
use crate::{
    counters::Counter,
    ip::{Received, Refusal, Report, Trouble},
};

/// Takes a packet of UDP for the sockets of a table.
pub(crate) fn receive(table: &Mutex<SocketTable>, mut packet: Received) -> Option<Refusal> {
    let mut header = [0; HEADER];
    if packet.data.peek(0, &mut header) < HEADER {
        return None;
    }
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let (from, to, len) = (word(0), word(2), usize::from(word(4)));
    // The datagram fills its packet; only IPv4 may go without a checksum.
    let is_unsummed = word(CHECKSUM) == 0;
    packet.is_right |= is_unsummed && packet.from.is_ipv4();
    let is_wrong = is_unsummed && packet.from.is_ipv6() && !packet.is_right;
    if len != packet.data.len() || to == 0 || is_wrong || !packet.is_intact() {
        return None;
    }
    packet.data.clip_front(HEADER);
    let datagram = Datagram {
        data: packet.data,
        from: SocketAddr::new(packet.from, from),
        to: SocketAddr::new(packet.to, to),
        at: time::since_epoch(),
        service: packet.service,
        hops: packet.hops,
        coverage: 0,
    };
    let receivers = table
        .lock()
        .receivers_of(datagram.from, datagram.to, packet.is_for_many);
    if receivers.is_empty() {
        Counter::udp_no_port.add(1);
        Counter::udp_no_port_v6.add(datagram.to.is_ipv6().into());
        return Some(Refusal::Port);
    }
    receivers.enqueue(datagram);
    None
}

/// Tells the socket that sent a datagram that its destination has no such port.
pub(crate) fn take_report(table: &Mutex<SocketTable>, report: Report) {
    if report.trouble != Trouble::Refused {
        return;
    }
    let senders = table.lock().receivers(report.to, report.from);
    if let Some(socket) = senders.first() {
        let (is_peer, hears) = {
            let inner = socket.inner();
            let is_peer = inner.remote == Some(report.to);
            (is_peer, inner.options.receive_errors)
        };
        if is_peer || hears {
            socket.unreachable(report.to, None);
        }
    }
}
