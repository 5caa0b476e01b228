//! Bombs: as much of one kind of kernel object as an ordinary user can have, in as many processes.
//!
//! Beside each of them a small program of root's, as a shell is one, goes on taking a little memory
//! and making processes: it must live, and get on. What the bomb took must be back afterwards.

use std::sync::OnceLock;

use crate::{USER, become_user, processes_of_user, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("attacks: bombs: full pipes", pipes),
    ("attacks: bombs: large full pipes", large_pipes),
    ("attacks: bombs: one page in many pipes", shared_page),
    (
        "attacks: bombs: pipes of processes that have ended",
        orphans,
    ),
    ("attacks: bombs: full stream sockets", streams),
    ("attacks: bombs: full sockets of datagrams", datagrams),
    ("attacks: bombs: sockets on their way in sockets", in_flight),
    ("attacks: bombs: full TCP connections", tcp),
    ("attacks: bombs: full UDP sockets", udp),
    ("attacks: bombs: queues of messages", messages),
    (
        "attacks: bombs: segments that nobody has attached",
        segments,
    ),
    ("attacks: bombs: sets of semaphores", semaphores),
    ("attacks: bombs: POSIX queues", posix_queues),
    ("attacks: bombs: files in memory with names", named_files),
    ("attacks: bombs: many names of one file", hard_links),
    ("attacks: bombs: long symbolic links", symbolic_links),
    ("attacks: bombs: directories", directories),
    ("attacks: bombs: extended attributes", attributes),
    (
        "attacks: bombs: files in memory without a name",
        memory_files,
    ),
    (
        "attacks: bombs: shared memory of processes that have ended",
        shared,
    ),
    ("attacks: bombs: anonymous memory", anonymous),
    ("attacks: bombs: page tables", tables),
    ("attacks: bombs: mappings", mappings),
    ("attacks: bombs: watches of epolls", epolls),
    ("attacks: bombs: watches of directories", watches),
    ("attacks: bombs: events that nobody reads", events),
    ("attacks: bombs: open files", open_files),
    ("attacks: bombs: texts that stay open", texts),
    ("attacks: bombs: answers that nobody reads", answers),
    ("attacks: bombs: operations to be undone", undos),
    ("attacks: bombs: timers", timers),
    ("attacks: bombs: terminals", terminals),
    (
        "attacks: bombs: terminals of a single process",
        single_terminals,
    ),
    ("attacks: bombs: tables of descriptors", descriptors),
    ("attacks: bombs: filters of system calls", filters),
    ("attacks: bombs: arguments of programs", arguments),
    ("attacks: bombs: processes", forks),
    (
        "attacks: bombs: processes, each with a little memory",
        small_processes,
    ),
    ("attacks: bombs: threads", threads),
];

/// Pages of the program of root's, about as many as a shell has.
const SHELL: usize = 300;
/// Processes that share a bomb's work: each has descriptors of its own.
const WORKERS: usize = 24;

/// What the processes of a bomb got.
struct Loot {
    /// How many objects, or steps of one that grows.
    count: AtomicUsize,
    /// The refusals that neither a limit nor want of memory explains.
    strange: AtomicUsize,
}

/// That of this test's bomb, for all of its processes.
static LOOT: OnceLock<&Loot> = OnceLock::new();

/// A process of the bomb has got one more.
fn got_one() {
    if let Some(loot) = LOOT.get() {
        loot.count.fetch_add(1, Relaxed);
    }
}

/// Whether a limit or want of memory explains why a bomb got no more. Failures are texts: those of
/// calls name the error, those of children say that they were killed.
fn is_refusal(why: &Failure) -> bool {
    const LIMITS: [c_int; 13] = [
        ENOMEM,
        EAGAIN,
        EMFILE,
        ENFILE,
        ENOSPC,
        ENOBUFS,
        EDQUOT,
        EPERM,
        ETOOMANYREFS,
        EADDRNOTAVAIL,
        EADDRINUSE,
        ENOTCONN,
        ECONNREFUSED,
    ];
    let why = why.to_string();
    let is_named = |error: &c_int| why.contains(&format!("(os error {error})"));
    // A child has noted why it failed.
    let ends = ["Signal(9)", "Exit(99)"];
    LIMITS.iter().any(is_named) || ends.iter().any(|end| why.contains(end))
}

