//! Pipes: order, atomicity, ends, immutability of written bytes.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("pipes: bytes in order", order),
    ("pipes: capacity", capacity),
    ("pipes: writes up to PIPE_BUF are atomic", atomic),
    ("pipes: a reader learns of the end", end_of_file),
    ("pipes: a writer learns of the end", broken),
    ("pipes: a large stream between processes", stream),
    ("pipes: what was written cannot be changed", immutable),
    ("pipes: a page that is read is the reader's own", own_pages),
    ("pipes: vectors", vectors),
    ("pipes: through several processes", chain),
    ("pipes: FIFOs", fifos),
    ("pipes: packets", packets),
    ("pipes: splice to a file that does not look", splice_to_null),
    ("pipes: bytes that a splice does not write stay", unwritten),
    ("pipes: a splice that sleeps takes no room", sleeping_splice),
    ("pipes: refusals", refusals),
    ("pipes: vmsplice fills the room that there is", gifts),
    ("pipes: events are not spliced", events),
    ("pipes: one belongs to its maker", owned),
];

fn write_all(to: c_int, mut bytes: &[u8]) -> Outcome {
    while !bytes.is_empty() {
        let count = call!(write(to, bytes.as_ptr().cast(), bytes.len()));
        bytes = &bytes[count as usize..];
    }
    Ok(())
}

fn read_some(from: c_int, buffer: &mut [u8]) -> Result<usize> {
    Ok(call!(read(from, buffer.as_mut_ptr().cast(), buffer.len())) as usize)
}

fn order() -> Outcome {
    let (reader, writer) = pipe(0)?;
    write_all(writer, b"one two ")?;
    write_all(writer, b"three")?;
    let mut buffer = [0u8; 100];
    let count = read_some(reader, &mut buffer[..4])?;
    ensure!(&buffer[..count] == b"one ", "{:?}", &buffer[..count]);
    let count = read_some(reader, &mut buffer)?;
    ensure!(&buffer[..count] == b"two three", "{:?}", &buffer[..count]);
    Ok(())
}

fn packets() -> Outcome {
    let (reader, writer) = pipe(O_DIRECT | O_NONBLOCK)?;
    let mut buffer = [0u8; 2 * PAGE];
    for bytes in [&b"first"[..], b"second", b"third"] {
        write_all(writer, bytes)?;
    }
    let count = read_some(reader, &mut buffer)?;
    ensure!(&buffer[..count] == b"first", "{:?}", &buffer[..count]);
    // Bytes that the reader has no space for are lost.
    let count = read_some(reader, &mut buffer[..3])?;
    ensure!(&buffer[..count] == b"sec", "{:?}", &buffer[..count]);
    let count = read_some(reader, &mut buffer)?;
    ensure!(&buffer[..count] == b"third", "{:?}", &buffer[..count]);
    // More than a page is several packets.
    write_all(writer, &[7; PAGE + 10])?;
    let counts = (
        read_some(reader, &mut buffer)?,
        read_some(reader, &mut buffer)?,
    );
    ensure!(counts == (PAGE, 10), "a page and 10 bytes are {counts:?}");
    refused!(EAGAIN, read(reader, buffer.as_mut_ptr().cast(), 1));
    // The flag can change: bytes join, and do not join a packet.
    call!(fcntl(writer, F_SETFL, O_NONBLOCK));
    write_all(writer, b"a")?;
    write_all(writer, b"b")?;
    call!(fcntl(writer, F_SETFL, O_NONBLOCK | O_DIRECT));
    write_all(writer, b"packet")?;
    let mut all = Vec::new();
    while all.len() < 8 {
        let count = read_some(reader, &mut buffer)?;
        all.extend_from_slice(&buffer[..count]);
    }
    ensure!(all == b"abpacket", "{all:?}");
    let mut count = 0;
    while count < 1000 && {
        // SAFETY: writes from a live buffer.
        unsafe { libc::write(writer, buffer.as_ptr().cast(), 1) == 1 }
    } {
        count += 1;
    }
    ensure!(count == 16, "{count} packets of a byte fill a pipe");
    let file = call!(open(c"/tmp".as_ptr(), O_TMPFILE | O_RDWR, 0o600));
    refused!(EINVAL, fcntl(file, F_SETFL, O_DIRECT));
    // Pages of a file are no packets.
    write_all(file, &[5; 9000])?;
    let (reader, writer) = pipe(O_DIRECT | O_NONBLOCK)?;
    for (mut at, len) in [(3096, 2000), (1, 6000)] {
        let moved = call!(sendfile(writer, file, &raw mut at, len)) as usize;
        equal!(moved, len);
        equal!(read_some(reader, &mut buffer)?, len);
    }
    Ok(())
}

