//! Packets made by hand, and a device that keeps what is sent.
#![allow(dead_code, reason = "each test uses some of it")]

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use fbuf::{Aggregate, BytesSource};
use net::{
    Family, Stack,
    link::{Device, Features, Mac},
    packet::{Checksum, Packet, Sum},
};

pub const OWN: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const TCP: u8 = 6;
pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

pub fn packet(bytes: &[u8]) -> Packet {
    let mut data = Aggregate::new();
    let n = data.fill_from(&mut BytesSource::new(bytes), bytes.len());
    assert_eq!(n, Ok(bytes.len()));
    Packet {
        data,
        ..Packet::default()
    }
}

pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Makes a packet with headers of Ethernet and IP before `payload`; `edit` changes the IP header
/// before its checksum is computed.
pub fn ip(
    (from, to): (IpAddr, IpAddr),
    protocol: u8,
    payload: &[u8],
    edit: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let mut bytes = OWN.to_vec();
    bytes.extend([2, 9, 9, 9, 9, 9]);
    if from.is_ipv4() {
        bytes.extend([8, 0, 0x45, 0]);
        bytes.extend((20 + payload.len() as u16).to_be_bytes());
        bytes.extend([0, 7, 0, 0, 64, protocol, 0, 0]);
    } else {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend((payload.len() as u16).to_be_bytes());
        bytes.extend([protocol, 64]);
    }
    bytes.extend(octets(from));
    bytes.extend(octets(to));
    edit(&mut bytes[14..]);
    if from.is_ipv4() {
        let mut sum = Sum::default();
        sum.add(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&sum.finish().to_be_bytes());
    }
    bytes.extend(payload);
    bytes
}

/// Computes the checksum at byte `at` of a transport header.
pub fn set_sum((from, to): (IpAddr, IpAddr), protocol: u8, payload: &mut [u8], at: usize) {
    payload[at..at + 2].fill(0);
    let mut sum = Sum::default();
    if protocol != 1 {
        sum.add(&octets(from));
        sum.add(&octets(to));
        sum.add(&(payload.len() as u32).to_be_bytes());
        sum.add(&[0, 0, 0, protocol]);
    }
    sum.add(payload);
    payload[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
}

/// A segment with a window of 8192 bytes.
pub fn tcp(ends: (SocketAddr, SocketAddr), seq: u32, ack: u32, flags: u8, more: &[u8]) -> Vec<u8> {
    tcp_with_window(ends, seq, ack, (flags, 8192), more)
}

pub fn tcp_with_window(
    (from, to): (SocketAddr, SocketAddr),
    seq: u32,
    ack: u32,
    (flags, window): (u8, u16),
    more: &[u8],
) -> Vec<u8> {
    let mut bytes = from.port().to_be_bytes().to_vec();
    bytes.extend(to.port().to_be_bytes());
    bytes.extend(seq.to_be_bytes());
    bytes.extend(ack.to_be_bytes());
    bytes.extend([0x50, flags]);
    bytes.extend(window.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(more);
    let ips = (from.ip(), to.ip());
    set_sum(ips, TCP, &mut bytes, 16);
    ip(ips, TCP, &bytes, |_| {})
}

/// A device that keeps what is sent.
#[derive(Default)]
pub struct Tap {
    sent: Mutex<Vec<(Vec<u8>, Checksum, u16)>>,
    cuts: AtomicBool,
    /// Is called after each packet.
    pub then: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Device for Tap {
    fn features(&self) -> Features {
        Features {
            mac: Some(Mac(OWN)),
            mtu: 1500,
            checksums: self.cuts.load(Relaxed),
            cuts: if self.cuts.load(Relaxed) { 65_535 } else { 0 },
        }
    }

    fn send(&self, packet: &mut Packet) -> bool {
        let mut bytes = vec![0; packet.len()];
        packet.peek(0, &mut bytes);
        let kept = (bytes, packet.checksum, packet.cut);
        self.sent.lock().unwrap().push(kept);
        if let Some(then) = self.then.get() {
            then();
        }
        true
    }
}

impl Tap {
    /// Takes what was sent, without reports of groups.
    pub fn take(&self) -> Vec<Vec<u8>> {
        let packets = self.take_packets().into_iter();
        let all = packets.map(|(bytes, ..)| bytes);
        all.filter(|bytes| report(bytes).is_none()).collect()
    }

    /// As `take`, with what the device is to do.
    pub fn take_packets(&self) -> Vec<(Vec<u8>, Checksum, u16)> {
        std::mem::take(&mut self.sent.lock().unwrap())
    }

    /// From now on it computes checksums and cuts segments.
    pub fn can_cut(&self) {
        self.cuts.store(true, Relaxed);
    }
}

/// The source and the group of a message of MLD, and its type, or that of the record in a report of
/// version 2.
pub fn report(bytes: &[u8]) -> Option<(u8, Ipv6Addr, Ipv6Addr)> {
    let is_mld = bytes.len() >= 86 && bytes[12..14] == [0x86, 0xdd] && bytes[20] == 0;
    let ip = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap().into();
    is_mld.then(|| match bytes[62] {
        143 => (bytes[70], ip(22), ip(74)),
        kind => (kind, ip(22), ip(70)),
    })
}

/// A machine at a tap, with 10.1.0.2/24 and fd00::2/64; it knows its neighbours.
pub fn machine() -> (Stack, Arc<Tap>) {
    let stack = Stack::new();
    let tap = Arc::new(Tap::default());
    let index = stack.network().add_interface(tap.clone()).unwrap();
    assert_eq!(index, 2);
    for (address, bits) in [("10.1.0.2", 24), ("fd00::2", 64)] {
        let address = address.parse().unwrap();
        stack.network().add_address(2, address, bits).unwrap();
    }
    // No neighbour answers here: each one announces itself.
    for last in 0..8 {
        let neighbour = Ipv4Addr::new(10, 1, 0, 100 + last);
        stack.receive(2, packet(&arp(neighbour, Ipv4Addr::new(10, 1, 0, 2), 1)));
        let from = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 100 + u16::from(last));
        let to = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
        stack.receive(2, packet(&solicitation(from, to)));
    }
    let sent = tap.take();
    assert_eq!(sent.len(), 16, "answers for our addresses: {sent:x?}");
    (stack, tap)
}

pub fn arp(from: Ipv4Addr, to: Ipv4Addr, operation: u8) -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    let mac = [2, 9, 9, 9, 9, from.octets()[3]];
    bytes.extend(mac);
    bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    bytes.extend(mac);
    bytes.extend(from.octets());
    bytes.extend([0; 6]);
    bytes.extend(to.octets());
    bytes
}

pub fn solicitation(from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(to.octets());
    message.extend([1, 1, 2, 9, 9, 9, 9, 9]);
    let ips = (from.into(), to.into());
    set_sum(ips, 58, &mut message, 2);
    ip(ips, 58, &message, |header| header[7] = 255)
}

pub fn address(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 1, 0, last).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into(),
    }
}

/// Where the sequence numbers of a packet of TCP stand.
pub fn transport(bytes: &[u8]) -> Option<(&[u8], u8)> {
    match bytes[12..14] {
        [8, 0] => Some((bytes.get(34..)?, bytes[23])),
        [0x86, 0xdd] => Some((bytes.get(54..)?, bytes[20])),
        _ => None,
    }
}
