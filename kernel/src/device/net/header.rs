//! The header before every packet (`struct virtio_net_hdr_v1`, 5.1.6).

use fbuf::region::LONGEST_PACKET;
use net::packet::{Checksum, Packet};
use nucleus::PAGE_SIZE;

use super::Feature;

/// Bytes of it.
pub const LEN: usize = 12;
/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// The most bytes of a packet: an Ethernet header before the longest packet of IP.
pub const MOST: usize = ETHERNET + 65_535;
/// The pages that the longest packet fills behind its virtio header, and the most buffers of one.
pub const LONGEST: usize = (LEN + MOST).div_ceil(PAGE_SIZE);
const _: () = assert!(LONGEST <= LONGEST_PACKET, "a packet fits in fbufs");

/// Flags: the transport checksum is to be computed; it was verified.
const NEEDS_SUM: u8 = 1;
const SUM_IS_RIGHT: u8 = 2;
/// Kinds of packets that are several in one.
const NONE: u8 = 0;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
/// A bit beside the kind.
const ECN: u8 = 0x80;

/// Returns the header of a packet that is sent, whose own headers are all in its head.
pub fn of(packet: &Packet) -> [u8; LEN] {
    let mut header = [0; LEN];
    if let Checksum::Wanted { from, at } = packet.checksum {
        header[0] = NEEDS_SUM;
        header[6..8].copy_from_slice(&from.to_le_bytes());
        header[8..10].copy_from_slice(&(at - from).to_le_bytes());
    }
    if packet.cut > 0 {
        let is_v6 = packet.head.as_slice().get(12..14) == Some(&[0x86, 0xdd]);
        header[1] = if is_v6 { TCP_V6 } else { TCP_V4 };
        header[2..4].copy_from_slice(&(packet.head.len() as u16).to_le_bytes());
        header[4..6].copy_from_slice(&packet.cut.to_le_bytes());
    }
    header
}

/// Returns how many buffers a packet fills, whose first one begins with `header`.
pub fn buffers(header: &[u8; LEN], features: Feature) -> usize {
    match features.contains(Feature::MERGED_BUFFERS) {
        true => u16::from_le_bytes([header[10], header[11]]).into(),
        false => 1,
    }
}

/// Returns how many bytes come before the payload of a segment of TCP whose first bytes these are;
/// `None` for other packets, and for what only looks like one.
pub fn before_payload(bytes: &[u8]) -> Option<usize> {
    const TCP: u8 = 6;
    let at = |at: usize| bytes.get(at).copied();
    let ip = match (at(12)?, at(13)?) {
        (0x08, 0x00) if at(ETHERNET + 9)? == TCP => usize::from(at(ETHERNET)? & 15) * 4,
        (0x86, 0xdd) if at(ETHERNET + 6)? == TCP => 40,
        _ => return None,
    };
    let tcp = usize::from(at(ETHERNET + ip + 12)? >> 4) * 4;
    (ip >= 20 && tcp >= 20).then_some(ETHERNET + ip + tcp)
}

/// Checks what the header says about a packet of `len` bytes that has arrived.
///
/// # Errors
/// What is wrong: something that can't be, or was not agreed upon.
pub fn check(header: &[u8; LEN], len: usize, features: Feature) -> Result<Checksum, &'static str> {
    let word = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let needed = match header[1] & !ECN {
        NONE => Feature::empty(),
        TCP_V4 => Feature::RECEIVES_TCP_V4,
        TCP_V6 => Feature::RECEIVES_TCP_V6,
        _ => return Err("a packet of an unknown kind"),
    };
    if !features.contains(needed) {
        return Err("a packet that is several, which was not agreed upon");
    }
    if !needed.is_empty() && word(4) == 0 {
        return Err("a packet of segments without bytes");
    }
    if header[0] & NEEDS_SUM != 0 {
        if !features.contains(Feature::RECEIVES_UNSUMMED) {
            return Err("a packet without its checksum, which was not agreed upon");
        }
        if word(6) + word(8) + 2 > len {
            return Err("a checksum behind the packet's end");
        }
        // It has never left the host.
        return Ok(Checksum::Right);
    }
    Ok(match header[0] & SUM_IS_RIGHT {
        0 => Checksum::Unknown,
        _ => Checksum::Right,
    })
}
