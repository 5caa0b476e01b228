//! IP on an interface: echoes, messages about packets, fragments, MTUs of paths.

mod common;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use abi::Errno;
use common::{
    MS, Pair, exchange, receive, send,
    tap::{ACK, OWN, SYN, Tap, address, arp, ip, machine, packet, set_sum, tcp, transport},
};
use fbuf::BytesSource;
use net::{
    Family, Stack,
    datagram::{self, Protocol, SendOptions},
    ip::{Prefix, RouteEntry},
    link::bad::GOOD,
    packet::{Checksum, Sum},
    tcp::{Options, Phase},
};
use nucleus::{
    PAGE_SIZE, frame,
    sim::{Random, on_machines},
    task::{self, Sleep},
    time,
};

fn ends(family: Family) -> (IpAddr, IpAddr) {
    (address(family, 100), address(family, 2))
}

/// An echo request with `n` bytes.
fn echo(family: Family, n: usize) -> Vec<u8> {
    let kind = if family == Family::V4 { 8 } else { 128 };
    let mut message = vec![kind, 0, 0, 0, 1, 2, 3, 4];
    message.extend((0..n).map(|at| at as u8));
    let number = if family == Family::V4 { 1 } else { 58 };
    set_sum(ends(family), number, &mut message, 2);
    message
}

#[test]
fn echoes_are_answered() {
    on_machines(1, |_| {
        let (stack, tap) = machine();
        for (family, number, kind) in [(Family::V4, 1, 0), (Family::V6, 58, 129)] {
            let message = echo(family, 300);
            stack.receive(2, packet(&ip(ends(family), number, &message, |_| {})));
            let sent = tap.take();
            let (answer, protocol) = transport(&sent[0]).unwrap();
            assert_eq!((sent.len(), protocol, answer[0]), (1, number, kind));
            assert_eq!(answer[4..], message[4..], "the same bytes");
            let mut again = answer.to_vec();
            let (from, to) = ends(family);
            set_sum((to, from), number, &mut again, 2);
            assert_eq!(again, answer, "the checksum");
        }
        // Not to all.
        let all = (
            address(Family::V4, 100),
            Ipv4Addr::new(10, 1, 0, 255).into(),
        );
        stack.receive(2, packet(&ip(all, 1, &echo(Family::V4, 9), |_| {})));
        assert!(tap.take().is_empty());
    });
}

#[test]
fn senders_are_told_of_ports_and_protocols_without_a_user() {
    on_machines(1, |_| {
        let (stack, tap) = machine();
        let datagram = [0, 9, 0, 77, 0, 12, 0, 0, 1, 2, 3, 4];
        for (family, protocol, kind, code) in [
            (Family::V4, 17, 3, 3),
            (Family::V4, 200, 3, 2),
            (Family::V6, 17, 1, 4),
            (Family::V6, 200, 4, 1),
        ] {
            let mut datagram = datagram;
            set_sum(ends(family), protocol, &mut datagram, 6);
            let bytes = ip(ends(family), protocol, &datagram, |_| {});
            stack.receive(2, packet(&bytes));
            let sent = tap.take();
            let (message, _) = transport(&sent[0]).unwrap();
            assert_eq!(message[..2], [kind, code]);
            assert_eq!(message[8..], bytes[14..], "the packet in question");
        }
        // Not for ever: 50 at once, and one for each millisecond.
        let begin = time::since_boot();
        for _ in 0..1000 {
            let bytes = ip(ends(Family::V4), 17, &datagram, |_| {});
            stack.receive(2, packet(&bytes));
        }
        let passed = (time::since_boot() - begin).as_millis() as usize;
        assert!(tap.take().len() <= 52 + passed, "{passed} ms");
    });
}

/// Cuts an IPv4 packet into fragments of `size` bytes.
fn fragments(message: &[u8], size: usize, ident: u8) -> Vec<Vec<u8>> {
    let parts = message.chunks(size).enumerate();
    let count = message.len().div_ceil(size);
    parts
        .map(|(nth, part)| {
            ip(ends(Family::V4), 1, part, |header| {
                let more = if nth + 1 < count { 0x2000 } else { 0 };
                let place = more | (nth * size / 8) as u16;
                header[5] = ident;
                header[6..8].copy_from_slice(&place.to_be_bytes());
            })
        })
        .collect()
}

