//! CPUs, and the words that threads sleep on.

use std::ptr;
use std::sync::atomic::AtomicU32;

use libc::{c_int, timespec};

use crate::call;
use crate::failure::Outcome;

/// Returns the count of CPUs that are online.
pub fn cpus() -> usize {
    // SAFETY: a question without memory.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(count).unwrap_or(1).max(1)
}

/// Binds the calling thread to one CPU.
pub fn pin(cpu: usize) -> Outcome {
    call!(syscall(libc::SYS_sched_setaffinity, 0, 8, &(1u64 << cpu)));
    Ok(())
}

/// Calls `futex(2)` with a word, an operation, a value and perhaps a time; returns its result.
pub fn futex(word: *const AtomicU32, operation: c_int, value: u32, time: Option<&timespec>) -> i64 {
    let time = time.map_or(ptr::null(), ptr::from_ref);
    futex_with(word, operation, value, time, ptr::null(), u32::MAX)
}

/// Calls `futex(2)` with all six arguments; returns its result.
#[allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "the kernel refuses bad addresses"
)]
pub fn futex_with(
    word: *const AtomicU32,
    operation: c_int,
    value: u32,
    fourth: *const timespec,
    second: *const AtomicU32,
    third: u32,
) -> i64 {
    let number = libc::SYS_futex;
    // SAFETY: the words and the time live across the call, or the kernel refuses them.
    unsafe { libc::syscall(number, word, operation, value, fourth, second, third) }
}

/// Sleeps while the word, which may be shared between processes, has this value.
pub fn futex_wait(word: &AtomicU32, value: u32) {
    futex(word, libc::FUTEX_WAIT, value, None);
}

/// Wakes all that sleep on the word.
pub fn futex_wake(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, i32::MAX as u32, None);
}
