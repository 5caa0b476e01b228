//! TCP without copies: pages that come from a connection, by reads, `TCP_ZEROCOPY_RECEIVE` and
//! `splice`.

use support::prelude::*;

use super::zero_copy::{
    SEND, compare, connected, fill, has_pages, moved, patterned, send_all, spoil,
};
use crate::large::Switched;

pub const TESTS: &[Test] = &[
    ("network: pages are received where they belong", received),
    ("network: TCP_ZEROCOPY_RECEIVE shows what was sent", shown),
    ("network: TCP_ZEROCOPY_RECEIVE refuses", not_shown),
    (
        "network: a mapping of a socket is never written",
        unwritable,
    ),
    ("network: splice takes pages from a socket", spliced),
];

/// Returns the signal of a bad access.
fn fault_at(access: impl FnOnce()) -> Result<Option<c_int>> {
    Ok(fault_of(access)?.map(|fault| fault.signal))
}

/// Receives all by calls of `recv` into an aligned buffer.
fn received() -> Outcome {
    const LEN: usize = 240 * PAGE + 1234;
    const ROOM: usize = 64 * PAGE;
    let _way = Switched::to("movement", "auto")?;
    let mut stream = connected(SEND, LEN)?;
    let memory = patterned(ROOM, 0)?;
    let before = moved("tcp_receive_passed")?;
    let mut done = 0;
    while done < LEN {
        let room = ROOM.min(LEN - done);
        let socket = stream.as_raw_fd();
        let n = call!(recv(socket, memory.cast(), room, MSG_WAITALL)) as usize;
        ensure!(n > 0, "the end behind {done} bytes");
        compare(memory, n, done)?;
        spoil(memory, n);
        done += n;
    }
    equal!(stream.read(&mut [0])?, 0);
    let passed = moved("tcp_receive_passed")? - before;
    // The first bytes may come before there is room for pages.
    ensure!(
        !has_pages() || passed >= LEN as u64 * 3 / 4,
        "{passed} bytes were passed"
    );
    unmap(memory, ROOM)
}

/// A `struct tcp_zerocopy_receive`.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
struct ZeroCopy {
    address: u64,
    length: u32,
    hint: u32,
    inq: u32,
    err: i32,
    copybuf_address: u64,
    copybuf_len: i32,
    flags: u32,
    msg_control: u64,
    msg_controllen: u64,
    msg_flags: u32,
    reserved: u32,
}

const TCP_ZEROCOPY_RECEIVE: c_int = 35;

impl ZeroCopy {
    /// Calls with a structure of `len` bytes; returns the number of the error.
    fn call_of(&mut self, stream: &TcpStream, len: u32) -> c_int {
        let (socket, mut room) = (stream.as_raw_fd(), len);
        let at = ptr::from_mut(self).cast();
        // SAFETY: callers pass no more than the structure has, or mean the call to fail.
        match unsafe { getsockopt(socket, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, at, &mut room) } {
            0 => 0,
            _ => errno(),
        }
    }

    fn call(&mut self, stream: &TcpStream) -> c_int {
        self.call_of(stream, size_of::<Self>() as u32)
    }
}

fn map_socket(stream: &TcpStream, len: usize) -> Result<*mut u8> {
    map_with(len, PROT_READ, MAP_SHARED, stream.as_raw_fd())
}

/// Waits until there are bytes to read.
fn await_bytes(stream: &TcpStream) -> Outcome {
    let mut entry = poll_entry(stream.as_raw_fd(), POLLIN);
    equal!(call!(poll(&mut entry, 1, 20_000)), 1);
    Ok(())
}

/// Receives `len` bytes of the pattern by pages, by copies and by `recv`; returns how many came by
/// pages.
fn receive_shown(stream: &TcpStream, len: usize, room: usize, copies: usize) -> Result<usize> {
    let shown = map_socket(stream, room)?;
    let copied = map(copies.max(1).next_multiple_of(PAGE))?;
    let read = map(64 * PAGE)?;
    let (mut done, mut by_pages) = (0, 0);
    loop {
        await_bytes(stream)?;
        let mut ask = ZeroCopy {
            address: shown as u64,
            length: room as u32,
            copybuf_address: copied as u64,
            copybuf_len: copies as i32,
            ..ZeroCopy::default()
        };
        let error = ask.call(stream);
        if error == EIO {
            break;
        }
        equal!(error, 0);
        equal!(ask.err, 0);
        ensure!(
            ask.length as usize <= room && ask.copybuf_len >= 0,
            "{ask:?}"
        );
        equal!(ask.length as usize % PAGE, 0);
        compare(shown, ask.length as usize, done)?;
        done += ask.length as usize;
        by_pages += ask.length as usize;
        compare(copied, ask.copybuf_len as usize, done)?;
        done += ask.copybuf_len as usize;
        if ask.hint > 0 {
            let most = (ask.hint as usize).min(64 * PAGE);
            let n = call!(recv(stream.as_raw_fd(), read.cast(), most, 0)) as usize;
            compare(read, n, done)?;
            done += n;
        }
    }
    equal!(done, len);
    unmap(shown, room)?;
    unmap(read, 64 * PAGE)?;
    Ok(by_pages)
}