fn capacity() -> Outcome {
    let (reader, writer) = pipe(O_NONBLOCK)?;
    let mut buffer = vec![0u8; PAGE];
    refused!(EAGAIN, read(reader, buffer.as_mut_ptr().cast(), 1));
    let mut total = 0;
    loop {
        // SAFETY: writes from a live buffer.
        let count = unsafe { libc::write(writer, buffer.as_ptr().cast(), PAGE) };
        if count == -1 {
            ensure!(errno() == EAGAIN, "errno {}", errno());
            break;
        }
        total += count;
    }
    ensure!(total == 65536, "{total} bytes fit");
    let mut waiting: c_int = 0;
    call!(ioctl(reader, FIONREAD, &mut waiting));
    ensure!(waiting == 65536, "FIONREAD says {waiting}");
    let size = call!(fcntl(writer, F_GETPIPE_SZ));
    ensure!(size == 65536, "F_GETPIPE_SZ says {size}");
    call!(read(reader, buffer.as_mut_ptr().cast(), PAGE));
    call!(write(writer, buffer.as_ptr().cast(), PAGE));
    refused!(EAGAIN, write(writer, buffer.as_ptr().cast(), 1));
    Ok(())
}

fn atomic() -> Outcome {
    const WRITERS: u8 = 6;
    const TIMES: usize = 200;
    let (reader, writer) = pipe(0)?;
    let sizes = [1, 7, 100, 512, 1000, 4096];
    let children: Vec<_> = (0..WRITERS)
        .map(|number| {
            spawn(|| {
                let size = sizes[usize::from(number)];
                let mut record = vec![number; size];
                record[0] = number;
                for _ in 0..TIMES {
                    let count = call!(write(writer, record.as_ptr().cast(), size));
                    equal!(count as usize, size, count);
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    call!(close(writer));
    let mut all = Vec::new();
    let mut buffer = [0u8; 5000];
    loop {
        let count = read_some(reader, &mut buffer)?;
        if count == 0 {
            break;
        }
        all.extend_from_slice(&buffer[..count]);
    }
    let mut at = 0;
    while at < all.len() {
        let number = all[at];
        let size = sizes[usize::from(number)];
        ensure!(
            all.len() >= at + size && all[at..at + size].iter().all(|&byte| byte == number),
            "a record of writer {number} was torn at {at}"
        );
        at += size;
    }
    equal!(at, sizes.iter().sum::<usize>() * TIMES);
    wait_all(children)?;
    Ok(())
}

fn end_of_file() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let child = spawn(|| {
        pause_ms(20);
        call!(write(writer, b"last".as_ptr().cast(), 4));
        Ok(())
    })?;
    call!(close(writer));
    let mut buffer = [0u8; 10];
    equal!(read_some(reader, &mut buffer)?, 4);
    ensure!(read_some(reader, &mut buffer)? == 0, "no end of file");
    equal!(read_some(reader, &mut buffer)?, 0);
    wait(child)?;
    Ok(())
}

fn broken() -> Outcome {
    let (reader, writer) = pipe(0)?;
    call!(close(reader));
    let child = spawn(|| {
        // SAFETY: Rust ignores SIGPIPE; this gives it its default action back.
        unsafe { libc::signal(SIGPIPE, SIG_DFL) };
        call!(write(writer, b"x".as_ptr().cast(), 1));
        Ok(())
    })?;
    let end = wait(child)?;
    ensure!(end == End::Signal(SIGPIPE), "ended with {end:?}");
    // SAFETY: ignores the signal.
    unsafe { libc::signal(SIGPIPE, SIG_IGN) };
    refused!(EPIPE, write(writer, b"x".as_ptr().cast(), 1));
    // A writer that waits for space is woken.
    let (reader, writer) = pipe(0)?;
    let child = spawn(|| {
        call!(close(reader));
        let bytes = vec![0u8; 1 << 20];
        // SAFETY: writes from a live buffer.
        let first = unsafe { libc::write(writer, bytes.as_ptr().cast(), bytes.len()) };
        ensure!(first > 0 && first < 1 << 20, "the first write gave {first}");
        refused!(EPIPE, write(writer, bytes.as_ptr().cast(), 1));
        Ok(())
    })?;
    call!(close(writer));
    // The writer sleeps when the pipe is full.
    let mut waiting = 0;
    while waiting < 1 << 16 {
        pause_ms(1);
        call!(ioctl(reader, FIONREAD, &mut waiting));
    }
    pause_ms(30);
    call!(close(reader));
    wait_ok(child)?;
    Ok(())
}

/// A byte of the test stream.
fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8).wrapping_mul(17) ^ (at >> 16)) as u8
}

fn stream() -> Outcome {
    const TOTAL: usize = 24 << 20;
    for (seed, sizes) in [(1, 70_000), (2, 9_000), (3, 300_000)] {
        let (reader, writer) = pipe(0)?;
        let child = spawn(|| {
            call!(close(reader));
            let mut numbers = Numbers::new(seed);
            let mut buffer = vec![0u8; sizes + PAGE];
            let mut sent = 0;
            while sent < TOTAL / 3 {
                let size = 1 + numbers.below(sizes as u64) as usize;
                let size = size.min(TOTAL / 3 - sent);
                // Sometimes page-aligned, so that whole pages may be transferred.
                let start = if numbers.below(2) == 0 {
                    0
                } else {
                    numbers.below(64) as usize
                };
                for (index, byte) in buffer[start..start + size].iter_mut().enumerate() {
                    *byte = pattern(sent + index);
                }
                write_all(writer, &buffer[start..start + size])?;
                sent += size;
            }
            Ok(())
        })?;
        call!(close(writer));
        let mut numbers = Numbers::new(seed + 100);
        let mut buffer = vec![0u8; sizes];
        let mut received = 0;
        loop {
            let size = 1 + numbers.below(sizes as u64) as usize;
            let count = read_some(reader, &mut buffer[..size])?;
            if count == 0 {
                break;
            }
            for (index, &byte) in buffer[..count].iter().enumerate() {
                let expected = pattern(received + index);
                equal!(byte, expected, received + index);
            }
            received += count;
        }
        ensure!(received == TOTAL / 3, "{received} bytes arrived");
        wait_ok(child)?;
        call!(close(reader));
    }
    Ok(())
}

fn immutable() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let pages = 8;
    let memory = map(pages * PAGE)?;
    for round in 0..20u8 {
        (0..pages).for_each(|page| poke(memory.wrapping_add(page * PAGE), round));
        let count = call!(write(writer, memory.cast(), pages * PAGE));
        equal!(count as usize, pages * PAGE, count);
        (0..pages).for_each(|page| poke(memory.wrapping_add(page * PAGE), 0xff));
        let mut buffer = vec![0u8; pages * PAGE];
        let count = read_some(reader, &mut buffer)?;
        ensure!(count == pages * PAGE, "{count} bytes arrived");
        for page in 0..pages {
            let byte = buffer[page * PAGE];
            equal!(byte, round, page);
        }
    }
    // Unmapped after the write, it still arrives.
    (0..pages).for_each(|page| poke(memory.wrapping_add(page * PAGE), 0x77));
    call!(write(writer, memory.cast(), pages * PAGE));
    call!(munmap(memory.cast(), pages * PAGE));
    let mut buffer = vec![0u8; pages * PAGE];
    read_some(reader, &mut buffer)?;
    ensure!((0..pages).all(|page| buffer[page * PAGE] == 0x77));
    Ok(())
}

