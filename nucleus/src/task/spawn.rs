//! Making, ending and steering tasks.

use alloc::{boxed::Box, sync::Arc};
use core::{
    any::Any,
    cell::UnsafeCell,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use sched::account::in_program;
use sched::priority::Priority;

#[cfg(not(target_os = "none"))]
use super::task::registry;
use super::{
    dead::reap_some,
    placement, run_queue, scheduler,
    task::{Task, current_raw, set_pmap},
};
use crate::{
    OutOfMemory,
    hw::{context::Context, machine},
    mem::KernelStack,
    pmap::PmapRef,
};

/// What a new task is.
pub struct Spawn {
    /// For the log and backtraces.
    pub name: &'static str,
    /// The address space it runs in, none for a task that touches no program.
    pub pmap: Option<PmapRef>,
    /// What the floors above attach to the task, found again by [`Task::attachment`].
    pub attachment: Option<Arc<dyn Any + Send + Sync>>,
    /// Bit per CPU on which it may run.
    pub cpus: u64,
    /// How urgent it is.
    pub priority: Priority,
}

impl Spawn {
    /// Returns a task of the kernel's own, of no program, on any CPU and with the usual priority.
    pub fn kernel(name: &'static str) -> Spawn {
        Spawn {
            name,
            pmap: None,
            attachment: None,
            cpus: !0,
            priority: Priority::default(),
        }
    }
}

/// Makes a task that runs `body` and ends when it returns.
///
/// # Errors
/// No memory for its stack.
pub fn spawn(spawn: Spawn, body: Box<dyn FnOnce() + Send>) -> Result<Arc<Task>, OutOfMemory> {
    reap_some();
    let stack = KernelStack::alloc()?;
    // SAFETY: the task keeps the stack as long as the context.
    let context = unsafe { Context::new(stack.top(), begin, 0) };
    let mut task = Task::new(spawn.name, context, Some(stack));
    task.cpus = AtomicU64::new(spawn.cpus);
    task.pmap = UnsafeCell::new(spawn.pmap);
    task.attachment = spawn.attachment;
    task.body = UnsafeCell::new(Some(body));
    let task = Arc::new(task);
    task.store_priority(spawn.priority);
    #[cfg(not(target_os = "none"))]
    registry::add(&task);
    placement::start(task.clone());
    Ok(task)
}

/// Where a new task's stack begins.
extern "C" fn begin(_: usize) -> ! {
    scheduler::finish_switch();
    machine::irqs_restore(true);
    // SAFETY: the body is the task's own.
    let body = unsafe { (*(*current_raw()).body.get()).take() };
    if let Some(body) = body {
        #[cfg(not(target_os = "none"))]
        contain(body);
        #[cfg(target_os = "none")]
        body();
    }
    exit()
}

/// Runs a task's body on the simulated machine; a panic goes no further.
#[cfg(not(target_os = "none"))]
fn contain(body: Box<dyn FnOnce() + Send>) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
        machine::point();
        unreachable!("a run went on after a panic");
    }
}

/// Ends the current task.
fn exit() -> ! {
    set_pmap(None);
    #[cfg(not(target_os = "none"))]
    registry::remove(current_raw());
    scheduler::leave_for_ever()
}

impl Task {
    /// Makes the task's current or next interruptible sleep end with
    /// [`Woken::Interrupted`](super::Woken::Interrupted), and makes it leave its program soon if it
    /// is running one (an interrupt to its CPU).
    pub fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
        machine::point();
        if !placement::wake(self, true) {
            placement::poke(self);
        }
    }

    /// CPU time used in programs and in the kernel. The sum is exact; the ticks say how it is
    /// divided.
    pub fn cpu_time(&self) -> (Duration, Duration) {
        let total = run_queue::run_time(self);
        let [in_programs, kernel] = self.sampled.each_ref().map(|s| s.load(Ordering::Relaxed));
        let before = self.reported.each_ref().map(|r| r.load(Ordering::Relaxed));
        let program = in_program(total, in_programs, kernel)
            .min(total.saturating_sub(before[1]))
            .max(before[0]);
        let in_kernel = total.saturating_sub(program);
        self.reported[0].fetch_max(program, Ordering::Relaxed);
        self.reported[1].fetch_max(in_kernel, Ordering::Relaxed);
        (
            Duration::from_nanos(program),
            Duration::from_nanos(in_kernel),
        )
    }

    /// Sets the priority, at once.
    pub fn set_priority(&self, priority: Priority) {
        run_queue::set_priority(self, priority);
    }

    /// Restricts it to CPUs (bit per CPU, at least one of those running).
    pub fn set_cpus(&self, cpus: u64) {
        self.cpus.store(cpus, Ordering::SeqCst);
        placement::obey_affinity(self);
    }
}
