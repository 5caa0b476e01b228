//! Packets that arrive: checks, fragments, neighbours' messages, echoes.

use alloc::sync::Arc;
use core::{
    net::{IpAddr, Ipv4Addr},
    sync::atomic::Ordering::Relaxed,
};

use fbuf::{Aggregate, Slice, View};
use smoltcp::wire::{Ipv4Packet, Ipv6Packet};

use super::{
    ICMP, ICMP_V6, IGMP, TCP, UDP,
    address::pseudo_sum,
    errors::Refusal,
    ethernet::{self, Arp, Discovery},
    fragments::{Fragment, Key},
    groups::LISTENER_QUERY,
    interface::{Address, AddressState, Interface},
    neighbours::Neighbour,
    network::{Change, Network},
    output::{FRAGMENT, HEADER_V4, HEADER_V6, Sending, send_to},
    routes::LEAST_MTU_V6,
};
use crate::{
    counters::Counter,
    link::{Direction, Mac},
    packet::{Checksum, Head, Packet},
    timer::now,
};

/// Bytes of an IPv4 header with all options.
const LONGEST_V4: usize = 60;
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
}

impl Received {
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

/// A header that was read.
struct Header {
    packet: Received,
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

/// Returns the transport header's checksum as it was verified by a device.
fn is_right(packet: &Packet) -> bool {
    packet.checksum != Checksum::Unknown
}

/// A packet as it came, for raw sockets and for a message about it.
enum Original {
    /// Needed by neither.
    None,
    /// Its first bytes, which are all that a message repeats: a handle takes no memory, and does
    /// not own them.
    First(View),
    /// All of it.
    Whole(Aggregate),
}

impl Original {
    fn of(data: &Aggregate, needs_all: bool) -> Original {
        let enough = data.len().min(usize::from(LEAST_MTU_V6));
        match data.slices().next() {
            Some(first) if !needs_all && first.len >= enough => Original::First(first.view()),
            _ => Original::Whole(data.clone()),
        }
    }

    /// Returns what there is of it; nothing where memory is short.
    fn aggregate(&self) -> Aggregate {
        let mut all = Aggregate::new();
        match self {
            Original::None => {}
            Original::First(view) => {
                let slice = Slice::part(&view.frame, view.offset, view.len);
                let _ = all.append(slice);
            }
            Original::Whole(data) => all = data.clone(),
        }
        all
    }
}

impl Network {
    /// Takes a packet from a device.
    pub fn receive(&self, index: u32, mut packet: Packet) {
        let Some(interface) = self.interface(index) else {
            return;
        };
        if !interface.is_loopback() {
            let traffic = &interface.traffic;
            if !interface.is_up() {
                traffic.receive_dropped.fetch_add(1, Relaxed);
                return;
            }
            traffic.received_packets.fetch_add(1, Relaxed);
            traffic
                .received_bytes
                .fetch_add(packet.len() as u64, Relaxed);
        }
        interface.show(Direction::In, &packet);
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
        let is_right = is_right(&packet);
        let mut data = packet.data;
        let kind = match interface.features().mac {
            None => {
                let mut first = [0];
                data.peek(0, &mut first);
                match first[0] >> 4 {
                    4 => ethernet::IPV4,
                    6 => ethernet::IPV6,
                    _ => return,
                }
            }
            Some(own) => {
                let mut header = [0; ethernet::HEADER];
                if data.peek(0, &mut header) < ethernet::HEADER {
                    return;
                }
                let (to, from, kind) = ethernet::read_header(&header);
                // Some links return what was sent to a group.
                if from == own {
                    return;
                }
                if to.is_for_many() {
                    interface.traffic.received_multicast.fetch_add(1, Relaxed);
                } else if to != own {
                    return;
                }
                data.clip_front(ethernet::HEADER);
                kind
            }
        };
        match kind {
            ethernet::IPV4 => self.receive_ip(&interface, data, is_right, read_v4),
            ethernet::IPV6 => self.receive_ip(&interface, data, is_right, read_v6),
            ethernet::ARP => self.receive_arp(&interface, &data),
            _ => {}
        }
    }

