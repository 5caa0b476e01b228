//! Kernel threads: preemptive, on per-CPU run queues, with sleeping and interruption. This is the
//! mechanism; the policy (order, placement, priorities) is in the crate [`sched`].
//!
//! From the bottom up:
//!
//! | file | contents |
//! |---|---|
//! | `task.rs` | [`Task`]: its state, and what the current one reads of itself |
//! | `run_queue.rs` | each CPU's queue, its lock, run times |
//! | `placement.rs` | waking, and moving tasks between CPUs |
//! | `dead.rs` | tasks that have ended |
//! | `scheduler.rs` | switching, sleeping, preempting, the tick |
//! | `spawn.rs` | [`spawn()`], and steering tasks |
//! | `waiter.rs`, `queue.rs`, `observer.rs` | sleepers in lists, [`WaitQueue`], [`WaitSet`],
//! [`sleep`] |
//! | `shortage.rs`, `reaper.rs` | the pagedaemon's sleep; the task that frees dead ones |
//! | `idle.rs`, `start.rs` | a CPU without work; the start of the scheduler |

mod dead;
mod idle;
mod observer;
mod placement;
mod queue;
mod reaper;
mod run_queue;
mod scheduler;
pub(crate) mod shortage;
mod spawn;
mod start;
#[allow(clippy::module_inception)]
mod task;
mod waiter;

pub use dead::reap;
pub use idle::{longest_look, set_longest_look};
pub use observer::{Observation, Observer, ObserverSet};
pub use queue::{Sleep, WaitQueue, WaitSet, Watch, Woken, sleep};
pub use run_queue::cpu_times;
pub use sched::priority::{Priority, TURN};
pub use scheduler::{MAX_CPUS, cpu, cpu_count, yield_now};
pub(crate) use scheduler::{block, must_look, reschedule, tick};
pub use spawn::{Spawn, spawn};
pub(crate) use start::{run_boot_cpu, run_on_this_cpu};
pub(crate) use task::has_current;
#[cfg(debug_assertions)]
pub(crate) use task::held_locks;
pub(crate) use task::with_compat_scratch;
pub use task::{Task, current, set_pmap, with_attachment};
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
    dead::reset();
    reaper::reset();
    idle::reset();
    shortage::reset();
    task::reset();
}
