//! Local sockets: streams, datagrams, packets, names, and what goes with messages.

use std::{
    io::{ErrorKind, Read, Write},
    mem,
    os::{
        fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd},
        unix::net::{UnixDatagram, UnixListener, UnixStream},
    },
    ptr,
    time::{Duration, Instant},
};

use libc::{c_int, c_void};

use crate::support::{End, Numbers, Outcome, errno, folder, pause_ms, pipe, spawn, wait};
use crate::{Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("unix sockets: a stream in both directions", stream),
    (
        "unix sockets: a large stream between processes",
        large_stream,
    ),
    ("unix sockets: ends of a stream", ends),
    ("unix sockets: shutdown", shutdown),
    ("unix sockets: readiness", readiness),
    ("unix sockets: room, and waiting for it", room),
    ("unix sockets: names", names),
    ("unix sockets: the backlog", backlog),
    ("unix sockets: datagrams", datagrams),
    ("unix sockets: a full queue of datagrams", full_queue),
    ("unix sockets: packets", packets),
    ("unix sockets: peeking and truncation", peeking),
    ("unix sockets: files in messages", files),
    ("unix sockets: files are barriers in a stream", barriers),
    ("unix sockets: cycles of files in flight", cycles),
    ("unix sockets: a deep chain of files in flight", deep_chain),
    ("unix sockets: credentials", credentials),
    ("unix sockets: options", options),
    ("unix sockets: time limits and signals", limits),
    ("unix sockets: many messages in a call", many_messages),
    ("unix sockets: splice and sendfile", splice),
    ("unix sockets: refusals", refusals),
    ("unix sockets: in /proc", listed),
];

fn fail(what: &str) -> impl Fn(std::io::Error) -> String + '_ {
    move |error| format!("{what}: {error}")
}

/// A pair of connected sockets.
fn pair(kind: c_int) -> Result<[OwnedFd; 2], String> {
    let mut fds = [0; 2];
    call!(socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()));
    // SAFETY: the call has just given these descriptors to nobody else.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

fn send(to: &OwnedFd, bytes: &[u8], flags: c_int) -> Result<usize, String> {
    Ok(call!(send(
        to.as_raw_fd(),
        bytes.as_ptr().cast(),
        bytes.len(),
        flags
    )) as usize)
}

fn receive(from: &OwnedFd, bytes: &mut [u8], flags: c_int) -> Result<usize, String> {
    let n = call!(recv(
        from.as_raw_fd(),
        bytes.as_mut_ptr().cast(),
        bytes.len(),
        flags
    ));
    Ok(n as usize)
}

/// What `poll` says at once.
fn ready(fd: c_int) -> Result<c_int, String> {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI,
        revents: 0,
    };
    call!(poll(&mut entry, 1, 0));
    Ok(entry.revents.into())
}

fn option(fd: c_int, name: c_int) -> Result<c_int, String> {
    let (mut value, mut len) = (0, 4);
    call!(getsockopt(
        fd,
        libc::SOL_SOCKET,
        name,
        (&raw mut value).cast(),
        &mut len
    ));
    Ok(value)
}

fn set_option(fd: c_int, name: c_int, value: c_int) -> Outcome {
    let value = &raw const value;
    call!(setsockopt(fd, libc::SOL_SOCKET, name, value.cast(), 4));
    Ok(())
}

fn stream() -> Outcome {
    let [a, b] = pair(libc::SOCK_STREAM)?;
    let mut buffer = [0; 64];
    send(&a, b"one ", 0)?;
    send(&a, b"two", 0)?;
    send(&b, b"back", 0)?;
    let n = receive(&b, &mut buffer[..2], 0)?;
    ensure!(&buffer[..n] == b"on", "{:?}", &buffer[..n]);
    let n = receive(&b, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"e two", "{:?}", &buffer[..n]);
    let n = receive(&a, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"back", "{:?}", &buffer[..n]);
    let mut waiting: c_int = 1;
    call!(ioctl(a.as_raw_fd(), libc::FIONREAD, &mut waiting));
    ensure!(waiting == 0, "FIONREAD says {waiting}");
    send(&b, &[1; 5000], 0)?;
    call!(ioctl(a.as_raw_fd(), libc::FIONREAD, &mut waiting));
    ensure!(waiting == 5000, "FIONREAD says {waiting}");
    Ok(())
}

/// Bytes in pieces of all sizes, in both directions at once, each checked.
fn large_stream() -> Outcome {
    const TOTAL: usize = 1 << 20;
    let (a, b) = UnixStream::pair().map_err(fail("pair"))?;
    let run = |mut socket: UnixStream, seed: u64| -> Outcome {
        let mut reader = socket.try_clone().map_err(fail("dup"))?;
        let receiver = std::thread::spawn(move || -> Outcome {
            let mut numbers = Numbers::new(seed + 7);
            let mut buffer = vec![0; 100_000];
            let mut at = 0;
            loop {
                let size = 1 + numbers.below(buffer.len() as u64) as usize;
                let n = reader.read(&mut buffer[..size]).map_err(fail("read"))?;
                if n == 0 {
                    ensure!(at == TOTAL, "the end after {at}");
                    return Ok(());
                }
                for (i, byte) in buffer[..n].iter().enumerate() {
                    let expected = ((at + i) / 3) as u8;
                    ensure!(*byte == expected, "{byte} at {}", at + i);
                }
                at += n;
            }
        });
        let mut numbers = Numbers::new(seed);
        let mut at = 0;
        let mut bytes = vec![0; 100_000];
        while at < TOTAL {
            let size = 1 + numbers.below((bytes.len() as u64).min((TOTAL - at) as u64)) as usize;
            for (i, byte) in bytes[..size].iter_mut().enumerate() {
                *byte = ((at + i) / 3) as u8;
            }
            let n = socket.write(&bytes[..size]).map_err(fail("write"))?;
            at += n;
        }
        socket
            .shutdown(std::net::Shutdown::Write)
            .map_err(fail("shutdown"))?;
        receiver.join().map_err(|_| "the receiver panicked")?
    };
    let child = spawn(|| run(b.try_clone().map_err(fail("dup"))?, 1))?;
    drop(b);
    run(a, 2)?;
    let end = wait(child)?;
    ensure!(end == End::Exit(0), "{end:?}");
    Ok(())
}

