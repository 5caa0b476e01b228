//! Calls random system calls with random arguments, forks, maps and faults: the kernel must live.
//!
//! usage: `random-calls [--seconds N] [--seed N] [--processes N]`
//!
//! It prints its seed first. Calls that would end the test itself (a power-off, a signal to all
//! processes, a stop of this process) are left out; all others, unknown ones too, are made.

use std::time::{Duration, Instant};

/// A generator of numbers that look random (xorshift64*).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Shared by all processes of a run: calls made, and children that ended, as plain counts.
struct Shared {
    calls: std::sync::atomic::AtomicU64,
    faults: std::sync::atomic::AtomicU64,
}

/// A region of memory that arguments point into.
const ARENA: usize = 64 * 4096;

fn main() {
    let mut seconds = 60;
    let mut processes = 4;
    let mut seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |time| time.as_nanos() as u64);
    let words: Vec<String> = std::env::args().collect();
    for pair in words[1..].chunks(2) {
        let value: Option<u64> = pair.get(1).and_then(|value| value.parse().ok());
        match (pair[0].as_str(), value) {
            ("--seconds", Some(value)) => seconds = value,
            ("--seed", Some(value)) => seed = value,
            ("--processes", Some(value)) => processes = value,
            _ => {
                eprintln!("usage: random-calls [--seconds N] [--seed N] [--processes N]");
                std::process::exit(2);
            }
        }
    }
    println!("random-calls: seed {seed}, {seconds} s, {processes} processes");
    // SAFETY: a new shared map of the right size; the counters are valid when zero.
    let shared = unsafe {
        let map = libc::mmap(
            std::ptr::null_mut(),
            4096,
            3,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if map == libc::MAP_FAILED {
            println!("FAIL random-calls: no shared memory");
            std::process::exit(1);
        }
        &*map.cast::<Shared>()
    };
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut children: Vec<libc::pid_t> = Vec::new();
    let mut next = seed;
    let mut died = 0u64;
    // Each child works for a moment and is replaced, whatever became of it. Rather than waiting for
    // one it polls: a child may have stopped itself, or sleep for years.
    let mut born = Vec::new();
    while Instant::now() < end {
        while (children.len() as u64) < processes {
            next = next.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            // SAFETY: this process has one thread; the child goes its own way.
            match unsafe { libc::fork() } {
                0 => work(Numbers(next | 1), shared),
                -1 => break,
                child => {
                    children.push(child);
                    born.push(Instant::now());
                }
            }
        }
        std::thread::sleep(Duration::from_millis(5));
        let mut index = 0;
        while index < children.len() {
            let mut status = 0;
            if born[index].elapsed() > Duration::from_millis(1500) {
                kill(children[index]);
            }
            // SAFETY: writes the status given.
            let found = unsafe { libc::waitpid(children[index], &mut status, libc::WNOHANG) };
            if found == 0 {
                index += 1;
                continue;
            }
            kill(children[index]);
            died += 1;
            children.swap_remove(index);
            born.swap_remove(index);
        }
    }
    for &child in &children {
        kill(child);
    }
    for child in children {
        let mut status = 0;
        // SAFETY: writes the status given.
        unsafe { libc::waitpid(child, &mut status, 0) };
    }
    let calls = shared.calls.load(std::sync::atomic::Ordering::SeqCst);
    let faults = shared.faults.load(std::sync::atomic::Ordering::SeqCst);
    println!("random-calls: {calls} calls, {faults} faults, {died} processes ended");
    let enough = calls > 100 * seconds;
    println!(
        "{} random-calls (seed {seed})",
        if enough { "ok" } else { "FAIL" }
    );
    std::process::exit(i32::from(!enough));
}

/// Ends a child and, by its group, what it left behind.
fn kill(child: libc::pid_t) {
    // SAFETY: the child leads its own group, or is gone.
    unsafe {
        libc::kill(-child, libc::SIGKILL);
        libc::kill(child, libc::SIGKILL);
    }
}

