//! Connections on the simulated machine: names, handshakes, ends, and streams compared with plain
//! bytes.

use std::{
    collections::VecDeque,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use abi::Errno;
use fbuf::{Aggregate, AggregateSource, BytesSink, BytesSource, Slice};
use net::{
    Family, Stack,
    stream::Read,
    tcp::{Options, Phase, Progress, Socket, State},
};
use nucleus::{
    Frame,
    frame::{self, Contents},
    sim::{Random, Together, on_machines},
};

fn v4(last: u8, port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(127, 0, 0, last).into(), port)
}

fn v6(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port)
}

fn socket(stack: &Stack, family: Family) -> Arc<Socket> {
    stack.tcp_socket(family, Options::default())
}

fn listener(stack: &Stack, at: SocketAddr, backlog: usize) -> Arc<Socket> {
    let socket = socket(stack, Family::of(at.ip()));
    socket.bind(at).unwrap();
    socket.listen(backlog).unwrap();
    socket
}

/// A connection: the end that asked, and its peer.
fn pair(stack: &Stack, at: SocketAddr) -> (Arc<Socket>, Arc<Socket>) {
    let listener = listener(stack, at, 1);
    let to = listener.summary().local.unwrap();
    let client = socket(stack, Family::of(at.ip()));
    assert_eq!(client.connect(to), Ok(Progress::Begun));
    assert_eq!(client.progress(), Ok(Some(Progress::Done)));
    let server = listener.accept().unwrap();
    listener.close(false);
    (client, server)
}

fn receive(socket: &Socket, max: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; max];
    let mut sink = BytesSink::new(&mut buffer);
    let n = socket.receive(&mut sink, max, Read::default())?;
    buffer.truncate(n);
    Ok(buffer)
}

fn send(socket: &Socket, bytes: &[u8]) -> Result<usize, Errno> {
    socket.send(&mut BytesSource::new(bytes))
}

#[test]
fn a_connection_from_its_beginning_to_its_end() {
    on_machines(3, |_| {
        let stack = Stack::new();
        for at in [v4(1, 0), v4(77, 0), v6(0)] {
            let (client, server) = pair(&stack, at);
            assert_eq!(client.summary().remote, server.summary().local);
            assert_eq!(client.summary().local, server.summary().remote);
            assert_eq!(receive(&server, 10), Err(Errno::EAGAIN));
            assert_eq!(send(&client, b"hello"), Ok(5));
            assert!(server.readiness().readable && server.readiness().writable);
            assert_eq!(receive(&server, 10).unwrap(), b"hello");
            assert!(!server.readiness().readable);
            send(&server, b"bye").unwrap();
            server.shut(false, true).unwrap();
            assert_eq!(server.state(), State::FinWait2);
            assert_eq!(client.state(), State::CloseWait);
            assert_eq!(send(&server, b"x"), Err(Errno::EPIPE));
            assert!(client.readiness().read_hung_up && !client.readiness().hung_up);
            assert_eq!(receive(&client, 10).unwrap(), b"bye");
            assert_eq!(receive(&client, 10).unwrap(), b"");
            // The other direction is still open.
            send(&client, b"more").unwrap();
            assert_eq!(receive(&server, 10).unwrap(), b"more");
            client.shut(true, true).unwrap();
            assert_eq!(receive(&server, 10).unwrap(), b"");
            assert!(server.readiness().hung_up && client.readiness().hung_up);
            client.close(false);
            server.close(false);
        }
    });
}

