//! Tasks that have ended: their stacks and the scheduler's handles.
//!
//! A task can't free the stack that it runs on, and the next task, which finds it dead, is inside
//! the scheduler with interrupts off, where nothing can be freed. So the dead of each CPU are
//! listed, and freed by its next [`spawn`](super::spawn()), so that a stack stays with its CPU; or
//! by [`reap`], or else by the reaper, a task that an idle CPU wakes.

use alloc::sync::Arc;
use core::{
    ptr,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use super::task::Task;
use crate::{
    cpu::percpu::{Pinned, Restart},
    hw::machine::{self, MAX_CPUS},
    lock::{Rank, SpinLock},
};

/// Each so many tasks that a CPU makes, those that have died on other CPUs are freed, too: no more
/// dead wait on all of them together than this for each CPU.
const TURN: u32 = 32;

/// The dead of a CPU, on cache lines of its own.
#[repr(align(64))]
struct Dead {
    first: SpinLock<First>,
    /// Whether there are any, to look at without the lock.
    is_any: AtomicBool,
    /// Tasks that were made on this CPU.
    made: AtomicU32,
}

struct First(*const Task);

// SAFETY: the pointers own a handle each to a `Task`, which is `Send` and `Sync`.
unsafe impl Send for First {}

impl Dead {
    const fn new() -> Dead {
        Dead {
            first: SpinLock::new(Rank::Task, First(ptr::null())),
            is_any: AtomicBool::new(false),
            made: AtomicU32::new(0),
        }
    }

    /// Frees them all, also those that come meanwhile.
    fn reap(&self) {
        while self.is_any.load(Ordering::Relaxed) {
            let task = {
                let mut first = self.first.lock_irq();
                let task = first.0;
                if task.is_null() {
                    return;
                }
                // SAFETY: listed tasks are alive.
                first.0 = unsafe { *(*task).next_dead.get() };
                self.is_any.store(!first.0.is_null(), Ordering::Relaxed);
                task
            };
            // SAFETY: listed tasks are alive.
            unsafe { (*task).wait_for_wakers() };
            // SAFETY: `bury` got the scheduler's handle, which came from `Arc::into_raw`.
            drop(unsafe { Arc::from_raw(task) });
        }
    }
}

static DEAD: Restart<[Dead; MAX_CPUS]> = Restart::new([const { Dead::new() }; MAX_CPUS]);

/// Lists a task that will never run again, with those of this CPU. Preemption is off; the
/// scheduler's handle goes with it.
///
/// Out of line: the switch is shorter without it.
#[inline(never)]
pub(super) fn bury(task: *const Task) {
    let dead = &DEAD[machine::cpu()];
    let mut first = dead.first.lock_irq();
    // SAFETY: the scheduler's handle keeps it alive, and a dead task's link is this list's.
    unsafe { *(*task).next_dead.get() = first.0 };
    first.0 = task;
    dead.is_any.store(true, Ordering::Relaxed);
}

/// Whether there is something for the reaper to do.
pub(super) fn is_wanted() -> bool {
    let mut dead = DEAD.iter().take(machine::cpu_count());
    dead.any(|dead| dead.is_any.load(Ordering::Relaxed))
}

/// Frees the stacks of tasks that have ended, before another one is made: those of this CPU, and in
/// turn all. Not with a spin lock held; what was attached to them may be dropped here.
pub(super) fn reap_some() {
    let cpu = Pinned::new().cpu();
    let dead = &DEAD[cpu];
    match dead.made.fetch_add(1, Ordering::Relaxed) % TURN {
        0 => reap(),
        _ => dead.reap(),
    }
}

/// Frees the stacks of all tasks that have ended. Not with a spin lock held; what was attached to
/// them may be dropped here.
pub fn reap() {
    DEAD.iter().take(machine::cpu_count()).for_each(Dead::reap);
}

/// Forgets the dead, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    // SAFETY: the machine that used them is gone and the next has not started.
    unsafe { DEAD.set([const { Dead::new() }; MAX_CPUS]) };
}
