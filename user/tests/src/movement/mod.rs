//! Data movement: whatever way bytes go, by copies or by pages that change hands, what was written
//! is what is read, and no later write reaches the other side.

pub mod blocked;
pub mod calls;
pub mod churned;
pub mod files;
pub mod refused;
pub mod waiting;

use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd;

use crate::large::Switched;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("movement: pipes, both sides write", pipes),
    ("movement: Unix streams, both sides write", unix_streams),
    ("movement: TCP, both sides write", tcp_streams),
    ("movement: a lent page stays as it was", lent),
    (
        "movement: a lent page of shared memory or a file stays as it was",
        lent_shared,
    ),
    ("movement: parts of a frame are no page", parts),
    ("movement: pages are passed, not copied", passed),
    (
        "movement: pages behind copied ones are passed",
        passed_behind,
    ),
    ("movement: bytes are counted by call and by reason", reasons),
    (
        "movement: buffers that are written again are copied",
        rewritten,
    ),
];

const SWITCH: &str = "movement";
const WAYS: [&str; 4] = ["copy", "once", "loan", "auto"];

/// The most pages of a message.
const PAGES: usize = 48;
const MESSAGES: u64 = 150;

/// A message: its number, and what both sides know of it.
struct Message {
    number: u64,
    pages: usize,
    /// Bytes of each side's buffer before the message.
    starts: [usize; 2],
}

impl Message {
    /// One that begins at a page's beginning on both sides.
    const fn aligned(number: u64, pages: usize) -> Self {
        Self {
            number,
            pages,
            starts: [0; 2],
        }
    }
}

fn message(numbers: &mut Numbers, number: u64) -> Message {
    let mut start = || match numbers.below(4) {
        0 => numbers.below(PAGE as u64 / 8) as usize * 8,
        _ => 0,
    };
    let starts = [start(), start()];
    Message {
        number,
        pages: 1 + numbers.below(PAGES as u64) as usize,
        starts,
    }
}

/// What stands at the beginning and the end of each page of a message.
fn stamp(message: &Message, page: usize) -> u64 {
    (message.number << 20 | page as u64) ^ 0x5ca1_ab1e_0000_0000
}

/// Two buffers of memory, page-aligned.
struct Buffer(*mut u8);

impl Buffer {
    const SIZE: usize = (PAGES + 2) * PAGE;

    fn new() -> Result<Self> {
        Ok(Self(map(Self::SIZE)?))
    }

    fn word(&self, at: usize) -> *mut u64 {
        self.0.wrapping_add(at).cast()
    }

    fn set(&self, at: usize, value: u64) {
        // SAFETY: callers stay inside the buffer, at multiples of eight.
        unsafe { self.word(at).write_volatile(value) };
    }

    fn get(&self, at: usize) -> u64 {
        // SAFETY: as in `set`.
        unsafe { self.word(at).read_volatile() }
    }

    /// The places of a page's stamps.
    fn places(start: usize, page: usize) -> [usize; 2] {
        [start + page * PAGE, start + (page + 1) * PAGE - 8]
    }

    fn stamp(&self, start: usize, message: &Message) {
        for page in 0..message.pages {
            for at in Self::places(start, page) {
                self.set(at, stamp(message, page));
            }
        }
    }

    /// Checks the stamps of all pages.
    fn check(&self, start: usize, message: &Message) -> Outcome {
        for page in 0..message.pages {
            for at in Self::places(start, page) {
                let (is, number) = (self.get(at), message.number);
                ensure!(
                    is == stamp(message, page),
                    "page {page} of message {number} has {is:#x} at {at:#x}"
                );
            }
        }
        Ok(())
    }

    /// Spoils some pages, and sees that they have what was written there.
    fn spoil(&self, numbers: &mut Numbers, start: usize, message: &Message) -> Outcome {
        for page in 0..message.pages {
            if numbers.below(2) == 0 {
                for at in Self::places(start, page) {
                    self.set(at, !0);
                }
            }
        }
        let page = numbers.below(message.pages as u64) as usize;
        let at = start + page * PAGE;
        self.set(at, 1);
        equal!(self.get(at), 1, page);
        Ok(())
    }
}

