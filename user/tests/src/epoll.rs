//! epoll: level, edge and one-shot watches, nesting, closed files.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("epoll: level-triggered", level),
    ("epoll: edge-triggered", edge),
    ("epoll: once", once),
    ("epoll: what is refused", bad),
    ("epoll: files that are closed", closed),
    ("epoll: fair to all that are ready", fair),
    ("epoll: epolls inside epolls", nested),
    ("epoll: time and signals", time),
    ("epoll: exclusive watches wake one", exclusive),
    ("epoll: exclusive watches wake few", exclusive_wakes_few),
    ("epoll: paths through epolls are limited", paths),
    ("epoll: many writers, edges, no event lost", storm),
    ("epoll: descriptors closed while it waits", churn),
    ("epoll: random steps against a model", model),
];

const NOTHING: epoll_event = epoll_event { events: 0, u64: 0 };

fn make() -> Result<c_int> {
    Ok(call!(epoll_create1(EPOLL_CLOEXEC)))
}

fn control(epoll: c_int, operation: c_int, fd: c_int, events: c_int, data: u64) -> Outcome {
    let mut event = epoll_entry(events, data);
    call!(epoll_ctl(epoll, operation, fd, &mut event));
    Ok(())
}

fn add(epoll: c_int, fd: c_int, events: c_int, data: u64) -> Outcome {
    control(epoll, EPOLL_CTL_ADD, fd, events, data)
}

/// Waits so many milliseconds; returns the events and data of ready files.
fn wait_for(epoll: c_int, timeout: c_int) -> Result<Vec<(c_int, u64)>> {
    let mut events = [NOTHING; 8];
    let count = call!(epoll_wait(epoll, events.as_mut_ptr(), 8, timeout));
    let found = events[..count as usize].iter();
    Ok(found
        .map(|event| (event.events as c_int, event.u64))
        .collect())
}

fn expect(epoll: c_int, wanted: &[(c_int, u64)]) -> Outcome {
    let found = wait_for(epoll, 0)?;
    ensure!(found == wanted, "{found:x?} in place of {wanted:x?}");
    Ok(())
}

fn put(fd: c_int, count: usize) -> Outcome {
    let bytes = [0u8; 65536];
    call!(write(fd, bytes.as_ptr().cast(), count));
    Ok(())
}

fn get(fd: c_int, count: usize) -> Outcome {
    let mut bytes = [0u8; 65536];
    call!(read(fd, bytes.as_mut_ptr().cast(), count));
    Ok(())
}

fn level() -> Outcome {
    let epoll = make()?;
    let (reader, writer) = pipe(O_NONBLOCK)?;
    add(epoll, reader, EPOLLIN, 7)?;
    expect(epoll, &[])?;
    put(writer, 2)?;
    expect(epoll, &[(EPOLLIN, 7)])?;
    get(reader, 1)?;
    expect(epoll, &[(EPOLLIN, 7)])?;
    get(reader, 1)?;
    expect(epoll, &[])?;
    control(epoll, EPOLL_CTL_MOD, reader, 0, 8)?;
    put(writer, 1)?;
    expect(epoll, &[])?;
    control(epoll, EPOLL_CTL_MOD, reader, EPOLLIN, 9)?;
    expect(epoll, &[(EPOLLIN, 9)])?;
    add(epoll, writer, EPOLLOUT, u64::MAX)?;
    expect(epoll, &[(EPOLLIN, 9), (EPOLLOUT, u64::MAX)])?;
    control(epoll, EPOLL_CTL_DEL, reader, 0, 0)?;
    expect(epoll, &[(EPOLLOUT, u64::MAX)])?;
    call!(close(reader));
    expect(epoll, &[(EPOLLOUT | EPOLLERR, u64::MAX)])?;
    let (reader, writer) = pipe(O_NONBLOCK)?;
    add(epoll, reader, EPOLLIN, 1)?;
    control(epoll, EPOLL_CTL_MOD, reader, 0, 1)?;
    call!(close(writer));
    let found = wait_for(epoll, 0)?;
    ensure!(found.contains(&(EPOLLHUP, 1)), "no hang-up: {found:x?}");
    Ok(())
}

