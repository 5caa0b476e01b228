//! Two processes and a channel.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;

use libfbuf::{Backend, Channel, Contents, Domain, Received};

use super::aggregates::step;
use super::{Draws, error_of, fork, fork_with_socket, start, status_of, wait, with_peer};

const MOST: usize = 1 << 20;

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn next(channel: &mut Channel) -> Received {
    channel.receive().expect("a message").expect("no end")
}

/// The peer sends a hash of what came, and then what came itself, cut into two and joined.
pub fn random(backend: Backend) {
    let (_domain, path, mut channel, child) = with_peer(backend, |_, path, mut channel| {
        while let Some(message) = channel.receive().expect("a message") {
            let bytes = message.to_vec(MOST).expect("bytes");
            let hash = hash_of(&bytes).to_le_bytes();
            channel.send(&path.copy(&hash).unwrap()).expect("a send");
            let (a, b) = path
                .forward(&message)
                .split(bytes.len() as u64 / 3)
                .unwrap();
            channel.send(&a.join(&b).unwrap()).expect("a send");
            channel.send(&path.forward(&message)).expect("a send");
        }
    });
    let mut draws = Draws(3);
    let mut pool = Vec::new();
    for _ in 0..500 {
        let (aggregate, model) = step(&path, &pool, &mut draws);
        let hash = channel.call(&aggregate).expect("an answer");
        drop(aggregate);
        assert_eq!(hash.to_vec(8).unwrap(), hash_of(&model).to_le_bytes());
        for _ in 0..2 {
            assert_eq!(next(&mut channel).to_vec(MOST).unwrap(), model);
        }
        if pool.len() == 20 {
            pool.swap_remove(draws.below(20));
        }
        if model.len() < 30_000 {
            pool.push((path.copy(&model).unwrap(), model));
        }
    }
    drop(channel);
    wait(child);
}

/// The peer holds up to 200 messages, and frees them in any order.
pub fn order(backend: Backend) {
    let (_domain, path, mut channel, child) = with_peer(backend, |_, _, mut channel| {
        let mut draws = Draws(5);
        let mut held: Vec<(u64, Received)> = Vec::new();
        let mut number = 0;
        while let Some(message) = channel.receive().expect("a message") {
            held.push((number, message));
            number += 1;
            if number == 5000 {
                held.clear();
            }
            if held.len() == 200 {
                for _ in 0..draws.below(200) {
                    let (number, message) = held.swap_remove(draws.below(held.len()));
                    let bytes = message.to_vec(MOST).unwrap();
                    assert_eq!(bytes[..8], number.to_le_bytes());
                    assert!(bytes[8..].iter().all(|it| *it == number as u8));
                }
            }
        }
        assert_eq!(number, 5000);
    });
    let mut draws = Draws(6);
    for number in 0..5000u64 {
        let mut fbuf = path.allocate(8 + draws.below(9000)).unwrap();
        let len = 8 + draws.below(fbuf.len() - 7);
        fbuf[..8].copy_from_slice(&number.to_le_bytes());
        fbuf[8..len].fill(number as u8);
        let message = libfbuf::Aggregate::new(fbuf, len).unwrap();
        channel.send(&message).expect("a send");
    }
    channel.finish().expect("all freed or closed");
    wait(child);
}

/// Each waits for the other, and wakes it by the same call.
pub fn calls(backend: Backend) {
    let (_domain, path, mut channel, child) = with_peer(backend, |_, path, mut channel| {
        let mut request = channel.receive();
        while let Some(message) = request.expect("a message") {
            request = channel.answer(&path.forward(&message));
        }
    });
    for number in 0..2000u64 {
        let answer = channel.call(&path.copy(&number.to_le_bytes()).unwrap());
        let answer = answer.expect("an answer").to_vec(8).unwrap();
        assert_eq!(answer, number.to_le_bytes());
    }
    drop(channel);
    wait(child);
}

