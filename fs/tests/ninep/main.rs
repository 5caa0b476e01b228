//! The 9P client against a server made of code: an honest one must behave as a file system in
//! memory does, and nothing that a dishonest one says may do more harm than wrong answers and
//! errors.

mod server;
#[path = "../support/mod.rs"]
mod support;
mod wire;

use abi::{Errno, raw::general::O_TRUNC};
use fbuf::{BytesSink, BytesSource};
use fs::{
    Kind, MountRequest, Namespace, OpenFlags, ninep,
    ramfs::{self, Options},
    vnode::{Make, SizeLimit},
};
use support::{FLAGS, Random, names, with_walk};
use wire::{Manners, Wire};

fn path(random: &mut Random) -> Vec<u8> {
    let mut path = Vec::new();
    for _ in 0..1 + random.below(2) {
        path.push(b'/');
        path.push(b'a' + random.below(3) as u8);
    }
    path
}

/// What one step gave: bytes that were read or listed, or an error.
type Outcome = Result<Vec<u8>, Errno>;

/// One step, the same for the same numbers.
fn step(random: &mut Random, namespace: &Namespace) -> Outcome {
    let (a, b) = (path(random), path(random));
    let choice = random.below(12);
    let offset = random.below(20_000) as u64;
    let data = random.bytes(9000);
    let mut buffer = vec![0; random.below(9000)];
    let none = |()| Vec::new();
    with_walk(namespace, |walk| match choice {
        0 => walk.make(&a, Make::Directory, 0o755).map(|_| Vec::new()),
        1 | 2 => {
            let file = walk.open(&a, FLAGS, 0o644)?;
            let written = file.write(Some(offset), FLAGS, &mut BytesSource::new(&data))?;
            Ok(written.to_le_bytes().to_vec())
        }
        3 | 4 => {
            let file = walk.open(&a, OpenFlags::default(), 0)?;
            let read = file.read(
                Some(offset),
                OpenFlags::default(),
                &mut BytesSink::new(&mut buffer),
            )?;
            buffer.truncate(read);
            Ok(buffer)
        }
        5 => walk.remove(&a, offset.is_multiple_of(2)).map(none),
        6 => walk.rename(&a, walk, &b, 0).map(none),
        7 => walk
            .make(&a, Make::Link(b"text".to_vec()), 0o777)
            .map(|_| Vec::new()),
        8 => {
            let place = walk.resolve(&a, false)?;
            match place.vnode().kind() {
                Kind::Link => place.vnode().read_link(),
                Kind::Directory => {
                    let mut names: Vec<_> =
                        names(place.vnode())?.into_iter().map(|it| it.0).collect();
                    names.sort();
                    Ok(names.concat())
                }
                _ => Ok(Vec::new()),
            }
        }
        9 => {
            let place = walk.resolve(&a, false)?;
            let limit = SizeLimit::none();
            place.truncate(walk.who, &limit, offset).map(none)
        }
        10 => {
            let flags = FLAGS | OpenFlags::from_bits_retain(O_TRUNC);
            walk.open(&a, flags, 0o600).map(|_| Vec::new())
        }
        _ => {
            let attributes = walk.resolve(&a, false)?.attributes()?;
            let size = match attributes.kind {
                Kind::Regular => attributes.size,
                _ => 0,
            };
            let mut shown = size.to_le_bytes().to_vec();
            shown.extend([attributes.kind as u8, attributes.mode as u8]);
            Ok(shown)
        }
    })
}

#[test]
fn an_honest_server_is_a_file_system() {
    support::on_machines(8, 2, |seed| {
        let wire = Wire::new(seed);
        let there = Namespace::new(ninep::root(wire.clone(), b"").unwrap(), "9p");
        let here = Namespace::new(ramfs::root(Options::default()), "rootfs");
        let mut random = Random::new(seed);
        let mut done = 0;
        for number in 0..400 {
            let seed = random.next();
            let wanted = step(&mut Random::new(seed), &here);
            let found = step(&mut Random::new(seed), &there);
            match (&wanted, &found) {
                (Ok(wanted), Ok(found)) => {
                    assert!(wanted == found, "step {number} gave other bytes");
                    done += 1;
                }
                // Of several reasons to refuse something any may be named.
                (Err(_), Err(_)) => {}
                _ => panic!("step {number}: {wanted:?} in memory, {found:?} from the server"),
            }
        }
        assert!(done > 60, "only {done} steps did something");
        drop(there);
        // The last one given up may still be on its way.
        let left = wire.server.lock().unwrap().fids();
        assert!(left <= 1, "{left} handles were not given up");
    });
}