fn edge() -> Outcome {
    let epoll = make()?;
    let (reader, writer) = pipe(O_NONBLOCK)?;
    put(writer, 1)?;
    add(epoll, reader, EPOLLIN | EPOLLET, 1)?;
    // Readiness from the start counts as an edge.
    expect(epoll, &[(EPOLLIN, 1)])?;
    expect(epoll, &[])?;
    get(reader, 1)?;
    expect(epoll, &[])?;
    put(writer, 1)?;
    expect(epoll, &[(EPOLLIN, 1)])?;
    expect(epoll, &[])?;
    // New bytes are an edge even if some were unread.
    put(writer, 1)?;
    expect(epoll, &[(EPOLLIN, 1)])?;
    // Modified: readiness is reported again.
    control(epoll, EPOLL_CTL_MOD, reader, EPOLLIN | EPOLLET, 2)?;
    expect(epoll, &[(EPOLLIN, 2)])?;
    expect(epoll, &[])?;
    call!(close(writer));
    expect(epoll, &[(EPOLLIN | EPOLLHUP, 2)])?;
    expect(epoll, &[])?;
    // Space in a full pipe.
    let (reader, writer) = pipe(O_NONBLOCK)?;
    add(epoll, writer, EPOLLOUT | EPOLLET, 3)?;
    expect(epoll, &[(EPOLLOUT, 3)])?;
    put(writer, 65536)?;
    expect(epoll, &[])?;
    get(reader, 65536)?;
    expect(epoll, &[(EPOLLOUT, 3)])
}

fn once() -> Outcome {
    let epoll = make()?;
    let (reader, writer) = pipe(O_NONBLOCK)?;
    add(epoll, reader, EPOLLIN | EPOLLONESHOT, 1)?;
    put(writer, 1)?;
    expect(epoll, &[(EPOLLIN, 1)])?;
    expect(epoll, &[])?;
    put(writer, 1)?;
    expect(epoll, &[])?;
    // Nothing is reported, not even a hang-up.
    let (other, end) = pipe(0)?;
    add(epoll, other, EPOLLIN | EPOLLONESHOT, 2)?;
    put(end, 1)?;
    expect(epoll, &[(EPOLLIN, 2)])?;
    call!(close(end));
    expect(epoll, &[])?;
    control(epoll, EPOLL_CTL_MOD, reader, EPOLLIN | EPOLLONESHOT, 3)?;
    expect(epoll, &[(EPOLLIN, 3)])?;
    expect(epoll, &[])
}

fn bad() -> Outcome {
    let epoll = make()?;
    let (reader, _writer) = pipe(0)?;
    let mut event = NOTHING;
    let event = &mut event as *mut epoll_event;
    refused!(EINVAL, epoll_create1(1));
    refused!(EINVAL, epoll_create(0));
    refused!(EBADF, epoll_ctl(epoll, EPOLL_CTL_ADD, 999, event));
    refused!(EBADF, epoll_ctl(999, EPOLL_CTL_ADD, reader, event));
    refused!(EINVAL, epoll_ctl(reader, EPOLL_CTL_ADD, epoll, event));
    refused!(EINVAL, epoll_ctl(epoll, EPOLL_CTL_ADD, epoll, event));
    refused!(EINVAL, epoll_ctl(epoll, 4, reader, event));
    refused!(ENOENT, epoll_ctl(epoll, EPOLL_CTL_MOD, reader, event));
    refused!(ENOENT, epoll_ctl(epoll, EPOLL_CTL_DEL, reader, null_mut()));
    refused!(EFAULT, epoll_ctl(epoll, EPOLL_CTL_ADD, reader, null_mut()));
    let (_, regular) = file("epoll", b"text")?;
    refused!(EPERM, epoll_ctl(epoll, EPOLL_CTL_ADD, regular, event));
    let folder = call!(open(c"/tmp".as_ptr(), O_RDONLY));
    refused!(EPERM, epoll_ctl(epoll, EPOLL_CTL_ADD, folder, event));
    let null = call!(open(c"/dev/null".as_ptr(), O_RDWR));
    refused!(EPERM, epoll_ctl(epoll, EPOLL_CTL_ADD, null, event));
    add(epoll, reader, EPOLLIN, 0)?;
    refused!(EEXIST, epoll_ctl(epoll, EPOLL_CTL_ADD, reader, event));
    refused!(EINVAL, epoll_wait(epoll, event, 0, 0));
    refused!(EINVAL, epoll_wait(epoll, event, -1, 0));
    refused!(EINVAL, epoll_wait(reader, event, 1, 0));
    refused!(EBADF, epoll_wait(999, event, 1, 0));
    refused!(EFAULT, epoll_wait(epoll, usize::MAX as *mut _, 1, 0));
    refused!(EINVAL, read(epoll, event.cast(), 8));
    // An exclusive watch is added with few flags, and never changed.
    let (other, writer) = pipe(0)?;
    let mut wanted = epoll_entry(EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 0);
    refused!(EINVAL, epoll_ctl(epoll, EPOLL_CTL_ADD, other, &mut wanted));
    add(epoll, other, EPOLLIN | EPOLLEXCLUSIVE, 5)?;
    refused!(EINVAL, epoll_ctl(epoll, EPOLL_CTL_MOD, other, event));
    put(writer, 1)?;
    expect(epoll, &[(EPOLLIN, 5)])?;
    // Events that cannot be stored are not lost.
    let read_only = map_with(4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1)?;
    refused!(EFAULT, epoll_wait(epoll, read_only.cast(), 4, 0));
    expect(epoll, &[(EPOLLIN, 5)])
}

