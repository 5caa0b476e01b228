//! Task switches: switching, sleeping, preempting, the tick.
//!
//! The bit of a CPU that has nothing to do is set in [`IDLE`], and a waker looks there first. A CPU
//! with work has a tick, a hundred times a second, which ends time slices and evens out the queues.

use core::{
    ptr,
    sync::atomic::{Ordering, fence},
};

use sched::run_queue::Among;

use super::{
    dead::bury,
    placement::{allowed, has_room_elsewhere, place, pull, steal, take_over},
    run_queue::{IDLE, QUEUES, URGENT},
    task::{DEAD, RUNNABLE, SLEEPING, SLEEPING_INTERRUPTIBLE, Task, current_raw, current_ref},
};
use crate::{
    counters::Counter,
    hw::{context::Context, machine},
    lock::lockdep,
    time,
};

/// Between two ticks, in nanoseconds; also the time slice where more than one task is in the queue.
const TICK: u64 = 1_000_000_000 / time::TICKS_PER_SECOND as u64;

/// The most CPUs that can run.
pub const MAX_CPUS: usize = machine::MAX_CPUS;

/// The number of CPUs running, 1 to [`MAX_CPUS`].
pub fn cpu_count() -> usize {
    machine::cpu_count()
}

/// The CPU this runs on; it may be another one by the time the caller looks at the answer.
pub fn cpu() -> usize {
    machine::cpu()
}

/// Lets others run.
pub fn yield_now() {
    lockdep::may_sleep();
    let Some(task) = current_ref() else { return };
    let irqs = machine::irqs_disable();
    let queue = &*QUEUES[machine::cpu()];
    let inner = queue.lock();
    queue.charge(inner, machine::nanoseconds());
    if task.level() != 0 {
        task.yields.store(true, Ordering::Relaxed);
    } else if let Some(first) = inner.waiting.first_virtual_time() {
        task.virtual_time.fetch_max(first + 1, Ordering::Relaxed);
    }
    queue.unlock();
    schedule(true);
    machine::irqs_restore(irqs);
}

/// Runs another task if one is wanted, unless preemption is disabled. Restores the interrupt flag.
/// `in_program`: the current task runs its program, or is about to, and holds no lock.
#[cold]
pub(crate) fn reschedule(in_program: bool) {
    if machine::preempt_count() != 0 || current_raw().is_null() {
        return;
    }
    let irqs = machine::irqs_disable();
    while machine::reschedule_wanted() {
        schedule(in_program);
    }
    machine::irqs_restore(irqs);
}

