//! Restartable sequences: a structure in a thread's memory where the kernel keeps the number of the
//! CPU that the thread runs on, and finds the stretch of code that is to begin anew if anything
//! came between.
//!
//! The thread looks at its structure itself, on the way to its program, when it was switched to
//! since the last time (the task says so, see `Task::watch_switches`) or is about to run a signal's
//! handler. Without one it pays a look at a flag of its own; with one, a read and a write of its
//! memory for each switch.

mod registration;

use abi::Result;
use nucleus::{
    task::{self, Task},
    trap::UserContext,
};

use super::{
    Own, Thread,
    signal::{self, Info},
};

pub use registration::{FEATURES, Registration, SIZE};

/// The thread that `task` runs goes back to its program: brings its structure up to date if it was
/// switched to since.
#[inline]
pub fn attend(thread: &Thread, own: &Own, context: &mut UserContext, task: &Task) {
    let Some(registration) = own.rseq else { return };
    if !task.take_switched() {
        return;
    }
    // A switch from here on is noticed at the next look, which comes before the program goes on.
    let cpu = task::cpu() as u64;
    let done = registration
        .abort(context)
        .and_then(|()| registration.store_cpu(cpu << 32 | cpu));
    if done.is_err() {
        signal::force(thread, Info::kernel(abi::raw::general::SIGSEGV));
    }
}

/// A handler is about to run, on top of whatever the program did.
///
/// # Errors
/// The program has registered nonsense.
pub fn before_handler(own: &Own, context: &mut UserContext) -> Result<()> {
    match own.rseq {
        Some(registration) => registration.abort(context),
        None => Ok(()),
    }
}
