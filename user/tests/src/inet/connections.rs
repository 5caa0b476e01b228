//! Connections: their beginnings, ends and errors, many at once, large transfers.

use super::*;

pub const TESTS: &[Test] = &[
    ("inet: a connection and its ends", connection),
    ("inet: IPv6, and IPv4 on the same socket", versions),
    ("inet: a large transfer both ways", large),
    ("inet: many connections", many),
    ("inet: refusals and resets", resets),
    ("inet: connecting without waiting", nonblocking),
    ("inet: sending nothing where nothing can be sent", nothing),
    ("inet: a close that lingers", lingering),
];

fn connection() -> Outcome {
    let (mut client, mut server) = pair()?;
    client.write_all(b"hello")?;
    let mut buffer = [0; 16];
    let n = server.read(&mut buffer)?;
    ensure!(&buffer[..n] == b"hello", "{:?}", &buffer[..n]);
    server.write_all(b"and back")?;
    server.shutdown(Shutdown::Write)?;
    let mut all = String::new();
    client.read_to_string(&mut all)?;
    ensure!(all == "and back", "{all:?}");
    // The other direction stays open.
    client.write_all(b"still here")?;
    let n = server.read(&mut buffer)?;
    ensure!(&buffer[..n] == b"still here", "{:?}", &buffer[..n]);
    drop(client);
    let n = server.read(&mut buffer)?;
    ensure!(n == 0, "{n} bytes behind the end");
    let written = server.write(b"x").map_err(|error| error.kind());
    ensure!(written == Err(ErrorKind::BrokenPipe), "{written:?}");
    Ok(())
}

/// A send without bytes says whether there is a connection to send on.
fn nothing() -> Outcome {
    static PIPES: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn note_pipe(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        PIPES.fetch_add(1, SeqCst);
    }
    let nothing = |socket: &dyn AsRawFd| {
        // SAFETY: no bytes are read.
        match unsafe { send(socket.as_raw_fd(), c"".as_ptr().cast(), 0, MSG_NOSIGNAL) } {
            -1 => Err(errno()),
            n => Ok(n),
        }
    };
    // SAFETY: a new descriptor.
    let fresh = unsafe { OwnedFd::from_raw_fd(call!(socket(AF_INET, SOCK_STREAM, 0))) };
    equal!(nothing(&fresh), Err(EPIPE));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    equal!(nothing(&listener), Err(EPIPE));
    let (client, server) = pair()?;
    equal!(nothing(&client), Ok(0));
    client.shutdown(Shutdown::Write)?;
    equal!(nothing(&client), Err(EPIPE));
    // The other direction stays open.
    equal!(nothing(&server), Ok(0));
    handle(SIGPIPE, note_pipe, 0)?;
    refused!(EPIPE, write(client.as_raw_fd(), c"".as_ptr().cast(), 0));
    equal!(PIPES.load(SeqCst), 1);
    let (client, server) = pair()?;
    let at_once = linger {
        l_onoff: 1,
        l_linger: 0,
    };
    set_option(&server, SOL_SOCKET, SO_LINGER, at_once)?;
    drop(server);
    equal!(nothing(&client), Err(ECONNRESET));
    equal!(nothing(&client), Err(EPIPE));
    // A datagram is as long as it may be, whatever the buffer.
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    udp.connect(udp.local_addr()?)?;
    set_option(&udp, SOL_SOCKET, SO_SNDBUF, 4096)?;
    call!(shutdown(udp.as_raw_fd(), SHUT_WR));
    for len in [0, 1, 60_000] {
        let sent = udp.send(&vec![0; len]).map_err(|why| why.raw_os_error());
        equal!(sent, Err(Some(EPIPE)), len);
    }
    let sent = udp.send(&[0; 65_508]).map_err(|why| why.raw_os_error());
    equal!(sent, Err(Some(EMSGSIZE)));
    Ok(())
}

