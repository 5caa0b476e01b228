//! Groups of addresses: who may join them, and what the link is told.

mod common;

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use abi::Errno;
use common::tap::{ip, machine, packet, set_sum};
use net::{
    Family,
    datagram::{self, Protocol},
    packet::Checksum,
};
use nucleus::{
    sim::on_machines,
    task::{self, Sleep},
    time,
};

#[test]
fn a_group_that_the_link_was_not_told_of_is_not_left_for_others() {
    on_machines(1, |_| {
        let (stack, tap) = machine();
        let network = stack.network();
        let options = datagram::Options::default();
        let new = || stack.datagram_socket(Family::V4, Protocol::Udp, options);
        let group = |n: u32| IpAddr::V4(Ipv4Addr::from(0xe100_0000 | n));
        let mut groups = 0;
        network.visit_groups(|_, _, _| groups += 1);
        let many: Vec<_> = (0..64).map(|_| new()).collect();
        for n in groups..1024 {
            many[n as usize / 20].join(group(n), 2).unwrap();
        }
        let (late, other) = (new(), new());
        assert_eq!(late.join(group(5000), 2), Err(Errno::ENOBUFS));
        assert_eq!(late.leave(group(5000), 2), Err(Errno::EADDRNOTAVAIL));
        many[51].close();
        tap.take();
        other.join(group(5000), 2).unwrap();
        assert_eq!(tap.take().len(), 1, "the link is told");
        late.close();
        assert!(tap.take().is_empty(), "the other one is a member still");
        other.close();
        assert_eq!(tap.take().len(), 1);
        for socket in &many {
            socket.close();
        }
    });
}

/// An ordinary user's sockets leave groups for others.
#[test]
fn a_user_does_not_take_all_groups() {
    on_machines(1, |_| {
        let (stack, _tap) = machine();
        let new = |user: u32| {
            let mut options = datagram::Options::default();
            options.name.user = user;
            stack.datagram_socket(Family::V4, Protocol::Udp, options)
        };
        let group = |n: u32| IpAddr::V4(Ipv4Addr::from(0xe100_0000 | n));
        let many: Vec<_> = (0..64).map(|_| new(1000)).collect();
        let mut joined = 0;
        for n in 0..1200 {
            match many[n as usize / 20].join(group(n), 2) {
                Ok(()) => joined += 1,
                Err(error) => assert_eq!(error, Errno::ENOBUFS),
            }
        }
        assert_eq!(joined, 256);
        let other = new(1001);
        other.join(group(5000), 2).unwrap();
        // What another one has joined may be joined.
        many[63].join(group(5000), 2).unwrap();
        assert_eq!(many[63].join(group(5001), 2), Err(Errno::ENOBUFS));
        many[0].close();
        many[63].join(group(5001), 2).unwrap();
        for socket in many.iter().chain([&other]) {
            socket.close();
        }
    });
}

/// The type of a report of a group, or of the record in one of the newest version, where it goes to
/// and the group.
fn told(sent: &[(Vec<u8>, Checksum, u16)]) -> Vec<(u8, IpAddr, IpAddr)> {
    let told = sent.iter().filter_map(|(bytes, ..)| {
        let ip = |at: usize, len: usize| match len {
            4 => IpAddr::from(<[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap()),
            _ => IpAddr::from(<[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap()),
        };
        let (is_v4, next) = (bytes[12] == 8, bytes[20]);
        match is_v4 {
            true if bytes[23] == 2 && bytes[38] == 0x22 => {
                assert_eq!(bytes.len(), 54);
                Some((bytes[46], ip(30, 4), ip(50, 4)))
            }
            true if bytes[23] == 2 => Some((bytes[38], ip(30, 4), ip(42, 4))),
            false if next == 0 && bytes[62] == 143 => {
                assert_eq!(bytes.len(), 90);
                Some((bytes[70], ip(38, 16), ip(74, 16)))
            }
            false if next == 0 => Some((bytes[62], ip(38, 16), ip(70, 16))),
            _ => None,
        }
    });
    told.collect()
}

/// Switches and routers learn of joins and leaves by the newest versions of IGMP and MLD, and by
/// old ones while a router speaks those.
#[test]
fn the_link_is_told_of_groups_by_the_version_that_it_speaks() {
    on_machines(1, |_| {
        let (stack, tap) = machine();
        let options = datagram::Options::default();
        let v4: [IpAddr; 5] = [
            "225.1.2.3",
            "224.0.0.22",
            "224.0.0.2",
            "10.1.0.100",
            "224.0.0.1",
        ]
        .map(|it| it.parse().unwrap());
        let v6: [IpAddr; 5] = ["ff05::123", "ff02::16", "ff02::2", "fe80::9", "ff02::1"]
            .map(|it| it.parse().unwrap());
        for (family, [group, new, routers, from, all]) in [(Family::V4, v4), (Family::V6, v6)] {
            let socket = stack.datagram_socket(family, Protocol::Udp, options);
            let told = || told(&tap.take_packets());
            told();
            socket.join(group, 2).unwrap();
            assert_eq!(told(), [(4, new, group)]);
            socket.leave(group, 2).unwrap();
            assert_eq!(told(), [(3, new, group)]);
            socket.join(group, 2).unwrap();
            told();
            let query = |is_old: bool| {
                let (number, mut message) = match family {
                    Family::V4 => (
                        2,
                        [&[0x11, 9, 0, 0][..], &common::tap::octets(group)].concat(),
                    ),
                    Family::V6 => {
                        let head = [130, 0, 0, 0, 0, 9, 0, 0];
                        (58, [&head[..], &common::tap::octets(group)].concat())
                    }
                };
                if !is_old {
                    message.extend([2, 125, 0, 0]);
                }
                match family {
                    Family::V4 => set_sum((from, all), 1, &mut message, 2),
                    Family::V6 => set_sum((from, all), 58, &mut message, 2),
                }
                let hops = if family == Family::V4 { 8 } else { 7 };
                let bytes = ip((from, all), number, &message, |header| header[hops] = 1);
                stack.receive(2, packet(&bytes));
            };
            query(false);
            assert_eq!(told(), [(2, new, group)], "an answer to a query");
            query(true);
            let (report, leave) = match family {
                Family::V4 => (0x16, 0x17),
                Family::V6 => (131, 132),
            };
            assert_eq!(told(), [(report, group, group)]);
            socket.leave(group, 2).unwrap();
            assert_eq!(told(), [(leave, routers, group)]);
            task::sleep(Sleep {
                interruptible: false,
                deadline: Some(time::since_boot() + Duration::from_secs(300)),
            });
            socket.join(group, 2).unwrap();
            assert_eq!(told(), [(4, new, group)], "the old router is gone");
            socket.close();
        }
    });
}