/// Notes how a process of the bomb got no more.
fn noted(outcome: Outcome) -> Outcome {
    if let Err(why) = &outcome
        && !is_refusal(why)
        && let Some(loot) = LOOT.get()
    {
        loot.strange.fetch_add(1, Relaxed);
        println!("  {why}");
    }
    outcome
}

/// A child of a process of the bomb, which is refused as its parent is.
fn child_of_bomb(body: impl FnOnce() -> Outcome) -> Outcome {
    child(|| noted(body()))
}

/// Runs `fill` in several processes of an ordinary user, each of which keeps what it got when the
/// kernel gives it no more; beside them a program of root's, which must get on.
fn bomb(fill: impl Fn() -> Outcome) -> Outcome {
    bomb_of(WORKERS, fill)
}

fn bomb_of(workers: usize, fill: impl Fn() -> Outcome) -> Outcome {
    let rounds = shared_value(AtomicUsize::new(0))?;
    let loot = shared_value(Loot {
        count: AtomicUsize::new(0),
        strange: AtomicUsize::new(0),
    })?;
    LOOT.get_or_init(|| loot);
    // The processor time of a thousand others is theirs: this is about memory.
    call!(setpriority(PRIO_PROCESS, 0, -20));
    let shell = spawn(|| be_shell(rounds))?;
    let culprit = spawn(|| {
        call!(setpriority(PRIO_PROCESS, 0, 0));
        become_user(USER)?;
        for _ in 0..workers {
            spawn(|| {
                // It ends by an error of the call that is refused, or is killed.
                let _ = noted(fill());
                loop {
                    pause_ms(1000);
                }
            })?;
        }
        loop {
            pause_ms(1000);
        }
    })?;
    let result = while_attacking(|| {
        pause_ms(100);
        Ok(())
    });
    // It is left to itself as long as it takes to get on, and the bomb until it has got something.
    let before = rounds.load(SeqCst);
    let end = Instant::now() + Duration::from_secs(20);
    let gets_on = || rounds.load(SeqCst) >= before + 2;
    while !(gets_on() && loot.count.load(Relaxed) > 0) && Instant::now() < end {
        pause_ms(10);
    }
    let gets_on = gets_on();
    kill_users()?;
    let _ = wait(culprit)?;
    remove_objects()?;
    ensure!(gets_on, "root's program has ended or stands still");
    kill_child(shell)?;
    let (count, strange) = (loot.count.load(Relaxed), loot.strange.load(Relaxed));
    println!("  {count} before the end or a refusal");
    ensure!(count > 0 && strange == 0, count, strange);
    result
}

/// Goes on as a shell does: touches its memory, takes some, starts processes.
fn be_shell(rounds: &AtomicUsize) -> Outcome {
    let own = map(SHELL * PAGE)?;
    loop {
        for page in 0..SHELL {
            poke(own.wrapping_add(page * PAGE), 1);
        }
        let more = map(32 * PAGE)?;
        for page in 0..32 {
            poke(more.wrapping_add(page * PAGE), 1);
        }
        unmap(more, 32 * PAGE)?;
        // SAFETY: the child ends at once.
        match unsafe { fork() } {
            -1 => {}
            0 => exit(0),
            pid => {
                wait(pid)?;
                rounds.fetch_add(1, SeqCst);
            }
        }
        pause_ms(5);
    }
}

/// Kills all processes of the user.
pub fn kill_users() -> Outcome {
    for _ in 0..1000 {
        // As root: a user that may have no more processes could not fork the killer.
        let killer = spawn(|| {
            become_user(USER)?;
            // SAFETY: the killer dies with the others.
            unsafe { kill(-1, SIGKILL) };
            Ok(())
        })?;
        let _ = wait(killer)?;
        if processes_of_user()? == 0 {
            return Ok(());
        }
        pause_ms(10);
    }
    Err("processes of the user are left".into())
}

