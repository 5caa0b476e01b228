//! Interfaces that configure themselves: DHCP, the check for duplicate addresses, routers.

mod common;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use abi::Errno;
use common::tap::{self, OWN, Tap, ip, packet, set_sum};
use net::{
    Stack,
    configure::How,
    ip::{Address, AddressState, Origin, Prefix, RouteEntry},
};
use nucleus::{
    sim::{Random, on_machines},
    task::{self, Sleep},
};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const GIVEN: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 77);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x99);

fn machine(how: How) -> (Stack, Arc<Tap>) {
    let stack = Stack::new();
    let tap = Arc::new(Tap::default());
    let index = stack.network().add_interface(tap.clone()).unwrap();
    assert_eq!(index, 2);
    stack.configurator().add(index, how).unwrap();
    (stack, tap)
}

const DHCP: How = How {
    dhcp: true,
    v6: false,
};
const V6: How = How {
    dhcp: false,
    v6: true,
};

/// Runs the timers for some time.
fn pass(stack: &Stack, milliseconds: u64) {
    let end = nucleus::time::since_boot() + Duration::from_millis(milliseconds);
    loop {
        let due = stack.run_timers().unwrap_or(end).min(end);
        if nucleus::time::since_boot() >= end {
            break;
        }
        task::sleep(Sleep {
            interruptible: false,
            deadline: Some(due.max(nucleus::time::since_boot() + Duration::from_micros(10))),
        });
    }
}

/// A message of a server of DHCP that answers `query`, a packet that was sent.
fn answer(query: &[u8], kind: u8, edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let query = &query[42..];
    let mut message = vec![0; 240];
    message[..3].copy_from_slice(&[2, 1, 6]);
    message[4..8].copy_from_slice(&query[4..8]);
    message[16..20].copy_from_slice(&GIVEN.octets());
    message[28..34].copy_from_slice(&query[28..34]);
    message[236..].copy_from_slice(&[99, 130, 83, 99]);
    message.extend([53, 1, kind, 54, 4]);
    message.extend(SERVER.octets());
    message.extend([1, 4, 255, 255, 255, 0, 3, 4]);
    message.extend(SERVER.octets());
    message.extend([6, 8, 10, 9, 0, 2, 10, 9, 0, 3, 15, 4]);
    message.extend(b"home");
    message.extend([51, 4, 0, 0, 0, 240]);
    edit(&mut message);
    message.push(255);
    datagram(&message)
}

