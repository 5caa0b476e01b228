//! Bytes on their way between programs whose memory changes under the calls: each byte arrives
//! once, in order, and every call reports how many it moved.

use super::{SWITCH, connection};
use crate::large::Switched;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("movement: a pipe, memory that changes", over_a_pipe),
    (
        "movement: a Unix stream, memory that changes",
        over_a_unix_stream,
    ),
    ("movement: TCP, memory that changes", over_tcp),
    (
        "movement: one buffer for all that read and write",
        within_one,
    ),
];

/// Bytes of a buffer; the stream repeats them.
const LEN: usize = 1 << 20;
const PAGES: usize = LEN / PAGE;

/// Bytes of a stream.
const TOTAL: usize = 3 * LEN;

/// What a buffer is made of.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Made {
    /// A shared mapping of a file.
    Shared,
    /// A private mapping of a file.
    Private,
    /// Anonymous memory.
    Anonymous,
}

const KINDS: [Made; 3] = [Made::Shared, Made::Private, Made::Anonymous];

/// A buffer that is churned, and a view of a file's bytes that is not.
struct Memory {
    at: *mut u8,
    made: Made,
    file: c_int,
    view: *mut u8,
}

impl Memory {
    fn new(made: Made) -> Result<Memory> {
        let file = call!(memfd_create(c"churned".as_ptr(), 0));
        call!(ftruncate(file, LEN as off_t));
        let view = map_with(LEN, READ_WRITE, MAP_SHARED, file)?;
        let at = match made {
            Made::Shared => map_with(LEN, READ_WRITE, MAP_SHARED, file)?,
            Made::Private => map_with(LEN, READ_WRITE, MAP_PRIVATE, file)?,
            Made::Anonymous => map(LEN)?,
        };
        Ok(Memory {
            at,
            made,
            file,
            view,
        })
    }

    /// Fills it with the bytes of the stream.
    fn fill(&self) {
        let at = match self.made {
            Made::Anonymous => self.at,
            _ => self.view,
        };
        pattern(at);
    }

    /// Changes the mapping at random, not its bytes; it may be gone for a moment.
    fn churn(&self, numbers: &mut Numbers, is_private: bool) -> Outcome {
        let first = numbers.below(PAGES as u64) as usize;
        let pages = 1 + numbers.below((PAGES - first) as u64) as usize;
        let (at, len) = (self.at.wrapping_add(first * PAGE), pages * PAGE);
        let kinds = match self.made {
            Made::Shared => 8,
            Made::Private if is_private => 8,
            _ => 5,
        };
        match numbers.below(kinds) {
            0 => {
                call!(mprotect(at.cast(), len, PROT_READ));
                call!(mprotect(at.cast(), len, READ_WRITE));
            }
            1 => {
                call!(mprotect(at.cast(), len, PROT_NONE));
                call!(mprotect(at.cast(), len, READ_WRITE));
            }
            2 => {
                call!(madvise(at.cast(), len, MADV_PAGEOUT));
            }
            3 => {
                let child = call!(fork());
                if child == 0 {
                    exit(0);
                }
                equal!(wait(child)?, End::Exit(0));
            }
            4 => {
                call!(madvise(at.cast(), len, MADV_COLD));
            }
            5 => {
                call!(madvise(at.cast(), len, MADV_DONTNEED));
            }
            kind => {
                if kind == 6 {
                    unmap(at, len)?;
                }
                let flags = match self.made {
                    Made::Shared => MAP_SHARED,
                    _ => MAP_PRIVATE,
                };
                call!(mmap(
                    at.cast(),
                    len,
                    READ_WRITE,
                    flags | MAP_FIXED,
                    self.file,
                    (first * PAGE) as off_t
                ));
            }
        }
        Ok(())
    }
}

fn pattern(at: *mut u8) {
    let mut numbers = Numbers::new(77);
    for word in 0..LEN / 8 {
        // SAFETY: inside the mapping, which is aligned.
        unsafe { at.cast::<u64>().add(word).write(numbers.next()) };
    }
}

/// Pieces of a buffer from `from` on, at most `most` bytes.
fn pieces(numbers: &mut Numbers, at: *mut u8, from: usize, most: usize) -> Vec<iovec> {
    let mut from = from;
    let end = (from + most).min(LEN);
    let mut pieces = Vec::new();
    for piece in 0..4 {
        let left = end - from;
        let len = match piece {
            3 => left,
            _ if numbers.below(3) > 0 => 0,
            _ => numbers.below(left as u64 + 1) as usize,
        };
        pieces.push(iovec {
            iov_base: at.wrapping_add(from).cast(),
            iov_len: len,
        });
        from += len;
    }
    pieces
}

fn nothing() -> extern "C" fn(c_int, *mut siginfo_t, *mut c_void) {
    extern "C" fn nothing(_: c_int, _: *mut siginfo_t, _: *mut c_void) {}
    nothing
}

