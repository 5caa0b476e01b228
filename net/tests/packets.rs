//! TCP over packets: on the loopback interface, and between two machines over a bad link.

mod common;

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use abi::Errno;
use common::{MS, Pair, exchange};
use net::{
    Family, Stack,
    ip::Prefix,
    link::bad::{GOOD, Trouble},
    tcp::{Options, Phase},
};
use nucleus::{
    frame,
    sim::{Random, on_machines},
    task::{self, Sleep},
    time,
};

#[test]
fn loopback_by_packets() {
    on_machines(4, |seed| {
        let mut random = Random::new(seed);
        for (to, mtu) in [("127.0.0.1", 1500), ("::1", 1500), ("127.0.0.1", 65535)] {
            let free = frame::usage().free;
            let stack = Stack::new();
            stack.set_loopback_by_packets(Some(mtu));
            let to = SocketAddr::new(to.parse().unwrap(), 80);
            let family = Family::of(to.ip());
            let listener = stack.tcp_socket(family, Options::default());
            listener.bind(to).unwrap();
            listener.listen(1).unwrap();
            let client = stack.tcp_socket(family, Options::default());
            client.connect(to).unwrap();
            assert_eq!(client.phase(), Phase::Connected);
            let server = listener.accept().unwrap();
            let ends = [client, server];
            exchange(&ends, [300_000, 100_000], &mut random, || {
                let due = stack.run_timers().unwrap_or(Duration::MAX);
                task::sleep(Sleep {
                    interruptible: false,
                    deadline: Some(due.min(time::since_boot() + Duration::from_millis(1))),
                });
            });
            for end in &ends {
                end.close(false);
            }
            listener.close(false);
            // Refused, and told at once.
            let client = stack.tcp_socket(family, Options::default());
            client.connect(to).unwrap();
            assert_eq!(client.progress(), Err(Errno::ECONNREFUSED));
            client.close(false);
            drop((ends, stack));
            assert_eq!(frame::usage().free, free, "frames are lost");
        }
    });
}

#[test]
fn streams_arrive_over_a_bad_link() {
    let bad = Trouble {
        lost: 50,
        doubled: 20,
        late: 50,
        lateness: 20 * MS,
        damaged: 10,
        delay: 5 * MS,
        cut: 0,
    };
    let cut = Trouble {
        cut: 900 * MS,
        ..bad
    };
    on_machines(3, move |seed| {
        let mut random = Random::new(seed);
        for (family, trouble) in [(Family::V4, bad), (Family::V6, bad), (Family::V4, cut)] {
            let free = frame::usage().free;
            let pair = Pair::new(seed, trouble, 1500);
            let ends = pair.connect(family, Options::default());
            exchange(&ends, [200_000, 60_000], &mut random, || pair.run(5 * MS));
            for end in &ends {
                end.close(false);
            }
            pair.run_until(|| pair.is_quiet());
            drop((ends, pair));
            assert_eq!(frame::usage().free, free, "frames are lost");
        }
    });
}

#[test]
fn neighbours_and_routes() {
    on_machines(2, |seed| {
        let pair = Pair::new(seed, GOOD, 1500);
        let network = pair.stacks[0].network();
        let route = |to: &str| {
            network
                .route(to.parse().unwrap())
                .map(|route| (route.interface.index(), route.next_hop))
        };
        assert_eq!(route("192.0.2.1").err(), Some(Errno::ENETUNREACH));
        let gateway: IpAddr = "10.1.0.2".parse().unwrap();
        let far = Prefix::new("192.0.2.0".parse().unwrap(), 24).unwrap();
        network
            .add_route(
                Prefix::new("0.0.0.0".parse().unwrap(), 0).unwrap(),
                2,
                Some(gateway),
            )
            .unwrap();
        network.add_route(far, 2, None).unwrap();
        assert_eq!(route("192.0.2.1"), Ok((2, "192.0.2.1".parse().unwrap())));
        assert_eq!(route("198.51.100.1"), Ok((2, gateway)));
        assert_eq!(route("10.1.0.9"), Ok((2, "10.1.0.9".parse().unwrap())));
        network.remove_route(far, 2).unwrap();
        assert_eq!(route("192.0.2.1"), Ok((2, gateway)));
        assert_eq!(route("10.1.0.1"), Ok((1, "10.1.0.1".parse().unwrap())));
        // Nobody answers there: the connection fails after the repetitions of its SYN.
        let client = pair.stacks[0].tcp_socket(Family::V4, Options::default());
        client.connect("10.1.0.77:80".parse().unwrap()).unwrap();
        pair.run_until(|| client.phase() != Phase::Connecting);
        assert_eq!(client.progress(), Err(Errno::ETIMEDOUT));
        client.close(false);
    });
}