fn datagram(message: &[u8]) -> Vec<u8> {
    let ends = (IpAddr::V4(SERVER), IpAddr::V4(Ipv4Addr::BROADCAST));
    let mut bytes = vec![0, 67, 0, 68];
    bytes.extend((8 + message.len() as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(message);
    set_sum(ends, 17, &mut bytes, 6);
    ip(ends, 17, &bytes, |_| {})
}

/// The kind of a client's message, and its destinations.
fn query(bytes: &[u8]) -> (u8, [u8; 6], Ipv4Addr, Ipv4Addr) {
    let ip = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
    assert_eq!(bytes[34..38], [0, 68, 0, 67], "the ports");
    assert_eq!(bytes[42 + 240..42 + 242], [53, 1]);
    let mac: [u8; 6] = bytes[..6].try_into().unwrap();
    (bytes[42 + 242], mac, ip(26), ip(30))
}

/// Gets an address from a server.
fn lease(stack: &Stack, tap: &Tap) {
    ask(stack, tap);
    assert!(!stack.network().is_own(GIVEN.into()));
    // Sleeps may be long: each of these does what is due.
    (0..5).for_each(|_| pass(stack, 100));
    let probes = tap.take();
    assert!(
        probes.len() > 1 && probes.iter().all(|bytes| is_probe(bytes)),
        "{probes:x?}"
    );
    assert!(stack.configurator().is_settled());
}

/// Tells whether a packet is an ARP probe.
fn is_probe(bytes: &[u8]) -> bool {
    bytes[..6] == [0xff; 6]
        && bytes[12..14] == [8, 6]
        && bytes[21] == 1
        && bytes[22..28] == OWN
        && bytes[28..32] == [0; 4]
        && bytes[38..42] == GIVEN.octets()
}

/// Asks a server for an address, which gives it.
fn ask(stack: &Stack, tap: &Tap) {
    pass(stack, 1);
    let sent = tap.take();
    assert_eq!(
        query(&sent[0]),
        (1, [0xff; 6], Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST)
    );
    stack.receive(2, packet(&answer(&sent[0], 2, |_| {})));
    pass(stack, 1);
    let sent = tap.take();
    assert_eq!(query(&sent[0]).0, 3, "a request for what was offered");
    assert!(!stack.configurator().is_settled());
    stack.receive(2, packet(&answer(&sent[0], 5, |_| {})));
    assert!(!stack.configurator().is_settled());
}

#[test]
fn a_given_address_of_another_machine_is_declined() {
    on_machines(1, |_| {
        for by_question in [false, true] {
            let (stack, tap) = machine(DHCP);
            ask(&stack, &tap);
            pass(&stack, 50);
            assert!(tap.take().iter().all(|bytes| is_probe(bytes)));
            let none = Ipv4Addr::UNSPECIFIED;
            let claim = match by_question {
                false => tap::arp(GIVEN, none, 2),
                true => tap::arp(none, GIVEN, 1),
            };
            stack.receive(2, packet(&claim));
            pass(&stack, 1_000);
            let sent = tap.take();
            let declined = sent.last().unwrap();
            assert_eq!(query(declined), (4, [0xff; 6], none, Ipv4Addr::BROADCAST));
            let options = &declined[42 + 240..];
            let has = |option: &[u8]| options.windows(6).any(|bytes| bytes == option);
            let named = |kind: u8, ip: Ipv4Addr| [&[kind, 4][..], &ip.octets()].concat();
            assert!(has(&named(50, GIVEN)) && has(&named(54, SERVER)));
            assert!(!stack.network().is_own(GIVEN.into()));
            assert_eq!(
                stack.network().interface(2).unwrap().addresses().unwrap(),
                []
            );
            assert!(!stack.configurator().is_settled());
            // Ten seconds at least: the server may give it again and again.
            pass(&stack, 8_000);
            assert!(tap.take().is_empty());
            pass(&stack, 2_000);
            tap.take();
            stack.note_carrier(2);
            lease(&stack, &tap);
        }
    });
}

#[test]
fn a_server_gives_an_address_a_route_and_servers_for_names() {
    on_machines(1, |_| {
        let (stack, tap) = machine(DHCP);
        lease(&stack, &tap);
        let network = stack.network();
        assert!(network.is_own(GIVEN.into()));
        let far = network.route(IpAddr::from([1, 2, 3, 4])).unwrap();
        assert_eq!((far.next_hop, far.source), (SERVER.into(), GIVEN.into()));
        let near = network.route(IpAddr::from([10, 9, 0, 50])).unwrap();
        assert_eq!(near.next_hop, IpAddr::from([10, 9, 0, 50]));
        let resolver = stack.configurator().resolver().unwrap();
        assert_eq!(resolver.domain, b"home");
        let servers = [[10, 9, 0, 2], [10, 9, 0, 3]].map(IpAddr::from);
        assert_eq!(resolver.servers, servers);
    });
}

#[test]
fn an_address_is_renewed_and_lost_when_no_server_answers() {
    on_machines(1, |_| {
        let (stack, tap) = machine(DHCP);
        lease(&stack, &tap);
        // Half of the 240 seconds.
        pass(&stack, 115_000);
        assert!(tap.take().is_empty());
        pass(&stack, 6_000);
        let sent = tap.take();
        // The server's address on the link is asked for first.
        assert_eq!(sent[0][12..14], [8, 6], "{sent:x?}");
        let reply = common::tap::arp(SERVER, GIVEN, 2);
        stack.receive(2, packet(&reply));
        let sent = tap.take();
        let (kind, mac, from, to) = query(&sent[0]);
        assert_eq!((kind, from, to), (3, GIVEN, SERVER));
        assert_eq!(mac, [2, 9, 9, 9, 9, 1], "to the server alone");
        stack.receive(2, packet(&answer(&sent[0], 5, |_| {})));
        pass(&stack, 110_000);
        assert!(tap.take().is_empty(), "the time has begun anew");
        pass(&stack, 120_000);
        let all = tap.take();
        let last = all.iter().rev().find(|it| it[12..14] == [8, 0]).unwrap();
        assert_eq!(query(last).1, [0xff; 6], "any server, at last");
        assert!(stack.network().is_own(GIVEN.into()));
        pass(&stack, 20_000);
        assert!(!stack.network().is_own(GIVEN.into()));
        assert!(stack.network().route(IpAddr::from([1, 2, 3, 4])).is_err());
        let sent = tap.take();
        assert_eq!(query(sent.last().unwrap()).0, 1, "it begins again");
    });
}

#[test]
fn a_server_that_refuses_an_address_is_obeyed() {
    on_machines(1, |_| {
        let (stack, tap) = machine(DHCP);
        lease(&stack, &tap);
        tap.take();
        stack.note_carrier(2);
        pass(&stack, 1);
        let sent = tap.take();
        assert_eq!(query(&sent[0]).0, 3, "does the address still hold?");
        stack.receive(2, packet(&answer(&sent[0], 6, |_| {})));
        assert!(!stack.network().is_own(GIVEN.into()));
        pass(&stack, 2_000);
        assert_eq!(query(&tap.take()[0]).0, 1);
    });
}

#[test]
fn answers_that_are_wrong_or_for_others_are_ignored() {
    on_machines(20, |seed| {
        let mut random = Random::new(seed);
        let (stack, tap) = machine(DHCP);
        pass(&stack, 1);
        let sent = tap.take();
        let wrong: [fn(&mut Vec<u8>); 6] = [
            |message| message[4] ^= 1,
            |message| message[30] ^= 1,
            |message| message[16..20].fill(0),
            |message| message[16..20].fill(255),
            |message| message[236] = 0,
            |message| message.truncate(243),
        ];
        for edit in wrong {
            stack.receive(2, packet(&answer(&sent[0], 2, edit)));
        }
        for _ in 0..200 {
            let noise = |message: &mut Vec<u8>| {
                for _ in 0..1 + random.below(20) {
                    let at = random.below(message.len());
                    message[at] = random.below(256) as u8;
                }
                message.truncate(random.below(message.len()));
            };
            stack.receive(2, packet(&answer(&sent[0], 5, noise)));
        }
        assert!(!stack.configurator().is_settled());
        pass(&stack, 1);
        let asks = |bytes: &Vec<u8>| query(bytes).0 == 3;
        assert!(!tap.take().iter().any(asks), "nothing was offered");
    });
}

fn router(options: &[u8], life: u16) -> Vec<u8> {
    let ends = (
        IpAddr::V6(ROUTER),
        IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)),
    );
    let mut message = vec![134, 0, 0, 0, 64, 0];
    message.extend(life.to_be_bytes());
    message.extend([0; 8]);
    message.extend(options);
    set_sum(ends, 58, &mut message, 2);
    ip(ends, 58, &message, |header| header[7] = 255)
}

