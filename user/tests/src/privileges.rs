//! Capabilities and the calls that need them; seccomp and other per-process attributes.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("privileges: each right by its capability", by_capability),
    ("privileges: capability sets", sets),
    ("privileges: of a process that has ended", of_zombie),
    ("privileges: what a program sets about itself", about_itself),
    ("privileges: the death of a parent", parent_death),
    ("privileges: four calls are left", strict),
    ("privileges: barriers", barriers),
    ("privileges: speculation", speculation),
    ("privileges: the system's name for old programs", names),
];

const CAP_KILL: u32 = 5;
const CAP_SETUID: u32 = 7;
const CAP_NET_BIND_SERVICE: u32 = 10;
const CAP_NET_ADMIN: u32 = 12;
const CAP_IPC_LOCK: u32 = 14;
const CAP_IPC_OWNER: u32 = 15;
pub(crate) const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_BOOT: u32 = 22;
const CAP_SYS_NICE: u32 = 23;
const CAP_SYS_RESOURCE: u32 = 24;
const CAP_SYS_TIME: u32 = 25;
const CAP_WAKE_ALARM: u32 = 35;

/// `capget` and `capset` of the third version.
#[repr(C)]
struct Header {
    version: u32,
    pid: c_int,
}

const HEADER: Header = Header {
    version: 0x2008_0522,
    pid: 0,
};

/// Effective, permitted and inheritable: the low words, then the high ones.
type Sets = [[u32; 3]; 2];

fn capabilities() -> Result<Sets> {
    let mut sets: Sets = [[0; 3]; 2];
    call!(syscall(libc::SYS_capget, &HEADER, &mut sets));
    Ok(sets)
}

/// Removes one from the effective set.
pub(crate) fn drop_one(capability: u32) -> Outcome {
    let mut sets = capabilities()?;
    sets[capability as usize / 32][0] &= !(1 << (capability % 32));
    call!(syscall(libc::SYS_capset, &HEADER, &sets));
    Ok(())
}

/// Who a zombie was is still to be asked, and decides who may signal it.
fn of_zombie() -> Outcome {
    const USER: u32 = 1000;
    let own = capabilities()?;
    let child = spawn(|| {
        call!(setgroups(1, [77].as_ptr()));
        call!(setresgid(5, 6, 7));
        call!(setresuid(0, USER, 0));
        Ok(())
    })?;
    // SAFETY: the call fills a local.
    unsafe {
        let mut info: siginfo_t = zeroed();
        call!(waitid(P_PID, child as u32, &mut info, WEXITED | WNOWAIT));
    }
    let mut sets: Sets = [[7; 3]; 2];
    let of_child = Header {
        pid: child,
        ..HEADER
    };
    call!(syscall(libc::SYS_capget, &of_child, &mut sets));
    equal!(sets, [[0, own[0][1], own[0][2]], [0, own[1][1], own[1][2]]]);
    let status = read_text(&format!("/proc/{child}/status"))?;
    for line in [
        "Uid:\t0\t1000\t0\t1000\n",
        "Gid:\t5\t6\t7\t6\n",
        "Groups:\t77 \n",
        "CapEff:\t0000000000000000\n",
    ] {
        ensure!(status.contains(line), line, status);
    }
    support::prelude::child(|| {
        call!(setresuid(USER, USER, USER));
        // Neither its real user nor its saved one.
        refused!(EPERM, kill(child, 0));
        refused!(
            EPERM,
            prlimit(child, RLIMIT_NOFILE, null(), &mut limit_of(0))
        );
        Ok(())
    })?;
    wait_ok(child)
}

fn bind_low() -> c_long {
    // SAFETY: plain calls with a valid address.
    unsafe {
        let socket = libc::socket(AF_INET, SOCK_STREAM, 0);
        let mut address: sockaddr_in = zeroed();
        address.sin_family = AF_INET as u16;
        address.sin_port = 81u16.to_be();
        let size = size_of::<sockaddr_in>() as u32;
        c_long::from(libc::bind(socket, (&raw const address).cast(), size))
    }
}

fn raise_limit() -> c_long {
    let less = limit_of(1);
    let more = limit_of(2);
    // SAFETY: both live across the calls.
    unsafe {
        libc::setrlimit(RLIMIT_MSGQUEUE, &less);
        c_long::from(libc::setrlimit(RLIMIT_MSGQUEUE, &more))
    }
}

fn lock_more_than_allowed() -> c_long {
    let none = limit_of(0);
    let page = [0u8; 1];
    // SAFETY: locking changes nothing about the memory.
    unsafe {
        libc::setrlimit(RLIMIT_MEMLOCK, &none);
        c_long::from(libc::mlock(page.as_ptr().cast(), 1))
    }
}