#[test]
fn what_a_server_damages_is_an_error_or_wrong() {
    support::on_machines(16, 2, |seed| {
        let wire = Wire::new(seed);
        let Ok(root) = ninep::root(wire.clone(), b"") else {
            return;
        };
        let namespace = Namespace::new(root, "9p");
        let mut random = Random::new(seed);
        for _ in 0..100 {
            let _ = step(&mut random, &namespace);
        }
        wire.behave(Manners::Damages(1 + seed as usize % 7));
        for _ in 0..300 {
            let _ = step(&mut random, &namespace);
        }
    });
}

#[test]
fn a_server_that_damages_its_greeting_is_refused() {
    support::on_machines(30, 1, |seed| {
        let wire = Wire::new(seed);
        wire.behave(Manners::Damages(1));
        drop(ninep::root(wire, b""));
    });
}

/// A device whose queue is so short that no page goes beside a message is no file system, or one
/// that works.
#[test]
fn a_server_with_a_short_queue_is_refused() {
    support::on_machines(2, 1, |seed| {
        for slices in 0..8 {
            let wire = Wire::new(seed);
            wire.limit(slices);
            let Ok(root) = ninep::root(wire, b"") else {
                assert!(slices < 5);
                continue;
            };
            let namespace = Namespace::new(root, "9p");
            let file = with_walk(&namespace, |walk| walk.open(b"/f", FLAGS, 0o644)).unwrap();
            let data = vec![7; 9000];
            let written = file.write(Some(100), FLAGS, &mut BytesSource::new(&data));
            assert_eq!(written, Ok(data.len()), "with {slices} slices");
        }
    });
}

/// What `/proc/meminfo` shows of files: no server has to be waited for.
#[test]
fn pages_in_memory_are_counted_without_a_message() {
    support::on_machines(2, 2, |seed| {
        let wire = Wire::new(seed);
        let namespace = Namespace::new(ramfs::root(Options::default()), "rootfs");
        let server = ninep::root(wire.clone(), b"").unwrap();
        // The same file system twice.
        let twice = ramfs::root(Options::default());
        for (path, root) in [("/a", twice.clone()), ("/b", twice), ("/c", server)] {
            let at = with_walk(&namespace, |walk| {
                walk.make(path.as_bytes(), Make::Directory, 0o755).unwrap();
                walk.resolve(path.as_bytes(), true).unwrap()
            });
            let how = MountRequest::plain("some");
            namespace.mount(&at, root, &how).unwrap();
        }
        let old = namespace.pages_in_memory();
        let data = vec![7; 3 * 4096];
        for path in [b"/f", b"/a/f"] as [&[u8]; 2] {
            let file = with_walk(&namespace, |walk| walk.open(path, FLAGS, 0o644)).unwrap();
            let written = file.write(Some(0), FLAGS, &mut BytesSource::new(&data));
            assert_eq!(written, Ok(data.len()));
        }
        let before = wire.messages();
        assert_eq!(namespace.pages_in_memory(), old + 6);
        assert_eq!(wire.messages(), before);
        for path in [b"/a", b"/b", b"/c"] {
            let at = with_walk(&namespace, |walk| walk.resolve(path, true)).unwrap();
            namespace.unmount(&at, true).unwrap();
        }
    });
}

#[test]
fn a_server_that_is_gone_is_an_error() {
    support::on_machines(4, 2, |seed| {
        let wire = Wire::new(seed);
        let namespace = Namespace::new(ninep::root(wire.clone(), b"").unwrap(), "9p");
        let file = with_walk(&namespace, |walk| walk.open(b"/f", FLAGS, 0o644)).unwrap();
        let data = vec![7; 5000];
        let written = file.write(Some(0), FLAGS, &mut BytesSource::new(&data));
        assert_eq!(written, Ok(data.len()));
        // Locks are kept by it, and must be found again.
        let identity = || file.location().unwrap().vnode().identity();
        let known = identity();
        assert!(known.is_ok());
        wire.behave(Manners::Gone);
        let written = file.write(Some(0), FLAGS, &mut BytesSource::new(&data));
        assert_eq!(written, Err(Errno::EIO));
        let mut random = Random::new(seed);
        for _ in 0..50 {
            let error = step(&mut random, &namespace).expect_err("there is no server");
            assert_eq!(error, Errno::EIO);
        }
        assert_eq!(identity(), known);
    });
}
