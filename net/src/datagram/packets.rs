//! What raw sockets send and receive: packets of a protocol that programs make themselves.

use alloc::sync::Arc;
use core::net::{IpAddr, SocketAddr};

use crate::counters::Counter;
use abi::{Errno, Result};
use fbuf::{Aggregate, BytesSource, Source};
use nucleus::{random, time};

use super::{
    Datagram, Options, Protocol, SendOptions, Socket,
    send::choose_source,
    table::{Receivers, SocketTable},
};
use crate::{
    Family,
    ip::{ICMP, ICMP_V6, LOOPBACK, Packet, Received, Route, Sending, icmp},
    link,
    packet::{Head, Headers, Sum},
};

/// The number of the protocol whose packets have their header already (`IPPROTO_RAW`).
const RAW: u8 = 255;
/// Bytes of the header of an echo.
const ECHO: usize = 8;
/// Bytes of a header of IPv4 with all options, and of the longest packet.
const LONGEST_HEADER: usize = 60;
const MAX_PACKET: usize = 65_535;
/// Packets inside this machine that a call delivers at most.
const MOST_DELIVERED: usize = 256;

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

/// What decides which raw sockets receive a packet.
pub(super) struct Shown {
    pub from: IpAddr,
    pub to: IpAddr,
    pub protocol: u8,
    /// The first byte of the payload: the type of a message of ICMP.
    pub kind: Option<u8>,
    /// The number of the interface where it has arrived; 0 for any.
    pub interface: u32,
}

impl Shown {
    /// Of a packet inside this machine.
    fn of(packet: &Packet) -> Shown {
        Shown {
            from: packet.from,
            to: packet.to,
            protocol: packet.protocol,
            kind: packet.start().first().copied(),
            interface: LOOPBACK,
        }
    }
}

impl SocketTable {
    pub(super) fn packet_receivers(&self, packet: &Shown) -> Receivers {
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
        let len = data.left();
        if len > MAX_PACKET {
            return Err(Errno::EMSGSIZE);
        }
        let (usual, route) = self.way(options, to, how.interface)?;
        if options.has_header && to.is_ipv4() {
            return self.send_made(to, route, data);
        }
        if number == RAW {
            return Err(Errno::EINVAL);
        }
        let from = choose_source(&self.network, how.from, self.inner().local, usual, to)?;
        if let Some(route) = route {
            Packet::check_len(to, len)?;
            let mut bytes = Aggregate::new();
            if bytes.fill_from(data, len)? < len {
                return Err(Errno::EFAULT);
            }
            let sending = Sending {
                from,
                to,
                protocol: number,
                service: how.service,
                hops: how.hops,
                is_whole: options.is_whole,
                ..Sending::default()
            };
            let mut head = Head::default();
            let mut sum = None;
            if number == ICMP_V6 {
                // Its checksum is the kernel's work.
                let mut start = [0; ECHO];
                if bytes.peek(0, &mut start) < SUM_V6 + 2 {
                    return Err(Errno::EINVAL);
                }
                let n = len.min(ECHO);
                head.push(n).copy_from_slice(&start[..n]);
                bytes.clip_front(n);
                sum = Some(SUM_V6);
            }
            let sending = Sending {
                checksum: sum,
                ..sending
            };
            self.network.send(&route, sending, head, bytes, 0)?;
            return Ok(len);
        }
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
        self.exchange(&packet)?;
        Ok(len)
    }

    /// Gives a packet to this machine, and the answer to it.
    fn exchange(&self, packet: &Packet) -> Result<()> {
        self.deliver(packet)?;
        if let Some(answer) = icmp::answer(packet) {
            self.deliver(&answer)?;
            // Those who ask without a raw socket get it, too.
            let bytes = answer.bytes_without_header()?;
            self.network.hand_echo(&mut Received {
                interface: LOOPBACK,
                from: answer.from,
                to: answer.to,
                protocol: answer.protocol,
                service: answer.service,
                hops: answer.hops,
                is_for_many: false,
                is_right: true,
                headers: Headers::of(&bytes),
                data: bytes,
            });
        }
        Ok(())
    }

