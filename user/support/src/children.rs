//! Child processes.

use libc::{c_int, pid_t};

use crate::failure::{Outcome, Result, errno};
use crate::files::read_text;
use crate::time::{pause_ms, sleep_forever};
use crate::{call, ensure, equal};

/// How a child ended, or its other change of state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It exited with this status.
    Exit(i32),
    /// This signal ended it.
    Signal(i32),
    /// This signal stopped it.
    Stopped(i32),
    /// It goes on after a stop.
    Continued,
}

impl End {
    /// Decodes a status of `wait`.
    pub fn of(status: c_int) -> Self {
        if libc::WIFEXITED(status) {
            Self::Exit(libc::WEXITSTATUS(status))
        } else if libc::WIFSTOPPED(status) {
            Self::Stopped(libc::WSTOPSIG(status))
        } else if libc::WIFCONTINUED(status) {
            Self::Continued
        } else {
            Self::Signal(libc::WTERMSIG(status))
        }
    }
}

/// Forks a child that runs `body` and exits: with 0, or with 99 after it has said what failed.
pub fn spawn(body: impl FnOnce() -> Outcome) -> Result<pid_t> {
    let child = call!(fork());
    if child != 0 {
        return Ok(child);
    }
    let status = match body() {
        Ok(()) => 0,
        Err(why) => {
            say(&format!("  in a child: {why}\n"));
            99
        }
    };
    exit(status)
}

/// Forks a child that sleeps until a signal ends it.
pub fn spawn_sleeper() -> Result<pid_t> {
    spawn(|| sleep_forever())
}

/// Ends this process at once.
pub fn exit(status: i32) -> ! {
    // SAFETY: ends the process; nothing is left to be unsound.
    unsafe { libc::_exit(status) }
}

/// Writes to standard output without any buffer.
pub fn say(text: &str) {
    // SAFETY: the bytes are those of a live string.
    let _ = unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
}

/// Waits for a child to end.
pub fn wait(child: pid_t) -> Result<End> {
    wait_with(child, 0)
}

/// Waits for a child with options of `waitpid`.
pub fn wait_with(child: pid_t, options: c_int) -> Result<End> {
    let mut status = 0;
    loop {
        // SAFETY: `status` lives across the call.
        let found = unsafe { libc::waitpid(child, &mut status, options) };
        if found == child {
            return Ok(End::of(status));
        }
        ensure!(
            found == -1 && errno() == libc::EINTR,
            "waitpid({child}) gave {found}, errno {}",
            errno()
        );
    }
}

/// Waits for a child, which must exit with status 0.
#[track_caller]
pub fn wait_ok(child: pid_t) -> Outcome {
    let line = std::panic::Location::caller().line();
    equal!(wait(child)?, End::Exit(0), line);
    Ok(())
}

/// Waits for children, which must exit with status 0.
#[track_caller]
pub fn wait_all(children: impl IntoIterator<Item = pid_t>) -> Outcome {
    let line = std::panic::Location::caller().line();
    for child in children {
        equal!(wait(child)?, End::Exit(0), line);
    }
    Ok(())
}

/// Kills a child and waits for it; returns how it ended.
pub fn kill_child(child: pid_t) -> Result<End> {
    call!(kill(child, libc::SIGKILL));
    wait(child)
}

/// Runs `body` in a child, which must end with status 0.
#[track_caller]
pub fn child(body: impl FnOnce() -> Outcome) -> Outcome {
    let line = std::panic::Location::caller().line();
    let end = wait(spawn(body)?)?;
    ensure!(
        end == End::Exit(0),
        "the child (line {line}) ended with {end:?}"
    );
    Ok(())
}

/// Waits until a process sleeps.
pub fn await_sleep(process: pid_t) -> Outcome {
    loop {
        let stat = read_text(&format!("/proc/{process}/stat"))?;
        if stat.contains(") S ") {
            return Ok(());
        }
        pause_ms(1);
    }
}
