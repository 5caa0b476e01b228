//! What a CPU does when there is nothing to do.
//!
//! It halts until an interrupt; who puts a task into its queue sends one. Where it had something to do again soon
//! the last time, as with two programs on two CPUs that answer each other, it first *looks* at its queue for a while:
//! then nobody has to send an interrupt, and nobody waits until a halted CPU runs again, which under a hypervisor or an emulator takes
//! longer than all that the scheduler does.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{
    placement::{steal, take_over},
    reaper,
    run_queue::{IDLE, QUEUES, RunQueue},
    scheduler::{preempt, schedule},
};
use crate::arch::machine;

/// Nanoseconds that a CPU looks at most, and that the last time must not have exceeded: about twice what an interrupt to a
/// halted CPU and its answer take under QEMU's emulation. Linux's `haltpoll` looks twice as long. On the simulated
/// machine it is a few steps.
const MOST: u64 = if cfg!(target_os = "none") {
    100_000
} else {
    2_000
};

/// Bit per CPU: looks at its queue.
static LOOKING: AtomicU64 = AtomicU64::new(0);

/// Whether the CPU finds by itself what was put into its queue, whose lock is held.
pub(super) fn looks(cpu: usize) -> bool {
    LOOKING.load(Ordering::SeqCst) & 1 << cpu != 0
}

/// The CPU leaves its idle task after so many nanoseconds. Its queue is locked.
pub(super) fn leave(queue: &RunQueue, cpu: usize, after: u64) {
    IDLE.fetch_and(!(1 << cpu), Ordering::SeqCst);
    if looks(cpu) {
        LOOKING.fetch_and(!(1 << cpu), Ordering::SeqCst);
    }
    // Nobody but this CPU's own interrupts can give an only CPU something to do.
    let again = after < MOST && machine::cpu_count() > 1;
    queue.looks.store(again, Ordering::Relaxed);
}

/// The body of each CPU's idle task. The interrupt that ends its sleep reschedules on
/// its way out, so the loop goes round when all work is done again.
pub(super) fn idle() -> ! {
    let cpu = machine::cpu();
    let queue = &*QUEUES[cpu];
    loop {
        machine::irqs_disable();
        if queue.queued.load(Ordering::SeqCst) == 0
            && let Some(task) = steal(cpu, 1)
        {
            take_over(cpu, task);
        }
        if queue.queued.load(Ordering::SeqCst) != 0 {
            schedule();
            continue;
        }
        if reaper::is_wanted() && reaper::wake() {
            continue;
        }
        // Who enqueues looks at `IDLE` after, and this looks at the queue after: one sees the
        // other. The interrupt that it sends then ends the wait, even if it comes before it.
        IDLE.fetch_or(1 << cpu, Ordering::SeqCst);
        machine::point();
        if queue.looks.load(Ordering::Relaxed) {
            look(cpu, queue);
        }
        if queue.queued.load(Ordering::SeqCst) == 0 && !machine::reschedule_wanted() {
            machine::wait_for_interrupt();
        }
        IDLE.fetch_and(!(1 << cpu), Ordering::SeqCst);
        machine::irqs_restore(true);
        preempt();
    }
}

/// Looks at the queue until something is in it, or long enough. Interrupts are off before and after, not meanwhile: one
/// of them may make this CPU run tasks, and then there is no more to look for.
///
/// Who enqueues looks at `LOOKING` after, and the caller looks at the queue after the bit is gone: one sees the other.
fn look(cpu: usize, queue: &RunQueue) {
    LOOKING.fetch_or(1 << cpu, Ordering::SeqCst);
    let end = machine::nanoseconds() + MOST;
    machine::irqs_restore(true);
    while queue.queued.load(Ordering::SeqCst) == 0 && looks(cpu) && machine::nanoseconds() < end {
        // Nobody has to go on for this to end: the simulated machine is not told that this CPU waits for another.
        if cfg!(target_os = "none") {
            machine::spin_hint();
        }
        machine::point();
    }
    machine::irqs_disable();
    LOOKING.fetch_and(!(1 << cpu), Ordering::SeqCst);
}

/// Forgets what CPUs did, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    LOOKING.store(0, Ordering::Relaxed);
}
