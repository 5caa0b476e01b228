//! Ports on the simulated machine: random sequences compared with plain models.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use abi::Errno;
use net::{
    Family, Stack,
    ip::Cover,
    ports::{Binding, EPHEMERAL, Hold, Ports, Rule, STEP, Search},
    tcp::{Options, Phase, Progress, Socket},
};
use nucleus::sim::{Random, on_machines};

/// Names to which a socket can be bound, and whether without IPv4; each with all addresses that it
/// covers.
fn names() -> Vec<(IpAddr, bool, BTreeSet<IpAddr>)> {
    let v4 = |last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last));
    let all_v4 = [v4(1), v4(2), v4(3)];
    let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
    let any_v4 = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let any_v6 = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    let mut both = BTreeSet::from(all_v4);
    both.insert(v6);
    vec![
        (v4(1), false, BTreeSet::from([v4(1)])),
        (v4(2), false, BTreeSet::from([v4(2)])),
        (any_v4, false, BTreeSet::from(all_v4)),
        (v6, false, BTreeSet::from([v6])),
        (any_v6, true, BTreeSet::from([v6])),
        (any_v6, false, both),
    ]
}

/// A bound socket, as the model knows it.
struct Bound {
    hold: Hold,
    port: u16,
    addresses: BTreeSet<IpAddr>,
    reuse_address: bool,
    reuse_port: bool,
    user: u32,
    interface: u32,
    listening: bool,
}

impl Bound {
    /// Linux's rule for a socket that binds a port, or begins to listen there, and one that holds
    /// it.
    fn fits_beside(&self, other: &Bound, rule: Rule) -> bool {
        let by_address = self.reuse_address
            && other.reuse_address
            && !(rule == Rule::UnlessListening && other.listening);
        let by_port = self.reuse_port && other.reuse_port && self.user == other.user;
        let are_apart = self.interface != other.interface && self.interface * other.interface != 0;
        by_address || by_port || are_apart || self.addresses.is_disjoint(&other.addresses)
    }
}

#[test]
fn who_may_share_a_port() {
    let names = names();
    for seed in 1..=40 {
        let mut random = Random::new(seed);
        let rule = if seed % 2 == 0 {
            Rule::Always
        } else {
            Rule::UnlessListening
        };
        let mut ports = Ports::new(rule);
        let mut bound: Vec<Bound> = Vec::new();
        for _ in 0..600 {
            match random.below(8) {
                0..4 => {
                    let (ip, v6_only, addresses) = &names[random.below(names.len())];
                    let port = 1000 + random.below(3) as u16;
                    let binding = Binding {
                        cover: Cover::of(*ip, *v6_only),
                        reuse_address: random.below(2) == 0,
                        reuse_port: random.below(3) == 0,
                        user: random.below(2) as u32,
                        interface: random.below(8).saturating_sub(5) as u32,
                        listening: false,
                        automatic: false,
                    };
                    let new = |hold| Bound {
                        hold,
                        port,
                        addresses: addresses.clone(),
                        reuse_address: binding.reuse_address,
                        reuse_port: binding.reuse_port,
                        user: binding.user,
                        interface: binding.interface,
                        listening: false,
                    };
                    let result = ports.bind(port, binding);
                    let mut others = bound.iter().filter(|old| old.port == port);
                    let fits = others.all(|old| {
                        let hold = result.as_ref().map_or(old.hold, |hold| *hold);
                        new(hold).fits_beside(old, rule)
                    });
                    match result {
                        Ok(hold) => {
                            assert!(fits, "seed {seed}: {ip} got port {port} of others");
                            bound.push(new(hold));
                        }
                        Err(error) => {
                            assert_eq!(error, Errno::EADDRINUSE);
                            assert!(!fits, "seed {seed}: {ip} did not get port {port}");
                        }
                    }
                }
                4 | 5 if !bound.is_empty() => {
                    let at = random.below(bound.len());
                    ports.release(bound.swap_remove(at).hold);
                }
                6 if !bound.is_empty() => {
                    let at = random.below(bound.len());
                    let mut one = bound.swap_remove(at);
                    let was = one.listening;
                    one.listening = true;
                    let mut others = bound.iter().filter(|other| other.port == one.port);
                    let fits = others.all(|other| one.fits_beside(other, rule));
                    match ports.listen(one.hold) {
                        Ok(()) => assert!(fits, "seed {seed}: two listen at {}", one.port),
                        Err(_) => {
                            assert!(!fits, "seed {seed}: can't listen at {}", one.port);
                            one.listening = was;
                        }
                    }
                    bound.push(one);
                }
                _ => assert_eq!(ports.count(), bound.len()),
            }
        }
        for one in bound {
            ports.release(one.hold);
        }
        assert_eq!(ports.count(), 0);
    }
}