fn ends() -> Outcome {
    let mut buffer = [0; 16];
    let [a, b] = pair(libc::SOCK_STREAM)?;
    send(&a, b"last", 0)?;
    drop(a);
    let n = receive(&b, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"last", "{:?}", &buffer[..n]);
    ensure!(receive(&b, &mut buffer, 0)? == 0, "no end");
    refused!(
        EPIPE,
        send(b.as_raw_fd(), buffer.as_ptr().cast(), 1, libc::MSG_NOSIGNAL)
    );
    // What was not read makes the other end fail once.
    let [a, b] = pair(libc::SOCK_STREAM)?;
    send(&b, b"unread", 0)?;
    drop(a);
    let found = ready(b.as_raw_fd())?;
    ensure!(found & libc::POLLERR as c_int != 0, "ready {found:#x}");
    refused!(
        ECONNRESET,
        recv(b.as_raw_fd(), buffer.as_mut_ptr().cast(), 1, 0)
    );
    ensure!(receive(&b, &mut buffer, 0)? == 0, "no end");
    // SIGPIPE for who does not refuse it.
    let child = spawn(|| {
        let [a, b] = pair(libc::SOCK_STREAM)?;
        drop(a);
        // SAFETY: the default action of SIGPIPE, which the Rust runtime has changed.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let _ = send(&b, b"x", 0);
        Ok(())
    })?;
    let end = wait(child)?;
    ensure!(end == End::Signal(libc::SIGPIPE), "{end:?}");
    Ok(())
}

fn shutdown() -> Outcome {
    let mut buffer = [0; 16];
    let [a, b] = pair(libc::SOCK_STREAM)?;
    send(&a, b"before", 0)?;
    call!(shutdown(a.as_raw_fd(), libc::SHUT_WR));
    refused!(
        EPIPE,
        send(a.as_raw_fd(), buffer.as_ptr().cast(), 1, libc::MSG_NOSIGNAL)
    );
    let found = ready(b.as_raw_fd())?;
    ensure!(found & libc::POLLRDHUP as c_int != 0, "ready {found:#x}");
    ensure!(found & libc::POLLHUP as c_int == 0, "ready {found:#x}");
    let n = receive(&b, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"before", "{:?}", &buffer[..n]);
    ensure!(receive(&b, &mut buffer, 0)? == 0, "no end");
    send(&b, b"still", 0)?;
    let n = receive(&a, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"still", "{:?}", &buffer[..n]);
    call!(shutdown(a.as_raw_fd(), libc::SHUT_RD));
    refused!(
        EPIPE,
        send(b.as_raw_fd(), buffer.as_ptr().cast(), 1, libc::MSG_NOSIGNAL)
    );
    let found = ready(b.as_raw_fd())?;
    ensure!(found & libc::POLLHUP as c_int != 0, "ready {found:#x}");
    refused!(EINVAL, shutdown(a.as_raw_fd(), 3));
    Ok(())
}

fn readiness() -> Outcome {
    const IN: c_int = libc::POLLIN as c_int;
    const OUT: c_int = libc::POLLOUT as c_int;
    const HUP: c_int = libc::POLLHUP as c_int;
    const RDHUP: c_int = libc::POLLRDHUP as c_int;
    let fresh = call!(socket(libc::AF_UNIX, libc::SOCK_STREAM, 0));
    let found = ready(fresh)?;
    ensure!(found == OUT | HUP, "a fresh stream: {found:#x}");
    let datagram = call!(socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0));
    let found = ready(datagram)?;
    ensure!(found == OUT, "a fresh datagram socket: {found:#x}");
    let [a, b] = pair(libc::SOCK_STREAM)?;
    ensure!(ready(a.as_raw_fd())? == OUT, "a pair");
    send(&b, b"x", 0)?;
    ensure!(ready(a.as_raw_fd())? == IN | OUT, "with a byte");
    drop(b);
    let found = ready(a.as_raw_fd())?;
    ensure!(found == IN | OUT | HUP | RDHUP, "after the end: {found:#x}");
    // A sleeping poll is woken by a byte from another process.
    let [a, b] = pair(libc::SOCK_STREAM)?;
    let child = spawn(|| {
        pause_ms(20);
        send(&b, b"x", 0).map(drop)
    })?;
    let mut entry = libc::pollfd {
        fd: a.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let n = call!(poll(&mut entry, 1, 5000));
    ensure!(
        n == 1 && entry.revents == libc::POLLIN,
        "{:#x}",
        entry.revents
    );
    wait(child)?;
    Ok(())
}

fn room() -> Outcome {
    let [a, b] = pair(libc::SOCK_STREAM)?;
    let piece = vec![7; 10_000];
    let mut total = 0;
    loop {
        // SAFETY: sends from a live buffer.
        let n = unsafe {
            libc::send(
                a.as_raw_fd(),
                piece.as_ptr().cast(),
                piece.len(),
                libc::MSG_DONTWAIT,
            )
        };
        if n < 0 {
            ensure!(errno() == libc::EAGAIN, "errno {}", errno());
            break;
        }
        total += n as usize;
        ensure!(total < 1 << 20, "no limit");
    }
    ensure!(total >= 65536, "only {total} bytes fit");
    let found = ready(a.as_raw_fd())?;
    ensure!(found & libc::POLLOUT as c_int == 0, "writable when full");
    // A writer that waits goes on when there is room.
    let child = spawn(|| {
        let mut buffer = vec![0; 50_000];
        let mut left = total + 3 * piece.len();
        pause_ms(10);
        while left > 0 {
            let n = receive(&b, &mut buffer, 0)?;
            ensure!(buffer[..n].iter().all(|&byte| byte == 7), "wrong bytes");
            left -= n;
        }
        Ok(())
    })?;
    let mut entry = libc::pollfd {
        fd: a.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    let n = call!(poll(&mut entry, 1, 5000));
    ensure!(
        n == 1 && entry.revents == libc::POLLOUT,
        "{:#x}",
        entry.revents
    );
    for _ in 0..3 {
        let n = send(&a, &piece, 0)?;
        ensure!(n == piece.len(), "sent {n}");
    }
    let end = wait(child)?;
    ensure!(end == End::Exit(0), "{end:?}");
    Ok(())
}

/// An address from bytes, and its length.
fn address(name: &[u8]) -> (libc::sockaddr_un, u32) {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    (address, 2 + name.len() as u32)
}

fn bind(fd: c_int, name: &[u8]) -> c_int {
    let (address, len) = address(name);
    // SAFETY: the address lives across the call.
    match unsafe { libc::bind(fd, (&raw const address).cast(), len) } {
        0 => 0,
        _ => errno(),
    }
}

fn connect(fd: c_int, name: &[u8]) -> c_int {
    let (address, len) = address(name);
    // SAFETY: the address lives across the call.
    match unsafe { libc::connect(fd, (&raw const address).cast(), len) } {
        0 => 0,
        _ => errno(),
    }
}

fn name_of(fd: c_int) -> Result<Vec<u8>, String> {
    let mut raw = [0xffu8; 128];
    let mut len = 128;
    call!(getsockname(fd, raw.as_mut_ptr().cast(), &mut len));
    ensure!(
        raw[..2] == [libc::AF_UNIX as u8, 0],
        "family {:?}",
        &raw[..2]
    );
    Ok(raw[2..len as usize].to_vec())
}

fn socket(kind: c_int) -> Result<c_int, String> {
    Ok(call!(socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0)))
}

