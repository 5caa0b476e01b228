//! Datagrams and packets.

use super::{bind, connect, ready, receive, send, socket};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("unix sockets: datagrams", datagrams),
    ("unix sockets: a full queue of datagrams", full_queue),
    ("unix sockets: packets", packets),
    ("unix sockets: peeking and truncation", peeking),
    ("unix sockets: many messages in a call", many_messages),
];

fn datagrams() -> Outcome {
    let folder = folder("unix-datagrams")?;
    let (a, b) = (format!("{folder}/a"), format!("{folder}/b"));
    let first = UnixDatagram::bind(&a)?;
    let second = UnixDatagram::bind(&b)?;
    first.send_to(b"one", &b)?;
    first.send_to(b"", &b)?;
    first.send_to(&[9; 30_000], &b)?;
    let mut buffer = vec![0; 40_000];
    let (n, from) = second.recv_from(&mut buffer)?;
    ensure!(&buffer[..n] == b"one", "{:?}", &buffer[..n]);
    ensure!(
        from.as_pathname().is_some_and(|p| p.to_str() == Some(&a)),
        "{from:?}"
    );
    let (n, _) = second.recv_from(&mut buffer)?;
    ensure!(n == 0, "{n} bytes of nothing");
    let (n, _) = second.recv_from(&mut buffer)?;
    ensure!(n == 30_000 && buffer[..n].iter().all(|&x| x == 9), n);
    // A connected socket takes nothing from other senders.
    second.connect(&a)?;
    let third = UnixDatagram::unbound()?;
    let error = third
        .send_to(b"x", &b)
        .map_err(|error| error.raw_os_error());
    ensure!(error == Err(Some(EPERM)), "{error:?}");
    second.send(b"back")?;
    let n = first.recv(&mut buffer)?;
    ensure!(&buffer[..n] == b"back", "{:?}", &buffer[..n]);
    let error = third.send(b"x").map_err(|error| error.raw_os_error());
    ensure!(error == Err(Some(ENOTCONN)), "{error:?}");
    drop(first);
    let error = second.send(b"x").map_err(|error| error.raw_os_error());
    ensure!(error == Err(Some(ECONNREFUSED)), "{error:?}");
    let error = second.send(b"x").map_err(|error| error.raw_os_error());
    ensure!(error == Err(Some(ENOTCONN)), "{error:?}");
    let huge = vec![0; 1 << 20];
    let error = third
        .send_to(&huge, &b)
        .map_err(|error| error.raw_os_error());
    ensure!(error == Err(Some(EMSGSIZE)), "{error:?}");
    Ok(())
}

fn full_queue() -> Outcome {
    let folder = folder("unix-full")?;
    let path = format!("{folder}/socket");
    let receiver = UnixDatagram::bind(&path)?;
    let sender = UnixDatagram::unbound()?;
    sender.connect(&path)?;
    sender.set_nonblocking(true)?;
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
    ensure!(found & POLLOUT as c_int == 0, "writable when full");
    let child = spawn(|| {
        pause_ms(20);
        let mut buffer = [0; 4];
        receiver.recv(&mut buffer)?;
        Ok(())
    })?;
    let mut entry = poll_entry(sender.as_raw_fd(), POLLOUT);
    let n = call!(poll(&mut entry, 1, 5000));
    ensure!(n == 1 && entry.revents == POLLOUT, entry.revents);
    sender.send(b"y")?;
    wait(child)?;
    // The same while asleep in the call.
    sender.set_nonblocking(false)?;
    let child = spawn(|| {
        pause_ms(20);
        let mut buffer = [0; 4];
        receiver.recv(&mut buffer)?;
        Ok(())
    })?;
    sender.send(b"z")?;
    wait(child)?;
    Ok(())
}

