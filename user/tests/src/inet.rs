//! Internet sockets on the loopback interface: connections, their ends and errors, names and ports, datagrams, options.

use std::io::{ErrorKind, Read, Write};
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::thread;
use std::time::{Duration, Instant};

use libc::{
    AF_INET, AF_INET6, EPOLLHUP, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, MSG_DONTWAIT, MSG_NOSIGNAL,
    MSG_OOB, MSG_PEEK, MSG_TRUNC, POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDHUP, SO_ERROR,
    SO_LINGER, SO_RCVBUF, SO_REUSEADDR, SO_REUSEPORT, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM,
    SOL_SOCKET, c_int,
};

use crate::support::{Outcome, errno, file, pipe};
use crate::{Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("inet: a connection and its ends", connection),
    ("inet: IPv6, and IPv4 on the same socket", versions),
    ("inet: a large transfer both ways", large),
    ("inet: many connections", many),
    ("inet: refusals and resets", resets),
    ("inet: connecting without waiting", nonblocking),
    ("inet: readiness", readiness),
    ("inet: looking ahead, throwing away, waiting for all", flags),
    ("inet: an urgent byte", urgent),
    ("inet: a file to a socket", from_file),
    ("inet: ports and who may share them", ports),
    ("inet: datagrams", datagrams),
    ("inet: datagrams to a group", group),
    ("inet: what comes with a datagram", control),
    ("inet: options", options),
    ("inet: the interface and /proc/net", interface),
];

/// The result of something that the standard library does.
macro_rules! io {
    ($e:expr) => {
        $e.map_err(|error| format!("{}: {error}", stringify!($e)))?
    };
}

