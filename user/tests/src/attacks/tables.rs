//! Kernel tables that grow with what a program does, with free memory in large blocks and in
//! single pages only: no growth of a table may need neighbouring frames.
//!
//! What is refused is refused by an error; the machine must answer, and the memory be back.

use crate::{USER, as_user, become_user, wait_until, while_attacking};
use support::prelude::*;

/// Makes two attacks of each function here: one as it is, and one in fragmented memory.
macro_rules! tables {
    ($($name:literal => $grow:ident,)*) => {
        pub const TESTS: &[Test] = &[$(
            (concat!("attacks: tables: ", $name), || as_user(|| while_attacking($grow))),
            (concat!("attacks: tables in single pages: ", $name), || in_single_pages($grow)),
        )*
            ("attacks: tables in single pages: programs of root's", programs_of_root),
        ];
    };
}

tables! {
    "129 record locks" => few_locks,
    "131,073 record locks" => many_locks,
    "descriptors" => descriptors,
    "mappings" => mappings,
    "the interests of an epoll instance" => interests,
    "inotify watches and events" => watches,
    "timers" => timers,
    "queued signals" => signals,
    "messages with files" => messages,
    "processes that sleep" => processes,
    "threads that wait for a futex" => waiters,
    "bound sockets" => sockets,
    "System V objects" => objects,
    "extended attributes" => attributes,
    "names in a directory" => names,
    "arrays of poll and iovec" => arrays,
    "arguments and environment of exec" => environment,
    "pipes of the largest size" => pipes,
}

/// Runs `grow` as an ordinary user whose memory is fragmented: half of it is free, so nothing ends.
fn in_single_pages(grow: fn() -> Outcome) -> Outcome {
    let pid = spawn(|| {
        become_user(USER)?;
        fragment()?;
        grow()
    })?;
    equal!(wait(pid)?, End::Exit(0));
    Ok(())
}

/// Programs of root's at once, which need more page tables than are kept ready.
const PROGRAMS: usize = 40;

/// Root starts programs while all of memory that is free is single pages: none is refused, none has
/// to wait for memory, and no process is ended for them.
fn programs_of_root() -> Outcome {
    let counter = |name| field("/proc/causeway/counters", name);
    let is_fragmented = shared_value(AtomicBool::new(false))?;
    let attacker = spawn(|| {
        become_user(USER)?;
        fragment()?;
        is_fragmented.store(true, SeqCst);
        sleep_forever()
    })?;
    wait_until("memory does not fall apart", || {
        Ok(is_fragmented.load(SeqCst))
    })?;
    let before = [counter("memory_waits")?, counter("out_of_memory_kills")?];
    let mut programs = Vec::new();
    for _ in 0..PROGRAMS {
        programs.push(Command::new("/bin/cat").stdin(Stdio::piped()).spawn());
    }
    let refused = programs.iter().filter_map(|program| program.as_ref().err());
    let refused: Vec<_> = refused.map(std::io::Error::kind).collect();
    for mut program in programs.into_iter().flatten() {
        ensure!(program.wait()?.success());
    }
    ensure!(refused.is_empty(), refused);
    let after = [counter("memory_waits")?, counter("out_of_memory_kills")?];
    equal!(after, before);
    equal!(kill_child(attacker)?, End::Signal(SIGKILL));
    Ok(())
}

/// The memory in KiB that stays free while it is filled: the kernel's own and a little.
const LEFT: u64 = 9 << 10;

/// Leaves this process with memory of which every other page is free and hardly any two free pages
/// are neighbours.
fn fragment() -> Outcome {
    let free = || field("/proc/meminfo", "MemFree");
    let size = (free()? as usize) << 10;
    let area = map_with(
        size,
        READ_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1,
    )?;
    call!(madvise(area.cast(), size, MADV_NOHUGEPAGE));
    // Children would share its page tables, one after the other: another attack.
    call!(madvise(area.cast(), size, MADV_DONTFORK));
    let mut filled = 0;
    while filled < size && free()? > LEFT {
        for _ in 0..256 {
            poke(area.wrapping_add(filled), 1);
            filled += PAGE;
        }
    }
    let left = free()? as usize;
    for page in (0..filled).step_by(2 * PAGE) {
        call!(madvise(area.wrapping_add(page).cast(), PAGE, MADV_DONTNEED));
    }
    // Page tables take what was left, which is the only memory in blocks, but for what is each
    // CPU's.
    let span = 2 << 20;
    let tables = left.saturating_sub((1 + cpus()) << 9) / 8;
    let area = map_with(
        tables * span,
        READ_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1,
    )?;
    call!(madvise(area.cast(), tables * span, MADV_NOHUGEPAGE));
    for table in 0..tables {
        poke(area.wrapping_add(table * span), 1);
    }
    Ok(())
}

