//! One CPU's run queue: its lock, and the running task. The order of tasks is policy: see
//! [`sched::run_queue`].
//!
//! # Locking
//!
//! A run queue's lock is held, with interrupts off, *across* the switch: the next task gives it
//! back. So a CPU that holds the lock and finds that a task is not `current` knows that its
//! registers are saved. A task belongs to the queue that its `cpu` names. When it moves, it is out
//! of the old heap before its `cpu` changes under the new one's lock; between, it is runnable, in
//! no heap and on no CPU, and only the mover touches it. Two run queues are never locked at once.

#[cfg(not(target_os = "none"))]
use alloc::sync::Arc;
use core::{
    cell::UnsafeCell,
    ptr,
    sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use sched::account::{in_program, weighed};
use sched::debt::Place;
use sched::placement::Load;
use sched::priority::Priority;
use sched::run_queue::Among;

use super::task::{DEPARTED, Task, TaskRef};
use crate::{
    counters::Counter,
    cpu::percpu::Restart,
    hw::machine,
    lock::{Rank, RawSpin, lockdep},
};

#[repr(align(64))]
pub(super) struct RunQueue {
    lock: RawSpin,
    /// `lock`
    pub(super) inner: UnsafeCell<Inner>,
    /// Tasks in the heap [written under `lock`].
    pub(super) queued: AtomicUsize,
    /// The least virtual time in the queue, never going back [written under `lock`].
    pub(super) floor: AtomicU64,
    /// The highest level of the task that runs and of those in the heap, 0 if none has one [written
    /// under `lock`].
    pub(super) urgency: AtomicU8,
}

pub(super) struct Inner {
    /// This CPU's bit.
    pub(super) bit: u64,
    /// Tasks that wait.
    pub(super) waiting: sched::run_queue::RunQueue<TaskRef>,
    /// The running task; null before this CPU schedules.
    pub(super) current: *const Task,
    pub(super) idle: *const Task,
    /// When `current` was last charged for its time, nanoseconds since boot.
    pub(super) charged_at: u64,
    /// Nanoseconds in which there was nothing to run, and in which there was.
    pub(super) idle_time: u64,
    pub(super) busy_time: u64,
    /// Nanoseconds for which ticks found a program running, and the kernel.
    pub(super) sampled: [u64; 2],
    /// When the last tick was, and when `current` began to run: nanoseconds since boot.
    pub(super) ticked_at: u64,
    pub(super) switched_at: u64,
    /// Whether `current` has been asked to give way and has not yet.
    pub(super) kicked: bool,
    /// This CPU has nothing to do and looks into this queue: no interrupt need tell it.
    pub(super) looks: bool,
    /// When the idle task was last switched away from: nanoseconds since boot.
    pub(super) idle_left_at: u64,
    /// The task that was switched away from and must not go into this heap: dead, or not allowed
    /// here.
    pub(super) leaving: *const Task,
}

// SAFETY: `inner` is reached with `lock` held only, and its pointers are to tasks that the
// scheduler's handles keep alive.
unsafe impl Sync for RunQueue {}

impl RunQueue {
    const fn new() -> RunQueue {
        RunQueue {
            lock: RawSpin::new(),
            inner: UnsafeCell::new(Inner {
                bit: 0,
                waiting: sched::run_queue::RunQueue::new(),
                current: ptr::null(),
                idle: ptr::null(),
                charged_at: 0,
                idle_time: 0,
                busy_time: 0,
                sampled: [0; 2],
                ticked_at: 0,
                switched_at: 0,
                kicked: false,
                looks: false,
                idle_left_at: 0,
                leaving: ptr::null(),
            }),
            queued: AtomicUsize::new(0),
            floor: AtomicU64::new(0),
            urgency: AtomicU8::new(0),
        }
    }

    /// Takes the lock. Interrupts are off.
    #[allow(clippy::mut_from_ref)]
    pub(super) fn lock(&self) -> &mut Inner {
        debug_assert!(!machine::irqs_enabled());
        lockdep::check(Rank::RunQueue, &raw const self.lock as usize);
        self.lock.lock();
        // SAFETY: the lock is held; callers drop the reference before they unlock.
        unsafe { &mut *self.inner.get() }
    }

    pub(super) fn unlock(&self) {
        self.lock.unlock();
    }

    /// Puts a task, which is in no queue, into this one. Locked.
    pub(super) fn enqueue(&self, inner: &mut Inner, task: &Task, among: Among) {
        debug_assert!(!task.queued.load(Ordering::Relaxed));
        task.queued.store(true, Ordering::Relaxed);
        self.queued.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the scheduler's handle keeps it alive until it is dead, and a dead task is in no
        // queue; the lock is held.
        if inner.waiting.insert(unsafe { TaskRef::new(task) }, among) {
            self.note_urgent_waiters(inner);
        }
    }

    /// Takes a task out of this queue. Locked.
    #[inline(always)]
    pub(super) fn dequeue(&self, inner: &mut Inner, task: &Task) {
        task.queued.store(false, Ordering::Relaxed);
        self.queued.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: as in `enqueue`. It is in this queue: `queued` said so, or it was found there;
        // and its level has not changed since it was put there.
        if inner.waiting.remove(unsafe { TaskRef::new(task) }) {
            self.note_urgent_waiters(inner);
        }
    }

    /// Brings `urgency` up to date after a change of the running or waiting tasks. Locked.
    pub(super) fn note_urgency(&self, inner: &Inner) {
        // SAFETY: the running task is alive.
        let current = unsafe { inner.current.as_ref() };
        let urgency = current.map_or(0, Task::level).max(inner.waiting.urgency());
        if self.urgency.load(Ordering::Relaxed) != urgency {
            self.urgency.store(urgency, Ordering::Relaxed);
        }
    }

    /// Brings this CPU's bit of [`URGENT`] and `urgency` up to date after a change of the waiting
    /// tasks with levels. Locked.
    #[cold]
    fn note_urgent_waiters(&self, inner: &Inner) {
        self.note_urgency(inner);
        match inner.waiting.urgency() {
            0 => URGENT.fetch_and(!inner.bit, Ordering::SeqCst),
            _ => URGENT.fetch_or(inner.bit, Ordering::SeqCst),
        };
    }

    /// Adds the time since the last charge to the running task. Locked.
    pub(super) fn charge(&self, inner: &mut Inner, now: u64) {
        // SAFETY: the running task is alive.
        let Some(current) = (unsafe { inner.current.as_ref() }) else {
            return;
        };
        let ran = now.saturating_sub(inner.charged_at);
        inner.charged_at = now;
        if current.idle {
            inner.idle_time += ran;
            return;
        }
        inner.busy_time += ran;
        current.run_time.fetch_add(ran, Ordering::Relaxed);
        let level = current.level();
        if level != 0 {
            inner.waiting.budget.charge(level, ran);
            // Its own CPU's alone writes it.
            let used = current.turn_used.load(Ordering::Relaxed) + ran;
            current.turn_used.store(used, Ordering::Relaxed);
            return;
        }
        let nice = current.nice.load(Ordering::Relaxed);
        let virtual_time = current.virtual_time.load(Ordering::Relaxed) + weighed(ran, nice);
        current.virtual_time.store(virtual_time, Ordering::Relaxed);
        let least = match inner.waiting.first_virtual_time() {
            Some(first) if first < virtual_time => first,
            _ => virtual_time,
        };
        self.floor.fetch_max(least, Ordering::Relaxed);
    }
}

impl Inner {
    /// The task of the queue that is to run first.
    pub(super) fn first(&self) -> Option<&'static Task> {
        self.waiting.first().map(TaskRef::get)
    }

    /// Whether `task`, which runs here, is to give way to the first of the queue.
    pub(super) fn is_behind(&self, task: &Task) -> bool {
        // SAFETY: the running task is alive, and the handle goes no further.
        self.waiting.is_behind(unsafe { TaskRef::new(task) })
    }
}

