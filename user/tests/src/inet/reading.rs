//! Readiness of connections, ways of reading and writing.

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
    // SAFETY: the descriptor is new, and nothing else owns it.
    let idle = unsafe { TcpStream::from_raw_fd(fd) };
    ensure!(poll_for(&idle, ALL, 0)? == POLLOUT | POLLHUP, "idle");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    ensure!(poll_for(&listener, ALL, 0)? == 0, "nobody there");
    let client = TcpStream::connect(listener.local_addr()?)?;
    ensure!(poll_for(&listener, ALL, 0)? == POLLIN, "somebody there");
    let (server, _) = listener.accept()?;
    ensure!(poll_for(&client, ALL, 0)? == POLLOUT, "connected");
    (&server).write_all(b"x")?;
    ensure!(poll_for(&client, ALL, 0)? == POLLIN | POLLOUT, "a byte");
    server.shutdown(Shutdown::Write)?;
    ensure!(poll_for(&client, ALL, 0)? == ALL, "half closed");
    ensure!(
        poll_for(&server, ALL, 0)? == POLLOUT,
        "the half that closed"
    );
    client.shutdown(Shutdown::Write)?;
    ensure!(poll_for(&client, ALL, 0)? == ALL | POLLHUP, "closed");
    ensure!(
        i32::from(poll_for(&server, ALL, 0)? & POLLHUP) == EPOLLHUP,
        "both"
    );
    // A waiting task is woken.
    let (client, server) = pair()?;
    let reader = thread::spawn(move || {
        let mut byte = [0];
        (&server).read(&mut byte).map(|_| byte[0])
    });
    thread::sleep(Duration::from_millis(20));
    (&client).write_all(b"w")?;
    let got = reader.join()?;
    ensure!(got? == b'w', "another byte");
    Ok(())
}

fn flags() -> Outcome {
    let (client, server) = pair()?;
    let (from, mut buffer) = (server.as_raw_fd(), [0u8; 16]);
    let to = buffer.as_mut_ptr().cast();
    refused!(EAGAIN, recv(from, to, 4, MSG_DONTWAIT));
    (&client).write_all(b"abcdefgh")?;
    let n = call!(recv(from, to, 4, MSG_PEEK));
    ensure!(n == 4 && &buffer[..4] == b"abcd", "looked at {n}");
    let mut waiting = 0;
    call!(ioctl(from, FIONREAD, &mut waiting));
    ensure!(waiting == 8, "FIONREAD says {waiting}");
    let n = call!(recv(from, null_mut(), 3, MSG_TRUNC));
    ensure!(n == 3, "threw away {n}");
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        (&client).write_all(b"ijk").map(|()| client)
    });
    let n = call!(recv(from, to, 8, MSG_WAITALL));
    ensure!(n == 8 && &buffer[..8] == b"defghijk", "waited for {n}");
    late.join()??;
    server.set_read_timeout(Some(Duration::from_millis(20)))?;
    let (_other, server) = pair()?;
    server.set_read_timeout(Some(Duration::from_millis(20)))?;
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
    (&client).write_all(b"ab")?;
    call!(send(to, b"!".as_ptr().cast(), 1, MSG_OOB));
    (&client).write_all(b"cd")?;
    equal!(poll_for(&server, POLLPRI | POLLIN, 0)?, POLLPRI | POLLIN);
    let n = call!(recv(from, at, 16, 0));
    ensure!(n == 2 && &buffer[..2] == b"ab", "{n} bytes to the mark");
    let mut mark = 0;
    call!(ioctl(from, 0x8905, &mut mark));
    ensure!(mark == 1, "not at the mark");
    let n = call!(recv(from, at, 16, MSG_OOB));
    ensure!(n == 1 && buffer[0] == b'!', "another byte");
    let n = call!(recv(from, at, 16, 0));
    ensure!(n == 2 && &buffer[..2] == b"cd", "{n} bytes behind the mark");
    set_option(&server, SOL_SOCKET, SO_OOBINLINE, 1)?;
    call!(send(to, b"x!".as_ptr().cast(), 2, MSG_OOB));
    let n = call!(recv(from, at, 16, 0));
    ensure!(n == 1 && buffer[0] == b'x', "{n} bytes before");
    let n = call!(recv(from, at, 16, 0));
    ensure!(n == 1 && buffer[0] == b'!', "{n} bytes in line");
    // More bytes than the machine has memory are sent as far as there is room.
    const HUGE: usize = 8 << 30;
    let (kind, none) = (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, null_mut());
    let bytes = call!(mmap(none, HUGE, PROT_READ, kind, -1, 0));
    let n = call!(send(to, bytes, HUGE, MSG_OOB | MSG_DONTWAIT));
    ensure!(n > 0 && (n as usize) < HUGE, "sent {n}");
    call!(munmap(bytes, HUGE));
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
    client.shutdown(Shutdown::Write)?;
    let all = reader.join()??;
    ensure!(all == bytes, "{} bytes, other ones", all.len());
    // Through a pipe.
    let (client, mut server) = pair()?;
    let (out, into) = pipe(0)?;
    call!(write(into, b"through a pipe".as_ptr().cast(), 14));
    let null = null_mut;
    let n = call!(splice(out, null(), client.as_raw_fd(), null(), 14, 0));
    ensure!(n == 14, "{n} bytes");
    drop(client);
    let mut text = String::new();
    server.read_to_string(&mut text)?;
    ensure!(text == "through a pipe", "{text:?}");
    Ok(())
}
