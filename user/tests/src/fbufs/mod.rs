//! Fbufs by plain requests: what programs see of paths, messages, and the region.

pub mod deaths;
pub mod hostile;
mod raw;
pub mod refused;
pub mod taken;

use raw::{Path, *};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("fbufs: a message and its notice, each mode", each_mode),
    ("fbufs: cached and volatile costs nothing", costs_nothing),
    (
        "fbufs: the right to write comes back by itself",
        right_comes_back,
    ),
    ("fbufs: several receivers", several_receivers),
    ("fbufs: aggregates of many parts", aggregates),
    ("fbufs: forwarded", forwarded),
    ("fbufs: readiness", readiness),
    ("fbufs: secured pages are not written", secured),
    ("fbufs: bytes in queues do not change", bytes_stay),
    ("fbufs: the default mode", default_mode),
    ("fbufs: calls with an answer", calls),
    ("fbufs: contents are dropped", dropped),
];

/// A line between two processes, each message one byte.
struct Line {
    from: c_int,
    to: c_int,
}

impl Line {
    fn pair() -> Result<(Line, Line)> {
        let (from_child, to_parent) = pipe(0)?;
        let (from_parent, to_child) = pipe(0)?;
        let line = |from, to| Line { from, to };
        Ok((line(from_child, to_child), line(from_parent, to_parent)))
    }

    fn tell(&self) -> Outcome {
        equal!(call!(write(self.to, [1u8].as_ptr().cast(), 1)), 1);
        Ok(())
    }

    fn hear(&self) -> Outcome {
        let mut byte = 0u8;
        let count = call!(read(self.from, (&raw mut byte).cast(), 1));
        ensure!(count == 1, "the other side has failed");
        Ok(())
    }
}

/// A receiver in a process of its own.
struct Receiver {
    child: pid_t,
    line: Line,
}

impl Receiver {
    /// Starts a child that attaches to the path, and then runs `body` with its end of a line.
    fn start(path: &Path, body: impl FnOnce(&Path, &Line) -> Outcome) -> Result<Self> {
        let (ours, theirs) = Line::pair()?;
        let child = spawn(|| {
            call!(close(ours.from));
            call!(close(ours.to));
            path.join()?;
            theirs.tell()?;
            body(path, &theirs)
        })?;
        call!(close(theirs.from));
        call!(close(theirs.to));
        let receiver = Self { child, line: ours };
        receiver.line.hear()?;
        Ok(receiver)
    }

    fn end(self) -> Outcome {
        wait_ok(self.child)?;
        call!(close(self.line.from));
        call!(close(self.line.to));
        Ok(())
    }

    fn kill(self) -> Outcome {
        equal!(kill_child(self.child)?, End::Signal(SIGKILL));
        call!(close(self.line.from));
        call!(close(self.line.to));
        Ok(())
    }
}

const LEN: usize = 3 * PAGE;

/// A leaf at the start of the chunk, with data from its second page on.
fn prepare(chunk: *mut u8, value: u8) {
    let data = chunk.wrapping_add(PAGE);
    fill(data, LEN, value);
    set_leaf(chunk, data, LEN);
}

/// The pages of such a leaf and its data.
fn pages_of(chunk: *mut u8) -> [usize; 2] {
    [chunk as usize, chunk as usize + PAGE + LEN]
}

fn each_mode() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        let receiver = Receiver::start(&path, |path, line| {
            for round in 1..20u8 {
                let message = path.receive()?;
                equal!((message.bytes, message.notices), (LEN as u64, 0));
                check_leaf(message.root, LEN, round)?;
                path.free(message.id)?;
                line.tell()?;
            }
            Ok(())
        })?;
        for round in 1..20u8 {
            prepare(chunk, round);
            let (_, notices) = path.send(chunk)?;
            equal!(notices, 0, mode);
            receiver.line.hear()?;
            equal!(path.notices()?, [pages_of(chunk)], mode, round);
        }
        equal!(path.notices()?.len(), 0);
        receiver.end()?;
        path.shrink(chunk)?;
    }
    Ok(())
}

/// Costs of fbufs, then those of the whole machine, where other tasks may have some.
const COSTS: [&str; 7] = [
    "fbuf_grants",
    "fbuf_revocations",
    "fbuf_secured",
    "tlb_local_page",
    "tlb_local_full",
    "tlb_remote",
    "page_tables_allocated",
];

