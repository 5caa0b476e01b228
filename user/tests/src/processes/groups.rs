//! Process groups and sessions.

use support::prelude::*;

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
