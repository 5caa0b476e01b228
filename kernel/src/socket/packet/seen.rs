//! A packet as a filter and a receiver see it.

use net::{
    link::{Direction, Mac},
    packet::{Checksum, Packet},
};
use nucleus::{random, task};

use super::name::Name;
use crate::{bpf, socket::inet::interface};

/// Bytes of a header of Ethernet.
pub const ETHERNET: usize = 14;
/// For whom a packet is (`PACKET_*`).
const HOST: u8 = 0;
const BROADCAST: u8 = 1;
const MULTICAST: u8 = 2;
const OTHER_HOST: u8 = 3;
const OUTGOING: u8 = 4;
/// States of checksums in auxiliary data: not computed yet, and right.
const NOT_READY: u32 = 8;
const VALID: u32 = 0x80;

/// A packet at an interface.
pub struct Seen<'a> {
    packet: &'a Packet,
    /// Bytes of the header of the link, which the packet of a loopback interface has not.
    pub link: usize,
    /// A header of Ethernet in the place of that.
    made: Option<[u8; ETHERNET]>,
    /// Bytes from here on are given: the whole, or what is behind the header of the link.
    skipped: usize,
    /// What the name of its sender says.
    pub name: Name,
}

impl<'a> Seen<'a> {
    /// Looks at a packet; `is_cooked` leaves the header of the link out.
    pub fn new(
        index: u32,
        mac: Option<Mac>,
        direction: Direction,
        packet: &'a Packet,
        is_cooked: bool,
    ) -> Seen<'a> {
        let mut bytes = [0; ETHERNET];
        let n = packet.peek(0, &mut bytes);
        let is_loopback = index == net::ip::LOOPBACK;
        let version = |first: u8| match first >> 4 {
            6 => 0x86ddu16,
            _ => 0x0800,
        };
        let (protocol, to, from, made) = match mac {
            Some(_) if n == ETHERNET => {
                let (mut to, mut from) = ([0; 6], [0; 6]);
                to.copy_from_slice(&bytes[..6]);
                from.copy_from_slice(&bytes[6..12]);
                let protocol = u16::from_be_bytes([bytes[12], bytes[13]]);
                // Lengths of frames of IEEE 802.3 are below all types.
                let protocol = if protocol < 0x600 { 4 } else { protocol };
                (protocol, Mac(to), Mac(from), None)
            }
            _ => {
                let protocol = version(bytes[0]);
                let mut header = [0; ETHERNET];
                header[12..].copy_from_slice(&protocol.to_be_bytes());
                (
                    protocol,
                    Mac([0; 6]),
                    Mac([0; 6]),
                    is_loopback.then_some(header),
                )
            }
        };
        let kind = match (direction, mac) {
            (Direction::Out, _) => OUTGOING,
            (_, None) => HOST,
            (_, Some(_)) if to == Mac::BROADCAST => BROADCAST,
            (_, Some(_)) if to.is_for_many() => MULTICAST,
            (_, Some(own)) if to == own => HOST,
            _ => OTHER_HOST,
        };
        let link = if mac.is_some() || made.is_some() {
            ETHERNET
        } else {
            0
        };
        let hardware = match interface::by_index(index) {
            Ok(interface) => crate::socket::netlink::hardware(&interface),
            Err(_) => 0,
        };
        Seen {
            packet,
            link,
            made,
            skipped: if is_cooked { link } else { 0 },
            name: Name {
                protocol,
                interface: index,
                hardware,
                kind,
                mac: from.0,
                mac_len: if link > 0 { 6 } else { 0 },
            },
        }
    }

    /// Returns the number of bytes that are given; 0 of one shorter than the header of its link.
    pub fn size(&self) -> usize {
        self.whole().saturating_sub(self.skipped)
    }

    /// Returns how many bytes of the packet's own stand before those that are given; `None` if not
    /// all of these are the packet's data.
    pub fn data_start(&self) -> Option<usize> {
        let is_all = self.made.is_none() && self.packet.head.is_empty();
        is_all.then_some(self.skipped)
    }

    fn whole(&self) -> usize {
        self.packet.len() + self.made.map_or(0, |made| made.len())
    }

    /// Copies bytes from byte `at` of those that are given; returns how many there were.
    pub fn copy(&self, at: usize, to: &mut [u8]) -> usize {
        self.copy_whole(at + self.skipped, to)
    }

    fn copy_whole(&self, at: usize, to: &mut [u8]) -> usize {
        let Some(made) = &self.made else {
            return self.packet.peek(at, to);
        };
        let front = made.get(at..).unwrap_or(&[]);
        let n = front.len().min(to.len());
        to[..n].copy_from_slice(&front[..n]);
        let rest = (at + n).saturating_sub(made.len());
        n + self.packet.peek(rest, &mut to[n..])
    }

    /// Returns what auxiliary data say of the checksum.
    pub fn checksum(&self) -> u32 {
        match self.packet.checksum {
            Checksum::Wanted { .. } => NOT_READY,
            Checksum::Right => VALID,
            Checksum::Unknown => 0,
        }
    }
}

impl bpf::Packet for Seen<'_> {
    fn len(&self) -> u32 {
        self.size() as u32
    }

    fn peek(&self, at: u32, to: &mut [u8]) -> bool {
        self.copy(at as usize, to) == to.len()
    }

    fn peek_link(&self, at: u32, to: &mut [u8]) -> bool {
        self.copy_whole(at as usize, to) == to.len()
    }

    fn peek_network(&self, at: u32, to: &mut [u8]) -> bool {
        self.copy_whole(at as usize + self.link, to) == to.len()
    }

    fn known(&self, what: u32) -> Option<u32> {
        Some(match what {
            0 => self.name.protocol.into(),
            4 => self.name.kind.into(),
            8 => self.name.interface,
            // Marks, queues and hashes.
            20 | 24 | 32 => 0,
            28 => self.name.hardware.into(),
            36 => task::cpu() as u32,
            // There are no tags of virtual networks apart.
            44 | 48 | 60 => 0,
            52 => self.link as u32,
            56 => random::u64() as u32,
            _ => return None,
        })
    }
}