    /// Sends a packet whose header the program has made; what it left out is filled in.
    fn send_made(&self, to: IpAddr, route: Option<Route>, data: &mut dyn Source) -> Result<usize> {
        let len = data.left();
        let mut header = [0; LONGEST_HEADER];
        let mut bytes = Aggregate::new();
        if bytes.fill_from(data, len)? < len {
            return Err(Errno::EFAULT);
        }
        let n = bytes.peek(0, &mut header);
        let header_len = usize::from(header[0] & 15) * 4;
        if n < 20 || header_len < 20 || header_len > n || header[0] >> 4 != 4 {
            return Err(Errno::EINVAL);
        }
        let route = match route {
            Some(route) => route,
            None => self.network.route(to)?,
        };
        if len > usize::from(route.mtu) {
            return Err(Errno::EMSGSIZE);
        }
        let header = &mut header[..header_len];
        header[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        if header[4..6] == [0; 2] {
            header[4..6].copy_from_slice(&(random::u64() as u16).to_be_bytes());
        }
        if let (true, IpAddr::V4(source)) = (header[12..16] == [0; 4], route.source) {
            header[12..16].copy_from_slice(&source.octets());
        }
        header[10..12].fill(0);
        let mut sum = Sum::default();
        sum.add(header);
        header[10..12].copy_from_slice(&sum.finish().to_be_bytes());
        let mut head = Head::default();
        head.push(header_len).copy_from_slice(header);
        bytes.clip_front(header_len);
        self.network.send_made(&route, to, head, bytes);
        self.network.run_loopback(MOST_DELIVERED);
        Ok(len)
    }

    /// Sends an echo request with the socket's identifier.
    pub(super) fn send_echo(
        self: &Arc<Socket>,
        to: IpAddr,
        data: &mut dyn Source,
        options: &Options,
        how: SendOptions,
    ) -> Result<usize> {
        let len = data.left();
        if len < ECHO {
            return Err(Errno::EINVAL);
        }
        let (usual, route) = self.way(options, to, how.interface)?;
        self.ensure_name()?;
        let local = self.inner().local.ok_or(Errno::EINVAL)?;
        let from = choose_source(&self.network, how.from, Some(local), usual, to)?;
        let mut bytes = Aggregate::new();
        if bytes.fill_from(data, len)? < len {
            return Err(Errno::EFAULT);
        }
        let mut start = [0; ECHO];
        bytes.peek(0, &mut start);
        let (protocol, request) = match to {
            IpAddr::V4(_) => (ICMP, 8),
            IpAddr::V6(_) => (ICMP_V6, 128),
        };
        if start[..2] != [request, 0] {
            return Err(Errno::EINVAL);
        }
        start[4..6].copy_from_slice(&local.port().to_be_bytes());
        bytes.clip_front(ECHO);
        if let Some(route) = route {
            let mut head = Head::default();
            head.push(ECHO).copy_from_slice(&start);
            let sending = Sending {
                from,
                to,
                protocol,
                service: how.service,
                hops: how.hops,
                is_whole: options.is_whole,
                checksum: Some(SUM_V6),
            };
            self.network.send(&route, sending, head, bytes, 0)?;
            return Ok(len);
        }
        let mut whole = Aggregate::new();
        whole.fill_from(&mut BytesSource::new(&start), ECHO)?;
        whole.join(&mut bytes)?;
        let mut source = fbuf::AggregateSource::new(&mut whole, len);
        let mut packet = Packet::new(from, to, protocol, &mut source)?;
        packet.service = how.service;
        packet.hops = how.hops.max(1);
        packet.set_sum(SUM_V6);
        self.exchange(&packet)?;
        Ok(len)
    }

    /// Adds a packet to the queues of all sockets that accept it.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn deliver(&self, packet: &Packet) -> Result<()> {
        link::count_packet(packet.to.is_ipv6(), packet.len());
        count(packet);
        let receivers = match self.protocol() {
            Protocol::Raw(_) => self.table().packet_receivers(&Shown::of(packet)),
            _ => return Ok(()),
        };
        if !receivers.is_empty() {
            receivers.enqueue(Datagram {
                data: packet.bytes()?,
                from: SocketAddr::new(packet.from, 0),
                to: SocketAddr::new(packet.to, 0),
                at: time::since_epoch(),
                service: packet.service,
                hops: packet.hops,
                coverage: 0,
                interface: LOOPBACK,
            });
        }
        Ok(())
    }

    /// Tells whether this socket receives a packet of its protocol.
    fn accepts(&self, packet: &Shown) -> bool {
        let inner = self.inner();
        let is_icmp = packet.protocol == ICMP || packet.protocol == ICMP_V6;
        let at = packet.interface;
        Family::of(packet.to) == self.family()
            && inner.local.is_none_or(|local| local.ip() == packet.to)
            && inner.remote.is_none_or(|peer| peer.ip() == packet.from)
            && !inner.read_shut
            && (at == 0 || [0, at].contains(&inner.options.name.interface))
            && !(is_icmp && packet.kind.is_some_and(|kind| inner.filter.blocks(kind)))
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