/// Tells whether a call succeeded; a refusal must be one that a limit or want of memory explains.
#[track_caller]
fn allowed(result: impl Into<i64>) -> Result<bool> {
    if result.into() != -1 {
        return Ok(true);
    }
    let limits = [
        ENOMEM,
        EAGAIN,
        EMFILE,
        ENFILE,
        ENOLCK,
        ENOSPC,
        ENOBUFS,
        E2BIG,
        EDQUOT,
        EPERM,
        ETOOMANYREFS,
    ];
    match limits.contains(&errno()) {
        true => Ok(false),
        false => Err(format!("refused with error {}", errno()).into()),
    }
}

/// Raises the limit of descriptors as far as this user may; returns it.
fn raise_files() -> Result<usize> {
    // SAFETY: all zeros is a valid value, which the call fills.
    let mut limit: rlimit = unsafe { zeroed() };
    call!(getrlimit(RLIMIT_NOFILE, &mut limit));
    limit.rlim_cur = limit.rlim_max;
    call!(setrlimit(RLIMIT_NOFILE, &limit));
    Ok(limit.rlim_cur as usize)
}

/// A folder of this process's own in a file system in memory.
fn own_folder(name: &str) -> Result<String> {
    let path = format!("/tmp/{name}-{}", std::process::id());
    let _ = fs::remove_dir_all(&path);
    fs::create_dir(&path)?;
    Ok(path)
}

/// Takes record locks of one byte with gaps between them, in an order that is neither ascending nor
/// descending; returns how many were granted.
fn lock_bytes(file: c_int, count: u64) -> Result<u64> {
    let mut granted = 0;
    for number in 0..count {
        // SAFETY: all zeros is a valid value.
        let mut lock: flock = unsafe { zeroed() };
        lock.l_type = F_WRLCK as c_short;
        lock.l_start = (number * 7 % count * 2) as off_t;
        lock.l_len = 1;
        // SAFETY: the call reads a local.
        if !allowed(unsafe { libc::fcntl(file, F_SETLK, &lock) })? {
            break;
        }
        granted += 1;
    }
    Ok(granted)
}

fn few_locks() -> Outcome {
    let file = call!(memfd_create(c"locks".as_ptr(), MFD_CLOEXEC));
    ensure!(lock_bytes(file, 129)? > 0);
    let _ = read_text("/proc/locks");
    call!(close(file));
    Ok(())
}

fn many_locks() -> Outcome {
    let file = call!(memfd_create(c"locks".as_ptr(), MFD_CLOEXEC));
    let granted = lock_bytes(file, 131_073)?;
    ensure!(granted > 0);
    let _ = fs::read("/proc/locks");
    call!(close(file));
    Ok(())
}

fn descriptors() -> Outcome {
    let most = raise_files()? as c_int;
    let file = call!(memfd_create(c"file".as_ptr(), MFD_CLOEXEC));
    let mut at = 64;
    while at < most {
        // SAFETY: duplicates an own descriptor.
        if !allowed(unsafe { libc::fcntl(file, F_DUPFD, at - 1) })? {
            break;
        }
        at *= 2;
    }
    for _ in 0..10_000 {
        // SAFETY: as above.
        if !allowed(unsafe { dup(file) })? {
            break;
        }
    }
    // A child copies the table.
    child(|| Ok(()))?;
    call!(close_range(3, u32::MAX, 0));
    Ok(())
}