fn closed() -> Outcome {
    let epoll = make()?;
    let (reader, writer) = pipe(O_NONBLOCK)?;
    add(epoll, reader, EPOLLIN, 1)?;
    put(writer, 1)?;
    let copy = call!(dup(reader));
    // The description lives on under another descriptor, and so does the watch.
    call!(close(reader));
    expect(epoll, &[(EPOLLIN, 1)])?;
    let mut event = NOTHING;
    refused!(EBADF, epoll_ctl(epoll, EPOLL_CTL_DEL, reader, &mut event));
    add(epoll, copy, EPOLLIN, 2)?;
    let found = wait_for(epoll, 0)?;
    ensure!(found.len() == 2, "{found:x?}");
    call!(close(copy));
    expect(epoll, &[])?;
    // A watch does not keep a pipe's end open.
    refused!(EPIPE, write(writer, b"x".as_ptr().cast(), 1));
    // The same descriptor means another file now.
    let (reader, writer) = pipe(O_NONBLOCK)?;
    add(epoll, reader, EPOLLIN, 3)?;
    put(writer, 1)?;
    expect(epoll, &[(EPOLLIN, 3)])?;
    // An epoll closed first leaves nothing behind.
    let other = make()?;
    add(other, reader, EPOLLIN, 4)?;
    call!(close(other));
    call!(close(reader));
    refused!(EPIPE, write(writer, b"x".as_ptr().cast(), 1));
    Ok(())
}

