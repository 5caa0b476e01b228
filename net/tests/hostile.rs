//! Packets that no honest machine sends, and more of them than any does.

mod common;

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use common::{
    Pair, exchange, receive, send,
    tap::{
        ACK, FIN, RST, SYN, TCP, Tap, address, arp, ip, machine, packet, set_sum, tcp,
        tcp_with_window, transport,
    },
};
use net::{
    Family, Stack,
    link::bad::GOOD,
    tcp::{Options, Phase, Socket, State},
};
use nucleus::{
    frame,
    sim::{Random, on_machines},
    task::{self, Sleep},
    time,
};

/// Connections of a machine in several states, with the numbers that the peer would use.
fn connections(stack: &Stack, tap: &Tap, family: Family) -> Vec<(Arc<Socket>, u16, u32, u32)> {
    let here = SocketAddr::new(address(family, 2), 80);
    let listener = stack.tcp_socket(family, Options::default());
    listener.bind(here).unwrap();
    listener.listen(100).unwrap();
    let mut made = Vec::new();
    for port in 1000..1006 {
        let there = SocketAddr::new(address(family, 100), port);
        let start = 5000;
        stack.receive(2, packet(&tcp((there, here), start, 0, SYN, &[])));
        let sent = tap.take();
        let (answer, _) = transport(&sent[0]).unwrap();
        assert_eq!(answer[13], SYN | ACK);
        let theirs = u32::from_be_bytes(answer[4..8].try_into().unwrap()) + 1;
        let ends = (there, here);
        let mut next = start + 1;
        if port > 1000 {
            stack.receive(2, packet(&tcp(ends, next, theirs, ACK, &[])));
        }
        if port == 1002 {
            stack.receive(2, packet(&tcp(ends, next, theirs, ACK | FIN, &[])));
            next += 1;
        }
        let socket = match port {
            1000 => listener.clone(),
            _ => listener.accept().unwrap(),
        };
        match port {
            1003 => socket.shut(false, true).unwrap(),
            1004 => assert_eq!(send(&socket, &[7; 4000]), Ok(4000)),
            _ => {}
        }
        made.push((socket, port, next, theirs));
        tap.take();
    }
    made
}

/// Checks that the RFCs allow `answer` to `cause`.
fn check(answer: &[u8], cause: &[u8]) {
    let Some((there, number)) = transport(answer) else {
        return;
    };
    let v4 = answer[12] == 8;
    let to: &[u8] = if v4 { &answer[30..34] } else { &answer[38..54] };
    let is_discovery = !v4 && number == 58 && there[0] >= 135;
    let Some((here, cause_number)) = transport(cause) else {
        assert!(is_discovery, "an answer to no packet of IP: {answer:?}");
        return;
    };
    if v4 {
        assert!(to[0] < 224 && to != [10, 1, 0, 255], "an answer to many");
        assert!(
            cause[30..34] == [10, 1, 0, 2],
            "an answer to what is not ours alone"
        );
    } else if !is_discovery {
        assert!(to[0] != 0xff);
        let is_ours = cause[38] == 0xfd;
        assert!(is_ours, "{answer:x?} answers {cause:x?}, not ours alone");
    }
    let is_reset = number == TCP && there[13] & RST != 0;
    if is_reset && cause_number == TCP && here.len() >= 20 {
        assert!(here[13] & RST == 0, "a reset answers a reset");
    }
    let is_error = match number {
        1 => [3, 11, 12].contains(&there[0]),
        58 => there[0] < 128,
        _ => false,
    };
    if is_error && !here.is_empty() {
        assert!(cause_number != 1 || ![3, 4, 5, 11, 12].contains(&here[0]));
        assert!(
            cause_number != 58 || here[0] >= 128,
            "an error about an error"
        );
    }
}