fn own_pages() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let (from, to) = (map(4 * PAGE)?, map(4 * PAGE)?);
    (0..4).for_each(|page| poke(from.wrapping_add(page * PAGE), 1));
    call!(write(writer, from.cast(), 4 * PAGE));
    call!(read(reader, to.cast(), 4 * PAGE));
    (0..4).for_each(|page| poke(to.wrapping_add(page * PAGE), 2));
    for page in 0..4 {
        let byte = peek(from.wrapping_add(page * PAGE));
        ensure!(byte == 1, "the writer's page {page} changed to {byte}");
    }
    Ok(())
}

fn vectors() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let parts: Vec<Vec<u8>> = (0..5u8).map(|n| vec![n; 1000 * usize::from(n)]).collect();
    let out: Vec<_> = parts
        .iter()
        .map(|part| vector(part.as_ptr(), part.len()))
        .collect();
    let count = call!(writev(writer, out.as_ptr(), 5));
    ensure!(count == 10_000, "writev wrote {count}");
    let (mut first, mut second) = (vec![9u8; 3000], vec![9u8; 9000]);
    let into = [
        vector(first.as_mut_ptr(), 3000),
        vector(second.as_mut_ptr(), 9000),
    ];
    let count = call!(readv(reader, into.as_ptr(), 2));
    ensure!(count == 10_000, "readv read {count}");
    let all: Vec<u8> = first.iter().chain(&second[..7000]).copied().collect();
    ensure!(all == parts.concat(), "the bytes changed");
    refused! {
        writev(writer, out.as_ptr(), -1) => EINVAL;
        writev(writer, ptr::dangling::<iovec>().wrapping_byte_add(8), 2) => EFAULT;
    }
    Ok(())
}

