//! Kernel threads: preemptive, on per-CPU run queues, with sleeping and interruption.

use alloc::{boxed::Box, sync::Arc};
use core::{any::Any, time::Duration};

use crate::{OutOfMemory, Pmap};

/// A kernel thread.
pub struct Task {
    _private: (),
}

/// What a new task is.
pub struct Spawn {
    /// For the log and backtraces.
    pub name: &'static str,
    /// The address space it runs in, none for a task that touches no program.
    pub pmap: Option<Arc<Pmap>>,
    /// What the floors above attach to the task, found again by [`Task::attachment`].
    pub attachment: Option<Arc<dyn Any + Send + Sync>>,
    /// Bit per CPU on which it may run.
    pub cpus: u64,
}

/// Makes a task that runs `body` and ends when it returns.
pub fn spawn(spawn: Spawn, body: Box<dyn FnOnce() + Send>) -> Result<Arc<Task>, OutOfMemory> {
    todo!()
}

/// The current task.
pub fn current() -> Arc<Task> {
    todo!()
}

/// Runs `f` with the current task's attachment, without touching a reference count.
pub fn with_attachment<R>(f: impl FnOnce(Option<&(dyn Any + Send + Sync)>) -> R) -> R {
    todo!()
}

/// Switches the current task to another address space, or to none (the kernel's own), at once.
pub fn set_pmap(pmap: Option<Arc<Pmap>>) {
    todo!()
}

/// Lets others run.
pub fn yield_now() {
    todo!()
}

/// The number of CPUs running, 1 to 16.
pub fn cpu_count() -> usize {
    todo!()
}

/// The CPU this runs on; it may be another one by the time the caller looks at the answer.
pub fn cpu() -> usize {
    todo!()
}

impl Task {
    /// What was attached at [`spawn`].
    pub fn attachment(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        todo!()
    }

    /// Makes the task's current or next interruptible sleep end with [`Woken::Interrupted`], and
    /// makes it leave its program soon if it is running one (an interrupt to its CPU).
    pub fn interrupt(&self) {
        todo!()
    }

    /// Takes back an [`interrupt`](Task::interrupt) that has been dealt with.
    pub fn clear_interrupt(&self) {
        todo!()
    }

    /// Whether an [`interrupt`](Task::interrupt) is outstanding.
    pub fn is_interrupted(&self) -> bool {
        todo!()
    }

    /// CPU time used in programs and in the kernel.
    pub fn cpu_time(&self) -> (Duration, Duration) {
        todo!()
    }

    /// The CPU it runs or last ran on.
    pub fn cpu(&self) -> usize {
        todo!()
    }

    /// Whether it is on a CPU or a run queue, rather than asleep.
    pub fn is_runnable(&self) -> bool {
        todo!()
    }

    /// Nice value, -20 to 19.
    pub fn set_nice(&self, nice: i8) {
        todo!()
    }

    /// Restricts it to CPUs (bit per CPU, at least one of those running).
    pub fn set_cpus(&self, cpus: u64) {
        todo!()
    }
}

/// How a sleep may end besides by its condition.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sleep {
    /// An [`Task::interrupt`] ends it.
    pub interruptible: bool,
    /// Ends at this time since boot.
    pub deadline: Option<Duration>,
}

impl Sleep {
    /// Only the condition ends it.
    pub const SOUND: Sleep = Sleep {
        interruptible: false,
        deadline: None,
    };
    /// A signal ends it too.
    pub const INTERRUPTIBLE: Sleep = Sleep {
        interruptible: true,
        deadline: None,
    };
}

/// Why a sleep ended without its condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    Interrupted,
    TimedOut,
}

/// Tasks that wait for something to become true.
pub struct WaitQueue {
    _private: (),
}

impl WaitQueue {
    /// An empty queue.
    pub const fn new() -> WaitQueue {
        WaitQueue { _private: () }
    }

    /// Sleeps until `ready` gives a value. `ready` runs at first, and after each wake-up, with no lock
    /// of the queue held; a wake-up between its answer and the sleep is not lost.
    pub fn wait<T>(&self, how: Sleep, ready: impl FnMut() -> Option<T>) -> Result<T, Woken> {
        todo!()
    }

    /// Wakes the longest waiting task. Any context. Returns whether there was one.
    pub fn wake_one(&self) -> bool {
        todo!()
    }

    /// Wakes all. Any context.
    pub fn wake_all(&self) {
        todo!()
    }
}

impl Default for WaitQueue {
    fn default() -> WaitQueue {
        WaitQueue::new()
    }
}

/// Waiting on several queues at once (`poll`). Register first, then look at the conditions, then [`wait`](WaitSet::wait).
pub struct WaitSet<'a> {
    queues: alloc::vec::Vec<&'a WaitQueue>,
}

impl<'a> WaitSet<'a> {
    /// Waits on nothing yet.
    pub fn new() -> WaitSet<'a> {
        todo!()
    }

    /// A wake-up of `queue` from now on ends the next [`wait`](WaitSet::wait).
    pub fn add(&mut self, queue: &'a WaitQueue) {
        todo!()
    }

    /// Sleeps until one of the queues was woken since it was added or since the last `wait`.
    pub fn wait(&mut self, how: Sleep) -> Result<(), Woken> {
        todo!()
    }
}

/// Sleeps until a time since boot.
pub fn sleep(how: Sleep) -> Woken {
    todo!()
}
