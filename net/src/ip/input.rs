//! Packets that arrive: checks, fragments, neighbours' messages, echoes.

use alloc::sync::Arc;
use core::{
    net::{IpAddr, Ipv4Addr},
    sync::atomic::Ordering::Relaxed,
};

use fbuf::Aggregate;
use smoltcp::wire::{Ipv4Packet, Ipv6Packet};

use super::{
    ICMP, ICMP_V6, IGMP, TCP, UDP,
    address::pseudo_sum,
    errors::{self, Refusal},
    ethernet::{self, Arp, Discovery},
    fragments::{Fragment, Key},
    groups::LISTENER_QUERY,
    interface::{Address, AddressState, Interface, LOOPBACK},
    neighbours::Neighbour,
    network::{Change, Network},
    output::{FRAGMENT, HEADER_V4, HEADER_V6, Sending, send_to},
};
use crate::{
    counters::Counter,
    link::Mac,
    packet::{Checksum, Head, Headers, Packet, Sum, TRANSPORT},
    timer::now,
};

/// Bytes of an IPv4 header with all options.
const LONGEST_V4: usize = 60;
/// Stands where no address was read yet.
const UNSPECIFIED: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// Headers of IPv6 that may stand before the payload: hop-by-hop options, routing, destination
/// options. More of them than this is an attack.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
const MOST_EXTENSIONS: usize = 4;
/// Types of messages of ICMP.
const ECHO_V4: u8 = 8;
const ECHO_V6: u8 = 128;
const ECHO_REPLY_V4: u8 = 0;
const ECHO_REPLY_V6: u8 = 129;
/// The most bytes of a router's advertisement that are looked at.
const MOST_OF_ROUTER: usize = 1024;

/// A packet for this machine, without its IP header.
#[derive(Debug)]
pub struct Received {
    /// The interface where it has arrived.
    pub interface: u32,
    /// The source.
    pub from: IpAddr,
    /// The destination.
    pub to: IpAddr,
    /// The protocol.
    pub protocol: u8,
    /// Type of service, or traffic class.
    pub service: u8,
    /// Time to live, or hop limit.
    pub hops: u8,
    /// It was sent to several machines.
    pub is_for_many: bool,
    /// The transport header's checksum needs no check.
    pub is_right: bool,
    /// The transport header and the payload.
    pub data: Aggregate,
    /// Their first bytes.
    pub headers: Headers,
}

impl Received {
    /// Returns the first bytes of `data`, `n` at least if there are so many, up to the length of
    /// the longest header of TCP.
    #[inline]
    pub fn first(&mut self, n: usize) -> &[u8] {
        // Behind long headers fewer were copied.
        let there = self.headers.as_slice().len();
        if there < n && there < self.data.len() {
            self.headers = Headers::of(&self.data);
        }
        self.headers.as_slice()
    }

    /// Tells whether the transport checksum is right.
    pub fn is_intact(&self) -> bool {
        if self.is_right {
            return true;
        }
        Counter::sums_checked.add(1);
        let mut sum = pseudo_sum(self.from, self.to, self.protocol, self.data.len());
        sum.add_slices(&self.data);
        sum.finish() == 0
    }
}

/// The fields of a header that [`Received`] does not have.
struct Header {
    /// Bytes of it, and of the whole packet.
    len: usize,
    total: usize,
    part: Option<Part>,
}

/// The place of a fragment.
struct Part {
    ident: u32,
    offset: usize,
    is_last: bool,
}

/// A packet as it came, for raw sockets and for a message about it.
enum Original {
    /// The bytes of its header, which were copied with what follows it, and are still there.
    Header(usize),
    /// All of it.
    Whole(Aggregate),
}

impl Original {
    /// Keeps what a message about the packet would quote, whose header, of `len` bytes, is still
    /// there. The whole packet is kept if it `needs_all`, and where not all headers were copied:
    /// [`Received::first`] would then overwrite this one.
    fn of(packet: &Received, len: usize, needs_all: bool) -> Original {
        let copied = packet.headers.as_slice().len();
        let has_all = copied >= (len + TRANSPORT).min(packet.data.len());
        match has_all && !needs_all {
            true => Original::Header(len),
            false => Original::Whole(packet.data.clone()),
        }
    }

    /// Returns what there is of it; nothing where memory is short. `packet` has what follows the
    /// header.
    fn aggregate(self, packet: &Received) -> Aggregate {
        let len = match self {
            Original::Header(len) => len,
            Original::Whole(data) => return data,
        };
        let mut all = Aggregate::new();
        let header = packet.headers.before(len).unwrap_or(&[]);
        let filled = all.fill_from(&mut fbuf::BytesSource::new(header), len);
        if filled != Ok(len) || all.join(&mut packet.data.clone()).is_err() {
            all.clear();
        }
        all
    }
}

