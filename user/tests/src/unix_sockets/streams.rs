//! Streams: order of bytes, ends, space, splice.

use super::{ready, receive, send};
use support::prelude::*;

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
    ("unix sockets: splice and sendfile", splice),
];

fn stream() -> Outcome {
    let [a, b] = socket_pair(SOCK_STREAM)?;
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
    call!(ioctl(a.as_raw_fd(), FIONREAD, &mut waiting));
    ensure!(waiting == 0, "FIONREAD says {waiting}");
    send(&b, &[1; 5000], 0)?;
    call!(ioctl(a.as_raw_fd(), FIONREAD, &mut waiting));
    ensure!(waiting == 5000, "FIONREAD says {waiting}");
    Ok(())
}

/// Sends pieces of all sizes in both directions at once and checks each byte.
fn large_stream() -> Outcome {
    const TOTAL: usize = 1 << 20;
    let (a, b) = UnixStream::pair()?;
    let run = |mut socket: UnixStream, seed: u64| -> Outcome {
        let mut reader = socket.try_clone()?;
        let receiver = thread::spawn(move || -> Outcome {
            let mut numbers = Numbers::new(seed + 7);
            let mut buffer = vec![0; 100_000];
            let mut at = 0;
            loop {
                let size = 1 + numbers.below(buffer.len() as u64) as usize;
                let n = reader.read(&mut buffer[..size])?;
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
            let n = socket.write(&bytes[..size])?;
            at += n;
        }
        socket.shutdown(std::net::Shutdown::Write)?;
        receiver.join()?
    };
    let child = spawn(|| run(b.try_clone()?, 1))?;
    drop(b);
    run(a, 2)?;
    wait_ok(child)?;
    Ok(())
}

fn ends() -> Outcome {
    let mut buffer = [0; 16];
    let [a, b] = socket_pair(SOCK_STREAM)?;
    send(&a, b"last", 0)?;
    drop(a);
    let n = receive(&b, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"last", "{:?}", &buffer[..n]);
    ensure!(receive(&b, &mut buffer, 0)? == 0, "no end");
    refused! { send(b.as_raw_fd(), buffer.as_ptr().cast(), 1, MSG_NOSIGNAL) => EPIPE; }
    // Closing with unread bytes makes the other end fail once.
    let [a, b] = socket_pair(SOCK_STREAM)?;
    send(&b, b"unread", 0)?;
    drop(a);
    let found = ready(b.as_raw_fd())?;
    ensure!(found & POLLERR as c_int != 0, "ready {found:#x}");
    refused! { recv(b.as_raw_fd(), buffer.as_mut_ptr().cast(), 1, 0) => ECONNRESET; }
    ensure!(receive(&b, &mut buffer, 0)? == 0, "no end");
    // SIGPIPE without MSG_NOSIGNAL.
    let child = spawn(|| {
        let [a, b] = socket_pair(SOCK_STREAM)?;
        drop(a);
        // SAFETY: the default action of SIGPIPE, which the Rust runtime has changed.
        unsafe { libc::signal(SIGPIPE, SIG_DFL) };
        let _ = send(&b, b"x", 0);
        Ok(())
    })?;
    let end = wait(child)?;
    ensure!(end == End::Signal(SIGPIPE), "{end:?}");
    Ok(())
}

fn shutdown() -> Outcome {
    let mut buffer = [0; 16];
    let [a, b] = socket_pair(SOCK_STREAM)?;
    send(&a, b"before", 0)?;
    call!(shutdown(a.as_raw_fd(), SHUT_WR));
    refused! { send(a.as_raw_fd(), buffer.as_ptr().cast(), 1, MSG_NOSIGNAL) => EPIPE; }
    let found = ready(b.as_raw_fd())?;
    ensure!(found & POLLRDHUP as c_int != 0, "ready {found:#x}");
    ensure!(found & POLLHUP as c_int == 0, "ready {found:#x}");
    let n = receive(&b, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"before", "{:?}", &buffer[..n]);
    ensure!(receive(&b, &mut buffer, 0)? == 0, "no end");
    send(&b, b"still", 0)?;
    let n = receive(&a, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"still", "{:?}", &buffer[..n]);
    call!(shutdown(a.as_raw_fd(), SHUT_RD));
    refused! { send(b.as_raw_fd(), buffer.as_ptr().cast(), 1, MSG_NOSIGNAL) => EPIPE; }
    let found = ready(b.as_raw_fd())?;
    ensure!(found & POLLHUP as c_int != 0, "ready {found:#x}");
    refused!(EINVAL, shutdown(a.as_raw_fd(), 3));
    Ok(())
}

fn readiness() -> Outcome {
    const IN: c_int = POLLIN as c_int;
    const OUT: c_int = POLLOUT as c_int;
    const HUP: c_int = POLLHUP as c_int;
    const RDHUP: c_int = POLLRDHUP as c_int;
    let fresh = call!(socket(AF_UNIX, SOCK_STREAM, 0));
    let found = ready(fresh)?;
    ensure!(found == OUT | HUP, "a fresh stream: {found:#x}");
    let datagram = call!(socket(AF_UNIX, SOCK_DGRAM, 0));
    let found = ready(datagram)?;
    ensure!(found == OUT, "a fresh datagram socket: {found:#x}");
    let [a, b] = socket_pair(SOCK_STREAM)?;
    ensure!(ready(a.as_raw_fd())? == OUT, "a pair");
    send(&b, b"x", 0)?;
    ensure!(ready(a.as_raw_fd())? == IN | OUT, "with a byte");
    drop(b);
    let found = ready(a.as_raw_fd())?;
    ensure!(found == IN | OUT | HUP | RDHUP, "after the end: {found:#x}");
    // A sleeping poll is woken by a byte from another process.
    let [a, b] = socket_pair(SOCK_STREAM)?;
    let child = spawn(|| {
        pause_ms(20);
        send(&b, b"x", 0).map(drop)
    })?;
    let mut entry = poll_entry(a.as_raw_fd(), POLLIN);
    let n = call!(poll(&mut entry, 1, 5000));
    ensure!(n == 1 && entry.revents == POLLIN, entry.revents);
    wait(child)?;
    Ok(())
}

fn room() -> Outcome {
    let [a, b] = socket_pair(SOCK_STREAM)?;
    let piece = vec![7; 10_000];
    let mut total = 0;
    loop {
        // SAFETY: sends from a live buffer.
        let n = unsafe {
            libc::send(
                a.as_raw_fd(),
                piece.as_ptr().cast(),
                piece.len(),
                MSG_DONTWAIT,
            )
        };
        if n < 0 {
            ensure!(errno() == EAGAIN, "errno {}", errno());
            break;
        }
        total += n as usize;
        ensure!(total < 1 << 20, "no limit");
    }
    ensure!(total >= 65536, "only {total} bytes fit");
    let found = ready(a.as_raw_fd())?;
    ensure!(found & POLLOUT as c_int == 0, "writable when full");
    // A waiting writer continues when there is space.
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
    let mut entry = poll_entry(a.as_raw_fd(), POLLOUT);
    let n = call!(poll(&mut entry, 1, 5000));
    ensure!(n == 1 && entry.revents == POLLOUT, entry.revents);
    for _ in 0..3 {
        let n = send(&a, &piece, 0)?;
        ensure!(n == piece.len(), "sent {n}");
    }
    wait_ok(child)?;
    Ok(())
}

fn splice() -> Outcome {
    let folder = folder("unix-splice")?;
    let path = format!("{folder}/file");
    let bytes: Vec<u8> = (0..100_000u32).map(|n| (n / 5) as u8).collect();
    fs::write(&path, &bytes)?;
    let file = File::open(&path)?;
    let [a, b] = socket_pair(SOCK_STREAM)?;
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
    // From the socket through a pipe into another socket.
    let [c, d] = socket_pair(SOCK_STREAM)?;
    let mut found = Vec::new();
    let mut buffer = vec![0; 70_000];
    while found.len() < bytes.len() {
        let n = call!(splice(
            b.as_raw_fd(),
            null_mut(),
            writer,
            null_mut(),
            50_000,
            0
        ));
        ensure!(n > 0, "splice from a socket gave {n}");
        let mut left = n;
        while left > 0 {
            let n = call!(splice(
                reader,
                null_mut(),
                c.as_raw_fd(),
                null_mut(),
                left as usize,
                0
            ));
            ensure!(n > 0, "splice to a socket gave {n}");
            left -= n;
            let n = receive(&d, &mut buffer[..n as usize], MSG_WAITALL)?;
            found.extend_from_slice(&buffer[..n]);
        }
    }
    ensure!(found == bytes, "other bytes");
    wait_ok(child)?;
    refused! {
        splice(b.as_raw_fd(), null_mut(), writer, null_mut(), 1, SPLICE_F_NONBLOCK) => EAGAIN;
        splice(a.as_raw_fd(), null_mut(), c.as_raw_fd(), null_mut(), 1, 0) => EINVAL;
    }
    Ok(())
}