fn names() -> Outcome {
    let folder = folder("unix-names")?;
    let path = format!("{folder}/socket");
    let listener = UnixListener::bind(&path).map_err(fail("bind"))?;
    let shown = name_of(listener.as_raw_fd())?;
    ensure!(shown == [path.as_bytes(), b"\0"].concat(), "{shown:?}");
    // SAFETY: all zeros is a valid stat.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    let c_path = std::ffi::CString::new(path.clone()).map_err(|_| "a zero in a path")?;
    call!(stat(c_path.as_ptr(), &mut stat));
    ensure!(
        stat.st_mode & libc::S_IFMT == libc::S_IFSOCK,
        "mode {:o}",
        stat.st_mode
    );
    refused!(ENXIO, open(c_path.as_ptr(), libc::O_RDWR));
    // By another path, too.
    let link = format!("{folder}/link");
    std::fs::hard_link(&path, &link).map_err(fail("link"))?;
    let mut client = UnixStream::connect(&link).map_err(fail("connect"))?;
    let (mut server, _) = listener.accept().map_err(fail("accept"))?;
    client.write_all(b"hello").map_err(fail("write"))?;
    let mut buffer = [0; 8];
    let n = server.read(&mut buffer).map_err(fail("read"))?;
    ensure!(&buffer[..n] == b"hello", "{:?}", &buffer[..n]);
    let peer = client.peer_addr().map_err(fail("peer"))?;
    ensure!(
        peer.as_pathname()
            .is_some_and(|p| p.to_str() == Some(&path)),
        "{peer:?}"
    );
    ensure!(
        name_of(server.as_raw_fd())? == shown,
        "the accepted one's name"
    );
    ensure!(
        server.peer_addr().is_ok_and(|peer| peer.is_unnamed()),
        "the client's name"
    );
    // Taken names, and names of what does not listen.
    let other = socket(libc::SOCK_STREAM)?;
    ensure!(
        bind(other, path.as_bytes()) == libc::EADDRINUSE,
        "bound twice"
    );
    ensure!(
        bind(other, b"/nowhere/socket\0") == libc::ENOENT,
        "bound nowhere"
    );
    ensure!(
        connect(other, format!("{folder}/none").as_bytes()) == libc::ENOENT,
        "connected"
    );
    std::fs::write(format!("{folder}/file"), b"").map_err(fail("write"))?;
    let n = connect(other, format!("{folder}/file").as_bytes());
    ensure!(n == libc::ECONNREFUSED, "connect to a file: {n}");
    let datagram = socket(libc::SOCK_DGRAM)?;
    let n = connect(datagram, path.as_bytes());
    ensure!(n == libc::EPROTOTYPE, "connect to another type: {n}");
    drop(listener);
    let n = connect(other, path.as_bytes());
    ensure!(n == libc::ECONNREFUSED, "connect to a dead name: {n}");
    // Abstract names, which end with their sockets.
    ensure!(bind(other, b"\0causeway test") == 0, "abstract");
    ensure!(name_of(other)? == b"\0causeway test", "abstract name");
    let n = bind(other, b"\0another");
    ensure!(n == libc::EINVAL, "bound again: {n}");
    let third = socket(libc::SOCK_STREAM)?;
    ensure!(
        bind(third, b"\0causeway test") == libc::EADDRINUSE,
        "abstract twice"
    );
    ensure!(
        connect(third, b"\0causeway test") == libc::ECONNREFUSED,
        "not listening"
    );
    ensure!(
        bind(datagram, b"\0causeway test") == 0,
        "abstract, another type"
    );
    call!(close(other));
    ensure!(bind(third, b"\0causeway test") == 0, "abstract, free again");
    // A name chosen by the kernel.
    let fourth = socket(libc::SOCK_DGRAM)?;
    ensure!(name_of(fourth)?.is_empty(), "a name of a fresh socket");
    ensure!(bind(fourth, b"") == 0, "any name");
    let name = name_of(fourth)?;
    ensure!(name.len() == 6 && name[0] == 0, "{name:?}");
    Ok(())
}

