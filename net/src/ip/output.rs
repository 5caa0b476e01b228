//! Packets that are sent: headers, checksums, fragments, the neighbour's address.

use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::atomic::Ordering::Relaxed,
};

use abi::{Errno, Result};
use fbuf::{Aggregate, BytesSource};
use smoltcp::wire::{Ipv4Packet, Ipv6Packet};

use super::{
    ICMP_V6,
    address::pseudo_sum,
    ethernet::{self, Arp, Discovery},
    interface::Interface,
    neighbours::{Answer, Question},
    network::Network,
    routes::Route,
};
use crate::{
    counters::Counter,
    link::Mac,
    packet::{Checksum, Head, Packet},
    timer::now,
};

/// Bytes of headers.
pub(super) const HEADER_V4: usize = 20;
pub(super) const HEADER_V6: usize = 40;
const FRAGMENT_HEADER: usize = 8;
/// IPv6's number of the fragment header.
pub(super) const FRAGMENT: u8 = 44;

/// What the header of IP says.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
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
    /// Never cut into fragments.
    pub is_whole: bool,
    /// The place of the checksum in the transport header, if that has one.
    pub checksum: Option<usize>,
}

impl Default for Sending {
    fn default() -> Sending {
        Sending {
            from: Ipv4Addr::UNSPECIFIED.into(),
            to: Ipv4Addr::UNSPECIFIED.into(),
            protocol: 0,
            service: 0,
            hops: 64,
            is_whole: false,
            checksum: None,
        }
    }
}

/// A part of a packet: where it begins, and whether more follow.
#[derive(Clone, Copy)]
struct Part {
    ident: u32,
    offset: usize,
    more: bool,
}

impl Network {
    /// Sends a packet whose transport header is in `head`, on a route. Segments of `cut` bytes of
    /// payload are made of it, unless that is 0.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is too large and may not be cut, `ENOMEM`.
    pub fn send(
        &self,
        route: &Route,
        sending: Sending,
        mut head: Head,
        mut data: Aggregate,
        cut: u16,
    ) -> Result<()> {
        let features = route.interface.features();
        let header = if sending.to.is_ipv4() {
            HEADER_V4
        } else {
            HEADER_V6
        };
        let len = head.len() + data.len();
        let fits = header + len <= usize::from(route.mtu);
        let is_cut = cut > 0 && !fits;
        if is_cut && data.len() > features.cuts as usize {
            return Err(Errno::EMSGSIZE);
        }
        let counts = !route.interface.is_loopback();
        let mut checksum = Checksum::Right;
        if let Some(at) = sending.checksum {
            let mut sum = pseudo_sum(sending.from, sending.to, sending.protocol, len);
            let wanted = features.checksums && (fits || is_cut);
            let value = match wanted {
                true => {
                    Counter::sums_left_to_device.add(u64::from(counts));
                    let from = header as u16;
                    checksum = Checksum::Wanted {
                        from,
                        at: from + at as u16,
                    };
                    sum.partial()
                }
                false => {
                    Counter::sums_made.add(1);
                    head.as_mut_slice()[at..at + 2].fill(0);
                    sum.add(head.as_slice());
                    sum.add_slices(&data);
                    match sum.finish() {
                        // UDP has another meaning for no sum.
                        0 if sending.protocol == super::UDP => u16::MAX,
                        value => value,
                    }
                }
            };
            head.as_mut_slice()[at..at + 2].copy_from_slice(&value.to_be_bytes());
        }
        let ident = self.idents.fetch_add(1, Relaxed) as u32;
        if is_cut {
            Counter::segments_cut.add(data.len().div_ceil(cut.into()) as u64);
        }
        if fits || is_cut {
            let whole = Part {
                ident,
                offset: 0,
                more: false,
            };
            push_header(&mut head, &sending, data.len(), whole);
            let mut packet = Packet {
                head,
                data,
                checksum,
                cut: if is_cut { cut } else { 0 },
            };
            self.transmit(route, sending.to, &mut packet);
            return Ok(());
        }
        if sending.is_whole {
            return Err(Errno::EMSGSIZE);
        }
        let mut all = Aggregate::new();
        all.fill_from(&mut BytesSource::new(head.as_slice()), head.len())?;
        all.join(&mut data)?;
        let extension = if sending.to.is_ipv4() {
            0
        } else {
            FRAGMENT_HEADER
        };
        // A route's MTU is as small as a program has set it.
        let room = usize::from(route.mtu).saturating_sub(header + extension) / 8 * 8;
        if room == 0 {
            return Err(Errno::EMSGSIZE);
        }
        let mut offset = 0;
        while !all.is_empty() {
            let n = all.len().min(room);
            let mut data = Aggregate::new();
            data.reserve(all.slice_count())?;
            let mut left = n;
            while let Some(slice) = all.take_slice(left) {
                left -= slice.len;
                data.append(slice)?;
            }
            let part = Part {
                ident,
                offset,
                more: !all.is_empty(),
            };
            let mut head = Head::default();
            push_header(&mut head, &sending, n, part);
            offset += n;
            Counter::ip_fragments_sent.add(1);
            let mut packet = Packet {
                head,
                data,
                checksum: Checksum::Right,
                cut: 0,
            };
            self.transmit(route, sending.to, &mut packet);
        }
        Ok(())
    }