/// Removes what outlives processes.
pub fn remove_objects() -> Outcome {
    for file in ["msg", "shm", "sem"] {
        for line in read_text(&format!("/proc/sysvipc/{file}"))?.lines().skip(1) {
            let id = line
                .split_whitespace()
                .nth(1)
                .and_then(|id| id.parse().ok());
            let id: c_int = id.ok_or("a line without an id")?;
            // SAFETY: removes an object by its id.
            unsafe {
                match file {
                    "msg" => msgctl(id, IPC_RMID, null_mut()),
                    "shm" => shmctl(id, IPC_RMID, null_mut()),
                    _ => semctl(id, 0, IPC_RMID),
                };
            }
        }
    }
    let _ = fs::remove_dir_all(FOLDER);
    Ok(())
}

/// Where the user's files are.
const FOLDER: &str = "/tmp/bombs";

/// Repeats `body`, each run of which gets something, until it fails.
fn until_refused(mut body: impl FnMut() -> Outcome) -> Outcome {
    loop {
        body()?;
        got_one();
    }
}

/// Fills what `fd` writes to, without waiting.
fn fill(fd: c_int) -> Outcome {
    let bytes = [7_u8; 4 * PAGE];
    // SAFETY: changes a flag of a descriptor, and writes from a buffer that is this long.
    unsafe {
        call!(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK));
        while write(fd, bytes.as_ptr().cast(), bytes.len()) > 0 {}
    }
    Ok(())
}

fn pipes() -> Outcome {
    bomb(|| until_refused(|| fill(pipe(0)?.1)))
}

fn large_pipes() -> Outcome {
    bomb(|| {
        until_refused(|| {
            let (_, to) = pipe(0)?;
            // SAFETY: asks for a size; it may be refused.
            unsafe { fcntl(to, F_SETPIPE_SZ, 1 << 20) };
            fill(to)
        })
    })
}

/// Pages are charged for each pipe that keeps them; here the kernel's memory is the pipes.
fn shared_page() -> Outcome {
    bomb(|| {
        let (from, to) = pipe(0)?;
        fill(to)?;
        until_refused(|| {
            let (_, more) = pipe(0)?;
            call!(tee(from, more, 1 << 20, SPLICE_F_NONBLOCK));
            Ok(())
        })
    })
}

/// Processes make pipes, hand them to their parent's parent, and end.
fn orphans() -> Outcome {
    bomb_of(4, || {
        until_refused(|| {
            let sockets = socket_pair(SOCK_SEQPACKET)?;
            child_of_bomb(|| {
                for _ in 0..16 {
                    let (from, to) = pipe(0)?;
                    fill(to)?;
                    send_file(sockets[0].as_raw_fd(), from)?;
                }
                Ok(())
            })?;
            // The pipes stay in the socket.
            mem::forget(sockets);
            Ok(())
        })
    })
}

fn streams() -> Outcome {
    bomb(|| {
        until_refused(|| {
            let [a, b] = socket_pair(SOCK_STREAM)?;
            fill(a.into_raw_fd())?;
            fill(b.into_raw_fd())
        })
    })
}

fn datagrams() -> Outcome {
    bomb(|| {
        until_refused(|| {
            let [a, b] = socket_pair(SOCK_DGRAM)?;
            fill(a.into_raw_fd())?;
            fill(b.into_raw_fd())
        })
    })
}

/// Sends a descriptor.
fn send_file(socket: c_int, file: c_int) -> Outcome {
    let mut byte = [1_u8];
    let mut part = iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control = [0_u64; 4];
    // SAFETY: all zeros is a valid header; the control block has room for one descriptor.
    unsafe {
        let mut message: msghdr = zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = CMSG_SPACE(4) as usize;
        let first = CMSG_FIRSTHDR(&message);
        (*first).cmsg_level = SOL_SOCKET;
        (*first).cmsg_type = SCM_RIGHTS;
        (*first).cmsg_len = CMSG_LEN(4) as usize;
        CMSG_DATA(first).cast::<c_int>().write_unaligned(file);
        call!(sendmsg(socket, &message, MSG_DONTWAIT));
    }
    Ok(())
}

/// Full sockets, in a chain in which each is only held by the next one.
fn in_flight() -> Outcome {
    bomb(|| {
        let mut inner: Option<c_int> = None;
        until_refused(|| {
            let [a, b] = socket_pair(SOCK_STREAM)?;
            if let Some(inner) = inner {
                send_file(a.as_raw_fd(), inner)?;
                call!(close(inner));
            }
            fill(a.as_raw_fd())?;
            inner = Some(b.into_raw_fd());
            Ok(())
        })
    })
}