fn backlog() -> Outcome {
    let name = b"\0causeway backlog";
    let listener = socket(libc::SOCK_STREAM)?;
    refused!(EINVAL, listen(listener, 1));
    ensure!(bind(listener, name) == 0, "bind");
    refused!(EINVAL, accept(listener, ptr::null_mut(), ptr::null_mut()));
    call!(listen(listener, 1));
    let mut clients = Vec::new();
    for _ in 0..2 {
        let client = socket(libc::SOCK_STREAM)?;
        ensure!(connect(client, name) == 0, "connect: {}", errno());
        clients.push(client);
    }
    let full = socket(libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    let n = connect(full, name);
    ensure!(n == libc::EAGAIN, "a full backlog: {n}");
    ensure!(
        ready(listener)? == libc::POLLIN as c_int,
        "listener not ready"
    );
    // A connection can be used before it is accepted.
    call!(send(clients[0], b"early".as_ptr().cast(), 5, 0));
    let child = spawn(|| {
        let late = socket(libc::SOCK_STREAM)?;
        let n = connect(late, name);
        ensure!(n == 0, "a connect that waited: {n}");
        Ok(())
    })?;
    pause_ms(20);
    let first = call!(accept4(
        listener,
        ptr::null_mut(),
        ptr::null_mut(),
        libc::SOCK_NONBLOCK
    ));
    let mut buffer = [0u8; 8];
    let n = call!(recv(first, buffer.as_mut_ptr().cast(), 8, 0));
    ensure!(&buffer[..n as usize] == b"early", "{buffer:?}");
    refused!(EAGAIN, recv(first, buffer.as_mut_ptr().cast(), 8, 0));
    let end = wait(child)?;
    ensure!(end == End::Exit(0), "{end:?}");
    // Who was not accepted learns of the listener's end.
    call!(close(listener));
    refused!(
        ECONNRESET,
        recv(clients[1], buffer.as_mut_ptr().cast(), 8, 0)
    );
    let n = connect(full, name);
    ensure!(n == libc::ECONNREFUSED, "{n}");
    Ok(())
}

fn datagrams() -> Outcome {
    let folder = folder("unix-datagrams")?;
    let (a, b) = (format!("{folder}/a"), format!("{folder}/b"));
    let first = UnixDatagram::bind(&a).map_err(fail("bind"))?;
    let second = UnixDatagram::bind(&b).map_err(fail("bind"))?;
    first.send_to(b"one", &b).map_err(fail("send"))?;
    first.send_to(b"", &b).map_err(fail("send"))?;
    first.send_to(&[9; 30_000], &b).map_err(fail("send"))?;
    let mut buffer = vec![0; 40_000];
    let (n, from) = second.recv_from(&mut buffer).map_err(fail("recv"))?;
    ensure!(&buffer[..n] == b"one", "{:?}", &buffer[..n]);
    ensure!(
        from.as_pathname().is_some_and(|p| p.to_str() == Some(&a)),
        "{from:?}"
    );
    let (n, _) = second.recv_from(&mut buffer).map_err(fail("recv"))?;
    ensure!(n == 0, "{n} bytes of nothing");
    let (n, _) = second.recv_from(&mut buffer).map_err(fail("recv"))?;
    ensure!(
        n == 30_000 && buffer[..n].iter().all(|&x| x == 9),
        "{n} bytes"
    );
    // Who is connected takes nothing from others.
    second.connect(&a).map_err(fail("connect"))?;
    let third = UnixDatagram::unbound().map_err(fail("socket"))?;
    let error = third
        .send_to(b"x", &b)
        .map_err(|error| error.raw_os_error());
    ensure!(error == Err(Some(libc::EPERM)), "{error:?}");
    second.send(b"back").map_err(fail("send"))?;
    let n = first.recv(&mut buffer).map_err(fail("recv"))?;
    ensure!(&buffer[..n] == b"back", "{:?}", &buffer[..n]);
    let error = third.send(b"x").map_err(|error| error.raw_os_error());
    ensure!(error == Err(Some(libc::ENOTCONN)), "{error:?}");
    drop(first);
    let error = second.send(b"x").map_err(|error| error.raw_os_error());
    ensure!(error == Err(Some(libc::ECONNREFUSED)), "{error:?}");
    let error = second.send(b"x").map_err(|error| error.raw_os_error());
    ensure!(error == Err(Some(libc::ENOTCONN)), "{error:?}");
    let huge = vec![0; 1 << 20];
    let error = third
        .send_to(&huge, &b)
        .map_err(|error| error.raw_os_error());
    ensure!(error == Err(Some(libc::EMSGSIZE)), "{error:?}");
    Ok(())
}

fn full_queue() -> Outcome {
    let folder = folder("unix-full")?;
    let path = format!("{folder}/socket");
    let receiver = UnixDatagram::bind(&path).map_err(fail("bind"))?;
    let sender = UnixDatagram::unbound().map_err(fail("socket"))?;
    sender.connect(&path).map_err(fail("connect"))?;
    sender.set_nonblocking(true).map_err(fail("nonblocking"))?;
    let mut count = 0;
    let error = loop {
        match sender.send(b"x") {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        ensure!(count < 5000, "no limit");
    };
    ensure!(error.kind() == ErrorKind::WouldBlock, "{error}");
    let found = ready(sender.as_raw_fd())?;
    ensure!(found & libc::POLLOUT as c_int == 0, "writable when full");
    let child = spawn(|| {
        pause_ms(20);
        let mut buffer = [0; 4];
        receiver.recv(&mut buffer).map_err(fail("recv"))?;
        Ok(())
    })?;
    let mut entry = libc::pollfd {
        fd: sender.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    let n = call!(poll(&mut entry, 1, 5000));
    ensure!(
        n == 1 && entry.revents == libc::POLLOUT,
        "{:#x}",
        entry.revents
    );
    sender.send(b"y").map_err(fail("send"))?;
    wait(child)?;
    // The same asleep in the call.
    sender.set_nonblocking(false).map_err(fail("blocking"))?;
    let child = spawn(|| {
        pause_ms(20);
        let mut buffer = [0; 4];
        receiver.recv(&mut buffer).map_err(fail("recv"))?;
        Ok(())
    })?;
    sender.send(b"z").map_err(fail("send"))?;
    wait(child)?;
    Ok(())
}

fn packets() -> Outcome {
    let [a, b] = pair(libc::SOCK_SEQPACKET)?;
    let mut buffer = [0; 16];
    send(&a, b"one", 0)?;
    send(&a, b"twelve", 0)?;
    let n = receive(&b, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"one", "{:?}", &buffer[..n]);
    let n = receive(&b, &mut buffer[..3], 0)?;
    ensure!(&buffer[..n] == b"twe", "{:?}", &buffer[..n]);
    send(&a, b"three", 0)?;
    drop(a);
    let n = receive(&b, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"three", "{:?}", &buffer[..n]);
    ensure!(receive(&b, &mut buffer, 0)? == 0, "no end");
    refused!(
        EPIPE,
        send(b.as_raw_fd(), buffer.as_ptr().cast(), 1, libc::MSG_NOSIGNAL)
    );
    let name = b"\0causeway packets";
    let listener = socket(libc::SOCK_SEQPACKET)?;
    ensure!(bind(listener, name) == 0, "bind");
    call!(listen(listener, 5));
    let client = socket(libc::SOCK_SEQPACKET)?;
    refused!(ENOTCONN, send(client, buffer.as_ptr().cast(), 1, 0));
    refused!(ENOTCONN, recv(client, buffer.as_mut_ptr().cast(), 1, 0));
    ensure!(connect(client, name) == 0, "connect");
    let server = call!(accept(listener, ptr::null_mut(), ptr::null_mut()));
    call!(send(client, b"hi".as_ptr().cast(), 2, 0));
    let n = call!(recv(server, buffer.as_mut_ptr().cast(), 16, 0));
    ensure!(&buffer[..n as usize] == b"hi", "{buffer:?}");
    Ok(())
}

fn peeking() -> Outcome {
    let mut buffer = [0; 16];
    let [a, b] = pair(libc::SOCK_STREAM)?;
    send(&a, b"abc", 0)?;
    send(&a, b"def", 0)?;
    let n = receive(&b, &mut buffer, libc::MSG_PEEK)?;
    ensure!(&buffer[..n] == b"abcdef", "{:?}", &buffer[..n]);
    let n = receive(&b, &mut buffer[..2], libc::MSG_PEEK)?;
    ensure!(&buffer[..n] == b"ab", "{:?}", &buffer[..n]);
    let child = spawn(|| {
        pause_ms(20);
        send(&a, b"ghi", 0).map(drop)
    })?;
    let n = receive(&b, &mut buffer[..9], libc::MSG_WAITALL)?;
    ensure!(&buffer[..n] == b"abcdefghi", "{:?}", &buffer[..n]);
    wait(child)?;
    let [a, b] = pair(libc::SOCK_DGRAM)?;
    send(&a, b"long message", 0)?;
    let n = receive(&b, &mut buffer[..4], libc::MSG_PEEK | libc::MSG_TRUNC)?;
    ensure!(n == 12 && &buffer[..4] == b"long", "{n} {buffer:?}");
    let n = receive(&b, &mut buffer[..4], libc::MSG_TRUNC)?;
    ensure!(n == 12, "{n}");
    refused!(
        EAGAIN,
        recv(
            b.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            1,
            libc::MSG_DONTWAIT
        )
    );
    Ok(())
}

/// Sends bytes with control messages: level is `SOL_SOCKET`.
fn send_with(to: c_int, bytes: &[u8], messages: &[(c_int, &[u8])]) -> Result<usize, c_int> {
    let mut control = vec![0u64; 200];
    let mut iov = libc::iovec {
        iov_base: bytes.as_ptr() as *mut c_void,
        iov_len: bytes.len(),
    };
    // SAFETY: all zeros is a valid header; the control messages are written inside of `control`.
    unsafe {
        let mut header: libc::msghdr = mem::zeroed();
        header.msg_iov = &mut iov;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        let mut len = 0;
        for (kind, data) in messages {
            let at = control.as_mut_ptr().cast::<u8>().add(len);
            let head = at.cast::<libc::cmsghdr>();
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = *kind;
            (*head).cmsg_len = libc::CMSG_LEN(data.len() as u32) as _;
            ptr::copy_nonoverlapping(data.as_ptr(), libc::CMSG_DATA(head), data.len());
            len += libc::CMSG_SPACE(data.len() as u32) as usize;
        }
        header.msg_controllen = len as _;
        match libc::sendmsg(to, &header, libc::MSG_NOSIGNAL) {
            -1 => Err(errno()),
            n => Ok(n as usize),
        }
    }
}

/// What `recvmsg` gave.
struct Got {
    bytes: Vec<u8>,
    flags: c_int,
    files: Vec<OwnedFd>,
    sender: Option<[u32; 3]>,
    has_time: bool,
}

/// Receives bytes and control messages, with `room` bytes for those.
fn receive_with(from: c_int, size: usize, room: usize, flags: c_int) -> Result<Got, String> {
    let mut control = vec![0u64; 200];
    let mut bytes = vec![0; size];
    let mut iov = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: size,
    };
    // SAFETY: all zeros is a valid header; what the kernel wrote is read inside of `control`.
    unsafe {
        let mut header: libc::msghdr = mem::zeroed();
        header.msg_iov = &mut iov;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = room as _;
        let n = call!(recvmsg(from, &mut header, flags));
        bytes.truncate(n as usize);
        let mut got = Got {
            bytes,
            flags: header.msg_flags,
            files: Vec::new(),
            sender: None,
            has_time: false,
        };
        let mut head = libc::CMSG_FIRSTHDR(&header);
        while !head.is_null() {
            let data = libc::CMSG_DATA(head);
            let len = (*head).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            match (*head).cmsg_type {
                libc::SCM_RIGHTS => {
                    for n in 0..len / 4 {
                        let fd = data.cast::<c_int>().add(n).read_unaligned();
                        got.files.push(OwnedFd::from_raw_fd(fd));
                    }
                }
                libc::SCM_CREDENTIALS => {
                    got.sender = Some(data.cast::<[u32; 3]>().read_unaligned());
                }
                libc::SCM_TIMESTAMP => got.has_time = true,
                other => return Err(format!("control message {other}")),
            }
            head = libc::CMSG_NXTHDR(&header, head);
        }
        Ok(got)
    }
}

fn numbers_of(fds: &[c_int]) -> Vec<u8> {
    fds.iter().flat_map(|fd| fd.to_ne_bytes()).collect()
}

fn send_files(to: c_int, bytes: &[u8], fds: &[c_int]) -> Result<usize, c_int> {
    send_with(to, bytes, &[(libc::SCM_RIGHTS, &numbers_of(fds))])
}

fn is_close_on_exec(fd: c_int) -> Result<bool, String> {
    Ok(call!(fcntl(fd, libc::F_GETFD)) & libc::FD_CLOEXEC != 0)
}

fn files() -> Outcome {
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        let [a, b] = pair(kind)?;
        let (reader, writer) = pipe(0)?;
        // SAFETY: these descriptors are nobody else's.
        let writer = unsafe { OwnedFd::from_raw_fd(writer) };
        send_files(a.as_raw_fd(), b"x", &[writer.as_raw_fd(), 1])
            .map_err(|error| format!("sendmsg: {error}"))?;
        drop(writer);
        // In flight it is open all the same; a look gives more of it.
        let peeked = receive_with(b.as_raw_fd(), 4, 400, libc::MSG_PEEK)?;
        ensure!(peeked.files.len() == 2, "peeked {}", peeked.files.len());
        drop(peeked);
        let got = receive_with(b.as_raw_fd(), 4, 400, libc::MSG_CMSG_CLOEXEC)?;
        ensure!(got.bytes == b"x" && got.files.len() == 2, "{:?}", got.files);
        ensure!(got.flags & libc::MSG_CTRUNC == 0, "truncated");
        ensure!(
            is_close_on_exec(got.files[0].as_raw_fd())?,
            "not close-on-exec"
        );
        call!(write(got.files[0].as_raw_fd(), b"way".as_ptr().cast(), 3));
        drop(got);
        let mut buffer = [0u8; 8];
        let n = call!(read(reader, buffer.as_mut_ptr().cast(), 8));
        ensure!(&buffer[..n as usize] == b"way", "{buffer:?}");
        let n = call!(read(reader, buffer.as_mut_ptr().cast(), 8));
        ensure!(n == 0, "the pipe is still open");
        call!(close(reader));
        // What there is no room for is closed, and that is told.
        let (reader, writer) = pipe(0)?;
        send_files(a.as_raw_fd(), b"y", &[1, writer, writer])
            .map_err(|error| format!("sendmsg: {error}"))?;
        call!(close(writer));
        // SAFETY: computes a length.
        let room = unsafe { libc::CMSG_LEN(4) } as usize;
        let got = receive_with(b.as_raw_fd(), 4, room, 0)?;
        ensure!(got.files.len() == 1, "{:?}", got.files);
        ensure!(got.flags & libc::MSG_CTRUNC != 0, "not truncated");
        ensure!(
            !is_close_on_exec(got.files[0].as_raw_fd())?,
            "close-on-exec"
        );
        let n = call!(read(reader, buffer.as_mut_ptr().cast(), 8));
        ensure!(n == 0, "the pipe is still open");
        // What is not received is closed with the socket.
        let (reader, writer) = pipe(0)?;
        send_files(a.as_raw_fd(), b"z", &[writer]).map_err(|error| format!("sendmsg: {error}"))?;
        call!(close(writer));
        drop(b);
        let n = call!(read(reader, buffer.as_mut_ptr().cast(), 8));
        ensure!(n == 0, "the pipe is still open");
        // Without control data nothing but bytes arrives.
        let [a, b] = pair(kind)?;
        let (reader, writer) = pipe(0)?;
        send_files(a.as_raw_fd(), b"w", &[writer]).map_err(|error| format!("sendmsg: {error}"))?;
        call!(close(writer));
        receive(&b, &mut buffer, 0)?;
        let n = call!(read(reader, buffer.as_mut_ptr().cast(), 8));
        ensure!(n == 0, "the pipe is still open");
        let many = [1; 254];
        let error = send_files(a.as_raw_fd(), b"v", &many);
        ensure!(error == Err(libc::EINVAL), "254 files: {error:?}");
        let error = send_files(a.as_raw_fd(), b"v", &[999]);
        ensure!(error == Err(libc::EBADF), "a bad descriptor: {error:?}");
        let count = send_files(a.as_raw_fd(), b"v", &many[1..]);
        ensure!(count == Ok(1), "253 files: {count:?}");
    }
    Ok(())
}

fn barriers() -> Outcome {
    let [a, b] = pair(libc::SOCK_STREAM)?;
    let error = |error| format!("sendmsg: {error}");
    send(&a, b"plain ", 0)?;
    send_files(a.as_raw_fd(), b"first", &[1]).map_err(error)?;
    send_files(a.as_raw_fd(), b"second", &[1, 2]).map_err(error)?;
    send(&a, b" rest", 0)?;
    // A read goes up to the end of the bytes that brought files.
    let got = receive_with(b.as_raw_fd(), 100, 400, libc::MSG_PEEK)?;
    ensure!(
        got.bytes == b"plain first" && got.files.len() == 1,
        "{:?}",
        got.bytes
    );
    let got = receive_with(b.as_raw_fd(), 100, 400, 0)?;
    ensure!(
        got.bytes == b"plain first" && got.files.len() == 1,
        "{:?}",
        got.bytes
    );
    let got = receive_with(b.as_raw_fd(), 3, 400, 0)?;
    ensure!(
        got.bytes == b"sec" && got.files.len() == 2,
        "{:?}",
        got.bytes
    );
    let got = receive_with(b.as_raw_fd(), 100, 400, 0)?;
    ensure!(
        got.bytes == b"ond rest" && got.files.is_empty(),
        "{:?}",
        got.bytes
    );
    Ok(())
}

/// Sends sockets over themselves and each other, closes all, and sees that what went with them is closed.
fn cycles() -> Outcome {
    let fault = |error| format!("sendmsg: {error}");
    for shape in 0..4 {
        let (reader, writer) = pipe(O_NONBLOCK)?;
        let [a, b] = pair(libc::SOCK_STREAM)?;
        let [c, d] = pair(libc::SOCK_DGRAM)?;
        let [a, b, c, d] = [a, b, c, d].map(IntoRawFd::into_raw_fd);
        match shape {
            // Over itself.
            0 => send_files(a, b"x", &[b, writer]).map_err(fault)?,
            // Both ends over each other.
            1 => {
                send_files(a, b"x", &[b, writer]).map_err(fault)?;
                send_files(b, b"x", &[a]).map_err(fault)?
            }
            // Two pairs, one over the other.
            2 => {
                send_files(a, b"x", &[d, writer]).map_err(fault)?;
                send_files(c, b"x", &[b, writer]).map_err(fault)?
            }
            // A listener over a connection that nobody has accepted.
            _ => {
                let name = b"\0causeway cycle";
                let listener = socket(libc::SOCK_STREAM)?;
                ensure!(bind(listener, name) == 0, "bind");
                call!(listen(listener, 5));
                let client = socket(libc::SOCK_STREAM)?;
                ensure!(connect(client, name) == 0, "connect");
                let n = send_files(client, b"x", &[listener, writer]).map_err(fault)?;
                call!(close(listener));
                call!(close(client));
                n
            }
        };
        let mut byte = 0u8;
        refused!(EAGAIN, read(reader, (&raw mut byte).cast(), 1));
        call!(close(writer));
        for fd in [a, b, c, d] {
            call!(close(fd));
        }
        // Who looks for what nothing leads to may take its time.
        let deadline = Instant::now() + Duration::from_secs(5);
        // SAFETY: reads into a live byte.
        while unsafe { libc::read(reader, (&raw mut byte).cast(), 1) } != 0 {
            ensure!(Instant::now() < deadline, "shape {shape} is still open");
            pause_ms(1);
        }
        call!(close(reader));
    }
    Ok(())
}

const O_NONBLOCK: c_int = libc::O_NONBLOCK;

/// Each socket in flight in the queue of the next: the last close closes all.
fn deep_chain() -> Outcome {
    const DEPTH: usize = 200;
    let (reader, writer) = pipe(O_NONBLOCK)?;
    let [a, b] = pair(libc::SOCK_STREAM)?;
    send_files(a.as_raw_fd(), b"x", &[writer]).map_err(|error| format!("sendmsg: {error}"))?;
    call!(close(writer));
    let mut last = b;
    let mut held = a;
    for _ in 0..DEPTH {
        let [a, b] = pair(libc::SOCK_STREAM)?;
        send_files(a.as_raw_fd(), b"x", &[last.as_raw_fd(), held.as_raw_fd()])
            .map_err(|error| format!("sendmsg: {error}"))?;
        (held, last) = (a, b);
    }
    let mut byte = 0u8;
    refused!(EAGAIN, read(reader, (&raw mut byte).cast(), 1));
    drop(held);
    drop(last);
    let n = call!(read(reader, (&raw mut byte).cast(), 1));
    ensure!(n == 0, "the pipe is still open");
    Ok(())
}

fn credentials() -> Outcome {
    let me = [call!(getpid()) as u32, call!(getuid()), call!(getgid())];
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
        let [a, b] = pair(kind)?;
        let (mut cred, mut len) = ([0u32; 3], 12);
        call!(getsockopt(
            a.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            cred.as_mut_ptr().cast(),
            &mut len
        ));
        ensure!(cred == me, "peer {cred:?}");
        set_option(b.as_raw_fd(), libc::SO_PASSCRED, 1)?;
        ensure!(
            option(b.as_raw_fd(), libc::SO_PASSCRED)? == 1,
            "SO_PASSCRED"
        );
        send(&a, b"x", 0)?;
        let got = receive_with(b.as_raw_fd(), 8, 200, 0)?;
        ensure!(got.sender == Some(me), "{:?}", got.sender);
        // Two senders' bytes are not given out as one's.
        let child = spawn(|| send(&a, b"child's", 0).map(drop))?;
        wait(child)?;
        send(&a, b"mine", 0)?;
        let got = receive_with(b.as_raw_fd(), 100, 200, 0)?;
        ensure!(got.bytes == b"child's", "{:?}", got.bytes);
        ensure!(
            got.sender == Some([child as u32, me[1], me[2]]),
            "{:?}",
            got.sender
        );
        let got = receive_with(b.as_raw_fd(), 100, 200, 0)?;
        ensure!(
            got.bytes == b"mine" && got.sender == Some(me),
            "{:?}",
            got.sender
        );
        // A program says who it is; who is not root may not lie.
        let claim: Vec<u8> = me.iter().flat_map(|n| n.to_ne_bytes()).collect();
        let sent = send_with(a.as_raw_fd(), b"y", &[(libc::SCM_CREDENTIALS, &claim)]);
        ensure!(sent == Ok(1), "{sent:?}");
        let got = receive_with(b.as_raw_fd(), 8, 200, 0)?;
        ensure!(got.sender == Some(me), "{:?}", got.sender);
        let child = spawn(|| {
            call!(setuid(1234));
            let sent = send_with(a.as_raw_fd(), b"y", &[(libc::SCM_CREDENTIALS, &claim)]);
            ensure!(sent == Err(libc::EPERM), "{sent:?}");
            Ok(())
        })?;
        let end = wait(child)?;
        ensure!(end == End::Exit(0), "{end:?}");
        let sent = send_with(a.as_raw_fd(), b"y", &[(libc::SCM_CREDENTIALS, &claim[..8])]);
        ensure!(sent == Err(libc::EINVAL), "{sent:?}");
        let sent = send_with(a.as_raw_fd(), b"y", &[(99, &claim)]);
        ensure!(sent == Err(libc::EINVAL), "{sent:?}");
    }
    let [a, b] = pair(libc::SOCK_DGRAM)?;
    set_option(b.as_raw_fd(), libc::SO_TIMESTAMP, 1)?;
    send(&a, b"x", 0)?;
    ensure!(receive_with(b.as_raw_fd(), 8, 200, 0)?.has_time, "no time");
    Ok(())
}