fn read_foreign_queue() -> c_long {
    // SAFETY: plain calls; the queue is removed at the end.
    unsafe {
        let queue = libc::msgget(IPC_PRIVATE, 0);
        let mut state: msqid_ds = zeroed();
        libc::msgctl(queue, IPC_STAT, &mut state);
        state.msg_perm.uid = 1000;
        libc::msgctl(queue, IPC_SET, &mut state);
        // The owner has its rights; another user needs the capability.
        libc::setresuid(2000, 2000, 0);
        libc::seteuid(2000);
        let result = libc::msgctl(queue, IPC_STAT, &mut state);
        libc::seteuid(0);
        c_long::from(result)
    }
}

/// An action, the capability that it needs, and the error without it.
type Right = (&'static str, u32, c_int, fn() -> c_long);

// SAFETY (of all below): system calls that touch nothing but their arguments, which live across
// them.
const RIGHTS: &[Right] = &[
    ("kill", CAP_KILL, EPERM, || {
        // SAFETY: as above.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::setresuid(1000, 1000, 1000);
                libc::pause();
                libc::_exit(0);
            }
            pause_ms(20);
            let result = libc::kill(child, 0);
            c_long::from(result)
        }
    }),
    // SAFETY: as above.
    ("setuid", CAP_SETUID, EPERM, || unsafe {
        c_long::from(libc::setuid(1234))
    }),
    ("bind below 1024", CAP_NET_BIND_SERVICE, EACCES, bind_low),
    // SAFETY: as above.
    ("SO_RCVBUFFORCE", CAP_NET_ADMIN, EPERM, || unsafe {
        let socket = libc::socket(AF_UNIX, SOCK_STREAM, 0);
        let size: c_int = 4096;
        let option = SO_RCVBUFFORCE;
        c_long::from(libc::setsockopt(
            socket,
            SOL_SOCKET,
            option,
            (&raw const size).cast(),
            4,
        ))
    }),
    ("mlock", CAP_IPC_LOCK, EPERM, lock_more_than_allowed),
    // SAFETY: as above.
    ("sethostname", CAP_SYS_ADMIN, EPERM, || unsafe {
        let name = c"causeway";
        c_long::from(libc::sethostname(name.as_ptr(), 8))
    }),
    // SAFETY: as above.
    ("reboot", CAP_SYS_BOOT, EPERM, || unsafe {
        c_long::from(libc::reboot(RB_DISABLE_CAD))
    }),
    // SAFETY: as above.
    ("a real-time level", CAP_SYS_NICE, EPERM, || unsafe {
        let parameter: c_int = 5;
        libc::syscall(libc::SYS_sched_setscheduler, 0, SCHED_RR, &parameter)
    }),
    // SAFETY: as above.
    ("nice", CAP_SYS_NICE, EACCES, || unsafe {
        c_long::from(libc::setpriority(PRIO_PROCESS, 0, -5))
    }),
    ("setrlimit", CAP_SYS_RESOURCE, EPERM, raise_limit),
    // SAFETY: as above.
    ("clock_settime", CAP_SYS_TIME, EPERM, || unsafe {
        let mut now: timespec = zeroed();
        libc::clock_gettime(CLOCK_REALTIME, &mut now);
        c_long::from(libc::clock_settime(CLOCK_REALTIME, &now))
    }),
    // SAFETY: as above.
    ("an alarm clock", CAP_WAKE_ALARM, EPERM, || unsafe {
        c_long::from(libc::timerfd_create(CLOCK_BOOTTIME_ALARM, 0))
    }),
];

fn by_capability() -> Outcome {
    for &(what, capability, error, act) in RIGHTS {
        child(|| {
            let with = act();
            ensure!(with != -1, what, errno());
            Ok(())
        })?;
        child(|| {
            drop_one(capability)?;
            let without = act();
            let found = errno();
            ensure!(without == -1 && found == error, what, without, found);
            Ok(())
        })?;
    }
    // Without this one, the file's mode counts for root as well.
    child(|| {
        ensure!(read_foreign_queue() == -1, "another user's queue is open");
        Ok(())
    })?;
    child(|| {
        drop_one(CAP_IPC_OWNER)?;
        let queue = call!(msgget(IPC_PRIVATE, 0));
        // SAFETY: all zeros is a valid state.
        let mut state: msqid_ds = unsafe { zeroed() };
        refused!(EACCES, msgctl(queue, IPC_STAT, &mut state));
        call!(msgctl(queue, IPC_RMID, null_mut()));
        Ok(())
    })
}