fn tcp() -> Outcome {
    bomb(|| {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        until_refused(|| {
            let a = TcpStream::connect(listener.local_addr()?)?;
            let (b, _) = listener.accept()?;
            fill(a.into_raw_fd())?;
            fill(b.into_raw_fd())
        })
    })
}

fn udp() -> Outcome {
    bomb(|| {
        until_refused(|| {
            let to = UdpSocket::bind("127.0.0.1:0")?;
            let from = UdpSocket::bind("127.0.0.1:0")?;
            from.connect(to.local_addr()?)?;
            for _ in 0..400 {
                from.send(&[1; 1200])?;
                got_one();
            }
            mem::forget((to, from));
            Ok(())
        })
    })
}

fn messages() -> Outcome {
    bomb_of(4, || {
        let message = [1_u64; 1025];
        until_refused(|| {
            let queue = call!(msgget(IPC_PRIVATE, 0o600));
            // SAFETY: sends from a buffer that is this long.
            unsafe { while msgsnd(queue, message.as_ptr().cast(), 8192, IPC_NOWAIT) == 0 {} }
            Ok(())
        })
    })
}

fn segments() -> Outcome {
    const SIZE: usize = 4 << 20;
    bomb_of(4, || {
        until_refused(|| {
            let segment = call!(shmget(IPC_PRIVATE, SIZE, 0o600));
            // SAFETY: attaches anywhere.
            let memory = unsafe { shmat(segment, null(), 0) }.cast::<u8>();
            for at in (0..SIZE).step_by(PAGE) {
                poke(memory.wrapping_add(at), 1);
            }
            call!(shmdt(memory.cast()));
            Ok(())
        })
    })
}

fn semaphores() -> Outcome {
    bomb_of(4, || {
        until_refused(|| {
            call!(semget(IPC_PRIVATE, 32_000, 0o600));
            Ok(())
        })
    })
}

fn posix_queues() -> Outcome {
    bomb_of(4, || {
        let mut number = 0;
        // SAFETY: asks for the id of this process.
        let pid = unsafe { getpid() };
        until_refused(|| {
            number += 1;
            let name = c(&format!("/bomb-{pid}-{number}"));
            // SAFETY: opens by a name, and sends from a buffer that is this long.
            unsafe {
                let queue = mq_open(
                    name.as_ptr(),
                    O_RDWR | O_CREAT | O_NONBLOCK,
                    0o600,
                    null::<u8>(),
                );
                if queue == -1 {
                    return Err(Failure::of_call("mq_open", line!()));
                }
                let bytes = [1_u8; 8192];
                while mq_send(queue, bytes.as_ptr().cast(), bytes.len(), 0) == 0 {}
                // It goes with its last descriptor, whose number is free for the next one's sake.
                mq_unlink(name.as_ptr());
            }
            Ok(())
        })
    })
}

fn named_files() -> Outcome {
    fs::create_dir_all(FOLDER)?;
    fs::set_permissions(FOLDER, Permissions::from_mode(0o777))?;
    bomb_of(4, || {
        // SAFETY: asks for the id of this process.
        let mut file = File::create(format!("{FOLDER}/{}", unsafe { getpid() }))?;
        until_refused(|| Ok(file.write_all(&[1; 64 * 1024])?))
    })
}

/// Repeats `make` with a long name that is new, in a folder of the process's own, until it fails.
fn names_until_refused(make: impl Fn(*const c_char) -> Outcome) -> Outcome {
    // SAFETY: asks for the id of this process.
    let own = format!("{FOLDER}/{}", unsafe { getpid() });
    fs::create_dir(&own)?;
    std::env::set_current_dir(&own)?;
    fs::write("file", "")?;
    let mut number = 0;
    until_refused(|| {
        for _ in 0..64 {
            number += 1;
            make(c(&format!("{number:0>255}")).as_ptr())?;
        }
        Ok(())
    })
}

fn names(make: impl Fn(*const c_char) -> Outcome) -> Outcome {
    fs::create_dir_all(FOLDER)?;
    fs::set_permissions(FOLDER, Permissions::from_mode(0o777))?;
    bomb_of(4, || names_until_refused(&make))
}

