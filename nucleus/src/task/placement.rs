//! Which CPU a task goes to: when it wakes up or is new, when its affinity changes, when a CPU has
//! nothing to do.

use alloc::sync::Arc;
use core::{
    ptr,
    sync::atomic::{Ordering, fence},
};

use super::{
    Task,
    run_queue::{Among, IDLE, ONLINE, QUEUES, URGENT, with_queue_of},
    task::{RUNNABLE, SLEEPING, SLEEPING_INTERRUPTIBLE, current_raw},
};
use crate::{counters::Counter, hw::machine, time};

/// How far behind the others a task may be when it wakes up, in nanoseconds: enough to run at once
/// before tasks that compute, less than a slice, so that many wake-ups in a row don't starve them.
const SLEEPER_CREDIT: i64 = 6_000_000;

/// How far behind the running task one must be to take its CPU at once, in nanoseconds. Below it
/// the switches would cost more than the wait: a pipeline's stages would alternate at every write.
const WAKE_GRANULARITY: u64 = 1_000_000;

/// How long a task runs, in nanoseconds, before one that it wakes on its own CPU takes that over.
/// The waker of a pipeline mostly has more to write: `yes | head -c 20000000 | cat` switches less
/// than half as often, for a delay that no person notices.
const LEAST_RUN: u64 = 1_000_000;

/// How many queued tasks a CPU looks at for one that it may take.
const STEAL_SCAN: usize = 16;

/// Makes a sleeping task runnable; one that sleeps soundly only without `interrupting`. Any
/// context. Returns whether it slept.
pub(crate) fn wake(task: &Task, interrupting: bool) -> bool {
    let sleeps = |task: &Task| {
        let state = task.state.load(Ordering::SeqCst);
        state == SLEEPING_INTERRUPTIBLE || state == SLEEPING && !interrupting
    };
    fence(Ordering::SeqCst);
    if !sleeps(task) {
        return false;
    }
    let irqs = machine::irqs_disable();
    let woke = with_queue_of(task, |_, inner| {
        if !sleeps(task) {
            return None;
        }
        task.state.store(RUNNABLE, Ordering::SeqCst);
        // Not yet switched away: it goes on by itself.
        Some(!ptr::eq(inner.current, task))
    });
    if woke == Some(true) {
        place(task);
    }
    machine::irqs_restore(irqs);
    woke.is_some()
}

/// The CPUs that `task` may run on; all, if none of those runs.
pub(super) fn allowed(task: &Task) -> u64 {
    let online = ONLINE.load(Ordering::Relaxed);
    match task.cpus.load(Ordering::SeqCst) & online {
        0 => online,
        some => some,
    }
}

/// Whether `task` would run at once, and beside the current one, if it were woken now: on another CPU that is idle.
pub(super) fn would_run_beside(task: &Task) -> bool {
    let others = IDLE.load(Ordering::Relaxed) & !(1 << machine::cpu());
    others != 0 && others & allowed(task) != 0
}

/// A CPU for a task that becomes runnable: its last one if that is idle, for its caches; then any
/// idle one; then the last one again, or the least loaded of those it may use.
fn choose(task: &Task) -> usize {
    let allowed = allowed(task);
    let last = task.cpu.load(Ordering::Relaxed);
    let here = machine::cpu();
    loop {
        let idle = IDLE.load(Ordering::SeqCst) & allowed;
        if idle == 0 {
            break;
        }
        let cpu = if idle & 1 << last != 0 {
            last
        } else if idle & 1 << here != 0 {
            here
        } else {
            idle.trailing_zeros() as usize
        };
        // Who clears the bit has it; the next waker chooses another one.
        if IDLE.fetch_and(!(1 << cpu), Ordering::SeqCst) & 1 << cpu != 0 {
            return cpu;
        }
    }
    if task.level() != 0 {
        return choose_for_level(task, allowed);
    }
    let load = |cpu: usize| {
        let busy = QUEUES[cpu].urgency.load(Ordering::Relaxed) != 0;
        QUEUES[cpu].queued.load(Ordering::Relaxed) + usize::from(busy)
    };
    // Another CPU is worth its caches only if it has less to do by two.
    let last_load = (allowed & 1 << last != 0).then(|| load(last));
    if last_load.is_some_and(|load| load <= 1) {
        return last;
    }
    let least = cpus(allowed).min_by_key(|&cpu| load(cpu)).unwrap_or(here);
    match last_load {
        Some(last_load) if last_load <= load(least) + 1 => last,
        _ => least,
    }
}

