//! Tasks that have ended: their stacks and the scheduler's handles.
//!
//! A task can't free the stack that it runs on, and the next task, which finds it dead, is inside
//! the scheduler with interrupts off, where nothing can be freed. So the dead are listed, and freed
//! by the next [`spawn`](super::spawn()) or [`reap`], or else by the reaper, a task that an idle
//! CPU wakes.

use alloc::sync::Arc;
use core::{
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use super::task::Task;
use crate::{
    cpu::percpu::Restart,
    lock::{Rank, SpinLock},
};

struct Dead {
    first: *const Task,
}

impl Dead {
    const fn new() -> Dead {
        Dead { first: ptr::null() }
    }
}

// SAFETY: the pointers own a handle each to a `Task`, which is `Send` and `Sync`.
unsafe impl Send for Dead {}

static DEAD: Restart<SpinLock<Dead>> = Restart::new(SpinLock::new(Rank::Task, Dead::new()));
/// Whether `DEAD` has any, to look at without its lock.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Lists a task that will never run again. Any context; the scheduler's handle goes with it.
///
/// Out of line: the switch is shorter without it.
#[inline(never)]
pub(super) fn bury(task: *const Task) {
    let mut dead = DEAD.lock_irq();
    // SAFETY: the scheduler's handle keeps it alive, and a dead task's link is this list's.
    unsafe { *(*task).next_dead.get() = dead.first };
    dead.first = task;
    WANTED.store(true, Ordering::Relaxed);
}

/// Whether there is something for the reaper to do.
pub(super) fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// Frees the stacks of all tasks that have ended. Not with a spin lock held; what was attached to
/// them may be dropped here.
pub fn reap() {
    while is_wanted() {
        let task = {
            let mut dead = DEAD.lock_irq();
            let task = dead.first;
            if task.is_null() {
                return;
            }
            // SAFETY: listed tasks are alive.
            dead.first = unsafe { *(*task).next_dead.get() };
            WANTED.store(!dead.first.is_null(), Ordering::Relaxed);
            task
        };
        // SAFETY: listed tasks are alive.
        unsafe { (*task).wait_for_wakers() };
        // SAFETY: `bury` got the scheduler's handle, which came from `Arc::into_raw`.
        drop(unsafe { Arc::from_raw(task) });
    }
}

/// Forgets the dead, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    // SAFETY: the machine that used them is gone and the next has not started.
    unsafe { DEAD.set(SpinLock::new(Rank::Task, Dead::new())) };
    WANTED.store(false, Ordering::Relaxed);
}
