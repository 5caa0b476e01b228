//! Bombs: as much of one kind of kernel object as an ordinary user can have, in as many processes.
//!
//! Beside each of them a small program of root's, as a shell is one, goes on taking a little memory
//! and making processes: it must live, and get on. What the bomb took must be back afterwards.
//!
//! - [`queues`]: data on its way. [`memory`]: memory by other names. [`loans`]:
//!   pages with several owners.
//! - Here: all other objects.

pub mod loans;
pub mod memory;
pub mod queues;

use std::sync::OnceLock;

use crate::{USER, become_user, processes_of_user, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("attacks: bombs: sets of semaphores", semaphores),
    ("attacks: bombs: watches of epolls", epolls),
    ("attacks: bombs: watches of directories", watches),
    ("attacks: bombs: open files", open_files),
    ("attacks: bombs: texts that stay open", texts),
    ("attacks: bombs: operations to be undone", undos),
    ("attacks: bombs: timers", timers),
    ("attacks: bombs: tables of descriptors", descriptors),
    (
        "attacks: bombs: tables of descriptors, and no fault that tells",
        descriptors_to_the_last,
    ),
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
    bomb_until(workers, || Ok(true), fill)
}

/// As [`bomb_of`], until the kernel has ended processes, since no memory was left. With swap space
/// it is not waited for: the pagedaemon looks at all of memory before each end.
fn bomb_until_killed(workers: usize, fill: impl Fn() -> Outcome) -> Outcome {
    let kills = || field("/proc/causeway/counters", "out_of_memory_kills");
    let before = kills()?;
    let has_swap = field("/proc/meminfo", "SwapTotal")? > 0;
    bomb_until(workers, || Ok(has_swap || kills()? > before + 1), fill)
}

