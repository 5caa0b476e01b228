//! A bad pointer gives `EFAULT`, in every call and for every kind of bad address.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("bad pointers: every call", every_call),
    ("bad pointers: a string without an end", endless_string),
    ("bad pointers: at the edge of a map", edge),
    (
        "bad pointers: nothing is written before the check fails",
        read_only_output,
    ),
];

/// Addresses that are never accessible: near zero, not mapped, the kernel's half, the hole between
/// the halves, the last bytes.
const BAD: [u64; 7] = [
    1,
    0x7000,
    0xffff_8000_0000_1000,
    0xffff_ffff_8000_0000,
    0x1111_0000_0000_0000,
    0x0000_7fff_ffff_fff0,
    0xffff_ffff_ffff_fff8,
];

/// An argument of a call.
#[derive(Clone, Copy)]
enum A {
    /// The pointer under test.
    P,
    /// A file that can be read and written.
    F,
    /// The end of a pipe to read from, and to write to.
    R,
    W,
    /// A path that exists.
    Path,
    /// Memory that may be read and written.
    Ok,
    /// A number.
    N(u64),
}

use A::{F, N, Ok as M, P, Path, R, W};

/// The working directory.
const AT: A = N(AT_FDCWD as u64);

/// Calls with one pointer argument each; the others are right.
const CALLS: &[(&str, c_long, &[A])] = &[
    ("read", SYS_read, &[F, P, N(8)]),
    ("read a pipe", SYS_read, &[R, P, N(8)]),
    ("write", SYS_write, &[F, P, N(8)]),
    ("write a pipe", SYS_write, &[W, P, N(8)]),
    ("open", SYS_open, &[P, N(0), N(0)]),
    ("stat", SYS_stat, &[P, M]),
    ("stat to", SYS_stat, &[Path, P]),
    ("fstat", SYS_fstat, &[F, P]),
    ("lstat", SYS_lstat, &[Path, P]),
    ("poll", SYS_poll, &[P, N(1), N(0)]),
    ("rt_sigaction", SYS_rt_sigaction, &[N(10), P, N(0), N(8)]),
    ("rt_sigaction to", SYS_rt_sigaction, &[N(10), N(0), P, N(8)]),
    ("rt_sigprocmask", SYS_rt_sigprocmask, &[N(0), P, N(0), N(8)]),
    (
        "rt_sigprocmask to",
        SYS_rt_sigprocmask,
        &[N(0), N(0), P, N(8)],
    ),
    ("ioctl FIONREAD", SYS_ioctl, &[R, N(FIONREAD), P]),
    ("pread64", SYS_pread64, &[F, P, N(8), N(0)]),
    ("pwrite64", SYS_pwrite64, &[F, P, N(8), N(0)]),
    ("readv", SYS_readv, &[F, P, N(1)]),
    ("writev", SYS_writev, &[F, P, N(1)]),
    ("access", SYS_access, &[P, N(0)]),
    ("pipe", SYS_pipe, &[P]),
    ("pipe2", SYS_pipe2, &[P, N(0)]),
    ("select", SYS_select, &[N(8), P, N(0), N(0), N(0)]),
    ("select time", SYS_select, &[N(0), N(0), N(0), N(0), P]),
    ("nanosleep", SYS_nanosleep, &[P, N(0)]),
    ("getitimer", SYS_getitimer, &[N(0), P]),
    ("setitimer", SYS_setitimer, &[N(0), P, N(0)]),
    ("execve", SYS_execve, &[P, N(0), N(0)]),
    ("wait4", SYS_wait4, &[N(u64::MAX), P, N(0), N(0)]),
    ("uname", SYS_uname, &[P]),
    ("getcwd", SYS_getcwd, &[P, N(100)]),
    ("chdir", SYS_chdir, &[P]),
    ("rename", SYS_rename, &[P, Path]),
    ("rename to", SYS_rename, &[Path, P]),
    ("mkdir", SYS_mkdir, &[P, N(0o700)]),
    ("rmdir", SYS_rmdir, &[P]),
    ("creat", SYS_creat, &[P, N(0o600)]),
    ("link", SYS_link, &[P, Path]),
    ("unlink", SYS_unlink, &[P]),
    ("symlink", SYS_symlink, &[P, Path]),
    ("readlink", SYS_readlink, &[P, M, N(8)]),
    ("chmod", SYS_chmod, &[P, N(0o600)]),
    ("chown", SYS_chown, &[P, N(0), N(0)]),
    ("gettimeofday", SYS_gettimeofday, &[P, N(0)]),
    ("getrlimit", SYS_getrlimit, &[N(0), P]),
    ("setrlimit", SYS_setrlimit, &[N(0), P]),
    ("getrusage", SYS_getrusage, &[N(0), P]),
    ("sysinfo", SYS_sysinfo, &[P]),
    ("times", SYS_times, &[P]),
    ("rt_sigpending", SYS_rt_sigpending, &[P, N(8)]),
    (
        "rt_sigtimedwait",
        SYS_rt_sigtimedwait,
        &[P, N(0), N(0), N(8)],
    ),
    ("rt_sigsuspend", SYS_rt_sigsuspend, &[P, N(8)]),
    ("sigaltstack", SYS_sigaltstack, &[P, N(0)]),
    ("sigaltstack to", SYS_sigaltstack, &[N(0), P]),
    ("mknod", SYS_mknod, &[P, N(0o10600), N(0)]),
    ("prctl name", SYS_prctl, &[N(15), P]),
    ("prctl name to", SYS_prctl, &[N(16), P]),
    ("time", SYS_time, &[P]),
    (
        "sched_getaffinity",
        SYS_sched_getaffinity,
        &[N(0), N(128), P],
    ),
    ("getdents64", SYS_getdents64, &[N(u64::MAX - 1), P, N(100)]),
    ("clock_gettime", SYS_clock_gettime, &[N(0), P]),
    ("clock_getres", SYS_clock_getres, &[N(0), P]),
    (
        "clock_nanosleep",
        SYS_clock_nanosleep,
        &[N(0), N(0), P, N(0)],
    ),
    ("utimes", SYS_utimes, &[P, N(0)]),
    ("utimensat", SYS_utimensat, &[AT, P, N(0), N(0)]),
    ("utimensat times", SYS_utimensat, &[AT, Path, P, N(0)]),
    ("openat", SYS_openat, &[AT, P, N(0)]),
    ("mkdirat", SYS_mkdirat, &[AT, P, N(0o700)]),
    ("newfstatat", SYS_newfstatat, &[AT, P, M, N(0)]),
    ("newfstatat to", SYS_newfstatat, &[AT, Path, P, N(0)]),
    ("statx", SYS_statx, &[AT, P, N(0), N(0xfff), M]),
    ("statx to", SYS_statx, &[AT, Path, N(0), N(0xfff), P]),
    ("unlinkat", SYS_unlinkat, &[AT, P, N(0)]),
    ("renameat", SYS_renameat, &[AT, P, AT, Path]),
    ("linkat", SYS_linkat, &[AT, P, AT, Path, N(0)]),
    ("symlinkat", SYS_symlinkat, &[P, AT, Path]),
    ("readlinkat", SYS_readlinkat, &[AT, P, M, N(8)]),
    ("fchmodat", SYS_fchmodat, &[AT, P, N(0o600)]),
    ("faccessat", SYS_faccessat, &[AT, P, N(0)]),
    ("ppoll", SYS_ppoll, &[P, N(1), N(0), N(0), N(8)]),
    ("ppoll time", SYS_ppoll, &[N(0), N(0), P, N(0), N(8)]),
    ("prlimit64", SYS_prlimit64, &[N(0), N(0), N(0), P]),
    ("getrandom", SYS_getrandom, &[P, N(8), N(0)]),
    ("preadv", SYS_preadv, &[F, P, N(1), N(0), N(0)]),
    ("pwritev", SYS_pwritev, &[F, P, N(1), N(0), N(0)]),
    ("truncate", SYS_truncate, &[P, N(0)]),
    ("statfs", SYS_statfs, &[P, M]),
    ("fstatfs", SYS_fstatfs, &[F, P]),
    ("fcntl lock", SYS_fcntl, &[F, N(F_GETLK as u64), P]),
    ("mount", SYS_mount, &[N(0), P, N(0), N(0), N(0)]),
    ("sethostname", SYS_sethostname, &[P, N(5)]),
    ("capget", SYS_capget, &[P, N(0)]),
];