fn pair() -> Result<(TcpStream, TcpStream), String> {
    let listener = io!(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let client = io!(TcpStream::connect(io!(listener.local_addr())));
    let (server, peer) = io!(listener.accept());
    ensure!(peer == io!(client.local_addr()), "accepted from {peer}");
    Ok((client, server))
}

fn poll(socket: &impl AsRawFd, events: i16) -> Result<i16, String> {
    let mut entry = libc::pollfd {
        fd: socket.as_raw_fd(),
        events,
        revents: 0,
    };
    call!(poll(&mut entry, 1, 0));
    Ok(entry.revents)
}

fn set(socket: &impl AsRawFd, level: c_int, name: c_int, value: c_int) -> Outcome {
    call!(setsockopt(
        socket.as_raw_fd(),
        level,
        name,
        (&raw const value).cast(),
        4
    ));
    Ok(())
}

fn get(socket: &impl AsRawFd, level: c_int, name: c_int) -> Result<c_int, String> {
    let (mut value, mut len) = (0, 4);
    call!(getsockopt(
        socket.as_raw_fd(),
        level,
        name,
        (&raw mut value).cast(),
        &mut len
    ));
    Ok(value)
}

fn connection() -> Outcome {
    let (mut client, mut server) = pair()?;
    io!(client.write_all(b"hello"));
    let mut buffer = [0; 16];
    let n = io!(server.read(&mut buffer));
    ensure!(&buffer[..n] == b"hello", "{:?}", &buffer[..n]);
    io!(server.write_all(b"and back"));
    io!(server.shutdown(Shutdown::Write));
    let mut all = String::new();
    io!(client.read_to_string(&mut all));
    ensure!(all == "and back", "{all:?}");
    // The other direction goes on.
    io!(client.write_all(b"still here"));
    let n = io!(server.read(&mut buffer));
    ensure!(&buffer[..n] == b"still here", "{:?}", &buffer[..n]);
    drop(client);
    let n = io!(server.read(&mut buffer));
    ensure!(n == 0, "{n} bytes behind the end");
    let written = server.write(b"x").map_err(|error| error.kind());
    ensure!(written == Err(ErrorKind::BrokenPipe), "{written:?}");
    Ok(())
}

fn versions() -> Outcome {
    let listener = io!(TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)));
    let port = io!(listener.local_addr()).port();
    for ip in ["::1", "127.0.0.1", "127.1.2.3"] {
        let to: SocketAddr = SocketAddr::new(ip.parse().unwrap(), port);
        let mut client = io!(TcpStream::connect(to));
        ensure!(io!(client.peer_addr()) == to, "peer of {to}");
        let (mut server, from) = io!(listener.accept());
        let mapped = from.ip().to_canonical();
        ensure!(mapped == io!(client.local_addr()).ip(), "from {from}");
        io!(client.write_all(ip.as_bytes()));
        drop(client);
        let mut got = String::new();
        io!(server.read_to_string(&mut got));
        ensure!(got == ip, "{got:?}");
    }
    // Without IPv4 there is room for an IPv4 socket beside it.
    let fd = call!(socket(AF_INET6, SOCK_STREAM, 0));
    // SAFETY: the descriptor is new and nobody else's.
    let only = unsafe { TcpListener::from_raw_fd(fd) };
    set(&only, IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    bind_v6(fd, 0)?;
    call!(listen(fd, 1));
    let port = io!(only.local_addr()).port();
    let other = io!(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
    drop(other);
    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(|e| e.kind());
    ensure!(
        matches!(refused, Err(ErrorKind::ConnectionRefused)),
        "{refused:?}"
    );
    Ok(())
}

fn bind_v6(fd: c_int, port: u16) -> Outcome {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_in6 = unsafe { zeroed() };
    address.sin6_family = AF_INET6 as u16;
    address.sin6_port = port.to_be();
    let len = size_of::<libc::sockaddr_in6>() as u32;
    call!(bind(fd, (&raw const address).cast(), len));
    Ok(())
}

fn bind_v4(fd: c_int, ip: [u8; 4], port: u16) -> c_int {
    let address = v4(ip, port);
    let len = size_of::<libc::sockaddr_in>() as u32;
    // SAFETY: the address is alive.
    unsafe { libc::bind(fd, (&raw const address).cast(), len) }
}

fn v4(ip: [u8; 4], port: u16) -> libc::sockaddr_in {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_in = unsafe { zeroed() };
    address.sin_family = AF_INET as u16;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from_ne_bytes(ip);
    address
}

fn large() -> Outcome {
    const BYTES: usize = 8 << 20;
    fn byte(at: usize) -> u8 {
        (at / 251 + at) as u8
    }
    fn feed(mut to: TcpStream) -> Outcome {
        let mut at = 0;
        let mut size = 1;
        while at < BYTES {
            size = (size * 7 + 13) % 100_000 + 1;
            let piece: Vec<u8> = (at..BYTES.min(at + size)).map(byte).collect();
            io!(to.write_all(&piece));
            at += piece.len();
        }
        io!(to.shutdown(Shutdown::Write));
        Ok(())
    }
    fn check(mut from: TcpStream) -> Outcome {
        let mut at = 0;
        let mut buffer = vec![0; 70_000];
        let mut size = 1;
        loop {
            size = (size * 5 + 11) % 70_000 + 1;
            let n = io!(from.read(&mut buffer[..size]));
            if n == 0 {
                break;
            }
            let wrong = (0..n).find(|i| buffer[*i] != byte(at + i));
            ensure!(wrong.is_none(), "a wrong byte near {at}");
            at += n;
        }
        ensure!(at == BYTES, "{at} bytes");
        Ok(())
    }
    let (a, b) = pair()?;
    let both = [io!(a.try_clone()), io!(b.try_clone())];
    let feeders = both.map(|end| thread::spawn(move || feed(end)));
    let checkers = [a, b].map(|end| thread::spawn(move || check(end)));
    for thread in feeders.into_iter().chain(checkers) {
        thread.join().map_err(|_| "a thread failed")??;
    }
    Ok(())
}

fn many() -> Outcome {
    const TIMES: usize = 600;
    let listener = io!(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let to = io!(listener.local_addr());
    let server = thread::spawn(move || -> Outcome {
        for _ in 0..TIMES {
            let (mut stream, _) = io!(listener.accept());
            let mut byte = [0];
            io!(stream.read_exact(&mut byte));
            io!(stream.write_all(&byte));
        }
        Ok(())
    });
    for i in 0..TIMES {
        let mut stream = io!(TcpStream::connect(to));
        io!(stream.write_all(&[i as u8]));
        let mut byte = [0];
        io!(stream.read_exact(&mut byte));
        ensure!(byte[0] == i as u8, "{byte:?} for {i}");
        if i % 3 == 0 {
            // Wait for the other side to close first.
            ensure!(io!(stream.read(&mut byte)) == 0, "bytes at the end");
        }
    }
    server.join().map_err(|_| "the server failed")?
}

fn resets() -> Outcome {
    let began = Instant::now();
    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, 1)).map_err(|error| error.kind());
    ensure!(
        matches!(refused, Err(ErrorKind::ConnectionRefused)),
        "{refused:?}"
    );
    ensure!(began.elapsed() < Duration::from_millis(500), "slow refusal");
    let fd = call!(socket(AF_INET, SOCK_STREAM, 0));
    let far = v4([10, 0, 0, 1], 80);
    refused!(ENETUNREACH, connect(fd, (&raw const far).cast(), 16));
    ensure!(
        bind_v4(fd, [10, 0, 0, 1], 0) == -1,
        "bound to another's address"
    );
    ensure!(errno() == libc::EADDRNOTAVAIL, "errno {}", errno());
    refused!(ENOTCONN, shutdown(fd, 2));
    refused!(EPIPE, send(fd, b"x".as_ptr().cast(), 1, MSG_NOSIGNAL));
    call!(close(fd));

    // Closed with bytes unread: the other side learns of it by a reset.
    let (mut client, server) = pair()?;
    io!(client.write_all(b"unread"));
    drop(server);
    let read = client.read(&mut [0; 8]).map_err(|error| error.kind());
    ensure!(read == Err(ErrorKind::ConnectionReset), "{read:?}");
    // Lingering for no time.
    let (client, mut server) = pair()?;
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    call!(setsockopt(
        client.as_raw_fd(),
        SOL_SOCKET,
        SO_LINGER,
        (&raw const linger).cast(),
        8
    ));
    drop(client);
    ensure!(
        poll(&server, POLLIN)? == POLLIN | POLLERR | POLLHUP,
        "readiness"
    );
    ensure!(
        get(&server, SOL_SOCKET, SO_ERROR)? == libc::ECONNRESET,
        "SO_ERROR"
    );
    ensure!(io!(server.read(&mut [0; 8])) == 0, "bytes after a reset");
    // A listener that goes takes those with it that it has not accepted.
    let listener = io!(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let mut waiting = io!(TcpStream::connect(io!(listener.local_addr())));
    drop(listener);
    let read = waiting.read(&mut [0; 8]).map_err(|error| error.kind());
    ensure!(read == Err(ErrorKind::ConnectionReset), "{read:?}");
    Ok(())
}

fn nonblocking() -> Outcome {
    let listener = io!(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let port = io!(listener.local_addr()).port();
    let fd = call!(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    // SAFETY: the descriptor is new and nobody else's.
    let client = unsafe { TcpStream::from_raw_fd(fd) };
    let to = v4([127, 0, 0, 1], port);
    refused!(EINPROGRESS, connect(fd, (&raw const to).cast(), 16));
    ensure!(poll(&client, POLLOUT)? == POLLOUT, "not connected");
    ensure!(get(&client, SOL_SOCKET, SO_ERROR)? == 0, "an error");
    call!(connect(fd, (&raw const to).cast(), 16));
    refused!(EISCONN, connect(fd, (&raw const to).cast(), 16));
    refused!(EAGAIN, recv(fd, [0u8; 1].as_mut_ptr().cast(), 1, 0));
    io!(listener.set_nonblocking(true));
    drop(io!(listener.accept()));
    let none = listener.accept().map(drop).map_err(|error| error.kind());
    ensure!(none == Err(ErrorKind::WouldBlock), "{none:?}");
    drop(listener);
    let fd = call!(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    // SAFETY: as above.
    let client = unsafe { TcpStream::from_raw_fd(fd) };
    refused!(EINPROGRESS, connect(fd, (&raw const to).cast(), 16));
    let ready = poll(&client, POLLOUT)?;
    ensure!(ready == POLLOUT | POLLERR | POLLHUP, "{ready:#x}");
    ensure!(
        get(&client, SOL_SOCKET, SO_ERROR)? == libc::ECONNREFUSED,
        "SO_ERROR"
    );
    // A full queue: the first byte that nobody takes.
    let (client, server) = pair()?;
    io!(client.set_nonblocking(true));
    let piece = vec![0; 65536];
    let mut total = 0;
    let full = loop {
        match (&client).write(&piece) {
            Ok(n) => total += n,
            Err(error) => break error.kind(),
        }
    };
    ensure!(full == ErrorKind::WouldBlock, "{full:?}");
    ensure!(poll(&client, POLLOUT)? == 0, "room after {total} bytes");
    let mut left = total;
    let mut buffer = vec![0; 65536];
    while left > 0 {
        left -= io!((&server).read(&mut buffer));
    }
    ensure!(poll(&client, POLLOUT)? == POLLOUT, "no room");
    Ok(())
}

fn readiness() -> Outcome {
    const ALL: i16 = POLLIN | POLLOUT | POLLRDHUP;
    let fd = call!(socket(AF_INET, SOCK_STREAM, 0));
    // SAFETY: the descriptor is new and nobody else's.
    let idle = unsafe { TcpStream::from_raw_fd(fd) };
    ensure!(poll(&idle, ALL)? == POLLOUT | POLLHUP, "idle");
    let listener = io!(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    ensure!(poll(&listener, ALL)? == 0, "nobody there");
    let client = io!(TcpStream::connect(io!(listener.local_addr())));
    ensure!(poll(&listener, ALL)? == POLLIN, "somebody there");
    let (server, _) = io!(listener.accept());
    ensure!(poll(&client, ALL)? == POLLOUT, "connected");
    io!((&server).write_all(b"x"));
    ensure!(poll(&client, ALL)? == POLLIN | POLLOUT, "a byte");
    io!(server.shutdown(Shutdown::Write));
    ensure!(poll(&client, ALL)? == ALL, "half closed");
    ensure!(poll(&server, ALL)? == POLLOUT, "the half that closed");
    io!(client.shutdown(Shutdown::Write));
    ensure!(poll(&client, ALL)? == ALL | POLLHUP, "closed");
    ensure!(i32::from(poll(&server, ALL)? & POLLHUP) == EPOLLHUP, "both");
    // A waiting task is woken.
    let (client, server) = pair()?;
    let reader = thread::spawn(move || {
        let mut byte = [0];
        (&server).read(&mut byte).map(|_| byte[0])
    });
    thread::sleep(Duration::from_millis(20));
    io!((&client).write_all(b"w"));
    let got = reader.join().map_err(|_| "a thread failed")?;
    ensure!(io!(got) == b'w', "another byte");
    Ok(())
}

fn flags() -> Outcome {
    let (client, server) = pair()?;
    let (from, mut buffer) = (server.as_raw_fd(), [0u8; 16]);
    let to = buffer.as_mut_ptr().cast();
    refused!(EAGAIN, recv(from, to, 4, MSG_DONTWAIT));
    io!((&client).write_all(b"abcdefgh"));
    let n = call!(recv(from, to, 4, MSG_PEEK));
    ensure!(n == 4 && &buffer[..4] == b"abcd", "looked at {n}");
    let mut waiting = 0;
    call!(ioctl(from, libc::FIONREAD, &mut waiting));
    ensure!(waiting == 8, "FIONREAD says {waiting}");
    let n = call!(recv(from, std::ptr::null_mut(), 3, MSG_TRUNC));
    ensure!(n == 3, "threw away {n}");
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        (&client).write_all(b"ijk").map(|()| client)
    });
    let n = call!(recv(from, to, 8, libc::MSG_WAITALL));
    ensure!(n == 8 && &buffer[..8] == b"defghijk", "waited for {n}");
    io!(late.join().map_err(|_| "a thread failed")?);
    io!(server.set_read_timeout(Some(Duration::from_millis(20))));
    let (_other, server) = pair()?;
    io!(server.set_read_timeout(Some(Duration::from_millis(20))));
    let read = (&server).read(&mut buffer).map_err(|error| error.kind());
    ensure!(read == Err(ErrorKind::WouldBlock), "{read:?}");
    Ok(())
}

fn urgent() -> Outcome {
    let (client, server) = pair()?;
    let (to, from) = (client.as_raw_fd(), server.as_raw_fd());
    let mut buffer = [0u8; 16];
    let at = buffer.as_mut_ptr().cast();
    refused!(EINVAL, recv(from, at, 1, MSG_OOB));
    io!((&client).write_all(b"ab"));
    call!(send(to, b"!".as_ptr().cast(), 1, MSG_OOB));
    io!((&client).write_all(b"cd"));
    ensure!(
        poll(&server, POLLPRI | POLLIN)? == POLLPRI | POLLIN,
        "ready"
    );
    let n = call!(recv(from, at, 16, 0));
    ensure!(n == 2 && &buffer[..2] == b"ab", "{n} bytes to the mark");
    let mut mark = 0;
    call!(ioctl(from, 0x8905, &mut mark));
    ensure!(mark == 1, "not at the mark");
    let n = call!(recv(from, at, 16, MSG_OOB));
    ensure!(n == 1 && buffer[0] == b'!', "another byte");
    let n = call!(recv(from, at, 16, 0));
    ensure!(n == 2 && &buffer[..2] == b"cd", "{n} bytes behind the mark");
    set(&server, SOL_SOCKET, libc::SO_OOBINLINE, 1)?;
    call!(send(to, b"x!".as_ptr().cast(), 2, MSG_OOB));
    let n = call!(recv(from, at, 16, 0));
    ensure!(n == 1 && buffer[0] == b'x', "{n} bytes before");
    let n = call!(recv(from, at, 16, 0));
    ensure!(n == 1 && buffer[0] == b'!', "{n} bytes in line");
    Ok(())
}

fn from_file() -> Outcome {
    let bytes: Vec<u8> = (0..300_000u32).map(|i| (i * 7 / 3) as u8).collect();
    let (_, fd) = file("inet-sendfile", &bytes)?;
    let (client, mut server) = pair()?;
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        server.read_to_end(&mut all).map(|_| all)
    });
    let mut at = 0;
    while (at as usize) < bytes.len() {
        call!(sendfile(
            client.as_raw_fd(),
            fd,
            &mut at,
            bytes.len() - at as usize
        ));
    }
    io!(client.shutdown(Shutdown::Write));
    let all = io!(reader.join().map_err(|_| "a thread failed")?);
    ensure!(all == bytes, "{} bytes, other ones", all.len());
    // By way of a pipe.
    let (client, mut server) = pair()?;
    let (out, into) = pipe(0)?;
    call!(write(into, b"through a pipe".as_ptr().cast(), 14));
    let null = std::ptr::null_mut;
    let n = call!(splice(out, null(), client.as_raw_fd(), null(), 14, 0));
    ensure!(n == 14, "{n} bytes");
    drop(client);
    let mut text = String::new();
    io!(server.read_to_string(&mut text));
    ensure!(text == "through a pipe", "{text:?}");
    Ok(())
}

fn ports() -> Outcome {
    let open = |kind, option: c_int| -> Result<c_int, String> {
        let fd = call!(socket(AF_INET, kind, 0));
        if option != 0 {
            let on = 1;
            call!(setsockopt(
                fd,
                SOL_SOCKET,
                option,
                (&raw const on).cast(),
                4
            ));
        }
        Ok(fd)
    };
    let local = [127, 0, 0, 1];
    let in_use = |fd, ip, port| bind_v4(fd, ip, port) == -1 && errno() == libc::EADDRINUSE;
    let first = open(SOCK_STREAM, SO_REUSEADDR)?;
    ensure!(bind_v4(first, local, 0) == 0, "bind: {}", errno());
    let mut name = v4([0; 4], 0);
    let mut len = 16;
    call!(getsockname(first, (&raw mut name).cast(), &mut len));
    let port = u16::from_be(name.sin_port);
    ensure!(port >= 1024, "port {port}");
    let other = open(SOCK_STREAM, 0)?;
    ensure!(in_use(other, local, port), "shared without being asked");
    ensure!(in_use(other, [0; 4], port), "all addresses");
    ensure!(bind_v4(other, [127, 0, 0, 2], port) == 0, "another address");
    ensure!(
        bind_v4(other, [127, 0, 0, 3], port) == -1 && errno() == libc::EINVAL,
        "bound twice"
    );
    // Reuse of the address lets both bind, but only one listen.
    let second = open(SOCK_STREAM, SO_REUSEADDR)?;
    ensure!(bind_v4(second, local, port) == 0, "reuse: {}", errno());
    call!(listen(first, 1));
    refused!(EADDRINUSE, listen(second, 1));
    // Reuse of the port lets both listen.
    let (a, b) = (
        open(SOCK_STREAM, SO_REUSEPORT)?,
        open(SOCK_STREAM, SO_REUSEPORT)?,
    );
    ensure!(bind_v4(a, [127, 0, 0, 9], port) == 0, "{}", errno());
    ensure!(bind_v4(b, [127, 0, 0, 9], port) == 0, "{}", errno());
    call!(listen(a, 1));
    call!(listen(b, 1));
    // The side that closes first keeps the port for a while, but not from who reuses it.
    let listener = io!(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let at = io!(listener.local_addr());
    let client = io!(TcpStream::connect(at));
    drop(io!(listener.accept()));
    drop(listener);
    drop(client);
    let strict = open(SOCK_STREAM, 0)?;
    ensure!(in_use(strict, local, at.port()), "no memory of it");
    drop(io!(TcpListener::bind(at)));
    // Datagrams have ports of their own.
    let datagram = open(SOCK_DGRAM, 0)?;
    ensure!(bind_v4(datagram, local, port) == 0, "{}", errno());
    let datagram = open(SOCK_DGRAM, SO_REUSEADDR)?;
    ensure!(in_use(datagram, local, port), "one of two reuses");
    Ok(())
}

fn datagrams() -> Outcome {
    let a = io!(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
    let b = io!(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, io!(b.local_addr()).port()));
    for text in ["one", "", "three"] {
        ensure!(io!(a.send_to(text.as_bytes(), to)) == text.len(), "sent");
    }
    let mut buffer = [0; 70_000];
    for (text, room) in [("one", 10), ("", 10), ("th", 2)] {
        let (n, from) = io!(b.recv_from(&mut buffer[..room]));
        ensure!(&buffer[..n] == text.as_bytes(), "{:?}", &buffer[..n]);
        ensure!(from == io!(a.local_addr()), "from {from}");
    }
    let big = vec![7; 65_507];
    io!(a.send_to(&big, to));
    let n = io!(b.recv(&mut buffer));
    ensure!(buffer[..n] == big[..], "{n} bytes");
    let large = a
        .send_to(&vec![0; 65_508], to)
        .map_err(|e| e.raw_os_error());
    ensure!(large == Err(Some(libc::EMSGSIZE)), "{large:?}");
    // A peer: nobody else is heard, and its absence is reported.
    io!(a.connect(to));
    let stranger = io!(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
    io!(stranger.send_to(b"not for you", io!(a.local_addr())));
    io!(b.send_to(b"for you", io!(a.local_addr())));
    let n = io!(a.recv(&mut buffer));
    ensure!(&buffer[..n] == b"for you", "{:?}", &buffer[..n]);
    drop(b);
    io!(a.send(b"anybody?"));
    ensure!(poll(&a, POLLIN)? & POLLERR != 0, "no error");
    let refused = a.recv(&mut buffer).map_err(|error| error.kind());
    ensure!(refused == Err(ErrorKind::ConnectionRefused), "{refused:?}");
    // A small buffer drops what is too much.
    let small = io!(UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)));
    set(&small, SOL_SOCKET, SO_RCVBUF, 4096)?;
    let from = io!(UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)));
    for _ in 0..50 {
        io!(from.send_to(&[1; 1000], io!(small.local_addr())));
    }
    io!(small.set_nonblocking(true));
    let kept = std::iter::from_fn(|| small.recv(&mut buffer).ok()).count();
    ensure!((1..20).contains(&kept), "{kept} datagrams were kept");
    Ok(())
}