fn chain() -> Outcome {
    let (mut from, first) = pipe(O_CLOEXEC)?;
    let mut children = Vec::new();
    for _ in 0..6 {
        let (next, to) = pipe(O_CLOEXEC)?;
        children.push(spawn(|| {
            call!(close(first));
            call!(close(next));
            let mut buffer = vec![0u8; 40_000];
            loop {
                let count = read_some(from, &mut buffer)?;
                if count == 0 {
                    return Ok(());
                }
                buffer[..count]
                    .iter_mut()
                    .for_each(|byte| *byte = byte.wrapping_add(1));
                write_all(to, &buffer[..count])?;
            }
        })?);
        call!(close(from));
        call!(close(to));
        from = next;
    }
    let total = 3 << 20;
    children.push(spawn(|| {
        let bytes: Vec<u8> = (0..total).map(pattern).collect();
        write_all(first, &bytes)
    })?);
    call!(close(first));
    let mut buffer = vec![0u8; 65536];
    let mut received = 0;
    loop {
        let count = read_some(from, &mut buffer)?;
        if count == 0 {
            break;
        }
        for (index, byte) in buffer[..count].iter().enumerate() {
            let expected = pattern(received + index).wrapping_add(6);
            equal!(*byte, expected, received + index, byte);
        }
        received += count;
    }
    ensure!(received == total, "{received} bytes arrived");
    wait_all(children)?;
    Ok(())
}

fn fifos() -> Outcome {
    let path = c(&format!("{}/fifo", folder("fifos")?));
    call!(mkfifo(path.as_ptr(), 0o600));
    refused!(EEXIST, mkfifo(path.as_ptr(), 0o600));
    refused!(ENXIO, open(path.as_ptr(), O_WRONLY | O_NONBLOCK));
    let child = spawn(|| {
        let writer = call!(open(path.as_ptr(), O_WRONLY));
        write_all(writer, b"through a name")
    })?;
    let reader = call!(open(path.as_ptr(), O_RDONLY));
    let mut buffer = [0u8; 100];
    let mut count = 0;
    loop {
        let more = read_some(reader, &mut buffer[count..])?;
        if more == 0 {
            break;
        }
        count += more;
    }
    equal!(&buffer[..count], b"through a name");
    wait_ok(child)?;
    Ok(())
}