impl Network {
    /// Takes a packet by the number of its interface, with or without a head: loopback's, and those
    /// of tests.
    pub fn receive(&self, index: u32, mut packet: Packet) {
        let Some(interface) = self.interface(index) else {
            return;
        };
        if !packet.head.is_empty() {
            // It comes from this machine: the headers become a slice like the rest.
            let bytes = packet.head.as_slice();
            let mut all = Aggregate::new();
            let filled = all.fill_from(&mut fbuf::BytesSource::new(bytes), bytes.len());
            if filled != Ok(bytes.len()) || all.join(&mut packet.data).is_err() {
                return;
            }
            packet.data = all;
        }
        self.receive_from_device(&interface, packet.data, packet.checksum);
    }

    /// Takes a packet from a card's task, which holds its interface: all bytes are slices.
    pub fn receive_from_device(
        &self,
        interface: &Arc<Interface>,
        data: Aggregate,
        checksum: Checksum,
    ) {
        if !interface.is_loopback() {
            let traffic = &interface.traffic;
            if !interface.is_up() {
                traffic.receive_dropped.fetch_add(1, Relaxed);
                return;
            }
            traffic.received_packets.fetch_add(1, Relaxed);
            traffic.received_bytes.fetch_add(data.len() as u64, Relaxed);
        }
        interface.show_received(&data, checksum);
        let mut packet = Received {
            interface: interface.index(),
            is_right: checksum != Checksum::Unknown,
            headers: Headers::of(&data),
            data,
            from: UNSPECIFIED,
            to: UNSPECIFIED,
            protocol: 0,
            service: 0,
            hops: 0,
            is_for_many: false,
        };
        let kind = match interface.features().mac {
            None => match packet.headers.as_slice().first().map(|first| first >> 4) {
                Some(4) => ethernet::IPV4,
                Some(6) => ethernet::IPV6,
                _ => return,
            },
            Some(own) => {
                let Some(header) = packet.headers.as_slice().first_chunk() else {
                    return;
                };
                let (to, from, kind) = ethernet::read_header(header);
                // Some links return what was sent to a group.
                if from == own {
                    return;
                }
                if to.is_for_many() {
                    interface.traffic.received_multicast.fetch_add(1, Relaxed);
                } else if to != own {
                    return;
                }
                packet.data.clip_front(ethernet::HEADER);
                packet.headers.skip(ethernet::HEADER);
                kind
            }
        };
        let header = match kind {
            ethernet::IPV4 => read_v4(&mut packet),
            ethernet::IPV6 => read_v6(&mut packet),
            ethernet::ARP => return self.receive_arp(interface, packet.headers.as_slice()),
            _ => return,
        };
        match header {
            Some(header) => self.receive_ip(interface, &mut packet, &header),
            None => Counter::ip_refused.add(1),
        }
    }

    /// Takes a packet of IP, whose header was read, and is still there. Inlined, as the packet is
    /// made in the only caller.
    #[inline(always)]
    fn receive_ip(&self, interface: &Arc<Interface>, packet: &mut Received, header: &Header) {
        if !interface.is_loopback() {
            Counter::ip_received.add(1);
            Counter::ip_received_v6.add(packet.from.is_ipv6().into());
            Counter::ip_received_bytes.add(header.total as u64);
            Counter::sums_checked_by_device.add(packet.is_right.into());
        }
        let Some(is_for_many) = self.accepts(interface, packet.from, packet.to) else {
            Counter::ip_refused.add(1);
            return;
        };
        packet.is_for_many = is_for_many;
        let data = &mut packet.data;
        // Links pad short packets.
        while data.len() > header.total {
            let Some(slice) = data.pop_back() else { return };
            let rest = data.len();
            if rest < header.total && data.append(slice.first(header.total - rest)).is_err() {
                return;
            }
        }
        let has_raw = self.has_raw();
        let needs_all = has_raw || header.part.is_some();
        let original = Original::of(packet, header.len, needs_all);
        packet.data.clip_front(header.len);
        packet.headers.skip(header.len);
        packet.headers.cut(packet.data.len());
        if let Some(part) = &header.part {
            let Some(whole) = self.reassemble(packet, part) else {
                return;
            };
            packet.data = whole;
            packet.headers = Headers::of(&packet.data);
        }
        let is_wanted = has_raw && self.show_raw(packet, &original, header.len);
        self.deliver(interface, packet, original, is_wanted);
    }

