//! seccomp's filters: answers, lists of them, threads, `int 0x80`.

use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::SeqCst};

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("seccomp: a filter needs a right or no new ones", rights),
    ("seccomp: errors by number and argument", errors),
    ("seccomp: a signal in place of a call", trap),
    ("seccomp: threads and processes end", deaths),
    ("seccomp: the strictest filter answers", strictest),
    ("seccomp: children and programs keep filters", inherited),
    ("seccomp: a filter for all threads", synchronized),
    (
        "seccomp: calls by int 0x80 have numbers of their own",
        by_int_80,
    ),
    ("seccomp: programs that are refused", refused_programs),
    ("seccomp: the sum of filters is limited", limit),
    ("seccomp: filters come while threads are made", race),
];

const SET_FILTER: c_long = 1;
const ACTION_AVAIL: c_long = 2;
const TSYNC: c_long = 1;
const TSYNC_ESRCH: c_long = 16;

const KILL_PROCESS: u32 = 0x8000_0000;
const KILL_THREAD: u32 = 0;
const TRAP: u32 = 0x3_0000;
const ERRNO: u32 = 0x5_0000;
const USER_NOTIF: u32 = 0x7fc0_0000;
const TRACE: u32 = 0x7ff0_0000;
const LOG: u32 = 0x7ffc_0000;
const ALLOW: u32 = 0x7fff_0000;

const X86_64: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Step {
    code: u16,
    yes: u8,
    no: u8,
    k: u32,
}

/// `struct sock_fprog`.
#[repr(C)]
struct Program {
    len: u16,
    steps: *const Step,
}

const fn load(word: u32) -> Step {
    Step {
        code: 0x20,
        yes: 0,
        no: 0,
        k: word * 4,
    }
}

/// Skips one step if A is not `k`.
const fn unless(k: u32) -> Step {
    Step {
        code: 0x15,
        yes: 0,
        no: 1,
        k,
    }
}

const fn answer(k: u32) -> Step {
    Step {
        code: 0x06,
        yes: 0,
        no: 0,
        k,
    }
}

/// `answer` for one call, "allow" for all others.
fn filter_of(number: c_long, what: u32) -> [Step; 4] {
    [load(0), unless(number as u32), answer(what), answer(ALLOW)]
}

fn add(steps: &[Step], flags: c_long) -> c_long {
    let program = Program {
        len: steps.len() as u16,
        steps: steps.as_ptr(),
    };
    // SAFETY: the program lives across the call.
    unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            SET_FILTER,
            flags,
            ptr::from_ref(&program),
        )
    }
}

fn install(steps: &[Step], flags: c_long) -> Outcome {
    call!(prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as c_ulong, 0, 0, 0));
    let result = add(steps, flags);
    ensure!(result == 0, "seccomp: {result}, {}", errno());
    Ok(())
}

fn rights() -> Outcome {
    let user = spawn(|| {
        call!(setresuid(1000, 1000, 1000));
        ensure!(add(&[answer(ALLOW)], 0) == -1 && errno() == libc::EACCES);
        install(&[answer(ALLOW)], 0)?;
        equal!(call!(prctl(libc::PR_GET_SECCOMP)), 2);
        ensure!(read_text("/proc/self/status")?.contains("Seccomp:\t2\nSeccomp_filters:\t1\n"));
        // The strict mode does not follow.
        refused!(EINVAL, prctl(libc::PR_SET_SECCOMP, 1 as c_ulong));
        Ok(())
    })?;
    wait_ok(user)?;
    child(|| {
        let program = Program {
            len: 1,
            steps: &answer(ALLOW),
        };
        // Root needs no promise, and this is the older way.
        call!(prctl(
            libc::PR_SET_SECCOMP,
            2 as c_ulong,
            ptr::from_ref(&program)
        ));
        equal!(call!(prctl(libc::PR_GET_SECCOMP)), 2);
        Ok(())
    })?;
    for (action, known) in [
        (KILL_PROCESS, true),
        (KILL_THREAD, true),
        (TRAP, true),
        (ERRNO, true),
        (TRACE, true),
        (LOG, true),
        (ALLOW, true),
        (USER_NOTIF, false),
        (0x1234_0000, false),
    ] {
        let number = libc::SYS_seccomp;
        // SAFETY: the word lives across the call.
        let result = unsafe { libc::syscall(number, ACTION_AVAIL, 0, ptr::from_ref(&action)) };
        ensure!((result == 0) == known, "{action:#x}");
        ensure!(known || errno() == libc::EOPNOTSUPP);
    }
    Ok(())
}