fn refusals() -> Outcome {
    handle(SIGPIPE, ignore_signal, 0)?;
    let (reader, writer) = pipe(0)?;
    let mut byte = 0u8;
    refused!(EBADF, write(reader, (&raw const byte).cast(), 1));
    refused!(EBADF, read(writer, (&raw mut byte).cast(), 1));
    refused!(ESPIPE, lseek(reader, 0, SEEK_SET));
    refused!(ESPIPE, pread(reader, (&raw mut byte).cast(), 1, 0));
    refused!(EFAULT, pipe2(8 as *mut _, 0));
    refused!(EINVAL, pipe2((&raw mut byte).cast(), 0x10));
    refused!(EFAULT, write(writer, 8 as *const _, 5));
    call!(write(writer, b"x".as_ptr().cast(), 1));
    refused!(EFAULT, read(reader, 8 as *mut _, 5));
    Ok(())
}

/// Bytes spliced to a file that discards them leave the pipe.
fn splice_to_null() -> Outcome {
    let (out, into) = pipe(0)?;
    let null = call!(open(c"/dev/null".as_ptr(), O_WRONLY));
    let bytes = [7u8; 3 * PAGE];
    for part in [3 * PAGE, PAGE + 1] {
        let written = call!(write(into, bytes.as_ptr().cast(), bytes.len()));
        ensure!(written as usize == bytes.len(), "write gave {written}");
        let mut left = bytes.len();
        while left > 0 {
            let none = null_mut();
            let moved = call!(splice(out, none, null, none, part.min(left), 0)) as usize;
            ensure!(moved == part.min(left), "splice gave {moved} of {left}");
            left -= moved;
            let mut waiting = 0;
            call!(ioctl(out, FIONREAD, &raw mut waiting));
            ensure!(waiting as usize == left, "{waiting} bytes wait, not {left}");
        }
    }
    for file in [out, into, null] {
        call!(close(file));
    }
    Ok(())
}

/// Bytes that a socket refuses or a full file system has no room for stay in the pipe.
fn unwritten() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let mut buffer = [0u8; 10];
    for kind in [SOCK_DGRAM, SOCK_SEQPACKET, SOCK_STREAM] {
        let [to, peer] = socket_pair(kind)?;
        drop(peer);
        write_all(writer, b"hello")?;
        // SAFETY: splice touches no memory here; SIGPIPE is ignored.
        let moved = unsafe {
            libc::signal(SIGPIPE, SIG_IGN);
            libc::splice(reader, null_mut(), to.as_raw_fd(), null_mut(), 5, 0)
        };
        ensure!(moved == -1, "splice gave {moved} without a peer");
        let count = read_some(reader, &mut buffer)?;
        ensure!(&buffer[..count] == b"hello", "{:?}", &buffer[..count]);
    }
    let at = folder("full")?;
    let (place, kind) = (c(&at), c"tmpfs".as_ptr());
    let options = c"size=8k".as_ptr().cast();
    call!(mount(kind, place.as_ptr(), kind, 0, options));
    let file = fs::File::create(format!("{at}/file"))?;
    let to = file.as_raw_fd();
    let pages: Vec<u8> = (0..4 * PAGE).map(|n| (n / PAGE) as u8).collect();
    write_all(writer, &pages)?;
    let none = null_mut();
    let moved = call!(splice(reader, none, to, none, pages.len(), 0)) as usize;
    equal!(moved, 2 * PAGE);
    refused!(ENOSPC, splice(reader, none, to, none, pages.len(), 0));
    let mut rest = vec![0; pages.len()];
    let count = read_some(reader, &mut rest)?;
    ensure!(rest[..count] == pages[moved..], "{count} other bytes");
    drop(file);
    call!(umount2(place.as_ptr(), 0));
    Ok(())
}

