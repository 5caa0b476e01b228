//! Processes by descriptor, and `clone3`.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("pidfd: open, poll, wait", open_poll_wait),
    ("pidfd: signals by descriptor", send_signal),
    ("pidfd: a file of another process", getfd),
    ("pidfd: clone3 gives one", clone3_pidfd),
    (
        "pidfd: clone3 refuses what it does not know",
        clone3_refuses,
    ),
    ("pidfd: clone3 with a chosen id", chosen_id),
    ("pidfd: a sibling is of its maker's group", sibling),
    ("pidfd: a cleared set of handlers", clear_handlers),
    ("pidfd: kcmp tells what is shared", kcmp),
];

/// `struct clone_args`.
#[repr(C)]
#[derive(Default)]
pub struct CloneArgs {
    pub flags: u64,
    pub pidfd: u64,
    pub child_tid: u64,
    pub parent_tid: u64,
    pub exit_signal: u64,
    pub stack: u64,
    pub stack_size: u64,
    pub tls: u64,
    pub set_tid: u64,
    pub set_tid_size: u64,
    pub cgroup: u64,
}

const PIDFD: u64 = 0x1000;
const CLEAR_SIGHAND: u64 = 1 << 32;
const INTO_CGROUP: u64 = 1 << 33;
const P_PIDFD: u32 = 3;

/// `clone3` without a new stack: returns 0 in the child.
pub fn clone3(arguments: &CloneArgs, size: usize) -> c_long {
    // SAFETY: the structure lives across the call; a child without CLONE_VM has a copy of
    // everything.
    unsafe { libc::syscall(libc::SYS_clone3, ptr::from_ref(arguments), size) }
}

fn fork_with(arguments: &CloneArgs, body: impl FnOnce() -> Outcome) -> Result<c_int> {
    match clone3(arguments, size_of::<CloneArgs>()) {
        0 => exit(match body() {
            Ok(()) => 0,
            Err(why) => {
                say(&format!("  in a child: {why}\n"));
                99
            }
        }),
        -1 => Err(format!("clone3 failed: {}", errno()).into()),
        child => Ok(child as c_int),
    }
}

fn open(pid: c_int, flags: u32) -> c_int {
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) as c_int }
}

/// Calls `waitid` by descriptor; returns the child's id, code and status.
fn wait_fd(fd: c_int, options: c_int) -> Result<(c_int, c_int, c_int), c_int> {
    // SAFETY: all zeros is a valid siginfo, and it lives across the call.
    unsafe {
        let mut info: siginfo_t = zeroed();
        if libc::waitid(P_PIDFD, fd as u32, &mut info, options) == -1 {
            return Err(errno());
        }
        Ok((info.si_pid(), info.si_code, info.si_status()))
    }
}

fn open_poll_wait() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let child = spawn(|| {
        call!(close(writer));
        read_bytes(&reader, 1)?;
        exit(7)
    })?;
    let fd = open(child, O_NONBLOCK as u32);
    ensure!(fd >= 0, "pidfd_open: {}", errno());
    let flags = call!(fcntl(fd, F_GETFD));
    ensure!(flags == FD_CLOEXEC, "flags {flags}");
    ensure!(poll_for(&fd, POLLIN, 10)? == 0, "ready while it runs");
    let early = wait_fd(fd, WEXITED);
    equal!(early, Err(EAGAIN));
    call!(close(writer));
    ensure!(
        poll_for(&fd, POLLIN, 10_000)? == POLLIN,
        "not ready after its end"
    );
    let look = wait_fd(fd, WEXITED | WNOWAIT);
    ensure!(look == Ok((child, CLD_EXITED, 7)), "{look:?}");
    let taken = wait_fd(fd, WEXITED);
    ensure!(taken == Ok((child, CLD_EXITED, 7)), "{taken:?}");
    let again = wait_fd(fd, WEXITED);
    ensure!(again == Err(ECHILD), "a second time: {again:?}");
    // SAFETY: numbers only.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, 0, 0usize, 0) };
    ensure!(sent == -1 && errno() == ESRCH);
    for (pid, flags, error) in [(0, 0, EINVAL), (-1, 0, EINVAL), (1, 1, EINVAL)] {
        ensure!(
            open(pid, flags) == -1 && errno() == error,
            "{pid} {flags}: {}",
            errno()
        );
    }
    ensure!(open(32_767, 0) == -1 && errno() == ESRCH);
    let bad = wait_fd(0, WEXITED);
    ensure!(bad == Err(EBADF), "no process's descriptor: {bad:?}");
    Ok(())
}

