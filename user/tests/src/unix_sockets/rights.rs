//! Files and credentials in control messages.

use super::{bind, connect, receive, send, socket};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("unix sockets: files in messages", files),
    ("unix sockets: files are barriers in a stream", barriers),
    ("unix sockets: cycles of files in flight", cycles),
    ("unix sockets: a deep chain of files in flight", deep_chain),
    ("unix sockets: credentials", credentials),
];

/// Sends bytes with control messages: level is `SOL_SOCKET`.
fn send_with(to: c_int, bytes: &[u8], messages: &[(c_int, &[u8])]) -> Result<usize, c_int> {
    let mut control = vec![0u64; 200];
    let mut iov = vector(bytes.as_ptr(), bytes.len());
    // SAFETY: all zeros is a valid header; the control messages are written inside of `control`.
    unsafe {
        let mut header: msghdr = zeroed();
        header.msg_iov = &mut iov;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        let mut len = 0;
        for (kind, data) in messages {
            let at = control.as_mut_ptr().cast::<u8>().add(len);
            let head = at.cast::<cmsghdr>();
            (*head).cmsg_level = SOL_SOCKET;
            (*head).cmsg_type = *kind;
            (*head).cmsg_len = libc::CMSG_LEN(data.len() as u32) as _;
            ptr::copy_nonoverlapping(data.as_ptr(), libc::CMSG_DATA(head), data.len());
            len += libc::CMSG_SPACE(data.len() as u32) as usize;
        }
        header.msg_controllen = len as _;
        match libc::sendmsg(to, &header, MSG_NOSIGNAL) {
            -1 => Err(errno()),
            n => Ok(n as usize),
        }
    }
}

/// Result of `recvmsg`.
struct Got {
    bytes: Vec<u8>,
    flags: c_int,
    files: Vec<OwnedFd>,
    sender: Option<[u32; 3]>,
    has_time: bool,
}

/// Receives bytes and control messages, with `room` bytes for the latter.
fn receive_with(from: c_int, size: usize, room: usize, flags: c_int) -> Result<Got> {
    let mut control = vec![0u64; 200];
    let mut bytes = vec![0; size];
    let mut iov = vector(bytes.as_mut_ptr(), size);
    // SAFETY: all zeros is a valid header; what the kernel wrote is read inside of `control`.
    unsafe {
        let mut header: msghdr = zeroed();
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
                SCM_RIGHTS => {
                    for n in 0..len / 4 {
                        let fd = data.cast::<c_int>().add(n).read_unaligned();
                        got.files.push(OwnedFd::from_raw_fd(fd));
                    }
                }
                SCM_CREDENTIALS => {
                    got.sender = Some(data.cast::<[u32; 3]>().read_unaligned());
                }
                SCM_TIMESTAMP => got.has_time = true,
                other => return Err(format!("control message {other}").into()),
            }
            head = libc::CMSG_NXTHDR(&header, head);
        }
        Ok(got)
    }
}

fn numbers_of(fds: &[c_int]) -> Vec<u8> {
    fds.iter().flat_map(|fd| fd.to_ne_bytes()).collect()
}

/// Sends files with bytes.
pub fn send_files(to: c_int, bytes: &[u8], fds: &[c_int]) -> Result<usize, c_int> {
    send_with(to, bytes, &[(SCM_RIGHTS, &numbers_of(fds))])
}

/// Receives one message's files.
pub fn take_files(from: c_int) -> Result<Vec<OwnedFd>> {
    Ok(receive_with(from, 4, 400, 0)?.files)
}

fn is_close_on_exec(fd: c_int) -> Result<bool> {
    Ok(call!(fcntl(fd, F_GETFD)) & FD_CLOEXEC != 0)
}

