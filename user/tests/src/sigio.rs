//! O_ASYNC: files that send a signal to their owner when they are ready.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("sigio: a pipe's ends", pipes),
    ("sigio: the signal is there when the call returns", at_once),
    ("sigio: sockets", sockets),
    ("sigio: terminals", terminals),
    ("sigio: inotify", notices),
    ("sigio: owners", owners),
    ("sigio: only to whom one may send signals", permission),
    ("sigio: no room for a signal with particulars", overflow),
    ("sigio: what is refused", refusals),
    ("sigio: many writers, no byte unnoticed", storm),
];

const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;
const F_OWNER_TID: c_int = 0;
const F_OWNER_PID: c_int = 1;
const F_OWNER_PGRP: c_int = 2;
const FIOSETOWN: u64 = 0x8901;
const FIOGETOWN: u64 = 0x8903;

const POLL_IN: c_int = 1;
const POLL_OUT: c_int = 2;
const POLL_HUP: c_int = 6;
const SI_KERNEL: c_int = 0x80;

/// `f_owner_ex`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
struct Owner {
    kind: c_int,
    id: c_int,
}

/// A signal's code, readiness and descriptor.
type Said = (c_int, i64, c_int);

fn signal() -> c_int {
    libc::SIGRTMIN()
}

/// Takes the next of the blocked `signals` within so many milliseconds.
fn take(signals: &[c_int], ms: i64) -> Result<Option<(c_int, Said)>> {
    let info = take_signal(&block(signals)?, ms)?;
    Ok(info.map(|info| {
        // SAFETY: `si_band` and `si_fd` stand behind the code.
        let words = unsafe { &*(&raw const info).cast::<[u64; 16]>() };
        (
            info.si_signo,
            (info.si_code, words[2] as i64, words[3] as c_int),
        )
    }))
}

/// Checks that the next queued signal is this one and is pending now.
fn expect(wanted: Option<Said>) -> Outcome {
    let found = take(&[signal()], 0)?.map(|found| found.1);
    ensure!(found == wanted, "{found:x?} in place of {wanted:x?}");
    Ok(())
}

/// Does as [`expect`] for signals that the kernel sends asynchronously: others may come before.
fn expect_soon(wanted: Said) -> Outcome {
    let mut others = Vec::new();
    while let Some((_, said)) = take(&[signal()], 3000)? {
        if said == wanted {
            return Ok(());
        }
        others.push(said);
    }
    Err(format!("no {wanted:x?}, but {others:x?}").into())
}

/// Makes this process the owner of `fd`, notified by a queued signal.
fn watch(fd: c_int) -> Outcome {
    block(&[signal()])?;
    call!(fcntl(fd, F_SETOWN, call!(getpid())));
    call!(fcntl(fd, F_SETSIG, signal()));
    let flags = call!(fcntl(fd, F_GETFL));
    call!(fcntl(fd, F_SETFL, flags | O_ASYNC));
    ensure!(call!(fcntl(fd, F_GETFL)) & O_ASYNC != 0, "not set");
    Ok(())
}

fn put(fd: c_int, count: usize) -> Outcome {
    let bytes = [b'x'; 4096];
    let put = call!(write(fd, bytes.as_ptr().cast(), count));
    ensure!(put as usize == count, "{put} of {count} bytes written");
    Ok(())
}

fn get(fd: c_int, count: usize) -> Outcome {
    let mut bytes = [0u8; 4096];
    call!(read(fd, bytes.as_mut_ptr().cast(), count));
    Ok(())
}