/// Waits at the channel's descriptor.
fn await_ready(channel: &mut Channel) {
    if channel.arm() {
        return;
    }
    let mut entry = libc::pollfd {
        fd: channel.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which lives across the call.
    assert_eq!(unsafe { libc::poll(&raw mut entry, 1, -1) }, 1);
}

/// As [`calls`], by `poll`.
pub fn poll(backend: Backend) {
    let polled = |channel: &mut Channel| loop {
        match channel.try_receive() {
            Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => await_ready(channel),
            result => return result.expect("a message"),
        }
    };
    let (_domain, path, mut channel, child) = with_peer(backend, |_, path, mut channel| {
        while let Some(message) = polled(&mut channel) {
            channel.send(&path.forward(&message)).expect("a send");
        }
    });
    for number in 0..500u64 {
        channel
            .send(&path.copy(&number.to_le_bytes()).unwrap())
            .expect("a send");
        let answer = polled(&mut channel).expect("no end").to_vec(8).unwrap();
        assert_eq!(answer, number.to_le_bytes());
    }
    drop(channel);
    wait(child);
}

/// What was sent before the end is received before the end; then sends fail.
pub fn closed(backend: Backend) {
    let (_domain, path, mut channel, child) = with_peer(backend, |_, path, mut channel| {
        for text in ["one", "two"] {
            channel
                .send(&path.copy(text.as_bytes()).unwrap())
                .expect("a send");
        }
        // The other has read them.
        assert_eq!(next(&mut channel).to_vec(MOST).unwrap(), b"done");
    });
    assert_eq!(next(&mut channel).to_vec(MOST).unwrap(), b"one");
    let two = next(&mut channel);
    channel.send(&path.copy(b"done").unwrap()).expect("a send");
    assert!(channel.receive().expect("an end").is_none());
    assert!(channel.receive().expect("an end").is_none());
    assert_eq!(error_of(channel.send(&path.empty())), libc::EPIPE);
    assert_eq!(channel.in_flight(), 0);
    wait(child);
    // The memory of a process that has ended.
    assert_eq!(two.to_vec(MOST).unwrap(), b"two");
}

/// A peer that is killed holds nothing, and its last message stays.
pub fn killed(backend: Backend) {
    let (_domain, path, mut channel, child) = with_peer(backend, |_, path, mut channel| {
        let _held = next(&mut channel);
        channel
            .send(&path.copy(b"last words").unwrap())
            .expect("a send");
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    channel
        .send(&path.copy(b"hold this").unwrap())
        .expect("a send");
    let last = next(&mut channel);
    assert_eq!(error_of(channel.receive()), libc::ECONNRESET);
    assert_eq!(error_of(channel.send(&path.empty())), libc::ECONNRESET);
    assert_eq!(channel.in_flight(), 0);
    assert_eq!(status_of(child), libc::SIGKILL);
    assert_eq!(last.to_vec(MOST).unwrap(), b"last words");
    drop(channel);
    assert_eq!(last.to_vec(MOST).unwrap(), b"last words");
}

/// A peer is killed while a send waits for it to free messages: what it sent is still received.
pub fn killed_full(backend: Backend) {
    let (_domain, path, mut channel, child) = with_peer(backend, |_, path, mut channel| {
        let mut held = Vec::new();
        for text in ["one", "two"] {
            channel
                .send(&path.copy(text.as_bytes()).unwrap())
                .expect("a send");
            held.push(next(&mut channel));
        }
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    let message = path.copy(b"hold this").unwrap();
    let error = loop {
        if let Err(why) = channel.send(&message) {
            break why;
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
    assert_eq!(channel.in_flight(), 0);
    for text in ["one", "two"] {
        let received = next(&mut channel).to_vec(MOST).unwrap();
        assert_eq!(received, text.as_bytes());
    }
    assert_eq!(error_of(channel.receive()), libc::ECONNRESET);
    assert_eq!(status_of(child), libc::SIGKILL);
}

/// Two processes make two channels of the same two paths; the second works on when the first ends.
pub fn two_channels(backend: Backend) {
    let (mut sockets, theirs): (Vec<_>, Vec<_>) =
        (0..2).map(|_| UnixStream::pair().expect("sockets")).unzip();
    let mut theirs = Some(theirs);
    let child = fork(|| {
        let theirs = theirs.take().expect("sockets");
        sockets.clear();
        let (domain, path) = start(backend);
        let connect = |it: UnixStream| Channel::connect(&domain, &path, it.into());
        let mut channels: Vec<_> = theirs.into_iter().map(connect).collect();
        let mut second = channels.pop().expect("two").expect("a channel");
        let mut first = channels.pop().expect("two").expect("a channel");
        assert!(first.receive().expect("an end").is_none());
        drop(first);
        while let Some(message) = second.receive().expect("a message") {
            second.send(&path.forward(&message)).expect("a send");
        }
    });
    drop(theirs.take());
    let (domain, path) = start(backend);
    let connect = |it: UnixStream| Channel::connect(&domain, &path, it.into());
    let mut channels: Vec<_> = sockets.drain(..).map(connect).collect();
    let mut second = channels.pop().expect("two").expect("a channel");
    drop(channels);
    for text in ["one", "two"] {
        let answer = second.call(&path.copy(text.as_bytes()).unwrap());
        let answer = answer.expect("an answer").to_vec(MOST);
        assert_eq!(answer.unwrap(), text.as_bytes());
    }
    drop(second);
    wait(child);
}

/// A child inherits nothing of the region, and enters it by itself.
pub fn children(backend: Backend) {
    let (_domain, path) = start(backend);
    let mut fbuf = path.allocate(1).expect("a page");
    fbuf[0] = 7;
    let address = fbuf.as_ptr().addr();
    wait(fork(|| {
        let mut byte = 0u8;
        let page = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: asks about a page, into a byte.
        assert_eq!(unsafe { libc::mincore(page, 1, &raw mut byte) }, -1);
        Domain::enter(backend).expect("the region");
        // SAFETY: the region may be read anywhere.
        assert_eq!(unsafe { page.cast::<u8>().read_volatile() }, 0);
    }));
    assert_eq!(fbuf[0], 7);
}

/// A child of a process that has entered becomes its peer.
pub fn child_of_domain(backend: Backend) {
    let (domain, path) = start(backend);
    let _other = path.copy(b"other").unwrap();
    let (here, child) = fork_with_socket(|there| {
        let (domain, path) = start(backend);
        let mut channel = Channel::connect(&domain, &path, there.into()).expect("a channel");
        let message = next(&mut channel);
        channel.send(&path.forward(&message)).expect("a send");
        drop(message);
        channel.finish().expect("all freed");
    });
    let mut channel = Channel::connect(&domain, &path, here.into()).expect("a channel");
    let answer = channel.call(&path.copy(b"text").unwrap());
    assert_eq!(answer.expect("an answer").to_vec(MOST).unwrap(), b"text");
    drop(channel);
    wait(child);
}

/// A receiver's write ends it.
pub fn read_only(backend: Backend) {
    let (_domain, path, mut channel, child) = with_peer(backend, |_, _, mut channel| {
        let message = next(&mut channel);
        let address = message.fragments().next().expect("bytes").address();
        let page = std::ptr::with_exposed_provenance_mut::<libc::c_void>(address & !4095);
        // SAFETY: nothing depends on the rights of this page.
        let raised = unsafe { libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(raised, -1, "mprotect made it writable");
        // SAFETY: it must be refused.
        unsafe { page.cast::<u8>().write_volatile(1) };
    });
    let message = path.copy(b"text").unwrap();
    channel.send(&message).expect("a send");
    assert_eq!(status_of(child) & 0x7f, libc::SIGSEGV);
    assert_eq!(message.to_vec(4).unwrap(), b"text");
}