/// The CPUs of a mask, rising.
fn cpus(mut mask: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let cpu = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (cpu < 64).then_some(cpu)
    })
}

/// A CPU for a task with a level where all of those that it may use have something to run: the last one if that gives way to it,
/// then the one that does the least urgent things.
fn choose_for_level(task: &Task, allowed: u64) -> usize {
    let urgency = |cpu: usize| QUEUES[cpu].urgency.load(Ordering::Relaxed);
    let last = task.cpu.load(Ordering::Relaxed);
    if allowed & 1 << last != 0 && urgency(last) < task.level() {
        return last;
    }
    let least = cpus(allowed).min_by_key(|&cpu| (urgency(cpu), cpu != last));
    match least {
        Some(least) if urgency(least) < task.level() || allowed & 1 << last == 0 => least,
        _ => last,
    }
}

/// Whether a task with a level that is displaced on the CPU with the bit `here` would run at once on another one.
pub(super) fn has_room_elsewhere(task: &Task, here: u64) -> bool {
    let level = task.level();
    let others = allowed(task) & !here;
    level != 0 && cpus(others).any(|cpu| QUEUES[cpu].urgency.load(Ordering::Relaxed) < level)
}

/// Puts a runnable task that is in no heap and on no CPU into a run queue, and tells that CPU if it
/// should look. Interrupts off.
pub(super) fn place(task: &Task) {
    loop {
        let target = choose(task);
        let queue = &*QUEUES[target];
        let inner = queue.lock();
        if allowed(task) & 1 << target == 0 {
            queue.unlock();
            continue;
        }
        let virtual_time = move_to(task, target);
        queue.enqueue(inner, task, Among::Last);
        let here = target == machine::cpu();
        let now = machine::nanoseconds();
        queue.charge(inner, now);
        // SAFETY: the running task is alive.
        let current = unsafe { &*inner.current };
        let urgent = task.level() != 0 || current.level() != 0;
        let soon = current.idle
            || if urgent {
                inner.is_behind(current)
            } else {
                virtual_time + WAKE_GRANULARITY < current.virtual_time.load(Ordering::Relaxed)
            };
        // A CPU's own timer can be set to the end of the run that it lets its task finish.
        let run_ends = inner.switched_at + LEAST_RUN;
        let later = soon && here && !urgent && !current.idle && now < run_ends;
        let kick = soon && !later && !inner.kicked && !inner.looks;
        inner.kicked |= kick;
        queue.unlock();
        if later {
            time::hasten_tick(run_ends);
        }
        if kick {
            if here {
                machine::set_reschedule(true);
            } else {
                Counter::ipi_reschedule.add(1);
                machine::send_reschedule(target);
            }
        }
        return;
    }
}

/// Makes the task one of `cpu`'s, as far from that queue's floor as it was from its last one's, but
/// not behind by more than the credit. Gives its virtual time. `cpu`'s queue is locked.
fn move_to(task: &Task, cpu: usize) -> u64 {
    let floor_of = |cpu: usize| QUEUES[cpu].floor.load(Ordering::Relaxed);
    let behind_by = floor_of(task.cpu.load(Ordering::Relaxed)) as i64
        - task.virtual_time.load(Ordering::Relaxed) as i64;
    let virtual_time = (floor_of(cpu) as i64 - behind_by.min(SLEEPER_CREDIT)).max(0) as u64;
    task.virtual_time.store(virtual_time, Ordering::Relaxed);
    task.cpu.store(cpu, Ordering::SeqCst);
    virtual_time
}

/// Makes the CPU that runs `task`, if another one does, take an interrupt, so that it leaves its
/// program.
pub(super) fn poke(task: &Task) {
    let irqs = machine::irqs_disable();
    let cpu = with_queue_of(task, |_, inner| {
        ptr::eq(inner.current, task).then(|| task.cpu.load(Ordering::Relaxed))
    });
    if let Some(cpu) = cpu
        && cpu != machine::cpu()
    {
        Counter::ipi_reschedule.add(1);
        machine::send_reschedule(cpu);
    }
    machine::irqs_restore(irqs);
}