fn group() -> Outcome {
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let socket = io!(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let to = (group, io!(socket.local_addr()).port());
    let sender = io!(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
    let unreachable = sender.send_to(b"x", to).map_err(|e| e.raw_os_error());
    ensure!(
        unreachable == Err(Some(libc::ENETUNREACH)),
        "{unreachable:?}"
    );
    let lo = u32::from_ne_bytes([127, 0, 0, 1]);
    set(&sender, IPPROTO_IP, libc::IP_MULTICAST_IF, lo as c_int)?;
    io!(sender.send_to(b"nobody is in it", to));
    io!(socket.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST));
    let again = socket.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST);
    ensure!(again.is_err(), "joined twice");
    io!(sender.send_to(b"to the group", to));
    io!(socket.set_nonblocking(true));
    let mut buffer = [0; 64];
    let n = io!(socket.recv(&mut buffer));
    ensure!(&buffer[..n] == b"to the group", "{:?}", &buffer[..n]);
    io!(socket.leave_multicast_v4(&group, &Ipv4Addr::LOCALHOST));
    io!(sender.send_to(b"too late", to));
    ensure!(socket.recv(&mut buffer).is_err(), "heard after leaving");
    Ok(())
}

fn control() -> Outcome {
    let socket = io!(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let port = io!(socket.local_addr()).port();
    set(&socket, IPPROTO_IP, libc::IP_PKTINFO, 1)?;
    set(&socket, IPPROTO_IP, libc::IP_RECVTTL, 1)?;
    let sender = io!(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
    io!(sender.set_ttl(33));
    io!(sender.send_to(b"hello", (Ipv4Addr::new(127, 0, 0, 8), port)));
    let mut data = [0u8; 16];
    let mut room = [0u64; 16];
    let mut buffer = libc::iovec {
        iov_base: data.as_mut_ptr().cast(),
        iov_len: 3,
    };
    // SAFETY: all zeros is a valid header.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &mut buffer;
    header.msg_iovlen = 1;
    header.msg_control = room.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&room);
    let n = call!(recvmsg(socket.as_raw_fd(), &mut header, 0));
    ensure!(
        n == 3 && header.msg_flags == MSG_TRUNC,
        "{n} bytes, {:#x}",
        header.msg_flags
    );
    let (mut info, mut ttl) = (None, None);
    // SAFETY: the kernel has filled the header, and the messages are read with the macros made for it.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&header);
        while let Some(message) = at.as_ref() {
            let data = libc::CMSG_DATA(at);
            match message.cmsg_type {
                libc::IP_PKTINFO => info = Some(data.cast::<libc::in_pktinfo>().read_unaligned()),
                libc::IP_TTL => ttl = Some(data.cast::<c_int>().read_unaligned()),
                _ => {}
            }
            at = libc::CMSG_NXTHDR(&header, at);
        }
    }
    let info = info.ok_or("no IP_PKTINFO")?;
    ensure!(info.ipi_ifindex == 1, "interface {}", info.ipi_ifindex);
    let to = info.ipi_addr.s_addr.to_ne_bytes();
    ensure!(to == [127, 0, 0, 8], "sent to {to:?}");
    ensure!(ttl == Some(33), "{ttl:?}");
    Ok(())
}

