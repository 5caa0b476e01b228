//! Kernel memory that is charged to processes and users, and limits of it.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("accounts: what a process makes is charged", charged),
    ("accounts: a charge stays with the user", charged_user),
    (
        "accounts: tables, terminals and filters are charged",
        charged_objects,
    ),
    (
        "accounts: first open files and flock locks are charged",
        charged_files,
    ),
    (
        "accounts: calls that wait for many are charged",
        charged_waits,
    ),
    ("accounts: a user's pipes are limited", pipe_limits),
    ("accounts: a user's segments are limited", segment_limit),
];

/// The KiB that this process is charged with.
fn charged_here() -> Result<u64> {
    field("/proc/self/status", "VmCharged")
}

/// The KiB that a user is charged with for things of a kind.
fn charged_to(user: u32, kind: &str) -> Result<u64> {
    let name = format!("{user} {kind} ");
    let text = read_text("/proc/causeway/accounts")?;
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    let kib = line.and_then(|line| line.split(' ').nth(1)?.parse().ok());
    Ok(kib.unwrap_or(0))
}

/// Charges come with data and go with it.
fn charged() -> Outcome {
    let bytes = [1_u8; 16 * PAGE];
    let before = charged_here()?;
    let (from, to) = pipe(O_NONBLOCK)?;
    let with_pipe = charged_here()?;
    call!(write(to, bytes.as_ptr().cast(), bytes.len()));
    let full = charged_here()?;
    ensure!(full >= with_pipe + 64, "{before}, {with_pipe}, {full} KiB");
    call!(close(from));
    call!(close(to));
    equal!(charged_here()?, before);

    let [a, b] = socket_pair(SOCK_STREAM)?;
    call!(write(a.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()));
    ensure!(charged_here()? >= before + 64, charged_here()?);
    drop((a, b));
    equal!(charged_here()?, before);

    // A datagram that is being put together.
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(socket.local_addr()?)?;
    let fd = socket.as_raw_fd();
    let sent = call!(send(fd, bytes.as_ptr().cast(), 60_000, MSG_MORE));
    equal!(sent, 60_000);
    ensure!(charged_here()? >= before + 56, charged_here()?);
    drop(socket);
    equal!(charged_here()?, before);

    let memory = call!(memfd_create(c"charged".as_ptr(), 0));
    call!(ftruncate(memory, 1 << 20));
    call!(pwrite(memory, bytes.as_ptr().cast(), bytes.len(), 0));
    ensure!(charged_here()? >= before + 64, charged_here()?);
    call!(close(memory));
    equal!(charged_here()?, before);
    equal!(field("/proc/causeway/accounts", "unbalanced")?, 0);
    Ok(())
}

