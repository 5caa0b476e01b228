//! Makes random system calls with random arguments, forks, maps and faults: the kernel must survive
//! and get all memory back.
//!
//! usage: `random-calls [--seconds N] [--seed N] [--processes N] [--failing N]`
//!
//! It prints its seed first. Children work for a moment each: as root or as an ordinary user, by
//! the 64-bit entry or by `int 0x80`, alone or with threads beside them. Half of their calls have
//! plausible arguments ([`calls`], [`arguments`]), the others any. Calls that would end the test
//! itself (a power-off, a signal to all processes, a stop of this process) are left out; all
//! others, unknown ones too, are made. The time is divided into rounds; after each, the objects
//! made are removed ([`traces`]), and from round to round no memory may be lost.

mod arguments;
mod calls;
mod traces;

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::{legacy::int80, numbers::Numbers, runner::fail_each};

use arguments::{ARENA, Arguments, PLAYGROUND};
use calls::ROWS;

/// Maximal number of children at a time.
const CHILDREN: usize = 64;

/// Shared by all processes of a run.
struct Shared {
    /// Calls made, and faults that ended a process.
    calls: AtomicU64,
    faults: AtomicU64,
    /// Number of each child's last call, with a bit for `int 0x80`.
    last: [AtomicU32; CHILDREN],
    /// Descriptor of `/dev/null`, whose name the children may remove.
    null: AtomicU32,
}

/// Marks `int 0x80` in [`Shared::last`].
const NARROW: u32 = 1 << 31;

/// Rounds of a run. The first fills caches; the losses of the others are counted.
const ROUNDS: u64 = 6;
/// KiB that all rounds after the first may lose together: per-CPU caches and fragments of the heap.
const LOSS_MAX: i64 = 4096;

/// A child that works.
struct Child {
    pid: libc::pid_t,
    born: Instant,
    /// Its index in [`Shared::last`].
    place: usize,
}

fn main() {
    let mut seconds = 60;
    let mut processes = 4;
    let mut failing = None;
    let mut seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |time| time.as_nanos() as u64);
    let words: Vec<String> = std::env::args().collect();
    for pair in words[1..].chunks(2) {
        let value: Option<u64> = pair.get(1).and_then(|value| value.parse().ok());
        match (pair[0].as_str(), value) {
            ("--seconds", Some(value)) => seconds = value,
            ("--seed", Some(value)) => seed = value,
            ("--processes", Some(value)) if value as usize <= CHILDREN => processes = value,
            ("--failing", Some(value)) => failing = Some(value),
            _ => {
                eprintln!(
                    "usage: random-calls [--seconds N] [--seed N] [--processes N] [--failing N]"
                );
                std::process::exit(2);
            }
        }
    }
    println!("random-calls: seed {seed}, {seconds} s, {processes} processes");
    // SAFETY: a new shared map of the right size; the counters are valid when zero.
    let shared = unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let map = libc::mmap(std::ptr::null_mut(), 4096, 3, flags, -1, 0);
        if map == libc::MAP_FAILED {
            println!("FAIL random-calls: no shared memory");
            std::process::exit(1);
        }
        &*map.cast::<Shared>()
    };
    // Children may set real-time priorities: the process that ends them must still run.
    // SAFETY: a structure with one field, which lives across the call.
    unsafe {
        let highest = libc::sched_param { sched_priority: 99 };
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &highest);
    }
    // Orphans become children of this process, which ends them after each round.
    // SAFETY: an option that takes a number.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    // SAFETY: a set that lives across the call.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &all_signals(true), std::ptr::null_mut()) };
    // SAFETY: opens a file by a string that lives.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    shared.null.store(null as u32, Ordering::Relaxed);
    let mut next = seed;
    let mut died = 0;
    let mut why = None;
    let mut free = Vec::new();
    let mut traces = traces::Traces::new();
    for _ in 0..ROUNDS {
        let end = Instant::now() + Duration::from_secs(seconds) / ROUNDS as u32;
        if let Some(each) = failing {
            fail_each(each);
        }
        let ended = round(shared, &mut next, processes as usize, end);
        if failing.is_some() {
            fail_each(0);
        }
        match ended {
            Ok(count) => died += count,
            Err(stuck) => {
                why = Some(stuck);
                break;
            }
        }
        if let Err(stuck) = traces.end_orphans() {
            why = Some(stuck);
            break;
        }
        traces.remove();
        free.push(traces.free());
        println!("random-calls: frames: {}", traces.uses());
    }
    let calls = shared.calls.load(Ordering::SeqCst);
    let faults = shared.faults.load(Ordering::SeqCst);
    println!("random-calls: {calls} calls, {faults} faults, {died} processes ended");
    println!("random-calls: KiB free after each round: {free:?}");
    if let (None, Some(Some(before)), Some(Some(after))) = (&why, free.first(), free.last()) {
        let lost = before - after;
        if lost > LOSS_MAX {
            why = Some(format!("{lost} KiB were lost"));
        }
    }
    if why.is_none() && calls < 100 * seconds {
        why = Some("too few calls".into());
    }
    match &why {
        None => println!("ok random-calls (seed {seed})"),
        Some(why) => println!("FAIL random-calls (seed {seed}): {why}"),
    }
    std::process::exit(i32::from(why.is_some()));
}