    /// Shows a packet whose header had `len` bytes to raw sockets; returns whether one wants it.
    #[inline(never)]
    fn show_raw(&self, packet: &Received, original: &Original, len: usize) -> bool {
        let mut bytes = [0; LONGEST_V4];
        let n = match (packet.from, original) {
            (IpAddr::V4(_), Original::Whole(original)) => {
                original.peek(0, &mut bytes[..len.min(LONGEST_V4)])
            }
            _ => 0,
        };
        let upper = self.upper();
        upper.is_some_and(|upper| upper.show(packet, &bytes[..n]))
    }

    /// Adds a fragment to those of its packet; returns the payload of the whole packet if this was
    /// the last fragment to arrive.
    fn reassemble(&self, packet: &mut Received, part: &Part) -> Option<Aggregate> {
        Counter::ip_fragments_received.add(1);
        let fragment = Fragment {
            offset: part.offset,
            is_last: part.is_last,
            data: core::mem::take(&mut packet.data),
        };
        let key = Key {
            from: packet.from,
            to: packet.to,
            protocol: packet.protocol,
            ident: part.ident,
        };
        let (whole, due) = {
            let mut fragments = self.fragments.lock();
            let whole = fragments.add(key, fragment, now());
            (whole, fragments.next())
        };
        self.alarm.set(due);
        let whole = whole?;
        Counter::ip_reassembled.add(1);
        Some(whole)
    }

    /// Tells whether a packet is for this machine and may come from where it says, and if so,
    /// whether it is for several machines.
    fn accepts(&self, interface: &Interface, from: IpAddr, to: IpAddr) -> Option<bool> {
        let is_loopback = interface.index() == LOOPBACK;
        let from_many = match from {
            IpAddr::V4(from) => {
                from.is_multicast() || from.is_broadcast() || interface.is_broadcast(from)
            }
            IpAddr::V6(from) => from.is_multicast(),
        };
        // Addresses of loopback never come from a link (RFC 1122 3.2.1.3).
        let strays = from.is_loopback() || to.is_loopback();
        let ours = !is_loopback && self.is_own(from);
        if from_many || strays && !is_loopback || ours {
            return None;
        }
        let is_for_many = match to {
            IpAddr::V4(to) => to.is_multicast() || interface.is_broadcast(to),
            IpAddr::V6(to) => to.is_multicast(),
        };
        (is_for_many || self.is_own(to)).then_some(is_for_many)
    }

    /// Gives a packet to its protocol. One that another program wants is not refused.
    fn deliver(
        &self,
        interface: &Arc<Interface>,
        packet: &mut Received,
        original: Original,
        is_wanted: bool,
    ) {
        match packet.protocol {
            TCP | UDP => {
                if let Some(upper) = self.upper()
                    && let Some(refusal) = upper.receive(packet)
                {
                    let original = original.aggregate(packet);
                    self.refuse(packet, &original, refusal);
                }
            }
            ICMP if packet.from.is_ipv4() => self.receive_icmp(interface, packet),
            ICMP_V6 if packet.from.is_ipv6() => self.receive_icmp(interface, packet),
            IGMP if packet.from.is_ipv4() => self.receive_igmp(interface, packet),
            _ if packet.from.is_unspecified() || is_wanted => {}
            _ => {
                let original = original.aggregate(packet);
                self.refuse(packet, &original, Refusal::Protocol);
            }
        }
    }

    fn receive_icmp(&self, interface: &Arc<Interface>, packet: &mut Received) {
        let first = packet.first(errors::HEADER);
        let kind = first.get(..errors::HEADER).map(|header| header[0]);
        let Some(kind) = kind.filter(|_| packet.is_intact()) else {
            Counter::icmp_errors.add(1);
            return;
        };
        match (packet.from.is_ipv4(), kind) {
            (true, ECHO_V4) | (false, ECHO_V6) => self.echo(packet),
            (true, 3 | 11 | 12) | (false, 1..=4) => self.take_error(packet),
            (true, ECHO_REPLY_V4) | (false, ECHO_REPLY_V6) => self.hand_echo(packet),
            (false, LISTENER_QUERY) => self.receive_listener_query(interface, packet),
            (false, ethernet::SOLICITATION | ethernet::ADVERTISEMENT) => {
                self.receive_discovery(interface, packet);
            }
            // RFC 4861 6.1.2: from this link.
            (false, ethernet::ROUTER_ADVERTISEMENT) if packet.hops == u8::MAX => {
                let mut bytes = [0; MOST_OF_ROUTER];
                let n = packet.data.peek(0, &mut bytes);
                if let (Some(upper), IpAddr::V6(router)) = (self.upper(), packet.from) {
                    upper.advertise(interface.index(), router, &bytes[..n]);
                }
            }
            _ => {}
        }
    }

