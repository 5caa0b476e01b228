//! Signals without a handler: ends, stops, children.

use super::{count, last, note};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("signals: default actions", defaults),
    ("signals: stop and continue", job_control),
    ("signals: SIGCHLD", child_signal),
    ("signals: ignored children vanish", ignored_children),
    ("signals: dispositions across exec", across_exec),
];

fn defaults() -> Outcome {
    use libc::{
        SIG_DFL, SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGQUIT, SIGTERM,
        SIGURG, SIGUSR1, SIGWINCH, SIGXCPU,
    };
    for signal in [
        SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGUSR1, SIGPIPE, SIGALRM, SIGTERM, SIGXCPU,
    ] {
        let child = spawn(|| {
            // SAFETY: gives the signal its default action.
            unsafe { libc::signal(signal, SIG_DFL) };
            call!(raise(signal));
            Err("still alive".into())
        })?;
        let end = wait(child)?;
        ensure!(end == End::Signal(signal), "signal {signal}: {end:?}");
    }
    for signal in [SIGCHLD, SIGURG, SIGWINCH, SIGCONT] {
        child(|| {
            call!(raise(signal));
            Ok(())
        })
        .map_err(|why| format!("signal {signal}: {why}"))?;
    }
    Ok(())
}

fn job_control() -> Outcome {
    for signal in [SIGSTOP, SIGTSTP] {
        let child = spawn(|| {
            call!(raise(signal));
            exit(9)
        })?;
        let options = WUNTRACED | WCONTINUED;
        let end = wait_with(child, options)?;
        ensure!(end == End::Stopped(signal), "{end:?} in place of a stop");
        let mut status = 0;
        let found = call!(waitpid(child, &mut status, options | WNOHANG));
        ensure!(found == 0, "a stop was told twice");
        pause_ms(20);
        call!(kill(child, SIGCONT));
        let end = wait_with(child, options)?;
        ensure!(end == End::Continued || end == End::Exit(9), end);
        if end == End::Continued {
            let end = wait_with(child, 0)?;
            ensure!(end == End::Exit(9), "{end:?} at the end");
        }
    }
    // A stopped process can be killed.
    let child = spawn(|| {
        loop {
            call!(raise(SIGSTOP));
        }
    })?;
    wait_with(child, WUNTRACED)?;
    call!(kill(child, SIGTERM));
    call!(kill(child, SIGKILL));
    let end = wait(child)?;
    equal!(end, End::Signal(SIGKILL));
    Ok(())
}

fn child_signal() -> Outcome {
    handle(SIGCHLD, note, SA_RESTART)?;
    let child = spawn(|| Ok(()))?;
    wait(child)?;
    ensure!(count() == 1, "{} SIGCHLD for one child", count());
    ensure!(last(1) == CLD_EXITED && last(2) == child, last(1), last(2));
    let child = spawn_sleeper()?;
    kill_child(child)?;
    equal!(last(1), CLD_KILLED);
    Ok(())
}

fn ignored_children() -> Outcome {
    // SAFETY: ignores the signal.
    unsafe { libc::signal(SIGCHLD, SIG_IGN) };
    let child = spawn(|| Ok(()))?;
    let mut status = 0;
    refused!(ECHILD, waitpid(child, &mut status, 0));
    refused!(ESRCH, kill(child, 0));
    Ok(())
}

fn across_exec() -> Outcome {
    let child = spawn(|| {
        handle(SIGUSR1, note, 0)?;
        // SAFETY: ignores the signal.
        unsafe { libc::signal(SIGUSR2, SIG_IGN) };
        mask(SIG_BLOCK, &[SIGHUP])?;
        let words = [c"t".as_ptr(), c"--as".as_ptr(), c"signals".as_ptr(), null()];
        call!(execv(c"/proc/self/exe".as_ptr(), words.as_ptr()));
        Ok(())
    })?;
    let end = wait(child)?;
    equal!(end, End::Exit(0b111));
    Ok(())
}