fn files() -> Outcome {
    for kind in [SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET] {
        let [a, b] = socket_pair(kind)?;
        let (reader, writer) = pipe(0)?;
        // SAFETY: nothing else owns these descriptors.
        let writer = unsafe { OwnedFd::from_raw_fd(writer) };
        send_files(a.as_raw_fd(), b"x", &[writer.as_raw_fd(), 1])?;
        drop(writer);
        // In flight it stays open; a peek duplicates it.
        let peeked = receive_with(b.as_raw_fd(), 4, 400, MSG_PEEK)?;
        ensure!(peeked.files.len() == 2, "peeked {}", peeked.files.len());
        drop(peeked);
        let got = receive_with(b.as_raw_fd(), 4, 400, MSG_CMSG_CLOEXEC)?;
        ensure!(got.bytes == b"x" && got.files.len() == 2, "{:?}", got.files);
        ensure!(got.flags & MSG_CTRUNC == 0, "truncated");
        ensure!(is_close_on_exec(got.files[0].as_raw_fd())?);
        call!(write(got.files[0].as_raw_fd(), b"way".as_ptr().cast(), 3));
        drop(got);
        let mut buffer = [0u8; 8];
        let n = call!(read(reader, buffer.as_mut_ptr().cast(), 8));
        ensure!(&buffer[..n as usize] == b"way", "{buffer:?}");
        let n = call!(read(reader, buffer.as_mut_ptr().cast(), 8));
        ensure!(n == 0, "the pipe is still open");
        call!(close(reader));
        // Descriptors without space are closed, and MSG_CTRUNC says so.
        let (reader, writer) = pipe(0)?;
        send_files(a.as_raw_fd(), b"y", &[1, writer, writer])?;
        call!(close(writer));
        // SAFETY: computes a length.
        let room = unsafe { libc::CMSG_LEN(4) } as usize;
        let got = receive_with(b.as_raw_fd(), 4, room, 0)?;
        ensure!(got.files.len() == 1, "{:?}", got.files);
        ensure!(got.flags & MSG_CTRUNC != 0, "not truncated");
        ensure!(!is_close_on_exec(got.files[0].as_raw_fd())?);
        let n = call!(read(reader, buffer.as_mut_ptr().cast(), 8));
        ensure!(n == 0, "the pipe is still open");
        // Descriptors never received are closed with the socket.
        let (reader, writer) = pipe(0)?;
        send_files(a.as_raw_fd(), b"z", &[writer])?;
        call!(close(writer));
        drop(b);
        let n = call!(read(reader, buffer.as_mut_ptr().cast(), 8));
        ensure!(n == 0, "the pipe is still open");
        // Without a control buffer only bytes arrive.
        let [a, b] = socket_pair(kind)?;
        let (reader, writer) = pipe(0)?;
        send_files(a.as_raw_fd(), b"w", &[writer])?;
        call!(close(writer));
        receive(&b, &mut buffer, 0)?;
        let n = call!(read(reader, buffer.as_mut_ptr().cast(), 8));
        ensure!(n == 0, "the pipe is still open");
        let many = [1; 254];
        let error = send_files(a.as_raw_fd(), b"v", &many);
        ensure!(error == Err(EINVAL), "254 files: {error:?}");
        let error = send_files(a.as_raw_fd(), b"v", &[999]);
        ensure!(error == Err(EBADF), "a bad descriptor: {error:?}");
        let count = send_files(a.as_raw_fd(), b"v", &many[1..]);
        ensure!(count == Ok(1), "253 files: {count:?}");
    }
    Ok(())
}

fn barriers() -> Outcome {
    let [a, b] = socket_pair(SOCK_STREAM)?;
    let error = |error| format!("sendmsg: {error}");
    send(&a, b"plain ", 0)?;
    send_files(a.as_raw_fd(), b"first", &[1]).map_err(error)?;
    send_files(a.as_raw_fd(), b"second", &[1, 2]).map_err(error)?;
    send(&a, b" rest", 0)?;
    // A read ends behind bytes that carried files.
    let got = receive_with(b.as_raw_fd(), 100, 400, MSG_PEEK)?;
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
    ensure!(got.bytes == b"sec" && got.files.len() == 2, got.bytes);
    let got = receive_with(b.as_raw_fd(), 100, 400, 0)?;
    ensure!(got.bytes == b"ond rest" && got.files.is_empty(), got.bytes);
    Ok(())
}