    fn receive_ip(
        &self,
        interface: &Arc<Interface>,
        mut data: Aggregate,
        is_right: bool,
        read: impl FnOnce(&Aggregate) -> Option<Header>,
    ) {
        let Some(Header {
            mut packet,
            len,
            total,
            part,
        }) = read(&data)
        else {
            Counter::ip_refused.add(1);
            return;
        };
        packet.interface = interface.index();
        packet.is_right = is_right;
        if !interface.is_loopback() {
            Counter::ip_received.add(1);
            Counter::ip_received_v6.add(packet.from.is_ipv6().into());
            Counter::ip_received_bytes.add(total as u64);
            Counter::sums_checked_by_device.add(is_right.into());
        }
        if !self.accepts(interface, &mut packet) {
            Counter::ip_refused.add(1);
            return;
        }
        // Links pad short packets.
        while data.len() > total {
            let Some(slice) = data.pop_back() else { return };
            let rest = data.len();
            if rest < total && data.append(slice.first(total - rest)).is_err() {
                return;
            }
        }
        let has_raw = self.has_raw();
        let original = match packet.protocol {
            TCP if !has_raw => Original::None,
            _ => Original::of(&data, has_raw),
        };
        data.clip_front(len);
        packet.data = data;
        if let Some(part) = part {
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
            let Some(whole) = whole else { return };
            Counter::ip_reassembled.add(1);
            packet.data = whole;
        }
        let mut is_wanted = false;
        if has_raw && let Some(upper) = self.upper() {
            let mut header = [0; LONGEST_V4];
            let n = match (packet.from, &original) {
                (IpAddr::V4(_), Original::Whole(original)) => {
                    original.peek(0, &mut header[..len.min(LONGEST_V4)])
                }
                _ => 0,
            };
            is_wanted = upper.show(&packet, &header[..n]);
        }
        self.deliver(interface, packet, &original, is_wanted);
    }

    /// Tells whether a packet is for this machine and may come from where it says.
    fn accepts(&self, interface: &Interface, packet: &mut Received) -> bool {
        let is_loopback = interface.index() == 1;
        let from_many = match packet.from {
            IpAddr::V4(from) => {
                from.is_multicast() || from.is_broadcast() || interface.is_broadcast(from)
            }
            IpAddr::V6(from) => from.is_multicast(),
        };
        // Addresses of loopback never come from a link (RFC 1122 3.2.1.3).
        let strays = packet.from.is_loopback() || packet.to.is_loopback();
        let ours = !is_loopback && self.is_own(packet.from);
        if from_many || strays && !is_loopback || ours {
            return false;
        }
        packet.is_for_many = match packet.to {
            IpAddr::V4(to) => to.is_multicast() || interface.is_broadcast(to),
            IpAddr::V6(to) => to.is_multicast(),
        };
        packet.is_for_many || self.is_own(packet.to)
    }

    /// Gives a packet to its protocol. One that another program wants is not refused.
    fn deliver(
        &self,
        interface: &Arc<Interface>,
        packet: Received,
        original: &Original,
        is_wanted: bool,
    ) {
        match packet.protocol {
            ICMP if packet.from.is_ipv4() => self.receive_icmp(interface, packet),
            ICMP_V6 if packet.from.is_ipv6() => self.receive_icmp(interface, packet),
            TCP | UDP => {
                if let Some(upper) = self.upper() {
                    let quoted = Received {
                        data: Aggregate::new(),
                        ..packet
                    };
                    if let Some(refusal) = upper.receive(packet) {
                        self.refuse(&quoted, &original.aggregate(), refusal);
                    }
                }
            }
            IGMP if packet.from.is_ipv4() => self.receive_igmp(interface, &packet),
            _ if packet.from.is_unspecified() || is_wanted => {}
            _ => self.refuse(&packet, &original.aggregate(), Refusal::Protocol),
        }
    }

