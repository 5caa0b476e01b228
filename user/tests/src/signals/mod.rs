//! Signals.
//!
//! - `delivery`: what a handler learns, and when it runs.
//! - `calls`: system calls that are interrupted.
//! - `frames`: stacks, registers, exceptions.
//! - `defaults`: what signals without a handler do.

pub mod calls;
pub mod defaults;
pub mod delivery;
pub mod frames;

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::call;
use crate::support::Outcome;

pub static COUNT: AtomicUsize = AtomicUsize::new(0);

pub static LAST: [AtomicI32; 4] = [const { AtomicI32::new(0) }; 4];

pub extern "C" fn note(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    COUNT.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the kernel passes a valid siginfo.
    let (code, pid, value) = unsafe {
        (
            (*info).si_code,
            (*info).si_pid(),
            (*info).si_value().sival_ptr as i32,
        )
    };
    for (slot, number) in LAST.iter().zip([signal, code, pid, value]) {
        slot.store(number, Ordering::SeqCst);
    }
}

pub fn last(slot: usize) -> i32 {
    LAST[slot].load(Ordering::SeqCst)
}

pub fn count() -> usize {
    COUNT.load(Ordering::SeqCst)
}

/// A set with these signals.
pub fn set(signals: &[c_int]) -> libc::sigset_t {
    // SAFETY: all zeros is an empty set, and `sigaddset` only sets bits of it.
    unsafe {
        let mut set = std::mem::zeroed();
        for &signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

pub fn mask(how: c_int, signals: &[c_int]) -> Outcome {
    call!(sigprocmask(how, &set(signals), ptr::null_mut()));
    Ok(())
}