/// The option for `fd55::/64`, valid for so many seconds.
fn prefix(valid: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, 0xc0];
    option.extend(valid.to_be_bytes());
    option.extend(valid.to_be_bytes());
    option.extend([0; 4]);
    option.extend(Ipv6Addr::new(0xfd55, 0, 0, 0, 0, 0, 0, 0).octets());
    option
}

/// The interface's address in a network.
fn own(first: u16) -> Ipv6Addr {
    let [a, b, c, d, e, f] = OWN.map(u16::from);
    Ipv6Addr::new(
        first,
        0,
        0,
        0,
        (a ^ 2) << 8 | b,
        c << 8 | 0xff,
        0xfe << 8 | d,
        e << 8 | f,
    )
}

#[test]
fn routers_are_asked_and_what_they_say_is_used_for_as_long_as_they_say() {
    on_machines(1, |_| {
        let (stack, tap) = machine(V6);
        let network = stack.network();
        let sent = tap.take();
        assert_eq!(
            (sent[0][54], sent[0].len()),
            (135, 14 + 40 + 24),
            "a check without an option"
        );
        assert!(!network.is_own(own(0xfe80).into()));
        pass(&stack, 1_100);
        assert!(network.is_own(own(0xfe80).into()));
        let sent = tap.take();
        assert_eq!(sent[0][54], 133, "a question for routers");
        let dns = [&[25, 3, 0, 0, 0, 0, 1, 0][..], &[0xfd; 16]].concat();
        let options = [prefix(9_000), dns].concat();
        stack.receive(2, packet(&router(&options, 1800)));
        assert_eq!(tap.take()[0][54], 135, "the new address is checked");
        pass(&stack, 1_100);
        let route = network.route("2001::1".parse().unwrap()).unwrap();
        assert_eq!(route.next_hop, IpAddr::V6(ROUTER));
        assert_eq!(
            route.source,
            IpAddr::V6(own(0xfd55)),
            "not the link-local one"
        );
        let near = network.route("fe80::1".parse().unwrap()).unwrap();
        assert_eq!(near.source, IpAddr::V6(own(0xfe80)));
        let servers = stack.configurator().resolver().unwrap().servers;
        assert_eq!(servers, [IpAddr::from([0xfd; 16])]);
        // Not at once: anyone can send such a message.
        stack.receive(2, packet(&router(&prefix(1), 0)));
        assert!(network.route("2001::1".parse().unwrap()).is_err());
        pass(&stack, 10_000);
        assert!(network.is_own(own(0xfd55).into()));
        pass(&stack, 7_300_000);
        assert!(!network.is_own(own(0xfd55).into()));
        assert!(network.is_own(own(0xfe80).into()), "this one is for ever");
    });
}