fn hard_links() -> Outcome {
    names(|name| {
        call!(link(c"file".as_ptr(), name));
        Ok(())
    })
}

fn symbolic_links() -> Outcome {
    let text = c(&"x".repeat(4095));
    names(|name| {
        call!(symlink(text.as_ptr(), name));
        Ok(())
    })
}

fn directories() -> Outcome {
    names(|name| {
        call!(mkdir(name, 0o700));
        Ok(())
    })
}

fn attributes() -> Outcome {
    let value = [1_u8; 2048];
    names(|name| {
        call!(close(call!(open(name, O_CREAT | O_WRONLY, 0o600))));
        for number in 0..4 {
            let attribute = c(&format!("user.{number}"));
            let bytes = value.as_ptr().cast();
            call!(setxattr(name, attribute.as_ptr(), bytes, value.len(), 0));
        }
        Ok(())
    })
}

fn memory_files() -> Outcome {
    bomb(|| {
        until_refused(|| {
            let fd = call!(memfd_create(c"bomb".as_ptr(), 0));
            // SAFETY: the descriptor is new.
            let mut file = unsafe { File::from_raw_fd(fd) };
            for _ in 0..64 {
                file.write_all(&[1; 64 * 1024])?;
                got_one();
            }
            mem::forget(file);
            Ok(())
        })
    })
}

/// A process shares memory with children, which make it and end.
fn shared() -> Outcome {
    bomb_of(4, || {
        until_refused(|| {
            let memory = shared_map(1 << 20)?;
            child_of_bomb(|| {
                for at in (0..1 << 20).step_by(PAGE) {
                    poke(memory.wrapping_add(at), 1);
                }
                Ok(())
            })
        })
    })
}

fn anonymous() -> Outcome {
    bomb(|| {
        until_refused(|| {
            let memory = map(1 << 20)?;
            for at in (0..1 << 20).step_by(PAGE) {
                poke(memory.wrapping_add(at), 1);
            }
            Ok(())
        })
    })
}

/// As many mappings of nothing as a process may have.
fn mappings() -> Outcome {
    const SIZE: usize = 130_000 * PAGE;
    bomb(|| {
        let area = map_with(SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1)?;
        let mut pages = (0..SIZE).step_by(2 * PAGE);
        until_refused(|| {
            // The last one is not reached: fewer mappings are allowed.
            let at = area.wrapping_add(pages.next().ok_or("all")?);
            call!(mprotect(at.cast(), PAGE, PROT_READ));
            Ok(())
        })
    })
}

/// A page of its own in each page table.
fn tables() -> Outcome {
    const SIZE: usize = 64 << 30;
    bomb(|| {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        let memory = map_with(SIZE, READ_WRITE, flags, -1)?;
        // Zeros are mapped, and no memory is taken but for the tables.
        for at in (0..SIZE).step_by(2 << 20) {
            peek(memory.wrapping_add(at));
            got_one();
        }
        Ok(())
    })
}

fn epolls() -> Outcome {
    bomb(|| {
        let event = call!(eventfd(0, 0));
        until_refused(|| {
            let epoll = call!(epoll_create1(0));
            let mut entry = epoll_entry(EPOLLIN, 0);
            call!(epoll_ctl(epoll, EPOLL_CTL_ADD, event, &mut entry));
            for fd in 3..event {
                // SAFETY: some of them are no files.
                unsafe { epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &mut entry) };
            }
            Ok(())
        })
    })
}

fn watches() -> Outcome {
    fs::create_dir_all(FOLDER)?;
    fs::set_permissions(FOLDER, Permissions::from_mode(0o777))?;
    bomb_of(4, || {
        let inotify = call!(inotify_init1(0));
        let mut number = 0;
        until_refused(|| {
            number += 1;
            // SAFETY: asks for the id of this process.
            let name = format!("{FOLDER}/{}-{number}", unsafe { getpid() });
            File::create(&name)?;
            call!(inotify_add_watch(inotify, c(&name).as_ptr(), IN_ALL_EVENTS));
            Ok(())
        })
    })
}