#[test]
fn fragments_become_packets_and_packets_fragments() {
    on_machines(4, |seed| {
        let free = frame::usage().free;
        let mut random = Random::new(seed);
        let (stack, tap) = machine();
        let message = echo(Family::V4, 5000);
        let mut parts = fragments(&message, 800, 1);
        // In any order, some twice.
        parts.push(parts[1].clone());
        let last = parts.len();
        for at in (1..last).rev() {
            parts.swap(at, random.below(at + 1));
        }
        for part in &parts {
            stack.receive(2, packet(part));
        }
        let mut whole = vec![0; 5008];
        let mut sent = tap.take();
        assert_eq!(sent.len(), 4, "an answer in fragments of 1480 bytes");
        sent.reverse();
        for part in &sent {
            assert!(part.len() <= 1514);
            let place = usize::from(u16::from_be_bytes([part[20], part[21]]) & 0x1fff) * 8;
            let n = part.len() - 34;
            whole[place..place + n].copy_from_slice(&part[34..]);
        }
        assert_eq!(whole[8..], message[8..]);
        // Overlaps, gaps and contradictions make no packet.
        let wrong = fragments(&message, 800, 2);
        let overlap = fragments(&message, 1600, 2);
        for part in [
            &wrong[0],
            &overlap[1],
            &wrong[1],
            &wrong[2],
            &wrong[3],
            &wrong[4],
            &wrong[5],
            &wrong[6],
        ] {
            stack.receive(2, packet(part));
        }
        let one_missing = fragments(&message, 800, 3);
        for part in &one_missing[1..] {
            stack.receive(2, packet(part));
        }
        assert!(tap.take().is_empty());
        // A copy may have come behind its packet's end.
        assert!((2..=3).contains(&stack.network().incomplete()));
        // Their time ends.
        task::sleep(task::Sleep {
            interruptible: false,
            deadline: Some(time::since_boot() + std::time::Duration::from_secs(31)),
        });
        stack.run_timers();
        assert_eq!(stack.network().incomplete(), 0);
        drop((stack, tap));
        assert_eq!(frame::usage().free, free, "frames are lost");
    });
}

/// The message that a packet of TCP is too big for a path of `mtu` bytes.
fn too_big(about: &[u8], mtu: u16) -> Vec<u8> {
    let router = Ipv4Addr::new(10, 1, 0, 101).into();
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(&about[14..14 + 28]);
    let ips = (router, address(Family::V4, 2));
    set_sum(ips, 1, &mut message, 2);
    ip(ips, 1, &message, |_| {})
}

/// An established connection of `stack` to a peer that is played by hand.
fn accepted(stack: &Stack, tap: &Tap, port: u16) -> (std::sync::Arc<net::tcp::Socket>, u32) {
    let here = SocketAddr::new(address(Family::V4, 2), 80);
    let there = SocketAddr::new(address(Family::V4, 100), port);
    let listener = stack.tcp_socket(Family::V4, Options::default());
    listener.set_options(|options| options.name.reuse_address = true);
    listener.bind(here).unwrap();
    listener.listen(1).unwrap();
    // The window of the other packets is for a peer without scaling; ours says 1460 bytes.
    let mut syn = tcp((there, here), 5000, 0, SYN, &[]);
    syn.truncate(54);
    let mut header = syn[34..].to_vec();
    header[12] = 0x60;
    header.extend([2, 4, 5, 180]);
    set_sum((there.ip(), here.ip()), 6, &mut header, 16);
    stack.receive(2, packet(&ip((there.ip(), here.ip()), 6, &header, |_| {})));
    let sent = tap.take();
    let (answer, _) = transport(&sent[0]).unwrap();
    let theirs = u32::from_be_bytes(answer[4..8].try_into().unwrap()) + 1;
    stack.receive(2, packet(&tcp((there, here), 5001, theirs, ACK, &[])));
    let socket = listener.accept().unwrap();
    listener.close(false);
    (socket, theirs)
}