fn shown() -> Outcome {
    for (len, room, copies) in [
        (160 * PAGE, 32 * PAGE, 0),
        (100 * PAGE + 77, 8 * PAGE, 100),
        (3 * PAGE - 1, PAGE, 0),
        (PAGE, PAGE, PAGE),
        (40 * PAGE, 64 * PAGE, 3000),
        (5, PAGE, 0),
    ] {
        let stream = connected(SEND, len)?;
        let by_pages = receive_shown(&stream, len, room, copies)?;
        if has_pages() && len >= 16 * PAGE {
            ensure!(by_pages >= len * 3 / 4, "{by_pages} bytes of {len} shown");
        }
    }
    // A writer that lends pages, and one whose pages are written while they are shown.
    const LEN: usize = 24 * PAGE;
    let _way = Switched::to("movement", "loan")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let writer = TcpStream::connect(listener.local_addr()?)?;
    let (reader, _) = listener.accept()?;
    let memory = patterned(LEN, 0)?;
    send_all(&writer, memory, LEN, 0)?;
    let at = map_socket(&reader, LEN)?;
    let mut done = 0;
    while done < LEN {
        await_bytes(&reader)?;
        let mut ask = ZeroCopy {
            address: at as u64 + done as u64,
            length: (LEN - done) as u32,
            ..ZeroCopy::default()
        };
        equal!(ask.call(&reader), 0);
        done += ask.length as usize;
        if ask.length == 0 {
            // Some have no page of their own.
            let mut rest = vec![0; LEN - done];
            (&reader).read_exact(&mut rest)?;
            break;
        }
    }
    ensure!(done >= LEN / 2, "{done} bytes were shown");
    spoil(memory, LEN);
    compare(at, done, 0)?;
    // A child sees them, and what comes later comes to the parent alone.
    wait_ok(spawn(|| compare(at, done, 0))?)?;
    fill(memory, LEN, 99);
    send_all(&writer, memory, LEN, 0)?;
    await_bytes(&reader)?;
    let (changed, change) = pipe(0)?;
    let child = spawn(|| {
        let mut word = [0];
        equal!(call!(read(changed, word.as_mut_ptr().cast(), 1)), 1);
        compare(at, done, 0)
    })?;
    let mut ask = ZeroCopy {
        address: at as u64,
        length: LEN as u32,
        ..ZeroCopy::default()
    };
    equal!(ask.call(&reader), 0);
    ensure!(ask.length > 0, "no page is shown again");
    compare(at, ask.length as usize, 99)?;
    equal!(call!(write(change, [1_u8].as_ptr().cast(), 1)), 1);
    wait_ok(child)?;
    call!(close(changed));
    call!(close(change));
    // What was shown can be dropped page by page; a page that is not there is no memory.
    call!(madvise(at.cast(), PAGE, MADV_DONTNEED));
    equal!(fault_at(|| _ = peek(at))?, Some(SIGBUS));
    unmap(memory, LEN)?;
    unmap(at, LEN)
}