#[test]
fn resets_and_refusals() {
    on_machines(3, |_| {
        let stack = Stack::new();
        let client = socket(&stack, Family::V4);
        assert_eq!(client.connect(v4(1, 9)), Ok(Progress::Begun));
        assert_eq!(client.progress(), Err(Errno::ECONNREFUSED));
        assert_eq!(client.phase(), Phase::Idle);
        client.close(false);
        let far = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), 9);
        let client = socket(&stack, Family::V4);
        assert_eq!(client.connect(far), Err(Errno::ENETUNREACH));
        client.close(false);

        // Unread bytes turn the end into a reset.
        let (client, server) = pair(&stack, v4(1, 0));
        send(&client, b"unread").unwrap();
        send(&server, b"read first").unwrap();
        server.close(false);
        assert_eq!(receive(&client, 20).unwrap(), b"read first");
        assert_eq!(receive(&client, 20), Err(Errno::ECONNRESET));
        assert_eq!(receive(&client, 20).unwrap(), b"");
        assert_eq!(send(&client, b"x"), Err(Errno::EPIPE));
        client.close(false);

        // Sending to a closed peer works once, then fails.
        let (client, server) = pair(&stack, v4(1, 0));
        server.close(false);
        assert_eq!(send(&client, b"x"), Ok(1));
        assert_eq!(send(&client, b"x"), Err(Errno::EPIPE));
        assert_eq!(receive(&client, 1).unwrap(), b"");
        client.close(false);

        let (client, server) = pair(&stack, v6(0));
        client.close(true);
        assert_eq!(receive(&server, 1), Err(Errno::ECONNRESET));
        server.close(false);
        // After a reset the port is free at once.
        let (client, server) = pair(&stack, v4(1, 80));
        server.close(true);
        client.close(false);
        let (client, server) = pair(&stack, v4(1, 80));
        server.close(false);
        client.close(false);
        // The end that closed first remembers it.
        let again = socket(&stack, Family::V4);
        assert_eq!(again.bind(v4(1, 80)), Err(Errno::EADDRINUSE));
        again.set_options(|options| options.name.reuse_address = true);
        assert_eq!(again.bind(v4(1, 80)), Err(Errno::EADDRINUSE));
        again.close(false);
    });
}

#[test]
fn a_full_backlog_delays_a_connection() {
    on_machines(2, |_| {
        let stack = Stack::new();
        let server = listener(&stack, v4(1, 0), 0);
        let to = server.summary().local.unwrap();
        let first = socket(&stack, Family::V4);
        first.connect(to).unwrap();
        assert_eq!(first.phase(), Phase::Connected);
        let second = socket(&stack, Family::V4);
        second.connect(to).unwrap();
        assert_eq!(second.progress(), Ok(Some(Progress::Pending)));
        let accepted = server.accept().unwrap();
        assert_eq!(server.accept().err(), Some(Errno::EAGAIN));
        // The segment is repeated when its time has come.
        while second.phase() == Phase::Connecting {
            let due = stack.run_timers();
            if second.phase() == Phase::Connecting {
                nucleus::task::sleep(nucleus::task::Sleep {
                    interruptible: false,
                    deadline: Some(due.expect("something to repeat")),
                });
            }
        }
        let late = server.accept().unwrap();
        for socket in [first, second, accepted, late, server] {
            socket.close(true);
        }
    });
}

/// The mark of an urgent byte in line points at that byte, whatever others send meanwhile.
#[test]
fn the_mark_stands_at_the_urgent_byte() {
    on_machines(12, |_| {
        let stack = Stack::new();
        let (client, server) = pair(&stack, v4(1, 0));
        server.set_options(|options| options.urgent_in_line = true);
        let all = Arc::new(Together::default());
        let other = client.clone();
        all.spawn(move || (0..40).for_each(|_| assert_eq!(send(&other, b"x"), Ok(1))));
        let urgent = client.clone();
        all.spawn(move || (0..20).for_each(|_| urgent.send_urgent(b'U').unwrap()));
        let (mut left, mut seen) = (60, 0);
        while left > 0 {
            let (is_at_mark, max) = match server.is_at_mark() {
                true => (true, 1),
                false => (false, left),
            };
            match receive(&server, max) {
                Ok(got) => {
                    assert!(!is_at_mark || got == b"U", "the mark is at {got:?}");
                    seen += usize::from(is_at_mark);
                    left -= got.len();
                }
                Err(error) => {
                    assert_eq!(error, Errno::EAGAIN);
                    nucleus::task::yield_now();
                }
            }
        }
        all.join();
        assert!(seen > 0);
        client.close(false);
        server.close(false);
    });
}