    /// Answers a request for an echo. The payload is that of the request.
    fn echo(&self, packet: &mut Received) {
        if packet.is_for_many || packet.from.is_unspecified() {
            return;
        }
        let Ok(route) = self.route(packet.from) else {
            return;
        };
        let mut header = [0; errors::HEADER];
        header.copy_from_slice(&packet.headers.as_slice()[..errors::HEADER]);
        let is_v4 = packet.from.is_ipv4();
        header[0] = if is_v4 { ECHO_REPLY_V4 } else { ECHO_REPLY_V6 };
        let mut head = Head::default();
        head.push(header.len()).copy_from_slice(&header);
        let mut data = core::mem::take(&mut packet.data);
        data.clip_front(header.len());
        let sending = Sending {
            from: packet.to,
            to: packet.from,
            protocol: packet.protocol,
            service: packet.service,
            checksum: Some(2),
            ..Sending::default()
        };
        let _ = self.send(&route, sending, head, data, 0);
    }

    /// Takes a message of ARP, padding included.
    fn receive_arp(&self, interface: &Interface, bytes: &[u8]) {
        let Some(message) = bytes.first_chunk::<{ ethernet::ARP_LEN }>() else {
            return;
        };
        let (Some(arp), Some(own)) = (Arp::read(message), interface.features().mac) else {
            return;
        };
        let is_probe = !arp.is_reply && arp.from.is_unspecified();
        let claimed = if is_probe { arp.to } else { arp.from };
        if self.has_doubt(interface, claimed.into()) {
            return;
        }
        let is_ours = interface.has(arp.to.into());
        if self.is_own(arp.from.into()) || interface.is_broadcast(arp.from) {
            // Another machine claims an address of ours, or one that no machine has.
            return;
        }
        let asks = is_ours && !arp.is_reply;
        self.learn(interface, arp.from.into(), arp.from_mac, asks);
        if is_ours && !arp.is_reply {
            let reply = Arp {
                is_reply: true,
                from: arp.to,
                from_mac: own,
                to: arp.from,
                to_mac: arp.from_mac,
            };
            self.send_arp(interface, arp.from_mac, reply);
        }
    }

    fn receive_discovery(&self, interface: &Interface, packet: &Received) {
        let mut bytes = [0; 128];
        let n = packet.data.peek(0, &mut bytes);
        // RFC 4861 7.1: never from beyond a router.
        let (true, Some(message), Some(own)) = (
            packet.hops == u8::MAX,
            Discovery::read(&bytes[..n]),
            interface.features().mac,
        ) else {
            return;
        };
        let target = IpAddr::from(message.target);
        let is_probe = !message.is_answer && packet.from.is_unspecified();
        if (message.is_answer || is_probe) && self.has_doubt(interface, target) {
            return;
        }
        if message.is_answer {
            if let Some(mac) = message.mac
                && !self.is_own(target)
            {
                self.learn(interface, target, mac, false);
            }
            return;
        }
        if !interface.has(target) {
            return;
        }
        let answer = Discovery {
            is_answer: true,
            is_solicited: !packet.from.is_unspecified(),
            target: message.target,
            mac: Some(own),
        };
        match message.mac {
            Some(mac) if !packet.from.is_unspecified() => {
                self.learn(interface, packet.from, mac, true);
                self.send_discovery(interface, mac, target, packet.from, answer);
            }
            // A machine that looks for a free address.
            None if packet.from.is_unspecified() => {
                let all = IpAddr::from([0xff02, 0, 0, 0, 0, 0, 0, 1]);
                let mac = ethernet::group_mac(all);
                self.send_discovery(interface, mac, target, all, answer);
            }
            _ => {}
        }
    }

    /// Notes that another machine has, or wants, an address that this one is about to use (RFC 5227
    /// 2.1.1, RFC 4862 5.4.3). Returns whether it was so.
    fn has_doubt(&self, interface: &Interface, ip: IpAddr) -> bool {
        let Some(own) = interface.address(ip) else {
            return false;
        };
        if own.state == AddressState::Tentative {
            let address = Address {
                state: AddressState::Duplicate,
                ..own
            };
            let _ = self.put_address(interface.index(), address);
        }
        own.state != AddressState::Valid
    }