fn every_call() -> Outcome {
    let (path, open) = file("pointers", b"0123456789abcdef")?;
    let path = c(&path);
    let (reader, writer) = pipe(0)?;
    let good = map(PAGE)?;
    // A child for wait4 to find.
    let folder = call!(open(c"/".as_ptr(), O_RDONLY));
    let mut wrong = Vec::new();
    for &(name, number, arguments) in CALLS {
        for bad in BAD {
            let child = match name {
                "wait4" => Some(spawn(|| Ok(()))?),
                _ => None,
            };
            if name == "read a pipe" || name.contains("FIONREAD") {
                call!(write(writer, b"12345678".as_ptr().cast(), 8));
            }
            call!(lseek(open, 0, SEEK_SET));
            let mut values = [0u64; 6];
            for (value, argument) in values.iter_mut().zip(arguments) {
                *value = match argument {
                    P => bad,
                    F => open as u64,
                    R => reader as u64,
                    W => writer as u64,
                    Path => path.as_ptr() as u64,
                    M => good as u64,
                    // Only now is the folder's descriptor known.
                    N(number) if *number == u64::MAX - 1 => folder as u64,
                    N(number) => *number,
                };
            }
            let [a, b, c, d, e, f] = values;
            // SAFETY: the kernel must refuse the bad pointer and touch nothing.
            let result = unsafe { syscall(number, a, b, c, d, e, f) };
            let error = errno();
            if result != -1 || error != EFAULT {
                wrong.push(format!("{name}({bad:#x}) gave {result}, errno {error}"));
            }
            if let Some(child) = child {
                let mut status = 0;
                // SAFETY: the child may have been taken by the call under test.
                unsafe { waitpid(child, &mut status, 0) };
            }
        }
    }
    // The first word of each names the call that is wrong.
    let count = wrong.len();
    wrong.truncate(25);
    ensure!(wrong.is_empty(), "{count} wrong: {}", wrong.join("; "));
    Ok(())
}