fn prctl(operation: c_int, argument: c_ulong) -> Result<c_int> {
    Ok(call!(prctl(
        operation,
        argument,
        0 as c_ulong,
        0 as c_ulong,
        0 as c_ulong
    )))
}

fn sets() -> Outcome {
    let all = capabilities()?;
    ensure!(all[0][0] == u32::MAX && all[0][1] == u32::MAX, all);
    // A dropped capability does not come back.
    child(|| {
        let mut less = all;
        less[0][0] &= !(1 << CAP_SYS_TIME);
        less[0][1] &= !(1 << CAP_SYS_TIME);
        call!(syscall(libc::SYS_capset, &HEADER, &less));
        refused!(EPERM, syscall(libc::SYS_capset, &HEADER, &all));
        ensure!(capabilities()? == less, "{:x?}", capabilities()?);
        Ok(())
    })?;
    // Effective within permitted.
    child(|| {
        let mut bad = all;
        bad[0][1] &= !1;
        refused!(EPERM, syscall(libc::SYS_capset, &HEADER, &bad));
        let other = Header {
            version: 77,
            pid: 0,
        };
        refused!(EINVAL, syscall(libc::SYS_capset, &other, &bad));
        let other = Header {
            version: HEADER.version,
            pid: 1,
        };
        refused!(EPERM, syscall(libc::SYS_capset, &other, &bad));
        Ok(())
    })?;
    child(|| {
        let one = c_ulong::from(CAP_SYS_TIME);
        equal!(prctl(PR_CAPBSET_READ, one)?, 1);
        prctl(PR_CAPBSET_DROP, one)?;
        equal!(prctl(PR_CAPBSET_READ, one)?, 0);
        refused!(EINVAL, prctl(PR_CAPBSET_READ, 64 as c_ulong, 0, 0, 0));
        // In force from the next `execve` on.
        call!(clock_getres(CLOCK_REALTIME, null_mut()));
        Ok(())
    })?;
    child(|| {
        let raise = PR_CAP_AMBIENT_RAISE as c_ulong;
        let is_set = PR_CAP_AMBIENT_IS_SET as c_ulong;
        let bind = c_ulong::from(CAP_NET_BIND_SERVICE);
        let ambient = PR_CAP_AMBIENT;
        refused!(EPERM, prctl(ambient, raise, bind, 0, 0));
        let mut inherit = all;
        inherit[0][2] |= 1 << CAP_NET_BIND_SERVICE;
        call!(syscall(libc::SYS_capset, &HEADER, &inherit));
        call!(prctl(ambient, raise, bind, 0, 0));
        ensure!(call!(prctl(ambient, is_set, bind, 0, 0)) == 1, "not raised");
        prctl(PR_SET_KEEPCAPS, 1)?;
        call!(setuid(1000));
        let kept = capabilities()?;
        ensure!(kept[0][0] == 0 && kept[0][1] == u32::MAX, "kept {kept:x?}");
        equal!(call!(prctl(ambient, is_set, bind, 0, 0)), 0);
        Ok(())
    })
}

fn about_itself() -> Outcome {
    child(|| {
        let mut name = *b"a-rather-long-name\0";
        call!(prctl(PR_SET_NAME, name.as_ptr()));
        call!(prctl(PR_GET_NAME, name.as_mut_ptr()));
        ensure!(&name[..16] == b"a-rather-long-n\0", "{name:?}");
        let shown = fs::read_to_string("/proc/self/comm")?;
        ensure!(shown == "a-rather-long-n\n", "{shown}");
        Ok(())
    })?;
    for (set, get, values) in [
        (PR_SET_DUMPABLE, PR_GET_DUMPABLE, [0, 1]),
        (PR_SET_KEEPCAPS, PR_GET_KEEPCAPS, [1, 0]),
        (PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS, [1, 1]),
        (PR_SET_TIMERSLACK, PR_GET_TIMERSLACK, [1000, 70_000]),
    ] {
        for value in values {
            prctl(set, value)?;
            let found = prctl(get, 0)?;
            equal!(found as c_ulong, value, set, found);
        }
    }
    let mut subreaper: c_int = 7;
    prctl(PR_SET_CHILD_SUBREAPER, 1)?;
    call!(prctl(PR_GET_CHILD_SUBREAPER, &mut subreaper));
    ensure!(subreaper == 1, "subreaper {subreaper}");
    refused!(EINVAL, prctl(PR_SET_DUMPABLE, 2 as c_ulong));
    refused!(EINVAL, prctl(PR_SET_NO_NEW_PRIVS, 0 as c_ulong, 0, 0, 0));
    refused!(EINVAL, prctl(PR_SET_PDEATHSIG, 65 as c_ulong));
    refused!(EFAULT, prctl(PR_SET_NAME, 8 as c_ulong));
    refused!(EINVAL, prctl(9999, 0 as c_ulong));
    Ok(())
}