fn tick(microseconds: i64) -> Outcome {
    let timer = timer_val(microseconds, microseconds);
    call!(setitimer(ITIMER_REAL, &timer, null_mut()));
    Ok(())
}

/// Runs `body` while another thread churns `memory`. All others of this process wait for `start`
/// once they need no more memory: what they map later, stacks too, could take the place of pages
/// that are gone for a moment.
fn beside_churn<R>(
    memory: &Memory,
    seed: u64,
    is_private: bool,
    start: &Barrier,
    body: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let over = AtomicBool::new(false);
    // SAFETY: the thread only names addresses.
    let address = [memory.at as usize, memory.view as usize];
    let (made, file) = (memory.made, memory.file);
    thread::scope(|scope| {
        let over = &over;
        let churner = scope.spawn(move || {
            let memory = Memory {
                at: address[0] as *mut u8,
                view: address[1] as *mut u8,
                made,
                file,
            };
            let mut numbers = Numbers::new(seed);
            start.wait();
            while !over.load(SeqCst) {
                if let Err(why) = memory.churn(&mut numbers, is_private) {
                    return Err(why.to_string());
                }
                thread::yield_now();
            }
            Ok(())
        });
        let result = body();
        over.store(true, SeqCst);
        if let Ok(Err(why)) = churner.join() {
            return Err(format!("churn: {why}").into());
        }
        result
    })
}

fn passes(error: i32) -> bool {
    [EINTR, EAGAIN, EFAULT].contains(&error)
}

fn source(writer: c_int, seed: u64, made: Made) -> Outcome {
    let memory = Memory::new(made)?;
    memory.fill();
    handle(SIGALRM, nothing(), 0)?;
    let mut numbers = Numbers::new(seed);
    let tick_at = [0, 300, 900][numbers.below(3) as usize];
    let start = Barrier::new(2);
    beside_churn(&memory, seed + 1, true, &start, || {
        start.wait();
        tick(tick_at)?;
        let mut done = 0;
        while done < TOTAL {
            let most = 1 + numbers.below(LEN as u64) as usize;
            let most = match numbers.below(3) {
                0 => most.min(3 * PAGE),
                _ => most,
            };
            let pieces = pieces(&mut numbers, memory.at, done % LEN, most.min(TOTAL - done));
            let splices = numbers.below(4) == 0;
            let n = match splices {
                // SAFETY: reads the mapping.
                true => unsafe { vmsplice(writer, pieces.as_ptr(), 4, 0) },
                // SAFETY: as above.
                false => unsafe { writev(writer, pieces.as_ptr(), 4) },
            };
            match n {
                0.. => done += n as usize,
                _ if passes(errno()) => {}
                // A socket.
                _ if errno() == EBADF => {}
                _ => ensure!(false, "writev: {} after {done}", errno()),
            }
        }
        tick(0)
    })
}

fn sink(reader: c_int, seed: u64, made: Made) -> Outcome {
    let reference = map(LEN)?;
    pattern(reference);
    let memory = Memory::new(made)?;
    handle(SIGALRM, nothing(), 0)?;
    let mut numbers = Numbers::new(seed);
    let tick_at = [0, 400, 1100][numbers.below(3) as usize];
    let copy = map(LEN)?;
    let start = Barrier::new(2);
    beside_churn(&memory, seed + 1, false, &start, || {
        start.wait();
        tick(tick_at)?;
        let mut done = 0;
        let own = call!(getpid());
        while done < TOTAL {
            let from = match numbers.below(3) {
                0 => numbers.below(LEN as u64 / 2) as usize,
                1 => 0,
                _ => numbers.below(PAGES as u64 / 2) as usize * PAGE,
            };
            let most = 1 + numbers.below((LEN - from) as u64) as usize;
            let pieces = pieces(&mut numbers, memory.at, from, most);
            // SAFETY: reads into the mapping.
            let n = unsafe { readv(reader, pieces.as_ptr(), 4) };
            let n = match n {
                1.. => n as usize,
                0 => {
                    ensure!(false, "the end after {done}");
                    0
                }
                _ if passes(errno()) => continue,
                _ => {
                    ensure!(false, "readv: {}", errno());
                    0
                }
            };
            // The mapping may be gone: by the view, or by a call that fails instead.
            let mut seen = memory.view.wrapping_add(from);
            if made != Made::Shared {
                let mut got = 0;
                while got < n {
                    let there = iovec {
                        iov_base: memory.at.wrapping_add(from + got).cast(),
                        iov_len: n - got,
                    };
                    let here = iovec {
                        iov_base: copy.wrapping_add(got).cast(),
                        iov_len: n - got,
                    };
                    // SAFETY: writes into the copy.
                    let m = unsafe { process_vm_readv(own, &here, 1, &there, 1, 0) };
                    got += m.max(0) as usize;
                }
                seen = copy;
            }
            let mut checked = 0;
            while checked < n {
                let at = (done + checked) % LEN;
                let len = (n - checked).min(LEN - at);
                // SAFETY: inside both mappings.
                let (a, b) = unsafe {
                    (
                        std::slice::from_raw_parts(seen.wrapping_add(checked), len),
                        std::slice::from_raw_parts(reference.wrapping_add(at), len),
                    )
                };
                if a != b {
                    let bad = a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(0);
                    ensure!(
                        false,
                        "byte {bad} of {len} from {} on, read of {n} at {from}",
                        done + checked
                    );
                }
                checked += len;
            }
            done += n;
        }
        tick(0)
    })
}