/// Switches that look into MLD pass a group's packets to its members only.
#[test]
fn the_link_is_told_of_the_groups_in_which_neighbours_look_for_addresses() {
    on_machines(1, |_| {
        let (stack, tap) = machine(V6);
        let network = stack.network();
        let group = |ip: Ipv6Addr| {
            let [.., a, b, c] = ip.octets();
            Ipv6Addr::new(
                0xff02,
                0,
                0,
                0,
                0,
                1,
                0xff00 | u16::from(a),
                u16::from_be_bytes([b, c]),
            )
        };
        let reports = || -> Vec<_> {
            let sent = tap.take_packets().into_iter();
            sent.filter_map(|(bytes, ..)| tap::report(&bytes)).collect()
        };
        let link = own(0xfe80);
        let none = Ipv6Addr::UNSPECIFIED;
        let first = tap.take_packets();
        // Before the check, whose answers go to the group.
        assert_eq!(tap::report(&first[0].0), Some((4, none, group(link))));
        assert_eq!(first[1].0[54], 135);
        pass(&stack, 1_100);
        assert_eq!(reports(), [(4, link, group(link))], "with a source");
        let ip: Ipv6Addr = "fd55::1:2:3".parse().unwrap();
        network.add_address(2, ip.into(), 64).unwrap();
        assert_eq!(reports(), [(4, link, group(ip))]);
        // Two addresses, one group.
        let other: Ipv6Addr = "fd66::1:2:3".parse().unwrap();
        network.add_address(2, other.into(), 64).unwrap();
        network.remove_address(2, ip.into()).unwrap();
        assert_eq!(reports(), []);
        stack.note_carrier(2);
        let all = [(4, link, group(link)), (4, link, group(other))];
        assert_eq!(reports(), all);
        network.remove_address(2, other.into()).unwrap();
        assert_eq!(reports(), [(3, link, group(other))]);
        network.set_up(2, false).unwrap();
        assert_eq!(reports(), []);
        network.set_up(2, true).unwrap();
        assert_eq!(reports(), [(4, link, group(link))]);
    });
}

