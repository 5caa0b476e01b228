//! Moving tasks to CPUs: when they wake up or are new, when their affinity changes, when a CPU has
//! nothing to do. Which CPU it is, is policy: see [`sched::placement`].

use alloc::sync::Arc;
use core::{
    ptr,
    sync::atomic::{Ordering, fence},
};

use sched::placement::{self as policy, Load, Look, Occupant, STEAL_SCAN};
use sched::run_queue::Among;

use super::{
    run_queue::{IDLE, Inner, ONLINE, QUEUES, RunQueue, URGENT, with_queue_of},
    task::{RUNNABLE, SLEEPING, SLEEPING_INTERRUPTIBLE, Task, TaskRef, current_raw},
};
use crate::{counters::Counter, hw::machine, time};

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
        let sleeps = !ptr::eq(inner.current, task);
        if sleeps {
            task.depart();
        }
        Some(sleeps)
    });
    if woke == Some(true) {
        if task.has_small_share() {
            // Others come close to its turn while it waits; it may hold locks.
            let floor = QUEUES[task.cpu()].floor.load(Ordering::Relaxed);
            task.set_place(task.place().woken(floor));
        }
        place(task);
    }
    machine::irqs_restore(irqs);
    woke.is_some()
}

/// The CPUs that `task` may run on; all, if none of those runs.
pub(super) fn allowed(task: &Task) -> u64 {
    let online = ONLINE.load(Ordering::Relaxed);
    policy::allowed(task.cpus.load(Ordering::SeqCst), online)
}

/// Whether `task` would run at once, and beside the current one, if it were woken now: on another
/// CPU that is idle.
pub(super) fn would_run_beside(task: &Task) -> bool {
    let others = IDLE.load(Ordering::Relaxed) & !(1 << machine::cpu());
    others != 0 && others & allowed(task) != 0
}

/// A CPU for a task that becomes runnable: an idle one, which is claimed, or else one that has
/// work.
fn choose(task: &Task) -> usize {
    let allowed = allowed(task);
    let last = task.cpu();
    let here = machine::cpu();
    loop {
        let idle = IDLE.load(Ordering::SeqCst) & allowed;
        if idle == 0 {
            break;
        }
        let cpu = policy::choose_idle(idle, last, here);
        // Clearing the bit claims the CPU; the next waker chooses another one.
        if IDLE.fetch_and(!(1 << cpu), Ordering::SeqCst) & 1 << cpu != 0 {
            return cpu;
        }
    }
    policy::choose_busy(allowed, task.level(), last, here, |cpu| QUEUES[cpu].load())
}

/// Whether a task with a level that is preempted on the CPU with the bit `here` would run at once
/// on another one.
pub(super) fn has_room_elsewhere(task: &Task, here: u64) -> bool {
    let urgency = |cpu: usize| QUEUES[cpu].urgency.load(Ordering::Relaxed);
    policy::has_room(allowed(task) & !here, task.level(), urgency)
}

