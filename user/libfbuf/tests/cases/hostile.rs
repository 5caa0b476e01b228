//! A peer that breaks every rule: its process writes what it likes into its own fbufs.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use libfbuf::{Backend, Channel, Contents, Fbuf, Mode, PAGE, Path, REGION_SIZE, REGION_START};

use super::{Draws, error_of, fork_with_socket, start, wait};

/// Words of a ring, as `src/ring.rs` has them, and its slots.
const SENT: usize = 16;
pub(super) const MESSAGES: usize = 32;
pub(super) const SLOTS: usize = 256;
const RING: usize = 4 * PAGE;

/// Sends an offer of a ring: three words, with a descriptor.
fn offer(socket: &UnixStream, words: [u64; 3], fd: &impl AsFd) {
    let mut bytes = words.map(u64::to_le_bytes);
    let mut part = libc::iovec {
        iov_base: bytes.as_flattened_mut().as_mut_ptr().cast(),
        iov_len: 24,
    };
    let mut control = [0u64; 4];
    // SAFETY: the header points to memory that lives across the call, with room for a descriptor.
    let sent = unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(4) as _;
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(first)
            .cast::<i32>()
            .write_unaligned(fd.as_fd().as_raw_fd());
        libc::sendmsg(socket.as_raw_fd(), &raw const header, 0)
    };
    assert_eq!(sent, 24);
}

fn magic() -> u64 {
    u64::from_le_bytes(*b"fbufring")
}

/// Offers a ring at an address.
pub(super) fn offer_at(socket: &UnixStream, address: u64, path: &Path) {
    offer(socket, [magic(), address, SLOTS as u64], path);
}

/// A ring whose words are written as the peer likes.
pub(super) struct Ring {
    fbuf: Fbuf,
    sent: usize,
}

impl Ring {
    /// Makes a ring.
    pub(super) fn new(path: &Path) -> Ring {
        let mut fbuf = path.allocate(RING).expect("memory");
        fbuf.fill(0);
        Ring { fbuf, sent: 0 }
    }

    pub(super) fn offer(&self, socket: &UnixStream, path: &Path) {
        offer_at(socket, self.fbuf.as_ptr().addr() as u64, path);
    }

    /// Sends a message with this root without a wake-up.
    pub(super) fn send(&mut self, root: u64) {
        set(&mut self.fbuf, MESSAGES / 2 + 2 * self.sent, root);
        self.sent += 1;
        set(&mut self.fbuf, SENT / 2, self.sent as u64);
    }
}

/// The words of an fbuf.
fn set(fbuf: &mut Fbuf, word: usize, value: u64) {
    fbuf[8 * word..8 * word + 8].copy_from_slice(&value.to_le_bytes());
}

/// A graph: its nodes' words, with addresses relative to the fbuf where the bit `HERE` is set.
const HERE: u64 = 1 << 63;