/// Moves bytes by calls of `step`, which is told how many it has moved so far.
fn move_all(len: usize, step: impl Fn(usize) -> Result<isize>) -> Outcome {
    let mut done = 0;
    while done < len {
        let n = step(done)?;
        ensure!(n > 0, "{n} bytes behind {done} of {len}");
        done += n as usize;
    }
    Ok(())
}

fn write_all(to: c_int, at: *const u8, len: usize) -> Outcome {
    move_all(len, |done| {
        Ok(call!(write(to, at.wrapping_add(done).cast(), len - done)))
    })
}

/// Sends messages by `give`, and spoils each as soon as it was sent.
fn send(seed: u64, messages: u64, give: &dyn Fn(*mut u8, usize) -> Outcome) -> Outcome {
    let (mut numbers, mut own) = (Numbers::new(seed), Numbers::new(seed + 1));
    let mut buffer = Buffer::new()?;
    for number in 0..messages {
        let message = message(&mut numbers, number);
        let start = message.starts[0];
        buffer.stamp(start, &message);
        give(buffer.0.wrapping_add(start), message.pages * PAGE)?;
        match own.below(12) {
            // What is unmapped is not gone on the other side.
            0 => {
                unmap(buffer.0, Buffer::SIZE)?;
                buffer = Buffer::new()?;
            }
            1 => {
                call!(madvise(buffer.0.cast(), Buffer::SIZE, MADV_DONTNEED));
            }
            2 => wait_ok(spawn(|| {
                buffer.spoil(&mut Numbers::new(number), start, &message)
            })?)?,
            3 => {}
            _ => buffer.spoil(&mut own, start, &message)?,
        }
    }
    Ok(())
}

/// Receives the same messages, and spoils each after it was checked twice.
fn receive(from: c_int, seed: u64, messages: u64) -> Outcome {
    let (mut numbers, mut own) = (Numbers::new(seed), Numbers::new(seed + 2));
    let buffer = Buffer::new()?;
    for number in 0..messages {
        let message = message(&mut numbers, number);
        let start = message.starts[1];
        let (mut done, len) = (0, message.pages * PAGE);
        while done < len {
            let at = buffer.0.wrapping_add(start + done);
            let count = call!(read(from, at.cast(), len - done));
            ensure!(count > 0, "the end of the stream in message {number}");
            done += count as usize;
        }
        buffer.check(start, &message)?;
        if own.below(8) == 0 {
            pause_ms(1);
        }
        buffer.check(start, &message)?;
        match own.below(8) {
            0 => wait_ok(spawn(|| {
                buffer.check(start, &message)?;
                buffer.spoil(&mut Numbers::new(number), start, &message)
            })?)?,
            1 => {}
            _ => buffer.spoil(&mut own, start, &message)?,
        }
    }
    let at = buffer.0;
    equal!(call!(read(from, at.cast(), 1)), 0);
    Ok(())
}

fn both_write(line: impl Fn() -> Result<(c_int, c_int)>) -> Outcome {
    for (seed, way) in (1..).zip(WAYS) {
        let _way = Switched::to(SWITCH, way)?;
        let (reader, writer) = line()?;
        let child = spawn(|| {
            call!(close(reader));
            send(seed, MESSAGES, &|at, len| write_all(writer, at, len))
        })?;
        call!(close(writer));
        let received = receive(reader, seed, MESSAGES);
        call!(close(reader));
        received.and(wait_ok(child))?;
    }
    Ok(())
}

fn pipes() -> Outcome {
    both_write(|| pipe(0))
}

fn unix_streams() -> Outcome {
    both_write(|| {
        let [reader, writer] = socket_pair(SOCK_STREAM)?;
        Ok((reader.into_raw_fd(), writer.into_raw_fd()))
    })
}

fn tcp_streams() -> Outcome {
    both_write(connection)
}

/// A TCP connection: the end to read, the end to write.
fn connection() -> Result<(c_int, c_int)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let writer = TcpStream::connect(listener.local_addr()?)?;
    let (reader, _) = listener.accept()?;
    Ok((reader.into_raw_fd(), writer.into_raw_fd()))
}

