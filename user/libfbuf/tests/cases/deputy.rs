//! A peer that wants this process to read, for it, memory that it cannot read itself.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use libfbuf::{Backend, Channel, Contents, Path};

use super::hostile::Ring;
use super::{error_of, fork_with_socket, start, wait};

/// What a message of the attacker's is.
const LEAF: u64 = 0;
const ROOT: u64 = 1;
/// A leaf in a chunk of its own, which it gives back, or has once more.
const OWN_CHUNK: u64 = 2;
const GIVE_BACK: u64 = 3;

const CHUNK: usize = libfbuf::CHUNK;

/// Has the attacker do something.
fn order(control: &UnixStream, what: u64, address: u64) {
    let words = [what, address].map(u64::to_le_bytes);
    let mut control = control;
    control.write_all(words.as_flattened()).expect("an order");
    control.read_exact(&mut [0]).expect("it is done");
}

/// Offers a ring, and sends what is ordered until the end.
fn attack(backend: Backend, there: &UnixStream, control: &UnixStream) {
    let (_domain, path) = start(backend);
    let mut ring = Ring::new(&path);
    ring.offer(there, &path);
    let mut nodes = path.allocate(4096).expect("memory");
    let mut chunk = None;
    let (mut count, mut words) = (0, [[0; 8]; 2]);
    let mut control = control;
    while control.read_exact(words.as_flattened_mut()).is_ok() {
        let [what, mut address] = words.map(u64::from_le_bytes);
        let node = 32 * count as usize;
        let root = nodes.as_ptr().addr() + node;
        if what == OWN_CHUNK {
            let fbuf = chunk.insert(path.allocate(CHUNK).expect("a chunk"));
            fbuf[..6].copy_from_slice(b"my own");
            address = fbuf.as_ptr().addr() as u64;
        }
        let leaf = [1, 6, address, 0].map(u64::to_le_bytes);
        nodes[node..node + 32].copy_from_slice(leaf.as_flattened());
        match what {
            GIVE_BACK => {
                drop(chunk.take());
                path.trim();
            }
            ROOT => ring.send(address),
            _ => ring.send(root as u64),
        }
        count += 1;
        control.write_all(b"d").expect("an answer");
    }
}

/// The server's end of an attacker: its channel and the socket for orders.
fn with_attacker(
    backend: Backend,
    enter: impl FnOnce() -> (libfbuf::Domain, Path),
) -> (libfbuf::Domain, Path, Channel, UnixStream, libc::pid_t) {
    let mut ends = Some(UnixStream::pair().expect("sockets"));
    let (here, child) = fork_with_socket(|there| {
        let (control, orders) = ends.take().expect("two ends");
        drop(control);
        attack(backend, &there, &orders);
    });
    let (control, orders) = ends.take().expect("two ends");
    drop(orders);
    let (domain, path) = enter();
    let channel = Channel::connect(&domain, &path, here.into()).expect("a channel");
    (domain, path, channel, control, child)
}

/// A peer that sends a text, and is there until the other end is closed.
fn victim(backend: Backend, text: &'static [u8]) -> (UnixStream, libc::pid_t) {
    fork_with_socket(|there| {
        let (domain, path) = start(backend);
        let mut channel = Channel::connect(&domain, &path, there.into()).expect("a channel");
        channel.receive().expect("a signal").expect("no end");
        let mut fbuf = path.allocate(CHUNK).expect("a chunk");
        for part in fbuf.chunks_exact_mut(text.len()) {
            part.copy_from_slice(text);
        }
        let message = libfbuf::Aggregate::new(fbuf, CHUNK).expect("a message");
        channel.send(&message).expect("a send");
        channel.finish().expect("all freed");
    })
}

/// The attacker names memory of the server's other peer, and the server's own.
pub fn names(backend: Backend) {
    let (to_victim, victim) = victim(backend, b"secret");
    let (domain, path, mut channel, control, attacker) = with_attacker(backend, || start(backend));
    let other = Path::new(&domain, libfbuf::Mode::CACHED_VOLATILE, 0).expect("a path");
    let mut served = Channel::connect(&domain, &other, to_victim.into()).expect("a channel");
    let answer = other.copy(b"answer").unwrap();
    let secret = served.call(&answer).expect("a message");
    let at = |of: &dyn Fn() -> Option<usize>| of().expect("bytes") as u64;
    let secret_at = at(&|| secret.fragments().next().map(|it| it.address()));
    let answer_at = at(&|| answer.fragments().next().map(|it| it.address()));
    let given = path.copy(b"public").unwrap();
    let given_at = at(&|| given.fragments().next().map(|it| it.address()));
    let nowhere = (libfbuf::REGION_START + libfbuf::REGION_SIZE - CHUNK) as u64;
    for address in [secret_at, answer_at, nowhere] {
        for what in [LEAF, ROOT] {
            order(&control, what, address);
            assert_eq!(error_of(channel.receive()), libc::EFAULT, "{address:x}");
        }
        // The channel goes on. What the server sends to the attacker, it can read.
        order(&control, LEAF, given_at);
        let message = channel.receive().expect("a message").expect("no end");
        assert_eq!(message.to_vec(6).unwrap(), b"public");
    }
    drop((channel, control, secret, served));
    wait(attacker);
    wait(victim);
}

/// The attacker names its own memory, and gives it back: another peer's does not come there.
pub fn gives_back(backend: Backend) {
    let (to_victim, victim) = victim(backend, b"secret");
    let (domain, path, mut channel, control, attacker) = with_attacker(backend, || start(backend));
    let other = Path::new(&domain, libfbuf::Mode::CACHED_VOLATILE, 0).expect("a path");
    let mut served = Channel::connect(&domain, &other, to_victim.into()).expect("a channel");
    order(&control, OWN_CHUNK, 0);
    let own = channel.receive().expect("a message").expect("no end");
    assert_eq!(own.to_vec(6).unwrap(), b"my own");
    let own_at = own.fragments().next().map(|it| it.address());
    order(&control, GIVE_BACK, 0);
    let answer = other.copy(b"answer").unwrap();
    let secret = served.call(&answer).expect("a message");
    let secret_at = secret.fragments().next().map(|it| it.address());
    assert_ne!(own_at, secret_at);
    assert_ne!(own.to_vec(6).unwrap(), b"secret");
    assert_ne!(path.forward(&own).to_vec(6).unwrap(), b"secret");
    // It is the attacker's still.
    order(&control, OWN_CHUNK, 0);
    let again = channel.receive().expect("a message").expect("no end");
    assert_eq!(again.to_vec(6).unwrap(), b"my own");
    drop((channel, control, secret, served, own, again));
    wait(attacker);
    wait(victim);
}

/// A ring that is the server's own, or another peer's, is not the attacker's.
pub fn ring_of_another(backend: Backend) {
    let (domain, path) = start(backend);
    let mut fbuf = path.allocate(16384).expect("memory");
    fbuf.fill(0);
    let address = fbuf.as_ptr().addr() as u64;
    let (here, child) = fork_with_socket(|there| {
        let (_domain, path) = start(backend);
        super::hostile::offer_at(&there, address, &path);
        let mut socket = &there;
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let number = error_of(Channel::connect(&domain, &path, here.into()));
    assert_eq!(number, libc::EPROTO);
    wait(child);
}