fn costs() -> Result<Vec<u64>> {
    COSTS.into_iter().map(counter).collect()
}

/// Transfers in a row.
const TRANSFERS: u64 = 200;

fn own_faults() -> Result<i64> {
    // SAFETY: plain numbers.
    let mut usage: rusage = unsafe { zeroed() };
    call!(getrusage(RUSAGE_SELF, &mut usage));
    Ok(usage.ru_minflt + usage.ru_majflt)
}

/// After the first rounds a transfer takes no fault and changes no page table.
fn costs_nothing() -> Outcome {
    let path = Path::new(CACHED)?;
    let chunk = path.grow(1)?;
    let receiver = Receiver::start(&path, |path, line| {
        let mut faults = 0;
        for value in 1..=3u8 {
            let before = own_faults()?;
            for _ in 0..TRANSFERS {
                let message = path.receive()?;
                check_leaf(message.root, LEN, value)?;
                path.free(message.id)?;
                line.tell()?;
            }
            faults = own_faults()? - before;
        }
        equal!(faults, 0);
        Ok(())
    })?;
    let rounds = |value: u8| -> Result<i64> {
        let faults = own_faults()?;
        for _ in 0..TRANSFERS {
            prepare(chunk, value);
            path.send(chunk)?;
            receiver.line.hear()?;
        }
        Ok(own_faults()? - faults)
    };
    rounds(1)?;
    costs()?;
    rounds(2)?;
    let before = costs()?;
    let faults = rounds(3)?;
    let after = costs()?;
    receiver.end()?;
    equal!(faults, 0);
    equal!(after[..3], before[..3]);
    // Far from one for each transfer.
    let is_little = |(after, before): (&u64, &u64)| after - before < TRANSFERS / 10;
    ensure!(after.iter().zip(&before).all(is_little), after, before);
    Ok(())
}

/// Pages that all receivers have freed can be written again without a fault.
fn right_comes_back() -> Outcome {
    for mode in [SECURED, SECURED | UNCACHED] {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        let receiver = Receiver::start(&path, |path, line| {
            for value in 1..=9u8 {
                let message = path.receive()?;
                check_leaf(message.root, LEN, value)?;
                path.free(message.id)?;
                line.tell()?;
            }
            Ok(())
        })?;
        for value in 1..=9u8 {
            let faults = own_faults()?;
            prepare(chunk, value);
            let faults = own_faults()? - faults;
            ensure!(value == 1 || faults == 0, mode, value, faults);
            path.send(chunk)?;
            receiver.line.hear()?;
        }
        // Memory that the program has protected by itself stays so.
        call!(mprotect(chunk.cast(), PAGE, PROT_READ));
        receiver.end()?;
        // Two messages, and the first one is freed: the other still has the pages.
        let receiver = Receiver::start(&path, |path, line| {
            let messages = [path.receive()?, path.receive()?];
            path.free(messages[0].id)?;
            line.tell()?;
            line.hear()?;
            path.free(messages[1].id)?;
            line.tell()
        })?;
        path.send(chunk)?;
        path.send(chunk)?;
        receiver.line.hear()?;
        let (from, to) = pipe(0)?;
        call!(write(to, b"xy".as_ptr().cast(), 2));
        let data = chunk.wrapping_add(PAGE).cast::<c_void>();
        refused!(EFAULT, read(from, data, 1));
        receiver.line.tell()?;
        receiver.line.hear()?;
        equal!(call!(read(from, data, 1)), 1);
        refused!(EFAULT, read(from, chunk.cast(), 1));
        receiver.end()?;
        call!(close(from));
        call!(close(to));
    }
    Ok(())
}

/// Messages to one of two receivers, and to both: the notice comes with the last.
fn several_receivers() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        let body = |path: &Path, line: &Line| {
            let message = path.receive()?;
            check_leaf(message.root, LEN, 5)?;
            line.tell()?;
            line.hear()?;
            path.free(message.id)?;
            line.tell()?;
            Ok(())
        };
        let (first, second) = (Receiver::start(&path, body)?, Receiver::start(&path, body)?);
        prepare(chunk, 5);
        path.send(chunk)?;
        for receiver in [&first, &second] {
            receiver.line.hear()?;
        }
        for (receiver, count) in [(&first, 0), (&second, 1)] {
            receiver.line.tell()?;
            receiver.line.hear()?;
            equal!(path.notices()?.len(), count, mode);
        }
        first.end()?;
        second.end()?;
    }
    Ok(())
}