/// The bytes in a pipe are those of the moment of the write.
fn lent() -> Outcome {
    let _way = Switched::to(SWITCH, "loan")?;
    let (from, to) = (Buffer::new()?, Buffer::new()?);
    for (round, end) in (0..).zip(["write", "unmap", "exit", "page out", "fork"]) {
        let (reader, writer) = pipe(0)?;
        let message = Message::aligned(round, 16);
        let give = || {
            from.stamp(0, &message);
            call!(write(writer, from.0.cast(), 16 * PAGE));
            Ok(())
        };
        let before = counter("pages_lent")?;
        let broken = || counter(&format!("loans_broken_by_{end}"));
        let is_counted = ["write", "unmap", "exit"].contains(&end);
        let ends = if is_counted { broken()? } else { 0 };
        match end {
            "write" => {
                give()?;
                (0..16).for_each(|page| from.set(page * PAGE, 7));
            }
            "unmap" => {
                give()?;
                call!(madvise(from.0.cast(), Buffer::SIZE, MADV_DONTNEED));
            }
            "page out" => {
                give()?;
                // Without swap space it does nothing.
                call!(madvise(from.0.cast(), Buffer::SIZE, MADV_PAGEOUT));
                (0..16).for_each(|page| from.set(page * PAGE, 7));
            }
            "fork" => {
                give()?;
                wait_ok(spawn(|| {
                    from.check(0, &message)?;
                    (0..16).for_each(|page| from.set(page * PAGE, 7));
                    Ok(())
                })?)?;
                (0..16).for_each(|page| from.set(page * PAGE, 8));
            }
            _ => wait_ok(spawn(give)?)?,
        }
        ensure!(counter("pages_lent")? >= before + 16, "{end}: no loan");
        if is_counted {
            let count = broken()? - ends;
            ensure!(count >= 16, "{count} loans broken by {end}");
        }
        call!(read(reader, to.0.cast(), 16 * PAGE));
        to.check(0, &message)?;
        call!(close(reader));
        call!(close(writer));
    }
    Ok(())
}

/// What is written into shared memory, or into a file, after its pages were sent does not show.
fn lent_shared() -> Outcome {
    let _way = Switched::to(SWITCH, "loan")?;
    let size = Buffer::SIZE;
    let file = call!(memfd_create(c"lent".as_ptr(), 0));
    call!(ftruncate(file, size as i64));
    let segment = call!(shmget(IPC_PRIVATE, size, IPC_CREAT | 0o600));
    let attached = call!(shmat(segment, null(), 0));
    call!(shmctl(segment, IPC_RMID, null_mut()));
    let of_file =
        |flags| -> Result<Buffer> { Ok(Buffer(map_with(size, READ_WRITE, flags, file)?)) };
    let memories = [
        ("anonymous", Buffer(shared_map(size)?)),
        ("System V", Buffer(attached.cast())),
        ("file", of_file(MAP_SHARED)?),
        ("private, of a file", of_file(MAP_PRIVATE)?),
    ];
    let (seen, to) = (of_file(MAP_SHARED)?, Buffer::new()?);
    for (number, (name, from)) in (0..).zip(&memories) {
        let message = Message::aligned(number, 16);
        let is_private = name.starts_with("private");
        let source = if is_private { &seen } else { from };
        source.stamp(0, &message);
        from.check(0, &message)?;
        let (reader, writer) = pipe(0)?;
        let before = counter("pages_lent")?;
        call!(write(writer, from.0.cast(), 16 * PAGE));
        ensure!(counter("pages_lent")? >= before + 16, "{name}: no loan");
        // By this process, by another one, and, if it is a file, by a call.
        (0..8).for_each(|page| source.set(page * PAGE, 7));
        wait_ok(spawn(|| {
            (8..16).for_each(|page| source.set(page * PAGE, 8));
            Ok(())
        })?)?;
        if name.contains("file") {
            let bytes = [9; 64];
            call!(pwrite(file, bytes.as_ptr().cast(), 64, 5 * PAGE as i64));
        }
        equal!(source.get(4 * PAGE), 7, name);
        equal!(source.get(12 * PAGE), 8, name);
        call!(read(reader, to.0.cast(), 16 * PAGE));
        to.check(0, &message)?;
        // The receiver's writes do not show either.
        (0..16).for_each(|page| to.set(page * PAGE, 1));
        equal!(source.get(4 * PAGE), 7, name);
        call!(close(reader));
        call!(close(writer));
    }
    // Truncation takes the page from the file, not from the borrower.
    let file_memory = &memories[2].1;
    let message = Message::aligned(9, 16);
    file_memory.stamp(0, &message);
    let (reader, writer) = pipe(0)?;
    let before = counter("loans_broken_by_truncation")?;
    call!(write(writer, file_memory.0.cast(), 16 * PAGE));
    call!(ftruncate(file, 0));
    let count = counter("loans_broken_by_truncation")? - before;
    ensure!(count >= 16, "{count} loans broken by truncation");
    call!(read(reader, to.0.cast(), 16 * PAGE));
    to.check(0, &message)?;
    call!(close(reader));
    call!(close(writer));
    call!(close(file));
    Ok(())
}