fn options() -> Outcome {
    let [a, _b] = pair(libc::SOCK_SEQPACKET)?;
    let fd = a.as_raw_fd();
    for (name, expected) in [
        (libc::SO_TYPE, libc::SOCK_SEQPACKET),
        (libc::SO_DOMAIN, libc::AF_UNIX),
        (libc::SO_PROTOCOL, 0),
        (libc::SO_ERROR, 0),
        (libc::SO_ACCEPTCONN, 0),
        (libc::SO_SNDBUF, 212_992),
        (libc::SO_RCVBUF, 212_992),
        (libc::SO_RCVLOWAT, 1),
    ] {
        let value = option(fd, name)?;
        ensure!(value == expected, "option {name} is {value}");
    }
    set_option(fd, libc::SO_SNDBUF, 10_000)?;
    ensure!(option(fd, libc::SO_SNDBUF)? == 20_000, "not doubled");
    set_option(fd, libc::SO_SNDBUF, 1)?;
    ensure!(option(fd, libc::SO_SNDBUF)? == 4608, "below the least");
    set_option(fd, libc::SO_SNDBUF, 1 << 30)?;
    let most = std::fs::read_to_string("/proc/sys/net/core/wmem_max");
    let most = most.map_or(212_992, |text| text.trim().parse().unwrap_or(0));
    ensure!(option(fd, libc::SO_SNDBUF)? == 2 * most, "above the most");
    set_option(fd, libc::SO_REUSEADDR, 5)?;
    ensure!(option(fd, libc::SO_REUSEADDR)? == 1, "a switch");
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 7,
    };
    let at = &raw const linger;
    call!(setsockopt(
        fd,
        libc::SOL_SOCKET,
        libc::SO_LINGER,
        at.cast(),
        8
    ));
    let (mut value, mut len) = ([0; 2], 8);
    call!(getsockopt(
        fd,
        libc::SOL_SOCKET,
        libc::SO_LINGER,
        (&raw mut value).cast(),
        &mut len
    ));
    ensure!(value == [1, 7] && len == 8, "{value:?}");
    let one = 1;
    let at = (&raw const one).cast::<c_void>();
    refused!(
        EINVAL,
        setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, at, 2)
    );
    refused!(ENOPROTOOPT, setsockopt(fd, libc::SOL_SOCKET, 999, at, 4));
    refused!(
        EFAULT,
        setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, ptr::null(), 4)
    );
    Ok(())
}