/// An aggregate of many parts, in several chunks, with a node across two pages.
fn aggregates() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let (nodes, data) = (path.grow(1)?, path.grow(2)?);
        for i in 0..100 {
            let part = data.wrapping_add(i * 5 * PAGE + 100);
            fill(part, 10, i as u8);
            set_leaf(nodes.wrapping_add(64 * i), part, 10);
        }
        // A list: each pair joins what there was and one more leaf. One lies across two pages.
        let mut root = nodes as *const u8;
        for i in 1..100 {
            let pair = nodes.wrapping_add(2 * PAGE - 8 + 32 * i - 32);
            set_pair(pair, root, nodes.wrapping_add(64 * i));
            root = pair;
        }
        // The same part twice.
        let both = nodes.wrapping_add(8 * PAGE);
        set_pair(both, root, root);
        let receiver = Receiver::start(&path, |path, _| {
            let message = path.receive()?;
            equal!(message.bytes, 2000);
            for i in 0..100 {
                ensure!(is_filled(
                    data.wrapping_add(i * 5 * PAGE + 100),
                    10,
                    i as u8
                ));
            }
            path.free(message.id)?;
            Ok(())
        })?;
        path.send(both)?;
        receiver.end()?;
        let mut pages = 0;
        loop {
            let notices = path.notices()?;
            if notices.is_empty() {
                break;
            }
            let count = |it: &[usize; 2]| (it[1] - it[0]) / PAGE;
            pages += notices.iter().map(count).sum::<usize>();
        }
        equal!(pages, 100 + 4, mode);
    }
    Ok(())
}

/// A receiver sends on what it got, to a domain that is no receiver of the first path.
fn forwarded() -> Outcome {
    for mode in ALL_MODES {
        let first = Path::new(mode)?;
        let chunk = first.grow(1)?;
        let (ours, theirs) = Line::pair()?;
        // Between the two children.
        let (front, back) = socket_pair(SOCK_STREAM)?.into();
        let middle = spawn(|| {
            first.join()?;
            let second = Path::new(mode)?;
            let node = second.grow(1)?;
            send_path(&front, &second)?;
            theirs.tell()?;
            theirs.hear()?;
            let message = first.receive()?;
            set_pair(node, message.root as *const u8, node.wrapping_add(64));
            // The last one has attached by then.
            second.send(node)?;
            first.free(message.id)?;
            theirs.tell()?;
            theirs.hear()?;
            equal!(second.notices()?.len(), 1);
            Ok(())
        })?;
        ours.hear()?;
        let (last_line, their_line) = Line::pair()?;
        let last = spawn(|| {
            let second = take_path(&back)?;
            second.join()?;
            their_line.tell()?;
            let message = second.receive()?;
            equal!(message.bytes, LEN as u64);
            check_leaf(chunk as usize, LEN, 9)?;
            their_line.tell()?;
            their_line.hear()?;
            second.free(message.id)?;
            ensure!(is_filled(chunk, PAGE, 0), "it can still read");
            their_line.tell()
        })?;
        last_line.hear()?;
        prepare(chunk, 9);
        first.send(chunk)?;
        ours.tell()?;
        ours.hear()?;
        // Two messages include it: nothing is noted before both are freed.
        last_line.hear()?;
        equal!(first.notices()?.len(), 0, mode);
        last_line.tell()?;
        last_line.hear()?;
        equal!(first.notices()?, [pages_of(chunk)], mode);
        ours.tell()?;
        wait_ok(middle)?;
        wait_ok(last)?;
    }
    Ok(())
}

/// A path's descriptor in a message of a socket.
fn send_path(to: &OwnedFd, path: &Path) -> Outcome {
    crate::unix_sockets::rights::send_files(to.as_raw_fd(), b"x", &[path.as_raw_fd()])?;
    Ok(())
}

fn take_path(from: &OwnedFd) -> Result<Path> {
    let files = crate::unix_sockets::rights::take_files(from.as_raw_fd())?;
    let path = files.into_iter().next().ok_or("no descriptor")?;
    Ok(Path(path))
}