fn mappings() -> Outcome {
    let size = 20_000 * PAGE;
    let area = map_with(size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1)?;
    for page in (0..size).step_by(2 * PAGE) {
        // SAFETY: pages of this program's own mapping.
        if !allowed(unsafe { mprotect(area.wrapping_add(page).cast(), PAGE, PROT_READ) })? {
            break;
        }
    }
    let _ = fs::read("/proc/self/maps");
    let _ = fs::read("/proc/self/smaps");
    // SAFETY: forks a child that ends at once.
    let pid = unsafe { fork() };
    match pid {
        0 => exit(0),
        -1 => equal!(errno(), ENOMEM),
        _ => wait_all([pid])?,
    }
    unmap(area, size)
}

fn interests() -> Outcome {
    raise_files()?;
    let epoll = call!(epoll_create1(EPOLL_CLOEXEC));
    let mut count = 0;
    while count < 3000 {
        // SAFETY: makes a descriptor.
        let file = unsafe { eventfd(1, 0) };
        if !allowed(file)? {
            break;
        }
        let mut event = epoll_event {
            events: EPOLLIN as u32,
            u64: count,
        };
        // SAFETY: the event is a local.
        if !allowed(unsafe { epoll_ctl(epoll, EPOLL_CTL_ADD, file, &mut event) })? {
            break;
        }
        count += 1;
    }
    let mut events = vec![epoll_event { events: 0, u64: 0 }; 4096];
    // SAFETY: the vector has room for that many.
    let found = unsafe { epoll_wait(epoll, events.as_mut_ptr(), 4096, 0) };
    if allowed(found)? {
        equal!(found as u64, count);
    }
    call!(close_range(3, u32::MAX, 0));
    Ok(())
}

fn watches() -> Outcome {
    raise_files()?;
    let folder = own_folder("watches")?;
    let watcher = call!(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    for number in 0..1000 {
        let path = format!("{folder}/{number}");
        if File::create(&path).is_err() {
            break;
        }
        // SAFETY: the path is a C string.
        if !allowed(unsafe { inotify_add_watch(watcher, c(&path).as_ptr(), IN_ALL_EVENTS) })? {
            break;
        }
    }
    for round in 0..10 {
        for number in 0..1000 {
            let _ = fs::write(format!("{folder}/{number}"), [round]);
        }
    }
    call!(close(watcher));
    fs::remove_dir_all(folder)?;
    Ok(())
}

fn timers() -> Outcome {
    let mut timers = Vec::new();
    for _ in 0..4000 {
        let mut timer = null_mut();
        // SAFETY: the call fills a local.
        if !allowed(unsafe { timer_create(CLOCK_MONOTONIC, null_mut(), &mut timer) })? {
            break;
        }
        let hour = itimerspec {
            it_interval: time_spec(0, 0),
            it_value: time_spec(3600, 0),
        };
        // SAFETY: the values are locals.
        allowed(unsafe { timer_settime(timer, 0, &hour, null_mut()) })?;
        timers.push(timer);
    }
    for timer in timers {
        call!(timer_delete(timer));
    }
    Ok(())
}

fn signals() -> Outcome {
    let before = block(&[SIGRTMIN()])?;
    let value = sigval {
        sival_ptr: null_mut(),
    };
    // SAFETY: signals this process, which blocks it.
    while allowed(unsafe { sigqueue(getpid(), SIGRTMIN(), value) })? {}
    handle(SIGRTMIN(), ignore_signal, 0)?;
    call!(sigprocmask(SIG_SETMASK, &before, null_mut()));
    Ok(())
}

/// Sends one byte with `count` copies of a descriptor.
fn send_files(socket: c_int, file: c_int, count: usize) -> isize {
    let space = (count + 8) * 4;
    let mut control = vec![0u64; space.div_ceil(8) + 4];
    let mut byte = [1u8];
    let mut part = iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: the header names locals; the control buffer has room for a header and the files.
    unsafe {
        let mut header: msghdr = zeroed();
        header.msg_iov = &mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = CMSG_SPACE((count * 4) as u32) as _;
        let first = CMSG_FIRSTHDR(&header);
        (*first).cmsg_level = SOL_SOCKET;
        (*first).cmsg_type = SCM_RIGHTS;
        (*first).cmsg_len = CMSG_LEN((count * 4) as u32) as _;
        for number in 0..count {
            CMSG_DATA(first)
                .cast::<c_int>()
                .add(number)
                .write_unaligned(file);
        }
        sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL)
    }
}