fn endless_string() -> Outcome {
    let memory = map(3 * PAGE)?;
    // SAFETY: fills the map.
    unsafe { memory.write_bytes(b'x', 2 * PAGE) };
    call!(munmap(memory.wrapping_add(2 * PAGE).cast(), PAGE));
    let end = memory.wrapping_add(2 * PAGE - 100).cast::<c_char>();
    crate::refused!(EFAULT, open(end, O_RDONLY));
    let start = memory.cast::<c_char>();
    crate::refused!(ENAMETOOLONG, open(start, O_RDONLY));
    Ok(())
}

fn edge() -> Outcome {
    let memory = map(2 * PAGE)?;
    call!(munmap(memory.wrapping_add(PAGE).cast(), PAGE));
    let last = |size: usize| memory.wrapping_add(PAGE - size);
    // SAFETY: the call writes only what lies inside the map, or is refused.
    let ask = |size: usize| unsafe { syscall(SYS_clock_gettime, 0, last(size)) };
    ensure!(ask(16) == 0, "a structure that just fits was refused");
    ensure!(ask(8) == -1 && errno() == EFAULT);
    let path = c"/dev/null";
    // SAFETY: the ten bytes fit exactly.
    unsafe { last(10).copy_from(path.as_ptr().cast(), 10) };
    call!(open(last(10).cast_const().cast(), O_RDONLY));
    Ok(())
}

fn read_only_output() -> Outcome {
    let (_, open) = file("output", &[7; 100])?;
    let memory = map_with(PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1)?;
    crate::refused!(EFAULT, read(open, memory.cast(), 100));
    crate::refused!(EFAULT, fstat(open, memory.cast()));
    ensure!((0..PAGE).all(|at| peek(memory.wrapping_add(at)) == 0));
    // The program's own code.
    let code = every_call as *const () as usize;
    crate::refused!(EFAULT, read(open, code as *mut _, 100));
    Ok(())
}
