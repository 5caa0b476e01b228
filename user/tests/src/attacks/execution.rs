//! What a program does to a set-id program beside or by its `execve`: what the two share, what
//! stands on a stack, which signals come, and which file it is that runs.

use crate::victims::{self, BEATEN, execute, place};
use crate::view::contains;
use crate::{USER, as_user, become_user, wait_until, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    (
        "attacks: a directory shared with a set-uid program",
        shared_directory,
    ),
    ("attacks: a directory shared during an execve", shared_late),
    (
        "attacks: a set-uid program without random addresses",
        fixed_addresses,
    ),
    (
        "attacks: the signal for a set-uid program's end",
        exit_signal,
    ),
    (
        "attacks: a child's end kills a set-uid program",
        childs_signal,
    ),
    (
        "attacks: a parent's end kills a set-uid program",
        parents_signal,
    ),
    ("attacks: a message kills a set-uid program", queues_signal),
    ("attacks: filters that come during an execve", late_filters),
    ("attacks: a link that moves during an execve", moving_link),
    ("attacks: a file that changes hands", changing_owner),
    ("attacks: a file that gives capabilities", capabilities),
];

/// Makes a process with these flags of `clone`, which runs `body` in a copy of the memory.
fn clone_with(flags: c_int, body: impl FnOnce() -> Outcome) -> Result<c_int> {
    let child = call!(syscall(SYS_clone, c_long::from(flags), 0, 0, 0, 0)) as c_int;
    if child != 0 {
        return Ok(child);
    }
    if let Err(why) = body() {
        say(&format!("  in a child: {why}\n"));
        exit(99);
    }
    exit(0)
}

/// Waits until the process has executed the victim.
fn wait_for_victim(pid: pid_t) -> Outcome {
    wait_until("no victim", || {
        Ok(read_text(&format!("/proc/{pid}/comm"))? == "victim\n")
    })
}

/// A set-uid program's relative names lead where another process wants, if that shares the working
/// directory: it gets no rights then.
fn shared_directory() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::rights())?;
    as_user(|| {
        while_attacking(|| {
            let child = clone_with(CLONE_FS | SIGCHLD, || execute(&victim))?;
            equal!(wait(child)?, End::Exit(0));
            // By itself it has them.
            let child = spawn(|| execute(&victim))?;
            equal!(wait(child)?, End::Exit(BEATEN));
            Ok(())
        })
    })
}

/// One thread executes a set-uid program while another makes processes that share the directory.
fn shared_late() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::holder(&place.secret))?;
    as_user(|| {
        while_attacking(|| {
            let (reader, writer) = pipe(O_CLOEXEC)?;
            let child = spawn(|| {
                call!(close(reader));
                thread::spawn(move || {
                    loop {
                        let sharer = clone_with(CLONE_FS | SIGCHLD, || {
                            for _ in 0..20 {
                                let mut place = [0u8; 256];
                                // SAFETY: the buffer has that length.
                                let asked =
                                    unsafe { syscall(SYS_getcwd, place.as_mut_ptr(), place.len()) };
                                if asked > 0 && contains(&place, b"/secret") {
                                    write_bytes(&writer, b"!")?;
                                }
                                pause_ms(1);
                            }
                            Ok(())
                        });
                        if sharer.is_err() {
                            exit(99);
                        }
                    }
                });
                thread::sleep(Duration::from_micros(300));
                execute(&victim)
            })?;
            call!(close(writer));
            equal!(wait(child)?, End::Exit(0));
            // The sharers end when they have looked.
            let seen = read_bytes(&reader, 1)?;
            call!(close(reader));
            ensure!(seen.is_empty(), "a process shares the victim's directory");
            Ok(())
        })
    })
}

fn fixed_addresses() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::stack())?;
    as_user(|| {
        let mut seen = BTreeSet::new();
        for _ in 0..12 {
            let child = spawn(|| {
                call!(personality(ADDR_NO_RANDOMIZE as c_ulong));
                execute(&victim)
            })?;
            seen.insert(format!("{:?}", wait(child)?));
        }
        ensure!(seen.len() > 2, seen);
        Ok(())
    })
}

