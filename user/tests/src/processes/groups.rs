//! Process groups and sessions.

use crate::pidfd::{CloneArgs, clone3};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("processes: groups and sessions", groups),
    ("processes: signals to a group", group_signals),
    ("processes: a group that forks and ends is killed", hop),
];

fn groups() -> Outcome {
    let me = call!(getpid());
    ensure!(call!(getpgrp()) == me, "a test leads its own group");
    refused!(EPERM, setsid());
    let (reader, writer) = pipe(0)?;
    let child = spawn(|| {
        read_bytes(&reader, 1)?;
        equal!(call!(setsid()), call!(getpid()));
        equal!(call!(getsid(0)), call!(getpid()));
        ensure!(call!(getpgrp()) == call!(getpid()), "the group is another");
        refused!(EPERM, setpgid(0, 0));
        Ok(())
    })?;
    equal!(call!(getpgid(child)), me);
    refused!(EPERM, setpgid(child, 0x3fff_fff0));
    refused!(ESRCH, setpgid(0x3fff_fff0, 0));
    refused!(EINVAL, setpgid(child, -5));
    refused!(ESRCH, getpgid(0x3fff_fff0));
    call!(write(writer, b"x".as_ptr().cast(), 1));
    wait_ok(child)?;
    let child = spawn_sleeper()?;
    call!(setpgid(child, child));
    ensure!(call!(getpgid(child)) == child, "the group did not change");
    let mut status = 0;
    refused!(ECHILD, waitpid(0, &mut status, 0));
    call!(kill(-child, SIGTERM));
    let found = call!(waitpid(-child, &mut status, 0));
    ensure!(
        found == child && End::of(status) == End::Signal(SIGTERM),
        "{found} {status}"
    );
    refused!(ESRCH, kill(-child, 0));
    Ok(())
}

fn group_signals() -> Outcome {
    let leader = spawn(|| {
        call!(setpgid(0, 0));
        let children: Vec<_> = (0..5).map(|_| spawn_sleeper()).collect::<Result<_, _>>()?;
        // SAFETY: ignores the signal in this process only.
        unsafe { libc::signal(SIGTERM, SIG_IGN) };
        call!(kill(0, SIGTERM));
        for child in children {
            let end = wait(child)?;
            equal!(end, End::Signal(SIGTERM));
        }
        Ok(())
    })?;
    wait_ok(leader)?;
    Ok(())
}

/// Forks a process with this id; returns 0 in the child.
fn fork_as(id: c_int) -> c_long {
    let arguments = CloneArgs {
        exit_signal: SIGCHLD as u64,
        set_tid: (&raw const id) as u64,
        set_tid_size: 1,
        ..CloneArgs::default()
    };
    clone3(&arguments, size_of::<CloneArgs>())
}

/// A process of a group forks one and ends, the child does the same, and so on; their ids are in
/// turn above and below those of many that sleep. A kill of the group leaves none.
fn hop() -> Outcome {
    const SLEEPERS: c_int = 20_000;
    call!(prctl(PR_SET_CHILD_SUBREAPER, 1));
    for round in 0..20 {
        let (reader, writer) = pipe(0)?;
        let leader = spawn(|| {
            call!(setpgid(0, 0));
            for id in SLEEPERS..SLEEPERS + 100 {
                match fork_as(id) {
                    0 => pause_ms(60_000),
                    -1 => return Err(format!("clone3: {}", errno()).into()),
                    _ => {}
                }
            }
            call!(write(writer, b"x".as_ptr().cast(), 1));
            let (mut id, mut next) = (SLEEPERS - 1, SLEEPERS + 100);
            loop {
                match fork_as(id) {
                    0 => (id, next) = (next, id + if id < SLEEPERS { -1 } else { 1 }),
                    -1 => return Err(format!("clone3: {}", errno()).into()),
                    _ => exit(0),
                }
            }
        })?;
        read_bytes(&reader, 1)?;
        pause_ms(5 + round % 7);
        call!(kill(-leader, SIGKILL));
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut status = 0;
        let is_left = loop {
            // SAFETY: writes into a live status.
            match unsafe { libc::waitpid(-leader, &mut status, WNOHANG) } {
                -1 => break false,
                _ if Instant::now() > deadline => break true,
                0 => pause_ms(1),
                _ => {}
            }
        };
        if is_left {
            // SAFETY: takes and returns numbers.
            while unsafe { libc::kill(-leader, SIGKILL) } == 0 {
                // SAFETY: writes into a live status.
                while unsafe { libc::waitpid(-leader, &mut status, WNOHANG) } > 0 {}
            }
        }
        ensure!(!is_left, "one of them lives on in round {round}");
        call!(close(reader));
        call!(close(writer));
    }
    Ok(())
}
