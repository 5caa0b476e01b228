//! Messages through the kernel.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use libfbuf::{Aggregate, Backend, CHUNK, Channel, Contents, Domain, Member, Mode, PAGE, Path, To};

use super::aggregates::step;
use super::{Draws, fork, fork_with_socket, status_of, wait};

const MOST: usize = 1 << 20;

const MODES: [Mode; 4] = [
    Mode::CACHED_VOLATILE,
    Mode {
        is_uncached: true,
        is_secured: false,
    },
    Mode {
        is_uncached: false,
        is_secured: true,
    },
    Mode {
        is_uncached: true,
        is_secured: true,
    },
];

const SECURED: Mode = MODES[2];

/// Enters and makes a path.
fn originate(backend: Backend, mode: Mode, limit: usize) -> (Domain, Path) {
    let domain = Domain::enter(backend).expect("the region");
    let path = Path::new(&domain, mode, limit).expect("a path");
    assert_eq!(path.mode(), mode);
    (domain, path)
}

/// Starts a child that attaches by the descriptor that it inherits, and returns once it has; the
/// socket is between both.
fn receiver(
    backend: Backend,
    path: &Path,
    body: impl FnOnce(Domain, Member, UnixStream),
) -> (libc::pid_t, UnixStream) {
    let (mut here, child) = fork_with_socket(|mut there| {
        let domain = Domain::enter(backend).expect("the region");
        let fd = path.as_fd().try_clone_to_owned().expect("a descriptor");
        let member = Member::attach(&domain, fd).expect("a membership");
        there.write_all(b"a").expect("a byte");
        body(domain, member, there);
    });
    here.read_exact(&mut [0]).expect("an attached child");
    (child, here)
}

/// Random aggregates in each mode, through memory for a few of them.
pub fn each_mode(backend: Backend) {
    for mode in MODES {
        let (_domain, path) = originate(backend, mode, 2);
        let (child, mut line) = receiver(backend, &path, |_, member, mut line| {
            while let Some(message) = member.receive().expect("a message") {
                let bytes = message.contents().to_vec(MOST).expect("bytes");
                drop(message);
                line.write_all(&(bytes.len() as u64).to_le_bytes())
                    .expect("a line");
                line.write_all(&bytes).expect("a line");
            }
        });
        let mut draws = Draws(9);
        let mut pool = Vec::new();
        for _ in 0..150 {
            let (aggregate, model) = step(&path, &pool, &mut draws);
            path.send(To::All, &aggregate).expect("a send");
            let mut len = [0; 8];
            line.read_exact(&mut len).expect("a length");
            let mut bytes = vec![0; u64::from_le_bytes(len) as usize];
            line.read_exact(&mut bytes).expect("bytes");
            assert_eq!(bytes, model, "{mode:?}");
            if pool.len() == 10 {
                pool.swap_remove(draws.below(10));
            }
            if model.len() < 20_000 {
                pool.push((aggregate, model));
            }
        }
        drop(pool);
        path.collect().expect("notices");
        // All that was sent is free again.
        let both: Vec<_> = (0..2).map(|_| path.allocate(CHUNK - 8 * PAGE)).collect();
        assert!(both.iter().all(Result::is_ok), "{mode:?}");
        drop(both);
        drop(path);
        wait(child);
    }
}

/// Pages of which a notice waits are sent again: they are not free, whenever that is read.
pub fn sent_again(backend: Backend) {
    for mode in [MODES[0], MODES[1]] {
        let (_domain, path) = originate(backend, mode, 1);
        let (child, mut line) = receiver(backend, &path, |_, member, mut line| {
            for expected in [b"first ", b"second"] {
                // The second waits until more was written to what is free.
                line.read_exact(&mut [0]).expect("a byte");
                let message = member.receive().expect("a message").expect("no end");
                assert_eq!(message.contents().to_vec(MOST).expect("bytes"), expected);
                drop(message);
                line.write_all(b"f").expect("a byte");
            }
        });
        let all = path.copy(b"first second").expect("memory");
        let (first, second) = all.split(6).expect("nodes");
        path.send(To::All, &first).expect("a send");
        line.write_all(b"r").expect("a byte");
        line.read_exact(&mut [0]).expect("the first is free");
        path.send(To::All, &second).expect("a send");
        drop((all, first, second));
        path.collect().expect("notices");
        let mut others = Vec::new();
        for _ in 0..16 {
            let other = path.copy(&[b'x'; 1000]).expect("memory");
            others.push(other.slice(0..9).expect("a node"));
        }
        line.write_all(b"r").expect("a byte");
        line.read_exact(&mut [0]).expect("the second was read");
        drop((others, path));
        wait(child);
    }
}