/// Each change of one folder is told to many that watch it.
fn events() -> Outcome {
    fs::create_dir_all(FOLDER)?;
    fs::set_permissions(FOLDER, Permissions::from_mode(0o777))?;
    bomb_of(4, || {
        for _ in 0..32 {
            let inotify = call!(inotify_init1(0));
            call!(inotify_add_watch(
                inotify,
                c(FOLDER).as_ptr(),
                IN_ALL_EVENTS
            ));
        }
        // SAFETY: asks for the id of this process.
        let number = unsafe { getpid() };
        let names = ["a", "b"].map(|it| format!("{FOLDER}/{number}-{}", it.repeat(240)));
        until_refused(|| {
            for name in &names {
                File::create(name)?;
            }
            Ok(())
        })
    })
}

/// As many files as a user's processes may have open, each opened by itself.
fn open_files() -> Outcome {
    bomb_of(1, || {
        until_refused(|| {
            spawn(|| {
                // SAFETY: sets a limit of this process from a local.
                unsafe { setrlimit(RLIMIT_NOFILE, &limit_of(4096)) };
                // SAFETY: takes and returns numbers.
                while unsafe { memfd_create(c"bomb".as_ptr(), 0) } >= 0 {}
                loop {
                    pause_ms(1000);
                }
            })?;
            Ok(())
        })
    })
}

/// The text of a file that is read stays as long as it is open.
fn texts() -> Outcome {
    bomb(|| {
        const PAGES: usize = 2000;
        let memory = map(PAGES * PAGE)?;
        for page in (0..PAGES).step_by(2) {
            call!(mprotect(
                memory.wrapping_add(page * PAGE).cast(),
                PAGE,
                PROT_READ
            ));
        }
        until_refused(|| {
            let mut file = File::open("/proc/self/smaps")?;
            file.read_exact(&mut [0; 100])?;
            mem::forget(file);
            Ok(())
        })
    })
}

/// Sockets that ask the kernel for its interfaces, and leave the answers where they are.
fn answers() -> Outcome {
    bomb(|| {
        until_refused(|| {
            let socket = call!(socket(AF_NETLINK, SOCK_RAW, 0));
            let mut question = [0_u8; 32];
            question[0] = 32;
            question[4..6].copy_from_slice(&RTM_GETLINK.to_le_bytes());
            question[6..8].copy_from_slice(&((NLM_F_REQUEST | NLM_F_DUMP) as u16).to_le_bytes());
            for _ in 0..300 {
                // SAFETY: sends from a buffer that is this long; it may be refused.
                unsafe { send(socket, question.as_ptr().cast(), 32, MSG_DONTWAIT) };
            }
            Ok(())
        })
    })
}

/// Processes that each have something to be undone in many sets of semaphores.
fn undos() -> Outcome {
    bomb_of(1, || {
        let sets = (0..32).map(|_| Ok(call!(semget(IPC_PRIVATE, 32_000, 0o600))));
        let sets = sets.collect::<Result<Vec<c_int>>>()?;
        until_refused(|| {
            spawn(|| {
                for &set in &sets {
                    let mut operation = sembuf {
                        sem_num: 0,
                        sem_op: 1,
                        sem_flg: SEM_UNDO as i16,
                    };
                    // SAFETY: the operation is a local; it may be refused.
                    unsafe { semop(set, &mut operation, 1) };
                }
                loop {
                    pause_ms(1000);
                }
            })?;
            Ok(())
        })
    })
}

fn timers() -> Outcome {
    bomb(|| {
        until_refused(|| {
            // SAFETY: all zeros is a valid event; the call fills a local.
            let mut event: sigevent = unsafe { zeroed() };
            event.sigev_notify = SIGEV_SIGNAL;
            event.sigev_signo = SIGRTMIN();
            let mut timer = null_mut();
            call!(timer_create(CLOCK_MONOTONIC, &mut event, &mut timer));
            Ok(())
        })
    })
}

/// A terminal whose buffers of both directions are full. It is raw: one that edits lines takes any
/// number of bytes, and drops them.
fn full_terminal() -> Outcome {
    let master = call!(posix_openpt(O_RDWR | O_NOCTTY));
    call!(unlockpt(master));
    // SAFETY: all zeros is a valid value, which the call fills.
    let mut modes: termios = unsafe { zeroed() };
    call!(tcgetattr(master, &mut modes));
    // SAFETY: changes a local.
    unsafe { cfmakeraw(&mut modes) };
    call!(tcsetattr(master, TCSANOW, &modes));
    let slave = call!(ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY));
    fill(master)?;
    fill(slave)
}

