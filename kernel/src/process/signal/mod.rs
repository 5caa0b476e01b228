//! Signals.
//!
//! A signal is *posted* ([`send`]) to a thread or a process: it is dropped if it would be ignored,
//! ends the process at once if it is deadly, and is queued ([`queue`]) otherwise; a thread that
//! wants it gets [`ThreadSignals::attention`] and an interrupt. On its way back to the program the
//! thread takes it ([`deliver`]) and builds a frame for the handler ([`frame`]), stops or ends.
//!
//! One spin lock a process guards its pending signals, its thread list and its stopping and
//! ending. The path of a system call without signals reads one flag.

mod action;
mod alt_stack;
pub mod compat;
mod deliver;
mod frame;
mod frame32;
mod info;
mod queue;
mod send;
mod set;
mod state;
mod stop;
pub mod timer;
mod x87;

use abi::{Errno, Result};
use nucleus::task::{Sleep, WaitQueue, Woken};

pub use action::{Action, Actions, DEFAULT, IGNORE};
pub use alt_stack::AltStack;
pub use deliver::{Flow, attend, synchronous};
pub use frame::sigreturn;
pub use frame32::{sigreturn_full, sigreturn_plain};
pub use info::{Fields, Info};
pub use queue::{Charged, Queue, charge};
pub use send::{
    News, broken_pipe, force, send_locked, send_to_group, send_to_process, send_to_thread,
};
pub use set::SignalSet;
#[cfg(test)]
pub(in crate::process) use state::looks;
pub use state::{Ending, ProcessSignals, ThreadSignals};

/// The call is restarted if the handler has `SA_RESTART`, or if there is none; else `EINTR`. The
/// usual answer of a call whose sleep a signal ended.
pub const ERESTARTSYS: Errno = Errno::internal(512);
/// The call is restarted always.
pub const ERESTARTNOINTR: Errno = Errno::internal(513);
/// The call is restarted only if no handler runs (`poll`, `sigsuspend`).
pub const ERESTARTNOHAND: Errno = Errno::internal(514);
/// As [`ERESTARTNOHAND`], but the restarted call is the one that
/// [`Call::restart_with`](super::Call::restart_with) left.
pub const ERESTART_RESTARTBLOCK: Errno = Errno::internal(516);

/// The answer of a call whose sleep ended without its condition: `ERESTARTSYS`, or `ETIMEDOUT`.
pub fn woken(why: Woken) -> Errno {
    match why {
        Woken::Interrupted => ERESTARTSYS,
        Woken::TimedOut => Errno::ETIMEDOUT,
    }
}

/// Returns what `take` gives, after a sleep in `queue` if that is nothing yet and `wait` allows it.
///
/// # Errors
/// `EAGAIN` without `wait`, a restart number after a signal.
#[inline]
pub fn take_or_wait<T>(
    queue: &WaitQueue,
    wait: bool,
    mut take: impl FnMut() -> Option<T>,
) -> Result<T> {
    match wait {
        // It takes at once what is there.
        true => queue.wait(Sleep::INTERRUPTIBLE, take).map_err(woken),
        false => take().ok_or(Errno::EAGAIN),
    }
}