/// Both directions of a connection, driven at random and compared with queues of bytes.
#[test]
fn streams_carry_what_was_sent() {
    on_machines(12, |seed| {
        let stack = Stack::new();
        let mut random = Random::new(seed);
        for _ in 0..4 {
            let (a, b) = pair(&stack, if seed % 2 == 0 { v4(1, 0) } else { v6(0) });
            let ends = [a, b];
            let mut model: [VecDeque<u8>; 2] = Default::default();
            let mut finished = [false; 2];
            let mut next = 0u8;
            for _ in 0..300 {
                let from = random.below(2);
                let to = 1 - from;
                match random.below(20) {
                    0..=8 => {
                        let big = random.below(8) == 0;
                        let n = random.below(if big { 200_000 } else { 900 });
                        let bytes: Vec<u8> = (0..n)
                            .map(|_| {
                                next = next.wrapping_add(1);
                                next
                            })
                            .collect();
                        match send(&ends[from], &bytes) {
                            Ok(sent) => {
                                assert!(!finished[from] || n == 0);
                                model[from].extend(&bytes[..sent]);
                            }
                            Err(Errno::EPIPE) => assert!(finished[from]),
                            Err(Errno::EAGAIN) => assert!(model[from].len() >= 200_000),
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    9..=18 => {
                        let big = random.below(4) == 0;
                        let max = 1 + random.below(if big { 100_000 } else { 900 });
                        match receive(&ends[to], max) {
                            Ok(got) => {
                                let n = max.min(model[from].len());
                                assert_eq!(got.len(), n, "all that is there");
                                let want: Vec<u8> = model[from].drain(..n).collect();
                                assert!(got == want, "other bytes than were sent");
                                assert!(n > 0 || finished[from]);
                            }
                            Err(Errno::EAGAIN) => {
                                assert!(model[from].is_empty() && !finished[from]);
                            }
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    _ if random.below(20) == 0 => {
                        let again = finished[0] && finished[1];
                        let shut = ends[from].shut(false, true);
                        assert_eq!(shut, if again { Err(Errno::ENOTCONN) } else { Ok(()) });
                        finished[from] = true;
                    }
                    _ => {}
                }
                for (end, connection) in ends.iter().enumerate() {
                    let ready = connection.readiness();
                    let other = 1 - end;
                    assert_eq!(
                        ready.readable,
                        !model[other].is_empty() || finished[other],
                        "readiness"
                    );
                }
            }
            let [a, b] = ends;
            a.close(false);
            b.close(false);
        }
    });
}

/// Pieces of pages that were passed on hold their frames: a stream takes no more of them than twice
/// the pages of its limit, and more again when some were read.
#[test]
fn passed_slices_are_limited_like_their_frames() {
    on_machines(1, |_| {
        let stack = Stack::new();
        let (a, b) = pair(&stack, v4(1, 0));
        let piece = || {
            let frame = Frame::alloc(Contents::Zeroed).unwrap();
            Slice::part(&frame, 0, 1)
        };
        let send = || {
            let mut slices = Aggregate::new();
            slices.append(piece()).unwrap();
            a.send(&mut AggregateSource::new(&mut slices, 1))
        };
        let free = frame::usage().free;
        let sent = (0..).take_while(|_| send().is_ok()).count();
        let held = free - frame::usage().free;
        assert_eq!(sent, 128, "two for each page of 256 KiB");
        assert!(held <= sent + sent / 8, "{held} frames for {sent} bytes");
        assert!(!a.readiness().writable);
        assert_eq!(receive(&b, sent - 1).unwrap().len(), sent - 1);
        assert!(a.readiness().writable && send().is_ok());
        a.close(false);
        b.close(false);
    });
}