/// What is ready, by `poll` and by `epoll`.
fn readiness() -> Outcome {
    let path = Path::new(CACHED)?;
    let chunk = path.grow(1)?;
    prepare(chunk, 1);
    let receiver = Receiver::start(&path, |path, line| {
        let epoll = call!(epoll_create1(0));
        let mut event = epoll_entry(EPOLLIN, 7);
        call!(epoll_ctl(
            epoll,
            EPOLL_CTL_ADD,
            path.as_raw_fd(),
            &mut event
        ));
        equal!(poll_for(path, POLLIN, 0)?, 0);
        line.tell()?;
        equal!(call!(epoll_wait(epoll, &mut event, 1, -1)), 1);
        equal!(poll_for(path, POLLIN, 0)?, POLLIN);
        let message = path.receive()?;
        equal!(poll_for(path, POLLIN, 0)?, 0);
        path.free(message.id)?;
        line.tell()?;
        // The originator goes.
        equal!(call!(epoll_wait(epoll, &mut event, 1, -1)), 1);
        equal!(poll_for(path, POLLIN, -1)?, POLLHUP);
        equal!(path.receive(), Err(EPIPE));
        Ok(())
    })?;
    receiver.line.hear()?;
    equal!(poll_for(&path, POLLOUT | POLLPRI, 0)?, POLLOUT);
    path.send(chunk)?;
    receiver.line.hear()?;
    path.leave()?;
    equal!(path.send(chunk), Err(EPERM));
    receiver.end()?;
    // Many notices are something to be told.
    let path = Path::new(CACHED)?;
    let chunk = path.grow(1)?;
    set_leaf(chunk, chunk, 300 * PAGE);
    let receiver = Receiver::start(&path, |path, line| {
        for _ in 0..2 {
            line.hear()?;
            let message = path.receive()?;
            path.free(message.id)?;
        }
        line.hear()
    })?;
    path.send(chunk)?;
    equal!(poll_for(&path, POLLPRI, 0)?, 0);
    receiver.line.tell()?;
    equal!(poll_for(&path, POLLPRI, -1)?, POLLPRI);
    equal!(path.notices()?.len(), 1);
    equal!(poll_for(&path, POLLPRI, 0)?, 0);
    path.send(chunk)?;
    receiver.line.tell()?;
    equal!(poll_for(&path, POLLPRI, -1)?, POLLPRI);
    // They are withdrawn when the pages are sent again.
    equal!(path.send(chunk)?.1, 300);
    equal!(path.notices()?.len(), 0);
    equal!(poll_for(&path, POLLPRI, 0)?, 0);
    receiver.line.tell()?;
    receiver.end()
}

/// What was sent on cannot be written by the originator of a secured path, nor after a receiver
/// has asked.
fn secured() -> Outcome {
    for mode in ALL_MODES {
        let shared = shared_map(PAGE)?;
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        prepare(chunk, 3);
        let receiver = Receiver::start(&path, |path, line| {
            let message = path.receive()?;
            equal!(path.secure(START + SIZE - PAGE, 1), Err(EFAULT));
            equal!(path.secure(message.root, PAGE + LEN + 1), Err(EFAULT));
            path.secure(message.root, PAGE + LEN)?;
            line.tell()?;
            line.hear()?;
            check_leaf(message.root, LEN, 3)?;
            path.free(message.id)?;
            line.tell()?;
            line.hear()
        })?;
        path.send(chunk)?;
        receiver.line.hear()?;
        // The thread that writes waits in the handler until the page may be written.
        let (address, writer) = (chunk as usize + 2 * PAGE, shared as usize);
        extern "C" fn wait_for_right(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
            // SAFETY: the kernel passes a valid siginfo, and the page is mapped.
            unsafe {
                let words = SEEN.load(SeqCst) as *mut [AtomicUsize; 3];
                (&(*words))[0].store((*info).si_code as usize, SeqCst);
                (&(*words))[1].store((*info).si_addr() as usize, SeqCst);
                while (&(*words))[2].load(SeqCst) == 0 {
                    sched_yield();
                }
            }
        }
        static SEEN: AtomicUsize = AtomicUsize::new(0);
        SEEN.store(writer, SeqCst);
        handle(SIGSEGV, wait_for_right, 0)?;
        // SAFETY: the page is zero, and stays.
        let words = unsafe { &*(shared as *const [AtomicUsize; 3]) };
        words.iter().for_each(|word| word.store(0, SeqCst));
        let thread = thread::spawn(move || poke(address as *mut u8, 77));
        while words[1].load(SeqCst) == 0 {
            // SAFETY: a plain call.
            unsafe { sched_yield() };
        }
        equal!(words[0].load(SeqCst), SEGV_ACCERR as usize);
        equal!(words[1].load(SeqCst), address);
        // Not by the kernel's hand either.
        let (from, to) = pipe(0)?;
        call!(write(to, b"xyz".as_ptr().cast(), 3));
        refused!(EFAULT, read(from, address as *mut c_void, 3));
        let pages = chunk.wrapping_add(PAGE).cast::<c_void>();
        call!(mprotect(pages, LEN, PROT_READ));
        call!(mprotect(pages, LEN, PROT_READ | PROT_WRITE));
        refused!(EFAULT, read(from, address as *mut c_void, 3));
        refused!(EIO, madvise(pages, LEN, MADV_REMOVE));
        receiver.line.tell()?;
        receiver.line.hear()?;
        words[2].store(1, SeqCst);
        thread.join()?;
        equal!(peek(address as *const u8), 77);
        call!(signal(SIGSEGV, SIG_DFL));
        receiver.line.tell()?;
        receiver.end()?;
        for file in [from, to] {
            call!(close(file));
        }
        unmap(shared, PAGE)?;
    }
    Ok(())
}

