//! What is left of a task that has ended: its stack and the scheduler's handle.
//!
//! A task can't free the stack that it runs on, and the next task, which finds it dead, is inside the scheduler
//! with interrupts off, where nothing can be freed. So the dead are listed, and freed by the next
//! [`spawn`](super::spawn) or [`reap`], or by the reaper, a task that sleeps until there is one.

use alloc::{boxed::Box, sync::Arc};
use core::ptr;

use super::{Sleep, Spawn, Task, WaitQueue};
use crate::sync::{Rank, SpinLock};

struct Dead {
    first: *const Task,
}

// SAFETY: the pointers own a handle each to a `Task`, which is `Send` and `Sync`.
unsafe impl Send for Dead {}

static DEAD: SpinLock<Dead> = SpinLock::new(Rank::Task, Dead { first: ptr::null() });
static ARRIVALS: WaitQueue = WaitQueue::new();

/// Lists a task that will never run again. Any context; the scheduler's handle goes with it.
pub(super) fn bury(task: *const Task) {
    {
        let mut dead = DEAD.lock_irq();
        // SAFETY: the scheduler's handle keeps it alive, and a dead task's link is this list's.
        unsafe { *(*task).next_dead.get() = dead.first };
        dead.first = task;
    }
    ARRIVALS.wake_one();
}

/// Frees the stacks of all tasks that have ended. Not with a spin lock held; what was attached to them may be dropped here.
pub fn reap() {
    loop {
        let task = {
            let mut dead = DEAD.lock_irq();
            let task = dead.first;
            if task.is_null() {
                return;
            }
            // SAFETY: listed tasks are alive.
            dead.first = unsafe { *(*task).next_dead.get() };
            task
        };
        // SAFETY: `bury` got the scheduler's handle, which came from `Arc::into_raw`.
        drop(unsafe { Arc::from_raw(task) });
    }
}

/// Starts the reaper.
pub(super) fn start() {
    let spawn = Spawn {
        name: "reaper",
        pmap: None,
        attachment: None,
        cpus: u64::MAX,
    };
    let body = Box::new(|| {
        loop {
            let some = || (!DEAD.lock_irq().first.is_null()).then_some(());
            // A sound sleep ends with its condition only.
            let _ = ARRIVALS.wait(Sleep::SOUND, some);
            reap();
        }
    });
    super::spawn(spawn, body).expect("memory for the first tasks");
}

/// Forgets the dead, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    // SAFETY: the machine that used them is gone and the next has not started.
    unsafe {
        (&raw const DEAD)
            .cast_mut()
            .write(SpinLock::new(Rank::Task, Dead { first: ptr::null() }));
        (&raw const ARRIVALS).cast_mut().write(WaitQueue::new());
    }
}