/// What a child does until its time is over or it ran into something.
fn work(mut numbers: Numbers, shared: &'static Shared) -> ! {
    // SAFETY: this process is there to do what must not be done. It is in a group of its own,
    // has lost the rights of root half of the time, and has no descriptor but /dev/null and a pipe.
    unsafe {
        libc::setpgid(0, 0);
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for descriptor in 0..3 {
            libc::dup2(null, descriptor);
        }
        let mut ends = [0; 2];
        libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK);
        libc::alarm(1);
        libc::mkdir(c"/tmp/random".as_ptr(), 0o777);
        libc::chdir(c"/tmp/random".as_ptr());
        // A page that cannot be touched follows, so that nothing else is hit beyond the end.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let arena = libc::mmap(std::ptr::null_mut(), ARENA + 4096, 3, flags, -1, 0);
        libc::mprotect(arena.byte_add(ARENA), 4096, libc::PROT_NONE);
        let handler = count_fault as *const () as usize;
        FAULTS.store(
            &raw const shared.faults as usize,
            std::sync::atomic::Ordering::SeqCst,
        );
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        if numbers.below(2) == 0 {
            libc::setgid(1000);
            libc::setuid(1000);
        }
        // How many forks led here from the child that the parent knows, and how many are left.
        let (mut depth, mut forks) = (0, 6);
        loop {
            match numbers.below(40) {
                0 if depth < 2 && forks > 0 => {
                    forks -= 1;
                    if libc::fork() == 0 {
                        numbers.0 ^= 0x1234_5678_9abc_def0;
                        libc::alarm(1);
                        (depth, forks) = (depth + 1, 2);
                    }
                }
                1 => {
                    let protection = numbers.below(8) as i32;
                    let pages = 1 + numbers.below(64) as usize;
                    let map = libc::mmap(
                        std::ptr::null_mut(),
                        pages * 4096,
                        protection,
                        if numbers.below(2) == 0 {
                            libc::MAP_PRIVATE
                        } else {
                            libc::MAP_SHARED
                        } | libc::MAP_ANONYMOUS,
                        -1,
                        0,
                    );
                    if map != libc::MAP_FAILED && protection & libc::PROT_WRITE != 0 {
                        map.cast::<u8>()
                            .add(numbers.below(pages as u64 * 4096) as usize)
                            .write_volatile(1);
                    }
                }
                2 if numbers.below(20) == 0 => {
                    // A wild write, which mostly faults.
                    (argument(&mut numbers, arena as u64) as *mut u8).write_volatile(1);
                }
                _ => {
                    let number = call_number(&mut numbers);
                    if forbidden(number) {
                        continue;
                    }
                    let mut a = [0u64; 6];
                    for value in &mut a {
                        *value = argument(&mut numbers, arena as u64);
                    }
                    if !harmless(number, &mut a) {
                        continue;
                    }
                    shared
                        .calls
                        .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    libc::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
                }
            }
        }
    }
}

static FAULTS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

extern "C" fn count_fault(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: points to the shared counter, which lives as long as the processes; then the process
    // ends.
    unsafe {
        let counter =
            FAULTS.load(std::sync::atomic::Ordering::SeqCst) as *const std::sync::atomic::AtomicU64;
        if libc::getppid() > 0 {
            (*counter).fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        libc::_exit(0);
    }
}

/// Mostly a known call, at times any number.
fn call_number(numbers: &mut Numbers) -> i64 {
    match numbers.below(50) {
        0 => numbers.next() as i64,
        1 => numbers.below(1000) as i64,
        _ => numbers.below(335) as i64,
    }
}

/// A number of a kind that calls take: small, a descriptor, a pointer good or bad, anything.
fn argument(numbers: &mut Numbers, arena: u64) -> u64 {
    match numbers.below(16) {
        0 => 0,
        1 => u64::MAX,
        2 | 3 => numbers.below(8),
        4 => numbers.below(300),
        5 => 1 << numbers.below(64),
        6 => numbers.next(),
        7 => 0xffff_8000_0000_0000 | numbers.below(1 << 40),
        8 => (-100i64) as u64, // AT_FDCWD
        9 => numbers.below(1 << 22) & !0xfff,
        10 => numbers.next() >> numbers.below(64),
        11 => arena + ARENA as u64 - numbers.below(16),
        _ => arena + numbers.below(ARENA as u64),
    }
}

/// Calls that end or disturb the test itself rather than the kernel.
fn forbidden(number: i64) -> bool {
    [
        libc::SYS_reboot,
        libc::SYS_pause,
        libc::SYS_sync,
        libc::SYS_syncfs,
        libc::SYS_vhangup,
        libc::SYS_setsid, // Would leave the group that the parent kills.
        libc::SYS_setpgid,
        libc::SYS_settimeofday,
        libc::SYS_clock_settime,
        libc::SYS_chroot,
        libc::SYS_pivot_root,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_swapoff,
        libc::SYS_ptrace,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_rt_sigreturn,
        // Forks are made above, counted: they must not fill the machine.
        libc::SYS_fork,
        libc::SYS_vfork,
        libc::SYS_clone,
        libc::SYS_clone3,
    ]
    .contains(&number)
}

/// Keeps signals to this process's own group and files to its own folder; false to leave it out.
fn harmless(number: i64, a: &mut [u64; 6]) -> bool {
    match number {
        libc::SYS_kill
        | libc::SYS_tkill
        | libc::SYS_tgkill
        | libc::SYS_rt_sigqueueinfo
        | libc::SYS_rt_tgsigqueueinfo => {
            a[0] = 0; // The own group, or nobody.
            ![libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU]
                .iter()
                .any(|&stop| a[1] as i32 == stop || a[2] as i32 == stop)
        }
        libc::SYS_prlimit64
        | libc::SYS_setpriority
        | libc::SYS_sched_setscheduler
        | libc::SYS_sched_setparam
        | libc::SYS_sched_setaffinity
        | libc::SYS_process_vm_writev => {
            a[0] = 0;
            number != libc::SYS_process_vm_writev
        }
        _ => true,
    }
}
