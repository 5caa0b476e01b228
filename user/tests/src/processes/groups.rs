//! Process groups and sessions.

use crate::support::{End, Outcome, pause_ms, pipe, spawn, wait};
use crate::{Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("processes: groups and sessions", groups),
    ("processes: signals to a group", group_signals),
];

fn groups() -> Outcome {
    let me = call!(getpid());
    ensure!(call!(getpgrp()) == me, "a test leads its own group");
    refused!(EPERM, setsid());
    let (reader, writer) = pipe(0)?;
    let child = spawn(|| {
        let mut byte = 0u8;
        call!(read(reader, (&raw mut byte).cast(), 1));
        ensure!(
            call!(setsid()) == call!(getpid()),
            "setsid gave another number"
        );
        ensure!(
            call!(getsid(0)) == call!(getpid()),
            "the session is another"
        );
        ensure!(call!(getpgrp()) == call!(getpid()), "the group is another");
        refused!(EPERM, setpgid(0, 0));
        Ok(())
    })?;
    ensure!(
        call!(getpgid(child)) == me,
        "a child begins in its parent's group"
    );
    refused!(EPERM, setpgid(child, 0x3fff_fff0));
    refused!(ESRCH, setpgid(0x3fff_fff0, 0));
    refused!(EINVAL, setpgid(child, -5));
    refused!(ESRCH, getpgid(0x3fff_fff0));
    call!(write(writer, b"x".as_ptr().cast(), 1));
    ensure!(wait(child)? == End::Exit(0), "the child failed");
    let child = spawn(|| {
        loop {
            pause_ms(1000);
        }
    })?;
    call!(setpgid(child, child));
    ensure!(call!(getpgid(child)) == child, "the group did not change");
    let mut status = 0;
    refused!(ECHILD, waitpid(0, &mut status, 0));
    call!(kill(-child, libc::SIGTERM));
    let found = call!(waitpid(-child, &mut status, 0));
    ensure!(
        found == child && End::of(status) == End::Signal(libc::SIGTERM),
        "{found} {status}"
    );
    refused!(ESRCH, kill(-child, 0));
    Ok(())
}

fn group_signals() -> Outcome {
    let leader = spawn(|| {
        call!(setpgid(0, 0));
        let children: Vec<_> = (0..5)
            .map(|_| {
                spawn(|| {
                    loop {
                        pause_ms(1000);
                    }
                })
            })
            .collect::<Result<_, _>>()?;
        // SAFETY: ignores the signal in this process only.
        unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
        call!(kill(0, libc::SIGTERM));
        for child in children {
            let end = wait(child)?;
            ensure!(
                end == End::Signal(libc::SIGTERM),
                "a member ended with {end:?}"
            );
        }
        Ok(())
    })?;
    let end = wait(leader)?;
    ensure!(end == End::Exit(0), "the leader ended with {end:?}");
    Ok(())
}