/// Keeps children at work until `end`; returns how many ended.
///
/// Each works for a moment and is then replaced. This polls rather than waits: a child may have
/// stopped itself, or sleep for years.
///
/// # Errors
/// Names the child that could not be ended, and its last call.
fn round(
    shared: &'static Shared,
    next: &mut u64,
    processes: usize,
    end: Instant,
) -> Result<u64, String> {
    let mut children: Vec<Child> = Vec::new();
    let mut died = 0;
    while Instant::now() < end || !children.is_empty() {
        while children.len() < processes && Instant::now() < end {
            *next = next.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let taken = |place| children.iter().any(|child| child.place == place);
            let place = (0..CHILDREN).find(|place| !taken(*place)).unwrap_or(0);
            // SAFETY: this process has one thread; the child goes its own way.
            match unsafe { libc::fork() } {
                0 => work(Numbers::new(*next), shared, place),
                -1 => break,
                pid => children.push(Child {
                    pid,
                    born: Instant::now(),
                    place,
                }),
            }
        }
        std::thread::sleep(Duration::from_millis(5));
        stray_signal()?;
        let mut index = 0;
        while index < children.len() {
            let child = &children[index];
            let age = child.born.elapsed();
            if age > Duration::from_millis(1500) || Instant::now() >= end {
                kill(child.pid);
            }
            if age > Duration::from_secs(30) {
                let last = shared.last[child.place].load(Ordering::Relaxed);
                return Err(format!(
                    "process {} cannot be ended; its last call was {}",
                    child.pid,
                    describe(last)
                ));
            }
            let mut status = 0;
            // SAFETY: writes the status given.
            let found = unsafe { libc::waitpid(child.pid, &mut status, libc::WNOHANG) };
            if found == 0 {
                index += 1;
                continue;
            }
            kill(child.pid);
            died += 1;
            children.swap_remove(index);
        }
        // Some children made siblings (CLONE_PARENT).
        while children.is_empty()
            // SAFETY: a null pointer asks for no status.
            && unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0
        {}
    }
    Ok(died)
}

/// Returns the set of all signals, or the empty one.
fn all_signals(all: bool) -> libc::sigset_t {
    // SAFETY: fills a structure of this function's.
    unsafe {
        let mut set = std::mem::zeroed();
        match all {
            true => libc::sigfillset(&mut set),
            false => libc::sigemptyset(&mut set),
        };
        set
    }
}

/// Checks that no signal came to this process: the children have no way to send one.
///
/// # Errors
/// Names the signal and its sender.
fn stray_signal() -> Result<(), String> {
    let mut set = all_signals(true);
    // SAFETY: structures of this function's.
    let (signal, info) = unsafe {
        libc::sigdelset(&mut set, libc::SIGCHLD);
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let none: libc::timespec = std::mem::zeroed();
        (libc::sigtimedwait(&set, &mut info, &none), info)
    };
    if signal <= 0 {
        return Ok(());
    }
    // SAFETY: a signal that a process sent has its id; another's bytes are a number too.
    let from = unsafe { info.si_pid() };
    Err(format!(
        "signal {signal}, code {}, came from {from}",
        info.si_code
    ))
}

/// Describes a mark in [`Shared::last`].
fn describe(last: u32) -> String {
    let number = i64::from(last & !NARROW);
    let (entry, own) = match last & NARROW != 0 {
        true => ("int 0x80", ROWS.iter().find(|row| row.number_32 == number)),
        false => ("syscall", ROWS.iter().find(|row| row.number == number)),
    };
    let name = own.map_or("", |row| row.name);
    format!("{number} {name} by {entry}")
}

/// Kills a child and, by its group, the children that it left behind.
fn kill(child: libc::pid_t) {
    // SAFETY: the child leads its own group, or is gone.
    unsafe {
        libc::kill(-child, libc::SIGKILL);
        libc::kill(child, libc::SIGKILL);
    }
}