    /// Sends a packet whose header of IP is at the beginning of `head`.
    pub(crate) fn send_made(&self, route: &Route, to: IpAddr, head: Head, data: Aggregate) {
        let mut packet = Packet {
            head,
            data,
            checksum: Checksum::Right,
            cut: 0,
        };
        self.transmit(route, to, &mut packet);
    }

    /// Hands a packet with its IP header to the device, with the link's header before it.
    fn transmit(&self, route: &Route, to: IpAddr, packet: &mut Packet) {
        let interface = &*route.interface;
        if !interface.is_loopback() {
            Counter::ip_sent.add(1);
            Counter::ip_sent_v6.add(to.is_ipv6().into());
            Counter::ip_sent_bytes.add(packet.len() as u64);
        }
        let Some(own) = interface.features().mac else {
            interface.transmit(packet);
            return;
        };
        let kind = if to.is_ipv4() {
            ethernet::IPV4
        } else {
            ethernet::IPV6
        };
        let for_many = match to {
            IpAddr::V4(to) => to.is_multicast() || interface.is_broadcast(to),
            IpAddr::V6(to) => to.is_multicast(),
        };
        let header = packet.head.push(ethernet::HEADER);
        let there = if for_many {
            ethernet::group_mac(to)
        } else {
            Mac::BROADCAST
        };
        ethernet::write_header(header, there, own, kind);
        if let Checksum::Wanted { from, at } = &mut packet.checksum {
            *from += ethernet::HEADER as u16;
            *at += ethernet::HEADER as u16;
        }
        if for_many {
            interface.transmit(packet);
            return;
        }
        let now = now();
        let known = interface.neighbours.lock().known(route.next_hop, now);
        if let Some(mac) = known {
            return send_to(interface, mac, packet);
        }
        let answer =
            interface
                .neighbours
                .lock()
                .resolve(route.next_hop, core::mem::take(packet), now);
        let question = match answer {
            Answer::Send(mac, mut packet, question) => {
                send_to(interface, mac, &mut packet);
                question
            }
            Answer::Waits(question) => question,
        };
        if let Some(question) = question {
            self.ask(interface, question);
        }
    }

    /// Sends the question for a neighbour's address.
    pub(super) fn send_question(&self, interface: &Interface, (to, known): Question) {
        let (Some(own), Some(source)) = (interface.features().mac, interface.source_for(to)) else {
            return;
        };
        match (to, source) {
            (IpAddr::V4(to), IpAddr::V4(from)) => {
                let arp = Arp {
                    is_reply: false,
                    from,
                    from_mac: own,
                    to,
                    to_mac: Mac([0; 6]),
                };
                self.send_arp(interface, known.unwrap_or(Mac::BROADCAST), arp);
            }
            (IpAddr::V6(target), IpAddr::V6(from)) => {
                let question = Discovery {
                    is_answer: false,
                    is_solicited: false,
                    target,
                    mac: Some(own),
                };
                let group = ethernet::solicited_group(target);
                let (to, mac) = match known {
                    Some(mac) => (target, mac),
                    None => (group, ethernet::group_mac(group.into())),
                };
                self.send_discovery(interface, mac, from.into(), to.into(), question);
            }
            _ => {}
        }
    }

    pub(super) fn send_arp(&self, interface: &Interface, to: Mac, arp: Arp) {
        let mut packet = Packet {
            checksum: Checksum::Right,
            ..Packet::default()
        };
        arp.write(packet.head.push(ethernet::ARP_LEN));
        let header = packet.head.push(ethernet::HEADER);
        ethernet::write_header(header, to, arp.from_mac, ethernet::ARP);
        interface.transmit(&mut packet);
    }

    pub(super) fn send_discovery(
        &self,
        interface: &Interface,
        mac: Mac,
        from: IpAddr,
        to: IpAddr,
        message: Discovery,
    ) {
        let mut bytes = [0; ethernet::DISCOVERY_LEN];
        let bytes = &mut bytes[..message.len()];
        message.write(bytes);
        self.send_on_link(interface, mac, from, to, bytes);
    }

