//! Packets without a server: aggregates against plain bytes.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use libfbuf::{Aggregate, Backend, Contents, Domain, Mode, Path};
use netserver::{Config, Stack, wire};

use super::Draws;

const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

fn stack(domain: &Domain, pdu: usize, is_large: bool) -> Stack {
    let config = Config {
        address: HERE,
        pdu,
        is_large,
    };
    Stack::new(domain, config).expect("a stack")
}

fn here(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(HERE, port)
}

fn bytes_of(contents: &impl Contents) -> Vec<u8> {
    contents.to_vec(2 << 20).expect("bytes")
}

/// An aggregate of several fbufs.
fn body(path: &Path, draws: &mut Draws, bytes: &[u8]) -> Aggregate {
    let mut body = path.empty();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.len().min(1 + draws.below(20_000)));
        body = body.append(part).expect("memory");
        rest = after;
    }
    body
}

/// The packets of a datagram to oneself.
fn packets(stack: &mut Stack, port: u16, body: &Aggregate) -> Vec<Aggregate> {
    stack.send(7, here(port), body, true).expect("sent");
    std::iter::from_fn(|| stack.take()).map(|it| it.1).collect()
}

/// Datagrams of many lengths, by PDUs of many lengths.
pub fn whole(backend: Backend) {
    let domain = Domain::enter(backend).expect("the region");
    let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0).expect("a path");
    let mut draws = Draws(3);
    for pdu in [276, 576, 1500, 4096, 16_384, 32_768, 65_535] {
        let mut stack = stack(&domain, pdu, true);
        let lens = [
            0,
            1,
            247,
            248,
            249,
            pdu - 29,
            pdu - 28,
            pdu - 27,
            3 * pdu,
            65_507,
            65_508,
        ];
        for len in lens.into_iter().filter(|len| len / pdu < 1000) {
            let bytes = draws.bytes(len);
            let body = body(&path, &mut draws, &bytes);
            let packets = packets(&mut stack, 9, &body);
            let mut came = None;
            for packet in &packets {
                assert!(packet.len() as usize <= pdu && came.is_none());
                came = stack.receive(packet, Instant::now()).expect("memory");
            }
            let datagram = came.expect("a datagram");
            assert!(datagram.is_intact() && datagram.to == here(9));
            assert_eq!(datagram.from, here(7));
            assert!(bytes_of(&datagram.body) == bytes, "{len} by {pdu}");
            // The parts of one fbuf are one again.
            let again = path.adopt(&datagram.body).expect("memory");
            assert!(again.fragments().count() <= body.fragments().count());
        }
    }
    let mut small = stack(&domain, 1500, false);
    let large = body(&path, &mut draws, &vec![0; 65_508]);
    let refused = small.send(7, here(9), &large, false);
    assert_eq!(
        refused.map_err(|it| it.raw_os_error()),
        Err(Some(libc::EMSGSIZE))
    );
}

/// Several datagrams at once whose fragments come in any order, some repeatedly, some never.
pub fn shuffled(backend: Backend) {
    let domain = Domain::enter(backend).expect("the region");
    let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0).expect("a path");
    let mut draws = Draws(4);
    for round in 0..60 {
        let is_large = round % 2 == 0;
        let mut stack = stack(&domain, 1500, is_large);
        let mut sent = Vec::new();
        let mut wire = Vec::new();
        let mut complete = 0;
        for port in 0..8 {
            let len = draws.below(if is_large { 200_000 } else { 60_000 });
            let bytes = draws.bytes(len);
            let body = body(&path, &mut draws, &bytes);
            let packets = packets(&mut stack, port, &body);
            sent.push(bytes);
            let lost = (draws.below(3) == 0).then(|| draws.below(packets.len()));
            complete += usize::from(lost.is_none());
            for (index, packet) in packets.into_iter().enumerate() {
                if lost == Some(index) {
                    continue;
                }
                if draws.below(4) == 0 {
                    wire.push(packet.clone());
                }
                wire.push(packet);
            }
        }
        for index in (1..wire.len()).rev() {
            wire.swap(index, draws.below(index + 1));
        }
        let mut came = [0; 8];
        for packet in &wire {
            let datagram = stack.receive(packet, Instant::now()).expect("memory");
            let Some(datagram) = datagram else { continue };
            let port = usize::from(datagram.to.port());
            assert!(datagram.is_intact() && bytes_of(&datagram.body) == sent[port]);
            came[port] += 1;
        }
        // A datagram of one packet may come twice: that is UDP.
        assert_eq!(came.iter().filter(|it| **it > 0).count(), complete);
    }
}

/// A packet with a header of one's own.
fn packet(path: &Path, header: &wire::Ipv4, payload: &[u8]) -> Aggregate {
    let header = wire::Ipv4 {
        payload: payload.len(),
        ..*header
    };
    path.copy(&[&header.emit()[..], payload].concat())
        .expect("memory")
}