/// With `SO_LINGER` the last close waits until the peer has all, or until the time is over. Where
/// no packets are needed, the peer has all at once.
fn lingering() -> Outcome {
    const TIME: Duration = Duration::from_secs(1);
    let has_packets = read_text("/proc/cmdline")?.contains("loopback=ip");
    let full = |seconds: i32| -> Result<(TcpStream, TcpStream, usize)> {
        let (mut client, server) = pair()?;
        let time = linger {
            l_onoff: 1,
            l_linger: seconds,
        };
        set_option(&client, SOL_SOCKET, SO_LINGER, time)?;
        client.set_nonblocking(true)?;
        let mut sent = 0;
        while let Ok(n) = client.write(&[7; 65_536]) {
            sent += n;
        }
        Ok((client, server, sent))
    };
    let all_of = |mut server: TcpStream| {
        let mut all = Vec::new();
        server.read_to_end(&mut all).map(|_| all.len())
    };
    let (client, server, sent) = full(TIME.as_secs() as i32)?;
    // Another descriptor keeps it open.
    drop(client.try_clone()?);
    let begin = Instant::now();
    drop(client);
    ensure!(!has_packets || begin.elapsed() >= TIME, "it did not wait");
    equal!(all_of(server)?, sent);
    let (client, server, sent) = full(100)?;
    let reader = thread::spawn(move || all_of(server));
    let begin = Instant::now();
    drop(client);
    ensure!(begin.elapsed() < 50 * TIME, "it waited for nothing");
    equal!(reader.join().unwrap()?, sent);
    // The end of a process waits for nothing.
    let begin = Instant::now();
    child(|| {
        let (client, server, _) = full(100)?;
        std::mem::forget((client, server));
        Ok(())
    })?;
    ensure!(begin.elapsed() < 50 * TIME, "the end of a process waited");
    Ok(())
}

