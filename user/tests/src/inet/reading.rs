//! What a connection's socket says of itself, and ways of reading and writing.

use super::*;

pub const TESTS: &[Test] = &[
    ("inet: readiness", readiness),
    ("inet: looking ahead, throwing away, waiting for all", flags),
    ("inet: an urgent byte", urgent),
    ("inet: a file to a socket", from_file),
];

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