/// A search takes short steps, finds the last port that is free, and ends when there is none.
#[test]
fn searches_take_short_steps() {
    let name = |last| Binding {
        cover: Cover::of(IpAddr::from(Ipv4Addr::new(127, 0, 0, last)), false),
        reuse_address: false,
        reuse_port: false,
        user: 0,
        interface: 0,
        listening: false,
        automatic: true,
    };
    on_machines(2, move |_| {
        for is_bind in [false, true] {
            let mut ports = Ports::new(Rule::UnlessListening);
            let mut holds = Vec::new();
            for port in EPHEMERAL {
                holds.push(ports.bind(port, name(1)).unwrap());
            }
            let find = |ports: &mut Ports| {
                let mut search = Search::new();
                for step in 0.. {
                    let mut looks = 0;
                    let found = match is_bind {
                        true => ports.bind_any(name(1), &mut search),
                        // Each of the others has a connection to the same peer.
                        false => ports.bind_connection(name(1), &mut search, |port| {
                            looks += 1;
                            port == 40_000
                        }),
                    };
                    assert!(looks <= STEP && step <= EPHEMERAL.len() / STEP);
                    match found {
                        Ok(None) => {}
                        Ok(Some(hold)) => return Ok(hold.port),
                        Err(error) => {
                            assert_eq!(step + 1, EPHEMERAL.len().div_ceil(STEP));
                            return Err(error);
                        }
                    }
                }
                unreachable!()
            };
            match is_bind {
                true => {
                    assert_eq!(find(&mut ports), Err(Errno::EADDRINUSE));
                    ports.release(holds[777]);
                    assert_eq!(find(&mut ports), Ok(holds[777].port));
                }
                false => assert_eq!(find(&mut ports), Ok(40_000)),
            }
        }
    });
}

/// The end of a listener resets what it has not accepted, however much that is.
#[test]
fn the_end_of_a_listener_resets_what_waits() {
    on_machines(2, |_| {
        let stack = Stack::new();
        let at = SocketAddr::new(Ipv4Addr::new(127, 0, 0, 1).into(), 2000);
        let new = || stack.tcp_socket(Family::V4, Options::default());
        for is_deferred in [false, true] {
            let listener = new();
            listener.set_options(|options| {
                options.name.reuse_address = true;
                options.defer_accept = u32::from(is_deferred);
            });
            listener.bind(at).unwrap();
            listener.listen(2000).unwrap();
            let clients: Vec<_> = (0..200).map(|_| new()).collect();
            for client in &clients {
                client.connect(at).unwrap();
                assert_eq!(client.phase(), Phase::Connected);
            }
            listener.close(false);
            for client in &clients {
                assert_eq!(client.take_error(), Some(Errno::ECONNRESET));
                client.close(false);
            }
            let sockets = stack.tcp_sockets().unwrap();
            assert!(sockets.iter().all(|entry| entry.socket.is_none()));
        }
    });
}