/// Whether a program may restrict a kind of speculation depends on the processor; if it may, what
/// it says holds for its children.
/// `/proc/self/status` says of a kind of speculation what the answer to `PR_GET_SPECULATION_CTRL`
/// means.
fn in_status(kind: c_ulong, answer: c_int) -> Outcome {
    let line = match (kind, answer) {
        (0, 0) => "Speculation_Store_Bypass:\tnot vulnerable",
        // Linux has no word for 17: until the next `execve`.
        (0, 2 | 17) => "Speculation_Store_Bypass:\tvulnerable",
        (0, 3) => "Speculation_Store_Bypass:\tthread vulnerable",
        (0, 5) => "Speculation_Store_Bypass:\tthread mitigated",
        (0, 9) => "Speculation_Store_Bypass:\tthread force mitigated",
        (1, 0) => "SpeculationIndirectBranch:\tnot affected",
        (1, 2) => "SpeculationIndirectBranch:\talways enabled",
        (1, 3) => "SpeculationIndirectBranch:\tconditional enabled",
        (1, 5) => "SpeculationIndirectBranch:\tconditional disabled",
        (1, 9) => "SpeculationIndirectBranch:\tconditional force disabled",
        _ => return Err(format!("{kind} {answer}").into()),
    };
    let status = read_text("/proc/self/status")?;
    ensure!(status.lines().any(|it| it == line), line, status);
    Ok(())
}

fn speculation() -> Outcome {
    const GET: c_int = 52;
    const SET: c_int = 53;
    const BY_PROGRAM: c_int = 1;
    const ENABLE: c_ulong = 2;
    const DISABLE: c_ulong = 4;
    const FORCE_DISABLE: c_ulong = 8;
    const DISABLE_NOEXEC: c_ulong = 16;
    let get = |kind: c_ulong| -> Result<c_int> { Ok(call!(prctl(GET, kind, 0, 0, 0))) };
    let shown = |file: &str| fs::read_to_string(format!("/sys/devices/system/cpu/{file}"));
    refused!(ENODEV, prctl(GET, 3 as c_ulong, 0, 0, 0));
    refused!(EINVAL, prctl(GET, 0 as c_ulong, 1, 0, 0));
    refused!(EINVAL, prctl(SET, 0 as c_ulong, ENABLE, 1, 0));
    equal!(get(2)?, FORCE_DISABLE as c_int);
    refused!(EPERM, prctl(SET, 2 as c_ulong, ENABLE, 0, 0));
    for (kind, file) in [(0, "spec_store_bypass"), (1, "spectre_v2")] {
        let state = shown(&format!("vulnerabilities/{file}"))?;
        let found = get(kind)?;
        in_status(kind, found)?;
        equal!(found == 0, state.starts_with("Not affected"), found, state);
        if found & BY_PROGRAM == 0 {
            match kind {
                0 => refused!(ENXIO, prctl(SET, kind, DISABLE, 0, 0)),
                _ => refused!(EPERM, prctl(SET, kind, DISABLE, 0, 0)),
            }
            continue;
        }
        child(|| {
            equal!(found, BY_PROGRAM | ENABLE as c_int);
            refused!(ERANGE, prctl(SET, kind, 3 as c_ulong, 0, 0));
            call!(prctl(SET, kind, DISABLE, 0, 0));
            equal!(get(kind)?, BY_PROGRAM | DISABLE as c_int);
            in_status(kind, get(kind)?)?;
            child(|| {
                equal!(get(kind)?, BY_PROGRAM | DISABLE as c_int, kind);
                call!(prctl(SET, kind, FORCE_DISABLE, 0, 0));
                refused!(EPERM, prctl(SET, kind, ENABLE, 0, 0));
                equal!(get(kind)?, BY_PROGRAM | FORCE_DISABLE as c_int);
                in_status(kind, get(kind)?)?;
                Ok(())
            })?;
            call!(prctl(SET, kind, ENABLE, 0, 0));
            equal!(get(kind)?, found);
            if kind == 0 {
                call!(prctl(SET, kind, DISABLE_NOEXEC, 0, 0));
                equal!(get(kind)?, BY_PROGRAM | DISABLE_NOEXEC as c_int);
                in_status(kind, get(kind)?)?;
            } else {
                refused!(ERANGE, prctl(SET, kind, DISABLE_NOEXEC, 0, 0));
            }
            Ok(())
        })?;
        equal!(get(kind)?, found);
    }
    Ok(())
}