fn errors() -> Outcome {
    child(|| {
        // `getpriority(1, 77)` only: arguments are words 4 and 6 of the data.
        install(
            &[
                load(0),
                Step {
                    code: 0x15,
                    yes: 0,
                    no: 5,
                    k: libc::SYS_getpriority as u32,
                },
                load(4),
                Step {
                    code: 0x15,
                    yes: 0,
                    no: 3,
                    k: 1,
                },
                load(6),
                unless(77),
                answer(ERRNO | libc::EXDEV as u32),
                answer(ALLOW),
            ],
            0,
        )?;
        let call = |kind: c_long, who: c_long| {
            // SAFETY: numbers only.
            let result = unsafe { libc::syscall(libc::SYS_getpriority, kind, who) };
            (result, errno())
        };
        equal!(call(1, 77), (-1, libc::EXDEV));
        equal!(call(0, 77).1, libc::ESRCH);
        ensure!(call(0, 0).0 > 0);
        // The architecture, and the largest number of an error.
        install(
            &[load(1), unless(X86_64), answer(ALLOW), answer(KILL_PROCESS)],
            0,
        )?;
        install(&filter_of(libc::SYS_getppid, ERRNO | 0xffff), 0)?;
        // SAFETY: numbers only.
        let result = unsafe { libc::syscall(libc::SYS_getppid) };
        equal!((result, errno()), (-1, 4095));
        install(&filter_of(libc::SYS_getpgrp, TRACE | 5), 0)?;
        refused!(ENOSYS, syscall(libc::SYS_getpgrp));
        install(&filter_of(libc::SYS_getuid, LOG), 0)?;
        equal!(call!(syscall(libc::SYS_getuid)), 0);
        Ok(())
    })
}

fn trap() -> Outcome {
    static SEEN: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
    extern "C" fn on_trap(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
        let words = info.cast::<u32>();
        for (n, at) in [1, 2, 6, 7].into_iter().enumerate() {
            // SAFETY: the words of a `siginfo_t`.
            SEEN[n].store(u64::from(unsafe { words.add(at).read() }), SeqCst);
        }
        // SAFETY: `si_call_addr` is the first field after the code.
        SEEN[4].store(unsafe { info.cast::<u64>().add(2).read() }, SeqCst);
        SEEN[5].fetch_add(1, SeqCst);
    }
    child(|| {
        handle(libc::SIGSYS, on_trap, 0)?;
        install(&filter_of(libc::SYS_getppid, TRAP | 42), 0)?;
        // SAFETY: numbers only.
        let result = unsafe { libc::syscall(libc::SYS_getppid) };
        // The number is left in the register of the result.
        equal!(result, libc::SYS_getppid);
        let seen: Vec<u64> = SEEN.iter().map(|it| it.load(SeqCst)).collect();
        equal!(
            seen[..4],
            [42, 1, libc::SYS_getppid as u64, u64::from(X86_64)]
        );
        ensure!(seen[4] != 0 && seen[5] == 1, "{seen:?}");
        Ok(())
    })?;
    // Blocked, it ends the process.
    let blocked = spawn(|| {
        block(&[libc::SIGSYS])?;
        install(&filter_of(libc::SYS_getppid, TRAP), 0)?;
        call!(syscall(libc::SYS_getppid));
        Ok(())
    })?;
    let end = wait(blocked)?;
    ensure!(end == End::Signal(libc::SIGSYS), "{end:?}");
    Ok(())
}