/// A packet with random fields, many of which have values that matter.
fn random_packet(
    random: &mut Random,
    known: &[(Arc<Socket>, u16, u32, u32)],
    family: Family,
) -> Vec<u8> {
    let odd = random.below(12) == 0;
    let from = match (odd, family) {
        (true, Family::V4) => Ipv4Addr::from(random.below(1 << 32) as u32).into(),
        _ => address(family, [100, 100, 101, 102, 2, 255][random.below(6)]),
    };
    let to = match (random.below(30), family) {
        (0, Family::V4) => Ipv4Addr::BROADCAST.into(),
        (1, Family::V4) => Ipv4Addr::new(10, 1, 0, 255).into(),
        (2, Family::V4) => Ipv4Addr::new(224, 0, 0, 1).into(),
        (3, Family::V4) => Ipv4Addr::LOCALHOST.into(),
        (0, Family::V6) => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into(),
        (4, _) => address(family, 9),
        _ => address(family, 2),
    };
    let ips = (from, to);
    let protocol = match random.below(10) {
        0 => random.below(256) as u8,
        1 => 17,
        2 => {
            if family == Family::V4 {
                1
            } else {
                58
            }
        }
        _ => TCP,
    };
    let mut payload: Vec<u8> = (0..random.below(90))
        .map(|_| random.below(256) as u8)
        .collect();
    if protocol == TCP && random.below(20) > 0 {
        let (_, port, next, ack) = &known[random.below(known.len())];
        let near = |random: &mut Random, number: u32| match random.below(6) {
            0 => random.below(1 << 32) as u32,
            1 | 2 => number
                .wrapping_add(random.below(70_000) as u32)
                .wrapping_sub(3000),
            _ => number,
        };
        let mut header = match random.below(8) {
            0 => (random.below(1 << 16) as u16).to_be_bytes(),
            _ => port.to_be_bytes(),
        }
        .to_vec();
        header.extend(80u16.to_be_bytes());
        header.extend(near(random, *next).to_be_bytes());
        header.extend(near(random, *ack).to_be_bytes());
        // Resets end what the other packets are to meet.
        let mut flags = random.below(64) as u8;
        if random.below(20) > 0 {
            flags = flags & !RST | ACK;
        }
        let options = random.below(11) as u8;
        header.extend([(5 + options) << 4, flags]);
        header.extend((random.below(1 << 16) as u16).to_be_bytes());
        header.extend([0, 0, 0, random.below(256) as u8]);
        let mut list = Vec::new();
        while list.len() < usize::from(options) * 4 {
            match random.below(5) {
                0 => list.extend([1]),
                1 => list.extend([8, 10, 0, 0, 0, random.below(256) as u8, 0, 0, 0, 9]),
                2 => {
                    list.extend([5, 10]);
                    list.extend(near(random, *ack).to_be_bytes());
                    list.extend(near(random, *ack).to_be_bytes());
                }
                3 => list.extend([
                    2,
                    4,
                    random.below(256) as u8,
                    9,
                    3,
                    3,
                    random.below(20) as u8,
                ]),
                _ => list.extend([random.below(256) as u8, random.below(9) as u8]),
            }
        }
        header.extend(&list[..usize::from(options) * 4]);
        header.extend(&payload);
        payload = header;
    }
    let at = match protocol {
        TCP => 16,
        17 => 6,
        _ => 2,
    };
    if payload.len() >= at + 2 && random.below(50) > 0 {
        set_sum(ips, protocol, &mut payload, at);
    }
    let mut bytes = ip(ips, protocol, &payload, |header| {
        if random.below(12) == 0 {
            let at = random.below(header.len().min(12));
            header[at] = random.below(256) as u8;
        }
    });
    if random.below(30) == 0 {
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
    }
    if random.below(40) == 0 {
        bytes.truncate(random.below(bytes.len()));
    }
    bytes
}

#[test]
fn random_packets_are_survived() {
    survive(1);
}

/// A million packets in which every field is random.
#[test]
#[ignore = "takes a minute and a half"]
fn a_million_random_packets_are_survived() {
    survive(20);
}

/// Receives 50,000 random packets `times` times.
fn survive(times: usize) {
    on_machines(10, move |seed| {
        let mut random = Random::new(seed);
        let free = frame::usage().free;
        let family = [Family::V4, Family::V6][seed as usize % 2];
        for _ in 0..times {
            let (stack, tap) = machine();
            let known = connections(&stack, &tap, family);
            for n in 0..5000 {
                let bytes = random_packet(&mut random, &known, family);
                stack.receive(2, packet(&bytes));
                let answers = tap.take();
                // Data that waits, an acknowledgement, and what an unknown neighbour is asked.
                assert!(answers.len() <= 16, "{} answers", answers.len());
                for answer in answers {
                    // What waited for a neighbour may go with its message.
                    if bytes.len() > 54 && transport(&bytes).is_some_and(|(_, n)| n != 58) {
                        check(&answer, &bytes);
                    }
                }
                if n % 500 == 0 {
                    stack.run_timers();
                    for (socket, ..) in &known {
                        let _ = receive(socket, 1000);
                    }
                    tap.take();
                }
            }
            assert!(stack.network().incomplete() <= 64);
            for (socket, ..) in known {
                socket.close(true);
            }
            let embryos = stack.tcp_sockets().unwrap();
            assert!(embryos.into_iter().all(|entry| entry.socket.is_none()));
        }
        assert_eq!(frame::usage().free, free, "frames are lost");
    });
}