fn parent_death() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let middle = spawn(|| {
        spawn(|| {
            let signals = block(&[SIGUSR1])?;
            prctl(PR_SET_PDEATHSIG, SIGUSR1 as c_ulong)?;
            let mut told: c_int = 0;
            call!(prctl(PR_GET_PDEATHSIG, &mut told));
            ensure!(told == SIGUSR1, "told {told}");
            call!(write(writer, b"r".as_ptr().cast(), 1));
            let mut got = 0;
            call!(sigwait(&signals, &mut got));
            call!(write(writer, b"d".as_ptr().cast(), 1));
            Ok(())
        })?;
        pause_ms(30);
        Ok(())
    })?;
    wait(middle)?;
    call!(close(writer));
    let mut bytes = [0u8; 4];
    let mut len = 0;
    while len < 2 {
        let count = call!(read(reader, bytes[len..].as_mut_ptr().cast(), 2));
        ensure!(count > 0, "the orphan ended after {len} bytes");
        len += count as usize;
    }
    ensure!(&bytes[..2] == b"rd", "{bytes:?}");
    Ok(())
}

fn strict() -> Outcome {
    const STRICT: c_ulong = 1;
    let (reader, writer) = pipe(0)?;
    let good = spawn(|| {
        call!(prctl(PR_SET_SECCOMP, STRICT));
        // SAFETY: the calls that are left.
        unsafe {
            libc::syscall(libc::SYS_write, writer, b"x".as_ptr(), 1);
            libc::syscall(libc::SYS_exit, 3);
        }
        Ok(())
    })?;
    let end = wait(good)?;
    ensure!(end == End::Exit(3), "with write and exit: {end:?}");
    equal!(read_bytes(&reader, 1)?, b"x");
    let bad = spawn(|| {
        call!(prctl(PR_SET_SECCOMP, STRICT));
        // SAFETY: the kernel refuses it.
        unsafe { libc::syscall(libc::SYS_getpid) };
        Ok(())
    })?;
    let end = wait(bad)?;
    ensure!(end == End::Signal(SIGKILL), "with getpid: {end:?}");
    Ok(())
}

fn barriers() -> Outcome {
    use libc::SYS_membarrier;
    let known = call!(syscall(SYS_membarrier, 0, 0)) as u32;
    ensure!(known & 0x7f == 0x7f, "known {known:#x}");
    // Private expedited barriers have to be registered; global ones do not.
    call!(syscall(SYS_membarrier, 1, 0));
    call!(syscall(SYS_membarrier, 2, 0));
    call!(syscall(SYS_membarrier, 4, 0));
    for (command, registration) in [(8, 16), (32, 64)] {
        refused!(EPERM, syscall(SYS_membarrier, command, 0));
        call!(syscall(SYS_membarrier, registration, 0));
        call!(syscall(SYS_membarrier, command, 0));
        child(|| {
            call!(syscall(SYS_membarrier, command, 0));
            Ok(())
        })?;
    }
    refused!(EINVAL, syscall(SYS_membarrier, 8, 1));
    refused!(EINVAL, syscall(SYS_membarrier, 3, 0));
    refused!(EINVAL, syscall(SYS_membarrier, 1 << 12, 0));
    Ok(())
}

fn names() -> Outcome {
    let name = || {
        // SAFETY: all zeros are valid names.
        let mut names: utsname = unsafe { zeroed() };
        call!(uname(&mut names));
        let text = |field: &[c_char]| -> String {
            let bytes = field.iter().map(|c| *c as u8);
            String::from_utf8_lossy(&bytes.take_while(|b| *b != 0).collect::<Vec<_>>()).into()
        };
        Ok::<_, Failure>((text(&names.release), text(&names.machine)))
    };
    let (release, machine) = name()?;
    ensure!(
        machine == "x86_64" && release.starts_with("6."),
        "{release} {machine}"
    );
    child(|| {
        call!(personality(8));
        ensure!(name()?.1 == "i686", "{}", name()?.1);
        call!(personality(0x2_0000));
        let (old, machine) = name()?;
        ensure!(
            old.starts_with("2.6.6") && machine == "x86_64",
            "{old} {machine}"
        );
        Ok(())
    })
}
