//! TCP without copies: pages that are lent to a connection.
//!
//! The other side is a thread of this program, by way of the loopback interface, or a program
//! beyond the card whose address is in `PEER`: it compares what it gets with a pattern, and sends
//! the pattern.

use support::prelude::*;

use crate::large::Switched;

pub const TESTS: &[Test] = &[
    ("network: a large write lends its pages", lent),
    ("network: bytes are those of the moment of the write", still),
    (
        "network: writers fork, unmap and end meanwhile",
        writers_leave,
    ),
    ("network: MSG_ZEROCOPY is told of its end", completions),
    (
        "network: MSG_ZEROCOPY and buffers of any place",
        odd_buffers,
    ),
    ("network: MSG_ZEROCOPY is bounded", bounded),
    ("network: a file that is written while it is sent", files),
];

const MSG_ZEROCOPY: c_int = 0x400_0000;
const SO_ZEROCOPY: c_int = 60;
const ORIGIN_ZEROCOPY: u8 = 5;
/// What the other side is to do with the bytes whose number follows.
pub const COMPARE: u8 = b'C';
pub const SEND: u8 = b'S';

/// Returns byte `at` of the pattern.
fn pattern(at: usize) -> u8 {
    ((at as u32).wrapping_mul(2_654_435_761) >> 15) as u8
}

/// Serves one connection as the other side.
fn serve(mut stream: TcpStream) -> io::Result<()> {
    let mut request = [0; 9];
    stream.read_exact(&mut request)?;
    let len = u64::from_le_bytes(request[1..].try_into().unwrap_or([0; 8])) as usize;
    let mut buffer = vec![0; 65_536];
    let mut done = 0;
    if request[0] == SEND {
        while done < len {
            let n = buffer.len().min(len - done);
            (0..n).for_each(|i| buffer[i] = pattern(done + i));
            stream.write_all(&buffer[..n])?;
            done += n;
        }
        return stream.shutdown(Shutdown::Write);
    }
    let mut right = 0_u64;
    while done < len {
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        if right == done as u64 {
            let is_right = |(i, byte): &(usize, &u8)| **byte == pattern(done + i);
            right += buffer[..n].iter().enumerate().take_while(is_right).count() as u64;
        }
        done += n;
    }
    stream.write_all(&right.to_le_bytes())
}

/// Serves connections to a port until the program is killed.
pub fn serve_port(port: u16) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    println!("ready");
    loop {
        let (stream, _) = listener.accept()?;
        thread::spawn(move || serve(stream));
    }
}

/// A connection to the other side, which is asked for something.
pub fn connected(asked: u8, len: usize) -> Result<TcpStream> {
    let mut stream = match std::env::var("PEER") {
        Ok(peer) => TcpStream::connect(peer)?,
        Err(_) => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let stream = TcpStream::connect(listener.local_addr()?)?;
            let (served, _) = listener.accept()?;
            thread::spawn(move || serve(served));
            stream
        }
    };
    let mut request = vec![asked];
    request.extend((len as u64).to_le_bytes());
    stream.write_all(&request)?;
    Ok(stream)
}

/// Waits until the other side has compared all, and finds it right.
fn compared(stream: &mut TcpStream, len: usize) -> Outcome {
    let mut right = [0; 8];
    stream.read_exact(&mut right)?;
    equal!(u64::from_le_bytes(right), len as u64);
    Ok(())
}

/// Memory, page-aligned, with the pattern from `from` on.
pub fn patterned(len: usize, from: usize) -> Result<*mut u8> {
    let memory = map(len.next_multiple_of(PAGE))?;
    fill(memory, len, from);
    Ok(memory)
}

pub fn fill(memory: *mut u8, len: usize, from: usize) {
    for at in 0..len {
        // SAFETY: callers have as much memory.
        unsafe { memory.add(at).write(pattern(from + at)) };
    }
}

/// Compares bytes with the pattern from `from` on.
pub fn compare(memory: *const u8, len: usize, from: usize) -> Outcome {
    for at in 0..len {
        // SAFETY: callers have as much memory.
        let is = unsafe { memory.add(at).read_volatile() };
        ensure!(is == pattern(from + at), "byte {} is {is:#x}", from + at);
    }
    Ok(())
}

pub fn spoil(memory: *mut u8, len: usize) {
    // SAFETY: as above.
    unsafe { memory.write_bytes(0xee, len) };
}

fn send(stream: &TcpStream, memory: *const u8, len: usize, flags: c_int) -> Result<usize> {
    let n = call!(send(
        stream.as_raw_fd(),
        memory.cast(),
        len,
        flags | MSG_NOSIGNAL
    ));
    Ok(n as usize)
}