fn fair() -> Outcome {
    let epoll = make()?;
    let pipes: Vec<_> = (0..5).map(|_| pipe(0)).collect::<Result<_, _>>()?;
    for (i, (reader, writer)) in pipes.iter().enumerate() {
        add(epoll, *reader, EPOLLIN, i as u64)?;
        put(*writer, 1)?;
    }
    let mut seen = Vec::new();
    for _ in 0..5 {
        let mut events = [NOTHING; 2];
        let count = call!(epoll_wait(epoll, events.as_mut_ptr(), 2, 0));
        ensure!(count == 2, "{count} events in place of 2");
        seen.extend(events.iter().map(|event| event.u64));
    }
    equal!(seen, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    Ok(())
}

fn nested() -> Outcome {
    let (inner, outer) = (make()?, make()?);
    let (reader, writer) = pipe(O_NONBLOCK)?;
    add(inner, reader, EPOLLIN, 1)?;
    add(outer, inner, EPOLLIN, 2)?;
    expect(outer, &[])?;
    put(writer, 1)?;
    expect(outer, &[(EPOLLIN, 2)])?;
    expect(inner, &[(EPOLLIN, 1)])?;
    get(reader, 1)?;
    expect(outer, &[])?;
    let mut poll = poll_entry(outer, POLLIN);
    ensure!(call!(poll(&mut poll, 1, 0)) == 0, "an idle epoll is ready");
    let child = spawn(|| {
        pause_ms(5);
        put(writer, 1)
    })?;
    ensure!(call!(poll(&mut poll, 1, 5000)) == 1, "poll was not woken");
    wait_ok(child)?;
    let mut event = epoll_entry(EPOLLIN, 0);
    refused!(ELOOP, epoll_ctl(inner, EPOLL_CTL_ADD, outer, &mut event));
    // A chain of five is allowed, one of six is not, whichever end grows.
    let mut chain = vec![make()?];
    add(chain[0], reader, EPOLLIN, 0)?;
    for i in 1..5 {
        chain.push(make()?);
        add(chain[i], chain[i - 1], EPOLLIN, i as u64)?;
    }
    expect(chain[4], &[(EPOLLIN, 4)])?;
    let top = make()?;
    refused! {
        epoll_ctl(top, EPOLL_CTL_ADD, chain[4], &mut event) => ELOOP;
        epoll_ctl(chain[0], EPOLL_CTL_ADD, top, &mut event) => ELOOP;
        epoll_ctl(chain[0], EPOLL_CTL_ADD, chain[4], &mut event) => ELOOP;
    }
    // The parts of a cut chain may be linked again.
    control(chain[4], EPOLL_CTL_DEL, chain[3], 0, 0)?;
    add(top, chain[3], EPOLLIN, 9)?;
    expect(top, &[(EPOLLIN, 9)])?;
    call!(close(chain[3]));
    expect(top, &[])
}

fn time() -> Outcome {
    let epoll = make()?;
    let (reader, _writer) = pipe(0)?;
    add(epoll, reader, EPOLLIN, 1)?;
    let start = Instant::now();
    ensure!(wait_for(epoll, 30)?.is_empty(), "an event from nowhere");
    let took = start.elapsed();
    ensure!(took >= Duration::from_millis(30), "only {took:?}");
    let mut event = NOTHING;
    let short = timespec_of(5);
    let start = Instant::now();
    // SAFETY: the arguments live across the call.
    let count =
        unsafe { libc::syscall(libc::SYS_epoll_pwait2, epoll, &mut event, 1, &short, 0, 8) };
    ensure!(count == 0, "epoll_pwait2 gave {count}");
    let took = start.elapsed();
    ensure!(
        took >= Duration::from_millis(5) && took < Duration::from_secs(2),
        "{took:?}"
    );
    // A signal ends the wait whether or not its handler restarts calls.
    handle(SIGUSR1, ignore_signal, SA_RESTART)?;
    // SAFETY: this process's own id.
    let parent = unsafe { libc::getpid() };
    // Repeatedly: the first signal may arrive before the call.
    let child = spawn(|| {
        for _ in 0..200 {
            pause_ms(20);
            call!(kill(parent, SIGUSR1));
        }
        Ok(())
    })?;
    refused!(EINTR, epoll_wait(epoll, &mut event, 1, 5000));
    kill_child(child)?;
    // The mask holds while the call waits, and only then.
    let blocked = block(&[SIGUSR1])?;
    // SAFETY: signal sets of this process.
    unsafe {
        libc::raise(SIGUSR1);
        let open: sigset_t = zeroed();
        let count = libc::epoll_pwait(epoll, &mut event, 1, 5000, &open);
        let error = errno();
        ensure!(count == -1 && error == EINTR, "{count}, {error}");
        libc::raise(SIGUSR1);
        let count = libc::epoll_pwait(epoll, &mut event, 1, 10, &blocked);
        ensure!(count == 0, "a blocked signal ended the wait: {count}");
    }
    Ok(())
}

fn exclusive() -> Outcome {
    // Each of four processes waits in an epoll of its own for the same pipe; every byte wakes at
    // least one, and all bytes are read.
    let (reader, writer) = pipe(O_NONBLOCK)?;
    let (done, count) = pipe(0)?;
    let mut children = Vec::new();
    for _ in 0..4 {
        children.push(spawn(|| {
            let epoll = make()?;
            add(epoll, reader, EPOLLIN | EPOLLEXCLUSIVE, 0)?;
            loop {
                wait_for(epoll, -1)?;
                let mut byte = 0u8;
                // SAFETY: reads into a live byte.
                match unsafe { libc::read(reader, (&raw mut byte).cast(), 1) } {
                    1 if byte == 1 => return Ok(()),
                    1 => put(count, 1)?,
                    _ => {}
                }
            }
        })?);
    }
    for _ in 0..50 {
        put(writer, 1)?;
        get(done, 1)?;
    }
    // A byte each, while the one that was woken before may still be on its way.
    for _ in &children {
        call!(write(writer, [1u8].as_ptr().cast(), 1));
    }
    wait_all(children)?;
    Ok(())
}

/// Of many epolls that watch exclusively, an event wakes one that has a waiter: not all of them,
/// and not one that only wants something else.
fn exclusive_wakes_few() -> Outcome {
    const WAITERS: usize = 8;
    const EVENTS: usize = 20;
    let counter = call!(eventfd(0, EFD_NONBLOCK));
    let (mut reader, mut writer) = (0, 0);
    socket_pair(&mut reader, &mut writer)?;
    for (read, wakes) in [(counter, counter), (reader, writer)] {
        let woken = shared_map(PAGE)?.cast::<AtomicI32>();
        // SAFETY: the page lives as long as the process.
        let woken = unsafe { &*woken };
        let mut children = Vec::new();
        for place in 0..WAITERS {
            children.push(spawn(|| {
                let epoll = make()?;
                // Those that would only write never have news: the file is writable all the time.
                let wanted = if place % 2 == 0 { EPOLLIN } else { EPOLLOUT };
                add(epoll, read, wanted | EPOLLEXCLUSIVE | EPOLLET, 0)?;
                if wanted == EPOLLOUT {
                    wait_for(epoll, 0)?;
                }
                loop {
                    if wait_for(epoll, -1)?
                        .iter()
                        .any(|(found, _)| found & EPOLLIN != 0)
                    {
                        woken.fetch_add(1, SeqCst);
                    }
                }
            })?);
        }
        pause_ms(50);
        for event in 1..=EVENTS {
            put_number(wakes, 1)?;
            let end = Instant::now() + Duration::from_secs(5);
            while (woken.load(SeqCst) as usize) < event {
                ensure!(Instant::now() < end, "event {event} woke nobody");
                pause_ms(1);
            }
        }
        pause_ms(50);
        let woken = woken.load(SeqCst) as usize;
        ensure!(woken <= EVENTS * 2, "{EVENTS} events woke {woken} times");
        for child in children {
            kill_child(child)?;
        }
    }
    Ok(())
}

fn put_number(fd: c_int, number: u64) -> Outcome {
    call!(write(fd, (&raw const number).cast(), 8));
    Ok(())
}

fn socket_pair(a: &mut c_int, b: &mut c_int) -> Outcome {
    let mut pair = [0; 2];
    call!(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.as_mut_ptr()));
    (*a, *b) = (pair[0], pair[1]);
    Ok(())
}

