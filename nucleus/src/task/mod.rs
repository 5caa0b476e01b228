//! Kernel threads: preemptive, on per-CPU run queues, with sleeping and interruption.
//!
//! - `task.rs`: [`Task`], [`spawn`] and what a task may ask of itself.
//! - `priority.rs`: how urgent a task is, [`Priority`].
//! - `run_queue.rs`: a CPU's tasks in the order in which they are to run.
//! - `scheduler.rs`: switching, sleeping, preempting, the tick.
//! - `idle.rs`: what a CPU without work does.
//! - `placement.rs`: waking, and which CPU a task goes to.
//! - `waiter.rs`, `queue.rs`: sleepers in lists, [`WaitQueue`], [`WaitSet`], [`sleep`].
//! - `observer.rs`: who is told of a queue's wake-ups without sleeping on it.
//! - `reaper.rs`: giving back the stacks of tasks that have ended.

mod idle;
mod observer;
mod placement;
mod priority;
mod queue;
mod reaper;
mod run_queue;
pub(crate) mod scheduler;
pub(crate) mod shortage;
#[allow(clippy::module_inception)]
mod task;
mod waiter;

pub use idle::set_longest_look;
pub use observer::{Observation, Observer, ObserverSet};
pub use priority::{Priority, TURN};
pub use queue::{Sleep, WaitQueue, WaitSet, Watch, Woken, sleep};
pub use reaper::reap;
pub use run_queue::cpu_times;
pub use scheduler::{MAX_CPUS, cpu, cpu_count, yield_now};
pub(crate) use scheduler::{block, reschedule, run_boot_cpu, run_on_this_cpu, tick};
#[cfg(debug_assertions)]
pub(crate) use task::held_locks;
pub(crate) use task::must_look;
pub use task::{Spawn, Task, current, set_pmap, spawn, with_attachment};
pub(crate) use task::{current_raw, is_interrupted, with_desk};
pub(crate) use waiter::{Waiter, WaiterList, wake_from};

#[cfg(test)]
mod observer_tests;
#[cfg(test)]
mod priority_tests;
#[cfg(test)]
mod tests;

#[cfg(not(target_os = "none"))]
pub(crate) use task::registry::report;

/// Forgets all tasks, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(crate) fn reset() {
    run_queue::reset();
    reaper::reset();
    idle::reset();
    shortage::reset();
    task::reset();
}
