//! The start of the scheduler on each CPU.

use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::Ordering;

use super::{
    idle::idle,
    reaper,
    run_queue::{ONLINE, QUEUES},
    scheduler::yield_now,
    spawn::{Spawn, spawn},
    task::Task,
};
use crate::hw::machine;

/// Makes this CPU schedule, with the current stack as its idle task's.
fn join() {
    machine::irqs_disable();
    let cpu = machine::cpu();
    let idle = Arc::into_raw(Arc::new(Task::idle()));
    let queue = &*QUEUES[cpu];
    let inner = queue.lock();
    inner.bit = 1 << cpu;
    inner.current = idle;
    inner.idle = idle;
    inner.charged_at = machine::nanoseconds();
    queue.unlock();
    machine::set_task_pointer(idle as usize);
    ONLINE.fetch_or(1 << cpu, Ordering::SeqCst);
}

/// Starts the scheduler on the CPU that booted, with `main` as the first task.
pub(crate) fn run_boot_cpu(main: Box<dyn FnOnce() + Send>) -> ! {
    join();
    reaper::start();
    let how = Spawn::kernel("main");
    let main = Box::new(|| {
        // A task may be restricted to any CPU from the start.
        while (ONLINE.load(Ordering::SeqCst).count_ones() as usize) < machine::cpu_count() {
            yield_now();
        }
        main();
    });
    spawn(how, main).expect("memory for the first tasks");
    idle()
}

/// Starts the scheduler on another CPU.
pub(crate) fn run_on_this_cpu() -> ! {
    join();
    idle()
}
