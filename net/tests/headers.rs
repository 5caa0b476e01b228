//! Headers of any length, in packets that lie in any number of pieces.

mod common;

use std::net::{IpAddr, SocketAddr};

use common::tap::{ACK, SYN, address, ip, machine, set_sum, tcp, transport};
use fbuf::{Aggregate, Slice};
use net::{
    Family,
    datagram::{self, Protocol},
    packet::Packet,
    tcp::Options,
};
use nucleus::{
    Frame, ephemeral,
    frame::Contents,
    sim::{Random, on_machines},
};

const UDP: u8 = 17;
/// Destination options of IPv6.
const OPTIONS: u8 = 60;

/// A packet of these bytes in pieces of random lengths.
fn in_pieces(bytes: &[u8], random: &mut Random) -> Packet {
    let mut data = Aggregate::new();
    let mut left = bytes;
    while !left.is_empty() {
        let longest = [20, 90, 300][random.below(3)];
        let (piece, rest) = left.split_at((1 + random.below(longest)).min(left.len()));
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let at = random.below(99);
        ephemeral::map(&frame).write(at, piece);
        data.append(Slice::part(&frame, at, piece.len())).unwrap();
        left = rest;
    }
    Packet {
        data,
        ..Packet::default()
    }
}

/// Extension headers with `payload` of `protocol` behind them, and the protocol of the first one.
fn extended(protocol: u8, payload: &[u8], count: usize, random: &mut Random) -> (u8, Vec<u8>) {
    let (mut first, mut bytes) = (protocol, payload.to_vec());
    for _ in 0..count {
        let words = random.below(9);
        let mut header = vec![0; 8 * (words + 1)];
        (header[0], header[1]) = (first, words as u8);
        // One option that fills it: padding.
        (header[2], header[3]) = (1, (8 * words + 4) as u8);
        bytes.splice(0..0, header);
        first = OPTIONS;
    }
    (first, bytes)
}

fn ends(family: Family) -> (IpAddr, IpAddr) {
    (address(family, 100), address(family, 2))
}

/// Datagrams reach their socket whole, and a message about others repeats what came.
#[test]
fn headers_of_any_length_are_read() {
    on_machines(20, |seed| {
        let mut random = Random::new(seed);
        let (stack, tap) = machine();
        let options = datagram::Options::default();
        let sockets = [Family::V4, Family::V6].map(|family| {
            let socket = stack.datagram_socket(family, Protocol::Udp, options);
            let name = SocketAddr::new(address(family, 2), 77);
            socket.bind(name).unwrap();
            socket
        });
        for turn in 0..40 {
            let is_v6 = random.below(3) > 0;
            let family = if is_v6 { Family::V6 } else { Family::V4 };
            let is_known = random.below(2) == 0;
            let mut datagram = vec![0, 9, 0, if is_known { 77 } else { 78 }, 0, 0, 0, 0];
            let payload: Vec<u8> = (0..random.below(200)).map(|at| (at + turn) as u8).collect();
            datagram.extend(&payload);
            let len = datagram.len() as u16;
            datagram[4..6].copy_from_slice(&len.to_be_bytes());
            set_sum(ends(family), UDP, &mut datagram, 6);
            let count = if is_v6 { random.below(4) } else { 0 };
            let (first, bytes) = extended(UDP, &datagram, count, &mut random);
            let bytes = ip(ends(family), first, &bytes, |_| {});
            stack.receive(2, in_pieces(&bytes, &mut random));
            if is_known {
                let got = sockets[usize::from(is_v6)].receive(false).unwrap().unwrap();
                let mut there = vec![0; got.data.len()];
                got.data.peek(0, &mut there);
                assert_eq!(there, payload);
                assert!(tap.take().is_empty());
                continue;
            }
            // They are fewer than the messages that may be sent at once.
            let sent = tap.take();
            let (message, _) = transport(&sent[0]).unwrap();
            assert_eq!(message[..2], if is_v6 { [1, 4] } else { [3, 3] });
            let quote = &message[8..];
            assert_eq!(quote, &bytes[14..][..quote.len()]);
            let most = if is_v6 { 1280 - 48 } else { 576 - 28 };
            assert_eq!(quote.len(), (bytes.len() - 14).min(most));
        }
    });
}

/// A SYN with forty bytes of options is answered, behind any headers.
#[test]
fn the_longest_header_of_tcp_is_read() {
    on_machines(20, |seed| {
        let mut random = Random::new(seed);
        let (stack, tap) = machine();
        for family in [Family::V4, Family::V6] {
            let (from, to) = ends(family);
            let (there, here) = (SocketAddr::new(from, 4000), SocketAddr::new(to, 80));
            let listener = stack.tcp_socket(family, Options::default());
            listener.bind(here).unwrap();
            listener.listen(9).unwrap();
            let whole = tcp((there, here), 7, 0, SYN, &[]);
            let headers = whole.len() - 20;
            let mut segment = whole[headers..].to_vec();
            segment[12] = 15 << 4;
            // The size of segments, behind options that say nothing.
            segment.extend([1; 36]);
            segment.extend([2, 4, 3, 232]);
            set_sum(ends(family), 6, &mut segment, 16);
            let count = match family {
                Family::V4 => 0,
                Family::V6 => random.below(4),
            };
            let (first, bytes) = extended(6, &segment, count, &mut random);
            let bytes = ip(ends(family), first, &bytes, |_| {});
            stack.receive(2, in_pieces(&bytes, &mut random));
            let sent = tap.take();
            let (answer, _) = transport(&sent[0]).unwrap();
            assert_eq!(answer[13], SYN | ACK);
        }
    });
}
