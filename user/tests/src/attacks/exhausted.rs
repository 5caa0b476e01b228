//! Programs that prepare themselves, fill memory with what they can, and then make the kernel take
//! more where a call is not expected to: each such call must be refused, and the machine go on.

use std::sync::OnceLock;

use crate::{USER, become_user, bombs::kill_users, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("attacks: exhausted: names that become longer", renames),
    ("attacks: exhausted: poll of many files", polls),
    ("attacks: exhausted: select of many files", selects),
    ("attacks: exhausted: many words of futexes", words),
    ("attacks: exhausted: another's epolls", || makers(EPOLLS)),
    ("attacks: exhausted: another's inotify", || makers(INOTIFY)),
    ("attacks: exhausted: another's locks", || makers(LOCKS)),
    ("attacks: exhausted: another's files", || makers(FILES)),
    ("attacks: exhausted: another's semaphores", || {
        makers(SEMAPHORES)
    }),
    (
        "attacks: exhausted: another's messages and segments",
        || makers(KEPT),
    ),
];

/// Where the user's names are.
const FOLDER: &str = "/tmp/exhausted";
/// The file that has all names.
const FILE: &str = "/tmp/exhausted/file";
/// The memory in KiB that a process leaves for names, which fill the rest.
const LEFT: u64 = 24 << 10;
/// Names that a shortage refuses before it counts as lasting.
const REFUSALS: usize = 20;

/// Runs `attack` as an ordinary user; the out-of-memory rule may end it.
fn exhaust(attack: impl Fn() -> Outcome) -> Outcome {
    while_attacking(|| {
        fs::create_dir_all(FOLDER)?;
        fs::set_permissions(FOLDER, Permissions::from_mode(0o777))?;
        let attacker = spawn(|| {
            become_user(USER)?;
            File::create(FILE)?;
            // SAFETY: takes a number; memory that is not locked is only a weaker attack.
            unsafe { mlockall(MCL_CURRENT) };
            attack()
        })?;
        let end = wait(attacker)?;
        fs::remove_dir_all(FOLDER)?;
        ensure!([End::Exit(0), End::Signal(SIGKILL)].contains(&end), end);
        Ok(())
    })
}

/// A name of the file with 255 bytes that begins with `head`.
fn long_name(head: &str, number: usize) -> CString {
    let name = format!("{head}{number}-");
    c(&format!("{FOLDER}/{name}{}", "n".repeat(255 - name.len())))
}

fn link_to(name: &CStr) -> bool {
    // SAFETY: both are strings that live.
    unsafe { link(c(FILE).as_ptr(), name.as_ptr()) == 0 }
}

/// Fills memory by pages of another process, and by names, until even those are refused.
fn fill_memory() -> Outcome {
    let is_full = shared_value(AtomicBool::new(false))?;
    spawn(|| {
        let left = field("/proc/meminfo", "MemFree")?.saturating_sub(LEFT) as usize;
        let area = map((left << 10).max(PAGE))?;
        for at in (0..left << 10).step_by(PAGE) {
            poke(area.wrapping_add(at), 1);
        }
        is_full.store(true, SeqCst);
        loop {
            pause_ms(1000);
        }
    })?;
    for _ in 0..1000 {
        if is_full.load(SeqCst) {
            break;
        }
        pause_ms(10);
    }
    let mut refused = 0;
    for number in 0.. {
        refused += usize::from(!link_to(&long_name("fill", number)));
        if refused > REFUSALS {
            break;
        }
    }
    Ok(())
}

fn renames() -> Outcome {
    const COUNT: usize = 20_000;
    exhaust(|| {
        let short = |number: usize| c(&format!("{FOLDER}/{number}"));
        let made = (0..COUNT).take_while(|&number| link_to(&short(number)));
        let made = made.count();
        fill_memory()?;
        for number in 0..made {
            let (old, new) = (short(number), long_name("new", number));
            // SAFETY: both are strings that live.
            if unsafe { rename(old.as_ptr(), new.as_ptr()) } != 0 {
                ensure!([ENOMEM, ENOSPC, EDQUOT].contains(&errno()), errno());
                break;
            }
        }
        Ok(())
    })
}

/// Threads that go on when memory is full, and for how long.
const THREADS: usize = 200;
const SLEEP: Duration = Duration::from_secs(2);