extern "C" fn ignore(_: c_int) {}

fn limits() -> Outcome {
    let [a, b] = pair(libc::SOCK_STREAM)?;
    let time = libc::timeval {
        tv_sec: 0,
        tv_usec: 30_000,
    };
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let at = &raw const time;
        call!(setsockopt(
            a.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            at.cast(),
            16
        ));
    }
    let mut buffer = vec![0u8; 100_000];
    let start = Instant::now();
    refused!(
        EAGAIN,
        recv(a.as_raw_fd(), buffer.as_mut_ptr().cast(), 1, 0)
    );
    ensure!(
        start.elapsed() >= Duration::from_millis(25),
        "{:?}",
        start.elapsed()
    );
    // A send that can't go on gives what it has sent, the next fails.
    let mut last = 1;
    while last > 0 {
        // SAFETY: sends from a live buffer.
        last = unsafe { libc::send(a.as_raw_fd(), buffer.as_ptr().cast(), buffer.len(), 0) };
    }
    ensure!(errno() == libc::EAGAIN, "errno {}", errno());
    // A signal ends a wait: with a time limit always, without one if the handler wants it.
    for (socket, flags, expected) in [(&a, libc::SA_RESTART, libc::EINTR), (&b, 0, libc::EINTR)] {
        let child = spawn(|| {
            // SAFETY: all zeros is a valid action.
            let mut action: libc::sigaction = unsafe { mem::zeroed() };
            action.sa_sigaction = ignore as *const () as usize;
            action.sa_flags = flags;
            call!(sigaction(libc::SIGUSR1, &action, ptr::null_mut()));
            let long = libc::timeval {
                tv_sec: 20,
                tv_usec: 0,
            };
            if flags != 0 {
                let at = &raw const long;
                call!(setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_RCVTIMEO,
                    at.cast(),
                    16
                ));
            }
            let mut bytes = vec![0u8; 1 << 20];
            loop {
                // SAFETY: receives into a live buffer.
                let n = unsafe {
                    libc::recv(
                        socket.as_raw_fd(),
                        bytes.as_mut_ptr().cast(),
                        bytes.len(),
                        0,
                    )
                };
                if n < 0 {
                    ensure!(errno() == expected, "errno {}", errno());
                    return Ok(());
                }
            }
        })?;
        pause_ms(40);
        call!(kill(child, libc::SIGUSR1));
        let end = wait(child)?;
        ensure!(end == End::Exit(0), "{end:?}");
    }
    Ok(())
}

