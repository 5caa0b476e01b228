//! TCP over packets: on the loopback interface, and between two machines over a bad link.

mod common;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use abi::Errno;
use common::{MS, Pair, exchange, pattern, receive, send, tap};
use net::{
    Family, Stack,
    ip::Prefix,
    link::bad::{GOOD, Trouble},
    tcp::{Options, Phase, State},
};
use nucleus::{
    frame,
    sim::{Gate, Random, Together, below, on_machines, on_machines_with},
    sync::{Rank, SpinLock},
    task::{self, Sleep, WaitQueue},
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
        // That neighbour does not exist: the connection fails after the repetitions of its SYN.
        let client = pair.stacks[0].tcp_socket(Family::V4, Options::default());
        client.connect("10.1.0.77:80".parse().unwrap()).unwrap();
        pair.run_until(|| client.phase() != Phase::Connecting);
        assert_eq!(client.progress(), Err(Errno::ETIMEDOUT));
        client.close(false);
    });
}

/// `TCP_DEFER_ACCEPT`, and what a program sees of an end at once.
#[test]
fn calls_see_what_packets_have_brought() {
    on_machines(2, |_| {
        let stack = Stack::new();
        stack.set_loopback_by_packets(Some(65535));
        let to = SocketAddr::new("127.0.0.1".parse().unwrap(), 80);
        let listener = stack.tcp_socket(Family::V4, Options::default());
        listener.set_options(|options| options.defer_accept = 1);
        listener.bind(to).unwrap();
        listener.listen(1).unwrap();
        let client = stack.tcp_socket(Family::V4, Options::default());
        client.connect(to).unwrap();
        assert_eq!(client.phase(), Phase::Connected);
        assert_eq!(listener.accept().err(), Some(Errno::EAGAIN));
        assert_eq!(send(&client, b"now"), Ok(3));
        let server = listener.accept().unwrap();
        assert_eq!(receive(&server, 9).unwrap(), b"now");
        server.shut(false, true).unwrap();
        assert_eq!(client.state(), State::CloseWait);
        for socket in [server, client, listener] {
            socket.close(true);
        }
    });
}

/// A peer's answer may arrive on another CPU before `connect` is over.
#[test]
fn an_answer_at_once_ends_connect() {
    /// Packets that arrive at the same time.
    const ANSWERS: usize = 2;
    on_machines_with("answer at once", 2..=3, 2048, 100, || {
        let (stack, card) = tap::machine();
        let stack = Arc::new(stack);
        let there = SocketAddr::new(tap::address(Family::V4, 100), 80);
        let client = stack.tcp_socket(Family::V4, Options::default());
        let (sent, ready) = (Gate::new(), Gate::new());
        let (is_sent, are_ready) = (sent.clone(), ready.clone());
        let step = SpinLock::new(Rank::Leaf, ());
        // The answers are there when the card returns from the call that sends the SYN.
        let then = move || {
            is_sent.pass();
            are_ready.wait_for(ANSWERS);
            for _ in 0..below(12) {
                drop(step.lock());
            }
        };
        assert!(card.then.set(Box::new(then)).is_ok());
        let all = Arc::new(Together::default());
        let syn = Arc::new(std::sync::Mutex::new(Vec::new()));
        for _ in 0..ANSWERS {
            let (stack, card, syn) = (stack.clone(), card.clone(), syn.clone());
            let (sent, ready) = (sent.clone(), ready.clone());
            all.spawn(move || {
                sent.wait_for(1);
                let answer = {
                    let mut syn = syn.lock().unwrap();
                    syn.append(&mut card.take());
                    let (syn, _) = tap::transport(&syn[0]).unwrap();
                    let port = u16::from_be_bytes([syn[0], syn[1]]);
                    let number = u32::from_be_bytes([syn[4], syn[5], syn[6], syn[7]]);
                    let ends = (there, SocketAddr::new(tap::address(Family::V4, 2), port));
                    tap::tcp(ends, 5000, number + 1, tap::SYN | tap::ACK, &[])
                };
                let answer = tap::packet(&answer);
                ready.pass();
                stack.receive(2, answer);
            });
        }
        client.connect(there).unwrap();
        all.join();
        assert_eq!(client.phase(), Phase::Connected);
        client.close(true);
    });
}

/// Programs that sleep until they can go on, on several CPUs.
#[test]
fn sleepers_hear_of_bytes_and_of_room() {
    on_machines(8, |seed| {
        let stack = Arc::new(Stack::new());
        let mtu = [1500, 65535][seed as usize % 2];
        stack.set_loopback_by_packets(Some(mtu));
        let to = SocketAddr::new("127.0.0.1".parse().unwrap(), 80);
        let listener = stack.tcp_socket(Family::V4, Options::default());
        listener.bind(to).unwrap();
        listener.listen(1).unwrap();
        let client = stack.tcp_socket(Family::V4, Options::default());
        client.connect(to).unwrap();
        let server = listener.accept().unwrap();
        let all = Arc::new(Together::default());
        let left = Arc::new(AtomicUsize::new(4));
        let total = 1_500_000;
        for (side, end) in [client, server].into_iter().enumerate() {
            let (sender, count) = (end.clone(), left.clone());
            all.spawn(move || {
                let mut sent = 0;
                while sent < total {
                    let n = 300_000.min(total - sent);
                    let bytes: Vec<u8> = (0..n).map(|i| pattern(side, sent + i)).collect();
                    match send(&sender, &bytes) {
                        Ok(n) => sent += n,
                        Err(error) => {
                            assert_eq!(error, Errno::EAGAIN);
                            wait(&sender.waits().writable, || sender.readiness().writable);
                        }
                    }
                }
                sender.shut(false, true).unwrap();
                count.fetch_sub(1, SeqCst);
            });
            let count = left.clone();
            all.spawn(move || {
                let mut received = 0;
                loop {
                    match receive(&end, 40_000) {
                        Ok(bytes) if bytes.is_empty() => break,
                        Ok(bytes) => {
                            for byte in bytes {
                                assert_eq!(byte, pattern(1 - side, received));
                                received += 1;
                            }
                        }
                        Err(error) => {
                            assert_eq!(error, Errno::EAGAIN);
                            wait(&end.waits().readable, || end.readiness().readable);
                        }
                    }
                }
                assert_eq!(received, total);
                count.fetch_sub(1, SeqCst);
            });
        }
        let begin = time::since_boot();
        while left.load(SeqCst) > 0 {
            let passed = time::since_boot() - begin;
            assert!(passed < Duration::from_secs(300), "a sleeper was forgotten");
            let soon = time::since_boot() + Duration::from_millis(10);
            let due = stack.run_timers().map_or(soon, |due| due.min(soon));
            task::sleep(Sleep {
                interruptible: false,
                deadline: Some(due),
            });
        }
        all.join();
        listener.close(false);
    });
}

fn wait(queue: &WaitQueue, is_over: impl Fn() -> bool) {
    let how = Sleep {
        interruptible: false,
        deadline: None,
    };
    let _ = queue.wait(how, || is_over().then_some(()));
}
