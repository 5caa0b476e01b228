//! Signals.
//!
//! - `delivery`: siginfo, masks, order of delivery.
//! - `calls`: interrupted system calls.
//! - `frames`: stacks, registers, exceptions.
//! - `defaults`: default actions.

use support::prelude::*;

pub mod calls;
pub mod defaults;
pub mod delivery;
pub mod frames;

pub static COUNT: AtomicUsize = AtomicUsize::new(0);

pub static LAST: [AtomicI32; 4] = [const { AtomicI32::new(0) }; 4];

pub extern "C" fn note(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    COUNT.fetch_add(1, SeqCst);
    // SAFETY: the kernel passes a valid siginfo.
    let (code, pid, value) = unsafe {
        (
            (*info).si_code,
            (*info).si_pid(),
            (*info).si_value().sival_ptr as i32,
        )
    };
    for (slot, number) in LAST.iter().zip([signal, code, pid, value]) {
        slot.store(number, SeqCst);
    }
}

pub fn last(slot: usize) -> i32 {
    LAST[slot].load(SeqCst)
}

pub fn count() -> usize {
    COUNT.load(SeqCst)
}