fn messages() -> Outcome {
    raise_files()?;
    for _ in 0..50 {
        for kind in [SOCK_DGRAM, SOCK_STREAM, SOCK_SEQPACKET] {
            let mut pair = [0; 2];
            // SAFETY: the array has two places.
            if !allowed(unsafe { socketpair(AF_UNIX, kind, 0, pair.as_mut_ptr()) })? {
                break;
            }
            while allowed(send_files(pair[0], pair[1], 253) as i64)? {}
            let bytes = [0u8; 9000];
            // SAFETY: the bytes are a local's.
            let send_bytes = || unsafe { send(pair[0], bytes.as_ptr().cast(), 9000, MSG_DONTWAIT) };
            while allowed(send_bytes() as i64)? {}
        }
    }
    call!(close_range(3, u32::MAX, 0));
    Ok(())
}

/// The load average is computed every five seconds.
fn processes() -> Outcome {
    let mut children = Vec::new();
    for _ in 0..540 {
        // SAFETY: the child only sleeps.
        match unsafe { fork() } {
            0 => loop {
                pause_ms(60_000);
            },
            pid if allowed(pid)? => children.push(pid),
            _ => break,
        }
    }
    for _ in 0..6 {
        pause_ms(1000);
        let _ = fs::read_dir("/proc").map(Iterator::count);
        let _ = fs::read("/proc/loadavg");
    }
    // SAFETY: -1 is all processes of this user, but for this one.
    unsafe { kill(-1, SIGKILL) };
    for pid in children {
        wait(pid)?;
    }
    Ok(())
}

fn waiters() -> Outcome {
    child(|| {
        let words: Arc<[AtomicU32; 2]> = Arc::default();
        for _ in 0..500 {
            let words = words.clone();
            let thread = thread::Builder::new().stack_size(64 << 10).spawn(move || {
                loop {
                    futex_wait(&words[0], 0);
                }
            });
            if thread.is_err() {
                break;
            }
        }
        pause_ms(50);
        for _ in 0..100 {
            for (from, to) in [(0, 1), (1, 0)] {
                let to: *const AtomicU32 = &words[to];
                // SAFETY: both words live.
                unsafe {
                    syscall(
                        SYS_futex,
                        &raw const words[from],
                        FUTEX_REQUEUE,
                        1,
                        1000,
                        to,
                    );
                }
            }
        }
        Ok(())
    })
}

fn sockets() -> Outcome {
    raise_files()?;
    let folder = own_folder("sockets")?;
    let mut kept = Vec::new();
    for number in 0..1000 {
        let all = [
            UdpSocket::bind("127.0.0.1:0").map(OwnedFd::from),
            TcpListener::bind("127.0.0.1:0").map(OwnedFd::from),
            UnixListener::bind(format!("{folder}/{number}")).map(OwnedFd::from),
        ];
        kept.extend(all.into_iter().flatten());
    }
    if let Ok(listener) = TcpListener::bind("127.0.0.1:0") {
        let at = listener.local_addr()?;
        for _ in 0..100 {
            kept.extend(TcpStream::connect(at).map(OwnedFd::from));
        }
    }
    for name in ["tcp", "udp", "unix"] {
        let _ = fs::read(format!("/proc/net/{name}"));
    }
    drop(kept);
    fs::remove_dir_all(folder)?;
    Ok(())
}

fn objects() -> Outcome {
    let mut queues = Vec::new();
    let mut sets = Vec::new();
    let mut segments = Vec::new();
    let message = [1u64; 1024];
    for _ in 0..400 {
        // SAFETY: makes objects; sends and changes from locals.
        unsafe {
            let queue = msgget(IPC_PRIVATE, 0o600);
            if allowed(queue)? {
                queues.push(queue);
                while allowed(msgsnd(queue, message.as_ptr().cast(), 8000, IPC_NOWAIT))? {}
            }
            let set = semget(IPC_PRIVATE, 500, 0o600);
            if allowed(set)? {
                sets.push(set);
                let mut raise: [_; 400] = std::array::from_fn(|number| undone_raise(number as u16));
                allowed(semop(set, raise.as_mut_ptr(), raise.len()))?;
            }
            let segment = shmget(IPC_PRIVATE, PAGE, 0o600);
            if allowed(segment)? {
                segments.push(segment);
            }
        }
    }
    for name in ["msg", "sem", "shm"] {
        let _ = fs::read(format!("/proc/sysvipc/{name}"));
    }
    // SAFETY: removes this program's own objects.
    unsafe {
        queues
            .iter()
            .for_each(|&id| _ = msgctl(id, IPC_RMID, null_mut()));
        sets.iter().for_each(|&id| _ = semctl(id, 0, IPC_RMID));
        segments
            .iter()
            .for_each(|&id| _ = shmctl(id, IPC_RMID, null_mut()));
    }
    Ok(())
}