fn pipes() -> Outcome {
    let (reader, writer) = pipe(O_NONBLOCK)?;
    watch(reader)?;
    expect(None)?;
    put(writer, 1)?;
    expect(Some((POLL_IN, 0x41, reader)))?;
    put(writer, 1)?;
    expect(Some((POLL_IN, 0x41, reader)))?;
    get(reader, 2)?;
    expect(None)?;
    // Off, and on again.
    call!(fcntl(reader, F_SETFL, O_NONBLOCK));
    put(writer, 1)?;
    get(reader, 1)?;
    expect(None)?;
    watch(reader)?;
    watch(writer)?;
    let page = [0u8; 4096];
    // SAFETY: the page lives across the call, which ends when the pipe is full.
    while unsafe { libc::write(writer, page.as_ptr().cast(), 4096) } > 0 {}
    while take(&[signal()], 0)?.is_some() {}
    get(reader, 4096)?;
    expect(Some((POLL_OUT, 0x304, writer)))?;
    // The registered descriptor is reported, even if the description has another one now.
    let other = call!(dup(reader));
    call!(close(writer));
    expect(Some((POLL_IN, 0x41, reader)))?;
    call!(close(reader));
    call!(close(other));
    expect(None)
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    HANDLED.fetch_add(1, SeqCst);
}

fn at_once() -> Outcome {
    let (reader, writer) = pipe(0)?;
    handle(SIGIO, count, SA_RESTART)?;
    call!(fcntl(reader, F_SETOWN, call!(getpid())));
    call!(fcntl(reader, F_SETFL, O_ASYNC));
    for wanted in 1..=1000 {
        put(writer, 1)?;
        let handled = HANDLED.load(SeqCst);
        ensure!(handled == wanted, "{handled} of {wanted} signals");
        get(reader, 1)?;
    }
    let (_, said) = {
        block(&[SIGIO])?;
        put(writer, 1)?;
        take(&[SIGIO], 0)?.ok_or("no signal")?
    };
    ensure!(said.0 == SI_KERNEL, "the code {:x}", said.0);
    Ok(())
}

fn pair(kind: c_int) -> Result<[c_int; 2]> {
    Ok(socket_pair(kind | SOCK_NONBLOCK)?.map(IntoRawFd::into_raw_fd))
}

fn sockets() -> Outcome {
    for kind in [SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET] {
        let [mine, other] = pair(kind)?;
        watch(mine)?;
        put(other, 10)?;
        expect_soon((POLL_IN, 0x41, mine))?;
        if kind != SOCK_DGRAM {
            call!(close(other));
            expect_soon((POLL_HUP, 0x18, mine))?;
        }
        call!(close(mine));
    }
    // A connection through the network's loopback.
    let listener = call!(socket(AF_INET, SOCK_STREAM, 0));
    // SAFETY: all zeros is an address without a name.
    let mut address: sockaddr_in = unsafe { zeroed() };
    address.sin_family = AF_INET as _;
    address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
    let mut len = size_of_val(&address) as socklen_t;
    call!(bind(listener, (&raw const address).cast(), len));
    call!(listen(listener, 4));
    call!(getsockname(listener, (&raw mut address).cast(), &mut len));
    watch(listener)?;
    let client = call!(socket(AF_INET, SOCK_STREAM, 0));
    call!(connect(client, (&raw const address).cast(), len));
    expect_soon((POLL_IN, 0x41, listener))?;
    let served = call!(accept(listener, null_mut(), null_mut()));
    watch(served)?;
    put(client, 100)?;
    expect_soon((POLL_IN, 0x41, served))?;
    for fd in [client, served, listener] {
        call!(close(fd));
    }
    Ok(())
}

fn terminals() -> Outcome {
    let (mut master, mut slave) = (0, 0);
    call!(openpty(&mut master, &mut slave, null_mut(), null(), null()));
    watch(slave)?;
    put(master, 3)?;
    // Half a line is not readable.
    let bytes = b"\n";
    call!(write(master, bytes.as_ptr().cast(), 1));
    expect_soon((POLL_IN, 0x41, slave))?;
    watch(master)?;
    put(slave, 1)?;
    expect_soon((POLL_IN, 0x41, master))?;
    call!(close(slave));
    call!(close(master));
    // Without an owner the foreground group is signalled, or else the caller.
    call!(openpty(&mut master, &mut slave, null_mut(), null(), null()));
    call!(fcntl(slave, F_SETFL, O_RDWR | O_ASYNC));
    let owner = call!(fcntl(slave, F_GETOWN));
    ensure!(owner == call!(getpid()), "the owner is {owner}");
    Ok(())
}