    fn receive_icmp(&self, interface: &Arc<Interface>, packet: Received) {
        let mut header = [0; super::errors::HEADER];
        if packet.data.peek(0, &mut header) < header.len() || !packet.is_intact() {
            Counter::icmp_errors.add(1);
            return;
        }
        let is_v4 = packet.from.is_ipv4();
        match (is_v4, header[0]) {
            (true, ECHO_V4) | (false, ECHO_V6) => self.echo(packet),
            (true, 3 | 11 | 12) | (false, 1..=4) => self.take_error(&packet),
            (true, ECHO_REPLY_V4) | (false, ECHO_REPLY_V6) => self.hand_echo(packet),
            (false, LISTENER_QUERY) => self.receive_listener_query(interface, &packet),
            (false, ethernet::SOLICITATION | ethernet::ADVERTISEMENT) => {
                self.receive_discovery(interface, &packet);
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
    fn echo(&self, packet: Received) {
        if packet.is_for_many || packet.from.is_unspecified() {
            return;
        }
        let Ok(route) = self.route(packet.from) else {
            return;
        };
        let mut header = [0; super::errors::HEADER];
        packet.data.peek(0, &mut header);
        let is_v4 = packet.from.is_ipv4();
        header[0] = if is_v4 { ECHO_REPLY_V4 } else { ECHO_REPLY_V6 };
        let mut head = Head::default();
        head.push(header.len()).copy_from_slice(&header);
        let mut data = packet.data;
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

    fn receive_arp(&self, interface: &Interface, data: &Aggregate) {
        let mut bytes = [0; ethernet::ARP_LEN];
        if data.peek(0, &mut bytes) < bytes.len() {
            return;
        }
        let (Some(arp), Some(own)) = (Arp::read(&bytes), interface.features().mac) else {
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

fn read_v4(data: &Aggregate) -> Option<Header> {
    let mut bytes = [0; LONGEST_V4];
    let n = data.peek(0, &mut bytes);
    if n < HEADER_V4 {
        return None;
    }
    let len = usize::from(bytes[0] & 15) * 4;
    let header = Ipv4Packet::new_unchecked(&bytes[..n.min(len.max(HEADER_V4))]);
    let total = usize::from(header.total_len());
    let is_whole = len >= HEADER_V4 && len <= n && total >= len && total <= data.len();
    if header.version() != 4 || !is_whole || !header.verify_checksum() {
        return None;
    }
    let to = header.dst_addr();
    let from = header.src_addr();
    // A source route would let a stranger choose our answers' way (RFC 7126).
    if has_source_route(&bytes[HEADER_V4..len]) || to == Ipv4Addr::UNSPECIFIED {
        return None;
    }
    let (offset, more) = (usize::from(header.frag_offset()), header.more_frags());
    let protocol = header.next_header().into();
    Some(Header {
        len,
        total,
        part: (offset > 0 || more).then(|| Part {
            ident: header.ident().into(),
            offset,
            is_last: !more,
        }),
        packet: Received {
            interface: 0,
            from: from.into(),
            to: to.into(),
            protocol,
            service: bytes[1],
            hops: header.hop_limit(),
            is_for_many: false,
            is_right: false,
            data: Aggregate::new(),
        },
    })
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

fn read_v6(data: &Aggregate) -> Option<Header> {
    let mut bytes = [0; HEADER_V6];
    if data.peek(0, &mut bytes) < HEADER_V6 {
        return None;
    }
    let header = Ipv6Packet::new_unchecked(&bytes[..]);
    let total = HEADER_V6 + usize::from(header.payload_len());
    if header.version() != 6 || total > data.len() {
        return None;
    }
    let mut protocol: u8 = header.next_header().into();
    let mut len = HEADER_V6;
    let mut part = None;
    for _ in 0..MOST_EXTENSIONS {
        let mut extension = [0; 8];
        let is_there = len + 8 <= total && data.peek(len, &mut extension) == 8;
        if EXTENSIONS.contains(&protocol) {
            // Routing headers of type 0 let a packet visit us again and again (RFC 5095).
            let routes = protocol == 43 && extension[3] != 0;
            if !is_there || routes {
                return None;
            }
            len += (usize::from(extension[1]) + 1) * 8;
        } else if protocol == FRAGMENT {
            if !is_there || part.is_some() {
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
        } else {
            break;
        }
        protocol = extension[0];
    }
    // A packet that is its own only fragment is whole (RFC 6946).
    let part = part.filter(|part| part.offset > 0 || !part.is_last);
    (len <= total).then_some(Header {
        len,
        total,
        part,
        packet: Received {
            interface: 0,
            from: header.src_addr().into(),
            to: header.dst_addr().into(),
            protocol,
            service: header.traffic_class(),
            hops: header.hop_limit(),
            is_for_many: false,
            is_right: false,
            data: Aggregate::new(),
        },
    })
}