/// Sends a graph of nodes, whose root is the first, by a ring of one message, and returns the error
/// with which it is received; 0: it is received, with so many bytes.
fn received_as(backend: Backend, nodes: &[[u64; 4]]) -> (i32, u64) {
    let (here, child) = fork_with_socket(|there| {
        let (_domain, path) = start(backend);
        let mut data = path.allocate(nodes.len().max(1) * 32).expect("memory");
        data.fill(0);
        let at = data.as_ptr().addr() as u64;
        for (index, node) in nodes.iter().enumerate() {
            for (word, value) in node.iter().enumerate() {
                let value = match value & HERE {
                    0 => *value,
                    _ => at + (value & !HERE),
                };
                set(&mut data, 4 * index + word, value);
            }
        }
        let mut ring = Ring::new(&path);
        ring.send(at);
        ring.offer(&there, &path);
        // Until the other end is closed.
        let mut socket = &there;
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let (domain, path) = start(backend);
    let mut channel = Channel::connect(&domain, &path, here.into()).expect("a channel");
    let result = match channel.receive() {
        Ok(message) => (0, message.expect("no end").len()),
        Err(why) => (why.raw_os_error().unwrap_or(-1), 0),
    };
    drop(channel);
    wait(child);
    result
}

/// A node for each rule.
pub fn graphs(backend: Backend) {
    let end = (REGION_START + REGION_SIZE) as u64;
    let leaf = |at: u64, len: u64| [1, len, at, 0];
    let pair = |a: usize, b: usize| [2, 0, HERE + 32 * a as u64, HERE + 32 * b as u64];
    let cases: &[(&str, Vec<[u64; 4]>, (i32, u64))] = &[
        ("a leaf", vec![leaf(HERE, 5)], (0, 5)),
        ("an empty one", vec![[0; 4]], (0, 0)),
        (
            "two leaves",
            vec![pair(1, 2), leaf(HERE, 5), leaf(HERE, 6)],
            (0, 11),
        ),
        ("a shared leaf", vec![pair(1, 1), leaf(HERE, 5)], (0, 10)),
        ("a kind", vec![[3, 0, 0, 0]], (libc::EINVAL, 0)),
        (
            "a reserved word",
            vec![[1 | 1 << 32, 1, HERE, 0]],
            (libc::EINVAL, 0),
        ),
        ("a null leaf", vec![leaf(0, 1)], (libc::EFAULT, 0)),
        (
            "a leaf before",
            vec![leaf(REGION_START as u64 - 1, 2)],
            (libc::EFAULT, 0),
        ),
        ("a leaf behind", vec![leaf(end - 1, 2)], (libc::EFAULT, 0)),
        ("a long leaf", vec![leaf(HERE, 1 << 40)], (libc::EFAULT, 0)),
        (
            "a wrapping leaf",
            vec![leaf(HERE, u64::MAX)],
            (libc::EFAULT, 0),
        ),
        ("a null node", vec![[2, 0, 0, 0]], (libc::EFAULT, 0)),
        (
            "a node behind",
            vec![[2, 0, end - 31, end - 31]],
            (libc::EFAULT, 0),
        ),
        (
            "a crooked node",
            vec![[2, 0, HERE + 33, HERE]],
            (libc::EFAULT, 0),
        ),
        (
            "a kernel's node",
            vec![[2, 0, u64::MAX - 31, HERE]],
            (libc::EFAULT, 0),
        ),
        (
            "no chunk",
            vec![[2, 0, end - 64, end - 64]],
            (libc::EFAULT, 0),
        ),
        ("itself", vec![pair(0, 0)], (libc::ELOOP, 0)),
        (
            "a circle",
            vec![pair(1, 2), pair(2, 2), pair(0, 0)],
            (libc::ELOOP, 0),
        ),
    ];
    for (name, nodes, expected) in cases {
        assert_eq!(received_as(backend, nodes), *expected, "{name}");
    }
    // Pairs of pairs: 2^20 leaves in 21 nodes.
    let mut nodes: Vec<_> = (0..20).map(|at| pair(at + 1, at + 1)).collect();
    nodes.push(leaf(HERE, 1));
    assert_eq!(received_as(backend, &nodes), (libc::E2BIG, 0), "many");
    // A chain as deep as may be, and a circle at its end.
    let mut nodes: Vec<_> = (0..30_000).map(|at| pair(at + 1, 30_000)).collect();
    nodes.push(leaf(HERE, 1));
    assert_eq!(received_as(backend, &nodes), (0, 30_001), "deep");
    nodes[29_999] = pair(100, 30_000);
    assert_eq!(
        received_as(backend, &nodes),
        (libc::ELOOP, 0),
        "deep circle"
    );
}

/// Random words that often are nodes.
pub fn random_graphs(backend: Backend) {
    let mut draws = Draws(11);
    for _ in 0..60 {
        let count = 1 + draws.below(40);
        let nodes: Vec<[u64; 4]> = (0..count)
            .map(|_| {
                let mut address = || match draws.below(8) {
                    0 => draws.word(),
                    1 => (REGION_START + draws.below(REGION_SIZE)) as u64 & !7,
                    _ => HERE + 32 * draws.below(count) as u64,
                };
                let (a, b) = (address(), address());
                [draws.below(3) as u64, draws.below(5000) as u64, a, b]
            })
            .collect();
        let (error, _) = received_as(backend, &nodes);
        let expected = [0, libc::EFAULT, libc::EINVAL, libc::ELOOP, libc::E2BIG];
        assert!(expected.contains(&error), "error {error}");
    }
}

/// The peer's ring holds random words, which change while they are read.
pub fn rings(backend: Backend) {
    for seed in 1..40 {
        let (here, child) = fork_with_socket(|there| {
            let (_domain, path) = start(backend);
            let mut ring = path.allocate(RING).expect("memory");
            let mut draws = Draws(seed);
            ring.fill(0);
            let address = ring.as_ptr().addr() as u64;
            offer(&there, [magic(), address, SLOTS as u64], &path);
            there.set_nonblocking(true).expect("a socket");
            // Until the other end is closed.
            let mut byte = [0; 1];
            while !matches!((&there).read(&mut byte), Ok(0)) {
                for _ in 0..200 {
                    let word = match draws.below(3) {
                        0 => draws.below(RING / 8),
                        _ => SENT / 2,
                    };
                    let value = match draws.below(4) {
                        0 => draws.word(),
                        1 => address + 8 * draws.below(RING / 8) as u64,
                        _ => draws.below(300) as u64 | (draws.below(300) as u64) << 32,
                    };
                    set(&mut ring, word, value);
                }
                let _ = (&there).write(&[1]);
            }
        });
        let (domain, path) = start(backend);
        let mut channel = Channel::connect(&domain, &path, here.into()).expect("a channel");
        let message = path.copy(b"message").unwrap();
        let mut held = Vec::new();
        for turn in 0..3000 {
            let _ = channel.try_send(&message);
            if let Ok(Some(message)) = channel.try_receive() {
                let _ = message.to_vec(100_000);
                held.push(message);
            }
            channel.arm();
            if turn % 64 == 0 {
                held.clear();
            }
        }
        drop(channel);
        assert_eq!(message.to_vec(7).unwrap(), b"message");
        wait(child);
    }
}

/// Bad offers: other words, rings outside the region, descriptors of no path.
pub fn offers(backend: Backend) {
    let (domain, path) = start(backend);
    let other = Path::new(&domain, Mode::CACHED_VOLATILE, 1).expect("a path");
    let refused = |words: [u64; 3], fd: &dyn Fn() -> OwnedFd, numbers: &[i32]| {
        let (here, there) = UnixStream::pair().expect("sockets");
        offer(&there, words, &fd());
        let number = error_of(Channel::connect(&domain, &path, here.into()));
        assert!(numbers.contains(&number), "{words:x?}: error {number}");
    };
    let of_path = || other.as_fd().try_clone_to_owned().expect("a descriptor");
    let of_file = || {
        std::fs::File::open("/proc/self/exe")
            .expect("a file")
            .into()
    };
    let start = REGION_START as u64;
    let slots = SLOTS as u64;
    for words in [
        [0, start, slots],
        [magic(), 0, slots],
        [magic(), start - 64, slots],
        [magic(), start + REGION_SIZE as u64 - 64, slots],
        [magic(), start + 8, slots],
        [magic(), start, 0],
        [magic(), start, 100],
        [magic(), start, u64::MAX],
        [magic(), u64::MAX - 63, slots],
    ] {
        refused(words, &of_path, &[libc::EPROTO]);
    }
    let numbers = [libc::EINVAL, libc::ENOTTY];
    refused([magic(), start, slots], &of_file, &numbers);
    let (here, there) = UnixStream::pair().expect("sockets");
    drop(there);
    assert!(Channel::connect(&domain, &path, here.into()).is_err());
}

/// A ring in a chunk that the peer gives back: nothing comes.
pub fn no_ring(backend: Backend) {
    let (here, child) = fork_with_socket(|there| {
        let (_domain, path) = start(backend);
        let ring = Ring::new(&path);
        ring.offer(&there, &path);
        // The other's offer, and its word that it has taken this one.
        let mut bytes = [0; 25];
        (&there).read_exact(&mut bytes).expect("an offer");
        drop(ring);
        path.trim();
        (&there).write_all(b"d").expect("a byte");
        (&there).read_exact(&mut bytes[..1]).expect("a doorbell");
    });
    let doorbell = here.try_clone().expect("a descriptor");
    let (domain, path) = start(backend);
    let mut channel = Channel::connect(&domain, &path, here.into()).expect("a channel");
    (&doorbell).write_all(b"d").expect("a byte");
    (&doorbell).read_exact(&mut [0]).expect("it is done");
    channel.send(&path.copy(b"text").unwrap()).expect("a send");
    assert_eq!(error_of(channel.try_receive()), libc::EAGAIN);
    (&doorbell).write_all(b"d").expect("a byte");
    assert_eq!(error_of(channel.receive()), libc::ECONNRESET);
    wait(child);
}