impl RunQueue {
    /// What other CPUs know of this one without its lock.
    #[inline]
    pub(super) fn load(&self) -> Load {
        Load {
            queued: self.queued.load(Ordering::Relaxed),
            urgency: self.urgency.load(Ordering::Relaxed),
        }
    }
}

pub(super) static QUEUES: [Restart<RunQueue>; machine::MAX_CPUS] =
    [const { Restart::new(RunQueue::new()) }; machine::MAX_CPUS];

/// Bit per CPU that schedules.
pub(super) static ONLINE: AtomicU64 = AtomicU64::new(0);
/// Bit per CPU that found nothing to run and has not been given anything since.
pub(super) static IDLE: AtomicU64 = AtomicU64::new(0);
/// Bit per CPU in whose queue a task with a level waits.
pub(super) static URGENT: AtomicU64 = AtomicU64::new(0);

/// Runs `f` with the run queue locked that the task belongs to; waits while it is on its way from
/// one to another. Interrupts off.
pub(super) fn with_queue_of<R>(task: &Task, f: impl FnOnce(&RunQueue, &mut Inner) -> R) -> R {
    loop {
        let cpu = task.cpu.load(Ordering::SeqCst);
        if cpu & DEPARTED != 0 {
            machine::spin_hint();
            continue;
        }
        let queue = &*QUEUES[cpu];
        let inner = queue.lock();
        if task.cpu.load(Ordering::SeqCst) == cpu {
            machine::point();
            let result = f(queue, inner);
            queue.unlock();
            return result;
        }
        queue.unlock();
    }
}

