//! Signals.

use abi::{Errno, Result};
use nucleus::task::Woken;

use crate::process::{Pid, Process, Thread};

/// The call is restarted if the handler has `SA_RESTART`, or if there is none; else `EINTR`.
/// The usual answer of a call whose sleep a signal ended.
pub const ERESTARTSYS: Errno = Errno::internal(512);
/// The call is restarted always.
pub const ERESTARTNOINTR: Errno = Errno::internal(513);
/// The call is restarted only if no handler runs (`poll`, `sigsuspend`).
pub const ERESTARTNOHAND: Errno = Errno::internal(514);
/// As [`ERESTARTNOHAND`], but what is restarted is what [`Call::restart_with`](crate::syscall::Call) left.
pub const ERESTART_RESTARTBLOCK: Errno = Errno::internal(516);

/// What a program is told about a signal.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// 1 to 64.
    pub signal: u32,
    /// `SI_*`, `SEGV_*`, `CLD_*` ...
    pub code: i32,
}

impl Info {
    /// Sent by the kernel itself.
    pub fn kernel(signal: u32) -> Info {
        Info {
            signal,
            code: abi::raw::general::SI_KERNEL as i32,
        }
    }
}

/// A process's signals.
pub struct ProcessSignals {
    _private: (),
}

/// A thread's signals.
pub struct ThreadSignals {
    _private: (),
}

/// Sends to one thread. Any context.
pub fn send_to_thread(thread: &Thread, info: Info) -> Result<()> {
    let _ = (thread, info);
    todo!()
}

/// Sends to a process. Any context.
pub fn send_to_process(process: &Process, info: Info) -> Result<()> {
    let _ = (process, info);
    todo!()
}

/// Sends to all members of a group; `ESRCH` if it has none. Not in interrupt context. No permission check.
pub fn send_to_group(group: Pid, info: Info) -> Result<()> {
    let _ = (group, info);
    todo!()
}

impl Thread {
    /// Whether the thread blocks or ignores the signal (`SIGTTIN`, `SIGTTOU` rules).
    pub fn blocks_or_ignores(&self, signal: u32) -> bool {
        let _ = signal;
        todo!()
    }

    /// Replaces the mask until the next return to the program (`ppoll`, `pselect`): a handler
    /// that is then run sees the old one restored after it.
    pub fn set_temporary_mask(&self, mask: u64) {
        let _ = mask;
        todo!()
    }
}

/// The answer of a call whose sleep ended without its condition: `ERESTARTSYS`, or `ETIMEDOUT`.
pub fn woken(why: Woken) -> Errno {
    match why {
        Woken::Interrupted => ERESTARTSYS,
        Woken::TimedOut => Errno::ETIMEDOUT,
    }
}
