//! Urgent bytes, and peeks that continue where the last one ended (`SO_PEEK_OFF`).

use super::{ready, receive, send};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("unix sockets: urgent bytes", urgent),
    ("unix sockets: looks that go on in a stream", stream),
    ("unix sockets: looks that go on in messages", messages),
    ("unix sockets: a look at nothing", at_nothing),
];

const SIOCATMARK: c_ulong = 0x8905;

fn at_mark(socket: &OwnedFd) -> Result<bool> {
    let mut answer: c_int = -1;
    call!(ioctl(socket.as_raw_fd(), SIOCATMARK, &mut answer));
    Ok(answer != 0)
}

/// A read of no bytes returns at once.
fn at_nothing() -> Outcome {
    let [a, b] = socket_pair(SOCK_STREAM)?;
    let fd = b.as_raw_fd();
    let mut buffer = [0u8; 4];
    let at = buffer.as_mut_ptr().cast();
    refused!(EAGAIN, recv(fd, at, 0, MSG_PEEK | MSG_DONTWAIT));
    send(&a, b"ab", 0)?;
    for flags in [MSG_PEEK, 0] {
        let n = call!(recv(fd, at, 0, flags));
        ensure!(n == 0, "{n} bytes in no room");
    }
    // Behind the last byte nothing is skipped.
    set_option(&fd, SOL_SOCKET, SO_PEEK_OFF, 2)?;
    refused!(EAGAIN, recv(fd, at, 0, MSG_PEEK | MSG_DONTWAIT));
    let n = receive(&b, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"ab", "{:?}", &buffer[..n]);
    Ok(())
}

fn urgent() -> Outcome {
    let [a, b] = socket_pair(SOCK_STREAM)?;
    let mut buffer = [0u8; 16];
    let at = buffer.as_mut_ptr().cast();
    refused!(EINVAL, recv(b.as_raw_fd(), at, 1, MSG_OOB));
    refused!(EOPNOTSUPP, send(a.as_raw_fd(), at, 0, MSG_OOB));
    send(&a, b"ab", 0)?;
    send(&a, b"c!", MSG_OOB)?;
    send(&a, b"de", 0)?;
    ensure!(ready(b.as_raw_fd())? & c_int::from(POLLPRI) != 0);
    // Reads stop before it and continue behind it.
    let n = receive(&b, &mut buffer, MSG_PEEK)?;
    ensure!(&buffer[..n] == b"abc", "saw {:?}", &buffer[..n]);
    let n = receive(&b, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"abc", "{:?}", &buffer[..n]);
    ensure!(at_mark(&b)?, "not at the mark");
    for flags in [MSG_PEEK, 0] {
        let n = receive(&b, &mut buffer, MSG_OOB | flags)?;
        ensure!(&buffer[..n] == b"!", "{:?}", &buffer[..n]);
    }
    refused!(EINVAL, recv(b.as_raw_fd(), at, 1, MSG_OOB));
    ensure!(!at_mark(&b)?, "still at the mark");
    equal!(ready(b.as_raw_fd())? & c_int::from(POLLPRI), 0);
    let n = receive(&b, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"de", "{:?}", &buffer[..n]);
    // An urgent byte not asked for is skipped; the last one of two counts.
    send(&a, b"1", MSG_OOB)?;
    send(&a, b"2", MSG_OOB)?;
    send(&a, b"34", 0)?;
    let n = receive(&b, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"1", "{:?}", &buffer[..n]);
    let n = receive(&b, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"34", "{:?}", &buffer[..n]);
    // In line it is an ordinary byte, except for the stop before it.
    set_option(&b.as_raw_fd(), SOL_SOCKET, SO_OOBINLINE, 1)?;
    send(&a, b"xy!", MSG_OOB)?;
    send(&a, b"z", 0)?;
    refused!(EINVAL, recv(b.as_raw_fd(), at, 1, MSG_OOB));
    let n = receive(&b, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"xy", "{:?}", &buffer[..n]);
    let n = receive(&b, &mut buffer, 0)?;
    ensure!(&buffer[..n] == b"!z", "{:?}", &buffer[..n]);
    Ok(())
}

fn stream() -> Outcome {
    let [a, b] = socket_pair(SOCK_STREAM)?;
    let fd = b.as_raw_fd();
    ensure!(
        option(&fd, SOL_SOCKET, SO_PEEK_OFF)? == -1,
        "on from the start"
    );
    set_option(&fd, SOL_SOCKET, SO_PEEK_OFF, 1)?;
    let mut buffer = [0u8; 16];
    let at = buffer.as_mut_ptr().cast();
    send(&a, b"abcd", 0)?;
    send(&a, b"efgh", 0)?;
    for expected in [&b"bcd"[..], b"efg", b"h"] {
        let n = receive(&b, &mut buffer[..3], MSG_PEEK)?;
        ensure!(&buffer[..n] == expected, "{:?}", &buffer[..n]);
    }
    refused!(EAGAIN, recv(fd, at, 1, MSG_PEEK | MSG_DONTWAIT));
    equal!(option(&fd, SOL_SOCKET, SO_PEEK_OFF)?, 8);
    // Receiving moves the offset back.
    let n = receive(&b, &mut buffer[..6], 0)?;
    ensure!(&buffer[..n] == b"abcdef", "{:?}", &buffer[..n]);
    equal!(option(&fd, SOL_SOCKET, SO_PEEK_OFF)?, 2);
    send(&a, b"ij", 0)?;
    let n = receive(&b, &mut buffer, MSG_PEEK)?;
    ensure!(&buffer[..n] == b"ij", "{:?}", &buffer[..n]);
    set_option(&fd, SOL_SOCKET, SO_PEEK_OFF, -1)?;
    let n = receive(&b, &mut buffer, MSG_PEEK)?;
    ensure!(&buffer[..n] == b"ghij", "{:?}", &buffer[..n]);
    let tcp = call!(socket(AF_INET, SOCK_STREAM, 0));
    let on = 0;
    let value = (&raw const on).cast();
    refused! { setsockopt(tcp, SOL_SOCKET, SO_PEEK_OFF, value, 4) => EOPNOTSUPP; }
    call!(close(tcp));
    Ok(())
}

fn messages() -> Outcome {
    let [a, b] = socket_pair(SOCK_DGRAM)?;
    let fd = b.as_raw_fd();
    let mut buffer = [0u8; 16];
    let at = buffer.as_mut_ptr().cast();
    for message in [&b"one"[..], b"", b"three"] {
        send(&a, message, 0)?;
    }
    set_option(&fd, SOL_SOCKET, SO_PEEK_OFF, 0)?;
    let n = call!(recv(fd, at, 2, MSG_PEEK | MSG_TRUNC));
    ensure!(n == 3 && &buffer[..2] == b"on", "{n}: {buffer:?}");
    for expected in [&b"e"[..], b"", b"three"] {
        let n = receive(&b, &mut buffer, MSG_PEEK)?;
        ensure!(&buffer[..n] == expected, "{:?}", &buffer[..n]);
    }
    refused!(EAGAIN, recv(fd, at, 16, MSG_PEEK | MSG_DONTWAIT));
    for expected in [&b"one"[..], b"", b"three"] {
        let n = receive(&b, &mut buffer, 0)?;
        ensure!(&buffer[..n] == expected, "{:?}", &buffer[..n]);
    }
    equal!(option(&fd, SOL_SOCKET, SO_PEEK_OFF)?, 0);
    Ok(())
}