/// Runs `sleep` in many threads once memory is full.
fn sleepers(sleep: fn()) -> Outcome {
    exhaust(|| {
        static GO: AtomicU32 = AtomicU32::new(0);
        let end_of_stack = 64 << 10;
        for _ in 0..THREADS {
            let stack = thread::Builder::new().stack_size(end_of_stack);
            let thread = stack.spawn(move || {
                while GO.load(SeqCst) == 0 {
                    futex_wait(&GO, 0);
                }
                loop {
                    sleep();
                }
            });
            if thread.is_err() {
                break;
            }
        }
        fill_memory()?;
        GO.store(1, SeqCst);
        futex(&GO, FUTEX_WAKE, i32::MAX as u32, None);
        thread::sleep(SLEEP);
        exit(0)
    })
}

/// An event that does not come.
fn no_event() -> c_int {
    static EVENT: OnceLock<c_int> = OnceLock::new();
    // SAFETY: takes and returns numbers.
    *EVENT.get_or_init(|| unsafe { eventfd(0, 0) })
}

fn polls() -> Outcome {
    static POLLED: OnceLock<Vec<i32>> = OnceLock::new();
    const COUNT: usize = 1000;
    no_event();
    // The kernel writes the same answer into the entries of all threads.
    POLLED.get_or_init(|| [no_event(), i32::from(POLLIN)].repeat(COUNT));
    sleepers(|| {
        let all = POLLED
            .get()
            .map_or(null_mut(), |all| all.as_ptr().cast_mut());
        // SAFETY: the entries live; only zeros are written into them.
        unsafe { poll(all.cast(), COUNT as u64, -1) };
    })
}

fn selects() -> Outcome {
    no_event();
    for fd in 3..1000 {
        // SAFETY: takes numbers; a descriptor of this child of the runner's is taken over.
        unsafe { dup2(no_event(), fd) };
    }
    sleepers(|| {
        // SAFETY: all zeros is a valid set, and the sets are locals.
        unsafe {
            let mut set: fd_set = zeroed();
            (3..1000).for_each(|fd| FD_SET(fd, &mut set));
            let mut other = set;
            select(1000, &mut set, &mut other, null_mut(), null_mut());
        }
    })
}

fn words() -> Outcome {
    static WORD: AtomicU32 = AtomicU32::new(0);
    sleepers(|| {
        let address = WORD.as_ptr() as u64;
        let waits = [[0, address, 2]; 128];
        // SAFETY: the words and their list live.
        unsafe { syscall(SYS_futex_waitv, waits.as_ptr(), 128, 0, null::<u8>(), 0) };
    })
}

/// What root's calls work on; made before memory is full.
struct Things {
    event: c_int,
    epoll: c_int,
    inotify: c_int,
    file: c_int,
    pipe: c_int,
    set: c_int,
}