/// A frame that a pipe filled in parts, of which another pipe has the first one, does not become a
/// page of a program that has all of it.
fn parts() -> Outcome {
    let _way = Switched::to(SWITCH, "loan")?;
    let _least = Switched::to("movement.least", "1")?;
    let [(reader, writer), (first, first_end), (all, all_end)] = [pipe(0)?, pipe(0)?, pipe(0)?];
    let (from, to) = (Buffer::new()?, Buffer::new()?);
    let message = Message::aligned(5, 1);
    from.stamp(0, &message);
    call!(write(writer, from.0.cast(), 64));
    call!(tee(reader, first_end, 64, 0));
    call!(write(writer, from.0.wrapping_add(64).cast(), PAGE - 64));
    call!(tee(reader, all_end, PAGE, 0));
    call!(read(reader, to.0.cast(), PAGE));
    to.check(0, &message)?;
    call!(close(all));
    call!(close(all_end));
    to.set(0, 7);
    call!(read(first, to.0.cast(), 64));
    equal!(to.get(0), stamp(&message, 0));
    call!(close(first));
    call!(close(first_end));
    Ok(())
}

/// A program that leaves its pages alone has none of them copied, nor those it receives.
fn passed() -> Outcome {
    let _way = Switched::to(SWITCH, "auto")?;
    let (from, to) = (Buffer::new()?, Buffer::new()?);
    let message = Message::aligned(1, 16);
    from.stamp(0, &message);
    let (reader, writer) = pipe(0)?;
    let names = ["bytes_copied_in", "bytes_copied_out", "bytes_copied_within"];
    let copied = || -> Result<u64> { names.iter().map(|name| counter(name)).sum() };
    let before = copied()?;
    for _ in 0..64 {
        call!(write(writer, from.0.cast(), 16 * PAGE));
        call!(read(reader, to.0.cast(), 16 * PAGE));
    }
    to.check(0, &message)?;
    let copied = copied()? - before;
    // The counters' text is copied too.
    ensure!(copied < 8 * 16 * PAGE as u64, "{copied} bytes were copied");
    Ok(())
}

/// A read that begins with bytes of a small write goes on with the pages behind them.
fn passed_behind() -> Outcome {
    let _way = Switched::to(SWITCH, "auto")?;
    let (from, to) = (Buffer::new()?, Buffer::new()?);
    let message = Message {
        number: 1,
        pages: 15,
        starts: [0; 2],
    };
    from.stamp(0, &message);
    let (reader, writer) = pipe(0)?;
    let before = counter("pages_transferred")?;
    call!(write(writer, from.0.cast(), 3 * PAGE));
    call!(write(
        writer,
        from.0.wrapping_add(3 * PAGE).cast(),
        12 * PAGE
    ));
    call!(read(reader, to.0.cast(), 15 * PAGE));
    to.check(0, &message)?;
    let passed = counter("pages_transferred")? - before;
    ensure!(passed >= 12, "{passed} pages were passed");
    Ok(())
}