/// The number of paths by which an event spreads is limited, as on Linux.
fn paths() -> Outcome {
    let file = call!(eventfd(0, EFD_NONBLOCK));
    let inner = make()?;
    add(inner, file, EPOLLIN, 0)?;
    // Paths of two epolls: 500.
    let mut outer = Vec::new();
    for _ in 0..500 {
        let epoll = make()?;
        add(epoll, inner, EPOLLIN, 0)?;
        outer.push(epoll);
    }
    let one_more = make()?;
    let mut event = epoll_entry(EPOLLIN, 0);
    refused!(
        EINVAL,
        epoll_ctl(one_more, EPOLL_CTL_ADD, inner, &mut event)
    );
    // A path that went away makes room.
    call!(epoll_ctl(outer[7], EPOLL_CTL_DEL, inner, null_mut()));
    add(one_more, inner, EPOLLIN, 0)?;
    call!(close(outer[8]));
    add(outer[7], inner, EPOLLIN, 0)?;
    refused!(EINVAL, epoll_ctl(make()?, EPOLL_CTL_ADD, inner, &mut event));
    // Another epoll that many watch cannot watch the file as well; one that none watches can.
    let (other, top) = (make()?, make()?);
    add(top, other, EPOLLIN, 0)?;
    refused!(EINVAL, epoll_ctl(other, EPOLL_CTL_ADD, file, &mut event));
    add(one_more, file, EPOLLIN, 0)?;
    expect(outer[20], &[])?;
    put_number(file, 1)?;
    equal!(wait_for(outer[20], 1000)?.len(), 1);
    for fd in outer {
        // SAFETY: closes descriptors of this test; one is closed already.
        unsafe { libc::close(fd) };
    }
    for fd in [other, top, one_more, inner, file] {
        call!(close(fd));
    }
    Ok(())
}

fn storm() -> Outcome {
    const WRITERS: usize = 6;
    const ROUNDS: usize = 150;
    let epoll = make()?;
    let mut readers = Vec::new();
    let mut children = Vec::new();
    for i in 0..WRITERS {
        let (reader, writer) = pipe(O_NONBLOCK)?;
        add(epoll, reader, EPOLLIN | EPOLLET, i as u64)?;
        readers.push(reader);
        children.push(spawn(move || {
            for round in 0..ROUNDS {
                put(writer, 1)?;
                if round % 16 == i {
                    pause_ms(1);
                }
            }
            Ok(())
        })?);
    }
    let mut total = 0;
    while total < WRITERS * ROUNDS {
        let found = wait_for(epoll, 5000)?;
        ensure!(!found.is_empty(), "an edge was lost after {total} bytes");
        for (_, i) in found {
            let mut bytes = [0u8; 512];
            loop {
                // SAFETY: reads into a live buffer.
                let count = unsafe {
                    libc::read(readers[i as usize], bytes.as_mut_ptr().cast(), bytes.len())
                };
                if count < 0 {
                    break;
                }
                total += count as usize;
            }
        }
    }
    wait_all(children)?;
    Ok(())
}