fn notices() -> Outcome {
    let notices = call!(inotify_init1(IN_NONBLOCK));
    let inside = folder("sigio")?;
    call!(inotify_add_watch(notices, c(&inside).as_ptr(), IN_CREATE));
    watch(notices)?;
    call!(mkdir(c(&format!("{inside}/made")).as_ptr(), 0o700));
    expect(Some((POLL_IN, 0x41, notices)))
}

fn owners() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let me = call!(getpid());
    let mut owner = Owner { kind: 7, id: 7 };
    let fresh = Owner {
        kind: F_OWNER_TID,
        id: 0,
    };
    call!(fcntl(reader, F_GETOWN_EX, &mut owner));
    ensure!(owner == fresh, "at first {owner:?}");
    ensure!(call!(fcntl(reader, F_GETSIG)) == 0, "another signal");
    call!(fcntl(reader, F_SETOWN, me));
    call!(fcntl(reader, F_GETOWN_EX, &mut owner));
    let process = Owner {
        kind: F_OWNER_PID,
        id: me,
    };
    ensure!(owner == process, "{owner:?}");

    // All members of a group, and no other process.
    block(&[SIGIO])?;
    let (start, go) = pipe(0)?;
    let child = spawn(|| {
        put(go, 1)?;
        ensure!(take(&[SIGIO], 5000)?.is_some(), "no signal for the group");
        Ok(())
    })?;
    call!(setpgid(child, child));
    get(start, 1)?;
    call!(fcntl(reader, F_SETOWN, -child));
    // SAFETY: an ordinary call; a group's number may look like an error.
    let found = unsafe { libc::fcntl(reader, F_GETOWN) };
    ensure!(found == -child, "the owner is {found}");
    call!(fcntl(reader, F_GETOWN_EX, &mut owner));
    let group = Owner {
        kind: F_OWNER_PGRP,
        id: child,
    };
    ensure!(owner == group, "{owner:?}");
    call!(fcntl(reader, F_SETFL, O_ASYNC));
    put(writer, 1)?;
    wait_ok(child)?;
    ensure!(take(&[SIGIO], 0)?.is_none(), "a signal for others");
    // A process that has ended is no owner.
    ensure!(call!(fcntl(reader, F_GETOWN)) == 0, "a dead owner");
    put(writer, 1)?;

    // One thread.
    let thread = thread::spawn(move || -> Result<c_int> {
        let tid = call!(gettid());
        let own = Owner {
            kind: F_OWNER_TID,
            id: tid,
        };
        call!(fcntl(reader, F_SETOWN_EX, &own));
        put(writer, 1)?;
        ensure!(take(&[SIGIO], 0)?.is_some(), "no signal for the thread");
        Ok(tid)
    });
    let tid = thread.join()??;
    ensure!(take(&[SIGIO], 0)?.is_none(), "a signal for the process");
    ensure!(tid != me, "the same thread");
    // Not of a process.
    call!(fcntl(reader, F_SETOWN, 0));
    ensure!(call!(fcntl(reader, F_GETOWN)) == 0, "an owner is left");
    put(writer, 1)?;
    ensure!(take(&[SIGIO], 0)?.is_none(), "a signal for nobody");

    let [mine, _other] = pair(SOCK_STREAM)?;
    let mut id = me;
    call!(ioctl(mine, FIOSETOWN, &mut id));
    id = 0;
    call!(ioctl(mine, FIOGETOWN, &mut id));
    ensure!(id == me, "the socket's owner is {id}");
    Ok(())
}

fn permission() -> Outcome {
    if call!(getuid()) != 0 {
        return Err(skip("needs root"));
    }
    let (reader, writer) = pipe(0)?;
    block(&[SIGIO])?;
    let me = call!(getpid());
    let child = spawn(|| {
        call!(setuid(1000));
        call!(fcntl(reader, F_SETOWN, me));
        call!(fcntl(reader, F_SETFL, O_ASYNC));
        Ok(())
    })?;
    wait(child)?;
    ensure!(call!(fcntl(reader, F_GETOWN)) == me, "not the owner");
    put(writer, 1)?;
    ensure!(take(&[SIGIO], 0)?.is_none(), "a user's signal to root");
    call!(fcntl(reader, F_SETOWN, me));
    put(writer, 1)?;
    ensure!(take(&[SIGIO], 0)?.is_some(), "no signal of root's own");
    Ok(())
}

