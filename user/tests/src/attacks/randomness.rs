//! Numbers that should be random, and addresses that should be secret.

use crate::{as_user, while_attacking};
use std::ops::Range;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    (
        "attacks: random bytes before the generator is seeded",
        before_seeding,
    ),
    (
        "attacks: random bytes of parent, child and all CPUs at once",
        streams,
    ),
    ("attacks: interrupted waits for random bytes", interrupted),
    ("attacks: entropy that a user makes up", made_up_entropy),
    (
        "attacks: kernel addresses in files that everybody reads",
        addresses_in_files,
    ),
    (
        "attacks: kernel addresses in what calls return",
        addresses_in_answers,
    ),
    (
        "attacks: kernel addresses in a signal's frame",
        addresses_in_frames,
    ),
];

/// Flag of `getrandom`: whatever there is.
const GRND_INSECURE: c_uint = 4;
/// `ioctl`s of `/dev/random`: add bits, add bytes, make a new key.
const RNDADDTOENTCNT: c_ulong = 0x4004_5201;
const RNDADDENTROPY: c_ulong = 0x4008_5203;
const RNDRESEEDCRNG: c_ulong = 0x5207;
const RNDGETENTCNT: c_ulong = 0x8004_5200;

/// Returns random bytes, or the error of `getrandom`.
fn random_bytes<const N: usize>(flags: c_uint) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let count = call!(getrandom(bytes.as_mut_ptr().cast(), N, flags));
    equal!(count as usize, N);
    Ok(bytes)
}

fn entropy() -> Result<u32> {
    Ok(read_text("/proc/sys/kernel/random/entropy_avail")?
        .trim()
        .parse()?)
}

/// As long as the pool is not full, bytes are refused or waited for, except where a program says
/// that it takes any. The wait ends, on a machine without a source too.
fn before_seeding() -> Outcome {
    as_user(|| {
        let random = call!(open(c"/dev/random".as_ptr(), O_RDONLY | O_NONBLOCK));
        let mut byte = 0u8;
        let start = Instant::now();
        let unseeded = entropy()? < 256;
        if unseeded {
            refused!(EAGAIN, getrandom((&raw mut byte).cast(), 1, GRND_NONBLOCK));
            refused!(EAGAIN, read(random, (&raw mut byte).cast(), 1));
            let mut ready = poll_entry(random, POLLIN);
            equal!(call!(poll(&mut ready, 1, 0)), 0);
        }
        let (first, second) = (
            random_bytes::<16>(GRND_INSECURE)?,
            random_bytes::<16>(GRND_INSECURE)?,
        );
        ensure!(first != second, "the same bytes came twice");
        equal!(read_bytes(&File::open("/dev/urandom")?, 16)?.len(), 16);
        ensure!(start.elapsed() < Duration::from_secs(5), start.elapsed());
        // A writer knows what it writes.
        fs::write("/dev/random", [7; 4096])?;
        if unseeded {
            refused!(EAGAIN, getrandom((&raw mut byte).cast(), 1, GRND_NONBLOCK));
        }
        random_bytes::<16>(0)?;
        ensure!(start.elapsed() < Duration::from_secs(20), start.elapsed());
        equal!(entropy()?, 256);
        random_bytes::<16>(GRND_NONBLOCK)?;
        let mut ready = poll_entry(random, POLLIN);
        equal!(call!(poll(&mut ready, 1, 0)), 1);
        equal!(call!(read(random, (&raw mut byte).cast(), 1)), 1);
        Ok(())
    })
}

/// No eight bytes come twice: not to a parent and its child, not on two CPUs.
fn streams() -> Outcome {
    /// Words of each process in a round.
    const WORDS: usize = 512;
    as_user(|| {
        let processes = 2 * cpus();
        let shared = shared_map(processes * WORDS * 8)?.cast::<u64>();
        let mut seen = BTreeSet::new();
        while_attacking(|| {
            let mut children = Vec::new();
            for place in 0..processes {
                // The parent draws between the forks, from the generator that the child finds.
                ensure!(
                    seen.insert(u64::from_ne_bytes(random_bytes(0)?)),
                    "a word came twice"
                );
                children.push(spawn(|| {
                    // SAFETY: the child's own part of the map.
                    let part =
                        unsafe { std::slice::from_raw_parts_mut(shared.add(place * WORDS), WORDS) };
                    for (n, word) in part.iter_mut().enumerate() {
                        let bytes = match n % 3 {
                            0 => random_bytes(0)?,
                            // Larger than what a generator keeps.
                            1 => *random_bytes::<304>(0)?.last_chunk().unwrap(),
                            _ => {
                                let bytes = read_bytes(&File::open("/dev/urandom")?, 8)?;
                                *bytes.last_chunk().unwrap()
                            }
                        };
                        *word = u64::from_ne_bytes(bytes);
                    }
                    Ok(())
                })?);
            }
            for child in children {
                wait_ok(child)?;
            }
            // SAFETY: the children have ended.
            let all = unsafe { std::slice::from_raw_parts(shared, processes * WORDS) };
            let mut ones = 0;
            for word in all {
                ensure!(seen.insert(*word), format!("{word:#x} came twice"));
                ones += word.count_ones() as i64;
            }
            // Ten standard deviations of the number of ones.
            let bits = (all.len() * 64) as i64;
            let limit = 5 * bits.isqrt();
            ensure!(
                (ones - bits / 2).abs() < limit,
                format!("{ones} ones of {bits} bits")
            );
            if seen.len() > 1 << 20 {
                seen.clear();
            }
            Ok(())
        })
    })
}