/// One thread executes a set-uid program while others put filters before its system calls: these
/// would decide what a program of root's is told.
fn late_filters() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::filtered())?;
    let long = CString::new(vec![b'x'; 100_000]).unwrap_or_default();
    let filter = || {
        let mut steps = [allowing_step()];
        let program = filter_of(&mut steps);
        // SAFETY: the call reads a program that outlives it.
        unsafe {
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let flags = SECCOMP_FILTER_FLAG_TSYNC;
            syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
        }
    };
    as_user(|| {
        let (mut ends, mut delay) = (BTreeSet::new(), 0);
        while_attacking(|| {
            delay = (delay + 37) % 1500;
            let child = spawn(|| {
                for n in 0..3 {
                    thread::spawn(move || {
                        thread::sleep(Duration::from_micros(delay + 20 * n));
                        filter();
                    });
                }
                // It takes time to copy long arguments.
                let mut words = vec![long.as_ptr(); 15];
                words.push(null());
                call!(execve(victim.as_ptr(), words.as_ptr(), null()));
                Ok(())
            })?;
            let end = wait(child)?;
            ensure!(end != End::Exit(BEATEN), delay);
            ends.insert(format!("{end:?}"));
            Ok(())
        })?;
        equal!(ends, BTreeSet::from([format!("{:?}", End::Exit(0))]));
        Ok(())
    })
}

/// A set-uid program's end is told to its parent by SIGCHLD, whatever that asked for before.
fn exit_signal() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::watch())?;
    as_user(|| {
        while_attacking(|| {
            child(|| {
                handle(SIGUSR1, ignore_signal, 0)?;
                let signals = block(&[SIGUSR1, SIGCHLD])?;
                let child = clone_with(SIGUSR1, || execute(&victim))?;
                let told = take_signal(&signals, 5000)?;
                equal!(told.map(|told| told.si_signo), Some(SIGCHLD));
                equal!(wait(child)?, End::Exit(0));
                Ok(())
            })
        })
    })
}

/// A child that asked for another signal than SIGCHLD at its end does not send that to a set-uid
/// program that its parent has executed meanwhile.
fn childs_signal() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::watch_for_long())?;
    as_user(|| {
        while_attacking(|| {
            let victim = spawn(|| {
                // SAFETY: takes nothing.
                let parent = unsafe { getpid() };
                clone_with(SIGKILL, || wait_for_victim(parent))?;
                execute(&victim)
            })?;
            wait_for_victim(victim)?;
            pause_ms(30);
            let mut status = 0;
            equal!(call!(waitpid(victim, &mut status, WNOHANG)), 0);
            kill_child(victim)?;
            Ok(())
        })
    })
}

/// A set-uid program does not get the signal that was asked for by what it replaced.
fn parents_signal() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::watch_for_long())?;
    as_user(|| {
        call!(prctl(PR_SET_CHILD_SUBREAPER, 1 as c_ulong, 0, 0, 0));
        while_attacking(|| {
            let (reader, writer) = pipe(O_CLOEXEC)?;
            let parent = spawn(|| {
                let child = spawn(|| {
                    call!(prctl(PR_SET_PDEATHSIG, SIGKILL as c_ulong, 0, 0, 0));
                    execute(&victim)
                })?;
                wait_for_victim(child)?;
                write_bytes(&writer, &child.to_le_bytes())
            })?;
            wait_ok(parent)?;
            let mut child = [0; 4];
            child.copy_from_slice(&read_bytes(&reader, 4)?);
            call!(close(reader));
            call!(close(writer));
            pause_ms(20);
            let mut status = 0;
            let child = c_int::from_le_bytes(child);
            equal!(call!(waitpid(child, &mut status, WNOHANG)), 0);
            kill_child(child)?;
            Ok(())
        })
    })
}

/// A message in a queue does not send a set-uid program the signal that what it replaced asked for.
fn queues_signal() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::watch_for_long())?;
    as_user(|| {
        let name = c"/attack-by-message";
        let queue = call!(mq_open(
            name.as_ptr(),
            O_CREAT | O_RDWR,
            0o600,
            null::<mq_attr>()
        ));
        call!(mq_unlink(name.as_ptr()));
        let mut buffer = [0; 8192];
        while_attacking(|| {
            let victim = spawn(|| {
                // SAFETY: all zeros is a valid event.
                let mut event: sigevent = unsafe { zeroed() };
                event.sigev_notify = SIGEV_SIGNAL;
                event.sigev_signo = SIGKILL;
                call!(mq_notify(queue, &event));
                call!(fcntl(queue, F_SETFD, 0));
                execute(&victim)
            })?;
            wait_for_victim(victim)?;
            call!(mq_send(queue, c"x".as_ptr(), 1, 0));
            call!(mq_receive(
                queue,
                buffer.as_mut_ptr(),
                buffer.len(),
                null_mut()
            ));
            pause_ms(20);
            let mut status = 0;
            equal!(call!(waitpid(victim, &mut status, WNOHANG)), 0);
            kill_child(victim)?;
            Ok(())
        })
    })
}