/// See [`Task::set_priority`].
pub(super) fn set_priority(task: &Task, priority: Priority) {
    if task.priority() == priority {
        return;
    }
    let irqs = machine::irqs_disable();
    with_queue_of(task, |queue, inner| {
        let old = task.level();
        if let (0, Priority::Share(_)) = (old, priority) {
            task.store_priority(priority);
            return;
        }
        let running = ptr::eq(inner.current, task);
        if running {
            queue.charge(inner, machine::nanoseconds());
        }
        let queued = task.queued.load(Ordering::Relaxed);
        if queued {
            queue.dequeue(inner, task);
        }
        task.store_priority(priority);
        if task.level() == 0 {
            // As if it were new.
            let floor = queue.floor.load(Ordering::Relaxed);
            task.set_place(Place {
                virtual_time: floor,
                debt: 0,
            });
        }
        if queued {
            // As on Linux, a task that steps down is the first of its new level.
            let among = match task.level() < old {
                true => Among::First,
                false => Among::Last,
            };
            queue.enqueue(inner, task, among);
        } else if running {
            queue.note_urgency(inner);
        }
        // A look at the queue finds the task that is to run now.
        let cpu = task.cpu();
        if !queued && !running {
        } else if cpu == machine::cpu() {
            machine::set_reschedule(true);
        } else {
            Counter::ipi_reschedule.add(1);
            machine::send_reschedule(cpu);
        }
    });
    machine::irqs_restore(irqs);
    machine::preempt();
}

/// Nanoseconds that `task` has run.
pub(super) fn run_time(task: &Task) -> u64 {
    let irqs = machine::irqs_disable();
    let total = with_queue_of(task, |queue, inner| {
        if ptr::eq(inner.current, task) {
            queue.charge(inner, machine::nanoseconds());
        }
        task.run_time.load(Ordering::Relaxed)
    });
    machine::irqs_restore(irqs);
    total
}

/// Time that a CPU, below [`cpu_count`], has spent in programs, in the kernel, and without anything
/// to run. The sum of the first two is exact; the ticks say how it is divided.
pub fn cpu_times(cpu: usize) -> [Duration; 3] {
    let irqs = machine::irqs_disable();
    let queue = &*QUEUES[cpu];
    let inner = queue.lock();
    queue.charge(inner, machine::nanoseconds());
    let (idle, busy) = (inner.idle_time, inner.busy_time);
    let [program, kernel] = inner.sampled;
    queue.unlock();
    machine::irqs_restore(irqs);
    let program = in_program(busy, program, kernel);
    [program, busy - program, idle].map(Duration::from_nanos)
}

/// Forgets all tasks, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    for queue in &QUEUES {
        // SAFETY: the machine that used it is gone and the next has not started. Idle tasks had no
        // other owner than the queue.
        unsafe {
            let idle = (*queue.inner.get()).idle;
            if !idle.is_null() {
                drop(Arc::from_raw(idle));
            }
            queue.set(RunQueue::new());
        }
    }
    ONLINE.store(0, Ordering::SeqCst);
    IDLE.store(0, Ordering::SeqCst);
    URGENT.store(0, Ordering::SeqCst);
}