/// What strangers send in masses takes bounded memory, and an established connection goes on.
#[test]
fn floods_leave_established_connections_alone() {
    on_machines(3, |seed| {
        let mut random = Random::new(seed);
        let pair = Pair::new(seed, GOOD, 1500);
        let ends = pair.connect(Family::V4, Options::default());
        let server = SocketAddr::new(address(Family::V4, 2), 81);
        let listener = pair.stacks[1].tcp_socket(Family::V4, Options::default());
        listener.bind(server).unwrap();
        listener.listen(500).unwrap();
        let victim = address(Family::V4, 2);
        let before = frame::usage().free;
        let mut flooded = 0;
        exchange(
            &ends,
            [300_000, 300_000],
            &mut Random::new(seed + 99),
            || {
                for _ in 0..200 {
                    flooded += 1;
                    let stranger = Ipv4Addr::new(10, 1, 0, 3 + random.below(250) as u8);
                    let port = 1 + random.below(65_535) as u16;
                    let there = SocketAddr::new(stranger.into(), port);
                    let bytes = match flooded % 4 {
                        0 => tcp((there, server), random.below(1 << 32) as u32, 0, SYN, &[]),
                        1 => {
                            let ident = random.below(1 << 16) as u16;
                            let place = 0x2000 | random.below(100) as u16;
                            ip((stranger.into(), victim), 17, &[9; 64], |header| {
                                header[4..6].copy_from_slice(&ident.to_be_bytes());
                                header[6..8].copy_from_slice(&place.to_be_bytes());
                            })
                        }
                        2 => {
                            let ips = (stranger.into(), victim);
                            let mut echo = vec![8, 0, 0, 0, 1, 2, 3, 4];
                            echo.resize(1400, 9);
                            set_sum(ips, 1, &mut echo, 2);
                            ip(ips, 1, &echo, |_| {})
                        }
                        _ => arp(
                            Ipv4Addr::from(random.below(1 << 32) as u32),
                            Ipv4Addr::new(10, 1, 0, 2),
                            1,
                        ),
                    };
                    pair.stacks[1].receive(2, packet(&bytes));
                }
                let network = pair.stacks[1].network();
                assert!(network.incomplete() <= 64);
                assert!(network.interface(2).unwrap().neighbours() <= 256);
                let sockets = pair.stacks[1].tcp_sockets().unwrap();
                assert!(sockets.len() <= 256 + 3, "{} handshakes", sockets.len());
                let held = before.saturating_sub(frame::usage().free);
                assert!(held < 3000, "{held} frames");
                pair.run(5 * common::MS);
            },
        );
        assert!(flooded > 3000);
        // A newcomer is let in although nothing can be kept of its SYN.
        let client = pair.stacks[0].tcp_socket(Family::V4, Options::default());
        client.connect(server).unwrap();
        let mut accepted = None;
        pair.run_until(|| {
            accepted = accepted.take().or_else(|| listener.accept().ok());
            accepted.is_some()
        });
        assert_eq!(client.phase(), Phase::Connected);
        let newcomers = [client, accepted.unwrap()];
        exchange(&newcomers, [50_000, 50_000], &mut random, || {
            pair.run(5 * common::MS)
        });
        for socket in newcomers.iter().chain(&ends) {
            socket.close(false);
        }
        listener.close(false);
        pair.run_until(|| pair.is_quiet());
    });
}

/// A machine at a tap with a listener.
fn listening() -> (Stack, Arc<Tap>, Arc<Socket>) {
    let (stack, tap) = machine();
    let listener = stack.tcp_socket(Family::V4, Options::default());
    listener.bind(ends().1).unwrap();
    listener.listen(20).unwrap();
    (stack, tap, listener)
}

/// A neighbour's address, and that of the listener.
fn ends() -> (SocketAddr, SocketAddr) {
    (
        SocketAddr::new(address(Family::V4, 100), 1000),
        SocketAddr::new(address(Family::V4, 2), 80),
    )
}

/// Opens a connection from a port of a neighbour's, with this window; returns it, and the numbers
/// that come next from there and from here.
fn open(
    stack: &Stack,
    tap: &Tap,
    listener: &Arc<Socket>,
    port: u16,
    window: u16,
) -> (Arc<Socket>, u32, u32) {
    let here = SocketAddr::new(address(Family::V4, 2), 80);
    let there = SocketAddr::new(address(Family::V4, 100), port);
    stack.receive(2, packet(&tcp((there, here), 5000, 0, SYN, &[])));
    let sent = tap.take();
    let (answer, _) = transport(sent.last().unwrap()).unwrap();
    let ours = u32::from_be_bytes(answer[4..8].try_into().unwrap()) + 1;
    let ack = tcp_with_window((there, here), 5001, ours, (ACK, window), &[]);
    stack.receive(2, packet(&ack));
    (listener.accept().unwrap(), 5001, ours)
}

