//! Signals without a handler: ends, stops, children.

use std::ptr;

use crate::support::{End, Outcome, child, handle, pause_ms, spawn, wait, wait_with};
use crate::{Test, call, ensure, refused};

use super::{count, last, mask, note};

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
    for signal in [libc::SIGSTOP, libc::SIGTSTP] {
        let child = spawn(|| {
            call!(raise(signal));
            crate::support::exit(9)
        })?;
        let options = libc::WUNTRACED | libc::WCONTINUED;
        let end = wait_with(child, options)?;
        ensure!(end == End::Stopped(signal), "{end:?} in place of a stop");
        let mut status = 0;
        let found = call!(waitpid(child, &mut status, options | libc::WNOHANG));
        ensure!(found == 0, "a stop was told twice");
        pause_ms(20);
        call!(kill(child, libc::SIGCONT));
        let end = wait_with(child, options)?;
        ensure!(
            end == End::Continued || end == End::Exit(9),
            "{end:?} in place of going on"
        );
        if end == End::Continued {
            let end = wait_with(child, 0)?;
            ensure!(end == End::Exit(9), "{end:?} at the end");
        }
    }
    // A stopped process can be killed.
    let child = spawn(|| {
        loop {
            call!(raise(libc::SIGSTOP));
        }
    })?;
    wait_with(child, libc::WUNTRACED)?;
    call!(kill(child, libc::SIGTERM));
    call!(kill(child, libc::SIGKILL));
    let end = wait(child)?;
    ensure!(
        end == End::Signal(libc::SIGKILL),
        "a stopped process ended with {end:?}"
    );
    Ok(())
}

fn child_signal() -> Outcome {
    handle(libc::SIGCHLD, note, libc::SA_RESTART)?;
    let child = spawn(|| Ok(()))?;
    wait(child)?;
    ensure!(count() == 1, "{} SIGCHLD for one child", count());
    ensure!(
        last(1) == libc::CLD_EXITED && last(2) == child,
        "code {} from {}",
        last(1),
        last(2)
    );
    let child = spawn(|| {
        loop {
            pause_ms(1000);
        }
    })?;
    call!(kill(child, libc::SIGKILL));
    wait(child)?;
    ensure!(
        last(1) == libc::CLD_KILLED,
        "the code of a killed child is {}",
        last(1)
    );
    Ok(())
}

fn ignored_children() -> Outcome {
    // SAFETY: ignores the signal.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let child = spawn(|| Ok(()))?;
    let mut status = 0;
    refused!(ECHILD, waitpid(child, &mut status, 0));
    refused!(ESRCH, kill(child, 0));
    Ok(())
}

fn across_exec() -> Outcome {
    let child = spawn(|| {
        handle(libc::SIGUSR1, note, 0)?;
        // SAFETY: ignores the signal.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
        mask(libc::SIG_BLOCK, &[libc::SIGHUP])?;
        let words = [
            c"t".as_ptr(),
            c"--as".as_ptr(),
            c"signals".as_ptr(),
            ptr::null(),
        ];
        call!(execv(c"/proc/self/exe".as_ptr(), words.as_ptr()));
        Ok(())
    })?;
    let end = wait(child)?;
    ensure!(
        end == End::Exit(0b111),
        "ended with {end:?}; bits: caught reset, ignored and mask kept"
    );
    Ok(())
}