/// Works as a child until its time is over or a call ends it.
fn work(mut numbers: Numbers, shared: &'static Shared, place: usize) -> ! {
    // SAFETY: this process exists to make wild calls. It is in a group of its own and has lost the
    // rights of root half of the time; its standard descriptors lead nowhere.
    unsafe {
        libc::setpgid(0, 0);
        libc::sigprocmask(libc::SIG_SETMASK, &all_signals(false), std::ptr::null_mut());
        let null = shared.null.load(Ordering::Relaxed);
        for descriptor in 0..3 {
            libc::dup2(null as i32, descriptor);
        }
        libc::alarm(1);
        let largest = libc::rlimit {
            rlim_cur: 4 << 20,
            rlim_max: 16 << 20,
        };
        libc::setrlimit(libc::RLIMIT_FSIZE, &largest);
        libc::mkdir(traces::FOLDER.as_ptr(), 0o777);
        libc::chmod(traces::FOLDER.as_ptr(), 0o777);
        libc::chdir(traces::FOLDER.as_ptr());
        for point in traces::MOUNT_POINTS {
            libc::mkdir(point.as_ptr(), 0o777);
        }
        if numbers.below(2) == 0 {
            libc::setgid(1000);
            libc::setuid(1000);
        }
        descriptors();
        let handler = count_fault as *const () as usize;
        FAULTS.store(&raw const shared.faults as usize, Ordering::SeqCst);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        let playground = libc::mmap(std::ptr::null_mut(), PLAYGROUND, 3, flags, -1, 0);
        let narrow = numbers.below(3) == 0;
        let threads = [0, 0, 1, 2][numbers.below(4) as usize];
        for _ in 0..threads {
            let numbers = Numbers::new(numbers.next());
            let playground = playground as u64;
            std::thread::spawn(move || make_calls(numbers, shared, place, narrow, playground));
        }
        make_calls(numbers, shared, place, narrow, playground as u64)
    }
}

/// Opens one of each kind of file.
fn descriptors() {
    let mut ends = [0; 2];
    // SAFETY: plain calls with structures that live across them.
    unsafe {
        libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK);
        libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_NONBLOCK,
            0,
            ends.as_mut_ptr(),
        );
        libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_DGRAM | libc::SOCK_NONBLOCK,
            0,
            ends.as_mut_ptr(),
        );
        libc::eventfd(1, libc::EFD_NONBLOCK);
        libc::epoll_create1(0);
        libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK);
        libc::memfd_create(c"m".as_ptr(), 2);
        libc::open(c"f0".as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o666);
        libc::open(c".".as_ptr(), libc::O_RDONLY);
        libc::open(
            c"/dev/ptmx".as_ptr(),
            libc::O_RDWR | libc::O_NOCTTY | libc::O_NONBLOCK,
        );
        libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
        libc::socket(libc::AF_INET6, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0);
        libc::inotify_init1(libc::IN_NONBLOCK);
    }
}