/// Moves the task to a CPU that it may use, now or, if it is running, as soon as it gives way.
pub(super) fn obey_affinity(task: &Task) {
    let irqs = machine::irqs_disable();
    let mut to_poke = false;
    let moved = with_queue_of(task, |queue, inner| {
        let cpu = task.cpu.load(Ordering::Relaxed);
        if allowed(task) & 1 << cpu != 0 {
            return false;
        }
        to_poke = ptr::eq(inner.current, task);
        let queued = task.queued.load(Ordering::Relaxed);
        if queued {
            queue.dequeue(inner, task);
        }
        queued
    });
    if moved {
        place(task);
    }
    machine::irqs_restore(irqs);
    if to_poke {
        if ptr::eq(task, current_raw()) {
            machine::set_reschedule(true);
            machine::preempt();
        } else {
            poke(task);
        }
    }
}

/// Gives a new task its first CPU.
pub(super) fn start(task: Arc<Task>) {
    let irqs = machine::irqs_disable();
    // The scheduler's handle, given back by the reaper.
    let task = Arc::into_raw(task);
    // SAFETY: that handle keeps it alive.
    let task = unsafe { &*task };
    let floor = QUEUES[task.cpu()].floor.load(Ordering::Relaxed);
    task.virtual_time.store(floor, Ordering::Relaxed);
    place(task);
    machine::irqs_restore(irqs);
}

/// Takes a task that may run on `cpu` out of another's queue that holds at least `enough`, the
/// longest first. Interrupts off.
pub(super) fn steal(cpu: usize, enough: usize) -> Option<&'static Task> {
    let (victim, waiting) = (0..machine::cpu_count())
        .filter(|&other| other != cpu)
        .map(|other| {
            let queue = &*QUEUES[other];
            let waiting = queue.queued.load(Ordering::SeqCst);
            // What waits behind a level waits for longer.
            let urgent = waiting != 0 && queue.urgency.load(Ordering::Relaxed) != 0;
            (other, waiting + usize::from(urgent))
        })
        .max_by_key(|&(_, waiting)| waiting)?;
    if waiting < enough {
        return None;
    }
    let queue = &*QUEUES[victim];
    let inner = queue.lock();
    let found = inner.find(STEAL_SCAN, |task| allowed(task) & 1 << cpu != 0);
    let task = found.map(|task| {
        // SAFETY: it is in the heap, hence alive, and the scheduler's handle keeps it so.
        let task = unsafe { task.as_ref() };
        queue.dequeue(inner, task);
        task
    });
    queue.unlock();
    task
}

/// Puts a stolen task into the queue of this CPU. Interrupts off.
pub(super) fn take_over(cpu: usize, task: &Task) {
    let queue = &*QUEUES[cpu];
    let inner = queue.lock();
    move_to(task, cpu);
    queue.enqueue(inner, task, Among::Last);
    queue.unlock();
}

/// Fetches a task with a level that waits on another CPU and would run on this one. Interrupts off.
pub(super) fn pull(cpu: usize) {
    let own = &*QUEUES[cpu];
    let inner = own.lock();
    // SAFETY: the running task is alive, and so are those in the heap.
    let (current, first) = unsafe {
        let first = inner.urgent.first();
        (
            &*inner.current,
            first.map_or(0, |first| first.as_ref().level()),
        )
    };
    let runs = match current.state.load(Ordering::SeqCst) {
        RUNNABLE => current.level(),
        _ => 0,
    };
    own.unlock();
    let least = runs.max(first);
    let others = URGENT.load(Ordering::SeqCst) & !(1 << cpu);
    for other in cpus(others) {
        let queue = &*QUEUES[other];
        let inner = queue.lock();
        // SAFETY: the running task is alive.
        let busy = unsafe { &*inner.current }.level();
        let found = inner.urgent.find(STEAL_SCAN, |task| {
            allowed(task) & 1 << cpu != 0 && (least + 1..=busy).contains(&task.level())
        });
        let task = found.map(|task| {
            // SAFETY: it is in the heap, hence alive, and the scheduler's handle keeps it so.
            let task = unsafe { task.as_ref() };
            queue.dequeue(inner, task);
            task
        });
        queue.unlock();
        if let Some(task) = task {
            return take_over(cpu, task);
        }
    }
}