pub fn send_all(stream: &TcpStream, memory: *const u8, len: usize, flags: c_int) -> Outcome {
    let mut done = 0;
    while done < len {
        done += send(stream, memory.wrapping_add(done), len - done, flags)?;
    }
    Ok(())
}

pub fn moved(name: &str) -> Result<u64> {
    field("/proc/causeway/network", name)
}

/// Whether connections inside this machine use packets.
fn is_by_packets() -> bool {
    std::env::var("PEER").is_ok()
        || read_text("/proc/causeway/loopback").is_ok_and(|it| it.contains("ip"))
}

/// Whether the other side's packets hold whole pages.
pub fn has_pages() -> bool {
    is_by_packets() && (std::env::var("PEER").is_err() || std::env::var("PAGES").is_ok())
}

fn lent() -> Outcome {
    const LEN: usize = 64 * PAGE;
    let _way = Switched::to("movement", "auto")?;
    let mut stream = connected(COMPARE, LEN)?;
    let memory = patterned(LEN, 0)?;
    let before = [moved("tcp_send_passed")?, counter("pages_lent")?];
    send_all(&stream, memory, LEN, 0)?;
    compared(&mut stream, LEN)?;
    let passed = moved("tcp_send_passed")? - before[0];
    let lent = counter("pages_lent")? - before[1];
    // A few pages may find no room.
    if is_by_packets() {
        ensure!(passed >= LEN as u64 * 3 / 4, "{passed} bytes were passed");
        ensure!(lent >= 48, "{lent} pages were lent");
    }
    unmap(memory, LEN)
}

fn still() -> Outcome {
    const LEN: usize = 32 * PAGE + 100;
    const ROUNDS: usize = 12;
    for way in ["loan", "auto", "copy"] {
        let _way = Switched::to("movement", way)?;
        let mut stream = connected(COMPARE, LEN * ROUNDS)?;
        let memory = map(LEN + PAGE)?;
        for round in 0..ROUNDS {
            fill(memory, LEN, round * LEN);
            send_all(&stream, memory, LEN, 0)?;
            spoil(memory, LEN);
        }
        compared(&mut stream, LEN * ROUNDS)?;
        unmap(memory, LEN + PAGE)?;
    }
    Ok(())
}

fn writers_leave() -> Outcome {
    const LEN: usize = 48 * PAGE;
    let _way = Switched::to("movement", "loan")?;
    for flags in [0, MSG_ZEROCOPY] {
        for end in ["fork", "unmap", "exit"] {
            let mut stream = connected(COMPARE, LEN)?;
            if flags != 0 {
                set_option(&stream, SOL_SOCKET, SO_ZEROCOPY, 1)?;
            }
            let give = || {
                let memory = patterned(LEN, 0)?;
                send_all(&stream, memory, LEN, flags)?;
                Ok(memory)
            };
            match end {
                "fork" => {
                    let memory = give()?;
                    wait_ok(spawn(|| {
                        spoil(memory, LEN);
                        Ok(())
                    })?)?;
                    spoil(memory, LEN);
                    unmap(memory, LEN)?;
                }
                "unmap" => unmap(give()?, LEN)?,
                _ => wait_ok(spawn(|| give().map(drop))?)?,
            }
            compared(&mut stream, LEN)?;
        }
    }
    Ok(())
}

/// Takes a message of the error queue: the first and the last call, whether bytes were copied.
fn completion(stream: &TcpStream) -> Result<Option<(u32, u32, bool)>> {
    let mut control = [0_u64; 16];
    // SAFETY: all zeros is a valid header.
    let mut header: msghdr = unsafe { zeroed() };
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: the header and its buffer are alive.
    let n = unsafe { recvmsg(stream.as_raw_fd(), &mut header, MSG_ERRQUEUE) };
    if n < 0 {
        equal!(errno(), EAGAIN);
        return Ok(None);
    }
    equal!(n, 0);
    equal!(header.msg_flags & MSG_ERRQUEUE, MSG_ERRQUEUE);
    // SAFETY: the kernel has written a control message into the buffer.
    let bytes = unsafe {
        let first = CMSG_FIRSTHDR(&header);
        ensure!(!first.is_null(), "no control message");
        equal!((*first).cmsg_level, SOL_IP);
        equal!((*first).cmsg_type, IP_RECVERR);
        equal!((*first).cmsg_len, CMSG_LEN(32) as usize);
        CMSG_DATA(first).cast::<[u8; 16]>().read_unaligned()
    };
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    equal!(word(0), 0);
    equal!(bytes[4], ORIGIN_ZEROCOPY);
    Ok(Some((word(8), word(12), bytes[6] == 1)))
}