fn versions() -> Outcome {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    let port = listener.local_addr()?.port();
    for ip in ["::1", "127.0.0.1", "127.1.2.3"] {
        let to: SocketAddr = SocketAddr::new(ip.parse().unwrap(), port);
        let mut client = TcpStream::connect(to)?;
        ensure!(client.peer_addr()? == to, "peer of {to}");
        let (mut server, from) = listener.accept()?;
        let mapped = from.ip().to_canonical();
        ensure!(mapped == client.local_addr()?.ip(), "from {from}");
        client.write_all(ip.as_bytes())?;
        drop(client);
        let mut got = String::new();
        server.read_to_string(&mut got)?;
        ensure!(got == ip, "{got:?}");
    }
    // With IPV6_V6ONLY an IPv4 socket may bind the same port.
    let fd = call!(socket(AF_INET6, SOCK_STREAM, 0));
    // SAFETY: the descriptor is new, and nothing else owns it.
    let only = unsafe { TcpListener::from_raw_fd(fd) };
    set_option(&only, IPPROTO_IPV6, IPV6_V6ONLY, 1)?;
    bind_v6(fd, 0)?;
    call!(listen(fd, 1));
    let port = only.local_addr()?.port();
    let other = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    drop(other);
    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(|e| e.kind());
    ensure!(
        matches!(refused, Err(ErrorKind::ConnectionRefused)),
        "{refused:?}"
    );
    Ok(())
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
            to.write_all(&piece)?;
            at += piece.len();
        }
        to.shutdown(Shutdown::Write)?;
        Ok(())
    }
    fn check(mut from: TcpStream) -> Outcome {
        let mut at = 0;
        let mut buffer = vec![0; 70_000];
        let mut size = 1;
        loop {
            size = (size * 5 + 11) % 70_000 + 1;
            let n = from.read(&mut buffer[..size])?;
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
    let both = [a.try_clone()?, b.try_clone()?];
    let feeders = both.map(|end| thread::spawn(move || feed(end)));
    let checkers = [a, b].map(|end| thread::spawn(move || check(end)));
    for thread in feeders.into_iter().chain(checkers) {
        thread.join()??;
    }
    Ok(())
}

fn many() -> Outcome {
    const TIMES: usize = 600;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let to = listener.local_addr()?;
    let server = thread::spawn(move || -> Outcome {
        for _ in 0..TIMES {
            let (mut stream, _) = listener.accept()?;
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            stream.write_all(&byte)?;
        }
        Ok(())
    });
    for i in 0..TIMES {
        let mut stream = TcpStream::connect(to)?;
        stream.write_all(&[i as u8])?;
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        ensure!(byte[0] == i as u8, "{byte:?} for {i}");
        if i % 3 == 0 {
            // Wait for the other side to close first.
            ensure!(stream.read(&mut byte)? == 0, "bytes at the end");
        }
    }
    server.join()?
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
    equal!(bind_v4(fd, [10, 0, 0, 1], 0), -1);
    ensure!(errno() == EADDRNOTAVAIL, "errno {}", errno());
    refused!(ENOTCONN, shutdown(fd, 2));
    refused!(EPIPE, send(fd, b"x".as_ptr().cast(), 1, MSG_NOSIGNAL));
    call!(close(fd));

    // Closing with unread bytes sends a reset.
    let (mut client, server) = pair()?;
    client.write_all(b"unread")?;
    drop(server);
    let read = client.read(&mut [0; 8]).map_err(|error| error.kind());
    ensure!(read == Err(ErrorKind::ConnectionReset), "{read:?}");
    // A linger time of zero.
    let (client, mut server) = pair()?;
    let linger = linger {
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
    equal!(poll_for(&server, POLLIN, 0)?, POLLIN | POLLERR | POLLHUP);
    equal!(option(&server, SOL_SOCKET, SO_ERROR)?, ECONNRESET);
    ensure!(server.read(&mut [0; 8])? == 0, "bytes after a reset");
    // Closing a listener resets the connections that it has not accepted.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut waiting = TcpStream::connect(listener.local_addr()?)?;
    drop(listener);
    let read = waiting.read(&mut [0; 8]).map_err(|error| error.kind());
    ensure!(read == Err(ErrorKind::ConnectionReset), "{read:?}");
    Ok(())
}

fn nonblocking() -> Outcome {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let fd = call!(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    // SAFETY: the descriptor is new, and nothing else owns it.
    let client = unsafe { TcpStream::from_raw_fd(fd) };
    let to = v4([127, 0, 0, 1], port);
    refused!(EINPROGRESS, connect(fd, (&raw const to).cast(), 16));
    ensure!(poll_for(&client, POLLOUT, 0)? == POLLOUT, "not connected");
    ensure!(option(&client, SOL_SOCKET, SO_ERROR)? == 0, "an error");
    call!(connect(fd, (&raw const to).cast(), 16));
    refused!(EISCONN, connect(fd, (&raw const to).cast(), 16));
    refused!(EAGAIN, recv(fd, [0u8; 1].as_mut_ptr().cast(), 1, 0));
    listener.set_nonblocking(true)?;
    drop(listener.accept()?);
    let none = listener.accept().map(drop).map_err(|error| error.kind());
    ensure!(none == Err(ErrorKind::WouldBlock), "{none:?}");
    drop(listener);
    let fd = call!(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    // SAFETY: as above.
    let client = unsafe { TcpStream::from_raw_fd(fd) };
    refused!(EINPROGRESS, connect(fd, (&raw const to).cast(), 16));
    let ready = poll_for(&client, POLLOUT, 0)?;
    ensure!(ready == POLLOUT | POLLERR | POLLHUP, "{ready:#x}");
    equal!(option(&client, SOL_SOCKET, SO_ERROR)?, ECONNREFUSED);
    // A full queue: the first byte that is not taken.
    let (client, server) = pair()?;
    client.set_nonblocking(true)?;
    let piece = vec![0; 65536];
    let mut total = 0;
    let full = loop {
        match (&client).write(&piece) {
            Ok(n) => total += n,
            Err(error) => break error.kind(),
        }
    };
    ensure!(full == ErrorKind::WouldBlock, "{full:?}");
    ensure!(
        poll_for(&client, POLLOUT, 0)? == 0,
        "room after {total} bytes"
    );
    let mut left = total;
    let mut buffer = vec![0; 65536];
    while left > 0 {
        left -= (&server).read(&mut buffer)?;
    }
    ensure!(poll_for(&client, POLLOUT, 0)? == POLLOUT, "no room");
    Ok(())
}