/// A port has no more listeners than a SYN may look at.
#[test]
fn a_port_has_a_limited_number_of_listeners() {
    on_machines(1, |_| {
        let stack = Stack::new();
        let at = SocketAddr::new(Ipv4Addr::new(127, 0, 0, 1).into(), 2000);
        let new = || {
            let socket = stack.tcp_socket(Family::V4, Options::default());
            socket.set_options(|options| options.name.reuse_port = true);
            socket.bind(at).unwrap();
            socket
        };
        let all: Vec<_> = (0..512).map(|_| new()).collect();
        all.iter().for_each(|socket| socket.listen(1).unwrap());
        let late = new();
        assert_eq!(late.listen(1), Err(Errno::ENOBUFS));
        assert_eq!(late.phase(), Phase::Idle);
        all[0].close(false);
        late.listen(1).unwrap();
        let client = stack.tcp_socket(Family::V4, Options::default());
        client.connect(at).unwrap();
        assert_eq!(client.phase(), Phase::Connected);
        client.close(true);
        all[1..]
            .iter()
            .chain([&late])
            .for_each(|socket| socket.close(false));
    });
}

/// A connection is made where the model has a listener, and nowhere else; all ports are released.
#[test]
fn connections_go_to_who_listens() {
    on_machines(6, |seed| {
        let mut random = Random::new(seed);
        let stack = Stack::new();
        let address =
            |n: usize| SocketAddr::new(Ipv4Addr::new(127, 0, 0, 1).into(), 2000 + n as u16);
        let new = || stack.tcp_socket(Family::V4, Options::default());
        let mut listening: [Option<Arc<Socket>>; 4] = [const { None }; 4];
        let mut open: Vec<(Arc<Socket>, Arc<Socket>)> = Vec::new();
        for _ in 0..300 {
            let n = random.below(listening.len());
            match random.below(6) {
                0 => match &listening[n] {
                    None => {
                        let socket = new();
                        socket.set_options(|options| options.name.reuse_address = true);
                        socket.bind(address(n)).unwrap();
                        socket.listen(8).unwrap();
                        listening[n] = Some(socket);
                    }
                    Some(_) => {
                        let other = new();
                        assert_eq!(other.bind(address(n)), Err(Errno::EADDRINUSE));
                        other.close(false);
                    }
                },
                1 => {
                    if let Some(socket) = listening[n].take() {
                        socket.close(false);
                    }
                }
                2..4 => {
                    let client = new();
                    assert_eq!(client.connect(address(n)), Ok(Progress::Begun));
                    match &listening[n] {
                        Some(listener) => {
                            assert_eq!(client.progress(), Ok(Some(Progress::Done)));
                            open.push((client, listener.accept().unwrap()));
                        }
                        None => {
                            assert_eq!(client.progress(), Err(Errno::ECONNREFUSED));
                            client.close(false);
                        }
                    }
                }
                _ if !open.is_empty() => {
                    let at = random.below(open.len());
                    let (client, server) = open.swap_remove(at);
                    let reset = random.below(3) == 0;
                    let (first, second) = match random.below(2) {
                        0 => (client, server),
                        _ => (server, client),
                    };
                    assert_eq!(second.phase(), Phase::Connected);
                    first.close(reset);
                    if reset {
                        assert_eq!(second.take_error(), Some(Errno::ECONNRESET));
                    }
                    second.close(false);
                }
                _ => {}
            }
            // A name for each connection's ends and each listener; those in TIME-WAIT have no
            // socket.
            let sockets = stack.tcp_sockets().unwrap();
            let alive = sockets
                .iter()
                .filter(|entry| entry.socket.is_some())
                .count();
            let expected = 2 * open.len() + listening.iter().flatten().count();
            assert_eq!(alive, expected);
        }
        for (client, server) in open {
            client.close(true);
            server.close(true);
        }
        for socket in listening.into_iter().flatten() {
            socket.close(false);
        }
        assert!(
            stack
                .tcp_sockets()
                .unwrap()
                .iter()
                .all(|entry| entry.socket.is_none())
        );
    });
}
