//! Headers, checked, as values: of IPv4 and UDP by smoltcp's formats, which has those of Ethernet
//! and ARP only together with its sockets.

use std::net::{Ipv4Addr, SocketAddrV4};

use libfbuf::Contents;
use smoltcp::wire::{IpProtocol, Ipv4Packet, UdpPacket};

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Bytes of an IPv4 header without options.
pub const IPV4: usize = 20;
/// Most bytes of an IPv4 header.
pub const MOST_IPV4: usize = 60;
/// Bytes of a UDP header.
pub const UDP: usize = 8;
/// Bytes of an ARP packet for IPv4 over Ethernet.
pub const ARP: usize = 28;

/// Numbers of protocols above IP.
pub mod protocol {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// UDP.
    pub const UDP: u8 = 17;
}

/// A hardware address.
pub type Mac = [u8; 6];

/// The address of all stations.
pub const BROADCAST: Mac = [0xff; 6];

/// Types of Ethernet frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameType {
    /// IPv4.
    Ip,
    /// ARP.
    Arp,
}

/// Returns the header of a frame.
pub fn frame(to: Mac, from: Mac, kind: FrameType) -> [u8; ETHERNET] {
    let mut bytes = [0; ETHERNET];
    bytes[..6].copy_from_slice(&to);
    bytes[6..12].copy_from_slice(&from);
    let kind: u16 = match kind {
        FrameType::Ip => 0x0800,
        FrameType::Arp => 0x0806,
    };
    bytes[12..].copy_from_slice(&kind.to_be_bytes());
    bytes
}

/// Reads the header of a frame: its destination and type. `None` for short frames and other types.
pub fn read_frame(bytes: &[u8]) -> Option<(Mac, FrameType)> {
    let kind = match bytes.get(12..ETHERNET)? {
        [0x08, 0x00] => FrameType::Ip,
        [0x08, 0x06] => FrameType::Arp,
        _ => return None,
    };
    Some((*bytes.first_chunk()?, kind))
}

/// An ARP packet for IPv4 over Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arp {
    /// It answers a request.
    pub is_reply: bool,
    /// The sender.
    pub sender: (Mac, Ipv4Addr),
    /// The target.
    pub target: (Mac, Ipv4Addr),
}

impl Arp {
    /// Hardware Ethernet, protocol IPv4, and the lengths of their addresses.
    const START: [u8; 7] = [0, 1, 0x08, 0x00, 6, 4, 0];

    /// Returns the packet's bytes.
    pub fn emit(&self) -> [u8; ARP] {
        let mut bytes = [0; ARP];
        bytes[..7].copy_from_slice(&Self::START);
        bytes[7] = if self.is_reply { 2 } else { 1 };
        for (at, (mac, ip)) in [(8, self.sender), (18, self.target)] {
            bytes[at..at + 6].copy_from_slice(&mac);
            bytes[at + 6..at + 10].copy_from_slice(&ip.octets());
        }
        bytes
    }

    /// Reads a packet; `None` for anything else than a request or reply for IPv4 over Ethernet.
    pub fn read(bytes: &[u8]) -> Option<Arp> {
        let bytes: &[u8; ARP] = bytes.first_chunk()?;
        let side = |at: usize| {
            let ip = <[u8; 4]>::try_from(&bytes[at + 6..at + 10]).ok()?;
            Some((bytes[at..at + 6].try_into().ok()?, Ipv4Addr::from(ip)))
        };
        let is_known = bytes[..7] == Self::START && matches!(bytes[7], 1 | 2);
        let (sender, target) = (side(8)?, side(18)?);
        let is_reply = bytes[7] == 2;
        is_known.then_some(Arp {
            is_reply,
            sender,
            target,
        })
    }
}

/// An IPv4 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4 {
    /// The sender.
    pub from: Ipv4Addr,
    /// The destination.
    pub to: Ipv4Addr,
    /// The protocol above.
    pub protocol: u8,
    /// The identification, which fragments of one datagram share.
    pub id: u16,
    /// Where this fragment begins in its datagram, in bytes.
    pub offset: u64,
    /// More fragments follow.
    pub has_more: bool,
    /// Offsets count units of 256 bytes instead of 8: a fragment of a datagram of more than 64 KiB.
    pub is_large: bool,
    /// Bytes behind the header.
    pub payload: usize,
}

/// The bit of the flags that IPv4 reserves; between netservers it tells large datagrams.
const LARGE: u8 = 0x80;

/// The unit of a large datagram's offsets.
pub const LARGE_UNIT: u64 = 256;