/// Many waiters, whose waits signals end: nothing is lost or stuck.
fn interrupted() -> Outcome {
    as_user(|| {
        while_attacking(|| {
            let mut children = Vec::new();
            for _ in 0..8 {
                children.push(spawn(|| {
                    handle(SIGALRM, ignore_signal, 0)?;
                    let timer = timer_val(300, 300);
                    call!(setitimer(ITIMER_REAL, &timer, null_mut()));
                    for _ in 0..20 {
                        let mut bytes = vec![0u8; 1 << 16];
                        // SAFETY: the buffer has this length.
                        let count = unsafe { getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
                        if count == -1 {
                            equal!(errno(), EINTR);
                            continue;
                        }
                        let got = &bytes[..count as usize];
                        // Small requests are not cut.
                        ensure!(got.len() >= 256, got.len());
                        let zeros = got.iter().filter(|byte| **byte == 0).count();
                        ensure!(zeros < 16 + got.len() / 64, zeros);
                    }
                    Ok(())
                })?);
            }
            for child in children {
                wait_ok(child)?;
            }
            Ok(())
        })
    })
}

/// Only root can say that there is entropy, or make a new key.
fn made_up_entropy() -> Outcome {
    as_user(|| {
        let before = entropy()?;
        for name in [c"/dev/random", c"/dev/urandom"] {
            let random = call!(open(name.as_ptr(), O_RDWR));
            let mut bits: c_int = 8;
            let info: [c_int; 10] = [64, 32, 1, 2, 3, 4, 5, 6, 7, 8];
            refused!(EPERM, ioctl(random, RNDADDTOENTCNT, &raw const bits));
            refused!(EPERM, ioctl(random, RNDADDENTROPY, info.as_ptr()));
            refused!(EPERM, ioctl(random, RNDRESEEDCRNG));
            call!(ioctl(random, RNDGETENTCNT, &raw mut bits));
            ensure!(bits as u32 >= before, bits);
            for _ in 0..64 {
                equal!(call!(write(random, info.as_ptr().cast(), 40)), 40);
            }
            call!(close(random));
        }
        while_attacking(|| {
            fs::write("/dev/urandom", [0xff; 8192])?;
            random_bytes::<64>(GRND_INSECURE)?;
            Ok(())
        })
    })
}

/// Returns whether a word looks like an address of the kernel's: of memory that it maps somewhere
/// in the upper half, or of its image. Small negative numbers, the page of old system calls, which
/// is at the same place everywhere, and the limit of shared memory do not.
fn is_kernel_address(word: u64) -> bool {
    const OLD_CALLS: u64 = 0xffff_ffff_ff60_0000;
    const SHMALL: u64 = u64::MAX - (1 << 24);
    const MEMORY: Range<u64> = 0xffff_8000_0000_0000..0xffff_ff80_0000_0000;
    const IMAGE: Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_ffff_0000;
    word != SHMALL
        && (MEMORY.contains(&word) || IMAGE.contains(&word))
        && !(OLD_CALLS..=OLD_CALLS + 0x1000).contains(&word)
}

/// No eight bytes of `bytes` at a multiple of four are an address of the kernel's.
fn check_bytes(what: &str, bytes: &[u8]) -> Outcome {
    for (n, part) in bytes.windows(8).enumerate().step_by(4) {
        let word = u64::from_ne_bytes(part.try_into().unwrap());
        ensure!(
            !is_kernel_address(word),
            format!("{what}: {word:#x} at byte {n}")
        );
    }
    Ok(())
}

/// No number in `text`, decimal or hexadecimal, is an address of the kernel's.
fn check_text(what: &str, text: &str) -> Outcome {
    for word in text.split(|letter: char| !letter.is_ascii_alphanumeric()) {
        let digits = word.trim_start_matches("0x");
        let both = [u64::from_str_radix(digits, 16), digits.parse()];
        let is_hexadecimal = digits.len() == 16;
        let secret = both[1].clone().is_ok_and(is_kernel_address)
            || is_hexadecimal && both[0].clone().is_ok_and(is_kernel_address);
        ensure!(!secret, format!("{what}: {word}"));
    }
    Ok(())
}

/// Reads what an ordinary user may read of `/proc` and `/sys`, and looks for addresses.
fn addresses_in_files() -> Outcome {
    /// Files with these names wait, or measure.
    const SLOW: [&str; 4] = ["kmsg", "hw_cost", "floors", "pagemap"];
    /// Bytes that are read of a file at most.
    const MOST: usize = 1 << 18;
    fn look(folder: &Path, depth: usize, files: &mut usize) -> Outcome {
        let Ok(list) = fs::read_dir(folder) else {
            return Ok(());
        };
        for entry in list.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() && depth > 0 {
                look(&path, depth - 1, files)?;
            }
            if !kind.is_file() || SLOW.contains(&&*name) || name == "mem" {
                continue;
            }
            let open = fs::OpenOptions::new()
                .read(true)
                .custom_flags(O_NONBLOCK)
                .open(&path);
            let mut bytes = Vec::new();
            let Ok(file) = open else {
                continue;
            };
            // What can be read of a file that then fails counts too.
            let _ = file.take(MOST as u64).read_to_end(&mut bytes);
            let what = path.display().to_string();
            match std::str::from_utf8(&bytes) {
                Ok(text) => check_text(&what, text)?,
                Err(_) => check_bytes(&what, &bytes)?,
            }
            *files += 1;
        }
        Ok(())
    }
    // Programs and sockets of another user, to be listed.
    let other = spawn_sleeper()?;
    let _pair = socket_pair(SOCK_STREAM)?;
    let _listener = TcpListener::bind("127.0.0.1:0")?;
    as_user(|| {
        let mut files = 0;
        while_attacking(|| {
            files = 0;
            look(Path::new("/proc"), 4, &mut files)?;
            look(Path::new("/sys"), 8, &mut files)
        })?;
        ensure!(files > 100, files);
        Ok(())
    })?;
    kill_child(other)?;
    Ok(())
}