/// Peers that take nothing of what they are sent hold no more than the buffers of their
/// connections, are asked less and less often, and are given up when they are silent; another
/// connection goes on meanwhile.
#[test]
fn closed_windows_hold_buffers_and_stop_no_others() {
    const HOSTILE: u16 = 20;
    on_machines(2, |_| {
        let free = frame::usage().free;
        let (stack, tap) = machine();
        let here = SocketAddr::new(address(Family::V4, 2), 80);
        let listener = stack.tcp_socket(Family::V4, Options::default());
        listener.bind(here).unwrap();
        listener.listen(10).unwrap();
        let (honest, theirs, ours) = open(&stack, &tap, &listener, 999, 8192);
        let mut all = Vec::new();
        let mut held = 0;
        for port in 0..HOSTILE {
            let (socket, ..) = open(&stack, &tap, &listener, 1000 + port, 0);
            while let Ok(n) = send(&socket, &[7; 4000]) {
                held += n;
            }
            all.push(socket);
        }
        let buffer = Options::default().send_buffer as usize;
        assert!(held <= usize::from(HOSTILE) * 2 * buffer, "{held} bytes");
        let frames = free - frame::usage().free;
        assert!(frames < 2 * held / 4096 + 1000, "{frames} frames");
        tap.take();
        let there = SocketAddr::new(address(Family::V4, 100), 999);
        let segment = tcp((there, here), theirs, ours, ACK, b"hello");
        stack.receive(2, packet(&segment));
        assert_eq!(receive(&honest, 100).as_deref(), Ok(&b"hello"[..]));
        assert_eq!(send(&honest, b"back"), Ok(4));
        let sent = tap.take();
        assert!(
            sent.iter().any(|bytes| bytes.ends_with(b"back")),
            "{sent:?}"
        );
        let thanks = tcp((there, here), theirs + 5, ours + 4, ACK, &[]);
        stack.receive(2, packet(&thanks));
        let start = time::since_boot();
        let mut asked = 0;
        while let Some(due) = stack.run_timers() {
            assert!(time::since_boot() - start < Duration::from_secs(4000));
            asked += tap.take().len();
            task::sleep(Sleep {
                interruptible: false,
                deadline: Some(due),
            });
        }
        let is_over = |socket: &Arc<Socket>| socket.state() == State::Closed;
        assert!(all.iter().all(is_over) && !is_over(&honest));
        assert!(asked < 20 * usize::from(HOSTILE), "{asked} probes");
        for socket in all.iter().chain([&honest, &listener]) {
            socket.close(true);
        }
        drop((all, honest, listener, stack));
        assert_eq!(frame::usage().free, free, "frames are lost");
    });
}

/// The number that answers a SYN from a neighbour's port.
fn ask(stack: &Stack, tap: &Tap, port: u16, seq: u32) -> u32 {
    let here = SocketAddr::new(address(Family::V4, 2), 80);
    let there = SocketAddr::new(address(Family::V4, 100), port);
    stack.receive(2, packet(&tcp((there, here), seq, 0, SYN, &[])));
    let sent = tap.take();
    let (answer, _) = transport(sent.last().unwrap()).unwrap();
    assert_eq!(answer[13], SYN | ACK);
    u32::from_be_bytes(answer[4..8].try_into().unwrap()) + 1
}

/// Connections that send nothing are withheld from their listener (`TCP_DEFER_ACCEPT`), but no more
/// of them than of other handshakes: those confirmed by cookies count against the backlog.
#[test]
fn silent_connections_are_no_more_than_the_backlog() {
    on_machines(1, |_| {
        let (stack, tap) = machine();
        let here = SocketAddr::new(address(Family::V4, 2), 80);
        let options = Options {
            defer_accept: 1000,
            ..Options::default()
        };
        let listener = stack.tcp_socket(Family::V4, options);
        listener.bind(here).unwrap();
        listener.listen(20).unwrap();
        for port in 1000..2000 {
            let there = SocketAddr::new(address(Family::V4, 100), port);
            stack.receive(2, packet(&tcp((there, here), 5000, 0, SYN, &[])));
            let sent = tap.take();
            let Some(answer) = sent.last() else { continue };
            let (answer, _) = transport(answer).unwrap();
            let ours = u32::from_be_bytes(answer[4..8].try_into().unwrap()) + 1;
            stack.receive(2, packet(&tcp((there, here), 5001, ours, ACK, &[])));
            tap.take();
        }
        let sockets = stack.tcp_sockets().unwrap().len();
        assert!(sockets <= 1 + 2 * 22, "{sockets} sockets");
        listener.close(true);
        assert!(stack.tcp_sockets().unwrap().is_empty());
    });
}

