//! Sockets.

use super::{Low, read_bytes, words};
use crate::{call80, refused80};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("narrow: socketcall", socketcall),
    ("narrow: descriptors in messages", rights),
    ("narrow: several messages", many_messages),
];

/// `socketcall` with these arguments.
fn by_socketcall(low: &mut Low, number: u32, arguments: &[u32]) -> i32 {
    let at = low.words(arguments);
    int80(102, [number, at])
}

fn socketcall() -> Outcome {
    let mut low = Low::new()?;
    let low = &mut low;
    let pair_at = low.room(8);
    let unix = AF_UNIX as u32;
    equal!(by_socketcall(low, 8, &[unix, 1, 0, pair_at]), 0);
    let [one, two] = words(pair_at);
    let text = low.bytes(b"through socketcall");
    ensure!(by_socketcall(low, 9, &[one, text, 18, 0]) == 18, "send");
    let to = low.room(32);
    ensure!(by_socketcall(low, 10, &[two, to, 32, 0]) == 18, "recv");
    ensure!(read_bytes(to, 18) == b"through socketcall", "bytes");
    let len = low.words(&[4]);
    let level = SOL_SOCKET as u32;
    ensure!(
        by_socketcall(low, 15, &[one, level, SO_TYPE as u32, to, len]) == 0,
        "getsockopt"
    );
    ensure!(words(to) == [1] && words(len) == [4], "a stream");
    // A time limit is two words here.
    let limit = low.words(&[0, 20_000]);
    ensure!(
        by_socketcall(low, 14, &[one, level, SO_RCVTIMEO as u32, limit, 8]) == 0,
        "setsockopt"
    );
    equal!(by_socketcall(low, 10, &[one, to, 32, 0]), -EAGAIN);
    let len = low.words(&[8]);
    ensure!(
        by_socketcall(low, 15, &[one, level, SO_RCVTIMEO as u32, to, len]) == 0,
        "getsockopt"
    );
    ensure!(words(to) == [0, 20_000], "{:?}", words::<2>(to));
    // Names.
    let fd = by_socketcall(low, 1, &[AF_INET as u32, 1, 0]) as u32;
    let name = low.words(&[2, 0x0100_007f, 0, 0]);
    ensure!(by_socketcall(low, 2, &[fd, name, 16]) == 0, "bind");
    ensure!(by_socketcall(low, 4, &[fd, 5]) == 0, "listen");
    let len = low.words(&[16]);
    ensure!(
        by_socketcall(low, 6, &[fd, to, len]) == 0 && words(len) == [16],
        "getsockname"
    );
    let [first, address] = words(to);
    ensure!(
        first as u16 == 2 && first >> 16 != 0 && address == 0x0100_007f,
        "{first:x} {address:x}"
    );
    let other = by_socketcall(low, 1, &[AF_INET as u32, 1, 0]) as u32;
    ensure!(by_socketcall(low, 3, &[other, to, 16]) == 0, "connect");
    ensure!(by_socketcall(low, 5, &[fd, 0, 0]) > 0, "accept");
    ensure!(by_socketcall(low, 13, &[other, 2]) == 0, "shutdown");
    ensure!(by_socketcall(low, 21, &[0]) == -EINVAL, "call 21");
    refused80!(EFAULT, 102, 1, 8);
    Ok(())
}

/// Sends a descriptor by 32-bit calls and gets it back by them.
fn rights() -> Outcome {
    let mut low = Low::new()?;
    let (_, file) = file("narrow-rights", b"in the file")?;
    let mut ends = [0; 2];
    call!(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.as_mut_ptr()));
    let byte = low.bytes(b"x");
    let vector = low.words(&[byte, 1]);
    let control = low.words(&[16, SOL_SOCKET as u32, SCM_RIGHTS as u32, file as u32]);
    let message = low.words(&[0, 0, vector, 1, control, 16, 0]);
    ensure!(call80!(370, ends[0], message, 0) == 1, "sendmsg");
    let control = low.room(64);
    let message = low.words(&[0, 0, vector, 1, control, 64, 77]);
    equal!(call80!(372, ends[1], message, MSG_CMSG_CLOEXEC), 1);
    let w: [u32; 7] = words(message);
    let head: [u32; 4] = words(control);
    ensure!(w[5] == 16 && w[6] & !(MSG_CMSG_CLOEXEC as u32) == 0, w);
    equal!(head[..3], [16, SOL_SOCKET as u32, SCM_RIGHTS as u32], head);
    let got = head[3] as i32;
    let mut bytes = [0u8; 11];
    call!(pread(got, bytes.as_mut_ptr().cast(), 11, 0));
    ensure!(&bytes == b"in the file", "{bytes:?}");
    equal!(call!(fcntl(got, F_GETFD)), FD_CLOEXEC);
    // Too little space for it.
    let control = low.words(&[16, SOL_SOCKET as u32, SCM_RIGHTS as u32, file as u32]);
    let message = low.words(&[0, 0, vector, 1, control, 16, 0]);
    call80!(370, ends[0], message, 0);
    let message = low.words(&[0, 0, vector, 1, control, 12, 0]);
    call80!(372, ends[1], message, 0);
    let w: [u32; 7] = words(message);
    ensure!(w[6] & MSG_CTRUNC as u32 != 0, "{w:?}");
    Ok(())
}

fn many_messages() -> Outcome {
    let mut low = Low::new()?;
    let mut ends = [0; 2];
    call!(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends.as_mut_ptr()));
    let (one, two) = (low.bytes(b"first"), low.bytes(b"second"));
    let (a, b) = (low.words(&[one, 5]), low.words(&[two, 6]));
    let messages = low.words(&[0, 0, a, 1, 0, 0, 0, 99, 0, 0, b, 1, 0, 0, 0, 99]);
    let room = low.room(20);
    let vector = low.words(&[room, 10]);
    let other = low.room(20);
    let second = low.words(&[other, 10]);
    for (number, time) in [
        (337, low.words(&[5, 0, 7])),
        (417, low.words(&[5, 0, 0, 0, 7])),
    ] {
        ensure!(call80!(345, ends[0], messages, 2, 0) == 2, "sendmmsg");
        let w: [u32; 16] = words(messages);
        ensure!((w[7], w[15]) == (5, 6), "{w:?}");
        let to = low.words(&[0, 0, vector, 1, 0, 0, 0, 99, 0, 0, second, 1, 0, 0, 0, 99]);
        ensure!(call80!(number, ends[1], to, 2, 0, time) == 2, "recvmmsg");
        let w: [u32; 16] = words(to);
        ensure!(
            (w[7], w[15]) == (5, 6) && read_bytes(other, 6) == b"second",
            "{w:?}"
        );
        // The remaining time, and nothing behind it.
        let left: [u32; 5] = words(time);
        let (seconds, guard) = if number == 337 {
            (left[0], left[2])
        } else {
            (left[0], left[4])
        };
        ensure!((4..=5).contains(&seconds) && guard == 7, "{left:?}");
    }
    Ok(())
}