fn fragment(id: u16, offset: u64, has_more: bool) -> wire::Ipv4 {
    wire::Ipv4 {
        from: Ipv4Addr::new(10, 0, 0, 2),
        to: HERE,
        protocol: wire::protocol::UDP,
        id,
        offset,
        has_more,
        is_large: false,
        payload: 0,
    }
}

/// Fragments that overlap, end twice, or lie beyond the end.
pub fn hostile(backend: Backend) {
    let domain = Domain::enter(backend).expect("the region");
    let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0).expect("a path");
    let mut stack = stack(&domain, 1500, false);
    // Each ends its datagram: the fragment that is missing afterwards completes nothing.
    let cases: &[&[(u64, usize, bool)]] = &[
        // The second covers half of the first, and more.
        &[(0, 16, true), (8, 16, true), (24, 8, false), (0, 24, true)],
        // One within another.
        &[(0, 32, true), (8, 8, true), (32, 8, false)],
        // One around another.
        &[(8, 8, true), (0, 32, true), (32, 8, false)],
        // Two ends.
        &[(16, 8, false), (24, 8, false), (0, 16, true)],
        // Data behind the end.
        &[(16, 8, false), (24, 8, true), (0, 16, true)],
        &[(24, 8, true), (16, 8, false), (0, 16, true)],
        // Beyond what IP can carry.
        &[(65_528, 800, false), (0, 65_528, true)],
        // Not a multiple of eight.
        &[(0, 15, true), (8, 8, false)],
        // Empty ones.
        &[(0, 0, true), (8, 0, false)],
    ];
    for (id, case) in (0..).zip(cases) {
        for (offset, len, has_more) in *case {
            let header = fragment(id, *offset, *has_more);
            let payload = vec![0; (*len).min(60_000)];
            let packet = packet(&path, &header, &payload);
            let came = stack.receive(&packet, Instant::now()).expect("memory");
            assert!(came.is_none(), "case {id}");
        }
    }
    // A flood of first fragments costs bounded memory, and other senders' datagrams still come.
    let other = path.copy(&[1; 5000]).expect("memory");
    let others = packets(&mut stack, 9, &other);
    let (last, first) = others.split_last().expect("packets");
    for packet in first {
        assert!(
            stack
                .receive(packet, Instant::now())
                .expect("memory")
                .is_none()
        );
    }
    for id in 0..5000 {
        let packet = packet(&path, &fragment(id, 8, true), &[0; 1400]);
        assert!(
            stack
                .receive(&packet, Instant::now())
                .expect("memory")
                .is_none()
        );
    }
    let came = stack.receive(last, Instant::now()).expect("memory");
    assert_eq!(bytes_of(&came.expect("a datagram").body), [1; 5000]);
}

/// Packets of which some bytes are wrong.
pub fn random(backend: Backend) {
    let domain = Domain::enter(backend).expect("the region");
    let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0).expect("a path");
    let mut draws = Draws(5);
    let mut stack = stack(&domain, 600, true);
    for _ in 0..3000 {
        let len = draws.below(3000) + 1;
        let bytes = draws.bytes(len);
        let body = path.copy(&bytes).expect("memory");
        for packet in packets(&mut stack, 9, &body) {
            let mut bytes = bytes_of(&packet);
            for _ in 0..draws.below(3) {
                let at = draws.below(bytes.len().min(40));
                bytes[at] = draws.word() as u8;
            }
            bytes.truncate(bytes.len() - draws.below(2) * draws.below(bytes.len()));
            let damaged = path.copy(&bytes).expect("memory");
            // The checksum of UDP finds what is wrong with a datagram.
            let came = stack.receive(&damaged, Instant::now()).expect("memory");
            if let Some(it) = came.filter(|it| it.is_intact()) {
                assert!(it.body.len() <= 3000);
            }
            while stack.take().is_some() {}
        }
    }
}

/// Echo requests of all sizes are answered.
pub fn echo(backend: Backend) {
    let domain = Domain::enter(backend).expect("the region");
    let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0).expect("a path");
    let mut stack = stack(&domain, 1500, false);
    let mut draws = Draws(6);
    for len in [0, 1, 56, 1471, 1472] {
        let mut message = vec![8, 0, 0, 0, 1, 2, 3, 4];
        message.extend(draws.bytes(len));
        let mut sum = wire::Checksum::default();
        sum.add(&message);
        message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        let header = wire::Ipv4 {
            protocol: wire::protocol::ICMP,
            ..fragment(1, 0, false)
        };
        let request = packet(&path, &header, &message);
        assert!(
            stack
                .receive(&request, Instant::now())
                .expect("memory")
                .is_none()
        );
        let (to, reply) = stack.take().expect("a reply");
        let reply = bytes_of(&reply);
        assert_eq!(to, header.from);
        let mut sum = wire::Checksum::default();
        sum.add(&reply[20..]);
        assert_eq!((reply[20], sum.finish()), (0, 0));
        assert!(reply[24..] == message[4..]);
    }
}