/// Where memory is scarce, no more is kept of a handshake that a cookie confirms than of a SYN: it
/// counts as lost, and is taken when there is memory.
#[test]
fn a_confirmed_cookie_waits_for_memory() {
    on_machines(1, |_| {
        let (stack, tap, listener) = listening();
        let (there, here) = ends();
        frame::seem_scarce_after(Some(0));
        let ours = ask(&stack, &tap, 1000, 5000);
        let confirms = tcp((there, here), 5001, ours, ACK, &[]);
        stack.receive(2, packet(&confirms));
        frame::seem_scarce_after(None);
        assert_eq!(stack.tcp_sockets().unwrap().len(), 1, "the listener");
        assert!(tap.take().is_empty(), "it counts as lost");
        stack.receive(2, packet(&confirms));
        assert_eq!(listener.accept().unwrap().phase(), Phase::Connected);
        listener.close(true);
    });
}

/// A client that uses a port again which is in TIME-WAIT here is let in by a cookie, too.
#[test]
fn a_cookie_ends_time_wait() {
    on_machines(1, |_| {
        let (stack, tap, listener) = listening();
        let (there, here) = ends();
        let (first, theirs, ours) = open(&stack, &tap, &listener, 1000, 8192);
        first.close(false);
        let end = tcp((there, here), theirs, ours + 1, ACK | FIN, &[]);
        stack.receive(2, packet(&end));
        tap.take();
        let states = || stack.tcp_sockets().unwrap().into_iter().map(|it| it.state);
        assert!(states().any(|state| state == Some(State::TimeWait)));
        frame::seem_scarce_after(Some(0));
        let ours = ask(&stack, &tap, 1000, 9000);
        frame::seem_scarce_after(None);
        let confirms = tcp((there, here), 9001, ours, ACK, &[]);
        stack.receive(2, packet(&confirms));
        assert_eq!(listener.accept().unwrap().phase(), Phase::Connected);
        listener.close(true);
    });
}

/// A peer that sends byte by byte to a program that is busy stops for nothing but its window: the
/// bytes share frames.
#[test]
fn single_bytes_fill_a_window_and_few_frames() {
    on_machines(1, |_| {
        let (stack, tap, listener) = listening();
        let (there, here) = ends();
        let (socket, theirs, ours) = open(&stack, &tap, &listener, 1000, 8192);
        let free = frame::usage().free;
        for at in 0..6000 {
            let byte = tcp((there, here), theirs + at, ours, ACK, &[at as u8]);
            stack.receive(2, packet(&byte));
            tap.take();
        }
        let held = free - frame::usage().free;
        assert!(held < 500, "{held} frames");
        let mut got = Vec::new();
        while let Ok(bytes) = receive(&socket, 1000) {
            got.extend(bytes);
        }
        assert_eq!(got.len(), 6000);
        assert!((0..6000u32).zip(&got).all(|(at, byte)| at as u8 == *byte));
        socket.close(true);
        listener.close(true);
    });
}

/// A program that changes the size of its send buffer does not get more of it: what is on its way
/// counts as before.
#[test]
fn a_new_buffer_size_forgives_nothing() {
    on_machines(1, |_| {
        let (stack, tap, listener) = listening();
        let (there, here) = ends();
        let (socket, theirs, ours) = open(&stack, &tap, &listener, 1000, 8192);
        assert_eq!(send(&socket, &[7; 20_000]), Ok(20_000));
        assert_eq!(socket.summary().unsent, 20_000);
        for size in [4_000, 100_000, 1_000, 30_000] {
            socket.set_options(|options| options.send_buffer = size);
            assert_eq!(socket.summary().unsent, 20_000, "{size} bytes of buffer");
        }
        let taken = send(&socket, &[7; 100_000]).unwrap();
        assert!(taken <= 10_000, "{taken} bytes more");
        let on_its_way = tap
            .take()
            .iter()
            .map(|bytes| bytes.len() - 54)
            .sum::<usize>();
        let ack = tcp((there, here), theirs, ours + on_its_way as u32, ACK, &[]);
        stack.receive(2, packet(&ack));
        let left = 20_000 + taken - on_its_way;
        assert_eq!(socket.summary().unsent, left);
        socket.close(true);
        listener.close(true);
    });
}