/// A buffer for a structure, filled with bytes that are no address.
struct Answer([u64; 512]);

impl Answer {
    fn new() -> Answer {
        Answer([0x5a5a_5a5a_5a5a_5a5a; 512])
    }

    fn at<T>(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }

    fn check(&self, what: &str) -> Outcome {
        let bytes = self.0.map(u64::to_ne_bytes);
        check_bytes(what, bytes.as_flattened())
    }
}

/// Fields and what is between them, of structures that calls fill in.
fn addresses_in_answers() -> Outcome {
    /// Makes a call whose last argument but for others is the answer, and looks at this.
    macro_rules! answers {
        ($($name:literal, $answer:ident => $call:expr;)*) => {$(
            let mut $answer = Answer::new();
            // SAFETY: the answer is larger than what the call writes.
            unsafe { $call };
            $answer.check($name)?;
        )*};
    }
    as_user(|| {
        let pair = socket_pair(SOCK_STREAM)?;
        let end = pair[0].as_raw_fd();
        let tcp = TcpListener::bind("127.0.0.1:0")?;
        let tcp = tcp.as_raw_fd();
        let folder = File::open("/proc/self")?;
        let folder = folder.as_raw_fd();
        let segment = call!(shmget(IPC_PRIVATE, PAGE, 0o600));
        let queue = call!(msgget(IPC_PRIVATE, 0o600));
        let set = call!(semget(IPC_PRIVATE, 3, 0o600));
        let events = call!(epoll_create1(0));
        let mut wanted = epoll_event {
            events: EPOLLOUT as u32,
            u64: 7,
        };
        call!(epoll_ctl(events, EPOLL_CTL_ADD, end, &mut wanted));
        let mut length = 1024 as socklen_t;
        while_attacking(|| {
            answers! {
                "stat", to => stat(c"/proc/self/exe".as_ptr(), to.at());
                "fstat of a socket", to => fstat(end, to.at());
                "statx", to => statx(AT_FDCWD, c"/dev/null".as_ptr(), 0, 0xfff, to.at());
                "statfs", to => statfs(c"/proc".as_ptr(), to.at());
                "getdents64", to => syscall(SYS_getdents64, folder, to.at::<u8>(), 4096);
                "getdents", to => syscall(SYS_getdents, folder, to.at::<u8>(), 4096);
                "getrusage", to => getrusage(RUSAGE_SELF, to.at());
                "sysinfo", to => sysinfo(to.at());
                "uname", to => uname(to.at());
                "times", to => times(to.at());
                "adjtimex", to => {
                    to.at::<u32>().write(0);
                    adjtimex(to.at())
                };
                "getitimer", to => getitimer(ITIMER_REAL, to.at());
                "prlimit", to => prlimit(0, RLIMIT_NOFILE, null(), to.at());
                "sigaltstack", to => sigaltstack(null(), to.at());
                "sigaction", to => syscall(SYS_rt_sigaction, SIGUSR1, 0, to.at::<u8>(), 8);
                "sched_getattr", to => syscall(SYS_sched_getattr, 0, to.at::<u8>(), 56, 0);
                "getsockname", to => getsockname(end, to.at(), &mut length);
                "SO_PEERCRED", to => getsockopt(end, SOL_SOCKET, SO_PEERCRED, to.at(), &mut length);
                "TCP_INFO", to => getsockopt(tcp, IPPROTO_TCP, TCP_INFO, to.at(), &mut length);
                "SIOCGIFCONF", to => {
                    to.at::<i32>().write(2048);
                    to.at::<u64>().add(1).write(to.at::<u64>().add(8) as u64);
                    ioctl(tcp, 0x8912, to.at::<u8>())
                };
                "shmctl", to => shmctl(segment, IPC_STAT, to.at());
                "msgctl", to => msgctl(queue, IPC_STAT, to.at());
                "semctl", to => semctl(set, 0, IPC_STAT, to.at::<u8>());
                "IPC_INFO", to => shmctl(0, 3, to.at());
                "epoll_wait", to => epoll_wait(events, to.at(), 8, 0);
                "fcntl F_GETLK", to => fcntl(folder, F_GETLK, to.at::<flock>());
                "rt_sigpending", to => syscall(SYS_rt_sigpending, to.at::<u8>(), 8);
                "capget", to => syscall(SYS_capget, &raw const length, to.at::<u8>());
                "get_robust_list", to =>
                    syscall(SYS_get_robust_list, 0, to.at::<u64>(), to.at::<u64>().add(1));
            }
            // Of a signal that was queued, of a child that has ended.
            block(&[SIGUSR1])?;
            for how in ["kill", "sigqueue"] {
                let value = sigval {
                    sival_ptr: null_mut(),
                };
                match how {
                    "kill" => call!(kill(getpid(), SIGUSR1)),
                    _ => call!(sigqueue(getpid(), SIGUSR1, value)),
                };
                let set = set_of(&[SIGUSR1]);
                answers! { "sigwaitinfo", to => sigwaitinfo(&set, to.at()); }
            }
            let child = spawn(|| Ok(()))?;
            answers! { "waitid", to => waitid(P_PID, child as id_t, to.at(), WEXITED); }
            Ok(())
        })?;
        call!(shmctl(segment, IPC_RMID, null_mut()));
        call!(msgctl(queue, IPC_RMID, null_mut()));
        call!(semctl(set, 0, IPC_RMID));
        Ok(())
    })
}

/// What a handler finds on its stack: registers, FPU state, and all below that was free.
fn addresses_in_frames() -> Outcome {
    static FOUND: AtomicU64 = AtomicU64::new(0);
    extern "C" fn handler(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
        // The frame, and what was written around it.
        let start = context as usize & !(PAGE - 1);
        for word in (start..start + PAGE).step_by(8) {
            // SAFETY: the alternate stack, whose pages are mapped.
            let word = unsafe { (word as *const u64).read_volatile() };
            if is_kernel_address(word) {
                FOUND.store(word, SeqCst);
            }
        }
    }
    as_user(|| {
        let stack = map(16 * PAGE)?;
        let alternate = stack_t {
            ss_sp: stack.cast(),
            ss_flags: 0,
            ss_size: 16 * PAGE,
        };
        call!(sigaltstack(&alternate, null_mut()));
        // SAFETY: all zeros is a valid one.
        let mut action: sigaction = unsafe { zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        call!(sigaction(SIGUSR1, &action, null_mut()));
        while_attacking(|| {
            for _ in 0..200 {
                call!(raise(SIGUSR1));
            }
            let found = FOUND.load(SeqCst);
            ensure!(found == 0, format!("{found:#x}"));
            Ok(())
        })
    })
}