/// Waits until all calls before `next` are told; returns whether bytes of any were copied.
fn told(stream: &TcpStream, from: u32, next: u32) -> Result<bool> {
    let (mut at, mut any) = (from, false);
    while at < next {
        let mut entry = poll_entry(stream.as_raw_fd(), 0);
        equal!(call!(poll(&mut entry, 1, 20_000)), 1);
        ensure!(entry.revents & POLLERR != 0, "{:#x}", entry.revents);
        while let Some((first, last, is_copied)) = completion(stream)? {
            equal!(first, at);
            ensure!((first..next).contains(&last), "{last} of {next} calls");
            at = last + 1;
            any |= is_copied;
        }
    }
    // Nothing is left.
    let mut entry = poll_entry(stream.as_raw_fd(), 0);
    equal!(call!(poll(&mut entry, 1, 0)), 0);
    Ok(any)
}

fn completions() -> Outcome {
    const LEN: usize = 16 * PAGE;
    const CALLS: usize = 20;
    let mut stream = connected(COMPARE, LEN * CALLS)?;
    equal!(option(&stream, SOL_SOCKET, SO_ZEROCOPY)?, 0);
    let memory = patterned(LEN * CALLS, 0)?;
    // Without the option the flag says nothing.
    send_all(&stream, memory, LEN, MSG_ZEROCOPY)?;
    equal!(completion(&stream)?, None);
    let number = |value: c_int| {
        let len = size_of::<c_int>() as u32;
        // SAFETY: the value is alive.
        unsafe {
            let value = (&raw const value).cast();
            setsockopt(stream.as_raw_fd(), SOL_SOCKET, SO_ZEROCOPY, value, len)
        }
    };
    for wrong in [2, -1] {
        equal!(number(wrong), -1);
        equal!(errno(), EINVAL);
    }
    equal!(number(1), 0);
    equal!(option(&stream, SOL_SOCKET, SO_ZEROCOPY)?, 1);
    // Nothing was sent, and nothing is told.
    equal!(send(&stream, memory, 0, MSG_ZEROCOPY)?, 0);
    let before = [counter("pages_lent")?, counter("bytes_copied_in")?];
    let mut calls = 0;
    for at in 1..CALLS {
        let n = send(&stream, memory.wrapping_add(at * LEN), LEN, MSG_ZEROCOPY)?;
        equal!(n, LEN);
        calls += 1;
    }
    let is_copied = told(&stream, 0, calls)?;
    equal!(is_copied, !is_by_packets());
    if !is_copied {
        let lent = counter("pages_lent")? - before[0];
        ensure!(lent >= 16 * u64::from(calls), "{lent} pages were lent");
        // Some more are the counters' own text.
        let copied = counter("bytes_copied_in")? - before[1];
        ensure!(copied < LEN as u64, "{copied} bytes were copied");
    }
    // Small ones are copied, and told all the same.
    compared(&mut stream, LEN * CALLS)?;
    let stream = connected(COMPARE, 100)?;
    set_option(&stream, SOL_SOCKET, SO_ZEROCOPY, 1)?;
    for at in 0..10 {
        equal!(
            send(&stream, memory.wrapping_add(at * 10), 10, MSG_ZEROCOPY)?,
            10
        );
    }
    equal!(told(&stream, 0, 10)?, true);
    // Other sockets do not tell.
    let [a, _b] = socket_pair(SOCK_STREAM)?;
    refused!(
        EOPNOTSUPP,
        setsockopt(
            a.as_raw_fd(),
            SOL_SOCKET,
            SO_ZEROCOPY,
            (&raw const calls).cast(),
            4
        )
    );
    unmap(memory, LEN * CALLS)
}

fn odd_buffers() -> Outcome {
    const SPACE: usize = 40 * PAGE;
    let mut numbers = Numbers::new(7);
    let memory = map(SPACE)?;
    let places: Vec<_> = (0..40)
        .map(|_| {
            let start = numbers.below(2 * PAGE as u64) as usize;
            (start, 1 + numbers.below((SPACE - start) as u64) as usize)
        })
        .collect();
    let whole = places.iter().map(|(_, len)| len).sum();
    let mut stream = connected(COMPARE, whole)?;
    set_option(&stream, SOL_SOCKET, SO_ZEROCOPY, 1)?;
    let (mut calls, mut done) = (0, 0);
    for (start, len) in places {
        fill(memory.wrapping_add(start), len, done);
        // In three buffers, of which one may be empty.
        let parts = [len / 3, len / 2, len - len / 3 - len / 2];
        let mut at = memory.wrapping_add(start);
        let vectors = parts.map(|part| {
            let vector = iovec {
                iov_base: at.cast(),
                iov_len: part,
            };
            at = at.wrapping_add(part);
            vector
        });
        // SAFETY: all zeros is a valid header.
        let mut header: msghdr = unsafe { zeroed() };
        header.msg_iov = vectors.as_ptr().cast_mut();
        header.msg_iovlen = vectors.len();
        let flags = MSG_ZEROCOPY | MSG_NOSIGNAL;
        equal!(
            call!(sendmsg(stream.as_raw_fd(), &header, flags)) as usize,
            len
        );
        calls += 1;
        told(&stream, calls - 1, calls)?;
        spoil(memory, SPACE);
        done += len;
    }
    compared(&mut stream, whole)?;
    unmap(memory, SPACE)
}

