//! Formats of Ethernet, ARP and neighbour discovery. `smoltcp` has these only together with its
//! sockets.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::link::Mac;

/// Bytes of an Ethernet header.
pub const HEADER: usize = 14;
/// Types of packets.
pub const IPV4: u16 = 0x0800;
pub const ARP: u16 = 0x0806;
pub const IPV6: u16 = 0x86dd;

/// Bytes of a packet of ARP for IPv4 over Ethernet.
pub const ARP_LEN: usize = 28;
/// The beginning of such a packet: hardware, protocol, lengths.
const ARP_KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Types of ICMP messages of neighbour discovery (RFC 4861).
pub const SOLICITATION: u8 = 135;
pub const ADVERTISEMENT: u8 = 136;
const ROUTER_SOLICITATION: u8 = 133;
pub const ROUTER_ADVERTISEMENT: u8 = 134;
/// Bytes of such a message with the option for one address.
pub const DISCOVERY_LEN: usize = 32;
/// Bytes of one without options.
pub const DISCOVERY_HEADER: usize = 24;
/// The options with the sender's and with the target's address.
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;
/// Flags of an advertisement.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// Writes an Ethernet header.
pub fn write_header(header: &mut [u8], to: Mac, from: Mac, kind: u16) {
    header[..6].copy_from_slice(&to.0);
    header[6..12].copy_from_slice(&from.0);
    header[12..14].copy_from_slice(&kind.to_be_bytes());
}

/// Reads an Ethernet header: destination, source and type.
pub fn read_header(header: &[u8; HEADER]) -> (Mac, Mac, u16) {
    (
        mac(header),
        mac(&header[6..]),
        u16::from_be_bytes([header[12], header[13]]),
    )
}

/// A packet of ARP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arp {
    pub is_reply: bool,
    pub from: Ipv4Addr,
    pub from_mac: Mac,
    pub to: Ipv4Addr,
    pub to_mac: Mac,
}

fn mac(bytes: &[u8]) -> Mac {
    let mut mac = [0; 6];
    mac.copy_from_slice(&bytes[..6]);
    Mac(mac)
}

fn v4(bytes: &[u8]) -> Ipv4Addr {
    Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])
}

impl Arp {
    /// Reads a packet; `None` for one that is wrong.
    pub fn read(bytes: &[u8; ARP_LEN]) -> Option<Arp> {
        let operation = u16::from_be_bytes([bytes[6], bytes[7]]);
        (bytes[..6] == ARP_KIND && (1..=2).contains(&operation)).then(|| Arp {
            is_reply: operation == 2,
            from_mac: mac(&bytes[8..]),
            from: v4(&bytes[14..]),
            to_mac: mac(&bytes[18..]),
            to: v4(&bytes[24..]),
        })
    }

    /// Writes the packet.
    pub fn write(&self, bytes: &mut [u8]) {
        bytes[..6].copy_from_slice(&ARP_KIND);
        bytes[6..8].copy_from_slice(&[0, 1 + u8::from(self.is_reply)]);
        bytes[8..14].copy_from_slice(&self.from_mac.0);
        bytes[14..18].copy_from_slice(&self.from.octets());
        bytes[18..24].copy_from_slice(&self.to_mac.0);
        bytes[24..28].copy_from_slice(&self.to.octets());
    }
}

/// A message of neighbour discovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discovery {
    /// An advertisement, else a solicitation.
    pub is_answer: bool,
    pub is_solicited: bool,
    pub target: Ipv6Addr,
    /// The sender's address, or the target's in an advertisement.
    pub mac: Option<Mac>,
}

impl Discovery {
    /// Reads a message, whose checksum was verified; `None` for one that is wrong.
    pub fn read(bytes: &[u8]) -> Option<Discovery> {
        let (header, mut options) = bytes.split_at_checked(DISCOVERY_HEADER)?;
        let is_answer = match header[0] {
            SOLICITATION => false,
            ADVERTISEMENT => true,
            _ => return None,
        };
        let mut target = [0; 16];
        target.copy_from_slice(&header[8..24]);
        let target = Ipv6Addr::from(target);
        let mut found = None;
        while let [kind, units, ..] = *options {
            let len = usize::from(units) * 8;
            if len == 0 || len > options.len() {
                return None;
            }
            let wanted = if is_answer {
                TARGET_OPTION
            } else {
                SOURCE_OPTION
            };
            if kind == wanted && len == 8 {
                found = Some(mac(&options[2..]));
            }
            options = &options[len..];
        }
        (header[1] == 0 && !target.is_multicast()).then_some(Discovery {
            is_answer,
            is_solicited: header[4] & SOLICITED != 0,
            target,
            mac: found,
        })
    }

    /// Returns the bytes that it has.
    pub fn len(&self) -> usize {
        match self.mac {
            Some(_) => DISCOVERY_LEN,
            None => DISCOVERY_HEADER,
        }
    }

    /// Writes the message, without its checksum, into as many bytes as it [has](Discovery::len).
    pub fn write(&self, bytes: &mut [u8]) {
        bytes.fill(0);
        bytes[0] = if self.is_answer {
            ADVERTISEMENT
        } else {
            SOLICITATION
        };
        if self.is_answer {
            bytes[4] = OVERRIDE | if self.is_solicited { SOLICITED } else { 0 };
        }
        bytes[8..24].copy_from_slice(&self.target.octets());
        if let Some(mac) = self.mac {
            bytes[24] = if self.is_answer {
                TARGET_OPTION
            } else {
                SOURCE_OPTION
            };
            bytes[25] = 1;
            bytes[26..32].copy_from_slice(&mac.0);
        }
    }
}

/// Returns a question for routers, without its checksum.
pub fn router_solicitation(own: Mac) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0] = ROUTER_SOLICITATION;
    bytes[8..10].copy_from_slice(&[SOURCE_OPTION, 1]);
    bytes[10..].copy_from_slice(&own.0);
    bytes
}

/// Returns the group in which the owner of an address hears solicitations (RFC 4291 2.7.1).
pub fn solicited_group(of: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = of.octets();
    let low = u16::from_be_bytes([b, c]);
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), low)
}

/// Returns the address of Ethernet for a group, or for all.
pub fn group_mac(group: IpAddr) -> Mac {
    match group {
        IpAddr::V4(group) if group.is_multicast() => {
            let [_, b, c, d] = group.octets();
            Mac([1, 0, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V4(_) => Mac::BROADCAST,
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = group.octets();
            Mac([0x33, 0x33, a, b, c, d])
        }
    }
}