fn overflow() -> Outcome {
    let limit = limit_of(2);
    call!(setrlimit(RLIMIT_SIGPENDING, &limit));
    let (reader, writer) = pipe(0)?;
    watch(reader)?;
    block(&[SIGIO])?;
    for _ in 0..5 {
        put(writer, 1)?;
    }
    let mut found = 0;
    while take(&[signal()], 0)?.is_some() {
        found += 1;
    }
    ensure!(found <= 2, "{found} signals with particulars");
    let lost = take(&[SIGIO], 0)?;
    ensure!(lost.is_some(), "nothing said that signals were lost");
    Ok(())
}

fn refusals() -> Outcome {
    let (reader, _writer) = pipe(0)?;
    refused!(ESRCH, fcntl(reader, F_SETOWN, 0x3fff_ffff));
    refused!(ESRCH, fcntl(reader, F_SETOWN, -0x3fff_ffff));
    refused!(EINVAL, fcntl(reader, F_SETOWN, c_int::MIN));
    refused!(EINVAL, fcntl(reader, F_SETSIG, 65));
    refused!(EINVAL, fcntl(reader, F_SETSIG, -1));
    let mut owner = Owner { kind: 3, id: 1 };
    refused!(EINVAL, fcntl(reader, F_SETOWN_EX, &owner));
    owner.kind = F_OWNER_PID;
    owner.id = 0x3fff_ffff;
    refused!(ESRCH, fcntl(reader, F_SETOWN_EX, &owner));
    refused!(EFAULT, fcntl(reader, F_GETOWN_EX, 8));
    call!(fcntl(reader, F_SETSIG, 64));
    ensure!(call!(fcntl(reader, F_GETSIG)) == 64, "another signal");
    // Files that are always ready send none.
    let (_, plain) = file("sigio-plain", b"x")?;
    call!(fcntl(plain, F_SETFL, O_ASYNC));
    equal!(call!(fcntl(plain, F_GETFL)) & O_ASYNC, 0);
    let mut on = 1;
    refused!(ENOTTY, ioctl(plain, FIOASYNC, &mut on));
    refused!(ENOTTY, ioctl(reader, FIOGETOWN, &mut on));
    call!(ioctl(reader, FIOASYNC, &mut on));
    ensure!(call!(fcntl(reader, F_GETFL)) & O_ASYNC != 0, "not set");
    Ok(())
}

fn storm() -> Outcome {
    const PIPES: usize = 8;
    const ROUNDS: usize = 300;
    block(&[SIGIO])?;
    let mut pipes = Vec::new();
    for _ in 0..PIPES {
        let (reader, writer) = pipe(O_NONBLOCK)?;
        call!(fcntl(reader, F_SETOWN, call!(getpid())));
        call!(fcntl(reader, F_SETFL, O_NONBLOCK | O_ASYNC));
        pipes.push((reader, writer));
    }
    let mut children = Vec::new();
    for chunk in pipes.chunks(2) {
        children.push(spawn(|| {
            for round in 0..ROUNDS {
                for (_, writer) in chunk {
                    put(*writer, 1)?;
                }
                if round % 7 == 0 {
                    call!(sched_yield());
                }
            }
            Ok(())
        })?);
    }
    // Sleeps for signals only: a byte without a signal is never read.
    let mut left = PIPES * ROUNDS;
    let mut bytes = [0u8; 4096];
    while left > 0 {
        let found = take(&[SIGIO], 5000)?;
        ensure!(found.is_some(), "{left} bytes without a signal");
        for (reader, _) in &pipes {
            // SAFETY: the buffer lives across the call.
            let n = unsafe { libc::read(*reader, bytes.as_mut_ptr().cast(), bytes.len()) };
            left -= n.max(0) as usize;
        }
    }
    wait_all(children)?;
    Ok(())
}