/// Puts the current task to sleep unless `awake` holds. May return for no reason: callers look at
/// what they wait for again.
///
/// The state is set before `awake` looks, and its waker wakes after that: one of the two
/// sees the other.
#[track_caller]
pub(crate) fn block(interruptible: bool, awake: impl FnOnce() -> bool) {
    let Some(task) = current_ref() else {
        panic!("nothing can sleep before the first task");
    };
    #[cfg(debug_assertions)]
    task.note_wait();
    let irqs = machine::irqs_disable();
    let asleep = if interruptible {
        SLEEPING_INTERRUPTIBLE
    } else {
        SLEEPING
    };
    task.state.store(asleep, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    machine::point();
    if awake() || interruptible && task.is_interrupted() {
        // A waker that gets in between finds the task running here and changes nothing else.
        task.state.store(RUNNABLE, Ordering::SeqCst);
    } else {
        schedule(false);
    }
    machine::irqs_restore(irqs);
}

/// Ends the current task, whose stack is given back later.
pub(super) fn leave_for_ever() -> ! {
    machine::irqs_disable();
    if let Some(task) = current_ref() {
        task.state.store(DEAD, Ordering::SeqCst);
    }
    schedule(true);
    unreachable!("a dead task was run");
}

/// Switches to the task that is to run now, which may be the current one. Interrupts off,
/// preemption not disabled. Returns when the current task runs again. `in_turn`: it holds no lock,
/// and waits for its turn if it is preempted; else it [comes before that](sched::debt).
///
/// # Panics
/// If the task holds a spin lock, or is pinned: it might go on elsewhere, with what is this CPU's.
pub(super) fn schedule(in_turn: bool) {
    assert!(
        machine::preempt_count() == 0,
        "a task is switched away from while it holds a spin lock"
    );
    let cpu = machine::cpu();
    let queue = &*QUEUES[cpu];
    machine::set_reschedule(false);
    let here = 1 << cpu;
    if URGENT.load(Ordering::SeqCst) & !here != 0 {
        pull(cpu);
    }
    let mut inner = queue.lock();
    inner.kicked = false;
    let now = machine::nanoseconds();
    queue.charge(inner, now);
    // SAFETY: the running task, this one, is alive.
    let previous = unsafe { &*inner.current };
    let stays = previous.state.load(Ordering::SeqCst) == RUNNABLE && !previous.idle;
    // Tasks that were forbidden this CPU while they were on their way to it.
    while let Some(first) = inner.first() {
        if allowed(first) & here != 0 {
            break;
        }
        queue.dequeue(inner, first);
        first.depart();
        queue.unlock();
        place(first);
        inner = queue.lock();
    }
    let may_stay = stays && allowed(previous) & here != 0;
    let next = if may_stay && !inner.is_behind(previous) {
        previous
    } else if let Some(first) = inner.first() {
        queue.dequeue(inner, first);
        first
    } else {
        // SAFETY: idle tasks live as long as the machine.
        unsafe { &*inner.idle }
    };
    let among = match previous.level() {
        0 => Among::Last,
        _ => give_turn(previous),
    };
    if ptr::eq(next, previous) {
        queue.unlock();
        return;
    }
    if stays && !in_turn && previous.has_small_share() {
        let floor = queue.floor.load(Ordering::Relaxed);
        previous.set_place(previous.place().preempted(floor));
    }
    let count = &previous.switches[usize::from(stays)];
    // The holder of the lock alone writes it.
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    if may_stay && !has_room_elsewhere(previous, here) {
        queue.enqueue(inner, previous, among);
    } else if stays || previous.state.load(Ordering::SeqCst) == DEAD {
        inner.leaving = previous;
    }
    if previous.idle {
        IDLE.fetch_and(!here, Ordering::SeqCst);

        // From here on a waker has to interrupt this CPU.
        inner.looks = false;
        inner.idle_left_at = now;
    }
    inner.current = next;
    inner.switched_at = now;
    if next.watches_switches.load(Ordering::Relaxed) {
        next.switched.store(true, Ordering::Relaxed);
    }
    queue.note_urgency(inner);
    if !next.idle && !time::has_tick() {
        time::set_tick(now + TICK);
    }
    Counter::task_switches.add(1);
    machine::set_task_pointer(ptr::from_ref(next) as usize);
    // A task without a program, the idle task above all, borrows the space it finds.
    // SAFETY: the field is the next task's own, which does not run yet.
    crate::pmap::activate(unsafe { (*next.pmap.get()).as_ref() });
    // SAFETY: both are contexts of tasks that the scheduler's handles keep alive; `next` is not
    // running anywhere, since it was in this heap or is this CPU's idle task, and its registers are
    // saved, since the lock of the queue that it ran on last has been given back. Interrupts are
    // off.
    unsafe { Context::switch(&previous.context, &next.context) };
    finish_switch();
}

/// Whether the current task has to look at something before its program goes on: it was
/// [interrupted](Task::interrupt), or switched to and [wants to know that](Task::watch_switches),
/// or it has just paid its debt, and others may have run meanwhile. Interrupts off.
#[inline(always)]
pub(crate) fn must_look() -> bool {
    current_ref().is_some_and(|task| {
        let looks = task.interrupted.load(Ordering::SeqCst);
        let looks = looks || task.switched.load(Ordering::Relaxed);
        if looks {
            settle(task);
        }
        looks
    })
}

#[cold]
fn settle(task: &Task) {
    pay_debt(task);
    if !task.watches_switches.load(Ordering::Relaxed) {
        task.switched.store(false, Ordering::Relaxed);
    }
}

/// The current task, which holds no lock, pays its debt, and waits for its turn.
#[cold]
fn pay_debt(task: &Task) {
    if task.debt.load(Ordering::Relaxed) == 0 {
        return;
    }
    let irqs = machine::irqs_disable();
    let queue = &*QUEUES[machine::cpu()];
    let inner = queue.lock();
    queue.charge(inner, machine::nanoseconds());
    // One that has got a level meanwhile owes nothing either: its virtual time means nothing.
    task.set_place(task.place().paid());
    let behind = inner.is_behind(task);
    queue.unlock();
    if behind {
        machine::set_reschedule(true);
        reschedule(true);
    }
    machine::irqs_restore(irqs);
}

/// A task with a level is looked at by the scheduler: where it goes if others run before it.
fn give_turn(task: &Task) -> Among {
    if !task.gives_way() {
        return Among::First;
    }
    task.yields.store(false, Ordering::Relaxed);
    task.turn_used.store(0, Ordering::Relaxed);
    Among::Last
}

/// The first thing that a task does when it has been switched to: what the previous one could not
/// do any more. Interrupts off.
pub(super) fn finish_switch() {
    let queue = &*QUEUES[machine::cpu()];
    // SAFETY: the lock was taken by the task that was switched away from on this CPU.
    let leaving = unsafe { ptr::replace(&raw mut (*queue.inner.get()).leaving, ptr::null()) };
    // SAFETY: the scheduler's handle keeps it alive.
    let leaving = unsafe { leaving.as_ref() };
    let is_dead = leaving.is_some_and(|task| task.state.load(Ordering::SeqCst) == DEAD);
    if let Some(task) = leaving.filter(|_| !is_dead) {
        task.depart();
    }
    queue.unlock();
    match leaving {
        None => {}
        Some(task) if is_dead => bury(task),
        Some(task) => place(task),
    }
}

/// The tick of a CPU. Interrupts off. Gives the time of the next one, nothing if the CPU is idle.
pub(crate) fn tick(now: u64, in_program: bool) -> Option<u64> {
    let cpu = machine::cpu();
    let queue = &*QUEUES[cpu];
    let inner = queue.lock();
    queue.charge(inner, now);
    // SAFETY: the running task is alive.
    let current = unsafe { &*inner.current };
    inner.waiting.budget.renew(now);
    let waiting = queue.queued.load(Ordering::Relaxed);
    let behind = inner.is_behind(current);
    if !behind && current.turn_is_over() {
        // No other task has its level: another turn.
        current.turn_used.store(0, Ordering::Relaxed);
    }
    let span = now.saturating_sub(inner.ticked_at).min(TICK);
    inner.ticked_at = now;
    if !current.idle {
        let kind = usize::from(!in_program);
        inner.sampled[kind] += span;
        current.sampled[kind].fetch_add(span, Ordering::Relaxed);
    }
    let wanted = inner.first().map_or(0, allowed);
    queue.unlock();
    if behind {
        machine::set_reschedule(true);
    }
    if current.idle {
        return None;
    }
    // Someone waits here while a CPU sleeps that may run it: that one will come and take it.
    let idle = IDLE.load(Ordering::Relaxed) & wanted;
    if idle != 0 {
        Counter::ipi_reschedule.add(1);
        machine::send_reschedule(idle.trailing_zeros() as usize);
    }
    let own = waiting + usize::from(current.level() != 0);
    if let Some(task) = steal(cpu, own + 2) {
        take_over(cpu, task);
    }
    Some(now + TICK)
}
