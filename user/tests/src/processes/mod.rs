//! Processes.
//!
//! - `forking`: new processes and inheritance.
//! - `executing`: programs and scripts.
//! - `waiting`: ends of children.
//! - `groups`: process groups and sessions.

use support::prelude::*;

pub mod executing;
pub mod forking;
pub mod groups;
pub mod waiting;

/// Plays a role when a test runs this program as `--as ROLE ARGUMENTS`; returns the exit status.
pub fn act(words: &[String]) -> i32 {
    let role = words.first().map_or("", String::as_str);
    match role {
        "exit" => words
            .get(1)
            .and_then(|word| word.parse().ok())
            .unwrap_or(99),
        "addresses" => {
            let here = 0u8;
            let map = map(1 << 20).map_or(0, |map| map as usize);
            println!(
                "{:x} {:x} {:x}",
                &raw const here as usize, map, act as *const () as usize
            );
            0
        }
        "words" => {
            println!(
                "{}|{}",
                words[1..].join("|"),
                std::env::var("GREETING").unwrap_or_default()
            );
            0
        }
        "descriptor" => {
            let number = words
                .get(1)
                .and_then(|word| word.parse().ok())
                .unwrap_or(-1);
            // SAFETY: asks for a descriptor's flags.
            i32::from(unsafe { libc::fcntl(number, F_GETFD) } != -1)
        }
        "sleep" => sleep_forever(),
        "signals" => signal_state(),
        _ => 99,
    }
}

/// Returns bit 0: SIGUSR1 has its default action; bit 1: SIGUSR2 is ignored; bit 2: SIGHUP is
/// blocked.
pub fn signal_state() -> i32 {
    // SAFETY: all zeros are valid values to be overwritten by the calls.
    unsafe {
        let mut action: sigaction = zeroed();
        let mut set = zeroed();
        libc::sigaction(SIGUSR1, null(), &mut action);
        let caught = action.sa_sigaction == SIG_DFL;
        libc::sigaction(SIGUSR2, null(), &mut action);
        let ignored = action.sa_sigaction == SIG_IGN;
        libc::sigprocmask(SIG_BLOCK, null(), &mut set);
        let blocked = libc::sigismember(&set, SIGHUP) == 1;
        i32::from(caught) | i32::from(ignored) << 1 | i32::from(blocked) << 2
    }
}
