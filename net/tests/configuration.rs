//! Interfaces, routes and neighbours as programs change them, and what is told of it.

mod common;

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex},
};

use abi::Errno;
use common::tap::{Tap, address, arp, machine, packet};
use net::{
    Family, Stack,
    ip::{Adding, Change, Prefix, RouteChoice, RouteEntry, RouteKind, flags},
    link::{Direction, Mac, Taps},
    packet::Packet,
};
use nucleus::sim::{Random, on_machines};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn prefix(text: &str) -> Prefix {
    let (network, bits) = text.split_once('/').unwrap();
    Prefix::new(ip(network), bits.parse().unwrap()).unwrap()
}

/// Routes that are added and removed at random: the one that a search by the definition finds is
/// used, and a removal takes what it names.
#[test]
fn the_longest_prefix_and_the_least_metric_win() {
    on_machines(8, |seed| {
        let (stack, _tap) = machine();
        let network = stack.network();
        let mut random = Random::new(seed);
        let mut model: Vec<RouteEntry> = network.routes().unwrap().iter().copied().collect();
        for _ in 0..400 {
            let bits = random.below(9) as u8;
            let at = Ipv4Addr::new(random.below(256) as u8, 0, 0, 0);
            let prefix = Prefix::new(at.into(), bits).unwrap();
            let gateway = address(Family::V4, 100 + random.below(8) as u8);
            let entry = RouteEntry {
                metric: random.below(3) as u32,
                ..RouteEntry::new(prefix, 2, Some(gateway))
            };
            let is_rival =
                |old: &RouteEntry| old.prefix == entry.prefix && old.metric == entry.metric;
            if random.below(3) > 0 {
                let has = model.iter().any(is_rival);
                let done = network.configure_route(entry, Adding::New, false);
                assert_eq!(done, if has { Err(Errno::EEXIST) } else { Ok(()) });
                if !has {
                    model.push(entry);
                }
            } else {
                let choice = RouteChoice {
                    metric: Some(entry.metric),
                    ..RouteChoice::default()
                };
                let fits = |own: &RouteEntry| own.prefix == entry.prefix && choice.fits(own);
                let found = model.iter().position(fits);
                let done = network.remove_route_if(fits);
                assert_eq!(done.is_ok(), found.is_some());
                found.map(|at| model.remove(at));
            }
            let to: IpAddr = Ipv4Addr::new(random.below(224) as u8, 1, 2, 3).into();
            let fitting = model.iter().filter(|it| it.prefix.contains(to));
            let best = fitting.max_by_key(|it| (it.prefix.bits(), u32::MAX - it.metric));
            let way = network.route(to);
            match best {
                _ if to.is_loopback() => {}
                None => assert_eq!(way.err(), Some(Errno::ENETUNREACH), "to {to}"),
                Some(best) => {
                    let hop = best.gateway.unwrap_or(to);
                    assert_eq!(way.unwrap().next_hop, hop, "to {to}");
                }
            }
        }
    });
}

#[test]
fn changes_are_told_and_interfaces_go_with_what_they_have() {
    on_machines(1, |_| {
        let stack = Stack::new();
        let network = stack.network();
        let told = Arc::new(Mutex::new(Vec::new()));
        let log = told.clone();
        network.set_observer(Box::new(move |change| {
            let word = match change {
                Change::Interface(_) => "interface",
                Change::NoInterface(..) => "no interface",
                Change::Address(..) => "address",
                Change::NoAddress(..) => "no address",
                Change::Route(_) => "route",
                Change::NoRoute(_) => "no route",
                Change::Neighbour(..) => "neighbour",
                Change::NoNeighbour(..) => "no neighbour",
            };
            log.lock().unwrap().push(word);
        }));
        let take = || std::mem::take(&mut *told.lock().unwrap());
        let index = network.add_interface(Arc::new(Tap::default())).unwrap();
        network.add_address(index, ip("10.1.0.2"), 24).unwrap();
        let news = take();
        for word in ["interface", "address", "route"] {
            assert!(news.contains(&word), "{news:?}");
        }
        let again = network.add_address(index, ip("10.1.0.2"), 24);
        assert_eq!(again, Err(Errno::EEXIST));
        network.set_flags(index, 0, flags::UP).unwrap();
        assert_eq!(
            network.route(ip("10.1.0.9")).err(),
            Some(Errno::ENETUNREACH)
        );
        network.set_flags(index, flags::UP, flags::UP).unwrap();
        assert!(network.route(ip("10.1.0.9")).is_ok());
        take();
        network.remove_interface(index).unwrap();
        let news = take();
        for word in ["no address", "no route", "no interface"] {
            assert!(news.contains(&word), "{news:?}");
        }
        assert!(network.interface(index).is_none() && !network.is_own(ip("10.1.0.2")));
        // Numbers are not used again.
        let next = network.add_interface(Arc::new(Tap::default())).unwrap();
        assert_eq!(next, index + 1);
        assert_eq!(network.remove_interface(1), Err(Errno::EOPNOTSUPP));
        assert_eq!(network.remove_interface(99), Err(Errno::ENODEV));
    });
}