#[test]
fn segments_follow_the_mtu_of_their_path() {
    on_machines(1, |_| {
        let (stack, tap) = machine();
        let (socket, _) = accepted(&stack, &tap, 1000);
        assert_eq!(send(&socket, &[7; 3000]), Ok(3000));
        let sent = tap.take();
        assert_eq!(sent[0].len(), 1514);
        // A message about a number that was never sent is a stranger's.
        let mut forged = sent[0].clone();
        forged[38] ^= 0x40;
        stack.receive(2, packet(&too_big(&forged, 600)));
        assert!(tap.take().is_empty());
        stack.receive(2, packet(&too_big(&sent[0], 1000)));
        let again = tap.take();
        assert!(!again.is_empty() && again.iter().all(|packet| packet.len() <= 1014));
        assert_eq!(again[0][38..42], sent[0][38..42], "the same numbers again");
        // What a message may claim has a limit.
        stack.receive(2, packet(&too_big(&again[0], 68)));
        assert!(tap.take().iter().all(|packet| packet.len() >= 500));
        socket.close(true);
    });
}

#[test]
fn a_neighbour_is_asked_for_its_address() {
    on_machines(1, |_| {
        let (stack, tap) = machine();
        let client = stack.tcp_socket(Family::V4, Options::default());
        let there = Ipv4Addr::new(10, 1, 0, 200);
        client.connect(SocketAddr::new(there.into(), 80)).unwrap();
        let sent = tap.take();
        assert_eq!(
            (sent.len(), &sent[0][12..14], sent[0][21]),
            (1, &[8, 6][..], 1)
        );
        // An unsolicited ARP reply is not learned; a solicited one is.
        let known = || stack.network().interface(2).unwrap().neighbours();
        let before = known();
        stack.receive(2, packet(&arp(Ipv4Addr::new(10, 1, 0, 201), OWN_IP, 2)));
        assert!(tap.take().is_empty());
        assert_eq!(known(), before);
        stack.receive(2, packet(&arp(there, OWN_IP, 2)));
        let sent = tap.take();
        assert_eq!((sent.len(), &sent[0][..6]), (1, &[2, 9, 9, 9, 9, 200][..]));
        assert_eq!(sent[0][6..12], OWN);
        // A reply that claims this machine's own address is ignored.
        stack.receive(2, packet(&arp(OWN_IP, there, 2)));
        client.close(true);
    });
}

const OWN_IP: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);

/// Packets that must be cut cross a link all the same, and so do large ones of a wide link.
#[test]
fn small_and_large_links() {
    on_machines(2, |seed| {
        for mtu in [600, 9000] {
            let pair = Pair::new(seed, GOOD, mtu);
            let ends = pair.connect(Family::V4, Options::default());
            exchange(&ends, [100_000, 100_000], &mut Random::new(seed), || {
                pair.run(1_000_000)
            });
            // The last acknowledgement may still be on its way.
            pair.run_until(|| ends[0].phase() == Phase::Ended);
            for end in &ends {
                end.close(false);
            }
            pair.run_until(|| pair.is_quiet());
        }
    });
}

/// Datagrams of any size reach another machine; an unused port answers.
#[test]
fn datagrams_between_machines() {
    on_machines(2, |seed| {
        let pair = Pair::new(seed, GOOD, 1500);
        for family in [Family::V4, Family::V6] {
            let socket = |side: usize| {
                let options = datagram::Options::default();
                pair.stacks[side].datagram_socket(family, Protocol::Udp, options)
            };
            let at = |side, port| SocketAddr::new(common::address(side, family), port);
            let (a, b) = (socket(0), socket(1));
            b.bind(at(1, 7)).unwrap();
            a.connect(at(1, 7)).unwrap();
            for len in [0, 1, 1400, 9000, 60_000] {
                let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
                let how = SendOptions {
                    to: None,
                    from: None,
                    service: 0,
                    hops: 64,
                    interface: 0,
                };
                assert_eq!(a.send(&mut BytesSource::new(&data), how), Ok(len));
                pair.run_until(|| b.readiness().readable);
                let got = b.receive(false).unwrap().unwrap();
                assert_eq!((got.data.len(), Some(got.from)), (len, a.local()));
                let mut bytes = vec![0; len];
                got.data.peek(0, &mut bytes);
                assert_eq!(bytes, data);
            }
            b.close();
            let how = SendOptions {
                to: None,
                from: None,
                service: 0,
                hops: 64,
                interface: 0,
            };
            a.send(&mut BytesSource::new(b"lost"), how).unwrap();
            pair.run_until(|| a.readiness().error);
            assert_eq!(a.receive(false).err(), Some(Errno::ECONNREFUSED));
            a.close();
        }
    });
}