/// What has gone into a pipe or a socket from an fbuf does not change when that is written again.
fn bytes_stay() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        let receiver = Receiver::start(&path, |path, line| {
            let message = path.receive()?;
            line.hear()?;
            // The other side wrote after it had sent.
            check_leaf(message.root, LEN, 2)?;
            path.free(message.id)?;
            line.tell()
        })?;
        let len = 16 * PAGE;
        let data = chunk.wrapping_add(PAGE);
        let sockets = socket_pair(SOCK_STREAM)?;
        let lines = [pipe(0)?, pipe(0)?];
        fill(data, len, 1);
        let written = [
            call!(write(lines[0].1, data.cast(), len)),
            call!(vmsplice(lines[1].1, &vector(data, len), 1, 0)),
            call!(send(sockets[0].as_raw_fd(), data.cast(), len, 0)),
        ];
        // Its own page now, which receivers see.
        fill(data, len, 2);
        set_leaf(chunk, data, LEN);
        path.send(chunk)?;
        receiver.line.tell()?;
        receiver.line.hear()?;
        receiver.end()?;
        fill(data, len, 3);
        let froms = [lines[0].0, lines[1].0, sockets[1].as_raw_fd()];
        for (from, count) in froms.into_iter().zip(written) {
            let mut got = vec![0u8; count as usize];
            let mut at = 0;
            while at < got.len() {
                at += call!(read(from, got[at..].as_mut_ptr().cast(), got.len() - at)) as usize;
            }
            // By `vmsplice`, too, where Linux would show later writes.
            ensure!(
                is_filled(got.as_ptr(), got.len(), 1),
                "mode {mode}: other bytes"
            );
        }
        for (from, to) in lines {
            call!(close(from));
            call!(close(to));
        }
    }
    Ok(())
}

/// Paths that leave the mode to the kernel have the default, which root changes.
fn default_mode() -> Outcome {
    const BY_DEFAULT: u64 = 4;
    let words = [
        "cached,volatile",
        "uncached,volatile",
        "cached,secured",
        "uncached,secured",
    ];
    for (mode, word) in words.into_iter().enumerate() {
        let was = read_text("/proc/causeway/fbuf")?;
        fs::write("/proc/causeway/fbuf", word)?;
        let (device, _) = enter()?;
        let path = Path::make(&device, BY_DEFAULT, 0)?;
        path.grow(1)?;
        let attached = child(|| {
            enter()?;
            equal!(path.attach()?[2], mode as u64);
            Ok(())
        });
        let text = read_text("/proc/causeway/fbuf")?;
        ensure!(text.contains(&format!("mode {word}\n")), "{text}");
        ensure!(
            text.contains(&format!("there {word} chunks 1/32")),
            "{text}"
        );
        let first = was
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("mode "));
        fs::write("/proc/causeway/fbuf", first.ok_or("no mode")?)?;
        attached?;
    }
    Ok(())
}