fn churn() -> Outcome {
    // One process adds, writes and closes while the other waits.
    let epoll = make()?;
    let stop = shared_map(4096)?;
    let flags = CLONE_FILES | SIGCHLD;
    // SAFETY: a child with memory of its own that shares the descriptors only.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if child == 0 {
        while peek(stop) == 0 {
            let mut events = [NOTHING; 4];
            // SAFETY: an array of four events.
            let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), 4, 1) };
            if count < 0 {
                exit(1);
            }
        }
        exit(0);
    }
    for round in 0..400u64 {
        let (reader, writer) = pipe(0)?;
        let mode = [0, EPOLLET, EPOLLONESHOT][round as usize % 3];
        add(epoll, reader, EPOLLIN | mode, round)?;
        put(writer, 1)?;
        if round % 2 == 0 {
            control(epoll, EPOLL_CTL_DEL, reader, 0, 0)?;
        }
        call!(close(reader));
        // Seen at once, even while the other process reads the watch.
        refused!(EPIPE, write(writer, b"x".as_ptr().cast(), 1));
        call!(close(writer));
    }
    expect(epoll, &[])?;
    poke(stop, 1);
    wait_ok(child as pid_t)?;
    Ok(())
}

/// Model of a counter and its watch.
#[derive(Clone, Copy, Default)]
struct Watched {
    fd: c_int,
    count: u64,
    /// Modes of its watch, if any.
    modes: Option<c_int>,
    /// Something may have happened since the last wait.
    listed: bool,
    /// It has fired and is disarmed until modified.
    spent: bool,
}

/// Raises, empties, watches and closes counters at random; each wait must report exactly what the
/// rules of epoll(7) say.
fn model() -> Outcome {
    const FILES: u64 = 8;
    for seed in 1..=20 {
        let mut random = Numbers::new(seed);
        let epoll = make()?;
        let mut files = [Watched::default(); FILES as usize];
        for file in &mut files {
            file.fd = call!(eventfd(0, EFD_NONBLOCK));
        }
        for step in 0..300 {
            let at = random.below(FILES) as usize;
            let file = &mut files[at];
            let modes =
                [0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT][random.below(4) as usize];
            match random.below(9) {
                0 | 1 => {
                    call!(eventfd_write(file.fd, 1));
                    file.count += 1;
                    file.listed = true;
                }
                2 => {
                    let mut count = 0;
                    if file.count > 0 {
                        call!(eventfd_read(file.fd, &mut count));
                    }
                    ensure!(count == file.count, "{count} in the counter");
                    file.count = 0;
                }
                3 | 4 => {
                    let operation = match file.modes {
                        Some(_) => EPOLL_CTL_MOD,
                        None => EPOLL_CTL_ADD,
                    };
                    control(epoll, operation, file.fd, EPOLLIN | modes, at as u64)?;
                    file.modes = Some(modes);
                    file.spent = false;
                    file.listed = file.count > 0;
                }
                5 if file.modes.is_some() => {
                    control(epoll, EPOLL_CTL_DEL, file.fd, 0, 0)?;
                    file.modes = None;
                }
                6 if random.below(4) == 0 => {
                    call!(close(file.fd));
                    *file = Watched::default();
                    file.fd = call!(eventfd(0, EFD_NONBLOCK));
                }
                _ => {
                    let mut wanted = Vec::new();
                    for (at, file) in files.iter_mut().enumerate() {
                        let Some(modes) = file.modes else { continue };
                        let edge = modes & EPOLLET != 0;
                        if file.count > 0 && !file.spent && (file.listed || !edge) {
                            wanted.push((EPOLLIN, at as u64));
                            file.spent = modes & EPOLLONESHOT != 0;
                        }
                        file.listed = false;
                    }
                    let mut found = wait_for(epoll, 0)?;
                    found.sort_unstable_by_key(|event| event.1);
                    equal!(found, wanted, seed, step);
                }
            }
        }
        for file in files {
            call!(close(file.fd));
        }
        call!(close(epoll));
    }
    Ok(())
}