/// What became of the bytes of a large call is counted, and why they were copied.
fn reasons() -> Outcome {
    let (from, to) = (Buffer::new()?, Buffer::new()?);
    from.stamp(0, &Message::aligned(1, 17));
    let shared = shared_map(Buffer::SIZE)?;
    let (reader, writer) = pipe(0)?;
    let cases = [
        ("loan", 0, 16, to.0, "pipe_write_passed", "pipe_read_passed"),
        (
            "loan",
            8,
            15,
            to.0,
            "pipe_write_unaligned",
            "pipe_read_not_lent",
        ),
        (
            "loan",
            0,
            16,
            shared,
            "pipe_write_passed",
            "pipe_read_not_taken",
        ),
        ("copy", 0, 16, to.0, "pipe_write_switched_off", ""),
        ("auto", 0, 4, to.0, "pipe_write_small", ""),
    ];
    let moved = |name: &str| match name {
        "" => Ok(0),
        name => field("/proc/causeway/movements", name),
    };
    for (way, start, pages, to, written, taken) in cases {
        let _way = Switched::to(SWITCH, way)?;
        let size = pages * PAGE;
        let before = [moved(written)?, moved(taken)?];
        call!(write(writer, from.0.wrapping_add(start).cast(), size));
        call!(read(reader, to.cast(), size));
        for (name, before) in [written, taken].iter().zip(before) {
            let bytes = moved(name)? - before;
            ensure!(
                name.is_empty() || bytes >= size as u64,
                "{way}: {name} has {bytes} more, {size} went"
            );
        }
    }
    call!(close(reader));
    call!(close(writer));
    let (reader, writer) = pipe(O_DIRECT)?;
    let packets = || Ok(call!(write(writer, from.0.cast(), 8 * PAGE)) as usize);
    let file = call!(open(
        c"/tmp".as_ptr(),
        O_RDWR | O_TMPFILE | O_CLOEXEC,
        0o600
    ));
    let put = |at: usize| Ok(call!(pwrite(file, from.0.cast(), 8 * PAGE, at as off_t)) as usize);
    let cases: [(&str, &dyn Fn() -> Result<usize>); 4] = [
        ("pipe_write_packet", &packets),
        ("file_write_passed", &|| put(0)),
        ("file_write_overwritten", &|| put(0)),
        ("file_write_unaligned", &|| put(8 * PAGE + 100)),
    ];
    let _way = Switched::to(SWITCH, "loan")?;
    for (name, write) in cases {
        let before = moved(name)?;
        equal!(write()?, 8 * PAGE, name);
        let bytes = moved(name)? - before;
        ensure!(bytes >= 8 * PAGE as u64, "{name} has {bytes} more");
    }
    call!(close(reader));
    call!(close(writer));
    call!(close(file));
    Ok(())
}

/// A program that writes its buffer again while its bytes are on their way soon has it copied, not
/// lent.
fn rewritten() -> Outcome {
    const WRITES: usize = 1000;
    const PIECE: usize = 16;
    let _way = Switched::to(SWITCH, "auto")?;
    let (from, to) = (map(PIECE * PAGE)?, map(PIECE * PAGE)?);
    for (reader, writer) in [pipe(0)?, connection()?] {
        let before = counter("pages_lent")?;
        for round in 0..WRITES {
            call!(write(writer, from.cast(), PIECE * PAGE));
            // While the bytes are on their way, so that loans break.
            (0..PIECE).for_each(|page| poke(from.wrapping_add(page * PAGE), round as u8));
            let mut done = 0;
            while done < PIECE * PAGE {
                let left = PIECE * PAGE - done;
                done += call!(read(reader, to.wrapping_add(done).cast(), left)) as usize;
            }
        }
        let lent = counter("pages_lent")? - before;
        ensure!(lent < (WRITES * PIECE / 8) as u64, "{lent} pages were lent");
        call!(close(reader));
        call!(close(writer));
    }
    Ok(())
}