/// Changes the modes of both ends and the size of a pipe.
fn meddle(reader: c_int, writer: c_int, seed: u64) -> Outcome {
    let mut numbers = Numbers::new(seed);
    loop {
        let end = [reader, writer][numbers.below(2) as usize];
        match numbers.below(5) {
            0 => {
                call!(fcntl(end, F_SETFL, O_NONBLOCK));
                thread::yield_now();
                call!(fcntl(end, F_SETFL, 0));
            }
            1 => {
                let size = PAGE << numbers.below(5);
                // SAFETY: a plain call.
                unsafe { fcntl(end, F_SETPIPE_SZ, size) };
            }
            2 => {
                let mut count = 0;
                // SAFETY: `count` lives.
                unsafe { ioctl(end, FIONREAD, &mut count) };
            }
            3 => {
                let mut entry = pollfd {
                    fd: end,
                    events: POLLIN | POLLOUT,
                    revents: 0,
                };
                call!(poll(&mut entry, 1, 0));
            }
            _ => pause_ms(1),
        }
    }
}

fn over(stream: impl Fn() -> Result<(c_int, c_int)>) -> Outcome {
    let mut numbers = Numbers::new(3);
    for (round, way) in ["once", "auto", "loan", "auto", "once", "auto"]
        .iter()
        .enumerate()
    {
        let seed = round as u64 * 10;
        let _way = Switched::to(SWITCH, way)?;
        let mut made = || KINDS[numbers.below(3) as usize];
        let (one, other) = (made(), made());
        let (reader, writer) = stream()?;
        let from = spawn(|| source(writer, seed + 1, one))?;
        let to = spawn(|| sink(reader, seed + 3, other))?;
        let meddler = match round % 2 {
            0 => Some(spawn(|| meddle(reader, writer, seed + 5))?),
            _ => None,
        };
        let outcome = wait_ok(to).and(wait_ok(from));
        meddler.map(kill_child).transpose()?;
        call!(close(reader));
        call!(close(writer));
        if let Err(why) = outcome {
            ensure!(false, "round {round}, {way}, {one:?} to {other:?}: {why}");
        }
    }
    Ok(())
}

fn over_a_pipe() -> Outcome {
    over(|| pipe(0))
}

fn over_a_unix_stream() -> Outcome {
    over(|| {
        let [reader, writer] = socket_pair(SOCK_STREAM)?.map(IntoRawFd::into_raw_fd);
        Ok((reader, writer))
    })
}

fn over_tcp() -> Outcome {
    over(connection)
}

/// Writers and readers of one pipe, all with the same buffer: what they read is as much as they
/// wrote.
fn within_one() -> Outcome {
    for way in ["once", "auto", "loan"] {
        let _way = Switched::to(SWITCH, way)?;
        for made in KINDS {
            let (reader, writer) = pipe(0)?;
            let memory = Memory::new(made)?;
            memory.fill();
            let at = memory.at as usize;
            let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
            let writers = AtomicUsize::new(3);
            let start = Barrier::new(7);
            let act = |number: u64, side: usize| {
                start.wait();
                let mut numbers = Numbers::new(number);
                let mut calls = 0;
                loop {
                    let from = numbers.below(PAGES as u64 / 2) as usize * PAGE
                        + numbers.below(2) as usize * 8;
                    let most = 1 + numbers.below((LEN - from) as u64) as usize;
                    let at = (at as *mut u8).wrapping_add(from).cast();
                    let n = match side {
                        // SAFETY: inside the mapping.
                        0 => unsafe { read(reader, at, most) },
                        // SAFETY: as above.
                        _ => unsafe { write(writer, at, most) },
                    };
                    calls += 1;
                    if n > 0 {
                        counts[side].fetch_add(n as usize, SeqCst);
                    }
                    if side == 0 && n == 0 {
                        return;
                    }
                    if side == 1 && calls == 16 {
                        if writers.fetch_sub(1, SeqCst) == 1 {
                            // SAFETY: the last writer.
                            unsafe { close(writer) };
                        }
                        return;
                    }
                }
            };
            beside_churn(&memory, 5, true, &start, || {
                thread::scope(|scope| {
                    let act = &act;
                    for number in 0..3 {
                        scope.spawn(move || act(number, 0));
                        scope.spawn(move || act(number + 10, 1));
                    }
                });
                Ok(())
            })?;
            let counts = counts.map(AtomicUsize::into_inner);
            equal!(counts[0], counts[1], way, made);
            call!(close(reader));
        }
    }
    Ok(())
}