/// The originator cannot write what it has sent, until it is freed.
pub fn secured(backend: Backend) {
    let (_domain, path) = originate(backend, SECURED, 1);
    let (child, mut line) = receiver(backend, &path, |_, member, mut line| {
        let mut message = member.receive().expect("a message").expect("no end");
        // The originator has none of its rights.
        message.secure().expect("a no-op");
        let bytes = message
            .contents()
            .fragments()
            .next()
            .and_then(|it| it.bytes());
        assert_eq!(bytes, Some(&b"text"[..]));
        line.read_exact(&mut [0]).expect("a byte");
        drop(message);
        line.write_all(b"f").expect("a byte");
        line.read_exact(&mut [0]).expect("a byte");
    });
    let message = path.copy(b"text").expect("memory");
    path.send(To::All, &message).expect("a send");
    let address = message.fragments().next().expect("bytes").address();
    let to = std::ptr::with_exposed_provenance_mut::<u8>(address);
    // A handler goes on without the write.
    static FAULTS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    extern "C" fn on_fault(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        FAULTS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the kernel's context of this signal; the faulting store has three bytes.
        unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] += 3 };
    }
    // SAFETY: installs the handler, and tries a store of three bytes (`mov [rax], 1`).
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut());
        std::arch::asm!("mov byte ptr [rax], 1", in("rax") to);
    }
    assert_eq!(FAULTS.load(std::sync::atomic::Ordering::Relaxed), 1);
    drop(message);
    line.write_all(b"g").expect("a byte");
    line.read_exact(&mut [0]).expect("a byte");
    path.collect().expect("notices");
    // The same memory, written again.
    let mut again = path.allocate(PAGE).expect("memory");
    again.fill(1);
    assert_eq!(FAULTS.load(std::sync::atomic::Ordering::Relaxed), 1);
    line.write_all(b"g").expect("a byte");
    wait(child);
}

/// A receiver takes the right to write of a volatile path's message.
pub fn secures(backend: Backend) {
    let (_domain, path) = originate(backend, Mode::CACHED_VOLATILE, 1);
    let (child, mut line) = receiver(backend, &path, |_, member, mut line| {
        let mut message = member.receive().expect("a message").expect("no end");
        let first = message.contents().fragments().next().expect("bytes");
        assert!(first.bytes().is_none());
        message.secure().expect("secured");
        line.write_all(b"s").expect("a byte");
        line.read_exact(&mut [0]).expect("a byte");
        let first = message.contents().fragments().next().expect("bytes");
        assert_eq!(first.bytes(), Some(&b"text"[..]));
    });
    let message = path.copy(b"text").expect("memory");
    path.send(To::All, &message).expect("a send");
    line.read_exact(&mut [0]).expect("a byte");
    let address = message.fragments().next().expect("bytes").address();
    let is_refused = is_write_refused(address);
    line.write_all(b"w").expect("a byte");
    assert!(is_refused, "the originator wrote a secured message");
    wait(child);
}

/// Whether the kernel refuses to write to this address for a `read`.
fn is_write_refused(address: usize) -> bool {
    let (mut here, there) = UnixStream::pair().expect("sockets");
    here.write_all(b"x").expect("a byte");
    let to = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the kernel refuses, or writes a byte of an fbuf that is only read by volatile reads.
    let result = unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(&there), to, 1) };
    result == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// A receiver sends a message on by a path of its own.
