//! What raw sockets send and receive: packets of a protocol that programs make themselves.

use core::net::{IpAddr, SocketAddr};

use crate::counters::Counter;
use abi::Result;
use fbuf::Source;
use nucleus::time;

use super::{
    Datagram, Options, SendOptions, Socket,
    send::choose_source,
    table::{self, Receivers, SocketTable},
};
use crate::{
    Family,
    ip::{ICMP, ICMP_V6, Packet, icmp},
    link,
};

/// The place of the checksum in messages of ICMP for IPv6.
const SUM_V6: usize = 2;

/// Types of ICMP messages that a raw socket doesn't receive: one bit for each type.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Filter(pub [u32; 8]);

impl Filter {
    /// Tells whether messages of a type are filtered out.
    pub fn blocks(&self, kind: u8) -> bool {
        self.0[usize::from(kind) / 32] >> (kind % 32) & 1 != 0
    }
}

impl SocketTable {
    fn packet_receivers(&self, packet: &Packet) -> Receivers {
        let mut receivers = Receivers::default();
        for socket in self.bound_to(packet.protocol.into()) {
            if socket.accepts(packet) {
                receivers.add(socket);
            }
        }
        receivers
    }
}

impl Socket {
    /// Sends all bytes of the source as one packet of protocol `number`.
    pub(super) fn send_packet(
        &self,
        number: u8,
        to: IpAddr,
        data: &mut dyn Source,
        options: &Options,
        how: SendOptions,
    ) -> Result<usize> {
        let usual = table::source(options, to)?;
        let from = choose_source(&self.network, how.from, self.inner().local, usual, to)?;
        let len = data.left();
        let mut packet = Packet::new(from, to, number, data)?;
        packet.service = how.service;
        packet.hops = how.hops;
        if number == ICMP_V6 {
            packet.set_sum(SUM_V6);
        }
        if packet.hops == 0 && to.is_ipv6() {
            // A hop limit matters only to routers, and there is none on the way.
            packet.hops = 1;
        }
        self.deliver(&packet)?;
        if let Some(answer) = icmp::answer(&packet) {
            self.deliver(&answer)?;
        }
        Ok(len)
    }

    /// Adds a packet to the queues of all sockets that accept it.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn deliver(&self, packet: &Packet) -> Result<()> {
        link::count_packet(packet.to.is_ipv6(), packet.len());
        count(packet);
        let receivers = self.table().packet_receivers(packet);
        if !receivers.is_empty() {
            receivers.enqueue(Datagram {
                data: packet.bytes()?,
                from: SocketAddr::new(packet.from, 0),
                to: SocketAddr::new(packet.to, 0),
                at: time::since_epoch(),
                service: packet.service,
                hops: packet.hops,
                coverage: 0,
            });
        }
        Ok(())
    }

    /// Tells whether this socket receives a packet of its protocol.
    fn accepts(&self, packet: &Packet) -> bool {
        let inner = self.inner();
        let is_icmp = packet.protocol == ICMP || packet.protocol == ICMP_V6;
        let kind = packet.start().first();
        Family::of(packet.to) == self.family()
            && inner.local.is_none_or(|local| local.ip() == packet.to)
            && inner.remote.is_none_or(|peer| peer.ip() == packet.from)
            && !inner.read_shut
            && !(is_icmp && kind.is_some_and(|&kind| inner.filter.blocks(kind)))
    }

    /// Returns the filter of a raw socket.
    pub fn filter(&self) -> Filter {
        self.inner().filter
    }

    /// Changes the filter of a raw socket.
    pub fn set_filter(&self, filter: Filter) {
        self.inner().filter = filter;
    }
}

/// Counts a message of ICMP, which is sent and received at once.
fn count(packet: &Packet) {
    let kind = packet.start().first().copied();
    match packet.protocol {
        ICMP => {
            Counter::icmp_messages.add(1);
            match kind {
                Some(8) => Counter::icmp_echo_requests.add(1),
                Some(0) => Counter::icmp_echo_replies.add(1),
                _ => {}
            }
        }
        ICMP_V6 => {
            Counter::icmp6_messages.add(1);
            match kind {
                Some(128) => Counter::icmp6_echo_requests.add(1),
                Some(129) => Counter::icmp6_echo_replies.add(1),
                _ => {}
            }
        }
        _ => {}
    }
}