fn attributes() -> Outcome {
    let folder = own_folder("attributes")?;
    let path = c(&format!("{folder}/file"));
    File::create(format!("{folder}/file"))?;
    let value = vec![7u8; 60_000];
    for number in 0..200 {
        let name = c(&format!("user.{number}-{}", "x".repeat(200)));
        let size = if number % 4 == 0 { value.len() } else { 100 };
        // SAFETY: names and values are locals.
        let result =
            unsafe { setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), size, 0) };
        if result == -1 && errno() == EOPNOTSUPP {
            break;
        }
        if !allowed(result)? {
            break;
        }
    }
    let mut list = vec![0u8; 65_536];
    // SAFETY: the list has this size.
    allowed(unsafe { listxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) } as i64)?;
    fs::remove_dir_all(folder)?;
    Ok(())
}

fn names() -> Outcome {
    let folder = own_folder("names")?;
    for number in 0..4000 {
        if File::create(format!("{folder}/{number}-{}", "n".repeat(150))).is_err() {
            break;
        }
    }
    let _ = fs::read_dir(&folder).map(Iterator::count);
    fs::remove_dir_all(folder)?;
    Ok(())
}

fn arrays() -> Outcome {
    let most = raise_files()?.min(100_000);
    let (reader, writer) = pipe(0)?;
    let mut polled = vec![
        pollfd {
            fd: reader,
            events: POLLIN,
            revents: 0,
        };
        most
    ];
    for count in [64, 600, 4000, most] {
        // SAFETY: the vector has at least that many.
        allowed(unsafe { poll(polled.as_mut_ptr(), count.min(most) as u64, 1) })?;
    }
    let mut byte = 1u8;
    let parts = vec![
        iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        1024
    ];
    // SAFETY: the parts name a local; the pipe has room for them.
    unsafe {
        allowed(writev(writer, parts.as_ptr(), 1024) as i64)?;
        allowed(readv(reader, parts.as_ptr(), 1024) as i64)?;
        let (own, n) = (getpid(), 1024);
        allowed(process_vm_readv(own, parts.as_ptr(), n, parts.as_ptr(), n, 0) as i64)?;
    }
    call!(close(reader));
    call!(close(writer));
    Ok(())
}

fn environment() -> Outcome {
    let long = c(&"e".repeat(100_000));
    for (count, text) in [(15, long.clone()), (20_000, c("short")), (18, long)] {
        let mut all: Vec<_> = std::iter::repeat_n(text.as_ptr(), count).collect();
        all.push(null());
        // SAFETY: the child only executes or exits.
        let pid = unsafe { fork() };
        if pid == 0 {
            // SAFETY: the strings live in this copy of the process.
            unsafe { execve(c"/bin/true".as_ptr(), all.as_ptr(), [null()].as_ptr()) };
            exit(if allowed(-1)? { 1 } else { 0 });
        }
        if allowed(pid)? {
            wait(pid)?;
        }
    }
    Ok(())
}

fn pipes() -> Outcome {
    raise_files()?;
    let bytes = vec![1u8; 1 << 20];
    for _ in 0..40 {
        let mut ends = [0; 2];
        // SAFETY: the array has two places.
        if !allowed(unsafe { pipe2(ends.as_mut_ptr(), O_NONBLOCK) })? {
            break;
        }
        // SAFETY: the bytes live during the call.
        unsafe {
            allowed(libc::fcntl(ends[1], F_SETPIPE_SZ, 1 << 20))?;
            allowed(libc::write(ends[1], bytes.as_ptr().cast(), 1 << 16) as i64)?;
        }
    }
    call!(close_range(3, u32::MAX, 0));
    Ok(())
}