fn deaths() -> Outcome {
    for what in [KILL_PROCESS, KILL_THREAD, 0x1234_0000] {
        let alone = spawn(|| {
            handle(libc::SIGSYS, ignore, 0)?;
            install(&filter_of(libc::SYS_getppid, what), 0)?;
            call!(syscall(libc::SYS_getppid));
            Ok(())
        })?;
        let end = wait(alone)?;
        ensure!(end == End::Signal(libc::SIGSYS), "{what:#x}: {end:?}");
    }
    // One of two threads, and both.
    for (what, survives) in [(KILL_THREAD, true), (KILL_PROCESS, false)] {
        let process = spawn(|| {
            let thread = std::thread::spawn(move || {
                let _ = install(&filter_of(libc::SYS_getppid, what), 0);
                // SAFETY: numbers only.
                unsafe { libc::syscall(libc::SYS_getppid) };
                exit(9);
            });
            let tasks = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
            while tasks() > 1 {
                pause_ms(1);
            }
            std::mem::forget(thread);
            exit(5)
        })?;
        let end = wait(process)?;
        let wanted = match survives {
            true => End::Exit(5),
            false => End::Signal(libc::SIGSYS),
        };
        ensure!(end == wanted, "{what:#x}: {end:?}");
    }
    Ok(())
}

extern "C" fn ignore(_: c_int, _: *mut siginfo_t, _: *mut c_void) {}

fn strictest() -> Outcome {
    child(|| {
        let error = |errno: c_int| ERRNO | errno as u32;
        let get = || {
            // SAFETY: numbers only.
            let result = unsafe { libc::syscall(libc::SYS_getppid) };
            (result, errno())
        };
        install(&filter_of(libc::SYS_getppid, LOG), 0)?;
        ensure!(get().0 > 0);
        install(&filter_of(libc::SYS_getppid, error(libc::EXDEV)), 0)?;
        equal!(get(), (-1, libc::EXDEV));
        // Of those that agree, the newest one's number counts.
        install(&filter_of(libc::SYS_getppid, error(libc::ENOLCK)), 0)?;
        equal!(get(), (-1, libc::ENOLCK));
        install(&filter_of(libc::SYS_getppid, ALLOW), 0)?;
        equal!(get(), (-1, libc::ENOLCK));
        ensure!(read_text("/proc/self/status")?.contains("Seccomp_filters:\t4\n"));
        Ok(())
    })
}

fn inherited() -> Outcome {
    child(|| {
        install(&filter_of(libc::SYS_getppid, ERRNO | libc::EXDEV as u32), 0)?;
        child(|| {
            refused!(EXDEV, syscall(libc::SYS_getppid));
            Ok(())
        })?;
        let thread = std::thread::spawn(|| {
            refused!(EXDEV, syscall(libc::SYS_getppid));
            Ok::<(), Failure>(())
        });
        thread.join().map_err(|_| "a thread panicked")??;
        let shell = "grep -c '^Seccomp:.2$' /proc/self/status > /dev/null";
        let end = std::process::Command::new("/bin/sh")
            .args(["-c", shell])
            .status()?;
        ensure!(end.success(), "after execve: {end}");
        Ok(())
    })
}

fn synchronized() -> Outcome {
    static STAGE: AtomicUsize = AtomicUsize::new(0);
    static RESULT: AtomicI32 = AtomicI32::new(0);
    fn await_stage(stage: usize) {
        while STAGE.load(SeqCst) < stage {
            std::hint::spin_loop();
        }
    }
    child(|| {
        let get = || {
            // SAFETY: numbers only.
            unsafe { libc::syscall(libc::SYS_getppid) }
        };
        let other = std::thread::spawn(move || {
            RESULT.store(get() as i32, SeqCst);
            STAGE.store(1, SeqCst);
            // Runs, and makes no call, while the filter comes.
            await_stage(2);
            RESULT.store(get() as i32, SeqCst);
            // SAFETY: numbers only.
            let own = unsafe { libc::syscall(libc::SYS_gettid) };
            STAGE.store(3, SeqCst);
            await_stage(4);
            let added = install(&filter_of(libc::SYS_getpgrp, ERRNO | 1), 0);
            STAGE.store(5, SeqCst);
            await_stage(6);
            (own, added.is_ok())
        });
        await_stage(1);
        ensure!(RESULT.load(SeqCst) > 0);
        install(&filter_of(libc::SYS_getppid, ERRNO | 1), TSYNC)?;
        STAGE.store(2, SeqCst);
        await_stage(3);
        equal!(RESULT.load(SeqCst), -1);
        STAGE.store(4, SeqCst);
        await_stage(5);
        // A filter of its own stands in the way.
        let found = add(&[answer(ALLOW)], TSYNC);
        ensure!(add(&[answer(ALLOW)], TSYNC | TSYNC_ESRCH) == -1 && errno() == libc::ESRCH);
        STAGE.store(6, SeqCst);
        let (tid, added) = other.join().map_err(|_| "a thread panicked")?;
        ensure!(added && found == tid, "{found} is not {tid}");
        // Nothing has changed then.
        ensure!(read_text("/proc/self/status")?.contains("Seccomp_filters:\t1\n"));
        Ok(())
    })
}

