//! Connections without traffic: what they keep.

mod common;

use std::time::Duration;

use common::{MS, Pair, receive, send};
use net::{Family, link::bad::GOOD, tcp::Options};
use nucleus::{
    frame,
    sim::{Config, run},
    time,
};

/// How many there are.
const CONNECTIONS: usize = 40;

/// Lets so many nanoseconds pass.
fn rest(pair: &Pair, time: u64) {
    let end = time::since_boot() + Duration::from_nanos(time);
    while time::since_boot() < end {
        pair.run((end - time::since_boot()).as_nanos() as u64);
    }
}

/// A connection that was silent for a second keeps no frame of what it has sent, and goes on as
/// before.
#[test]
fn idle_connections_keep_no_frames() {
    let config = Config {
        pages: 16384,
        ..Config::default()
    };
    let body = || {
        let pair = Pair::new(1, GOOD, 1500);
        let mut options = Options::default();
        options.name.reuse_address = true;
        let all: Vec<_> = (0..CONNECTIONS)
            .map(|_| pair.connect(Family::V4, options))
            .collect();
        let before = frame::usage().free;
        for round in 0..3 {
            for [a, b] in &all {
                assert_eq!(send(a, b"question"), Ok(8));
                assert_eq!(send(b, b"answer"), Ok(6));
            }
            rest(&pair, 100 * MS);
            for [a, b] in &all {
                assert_eq!(receive(b, 100).unwrap(), b"question");
                assert_eq!(receive(a, 100).unwrap(), b"answer");
            }
            rest(&pair, 3000 * MS);
            let kept = before.saturating_sub(frame::usage().free);
            assert!(kept < CONNECTIONS / 4, "round {round}: {kept} frames");
        }
        for sockets in all {
            for socket in sockets {
                socket.close(false);
            }
        }
        rest(&pair, 1000 * MS);
    };
    if let Err(failure) = run(config, body) {
        panic!("{failure}");
    }
}