fn send_signal() -> Outcome {
    let child = spawn_sleeper()?;
    let fd = open(child, 0);
    // SAFETY: numbers only.
    let send = |signal: c_int, flags: u32| unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, 0usize, flags)
    };
    ensure!(send(0, 0) == 0, "the test signal: {}", errno());
    ensure!(send(SIGTERM, 1) == -1 && errno() == EINVAL);
    ensure!(send(65, 0) == -1 && errno() == EINVAL, "signal 65");
    // A process's directory in `/proc` serves, too.
    let path = c(&format!("/proc/{child}"));
    let directory = call!(open(path.as_ptr(), O_DIRECTORY | O_RDONLY));
    // SAFETY: numbers only.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, directory, 0, 0usize, 0) };
    ensure!(sent == 0, "by its directory: {}", errno());
    ensure!(send(SIGTERM, 0) == 0, "SIGTERM: {}", errno());
    let end = wait(child)?;
    ensure!(end == End::Signal(SIGTERM), "ended with {end:?}");
    Ok(())
}

fn getfd() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let (theirs, ours) = pipe(0)?;
    let child = spawn(|| {
        // Only here is the pipe's other end open now.
        let mut byte = 0u8;
        call!(close(ours));
        call!(read(theirs, (&raw mut byte).cast(), 1));
        Ok(())
    })?;
    call!(close(writer));
    let fd = open(child, 0);
    let get = |fd: c_int, theirs: c_int, flags: u32| {
        // SAFETY: numbers only.
        unsafe { libc::syscall(libc::SYS_pidfd_getfd, fd, theirs, flags) as c_int }
    };
    let copy = get(fd, writer, 0);
    ensure!(copy >= 0, "pidfd_getfd: {}", errno());
    call!(write(copy, c"x".as_ptr().cast(), 1));
    equal!(read_bytes(&reader, 1)?, b"x");
    ensure!(get(fd, 1000, 0) == -1 && errno() == EBADF);
    ensure!(get(fd, 0, 1) == -1 && errno() == EINVAL, "flags");
    ensure!(get(0, 0, 0) == -1 && errno() == EBADF, "no process");
    call!(close(ours));
    wait_ok(child)?;
    Ok(())
}

fn clone3_pidfd() -> Outcome {
    let mut fd: c_int = -1;
    let mut tid: c_int = 0;
    let arguments = CloneArgs {
        flags: PIDFD | CLONE_PARENT_SETTID as u64,
        pidfd: (&raw mut fd) as u64,
        parent_tid: (&raw mut tid) as u64,
        exit_signal: SIGCHLD as u64,
        ..CloneArgs::default()
    };
    let child = fork_with(&arguments, || exit(3))?;
    // SAFETY: the kernel wrote them.
    let (fd, tid) = unsafe {
        (
            (&raw const fd).read_volatile(),
            (&raw const tid).read_volatile(),
        )
    };
    ensure!(tid == child && fd > 2, tid, fd, child);
    let end = wait_fd(fd, WEXITED);
    ensure!(end == Ok((child, CLD_EXITED, 3)), "{end:?}");
    // The old call has one pointer for both.
    let bad = (PIDFD as c_int) | CLONE_PARENT_SETTID | SIGCHLD;
    // SAFETY: refused.
    let refused = unsafe { libc::syscall(libc::SYS_clone, bad as c_long, 0, &raw const tid, 0, 0) };
    ensure!(refused == -1 && errno() == EINVAL, "clone with both");
    Ok(())
}

/// A child that `CLONE_PARENT` makes for the caller's parent is in the caller's group and session.
fn sibling() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let child = spawn(|| {
        call!(setsid());
        let arguments = CloneArgs {
            flags: CLONE_PARENT as u64,
            ..CloneArgs::default()
        };
        fork_with(&arguments, || {
            // SAFETY: take nothing.
            let ids = unsafe {
                [
                    libc::getpid(),
                    libc::getpgrp(),
                    libc::getsid(0),
                    libc::getppid(),
                ]
            };
            call!(write(writer, ids.as_ptr().cast(), 16));
            Ok(())
        })?;
        Ok(())
    })?;
    let mut ids = [0i32; 4];
    call!(read(reader, ids.as_mut_ptr().cast(), 16));
    wait_ok(child)?;
    let [sibling, group, session, parent] = ids;
    wait_ok(sibling)?;
    let me = call!(getpid());
    ensure!(
        (group, session, parent) == (child, child, me),
        "group {group}, session {session}, parent {parent}; maker {child}, its parent {me}"
    );
    Ok(())
}