fn terminals() -> Outcome {
    bomb(|| until_refused(full_terminal))
}

/// As many terminals as one process can have, each with its buffers full.
fn single_terminals() -> Outcome {
    bomb_of(1, || {
        // SAFETY: sets a limit of this process from a local.
        unsafe { setrlimit(RLIMIT_NOFILE, &limit_of(4096)) };
        until_refused(full_terminal)
    })
}

/// Processes of a user that may have many descriptors, as services may: each with the largest
/// table, for one file.
fn descriptors() -> Outcome {
    const MOST: u64 = 1 << 20;
    let mut before = limit_of(0);
    call!(getrlimit(RLIMIT_NOFILE, &mut before));
    call!(setrlimit(RLIMIT_NOFILE, &limit_of(MOST)));
    let outcome = bomb_of(1, || {
        until_refused(|| {
            spawn(|| {
                call!(dup2(0, MOST as c_int - 1));
                loop {
                    pause_ms(1000);
                }
            })?;
            Ok(())
        })
    });
    call!(setrlimit(RLIMIT_NOFILE, &before));
    outcome
}

/// Programs that are begun again and again with as many arguments as there may be, whose addresses
/// and bytes the kernel holds meanwhile.
fn arguments() -> Outcome {
    // Linux counts addresses and bytes together, and takes 6 MiB at most.
    const MOST: usize = (6 << 20) / 8 - 16;
    let program = c("/bin/true");
    // A few of these are as much as is taken.
    let word = c(&"x".repeat(100_000));
    bomb(|| {
        call!(setrlimit(RLIMIT_STACK, &limit_of(64 << 20)));
        let mut list = vec![word.as_ptr(); MOST];
        list.push(null());
        loop {
            // SAFETY: both lists end with null.
            let answer = unsafe { execve(program.as_ptr(), list.as_ptr(), list.as_ptr()) };
            let error = io::Error::last_os_error();
            ensure!(answer == -1, answer);
            match error.raw_os_error() {
                Some(E2BIG) => got_one(),
                _ => return Err(error.into()),
            }
        }
    })
}

/// Threads that each have as long a list of filters as there may be.
fn filters() -> Outcome {
    bomb_of(2, || {
        call!(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        until_refused(|| {
            let stack = thread::Builder::new().stack_size(64 * 1024);
            stack.spawn(|| {
                let step = sock_filter {
                    code: (BPF_RET | BPF_K) as u16,
                    jt: 0,
                    jf: 0,
                    k: SECCOMP_RET_ALLOW,
                };
                let mut steps = [step; 1000];
                let program = sock_fprog {
                    len: 1000,
                    filter: steps.as_mut_ptr(),
                };
                // SAFETY: the call reads a program that outlives it.
                let add = || unsafe {
                    let how = SECCOMP_SET_MODE_FILTER;
                    syscall(SYS_seccomp, how, 0, &program)
                };
                while add() == 0 {}
                thread::sleep(Duration::from_secs(1000));
            })?;
            Ok(())
        })
    })
}

/// Processes that do nothing but fork.
fn forks() -> Outcome {
    bomb_of(1, || {
        loop {
            // SAFETY: both go on.
            if unsafe { fork() } > 0 {
                got_one();
            }
        }
    })
}

/// Many processes of 64 pages.
fn small_processes() -> Outcome {
    bomb_of(1, || {
        until_refused(|| {
            spawn(|| {
                let memory = map(64 * PAGE)?;
                for page in 0..64 {
                    poke(memory.wrapping_add(page * PAGE), 1);
                }
                loop {
                    pause_ms(1000);
                }
            })?;
            Ok(())
        })
    })
}

fn threads() -> Outcome {
    bomb(|| {
        until_refused(|| {
            let stack = thread::Builder::new().stack_size(64 * 1024);
            stack.spawn(|| thread::sleep(Duration::from_secs(1000)))?;
            Ok(())
        })
    })
}