fn by_int_80() -> Outcome {
    child(|| {
        // 64 is `getppid` there, and `semget` here.
        install(
            &[
                load(1),
                Step {
                    code: 0x15,
                    yes: 0,
                    no: 3,
                    k: I386,
                },
                load(0),
                unless(64),
                answer(ERRNO | libc::EXDEV as u32),
                answer(ALLOW),
            ],
            0,
        )?;
        ensure!(call!(getppid()) > 0);
        equal!(support::legacy::int80(64, [0u32; 0]), -libc::EXDEV);
        Ok(())
    })
}

fn refused_programs() -> Outcome {
    child(|| {
        install(&[answer(ALLOW)], 0)?;
        for steps in [
            &[][..],
            &[load(0)],
            &[load(16), answer(ALLOW)],
            &[
                Step {
                    code: 0x05,
                    yes: 0,
                    no: 0,
                    k: 1,
                },
                answer(ALLOW),
            ],
            &[
                Step {
                    code: 0x60,
                    yes: 0,
                    no: 0,
                    k: 0,
                },
                answer(ALLOW),
            ],
        ] {
            ensure!(
                add(steps, 0) == -1 && errno() == libc::EINVAL,
                "{} steps",
                steps.len()
            );
        }
        ensure!(
            add(&[answer(ALLOW)], 8) == -1 && errno() == libc::EINVAL,
            "a listener"
        );
        let program = Program {
            len: 3,
            steps: ptr::without_provenance(8),
        };
        let number = libc::SYS_seccomp;
        refused!(
            EFAULT,
            syscall(number, SET_FILTER, 0, ptr::from_ref(&program))
        );
        refused!(EFAULT, syscall(number, SET_FILTER, 0, 8));
        refused!(EINVAL, syscall(number, 99, 0, 0));
        ensure!(read_text("/proc/self/status")?.contains("Seccomp_filters:\t1\n"));
        Ok(())
    })
}

fn limit() -> Outcome {
    child(|| {
        let long = [answer(ALLOW); 4096];
        install(&long, 0)?;
        let more = (0..100).take_while(|_| add(&long, 0) == 0).count();
        equal!((more, errno()), (6, libc::ENOMEM));
        Ok(())
    })?;
    // A list of thousands of short ones is run, and freed, without a deep stack.
    child(|| {
        install(&[answer(ALLOW)], 0)?;
        let more = (0..10_000)
            .take_while(|_| add(&[answer(ALLOW)], 0) == 0)
            .count();
        equal!(more, (32 << 10) / 5 - 1);
        ensure!(call!(getppid()) > 0);
        Ok(())
    })
}

/// Threads that are made while another one adds filters for all have them.
fn race() -> Outcome {
    for _ in 0..20 {
        child(|| {
            static ADDED: AtomicUsize = AtomicUsize::new(0);
            let maker = std::thread::spawn(|| {
                let mut missed = 0;
                for _ in 0..50 {
                    let before = ADDED.load(SeqCst);
                    let made = std::thread::spawn(move || {
                        // SAFETY: numbers only.
                        before > 0 && unsafe { libc::syscall(libc::SYS_getppid) } != -1
                    });
                    missed += usize::from(made.join().unwrap_or(true));
                }
                missed
            });
            for _ in 0..4 {
                install(&filter_of(libc::SYS_getppid, ERRNO | 1), TSYNC)?;
                ADDED.fetch_add(1, SeqCst);
                pause_ms(1);
            }
            let missed = maker.join().map_err(|_| "a thread panicked")?;
            equal!(missed, 0);
            Ok(())
        })?;
    }
    Ok(())
}