fn many_messages() -> Outcome {
    let [a, b] = pair(libc::SOCK_DGRAM)?;
    let words: [&[u8]; 3] = [b"one", b"three", b""];
    let mut iovs = words.map(|word| libc::iovec {
        iov_base: word.as_ptr() as *mut c_void,
        iov_len: word.len(),
    });
    // SAFETY: all zeros is a valid header.
    let mut headers: [libc::mmsghdr; 4] = unsafe { mem::zeroed() };
    for (header, iov) in headers.iter_mut().zip(&mut iovs) {
        header.msg_hdr.msg_iov = iov;
        header.msg_hdr.msg_iovlen = 1;
    }
    let n = call!(sendmmsg(a.as_raw_fd(), headers.as_mut_ptr(), 3, 0));
    ensure!(n == 3, "{n} sent");
    ensure!(headers[1].msg_len == 5, "{}", headers[1].msg_len);
    let mut buffers = [[0u8; 8]; 4];
    let mut iovs = [ptr::null_mut::<c_void>(); 4].map(|base| libc::iovec {
        iov_base: base,
        iov_len: 8,
    });
    for (iov, buffer) in iovs.iter_mut().zip(&mut buffers) {
        iov.iov_base = buffer.as_mut_ptr().cast();
    }
    for (header, iov) in headers.iter_mut().zip(&mut iovs) {
        header.msg_hdr.msg_iov = iov;
        header.msg_hdr.msg_iovlen = 1;
    }
    let flags = libc::MSG_WAITFORONE;
    let n = call!(recvmmsg(
        b.as_raw_fd(),
        headers.as_mut_ptr(),
        4,
        flags as _,
        ptr::null_mut()
    ));
    ensure!(n == 3, "{n} received");
    let lens: Vec<u32> = headers[..3].iter().map(|header| header.msg_len).collect();
    ensure!(
        lens == [3, 5, 0] && &buffers[1][..5] == b"three",
        "{lens:?}"
    );
    Ok(())
}