/// Sends sockets over themselves and each other, closes all, and checks that they are collected.
fn cycles() -> Outcome {
    let fault = |error| format!("sendmsg: {error}");
    for shape in 0..4 {
        let (reader, writer) = pipe(O_NONBLOCK)?;
        let [a, b] = socket_pair(SOCK_STREAM)?;
        let [c, d] = socket_pair(SOCK_DGRAM)?;
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
            // A listener over its own pending connection.
            _ => {
                let name = b"\0causeway cycle";
                let listener = socket(SOCK_STREAM)?;
                ensure!(bind(listener, name) == 0, "bind");
                call!(listen(listener, 5));
                let client = socket(SOCK_STREAM)?;
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
        // Garbage collection is asynchronous.
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

/// Each socket is in flight in the queue of the next: the last close frees all, at once, though
/// each close before it had the kernel look for cycles.
fn deep_chain() -> Outcome {
    for _ in 0..20 {
        one_deep_chain()?;
    }
    Ok(())
}

fn one_deep_chain() -> Outcome {
    const DEPTH: usize = 200;
    let (reader, writer) = pipe(O_NONBLOCK)?;
    let [a, b] = socket_pair(SOCK_STREAM)?;
    send_files(a.as_raw_fd(), b"x", &[writer])?;
    call!(close(writer));
    let mut last = b;
    let mut held = a;
    for _ in 0..DEPTH {
        let [a, b] = socket_pair(SOCK_STREAM)?;
        send_files(a.as_raw_fd(), b"x", &[last.as_raw_fd(), held.as_raw_fd()])?;
        (held, last) = (a, b);
    }
    let mut byte = 0u8;
    refused!(EAGAIN, read(reader, (&raw mut byte).cast(), 1));
    drop(held);
    drop(last);
    let n = call!(read(reader, (&raw mut byte).cast(), 1));
    ensure!(n == 0, "the pipe is still open");
    call!(close(reader));
    Ok(())
}

fn credentials() -> Outcome {
    let me = [call!(getpid()) as u32, call!(getuid()), call!(getgid())];
    for kind in [SOCK_STREAM, SOCK_DGRAM] {
        let [a, b] = socket_pair(kind)?;
        let (mut cred, mut len) = ([0u32; 3], 12);
        call!(getsockopt(
            a.as_raw_fd(),
            SOL_SOCKET,
            SO_PEERCRED,
            cred.as_mut_ptr().cast(),
            &mut len
        ));
        ensure!(cred == me, "peer {cred:?}");
        set_option(&b.as_raw_fd(), SOL_SOCKET, SO_PASSCRED, 1)?;
        equal!(option(&b.as_raw_fd(), SOL_SOCKET, SO_PASSCRED)?, 1);
        send(&a, b"x", 0)?;
        let got = receive_with(b.as_raw_fd(), 8, 200, 0)?;
        ensure!(got.sender == Some(me), "{:?}", got.sender);
        // A read does not merge bytes of two senders.
        let child = spawn(|| send(&a, b"child's", 0).map(drop))?;
        wait(child)?;
        send(&a, b"mine", 0)?;
        let got = receive_with(b.as_raw_fd(), 100, 200, 0)?;
        ensure!(got.bytes == b"child's", "{:?}", got.bytes);
        equal!(got.sender, Some([child as u32, me[1], me[2]]));
        let got = receive_with(b.as_raw_fd(), 100, 200, 0)?;
        ensure!(got.bytes == b"mine" && got.sender == Some(me), got.sender);
        // Only root may send credentials other than its own.
        let claim: Vec<u8> = me.iter().flat_map(|n| n.to_ne_bytes()).collect();
        let sent = send_with(a.as_raw_fd(), b"y", &[(SCM_CREDENTIALS, &claim)]);
        ensure!(sent == Ok(1), "{sent:?}");
        let got = receive_with(b.as_raw_fd(), 8, 200, 0)?;
        ensure!(got.sender == Some(me), "{:?}", got.sender);
        let child = spawn(|| {
            call!(setuid(1234));
            let sent = send_with(a.as_raw_fd(), b"y", &[(SCM_CREDENTIALS, &claim)]);
            ensure!(sent == Err(EPERM), "{sent:?}");
            Ok(())
        })?;
        wait_ok(child)?;
        let sent = send_with(a.as_raw_fd(), b"y", &[(SCM_CREDENTIALS, &claim[..8])]);
        ensure!(sent == Err(EINVAL), "{sent:?}");
        let sent = send_with(a.as_raw_fd(), b"y", &[(99, &claim)]);
        ensure!(sent == Err(EINVAL), "{sent:?}");
    }
    let [a, b] = socket_pair(SOCK_DGRAM)?;
    set_option(&b.as_raw_fd(), SOL_SOCKET, SO_TIMESTAMP, 1)?;
    send(&a, b"x", 0)?;
    ensure!(receive_with(b.as_raw_fd(), 8, 200, 0)?.has_time, "no time");
    Ok(())
}