fn bomb_until(
    workers: usize,
    is_enough: impl Fn() -> Result<bool>,
    fill: impl Fn() -> Outcome,
) -> Outcome {
    let rounds = shared_value(AtomicUsize::new(0))?;
    let loot = shared_value(Loot {
        count: AtomicUsize::new(0),
        strange: AtomicUsize::new(0),
    })?;
    LOOT.get_or_init(|| loot);
    // The processor time of a thousand others is theirs: this is about memory.
    call!(setpriority(PRIO_PROCESS, 0, -20));
    let shell = spawn(|| be_shell(rounds))?;
    // Each ends by an error of the call that is refused, or is killed.
    let culprit = spawn_crowd(workers, fill)?;
    let result = while_attacking(|| {
        pause_ms(100);
        Ok(())
    });
    let end = Instant::now() + Duration::from_secs(20);
    while !is_enough()? && Instant::now() < end {
        pause_ms(10);
    }
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

/// Starts a process of the user that starts `workers` of its own, which run `body` and keep what
/// they got until they are killed.
fn spawn_crowd(workers: usize, body: impl Fn() -> Outcome) -> Result<pid_t> {
    spawn(|| {
        call!(setpriority(PRIO_PROCESS, 0, 0));
        become_user(USER)?;
        for _ in 0..workers {
            spawn(|| {
                let _ = noted(body());
                sleep_forever()
            })?;
        }
        sleep_forever()
    })
}

/// Runs `test` while processes may have `most` descriptors each, as services may.
fn with_descriptors(most: u64, test: impl FnOnce() -> Outcome) -> Outcome {
    let mut before = limit_of(0);
    call!(getrlimit(RLIMIT_NOFILE, &mut before));
    call!(setrlimit(RLIMIT_NOFILE, &limit_of(most)));
    let outcome = test();
    call!(setrlimit(RLIMIT_NOFILE, &before));
    outcome
}

/// Goes on as a shell does: touches its memory, takes some, starts processes.
fn be_shell(rounds: &AtomicUsize) -> Outcome {
    let own = map(SHELL * PAGE)?;
    loop {
        touch(own, SHELL * PAGE, 1);
        let more = map(32 * PAGE)?;
        touch(more, 32 * PAGE, 1);
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

fn semaphores() -> Outcome {
    bomb_of(4, || {
        until_refused(|| {
            call!(semget(IPC_PRIVATE, 32_000, 0o600));
            Ok(())
        })
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

/// As many files as a user's processes may have open, each opened by itself.
fn open_files() -> Outcome {
    bomb_of(1, || {
        until_refused(|| {
            spawn(|| {
                // SAFETY: sets a limit of this process from a local.
                unsafe { setrlimit(RLIMIT_NOFILE, &limit_of(4096)) };
                // SAFETY: takes and returns numbers.
                while unsafe { memfd_create(c"bomb".as_ptr(), 0) } >= 0 {}
                sleep_forever()
            })?;
            Ok(())
        })
    })
}

/// The text of a file that is read stays as long as it is open.
fn texts() -> Outcome {
    bomb(|| {
        map_of_entries(2000)?;
        until_refused(|| {
            let mut file = File::open("/proc/self/smaps")?;
            file.read_exact(&mut [0; 100])?;
            mem::forget(file);
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
                    // SAFETY: the operation is a local; it may be refused.
                    unsafe { semop(set, &mut undone_raise(0), 1) };
                }
                sleep_forever()
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

/// As many descriptors as a process may have.
const MOST_DESCRIPTORS: u64 = 1 << 20;

/// Processes of a user that may have many descriptors: each with the largest table, for one file.
fn descriptors() -> Outcome {
    let fill = || {
        until_refused(|| {
            spawn(|| {
                call!(dup2(0, MOST_DESCRIPTORS as c_int - 1));
                sleep_forever()
            })?;
            Ok(())
        })
    };
    with_descriptors(MOST_DESCRIPTORS, || bomb_of(1, fill))
}

/// Tables of descriptors until not even a small one is to be had. The kernel gives them memory that
/// page tables and stacks do not get, so nothing is short but for who forks, or starts a program:
/// root's program, which must get it.
fn descriptors_to_the_last() -> Outcome {
    with_descriptors(MOST_DESCRIPTORS, tables_to_the_last)
}

fn tables_to_the_last() -> Outcome {
    const LEAST: u64 = 1 << 12;
    /// More of the largest table than there is memory for.
    const TABLES: usize = 48;
    let (begun, done) = (
        shared_value(AtomicUsize::new(0))?,
        shared_value(AtomicUsize::new(0))?,
    );
    let culprit = spawn_crowd(TABLES, || {
        begun.fetch_add(1, SeqCst);
        while begun.load(SeqCst) < TABLES {
            pause_ms(1);
        }
        let mut size = MOST_DESCRIPTORS;
        while size >= LEAST {
            // SAFETY: takes and returns numbers.
            match unsafe { dup2(0, size as c_int - 1) } {
                -1 => size /= 2,
                _ => break,
            }
        }
        done.fetch_add(1, SeqCst);
        Ok(())
    })?;
    // The kernel may have ended some of them already.
    for _ in 0..1000 {
        if done.load(SeqCst) == TABLES {
            break;
        }
        pause_ms(10);
    }
    let mut refused = 0;
    for _ in 0..20 {
        // SAFETY: the child ends at once.
        match unsafe { fork() } {
            -1 => refused += 1,
            0 => exit(0),
            pid => drop(wait(pid)?),
        }
        refused += usize::from(Command::new("/bin/true").status().is_err());
    }
    // Whatever came of it, the memory goes back.
    // SAFETY: a process of this test's.
    unsafe { kill(culprit, SIGKILL) };
    kill_users()?;
    let _ = wait(culprit)?;
    println!("  {} tables", done.load(SeqCst));
    ensure!(refused == 0, refused);
    Ok(())
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
                let mut steps = [allowing_step(); 1000];
                let program = filter_of(&mut steps);
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
                touch(memory, 64 * PAGE, 1);
                sleep_forever()
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