/// A message of a machine that has an address, or wants it as well.
fn claim(target: Ipv6Addr, is_question: bool) -> Vec<u8> {
    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let (from, kind) = match is_question {
        false => (target, 136),
        true => (Ipv6Addr::UNSPECIFIED, 135),
    };
    let mut message = vec![kind, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(target.octets());
    if !is_question {
        message.extend([2, 1, 2, 9, 9, 9, 9, 9]);
    }
    let ends = (from.into(), all.into());
    set_sum(ends, 58, &mut message, 2);
    ip(ends, 58, &message, |header| header[7] = 255)
}

#[test]
fn an_address_of_another_machine_is_not_used() {
    on_machines(1, |_| {
        for by_question in [false, true] {
            let (stack, tap) = machine(V6);
            tap.take();
            let target = own(0xfe80);
            stack.receive(2, packet(&claim(target, by_question)));
            pass(&stack, 5_000);
            let network = stack.network();
            assert!(!network.is_own(target.into()));
            let address = network
                .interface(2)
                .unwrap()
                .address(target.into())
                .unwrap();
            assert_eq!(
                (address.state, address.origin),
                (AddressState::Duplicate, Origin::Kernel)
            );
            assert!(
                tap.take().is_empty(),
                "no question for routers without an address"
            );
        }
    });
}

#[test]
fn an_address_that_a_program_sets_is_checked_too() {
    on_machines(1, |_| {
        let stack = Stack::new();
        let tap = Arc::new(Tap::default());
        let network = stack.network();
        network.add_interface(tap.clone()).unwrap();
        let put = |text: &str, bits| {
            let ip: IpAddr = text.parse().unwrap();
            let prefix = Prefix::new(ip, bits).unwrap();
            let address = Address::lasting(ip, prefix, Origin::Static);
            stack.configurator().put_address(2, address).unwrap();
            ip
        };
        let state = |ip| network.interface(2).unwrap().address(ip).unwrap().state;
        let (good, bad) = (put("fd55::1", 48), put("fd55::2", 48));
        let questions = tap.take();
        assert!(questions.iter().all(|bytes| bytes[54] == 135) && questions.len() == 2);
        assert_eq!(state(good), AddressState::Tentative);
        let IpAddr::V6(target) = bad else {
            unreachable!()
        };
        stack.receive(2, packet(&claim(target, false)));
        pass(&stack, 1_100);
        assert_eq!(state(good), AddressState::Valid);
        assert_eq!(state(bad), AddressState::Duplicate);
        let route = network.route("fd55::9".parse().unwrap()).unwrap();
        assert_eq!(route.source, good, "with the network of the program");
        // Nothing is asked about an address that it has, and about those of IPv4.
        put("fd55::1", 48);
        assert_eq!(state(good), AddressState::Valid);
        assert_eq!(state(put("10.1.0.1", 24)), AddressState::Valid);
        assert!(tap.take().is_empty());
        // The interface may still configure itself.
        stack.configurator().add(2, V6).unwrap();
        assert_eq!(stack.configurator().add(2, V6), Err(Errno::EEXIST));
        pass(&stack, 1_100);
        assert!(network.is_own(own(0xfe80).into()));
    });
}

#[test]
fn floods_of_advertisements_make_a_bounded_number_of_addresses() {
    on_machines(1, |seed| {
        let mut random = Random::new(seed);
        let (stack, _) = machine(V6);
        pass(&stack, 1_100);
        for nth in 0..500u16 {
            let mut options = prefix(9_000);
            options[18..20].copy_from_slice(&nth.to_be_bytes());
            let mut bytes = router(&options, nth);
            if nth % 2 == 1 {
                for _ in 0..random.below(8) {
                    let at = 54 + random.below(bytes.len() - 54);
                    bytes[at] = random.below(256) as u8;
                }
            }
            stack.receive(2, packet(&bytes));
        }
        let interface = stack.network().interface(2).unwrap();
        assert!(interface.addresses().unwrap().len() <= 17);
        assert!(stack.network().routes().unwrap().len() <= 40);
    });
}

/// Gets an address from a server, whose last message `edit` changes.
fn lease_with(stack: &Stack, tap: &Tap, edit: impl FnOnce(&mut Vec<u8>)) {
    pass(stack, 1);
    let sent = tap.take();
    stack.receive(2, packet(&answer(&sent[0], 2, |_| {})));
    pass(stack, 1);
    let sent = tap.take();
    stack.receive(2, packet(&answer(&sent[0], 5, edit)));
    (0..5).for_each(|_| pass(stack, 100));
    tap.take();
    assert!(stack.configurator().is_settled());
}

#[test]
fn a_server_that_wants_to_be_asked_all_the_time_is_not() {
    on_machines(1, |_| {
        for options in [[58, 4, 0, 0, 0, 0], [59, 4, 0, 0, 0, 0]] {
            let (stack, tap) = machine(DHCP);
            lease_with(&stack, &tap, |message| message.extend(options));
            pass(&stack, 20_000);
            let sent = tap.take();
            assert!(sent.is_empty(), "{options:?}: {sent:x?}");
        }
    });
}

/// A server that names another router, or another network, each time it is asked.
#[test]
fn a_lease_leaves_no_route_of_an_earlier_one() {
    on_machines(1, |_| {
        let (stack, tap) = machine(DHCP);
        lease(&stack, &tap);
        let network = stack.network();
        let routes = || network.routes().unwrap().len();
        let few = routes();
        for nth in 2..10 {
            stack.note_carrier(2);
            pass(&stack, 1);
            let sent = tap.take();
            let edit = |message: &mut Vec<u8>| {
                let mask = 0xffff_0000_u32 << (nth % 4);
                message.extend([3, 4, 10, 9, 0, nth, 1, 4]);
                message.extend(mask.to_be_bytes());
            };
            stack.receive(2, packet(&answer(&sent[0], 5, edit)));
            let far = network.route(IpAddr::from([1, 2, 3, 4])).unwrap();
            assert_eq!(far.next_hop, IpAddr::from([10, 9, 0, nth]));
            assert_eq!(routes(), few, "after {nth}");
        }
        pass(&stack, 250_000);
        assert!(!network.is_own(GIVEN.into()));
        assert_eq!(routes(), 0);
    });
}

/// What one link's router says takes nothing from another link.
#[test]
fn routers_of_one_link_leave_room_for_those_of_others() {
    on_machines(1, |_| {
        let (stack, _) = machine(V6);
        let network = stack.network();
        let index = network.add_interface(Arc::new(Tap::default())).unwrap();
        stack.configurator().add(index, V6).unwrap();
        pass(&stack, 1_100);
        for nth in 0..100u16 {
            let mut options = prefix(9_000);
            options[18..20].copy_from_slice(&nth.to_be_bytes());
            stack.receive(2, packet(&router(&options, 1800)));
        }
        stack.receive(index, packet(&router(&[], 1800)));
        let routes = network.routes().unwrap();
        let is_it = |it: &&RouteEntry| it.interface == index && it.gateway.is_some();
        assert_eq!(routes.iter().filter(is_it).count(), 1);
    });
}

/// Machines of a network that is not on the link are reached by the router (RFC 5942 4).
#[test]
fn an_address_alone_makes_no_route_to_its_network() {
    on_machines(1, |_| {
        let (stack, _) = machine(V6);
        let network = stack.network();
        pass(&stack, 1_100);
        let mut options = prefix(9_000);
        options[3] = 0x40;
        stack.receive(2, packet(&router(&options, 1800)));
        pass(&stack, 1_100);
        assert!(network.is_own(own(0xfd55).into()));
        let way = network.route("fd55::1".parse().unwrap()).unwrap();
        assert_eq!(way.next_hop, IpAddr::V6(ROUTER));
        stack.receive(2, packet(&router(&prefix(9_000), 1800)));
        let way = network.route("fd55::1".parse().unwrap()).unwrap();
        assert_eq!(way.next_hop, "fd55::1".parse::<IpAddr>().unwrap());
    });
}

/// What a router says takes no place of a route that a program has set, and does not end it.
#[test]
fn a_router_does_not_replace_a_programs_route() {
    on_machines(1, |_| {
        let (stack, _) = machine(V6);
        pass(&stack, 1_100);
        let all = Prefix::new(Ipv6Addr::UNSPECIFIED.into(), 0).unwrap();
        let own = RouteEntry {
            metric: 1024,
            ..RouteEntry::new(all, 2, Some(ROUTER.into()))
        };
        stack.network().put_route(own).unwrap();
        let is_there = || {
            stack
                .network()
                .routes()
                .unwrap()
                .iter()
                .any(|it| *it == own)
        };
        stack.receive(2, packet(&router(&[], 1)));
        assert!(is_there(), "replaced");
        pass(&stack, 5_000);
        stack.receive(2, packet(&router(&[], 0)));
        assert!(is_there(), "ended");
    });
}
