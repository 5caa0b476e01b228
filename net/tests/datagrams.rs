//! Datagram sockets on the simulated machine: UDP, UDP-Lite and raw ones share one implementation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::Errno;
use fbuf::{BytesSink, BytesSource};
use net::{
    Family, Stack,
    datagram::{Datagram, Filter, Options, Protocol, SendOptions, Socket},
    ip::ICMP,
};
use nucleus::{
    frame,
    sim::{Random, on_machines},
};

fn at(family: Family, port: u16) -> SocketAddr {
    let ip: IpAddr = match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, port)
}

fn to(to: Option<SocketAddr>) -> SendOptions {
    SendOptions {
        to,
        from: None,
        service: 0,
        hops: 64,
        interface: 0,
    }
}

fn send(
    socket: &std::sync::Arc<Socket>,
    peer: Option<SocketAddr>,
    bytes: &[u8],
) -> Result<usize, Errno> {
    socket.send(&mut BytesSource::new(bytes), to(peer))
}

fn bytes(mut datagram: Datagram) -> Vec<u8> {
    let mut buffer = vec![0; datagram.data.len()];
    let len = buffer.len();
    let mut sink = BytesSink::new(&mut buffer);
    assert_eq!(datagram.data.drain_into(&mut sink, len), Ok(len));
    buffer
}

#[test]
fn datagrams_arrive_whole_and_in_order() {
    on_machines(6, |seed| {
        let stack = Stack::new();
        let mut random = Random::new(seed);
        for protocol in [Protocol::Udp, Protocol::UdpLite] {
            for family in [Family::V4, Family::V6] {
                let socket = || stack.datagram_socket(family, protocol, Options::default());
                let (a, b) = (socket(), socket());
                assert_eq!(b.bind(at(family, 99)), Ok(()));
                assert_eq!(b.bind(at(family, 98)), Err(Errno::EINVAL));
                assert_eq!(send(&a, None, b"x"), Err(Errno::EDESTADDRREQ));
                assert_eq!(a.connect(at(family, 99)), Ok(()));
                let sent: Vec<Vec<u8>> = (0..8u8).map(|n| vec![n; random.below(9000)]).collect();
                for data in &sent {
                    assert_eq!(send(&a, None, data), Ok(data.len()));
                }
                let first = b.receive(true).unwrap().unwrap();
                assert_eq!(Some(first.from), a.local());
                for data in &sent {
                    assert_eq!(&bytes(b.receive(false).unwrap().unwrap()), data);
                }
                assert_eq!(b.receive(false).err(), Some(Errno::EAGAIN));
                b.close();
                assert_eq!(send(&a, None, b"lost"), Ok(4));
                assert!(a.readiness().error);
                assert_eq!(a.receive(false).err(), Some(Errno::ECONNREFUSED));
                a.close();
            }
        }
    });
}

#[test]
fn a_full_queue_drops() {
    on_machines(2, |_| {
        let stack = Stack::new();
        let options = Options {
            receive_buffer: 3000,
            ..Options::default()
        };
        for protocol in [Protocol::Udp, Protocol::Raw(200)] {
            let socket = stack.datagram_socket(Family::V4, protocol, options);
            socket.bind(at(Family::V4, 7)).unwrap();
            for _ in 0..5 {
                send(&socket, Some(at(Family::V4, 7)), &[1; 500]).unwrap();
            }
            let summary = socket.summary();
            assert_eq!((summary.unread / 500, summary.dropped), (2, 3));
            socket.shut(true, true).unwrap_err();
            assert!(socket.readiness().hung_up);
            assert_eq!(send(&socket, None, b"x"), Err(Errno::EDESTADDRREQ));
            let to = Some(at(Family::V4, 7));
            assert_eq!(send(&socket, to, b"x"), Err(Errno::EPIPE));
            socket.close();
        }
    });
}

#[test]
fn raw_sockets_get_echoes_unless_filtered() {
    on_machines(2, |_| {
        let stack = Stack::new();
        let raw = || stack.datagram_socket(Family::V4, Protocol::Raw(ICMP), Options::default());
        let (ping, deaf) = (raw(), raw());
        let mut filter = Filter::default();
        filter.0[0] = 1 << 8;
        ping.set_filter(filter);
        deaf.connect(SocketAddr::new(Ipv4Addr::new(127, 0, 0, 9).into(), 0))
            .unwrap();
        // An echo request, its checksum, and an identifier.
        let mut request = [8, 0, 0xf7, 0xfe, 0, 1, 0, 0];
        assert_eq!(send(&ping, Some(at(Family::V4, 0)), &request), Ok(8));
        request[0] = 0;
        request[2] = 0xff;
        let reply = bytes(ping.receive(false).unwrap().unwrap());
        assert_eq!(reply[20..], request);
        assert_eq!(ping.receive(false).err(), Some(Errno::EAGAIN));
        assert_eq!(deaf.receive(false).err(), Some(Errno::EAGAIN));
        assert_eq!(stack.datagram_sockets(Protocol::Raw(0)).unwrap().len(), 2);
        ping.close();
        deaf.close();
        assert!(stack.datagram_sockets(Protocol::Raw(0)).unwrap().is_empty());
    });
}

/// Reports of datagrams that found no receiver hold no more than the receive buffer has room for.
#[test]
fn reports_are_limited_by_the_receive_buffer() {
    on_machines(2, |_| {
        let stack = Stack::new();
        let options = Options {
            receive_errors: true,
            ..Options::default()
        };
        let before = frame::usage().free;
        let socket = stack.datagram_socket(Family::V4, Protocol::Udp, options);
        socket.bind(at(Family::V4, 7)).unwrap();
        let closed = Some(at(Family::V4, 9));
        let mut refused = 0;
        for _ in 0..100 {
            match send(&socket, closed, &[1; 60_000]) {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error, Errno::ECONNREFUSED);
                    refused += 1;
                }
            }
        }
        assert!(refused >= 49, "{refused} errors");
        let held = before - frame::usage().free;
        let most = options.receive_buffer / 4096 + 32;
        assert!(held <= most, "{held} frames, {most} fit in the buffer");
        // Datagrams have no room while reports fill the buffer, and have it again later.
        let mut reports = 0;
        while let Some(report) = socket.take_report() {
            assert_eq!(
                (report.error, report.data.len()),
                (Errno::ECONNREFUSED, 60_000)
            );
            reports += 1;
        }
        assert!(reports >= 3, "{reports} reports");
        assert_eq!(socket.take_error(), None);
        for _ in 0..3 {
            assert_eq!(
                send(&socket, Some(at(Family::V4, 7)), &[2; 60_000]),
                Ok(60_000)
            );
        }
        assert_eq!(socket.summary().unread, 180_000);
        socket.close();
    });
}