/// An address with a time goes when that is over.
#[test]
fn addresses_end() {
    on_machines(1, |_| {
        let (stack, _tap) = machine();
        let network = stack.network();
        let now = nucleus::time::since_boot().as_nanos() as u64;
        let address = net::ip::Address {
            valid_until: Some(now + 5_000_000_000),
            ..net::ip::Address::lasting(
                ip("10.7.0.1"),
                prefix("10.7.0.0/24"),
                net::ip::Origin::Static,
            )
        };
        network.put_address(2, address).unwrap();
        assert!(network.is_own(ip("10.7.0.1")) && network.route(ip("10.7.0.9")).is_ok());
        while network.is_own(ip("10.7.0.1")) {
            // None is left once it is gone.
            let Some(due) = stack.run_timers() else {
                continue;
            };
            nucleus::task::sleep(nucleus::task::Sleep {
                interruptible: false,
                deadline: Some(due),
            });
        }
        assert!(nucleus::time::since_boot().as_nanos() as u64 >= now + 5_000_000_000);
        let way = network.route(ip("10.7.0.9"));
        assert_eq!(way.err(), Some(Errno::ENETUNREACH));
    });
}

#[test]
fn routes_to_nowhere_say_so() {
    on_machines(1, |_| {
        let (stack, _tap) = machine();
        let network = stack.network();
        for (at, kind, error) in [
            ("66.0.0.0/8", RouteKind::Unreachable, Errno::EHOSTUNREACH),
            ("67.0.0.0/8", RouteKind::Prohibited, Errno::EACCES),
            ("68.0.0.0/8", RouteKind::Blackhole, Errno::EINVAL),
        ] {
            let entry = RouteEntry {
                kind,
                ..RouteEntry::new(prefix(at), 1, None)
            };
            network.configure_route(entry, Adding::New, false).unwrap();
            let to = prefix(at).network();
            assert_eq!(network.route(to).err(), Some(error), "{at}");
        }
        // A gateway has to be a neighbour.
        let entry = RouteEntry::new(prefix("69.0.0.0/8"), 2, Some(ip("5.5.5.5")));
        let added = network.configure_route(entry, Adding::New, false);
        assert_eq!(added, Err(Errno::ENETUNREACH));
        assert_eq!(network.configure_route(entry, Adding::New, true), Ok(()));
    });
}

#[test]
fn a_fixed_neighbour_stays() {
    on_machines(1, |_| {
        let (stack, _tap) = machine();
        let network = stack.network();
        let at = address(Family::V4, 200);
        let (mac, other) = (Mac([2, 1, 1, 1, 1, 1]), Ipv4Addr::new(10, 1, 0, 200));
        network.put_neighbour(2, at, mac, true, false).unwrap();
        let again = network.put_neighbour(2, at, mac, true, false);
        assert_eq!(again, Err(Errno::EEXIST));
        // What the link says does not change it, and a flood does not push it out.
        stack.receive(2, packet(&arp(other, Ipv4Addr::new(10, 1, 0, 2), 1)));
        for n in 0..600u32 {
            let from = Ipv4Addr::from(0x0a01_0000 | (300 + n));
            stack.receive(2, packet(&arp(from, Ipv4Addr::new(10, 1, 0, 2), 1)));
        }
        let all = network.interface(2).unwrap().neighbour_list().unwrap();
        let own = all.iter().find(|it| it.ip == at).unwrap();
        assert!(own.is_fixed && own.mac == Some(mac), "{own:?}");
        network.remove_neighbour(2, at).unwrap();
        assert_eq!(network.remove_neighbour(2, at), Err(Errno::ENOENT));
    });
}

/// Counts packets by direction.
#[derive(Default)]
struct Counter(Mutex<[usize; 2]>);

impl net::link::Tap for Counter {
    fn see(&self, interface: u32, mac: Option<Mac>, direction: Direction, packet: &Packet) {
        assert!(interface == 2 && mac.is_some() && packet.len() >= 42);
        self.0.lock().unwrap()[usize::from(direction == Direction::Out)] += 1;
    }
}

#[test]
fn a_tap_sees_both_directions() {
    on_machines(1, |_| {
        let (stack, _tap) = machine();
        let counter = Arc::new(Counter::default());
        let tap: Arc<dyn net::link::Tap> = counter.clone();
        let taps: &Taps = stack.network().taps();
        taps.add(tap.clone()).unwrap();
        let question = arp(Ipv4Addr::new(10, 1, 0, 100), Ipv4Addr::new(10, 1, 0, 2), 1);
        stack.receive(2, packet(&question));
        assert_eq!(*counter.0.lock().unwrap(), [1, 1]);
        assert!(taps.remove(&tap) && !taps.remove(&tap));
        stack.receive(2, packet(&question));
        assert_eq!(*counter.0.lock().unwrap(), [1, 1]);
    });
}