/// Puts a runnable task that has [departed](Task::depart) into a run queue, and tells that CPU if
/// it should look. Interrupts off.
pub(super) fn place(task: &Task) {
    loop {
        let target = choose(task);
        machine::point();
        let queue = &*QUEUES[target];
        let inner = queue.lock();
        // A change that comes later waits for the arrival.
        if allowed(task) & 1 << target == 0 {
            queue.unlock();
            continue;
        }
        if task.cpu() != target {
            Counter::tasks_moved.add(1);
        }
        let virtual_time = arrive(queue, inner, task, target);
        let here = target == machine::cpu();
        let now = machine::nanoseconds();
        queue.charge(inner, now);
        // SAFETY: the running task is alive.
        let current = unsafe { &*inner.current };
        let occupant = Occupant {
            idle: current.idle,
            urgent: task.level() != 0 || current.level() != 0,
            virtual_time: current.virtual_time.load(Ordering::Relaxed),
            since: inner.switched_at,
        };
        let look = policy::look(occupant, virtual_time, here, now, || {
            inner.is_behind(current)
        });
        let kick = look == Look::Now && !inner.kicked && !inner.looks;
        inner.kicked |= kick;
        queue.unlock();
        if let Look::At(time) = look {
            time::hasten_tick(time);
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

/// Puts a task that has [departed](Task::depart) into the queue of `cpu`, which is locked. Gives
/// its virtual time there.
fn arrive(queue: &RunQueue, inner: &mut Inner, task: &Task, cpu: usize) -> u64 {
    let floor_of = |cpu: usize| QUEUES[cpu].floor.load(Ordering::Relaxed);
    let virtual_time = policy::virtual_time_in(
        floor_of(cpu),
        floor_of(task.cpu()),
        task.virtual_time.load(Ordering::Relaxed),
    );
    task.virtual_time.store(virtual_time, Ordering::Relaxed);
    queue.enqueue(inner, task, Among::Last);
    task.cpu.store(cpu, Ordering::SeqCst);
    virtual_time
}

/// Makes the CPU that runs `task`, if another one does, take an interrupt, so that it leaves its
/// program.
pub(super) fn poke(task: &Task) {
    if ptr::eq(task, current_raw()) {
        return;
    }
    let irqs = machine::irqs_disable();
    let cpu = with_queue_of(task, |_, inner| {
        ptr::eq(inner.current, task).then(|| task.cpu())
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
        if allowed(task) & 1 << task.cpu() != 0 {
            return false;
        }
        to_poke = ptr::eq(inner.current, task);
        let queued = task.queued.load(Ordering::Relaxed);
        if queued {
            queue.dequeue(inner, task);
            task.depart();
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
    // Others may know it already.
    with_queue_of(task, |_, _| task.depart());
    place(task);
    machine::irqs_restore(irqs);
}

/// Queues that a CPU locks at most in search of a task, the longest first. It bounds the work with
/// interrupts off; the next tick searches again.
const MOST_VICTIMS: usize = 4;

/// Takes a task that may run on `cpu` out of another's queue that holds at least `enough`, the
/// longest first. Interrupts off.
pub(super) fn steal(cpu: usize, enough: usize) -> Option<&'static Task> {
    let mut tried = 1u64 << cpu;
    for _ in 0..MOST_VICTIMS {
        let others = (0..machine::cpu_count()).filter(|other| tried & 1 << other == 0);
        let load = |other: usize| Load {
            queued: QUEUES[other].queued.load(Ordering::SeqCst),
            ..QUEUES[other].load()
        };
        let victim = policy::busiest(others, load, enough)?;
        let queue = &*QUEUES[victim];
        let inner = queue.lock();
        let fits = |task: &TaskRef| allowed(task.get()) & 1 << cpu != 0;
        let task = match is_about_to_run(queue, inner) {
            true => None,
            false => inner.waiting.find(STEAL_SCAN, fits).map(TaskRef::get),
        };
        if let Some(task) = task {
            queue.dequeue(inner, task);
            task.depart();
        }
        queue.unlock();
        if task.is_some() {
            return task;
        }
        tried |= 1 << victim;
    }
    None
}

/// Whether a CPU was given the only task in its queue while it had nothing to do: it has been told,
/// and what the task needs may be in its caches.
fn is_about_to_run(queue: &RunQueue, inner: &Inner) -> bool {
    // SAFETY: the running task, if this CPU schedules, is alive.
    let current = unsafe { inner.current.as_ref() };
    queue.queued.load(Ordering::Relaxed) == 1 && current.is_some_and(|task| task.idle)
}

/// Puts a stolen task into the queue of this CPU, or of another one if its affinity has changed
/// since. Interrupts off.
pub(super) fn take_over(cpu: usize, task: &Task) {
    let queue = &*QUEUES[cpu];
    let inner = queue.lock();
    let stays = allowed(task) & 1 << cpu != 0;
    if stays {
        Counter::tasks_stolen.add(1);
        arrive(queue, inner, task, cpu);
    }
    queue.unlock();
    if !stays {
        place(task);
    }
}

/// Fetches a task with a level that waits on another CPU and would run on this one. Interrupts off.
#[cold]
#[inline(never)]
pub(super) fn pull(cpu: usize) {
    let own = &*QUEUES[cpu];
    let inner = own.lock();
    // SAFETY: the running task is alive.
    let current = unsafe { &*inner.current };
    let first = inner.waiting.urgency();
    let runs = match current.state.load(Ordering::SeqCst) {
        RUNNABLE => current.level(),
        _ => 0,
    };
    own.unlock();
    let least = runs.max(first);
    let others = URGENT.load(Ordering::SeqCst) & !(1 << cpu);
    for other in policy::cpus(others) {
        let queue = &*QUEUES[other];
        let inner = queue.lock();
        // SAFETY: the running task is alive.
        let busy = unsafe { &*inner.current }.level();
        let fits = |task: &TaskRef| {
            let task = task.get();
            allowed(task) & 1 << cpu != 0 && (least + 1..=busy).contains(&task.level())
        };
        let task = inner
            .waiting
            .find_urgent(STEAL_SCAN, fits)
            .map(TaskRef::get);
        if let Some(task) = task {
            queue.dequeue(inner, task);
            task.depart();
        }
        queue.unlock();
        if let Some(task) = task {
            return take_over(cpu, task);
        }
    }
}