/// A device that computes checksums and cuts gets large segments, and is told how.
#[test]
fn devices_that_cut_get_large_segments() {
    on_machines(1, |_| {
        let (stack, tap) = machine();
        tap.can_cut();
        let (socket, _) = accepted(&stack, &tap, 1000);
        assert_eq!(send(&socket, &[7; 9000]), Ok(9000));
        let sent = tap.take_packets();
        let large = sent
            .iter()
            .find(|(packet, ..)| packet.len() > 1514)
            .unwrap();
        let (bytes, checksum, cut) = large;
        assert_eq!(*cut, 1460);
        assert_eq!(*checksum, Checksum::Wanted { from: 34, at: 50 });
        // What is there is the sum of the pseudo header.
        let mut sum = Sum::default();
        sum.add(&bytes[26..34]);
        sum.add(&[0, 6]);
        sum.add(&(bytes.len() as u16 - 34).to_be_bytes());
        assert_eq!(bytes[50..52], sum.partial().to_be_bytes());
        socket.close(true);
    });
}

/// Fragments of a payload of so many bytes, which a socket sends to neighbour 100.
fn send_far(stack: &Stack, protocol: Protocol, n: usize) -> Result<usize, Errno> {
    let socket = stack.datagram_socket(Family::V4, protocol, datagram::Options::default());
    let bytes = vec![7; n];
    let how = SendOptions {
        to: Some(SocketAddr::new(address(Family::V4, 100), 9)),
        hops: 64,
        from: None,
        service: 0,
        interface: 0,
    };
    let sent = socket.send(&mut BytesSource::new(&bytes), how);
    socket.close();
    sent
}

#[test]
fn a_route_that_has_no_room_for_a_fragment_sends_none() {
    on_machines(1, |_| {
        for mtu in [1, 20, 27] {
            let (stack, tap) = machine();
            let route = RouteEntry {
                mtu,
                ..RouteEntry::new(Prefix::new(address(Family::V4, 100), 32).unwrap(), 2, None)
            };
            stack.network().put_route(route).unwrap();
            let sent = send_far(&stack, Protocol::Udp, 100);
            assert_eq!(sent, Err(Errno::EMSGSIZE), "{mtu}");
            assert!(tap.take().is_empty());
        }
    });
}

#[test]
fn a_raw_packet_is_no_longer_than_its_header_can_say() {
    on_machines(1, |_| {
        let (stack, tap) = machine();
        let free = frame::usage().free;
        for n in [65_516, 65_536, 1 << 20] {
            let sent = send_far(&stack, Protocol::Raw(200), n);
            assert_eq!(sent, Err(Errno::EMSGSIZE), "{n}");
            assert!(tap.take().is_empty() && frame::usage().free == free);
        }
        assert_eq!(send_far(&stack, Protocol::Raw(200), 65_515), Ok(65_515));
        assert!(tap.take().len() > 40);
    });
}

/// Neighbours, MTUs of paths and incomplete packets are not remembered while memory is scarce, and
/// groups not joined.
#[test]
fn strangers_fill_no_tables_while_memory_is_scarce() {
    on_machines(1, |_| {
        let (stack, tap) = machine();
        let network = stack.network();
        let interface = network.interface(2).unwrap();
        let before = interface.neighbours();
        let socket = stack.datagram_socket(Family::V4, Protocol::Udp, datagram::Options::default());
        frame::seem_scarce_after(Some(0));
        for last in 50..90 {
            let neighbour = Ipv4Addr::new(10, 1, 0, last);
            let asks = arp(neighbour, Ipv4Addr::new(10, 1, 0, 2), 1);
            stack.receive(2, packet(&asks));
        }
        for part in fragments(&echo(Family::V4, 5000), 800, 1).iter().skip(1) {
            stack.receive(2, packet(part));
        }
        let group = IpAddr::V4(Ipv4Addr::new(225, 0, 0, 1));
        let joined = socket.join(group, 2);
        frame::seem_scarce_after(None);
        assert_eq!(interface.neighbours(), before);
        assert_eq!(network.incomplete(), 0);
        assert_eq!(joined, Err(Errno::ENOMEM));
        assert_eq!(socket.leave(group, 2), Err(Errno::EADDRNOTAVAIL));
        socket.join(group, 2).unwrap();
        socket.close();
        tap.take();
    });
}