pub fn sent_on(backend: Backend) {
    for mode in MODES {
        let (_domain, path) = originate(backend, mode, 1);
        let (middle, mut line) = receiver(backend, &path, |domain, member, mut line| {
            let second = Path::new(&domain, mode, 1).expect("a path");
            let (last, mut end) = receiver(backend, &second, |_, member, mut line| {
                let message = member.receive().expect("a message").expect("no end");
                // The first message was freed by the middle.
                line.read_exact(&mut [0]).expect("a byte");
                let bytes = message.contents().to_vec(MOST).expect("bytes");
                assert_eq!(bytes, b"header data", "{mode:?}");
            });
            let message = member.receive().expect("a message").expect("no end");
            let all = second.forward(message.contents()).prepend(b"header ");
            second.send(To::All, &all.expect("memory")).expect("a send");
            drop(message);
            end.write_all(b"g").expect("a byte");
            wait(last);
            line.write_all(b"d").expect("a byte");
        });
        path.send(To::All, &path.copy(b"data").expect("memory"))
            .expect("a send");
        line.read_exact(&mut [0]).expect("a byte");
        wait(middle);
    }
}

/// Two messages of the same pages, freed one after the other.
pub fn sent_twice(backend: Backend) {
    let (_domain, path) = originate(backend, SECURED, 1);
    let (child, mut line) = receiver(backend, &path, |_, member, mut line| {
        let first = member.receive().expect("a message").expect("no end");
        let second = member.receive().expect("a message").expect("no end");
        drop(first);
        line.write_all(b"1").expect("a byte");
        line.read_exact(&mut [0]).expect("a byte");
        assert_eq!(second.contents().to_vec(MOST).expect("bytes"), b"text");
        drop(second);
        line.write_all(b"2").expect("a byte");
        line.read_exact(&mut [0]).expect("a byte");
    });
    let message = path.copy(b"text").expect("memory");
    path.send(To::All, &message).expect("a send");
    path.send(To::All, &message).expect("a send");
    let address = message.fragments().next().expect("bytes").address();
    drop(message);
    line.read_exact(&mut [0]).expect("a byte");
    path.collect().expect("notices");
    let other = path.allocate(PAGE).expect("memory");
    assert_ne!(other.as_ptr().addr(), address, "it is still held");
    line.write_all(b"g").expect("a byte");
    line.read_exact(&mut [0]).expect("a byte");
    path.collect().expect("notices");
    let again = path.allocate(PAGE).expect("memory");
    assert_eq!(again.as_ptr().addr(), address, "it was freed last");
    line.write_all(b"g").expect("a byte");
    wait(child);
}