    /// Notes a neighbour's address, and sends what has waited for it.
    fn learn(&self, interface: &Interface, ip: IpAddr, mac: Mac, asks: bool) {
        let now = now();
        let (waiting, old, new) = {
            let mut neighbours = interface.neighbours.lock();
            let old = neighbours.get(ip, now);
            let waiting = neighbours.learn(ip, mac, asks, now);
            (waiting, old, neighbours.get(ip, now))
        };
        let known = |it: Option<Neighbour>| it.map(|it| (it.mac, it.is_fresh, it.is_asked));
        if let Some(entry) = new
            && known(old) != known(new)
        {
            self.note_quietly(Change::Neighbour(interface.index(), entry));
        }
        for mut packet in waiting {
            send_to(interface, mac, &mut packet);
        }
    }
}

/// Reads the header of a packet; `None` if it is wrong.
fn read_v4(packet: &mut Received) -> Option<Header> {
    let bytes = packet.headers.as_slice();
    let first: &[u8; HEADER_V4] = bytes.first_chunk()?;
    let len = usize::from(first[0] & 15) * 4;
    let header = bytes.get(..len.max(HEADER_V4))?;
    let mut sum = Sum::default();
    sum.add(header);
    let total = usize::from(u16::from_be_bytes([first[2], first[3]]));
    let is_whole = len >= HEADER_V4 && total >= len && total <= packet.data.len();
    if first[0] >> 4 != 4 || !is_whole || sum.finish() != 0 {
        return None;
    }
    let fields = Ipv4Packet::new_unchecked(header);
    let to = fields.dst_addr();
    // A source route would let a stranger choose our answers' way (RFC 7126).
    if has_source_route(&header[HEADER_V4..]) || to == Ipv4Addr::UNSPECIFIED {
        return None;
    }
    let (offset, more) = (usize::from(fields.frag_offset()), fields.more_frags());
    let part = (offset > 0 || more).then(|| Part {
        ident: fields.ident().into(),
        offset,
        is_last: !more,
    });
    let (service, hops) = (first[1], fields.hop_limit());
    (packet.from, packet.to) = (fields.src_addr().into(), to.into());
    packet.protocol = fields.next_header().into();
    (packet.service, packet.hops) = (service, hops);
    Some(Header { len, total, part })
}

fn has_source_route(mut options: &[u8]) -> bool {
    while let [kind, rest @ ..] = options {
        match kind {
            0 => return false,
            1 => options = rest,
            131 | 137 => return true,
            _ => match rest.first() {
                Some(&len) if len >= 2 => {
                    options = options.get(usize::from(len)..).unwrap_or(&[]);
                }
                _ => return true,
            },
        }
    }
    false
}

/// As [`read_v4`], of IPv6. Extension headers may be behind the bytes.
fn read_v6(packet: &mut Received) -> Option<Header> {
    let data = &packet.data;
    let header = Ipv6Packet::new_unchecked(packet.headers.as_slice().get(..HEADER_V6)?);
    let total = HEADER_V6 + usize::from(header.payload_len());
    if header.version() != 6 || total > data.len() {
        return None;
    }
    let mut protocol: u8 = header.next_header().into();
    let mut len = HEADER_V6;
    let mut part = None;
    for _ in 0..MOST_EXTENSIONS {
        if !EXTENSIONS.contains(&protocol) && protocol != FRAGMENT {
            break;
        }
        let mut extension = [0; 8];
        let is_there = len + 8 <= total && data.peek(len, &mut extension) == 8;
        if EXTENSIONS.contains(&protocol) {
            // Routing headers of type 0 let a packet visit us again and again (RFC 5095).
            let routes = protocol == 43 && extension[3] != 0;
            if !is_there || routes {
                return None;
            }
            len += (usize::from(extension[1]) + 1) * 8;
        } else {
            if !is_there {
                return None;
            }
            let place = u16::from_be_bytes([extension[2], extension[3]]);
            len += 8;
            let [.., a, b, c, d] = extension;
            part = Some(Part {
                ident: u32::from_be_bytes([a, b, c, d]),
                offset: usize::from(place & !7),
                is_last: place & 1 == 0,
            });
            protocol = extension[0];
            // What follows is inside of the whole packet.
            break;
        }
        protocol = extension[0];
    }
    // A packet that is its own only fragment is whole (RFC 6946).
    let part = part.filter(|part| part.offset > 0 || !part.is_last);
    let (service, hops) = (header.traffic_class(), header.hop_limit());
    (packet.from, packet.to) = (header.src_addr().into(), header.dst_addr().into());
    (packet.protocol, packet.service, packet.hops) = (protocol, service, hops);
    (len <= total).then_some(Header { len, total, part })
}