/// A peer that does not read, and a program that asks for no news, take no more than others.
fn bounded() -> Outcome {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    set_option(&stream, SOL_SOCKET, SO_ZEROCOPY, 1)?;
    let memory = patterned(64 * PAGE, 0)?;
    let (mut sent, mut calls) = (0, 0);
    let flags = MSG_ZEROCOPY | MSG_DONTWAIT | MSG_NOSIGNAL;
    for call in 0..100_000 {
        let len = [64 * PAGE, 1, 100][call % 3];
        // SAFETY: the memory is that long.
        let n = unsafe { libc::send(stream.as_raw_fd(), memory.cast(), len, flags) };
        if n < 0 {
            equal!(errno(), EAGAIN);
            break;
        }
        calls += 1;
        sent += n as usize;
    }
    ensure!(sent < 4 << 20, "{sent} bytes wait");
    // The peer resets the connection: all calls are told.
    set_option(&other, SOL_SOCKET, SO_LINGER, [1, 0])?;
    drop(other);
    told_in(&stream, calls, 64)?;
    // Calls that went one way or the other in turn are not neighbours of one kind.
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let (mut other, _) = listener.accept()?;
    let reader = thread::spawn(move || io::copy(&mut other, &mut io::sink()));
    set_option(&stream, SOL_SOCKET, SO_ZEROCOPY, 1)?;
    for call in 0..300 {
        let len = [8 * PAGE, 1][call % 2];
        equal!(send(&stream, memory, len, MSG_ZEROCOPY)?, len);
    }
    stream.shutdown(Shutdown::Write)?;
    let read = reader
        .join()
        .map_err(|_| Failure::from("panicked".to_string()))??;
    equal!(read, 150 * (8 * PAGE as u64 + 1));
    told_in(&stream, 300, 64)?;
    unmap(memory, 64 * PAGE)
}

/// Waits until all calls are told, in `most` messages.
fn told_in(stream: &TcpStream, calls: u32, most: u32) -> Outcome {
    let (mut at, mut messages) = (0, 0);
    while at < calls {
        let mut entry = poll_entry(stream.as_raw_fd(), 0);
        equal!(call!(poll(&mut entry, 1, 20_000)), 1);
        while let Some((first, last, _)) = completion(stream)? {
            equal!(first, at);
            at = last + 1;
            messages += 1;
        }
    }
    equal!(at, calls);
    ensure!(messages <= most, "{messages} messages for {calls} calls");
    Ok(())
}

/// Bytes that `sendfile` and `splice` have sent are those that the file had then.
fn files() -> Outcome {
    const LEN: usize = 32 * PAGE;
    let bytes: Vec<u8> = (0..LEN).map(pattern).collect();
    for way in ["sendfile", "splice"] {
        let (path, file) = file("sent", &bytes)?;
        let mut stream = connected(COMPARE, LEN)?;
        let before = counter("bytes_passed")?;
        let (reader, writer) = pipe(0)?;
        let mut done = 0;
        let mut offset = 0_i64;
        while done < LEN {
            let socket = stream.as_raw_fd();
            done += match way {
                "sendfile" => call!(sendfile(socket, file, &mut offset, LEN - done)) as usize,
                _ => {
                    let n = call!(splice(file, &mut offset, writer, null_mut(), LEN - done, 0));
                    let mut left = n as usize;
                    while left > 0 {
                        let end = null_mut();
                        left -= call!(splice(reader, end, socket, end, left, 0)) as usize;
                    }
                    n as usize
                }
            };
        }
        let spoilt = vec![0xee; LEN];
        call!(pwrite(file, spoilt.as_ptr().cast(), LEN, 0));
        call!(ftruncate(file, 0));
        compared(&mut stream, LEN)?;
        let passed = counter("bytes_passed")? - before;
        ensure!(passed >= LEN as u64, "{way}: {passed} bytes were passed");
        for fd in [file, reader, writer] {
            call!(close(fd));
        }
        fs::remove_file(path)?;
    }
    Ok(())
}
