//! Connections and listeners of one interface among several, and what headers of IP say.

mod common;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use abi::Errno;
use common::{
    send,
    tap::{ACK, RST, SYN, Tap, arp, packet, tcp, transport},
};
use net::{
    Family, Stack,
    ip::Prefix,
    tcp::{IpFields, Options, Socket},
};
use nucleus::sim::on_machines;

/// A machine with 10.1.0.2/24 and fd01::2/64 at interface 2, and 10.2.0.2/24 and fd02::2/64 at
/// interface 3. Neighbour 100 of each network of IPv4 is known.
fn machine() -> (Stack, [Arc<Tap>; 2]) {
    let stack = Stack::new();
    let network = stack.network();
    let taps = [1, 2].map(|nth: u8| {
        let tap = Arc::new(Tap::default());
        let index = network.add_interface(tap.clone()).unwrap();
        assert_eq!(index, u32::from(nth) + 1);
        let v6 = format!("fd0{nth}::2").parse().unwrap();
        network.add_address(index, ip(nth, 2), 24).unwrap();
        network.add_address(index, v6, 64).unwrap();
        let (IpAddr::V4(from), IpAddr::V4(to)) = (ip(nth, 100), ip(nth, 2)) else {
            unreachable!()
        };
        stack.receive(index, packet(&arp(from, to, 1)));
        tap.take();
        tap
    });
    (stack, taps)
}

fn ip(network: u8, last: u8) -> IpAddr {
    IpAddr::from([10, network, 0, last])
}

fn new(stack: &Stack, family: Family, interface: u32) -> Arc<Socket> {
    let socket = stack.tcp_socket(family, Options::default());
    socket.set_options(|options| {
        options.name.interface = interface;
        options.settings.no_delay = true;
    });
    socket
}

/// The flags of the only packet that was sent.
fn flags(tap: &Tap) -> u8 {
    let sent = tap.take();
    assert_eq!(sent.len(), 1, "{sent:x?}");
    transport(&sent[0]).unwrap().0[13]
}

/// Connects a socket of IPv4 to a peer that is played by hand behind a tap.
fn connect(stack: &Stack, index: u32, tap: &Tap, socket: &Arc<Socket>, to: SocketAddr) {
    socket.connect(to).unwrap();
    let sent = tap.take();
    let (syn, _) = transport(&sent[0]).unwrap();
    let number = u32::from_be_bytes(syn[4..8].try_into().unwrap());
    let local = socket.summary().local.unwrap();
    let answer = tcp((to, local), 5000, number + 1, SYN | ACK, &[]);
    stack.receive(index, packet(&answer));
    assert_eq!(flags(tap), ACK);
}

#[test]
fn a_listener_of_an_interface_hears_that_one_only() {
    on_machines(1, |_| {
        let (stack, taps) = machine();
        let any = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 80);
        let syn = |nth: u8, port: u16| {
            let ends = (ip(nth, 100), ip(nth, 2));
            let ends = (SocketAddr::new(ends.0, port), SocketAddr::new(ends.1, 80));
            let answer = move |number| packet(&tcp(ends, 5001, number, ACK, &[]));
            (packet(&tcp(ends, 5000, 0, SYN, &[])), answer)
        };
        let first = new(&stack, Family::V4, 2);
        first.bind(any).unwrap();
        first.listen(3).unwrap();
        stack.receive(3, syn(2, 1000).0);
        assert_eq!(flags(&taps[1]), RST | ACK, "no listener there");
        let second = new(&stack, Family::V4, 3);
        second.bind(any).unwrap();
        second.listen(3).unwrap();
        for (nth, listener) in [(1, &first), (2, &second)] {
            let tap = &taps[usize::from(nth) - 1];
            let (syn, answer) = syn(nth, 1001);
            stack.receive(u32::from(nth) + 1, syn);
            let sent = tap.take();
            let number = u32::from_be_bytes(sent[0][38..42].try_into().unwrap());
            stack.receive(u32::from(nth) + 1, answer(number + 1));
            let accepted = listener.accept().unwrap();
            assert_eq!(accepted.summary().local.unwrap().ip(), ip(nth, 2));
            // The connection belongs to the interface, too.
            assert_eq!(
                accepted.summary().options.name.interface,
                u32::from(nth) + 1
            );
            accepted.close(true);
            tap.take();
        }
        let third = new(&stack, Family::V4, 0);
        assert_eq!(third.bind(any), Err(Errno::EADDRINUSE));
        for socket in [first, second, third] {
            socket.close(false);
        }
    });
}