impl Ipv4 {
    /// Returns the header's bytes, with its checksum.
    pub fn emit(&self) -> [u8; IPV4] {
        let mut bytes = [0; IPV4];
        let mut packet = Ipv4Packet::new_unchecked(&mut bytes[..]);
        packet.set_version(4);
        packet.set_header_len(IPV4 as u8);
        packet.set_total_len((IPV4 + self.payload) as u16);
        packet.set_ident(self.id);
        packet.clear_flags();
        packet.set_more_frags(self.has_more);
        let units = match self.is_large {
            true => self.offset / LARGE_UNIT * 8,
            false => self.offset,
        };
        packet.set_frag_offset(units as u16);
        packet.set_hop_limit(64);
        packet.set_next_header(IpProtocol::from(self.protocol));
        packet.set_src_addr(self.from);
        packet.set_dst_addr(self.to);
        if self.is_large {
            bytes[6] |= LARGE;
        }
        Ipv4Packet::new_unchecked(&mut bytes[..]).fill_checksum();
        bytes
    }

    /// Reads the header of a packet of `len` bytes, and tells the header's length. `None` for a
    /// header that is wrong.
    pub fn read(bytes: &[u8], len: usize) -> Option<(Ipv4, usize)> {
        let first = *bytes.first()?;
        let header_len = usize::from(first & 0xf) * 4;
        if first >> 4 != 4 || header_len < IPV4 || bytes.len() < header_len {
            return None;
        }
        let packet = Ipv4Packet::new_unchecked(&bytes[..header_len]);
        let total = usize::from(packet.total_len());
        if total < header_len || total > len || !packet.verify_checksum() {
            return None;
        }
        let is_large = bytes[6] & LARGE != 0;
        let units = u64::from(packet.frag_offset()) / 8;
        let header = Ipv4 {
            from: packet.src_addr(),
            to: packet.dst_addr(),
            protocol: packet.next_header().into(),
            id: packet.ident(),
            offset: units * if is_large { LARGE_UNIT } else { 8 },
            has_more: packet.more_frags(),
            is_large,
            payload: total - header_len,
        };
        Some((header, header_len))
    }
}

/// A UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp {
    /// The sender's port.
    pub from: u16,
    /// The destination's port.
    pub to: u16,
    /// Bytes with the header; 0 for more than 65535.
    pub len: u16,
    /// The checksum; 0: there is none.
    pub checksum: u16,
}

impl Udp {
    /// Returns the header's bytes.
    pub fn emit(&self) -> [u8; UDP] {
        let mut bytes = [0; UDP];
        let mut packet = UdpPacket::new_unchecked(&mut bytes[..]);
        packet.set_src_port(self.from);
        packet.set_dst_port(self.to);
        packet.set_len(self.len);
        packet.set_checksum(self.checksum);
        bytes
    }

    /// Reads a header.
    pub fn read(bytes: &[u8; UDP]) -> Udp {
        let packet = UdpPacket::new_unchecked(&bytes[..]);
        Udp {
            from: packet.src_port(),
            to: packet.dst_port(),
            len: packet.len(),
            checksum: packet.checksum(),
        }
    }
}

/// The Internet checksum (RFC 1071) of parts that follow each other.
#[derive(Default, Debug)]
pub struct Checksum {
    sum: u64,
    is_odd: bool,
}

impl Checksum {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if self.is_odd
            && let Some((first, after)) = rest.split_first()
        {
            self.sum += u64::from(*first);
            self.is_odd = false;
            rest = after;
        }
        let mut words = rest.chunks_exact(2);
        for word in &mut words {
            self.sum += u64::from(u16::from_be_bytes([word[0], word[1]]));
        }
        if let [last] = words.remainder() {
            self.sum += u64::from(*last) << 8;
            self.is_odd = true;
        }
    }

    /// Adds contents, which are copied in parts: their sender may still write them.
    pub fn add_contents(&mut self, contents: &impl Contents) {
        let mut part = [0; 4096];
        for fragment in contents.fragments() {
            for at in (0..fragment.len()).step_by(part.len()) {
                let len = fragment.part(at, part.len()).copy_to(&mut part);
                self.add(&part[..len]);
            }
        }
    }

    /// Adds the header that UDP pretends to have before its own.
    pub fn add_pseudo_header(&mut self, from: Ipv4Addr, to: Ipv4Addr, len: u64) {
        self.add(&from.octets());
        self.add(&to.octets());
        self.add(&[0, protocol::UDP]);
        self.add(&(len as u32).to_be_bytes());
    }

    /// Returns the checksum.
    pub fn finish(&self) -> u16 {
        let mut sum = self.sum;
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}

/// Returns the checksum of a UDP datagram, of its pseudo-header, header (with a checksum of 0) and
/// body; never 0.
pub fn udp_checksum(from: SocketAddrV4, to: SocketAddrV4, len: u16, body: &impl Contents) -> u16 {
    let header = Udp {
        from: from.port(),
        to: to.port(),
        len,
        checksum: 0,
    };
    let mut sum = Checksum::default();
    sum.add_pseudo_header(*from.ip(), *to.ip(), UDP as u64 + body.len());
    sum.add(&header.emit());
    sum.add_contents(body);
    match sum.finish() {
        0 => 0xffff,
        sum => sum,
    }
}