/// Makes calls for ever.
///
/// # Safety
/// The process exists to make wild calls.
unsafe fn make_calls(
    mut numbers: Numbers,
    shared: &'static Shared,
    place: usize,
    narrow: bool,
    playground: u64,
) -> ! {
    // SAFETY: as the caller says.
    unsafe {
        // An inaccessible page follows, so that nothing else is hit beyond the end.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        let arena = libc::mmap(std::ptr::null_mut(), ARENA + 4096, 3, flags, -1, 0);
        libc::mprotect(arena.byte_add(ARENA), 4096, libc::PROT_NONE);
        let mount_points = traces::MOUNT_POINTS.map(|point| {
            let bytes = point.to_bytes_with_nul();
            let copy = libc::mmap(std::ptr::null_mut(), 4096, 3, flags, -1, 0);
            copy.cast::<u8>().copy_from(bytes.as_ptr(), bytes.len());
            copy as u64
        });
        let mut forks = Forks { depth: 0, left: 6 };
        let seed = numbers.next();
        let mut arguments = Arguments {
            numbers: Numbers::new(seed),
            arena: arena as u64,
            playground,
            narrow,
        };
        loop {
            match numbers.below(40) {
                0 => forks.make(&mut numbers),
                1 if numbers.below(20) == 0 => {
                    // A wild write, which mostly faults.
                    (arguments.absurd() as *mut u8).write_volatile(1);
                }
                2 => {
                    let page = playground + numbers.below(PLAYGROUND as u64);
                    (page as *mut u8).write_volatile(1);
                }
                _ => {
                    let mut a = [0u64; 6];
                    let number = if numbers.below(3) == 0 {
                        for value in &mut a {
                            *value = arguments.absurd();
                        }
                        any_number(&mut numbers)
                    } else {
                        let row = &ROWS[numbers.below(ROWS.len() as u64) as usize];
                        let rest = numbers.below(8) == 0;
                        let mut last = numbers.below(5);
                        for (n, value) in a.iter_mut().enumerate() {
                            *value = match row.kinds.get(n) {
                                Some(kind) if numbers.below(24) != 0 => {
                                    arguments.plausible(*kind, &mut last)
                                }
                                Some(_) => arguments.absurd(),
                                None if rest => arguments.absurd(),
                                None => 0,
                            };
                        }
                        match narrow {
                            true if row.number_32 == 0 => continue,
                            true => row.number_32,
                            false => row.number,
                        }
                    };
                    let mount_point =
                        mount_points[numbers.below(mount_points.len() as u64) as usize];
                    if !calls::is_allowed(number, narrow)
                        || !calls::is_harmless(number, narrow, &mut a, mount_point)
                    {
                        continue;
                    }
                    shared.calls.fetch_add(1, Ordering::Relaxed);
                    let mark = if narrow { NARROW } else { 0 };
                    shared.last[place].store(number as u32 & !NARROW | mark, Ordering::Relaxed);
                    match narrow {
                        true => i64::from(int80(number as u32, a.map(|a| a as u32))),
                        false => libc::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]),
                    };
                }
            }
        }
    }
}

/// Forks that a process may still make.
struct Forks {
    /// Distance from the child that the parent knows.
    depth: u32,
    left: u32,
}

impl Forks {
    /// Makes a child that continues like its parent: by `fork`, or with flags of `clone3`.
    fn make(&mut self, numbers: &mut Numbers) {
        if self.depth >= 2 || self.left == 0 {
            return;
        }
        self.left -= 1;
        // The flags that leave the child a memory of its own.
        const FLAGS: [u64; 12] = [
            0x200,         // CLONE_FS
            0x400,         // CLONE_FILES
            0x800,         // CLONE_SIGHAND, which asks for CLONE_VM
            0x1000,        // CLONE_PIDFD
            0x8000,        // CLONE_PARENT
            0x4_0000,      // CLONE_SYSVSEM
            0x10_0000,     // CLONE_PARENT_SETTID
            0x20_0000,     // CLONE_CHILD_CLEARTID
            0x100_0000,    // CLONE_CHILD_SETTID
            0x1_0000_0000, // CLONE_CLEAR_SIGHAND
            0x8000_0000,   // CLONE_IO
            0x2000_0000,   // CLONE_NEWPID
        ];
        let mut ids = [0u64; 3];
        let mut words = [0u64; 11];
        let count = numbers.below(4);
        for _ in 0..count {
            words[0] |= FLAGS[numbers.below(FLAGS.len() as u64) as usize];
        }
        words[1] = &raw mut ids[0] as u64;
        words[2] = &raw mut ids[1] as u64;
        words[3] = &raw mut ids[2] as u64;
        words[4] = [libc::SIGCHLD as u64, 0, numbers.below(70)][numbers.below(3) as usize];
        let size = [64, 80, 88, numbers.below(4096)][numbers.below(4) as usize];
        // SAFETY: the child goes on as this process, on a copy of its stack.
        let child = unsafe {
            match numbers.below(3) {
                0 => libc::syscall(libc::SYS_clone3, words.as_ptr(), size.min(88)),
                _ => i64::from(libc::fork()),
            }
        };
        if child == 0 {
            *numbers = Numbers::new(!numbers.next());
            // SAFETY: takes a number.
            unsafe { libc::alarm(1) };
            (self.depth, self.left) = (self.depth + 1, 2);
        }
    }
}

static FAULTS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_fault(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: points to the shared counter, which lives as long as the processes; then the process
    // ends.
    unsafe {
        let counter = FAULTS.load(Ordering::SeqCst) as *const AtomicU64;
        (*counter).fetch_add(1, Ordering::Relaxed);
        libc::_exit(0);
    }
}

/// Returns mostly the number of a call, at times any.
fn any_number(numbers: &mut Numbers) -> i64 {
    match numbers.below(50) {
        0 => numbers.next() as i64,
        1 => numbers.below(1000) as i64,
        _ => numbers.below(470) as i64,
    }
}