#[test]
fn a_connection_stays_at_its_interface_when_routes_change() {
    on_machines(1, |_| {
        let (stack, taps) = machine();
        let network = stack.network();
        let far = SocketAddr::new(IpAddr::from([192, 0, 2, 1]), 80);
        let all = Prefix::new(IpAddr::from([0, 0, 0, 0]), 0).unwrap();
        network.add_route(all, 2, Some(ip(1, 100))).unwrap();
        let bound = new(&stack, Family::V4, 2);
        let free = new(&stack, Family::V4, 0);
        for socket in [&bound, &free] {
            connect(&stack, 2, &taps[0], socket, far);
        }
        let near = Prefix::new(far.ip(), 24).unwrap();
        network.add_route(near, 3, Some(ip(2, 100))).unwrap();
        let count = || taps.each_ref().map(|tap| tap.take().len());
        send(&bound, b"here").unwrap();
        assert_eq!(count(), [1, 0]);
        send(&free, b"there").unwrap();
        assert_eq!(count(), [0, 1]);
        // What arrives elsewhere is not for it.
        let local = bound.summary().local.unwrap();
        let reset = |index| {
            let bytes = tcp((far, local), 5001, 0, RST, &[]);
            stack.receive(index, packet(&bytes));
            bound.take_error().is_some()
        };
        assert!(!reset(3));
        // No other interface takes its packets while it is down.
        network.set_up(2, false).unwrap();
        send(&bound, b"nowhere").unwrap();
        assert_eq!(count(), [0, 0]);
        network.set_up(2, true).unwrap();
        // The program may choose another one.
        bound.set_options(|options| options.name.interface = 3);
        count();
        send(&bound, b"there").unwrap();
        let [at_first, at_second] = count();
        assert!(at_first == 0 && at_second > 0);
        assert!(!reset(2) && reset(3));
        for socket in [bound, free] {
            socket.close(true);
        }
    });
}

#[test]
fn headers_say_what_the_program_has_chosen() {
    /// Time to live and type of service, by the version.
    fn fields(bytes: &[u8]) -> (u8, u8) {
        match bytes[14] >> 4 {
            4 => (bytes[22], bytes[15]),
            _ => (bytes[21], bytes[14] << 4 | bytes[15] >> 4),
        }
    }
    on_machines(1, |_| {
        let (stack, [tap, _]) = machine();
        let set = |socket: &Socket, hops, service| {
            socket.set_options(|options| {
                options.ip_v4 = IpFields { hops, service };
                options.ip_v6 = IpFields {
                    hops: hops + 1,
                    service: service + 4,
                };
            });
        };
        let here = SocketAddr::new(ip(1, 2), 80);
        let there = SocketAddr::new(ip(1, 100), 80);
        let client = new(&stack, Family::V4, 0);
        set(&client, 7, 0x28);
        client.connect(there).unwrap();
        assert_eq!(fields(&tap.take()[0]), (7, 0x28));
        client.close(true);
        tap.take();
        let client = new(&stack, Family::V4, 0);
        connect(&stack, 2, &tap, &client, there);
        send(&client, b"usual").unwrap();
        assert_eq!(fields(&tap.take()[0]), (64, 0));
        set(&client, 9, 0x10);
        send(&client, b"chosen").unwrap();
        assert_eq!(fields(&tap.take()[0]), (9, 0x10));
        client.close(true);
        tap.take();
        // An answer says what its listener has chosen.
        let listener = new(&stack, Family::V4, 0);
        set(&listener, 33, 0x40);
        listener.bind(here).unwrap();
        listener.listen(0).unwrap();
        for port in 1000..1003 {
            let ends = (SocketAddr::new(there.ip(), port), here);
            stack.receive(2, packet(&tcp(ends, 5000, 0, SYN, &[])));
            assert_eq!(fields(&tap.take()[0]), (33, 0x40), "a cookie, too");
        }
        listener.close(false);
        tap.take();
        let client = new(&stack, Family::V6, 0);
        set(&client, 11, 0xa0);
        let link: IpAddr = "fd01::100".parse().unwrap();
        client.connect(SocketAddr::new(link, 80)).unwrap();
        // The neighbour is asked first, and answers.
        let mut message = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
        message.extend(common::tap::octets(link));
        message.extend([2, 1, 2, 9, 9, 9, 9, 9]);
        let ends = (link, "fd01::2".parse().unwrap());
        common::tap::set_sum(ends, 58, &mut message, 2);
        tap.take();
        let bytes = common::tap::ip(ends, 58, &message, |header| header[7] = 255);
        stack.receive(2, packet(&bytes));
        assert_eq!(fields(&tap.take()[0]), (12, 0xa4));
        client.close(true);
    });
}