/// Messages of a killed receiver are free.
pub fn receiver_killed(backend: Backend) {
    for mode in MODES {
        let (_domain, path) = originate(backend, mode, 1);
        let (child, mut line) = receiver(backend, &path, |_, member, mut line| {
            let _message = member.receive().expect("a message").expect("no end");
            line.read_exact(&mut [0]).expect("a byte");
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
        // One is received, another waits.
        for _ in 0..2 {
            let fbuf = path.allocate(CHUNK / 4).expect("memory");
            let message = Aggregate::new(fbuf, CHUNK / 4).expect("a node");
            path.send(To::All, &message).expect("a send");
        }
        line.write_all(b"g").expect("a byte");
        assert_eq!(status_of(child), libc::SIGKILL);
        path.collect().expect("notices");
        let mut all = path.allocate(CHUNK / 2).expect("the memory of both");
        all.fill(1);
    }
}

/// What was sent before the originator's end is received, and stays.
pub fn originator_ends(backend: Backend) {
    let (mut here, mut there) = UnixStream::pair().expect("sockets");
    let child = fork(|| {
        let (_domain, path) = originate(backend, Mode::CACHED_VOLATILE, 1);
        libfbuf::send_path(there.as_fd(), &path).expect("a descriptor");
        there.read_exact(&mut [0]).expect("a byte");
        for text in ["one", "two"] {
            path.send(To::All, &path.copy(text.as_bytes()).unwrap())
                .expect("a send");
        }
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    let domain = Domain::enter(backend).expect("the region");
    let fd = libfbuf::receive_path(here.as_fd()).expect("a descriptor");
    let member = Member::attach(&domain, fd).expect("a membership");
    here.write_all(b"g").expect("a byte");
    assert_eq!(status_of(child), libc::SIGKILL);
    let one = member.receive().expect("a message").expect("no end");
    let two = member.receive().expect("a message").expect("no end");
    assert!(member.receive().expect("an end").is_none());
    assert_eq!(one.contents().to_vec(MOST).expect("bytes"), b"one");
    drop(one);
    assert_eq!(two.contents().to_vec(MOST).expect("bytes"), b"two");
}

/// Requests and answers, each by one system call.
pub fn called(backend: Backend) {
    for mode in MODES {
        let (domain, path) = originate(backend, mode, 1);
        let (child, line) = receiver(backend, &path, |domain, member, line| {
            let own = Path::new(&domain, mode, 1).expect("a path");
            libfbuf::send_path(line.as_fd(), &own).expect("a descriptor");
            (&line).read_exact(&mut [0]).expect("a byte");
            while let Some(request) = member.receive().expect("a message") {
                let bytes = request.contents().to_vec(MOST).expect("bytes");
                drop(request);
                own.send(To::All, &own.copy(&bytes).expect("memory"))
                    .expect("a send");
            }
        });
        let fd = libfbuf::receive_path(line.as_fd()).expect("a descriptor");
        let answers = Member::attach(&domain, fd).expect("a membership");
        (&line).write_all(b"g").expect("a byte");
        let mut draws = Draws(4);
        for _ in 0..200 {
            let len = draws.below(20_000);
            let bytes = draws.bytes(len);
            let request = path.copy(&bytes).expect("memory");
            let answer = path.call(To::All, &request, &answers).expect("an answer");
            let answer = answer.expect("no end").contents().to_vec(MOST);
            assert_eq!(answer.expect("bytes"), bytes, "{mode:?}");
        }
        drop(path);
        wait(child);
    }
}

/// Memory of free fbufs goes back, whatever was sent in them.
pub fn trimmed(backend: Backend) {
    for mode in MODES {
        let (_domain, path) = originate(backend, mode, 1);
        let (child, line) = receiver(backend, &path, |_, member, line| {
            while let Some(message) = member.receive().expect("a message") {
                drop(message);
                (&line).write_all(b"f").expect("a byte");
            }
        });
        let kept = path.copy(b"kept").expect("memory");
        let mut fbuf = path.allocate(8 * PAGE).expect("memory");
        fbuf.fill(1);
        path.send(To::All, &Aggregate::new(fbuf, 8 * PAGE).expect("a node"))
            .expect("a send");
        (&line).read_exact(&mut [0]).expect("a byte");
        path.collect().expect("notices");
        path.trim();
        let fbuf = path.allocate(8 * PAGE).expect("memory");
        assert!(fbuf.iter().all(|it| *it == 0), "{mode:?}");
        assert_eq!(kept.to_vec(4).expect("bytes"), b"kept");
        drop((path, fbuf, kept));
        wait(child);
    }
}

/// A ring neither maps pages for each message nor protects them: a path of another mode has none.
pub fn other_modes(backend: Backend) {
    for mode in &MODES[1..] {
        let (domain, path) = originate(backend, *mode, 1);
        let (here, there) = UnixStream::pair().expect("sockets");
        drop(there);
        let error = Channel::connect(&domain, &path, here.into()).expect_err("an error");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{mode:?}");
    }
}

/// A child that has entered attaches by the descriptor that it inherits, and stays attached when it
/// drops its parent's path.
pub fn dropped_in_child(backend: Backend) {
    let (_domain, path) = originate(backend, Mode::CACHED_VOLATILE, 1);
    let (mut here, mut there) = UnixStream::pair().expect("sockets");
    let mut parents = Some(path);
    let child = fork(|| {
        let path = parents.take().expect("a path");
        let domain = Domain::enter(backend).expect("the region");
        let fd = path.as_fd().try_clone_to_owned().expect("a descriptor");
        let member = Member::attach(&domain, fd).expect("a membership");
        drop(path);
        there.write_all(b"a").expect("a byte");
        let message = member.receive().expect("a message").expect("no end");
        assert_eq!(message.contents().to_vec(MOST).expect("bytes"), b"text");
    });
    here.read_exact(&mut [0]).expect("an attached child");
    let path = parents.take().expect("a path");
    let sent = path.send(To::All, &path.copy(b"text").expect("memory"));
    wait(child);
    sent.expect("a send");
}