/// A request and its answer in one call each, an end of the server, and a signal.
fn calls() -> Outcome {
    for mode in ALL_MODES {
        let there = Path::new(mode)?;
        let chunk = there.grow(1)?;
        let (front, back) = socket_pair(SOCK_STREAM)?.into();
        let (ours, theirs) = Line::pair()?;
        let server = spawn(|| {
            there.join()?;
            let answers = Path::new(mode)?;
            let node = answers.grow(1)?;
            send_path(&front, &answers)?;
            theirs.hear()?;
            for round in 1..=50u8 {
                let request = there.receive()?;
                check_leaf(request.root, LEN, round)?;
                there.free(request.id)?;
                prepare(node, round + 100);
                answers.send(node)?;
                equal!(there.notices(), Err(EPERM));
                // Of this round as well, if the caller has freed it already.
                ensure!(answers.notices()?.len() <= 1);
            }
            // One that it does not answer.
            there.receive()?;
            theirs.tell()?;
            sleep_forever()
        })?;
        let answers = take_path(&back)?;
        equal!(answers.attach()?[3], 1);
        equal!(there.call(chunk, &there), Err(EPERM));
        ours.tell()?;
        for round in 1..=50u8 {
            prepare(chunk, round);
            let answer = there.call(chunk, &answers)?;
            equal!(answer.bytes, LEN as u64);
            // The request is free again.
            equal!(answer.notices, 4);
            equal!(there.notices()?, [pages_of(chunk)]);
            check_leaf(answer.root, LEN, round + 100)?;
            answers.free(answer.id)?;
        }
        prepare(chunk, 1);
        if mode % 2 == 0 {
            extern "C" fn nothing(_: c_int, _: *mut siginfo_t, _: *mut c_void) {}
            handle(SIGUSR1, nothing, SA_RESTART)?;
            let own = call!(getpid());
            let other = spawn(|| {
                ours.hear()?;
                await_sleep(own)?;
                call!(kill(own, SIGUSR1));
                Ok(())
            })?;
            equal!(there.call(chunk, &answers), Err(EINTR));
            wait_ok(other)?;
            kill_child(server)?;
        } else {
            let killer = spawn(|| {
                ours.hear()?;
                call!(kill(server, SIGKILL));
                Ok(())
            })?;
            equal!(there.call(chunk, &answers), Err(EPIPE));
            wait_ok(killer)?;
            wait(server)?;
        }
    }
    Ok(())
}

/// The originator drops the contents of memory that it does not use: nothing of it is left, for
/// receivers as well.
fn dropped() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        let memory = || field("/proc/causeway/fbuf", "pages");
        let before = (memory()?, counter("fbuf_pages_dropped")?);
        fill(chunk, CHUNK, 7);
        equal!(memory()?, before.0 + 512);
        call!(madvise(chunk.cast(), CHUNK, MADV_REMOVE));
        let after = (memory()?, counter("fbuf_pages_dropped")?);
        equal!(after, (before.0, before.1 + 512), mode);
        ensure!(is_filled(chunk, PAGE, 0));
        set_leaf(chunk, chunk.wrapping_add(PAGE), LEN);
        let receiver = Receiver::start(&path, |path, line| {
            let message = path.receive()?;
            check_leaf(message.root, LEN, 0)?;
            equal!(path.idle(chunk, PAGE), Err(EPERM));
            line.tell()?;
            line.hear()?;
            path.free(message.id)?;
            line.tell()?;
            let message = path.receive()?;
            check_leaf(message.root, LEN, 9)?;
            path.free(message.id)?;
            Ok(())
        })?;
        path.send(chunk)?;
        receiver.line.hear()?;
        // Contents that may be dropped when memory is short, unless they are written again.
        equal!(path.idle(chunk, CHUNK), Err(EBUSY));
        equal!(path.idle(chunk, 2 * CHUNK), Err(EFAULT));
        receiver.line.tell()?;
        receiver.line.hear()?;
        path.idle(chunk, CHUNK)?;
        prepare(chunk, 9);
        path.send(chunk)?;
        receiver.end()?;
    }
    Ok(())
}