fn not_shown() -> Outcome {
    let mut stream = connected(SEND, 16 * PAGE)?;
    let at = map_socket(&stream, 8 * PAGE)?;
    let other = map(PAGE)?;
    let request = ZeroCopy {
        address: at as u64,
        length: 8 * PAGE as u32,
        ..ZeroCopy::default()
    };
    // Enough for a page.
    let mut ready = [0; 2 * PAGE];
    while call!(recv(
        stream.as_raw_fd(),
        ready.as_mut_ptr().cast(),
        ready.len(),
        MSG_PEEK
    )) < 5000
    {}
    for (wrong, error) in [
        (
            ZeroCopy {
                address: at as u64 + 1,
                ..request
            },
            EINVAL,
        ),
        (
            ZeroCopy {
                address: other as u64,
                ..request
            },
            EINVAL,
        ),
        (
            ZeroCopy {
                address: 0,
                ..request
            },
            EINVAL,
        ),
        (
            ZeroCopy {
                address: 1 << 63,
                ..request
            },
            EINVAL,
        ),
        (
            ZeroCopy {
                reserved: 1,
                ..request
            },
            EINVAL,
        ),
        (
            ZeroCopy {
                msg_flags: 1,
                ..request
            },
            EINVAL,
        ),
    ] {
        let mut ask = wrong;
        equal!(ask.call(&stream), error, wrong.address);
    }
    for len in [0, 4, 11] {
        let mut ask = request;
        equal!(ask.call_of(&stream, len), EINVAL, len);
    }
    // What is behind the structure has to be zeros.
    let mut long = [0_u64; 12];
    long[0] = at as u64;
    long[11] = 1;
    let mut room = size_of_val(&long) as u32;
    let socket = stream.as_raw_fd();
    refused!(
        EINVAL,
        getsockopt(
            socket,
            IPPROTO_TCP,
            TCP_ZEROCOPY_RECEIVE,
            long.as_mut_ptr().cast(),
            &mut room
        )
    );
    // The shortest one says no more than it has room for.
    let mut short = ZeroCopy { inq: 77, ..request };
    equal!(short.call_of(&stream, 16), 0);
    equal!(short.inq, 77);
    let mut rest = vec![0; 16 * PAGE - short.length as usize];
    stream.read_exact(&mut rest)?;
    await_bytes(&stream)?;
    equal!({ request }.call(&stream), EIO);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // SAFETY: the listener's descriptor is used for one call and given back.
    let listening = mem::ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(listener.as_raw_fd()) });
    equal!({ request }.call(&listening), ENOTCONN);
    unmap(at, 8 * PAGE)
}

fn unwritable() -> Outcome {
    let stream = connected(SEND, 64 * PAGE)?;
    for protection in [READ_WRITE, PROT_READ | PROT_EXEC, PROT_WRITE] {
        refused!(
            EPERM,
            mmap(
                null_mut(),
                PAGE,
                protection,
                MAP_SHARED,
                stream.as_raw_fd(),
                0
            )
        );
    }
    let at = map_socket(&stream, 16 * PAGE)?;
    equal!(fault_at(|| _ = peek(at))?, Some(SIGBUS));
    equal!(fault_at(|| poke(at, 1))?, Some(SIGSEGV));
    refused!(EACCES, mprotect(at.cast(), PAGE, READ_WRITE));
    refused!(EACCES, mprotect(at.cast(), PAGE, PROT_READ | PROT_EXEC));
    // A call that would write there fails, whatever it writes.
    refused!(EFAULT, recv(stream.as_raw_fd(), at.cast(), 16 * PAGE, 0));
    let file = File::open("/proc/self/exe")?;
    refused!(EFAULT, read(file.as_raw_fd(), at.cast(), 8 * PAGE));
    // The mapping outlives the socket.
    drop(stream);
    equal!(fault_at(|| _ = peek(at))?, Some(SIGBUS));
    unmap(at, 16 * PAGE)
}

/// From a socket to a pipe, and from there to a file.
fn spliced() -> Outcome {
    const LEN: usize = 60 * PAGE + 99;
    let stream = connected(SEND, LEN)?;
    let (path, file) = file("spliced", &[])?;
    let (reader, writer) = pipe(0)?;
    let end = null_mut();
    let before = counter("bytes_passed")?;
    let (mut done, mut offset) = (0, 0_i64);
    while done < LEN {
        let n = call!(splice(stream.as_raw_fd(), end, writer, end, LEN - done, 0));
        ensure!(n > 0, "the end behind {done} bytes");
        let mut left = n as usize;
        while left > 0 {
            left -= call!(splice(reader, end, file, &mut offset, left, 0)) as usize;
        }
        done += n as usize;
    }
    let passed = counter("bytes_passed")? - before;
    ensure!(passed >= LEN as u64, "{passed} bytes were passed");
    let bytes = fs::read(&path)?;
    equal!(bytes.len(), LEN);
    compare(bytes.as_ptr(), LEN, 0)?;
    for fd in [file, reader, writer] {
        call!(close(fd));
    }
    fs::remove_file(path)?;
    Ok(())
}
