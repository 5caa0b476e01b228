//! A peer that is killed after each store to its ring: the other side gets each message whole or
//! not at all, then the end, and its memory back.

use std::arch::asm;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use libfbuf::{Backend, CHUNK, Channel, Contents, Domain, Mode, Path};

use super::hostile::{MESSAGES, SLOTS};
use super::{error_of, fork_with_socket, start, status_of};

/// Words of the ring that change: those before the messages, four messages, four notices.
const WATCHED: usize = MESSAGES / 2 + 8 + 4;
const NOTICES: usize = MESSAGES / 2 + 2 * SLOTS;
/// Bytes of a ring.
const RING: usize = 4 * MESSAGES + 24 * SLOTS;

/// The ring's address, what its words were, and how often they may change still.
static RING_AT: AtomicUsize = AtomicUsize::new(0);
static SEEN: [AtomicUsize; WATCHED] = [const { AtomicUsize::new(0) }; WATCHED];
static LEFT: AtomicU32 = AtomicU32::new(0);

/// Returns the words of the ring that may have changed.
fn words() -> impl Iterator<Item = usize> {
    let words = (0..MESSAGES / 2 + 8).chain(NOTICES..NOTICES + 4);
    words.map(|word| {
        let at = RING_AT.load(Relaxed) + 8 * word;
        // SAFETY: the ring is mapped while this process takes single steps.
        unsafe { std::ptr::with_exposed_provenance::<usize>(at).read_volatile() }
    })
}

/// After each instruction: counts those that have changed the ring, and ends the process.
extern "C" fn stepped(_: libc::c_int) {
    let mut is_changed = false;
    for (seen, word) in SEEN.iter().zip(words()) {
        is_changed |= seen.swap(word, Relaxed) != word;
    }
    if is_changed && LEFT.fetch_sub(1, Relaxed) == 1 {
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

/// Runs `body`, and kills this process after so many changes of its ring.
fn step(ring: usize, changes: u32, body: impl FnOnce()) {
    RING_AT.store(ring, Relaxed);
    LEFT.store(changes, Relaxed);
    for (seen, word) in SEEN.iter().zip(words()) {
        seen.store(word, Relaxed);
    }
    let handler: extern "C" fn(libc::c_int) = stepped;
    // SAFETY: the handler touches nothing but its own words.
    unsafe { libc::signal(libc::SIGTRAP, handler as libc::sighandler_t) };
    // SAFETY: sets the trap flag, which the signal's handler does not have.
    unsafe { asm!("pushfq", "or dword ptr [rsp], 0x100", "popfq") };
    body();
    // SAFETY: clears it.
    unsafe { asm!("pushfq", "and dword ptr [rsp], 0xfffffeff", "popfq") };
}

/// Sends, calls, frees, sends and closes; killed after so many changes of its ring.
fn victim(domain: &Domain, path: &Path, socket: std::os::unix::net::UnixStream, changes: u32) {
    // The next fbuf of this size is the ring.
    let ring = path.allocate(RING).expect("memory").as_ptr().addr();
    let mut channel = Channel::connect(domain, path, socket.into()).expect("a channel");
    // The other side has joined.
    drop(channel.receive().expect("a message").expect("no end"));
    let one = path.copy(b"one").unwrap();
    let two = path.copy(b"two ").unwrap().append(b"parts").unwrap();
    step(ring, changes, || {
        channel.send(&one).expect("a send");
        let answer = channel.call(&two).expect("an answer");
        assert_eq!(answer.to_vec(6).expect("bytes"), b"answer");
        drop(answer);
        channel.send(&one).expect("a send");
        drop(channel);
    });
}

/// A peer is killed after each store.
pub fn each_store(backend: Backend) {
    let texts: [&[u8]; 3] = [b"one", b"two parts", b"one"];
    let mut changes = 1;
    loop {
        let (here, child) = fork_with_socket(|there| {
            let (domain, path) = start(backend);
            victim(&domain, &path, there, changes);
        });
        let domain = Domain::enter(backend).expect("the region");
        let path = Path::new(&domain, Mode::CACHED_VOLATILE, 1).expect("a path");
        let mut channel = Channel::connect(&domain, &path, here.into()).expect("a channel");
        let answer = path.copy(b"answer").unwrap();
        channel.send(&answer).expect("a send");
        let mut count = 0;
        let end = loop {
            let message = match channel.receive() {
                Ok(Some(message)) => message,
                end => break end,
            };
            assert_eq!(message.to_vec(9).expect("bytes"), texts[count]);
            count += 1;
            if count == 2
                && let Err(why) = channel.send(&answer)
            {
                let number = why.raw_os_error();
                assert!(number.is_some_and(|it| [libc::ECONNRESET, libc::EPIPE].contains(&it)));
            }
        };
        let status = status_of(child);
        let is_closed = end.as_ref().is_ok_and(Option::is_none);
        if is_closed {
            assert_eq!(count, 3, "messages of {changes} stores are lost");
        } else {
            assert_eq!(error_of(end), libc::ECONNRESET, "after {changes} stores");
            assert_eq!(channel.in_flight(), 0, "after {changes} stores");
        }
        // All of it is free.
        drop((channel, answer));
        path.trim();
        drop(path.allocate(CHUNK).expect("a whole chunk"));
        match status {
            libc::SIGKILL => changes += 1,
            status => {
                assert_eq!((status, is_closed), (0, true));
                break;
            }
        }
    }
    // Each message has two words and a count, as each notice has one and a count; and the end.
    assert!(changes > 3 * 3 + 2 + 1, "{changes} stores");
}
