//! Signal handlers, sets and masks.

use std::ptr;

use libc::{c_int, c_void, siginfo_t, sigset_t};

use crate::failure::{Outcome, Result, errno};
use crate::memory::{PAGE, map};
use crate::time::timespec_of;
use crate::{call, ensure};

/// A handler of signals with `SA_SIGINFO`.
pub type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// A handler that does nothing: the signal only interrupts what sleeps.
pub extern "C" fn ignore_signal(_: c_int, _: *mut siginfo_t, _: *mut c_void) {}

/// Makes `handler` the one for `signal`.
pub fn handle(signal: c_int, handler: Handler, flags: c_int) -> Outcome {
    // SAFETY: all zeros is a valid sigaction; the handler has the type that SA_SIGINFO asks for.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | flags;
    call!(sigaction(signal, &action, ptr::null_mut()));
    Ok(())
}

/// Gives this thread a signal stack of its own.
pub fn signal_stack() -> Outcome {
    let size = 16 * PAGE;
    let stack = libc::stack_t {
        ss_sp: map(size)?.cast(),
        ss_flags: 0,
        ss_size: size,
    };
    call!(sigaltstack(&stack, ptr::null_mut()));
    Ok(())
}

/// Returns the set of these signals.
pub fn set_of(signals: &[c_int]) -> sigset_t {
    // SAFETY: all zeros is an empty set, and `sigaddset` only sets bits of it.
    unsafe {
        let mut set = std::mem::zeroed();
        for &signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Changes this thread's mask by these signals, as `how` of `sigprocmask` says.
pub fn mask(how: c_int, signals: &[c_int]) -> Outcome {
    call!(sigprocmask(how, &set_of(signals), ptr::null_mut()));
    Ok(())
}

/// Blocks these signals for this thread; returns their set.
pub fn block(signals: &[c_int]) -> Result<sigset_t> {
    mask(libc::SIG_BLOCK, signals)?;
    Ok(set_of(signals))
}

/// Takes one of these blocked signals, for which it waits at most so many milliseconds.
pub fn take_signal(signals: &sigset_t, milliseconds: i64) -> Result<Option<siginfo_t>> {
    // SAFETY: all zeros is a valid description.
    let mut info: siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: all structures live across the call.
    let taken = unsafe { libc::sigtimedwait(signals, &mut info, &timespec_of(milliseconds)) };
    if taken == -1 {
        ensure!(errno() == libc::EAGAIN, "sigtimedwait: errno {}", errno());
        return Ok(None);
    }
    Ok(Some(info))
}