type Maker = (&'static str, fn(&Things) -> c_int);

// Calls that make, or enlarge, an object of the kernel's; each returns -1 if it was refused.
const EPOLLS: &[Maker] = &[
    // SAFETY: takes a number.
    ("epoll_create1", |_| unsafe { epoll_create1(0) }),
    ("epoll_ctl", |things| {
        let mut event = epoll_event { events: 1, u64: 0 };
        // SAFETY: the structure is a local.
        unsafe { epoll_ctl(things.epoll, EPOLL_CTL_ADD, things.event, &mut event) }
    }),
];
const INOTIFY: &[Maker] = &[
    // SAFETY: takes a number.
    ("inotify_init1", |_| unsafe { inotify_init1(0) }),
    ("inotify_add_watch", |things| {
        // SAFETY: the text is constant.
        unsafe { inotify_add_watch(things.inotify, c"/tmp".as_ptr(), IN_CREATE) }
    }),
];
const LOCKS: &[Maker] = &[
    ("fcntl: a record lock", |things| {
        // SAFETY: all zeros is a valid lock: the whole file, for reading.
        let lock: flock = unsafe { zeroed() };
        // SAFETY: the structure is a local.
        unsafe { fcntl(things.file, F_SETLK, &raw const lock) }
    }),
    // SAFETY: takes numbers.
    ("flock", |things| unsafe { flock(things.file, LOCK_SH) }),
];
const FILES: &[Maker] = &[
    // SAFETY: takes numbers.
    ("fcntl: an owner", |things| unsafe {
        fcntl(things.event, F_SETOWN, getpid())
    }),
    // SAFETY: takes numbers.
    ("fcntl: a larger pipe", |things| unsafe {
        fcntl(things.pipe, F_SETPIPE_SZ, 1 << 20)
    }),
    // SAFETY: takes numbers; the descriptor is free.
    ("dup2: a larger table", |_| unsafe { dup2(0, 1000) }),
];
const SEMAPHORES: &[Maker] = &[
    ("semget", |_| {
        // SAFETY: takes numbers.
        let set = unsafe { semget(IPC_PRIVATE, 10, 0o600) };
        // SAFETY: as above.
        set.min(unsafe { semctl(set, 0, IPC_RMID) })
    }),
    ("semop: to be undone", |things| {
        let mut operation = sembuf {
            sem_num: 0,
            sem_op: 1,
            sem_flg: SEM_UNDO as i16,
        };
        // SAFETY: the structure is a local.
        unsafe { semop(things.set, &mut operation, 1) }
    }),
];
const KEPT: &[Maker] = &[
    ("msgget", |_| {
        // SAFETY: takes numbers.
        let queue = unsafe { msgget(IPC_PRIVATE, 0o600) };
        // SAFETY: no structure is written.
        queue.min(unsafe { msgctl(queue, IPC_RMID, null_mut()) })
    }),
    ("shmget", |_| {
        // SAFETY: takes numbers.
        let segment = unsafe { shmget(IPC_PRIVATE, PAGE, 0o600) };
        // SAFETY: no structure is written.
        segment.min(unsafe { shmctl(segment, IPC_RMID, null_mut()) })
    }),
];

/// The memory in KiB that is left for a user while root's calls make objects, and how much of it a
/// process of the user's has; names fill the rest.
const FOR_USER: u64 = 12 << 10;
const OF_PROCESS: usize = 4 << 10;

/// A user has all memory: root's calls wait for that of the user's processes.
fn makers(makers: &[Maker]) -> Outcome {
    let ready = shared_value(AtomicBool::new(false))?;
    let holder = spawn(|| {
        fs::write("/proc/self/oom_score_adj", "-1000")?;
        let size = field("/proc/meminfo", "MemFree")?.saturating_sub(FOR_USER) as usize;
        let area = map(size << 10)?;
        for at in (0..size << 10).step_by(PAGE) {
            poke(area.wrapping_add(at), 1);
        }
        ready.store(true, SeqCst);
        loop {
            pause_ms(1000);
        }
    })?;
    while !ready.load(SeqCst) {
        pause_ms(1);
    }
    let outcome = while_attacking(|| {
        for (name, make) in makers {
            beside_full_memory(make).map_err(|why| format!("{name}: {why}"))?;
        }
        Ok(())
    });
    kill_child(holder)?;
    outcome
}

/// Runs `make` in a process of root's once a user has filled memory.
fn beside_full_memory(make: &fn(&Things) -> c_int) -> Outcome {
    let refused = shared_value(AtomicUsize::new(0))?;
    fs::create_dir_all(FOLDER)?;
    fs::set_permissions(FOLDER, Permissions::from_mode(0o777))?;
    let root = spawn(|| {
        let things = Things {
            event: call!(eventfd(0, 0)),
            epoll: call!(epoll_create1(0)),
            inotify: call!(inotify_init1(0)),
            file: call!(open(
                c"/tmp/locked".as_ptr(),
                O_RDWR | O_CREAT | O_CLOEXEC,
                0o600
            )),
            pipe: pipe(0)?.1,
            set: call!(semget(IPC_PRIVATE, 1, 0o600)),
        };
        let end = Instant::now() + Duration::from_secs(20);
        while refused.load(SeqCst) < REFUSALS {
            ensure!(Instant::now() < end, "memory is not full");
            pause_ms(1);
        }
        let (result, why) = (make(&things), errno());
        call!(semctl(things.set, 0, IPC_RMID));
        ensure!(result >= 0, why);
        Ok(())
    })?;
    let attacker = spawn(|| {
        become_user(USER)?;
        File::create(FILE)?;
        spawn(|| {
            let area = map(OF_PROCESS << 10)?;
            for at in (0..OF_PROCESS << 10).step_by(PAGE) {
                poke(area.wrapping_add(at), 1);
            }
            loop {
                pause_ms(1000);
            }
        })?;
        for number in 0.. {
            match link_to(&long_name("fill", number)) {
                true => refused.store(0, SeqCst),
                false => _ = refused.fetch_add(1, SeqCst),
            }
        }
        Ok(())
    })?;
    let outcome = wait_ok(root);
    kill_users()?;
    let _ = wait(attacker)?;
    fs::remove_dir_all(FOLDER)?;
    outcome
}