/// A splice that sleeps in a full socket keeps its bytes in the pipe: writers find no room, and a
/// signal ends the wait of a reader.
fn sleeping_splice() -> Outcome {
    let (reader, writer) = pipe(O_NONBLOCK)?;
    call!(fcntl(reader, F_SETFL, 0));
    let [to, peer] = socket_pair(SOCK_STREAM)?;
    let to = to.as_raw_fd();
    let bytes = vec![6u8; 1 << 16];
    call!(fcntl(to, F_SETFL, O_NONBLOCK));
    for len in [bytes.len(), 1] {
        // SAFETY: writes from a live buffer.
        while unsafe { libc::write(to, bytes.as_ptr().cast(), len) } > 0 {}
    }
    call!(fcntl(to, F_SETFL, 0));
    for signal in [SIGUSR1, SIGALRM] {
        handle(signal, ignore_signal, 0)?;
    }
    let none = null_mut();
    for _ in 0..5 {
        let splicer = spawn(|| {
            let none = null_mut();
            refused!(EINTR, splice(reader, none, to, none, 1 << 30, 0));
            Ok(())
        })?;
        // SAFETY: writes from a live buffer.
        while unsafe { libc::write(writer, bytes.as_ptr().cast(), bytes.len()) } > 0 {}
        while !read_text(&format!("/proc/{splicer}/stat"))?.contains(") S ") {
            pause_ms(1);
        }
        refused!(EAGAIN, write(writer, bytes.as_ptr().cast(), 1));
        let mut waiting = 0;
        call!(ioctl(reader, FIONREAD, &raw mut waiting));
        equal!(waiting as usize, bytes.len());
        child(|| {
            let timer = timer_val(20_000, 20_000);
            call!(setitimer(ITIMER_REAL, &timer, null_mut()));
            refused!(EINTR, read(reader, [0u8; 1].as_mut_ptr().cast(), 1));
            Ok(())
        })?;
        call!(kill(splicer, SIGUSR1));
        wait_ok(splicer)?;
    }
    drop(peer);
    refused!(EPIPE, splice(reader, none, to, none, 1 << 30, 0));
    call!(close(writer));
    let (mut total, mut buffer) = (0, vec![0u8; 1 << 16]);
    loop {
        match read_some(reader, &mut buffer)? {
            0 => break,
            count => total += count,
        }
    }
    equal!(total, bytes.len());
    Ok(())
}

/// `vmsplice` waits for the first room only.
fn gifts() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let size = call!(fcntl(writer, F_GETPIPE_SZ)) as usize;
    let memory = vec![7u8; 2 * size];
    let part = vector(memory.as_ptr(), memory.len());
    call!(alarm(10));
    equal!(call!(vmsplice(writer, &part, 1, 0)) as usize, size);
    refused!(EAGAIN, vmsplice(writer, &part, 1, SPLICE_F_NONBLOCK));
    equal!(read_bytes(&reader, PAGE)?.len(), PAGE);
    equal!(call!(vmsplice(writer, &part, 1, 0)) as usize, PAGE);
    Ok(())
}

/// Neither with bytes nor without: nothing is waited for that could not be moved.
fn events() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let files = [
        call!(epoll_create1(0)),
        call!(eventfd(1, 0)),
        call!(timerfd_create(CLOCK_MONOTONIC, 0)),
        call!(inotify_init1(0)),
    ];
    call!(alarm(10));
    for (n, file) in files.into_iter().enumerate() {
        // Some are not open for writing.
        if n < 2 {
            refused!(EINVAL, splice(reader, null_mut(), file, null_mut(), 8, 0));
        }
        refused!(EINVAL, splice(file, null_mut(), writer, null_mut(), 8, 0));
    }
    Ok(())
}

/// A pipe belongs to who made it, and that user alone opens it again by its descriptor, as shells
/// do for `/dev/stdout`.
fn owned() -> Outcome {
    child(|| {
        call!(setresgid(1001, 1001, 1001));
        call!(setresuid(1000, 1000, 1000));
        let (reader, writer) = pipe(0)?;
        let path = format!("/proc/self/fd/{writer}");
        let status = fs::metadata(&path)?;
        let owner = (status.uid(), status.gid(), status.mode() & 0o777);
        ensure!(owner == (1000, 1001, 0o600), owner);
        fs::write(&path, "again")?;
        let mut buffer = [0u8; 8];
        let count = read_some(reader, &mut buffer)?;
        ensure!(&buffer[..count] == b"again", "{:?}", &buffer[..count]);
        Ok(())
    })?;
    let (_reader, writer) = pipe(0)?;
    child(|| {
        call!(setresuid(1000, 1000, 1000));
        let opened = File::create(format!("/proc/self/fd/{writer}"));
        let error = opened.err().and_then(|error| error.raw_os_error());
        ensure!(error == Some(EACCES), error);
        Ok(())
    })
}
