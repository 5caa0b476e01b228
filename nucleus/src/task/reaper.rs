//! The task that frees what is left of ended ones when no other does: see `dead.rs`.

use alloc::boxed::Box;

use super::dead::{is_wanted, reap};
use super::queue::WaitQueue;
use super::spawn::{Spawn, spawn};
use crate::cpu::percpu::Restart;

/// Where the reaper sleeps.
static REAPER: Restart<WaitQueue> = Restart::new(WaitQueue::new());

/// Wakes the reaper. Returns whether it slept.
pub(super) fn wake() -> bool {
    REAPER.wake_one()
}

/// Starts the reaper.
pub(super) fn start() {
    let how = Spawn::kernel("reaper");
    let body = Box::new(|| {
        loop {
            REAPER.wait_soundly(|| is_wanted().then_some(()));
            reap();
        }
    });
    spawn(how, body).expect("memory for the first tasks");
}

/// Forgets the reaper, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    // SAFETY: the machine that used it is gone and the next has not started.
    unsafe { REAPER.set(WaitQueue::new()) };
}