/// A message about a datagram that no socket can have sent says nothing about the path, which
/// connections use, too.
#[test]
fn messages_about_datagrams_of_no_socket_change_no_path() {
    on_machines(1, |_| {
        let (stack, _tap) = machine();
        let network = stack.network();
        let (here, there) = (address(Family::V4, 2), address(Family::V4, 100));
        let mut datagram = 7777u16.to_be_bytes().to_vec();
        datagram.extend([0, 9, 0, 8, 0, 0]);
        for protocol in [17, 1, 200] {
            let forged = ip((here, there), protocol, &datagram, |_| {});
            stack.receive(2, packet(&too_big(&forged, 600)));
            assert_eq!(network.route(there).unwrap().mtu, 1500, "{protocol}");
        }
        let options = datagram::Options::default();
        let socket = stack.datagram_socket(Family::V4, Protocol::Udp, options);
        socket.bind(SocketAddr::new(here, 7777)).unwrap();
        let about = ip((here, there), 17, &datagram, |_| {});
        stack.receive(2, packet(&too_big(&about, 600)));
        assert_eq!(network.route(there).unwrap().mtu, 600);
        socket.close();
    });
}

/// Segments of a large MTU end with whole pages where the sender has these.
#[test]
fn large_segments_end_with_pages() {
    on_machines(1, |seed| {
        let pair = Pair::new(seed, GOOD, 9000);
        let ends = pair.connect(Family::V4, Options::default());
        let headers = 14 + 20 + 32;
        let sent = 8 * PAGE_SIZE;
        assert_eq!(send(&ends[0], &[7; 8 * PAGE_SIZE]), Ok(sent));
        let (mut payloads, mut got) = (Vec::new(), 0);
        while got < sent {
            for (side, way) in pair.ways.iter().enumerate() {
                while let Some(packet) = way.next() {
                    if side == 1 {
                        payloads.push(packet.data.len() - headers);
                    }
                    pair.stacks[side].receive(2, packet);
                }
                pair.stacks[side].run_timers();
            }
            got += receive(&ends[1], sent).map_or(0, |bytes| bytes.len());
            task::sleep(Sleep {
                interruptible: false,
                deadline: Some(time::since_boot() + Duration::from_nanos(MS)),
            });
        }
        payloads.retain(|&len| len > 0);
        assert_eq!(payloads, [2 * PAGE_SIZE; 4]);
        for socket in ends {
            socket.close(false);
        }
        pair.run_until(|| pair.is_quiet());
    });
}

/// A closed socket lingers until its peer has all bytes and the end, or is gone.
#[test]
fn a_closed_socket_lingers_until_all_has_arrived() {
    on_machines(2, |_| {
        for ends_first in [false, true] {
            let pair = Pair::new(1, GOOD, 1500);
            let [client, server] = pair.connect(Family::V4, Options::default());
            assert_eq!(send(&client, &[7; 20_000]), Ok(20_000));
            if ends_first {
                client.shut(false, true).unwrap();
                assert!(!client.lingers(), "it is open");
            }
            client.close(false);
            assert!(client.lingers());
            pair.run_until(|| !client.lingers());
            let mut received = 0;
            while let Ok(bytes) = receive(&server, 4096)
                && !bytes.is_empty()
            {
                received += bytes.len();
            }
            assert_eq!(received, 20_000);
            server.close(false);
            pair.run_until(|| pair.is_quiet());
        }
        let pair = Pair::new(1, GOOD, 1500);
        let [client, server] = pair.connect(Family::V4, Options::default());
        // More than the peer has room for.
        while send(&client, &[7; 20_000]).is_ok() {
            pair.run(10 * MS);
        }
        client.close(false);
        for _ in 0..5 {
            pair.run(100 * MS);
        }
        assert!(client.lingers());
        server.close(true);
        pair.run_until(|| !client.lingers());
        pair.run_until(|| pair.is_quiet());
    });
}
