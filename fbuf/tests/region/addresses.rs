//! Whose an address is: a path's as long as the path or a receiver of it is there.

use std::sync::Arc;

use abi::Errno;
use fbuf::region::{CHUNK, Domain, Mode, Path};
use nucleus::{VirtAddr, sync::OnceArc};
use vm::Map;

use super::support::new_map;

fn enter() -> (Arc<Map>, Arc<Domain>) {
    let map = new_map();
    let domain = Domain::enter(&map, 1, &OnceArc::new()).expect("room");
    (map, domain)
}

fn path(domain: &Arc<Domain>, mode: u32) -> Arc<Path> {
    let mode = Mode::from_bits(mode).expect("a mode");
    Path::new(domain, mode, 4).expect("memory")
}

fn grow(path: &Path, domain: &Arc<Domain>, chunks: usize) -> VirtAddr {
    path.grow(domain, chunks).expect("room").start
}

fn shrink(path: &Path, domain: &Arc<Domain>, at: VirtAddr) {
    assert_eq!(path.shrink(domain, at.0 as u64), Ok(()));
}

/// A run that goes back leaves its addresses to its path, whose next runs have them; others get
/// them when the path is over, and its last receiver gone.
pub fn stay_with_their_path() {
    for mode in 0..4 {
        let [(map, first), (other_map, other), (third_map, receiver)] = [enter(), enter(), enter()];
        let (one, two) = (path(&first, mode), path(&other, mode));
        assert_eq!(one.attach(&receiver), Ok(1));
        let runs = [1, 1, 2].map(|chunks| grow(&one, &first, chunks));
        assert_eq!(one.grow(&first, 1).err(), Some(Errno::ENOSPC));
        runs.iter().for_each(|at| shrink(&one, &first, *at));
        let others = grow(&two, &other, 1);
        assert_eq!(others, runs[2] + 2 * CHUNK);
        // Neighbours have room for a larger run, what is in use has not.
        assert_eq!(grow(&one, &first, 3), runs[0]);
        assert_eq!(grow(&one, &first, 1), runs[0] + 3 * CHUNK);
        shrink(&one, &first, runs[0]);
        assert_eq!(grow(&one, &first, 2), runs[0]);
        // The gap behind the last one.
        shrink(&one, &first, runs[0] + 3 * CHUNK);
        assert_eq!(grow(&one, &first, 2), runs[0] + 2 * CHUNK);
        one.leave(&first);
        assert_eq!(grow(&two, &other, 1), others + CHUNK);
        one.leave(&receiver);
        assert_eq!(grow(&two, &other, 2), runs[0]);
        for (domain, map) in [(first, map), (other, other_map), (receiver, third_map)] {
            domain.end();
            map.tear_down();
        }
    }
}

/// A receiver learns whose an address is that the originator names, if it can read it.
pub fn have_owners() {
    let [(map, first), (other_map, other), (third_map, receiver)] = [enter(), enter(), enter()];
    let (one, two) = (path(&first, 0), path(&other, 0));
    for path in [&one, &two] {
        path.attach(&receiver).expect("room");
    }
    let own = path(&receiver, 0);
    let (at_one, at_two) = (grow(&one, &first, 1), grow(&two, &other, 2));
    let at_own = grow(&own, &receiver, 1);
    let ask = |at: VirtAddr| one.source_of(&receiver, at.0 as u64);
    let source = ask(at_one + CHUNK - 1).expect("its own");
    assert_eq!(source.addresses.start, at_one);
    assert_eq!(source.addresses.len(), CHUNK);
    assert_eq!((source.path, source.is_own), (one.id(), false));
    assert!(source.is_senders);
    // Another's, and the receiver's, which the sender cannot read.
    let source = ask(at_two).expect("readable");
    assert_eq!((source.path, source.is_senders), (two.id(), false));
    assert_eq!(source.addresses.len(), 2 * CHUNK);
    let source = ask(at_own).expect("readable");
    assert!(source.is_own && !source.is_senders);
    own.attach(&first).expect("room");
    assert!(ask(at_own).expect("readable").is_senders);
    // What it cannot read itself, and addresses that belong to no path.
    let hidden = path(&other, 0);
    let at_hidden = grow(&hidden, &other, 1);
    assert_eq!(ask(at_hidden), Err(Errno::EFAULT));
    assert_eq!(ask(at_hidden + CHUNK), Err(Errno::EFAULT));
    assert_eq!(one.source_of(&other, at_one.0 as u64), Err(Errno::EPERM));
    assert_eq!(one.source_of(&first, at_one.0 as u64), Err(Errno::EPERM));
    // Its messages are received after its end.
    one.leave(&first);
    assert!(ask(at_one).expect("its own").is_senders);
    assert!(!ask(at_own).expect("readable").is_senders);
    for (domain, map) in [(first, map), (other, other_map), (receiver, third_map)] {
        domain.end();
        map.tear_down();
    }
}