fn packets() -> Outcome {
    let [a, b] = socket_pair(SOCK_SEQPACKET)?;
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
    refused! { send(b.as_raw_fd(), buffer.as_ptr().cast(), 1, MSG_NOSIGNAL) => EPIPE; }
    // No call raises SIGPIPE: it would end this process.
    let before = call!(signal(SIGPIPE, SIG_DFL));
    refused!(EPIPE, write(b.as_raw_fd(), buffer.as_ptr().cast(), 1));
    refused!(EPIPE, send(b.as_raw_fd(), buffer.as_ptr().cast(), 1, 0));
    call!(signal(SIGPIPE, before));
    let name = b"\0causeway packets";
    let listener = socket(SOCK_SEQPACKET)?;
    ensure!(bind(listener, name) == 0, "bind");
    call!(listen(listener, 5));
    let client = socket(SOCK_SEQPACKET)?;
    refused!(ENOTCONN, send(client, buffer.as_ptr().cast(), 1, 0));
    refused!(ENOTCONN, recv(client, buffer.as_mut_ptr().cast(), 1, 0));
    ensure!(connect(client, name) == 0, "connect");
    let server = call!(accept(listener, null_mut(), null_mut()));
    call!(send(client, b"hi".as_ptr().cast(), 2, 0));
    let n = call!(recv(server, buffer.as_mut_ptr().cast(), 16, 0));
    ensure!(&buffer[..n as usize] == b"hi", "{buffer:?}");
    Ok(())
}

fn peeking() -> Outcome {
    let mut buffer = [0; 16];
    let [a, b] = socket_pair(SOCK_STREAM)?;
    send(&a, b"abc", 0)?;
    send(&a, b"def", 0)?;
    let n = receive(&b, &mut buffer, MSG_PEEK)?;
    ensure!(&buffer[..n] == b"abcdef", "{:?}", &buffer[..n]);
    let n = receive(&b, &mut buffer[..2], MSG_PEEK)?;
    ensure!(&buffer[..n] == b"ab", "{:?}", &buffer[..n]);
    let child = spawn(|| {
        pause_ms(20);
        send(&a, b"ghi", 0).map(drop)
    })?;
    let n = receive(&b, &mut buffer[..9], MSG_WAITALL)?;
    ensure!(&buffer[..n] == b"abcdefghi", "{:?}", &buffer[..n]);
    wait(child)?;
    let [a, b] = socket_pair(SOCK_DGRAM)?;
    send(&a, b"long message", 0)?;
    let n = receive(&b, &mut buffer[..4], MSG_PEEK | MSG_TRUNC)?;
    ensure!(n == 12 && &buffer[..4] == b"long", "{n} {buffer:?}");
    let n = receive(&b, &mut buffer[..4], MSG_TRUNC)?;
    ensure!(n == 12, "{n}");
    refused! { recv(b.as_raw_fd(), buffer.as_mut_ptr().cast(), 1, MSG_DONTWAIT) => EAGAIN; }
    Ok(())
}

fn many_messages() -> Outcome {
    let [a, b] = socket_pair(SOCK_DGRAM)?;
    let words: [&[u8]; 3] = [b"one", b"three", b""];
    let mut iovs = words.map(|word| vector(word.as_ptr(), word.len()));
    // SAFETY: all zeros is a valid header.
    let mut headers: [mmsghdr; 4] = unsafe { zeroed() };
    for (header, iov) in headers.iter_mut().zip(&mut iovs) {
        header.msg_hdr.msg_iov = iov;
        header.msg_hdr.msg_iovlen = 1;
    }
    let n = call!(sendmmsg(a.as_raw_fd(), headers.as_mut_ptr(), 3, 0));
    ensure!(n == 3, "{n} sent");
    ensure!(headers[1].msg_len == 5, "{}", headers[1].msg_len);
    let mut buffers = [[0u8; 8]; 4];
    let mut iovs = [null_mut::<c_void>(); 4].map(|base| vector(base, 8));
    for (iov, buffer) in iovs.iter_mut().zip(&mut buffers) {
        iov.iov_base = buffer.as_mut_ptr().cast();
    }
    for (header, iov) in headers.iter_mut().zip(&mut iovs) {
        header.msg_hdr.msg_iov = iov;
        header.msg_hdr.msg_iovlen = 1;
    }
    let flags = MSG_WAITFORONE;
    let n = call!(recvmmsg(
        b.as_raw_fd(),
        headers.as_mut_ptr(),
        4,
        flags as _,
        null_mut()
    ));
    ensure!(n == 3, "{n} received");
    let lens: Vec<u32> = headers[..3].iter().map(|header| header.msg_len).collect();
    ensure!(lens == [3, 5, 0] && &buffers[1][..5] == b"three", lens);
    Ok(())
}