/// A table of descriptors is its process's, a terminal its opener's, a filter its author's.
fn charged_objects() -> Outcome {
    let before = charged_here()?;
    let master = call!(posix_openpt(O_RDWR | O_NOCTTY));
    ensure!(charged_here()? >= before + 32, charged_here()?);
    call!(close(master));
    equal!(charged_here()?, before);

    child(|| {
        let before = charged_here()?;
        call!(setrlimit(RLIMIT_NOFILE, &limit_of(4096)));
        call!(dup2(0, 4000));
        let with_table = charged_here()?;
        ensure!(with_table >= before + 32, before, with_table);
        child(|| {
            // The copy of the table is charged to the child.
            ensure!(charged_here()? >= with_table - 1, charged_here()?);
            Ok(())
        })?;
        equal!(charged_here()?, with_table);
        Ok(())
    })?;

    child(|| {
        let before = charged_here()?;
        call!(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        let mut steps = [allowing_step(); 4096];
        let program = filter_of(&mut steps);
        let how = SECCOMP_SET_MODE_FILTER;
        call!(syscall(SYS_seccomp, how, 0, &program));
        ensure!(charged_here()? >= before + 32, before, charged_here()?);
        Ok(())
    })?;

    for keep in [text, answers, events, undo] {
        child(|| {
            let before = charged_here()?;
            let freed = keep()?;
            ensure!(charged_here()? >= before + 32, before, charged_here()?);
            freed()?;
            // Their tables may have grown.
            ensure!(charged_here()? <= before + 4, before, charged_here()?);
            Ok(())
        })?;
    }
    equal!(field("/proc/causeway/accounts", "unbalanced")?, 0);
    Ok(())
}

/// A process's first open files are charged, in steps, to each that has them; the locks of whole
/// files one by one.
fn charged_files() -> Outcome {
    const FILES: u64 = 60;
    child(|| {
        let before = charged_here()?;
        let (path, first) = file("charged", b"")?;
        let path = c(&path);
        let mut files = vec![first];
        for _ in 1..FILES {
            files.push(call!(open(path.as_ptr(), O_RDWR)));
        }
        let with_files = charged_here()?;
        // Those of the first step are charged with the start of a process.
        ensure!(with_files >= before + 44, before, with_files);
        child(|| {
            ensure!(charged_here()? + 4 >= with_files, charged_here()?);
            Ok(())
        })?;
        for open in &files {
            call!(flock(*open, LOCK_SH));
        }
        let with_locks = charged_here()?;
        ensure!(
            with_locks >= with_files + FILES / 2 - 1,
            with_files,
            with_locks
        );
        call!(flock(files[0], LOCK_UN));
        call!(close(files[1]));
        ensure!(charged_here()? < with_locks, with_locks, charged_here()?);
        for open in &files[2..] {
            call!(flock(*open, LOCK_UN));
        }
        equal!(charged_here()?, with_files);
        Ok(())
    })?;
    equal!(field("/proc/causeway/accounts", "unbalanced")?, 0);
    Ok(())
}

/// A call that waits for many files or words is charged as long as it sleeps.
fn charged_waits() -> Outcome {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let waits = || charged_to(0, "waits");
    let event = call!(eventfd(0, 0));
    let before = waits()?;
    let polled = thread::spawn(move || {
        let mut all = vec![poll_entry(event, POLLIN); 500];
        call!(poll(all.as_mut_ptr(), 500, -1));
        Ok::<(), Failure>(())
    });
    pause_ms(100);
    let with_poll = waits()?;
    ensure!(with_poll >= before + 32, before, with_poll);
    let waited = thread::spawn(|| {
        let words = [[0, WORD.as_ptr() as u64, 2_u64]; 128];
        let list = words.as_ptr();
        call!(syscall(SYS_futex_waitv, list, 128, 0, null::<u8>(), 0));
        Ok::<(), Failure>(())
    });
    pause_ms(100);
    ensure!(waits()? >= with_poll + 16, with_poll, waits()?);
    call!(write(event, 1_u64.to_ne_bytes().as_ptr().cast(), 8));
    while futex(&WORD, FUTEX_WAKE, 1, None) == 0 {
        pause_ms(1);
    }
    polled.join()??;
    waited.join()??;
    equal!(waits()?, before);
    call!(close(event));
    Ok(())
}

/// Frees what was kept.
type Free = Box<dyn FnOnce() -> Outcome>;

fn close_later(fd: c_int) -> Result<Free> {
    Ok(Box::new(move || {
        call!(close(fd));
        Ok(())
    }))
}

/// Keeps the long text of a file.
fn text() -> Result<Free> {
    const PAGES: usize = 400;
    let memory = map_of_entries(PAGES)?;
    let file = call!(open(c"/proc/self/smaps".as_ptr(), O_RDONLY));
    read_bytes(&file, 1)?;
    unmap(memory, PAGES * PAGE)?;
    close_later(file)
}

/// Keeps answers of the kernel's in a socket.
fn answers() -> Result<Free> {
    close_later(unread_answers()?)
}

/// Keeps events of a folder.
fn events() -> Result<Free> {
    let folder = "/tmp/charged";
    fs::create_dir_all(folder)?;
    let inotify = call!(inotify_init1(0));
    call!(inotify_add_watch(
        inotify,
        c(folder).as_ptr(),
        IN_ALL_EVENTS
    ));
    for number in 0..300 {
        File::create(format!("{folder}/{}", number % 2))?;
    }
    fs::remove_dir_all(folder)?;
    close_later(inotify)
}

/// Keeps what is to be undone in a set of semaphores, which is charged itself.
fn undo() -> Result<Free> {
    let set = call!(semget(IPC_PRIVATE, 32_000, 0o600));
    let with_set = charged_here()?;
    call!(semop(set, &mut undone_raise(0), 1));
    ensure!(charged_here()? >= with_set + 60, with_set, charged_here()?);
    Ok(Box::new(move || {
        call!(semctl(set, 0, IPC_RMID));
        Ok(())
    }))
}

/// A change of the user moves threads, and no other charge.
fn charged_user() -> Outcome {
    const FIRST: u32 = 4001;
    const SECOND: u32 = 4002;
    child(|| {
        call!(setreuid(FIRST, 0));
        let memory = call!(memfd_create(c"charged".as_ptr(), 0));
        call!(pwrite(
            memory,
            [1_u8; 16 * PAGE].as_ptr().cast(),
            16 * PAGE,
            0
        ));
        ensure!(
            charged_to(FIRST, "shared_memory")? >= 64,
            "nothing is charged"
        );
        call!(setreuid(SECOND, 0));
        ensure!(
            charged_to(FIRST, "shared_memory")? >= 64,
            "the charge is gone"
        );
        equal!(charged_to(SECOND, "shared_memory")?, 0);
        ensure!(
            charged_to(SECOND, "threads")? > 0,
            "the thread did not move"
        );
        Ok(())
    })?;
    equal!(charged_to(FIRST, "shared_memory")?, 0);
    Ok(())
}

/// Beyond the soft limit pipes are small, beyond the hard one there are none.
fn pipe_limits() -> Outcome {
    const USER: u32 = 4003;
    let old = read_text("/proc/sys/fs/pipe-user-pages-soft")?;
    fs::write("/proc/sys/fs/pipe-user-pages-soft", "40")?;
    fs::write("/proc/sys/fs/pipe-user-pages-hard", "45")?;
    let result = child(|| {
        call!(setresuid(USER, USER, USER));
        let mut sizes = Vec::new();
        for _ in 0..4 {
            let (from, _) = pipe(0)?;
            sizes.push(call!(fcntl(from, F_GETPIPE_SZ)) as usize / PAGE);
        }
        equal!(sizes, [16, 16, 2, 2]);
        let (from, _) = pipe(0)?;
        refused!(EPERM, fcntl(from, F_SETPIPE_SZ, 16 * PAGE));
        for _ in 0..3 {
            pipe(0)?;
        }
        let mut ends = [0; 2];
        refused!(ENFILE, pipe2(ends.as_mut_ptr(), 0));
        Ok(())
    });
    fs::write("/proc/sys/fs/pipe-user-pages-soft", old.trim())?;
    fs::write("/proc/sys/fs/pipe-user-pages-hard", "0")?;
    result
}

/// An ordinary user's segments are no larger than half of memory and swap together.
fn segment_limit() -> Outcome {
    const USER: u32 = 4004;
    let kib = field("/proc/meminfo", "MemTotal")? + field("/proc/meminfo", "SwapTotal")?;
    let third = kib as usize * 1024 / 3;
    child(|| {
        call!(setresuid(USER, USER, USER));
        let segment = call!(shmget(IPC_PRIVATE, third, 0o600));
        refused!(ENOSPC, shmget(IPC_PRIVATE, third, 0o600));
        call!(shmctl(segment, IPC_RMID, null_mut()));
        let segment = call!(shmget(IPC_PRIVATE, third, 0o600));
        call!(shmctl(segment, IPC_RMID, null_mut()));
        Ok(())
    })
}