fn options() -> Outcome {
    let (client, server) = pair()?;
    for (name, value) in [
        (libc::TCP_NODELAY, 1),
        (libc::TCP_KEEPIDLE, 100),
        (libc::TCP_KEEPINTVL, 7),
        (libc::TCP_KEEPCNT, 3),
        (libc::TCP_USER_TIMEOUT, 5000),
        (libc::TCP_CORK, 1),
    ] {
        set(&client, IPPROTO_TCP, name, value)?;
        let got = get(&client, IPPROTO_TCP, name)?;
        ensure!(got == value, "option {name} is {got}");
    }
    let fd = client.as_raw_fd();
    let bad = 200;
    let at = (&raw const bad).cast();
    refused!(
        EINVAL,
        setsockopt(fd, IPPROTO_TCP, libc::TCP_KEEPCNT, at, 4)
    );
    refused!(ENOPROTOOPT, setsockopt(fd, IPPROTO_TCP, 999, at, 4));
    refused!(
        ENOPROTOOPT,
        setsockopt(fd, IPPROTO_IPV6, libc::IPV6_V6ONLY, at, 4)
    );
    refused!(
        EINVAL,
        setsockopt(fd, IPPROTO_IP, libc::IP_TTL, (&raw const bad).cast(), 0)
    );
    set(&client, IPPROTO_IP, libc::IP_TOS, 16)?;
    ensure!(get(&client, IPPROTO_IP, libc::IP_TOS)? == 16, "IP_TOS");
    let mut name = [0u8; 16];
    let mut len = 16;
    call!(getsockopt(
        fd,
        IPPROTO_TCP,
        libc::TCP_CONGESTION,
        name.as_mut_ptr().cast(),
        &mut len
    ));
    ensure!(name.starts_with(b"cubic\0"), "{name:?}");
    refused!(
        ENOENT,
        setsockopt(
            fd,
            IPPROTO_TCP,
            libc::TCP_CONGESTION,
            b"none".as_ptr().cast(),
            4
        )
    );
    let mut info = [0u8; 104];
    for (end, state) in [(&server, 1), (&client, 8)] {
        let mut len = 104;
        if state == 8 {
            io!(server.shutdown(Shutdown::Write));
        }
        call!(getsockopt(
            end.as_raw_fd(),
            IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len
        ));
        ensure!(len == 104 && info[0] == state, "state {} of {len}", info[0]);
    }
    Ok(())
}

fn interface() -> Outcome {
    let listener = io!(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let fd = listener.as_raw_fd();
    // SAFETY: all zeros is a valid request.
    let mut request: libc::ifreq = unsafe { zeroed() };
    request.ifr_name[0] = b'l' as i8;
    request.ifr_name[1] = b'o' as i8;
    call!(ioctl(fd, libc::SIOCGIFFLAGS, &mut request));
    // SAFETY: the call has filled it.
    let flags = c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    let wanted = libc::IFF_UP | libc::IFF_LOOPBACK | libc::IFF_RUNNING;
    ensure!(flags == wanted, "flags {flags:#x}");
    request.ifr_name[0] = b'e' as i8;
    refused!(ENODEV, ioctl(fd, libc::SIOCGIFFLAGS, &mut request));
    let port = io!(listener.local_addr()).port();
    let table = io!(std::fs::read_to_string("/proc/net/tcp"));
    let line = format!("0100007F:{port:04X} 00000000:0000 0A");
    ensure!(table.contains(&line), "no {line} in {table}");
    let devices = io!(std::fs::read_to_string("/proc/net/dev"));
    ensure!(devices.contains("lo:"), "{devices}");
    Ok(())
}