fn clone3_refuses() -> Outcome {
    let size = size_of::<CloneArgs>();
    let fails = |arguments: &CloneArgs, size: usize, error: c_int| -> Outcome {
        let result = clone3(arguments, size);
        if result == 0 {
            exit(0);
        }
        ensure!(
            result == -1 && errno() == error,
            "flags {:#x}, size {size}: {result}, errno {}",
            arguments.flags,
            errno()
        );
        Ok(())
    };
    let with = |flags: u64| CloneArgs {
        flags,
        ..CloneArgs::default()
    };
    fails(&with(0), 56, EINVAL)?;
    fails(&with(0), 5000, E2BIG)?;
    fails(&with(1 << 40), size, EINVAL)?;
    fails(&with(INTO_CGROUP), size, EINVAL)?;
    fails(&with(CLONE_NEWPID as u64), size, EINVAL)?;
    fails(&with(CLONE_THREAD as u64), size, EINVAL)?;
    fails(&with(CLONE_SIGHAND as u64), size, EINVAL)?;
    let both = CLEAR_SIGHAND | (CLONE_SIGHAND | CLONE_VM) as u64;
    fails(&with(both), size, EINVAL)?;
    fails(&with(PIDFD | CLONE_DETACHED as u64), size, EINVAL)?;
    fails(&with(17), size, EINVAL)?;
    let mut arguments = with(0);
    arguments.exit_signal = 65;
    fails(&arguments, size, EINVAL)?;
    let mut arguments = with(0);
    arguments.stack = 0x10000;
    fails(&arguments, size, EINVAL)?;
    let mut arguments = with(PIDFD);
    arguments.pidfd = 8;
    fails(&arguments, size, EFAULT)?;
    // Bytes beyond the known structure must be zero.
    let mut long = [0u64; 12];
    long[11] = 1;
    // SAFETY: the array is as long as the call says.
    let result = unsafe { libc::syscall(libc::SYS_clone3, long.as_ptr(), size + 8) };
    ensure!(result == -1 && errno() == E2BIG, "a long structure");
    Ok(())
}

fn chosen_id() -> Outcome {
    let id: c_int = 31_007;
    let arguments = CloneArgs {
        exit_signal: SIGCHLD as u64,
        set_tid: (&raw const id) as u64,
        set_tid_size: 1,
        ..CloneArgs::default()
    };
    let named = fork_with(&arguments, || {
        ensure!(call!(getpid()) == 31_007, "another id inside");
        Ok(())
    })?;
    equal!(named, id);
    let again = clone3(&arguments, size_of::<CloneArgs>());
    ensure!(again == -1 && errno() == EEXIST, "twice: {again}");
    wait_ok(named)?;
    child(|| {
        call!(setuid(1000));
        let result = clone3(&arguments, size_of::<CloneArgs>());
        ensure!(result == -1 && errno() == EPERM, result);
        Ok(())
    })
}

static HANDLED: AtomicI32 = AtomicI32::new(0);

extern "C" fn count(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    HANDLED.fetch_add(1, SeqCst);
}

fn clear_handlers() -> Outcome {
    handle(SIGUSR1, count, 0)?;
    // SAFETY: sets an action.
    unsafe { libc::signal(SIGUSR2, SIG_IGN) };
    let arguments = CloneArgs {
        flags: CLEAR_SIGHAND,
        exit_signal: SIGCHLD as u64,
        ..CloneArgs::default()
    };
    let child = fork_with(&arguments, || {
        call!(raise(SIGUSR2));
        call!(raise(SIGUSR1));
        Err("still here".into())
    })?;
    let end = wait(child)?;
    ensure!(end == End::Signal(SIGUSR1), "ended with {end:?}");
    Ok(())
}

fn kcmp() -> Outcome {
    const KCMP_FILE: c_int = 0;
    const KCMP_VM: c_int = 1;
    const KCMP_FILES: c_int = 2;
    let compare = |a: c_int, b: c_int, kind: c_int, x: c_int, y: c_int| {
        // SAFETY: numbers only.
        unsafe { libc::syscall(libc::SYS_kcmp, a, b, kind, x as c_long, y as c_long) }
    };
    let own = call!(getpid());
    let copy = call!(dup(1));
    equal!(compare(own, own, KCMP_FILE, 1, copy), 0);
    let (reader, writer) = pipe(0)?;
    let order = compare(own, own, KCMP_FILE, reader, writer);
    let back = compare(own, own, KCMP_FILE, writer, reader);
    ensure!(
        (order, back) == (1, 2) || (order, back) == (2, 1),
        "{order} {back}"
    );
    let memory = shared_map(4096)?;
    let child = spawn_sleeper()?;
    equal!(compare(own, child, KCMP_FILE, 1, 1), 0);
    ensure!(compare(own, child, KCMP_VM, 0, 0) > 0, "the same memory");
    ensure!(compare(own, child, KCMP_FILES, 0, 0) > 0, "the same table");
    ensure!(
        compare(own, own, KCMP_FILE, 1000, 1) == -1 && errno() == EBADF,
        "no file"
    );
    ensure!(compare(own, own, 99, 0, 0) == -1 && errno() == EINVAL);
    ensure!(
        compare(own, 32_767, KCMP_VM, 0, 0) == -1 && errno() == ESRCH,
        "nobody"
    );
    call!(munmap(memory.cast(), 4096));
    kill_child(child)?;
    refused!(ECHILD, waitpid(child, null_mut(), 0));
    Ok(())
}