    /// Sends a message of ICMP for IPv6, which gets its checksum, to a machine on the link.
    fn send_on_link(
        &self,
        interface: &Interface,
        mac: Mac,
        from: IpAddr,
        to: IpAddr,
        message: &[u8],
    ) {
        let Some(own) = interface.features().mac else {
            return;
        };
        let mut packet = Packet {
            checksum: Checksum::Right,
            ..Packet::default()
        };
        let bytes = packet.head.push(message.len());
        bytes.copy_from_slice(message);
        let mut sum = pseudo_sum(from, to, ICMP_V6, message.len());
        sum.add(bytes);
        bytes[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        let sending = Sending {
            from,
            to,
            protocol: ICMP_V6,
            hops: u8::MAX,
            ..Sending::default()
        };
        let whole = Part {
            ident: 0,
            offset: 0,
            more: false,
        };
        push_header(&mut packet.head, &sending, 0, whole);
        let header = packet.head.push(ethernet::HEADER);
        ethernet::write_header(header, mac, own, ethernet::IPV6);
        interface.transmit(&mut packet);
    }

    /// Asks the machines on an interface's link whether one of them has an address (RFC 5227 2.1,
    /// RFC 4862 5.4).
    pub fn ask_for_owner(&self, index: u32, target: IpAddr) {
        let Some(interface) = self.interface(index) else {
            return;
        };
        let target = match (target, interface.mac()) {
            (IpAddr::V6(target), _) => target,
            (IpAddr::V4(to), Some(from_mac)) => {
                let arp = Arp {
                    is_reply: false,
                    from: Ipv4Addr::UNSPECIFIED,
                    from_mac,
                    to,
                    to_mac: Mac([0; 6]),
                };
                self.send_arp(&interface, Mac::BROADCAST, arp);
                return;
            }
            (IpAddr::V4(_), None) => return,
        };
        let question = Discovery {
            is_answer: false,
            is_solicited: false,
            target,
            mac: None,
        };
        let group = IpAddr::from(ethernet::solicited_group(target));
        let (mac, none) = (ethernet::group_mac(group), Ipv6Addr::UNSPECIFIED.into());
        self.send_discovery(&interface, mac, none, group, question);
    }

    /// Asks the routers on an interface's link for an advertisement (RFC 4861 6.3.7).
    pub fn ask_for_routers(&self, index: u32, all_routers: Ipv6Addr) {
        let Some(interface) = self.interface(index) else {
            return;
        };
        let to = IpAddr::from(all_routers);
        let (Some(own), Some(from)) = (interface.mac(), interface.source_for(to)) else {
            return;
        };
        let message = ethernet::router_solicitation(own);
        self.send_on_link(&interface, ethernet::group_mac(to), from, to, &message);
    }
}

/// Sends a packet with the link's header to a neighbour.
pub(super) fn send_to(interface: &Interface, mac: Mac, packet: &mut Packet) {
    packet.head.as_mut_slice()[..6].copy_from_slice(&mac.0);
    interface.transmit(packet);
}

/// Adds the header of IP before what is in `head`, which `more` bytes follow.
fn push_header(head: &mut Head, sending: &Sending, more: usize, part: Part) {
    let is_fragment = part.more || part.offset > 0;
    match (sending.from, sending.to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let len = HEADER_V4 + head.len() + more;
            let mut header = Ipv4Packet::new_unchecked(head.push(HEADER_V4));
            header.set_version(4);
            header.set_header_len(HEADER_V4 as u8);
            header.set_dscp(sending.service >> 2);
            header.set_ecn(sending.service & 3);
            // A packet that a device cuts has the length of its first segment there.
            header.set_total_len(len.min(usize::from(u16::MAX)) as u16);
            header.set_ident(part.ident as u16);
            header.clear_flags();
            header.set_dont_frag(sending.is_whole);
            header.set_more_frags(part.more);
            header.set_frag_offset(part.offset as u16);
            header.set_hop_limit(sending.hops);
            header.set_next_header(sending.protocol.into());
            header.set_src_addr(from);
            header.set_dst_addr(to);
            header.fill_checksum();
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            if is_fragment {
                let header = head.push(FRAGMENT_HEADER);
                header[0] = sending.protocol;
                let place = part.offset as u16 | u16::from(part.more);
                header[2..4].copy_from_slice(&place.to_be_bytes());
                header[4..8].copy_from_slice(&part.ident.to_be_bytes());
            }
            let len = head.len() + more;
            let mut header = Ipv6Packet::new_unchecked(head.push(HEADER_V6));
            header.set_version(6);
            header.set_traffic_class(sending.service);
            header.set_payload_len(len.min(usize::from(u16::MAX)) as u16);
            header.set_next_header(match is_fragment {
                true => FRAGMENT.into(),
                false => sending.protocol.into(),
            });
            header.set_hop_limit(sending.hops);
            header.set_src_addr(from);
            header.set_dst_addr(to);
        }
        _ => {}
    }
}