/// A link leads to a set-uid program and to one of the attacker's in turn: it is root that runs, or
/// the attacker's program.
fn moving_link() -> Outcome {
    let place = place()?;
    // The set-uid program only waits; that of the attacker finds out who it is.
    let victim = place.victim(victims::watch())?;
    let folder = place.folder.clone();
    as_user(|| {
        let own = format!("{folder}/own");
        victims::rights().write(&own, 0o755)?;
        let (link, next) = (format!("{folder}/link"), format!("{folder}/next"));
        std::os::unix::fs::symlink(&own, &link)?;
        let mover = spawn(|| {
            for turn in 0u64.. {
                let to = if turn % 2 == 0 {
                    c(&own)
                } else {
                    victim.clone()
                };
                call!(symlink(to.as_ptr(), c(&next).as_ptr()));
                fs::rename(&next, &link)?;
            }
            Ok(())
        })?;
        let outcome = while_attacking(|| {
            let child = spawn(|| execute(&c(&link)))?;
            equal!(wait(child)?, End::Exit(0));
            Ok(())
        });
        kill_child(mover)?;
        outcome
    })
}

/// Root gives a file away and takes it back, while its owner of the moment sets the set-uid bit
/// and executes it: the bit never counts for root.
fn changing_owner() -> Outcome {
    let place = place()?;
    let path = format!("{}/own", place.folder);
    victims::rights().write(&path, 0o755)?;
    let path = c(&path);
    let giver = spawn(|| {
        loop {
            call!(chown(path.as_ptr(), USER, USER));
            call!(sched_yield());
            call!(chown(path.as_ptr(), 0, 0));
        }
    })?;
    let outcome = as_user(|| {
        let setter = spawn(|| {
            loop {
                // SAFETY: a plain call; refused while the file is root's.
                unsafe { chmod(path.as_ptr(), 0o4755) };
            }
        })?;
        let outcome = while_attacking(|| {
            let child = spawn(|| execute(&path))?;
            equal!(wait(child)?, End::Exit(0));
            Ok(())
        });
        kill_child(setter)?;
        outcome
    });
    kill_child(giver)?;
    outcome
}

/// A file's capabilities are for its program as it was when it got them, and not for a process that
/// may gain nothing.
fn capabilities() -> Outcome {
    const CHROOT: u32 = 18;
    let place = place()?;
    let path = format!("{}/own", place.folder);
    victims::changes_root().write(&path, 0o777)?;
    let path = c(&path);
    let give = || -> Outcome {
        // Version 2, in effect; permitted and inheritable, in two words each.
        let words = [0x0200_0001u32, 1 << CHROOT, 0, 0, 0];
        let name = c"security.capability".as_ptr();
        call!(setxattr(path.as_ptr(), name, words.as_ptr().cast(), 20, 0));
        Ok(())
    };
    let status = |prepare: fn() -> Outcome| {
        let child = spawn(|| {
            become_user(USER)?;
            prepare()?;
            execute(&path)
        })?;
        wait(child)
    };
    while_attacking(|| {
        give()?;
        equal!(status(|| Ok(()))?, End::Exit(BEATEN));
        let bound = || {
            call!(prctl(PR_SET_NO_NEW_PRIVS, 1 as c_ulong, 0, 0, 0));
            Ok(())
        };
        equal!(status(bound)?, End::Exit(0));
        // A write takes them away, and so does a new owner.
        as_user(|| {
            let mut file = File::options().write(true).open(path.to_str()?)?;
            file.write_all(b"\x7f")?;
            Ok(())
        })?;
        equal!(status(|| Ok(()))?, End::Exit(0));
        give()?;
        call!(chown(path.as_ptr(), USER, USER));
        equal!(status(|| Ok(()))?, End::Exit(0));
        call!(chown(path.as_ptr(), 0, 0));
        Ok(())
    })
}
