//! Signals that end this program.
//!
//! ```text
//! signal ─ an action is set ([`ask`])? ─ yes ─ it runs; `main` ends in order, then [`finish`]
//!                  └ no ─ every [`undo`], newest first ─┐
//!                                                       └ the program dies of the signal
//! ```
//!
//! Either way the parent sees the signal: a shell's status is 128 plus its number. Nothing is
//! caught before [`watch`].

use std::fs;
use std::io::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM,
    SIGXCPU, SIGXFSZ,
};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::outcome;

/// The signals that end a program, but for those of its own faults and SIGPIPE, which Rust ignores.
const ENDING: [i32; 12] = [
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM,
    SIGXCPU, SIGXFSZ,
];

type Action = Box<dyn FnOnce() + Send>;

struct State {
    is_watched: bool,
    next: u64,
    undo: Vec<(u64, Action)>,
    ask: Option<Action>,
    received: Option<i32>,
}

static STATE: Mutex<State> = Mutex::new(State {
    is_watched: false,
    next: 0,
    undo: Vec::new(),
    ask: None,
    received: None,
});

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Catches the signals from now on; those that are ignored, as by `nohup`, stay ignored.
///
/// # Errors
/// When they can't be caught.
pub fn watch() -> Result<()> {
    let mut state = state();
    if state.is_watched {
        return Ok(());
    }
    let ignored = ignored();
    let all = ENDING.iter().filter(|&&signal| !has(ignored, signal));
    let mut signals = Signals::new(all).context("cannot watch for signals")?;
    state.is_watched = true;
    thread::spawn(move || {
        for signal in signals.forever() {
            take(signal);
        }
    });
    Ok(())
}

fn take(signal: i32) {
    let mut state = state();
    if let Some(ask) = state.ask.take() {
        state.received = Some(signal);
        drop(state);
        ask();
        return;
    }
    // The lock is kept: a thread that drops what is undone here waits for the end.
    while let Some((_, undo)) = state.undo.pop() {
        undo();
    }
    die(signal);
}

/// Dies of a signal that has been caught.
fn die(signal: i32) -> ! {
    // This returns only where the signal has no default action.
    let _: Result<(), Error> = emulate_default_handler(signal);
    std::process::exit(i32::from(outcome::SIGNAL) + signal);
}

/// Dies of the signal that asked this program to end, if one did.
pub fn finish() {
    let received = state().received;
    if let Some(signal) = received {
        die(signal);
    }
}

/// The signal that asked this program to end.
pub fn received() -> Option<i32> {
    state().received
}

/// Takes the action back when it is dropped.
#[must_use]
pub struct Guard(u64);

/// Has `action` run before a signal ends this program. It must not wait, nor drop a guard.
pub fn undo(action: impl FnOnce() + Send + 'static) -> Guard {
    let mut state = state();
    state.next += 1;
    let id = state.next;
    state.undo.push((id, Box::new(action)));
    Guard(id)
}

/// From now on the first signal runs `action`, by which `main` ends soon, and only a second one
/// ends this program at once.
pub fn ask(action: impl FnOnce() + Send + 'static) {
    state().ask = Some(Box::new(action));
}

impl Drop for Guard {
    fn drop(&mut self) {
        state().undo.retain(|(id, _)| *id != self.0);
    }
}

/// The set of signals that this program ignores.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let digits = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    digits.map_or(0, |digits| {
        u64::from_str_radix(digits.trim(), 16).unwrap_or(0)
    })
}

fn has(set: u64, signal: i32) -> bool {
    set >> (signal - 1) & 1 != 0
}

/// Whether this program, and those that it starts, ignore a signal.
pub fn is_ignored(signal: i32) -> bool {
    has(ignored(), signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_has_a_name_and_some_are_ignored() {
        use signal_hook::consts::SIGPIPE;
        use signal_hook::low_level::signal_name;
        assert!(ENDING.iter().all(|&signal| signal_name(signal).is_some()));
        assert!(is_ignored(SIGPIPE) && !is_ignored(SIGUSR2));
    }
}