fn splice() -> Outcome {
    let folder = folder("unix-splice")?;
    let path = format!("{folder}/file");
    let bytes: Vec<u8> = (0..100_000u32).map(|n| (n / 5) as u8).collect();
    std::fs::write(&path, &bytes).map_err(fail("write"))?;
    let file = std::fs::File::open(&path).map_err(fail("open"))?;
    let [a, b] = pair(libc::SOCK_STREAM)?;
    let (reader, writer) = pipe(0)?;
    let child = spawn(|| {
        let mut offset = 0;
        let (mut left, to) = (bytes.len(), a.as_raw_fd());
        while left > 0 {
            let n = call!(sendfile(to, file.as_raw_fd(), &mut offset, left));
            ensure!(n > 0, "sendfile gave {n}");
            left -= n as usize;
        }
        Ok(())
    })?;
    // From the socket through a pipe into another socket, and out of that.
    let [c, d] = pair(libc::SOCK_STREAM)?;
    let mut found = Vec::new();
    let mut buffer = vec![0; 70_000];
    while found.len() < bytes.len() {
        let n = call!(splice(
            b.as_raw_fd(),
            ptr::null_mut(),
            writer,
            ptr::null_mut(),
            50_000,
            0
        ));
        ensure!(n > 0, "splice from a socket gave {n}");
        let mut left = n;
        while left > 0 {
            let n = call!(splice(
                reader,
                ptr::null_mut(),
                c.as_raw_fd(),
                ptr::null_mut(),
                left as usize,
                0
            ));
            ensure!(n > 0, "splice to a socket gave {n}");
            left -= n;
            let n = receive(&d, &mut buffer[..n as usize], libc::MSG_WAITALL)?;
            found.extend_from_slice(&buffer[..n]);
        }
    }
    ensure!(found == bytes, "other bytes");
    let end = wait(child)?;
    ensure!(end == End::Exit(0), "{end:?}");
    refused!(
        EAGAIN,
        splice(
            b.as_raw_fd(),
            ptr::null_mut(),
            writer,
            ptr::null_mut(),
            1,
            libc::SPLICE_F_NONBLOCK
        )
    );
    refused!(
        EINVAL,
        splice(
            a.as_raw_fd(),
            ptr::null_mut(),
            c.as_raw_fd(),
            ptr::null_mut(),
            1,
            0
        )
    );
    Ok(())
}

fn refusals() -> Outcome {
    refused!(EAFNOSUPPORT, socket(77, libc::SOCK_STREAM, 0));
    refused!(EINVAL, socket(libc::AF_UNIX, 99, 0));
    refused!(EINVAL, socket(libc::AF_UNIX, libc::SOCK_STREAM | 0x100, 0));
    refused!(EPROTONOSUPPORT, socket(libc::AF_UNIX, libc::SOCK_STREAM, 5));
    refused!(ENOTSOCK, listen(1, 1));
    refused!(EBADF, listen(99, 1));
    let stream = socket(libc::SOCK_STREAM)?;
    let mut byte = [0u8; 4];
    refused!(
        ENOTCONN,
        send(stream, byte.as_ptr().cast(), 1, libc::MSG_NOSIGNAL)
    );
    refused!(EINVAL, recv(stream, byte.as_mut_ptr().cast(), 1, 0));
    refused!(ESPIPE, lseek(stream, 0, libc::SEEK_CUR));
    refused!(ESPIPE, pread(stream, byte.as_mut_ptr().cast(), 1, 0));
    let mut len = 4;
    refused!(
        ENOTCONN,
        getpeername(stream, byte.as_mut_ptr().cast(), &mut len)
    );
    let n = bind(stream, &[b'x'; 109]);
    ensure!(n == libc::EINVAL, "a long address: {n}");
    let n = connect(stream, b"");
    ensure!(n == libc::EINVAL, "connect without a name: {n}");
    let (mut other, len) = address(b"/tmp/x");
    other.sun_family = libc::AF_INET as u16;
    refused!(EINVAL, bind(stream, (&raw const other).cast(), len));
    let datagram = socket(libc::SOCK_DGRAM)?;
    refused!(EOPNOTSUPP, listen(datagram, 1));
    refused!(
        EOPNOTSUPP,
        accept(datagram, ptr::null_mut(), ptr::null_mut())
    );
    refused!(EINVAL, accept4(stream, ptr::null_mut(), ptr::null_mut(), 1));
    refused!(
        EFAULT,
        socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ptr::null_mut())
    );
    let [a, _b] = pair(libc::SOCK_STREAM)?;
    let n = connect(a.as_raw_fd(), b"\0nobody");
    ensure!(n == libc::ECONNREFUSED, "connect of a pair to nobody: {n}");
    let (to, len) = address(b"\0nobody");
    refused!(
        EISCONN,
        sendto(
            a.as_raw_fd(),
            byte.as_ptr().cast(),
            1,
            0,
            (&raw const to).cast(),
            len
        )
    );
    Ok(())
}

fn listed() -> Outcome {
    let folder = folder("unix-listed")?;
    let path = format!("{folder}/socket");
    let listener = UnixListener::bind(&path).map_err(fail("bind"))?;
    let link = format!("/proc/self/fd/{}", listener.as_raw_fd());
    let text = std::fs::read_link(&link).map_err(fail("readlink"))?;
    let text = text.to_string_lossy().into_owned();
    let inode = text
        .strip_prefix("socket:[")
        .and_then(|text| text.strip_suffix(']'))
        .ok_or(format!("the link is {text}"))?;
    // SAFETY: all zeros is a valid stat.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    call!(fstat(listener.as_raw_fd(), &mut stat));
    ensure!(stat.st_ino.to_string() == inode, "inode {}", stat.st_ino);
    ensure!(
        stat.st_mode == libc::S_IFSOCK | 0o777,
        "mode {:o}",
        stat.st_mode
    );
    let list = std::fs::read_to_string("/proc/net/unix").map_err(fail("/proc/net/unix"))?;
    let line = list
        .lines()
        .find(|line| line.ends_with(&path))
        .ok_or(format!("not listed: {list}"))?;
    ensure!(
        line.contains("00010000 0001 01") && line.contains(inode),
        "{line}"
    );
    Ok(())
}
